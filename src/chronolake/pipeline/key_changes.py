"""Records that go on under another key: what the log leaves out of them is what they were before.

A log does not repeat large values that an update has not touched. Where such an update changes the
record's key, the values are those of the record that ends: as an earlier row of the same piece has
them, or as the table had them before. They are filled in when the piece lands, so that the raw lake
holds all that the table is made of.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.functions import expr

from chronolake.arrow_tasks import to_spark
from chronolake.change_set import FOLLOWS, MODIFIED, OMITTED, PROVIDES_DATA, RESERVED, SEQUENCE
from chronolake.core.batch_profile import ORDERED, bounds_of
from chronolake.core.scd2_sql import time_in
from chronolake.description import describe_loaded
from chronolake.landing import widened, wider
from chronolake.session import CATALOG
from chronolake.types import VERSION, Column, literal, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from chronolake.arrow_tasks import ArrowRows
    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake

#: Of a row that follows: its sequence, its time, and its record's keys before and now.
_ROW: Final = f"{RESERVED}row"
_AT: Final = f"{RESERVED}at"
_OLD: Final = f"{RESERVED}old"
_NEW: Final = f"{RESERVED}new"
_KEY: Final = f"{RESERVED}key"
#: A value, and the row that it is to be taken from where that follows another one as well.
_CELL: Final = f"{RESERVED}cell"
_OPEN: Final = f"{RESERVED}open"
#: Where a value is found: the row in the piece or its time in the table, and the value.
_PLACE: Final = f"{RESERVED}place"
_PIECE: Final = f"{RESERVED}piece"
_TABLE: Final = f"{RESERVED}table"


def with_carried(
    lake: Lake, versions: DataFrame | ArrowRows, columns: Sequence[Column], table: IcebergTable
) -> tuple[DataFrame, list[Column]]:
    """Fill in what records had under the key that they had before.

    Landing the same versions again gives the same values, whatever has landed since.

    Args:
        lake: the lake whose Spark does the work.
        versions: record versions with `changes.FOLLOWS`.
        columns: their data columns.
        table: the table of all that has landed before, perhaps of these versions, too.

    Returns:
        The versions, none of which follows another one, and their data columns: of wider types
        where the table's are wider.
    """
    rows = to_spark(versions)
    stored = {column.name: column for column in describe_loaded(table).columns}
    left_out = rows.where(f"{FOLLOWS} IS NOT NULL").selectExpr(f"explode({OMITTED}) AS name")
    names = {row["name"] for row in left_out.distinct().collect()}
    both = [
        replace(column, type=wider(column.type, stored[column.name].type))
        if column.name in stored and (column.name in names or column.primary_key)
        else column
        for column in columns
    ]
    carried = [column.name for column in both if column.name in names]
    key = [column.name for column in both if column.primary_key]
    given = _widened(columns, both)
    links = _links(rows, [given[name] for name in key]).localCheckpoint()
    values = links.join(_in_piece(rows, links, carried, both, given), _ROW, "left")
    whole = lake.spark.table(f"{CATALOG}.{table.name.sql}")
    values = values.join(_in_table(whole, links, carried, stored, both), _ROW, "left")
    values = values.selectExpr(
        _ROW,
        *(
            f"IF({_PIECE}{n} IS NULL, {_TABLE}{n}, {_PIECE}{n}.value) AS {_CELL}{n}"
            for n in range(len(carried))
        ),
        *(f"{_PIECE}{n}.open AS {_OPEN}{n}" for n in range(len(carried))),
    )
    values = _closed(values, len(carried))
    cells = []
    for column in both:
        cell = given[column.name]
        if column.name in names:
            is_open = f"{FOLLOWS} IS NOT NULL AND array_contains({OMITTED}, {literal(column.name)})"
            cell = f"IF({is_open}, {_CELL}{carried.index(column.name)}, {cell})"
        cells.append(f"{cell} AS {quoted(column.name)}")
    reported = f"IF({FOLLOWS} IS NULL, {OMITTED}, NULL) AS {OMITTED}"
    data = {column.name for column in columns}
    others = [name for name in rows.columns if name not in {*data, OMITTED, FOLLOWS}]
    whole = rows.join(values, rows[SEQUENCE] == values[_ROW], "left")
    return whole.selectExpr(*cells, reported, *map(quoted, others)), both


def _widened(columns: Iterable[Column], both: Iterable[Column]) -> dict[str, str]:
    """Columns as SQL, in the types that hold what the table has as well."""
    return {
        column.name: widened(column, wide.type) for column, wide in zip(columns, both, strict=True)
    }


def _key(values: Iterable[str]) -> str:
    """A record's key as one value in SQL."""
    named = ", ".join(f"'k{number}', {value}" for number, value in enumerate(values))
    return f"named_struct({named})"


