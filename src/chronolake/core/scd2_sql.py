"""SCD2 in SQL: versions of a record in order, validity intervals, layouts of pipeline tables.

What a table that is pulled consists of, as far as its versions are concerned.

The versions of a record, one after the other: what landed rows and stored ones make together.

Sources: `seeds/data-lake-v2.txt` ("Important notes"), `seeds/history-mode.txt`. A table that is
pulled is a function of the set of rows that were landed for it:

* Of the rows of one version, which key and modification time identify, the one with the greatest
  sequence counts. What it does not tell is as it was told last (`core/omitted_columns.py`).
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

Everything here is SQL text over relations; `chronolake.core.pipeline_table` runs it.
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
from chronolake.core.sql import TABLE, any_of, listed
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

    from chronolake.core.omitted_columns import UntoldColumn
    from chronolake.types import Column


@dataclass(frozen=True)
class Layout:
    """A table that is pulled, as far as its versions are concerned.

    Attributes:
        key: the columns that identify a record.
        data: the columns that landed rows have, the key among them.
        mode: the table's mode.
        epsilon: microseconds between a version's end and the start of the next.
        erased: the data columns that a purge empties in the versions that it ends.
        omitted: the data columns of which some row of the table, or a landed one, said nothing.
        has_marks: whether there may be marks among the rows.
        hashed: the data columns that a row's hash is made of, in their order; None: it has none.
    """

    key: tuple[str, ...]
    data: tuple[str, ...]
    mode: Mode
    epsilon: int
    erased: tuple[str, ...] = ()
    omitted: tuple[str, ...] = ()
    has_marks: bool = True
    hashed: tuple[Column, ...] | None = None

    @property
    def columns_omitted(self) -> tuple[UntoldColumn, ...]:
        """The columns of `omitted`, with what succession keeps of each."""
        return omitted_columns.numbered(self.omitted)

    @property
    def system(self) -> tuple[str, ...]:
        """The columns that the table has besides."""
        by_mode = {
            Mode.HISTORY: (START, END, ACTIVE),
            Mode.SOFT_DELETE: (DELETED,),
            Mode.LIVE: (),
        }
        return (*by_mode[self.mode], SYNCED, VERSION, *((HASH,) if self.hashed else ()))

    @property
    def counted(self) -> tuple[str, ...]:
        """The columns that tell apart what counts as a row that was written."""
        return (*self.key, MODIFIED) if self.mode is Mode.HISTORY else self.key

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of the table, in its order."""
        return (*self.data, *self.system)


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
_CHANGED: Final = f"{RESERVED}changed"
#: All data columns in one.
_DATA: Final = f"{RESERVED}data"
#: Whether a row has something that a purge erases.
_HOLDS: Final = f"{RESERVED}holds"

_SO_FAR: Final = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
_WHOLE: Final = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"


def of_landed(rows: str, layout: Layout) -> str:
    """Landed rows as a query: one side of what `succession` brings together.

    Args:
        rows: a relation with the layout's data columns and `changes.VERSION_COLUMNS`.
        layout: the table.
    """
    facts = [f"CAST(NULL AS {kind}) AS {name}" for name, kind in _facts_of(layout).items()]
    chosen = ", ".join([listed(layout.data), *VERSION_COLUMNS, *facts])
    return f"SELECT {chosen} FROM {rows}"


def of_purged(rows: str, layout: Layout) -> str:
    """Landed purges as versions without data, as a query.

    They count as such where no other row tells of the same version.

    Args:
        rows: as of `of_landed`; the data columns of purges are empty.
        layout: as of `of_landed`.
    """
    reported = ", ".join(
        "true AS " + PROVIDES_DATA if name == PROVIDES_DATA else name for name in VERSION_COLUMNS
    )
    purges = f"SELECT {listed(layout.data)}, {reported} FROM {rows} WHERE {PURGED_AT} IS NOT NULL"
    return of_landed(f"({purges})", layout)


