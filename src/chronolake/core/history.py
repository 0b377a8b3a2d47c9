"""Batches into history tables: earliest-start, update, replace and delete files, exactly.

Source: `seeds/history-batch-files.txt`, with the three clarifications that its own result tables
ask for (`docs/architecture.md`, "History batches"). In one staged write:

1. The *earliest start* of a key is the least start of its earliest, replace and update rows. Stored
   versions that start there or later are removed.
2. A remaining version that is active, or ends later than 1 ms before the earliest start, ends then
   and is inactive.
3. Replace rows are added as they are. Of rows with one key and one start the last one counts:
   update files first, then replace files, each in the order of the request.
4. An update row takes the cells it leaves as they are from the version just before it by start,
   stored or of this batch. Where there is none: from the stored version of its own start, else from
   the earliest later one that the batch removes and does not replace. Where there is none either,
   the row is ignored.
5. A delete row ends the version that was current at its time. Where none was, it ends the version
   that was active before the batch and starts later, at that version's start.

What happens to a key is decided by `chronolake.core.scd2_fold`, a pure function that Spark's
executors run over the key's events; this module brings the events together and stages the result.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chronolake.change_set import OP, SEQ, UNMODIFIED, Op
from chronolake.core import scd2_fold, usage
from chronolake.core.batch_profile import Incoming, incoming, micros_of_change
from chronolake.core.merge import BatchResult, fold_by_key
from chronolake.core.scd2_fold import (
    ADDED,
    BASELESS,
    CLOSED_AT_START,
    COUNTED,
    EARLIEST,
    FILE,
    IGNORED,
    KIND,
    POSITION,
    REMOVED,
    TIME,
)
from chronolake.core.sql import (
    BATCH,
    KEYS,
    TABLE,
    broadcast,
    cells,
    kept,
    listed,
    numbered,
    same_row,
    sample,
)
from chronolake.core.staging import BATCH_PROPERTY, StagedWrite, Stopwatch, expect_unaltered, staged
from chronolake.errors import BatchError, TableNotFoundError
from chronolake.failpoints import reach
from chronolake.types import ACTIVE, END, EPSILON_MICROS, START, Mode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from chronolake.description import TableDescription
    from chronolake.lake import Lake
    from chronolake.types import Column, TableName

_KINDS: Final = {
    Op.UPDATE: scd2_fold.UPDATE,
    Op.REPLACE: scd2_fold.REPLACE,
    Op.DELETE: scd2_fold.DELETE,
    Op.EARLIEST: scd2_fold.EARLIEST_START,
}
_OTHERS: Final = (
    f"{FILE} string, {POSITION} bigint, "
    f"{REMOVED} boolean, {ADDED} boolean, {BASELESS} boolean, {IGNORED} boolean, "
    f"{EARLIEST} bigint, {COUNTED} boolean, {CLOSED_AT_START} boolean"
)


def write_history_batch(
    lake: Lake, name: TableName, changes: DataFrame, *, columns: Sequence[Column], batch: str
) -> BatchResult:
    """Apply a history batch, all of it or nothing. Sent again, it gives the same table.

    Args:
        lake: the lake.
        name: a table in history mode.
        changes: the batch's change set (`chronolake.change_set`).
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
    outcome = Outcome(0, 0, 0, 0, None, None, 0)
    with incoming(
        changes, description, description.record_key, columns, watch, is_history=True
    ) as batch_rows:

        def write(attempt: StagedWrite) -> Mapping[str, str]:
            nonlocal outcome
            expect_unaltered(attempt, description)
            outcome = stage(attempt, batch_rows, description, watch)
            return {BATCH_PROPERTY: batch, **usage.counted(attempt.table, outcome.written)}

        if not batch_rows.is_empty:
            staged(lake, name, write, watch, spark=changes.sparkSession)
    return BatchResult(
        batch=batch,
        replaced=batch_rows.replaced,
        updated=batch_rows.updated,
        deleted=batch_rows.deleted,
        ignored=outcome.ignored,
        ignored_key=outcome.ignored_key,
        contradicting=batch_rows.contradicting,
        closed_at_start=outcome.closed_at_start,
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
        written: the sketch of the versions that the batch brings (`core/usage.py`).
        closed_at_start: active versions that a delete from before their start closes.
    """

    removed: int
    added: int
    baseless: int
    ignored: int
    ignored_key: str | None
    written: bytes | None
    closed_at_start: int


def stage(
    write: StagedWrite, batch: Incoming, description: TableDescription, watch: Stopwatch
) -> Outcome:
    """Work out what a history batch does to a table, and stage it.

    Args:
        write: the staged write of a history table.
        batch: the batch; not empty.
        description: the table, with the batch's columns.
        watch: gets the time as the stages `resolve`, `branch`, `delete` and `append`.
    """
    with ExitStack() as until_published:
        with watch.stage("resolve"):
            events = [_of_batch(batch, description)]
            if not write.is_empty:
                events.append(_overlapping(write.source, batch, description))
            resolved, outcome = _resolved(write, events, batch, description, until_published)
            if outcome.baseless and not write.is_empty:
                # Rare: a record that was deleted earlier, or an update older than all history.
                events.append(_newest_before(write.source, resolved, batch, description))
                resolved, outcome = _resolved(write, events, batch, description, until_published)
        reach("write.planned")
        if outcome.removed:
            _delete(write, resolved, outcome, batch, description)
        if outcome.added:
            names = listed(column.name for column in description.columns)
            write.append(f"SELECT {names} FROM {resolved} WHERE {ADDED}")
    return outcome


def _resolved(
    write: StagedWrite,
    events: Sequence[str],
    batch: Incoming,
    description: TableDescription,
    until_published: ExitStack,
) -> tuple[str, Outcome]:
    """Compute what a batch does to its keys once, keep it, and count it; gives it as a SQL name."""
    layout = scd2_fold.Layout(
        columns=tuple(column.name for column in description.columns),
        carried=batch.names,
        key=description.record_key,
        unmodified=batch.unmodified,
        epsilon=description.epsilon,
    )
    resolved = fold_by_key(
        write.spark,
        " UNION ALL ".join(events),
        key=layout.key,
        order=(TIME, KIND, SEQ),
        rows=batch.rows_count,
        fold=lambda rows: scd2_fold.resolve(rows, layout),
        description=description,
        others=_OTHERS,
    )
    name = until_published.enter_context(kept(resolved))
    (row,) = write.spark.sql(
        f"SELECT count_if({REMOVED}), count_if({ADDED}), count_if({BASELESS}), "
        f"count_if({IGNORED}), {sample(layout.key, IGNORED)}, "
        f"{usage.sketching([*layout.key, START], COUNTED)}, count_if({CLOSED_AT_START}) "
        f"FROM {name}"
    ).collect()
    return name, Outcome(*row)


def _delete(
    write: StagedWrite,
    resolved: str,
    outcome: Outcome,
    batch: Incoming,
    description: TableDescription,
) -> None:
    """Remove the stored versions that go, by file and position."""
    key = description.record_key
    write.delete(
        f"SELECT {broadcast(resolved, outcome.removed)} {numbered(key)}, {FILE}, {POSITION} "
        f"FROM {resolved} WHERE {REMOVED}",
        " AND ".join([*batch.same_key(key), *same_row(FILE, POSITION), _in_reach(batch)]),
    )


def _of_batch(batch: Incoming, description: TableDescription) -> str:
    """The batch's rows as events."""
    kinds = " ".join(f"WHEN {int(op)} THEN {kind}" for op, kind in _KINDS.items())
    return (
        f"SELECT CASE {OP} {kinds} END AS {KIND}, {micros_of_change()} AS {TIME}, {SEQ}, "
        f"{UNMODIFIED}, CAST(NULL AS STRING) AS {FILE}, CAST(NULL AS BIGINT) AS {POSITION}, "
        f"{cells(description, batch.names, of=BATCH)} FROM {batch.rows} AS {BATCH}"
    )


def _overlapping(table: str, batch: Incoming, description: TableDescription) -> str:
    """Stored versions that are active, or start or end at their key's first time or later.

    They are all that the batch can change. A version may end before it starts: where it is shorter
    than a millisecond, or was sent so.
    """
    key = description.record_key
    since = f"timestamp_micros(min({micros_of_change()}) - {EPSILON_MICROS}) AS since"
    keys = f"SELECT {numbered(key)}, {since} FROM {batch.rows} GROUP BY {listed(key)}"
    reached = (
        f"({TABLE}.{ACTIVE} OR {TABLE}.{END} >= {KEYS}.since OR {TABLE}.{START} >= {KEYS}.since)"
    )
    return _stored(table, batch, description, keys, reached, _in_reach(batch))


def _in_reach(batch: Incoming) -> str:
    """A SQL condition that all versions meet which the batch can change.

    It prunes files and row groups by their statistics, so that the cost does not grow with the
    history before the batch.
    """
    return f"({TABLE}.{ACTIVE} OR {batch.since_of(END)} OR {batch.since_of(START)})"


def _newest_before(
    table: str, resolved: str, batch: Incoming, description: TableDescription
) -> str:
    """The newest stored version before the earliest start, for keys with baseless updates."""
    keys = (
        f"SELECT DISTINCT {numbered(description.record_key)}, "
        f"timestamp_micros({EARLIEST}) AS since "
        f"FROM {resolved} WHERE {BASELESS}"
    )
    found = _stored(table, batch, description, keys, f"{TABLE}.{START} < {KEYS}.since")
    newest = f"max_by(struct(*), {TIME}) AS newest"
    key = listed(description.record_key)
    return f"SELECT newest.* FROM (SELECT {newest} FROM ({found}) GROUP BY {key})"


def _stored(
    table: str,
    batch: Incoming,
    description: TableDescription,
    keys: str,
    *conditions: str,
) -> str:
    """Stored versions as events, for keys that `keys` numbers, on conditions over both."""
    names = [column.name for column in description.columns]
    matched = " AND ".join([*batch.same_key(description.record_key), *conditions])
    return (
        f"SELECT {broadcast(KEYS, batch.rows_count)} {scd2_fold.STORED} AS {KIND}, "
        f"unix_micros({TABLE}.{START}) AS {TIME}, 0L AS {SEQ}, CAST(NULL AS ARRAY<BIGINT>) AS "
        f"{UNMODIFIED}, {TABLE}._file AS {FILE}, {TABLE}._pos AS {POSITION}, "
        f"{listed(names, of=TABLE)} FROM {table} AS {TABLE} JOIN ({keys}) AS {KEYS} ON {matched}"
    )
