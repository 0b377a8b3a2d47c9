"""A table: it tells its state, and publishes new metadata with a compare-and-set."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from chronolake.errors import CommitConflictError
from chronolake.types import Column, ColumnType, Kind, TableName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chronolake.iceberg.catalog import Catalog

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
    _, is_ours, told = text.rpartition(_RAISED_IN_TASK)
    if is_ours:
        # Its class, and then Java's stack, stand around it.
        return " ".join(told.partition(": ")[2].partition("\n\n")[0].split())
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