def of_stored(layout: Layout, *, hidden: bool) -> str:
    """The columns to select of a stored row, known as `sql.TABLE`: the other side."""
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
        if layout.mode is Mode.HISTORY:
            facts |= {
                _OLD_START: f"unix_micros({TABLE}.{START})",
                _OLD_END: f"unix_micros({TABLE}.{END})",
            }
        elif layout.mode is Mode.SOFT_DELETE:
            facts[_OLD_MARK] = f"{TABLE}.{DELETED}"
    if layout.omitted:
        facts[omitted_columns.CARRIED] = omitted_columns.carried(reported)
    chosen = [f"{value} AS {name}" for name, value in facts.items()]
    return ", ".join([listed(layout.data, of=TABLE), *chosen])


def _facts_of(layout: Layout) -> dict[str, str]:
    """What is known of a stored row, and is null in a landed one, with its type."""
    return {
        **_FACTS,
        **({omitted_columns.CARRIED: omitted_columns.CARRIED_TYPE} if layout.omitted else {}),
    }


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

    The data columns are packed into one column before anything is compared, and unpacked at the
    end: what Spark needs to plan a query grows with all columns of all its steps. The steps are
    nested and not a WITH, of which Spark copies everything before a step to bring it in.

    Args:
        events: queries of `of_landed` and `of_stored` rows. Of a key that is among the landed rows,
            all stored rows are here that they can change.
        layout: the table.
        synced_micros: `_fivetran_synced` of rows that the source brought.

    Returns:
        SQL that gives the columns of the table, and `MODIFIED`, `FILE`, `POSITION`, `STORED`,
        `REMOVED`, `ADDED`, `CONCEALED`, `REVEALED`, `COUNTED`.
    """
    rows = _together([_packed(event, layout) for event in events], layout)
    rows = _versions(_ranked(rows, layout), layout)
    rows = _counted(_facts(rows, layout), layout)
    rows = _ended(_placed(_begun(rows, layout), layout), layout)
    return f"""
        SELECT {_cells(layout, synced_micros)},
          {MODIFIED}, {FILE}, {POSITION}, {STORED},
          {_verdict(layout)}
        FROM ({rows})
        """


def states(event: str, layout: Layout, *, synced_micros: int) -> str:
    """What `succession` gives of rows that are each their record's one version, as a query.

    Args:
        event: a query of `of_landed` rows that were not deleted, and tell everything.
        layout: the table; nothing is stored in it.
        synced_micros: as of `succession`.

    Returns:
        SQL that gives the columns of the table.
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


def _packed(event: str, layout: Layout) -> str:
    """Pack what a row says, hash it, and keep only what decides about it beside it."""
    packed = [f"struct({', '.join(map(quoted, layout.data))}) AS {_DATA}"]
    if layout.omitted:
        event = (
            f"SELECT *, {', '.join(omitted_columns.origins(layout.columns_omitted))} FROM ({event})"
        )
        packed.append(f"{omitted_columns.packed(layout.columns_omitted)} AS {omitted_columns.TOLD}")
    plain = [name for name in layout.erased if name not in layout.omitted]
    if plain:
        holds = any_of(f"{quoted(name)} IS NOT NULL" for name in plain)
        packed.append(f"{holds} AS {_HOLDS}")
    decisive = [name for name in VERSION_COLUMNS if name != OMITTED]
    return f"""
        SELECT {listed(layout.key)},
          {", ".join(packed)},
          xxhash64(
            {SEQUENCE}, {DELETED_AT}, {DELETED_AT} IS NULL, {", ".join(_said(layout))},
            IF({PROVIDES_DATA}, {PURGED_AT}, NULL)
          ) AS {_SAYS},
          {", ".join([*decisive, *_FACTS])}
        FROM ({event})
        """


def _together(events: Sequence[str], layout: Layout) -> str:
    """Bring the rows of a record together: one shuffle and one sort serve all that follows."""
    return f"""
        SELECT * FROM ({" UNION ALL ".join(events)})
        DISTRIBUTE BY {listed(layout.key)}
        """


