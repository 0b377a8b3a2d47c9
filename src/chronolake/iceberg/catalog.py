"""The Iceberg catalog and its tables.

A table is one state of its metadata, and publishes new metadata with a compare-and-set. The catalog
finds, lists, creates, renames and drops tables.
"""

from __future__ import annotations

import json
import re
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import orjson
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from chronolake.errors import CommitConflictError, LakeError, SchemaError, TableExistsError
from chronolake.iceberg import rest
from chronolake.iceberg.durability import sync_files_of_executors
from chronolake.iceberg.rest import catalog_error
from chronolake.location import cut_in_urls
from chronolake.session import CATALOG
from chronolake.storage import storage_error
from chronolake.types import (
    LAKE_PROPERTY,
    SCRATCH_SCHEMA,
    Column,
    ColumnType,
    Kind,
    TableName,
    levels_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from chronolake.iceberg.stored_metadata import StoredMetadata


MAIN: Final = "main"
#: A branch of pipeline tables: rows that only later writes read.
HIDDEN: Final = "chronolake-hidden"
#: Table property: the declared columns as JSON, in table order (see `columns_to_json`).
COLUMNS_PROPERTY: Final = "chronolake.columns"

_JAVA: Final = "org.apache.iceberg"
_REFUSED: Final = (
    f"{_JAVA}.exceptions.CommitFailedException",
    f"{_JAVA}.exceptions.ValidationException",
)
_DENIED: Final = (
    f"{_JAVA}.exceptions.NotAuthorizedException",
    f"{_JAVA}.exceptions.ForbiddenException",
)
_NO_SCHEMA: Final = f"{_JAVA}.exceptions.NoSuchNamespaceException"
#: A table is missing. (An object store's `NoSuchBucketException` does not mean that.)
_MISSING: Final = (
    _NO_SCHEMA,
    f"{_JAVA}.exceptions.NoSuchTableException",
    f"{_JAVA}.exceptions.NoSuchIcebergTableException",
)
#: A schema has no schemas inside: it was dropped meanwhile, or the catalog does not nest them.
_NOT_NESTED: Final = (_NO_SCHEMA, f"{_JAVA}.exceptions.BadRequestException")
#: The beginning of the last line of a Python worker's traceback for an error of chronolake.
_RAISED_IN_TASK: Final = "\nchronolake.errors."
#: The beginning of Spark's message about any error of a Python worker, and its traceback's parts.
_OF_WORKER: Final = "An exception was thrown from the Python worker"
#: An error that a statement of chronolake raises (`raise_error`), with what Spark adds to it.
_RAISED_IN_SQL: Final = re.compile(r"\[USER_RAISED_EXCEPTION\] (.*?)(?: SQLSTATE: P0001|$)")
_FRAME: Final = re.compile(r'^ +File "(?:[^"]*/)?([^"/]+)", line (\d+)', re.MULTILINE)
#: The class of an error at the beginning of Spark's message.
_ERROR_CLASS: Final = re.compile(r"\[[A-Z][A-Z0-9_.]*\]")
_LAST: Final = re.compile(r"^([A-Za-z_][\w.]*)(?::|$)", re.MULTILINE)


def _expect_safe_name(name: TableName) -> None:
    """Raise if a location that contains a table's name would be another table's location, too.

    Raises:
        SchemaError: it would.
    """
    if cut := cut_in_urls(str(name)):
        raise SchemaError(
            f"The catalog stores tables in folders of their names, which Iceberg cuts off at "
            f"{cut}: tables would replace each other's files.",
            table=str(name),
            hint="Set lake.warehouse, so that Chronolake chooses the folders, or rename the table "
            "or its schema.",
        )


def java_class_of(failure: BaseException) -> str:
    """Return the Java class behind an exception from Py4J, or the empty string."""
    if isinstance(failure, Py4JJavaError):
        return str(failure.java_exception.getClass().getName())
    origin = getattr(failure, "_origin", None)
    if isinstance(failure, PySparkException) and origin is not None:
        return str(origin.getClass().getName())
    return ""


def java_message_of(failure: BaseException) -> str:
    """Return the first line of the Java message, or of the exception itself.

    An error of chronolake in a task is returned completely: problem, location and hint. Of any
    other error in a task, only the class and the location are returned, because its message may
    contain a cell.
    """
    if isinstance(failure, Py4JJavaError):
        text = str(failure.java_exception.getMessage())
    else:
        text = str(failure)
    _, is_ours, reported = text.rpartition(_RAISED_IN_TASK)
    if is_ours:
        # The error's class is before the message, and Java's stack after it.
        return " ".join(reported.partition(": ")[2].partition("\n\n")[0].split())
    text = text.strip()
    if raised := _RAISED_IN_SQL.search(text):
        return raised[1]
    if text.startswith(_OF_WORKER):
        file, line = (_FRAME.findall(text) or [("an unknown file", "0")])[-1]
        kind = (_LAST.findall(text) or ["error"])[-1]
        return f"A Spark task failed with {kind} in {file}, line {line}."
    return text.partition("\n")[0]


def jvm_ended(failure: BaseException) -> LakeError | None:
    """Return the error for a JVM that has ended, or None if a failure has another cause."""
    if not isinstance(failure, Py4JNetworkError | ConnectionError):
        return None
    frames = traceback.walk_tb(failure.__traceback__)
    modules = (str(frame.f_globals.get("__name__")) for frame, _ in frames)
    if not any(module.partition(".")[0] == "py4j" for module in modules):
        # A connection of something else, such as a source.
        return None
    return LakeError(
        "Spark's process has ended.",
        hint="Its memory was probably too small: raise spark.conf.spark.driver.memory in "
        "chronolake.yml. Then run the command again, which continues where it stopped.",
    )


def spark_words(failure: BaseException) -> str | None:
    """Return the message of Spark or Java in one line; None for other kinds of failures."""
    if not isinstance(failure, PySparkException | Py4JError):
        return None
    return java_message_of(failure)


def hide_values(failure: BaseException, message: str) -> str:
    """Return what is shown of an error that may quote values of rows.

    Args:
        failure: an error that is not one of chronolake.
        message: its message, as `java_message_of` or the exception itself has it.
    """
    text = str(failure)
    if any(part in text for part in (_RAISED_IN_TASK, "[USER_RAISED_EXCEPTION]", _OF_WORKER)):
        return message
    kind = _ERROR_CLASS.match(message)
    return f"{kind[0] if kind else type(failure).__name__} (its message may contain values)"


def columns_to_json(columns: Iterable[Column]) -> str:
    """Return declared columns as the value of `COLUMNS_PROPERTY`."""
    items = []
    for column in columns:
        item: dict[str, Any] = {"name": column.name, "type": column.type.kind.value}
        if column.type.kind is Kind.DECIMAL:
            item |= {"precision": column.type.precision, "scale": column.type.scale}
        if column.primary_key:
            item["primary_key"] = True
        items.append(item)
    return json.dumps(items, ensure_ascii=False, separators=(",", ":"))


def columns_from_json(text: str) -> tuple[Column, ...]:
    """Return the columns of a value of `columns_to_json`."""
    return tuple(
        Column(
            item["name"],
            ColumnType(Kind(item["type"]), item.get("precision"), item.get("scale")),
            item.get("primary_key", False),
        )
        for item in json.loads(text)
    )


@dataclass(frozen=True)
class Field:
    """A field of a table: its Iceberg id, name and Iceberg type as text."""

    field_id: int
    name: str
    type: str


class IcebergTable:
    """A loaded table: one immutable state of its metadata.

    If the state was read from its file (`StoredMetadata`), the first use of `java` or `metadata`
    starts Spark, unless it runs. A commit to such a state conflicts with any commit since, as
    for a state that was loaded by Java.
    """

    def __init__(
        self,
        catalog: Catalog,
        name: TableName,
        *,
        java: Any = None,
        stored: StoredMetadata | None = None,
        frozen_as: str | None = None,
    ) -> None:
        self.catalog = catalog
        self.name = name
        self._frozen_as = frozen_as
        self._stored = stored
        if java is not None:
            self.java = java
            # Loaded now: `current` may be another state later.
            self.metadata = self._operations.current()

    @property
    def sql(self) -> str:
        """Return the name by which Spark reads the table; its current state, unless frozen."""
        return self._frozen_as or f"{CATALOG}.{self.name.sql}"

    @cached_property
    def java(self) -> Any:
        """Return the Java `Table`."""
        return self.catalog.load_java(self.name)

    @cached_property
    def _operations(self) -> Any:
        return self.java.operations()

    @cached_property
    def metadata(self) -> Any:
        """Return the state as Java's `TableMetadata`."""
        current = self._operations.current()
        if self._stored is None or str(current.metadataFileLocation()) == self._stored.file:
            return current
        return self.catalog.parse_metadata(self._operations.io(), self._stored.file)

    @property
    def properties(self) -> dict[str, str]:
        """Return the table's properties, with a call to Java for each of them."""
        if self._stored is not None:
            return dict(self._stored.properties)
        return dict(self.metadata.properties())

    def property_of(self, key: str) -> str | None:
        """Return one of the table's properties, or None."""
        if self._stored is not None:
            return self._stored.properties.get(key)
        value = self.metadata.properties().get(key)
        return None if value is None else str(value)

    @property
    def is_unwritten(self) -> bool:
        """Return whether the table has only the rows with which its metadata began."""
        snapshot = self.metadata.currentSnapshot()
        return snapshot is None or snapshot.parentId() is None

    @property
    def format_version(self) -> int:
        """Return Iceberg's format version of the table."""
        if self._stored is not None:
            return self._stored.format_version
        return int(self.metadata.formatVersion())

    @property
    def location(self) -> str:
        """Return the folder of the table's files."""
        return str(self.metadata.location()) if self._stored is None else self._stored.location

    @property
    def metadata_file(self) -> str:
        """Return the location of the metadata file from which this state was read."""
        if self._stored is not None:
            return self._stored.file
        return str(self.metadata.metadataFileLocation())

    def manifest_lists(self) -> list[str]:
        """Return the location of the current snapshot's manifest list; empty without a snapshot."""
        snapshot = self.metadata.currentSnapshot()
        return [] if snapshot is None else [str(snapshot.manifestListLocation())]

    def files_of_metadata(self) -> list[str]:
        """Return the locations of the files in the folder of the table's metadata.

        Java lists them, with the credentials for the table's files, and takes few calls for any
        number of them.

        Raises:
            Exception: an exception of Java: the store refuses, or cannot list.
        """
        listed = self.java.io().listPrefix(f"{self.location.rstrip('/')}/metadata/")
        jvm = self.catalog.jvm
        files = jvm.org.apache.iceberg.relocated.com.google.common.collect.Lists.newArrayList(
            listed
        )
        jackson = jvm.com.fasterxml.jackson
        mapper = jackson.databind.ObjectMapper()
        visible = getattr(jackson.annotation, "JsonAutoDetect$Visibility").ANY
        mapper.setVisibility(jackson.annotation.PropertyAccessor.FIELD, visible)
        return [file["location"] for file in orjson.loads(mapper.writeValueAsString(files))]

    @property
    def snapshot_id(self) -> int | None:
        """Return the current snapshot of `main`, or None for a table that never had one."""
        if self._stored is not None:
            return self._stored.branches.get(MAIN)
        snapshot = self.metadata.currentSnapshot()
        return None if snapshot is None else int(snapshot.snapshotId())

    def has_published(self, snapshot_id: int) -> bool:
        """Return whether a snapshot is `main`'s current one, or is still in its snapshot log."""
        log = self.metadata.snapshotLog()
        return any(int(entry.snapshotId()) == snapshot_id for entry in log)

    def snapshots_since(self, since: int | None, head: int | None) -> Iterator[Any]:
        """Yield Java snapshots from the newest to the oldest.

        Args:
            since: the snapshot before the oldest; None for all that are still in the metadata.
            head: the newest; None for none.
        """
        while head is not None and head != since:
            snapshot = self.metadata.snapshot(head)
            if snapshot is None:
                return
            yield snapshot
            parent = snapshot.parentId()
            head = None if parent is None else int(parent)

    def has_rows_of(self, branch: str, snapshot_id: int) -> bool:
        """Return whether a branch still has the rows of a snapshot: only files changed since."""
        now = self.branch(branch)
        while now is not None and now != snapshot_id:
            snapshot = self.metadata.snapshot(now)
            if snapshot is None or str(snapshot.operation()) != "replace":
                return False
            parent = snapshot.parentId()
            now = None if parent is None else int(parent)
        return now is not None

    @property
    def rows(self) -> int | None:
        """Return the number of rows in `main`'s data files, with removed ones; None if unknown."""
        return self.rows_of(MAIN)

    def rows_of(self, branch: str) -> int | None:
        """Return the number of rows in a branch's data files, removed ones included.

        It is 0 if the branch does not exist, and None if its snapshot does not contain the number.
        """
        summary = self._summary(branch)
        if summary is None:
            return 0
        total = summary.get("total-records")
        return None if total is None else int(total)

    @property
    def bytes(self) -> int | None:
        """Return the size of `main`'s data and delete files, in bytes; None if unknown."""
        size = self.summary_of(MAIN).get("total-files-size")
        return None if size is None else int(size)

    def summary_of(self, branch: str) -> dict[str, str]:
        """Return the summary of a branch's snapshot; empty if the branch does not exist."""
        return dict(self._summary(branch) or {})

    def _summary(self, branch: str) -> Any:
        """Return the summary of a branch's snapshot, a map of Java or Python, or None."""
        if self._stored is not None:
            return self._stored.summaries.get(branch)
        snapshot_id = self.branch(branch)
        return None if snapshot_id is None else self.metadata.snapshot(snapshot_id).summary()

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """Return the current columns, in table order."""
        fields = (
            self.catalog.fields(self.metadata.schema())
            if self._stored is None
            else self._stored.fields
        )
        return tuple(Field(int(field["id"]), field["name"], field["type"]) for field in fields)

    def branches(self) -> dict[str, int]:
        """Return the branches other than `main`, with their snapshots."""
        refs = self.metadata.refs()
        # A table that was never written has no `main`.
        has_others = refs.size() > int(refs.containsKey(MAIN))
        names = [str(name) for name in refs.keySet() if name != MAIN] if has_others else []
        return {name: int(refs.get(name).snapshotId()) for name in names if refs[name].isBranch()}

    def branch(self, name: str) -> int | None:
        """Return the snapshot of a branch, or None if the branch does not exist."""
        reference = self.metadata.ref(name)
        return None if reference is None else int(reference.snapshotId())

    def builder(self) -> Any:
        """Return a Java `TableMetadata.Builder` that starts from this state."""
        return self.catalog.builder_from(self.metadata)

    def commit(self, metadata: Any) -> None:
        """Replace this state with `metadata`, if it is still the table's state.

        Raises:
            CommitConflictError: another writer was first; nothing has changed.
            LakeLocationError: the table is outside the opened lake.
            CatalogError: a REST catalog refused the request; nothing has changed.
            Exception: any other Java exception; the outcome may be unknown.
        """
        self.catalog.guard.expect_inside(self)
        try:
            self.catalog.make_durable(metadata, self._operations.io())
            self.catalog.commit(self, self._operations, metadata)
        except (Py4JJavaError, PySparkException) as failure:
            if java_class_of(failure) in _DENIED and (denied := catalog_error(failure)):
                raise denied from failure
            if java_class_of(failure) in _REFUSED:
                raise CommitConflictError(
                    f"Another writer changed the table first: {java_message_of(failure)}",
                    hint="Send the batch again.",
                    table=str(self.name),
                ) from failure
            raise

    def reload(self) -> IcebergTable:
        """Return the table's current state."""
        return self.catalog.load(self.name)


_TYPES: Final = {
    Kind.BOOLEAN: "boolean",
    Kind.SHORT: "int",
    Kind.INT: "int",
    Kind.LONG: "long",
    Kind.FLOAT: "float",
    Kind.DOUBLE: "double",
    Kind.NAIVE_DATE: "date",
    Kind.NAIVE_DATETIME: "timestamp",
    Kind.UTC_DATETIME: "timestamptz",
    Kind.BINARY: "binary",
    Kind.STRING: "string",
    Kind.JSON: "string",
    Kind.XML: "string",
    Kind.NAIVE_TIME: "string",
}


def type_name(column_type: ColumnType) -> str:
    """Return the Iceberg type in which columns of a logical type are stored, without spaces."""
    if column_type.kind is Kind.DECIMAL:
        return f"decimal({column_type.precision},{column_type.scale})"
    return _TYPES[column_type.kind]


class Guard(Protocol):
    """A check before writes, which raises if this process must not write."""

    @property
    def marks(self) -> Mapping[str, str]:
        """Return the properties that identify tables that may be written."""

    def expect_writable(self) -> str | None:
        """Return the identity for new tables, or None; raise if no table may be created."""

    def expect_here(self) -> None:
        """Raise if the lake was copied or moved, which explains missing files."""

    def expect_inside(self, table: IcebergTable) -> None:
        """Raise if a table must not be written."""


@dataclass(frozen=True)
class _Connection:
    """The catalog in the JVM, and the classes that it is used with.

    Resolving a name through the JVM's packages costs a call for each part.
    """

    jvm: Any
    catalog: Any
    is_rest: bool
    schema_parser: Any
    metadata: Any
    metadata_parser: Any
    namespaces: Any
    identifiers: Any
    maps: Any
    strings: Any

    @classmethod
    def of(cls, spark: SparkSession) -> Self:
        """Open the catalog of a session.

        Raises:
            LakeError: the catalog cannot be opened.
        """
        jvm: Any = spark._jvm  # noqa: SLF001
        iceberg = jvm.org.apache.iceberg
        session = spark._jsparkSession  # noqa: SLF001
        # A catalog is created with the settings of the thread's active session.
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session)
        manager = session.sessionState().catalogManager()
        try:
            catalog = manager.catalog(CATALOG).icebergCatalog()
        except (Py4JError, PySparkException) as failure:
            raise (
                storage_error(failure)
                or catalog_error(failure)
                or LakeError(
                    f"The lake's catalog cannot be opened: {java_message_of(failure)}",
                    hint="Check the lake's folder and `lake.catalog` in chronolake.yml.",
                )
            ) from failure
        return cls(
            jvm,
            catalog,
            rest.is_rest_catalog(catalog),
            iceberg.SchemaParser,
            iceberg.TableMetadata,
            iceberg.TableMetadataParser,
            iceberg.catalog.Namespace,
            iceberg.catalog.TableIdentifier,
            jvm.java.util.HashMap,
            jvm.java.lang.String,
        )


