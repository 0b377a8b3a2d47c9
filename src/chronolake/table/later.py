"""Versions that begin later than all that a history table holds: they need no look at its rows.

What differs between two snapshots of a source is such a batch: each record is in it once, at the
time of the snapshot. Then `table/succession.py` comes to the same for every record: its active
version ends, and a new one follows or a mark does. Whether a batch is later than a table is told by
a property that is published with the rows, and counts only while they are the ones it tells of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chronolake.changes import DELETED_AT, MODIFIED, TELLS
from chronolake.failpoints import reach
from chronolake.iceberg import HIDDEN, MAIN
from chronolake.table.incoming import same_key
from chronolake.table.sql import KEYS, TABLE, broadcast, listed, numbered
from chronolake.table.succession import of_landed, states, time_in
from chronolake.types import ACTIVE, END, START, SYNCED, VERSION, Mode

if TYPE_CHECKING:
    from chronolake.table.layout import Layout
    from chronolake.table.measured import Pulled
    from chronolake.table.staging import StagedWrite

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
    if layout.mode is not Mode.HISTORY or layout.untold or not pulled.say_one_thing_each:
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
    ends = f"IF({TELLS}, {MODIFIED} - {layout.epsilon}L, {DELETED_AT})"
    hint = broadcast(pulled.view, pulled.rows)
    reach("write.planned")
    ended = write.update(
        f"SELECT {hint} {numbered(layout.key)}, {ends} AS ends FROM {pulled.view}",
        " AND ".join([*same_key(layout.key, pulled.bounds), f"{TABLE}.{ACTIVE}"]),
        assignments=f"{TABLE}.{END} = timestamp_micros({KEYS}.ends), {TABLE}.{ACTIVE} = false",
        changed="true",
    )
    if pulled.marks < pulled.rows:
        write.append(_new(TELLS, layout.columns, pulled, layout, synced_micros))
    if pulled.marks:
        columns = (*layout.data, SYNCED, VERSION)
        write.hidden.append(_new(f"NOT {TELLS}", columns, pulled, layout, synced_micros))
    return ended


def _new(which: str, columns: tuple[str, ...], pulled: Pulled, layout: Layout, synced: int) -> str:
    landed = of_landed(f"{pulled.view} WHERE {which}", layout)
    return f"SELECT {listed(columns)} FROM ({states(landed, layout, synced_micros=synced)})"


def telling_latest(write: StagedWrite, micros: int) -> dict[str, str]:
    """The property of a table that says how late its rows are, once what is staged is published.

    Args:
        write: the attempt, with all that it changes.
        micros: the latest time of all rows.
    """
    now = write.table.refreshed()
    heads = (now.branch(one.branch if one.made else one.of) for one in (write, write.hidden))
    return {LATEST_PROPERTY: "@".join(map(str, (micros, *heads)))}


def _latest_of(write: StagedWrite) -> int | None:
    told = write.table.property_of(LATEST_PROPERTY)
    if told is not None:
        micros, *heads = told.split("@")
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
