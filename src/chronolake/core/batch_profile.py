"""The profile of a batch: counts and bounds from one pass over its rows.

A destination batch is a change set that is kept in memory while it is merged into a table. The pass
is the only time that the batch's files are decoded, and its result is the only part of the batch
that reaches the driver: one row of counts and bounds, whatever the batch's size.

Landed rows of pipeline tables are profiled before their table is read.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.functions import expr

from chronolake.change_set import (
    BITS_PER_WORD,
    DELETED_AT,
    LANDED_FILE,
    LANDED_ROW,
    MODIFIED,
    OMITTED,
    OP,
    PROVIDES_DATA,
    PURGED_AT,
    SEQUENCE,
    UNMODIFIED,
    Op,
)
from chronolake.core import usage
from chronolake.core.sql import KEYS, TABLE, kept, listed, numbered
from chronolake.core.usage import sketching
from chronolake.errors import BatchError, IncompleteRowsError, UnknownColumnError
from chronolake.types import (
    ACTIVE,
    END,
    EPSILON_MICROS,
    START,
    TMAX_MICROS,
    TMAX_SECOND_MICROS,
    Kind,
    Mode,
    quoted,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from pyspark.sql import DataFrame, SparkSession

    from chronolake.core.scd2_sql import Layout
    from chronolake.core.staging import Stopwatch
    from chronolake.description import TableDescription
    from chronolake.types import Column


#: Kinds of key columns whose least and greatest value narrow the scan of the table.
ORDERED: Final = {Kind.SHORT, Kind.INT, Kind.LONG, Kind.STRING, Kind.NAIVE_DATE}
_LONGS: Final = (-(1 << 63), (1 << 63) - 1)
_INTS: Final = (-(1 << 31), (1 << 31) - 1)
_DAYS: Final = (date.min.toordinal(), date.max.toordinal())
_HOUR_MICROS: Final = 3_600_000_000


@dataclass(frozen=True)
class Incoming:
    """A batch's rows and their profile.

    Attributes:
        rows: the change set of `chronolake.change_set`, kept, as a SQL name.
        names: its data columns, in the order of the unmodified bits.
        replaced, updated, deleted, earliest: number of rows by kind of file.
        repeated: not for history: whether some key occurs in more than one row.
        unmodified: names of the columns that some update row leaves unmodified.
        with_nulls: key columns that are null in some row.
        bounds: bounds of key columns as SQL, for types where bounds prune files.
        since: history only: the earliest time in microseconds that the batch affects, or None.
        contradicting: history only: number of rows whose times contradict `_fivetran_active`.
        writing: not for history: the sketch of its replace and update rows (`core/usage.py`).
    """

    rows: str
    names: tuple[str, ...]
    replaced: int
    updated: int
    deleted: int
    earliest: int
    repeated: bool
    unmodified: frozenset[str]
    with_nulls: frozenset[str]
    bounds: dict[str, tuple[str, str]]
    since: int | None
    contradicting: int
    writing: bytes | None

    @property
    def rows_count(self) -> int:
        """Return the number of rows in all files."""
        return self.replaced + self.updated + self.deleted + self.earliest

    @property
    def is_empty(self) -> bool:
        """Return whether the batch has no rows."""
        return self.rows_count == 0

    def same_key(self, key: Sequence[str]) -> list[str]:
        """Return SQL conditions that match a row of `TABLE` with the `numbered` key of `KEYS`.

        They include bounds of all keys of the batch, which prune files and row groups.
        """
        return same_key(key, self.bounds, self.with_nulls)

    def since_of(self, column: str) -> str:
        """Return a SQL condition: a time column of `TABLE` is not before the batch's first time.

        For history only: the batch cannot change versions that end and start earlier, unless they
        are active.
        """
        return is_since(column, (self.since or 0) - EPSILON_MICROS)


def same_key(
    key: Sequence[str],
    bounds: Mapping[str, tuple[str, str]],
    with_nulls: AbstractSet[str] = frozenset(),
) -> list[str]:
    """Return SQL conditions that match a row of `TABLE` with the `numbered` key of `KEYS`.

    Args:
        key: the key columns.
        bounds: bounds of all keys, as SQL: they prune files and row groups.
        with_nulls: key columns that may be null.
    """
    conditions = []
    for number, name in enumerate(key):
        column = f"{TABLE}.{quoted(name)}"
        # Without nulls, Spark's join hashes a single key as a number instead of a row.
        equals = "<=>" if name in with_nulls else "="
        conditions.append(f"{column} {equals} {KEYS}.k{number}")
        if name in bounds:
            least, greatest = bounds[name]
            conditions += [f"{column} >= {least}", f"{column} <= {greatest}"]
    return conditions


def is_since(column: str, micros: int) -> str:
    """Return a SQL condition: a column of `TABLE` is not before a time rounded down to an hour."""
    since = micros // _HOUR_MICROS * _HOUR_MICROS
    return f"{TABLE}.{column} >= timestamp_micros({since})"


def bounds_of(kind: Kind, least: Any, greatest: Any) -> tuple[str, str]:
    """Return SQL bounds that include two cells and are often the same for the next batch.

    Spark writes a statement's numbers into the code that it generates: with each batch's exact
    bounds, each batch would run code that the JVM has not compiled yet, and a scan of 2,000,000
    keys takes 0.2 s longer. Integers and dates are rounded to a multiple of at most half of their
    distance, so that new keys at the end of a table seldom change the bounds. Strings are not part
    of generated code.
    """
    if kind is Kind.STRING:
        # A raw hexadecimal literal needs no escaping, whatever the text contains.
        first, last = (f"CAST(X'{text.encode().hex()}' AS STRING)" for text in (least, greatest))
    elif kind is Kind.NAIVE_DATE:
        days = _rounded(least.toordinal(), greatest.toordinal(), *_DAYS)
        first, last = (f"DATE'{date.fromordinal(day).isoformat()}'" for day in days)
    elif kind is Kind.LONG:
        first, last = (f"{number}L" for number in _rounded(least, greatest, *_LONGS))
    else:
        # In the column's own type: Spark cannot plan a MERGE that compares an INT with a BIGINT.
        first, last = (f"{number}" for number in _rounded(least, greatest, *_INTS))
    return first, last


def _rounded(least: int, greatest: int, first: int, last: int) -> tuple[int, int]:
    """Round one number down and one up, within the first and last value of their type."""
    step = 1 << max(0, (greatest - least).bit_length() - 2)
    return max(least // step * step, first), min(-(-greatest // step) * step, last)


@contextmanager
def incoming(
    changes: DataFrame,
    description: TableDescription,
    key: Sequence[str],
    columns: Sequence[Column],
    watch: Stopwatch,
    *,
    is_history: bool,
) -> Iterator[Incoming]:
    """Decode a batch once, and keep it while the block runs.

    Args:
        changes: the change set.
        description: the target table.
        key: the columns that identify a record.
        columns: the change set's data columns.
        watch: gets the time of the pass as the stage `read`.
        is_history: whether it is a history batch, whose rows are versions with their times.

    Raises:
        UnknownColumnError: the batch has a column that the table does not have.
        BatchError: the table has no key, the batch lacks a key column, or a history row lacks its
            times.
        Exception: any error from reading the batch's files.
    """
    names = tuple(column.name for column in columns)
    _check_columns(description, key, names)
    with kept(_with_tmax(changes, names)) as rows:
        with watch.stage("read"):
            measured = _measure(
                changes.sparkSession, rows, description, key, names, is_history=is_history
            )
        yield measured


def _with_tmax(changes: DataFrame, names: Sequence[str]) -> DataFrame:
    """End active versions at Tmax, which senders write with more digits, or with none."""
    if not {END, ACTIVE} <= set(names):
        return changes
    end = f"unix_micros({END})"
    is_open = f"{end} >= {TMAX_MICROS} OR ({ACTIVE} AND {end} >= {TMAX_SECOND_MICROS})"
    return changes.withColumn(
        END, expr(f"CASE WHEN {is_open} THEN timestamp_micros({TMAX_MICROS}L) ELSE {END} END")
    )


def _check_columns(description: TableDescription, key: Sequence[str], names: Sequence[str]) -> None:
    table = str(description.name)
    if not key:
        raise BatchError(
            "The table has no primary key, so its rows cannot be told apart.",
            table=table,
            hint="Give it a key with AlterTable.",
        )
    for name in names:
        if name not in description.by_name:
            raise UnknownColumnError(
                "The batch has a column that the table does not have.",
                table=table,
                column=name,
                hint="Add it with AlterTable before the batch.",
            )
    for name in key:
        if name not in names:
            raise BatchError(
                "The batch lacks a key column.",
                table=table,
                column=name,
                hint="Send every key column with every batch.",
            )


def _measure(
    spark: SparkSession,
    rows: str,
    description: TableDescription,
    key: Sequence[str],
    names: tuple[str, ...],
    *,
    is_history: bool,
) -> Incoming:
    words = range((len(names) + BITS_PER_WORD - 1) // BITS_PER_WORD)
    ordered = {name for name in key if description.by_name[name].type.kind in ORDERED}
    statement = _measuring(rows, key, ordered, len(words), is_history=is_history)
    (found,) = spark.sql(statement).collect()
    if is_history and found["timeless"]:
        raise BatchError(
            f"{found['timeless']} rows of the batch have no {START}, {END} or {ACTIVE}.",
            table=str(description.name),
            hint="Every version needs its times; a delete needs its end.",
        )
    bits = [found[f"w{word}"] or 0 for word in words]
    nullable = {name for number, name in enumerate(key) if found[f"nulls{number}"]}
    return Incoming(
        rows=rows,
        names=names,
        replaced=found[f"n{int(Op.REPLACE)}"] or 0,
        updated=found[f"n{int(Op.UPDATE)}"] or 0,
        deleted=found[f"n{int(Op.DELETE)}"] or 0,
        earliest=found[f"n{int(Op.EARLIEST)}"] or 0,
        repeated=not is_history and bool(found["repeated"]),
        unmodified=frozenset(
            name
            for number, name in enumerate(names)
            if bits[number // BITS_PER_WORD] >> (number % BITS_PER_WORD) & 1
        ),
        with_nulls=frozenset(nullable),
        bounds={
            name: bounds_of(
                description.by_name[name].type.kind,
                found[f"least{number}"],
                found[f"greatest{number}"],
            )
            for number, name in enumerate(key)
            if name in ordered - nullable and found[f"least{number}"] is not None
        },
        since=found["since"] if is_history else None,
        contradicting=found["contradicting"] if is_history else 0,
        writing=None if is_history else found["writing"],
    )


def _measuring(
    batch: str, key: Sequence[str], ordered: AbstractSet[str], words: int, *, is_history: bool
) -> str:
    """Return the only statement that reads all rows of a batch."""
    kinds = [f"n{int(kind)}" for kind in Op]
    counts = [f"count_if({OP} = {int(kind)}) AS n{int(kind)}" for kind in Op]
    bits = [f"bit_or(coalesce(get({UNMODIFIED}, {word}), 0L)) AS w{word}" for word in range(words)]
    if is_history:
        time = micros_of_change()
        no_times = f"{OP} IN (1, 2) AND ({END} IS NULL OR {ACTIVE} IS NULL)"
        found = [
            *counts,
            *bits,
            f"min({time}) AS since",
            f"count_if({time} IS NULL OR ({no_times})) AS timeless",
            f"count_if({OP} IN (1, 2) AND {_contradicts()}) AS contradicting",
        ]
        rows, columns = batch, list(map(quoted, key))
    else:
        # Group by key first, to find repeated keys: a separate query would take as long again.
        columns = [f"k{number}" for number in range(len(key))]
        own = ", ".join([numbered(key), "count(1) AS number", *counts, *bits])
        rows = f"(SELECT {own} FROM {batch} GROUP BY {listed(key)})"
        found = [
            *(f"sum({name}) AS {name}" for name in kinds),
            *(f"bit_or(w{word}) AS w{word}" for word in range(words)),
            "max(number) > 1 AS repeated",
            f"{sketching(columns, f'n{int(Op.REPLACE)} + n{int(Op.UPDATE)} > 0')} AS writing",
        ]
    for number, name in enumerate(columns):
        found.append(f"count_if({name} IS NULL) AS nulls{number}")
        if key[number] in ordered:
            found += [f"min({name}) AS least{number}", f"max({name}) AS greatest{number}"]
    return f"SELECT {', '.join(found)} FROM {rows}"


def _contradicts() -> str:
    """Return a SQL condition: the times of a row's version contradict each other.

    The version is active although it ends, or inactive although it does not; or it ends before it
    starts, except if it is shorter than a millisecond.
    """
    start, end = f"unix_micros({START})", f"unix_micros({END})"
    return f"({ACTIVE} <> ({end} >= {TMAX_MICROS}) OR {end} <= {start} - {EPSILON_MICROS})"


def micros_of_change() -> str:
    """Return SQL for the time when a history row has its effect: a delete's end, else its start."""
    return f"unix_micros(CASE WHEN {OP} = {int(Op.DELETE)} THEN {END} ELSE {START} END)"


