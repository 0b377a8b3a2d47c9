"""The Iceberg catalog and its tables: state, and metadata published with a compare-and-set.

A table: it tells its state, and publishes new metadata with a compare-and-set.

The lake's Iceberg catalog: it finds, lists, creates, renames and drops tables.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from chronolake.errors import CommitConflictError, LakeError, TableExistsError
from chronolake.iceberg.durability import sync_files_of_executors
from chronolake.session import CATALOG
from chronolake.storage import storage_error
from chronolake.types import LAKE_PROPERTY, Column, ColumnType, Kind, TableName

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession


MAIN: Final = "main"
#: A branch of tables that are pulled: rows that only later writes need to know of.
HIDDEN: Final = "chronolake-hidden"
#: Table property: the declared columns as JSON, in table order (see `columns_to_json`).
COLUMNS_PROPERTY: Final = "chronolake.columns"

#: Schema of the scratch tables that rewrites fill; no user sees it.
SCRATCH_SCHEMA: Final = "__chronolake_scratch"

_JAVA: Final = "org.apache.iceberg"
_REFUSED: Final = (
    f"{_JAVA}.exceptions.CommitFailedException",
    f"{_JAVA}.exceptions.ValidationException",
)
#: How the last line of a Python worker's traceback begins for an error of our own.
_RAISED_IN_TASK: Final = "\nchronolake.errors."
#: How what Spark says of any error of a Python worker begins, and what its traceback consists of.
_OF_WORKER: Final = "An exception was thrown from the Python worker"
_FRAME: Final = re.compile(r'^ +File "(?:[^"]*/)?([^"/]+)", line (\d+)', re.MULTILINE)
_LAST: Final = re.compile(r"^([A-Za-z_][\w.]*)(?::|$)", re.MULTILINE)


def java_class_of(failure: BaseException) -> str:
    """The Java class behind an exception that came through Py4J, or the empty string."""
    if isinstance(failure, Py4JJavaError):
        return str(failure.java_exception.getClass().getName())
    origin = getattr(failure, "_origin", None)
    if isinstance(failure, PySparkException) and origin is not None:
        return str(origin.getClass().getName())
    return ""


def java_message_of(failure: BaseException) -> str:
    """The first line of what Java said, or of the exception itself.

    Of what a task of ours raised all is told: what was wrong, where, and what to do. Of any other
    error of a task its class and its place are, but not its words, which may hold a cell.
    """
    if isinstance(failure, Py4JJavaError):
        text = str(failure.java_exception.getMessage())
    else:
        text = str(failure)
    _, is_ours, reported = text.rpartition(_RAISED_IN_TASK)
    if is_ours:
        # Its class, and then Java's stack, stand around it.
        return " ".join(reported.partition(": ")[2].partition("\n\n")[0].split())
    text = text.strip()
    if text.startswith(_OF_WORKER):
        file, line = (_FRAME.findall(text) or [("an unknown file", "0")])[-1]
        kind = (_LAST.findall(text) or ["error"])[-1]
        return f"A task of Spark failed with {kind} in {file}, line {line}."
    return text.partition("\n")[0]


def spark_words(failure: BaseException) -> str | None:
    """What Spark or Java said in one line, or None: the failure is of another kind."""
    if not isinstance(failure, PySparkException | Py4JError):
        return None
    return java_message_of(failure)


def columns_to_json(columns: Iterable[Column]) -> str:
    """Declared columns as the value of `COLUMNS_PROPERTY`."""
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
    """The inverse of `columns_to_json`."""
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
    """One field of a table: its Iceberg id, name and Iceberg type as text."""

    field_id: int
    name: str
    type: str


class IcebergTable:
    """A loaded table: one immutable state of its metadata."""

    def __init__(self, catalog: Catalog, name: TableName, table: Any) -> None:
        self.catalog = catalog
        self.name = name
        self.java = table
        self._operations = table.operations()
        self.metadata = self._operations.current()

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties: a call to Java for each of them."""
        return dict(self.metadata.properties())

    def property_of(self, key: str) -> str | None:
        """One of the table's properties, or None."""
        value = self.metadata.properties().get(key)
        return None if value is None else str(value)

    @property
    def is_unwritten(self) -> bool:
        """Whether the table has had no other rows than those its metadata began with."""
        snapshot = self.metadata.currentSnapshot()
        return snapshot is None or int(snapshot.sequenceNumber()) <= 1

    @property
    def location(self) -> str:
        """The folder that the table's files lie in."""
        return str(self.metadata.location())

    @property
    def metadata_file(self) -> str:
        """The location of the metadata file that this state was read from."""
        return str(self.metadata.metadataFileLocation())

    def manifest_lists(self) -> list[str]:
        """Return the location of the current snapshot's manifest list; none without a snapshot."""
        snapshot = self.metadata.currentSnapshot()
        return [] if snapshot is None else [str(snapshot.manifestListLocation())]

    @property
    def snapshot_id(self) -> int | None:
        """The current snapshot of `main`, or None for a table that never had one."""
        snapshot = self.metadata.currentSnapshot()
        return None if snapshot is None else int(snapshot.snapshotId())

    def has_published(self, snapshot_id: int) -> bool:
        """Whether a snapshot is `main`'s current one, or was it once and is still told of."""
        log = self.metadata.snapshotLog()
        return any(int(entry.snapshotId()) == snapshot_id for entry in log)

    def has_rows_of(self, branch: str, snapshot_id: int) -> bool:
        """Whether a branch has the rows of one of its snapshots: since, only files changed."""
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
        """Number of rows in `main`'s data files, removed ones included; None if it is not told."""
        return self.rows_of(MAIN)

    def rows_of(self, branch: str) -> int | None:
        """Number of rows in a branch's data files, removed ones included; 0 without the branch."""
        snapshot_id = self.branch(branch)
        if snapshot_id is None:
            return 0
        total = self.metadata.snapshot(snapshot_id).summary().get("total-records")
        return None if total is None else int(total)

    def summary_of(self, branch: str) -> dict[str, str]:
        """What a branch's snapshot tells of itself; nothing without the branch."""
        snapshot_id = self.branch(branch)
        if snapshot_id is None:
            return {}
        return dict(self.metadata.snapshot(snapshot_id).summary())

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The current columns, in table order."""
        return tuple(
            Field(int(field["id"]), field["name"], field["type"])
            for field in self.catalog.fields(self.metadata.schema())
        )

    def branches(self) -> dict[str, int]:
        """Branches other than `main`, and their snapshots."""
        refs = self.metadata.refs()
        # A table that was never written to has no `main`.
        has_others = refs.size() > int(refs.containsKey(MAIN))
        names = [str(name) for name in refs.keySet() if name != MAIN] if has_others else []
        return {name: int(refs.get(name).snapshotId()) for name in names if refs[name].isBranch()}

    def branch(self, name: str) -> int | None:
        """The snapshot of a branch, or None if there is no such branch."""
        reference = self.metadata.ref(name)
        return None if reference is None else int(reference.snapshotId())

    def builder(self) -> Any:
        """A Java `TableMetadata.Builder` that starts from this state."""
        return self.catalog.builder_from(self.metadata)

    def commit(self, metadata: Any) -> None:
        """Replace this state by `metadata`, if it is still the table's state.

        Raises:
            CommitConflictError: another writer was first; nothing has changed.
            LakeLocationError: the table lies outside the opened lake.
            Exception: anything else that Java raises; the outcome may be unknown.
        """
        self.catalog.guard.expect_inside(self)
        try:
            self.catalog.make_durable(metadata, self._operations.io())
            self._operations.commit(self.metadata, metadata)
        except (Py4JJavaError, PySparkException) as failure:
            if java_class_of(failure) in _REFUSED:
                raise CommitConflictError(
                    f"Another writer changed the table first: {java_message_of(failure)}",
                    hint="Send the batch again.",
                    table=str(self.name),
                ) from failure
            raise

    def refreshed(self) -> IcebergTable:
        """The table's state as it is now."""
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
    """Return the Iceberg type that columns of a logical type are stored in, without spaces."""
    if column_type.kind is Kind.DECIMAL:
        return f"decimal({column_type.precision},{column_type.scale})"
    return _TYPES[column_type.kind]