class Catalog:
    """The lake's Iceberg catalog, in the JVM of a session that starts when it is first needed."""

    def __init__(
        self,
        start: Callable[[], SparkSession],
        guard: Guard,
        read_stored: Callable[[Collection[TableName]], Mapping[TableName, StoredMetadata]]
        | None = None,
    ) -> None:
        """Define the catalog; nothing is read.

        Args:
            start: returns the session; the first call starts it.
            guard: the checks before writes.
            read_stored: reads the current metadata of tables without a JVM; those that do not
                exist are missing in the result. It may raise anything. None if only a JVM can.
        """
        self.guard = guard
        self._start = start
        self._read_stored = read_stored
        self._cached_connection: _Connection | None = None
        self._lock = threading.RLock()

    @property
    def spark(self) -> SparkSession:
        """Return the session; the first call starts it."""
        return self._start()

    @property
    def jvm(self) -> Any:
        """Return the session's JVM."""
        return self._connection.jvm

    @property
    def reads_without_java(self) -> bool:
        """Return whether `find` needs no JVM while none runs."""
        return self._read_stored is not None

    def connect(self) -> None:
        """Start Spark and open the catalog, unless that was done.

        Raises:
            LakeError: the catalog cannot be opened.
        """
        with self._lock:
            if self._cached_connection is None:
                self._cached_connection = _Connection.of(self._start())

    @property
    def _connection(self) -> _Connection:
        if self._cached_connection is None:
            self.connect()
        assert self._cached_connection is not None  # noqa: S101 - connected above
        return self._cached_connection

    @property
    def _java(self) -> Any:
        """Return the Java `Catalog`."""
        return self._connection.catalog

    def make_durable(self, metadata: Any, io: Any) -> None:
        """Sync the files to which a commit of `metadata` refers, if they are not synced already."""
        if not self.spark.sparkContext.master.startswith("local["):
            sync_files_of_executors(self.spark, metadata, io)

    @property
    def replaces_metadata(self) -> bool:
        """Return whether a commit may replace a table's metadata by any other.

        Otherwise the catalog applies the changes that lead from the current metadata to the new.
        """
        return not self._connection.is_rest

    def commit(self, table: IcebergTable, operations: Any, metadata: Any) -> None:
        """Replace a table's state by metadata; any exception of Java is raised.

        Args:
            table: the state that must be current.
            operations: the table's Java `TableOperations`.
            metadata: the Java `TableMetadata`.
        """
        if self._connection.is_rest:
            rest.commit(self.jvm, operations, table.metadata, metadata, (MAIN, HIDDEN))
        else:
            operations.commit(table.metadata, metadata)

    def _namespace(self, schema: str, *, levels: int | None = None) -> Any:
        """Return the Java `Namespace` of a schema, or of its first levels."""
        parts = levels_of(schema)[:levels]
        array = self.spark.sparkContext._gateway.new_array(self._connection.strings, len(parts))  # noqa: SLF001
        for number, part in enumerate(parts):
            array[number] = part
        return self._connection.namespaces.of(array)

    def builder_from(self, metadata: Any) -> Any:
        """Return a Java `TableMetadata.Builder` that starts from some metadata."""
        return self._connection.metadata.buildFrom(metadata)

    def identifier(self, name: TableName) -> Any:
        """Return the Java `TableIdentifier` of a table."""
        return self._connection.identifiers.of(self._namespace(name.schema), name.table)

    def find(self, name: TableName) -> IcebergTable | None:
        """Return the table's current state, or None if it does not exist.

        Raises:
            LakeLocationError: its metadata is missing, because the lake was copied or moved.
            LakeError: its metadata cannot be read, or the catalog does not respond.
        """
        if self._cached_connection is None:
            return self.peek([name])[0]
        java = self._load_java(name)
        return None if java is None else IcebergTable(self, name, java=java)

    def peek(self, names: Sequence[TableName]) -> list[IcebergTable | None]:
        """Return the current states of tables, read without a JVM if possible, even if one runs.

        That is faster than `find` for callers that need only properties, columns and sizes.

        Args:
            names: the tables; the states are returned in their order, None for missing tables.

        Raises:
            LakeLocationError: metadata is missing, because the lake was copied or moved.
            LakeError: metadata cannot be read, or the catalog does not respond.
        """
        found = []
        for table in self.peek_each(names):
            if isinstance(table, LakeError):
                raise table
            found.append(table)
        return found

    def peek_each(self, names: Sequence[TableName]) -> list[IcebergTable | LakeError | None]:
        """Return the current states of tables as `peek` does, or the error of each that has one."""
        if self._read_stored is not None:
            # Whatever goes wrong, Java finds it, too.
            with suppress(Exception):
                stored = self._read_stored(names)
                return [
                    IcebergTable(self, name, stored=stored[name]) if name in stored else None
                    for name in names
                ]
            if len(names) > 1:
                # Iceberg tries to read damaged metadata for more than a minute.
                return [table for name in names for table in self.peek_each([name])]
        return [self._load_or_error(name) for name in names]

    def _load_or_error(self, name: TableName) -> IcebergTable | LakeError | None:
        try:
            java = self._load_java(name)
        except LakeError as failure:
            return failure
        return None if java is None else IcebergTable(self, name, java=java)

    def load_java(self, name: TableName) -> Any:
        """Return a Java `Table`.

        Raises:
            LakeError: the table does not exist, or the catalog does not respond.
        """
        java = self._load_java(name)
        if java is None:
            raise self._missing_error(name)
        return java

    def _load_java(self, name: TableName) -> Any:
        try:
            return self._java.loadTable(self.identifier(name))
        except (Py4JJavaError, PySparkException) as failure:
            if java_class_of(failure) in _MISSING:
                return None
            self.guard.expect_here()
            raise self._error(f"The table {name} cannot be read", failure) from failure

    def parse_metadata(self, io: Any, file: str) -> Any:
        """Return Java's `TableMetadata` of a metadata file.

        Args:
            io: the `FileIO` of the table.
            file: the location of the file.

        Raises:
            CommitConflictError: the file was removed, after many commits of other writers.
        """
        try:
            return self._connection.metadata_parser.read(io, file)
        except (Py4JJavaError, PySparkException) as failure:
            raise CommitConflictError(
                f"Other writers changed the table meanwhile: {java_message_of(failure)}",
                file=file,
                hint="Run the command again.",
            ) from failure

    def load(self, name: TableName) -> IcebergTable:
        """Return the table's current state.

        Raises:
            LakeError: the table does not exist, or the catalog does not respond.
        """
        table = self.find(name)
        if table is None:
            raise self._missing_error(name)
        return table

    @staticmethod
    def _missing_error(name: TableName) -> LakeError:
        return LakeError(
            "The table was dropped or renamed.",
            table=str(name),
            hint="`chronolake tables` lists the existing tables.",
        )

    def tables(self) -> list[TableName]:
        """Return all tables of the lake, sorted."""
        return sorted(
            name
            for schema in self.schemas()
            if schema != SCRATCH_SCHEMA
            for name in self.tables_in(schema)
        )

    def tables_in(self, schema: str) -> list[TableName]:
        """Return the tables of one schema; empty if the schema does not exist."""
        try:
            found = self._java.listTables(self._namespace(schema))
        except (Py4JJavaError, PySparkException) as failure:
            if java_class_of(failure) == _NO_SCHEMA:
                return []
            what = f"The tables of the schema {schema!r} cannot be listed"
            raise self._error(what, failure) from failure
        return [TableName(schema, str(identifier.name())) for identifier in found]

    def schemas(self) -> list[str]:
        """Return all schemas of the lake, and all prefixes of schemas that end before a dot."""
        found: list[str] = []
        pending = self._namespaces_in(self._connection.namespaces.empty())
        while pending:
            namespace = pending.pop()
            found.append(".".join(namespace.levels()))
            pending += self._namespaces_in(namespace)
        return found

    def _namespaces_in(self, namespace: Any) -> list[Any]:
        try:
            found = list(self._java.listNamespaces(namespace))
        except (Py4JJavaError, PySparkException) as failure:
            if java_class_of(failure) in _NOT_NESTED and not namespace.isEmpty():
                return []
            raise self._error("The schemas cannot be listed", failure) from failure
        # A catalog that does not nest schemas may list all of them again.
        return [child for child in found if child.length() > namespace.length()]

    def create(
        self,
        name: TableName,
        columns: Sequence[Column],
        *,
        location: str | None,
        properties: Mapping[str, str],
        partition_by: Sequence[str] = (),
        schema: Any = None,
    ) -> None:
        """Create an empty table, and its schema if it does not exist.

        Args:
            name: the table.
            columns: its columns.
            location: its folder, or None if the catalog chooses it.
            properties: its properties.
            partition_by: the columns by which it is partitioned.
            schema: the Java `Schema` with the field ids of the columns; by default 1, 2, …

        Raises:
            TableExistsError: the table exists.
            SchemaError: the catalog would choose a location that Iceberg cuts off.
            LakeLocationError: the lake was copied or moved.
        """
        if location is None:
            _expect_safe_name(name)
        lake_id = self.guard.expect_writable()
        if lake_id is not None:
            properties = {**properties, LAKE_PROPERTY: lake_id}
        builder = self._java.buildTable(self.identifier(name), self.schema(columns))
        builder = builder.withProperties(self.map(properties))
        if location is not None:
            builder = builder.withLocation(location)
        if schema is None:
            spec = self._spec(self.schema(columns), partition_by)
            builder = builder.withPartitionSpec(spec)
        self._create(name, builder)
        if schema is not None:
            # Iceberg numbers the columns of a new table itself.
            created = self.load(name)
            last = max(int(created.metadata.lastColumnId()), int(schema.highestFieldId()))
            changed = created.builder().setCurrentSchema(schema, last)
            spec = self._spec(schema, partition_by)
            created.commit(changed.setDefaultPartitionSpec(spec).build())

    def _spec(self, schema: Any, partition_by: Sequence[str]) -> Any:
        spec = self.jvm.org.apache.iceberg.PartitionSpec.builderFor(schema)
        for column in partition_by:
            spec = spec.identity(column)
        return spec.build()

    def _create(self, name: TableName, builder: Any) -> None:
        for is_last in (False, True):
            self.ensure_schema(name.schema)
            try:
                builder.create()
            except (Py4JJavaError, PySparkException) as failure:
                kind = java_class_of(failure)
                if "AlreadyExists" in kind:
                    raise self._name_taken_error(name, "Change it with AlterTable") from failure
                # A cancelled call may have removed the empty schema again.
                if is_last or "NoSuchNamespace" not in kind:
                    raise self._error(f"The table {name} cannot be created", failure) from failure
            else:
                return

    def has_schema(self, schema: str) -> bool:
        """Return whether a schema exists."""
        return bool(self._java.namespaceExists(self._namespace(schema)))

    def drop_schema_if_empty(self, schema: str) -> None:
        """Remove a schema, unless it has tables or views."""
        with suppress(Py4JJavaError, PySparkException):
            self._java.dropNamespace(self._namespace(schema))

    def ensure_schema(self, schema: str) -> None:
        """Create a schema unless it exists; several processes may try at the same time."""
        if self._java.namespaceExists(self._namespace(schema)):
            return
        # REST catalogs do not create the schemas that contain it.
        depth = len(levels_of(schema))
        for levels in range(depth if self.replaces_metadata else 1, depth + 1):
            namespace = self._namespace(schema, levels=levels)
            try:
                if levels == depth or not self._java.namespaceExists(namespace):
                    self._java.createNamespace(namespace, self.map({}))
            except (Py4JJavaError, PySparkException) as failure:
                # The failure does not matter if the schema exists now.
                if not self._java.namespaceExists(namespace):
                    raise self._error(
                        f"The schema {schema!r} cannot be created", failure
                    ) from failure

    def rename(self, name: TableName, new_name: TableName) -> None:
        """Rename a table, in one step; its files are not moved.

        Raises:
            TableExistsError: the new name is taken.
            LakeError: the table does not exist, or the catalog does not respond.
        """
        try:
            self._java.renameTable(self.identifier(name), self.identifier(new_name))
        except (Py4JJavaError, PySparkException) as failure:
            if "AlreadyExists" in java_class_of(failure):
                raise self._name_taken_error(new_name, "Drop it first") from failure
            raise self._error(f"{name} cannot be renamed to {new_name}", failure) from failure

    def drop(self, name: TableName, *, purge: bool) -> bool:
        """Remove a table, with its files if `purge`; return False if it does not exist."""
        self.guard.expect_writable()
        return bool(self._java.dropTable(self.identifier(name), purge))

    def drop_view(self, name: TableName, *, having: str) -> bool:
        """Remove a view that has a property; return False if there is no such view."""
        self.guard.expect_writable()
        identifier = self.identifier(name)
        if not hasattr(self._java, "viewExists") or not self._java.viewExists(identifier):
            return False
        if self._java.loadView(identifier).properties().get(having) is None:
            return False
        return bool(self._java.dropView(identifier))

    def delete_folder(self, table: IcebergTable) -> None:
        """Remove a table's folder with its content, if the store supports that."""
        io = table.java.io()
        if hasattr(io, "deletePrefix"):
            # Without the slash, an object store also removes folders with longer names.
            io.deletePrefix(f"{table.location.rstrip('/')}/")

    def schema(self, columns: Sequence[Column]) -> Any:
        """Return a Java `Schema` of nullable columns with the ids 1, 2, …, in the order given.

        It takes one call to Java for any number of columns.
        """
        fields = [
            {"id": number, "name": column.name, "required": False, "type": type_name(column.type)}
            for number, column in enumerate(columns, start=1)
        ]
        return self.schema_of(fields)

    def schema_of(self, fields: Sequence[Mapping[str, Any]]) -> Any:
        """Return a Java `Schema` of top-level fields as in its JSON, with one call to Java."""
        reported = {"type": "struct", "schema-id": 0, "fields": fields}
        return self._connection.schema_parser.fromJson(orjson.dumps(reported).decode())

    def fields(self, schema: Any) -> list[dict[str, Any]]:
        """Return the top-level fields of a Java `Schema` as in its JSON, with one call to Java."""
        found: list[dict[str, Any]] = orjson.loads(self._connection.schema_parser.toJson(schema))[
            "fields"
        ]
        return found

    def map(self, items: Mapping[str, str]) -> Any:
        """Return a Java map of strings."""
        java = self._connection.maps()
        for key, value in items.items():
            java.put(key, value)
        return java

    def keys(self, java: Any) -> Sequence[str]:
        """Return the keys of a Java map of strings, with one call for all of them."""
        # No key contains the separator: NUL is not allowed in names of columns.
        joined = str(self._connection.strings.join("\0", java.keySet()))
        return joined.split("\0") if joined else []

    def list(self, items: Iterable[str]) -> Any:
        """Return a Java list of strings."""
        java = self.jvm.java.util.ArrayList()
        for item in items:
            java.add(item)
        return java

    def set(self, items: Iterable[str | int]) -> Any:
        """Return a Java set of strings or numbers."""
        java = self.jvm.java.util.HashSet()
        for item in items:
            java.add(item)
        return java

    def _name_taken_error(self, name: TableName, what: str) -> TableExistsError:
        if self.find(name) is None:
            return TableExistsError(
                "A view with this name already exists.",
                table=str(name),
                hint="Choose another name. `chronolake view TABLE --drop` removes the view "
                "TABLE_current.",
            )
        return TableExistsError(
            "The table already exists.",
            table=str(name),
            hint=f"{what}, or choose another name.",
        )

    @staticmethod
    def _error(what: str, failure: BaseException) -> LakeError:
        return (
            storage_error(failure)
            or catalog_error(failure)
            or LakeError(
                f"{what}: {java_message_of(failure)}",
                hint="Check that the catalog and the lake's folder are reachable and writable.",
            )
        )
