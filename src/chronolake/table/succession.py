"""The versions of a record, one after the other: what landed rows and stored ones make together.

Sources: `seeds/data-lake-v2.txt` ("Important notes"), `seeds/history-mode.txt`. A table that is
pulled is a function of the set of rows that were landed for it:

* Of the rows of one version, which key and modification time identify, the one with the greatest
  sequence counts. Purge rows are apart: they say nothing about a version's data, and nothing takes
  them back. A version of which there are only purge rows is none.
* Versions start at their modification time. Those that would start less than an epsilon after the
  one before are moved to the next free instant, in the order of their modification times.
* A version ends an epsilon before the next one starts, or when it was deleted if that is earlier,
  but never before it starts. A purge ends all versions from before it (and it is not before the
  version that it was landed with); where the table erases, they keep their key and times only. The
  newest version is active unless it was deleted or purged.

A table has state besides the rows that readers see: a purge ends versions that land later, and in a
live table a deleted record must not come back with an older version. Such rows are *hidden*: they
stand on the branch `iceberg.HIDDEN`. Stored rows carry what tells them apart in the source, the
column `_chronolake_version`: modification, deletion and purge time in microseconds since 1970 (or
`-`) and the sequence, with spaces between.

Everything here is SQL text over relations; `chronolake.table.pulled` runs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chronolake.changes import (
    DELETED_AT,
    LANDED_FILE,
    LANDED_ROW,
    MODIFIED,
    PURGED_AT,
    RESERVED,
    SEQUENCE,
    VERSION_COLUMNS,
)
from chronolake.table.sql import TABLE, listed
from chronolake.types import (
    ACTIVE,
    DELETED,
    END,
    START,
    SYNCED,
    TMAX_MICROS,
    VERSION,
    Mode,
    quoted,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

# What is known of a stored row, besides the columns of every landed row.
FILE: Final = f"{RESERVED}file"
POSITION: Final = f"{RESERVED}position"
_STORED: Final = f"{RESERVED}stored"
_HIDDEN: Final = f"{RESERVED}hidden"
_OLD_START: Final = f"{RESERVED}old_start"
_OLD_END: Final = f"{RESERVED}old_end"
_OLD_MARK: Final = f"{RESERVED}old_mark"
_OLD_SYNCED: Final = f"{RESERVED}old_synced"
_FACTS: Final = {
    FILE: "string",
    POSITION: "bigint",
    _STORED: "string",
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
#: The hidden row of this key and this `_chronolake_version` goes.
REVEALED: Final = f"{RESERVED}revealed"
#: The source brought this version, and it is written.
COUNTED: Final = f"{RESERVED}counted"

_SAYS: Final = f"{RESERVED}says"
_FIRST_SAYS: Final = f"{RESERVED}first_says"
_STORED_SAYS: Final = f"{RESERVED}stored_says"
_IS_FIRST: Final = f"{RESERVED}is_first"
_IS_VERSION: Final = f"{RESERVED}is_version"
_IS_PURGE: Final = f"{RESERVED}is_purge"
_PURGE_DELETED: Final = f"{RESERVED}purge_deleted"
_NOT_BEFORE: Final = f"{RESERVED}not_before"
_NUMBER: Final = f"{RESERVED}number"
_BEGIN: Final = f"{RESERVED}begin"
_NEXT: Final = f"{RESERVED}next"
_PURGES: Final = f"{RESERVED}purges"
_GONE: Final = f"{RESERVED}gone"
_FINISH: Final = f"{RESERVED}finish"
_IS_ERASED: Final = f"{RESERVED}is_erased"


@dataclass(frozen=True)
class Layout:
    """A table that is pulled, as far as its versions are concerned.

    Attributes:
        key: the columns that identify a record.
        data: the columns that landed rows have, the key among them.
        mode: the table's mode.
        epsilon: microseconds between a version's end and the start of the next.
        erased: the data columns that a purge empties in the versions that it ends.
    """

    key: tuple[str, ...]
    data: tuple[str, ...]
    mode: Mode
    epsilon: int
    erased: tuple[str, ...] = ()

    @property
    def system(self) -> tuple[str, ...]:
        """The columns that the table has besides."""
        by_mode = {
            Mode.HISTORY: (START, END, ACTIVE),
            Mode.SOFT_DELETE: (DELETED,),
            Mode.LIVE: (),
        }
        return (*by_mode[self.mode], SYNCED, VERSION)

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of the table, in its order."""
        return (*self.data, *self.system)


def of_landed(rows: str, layout: Layout) -> str:
    """Landed rows as a query: one side of what `succession` brings together.

    Args:
        rows: a relation with the layout's data columns and `changes.VERSION_COLUMNS`.
        layout: the table.
    """
    facts = ", ".join(f"CAST(NULL AS {kind}) AS {name}" for name, kind in _FACTS.items())
    return f"SELECT {listed(layout.data)}, {', '.join(VERSION_COLUMNS)}, {facts} FROM {rows}"


