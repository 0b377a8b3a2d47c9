"""SCD2 in SQL: the order of a record's versions and their validity intervals.

A late-arriving version is inserted between its neighbors: the version before it ends earlier, and
it ends where the next one starts.

Sources: `seeds/data-lake-v2.txt` ("Important notes"), `seeds/history-mode.txt`. A pipeline table is
a function of the set of rows that were landed for it:

* A version is identified by key and modification time. The row of a version with the greatest
  sequence wins. Columns that it omits keep the value that was landed last
  (`core/omitted_columns.py`).
* Tombstones are separate rows, without data of a version. A version that has only deletions does
  not exist. A version that has purges and no row with data exists without data: in a history table,
  and in a soft-delete table if its record has no version with data. Nothing reverts a purge. A
  deletion is ignored if its own version has a greater sequence: the record existed again.
* A purge may provide who deleted the record, and what it was restored from. Its version has the
  greatest of these values in its rows, whichever sequence they have. Purges with equal times are
  equal.
* A retraction is a row without data, deletion and purge. Rows of its version with a smaller
  sequence have no effect: nothing happened at that time. Only history tables may get retractions,
  of versions that are at least two epsilons from the others of their record, and never together
  with purges: other tables have forgotten the version before, and a version that was moved stays
  where it is.

A table has state in addition to the rows that readers see: a tombstone ends versions that land
later, and in a live table a deleted record must not reappear with an older version. Such rows are
*hidden*: they are stored on the branch `iceberg.HIDDEN`. The column `_chronolake_version`
identifies stored rows in the source. It contains, separated by spaces: modification, deletion and
purge time in microseconds since 1970 (or `-`), the omitted columns, and the sequence. A version
without data has the time of a purge there, like a tombstone, but is not a tombstone.

A history table may track only some columns (`Layout.tracked`). Then each change is resolved as
above, and neighboring versions with equal tracked values are merged: the merged version has the
start of the first and everything else of the last. Versions do not merge across a deletion. All but
the last of them are *collapsed*: hidden rows with data and with their own times, so that a change
that lands late splits the merged version exactly. The start column of a merged version is that of
the first. If the last would start after its modification time (because it had to move), then
`_chronolake_version` contains the difference: `modified+difference`.

All functions here return SQL text over relations; `chronolake.core.apply_versions` runs it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from chronolake.change_set import (
    DELETED_AT,
    LANDED_FILE,
    LANDED_ROW,
    MODIFIED,
    OMITTED,
    PROVIDES_DATA,
    PURGED_AT,
    RESERVED,
    SEQUENCE,
    VERSION_COLUMNS,
)
from chronolake.core import omitted_columns
from chronolake.core.row_hash import hash_of
from chronolake.core.sql import TABLE, any_of, column_list
from chronolake.types import (
    ACTIVE,
    DELETED,
    END,
    HASH,
    OF_VERSIONS,
    START,
    SYNCED,
    TMAX_MICROS,
    VERSION,
    Mode,
    quote,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chronolake.core.omitted_columns import OmittedColumn
    from chronolake.types import Column


@dataclass(frozen=True)
class Layout:
    """The columns of a pipeline table, and what decides about its versions.

    Attributes:
        key: the columns that identify a record.
        data: the columns of landed rows, the key included.
        mode: the table's mode.
        epsilon: microseconds between a version's end and the start of the next.
        erased: the data columns that a purge empties in the versions that it ends.
        omitted: the data columns that some row, stored or landed, omits.
        has_tombstones: whether there may be tombstones among the rows.
        hashed: the data columns of a row's hash, in their order; None if the table has no hash.
        tracked: in a history table, the data columns whose changes start a version; None: every
            change starts a version.
    """

    key: tuple[str, ...]
    data: tuple[str, ...]
    mode: Mode
    epsilon: int
    erased: tuple[str, ...] = ()
    omitted: tuple[str, ...] = ()
    has_tombstones: bool = True
    hashed: tuple[Column, ...] | None = None
    tracked: tuple[str, ...] | None = None

    @property
    def merges(self) -> bool:
        """Return whether versions with equal tracked values are merged."""
        return self.tracked is not None and self.mode is Mode.HISTORY

    @property
    def columns_omitted(self) -> tuple[OmittedColumn, ...]:
        """Return the columns of `omitted`, with what `resolve_versions` stores for each."""
        return omitted_columns.number_columns(self.omitted)

    @property
    def provided_by_purges(self) -> dict[str, str]:
        """Return data columns, with the column of the greatest value in a version's purges."""
        if not self.has_tombstones:
            return {}
        return {name: value for name, value in _PROVIDED_BY_PURGES.items() if name in self.data}

    @property
    def system(self) -> tuple[str, ...]:
        """Return the system columns of the table, in its order."""
        by_mode = {
            Mode.HISTORY: (START, END, ACTIVE),
            Mode.SOFT_DELETE: (DELETED,),
            Mode.LIVE: (),
        }
        return (*by_mode[self.mode], SYNCED, VERSION, *((HASH,) if self.hashed else ()))

    @property
    def counted(self) -> tuple[str, ...]:
        """Return the columns that identify a written row for usage counts."""
        return (*self.key, MODIFIED) if self.mode is Mode.HISTORY else self.key

    @property
    def columns(self) -> tuple[str, ...]:
        """Return all columns of the table, in its order."""
        return (*self.data, *self.system)

    @property
    def hidden_columns(self) -> str:
        """Return the SELECT list of a hidden row, in which most system columns are null.

        Collapsed versions have their times. It names all columns, because Spark 4.0 does not fill
        missing ones.
        """
        present = {*self.data, SYNCED, VERSION, *((START, END, ACTIVE) if self.merges else ())}
        return ", ".join(
            quote(name) if name in present else f"NULL AS {quote(name)}" for name in self.columns
        )


