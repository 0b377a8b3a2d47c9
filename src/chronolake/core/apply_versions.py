"""Applies record versions to pipeline tables, in any order, with a fast path for appends.

`chronolake.core.scd2_sql` decides what the rows of a record become. This module finds the stored
rows that landed rows can change, and stages the result. The table's offset in its source is a
property that is published together with the rows, so that both are stored or neither is.

The fast path applies if all landed versions begin later than everything that a history table
contains, for example a snapshot diff: it contains each record once, at the time of the snapshot.
The result of `scd2_sql` is then the same for every record: its active version ends, and a new
version or a tombstone follows. Stored rows need not be read. A property that is published with the
rows stores the latest time in the table; it is valid only while the table still has the snapshots
that it names.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import orjson

from chronolake.change_set import DELETED_AT, MODIFIED, PROVIDES_DATA, PURGED_AT
from chronolake.core import usage
from chronolake.core.batch_profile import profile_versions
from chronolake.core.omitted_columns import OMITTED_PROPERTY
from chronolake.core.pipeline_table import ensure_hidden, layout_of
from chronolake.core.row_hash import HASHED_PROPERTY, hashed_columns, property_for
from chronolake.core.scd2_sql import (
    ADDED,
    CONCEALED,
    COUNTED,
    FILE,
    POSITION,
    REMOVED,
    REVEALED,
    STORED,
    active_versions,
    landed_rows,
    purge_rows,
    resolve_versions,
    stored_columns,
    time_in,
)
from chronolake.core.sql import (
    KEYS,
    TABLE,
    broadcast,
    cached_view,
    column_list,
    numbered_key,
    same_row,
)
from chronolake.core.staging import (
    BATCH_PROPERTY,
    StagedWrite,
    Stopwatch,
    expect_unaltered,
    write_staged,
)
from chronolake.description import describe_loaded
from chronolake.errors import LakeError, TableNotFoundError
from chronolake.failpoints import reach
from chronolake.frames import temp_view
from chronolake.iceberg import HIDDEN, MAIN
from chronolake.types import ACTIVE, END, HASH, START, VERSION, Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from chronolake.core.batch_profile import BatchProfile
    from chronolake.core.scd2_sql import Layout
    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake
    from chronolake.types import TableName


#: The latest time of all rows, hidden ones included, in microseconds since 1970, and the snapshots
#: of both branches for which it is valid.
LATEST_PROPERTY: Final = "chronolake.latest"


def can_append(write: StagedWrite, profile: BatchProfile, layout: Layout) -> bool:
    """Return whether landed rows can be written without reading the stored rows.

    If the table's latest time is not known, all times in the table are read once.

    The table must have rows.
    """
    if layout.mode is not Mode.HISTORY or layout.omitted or layout.merges:
        return False
    if not _has_one_change_per_record(profile):
        return False
    latest = _latest_of(write)
    return (
        latest is not None
        and profile.since is not None
        and profile.since >= latest + layout.epsilon
    )


def _has_one_change_per_record(profile: BatchProfile) -> bool:
    """Return whether each row is its record's only row: a version or a plain deletion."""
    are_plain = profile.deleted == profile.tombstones == profile.deletions
    return profile.has_each_once and are_plain and not (profile.purges or profile.omitted)


def _are_active_versions(profile: BatchProfile) -> bool:
    """Return whether each row is the only version of its record, and active."""
    return profile.has_each_once and not (profile.deleted or profile.tombstones or profile.omitted)


