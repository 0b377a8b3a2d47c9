"""Batches into history tables: earliest-start, update, replace and delete files.

Source: `seeds/history-batch-files.txt`, with three clarifications that its own result tables
require (`docs/architecture.md`, "History batches"). In one staged write:

1. The *earliest start* of a key is the least start of its earliest, replace and update rows. Stored
   versions that start at this time or later are removed.
2. A remaining version that is active, or ends later than 1 ms before the earliest start, then ends
   at that time and is inactive.
3. Replace rows are added unchanged. The last of several rows with one key and one start wins:
   update files are first, then replace files, each in the order of the request.
4. An update row takes its unmodified cells from the version just before it by start, stored or of
   this batch. If no such version exists: from the stored version with its own start, else from the
   earliest later version that the batch removes and does not replace. If that does not exist
   either, the row is ignored.
5. A delete row ends the version that was valid at its time; if versions overlap, all of them. If
   no version was valid, it ends the version that was active before the batch and starts later, at
   that version's start.

`chronolake.core.scd2_fold` decides what happens to a key. It is a pure function that Spark's
executors run over the key's events; this module gathers the events and stages the result.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chronolake.change_set import OP, SEQ, UNMODIFIED, Op
from chronolake.core import scd2_fold, usage
from chronolake.core.batch_profile import (
    IS_REPLACE,
    BatchProfile,
    micros_of_change,
    profile_changes,
)
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
    cached_view,
    cells,
    column_list,
    numbered_key,
    same_row,
    sample,
)
from chronolake.core.staging import (
    BATCH_PROPERTY,
    StagedWrite,
    Stopwatch,
    expect_unaltered,
    write_staged,
)
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
    """Apply a history batch, all of it or nothing. Sending it again gives the same table.

    Args:
        name: a table in history mode.
        changes: the batch's change set (`chronolake.change_set`).
        columns: the change set's data columns.
        batch: the batch's identity, for logs and the table's properties.

    Raises:
        TableNotFoundError: the table does not exist.
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
    with profile_changes(
        changes, description, description.record_key, columns, watch, is_history=True
    ) as profile:

        def write(attempt: StagedWrite) -> Mapping[str, str]:
            nonlocal outcome
            expect_unaltered(attempt, description)
            outcome = stage(attempt, profile, description, watch)
            return {
                BATCH_PROPERTY: batch,
                **usage.monthly_properties(attempt.table, outcome.written),
            }

        if not profile.is_empty:
            write_staged(lake, name, write, watch, spark=changes.sparkSession)
    return BatchResult(
        batch=batch,
        replaced=profile.replaced,
        updated=profile.updated,
        deleted=profile.deleted,
        ignored=outcome.ignored,
        ignored_key=outcome.ignored_key,
        contradicting=profile.contradicting,
        closed_at_start=outcome.closed_at_start,
        seconds=watch.seconds,
    )


@dataclass(frozen=True)
class Outcome:
    """Counts of a resolved batch.

    Attributes:
        removed: stored versions that are removed or rewritten.
        added: versions that are written.
        baseless: update rows without an earlier version among the versions that were read.
        ignored: update rows that nothing can complete.
        ignored_key: the key of one of these, or None.
        written: the sketch of the versions from the batch (`core/usage.py`).
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
    write: StagedWrite, profile: BatchProfile, description: TableDescription, watch: Stopwatch
) -> Outcome:
    """Compute the changes of a history table by a batch, and stage them.

    Args:
        write: the staged write of a history table.
        profile: the batch; not empty.
        description: the table, with the batch's columns.
        watch: gets the time as the stages `resolve`, `delete` and `append`.
    """
    with watch.stage("resolve"):
        first = _outcome_of_load(write, profile, description)
    if first is not None:
        reach("write.planned")
        if first.added:
            write.append(profile.replace_rows(description))
        return first
    with ExitStack() as stack:
        with watch.stage("resolve"):
            events = [_batch_events(profile, description)]
            if not write.is_empty:
                events.append(_overlapping_versions(write.source, profile, description))
            resolved, outcome = _resolve(write, events, profile, description, stack)
            if outcome.baseless and not write.is_empty:
                # Rare: a record that was deleted earlier, or an update older than all history.
                events.append(_newest_versions_before(write.source, resolved, profile, description))
                resolved, outcome = _resolve(write, events, profile, description, stack)
        reach("write.planned")
        if outcome.removed:
            _delete(write, resolved, outcome, profile, description)
        if outcome.added:
            names = column_list(column.name for column in description.columns)
            write.append(f"SELECT {names} FROM {resolved} WHERE {ADDED}")
    return outcome


def _outcome_of_load(
    write: StagedWrite, profile: BatchProfile, description: TableDescription
) -> Outcome | None:
    """Return the outcome of a batch whose replace rows are the versions of an empty table.

    None if its rows depend on each other: it changes versions, or has several with the same start.
    """
    if not write.is_empty or profile.updated or profile.deleted:
        return None
    columns = [*description.record_key, START]
    (row,) = write.spark.sql(
        f"SELECT count(*), count_if(n > 1), {usage.sketch_aggregate(columns, 'true')} "
        f"FROM (SELECT {column_list(columns)}, count(*) AS n FROM {profile.view} "
        f"WHERE {IS_REPLACE} GROUP BY {column_list(columns)})"
    ).collect()
    count, repeated, sketch = row
    return None if repeated else Outcome(0, count, 0, 0, None, sketch, 0)


def _resolve(
    write: StagedWrite,
    events: Sequence[str],
    profile: BatchProfile,
    description: TableDescription,
    stack: ExitStack,
) -> tuple[str, Outcome]:
    """Compute a batch's effects on its keys once and keep them; return SQL name and counts."""
    layout = scd2_fold.Layout(
        columns=tuple(column.name for column in description.columns),
        carried=profile.names,
        key=description.record_key,
        unmodified=frozenset(profile.omitted),
        epsilon=description.epsilon,
    )
    resolved = fold_by_key(
        write.spark,
        " UNION ALL ".join(events),
        key=layout.key,
        order=(TIME, KIND, SEQ),
        rows=profile.rows,
        fold=lambda rows: scd2_fold.resolve(rows, layout),
        description=description,
        others=_OTHERS,
    )
    name = stack.enter_context(cached_view(resolved))
    (row,) = write.spark.sql(
        f"SELECT count_if({REMOVED}), count_if({ADDED}), count_if({BASELESS}), "
        f"count_if({IGNORED}), {sample(layout.key, IGNORED)}, "
        f"{usage.sketch_aggregate([*layout.key, START], COUNTED)}, count_if({CLOSED_AT_START}) "
        f"FROM {name}"
    ).collect()
    return name, Outcome(*row)