# Metadata of a stored row, in addition to the columns of every landed row.
FILE: Final = f"{RESERVED}file"
POSITION: Final = f"{RESERVED}position"
#: The value of `_chronolake_version` in a stored row; null in landed ones.
STORED: Final = f"{RESERVED}stored"
_HIDDEN: Final = f"{RESERVED}hidden"
_OLD_START: Final = f"{RESERVED}old_start"
_OLD_END: Final = f"{RESERVED}old_end"
_OLD_MARK: Final = f"{RESERVED}old_mark"
_OLD_SYNCED: Final = f"{RESERVED}old_synced"
#: The start of a stored merged version.
_OLD_MERGED: Final = f"{RESERVED}old_merged"
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

# What happens to a row.
#: A row of `main` is removed: the one in `FILE` at `POSITION`.
REMOVED: Final = f"{RESERVED}removed"
#: The row is written to `main`.
ADDED: Final = f"{RESERVED}added"
#: The row is written to the hidden rows.
CONCEALED: Final = f"{RESERVED}concealed"
#: A hidden row is removed: the one of this key with `STORED` as its `_chronolake_version`.
REVEALED: Final = f"{RESERVED}revealed"
#: The version is from the source and is written.
COUNTED: Final = f"{RESERVED}counted"

#: Orders rows of one version.
_RANK: Final = f"struct(length({SEQUENCE}), {SEQUENCE})"
_CONTENT: Final = f"{RESERVED}says"
_FIRST_CONTENT: Final = f"{RESERVED}first_says"
_STORED_CONTENT: Final = f"{RESERVED}stored_says"
_IS_FIRST: Final = f"{RESERVED}is_first"
_IS_VERSION: Final = f"{RESERVED}is_version"
_IS_TOMBSTONE: Final = f"{RESERVED}is_mark"
_PURGE_DELETED: Final = f"{RESERVED}purge_deleted"
#: The greatest values in a version's purges, by their column.
_PROVIDED_BY_PURGES: Final = {name: f"{RESERVED}purge_{name}" for name in OF_VERSIONS}
_NOT_BEFORE: Final = f"{RESERVED}not_before"
_NUMBER: Final = f"{RESERVED}number"
_BEGIN: Final = f"{RESERVED}begin"
_NEXT: Final = f"{RESERVED}next"
_MARKED: Final = f"{RESERVED}marked"
_PURGED: Final = f"{RESERVED}purged"
_GONE: Final = f"{RESERVED}gone"
_FINISH: Final = f"{RESERVED}finish"
_LOSES: Final = f"{RESERVED}loses"
#: Whether a tombstone has an effect as far as rows with data decide about it.
_HAS_EFFECT: Final = f"{RESERVED}has_effect"
#: The greatest sequence of a version's retractions, as `_RANK`.
_RETRACTED: Final = f"{RESERVED}retracted"
#: The sequence of a version's data, as `_RANK`; null without data.
_REPORTED: Final = f"{RESERVED}reported"
_CHANGED: Final = f"{RESERVED}changed"
#: All data columns packed into one.
_DATA: Final = f"{RESERVED}data"
#: Whether a row has a value that a purge erases.
_HOLDS: Final = f"{RESERVED}holds"
#: The tracked values of a version with data.
_TRACKED: Final = f"{RESERVED}tracked"
#: The tracked values of the version before, and when it was deleted.
_BEFORE: Final = f"{RESERVED}before"
#: Whether a version is merged with the one before.
_CONTINUES: Final = f"{RESERVED}continues"
#: The earliest landed row of a record, and the start of its first merged version that is stored.
_SINCE: Final = f"{RESERVED}since"
_FIRST_MERGED: Final = f"{RESERVED}first_merged"
#: The start of a merged version that begins with this one.
_RUN: Final = f"{RESERVED}run"
#: The start of a merged version.
_MERGED: Final = f"{RESERVED}merged"
_IS_COLLAPSED: Final = f"{RESERVED}is_collapsed"