def _ranked(rows: str, layout: Layout) -> str:
    """Order the rows of each version, and compare them.

    Rows with data come first, the greatest before the others; then purges as versions without; then
    marks. Marks that say the same follow each other: deletions by their sequence, then stored ones
    first.
    """
    is_deletion = f"NOT {PROVIDES_DATA} AND {PURGED_AT} IS NULL"
    version = f"""
        PARTITION BY {listed(layout.key)}, {MODIFIED}
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
    # The first row of a version tells, if one does: its sequence is the greatest that does.
    reported = f"first_value(IF({omitted_columns.HAS_DATA}, {_RANK}, NULL)) OVER so_far"
    is_void = f"({is_deletion} AND coalesce({reported} > {_RANK}, false))"
    # A version that was moved stays at least there when another row takes its place: the greatest
    # of the starts so far.
    return f"""
        SELECT *,
          {PROVIDES_DATA} AND row_number() OVER version = 1 AS {_IS_FIRST},
          first_value({_SAYS}) OVER so_far AS {_FIRST_SAYS},
          max(IF({PROVIDES_DATA} AND {STORED} IS NOT NULL, {_SAYS}, NULL)) OVER whole AS
          {_STORED_SAYS}, NOT ({PROVIDES_DATA} OR ({repeats}) OR {is_void}) AS {_IS_MARK},
          min(IF({PURGED_AT} IS NULL, NULL, {DELETED_AT})) OVER whole AS {_PURGE_DELETED},
          max({_OLD_START}) OVER whole AS {_NOT_BEFORE}
        FROM ({rows})
        WINDOW
          version AS ({version}),
          so_far AS ({version} {_SO_FAR}),
          whole AS ({version} {_WHOLE})
        """


def _versions(rows: str, layout: Layout) -> str:
    """Choose the row of each version, and leave out rows that decide nothing."""
    # A row that says what is stored already leaves it as it is, `_fivetran_synced` included.
    stands = f"{_STORED_SAYS} IS NOT NULL AND {_FIRST_SAYS} = {_STORED_SAYS}"
    is_version = f"{PROVIDES_DATA} AND IF({stands}, {STORED} IS NOT NULL, {_IS_FIRST})"
    if layout.mode is not Mode.HISTORY:
        # What a record was last is more than that there was a later version of it.
        has_data = f"max({omitted_columns.HAS_DATA}) OVER (PARTITION BY {listed(layout.key)})"
        is_version += f" AND ({omitted_columns.HAS_DATA} OR NOT {has_data})"
    # Of rows that the source superseded, stored ones have to go; others may have told what a later
    # row did not.
    is_needed = f"{_IS_VERSION} OR {_IS_MARK} OR {STORED} IS NOT NULL"
    if layout.omitted:
        is_needed += f" OR {PROVIDES_DATA}"
    return f"""
        SELECT * FROM (SELECT *, {is_version} AS {_IS_VERSION} FROM ({rows}))
        WHERE {is_needed}
        """


def _facts(rows: str, layout: Layout) -> str:
    """Find what columns hold that a row does not tell."""
    if not layout.omitted:
        return rows
    return f"""
        SELECT *, {omitted_columns.facts(layout.columns_omitted)} AS {omitted_columns.FACTS}
        FROM ({rows})
        WINDOW until AS (
          PARTITION BY {listed(layout.key)} ORDER BY {MODIFIED}, length({SEQUENCE}), {SEQUENCE}
        )
        """


def _counted(rows: str, layout: Layout) -> str:
    """Number the versions of a record, and find the marks that end each."""
    # Never before the version that it was landed with; `greatest` takes no notice of nulls.
    marked = f"IF({_IS_MARK}, greatest({PURGED_AT}, {MODIFIED}), NULL)"
    record = f"PARTITION BY {listed(layout.key)} ORDER BY {MODIFIED}"
    # The first mark from a version on: among equal times, all are in the frame.
    backwards = f"PARTITION BY {listed(layout.key)} ORDER BY coalesce({marked}, {MODIFIED}) DESC"
    nothing = "CAST(NULL AS BIGINT)"
    ends = f"min({marked}) OVER ({backwards})" if layout.has_marks else nothing
    purged = nothing
    if layout.erased:
        purged = f"max(IF({PURGED_AT} IS NULL, NULL, {marked})) OVER ({record} {_WHOLE})"
    return f"""
        SELECT *,
          count_if({_IS_VERSION}) OVER ({record} {_SO_FAR}) AS {_NUMBER},
          {ends} AS {_MARKED},
          {purged} AS {_PURGED}
        FROM ({rows})
        """


def _begun(rows: str, layout: Layout) -> str:
    """Let versions start at their time, but no less than an epsilon after the one before."""
    moved = f"coalesce({_NOT_BEFORE}, {MODIFIED}) - {_NUMBER} * {layout.epsilon}L"
    return f"""
        SELECT *,
          max(IF({_IS_VERSION}, {moved}, NULL)) OVER (
            PARTITION BY {listed(layout.key)} ORDER BY {MODIFIED} {_SO_FAR}
          ) + {_NUMBER} * {layout.epsilon}L AS {_BEGIN}
        FROM ({rows})
        """


def _placed(rows: str, layout: Layout) -> str:
    """Find the start of the version after each."""
    return f"""
        SELECT *,
          lead(IF({_IS_VERSION}, {_BEGIN}, NULL)) IGNORE NULLS OVER (
            PARTITION BY {listed(layout.key)} ORDER BY {MODIFIED}
          ) AS {_NEXT}
        FROM ({rows})
        """


def _ended(rows: str, layout: Layout) -> str:
    """Decide when a version was deleted or purged, when it ends, and what of it has to change."""
    gone = f"least({DELETED_AT}, {_PURGE_DELETED}, {_MARKED})"
    end = f"greatest({_BEGIN}, least({_NEXT} - {layout.epsilon}L, {gone}))"
    is_active = f"{_NEXT} IS NULL AND {gone} IS NULL"
    columns = layout.columns_omitted
    # A row that has nothing to lose is erased already.
    loses = [
        f"{_is_erased(column.name, layout)} AND {column.told}.v IS NOT NULL"
        for column in columns
        if column.name in layout.erased
    ]
    if set(layout.erased) - set(layout.omitted):
        loses.append(f"{_HOLDS} AND coalesce({MODIFIED} <= {_PURGED}, false)")
    changed = f"{omitted_columns.HAS_DATA} AND {any_of(column.has_changed for column in columns)}"
    return f"""
        SELECT *,
          {gone} AS {_GONE},
          IF({is_active}, {TMAX_MICROS}L, {end}) AS {_FINISH},
          {any_of(loses)} AS {_LOSES},
          {changed} AS {_CHANGED}
        FROM ({rows})
        """


def _said(layout: Layout) -> Iterator[str]:
    """What tells apart rows of a version that say different things, as SQL."""
    columns = {one.name: one for one in layout.columns_omitted}
    for name in layout.data:
        value = quoted(name)
        if name in columns:
            yield columns[name].is_provided
            value = f"IF({columns[name].is_provided}, {value}, NULL)"
        yield f"{value}, {value} IS NULL"


def _is_erased(name: str, layout: Layout) -> str:
    """Whether a column must not keep what it says, as SQL: it was said before a purge."""
    by_name = {one.name: one for one in layout.columns_omitted}
    reported = f"least({MODIFIED}, {by_name[name].fact}.m)" if name in by_name else MODIFIED
    return f"coalesce({reported} <= {_PURGED}, false)"


def _cells(layout: Layout, synced: int, *, is_packed: bool = True) -> str:
    """The columns of the table."""
    columns = layout.columns_omitted
    reported = omitted_columns.to_version(columns)
    times = [f"coalesce(CAST({name} AS STRING), '-')" for name in (DELETED_AT, PURGED_AT)]
    # What says something else now is news to those who go by the time.
    is_new = f"{STORED} IS NULL"
    if is_packed:
        is_new += f" OR {_CHANGED}"
    if layout.mode is Mode.SOFT_DELETE:
        # So is a record that another row has marked.
        is_new += f" OR NOT (({_GONE} IS NOT NULL) <=> {_OLD_MARK})"
    cells = {
        START: f"timestamp_micros({_BEGIN})",
        END: f"timestamp_micros({_FINISH})",
        ACTIVE: f"{_FINISH} = {TMAX_MICROS}L",
        DELETED: f"{_GONE} IS NOT NULL",
        SYNCED: f"IF({is_new}, timestamp_micros({synced}L), {_OLD_SYNCED})",
        VERSION: f"concat_ws(' ', CAST({MODIFIED} AS STRING), {', '.join(times)}, {reported}, "
        f"{SEQUENCE})",
    }
    of_data = f"{_DATA}." if is_packed else ""
    cells |= {name: f"{of_data}{quoted(name)}" for name in layout.data}
    cells |= {column.name: column.value for column in columns}
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
    says_the_same = f"NOT ({_LOSES} OR {_CHANGED})"
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