def stage_append(
    write: StagedWrite, profile: BatchProfile, layout: Layout, *, synced_micros: int
) -> int:
    """Stage landed rows that are later than the table: end versions, add new ones and tombstones.

    Args:
        write: the attempt.
        profile: the landed rows.
        layout: the table.
        synced_micros: `_fivetran_synced` of the new rows, in microseconds since 1970.

    Returns:
        The number of versions that end.
    """
    ends = f"IF({PROVIDES_DATA}, {MODIFIED} - {layout.epsilon}L, {DELETED_AT})"
    hint = broadcast(profile.view, profile.rows)
    reach("write.planned")
    ended = write.update(
        f"SELECT {hint} {numbered_key(layout.key)}, {ends} AS ends FROM {profile.view}",
        " AND ".join([*profile.same_key(layout.key), f"{TABLE}.{ACTIVE}"]),
        assignments=f"{TABLE}.{END} = timestamp_micros({KEYS}.ends), {TABLE}.{ACTIVE} = false",
        changed="true",
    )
    if profile.tombstones < profile.rows:
        columns = column_list(layout.columns)
        write.append(_new_rows(PROVIDES_DATA, columns, profile, layout, synced_micros))
    if profile.tombstones:
        write.hidden.append(
            _new_rows(f"NOT {PROVIDES_DATA}", layout.hidden_columns, profile, layout, synced_micros)
        )
    return ended


def _new_rows(which: str, columns: str, profile: BatchProfile, layout: Layout, synced: int) -> str:
    landed = landed_rows(f"{profile.view} WHERE {which}", layout)
    rows = active_versions(landed, layout, synced_micros=synced)
    return f"SELECT {columns} FROM ({rows})"


def latest_with_data(write: StagedWrite, micros: int) -> dict[str, str]:
    """Return the property with the table's latest time, valid once the staged rows are published.

    Args:
        write: the attempt, with all its changes staged.
        micros: the latest time of all rows, in microseconds since 1970.
    """
    heads = map(write.pending.state.branch, (MAIN, HIDDEN))
    return {LATEST_PROPERTY: "@".join(map(str, (micros, *heads)))}


def _latest_of(write: StagedWrite) -> int | None:
    reported = write.table.property_of(LATEST_PROPERTY)
    if reported is not None:
        micros, *heads = reported.split("@")
        branches = zip((MAIN, HIDDEN), heads, strict=True)
        if all(write.table.has_rows_of(branch, int(head)) for branch, head in branches):
            return int(micros)
    times = ", ".join(time_in(VERSION, number) for number in range(3))
    (row,) = write.spark.sql(
        f"SELECT max(latest) AS latest FROM ("
        f"SELECT greatest(unix_micros({START}), {times}) AS latest FROM {write.source} "
        f"UNION ALL SELECT greatest({times}) AS latest FROM {write.hidden.source})"
    ).collect()
    latest: int | None = row["latest"]
    return latest


@dataclass(frozen=True)
class ApplyResult:
    """The result of applying landed rows.

    Attributes:
        batch: the batch's identity, as in the table's properties.
        landed: number of landed rows, duplicates included.
        written: number of rows of the table that are new or changed.
        removed: number of rows of the table that were removed or replaced by changed ones.
        seconds: seconds by stage: read, resolve, delete, append, publish.
    """

    batch: str
    landed: int
    written: int
    removed: int
    seconds: dict[str, float]


