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

Nothing is decided on the driver: `resolve` is one pass of window functions over the batch's keys.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final

from pyspark import StorageLevel
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from chronolake.changes import OP, RESERVED, SEQ, Op
from chronolake.errors import BatchError, TableNotFoundError
from chronolake.failpoints import reach
from chronolake.table.fold import IGNORED, completed, sample_of
from chronolake.table.incoming import Incoming, col, incoming, small
from chronolake.table.result import BatchResult
from chronolake.table.staging import (
    BATCH_PROPERTY,
    StagedWrite,
    Stopwatch,
    expect_unaltered,
    staged,
)
from chronolake.types import ACTIVE, END, START, Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame
    from pyspark.sql.window import WindowSpec

    from chronolake.description import TableDescription
    from chronolake.lake import Lake
    from chronolake.types import Column, TableName

# A stored version sorts before the batch's rows of the same start; at one instant an update row
# sorts before a replace row (the replace row wins), and a delete after the version it ends.
_STORED: Final = 0
_RANK: Final = {Op.UPDATE: 1, Op.REPLACE: 2, Op.DELETE: 3, Op.EARLIEST: 4}

_TIME: Final = f"{RESERVED}time"
_KIND: Final = f"{RESERVED}kind"
_FILE: Final = f"{RESERVED}file"
_POSITION: Final = f"{RESERVED}position"
_REMOVED: Final = f"{RESERVED}removed"
_ADDED: Final = f"{RESERVED}added"
_BASELESS: Final = f"{RESERVED}baseless"
_EARLIEST: Final = f"{RESERVED}earliest"
_BASE: Final = f"{RESERVED}base"
_TAKEN: Final = f"{RESERVED}taken"
_END: Final = f"{RESERVED}end"
_DELETED: Final = f"{RESERVED}deleted"
_NEXT: Final = f"{RESERVED}next"
_COMPLETE: Final = f"{RESERVED}complete"

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
            positions = resolved.where(col(_REMOVED)).select(_FILE, _POSITION)
            write.delete(
                small(positions, outcome.removed),
                f"t._file = s.{_FILE} AND t._pos = s.{_POSITION}",
            )
        if outcome.added:
            names = [column.name for column in description.columns]
            write.append(resolved.where(col(_ADDED)).select(*map(col, names)))
    return outcome


def _materialise(
    resolved: DataFrame, key: Sequence[str], until_published: ExitStack
) -> tuple[DataFrame, Outcome]:
    """Compute a resolved batch once, keep it, and count it."""
    kept = resolved.persist(StorageLevel.MEMORY_AND_DISK)
    until_published.callback(kept.unpersist)
    row = kept.agg(
        F.count_if(col(_REMOVED)),
        F.count_if(col(_ADDED)),
        F.count_if(col(_BASELESS)),
        F.count_if(col(IGNORED)),
        sample_of(key, col(IGNORED)),
    ).first()
    return kept, Outcome(*row) if row else Outcome(0, 0, 0, 0, None)


def _overlapping(table: DataFrame, batch: Incoming, key: Sequence[str]) -> DataFrame:
    """Stored versions that end at the first time their key has in the batch, or later.

    They are all that the batch can change. The least of those times prunes files and row groups by
    their statistics, so that the cost does not grow with the history before it.
    """
    time = F.when(col(OP) == int(Op.DELETE), col(END)).otherwise(col(START))
    since = batch.rows.groupBy(*map(col, key)).agg(_look_back(F.min(time)).alias(_TIME))
    table = table.where(col(END) >= F.timestamp_micros(F.lit((batch.since or 0) - _MILLISECOND)))
    return _joined(table, since, batch, key, lambda time: col(END) >= time)


def _newest_before(
    table: DataFrame, resolved: DataFrame, batch: Incoming, key: Sequence[str]
) -> DataFrame:
    """The newest stored version before the earliest start, for keys with baseless updates."""
    keys = resolved.where(col(_BASELESS)).select(*map(col, key), col(_EARLIEST).alias(_TIME))
    found = _joined(table, keys.distinct(), batch, key, lambda time: col(START) < time)
    newest = F.max_by(F.struct(*map(col, found.columns)), col(START)).alias(_BASE)
    return found.groupBy(*map(col, key)).agg(newest).select(f"{_BASE}.*")


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
        col(_TIME),
    )
    for bound in batch.within_bounds():
        table = table.where(bound)
    matches = [
        col(name).eqNullSafe(col(f"{RESERVED}key{number}")) for number, name in enumerate(key)
    ]
    columns = [col(name) for name in table.columns]
    place = (col("_file").alias(_FILE), col("_pos").alias(_POSITION))
    table = table.select(*columns, *place)
    joined = table.join(
        small(renamed, batch.keys), reduce(and_, [*matches, condition(col(_TIME))]), "inner"
    )
    return joined.select(*columns, _FILE, _POSITION)