def _links(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """The rows that follow, with their times, and their records' keys before and now."""
    # The old key's record ends with a mark of its own.
    marks = rows.where(f"NOT {PROVIDES_DATA}").selectExpr(
        f"{SEQUENCE} AS {FOLLOWS}", f"{_key(key)} AS {_OLD}"
    )
    follow = rows.where(f"{FOLLOWS} IS NOT NULL").selectExpr(
        FOLLOWS, f"{SEQUENCE} AS {_ROW}", f"{MODIFIED} AS {_AT}", f"{_key(key)} AS {_NEW}"
    )
    return follow.join(marks, FOLLOWS).drop(FOLLOWS)


def _in_piece(
    rows: DataFrame,
    links: DataFrame,
    carried: Sequence[str],
    both: Sequence[Column],
    given: Mapping[str, str],
) -> DataFrame:
    """What earlier rows of the piece say of the old keys' records.

    Returns:
        For each row that finds something: for each column a value, or the row that has it, where
        that follows another one itself (`open`).
    """
    types = {column.name: column.type.sql for column in both}
    key = [column.name for column in both if column.primary_key]
    facts = []
    for number, name in enumerate(carried):
        is_provided = f"NOT coalesce(array_contains({OMITTED}, {literal(name)}), false)"
        facts.append(
            f"CASE WHEN {is_provided} THEN "
            f"named_struct('value', {given[name]}, 'open', CAST(NULL AS STRING)) "
            f"WHEN {FOLLOWS} IS NOT NULL THEN "
            f"named_struct('value', CAST(NULL AS {types[name]}), 'open', {SEQUENCE}) "
            f"END AS {_PIECE}{number}"
        )
    events = rows.where(PROVIDES_DATA).selectExpr(
        f"{_key(given[name] for name in key)} AS {_OLD}", f"{SEQUENCE} AS {_PLACE}", *facts
    )
    latest = (
        f"max_by({_PIECE}{n}, IF({_PIECE}{n} IS NULL, NULL, {_PLACE})) AS {_PIECE}{n}"
        for n in range(len(carried))
    )
    found = links.join(events, _OLD).where(f"{_PLACE} < {_ROW}")
    return found.groupBy(_ROW).agg(*map(expr, latest))


def _in_table(
    table: DataFrame,
    links: DataFrame,
    carried: Sequence[str],
    stored: Mapping[str, Column],
    both: Sequence[Column],
) -> DataFrame:
    """What the table says of the old keys' records, as they were before the rows.

    Where a table has no versions of before, the rows may have landed already: then the new keys'
    records have the values.
    """
    wide = {column.name: column for column in both}
    key = [stored[column.name] for column in both if column.primary_key]
    # What the table has no column for is null in it.
    cells = ", ".join(
        f"'v{n}', "
        + (
            widened(stored[name], wide[name].type)
            if name in stored
            else f"CAST(NULL AS {wide[name].type.sql})"
        )
        for n, name in enumerate(carried)
    )
    whole = table.where(_bounds(links, key, wide))
    versions = whole.selectExpr(
        f"{_key(widened(column, wide[column.name].type) for column in key)} AS {_KEY}",
        f"{time_in(VERSION, 0)} AS {_PLACE}",
        f"named_struct({cells}) AS {_CELL}",
    )
    is_before, is_after = f"{_KEY} = {_OLD} AND {_PLACE} < {_AT}", f"{_PLACE} >= {_AT}"
    found = links.join(versions, expr(f"({is_before}) OR ({_KEY} = {_NEW} AND {is_after})"))
    latest = (
        f"coalesce(max_by({_CELL}, {_PLACE}) FILTER (WHERE {is_before}), "
        f"min_by({_CELL}, {_PLACE}) FILTER (WHERE {is_after})).v{n} AS {_TABLE}{n}"
        for n in range(len(carried))
    )
    return found.groupBy(_ROW).agg(*map(expr, latest))


def _bounds(links: DataFrame, key: Sequence[Column], wide: Mapping[str, Column]) -> str:
    """A condition that all rows of the keys fulfil, so that files without them are not read."""
    conditions = []
    for number, column in enumerate(key):
        if column.type.kind in ORDERED and wide[column.name].type == column.type:
            both = f"{_OLD}.k{number}, {_NEW}.k{number}"
            (found,) = links.selectExpr(f"min(least({both}))", f"max(greatest({both}))").collect()
            least, greatest = bounds_of(column.type.kind, *found)
            conditions.append(f"{quoted(column.name)} BETWEEN {least} AND {greatest}")
    return " AND ".join(conditions) or "true"


def _closed(values: DataFrame, number: int) -> DataFrame:
    """Take values that are in rows that follow others themselves from where these have them."""
    is_open = " OR ".join(f"{_OPEN}{n} IS NOT NULL" for n in range(number))
    values = values.localCheckpoint()
    while not values.where(is_open).isEmpty():
        for n in range(number):
            others = values.selectExpr(
                f"{_ROW} AS {_OPEN}{n}",
                f"{_CELL}{n} AS {_CELL}_other",
                f"{_OPEN}{n} AS {_OPEN}_other",
            )
            cells = {
                f"{_CELL}{n}": f"IF({_OPEN}{n} IS NULL, {_CELL}{n}, {_CELL}_other)",
                f"{_OPEN}{n}": f"{_OPEN}_other",
            }
            joined = values.join(others, f"{_OPEN}{n}", "left")
            values = joined.selectExpr(
                *(f"{cells.get(name, name)} AS {name}" for name in values.columns)
            )
        values = values.localCheckpoint()
    return values