_SO_FAR: Final = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
_ALL_ROWS: Final = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"


def landed_rows(rows: str, layout: Layout) -> str:
    """Return a query of landed rows, with null as the metadata of stored rows.

    `rows` is a relation with the layout's data columns and `change_set.VERSION_COLUMNS`.
    """
    facts = [f"CAST(NULL AS {kind}) AS {name}" for name, kind in _facts_of(layout).items()]
    chosen = ", ".join([column_list(layout.data), *VERSION_COLUMNS, *facts])
    return f"SELECT {chosen} FROM {rows}"


def purge_rows(rows: str, layout: Layout) -> str:
    """Return a query of landed purges as versions without data.

    They are versions only where no other row has data of the same version. `rows` is a relation as
    in `landed_rows`; the data columns of purges are empty.
    """
    reported = ", ".join(
        "true AS " + PROVIDES_DATA if name == PROVIDES_DATA else name for name in VERSION_COLUMNS
    )
    purges = (
        f"SELECT {column_list(layout.data)}, {reported} FROM {rows} WHERE {PURGED_AT} IS NOT NULL"
    )
    return landed_rows(f"({purges})", layout)


def stored_columns(layout: Layout, *, hidden: bool) -> str:
    """Return the columns to select from stored rows, whose relation has the alias `sql.TABLE`."""
    version = f"{TABLE}.{VERSION}"
    reported = _part(version, 3)
    facts = {
        MODIFIED: time_in(version, 0),
        SEQUENCE: _part(version, 4),
        DELETED_AT: time_in(version, 1),
        PURGED_AT: time_in(version, 2),
        PROVIDES_DATA: f"{reported} <> '{omitted_columns.ALL_OMITTED}'",
        OMITTED: "CAST(NULL AS ARRAY<STRING>)",
        LANDED_FILE: "CAST(NULL AS STRING)",
        LANDED_ROW: "CAST(NULL AS BIGINT)",
        **{name: f"CAST(NULL AS {kind})" for name, kind in _facts_of(layout).items()},
        STORED: version,
        _HIDDEN: str(hidden),
        _OLD_SYNCED: f"{TABLE}.{SYNCED}",
    }
    if not hidden:
        facts |= {FILE: f"{TABLE}._file", POSITION: f"{TABLE}._pos"}
    if layout.mode is Mode.HISTORY and (layout.merges or not hidden):
        start = f"unix_micros({TABLE}.{START})"
        facts |= {_OLD_START: start, _OLD_END: f"unix_micros({TABLE}.{END})"}
        if layout.merges:
            facts |= {_OLD_START: own_start(version, start), _OLD_MERGED: start}
    if not hidden and layout.mode is Mode.SOFT_DELETE:
        facts[_OLD_MARK] = f"{TABLE}.{DELETED}"
    if layout.omitted:
        facts[omitted_columns.CARRIED] = omitted_columns.stored_origins(reported)
    chosen = [f"{value} AS {name}" for name, value in facts.items()]
    return ", ".join([column_list(layout.data, of=TABLE), *chosen])


def _facts_of(layout: Layout) -> dict[str, str]:
    """Return the metadata columns of a stored row, null in a landed one, with their types."""
    return {
        **_passed_facts(layout),
        **({omitted_columns.CARRIED: omitted_columns.CARRIED_TYPE} if layout.omitted else {}),
    }


def _passed_facts(layout: Layout) -> dict[str, str]:
    """Return the metadata columns that all steps pass on."""
    return {**_FACTS, **({_OLD_MERGED: "bigint"} if layout.merges else {})}


def _part(version: str, number: int) -> str:
    """Return SQL for one part of a `_chronolake_version`; the last part may contain spaces."""
    return f"split({version}, ' ', 5)[{number}]"