def _look_back(time: Expression) -> Expression:
    """A millisecond earlier: a version shorter than that may end before it starts."""
    return F.timestamp_micros(F.unix_micros(time) - _MILLISECOND)


def resolve(
    batch: Incoming,
    stored: DataFrame | None,
    older: DataFrame | None,
    description: TableDescription,
) -> DataFrame:
    """What a batch does to a table, as one frame of versions that go, come, or are ignored.

    Args:
        batch: the batch.
        stored: the table's versions that the batch can change, with `_FILE` and `_POSITION`; None
            if the table is empty.
        older: for keys whose update rows found no version before them, their newest older version;
            None before that is known.
        description: the table.

    Returns:
        The table's columns, and booleans: `_REMOVED`, the stored version goes; `_ADDED`, the
        version is written (both: it is rewritten); `_BASELESS`, an update row without a version
        before it; `IGNORED`, such a row that nothing completes. `_FILE` and `_POSITION` tell where
        a stored version lies, `_EARLIEST` is the key's earliest start.
    """
    key = description.record_key
    events = _events(batch, stored, older, description)
    in_order = Window.partitionBy(*map(col, key)).orderBy(_TIME, _KIND, SEQ)
    events = _without_superseded(events, key, in_order)
    events = _with_bases(events, key, in_order, description, look_further=older is not None)
    events = _completed(events, batch, in_order, description)
    return _ended(events, in_order, description)


def _events(
    batch: Incoming,
    stored: DataFrame | None,
    older: DataFrame | None,
    description: TableDescription,
) -> DataFrame:
    """Stored versions and the batch's rows, as events of their keys."""
    op = col(OP)
    kind = F.create_map(*(F.lit(int(value)) for pair in _RANK.items() for value in pair))[op]
    changes = batch.rows.withColumns(
        {
            _KIND: kind,
            _TIME: F.when(op == int(Op.DELETE), col(END)).otherwise(col(START)),
        }
    )
    events = changes.drop(OP)
    for table in (stored, older):
        if table is not None:
            versions = table.withColumns(
                {_KIND: F.lit(_STORED), _TIME: col(START), SEQ: F.lit(0).cast("bigint")}
            )
            events = events.unionByName(versions, allowMissingColumns=True)
    types = {column.name: column.type.sql for column in description.columns}
    types |= {_FILE: "string", _POSITION: "bigint"}
    missing = {
        name: F.lit(None).cast(sql) for name, sql in types.items() if name not in events.columns
    }
    return events.withColumns(missing) if missing else events


def _without_superseded(events: DataFrame, key: Sequence[str], in_order: WindowSpec) -> DataFrame:
    """Events with each key's earliest start, the last row of each start, and what it removes."""
    of_batch = col(_KIND).isin(_RANK[Op.UPDATE], _RANK[Op.REPLACE])
    starts = of_batch | (col(_KIND) == _RANK[Op.EARLIEST])
    superseded = (
        of_batch
        & F.lead(of_batch, 1, False).over(in_order)
        & F.coalesce(F.lead(col(_TIME)).over(in_order) == col(_TIME), F.lit(False))
    )
    earliest = F.min(F.when(starts, col(_TIME))).over(Window.partitionBy(*map(col, key)))
    events = events.withColumns({_EARLIEST: earliest, _ADDED: of_batch & ~superseded})
    events = events.where(~of_batch | col(_ADDED)).where(col(_KIND) != _RANK[Op.EARLIEST])
    removed = (col(_KIND) == _STORED) & (col(_TIME) >= col(_EARLIEST))
    return events.withColumn(_REMOVED, F.coalesce(removed, F.lit(False)))