class Guard(Protocol):
    """Raises before something is written that this process must not write."""

    @property
    def marks(self) -> Mapping[str, str]:
        """Properties of tables that may be written."""

    def expect_writable(self) -> str | None:
        """Return the identity that tables made now carry, or None; raise if none may be made."""

    def expect_here(self) -> None:
        """Raise if the lake was copied or moved, which explains why files are missing."""

    def expect_inside(self, table: IcebergTable) -> None:
        """Raise if a table must not be written."""


class Catalog:
    """The lake's Iceberg catalog, as the session's JVM sees it."""

    def __init__(self, spark: SparkSession, guard: Guard) -> None:
        self.spark = spark
        self.guard = guard
        self.jvm: Any = spark._jvm  # noqa: SLF001
        # A name's way through the packages of the JVM costs a call for each step.
        self.schema_parser: Any = self.jvm.org.apache.iceberg.SchemaParser
        self._metadata: Any = self.jvm.org.apache.iceberg.TableMetadata
        self._namespaces: Any = self.jvm.org.apache.iceberg.catalog.Namespace
        self._identifiers: Any = self.jvm.org.apache.iceberg.catalog.TableIdentifier
        self._maps: Any = self.jvm.java.util.HashMap
        self._strings: Any = self.jvm.java.lang.String
        session = spark._jsparkSession  # noqa: SLF001
        # A catalog is made from the settings of the thread's active session.
        self.jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session)
        manager = session.sessionState().catalogManager()
        try:
            self._java = manager.catalog(CATALOG).icebergCatalog()
        except (Py4JError, PySparkException) as failure:
            raise storage_error(failure) or LakeError(
                f"The lake's catalog cannot be opened: {java_message_of(failure)}",
                hint="Check the lake's folder and `lake.catalog` in chronolake.yml.",
            ) from failure

    def make_durable(self, metadata: Any, io: Any) -> None:
        """Sync files that a commit of `metadata` refers to, where nobody else does that."""
        if not self.spark.sparkContext.master.startswith("local["):
            sync_files_of_executors(self.spark, metadata, io)

    def _namespace(self, schema: str) -> Any:
        levels = self.spark.sparkContext._gateway.new_array(self._strings, 1)  # noqa: SLF001
        levels[0] = schema
        return self._namespaces.of(levels)

    def builder_from(self, metadata: Any) -> Any:
        """A Java `TableMetadata.Builder` that starts from some metadata."""
        return self._metadata.buildFrom(metadata)

    def identifier(self, name: TableName) -> Any:
        """The Java `TableIdentifier` of a table; a schema is always one level."""
        return self._identifiers.of(self._namespace(name.schema), name.table)

    def find(self, name: TableName) -> IcebergTable | None:
        """The table as it is now, or None.

        Raises:
            LakeLocationError: its metadata is missing, because the lake was copied or moved.
            LakeError: its metadata cannot be read, or the catalog does not answer.
        """
        try:
            return IcebergTable(self, name, self._java.loadTable(self.identifier(name)))
        except (Py4JJavaError, PySparkException) as failure:
            if "NoSuch" in java_class_of(failure):
                return None
            self.guard.expect_here()
            raise self._failed(f"The table {name} cannot be read", failure) from failure

    def load(self, name: TableName) -> IcebergTable:
        """The table as it is now.

        Raises:
            LakeError: it does not exist, or the catalog does not answer.
        """
        table = self.find(name)
        if table is None:
            raise LakeError(
                "The table was dropped meanwhile, or got another name.",
                table=str(name),
                hint="`chronolake tables` lists those that are there.",
            )
        return table

    def tables(self) -> list[TableName]:
        """Every table of the lake, sorted."""
        return sorted(
            name
            for schema in self.schemas()
            if schema != SCRATCH_SCHEMA
            for name in self.tables_in(schema)
        )

    def tables_in(self, schema: str) -> list[TableName]:
        """The tables of one schema; none if there is no such schema."""
        namespace = self._namespace(schema)
        if not self._java.namespaceExists(namespace):
            return []
        found = self._java.listTables(namespace)
        return [TableName(schema, str(identifier.name())) for identifier in found]

    def schemas(self) -> list[str]:
        """Every schema of the lake, and every prefix of one that ends before a dot.

        A JDBC catalog stores a namespace as text joined by dots, so that it reads our one level
        `a.b` back as `b` in `a`: the tree has to be walked, and its levels joined again.
        """
        found: list[str] = []
        waiting = list(self._java.listNamespaces())
        while waiting:
            namespace = waiting.pop()
            found.append(".".join(namespace.levels()))
            waiting += list(self._java.listNamespaces(namespace))
        return found

    def create(
        self,
        name: TableName,
        columns: Sequence[Column],
        *,
        location: str,
        properties: Mapping[str, str],
        partition_by: Sequence[str] = (),
    ) -> None:
        """Create an empty table, and its schema where that is missing.

        Raises:
            TableExistsError: the table exists.
            LakeLocationError: the lake was copied or moved.
        """
        lake_id = self.guard.expect_writable()
        if lake_id is not None:
            properties = {**properties, LAKE_PROPERTY: lake_id}
        schema = self.schema(columns)
        spec = self.jvm.org.apache.iceberg.PartitionSpec.builderFor(schema)
        for column in partition_by:
            spec = spec.identity(column)
        builder = self._java.buildTable(self.identifier(name), schema)
        builder = builder.withPartitionSpec(spec.build()).withLocation(location)
        builder = builder.withProperties(self.map(properties))
        for is_last in (False, True):
            self.ensure_schema(name.schema)
            try:
                builder.create()
            except (Py4JJavaError, PySparkException) as failure:
                kind = java_class_of(failure)
                if "AlreadyExists" in kind:
                    raise self._taken(name, "Change it with AlterTable") from failure
                # A call that was cancelled may have removed the empty schema again.
                if is_last or "NoSuchNamespace" not in kind:
                    raise self._failed(f"The table {name} cannot be created", failure) from failure
            else:
                return

    def has_schema(self, schema: str) -> bool:
        """Return whether a schema is there."""
        return bool(self._java.namespaceExists(self._namespace(schema)))

    def drop_schema_if_empty(self, schema: str) -> None:
        """Remove a schema, unless it has tables or views."""
        with suppress(Py4JJavaError, PySparkException):
            self._java.dropNamespace(self._namespace(schema))

    def ensure_schema(self, schema: str) -> None:
        """Create a schema unless it is there; several may try at once."""
        namespace = self._namespace(schema)
        if self._java.namespaceExists(namespace):
            return
        try:
            self._java.createNamespace(namespace, self.map({}))
        except (Py4JJavaError, PySparkException) as failure:
            # Whatever it was, it does not matter if the schema is there now.
            if not self._java.namespaceExists(namespace):
                raise self._failed(f"The schema {schema!r} cannot be made", failure) from failure

    def rename(self, name: TableName, new_name: TableName) -> None:
        """Give a table another name, in one step; its files stay where they are.

        Raises:
            TableExistsError: the new name is taken.
            LakeError: the table does not exist, or the catalog does not answer.
        """
        try:
            self._java.renameTable(self.identifier(name), self.identifier(new_name))
        except (Py4JJavaError, PySparkException) as failure:
            if "AlreadyExists" in java_class_of(failure):
                raise self._taken(new_name, "Drop it first") from failure
            raise self._failed(f"{name} cannot be renamed to {new_name}", failure) from failure

    def drop(self, name: TableName, *, purge: bool) -> bool:
        """Remove a table, with its files if `purge`; False if there was none."""
        self.guard.expect_writable()
        return bool(self._java.dropTable(self.identifier(name), purge))

    def drop_view(self, name: TableName, *, having: str) -> bool:
        """Remove a view that has a property; False if there is none."""
        self.guard.expect_writable()
        identifier = self.identifier(name)
        if not hasattr(self._java, "viewExists") or not self._java.viewExists(identifier):
            return False
        if self._java.loadView(identifier).properties().get(having) is None:
            return False
        return bool(self._java.dropView(identifier))

    def delete_folder(self, table: IcebergTable) -> None:
        """Remove a table's folder and all that is in it, where the store can do that."""
        io = table.java.io()
        if hasattr(io, "deletePrefix"):
            io.deletePrefix(table.location)

    def schema(self, columns: Sequence[Column]) -> Any:
        """A Java `Schema` of nullable columns with the ids 1, 2, …, in the order given.

        One call, however many columns there are.
        """
        fields = [
            {"id": number, "name": column.name, "required": False, "type": type_name(column.type)}
            for number, column in enumerate(columns, start=1)
        ]
        reported = {"type": "struct", "schema-id": 0, "fields": fields}
        return self.schema_parser.fromJson(orjson.dumps(reported).decode())

    def fields(self, schema: Any) -> list[dict[str, Any]]:
        """The top-level fields of a Java `Schema`, as its JSON has them, in one call."""
        found: list[dict[str, Any]] = orjson.loads(self.schema_parser.toJson(schema))["fields"]
        return found

    def type(self, column_type: ColumnType) -> Any:
        """The Java type that columns of a logical type are stored in."""
        return self.schema([Column("value", column_type)]).findType("value")

    def map(self, items: Mapping[str, str]) -> Any:
        """A Java map of strings."""
        java = self._maps()
        for key, value in items.items():
            java.put(key, value)
        return java

    def list(self, items: Iterable[str]) -> Any:
        """A Java list of strings."""
        java = self.jvm.java.util.ArrayList()
        for item in items:
            java.add(item)
        return java

    def set(self, items: Iterable[str]) -> Any:
        """A Java set of strings."""
        java = self.jvm.java.util.HashSet()
        for item in items:
            java.add(item)
        return java

    def _taken(self, name: TableName, what: str) -> TableExistsError:
        if self.find(name) is None:
            return TableExistsError(
                "A view has the name.",
                table=str(name),
                hint="Choose another name. `chronolake view TABLE --drop` removes the view "
                "TABLE_current.",
            )
        return TableExistsError(
            "The table exists already.",
            table=str(name),
            hint=f"{what}, or choose another name.",
        )

    @staticmethod
    def _failed(what: str, failure: BaseException) -> LakeError:
        return storage_error(failure) or LakeError(
            f"{what}: {java_message_of(failure)}",
            hint="Check that the catalog and the lake's folder can be reached and written.",
        )
