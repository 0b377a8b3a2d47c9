"""Batches into history tables: earliest-start, update, replace and delete files, exactly.

Source: `seeds/history-batch-files.txt`, with the three clarifications that its own result tables
ask for (`docs/architecture.md`, "History batches"). In one staged write:

1. The *earliest start* of a key is the least start of its earliest, replace and update rows. Stored
   versions that start there or later are removed.
2. A remaining version that is active, or reaches the earliest start, ends 1 ms before it and is
   inactive.
3. Replace rows are added as they are. Of rows with one key and one start the last one counts:
   update files first, then replace files, each in the order of the request.
4. An update row takes the cells it leaves as they are from the version just before it by start,
   stored or of this batch. Where there is none: from the stored version of its own start, else from
   the earliest later one that the batch removes and does not replace. Where there is none either,
   the row is ignored.
5. A delete row ends the version that was current at its time.

What happens to a key is decided by `chronolake.table.timeline`, a pure function that Spark's
executors run over the key's events; this module brings the events together and stages the result.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final

from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812

from chronolake.changes import OP, RESERVED, SEQ, UNMODIFIED, Op
from chronolake.errors import BatchError, TableNotFoundError
from chronolake.failpoints import reach
from chronolake.table import timeline
from chronolake.table.events import fold_by_key, sample_of, typed
from chronolake.table.incoming import Incoming, col, incoming, small
from chronolake.table.result import BatchResult
from chronolake.table.staging import (
    BATCH_PROPERTY,
    StagedWrite,
    Stopwatch,
    expect_unaltered,
    staged,
)
from chronolake.table.timeline import (
    ADDED,
    BASELESS,
    EARLIEST,
    FILE,
    IGNORED,
    KIND,
    POSITION,
    REMOVED,
    TIME,
)
from chronolake.types import ACTIVE, END, START, Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

    from chronolake.description import TableDescription
    from chronolake.lake import Lake
    from chronolake.types import Column, TableName

_KINDS: Final = {
    Op.UPDATE: timeline.UPDATE,
    Op.REPLACE: timeline.REPLACE,
    Op.DELETE: timeline.DELETE,
    Op.EARLIEST: timeline.EARLIEST_START,
}
_FLAGS: Final = (
    f"{REMOVED} boolean, {ADDED} boolean, {BASELESS} boolean, {IGNORED} boolean, {EARLIEST} bigint"
)
_MILLISECOND: Final = 1_000


def write_history_batch(
    lake: Lake, name: TableName, changes: DataFrame, *, columns: Sequence[Column], batch: str
) -> BatchResult:
    """Apply a history batch, all of it or nothing. Sent again, it gives the same table.

    Args:
        lake: the lake.
        name: a table in history mode.
        changes: the batch's change set (`chronolake.changes`).
        columns: the change set's data columns.
        batch: the batch's identity, for logs and the table's properties.

    Raises:
        TableNotFoundError: there is no such table.
        BatchError: the table is not in history mode, the batch cannot be applied to it, or a file
            cannot be read.
        CommitError: the result could not be published.
    """
    description = lake.describe(name)
    if description is None:
        raise TableNotFoundError(
            "The table does not exist.", table=str(name), hint="Create it before writing to it."
        )
    if description.mode is not Mode.HISTORY:
        raise BatchError(
            f"A history batch was sent for a table in {description.mode} mode.",
            table=str(name),
            hint=f"Create the table with {START}, {END} and {ACTIVE}, or use WriteBatch.",
        )
    watch = Stopwatch()
    outcome = Outcome(0, 0, 0, 0, None)
    with incoming(changes, description, description.record_key, columns, watch) as batch_rows:

        def write(attempt: StagedWrite) -> Mapping[str, str]:
            nonlocal outcome
            expect_unaltered(attempt, description)
            outcome = _stage(attempt, batch_rows, description, watch)
            return {BATCH_PROPERTY: batch}

        if not batch_rows.is_empty:
            staged(lake, name, write, watch)
    return BatchResult(
        batch=batch,
        replaced=batch_rows.replaced,
        updated=batch_rows.updated,
        deleted=batch_rows.deleted,
        ignored=outcome.ignored,
        ignored_key=outcome.ignored_key,
        seconds=watch.seconds,
    )


@dataclass(frozen=True)
class Outcome:
    """Counts of a resolved batch.

    Attributes:
        removed: stored versions that go, or go and come back changed.
        added: versions that are written.
        baseless: update rows with no version just before them among those that were looked at.
        ignored: update rows that nothing can complete.
        ignored_key: the key of one of these, or None.
    """

    removed: int
    added: int
    baseless: int
    ignored: int
    ignored_key: str | None


def _stage(
    write: StagedWrite, batch: Incoming, description: TableDescription, watch: Stopwatch
) -> Outcome:
    key = description.record_key
    with ExitStack() as until_published:
        with watch.stage("resolve"):
            stored = None if write.is_empty else _overlapping(write.rows(), batch, key)
            resolved, outcome = _materialise(
                resolve(batch, stored, None, description), key, until_published
            )
            if outcome.baseless and not write.is_empty:
                # Rare: a record that was deleted earlier, or an update older than all history.
                older = _newest_before(write.rows(), resolved, batch, key)
                resolved, outcome = _materialise(
                    resolve(batch, stored, older, description), key, until_published
                )
        reach("write.planned")
        if outcome.removed:
            positions = resolved.where(col(REMOVED)).select(FILE, POSITION)
            write.delete(
                small(positions, outcome.removed),
                f"t._file = s.{FILE} AND t._pos = s.{POSITION}",
            )
        if outcome.added:
            names = [column.name for column in description.columns]
            write.append(resolved.where(col(ADDED)).select(*map(col, names)))
    return outcome


def _materialise(
    resolved: DataFrame, key: Sequence[str], until_published: ExitStack
) -> tuple[DataFrame, Outcome]:
    """Compute a resolved batch once, keep it, and count it."""
    kept = resolved.persist(StorageLevel.MEMORY_AND_DISK)
    until_published.callback(kept.unpersist)
    row = kept.agg(
        F.count_if(col(REMOVED)),
        F.count_if(col(ADDED)),
        F.count_if(col(BASELESS)),
        F.count_if(col(IGNORED)),
        sample_of(key, col(IGNORED)),
    ).first()
    return kept, Outcome(*row) if row else Outcome(0, 0, 0, 0, None)


def _overlapping(table: DataFrame, batch: Incoming, key: Sequence[str]) -> DataFrame:
    """Stored versions that end at the first time their key has in the batch, or later.

    They are all that the batch can change. The least of those times prunes files and row groups by
    their statistics, so that the cost does not grow with the history before it.
    """
    # A version shorter than a millisecond may end before it starts: look that much further back.
    since = F.timestamp_micros(F.min(_micros_of_change()) - _MILLISECOND)
    keys = batch.rows.groupBy(*map(col, key)).agg(since.alias(TIME))
    table = table.where(col(END) >= F.timestamp_micros(F.lit((batch.since or 0) - _MILLISECOND)))
    return _joined(table, keys, batch, key, lambda time: col(END) >= time)


def _newest_before(
    table: DataFrame, resolved: DataFrame, batch: Incoming, key: Sequence[str]
) -> DataFrame:
    """The newest stored version before the earliest start, for keys with baseless updates."""
    earliest = F.timestamp_micros(col(EARLIEST))
    keys = resolved.where(col(BASELESS)).select(*map(col, key), earliest.alias(TIME)).distinct()
    found = _joined(table, keys, batch, key, lambda time: col(START) < time)
    newest = F.max_by(F.struct(*map(col, found.columns)), col(START)).alias(TIME)
    return found.groupBy(*map(col, key)).agg(newest).select(f"{TIME}.*")


def _joined(
    table: DataFrame,
    times: DataFrame,
    batch: Incoming,
    key: Sequence[str],
    condition: Callable[[Expression], Expression],
) -> DataFrame:
    """Rows of the table for keys with a time, and where they lie: file and position."""
    renamed = times.select(
        *(col(name).alias(f"{RESERVED}key{number}") for number, name in enumerate(key)),
        col(TIME),
    )
    for bound in batch.within_bounds():
        table = table.where(bound)
    matches = [
        col(name).eqNullSafe(col(f"{RESERVED}key{number}")) for number, name in enumerate(key)
    ]
    columns = [col(name) for name in table.columns]
    table = table.select(*columns, col("_file").alias(FILE), col("_pos").alias(POSITION))
    joined = table.join(
        small(renamed, batch.keys), reduce(and_, [*matches, condition(col(TIME))]), "inner"
    )
    return joined.select(*columns, FILE, POSITION)


def _micros_of_change() -> Expression:
    return F.unix_micros(F.when(col(OP) == int(Op.DELETE), col(END)).otherwise(col(START)))


def resolve(
    batch: Incoming,
    stored: DataFrame | None,
    older: DataFrame | None,
    description: TableDescription,
) -> DataFrame:
    """What a batch does to a table: versions that go, come, or cannot be completed.

    Args:
        batch: the batch.
        stored: the table's versions that the batch can change, with `FILE` and `POSITION`; None
            if the table is empty.
        older: for keys whose updates found no version before them, their newest older version;
            None before that is known.
        description: the table.

    Returns:
        The columns that `chronolake.table.timeline.resolve` gives.
    """
    kind = F.create_map(*(F.lit(int(part)) for pair in _KINDS.items() for part in pair))[col(OP)]
    nowhere = (F.lit(None).cast("string").alias(FILE), F.lit(None).cast("bigint").alias(POSITION))
    cells = typed(batch.rows, description)
    events = batch.rows.select(
        kind.alias(KIND), _micros_of_change().alias(TIME), SEQ, UNMODIFIED, *nowhere, *cells
    )
    for versions in (stored, older):
        if versions is not None:
            events = events.unionByName(
                versions.select(
                    F.lit(timeline.STORED).alias(KIND),
                    F.unix_micros(col(START)).alias(TIME),
                    F.lit(0).cast("bigint").alias(SEQ),
                    F.lit(None).cast("array<bigint>").alias(UNMODIFIED),
                    FILE,
                    POSITION,
                    *typed(versions, description),
                )
            )
    layout = timeline.Layout(
        columns=tuple(column.name for column in description.columns),
        carried=batch.names,
        key=description.record_key,
        unmodified=batch.unmodified,
    )
    return fold_by_key(
        events,
        key=layout.key,
        order=(TIME, KIND, SEQ),
        rows=batch.rows_count,
        fold=lambda rows: timeline.resolve(rows, layout),
        description=description,
        others=f"{FILE} string, {POSITION} bigint, {_FLAGS}",
    )
