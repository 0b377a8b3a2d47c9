"""Applies record versions to pipeline tables, in any order, with a fast path for appends.

Versions that begin later than all that a history table holds: they need no look at its rows.

What differs between two snapshots of a source is such a batch: each record is in it once, at the
time of the snapshot. Then `core/scd2_sql.py` comes to the same for every record: its active
version ends, and a new one follows or a mark does. Whether a batch is later than a table is told by
a property that is published with the rows, and counts only while they are the ones it tells of.

Record versions of a source into its table, in any order and any grouping.

What a record's rows come to is decided in `chronolake.core.scd2_sql`; this module finds the
stored rows that landed ones can change, and stages the result. How far a table has come in its
source is a property that is published with the rows, so that both are there or neither.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import orjson

from chronolake.change_set import DELETED_AT, MODIFIED, PROVIDES_DATA, PURGED_AT
from chronolake.core import usage
from chronolake.core.batch_profile import is_since, measured, same_key
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
    of_landed,
    of_purged,
    of_stored,
    states,
    succession,
    time_in,
)
from chronolake.core.sql import KEYS, TABLE, broadcast, kept, listed, numbered, same_row, viewed
from chronolake.core.staging import BATCH_PROPERTY, StagedWrite, Stopwatch, expect_unaltered, staged
from chronolake.description import describe_loaded
from chronolake.errors import TableNotFoundError
from chronolake.failpoints import reach
from chronolake.iceberg import HIDDEN, MAIN
from chronolake.types import ACTIVE, END, HASH, START, SYNCED, VERSION, Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from chronolake.core.batch_profile import Pulled
    from chronolake.core.scd2_sql import Layout
    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake
    from chronolake.types import TableName


#: The latest time of all rows, hidden ones too, in microseconds since 1970, and the snapshots of
#: both branches that it is true of.
LATEST_PROPERTY: Final = "chronolake.latest"


def are_later(write: StagedWrite, pulled: Pulled, layout: Layout) -> bool:
    """Whether landed rows can be written without a look at what is stored.

    Of a table of which it is not known how late its rows are, that is found out: all times in it
    are read, once.

    Args:
        write: the attempt; the table has rows.
        pulled: the landed rows.
        layout: the table.
    """
    if layout.mode is not Mode.HISTORY or layout.omitted or not pulled.say_one_thing_each:
        return False
    latest = _latest_of(write)
    return (
        latest is not None and pulled.since is not None and pulled.since >= latest + layout.epsilon
    )


def stage_later(write: StagedWrite, pulled: Pulled, layout: Layout, *, synced_micros: int) -> int:
    """Stage landed rows that are later than the table: end versions, add others, and add marks.

    Args:
        write: the attempt.
        pulled: the landed rows.
        layout: the table.
        synced_micros: `_fivetran_synced` of the new rows.

    Returns:
        How many versions end.
    """
    ends = f"IF({PROVIDES_DATA}, {MODIFIED} - {layout.epsilon}L, {DELETED_AT})"
    hint = broadcast(pulled.view, pulled.rows)
    reach("write.planned")
    ended = write.update(
        f"SELECT {hint} {numbered(layout.key)}, {ends} AS ends FROM {pulled.view}",
        " AND ".join([*same_key(layout.key, pulled.bounds), f"{TABLE}.{ACTIVE}"]),
        assignments=f"{TABLE}.{END} = timestamp_micros({KEYS}.ends), {TABLE}.{ACTIVE} = false",
        changed="true",
    )
    if pulled.marks < pulled.rows:
        write.append(_new(PROVIDES_DATA, layout.columns, pulled, layout, synced_micros))
    if pulled.marks:
        columns = (*layout.data, SYNCED, VERSION)
        write.hidden.append(_new(f"NOT {PROVIDES_DATA}", columns, pulled, layout, synced_micros))
    return ended


def _new(which: str, columns: tuple[str, ...], pulled: Pulled, layout: Layout, synced: int) -> str:
    landed = of_landed(f"{pulled.view} WHERE {which}", layout)
    return f"SELECT {listed(columns)} FROM ({states(landed, layout, synced_micros=synced)})"


def latest_with_data(write: StagedWrite, micros: int) -> dict[str, str]:
    """The property of a table that says how late its rows are, once what is staged is published.

    Args:
        write: the attempt, with all that it changes.
        micros: the latest time of all rows.
    """
    now = write.table.refreshed()
    heads = (now.branch(one.branch if one.made else one.of) for one in (write, write.hidden))
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
class PullResult:
    """What became of landed rows.

    Attributes:
        batch: the batch's identity, as it stands in the table's properties.
        landed: rows that were brought, duplicates included.
        written: rows of the table that are new or changed.
        removed: rows of the table that went, or were replaced by changed ones.
        seconds: time by stage: read, resolve, branch, delete, append, publish.
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
    not_hashed: Sequence[str] = (),
    erased: Sequence[str] = (),
) -> PullResult:
    """Apply record versions to a table, all of them or nothing.

    The table is what all versions ever applied make together, whatever their order; applying the
    same ones again changes no row.

    Args:
        lake: the lake.
        name: a table made by `create_pulled`.
        versions: record versions (`chronolake.change_set`) with all data columns of the table;
            their session does the work (`Lake.session_for_versions`). It is computed more than
            once: reading it must always give the same rows.
        synced_micros: `_fivetran_synced` of rows that are new, in microseconds since 1970.
        batch: the batch's identity, for logs and the table's properties.
        properties: properties of the table to publish together with the rows.
        guard: gets the table as it is when the rows are published, and raises if this process must
            not write to it any more.
        counts: whether the rows count for the month's usage.
        has_each_once: whether it is known that no two of the versions are of one record.
        not_hashed: the data columns that a row's hash is not made of, where it has one.
        erased: the data columns that a purge empties in the versions that it ends.

    Raises:
        TableNotFoundError: there is no such table.
        BatchError: the table is not filled in this way, or a version lacks its key, its time or its
            sequence.
        CommitError: the result could not be published.
        Exception: whatever computing `versions` raises; nothing has changed.
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
        # Columns that have come since are null in all other rows.
        new = (description.by_name[name] for name in layout.data if name not in not_hashed)
        hashed = tuple(dict.fromkeys([*hashed, *new]))
    layout = replace(layout, erased=tuple(erased), omitted=_omitted_of(table), hashed=hashed)
    ensure_hidden(table)
    watch = Stopwatch()
    result = PullResult(batch, 0, 0, 0, watch.seconds)
    spark = versions.sparkSession
    with viewed(versions) as view:
        with watch.stage("read"):
            pulled = measured(spark, view, description, layout, has_each_once=has_each_once)
            layout = replace(
                layout, omitted=tuple(dict.fromkeys([*layout.omitted, *pulled.omitted]))
            )

        def write(attempt: StagedWrite) -> Mapping[str, str]:
            nonlocal result
            expect_unaltered(attempt, description)
            outcome = _stage(attempt, pulled, layout, synced_micros, watch)
            result = PullResult(batch, pulled.rows, outcome.written, outcome.removed, watch.seconds)
            counted = usage.counted(attempt.table, outcome.sketch if counts else None)
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

        staged(lake, name, write, watch, spark=spark, guard=guard, also_pulled=True)
    return result


@dataclass(frozen=True)
class _Outcome:
    written: int = 0
    removed: int = 0
    sketch: bytes | None = None
    #: The latest time in the table, in microseconds, where that is known; None: it is not.
    latest: int | None = None


def _omitted_of(table: IcebergTable) -> tuple[str, ...]:
    return tuple(orjson.loads(table.property_of(OMITTED_PROPERTY) or "[]"))


def _stage(
    write: StagedWrite, pulled: Pulled, layout: Layout, synced: int, watch: Stopwatch
) -> _Outcome:
    if not pulled.rows:
        return _Outcome()
    layout = replace(layout, has_marks=bool(pulled.marks) or not write.hidden.is_empty)
    at_once = _at_once(write, pulled, layout, synced, watch)
    if at_once is not None:
        return at_once
    events = _events(write, pulled, layout)
    resolved = write.spark.sql(succession(events, layout, synced_micros=synced))
    if write.is_empty and write.hidden.is_empty:
        return _fill(write, resolved, pulled, layout)
    with ExitStack() as until_published:
        with watch.stage("resolve"):
            rows = until_published.enter_context(kept(resolved))
            sketch = usage.sketching(layout.counted, COUNTED)
            (found,) = write.spark.sql(
                f"SELECT count_if({REMOVED}) AS removed, count_if({ADDED}) AS added, "
                f"count_if({CONCEALED}) AS concealed, count_if({REVEALED}) AS revealed, "
                f"{sketch} AS sketch FROM {rows}"
            ).collect()
        reach("write.planned")
        if found["removed"]:
            _remove(write, rows, found["removed"], pulled, layout)
        if found["revealed"]:
            _reveal(write, rows, found["revealed"], pulled, layout)
        if found["added"]:
            write.append(_added(rows, layout))
        if found["concealed"]:
            write.hidden.append(_concealed(rows, layout))
    return _Outcome(found["added"], found["removed"], found["sketch"])


def _events(write: StagedWrite, pulled: Pulled, layout: Layout) -> list[str]:
    """Landed rows, and the stored ones that they can change, as queries."""
    events = [of_landed(pulled.view, layout)]
    if pulled.purges and layout.mode is not Mode.LIVE:
        # A live table shows no purged record, whatever is known of its versions.
        events.append(of_purged(pulled.view, layout))
    if not write.is_empty:
        events.append(_reached(write, pulled, layout))
    if not write.hidden.is_empty:
        events.append(_hidden(write, pulled, layout))
    return events


def _at_once(
    write: StagedWrite, pulled: Pulled, layout: Layout, synced: int, watch: Stopwatch
) -> _Outcome | None:
    """Stage rows that need no look at what is stored; None: they need one."""
    if not write.is_empty:
        with watch.stage("read"):
            is_later = are_later(write, pulled, layout)
        if not is_later:
            return None
        ended = stage_later(write, pulled, layout, synced_micros=synced)
        added = ended + pulled.rows - pulled.marks
        return _Outcome(added, ended, pulled.sketch, pulled.latest)
    if not (write.hidden.is_empty and pulled.are_states):
        return None
    reach("write.planned")
    write.append(states(of_landed(pulled.view, layout), layout, synced_micros=synced))
    return _Outcome(pulled.rows, 0, pulled.sketch, pulled.latest)


def _fill(write: StagedWrite, resolved: DataFrame, pulled: Pulled, layout: Layout) -> _Outcome:
    """Stage the first rows of a table: nothing has to go, and nothing is kept in memory."""
    with viewed(resolved) as view:
        reach("write.planned")
        write.append(_added(view, layout))
        if pulled.marks or layout.mode is Mode.LIVE:
            write.hidden.append(_concealed(view, layout))
    written = write.table.refreshed().rows_of(write.branch)
    return _Outcome(written or 0, 0, pulled.sketch)


def _added(rows: str, layout: Layout) -> str:
    return f"SELECT {listed(layout.columns)} FROM {rows} WHERE {ADDED}"


def _concealed(rows: str, layout: Layout) -> str:
    columns = listed((*layout.data, SYNCED, VERSION))
    return f"SELECT {columns} FROM {rows} WHERE {CONCEALED}"


def _remove(write: StagedWrite, rows: str, number: int, pulled: Pulled, layout: Layout) -> None:
    """Remove rows of `main`, by file and position."""
    conditions = [*same_key(layout.key, pulled.bounds), *same_row(FILE, POSITION)]
    if layout.mode is Mode.HISTORY:
        conditions += _in_reach(pulled, layout)
    write.delete(
        f"SELECT {broadcast(rows, number)} {numbered(layout.key)}, {FILE}, {POSITION} "
        f"FROM {rows} WHERE {REMOVED}",
        " AND ".join(conditions),
    )


def _reveal(write: StagedWrite, rows: str, number: int, pulled: Pulled, layout: Layout) -> None:
    """Remove hidden rows that have nothing to say any more, or are shown."""
    same_version = f"{TABLE}.{VERSION} = {KEYS}.{STORED}"
    write.hidden.delete(
        f"SELECT {broadcast(rows, number)} {numbered(layout.key)}, {STORED} "
        f"FROM {rows} WHERE {REVEALED}",
        " AND ".join([*same_key(layout.key, pulled.bounds), same_version]),
    )


def _reached(write: StagedWrite, pulled: Pulled, layout: Layout) -> str:
    """The rows of `main` that landed ones can change, with all that is known of them.

    In a history table these are versions which are active, or end when their record's first landed
    version starts or later.
    """
    keys = (
        f"SELECT {numbered(layout.key)}, min({MODIFIED}) AS since, max({PURGED_AT}) AS purged "
        f"FROM {pulled.view} GROUP BY {listed(layout.key)}"
    )
    conditions = same_key(layout.key, pulled.bounds)
    if layout.mode is Mode.HISTORY:
        since = f"timestamp_micros({KEYS}.since - {layout.epsilon})"
        reached = f"{TABLE}.{ACTIVE} OR {TABLE}.{END} >= {since}"
        if layout.erased:
            # Such a purge changes all that was before it.
            reached += f" OR {KEYS}.purged IS NOT NULL"
        conditions += [f"({reached})", *_in_reach(pulled, layout)]
    return (
        f"SELECT {broadcast(KEYS, pulled.rows)} {of_stored(layout, hidden=False)} "
        f"FROM {write.source} AS {TABLE} JOIN ({keys}) AS {KEYS} ON {' AND '.join(conditions)}"
    )


def _hidden(write: StagedWrite, pulled: Pulled, layout: Layout) -> str:
    """The hidden rows of the landed keys, with all that is known of them."""
    keys = f"SELECT DISTINCT {numbered(layout.key)} FROM {pulled.view}"
    matched = " AND ".join(same_key(layout.key, pulled.bounds))
    return (
        f"SELECT {broadcast(KEYS, pulled.rows)} {of_stored(layout, hidden=True)} "
        f"FROM {write.hidden.source} AS {TABLE} JOIN ({keys}) AS {KEYS} ON {matched}"
    )


def _in_reach(pulled: Pulled, layout: Layout) -> list[str]:
    """SQL conditions that all versions meet which landed rows can change: they prune files."""
    if layout.erased and pulled.purges:
        return []
    return [f"({TABLE}.{ACTIVE} OR {is_since(END, (pulled.since or 0) - layout.epsilon)})"]
