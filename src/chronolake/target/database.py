"""The operations that publications need from a target database.

A database stores the state of its tables (`Published`) itself: in the transaction that changes a
table, so that rows and snapshot are committed together or not at all.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Protocol

from chronolake.errors import ChronolakeError, TargetBusyError, TargetError
from chronolake.failpoints import reach
from chronolake.frames import map_in_arrow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from chronolake.target.additions import Addition
    from chronolake.target.encoding import RowEncoder
    from chronolake.target.limits import TargetColumn, TargetLimits
    from chronolake.target.state import ColumnChange, Published

#: Seconds to wait for another process that publishes the same table.
BUSY_SECONDS: Final = 10.0
#: Seconds to wait for locks of others on a target table.
LOCK_SECONDS: Final = 60
#: The beginning of the names of temporary tables, and of what was created with them.
OWN_PREFIX: Final = "load_"
#: What to do about a table that others have created or changed.
TAKE_OVER: Final = (
    "Check who writes to it. `chronolake publish --table TABLE --take-over` replaces it by the "
    "table of the lake."
)


@dataclass(frozen=True)
class Relation:
    """A table of a target.

    Attributes:
        schema: its schema, or its database in MySQL.
        table: its name there.
    """

    schema: str
    table: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def prefix(self) -> str:
        """Return the beginning of the names of temporary tables for this table."""
        return f"{OWN_PREFIX}{sha256(str(self).encode()).hexdigest()[:12]}_"


@dataclass(frozen=True)
class Written:
    """Rows that tasks have written to a temporary table.

    Attributes:
        rows: the number of rows by operation; all rows of a load are inserted.
        changed: the number of values that were changed because they do not fit, by column.
    """

    rows: Counter[str]
    changed: Counter[str]


@dataclass(frozen=True)
class Survey:
    """What a target can hold, and contains.

    Attributes:
        limits: the limits of the database's version.
        states: the states of the tables that were published.
        additions: what others have added to these tables.
    """

    limits: TargetLimits
    states: Mapping[Relation, Published] = field(default_factory=dict)
    additions: Mapping[Relation, Sequence[Addition]] = field(default_factory=dict)


class Sink(Protocol):
    """Writes the rows of one task in one transaction; it is serialized to the executors."""

    def write(self, part: int, lines: Iterator[pa.Buffer], encoder: RowEncoder) -> None:
        """Write the lines of a part, unless another attempt of the task has written them.

        Raises:
            TargetError: the database refuses the rows, or is not reachable.
        """


class TargetSession(Protocol):
    """A connection to a target that holds the lease of one of its tables.

    Attributes:
        relation: the table.
        limits: the limits of the database's version.
        detects_changes: whether triggers shall record changes by others.
    """

    relation: Relation
    limits: TargetLimits
    detects_changes: bool

    def published(self) -> Published | None:
        """Return the state of the table, or None if it was never published."""

    def is_present(self) -> bool:
        """Return whether the database has a table with this name."""

    def raise_if_changed(self, published: Published) -> None:
        """Raise if somebody else has changed the table since it was published.

        Raises:
            TargetChangedError: the table is not as it was published.
        """

    def create_load(self, columns: Sequence[TargetColumn], *, is_stage: bool) -> str:
        """Create a temporary table and return its name.

        Args:
            columns: the columns of the target table.
            is_stage: whether it has `OPERATION` as its first column, and rows with only a key.
        """

    def sink(self, load: str, columns: Sequence[TargetColumn], *, is_stage: bool) -> Sink:
        """Return what writes rows to a temporary table."""

    def written(self, load: str, parts: int) -> Written:
        """Return what tasks have written, after checking that no part is missing."""

    def swap_in(
        self, load: str, base: Published | None, published: Published, *, takes_over: bool
    ) -> None:
        """Replace the target table by a temporary table, and store the state.

        If others have added something to the target table, such as an index, only its rows are
        replaced.

        Args:
            load: the temporary table.
            base: the state with which the work began; it must be current.
            published: the state after it.
            takes_over: whether changes by others are overwritten.

        Raises:
            TargetChangedError: others have changed the table, or have added something to it that
                would be lost, because columns have changed.
        """

    def apply(
        self,
        load: str | None,
        written: Written,
        base: Published,
        published: Published,
        changes: Sequence[ColumnChange],
    ) -> None:
        """Change rows and columns of the target table, and store the state.

        Args:
            load: the temporary table with the changed rows; None without changed rows.
            written: the number of rows in it.
            base: the state from which the changes were computed; it must be current.
            published: the state after it.
            changes: changes of columns.
        """

    def drop(self, load: str) -> None:
        """Drop a temporary table."""


class TargetDatabase(Protocol):
    """A target database."""

    def open(self, relation: Relation) -> AbstractContextManager[TargetSession]:
        """Connect, and hold the lease of a table while the block runs.

        Raises:
            TargetError: the database is not reachable, or lacks a privilege.
            TargetBusyError: another process holds the lease.
        """

    def survey(self, relations: Sequence[Relation]) -> Survey:
        """Return the limits, and what tables contain, without locks; nothing is created."""


def write_rows(rows: DataFrame, sink: Sink, encoder: RowEncoder, *, has_operations: bool) -> int:
    """Write rows by Spark's tasks, and return the number of parts that were written."""
    write = partial(_write_part, sink, encoder, has_operations=has_operations)
    parts = map_in_arrow(rows, write, "part int").collect()
    reach("target.written")
    return len({row.part for row in parts})