def write_versions(
    lake: Lake,
    name: TableName,
    versions: DataFrame,
    *,
    synced_micros: int,
    batch: str,
    properties: Mapping[str, str],
    guard: Callable[[IcebergTable], None] | None = None,
    counts: bool = True,
    has_each_once: bool = False,
    expected_rows: int | None = None,
    not_hashed: Sequence[str] = (),
    erased: Sequence[str] = (),
    tracked: Sequence[str] | None = None,
) -> ApplyResult:
    """Apply record versions to a table, all of them or none.

    The table depends only on the set of versions that were ever applied, not on their order.
    Applying the same versions again changes no row.

    Args:
        name: a table created by `create_pipeline_table`.
        versions: record versions (`chronolake.change_set`) with all data columns of the table.
            Their session does the work (`Lake.session_for_versions`). They are computed more than
            once, so reading them must always give the same rows.
        synced_micros: `_fivetran_synced` of new rows, in microseconds since 1970.
        batch: the batch's identity, for logs and the table's properties.
        properties: properties of the table to publish together with the rows.
        guard: gets the table as it is when the rows are published, and raises if this process must
            no longer write to it.
        counts: whether the rows count for the month's usage.
        has_each_once: whether each record is known to have at most one of the versions.
        expected_rows: the number of versions, if it is known.
        not_hashed: the data columns that a row's hash excludes, if the table has hashes.
        erased: the data columns that a purge empties in the versions that it ends.
        tracked: in a history table, the data columns whose changes start a version; None: every
            change does. All rows of a table must be written with the same rule.

    Raises:
        TableNotFoundError: the table does not exist.
        BatchError: the table is not a pipeline table, or a version lacks its key, its time or its
            sequence.
        CommitError: the result could not be published.
        LakeError: another number of versions was read than is expected.
        Exception: any error from computing `versions`; nothing has changed.
    """
    table = lake.catalog.find(name)
    if table is None:
        raise TableNotFoundError(
            "The table does not exist.", table=str(name), hint="Create it before writing to it."
        )
    description = describe_loaded(table)
    layout = layout_of(description)
    hashed = hashed_columns(table, description)
    if hashed is not None:
        # Columns that were added later are null in all other rows.
        new = (description.by_name[name] for name in layout.data if name not in not_hashed)
        hashed = tuple(dict.fromkeys([*hashed, *new]))
    layout = replace(
        layout,
        erased=tuple(erased),
        omitted=_omitted_of(table),
        hashed=hashed,
        tracked=None if tracked is None else tuple(tracked),
    )
    ensure_hidden(table)
    watch = Stopwatch()
    result = ApplyResult(batch, 0, 0, 0, watch.seconds)
    spark = versions.sparkSession
    with temp_view(versions) as view:
        with watch.stage("read"):
            profile = profile_versions(
                spark, view, description, layout, has_each_once=has_each_once
            )
            _expect_rows(name, profile.rows, expected_rows)
            layout = replace(
                layout, omitted=tuple(dict.fromkeys([*layout.omitted, *profile.omitted]))
            )

        def write(attempt: StagedWrite) -> Mapping[str, str]:
            nonlocal result
            expect_unaltered(attempt, description)
            outcome = _stage(attempt, profile, layout, synced_micros, watch)
            result = ApplyResult(
                batch, profile.rows, outcome.written, outcome.removed, watch.seconds
            )
            counted = usage.monthly_properties(attempt.table, outcome.sketch if counts else None)
            latest = outcome.latest
            of_latest = {} if latest is None else latest_with_data(attempt, latest)
            of_hashes = {HASHED_PROPERTY: property_for(layout.hashed or ())}
            omitted = {OMITTED_PROPERTY: orjson.dumps(layout.omitted).decode()}
            return {
                **properties,
                BATCH_PROPERTY: batch,
                **counted,
                **of_latest,
                **(omitted if layout.omitted else {}),
                **(of_hashes if HASH in description.by_name else {}),
            }

        write_staged(lake, name, write, watch, spark=spark, guard=guard, allow_pipeline_table=True)
    return result


def _expect_rows(name: TableName, rows: int, expected: int | None) -> None:
    if expected is not None and rows != expected:
        raise LakeError(
            f"Spark read {rows:,} rows of files that have {expected:,}. Nothing was written.",
            table=str(name),
            hint="Run it again, with another Java: `chronolake engine stop` ends the one that is "
            "running. Please report it if it happens again.",
        )


@dataclass(frozen=True)
class _Outcome:
    written: int = 0
    removed: int = 0
    sketch: bytes | None = None
    #: The latest time in the table, in microseconds; None if it is not known.
    latest: int | None = None


def _omitted_of(table: IcebergTable) -> tuple[str, ...]:
    return tuple(orjson.loads(table.property_of(OMITTED_PROPERTY) or "[]"))