def time_in(version: str, number: int) -> str:
    """Return SQL for one of the times in a `_chronolake_version`, in microseconds or null.

    Args:
        version: the column.
        number: 0 for modification, 1 for deletion, 2 for purge.
    """
    part = _part(version, number)
    if number == 0:
        part = f"substring_index({part}, '+', 1)"
    return f"CAST(nullif({part}, '-') AS BIGINT)"


def own_start(version: str, start: str) -> str:
    """Return SQL for the start that a stored row would have if it was not merged.

    Args:
        version: the column `_chronolake_version`.
        start: SQL for the stored start in microseconds; null in tombstones.
    """
    first, modified = _part(version, 0), time_in(version, 0)
    # All of the part if it has no difference.
    difference = f"CAST(nullif(substring_index({first}, '+', -1), {first}) AS BIGINT)"
    # The greatest ignores nulls.
    own = f"greatest({start}, {modified}, {modified} + {difference})"
    return f"IF({start} IS NULL, NULL, {own})"


def resolve_versions(events: Sequence[str], layout: Layout, *, synced_micros: int) -> str:
    """Return a query that decides what happens to the rows of all keys in some events.

    The data columns are packed into one column before comparison and unpacked at the end, because
    Spark's planning time grows with the columns of all steps. The steps are nested subqueries
    instead of a WITH, because Spark copies everything before a step of a WITH to inline it.

    Args:
        events: queries of landed rows (`landed_rows`) and stored rows (`stored_columns`). For each
            key among the landed rows, they contain all stored rows that the landed rows can change.
        layout: the table.
        synced_micros: `_fivetran_synced` of rows from the source, in microseconds since 1970.

    Returns:
        SQL with the columns of the table, and `MODIFIED`, `FILE`, `POSITION`, `STORED`, `REMOVED`,
        `ADDED`, `CONCEALED`, `REVEALED`, `COUNTED`. `MODIFIED` of a merged version is its start.
    """
    rows = _gather_records([_pack_rows(event, layout) for event in events], layout)
    rows = _choose_versions(_rank_rows(rows, layout), layout)
    rows = _number_versions(_find_facts(rows, layout), layout)
    rows = _end_versions(_find_next_starts(_start_versions(rows, layout), layout), layout)
    identity = MODIFIED
    if layout.merges:
        rows, identity = _merge_versions(rows, layout), f"{_MERGED} AS {MODIFIED}"
    return f"""
        SELECT {_cells(layout, synced_micros)},
          {identity}, {FILE}, {POSITION}, {STORED},
          {_decide_branches(layout)}
        FROM ({rows})
        """


def active_versions(event: str, layout: Layout, *, synced_micros: int) -> str:
    """Return a query that equals `resolve_versions` if each row is the only version of its record.

    Args:
        event: a query of `landed_rows` rows that are not deleted and omit no column.
        layout: the table; it must be empty.
        synced_micros: like in `resolve_versions`.

    Returns:
        SQL with the columns of the table.
    """
    cells = _cells(replace(layout, erased=(), omitted=()), synced_micros, is_packed=False)
    return f"""
        SELECT {cells}
        FROM (
          SELECT *, {MODIFIED} AS {_BEGIN}, {TMAX_MICROS}L AS {_FINISH},
            CAST(NULL AS BIGINT) AS {_GONE}
          FROM ({event})
        )
        """


def _pack_rows(event: str, layout: Layout) -> str:
    """Pack a row's data into one column, hash it, and keep only the deciding columns separately."""
    packed = [f"struct({', '.join(map(quote, layout.data))}) AS {_DATA}"]
    if layout.omitted:
        event = (
            f"SELECT *, {', '.join(omitted_columns.origins(layout.columns_omitted))} FROM ({event})"
        )
        facts = omitted_columns.pack_facts(layout.columns_omitted)
        packed.append(f"{facts} AS {omitted_columns.PREVIOUS_FACTS}")
    plain = [name for name in layout.erased if name not in layout.omitted]
    if plain:
        holds = any_of(f"{quote(name)} IS NOT NULL" for name in plain)
        packed.append(f"{holds} AS {_HOLDS}")
    decisive = [name for name in VERSION_COLUMNS if name != OMITTED]
    return f"""
        SELECT {column_list(layout.key)},
          {", ".join(packed)},
          xxhash64(
            {SEQUENCE}, {DELETED_AT}, {DELETED_AT} IS NULL, {", ".join(_compared_values(layout))},
            IF({PROVIDES_DATA}, {PURGED_AT}, NULL)
          ) AS {_CONTENT},
          {", ".join([*decisive, *_passed_facts(layout)])}
        FROM ({event})
        """