def of_stored(layout: Layout, *, hidden: bool) -> str:
    """The columns to select of a stored row, known as `sql.TABLE`: the other side."""
    version = f"{TABLE}.{VERSION}"
    facts = {
        MODIFIED: _part(version, 0),
        SEQUENCE: f"split({version}, ' ', 4)[3]",
        DELETED_AT: _part(version, 1),
        PURGED_AT: _part(version, 2),
        LANDED_FILE: "CAST(NULL AS STRING)",
        LANDED_ROW: "CAST(NULL AS BIGINT)",
        **{name: f"CAST(NULL AS {kind})" for name, kind in _FACTS.items()},
        _STORED: version,
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
    chosen = ", ".join(f"{value} AS {name}" for name, value in facts.items())
    return f"{listed(layout.data, of=TABLE)}, {chosen}"


def _part(version: str, number: int) -> str:
    """One of the times in a `_chronolake_version`, in microseconds, or null."""
    return f"CAST(nullif(split({version}, ' ', 4)[{number}], '-') AS BIGINT)"


def succession(events: Sequence[str], layout: Layout, *, synced_micros: int) -> str:
    """What becomes of the rows of all keys among some events, as a query.

    Args:
        events: queries of `of_landed` and `of_stored` rows. Of a key that is among the landed rows,
            all stored rows are here that they can change.
        layout: the table.
        synced_micros: `_fivetran_synced` of rows that the source brought.

    Returns:
        SQL that gives the columns of the table, and `MODIFIED`, `FILE`, `POSITION`, `REMOVED`,
        `ADDED`, `CONCEALED`, `REVEALED`, `COUNTED`.
    """
    key = listed(layout.key)
    tells = f"{PURGED_AT} IS NULL"
    # Rows that tell something come first, the greatest before the others; then purge rows, of which
    # those that say the same follow each other, stored ones first.
    order = [
        f"{PURGED_AT} NULLS FIRST",
        f"IF({tells}, NULL, {DELETED_AT}) NULLS FIRST",
        f"{tells} OR {_STORED} IS NOT NULL DESC",
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
        f"lag({name}) OVER ({in_version}) <=> {name}" for name in (PURGED_AT, DELETED_AT)
    )
    of_version = (
        f"{tells} AND row_number() OVER ({in_version}) = 1 AS {_IS_FIRST}, "
        f"first_value({_SAYS}) OVER ({in_version} {so_far}) AS {_FIRST_SAYS}, "
        f"max(IF({tells} AND {_STORED} IS NOT NULL, {_SAYS}, NULL)) OVER ({in_version} {whole}) "
        f"AS {_STORED_SAYS}, "
        f"NOT ({tells} OR ({repeats})) AS {_IS_PURGE}, "
        f"min(IF({tells}, NULL, {DELETED_AT})) OVER ({in_version} {whole}) AS {_PURGE_DELETED}, "
        # A version that was moved stays at least there when another row takes its place.
        f"max({_OLD_START}) OVER ({in_version} {whole}) AS {_NOT_BEFORE}"
    )
    # A row that says what is stored already leaves it as it is, `_fivetran_synced` included.
    stands = f"{_STORED_SAYS} IS NOT NULL AND {_FIRST_SAYS} = {_STORED_SAYS}"
    is_version = f"{tells} AND IF({stands}, {_STORED} IS NOT NULL, {_IS_FIRST}) AS {_IS_VERSION}"
    says = ", ".join(f"{name}, {name} IS NULL" for name in map(quoted, layout.data))
    in_record = f"PARTITION BY {key} ORDER BY {MODIFIED}"
    moved = f"coalesce({_NOT_BEFORE}, {MODIFIED}) - {_NUMBER} * {layout.epsilon}L"
    purge = f"IF({_IS_PURGE}, greatest({PURGED_AT}, {MODIFIED}), NULL)"
    return (
        f"WITH events AS ({' UNION ALL '.join(events)}), "
        # All that follows is by key: one shuffle and one sort serve it.
        f"together AS (SELECT *, xxhash64({SEQUENCE}, {DELETED_AT}, {DELETED_AT} IS NULL, {says}) "
        f"AS {_SAYS} FROM events DISTRIBUTE BY {key}), "
        f"ranked AS (SELECT *, {of_version} FROM together), "
        f"versions AS (SELECT *, {is_version} FROM ranked), "
        # Rows that the source superseded have nothing to say, but stored ones have to go.
        f"telling AS (SELECT * FROM versions "
        f"WHERE {_IS_VERSION} OR {_IS_PURGE} OR {_STORED} IS NOT NULL), "
        f"counted AS (SELECT *, count_if({_IS_VERSION}) OVER ({in_record} {so_far}) AS {_NUMBER}, "
        f"collect_list({purge}) OVER ({in_record} {whole}) AS {_PURGES} FROM telling), "
        f"begun AS (SELECT *, max(IF({_IS_VERSION}, {moved}, NULL)) OVER ({in_record} {so_far}) "
        f"+ {_NUMBER} * {layout.epsilon}L AS {_BEGIN} FROM counted), "
        f"placed AS (SELECT *, lead(IF({_IS_VERSION}, {_BEGIN}, NULL)) IGNORE NULLS "
        f"OVER ({in_record}) AS {_NEXT} FROM begun), "
        f"ended AS (SELECT *, {_ending(layout)} FROM placed) "
        f"SELECT {_cells(layout, synced_micros)}, {MODIFIED}, {FILE}, {POSITION}, "
        f"{_verdict(layout)} FROM ended"
    )


def _ending(layout: Layout) -> str:
    """When a version was deleted or purged, and when it ends."""
    purged = f"array_min(filter({_PURGES}, at -> at >= {MODIFIED}))"
    gone = f"least({DELETED_AT}, {_PURGE_DELETED}, {purged})"
    end = f"greatest({_BEGIN}, least({_NEXT} - {layout.epsilon}L, {gone}))"
    is_active = f"{_NEXT} IS NULL AND {gone} IS NULL"
    # A row that has nothing to lose is erased already.
    holds = " OR ".join(f"{quoted(name)} IS NOT NULL" for name in layout.erased) or "false"
    return (
        f"{gone} AS {_GONE}, IF({is_active}, {TMAX_MICROS}L, {end}) AS {_FINISH}, "
        f"{purged} IS NOT NULL AND ({holds}) AS {_IS_ERASED}"
    )


def _cells(layout: Layout, synced: int) -> str:
    """The columns of the table."""
    times = [f"coalesce(CAST({name} AS STRING), '-')" for name in (DELETED_AT, PURGED_AT)]
    is_new = f"{_STORED} IS NULL"
    if layout.mode is Mode.SOFT_DELETE:
        # A record that is marked by what another row said is news to those who go by the time.
        is_new += f" OR NOT (({_GONE} IS NOT NULL) <=> {_OLD_MARK})"
    cells = {
        START: f"timestamp_micros({_BEGIN})",
        END: f"timestamp_micros({_FINISH})",
        ACTIVE: f"{_FINISH} = {TMAX_MICROS}L",
        DELETED: f"{_GONE} IS NOT NULL",
        SYNCED: f"IF({is_new}, timestamp_micros({synced}L), {_OLD_SYNCED})",
        VERSION: f"concat_ws(' ', CAST({MODIFIED} AS STRING), {', '.join(times)}, {SEQUENCE})",
    }
    system = ", ".join(f"{cells[name]} AS {name}" for name in layout.system)
    data = ", ".join(
        f"IF({_IS_ERASED}, NULL, {quoted(name)}) AS {quoted(name)}"
        if name in layout.erased
        else quoted(name)
        for name in layout.data
    )
    return f"{data}, {system}"


def _verdict(layout: Layout) -> str:
    """Where a row belongs, and whether it stands there already."""
    is_newest = f"({_IS_VERSION} AND {_NEXT} IS NULL)"
    match layout.mode:
        case Mode.HISTORY:
            is_shown, is_concealed = _IS_VERSION, _IS_PURGE
            unchanged = f"{_BEGIN} <=> {_OLD_START} AND {_FINISH} <=> {_OLD_END}"
        case Mode.SOFT_DELETE:
            is_shown, is_concealed = is_newest, _IS_PURGE
            unchanged = f"({_GONE} IS NOT NULL) <=> {_OLD_MARK}"
        case Mode.LIVE:
            is_shown = f"({is_newest} AND {_GONE} IS NULL)"
            is_concealed = f"({_IS_PURGE} OR ({is_newest} AND {_GONE} IS NOT NULL))"
            unchanged = "true"
    unchanged = f"{unchanged} AND NOT {_IS_ERASED}"
    stays = f"({is_shown} AND {FILE} IS NOT NULL AND {unchanged})"
    stays_hidden = f"({is_concealed} AND {_HIDDEN} <=> true AND NOT {_IS_ERASED})"
    verdict = {
        REMOVED: f"{FILE} IS NOT NULL AND NOT {stays}",
        ADDED: f"{is_shown} AND NOT {stays}",
        CONCEALED: f"{is_concealed} AND NOT {stays_hidden}",
        REVEALED: f"{_HIDDEN} <=> true AND NOT {stays_hidden}",
        COUNTED: f"{is_shown} AND {_STORED} IS NULL",
    }
    return ", ".join(f"({value}) AS {name}" for name, value in verdict.items())
