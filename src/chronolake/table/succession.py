"""The versions of a record, one after the other: what landed rows and stored ones make together.

Sources: `seeds/data-lake-v2.txt` ("Important notes"), `seeds/history-mode.txt`. A table that is
pulled is a function of the set of rows that were landed for it:

* Of the rows of one version, which key and modification time identify, the one with the greatest
  sequence counts. What it does not tell is as it was told last (`table/untold.py`).
* Marks are apart: they say nothing about a version's data. A version of which there are only
  deletions does not exist. One of which there are purges, and no row with data, exists without
  data: in a history table, and in a soft-delete table if its record has no version with data.
  Nothing takes a purge back; a deletion does not count if its own version has a greater sequence:
  the record was there again.
* Versions start at their modification time. Those that would start less than an epsilon after the
  one before are moved to the next free instant, in the order of their modification times.
* A version ends an epsilon before the next one starts, or when it was deleted if that is earlier,
  but never before it starts. A mark ends all versions from before it (and it is not before the
  version that it was landed with); where the table erases, those that a purge ends keep their key
  and times only. The newest version is active unless it was deleted or purged.

A table has state besides the rows that readers see: a mark ends versions that land later, and in a
live table a deleted record must not come back with an older version. Such rows are *hidden*: they
stand on the branch `iceberg.HIDDEN`. Stored rows carry what tells them apart in the source, the
column `_chronolake_version`: modification, deletion and purge time in microseconds since 1970 (or
`-`), what was not told, and the sequence, with spaces between. A version without data has the time
of a purge there, as a mark has, but is no mark.

Everything here is SQL text over relations; `chronolake.table.pulled` runs it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from chronolake.changes import (
    DELETED_AT,
    LANDED_FILE,
    LANDED_ROW,
    MODIFIED,
    PURGED_AT,
    RESERVED,
    SEQUENCE,
    TELLS,
    UNTOLD,
    VERSION_COLUMNS,
)
from chronolake.table import untold
from chronolake.table.hashes import hash_of
from chronolake.table.sql import TABLE, listed
from chronolake.types import (
    ACTIVE,
    DELETED,
    END,
    HASH,
    START,
    SYNCED,
    TMAX_MICROS,
    VERSION,
    Mode,
    quoted,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chronolake.table.layout import Layout

# What is known of a stored row, besides the columns of every landed row.
FILE: Final = f"{RESERVED}file"
POSITION: Final = f"{RESERVED}position"
#: What `_chronolake_version` says in a stored row; null in landed ones.
STORED: Final = f"{RESERVED}stored"
_HIDDEN: Final = f"{RESERVED}hidden"
_OLD_START: Final = f"{RESERVED}old_start"
_OLD_END: Final = f"{RESERVED}old_end"
_OLD_MARK: Final = f"{RESERVED}old_mark"
_OLD_SYNCED: Final = f"{RESERVED}old_synced"
_FACTS: Final = {
    FILE: "string",
    POSITION: "bigint",
    STORED: "string",
    _HIDDEN: "boolean",
    _OLD_START: "bigint",
    _OLD_END: "bigint",
    _OLD_MARK: "boolean",
    _OLD_SYNCED: "timestamp",
}

# What becomes of a row.
#: A row of `main` goes: the one in `FILE` at `POSITION`.
REMOVED: Final = f"{RESERVED}removed"
#: The row is written to `main`.
ADDED: Final = f"{RESERVED}added"
#: The row is written to the hidden rows.
CONCEALED: Final = f"{RESERVED}concealed"
#: A hidden row goes: the one of this key in which `_chronolake_version` says `STORED`.
REVEALED: Final = f"{RESERVED}revealed"
#: The source brought this version, and it is written.
COUNTED: Final = f"{RESERVED}counted"

#: What orders rows of one version.
_RANK: Final = f"struct(length({SEQUENCE}), {SEQUENCE})"
_SAYS: Final = f"{RESERVED}says"
_FIRST_SAYS: Final = f"{RESERVED}first_says"
_STORED_SAYS: Final = f"{RESERVED}stored_says"
_IS_FIRST: Final = f"{RESERVED}is_first"
_IS_VERSION: Final = f"{RESERVED}is_version"
_IS_MARK: Final = f"{RESERVED}is_mark"
_PURGE_DELETED: Final = f"{RESERVED}purge_deleted"
_NOT_BEFORE: Final = f"{RESERVED}not_before"
_NUMBER: Final = f"{RESERVED}number"
_BEGIN: Final = f"{RESERVED}begin"
_NEXT: Final = f"{RESERVED}next"
_MARKED: Final = f"{RESERVED}marked"
_PURGED: Final = f"{RESERVED}purged"
_GONE: Final = f"{RESERVED}gone"
_FINISH: Final = f"{RESERVED}finish"
_LOSES: Final = f"{RESERVED}loses"


def of_landed(rows: str, layout: Layout) -> str:
    """Landed rows as a query: one side of what `succession` brings together.

    Args:
        rows: a relation with the layout's data columns and `changes.VERSION_COLUMNS`.
        layout: the table.
    """
    facts = [f"CAST(NULL AS {kind}) AS {name}" for name, kind in _FACTS.items()]
    origins = untold.of_landed(layout.untold_columns)
    chosen = ", ".join([listed(layout.data), *VERSION_COLUMNS, *facts, *origins])
    return f"SELECT {chosen} FROM {rows}"


def of_purged(rows: str, layout: Layout) -> str:
    """Landed purges as versions without data, as a query.

    They count as such where no other row tells of the same version.

    Args:
        rows: as of `of_landed`; the data columns of purges are empty.
        layout: as of `of_landed`.
    """
    told = ", ".join("true AS " + TELLS if name == TELLS else name for name in VERSION_COLUMNS)
    purges = f"SELECT {listed(layout.data)}, {told} FROM {rows} WHERE {PURGED_AT} IS NOT NULL"
    return of_landed(f"({purges})", layout)


def of_stored(layout: Layout, *, hidden: bool) -> str:
    """The columns to select of a stored row, known as `sql.TABLE`: the other side."""
    version = f"{TABLE}.{VERSION}"
    told = _part(version, 3)
    facts = {
        MODIFIED: time_in(version, 0),
        SEQUENCE: _part(version, 4),
        DELETED_AT: time_in(version, 1),
        PURGED_AT: time_in(version, 2),
        TELLS: f"{told} <> '{untold.NONE_TOLD}'",
        UNTOLD: "CAST(NULL AS ARRAY<STRING>)",
        LANDED_FILE: "CAST(NULL AS STRING)",
        LANDED_ROW: "CAST(NULL AS BIGINT)",
        **{name: f"CAST(NULL AS {kind})" for name, kind in _FACTS.items()},
        STORED: version,
        _HIDDEN: str(hidden),
        _OLD_SYNCED: f"{TABLE}.{SYNCED}",
    }
    if not hidden:
        facts |= {FILE: f"{TABLE}._file", POSITION: f"{TABLE}._pos"}
        if layout.mode is Mode.HISTORY:
            facts |= {
                _OLD_START: f"unix_micros({TABLE}.{START})",
                _OLD_END: f"unix_micros({TABLE}.{END})",
            }
        elif layout.mode is Mode.SOFT_DELETE:
            facts[_OLD_MARK] = f"{TABLE}.{DELETED}"
    chosen = [f"{value} AS {name}" for name, value in facts.items()]
    own = (facts[MODIFIED], facts[SEQUENCE])
    origins = untold.of_stored(layout.untold_columns, told, facts[PURGED_AT], own)
    return ", ".join([listed(layout.data, of=TABLE), *chosen, *origins])


def _part(version: str, number: int) -> str:
    """One of the parts of a `_chronolake_version`; the last may have spaces."""
    return f"split({version}, ' ', 5)[{number}]"


def time_in(version: str, number: int) -> str:
    """One of the times in a `_chronolake_version` as SQL, in microseconds, or null.

    Args:
        version: the column.
        number: 0 for modification, 1 for deletion, 2 for purge.
    """
    return f"CAST(nullif({_part(version, number)}, '-') AS BIGINT)"


def succession(events: Sequence[str], layout: Layout, *, synced_micros: int) -> str:
    """What becomes of the rows of all keys among some events, as a query.

    Args:
        events: queries of `of_landed` and `of_stored` rows. Of a key that is among the landed rows,
            all stored rows are here that they can change.
        layout: the table.
        synced_micros: `_fivetran_synced` of rows that the source brought.

    Returns:
        SQL that gives the columns of the table, and `MODIFIED`, `FILE`, `POSITION`, `STORED`,
        `REMOVED`, `ADDED`, `CONCEALED`, `REVEALED`, `COUNTED`.
    """
    key = listed(layout.key)
    is_deletion = f"NOT {TELLS} AND {PURGED_AT} IS NULL"
    # Rows with data come first, the greatest before the others; then purges as versions without;
    # then marks. Marks that
    # say the same follow each other: deletions by their sequence, then stored ones first.
    order = [
        f"{TELLS} DESC",
        f"{PURGED_AT} NULLS FIRST",
        f"IF({TELLS}, NULL, {DELETED_AT}) NULLS FIRST",
        f"IF({is_deletion}, {_RANK}, NULL) DESC",
        f"{TELLS} OR {STORED} IS NOT NULL DESC",
        f"length({SEQUENCE}) DESC",
        f"{SEQUENCE} DESC",
        f"length({LANDED_FILE}) DESC NULLS LAST",
        f"{LANDED_FILE} DESC NULLS LAST",
        f"{LANDED_ROW} DESC NULLS LAST",
    ]
    in_version = f"PARTITION BY {key}, {MODIFIED} ORDER BY {', '.join(order)}"
    so_far = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
    whole = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
    repeats = " AND ".join(
        f"lag({name}) OVER ({in_version}) <=> {name}" for name in (TELLS, PURGED_AT, DELETED_AT)
    )
    # The first row of a version tells, if one does: its sequence is the greatest that does.
    told = f"first_value(IF({untold.HAS_DATA}, {_RANK}, NULL)) OVER ({in_version} {so_far})"
    is_void = f"({is_deletion} AND coalesce({told} > {_RANK}, false))"
    purge_deleted = f"IF({PURGED_AT} IS NULL, NULL, {DELETED_AT})"
    of_version = (
        f"{TELLS} AND row_number() OVER ({in_version}) = 1 AS {_IS_FIRST}, "
        f"first_value({_SAYS}) OVER ({in_version} {so_far}) AS {_FIRST_SAYS}, "
        f"max(IF({TELLS} AND {STORED} IS NOT NULL, {_SAYS}, NULL)) OVER ({in_version} {whole}) "
        f"AS {_STORED_SAYS}, "
        f"NOT ({TELLS} OR ({repeats}) OR {is_void}) AS {_IS_MARK}, "
        f"min({purge_deleted}) OVER ({in_version} {whole}) AS {_PURGE_DELETED}, "
        # A version that was moved stays at least there when another row takes its place.
        f"max({_OLD_START}) OVER ({in_version} {whole}) AS {_NOT_BEFORE}"
    )
    # A row that says what is stored already leaves it as it is, `_fivetran_synced` included.
    stands = f"{_STORED_SAYS} IS NOT NULL AND {_FIRST_SAYS} = {_STORED_SAYS}"
    is_version = f"{TELLS} AND IF({stands}, {STORED} IS NOT NULL, {_IS_FIRST})"
    if layout.mode is not Mode.HISTORY:
        # What a record was last is more than that there was a later version of it.
        has_data = f"max({untold.HAS_DATA}) OVER (PARTITION BY {key})"
        is_version += f" AND ({untold.HAS_DATA} OR NOT {has_data})"
    says = ", ".join(_said(layout))
    in_record = f"PARTITION BY {key} ORDER BY {MODIFIED}"
    moved = f"coalesce({_NOT_BEFORE}, {MODIFIED}) - {_NUMBER} * {layout.epsilon}L"
    # Never before the version that it was landed with; `greatest` takes no notice of nulls.
    marked = f"IF({_IS_MARK}, greatest({PURGED_AT}, {MODIFIED}), NULL)"
    ends = "CAST(NULL AS BIGINT)"
    if layout.has_marks:
        # The first mark from a version on: among equal times, all are in the frame.
        ends = (
            f"min({marked}) OVER (PARTITION BY {key} ORDER BY coalesce({marked}, {MODIFIED}) DESC)"
        )
    purged = "CAST(NULL AS BIGINT)"
    if layout.erased:
        purged = f"max(IF({PURGED_AT} IS NULL, NULL, {marked})) OVER ({in_record} {whole})"
    facts = ", ".join(["*", *untold.facts(layout.untold_columns, key)])
    # Of rows that the source superseded, stored ones have to go; others may have told what a later
    # row did not.
    is_needed = f"{_IS_VERSION} OR {_IS_MARK} OR {STORED} IS NOT NULL"
    if layout.untold:
        is_needed += f" OR {TELLS}"
    return (
        f"WITH events AS ({' UNION ALL '.join(events)}), "
        # All that follows is by key: one shuffle and one sort serve it.
        f"together AS (SELECT *, xxhash64({SEQUENCE}, {DELETED_AT}, {DELETED_AT} IS NULL, {says}, "
        f"IF({TELLS}, {PURGED_AT}, NULL)) "
        f"AS {_SAYS} FROM events DISTRIBUTE BY {key}), "
        f"ranked AS (SELECT *, {of_version} FROM together), "
        f"versions AS (SELECT *, {is_version} AS {_IS_VERSION} FROM ranked), "
        f"telling AS (SELECT {facts} FROM versions WHERE {is_needed}), "
        f"counted AS (SELECT *, count_if({_IS_VERSION}) OVER ({in_record} {so_far}) AS {_NUMBER}, "
        f"{ends} AS {_MARKED}, {purged} AS {_PURGED} FROM telling), "
        f"begun AS (SELECT *, max(IF({_IS_VERSION}, {moved}, NULL)) OVER ({in_record} {so_far}) "
        f"+ {_NUMBER} * {layout.epsilon}L AS {_BEGIN} FROM counted), "
        f"placed AS (SELECT *, lead(IF({_IS_VERSION}, {_BEGIN}, NULL)) IGNORE NULLS "
        f"OVER ({in_record}) AS {_NEXT} FROM begun), "
        f"ended AS (SELECT *, {_ending(layout)} FROM placed) "
        f"SELECT {_cells(layout, synced_micros)}, {MODIFIED}, {FILE}, {POSITION}, "
        f"{STORED}, {_verdict(layout)} FROM ended"
    )


def states(event: str, layout: Layout, *, synced_micros: int) -> str:
    """What `succession` gives of rows that are each their record's one version, as a query.

    Args:
        event: a query of `of_landed` rows that were not deleted, and tell everything.
        layout: the table; nothing is stored in it.
        synced_micros: as of `succession`.

    Returns:
        SQL that gives the columns of the table.
    """
    placed = (
        f"SELECT *, {MODIFIED} AS {_BEGIN}, {TMAX_MICROS}L AS {_FINISH}, "
        f"CAST(NULL AS BIGINT) AS {_GONE} FROM ({event})"
    )
    return f"SELECT {_cells(replace(layout, erased=()), synced_micros)} FROM ({placed})"


def _said(layout: Layout) -> Iterator[str]:
    """What tells apart rows of a version that say different things, as SQL."""
    columns = {one.name: one for one in layout.untold_columns}
    for name in layout.data:
        value = quoted(name)
        if name in columns:
            yield columns[name].is_told
            value = f"IF({columns[name].is_told}, {value}, NULL)"
        yield f"{value}, {value} IS NULL"


def _ending(layout: Layout) -> str:
    """When a version was deleted or purged, and when it ends."""
    gone = f"least({DELETED_AT}, {_PURGE_DELETED}, {_MARKED})"
    end = f"greatest({_BEGIN}, least({_NEXT} - {layout.epsilon}L, {gone}))"
    is_active = f"{_NEXT} IS NULL AND {gone} IS NULL"
    # A row that has nothing to lose is erased already.
    loses = (
        f"({_is_erased(name, layout)} AND {quoted(name)} IS NOT NULL)" for name in layout.erased
    )
    return (
        f"{gone} AS {_GONE}, IF({is_active}, {TMAX_MICROS}L, {end}) AS {_FINISH}, "
        f"{' OR '.join(loses) or 'false'} AS {_LOSES}"
    )


def _is_erased(name: str, layout: Layout) -> str:
    """Whether a column must not keep what it says, as SQL: it was said before a purge."""
    by_name = {one.name: one for one in layout.untold_columns}
    told = f"least({MODIFIED}, {by_name[name].fact}.m)" if name in by_name else MODIFIED
    return f"coalesce({told} <= {_PURGED}, false)"


def _cells(layout: Layout, synced: int) -> str:
    """The columns of the table."""
    columns = layout.untold_columns
    told = untold.to_version(columns)
    times = [f"coalesce(CAST({name} AS STRING), '-')" for name in (DELETED_AT, PURGED_AT)]
    # What says something else now is news to those who go by the time.
    is_new = " OR ".join([f"{STORED} IS NULL", *(one.has_changed for one in columns)])
    if layout.mode is Mode.SOFT_DELETE:
        # So is a record that another row has marked.
        is_new += f" OR NOT (({_GONE} IS NOT NULL) <=> {_OLD_MARK})"
    cells = {
        START: f"timestamp_micros({_BEGIN})",
        END: f"timestamp_micros({_FINISH})",
        ACTIVE: f"{_FINISH} = {TMAX_MICROS}L",
        DELETED: f"{_GONE} IS NOT NULL",
        SYNCED: f"IF({is_new}, timestamp_micros({synced}L), {_OLD_SYNCED})",
        VERSION: f"concat_ws(' ', CAST({MODIFIED} AS STRING), {', '.join(times)}, {told}, "
        f"{SEQUENCE})",
    }
    cells |= {name: quoted(name) for name in layout.data}
    cells |= {one.name: one.value for one in columns}
    cells |= {
        name: f"IF({_is_erased(name, layout)}, NULL, {cells[name]})" for name in layout.erased
    }
    if layout.hashed:
        cells[HASH] = hash_of(layout.hashed, cells.__getitem__)
    return ", ".join(f"{cells[name]} AS {quoted(name)}" for name in layout.columns)


def _verdict(layout: Layout) -> str:
    """Where a row belongs, and whether it stands there already."""
    is_newest = f"({_IS_VERSION} AND {_NEXT} IS NULL)"
    match layout.mode:
        case Mode.HISTORY:
            is_shown, is_concealed = _IS_VERSION, _IS_MARK
            unchanged = f"{_BEGIN} <=> {_OLD_START} AND {_FINISH} <=> {_OLD_END}"
        case Mode.SOFT_DELETE:
            is_shown, is_concealed = is_newest, _IS_MARK
            unchanged = f"({_GONE} IS NOT NULL) <=> {_OLD_MARK}"
        case Mode.LIVE:
            is_shown = f"({is_newest} AND {_GONE} IS NULL)"
            is_concealed = f"({_IS_MARK} OR ({is_newest} AND {_GONE} IS NOT NULL))"
            unchanged = "true"
    changes = [_LOSES, *(one.has_changed for one in layout.untold_columns)]
    says_the_same = f"NOT ({' OR '.join(changes)})"
    stays = f"({is_shown} AND {FILE} IS NOT NULL AND {unchanged} AND {says_the_same})"
    stays_hidden = f"({is_concealed} AND {_HIDDEN} <=> true AND {says_the_same})"
    verdict = {
        REMOVED: f"{FILE} IS NOT NULL AND NOT {stays}",
        ADDED: f"{is_shown} AND NOT {stays}",
        CONCEALED: f"{is_concealed} AND NOT {stays_hidden}",
        REVEALED: f"{_HIDDEN} <=> true AND NOT {stays_hidden}",
        COUNTED: f"{is_shown} AND {STORED} IS NULL",
    }
    return ", ".join(f"({value}) AS {name}" for name, value in verdict.items())