def _write_part(
    sink: Sink,
    encoder: RowEncoder,
    batches: Iterable[pa.RecordBatch],
    *,
    has_operations: bool,
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa  # noqa: PLC0415 - only tasks need it
    from pyspark import TaskContext  # noqa: PLC0415

    from chronolake.executor_errors import seal  # noqa: PLC0415

    remaining = iter(batches)
    first = next(remaining, None)
    if first is None:
        return
    context = TaskContext.get()
    part = 0 if context is None else context.partitionId()
    encoder.changed.clear()
    encoder.rows.clear()
    lines = (
        _encode(encoder, batch, has_operations=has_operations)
        for batch in chain([first], remaining)
    )
    try:
        sink.write(part, lines, encoder)
    except ChronolakeError as failure:
        raise seal(failure) from None
    yield pa.RecordBatch.from_pydict({"part": pa.array([part], pa.int32())})


def _encode(encoder: RowEncoder, batch: pa.RecordBatch, *, has_operations: bool) -> pa.Buffer:
    import pyarrow.compute as pc  # noqa: PLC0415 - only tasks need it

    if not has_operations:
        encoder.rows["I"] += batch.num_rows
        return encoder.encode(batch)
    operations = batch.column(0)
    for item in pc.value_counts(operations).to_pylist():
        encoder.rows[item["values"]] += item["counts"]
    return encoder.encode(batch.select(range(1, batch.num_columns)), operations)


def duplicate_error(product: str) -> TargetError:
    """Return the error for two rows that have one key in the target."""
    return TargetError(
        f"Two rows have keys that are equal in {product}.",
        hint="Correct the keys in the source, or choose another key for the stream.",
    )


def locked_error() -> TargetBusyError:
    """Return the error for a lock of another transaction that was not released in time."""
    return TargetBusyError(
        "Another transaction has locked the target table.",
        hint="Publish again when it has ended.",
    )


def meanwhile_error(relation: Relation) -> TargetBusyError:
    """Return the error for a table whose state is not the one with which the work began."""
    return TargetBusyError(
        f"Another process has published {relation} meanwhile.", hint="Publish again."
    )


def unreachable_error(reason: str) -> TargetError:
    """Return the error for a server that does not respond, or refuses a connection."""
    return TargetError(
        f"The target's server does not respond, or refuses the connection: {reason}.",
        hint="Check `dsn` of the target, and that the server is running.",
    )


def resources_error(reason: str) -> TargetError:
    """Return the error for a server whose disk or memory is full."""
    return TargetError(
        f"The target's server lacks resources: {reason}.",
        hint="Free or add disk space or memory on the server, and publish again.",
    )


def incomplete_error(relation: Relation, table: str) -> TargetError:
    """Return the error for a table that does not have all rows after it was filled."""
    return TargetError(
        f"{relation} does not have the rows that were written: a trigger or rule of others has "
        "changed them.",
        table=table,
        hint="Drop the trigger or rule. The target is as it was.",
    )


def counts_text(encoder: RowEncoder) -> str:
    """Return what a part has written as JSON."""
    return json.dumps({"rows": encoder.rows, "changed": encoder.changed})


def written_of(texts: Iterable[Any]) -> Written:
    """Return the sum of what parts have written."""
    rows, changed = Counter[str](), Counter[str]()
    for text in texts:
        counts = json.loads(text)
        rows.update(counts["rows"])
        changed.update(counts["changed"])
    return Written(rows, changed)
