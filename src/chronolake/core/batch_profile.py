"""The profile of a batch: counts and bounds from one pass over its rows.

A destination batch is a change set that is kept in memory while it is merged into a table. The pass
is the only time that the batch's files are decoded, and its result is the only part of the batch
that reaches the driver: one row of counts and bounds, whatever the batch's size.

Landed record versions of pipeline tables are profiled before their table is read.
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
from chronolake.core.sql import BATCH, KEYS, TABLE, cached_view, cells, column_list, numbered_key
from chronolake.core.usage import sketch_aggregate
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
    quote,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from pyspark.sql import DataFrame, Row, SparkSession

    from chronolake.core.scd2_sql import Layout
    from chronolake.core.staging import Stopwatch
    from chronolake.description import TableDescription
    from chronolake.types import Column


#: Kinds of key columns whose least and greatest value narrow the scan of the table.
ORDERED: Final = {Kind.SHORT, Kind.INT, Kind.LONG, Kind.STRING, Kind.NAIVE_DATE}
#: A SQL condition: the row of a change set is a replace row.
IS_REPLACE: Final = f"{OP} = {int(Op.REPLACE)}"
_LONGS: Final = (-(1 << 63), (1 << 63) - 1)
_INTS: Final = (-(1 << 31), (1 << 31) - 1)
_DAYS: Final = (date.min.toordinal(), date.max.toordinal())
_HOUR_MICROS: Final = 3_600_000_000


@dataclass(frozen=True, kw_only=True)
class BatchProfile:
    """The rows of a batch, with their counts and bounds.

    The rows are a change set or record versions (`chronolake.change_set`). Counts that only one of
    the two has are 0 for the other.

    Attributes:
        view: the rows as a SQL name.
        rows: number of rows.
        names: their data columns; of a change set, in the order of the unmodified bits.
        omitted: the data columns that some row does not provide, in the order of `names`: an update
            row leaves them unmodified, or a version omits them.
        with_nulls: key columns that are null in some row.
        bounds: bounds of key columns as SQL, for types where bounds prune files.
        since: the earliest time in microseconds that the rows affect; None if no record is
            affected, or for a change set without history.
        sketch: the sketch of the rows that count as usage (`core/usage.py`): replace and update
            rows, or versions. None for a history batch, whose result is counted.
        has_each_once: whether no two rows are of one record; False if this is not known, as in a
            history batch.
        deleted: number of delete rows, or of versions with a deletion time.
        replaced, updated, earliest: number of rows of a change set by kind of file.
        contradicting: number of rows of a history batch whose times contradict `_fivetran_active`.
        tombstones: number of versions without data: the record is deleted or purged.
        deletions: number of tombstones with a deletion at the row's own time.
        purges: number of versions that purge their record.
        latest: the latest time in any version, in microseconds, or None.
    """

    view: str
    rows: int
    names: tuple[str, ...]
    omitted: tuple[str, ...]
    with_nulls: frozenset[str] = frozenset()
    bounds: dict[str, tuple[str, str]]
    since: int | None
    sketch: bytes | None
    has_each_once: bool
    deleted: int
    replaced: int = 0
    updated: int = 0
    earliest: int = 0
    contradicting: int = 0
    tombstones: int = 0
    deletions: int = 0
    purges: int = 0
    latest: int | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether the batch has no rows."""
        return self.rows == 0

    def replace_rows(self, description: TableDescription) -> str:
        """Return a SQL query of the replace rows of a change set, with all columns of a table."""
        selected = cells(description, self.names, of=BATCH)
        return f"SELECT {selected} FROM {self.view} AS {BATCH} WHERE {IS_REPLACE}"

    def same_key(self, key: Sequence[str]) -> list[str]:
        """Return SQL conditions that match the key of `TABLE` with that of `KEYS` (`numbered_key`).

        They include bounds of all keys of the batch, which prune files and row groups.
        """
        conditions = []
        for number, name in enumerate(key):
            column = f"{TABLE}.{quote(name)}"
            # Without nulls, Spark's join hashes a single key as a number instead of a row.
            equals = "<=>" if name in self.with_nulls else "="
            conditions.append(f"{column} {equals} {KEYS}.k{number}")
            if name in self.bounds:
                least, greatest = self.bounds[name]
                conditions += [f"{column} >= {least}", f"{column} <= {greatest}"]
        return conditions

    def is_since(self, column: str, epsilon: int) -> str:
        """Return a SQL condition: a time column of `TABLE` is not before the batch's first time.

        The batch can change a version that ends and starts earlier only if it is active. The time
        is rounded down to an hour.

        Args:
            column: the time column.
            epsilon: microseconds between a version's end and the start of the next.
        """
        micros = (self.since or 0) - epsilon
        hour = micros // _HOUR_MICROS * _HOUR_MICROS
        return f"{TABLE}.{column} >= timestamp_micros({hour})"


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
        days = _round_outward(least.toordinal(), greatest.toordinal(), *_DAYS)
        first, last = (f"DATE'{date.fromordinal(day).isoformat()}'" for day in days)
    elif kind is Kind.LONG:
        first, last = (f"{number}L" for number in _round_outward(least, greatest, *_LONGS))
    else:
        # In the column's own type: Spark would cast an INT column to compare it with a BIGINT.
        first, last = (f"{number}" for number in _round_outward(least, greatest, *_INTS))
    return first, last