def _gather_records(events: Sequence[str], layout: Layout) -> str:
    """Gather the rows of a record: one shuffle and one sort serve all the following steps."""
    return f"""
        SELECT * FROM ({" UNION ALL ".join(events)})
        DISTRIBUTE BY {column_list(layout.key)}
        """


def _rank_rows(rows: str, layout: Layout) -> str:
    """Order the rows of each version, and compare them.

    Rows with data are first, ordered by sequence, greatest first; then purges as versions without
    data; then tombstones. Equal tombstones are adjacent: deletions by their sequence, then stored
    ones first.
    """
    is_deletion = f"NOT {PROVIDES_DATA} AND {PURGED_AT} IS NULL"
    is_retraction = f"{is_deletion} AND {DELETED_AT} IS NULL"
    version = f"""
        PARTITION BY {column_list(layout.key)}, {MODIFIED}
        ORDER BY
          {PROVIDES_DATA} DESC,
          {PURGED_AT} NULLS FIRST,
          IF({PROVIDES_DATA}, NULL, {DELETED_AT}) NULLS FIRST,
          IF({is_deletion}, {_RANK}, NULL) DESC,
          {PROVIDES_DATA} OR {STORED} IS NOT NULL DESC,
          length({SEQUENCE}) DESC,
          {SEQUENCE} DESC,
          length({LANDED_FILE}) DESC NULLS LAST,
          {LANDED_FILE} DESC NULLS LAST,
          {LANDED_ROW} DESC NULLS LAST
        """
    repeats = " AND ".join(
        f"lag({name}) OVER version <=> {name}" for name in (PROVIDES_DATA, PURGED_AT, DELETED_AT)
    )
    # The version's first row has data if any has: its sequence is the greatest of those with data.
    reported = f"first_value(IF({omitted_columns.HAS_DATA}, {_RANK}, NULL)) OVER so_far"
    is_void = f"({is_deletion} AND coalesce({reported} > {_RANK}, false))"
    provided = "".join(
        f"max(IF({PURGED_AT} IS NULL, NULL, {_DATA}.{quote(name)})) OVER whole AS {value}, "
        for name, value in layout.provided_by_purges.items()
    )
    # A version that was moved keeps at least that start when another row replaces its row: the
    # greatest of the starts so far.
    return f"""
        SELECT *,
          {PROVIDES_DATA} AND row_number() OVER version = 1 AS {_IS_FIRST},
          first_value({_CONTENT}) OVER so_far AS {_FIRST_CONTENT},
          max(IF({PROVIDES_DATA} AND {STORED} IS NOT NULL, {_CONTENT}, NULL)) OVER whole AS
          {_STORED_CONTENT}, NOT ({PROVIDES_DATA} OR ({repeats}) OR {is_void}) AS {_HAS_EFFECT},
          min(IF({PURGED_AT} IS NULL, NULL, {DELETED_AT})) OVER whole AS {_PURGE_DELETED},
          {provided}max({_OLD_START}) OVER whole AS {_NOT_BEFORE},
          max(IF({is_retraction}, {_RANK}, NULL)) OVER whole AS {_RETRACTED},
          {reported} AS {_REPORTED}
        FROM ({rows})
        WINDOW
          version AS ({version}),
          so_far AS ({version} {_SO_FAR}),
          whole AS ({version} {_ALL_ROWS})
        """


def _choose_versions(rows: str, layout: Layout) -> str:
    """Choose the row of each version, and leave out rows that have no effect."""
    # A row that equals the stored one leaves it unchanged, `_fivetran_synced` included.
    keeps_stored = f"{_STORED_CONTENT} IS NOT NULL AND {_FIRST_CONTENT} = {_STORED_CONTENT}"
    is_version = f"{PROVIDES_DATA} AND IF({keeps_stored}, {STORED} IS NOT NULL, {_IS_FIRST})"
    is_version += f" AND NOT coalesce({_RETRACTED} > {_REPORTED}, false)"
    # The retraction itself stays, for rows of its version that land later. Nothing undoes a purge.
    is_retracted = f"({PURGED_AT} IS NULL AND coalesce({_RETRACTED} > {_RANK}, false))"
    is_tombstone = f"{_HAS_EFFECT} AND NOT {is_retracted}"
    if layout.mode is not Mode.HISTORY:
        # A record's last data matters more than the existence of a later version without data.
        has_data = f"max({omitted_columns.HAS_DATA}) OVER (PARTITION BY {column_list(layout.key)})"
        is_version += f" AND ({omitted_columns.HAS_DATA} OR NOT {has_data})"
    # Stored rows that the source superseded have to be removed; other superseded rows may have
    # values for columns that a later row omits.
    is_needed = f"{_IS_VERSION} OR {_IS_TOMBSTONE} OR {STORED} IS NOT NULL"
    if layout.omitted:
        is_needed += f" OR {PROVIDES_DATA}"
    return f"""
        SELECT * FROM (
          SELECT *, {is_tombstone} AS {_IS_TOMBSTONE}, {is_version} AS {_IS_VERSION} FROM ({rows})
        )
        WHERE {is_needed}
        """