def _stage(
    write: StagedWrite, profile: BatchProfile, layout: Layout, synced: int, watch: Stopwatch
) -> _Outcome:
    if not profile.rows:
        return _Outcome()
    layout = replace(layout, has_tombstones=bool(profile.tombstones) or not write.hidden.is_empty)
    at_once = _stage_unread(write, profile, layout, synced, watch)
    if at_once is not None:
        return at_once
    events = _events(write, profile, layout)
    resolved = write.spark.sql(resolve_versions(events, layout, synced_micros=synced))
    # Of merged versions, the number is known only afterwards.
    if write.is_empty and write.hidden.is_empty and not layout.merges:
        return _stage_first(write, resolved, profile, layout)
    with ExitStack() as stack:
        with watch.stage("resolve"):
            rows = stack.enter_context(cached_view(resolved))
            sketch = usage.sketch_aggregate(layout.counted, COUNTED)
            (found,) = write.spark.sql(
                f"SELECT count_if({REMOVED}) AS removed, count_if({ADDED}) AS added, "
                f"count_if({CONCEALED}) AS concealed, count_if({REVEALED}) AS revealed, "
                f"{sketch} AS sketch FROM {rows}"
            ).collect()
        reach("write.planned")
        if found["removed"]:
            _remove(write, rows, found["removed"], profile, layout)
        if found["revealed"]:
            _reveal(write, rows, found["revealed"], profile, layout)
        if found["added"]:
            write.append(_added_rows(rows, layout))
        if found["concealed"]:
            write.hidden.append(_concealed_rows(rows, layout))
    return _Outcome(found["added"], found["removed"], found["sketch"])


def _events(write: StagedWrite, profile: BatchProfile, layout: Layout) -> list[str]:
    """Return queries of the landed rows, and of the stored rows that they can change."""
    events = [landed_rows(profile.view, layout)]
    if profile.purges and layout.mode is not Mode.LIVE:
        # A live table shows no purged record, whatever its versions are.
        events.append(purge_rows(profile.view, layout))
    if not write.is_empty:
        events.append(_reached_rows(write, profile, layout))
    if not write.hidden.is_empty:
        events.append(_hidden_rows(write, profile, layout))
    return events


def _stage_unread(
    write: StagedWrite, profile: BatchProfile, layout: Layout, synced: int, watch: Stopwatch
) -> _Outcome | None:
    """Stage rows without reading the stored rows; return None if these must be read."""
    if not write.is_empty:
        with watch.stage("read"):
            is_append = can_append(write, profile, layout)
        if not is_append:
            return None
        ended = stage_append(write, profile, layout, synced_micros=synced)
        added = ended + profile.rows - profile.tombstones
        return _Outcome(added, ended, profile.sketch, profile.latest)
    if not (write.hidden.is_empty and _are_active_versions(profile)):
        return None
    reach("write.planned")
    write.append(active_versions(landed_rows(profile.view, layout), layout, synced_micros=synced))
    return _Outcome(profile.rows, 0, profile.sketch, profile.latest)


def _stage_first(
    write: StagedWrite, resolved: DataFrame, profile: BatchProfile, layout: Layout
) -> _Outcome:
    """Stage the first rows of a table: nothing to remove, and nothing is kept in memory."""
    with temp_view(resolved) as view:
        reach("write.planned")
        write.append(_added_rows(view, layout))
        if profile.tombstones or layout.mode is Mode.LIVE:
            write.hidden.append(_concealed_rows(view, layout))
    return _Outcome(write.rows or 0, 0, profile.sketch)


def _added_rows(rows: str, layout: Layout) -> str:
    return f"SELECT {column_list(layout.columns)} FROM {rows} WHERE {ADDED}"


def _concealed_rows(rows: str, layout: Layout) -> str:
    return f"SELECT {layout.hidden_columns} FROM {rows} WHERE {CONCEALED}"