def _round_outward(least: int, greatest: int, first: int, last: int) -> tuple[int, int]:
    """Round one number down and one up, within the first and last value of their type."""
    step = 1 << max(0, (greatest - least).bit_length() - 2)
    return max(least // step * step, first), min(-(-greatest // step) * step, last)


def _extremes(key: Sequence[str], ordered: AbstractSet[str], columns: Sequence[str]) -> list[str]:
    """Return SQL aggregates for `_bounds_in`: the least and greatest cell of ordered key columns.

    Args:
        key: the key columns.
        ordered: those whose bounds prune files.
        columns: the SQL name of each key column.
    """
    return [
        f"{aggregate}({column}) AS {aggregate}{number}"
        for number, (name, column) in enumerate(zip(key, columns, strict=True))
        if name in ordered
        for aggregate in ("min", "max")
    ]


def _bounds_in(
    row: Row, description: TableDescription, key: Sequence[str], ordered: AbstractSet[str]
) -> dict[str, tuple[str, str]]:
    """Return bounds of key columns from a row with the aggregates of `_extremes`."""
    return {
        name: bounds_of(
            description.by_name[name].type.kind, row[f"min{number}"], row[f"max{number}"]
        )
        for number, name in enumerate(key)
        if name in ordered and row[f"min{number}"] is not None
    }


def _ordered_columns(description: TableDescription, key: Sequence[str]) -> set[str]:
    """Return the key columns whose bounds prune files."""
    return {name for name in key if description.by_name[name].type.kind in ORDERED}


@contextmanager
def profile_changes(
    changes: DataFrame,
    description: TableDescription,
    key: Sequence[str],
    columns: Sequence[Column],
    watch: Stopwatch,
    *,
    is_history: bool,
) -> Iterator[BatchProfile]:
    """Decode a change set once, profile it, and keep it while the block runs.

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
    with cached_view(_with_tmax(changes, names)) as rows:
        with watch.stage("read"):
            profile = _profile_of_changes(
                changes.sparkSession, rows, description, key, names, is_history=is_history
            )
        yield profile


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
            "The table has no primary key, so its rows cannot be identified.",
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


def _profile_of_changes(
    spark: SparkSession,
    view: str,
    description: TableDescription,
    key: Sequence[str],
    names: tuple[str, ...],
    *,
    is_history: bool,
) -> BatchProfile:
    words = range((len(names) + BITS_PER_WORD - 1) // BITS_PER_WORD)
    ordered = _ordered_columns(description, key)
    statement = _statement_for_changes(view, key, ordered, len(words), is_history=is_history)
    (row,) = spark.sql(statement).collect()
    if is_history and row["timeless"]:
        raise BatchError(
            f"{row['timeless']} rows of the batch have no {START}, {END} or {ACTIVE}.",
            table=str(description.name),
            hint="Send the start, the end and the active flag with every version, and the end "
            "with every delete.",
        )
    bits = [row[f"w{word}"] or 0 for word in words]
    with_nulls = frozenset(name for number, name in enumerate(key) if row[f"nulls{number}"])
    counts = {op: row[f"n{int(op)}"] or 0 for op in Op}
    return BatchProfile(
        view=view,
        rows=sum(counts.values()),
        names=names,
        omitted=tuple(
            name
            for number, name in enumerate(names)
            if bits[number // BITS_PER_WORD] >> (number % BITS_PER_WORD) & 1
        ),
        with_nulls=with_nulls,
        bounds=_bounds_in(row, description, key, ordered - with_nulls),
        since=row["since"] if is_history else None,
        sketch=None if is_history else row["sketch"],
        has_each_once=not (is_history or row["repeated"]),
        deleted=counts[Op.DELETE],
        replaced=counts[Op.REPLACE],
        updated=counts[Op.UPDATE],
        earliest=counts[Op.EARLIEST],
        contradicting=row["contradicting"] if is_history else 0,
    )


def _statement_for_changes(
    view: str, key: Sequence[str], ordered: AbstractSet[str], words: int, *, is_history: bool
) -> str:
    """Return the only statement that reads all rows of a change set."""
    kinds = [f"n{int(kind)}" for kind in Op]
    counts = [f"count_if({OP} = {int(kind)}) AS n{int(kind)}" for kind in Op]
    bits = [f"bit_or(coalesce(get({UNMODIFIED}, {word}), 0L)) AS w{word}" for word in range(words)]
    if is_history:
        time = micros_of_change()
        no_times = f"{OP} IN (1, 2) AND ({END} IS NULL OR {ACTIVE} IS NULL)"
        aggregates = [
            *counts,
            *bits,
            f"min({time}) AS since",
            f"count_if({time} IS NULL OR ({no_times})) AS timeless",
            f"count_if({OP} IN (1, 2) AND {_contradicts()}) AS contradicting",
        ]
        rows, columns = view, list(map(quote, key))
    else:
        # Group by key first, to find repeated keys: a separate query would take as long again.
        columns = [f"k{number}" for number in range(len(key))]
        own = ", ".join([numbered_key(key), "count(1) AS number", *counts, *bits])
        rows = f"(SELECT {own} FROM {view} GROUP BY {column_list(key)})"
        aggregates = [
            *(f"sum({name}) AS {name}" for name in kinds),
            *(f"bit_or(w{word}) AS w{word}" for word in range(words)),
            "max(number) > 1 AS repeated",
            f"{sketch_aggregate(columns, f'n{int(Op.REPLACE)} + n{int(Op.UPDATE)} > 0')} AS sketch",
        ]
    aggregates += [
        f"count_if({column} IS NULL) AS nulls{number}" for number, column in enumerate(columns)
    ]
    aggregates += _extremes(key, ordered, columns)
    return f"SELECT {', '.join(aggregates)} FROM {rows}"


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


def profile_versions(
    spark: SparkSession,
    view: str,
    description: TableDescription,
    layout: Layout,
    *,
    has_each_once: bool,
) -> BatchProfile:
    """Profile landed record versions in one pass, without their data columns.

    Args:
        spark: the session that reads them.
        view: the rows as a SQL name.
        description: the table.
        layout: the table's layout.
        has_each_once: whether no two rows are known to be of one record.

    Raises:
        IncompleteRowsError: a row lacks its key, its time or its sequence.
    """
    ordered = _ordered_columns(description, layout.key)
    key = [quote(name) for name in layout.key]
    needed = [*key, MODIFIED, SEQUENCE]
    incomplete = " OR ".join(f"{name} IS NULL" for name in needed)
    is_provided = (
        PROVIDES_DATA if layout.mode is Mode.LIVE else f"{PROVIDES_DATA} OR {PURGED_AT} IS NOT NULL"
    )
    sketch = usage.sketch_aggregate(layout.counted, is_provided)
    place = f"struct({LANDED_FILE} AS file, {LANDED_ROW} AS row)"
    sorted_files = f"array_sort(collect_set({LANDED_FILE}) FILTER (WHERE {incomplete}))"
    aggregates = [
        "count(1) AS rows",
        f"min({place}) FILTER (WHERE {incomplete}) AS place",
        f"count_if(NOT {PROVIDES_DATA}) AS tombstones",
        f"count_if({PURGED_AT} IS NOT NULL) AS purges",
        f"count({DELETED_AT}) AS deleted",
        f"count_if(NOT {PROVIDES_DATA} AND {DELETED_AT} = {MODIFIED}) AS deletions",
        f"max(greatest({MODIFIED}, {DELETED_AT}, {PURGED_AT})) AS latest",
        f"array_distinct(flatten(collect_set({OMITTED}))) AS omitted",
        f"count_if({incomplete}) AS incomplete",
        f"slice({sorted_files}, 1, {_FILES}) AS files",
        f"min({MODIFIED}) AS since",
        f"{sketch} AS sketch",
        *_extremes(layout.key, ordered, key),
    ]
    (row,) = spark.sql(f"SELECT {', '.join(aggregates)} FROM {view}").collect()
    if row["incomplete"]:
        error = IncompleteRowsError(
            f"{row['incomplete']} rows lack their key, modification time or sequence; this is the "
            "first.",
            table=str(description.name),
            file=row["place"]["file"],
            row=row["place"]["row"] + 1,
            hint=f"Every row needs {', '.join(layout.key)}, a modification time and a sequence.",
        )
        error.files = row["files"]
        raise error
    return BatchProfile(
        view=view,
        rows=row["rows"],
        names=layout.data,
        # Names that are not columns of the table are ignored.
        omitted=tuple(
            name for name in layout.data if name in row["omitted"] and name not in layout.key
        ),
        bounds=_bounds_in(row, description, layout.key, ordered),
        since=row["since"],
        sketch=row["sketch"],
        has_each_once=has_each_once,
        deleted=row["deleted"],
        tombstones=row["tombstones"],
        deletions=row["deletions"],
        purges=row["purges"],
        latest=row["latest"],
    )