def _find_facts(rows: str, layout: Layout) -> str:
    """Find the values of columns that a row omits."""
    if not layout.omitted:
        return rows
    return f"""
        SELECT *, {omitted_columns.latest_facts(layout.columns_omitted)} AS {omitted_columns.FACTS}
        FROM ({rows})
        WINDOW until AS (
          PARTITION BY {column_list(layout.key)} ORDER BY {MODIFIED}, length({SEQUENCE}), {SEQUENCE}
        )
        """


def _number_versions(rows: str, layout: Layout) -> str:
    """Number the versions of a record, and find the tombstones that end each version."""
    # Never before the version that it was landed with; `greatest` ignores nulls.
    is_mark = f"{_IS_TOMBSTONE} AND coalesce({PURGED_AT}, {DELETED_AT}) IS NOT NULL"
    marked = f"IF({is_mark}, greatest({PURGED_AT}, {MODIFIED}), NULL)"
    record = f"PARTITION BY {column_list(layout.key)} ORDER BY {MODIFIED}"
    # The first tombstone from a version on: all rows of equal times are in the frame.
    backwards = (
        f"PARTITION BY {column_list(layout.key)} ORDER BY coalesce({marked}, {MODIFIED}) DESC"
    )
    nothing = "CAST(NULL AS BIGINT)"
    ends = f"min({marked}) OVER ({backwards})" if layout.has_tombstones else nothing
    purged = nothing
    if layout.erased:
        purged = f"max(IF({PURGED_AT} IS NULL, NULL, {marked})) OVER ({record} {_ALL_ROWS})"
    return f"""
        SELECT *,
          count_if({_IS_VERSION}) OVER ({record} {_SO_FAR}) AS {_NUMBER},
          {ends} AS {_MARKED},
          {purged} AS {_PURGED}
        FROM ({rows})
        """


def _start_versions(rows: str, layout: Layout) -> str:
    """Start versions at their time, but at least an epsilon after the previous one."""
    moved = f"coalesce({_NOT_BEFORE}, {MODIFIED}) - {_NUMBER} * {layout.epsilon}L"
    return f"""
        SELECT *,
          max(IF({_IS_VERSION}, {moved}, NULL)) OVER (
            PARTITION BY {column_list(layout.key)} ORDER BY {MODIFIED} {_SO_FAR}
          ) + {_NUMBER} * {layout.epsilon}L AS {_BEGIN}
        FROM ({rows})
        """


def _find_next_starts(rows: str, layout: Layout) -> str:
    """Find the start of the next version."""
    return f"""
        SELECT *,
          lead(IF({_IS_VERSION}, {_BEGIN}, NULL)) IGNORE NULLS OVER (
            PARTITION BY {column_list(layout.key)} ORDER BY {MODIFIED}
          ) AS {_NEXT}
        FROM ({rows})
        """


def _end_versions(rows: str, layout: Layout) -> str:
    """Decide when a version was deleted or purged, when it ends, and which parts of it change."""
    gone = f"least({DELETED_AT}, {_PURGE_DELETED}, {_MARKED})"
    end = f"greatest({_BEGIN}, least({_NEXT} - {layout.epsilon}L, {gone}))"
    is_active = f"{_NEXT} IS NULL AND {gone} IS NULL"
    columns = layout.columns_omitted
    # A row whose columns are empty already is erased already.
    loses = [
        f"{_is_erased(column.name, layout)} AND {column.previous_fact}.v IS NOT NULL"
        for column in columns
        if column.name in layout.erased
    ]
    if set(layout.erased) - set(layout.omitted):
        loses.append(f"{_HOLDS} AND coalesce({MODIFIED} <= {_PURGED}, false)")
    changed = [
        f"({omitted_columns.HAS_DATA} AND {any_of(column.has_changed for column in columns)})"
    ]
    for name, value in layout.provided_by_purges.items():
        is_new = f"{value} > coalesce({_own_value(name, layout)}, '')"
        changed.append(f"({_IS_VERSION} AND coalesce({is_new}, false))")
    return f"""
        SELECT *,
          {gone} AS {_GONE},
          IF({is_active}, {TMAX_MICROS}L, {end}) AS {_FINISH},
          {any_of(loses)} AS {_LOSES},
          {any_of(changed)} AS {_CHANGED}
        FROM ({rows})
        """