def _remove(
    write: StagedWrite, rows: str, number: int, profile: BatchProfile, layout: Layout
) -> None:
    """Remove rows of `main`, by file and position."""
    conditions = [*profile.same_key(layout.key), *same_row(FILE, POSITION)]
    if layout.mode is Mode.HISTORY:
        conditions += _in_reach(profile, layout)
    write.delete(
        f"SELECT {broadcast(rows, number)} {numbered_key(layout.key)}, {FILE}, {POSITION} "
        f"FROM {rows} WHERE {REMOVED}",
        conditions,
    )


def _reveal(
    write: StagedWrite, rows: str, number: int, profile: BatchProfile, layout: Layout
) -> None:
    """Remove hidden rows that are no longer needed, or that are now shown in `main`."""
    conditions = [*profile.same_key(layout.key), f"{TABLE}.{VERSION} = {KEYS}.{STORED}"]
    if layout.merges:
        conditions += [f"({TABLE}.{END} IS NULL OR {each})" for each in _in_reach(profile, layout)]
    write.hidden.delete(
        f"SELECT {broadcast(rows, number)} {numbered_key(layout.key)}, {STORED} "
        f"FROM {rows} WHERE {REVEALED}",
        conditions,
    )


def _reached_rows(write: StagedWrite, profile: BatchProfile, layout: Layout) -> str:
    """Return a query of the rows of `main` that landed rows can change, with their metadata.

    In a history table these are the versions that are active, or that end when their record's first
    landed version starts or later.
    """
    conditions = profile.same_key(layout.key)
    if layout.mode is Mode.HISTORY:
        conditions += [_is_reached(layout), *_in_reach(profile, layout)]
    return (
        f"SELECT {broadcast(KEYS, profile.rows)} {stored_columns(layout, hidden=False)} "
        f"FROM {write.source} AS {TABLE} JOIN ({_landed_keys(profile, layout)}) AS {KEYS} "
        f"ON {' AND '.join(conditions)}"
    )


def _landed_keys(profile: BatchProfile, layout: Layout) -> str:
    """Return a query of the landed keys, with their first time and their latest purge."""
    return (
        f"SELECT {numbered_key(layout.key)}, min({MODIFIED}) AS since, max({PURGED_AT}) AS purged "
        f"FROM {profile.view} GROUP BY {column_list(layout.key)}"
    )


def _is_reached(layout: Layout) -> str:
    """Return a SQL condition: a version of `TABLE` can be changed by the landed rows of `KEYS`."""
    since = f"timestamp_micros({KEYS}.since - {layout.epsilon})"
    reached = f"{TABLE}.{ACTIVE} OR {TABLE}.{END} >= {since}"
    if layout.erased:
        # Such a purge changes all versions before it.
        reached += f" OR {KEYS}.purged IS NOT NULL"
    return f"({reached})"


def _hidden_rows(write: StagedWrite, profile: BatchProfile, layout: Layout) -> str:
    """Return a query of the hidden rows that landed rows can change, with their metadata.

    These are all tombstones of their keys, and the collapsed versions in reach.
    """
    conditions = profile.same_key(layout.key)
    if layout.merges:
        reached = [_is_reached(layout), *_in_reach(profile, layout)]
        conditions += [f"({TABLE}.{END} IS NULL OR {each})" for each in reached]
    return (
        f"SELECT {broadcast(KEYS, profile.rows)} {stored_columns(layout, hidden=True)} "
        f"FROM {write.hidden.source} AS {TABLE} JOIN ({_landed_keys(profile, layout)}) AS {KEYS} "
        f"ON {' AND '.join(conditions)}"
    )


def _in_reach(profile: BatchProfile, layout: Layout) -> list[str]:
    """Return SQL conditions to prune files, true for all versions that landed rows can change."""
    if layout.erased and profile.purges:
        return []
    return [f"({TABLE}.{ACTIVE} OR {profile.is_since(END, layout.epsilon)})"]
