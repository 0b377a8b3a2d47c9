"""The profile of a batch: what one pass over it measures.

A batch on its way into a table: its change set, kept in memory, and what one pass over it told.

The pass is the only time that the batch's files are decoded, and the only thing about the batch
that reaches the driver: one row of counts and bounds, whatever the batch's size.

What is known of landed rows before their table is looked at.
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
    """A batch's rows and what is known about them.

    Attributes:
        rows: the change set of `chronolake.change_set`, kept, as a SQL name.
        names: its data columns, in the order of the unmodified bits.
        replaced, updated, deleted, earliest: number of rows by kind of file.
        repeated: not for history: whether some key occurs in more than one row.
        unmodified: names of the columns that some update row leaves as they are.
        with_nulls: key columns that are null in some row.
        bounds: bounds of the key columns for which that is useful, as SQL.
        since: history only: the least time in microseconds that the batch touches, or None.
        contradicting: history only: rows whose own times and `_fivetran_active` do not agree.
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
        """Number of rows in all files."""
        return self.replaced + self.updated + self.deleted + self.earliest

    @property
    def is_empty(self) -> bool:
        """Whether the batch has no row at all."""
        return self.rows_count == 0

    def same_key(self, key: Sequence[str]) -> list[str]:
        """SQL conditions: a row of `TABLE` has the `numbered` key of a row of `KEYS`.

        Bounds that all keys of the batch keep stand among them: they prune files and row groups.
        """
        return same_key(key, self.bounds, self.with_nulls)

    def since_of(self, column: str) -> str:
        """A SQL condition: this time of a version of `TABLE` is when the batch begins, or later.

        Only for history: versions that end and start earlier the batch cannot change, unless they
        are active.
        """
        return is_since(column, (self.since or 0) - EPSILON_MICROS)


def same_key(
    key: Sequence[str],
    bounds: Mapping[str, tuple[str, str]],
    with_nulls: AbstractSet[str] = frozenset(),
) -> list[str]:
    """SQL conditions: a row of `TABLE` has the `numbered` key of a row of `KEYS`.

    Args:
        key: the key columns.
        bounds: what bounds all keys keep, as SQL: they prune files and row groups.
        with_nulls: key columns that may be null.
    """
    conditions = []
    for number, name in enumerate(key):
        column = f"{TABLE}.{quoted(name)}"
        # Without nulls, Spark looks a single key up as a number and not as a row.
        equals = "<=>" if name in with_nulls else "="
        conditions.append(f"{column} {equals} {KEYS}.k{number}")
        if name in bounds:
            least, greatest = bounds[name]
            conditions += [f"{column} >= {least}", f"{column} <= {greatest}"]
    return conditions


def is_since(column: str, micros: int) -> str:
    """A SQL condition: a column of `TABLE` has a time or a later one, rounded down to an hour."""
    since = micros // _HOUR_MICROS * _HOUR_MICROS
    return f"{TABLE}.{column} >= timestamp_micros({since})"


def bounds_of(kind: Kind, least: Any, greatest: Any) -> tuple[str, str]:
    """Bounds that hold what is between two cells, as SQL, and often the same for the next batch.

    Spark writes numbers of a statement into the code that it generates: with every batch's own
    bounds, every batch would run code that the JVM has not compiled yet: a scan of 2,000,000 keys
    takes 0.2 s longer then. Integers and dates go to the next multiple of half of their distance or
    less, so that new keys at the end of a table seldom move the bounds; texts do not stand in code.
    """
    if kind is Kind.STRING:
        # A raw hexadecimal literal needs no escaping, whatever the text holds.
        first, last = (f"CAST(X'{text.encode().hex()}' AS STRING)" for text in (least, greatest))
    elif kind is Kind.NAIVE_DATE:
        days = _rounded(least.toordinal(), greatest.toordinal(), *_DAYS)
        first, last = (f"DATE'{date.fromordinal(day).isoformat()}'" for day in days)
    elif kind is Kind.LONG:
        first, last = (f"{number}L" for number in _rounded(least, greatest, *_LONGS))
    else:
        # Of the column's own type: a MERGE that compares an INT with a BIGINT is not planned.
        first, last = (f"{number}" for number in _rounded(least, greatest, *_INTS))
    return first, last


def _rounded(least: int, greatest: int, first: int, last: int) -> tuple[int, int]:
    """Two numbers, rounded apart but not beyond the first and last of their type."""
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
    """Decode a batch once, and keep it for as long as the block runs.

    Args:
        changes: the change set.
        description: the table it is for.
        key: the columns that identify a record.
        columns: the change set's data columns.
        watch: gets the time of the pass as the stage `read`.
        is_history: whether it is a history batch, whose rows are versions with their times.

    Raises:
        UnknownColumnError: a column that the table does not have.
        BatchError: no key column, a key column that the batch lacks, or a history row without
            its times.
        Exception: whatever reading the batch's files raises.
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
    """Let every active version end at Tmax, which senders write with more digits, or with none."""
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
    """The one statement that looks at all rows of a batch."""
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
        # By key first, to see whether one repeats: a query of its own would take as long again.
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
    """A SQL condition: what a row says of its version's times cannot all be true.

    It is active although it ends, or inactive although it does not; or it ends before it starts,
    but for a version that is shorter than a millisecond.
    """
    start, end = f"unix_micros({START})", f"unix_micros({END})"
    return f"({ACTIVE} <> ({end} >= {TMAX_MICROS}) OR {end} <= {start} - {EPSILON_MICROS})"


def micros_of_change() -> str:
    """When a row of a history batch has its effect: a delete at its end, others at their start."""
    return f"unix_micros(CASE WHEN {OP} = {int(Op.DELETE)} THEN {END} ELSE {START} END)"


#: Of more files with incomplete rows the names are not told.
_FILES: Final = 1_000


@dataclass(frozen=True)
class Pulled:
    """Landed rows and what is known about them.

    Attributes:
        view: the rows as a SQL name.
        rows: how many.
        marks: how many of them only say that a record is gone.
        purges: how many of these are purges.
        omitted: the data columns of which some row says nothing.
        since: the least modification time in microseconds, or None.
        bounds: bounds of the key columns for which that is useful, as SQL.
        sketch: of the versions they tell of (`core/usage.py`).
        deleted: how many say when their record was deleted.
        plain_marks: how many only say that it was deleted at the row's own time.
        latest: the latest time that any of them tells, in microseconds, or None.
        has_each_once: whether it is known that no two are of one record.
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
        """Whether each row is its record's one version, which is active."""
        return self.has_each_once and not (self.deleted or self.marks or self.omitted)

    @property
    def say_one_thing_each(self) -> bool:
        """Whether each row is all there is of its record: a version, or its end at that time."""
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
    """Look once at landed rows, without their data columns.

    Args:
        spark: the session that reads them.
        view: the rows as a SQL name.
        description: the table.
        layout: the same, as far as versions are concerned.
        has_each_once: whether it is known that no two rows are of one record.

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
        # A name that is none of the table's columns says nothing about it.
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