def _merge_versions(rows: str, layout: Layout) -> str:
    """Merge neighboring versions with equal tracked values, if the record was not deleted between.

    Of a record's versions, only the last ones are read: all that end when its first landed row
    starts, or later. A version before the landed rows starts as it is stored: its neighbors are the
    same as before.
    """
    record = f"PARTITION BY {column_list(layout.key)}"
    # With a first field, because a version without tracked columns has values, too.
    values = ["true AS t", *(f"{v} AS v{n}" for n, v in enumerate(_tracked_values(layout)))]
    has_values = f"{_IS_VERSION} AND {omitted_columns.HAS_DATA}"
    tracked = f"""
        SELECT *, IF({has_values}, struct({", ".join(values)}), NULL) AS {_TRACKED}
        FROM ({rows})
        """
    before = f"""
        SELECT *,
          lag(IF({_IS_VERSION}, struct({_TRACKED} AS t, {_GONE} AS gone), NULL)) IGNORE NULLS OVER (
            {record} ORDER BY {MODIFIED}
          ) AS {_BEFORE},
          min(IF({STORED} IS NULL, {MODIFIED}, NULL)) OVER ({record}) AS {_SINCE},
          min(IF({FILE} IS NULL, NULL, {_OLD_MERGED})) OVER ({record}) AS {_FIRST_MERGED}
        FROM ({tracked})
        """
    is_kept = f"coalesce({_BEFORE}.gone >= {_BEGIN}, true)"
    continues = f"coalesce({_TRACKED} = {_BEFORE}.t, false) AND {is_kept}"
    is_before_all = f"{_NUMBER} = 1 AND coalesce({MODIFIED} < {_SINCE}, true)"
    return f"""
        SELECT *,
          max(IF({_IS_VERSION} AND NOT {_CONTINUES}, {_RUN}, NULL)) OVER (
            {record} ORDER BY {MODIFIED} {_SO_FAR}
          ) AS {_MERGED},
          {_IS_VERSION} AND coalesce(lead(IF({_IS_VERSION}, {_CONTINUES}, NULL)) IGNORE NULLS OVER (
            {record} ORDER BY {MODIFIED}
          ), false) AS {_IS_COLLAPSED}
        FROM (
          SELECT * EXCEPT ({_TRACKED}, {_BEFORE}, {_SINCE}, {_FIRST_MERGED}),
            {continues} AS {_CONTINUES},
            IF({is_before_all}, coalesce({_FIRST_MERGED}, {_BEGIN}), {_BEGIN}) AS {_RUN}
          FROM ({before})
        )
        """


def _tracked_values(layout: Layout) -> Iterator[str]:
    """Yield SQL for the tracked values of a version."""
    for name in layout.tracked or ():
        yield _value(name, layout)


def _compared_values(layout: Layout) -> Iterator[str]:
    """Yield SQL expressions that differ if rows of a version have different data."""
    columns = {column.name: column for column in layout.columns_omitted}
    for name in layout.data:
        value = quote(name)
        if name in columns:
            yield columns[name].is_provided
            value = f"IF({columns[name].is_provided}, {value}, NULL)"
        yield f"{value}, {value} IS NULL"


def _is_erased(name: str, layout: Layout) -> str:
    """Return SQL that is true if a purge erases the column's value, which is not newer than it."""
    by_name = {column.name: column for column in layout.columns_omitted}
    reported = f"least({MODIFIED}, {by_name[name].fact}.m)" if name in by_name else MODIFIED
    return f"coalesce({reported} <= {_PURGED}, false)"