def _with_bases(
    events: DataFrame,
    key: Sequence[str],
    in_order: WindowSpec,
    description: TableDescription,
    *,
    look_further: bool,
) -> DataFrame:
    """Say of each update row whether something before it can complete it, or what else does."""
    is_update = col(_KIND) == _RANK[Op.UPDATE]
    is_whole = ((col(_KIND) == _STORED) & ~col(_REMOVED)) | (col(_KIND) == _RANK[Op.REPLACE])
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    up_to_here = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    after = in_order.rowsBetween(1, Window.unboundedFollowing)
    has_base = F.coalesce(F.max(is_whole).over(before), F.lit(False))
    events = events.withColumn(_BASELESS, is_update & ~has_base)
    if not look_further:
        return events.withColumns({_COMPLETE: F.lit(False), IGNORED: col(_BASELESS)})

    cells = F.struct(*(col(column.name) for column in description.columns))
    same_start = Window.partitionBy(*map(col, (*key, _TIME)))
    own = F.first(F.when(col(_REMOVED), cells), ignorenulls=True).over(same_start)
    events = events.withColumns({_BASE: own, _TAKEN: F.max(col(_ADDED)).over(same_start)})
    free = F.when(col(_REMOVED) & ~col(_TAKEN), cells)
    later = F.first(free, ignorenulls=True).over(after)
    base = F.when(col(_BASELESS), F.coalesce(col(_BASE), later))
    events = events.withColumn(_BASE, base)
    # Only the first of them needs it: the ones after it build on that one.
    so_far = F.count(col(_BASE)).over(up_to_here)
    return events.withColumns(
        {
            _COMPLETE: col(_BASELESS) & col(_BASE).isNotNull() & (so_far == 1),
            IGNORED: col(_BASELESS) & (so_far == 0),
        }
    )


def _completed(
    events: DataFrame, batch: Incoming, in_order: WindowSpec, description: TableDescription
) -> DataFrame:
    """Events whose update rows have all their cells."""
    is_update = col(_KIND) == _RANK[Op.UPDATE]
    is_stored = (col(_KIND) == _STORED) & ~col(_REMOVED)
    known = is_stored | (col(_ADDED) & ~col(IGNORED))
    up_to_here = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    always_given = {*description.record_key, START, END, ACTIVE}
    left_as_is = {
        column.name: is_update
        if column.name not in batch.names
        else is_update & batch.is_unmodified(column.name)
        for column in description.columns
        if column.name not in always_given
        and (column.name in batch.unmodified or column.name not in batch.names)
    }
    if not batch.updated or not left_as_is:
        return events
    if _BASE in events.columns:
        events = events.withColumns(
            {
                name: F.when(left & col(_COMPLETE), col(_BASE).getField(name)).otherwise(col(name))
                for name, left in left_as_is.items()
            }
        )
    return events.withColumns(
        {
            name: completed(name, given=~left | col(_COMPLETE), known=known, window=up_to_here)
            for name, left in left_as_is.items()
        }
    )


def _ended(events: DataFrame, in_order: WindowSpec, description: TableDescription) -> DataFrame:
    """Events with the ends that the batch gives to versions; deletes are gone."""
    after = in_order.rowsBetween(1, Window.unboundedFollowing)
    is_stored = (col(_KIND) == _STORED) & ~col(_REMOVED)
    is_added = col(_ADDED) & ~col(IGNORED)
    is_version = is_stored | is_added

    reaches = F.coalesce(col(ACTIVE), F.lit(False)) | (col(END) >= col(_EARLIEST))
    is_trimmed = is_stored & col(_EARLIEST).isNotNull() & reaches
    end = F.when(is_trimmed, _look_back(col(_EARLIEST))).otherwise(col(END))
    is_delete = col(_KIND) == _RANK[Op.DELETE]
    deleted = F.first(F.when(is_delete, col(_TIME)), ignorenulls=True).over(after)
    following = F.first(F.when(is_version, col(_TIME)), ignorenulls=True).over(after)
    events = events.withColumns({_END: end, _DELETED: deleted, _NEXT: following})

    is_current = F.coalesce(col(_DELETED) < col(_NEXT), col(_DELETED).isNotNull())
    is_closed = is_version & is_current & (col(_DELETED) < col(_END))
    end = F.when(is_closed, col(_DELETED)).otherwise(col(_END))
    active = F.when(is_closed | is_trimmed, F.lit(False)).otherwise(col(ACTIVE))
    is_changed = is_stored & ~(end.eqNullSafe(col(END)) & active.eqNullSafe(col(ACTIVE)))
    given = {END: end.alias(END), ACTIVE: active.alias(ACTIVE)}
    return events.select(
        *(given.get(column.name, col(column.name)) for column in description.columns),
        (col(_REMOVED) | is_changed).alias(_REMOVED),
        (is_added | is_changed).alias(_ADDED),
        _BASELESS,
        IGNORED,
        _EARLIEST,
        _FILE,
        _POSITION,
    ).where(col(_REMOVED) | col(_ADDED) | col(_BASELESS))