def _delete(
    write: StagedWrite,
    resolved: str,
    outcome: Outcome,
    profile: BatchProfile,
    description: TableDescription,
) -> None:
    """Remove stored versions by file and position."""
    key = description.record_key
    write.delete(
        f"SELECT {broadcast(resolved, outcome.removed)} {numbered_key(key)}, {FILE}, {POSITION} "
        f"FROM {resolved} WHERE {REMOVED}",
        [*profile.same_key(key), *same_row(FILE, POSITION), _in_reach(profile)],
    )


def _batch_events(profile: BatchProfile, description: TableDescription) -> str:
    """Return the batch's rows as events."""
    kinds = " ".join(f"WHEN {int(op)} THEN {kind}" for op, kind in _KINDS.items())
    return (
        f"SELECT CASE {OP} {kinds} END AS {KIND}, {micros_of_change()} AS {TIME}, {SEQ}, "
        f"{UNMODIFIED}, CAST(NULL AS STRING) AS {FILE}, CAST(NULL AS BIGINT) AS {POSITION}, "
        f"{cells(description, profile.names, of=BATCH)} FROM {profile.view} AS {BATCH}"
    )


def _overlapping_versions(table: str, profile: BatchProfile, description: TableDescription) -> str:
    """Return stored versions that are active, or start or end at their key's first time or later.

    The batch can change only these. A version may end before it starts if it is shorter than a
    millisecond, or was sent like that.
    """
    key = description.record_key
    since = f"timestamp_micros(min({micros_of_change()}) - {EPSILON_MICROS}) AS since"
    keys = f"SELECT {numbered_key(key)}, {since} FROM {profile.view} GROUP BY {column_list(key)}"
    reached = (
        f"({TABLE}.{ACTIVE} OR {TABLE}.{END} >= {KEYS}.since OR {TABLE}.{START} >= {KEYS}.since)"
    )
    return _stored_events(table, profile, description, keys, reached, _in_reach(profile))


def _in_reach(profile: BatchProfile) -> str:
    """Return a SQL condition that is true for all versions that the batch can change.

    It prunes files and row groups by their statistics, so that the cost does not grow with the
    history before the batch.
    """
    times = " OR ".join(profile.is_since(column, EPSILON_MICROS) for column in (END, START))
    return f"({TABLE}.{ACTIVE} OR {times})"


def _newest_versions_before(
    table: str, resolved: str, profile: BatchProfile, description: TableDescription
) -> str:
    """Return the newest stored version before the earliest start, for keys of baseless updates."""
    keys = (
        f"SELECT DISTINCT {numbered_key(description.record_key)}, "
        f"timestamp_micros({EARLIEST}) AS since "
        f"FROM {resolved} WHERE {BASELESS}"
    )
    found = _stored_events(table, profile, description, keys, f"{TABLE}.{START} < {KEYS}.since")
    newest = f"max_by(struct(*), {TIME}) AS newest"
    key = column_list(description.record_key)
    return f"SELECT newest.* FROM (SELECT {newest} FROM ({found}) GROUP BY {key})"


def _stored_events(
    table: str,
    profile: BatchProfile,
    description: TableDescription,
    keys: str,
    *conditions: str,
) -> str:
    """Return stored versions as events, for keys that `keys` numbers, on conditions over both."""
    names = [column.name for column in description.columns]
    matched = " AND ".join([*profile.same_key(description.record_key), *conditions])
    return (
        f"SELECT {broadcast(KEYS, profile.rows)} {scd2_fold.STORED} AS {KIND}, "
        f"unix_micros({TABLE}.{START}) AS {TIME}, 0L AS {SEQ}, CAST(NULL AS ARRAY<BIGINT>) AS "
        f"{UNMODIFIED}, {TABLE}._file AS {FILE}, {TABLE}._pos AS {POSITION}, "
        f"{column_list(names, of=TABLE)} "
        f"FROM {table} AS {TABLE} JOIN ({keys}) AS {KEYS} ON {matched}"
    )