def _cells(layout: Layout, synced: int, *, is_packed: bool = True) -> str:
    """Return SQL for the columns of the table."""
    columns = layout.columns_omitted
    reported = omitted_columns.to_version(columns)
    times = [f"coalesce(CAST({name} AS STRING), '-')" for name in (DELETED_AT, PURGED_AT)]
    # Readers find changed rows by `_fivetran_synced`.
    is_new = f"{STORED} IS NULL"
    if is_packed:
        is_new += f" OR {_CHANGED}"
    if layout.mode is Mode.SOFT_DELETE:
        # This includes a record that another row has marked as deleted.
        is_new += f" OR NOT (({_GONE} IS NOT NULL) <=> {_OLD_MARK})"
    modified = f"CAST({MODIFIED} AS STRING)"
    start, of_versions = _BEGIN, ""
    if layout.merges and is_packed:
        start, of_versions = f"IF({_IS_COLLAPSED}, {_BEGIN}, {_MERGED})", _IS_VERSION
        is_new += f" OR ({_IS_VERSION} AND NOT {_IS_COLLAPSED} AND {_HIDDEN})"
        is_moved = f"{_IS_VERSION} AND {start} < {_BEGIN} AND {MODIFIED} < {_BEGIN}"
        modified = f"concat({modified}, IF({is_moved}, concat('+', {_BEGIN} - {MODIFIED}), ''))"
    cells = {
        START: _only_if(of_versions, f"timestamp_micros({start})"),
        END: _only_if(of_versions, f"timestamp_micros({_FINISH})"),
        ACTIVE: _only_if(of_versions, f"{_FINISH} = {TMAX_MICROS}L"),
        DELETED: f"{_GONE} IS NOT NULL",
        SYNCED: f"IF({is_new}, timestamp_micros({synced}L), {_OLD_SYNCED})",
        VERSION: f"concat_ws(' ', {modified}, {', '.join(times)}, {reported}, {SEQUENCE})",
    }
    cells |= {name: _value(name, layout, is_packed=is_packed) for name in layout.data}
    if layout.hashed:
        cells[HASH] = hash_of(layout.hashed, cells.__getitem__)
    return ", ".join(f"{cells[name]} AS {quote(name)}" for name in layout.columns)


def _only_if(condition: str, value: str) -> str:
    return f"IF({condition}, {value}, NULL)" if condition else value


def _value(name: str, layout: Layout, *, is_packed: bool = True) -> str:
    """Return SQL for the value of a data column in the table."""
    value = _own_value(name, layout) if is_packed else quote(name)
    provided = layout.provided_by_purges.get(name)
    if provided is not None and is_packed:
        value = f"IF({_IS_VERSION}, greatest({value}, {provided}), {value})"
    return f"IF({_is_erased(name, layout)}, NULL, {value})" if name in layout.erased else value


def _own_value(name: str, layout: Layout) -> str:
    """Return SQL for the value of a packed data column in a version's row with data."""
    by_name = {column.name: column for column in layout.columns_omitted}
    return by_name[name].value if name in by_name else f"{_DATA}.{quote(name)}"


def _decide_branches(layout: Layout) -> str:
    """Return SQL that decides in which branch a row belongs, and whether it is there already."""
    is_newest = f"({_IS_VERSION} AND {_NEXT} IS NULL)"
    unchanged_hidden = "true"
    match layout.mode:
        case Mode.HISTORY:
            is_shown, is_concealed = _IS_VERSION, _IS_TOMBSTONE
            unchanged = f"{_BEGIN} <=> {_OLD_START} AND {_FINISH} <=> {_OLD_END}"
            if layout.merges:
                is_shown = f"({_IS_VERSION} AND NOT {_IS_COLLAPSED})"
                is_concealed = f"({_IS_TOMBSTONE} OR {_IS_COLLAPSED})"
                unchanged_hidden = f"({_IS_TOMBSTONE} OR ({unchanged}))"
                unchanged += f" AND {_MERGED} <=> {_OLD_MERGED}"
        case Mode.SOFT_DELETE:
            is_shown, is_concealed = is_newest, _IS_TOMBSTONE
            unchanged = f"({_GONE} IS NOT NULL) <=> {_OLD_MARK}"
        case Mode.LIVE:
            is_shown = f"({is_newest} AND {_GONE} IS NULL)"
            is_concealed = f"({_IS_TOMBSTONE} OR ({is_newest} AND {_GONE} IS NOT NULL))"
            unchanged = "true"
    same_data = f"NOT ({_LOSES} OR {_CHANGED})"
    stays = f"({is_shown} AND {FILE} IS NOT NULL AND {unchanged} AND {same_data})"
    stays_hidden = f"({is_concealed} AND {_HIDDEN} <=> true AND {unchanged_hidden} AND {same_data})"
    verdict = {
        REMOVED: f"{FILE} IS NOT NULL AND NOT {stays}",
        ADDED: f"{is_shown} AND NOT {stays}",
        CONCEALED: f"{is_concealed} AND NOT {stays_hidden}",
        REVEALED: f"{_HIDDEN} <=> true AND NOT {stays_hidden}",
        COUNTED: f"{is_shown} AND {STORED} IS NULL",
    }
    return ", ".join(f"({value}) AS {name}" for name, value in verdict.items())