#: The error names no more than this number of files with incomplete rows.
_FILES: Final = 1_000


@dataclass(frozen=True)
class Pulled:
    """Landed rows and their profile.

    Attributes:
        view: the rows as a SQL name.
        rows: number of rows.
        marks: number of tombstones: rows that only report that a record is deleted or purged.
        purges: number of tombstones that are purges.
        omitted: the data columns that some row omits.
        since: the least modification time in microseconds, or None.
        bounds: bounds of key columns as SQL, for types where bounds prune files.
        sketch: the sketch of their versions (`core/usage.py`).
        deleted: number of rows with a deletion time.
        plain_marks: number of tombstones with a deletion at the row's own time.
        latest: the latest time in any of the rows, in microseconds, or None.
        has_each_once: whether no two rows are known to be of one record.
    """

    view: str
    rows: int
    marks: int
    purges: int
    omitted: tuple[str, ...]
    since: int | None
    bounds: dict[str, tuple[str, str]]
    sketch: bytes | None
    deleted: int
    plain_marks: int
    latest: int | None
    has_each_once: bool

    @property
    def are_states(self) -> bool:
        """Return whether each row is the only version of its record, and active."""
        return self.has_each_once and not (self.deleted or self.marks or self.omitted)

    @property
    def say_one_thing_each(self) -> bool:
        """Return whether each row is its record's only row: a version, or a plain deletion."""
        are_plain = self.deleted == self.marks == self.plain_marks
        return self.has_each_once and are_plain and not (self.purges or self.omitted)


def measured(
    spark: SparkSession,
    view: str,
    description: TableDescription,
    layout: Layout,
    *,
    has_each_once: bool,
) -> Pulled:
    """Profile landed rows in one pass, without their data columns.

    Args:
        spark: the session that reads them.
        view: the rows as a SQL name.
        description: the table.
        layout: the table's layout.
        has_each_once: whether no two rows are known to be of one record.

    Raises:
        IncompleteRowsError: a row lacks its key, its time or its sequence.
    """
    ordered = [name for name in layout.key if description.by_name[name].type.kind in ORDERED]
    needed = [*(quoted(name) for name in layout.key), MODIFIED, SEQUENCE]
    incomplete = " OR ".join(f"{name} IS NULL" for name in needed)
    is_provided = (
        PROVIDES_DATA if layout.mode is Mode.LIVE else f"{PROVIDES_DATA} OR {PURGED_AT} IS NOT NULL"
    )
    sketch = usage.sketching(layout.counted, is_provided)
    place = f"struct({LANDED_FILE} AS file, {LANDED_ROW} AS row)"
    sorted_files = f"array_sort(collect_set({LANDED_FILE}) FILTER (WHERE {incomplete}))"
    found = [
        "count(1) AS rows",
        f"min({place}) FILTER (WHERE {incomplete}) AS place",
        f"count_if(NOT {PROVIDES_DATA}) AS marks",
        f"count_if({PURGED_AT} IS NOT NULL) AS purges",
        f"count({DELETED_AT}) AS deleted",
        f"count_if(NOT {PROVIDES_DATA} AND {DELETED_AT} = {MODIFIED}) AS plain_marks",
        f"max(greatest({MODIFIED}, {DELETED_AT}, {PURGED_AT})) AS latest",
        f"array_distinct(flatten(collect_set({OMITTED}))) AS untold",
        f"count_if({incomplete}) AS incomplete",
        f"slice({sorted_files}, 1, {_FILES}) AS files",
        f"min({MODIFIED}) AS since",
        f"{sketch} AS sketch",
    ]
    for number, name in enumerate(ordered):
        column = quoted(name)
        found += [f"min({column}) AS least{number}", f"max({column}) AS greatest{number}"]
    (row,) = spark.sql(f"SELECT {', '.join(found)} FROM {view}").collect()
    if row["incomplete"]:
        error = IncompleteRowsError(
            f"{row['incomplete']} rows lack their key, modification time or sequence; this is the "
            "first.",
            table=str(description.name),
            file=row["place"]["file"],
            row=row["place"]["row"] + 1,
            hint=f"Every row needs {', '.join(layout.key)}, a time and a sequence.",
        )
        error.files = row["files"]
        raise error
    return Pulled(
        view=view,
        rows=row["rows"],
        marks=row["marks"],
        purges=row["purges"],
        # Names that are not columns of the table are ignored.
        omitted=tuple(
            name for name in layout.data if name in row["untold"] and name not in layout.key
        ),
        since=row["since"],
        bounds={
            name: bounds_of(
                description.by_name[name].type.kind, row[f"least{number}"], row[f"greatest{number}"]
            )
            for number, name in enumerate(ordered)
            if row["rows"]
        },
        sketch=row["sketch"],
        deleted=row["deleted"],
        plain_marks=row["plain_marks"],
        latest=row["latest"],
        has_each_once=has_each_once,
    )
