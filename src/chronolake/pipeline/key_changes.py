"""Key changes in a log: values that the log omits are filled in from the record's previous version.

A log does not repeat large values that an update has not changed (unchanged TOAST). If such an
update changes the record's key, the values are those of the record under the old key: from an
earlier row of the same batch, or from the table. They are filled in when the batch lands, so that
the raw lake contains all data of the table.
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
from chronolake.frames import group, select
from chronolake.landing import as_type, wider
from chronolake.types import VERSION, Column, literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from chronolake.arrow_tasks import ArrowRows
    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake

#: Columns of a row that follows another one: its sequence, its time, and its old and new key.
_ROW: Final = f"{RESERVED}row"
_AT: Final = f"{RESERVED}at"
_OLD: Final = f"{RESERVED}old"
_NEW: Final = f"{RESERVED}new"
_KEY: Final = f"{RESERVED}key"
#: A value; or the row that has it, if that row follows another one, too.
_CELL: Final = f"{RESERVED}cell"
_OPEN: Final = f"{RESERVED}open"
_OTHER_CELL: Final = f"{RESERVED}other_cell"
_OTHER_OPEN: Final = f"{RESERVED}other_open"
#: Where a value was found: sequence of the row in the batch or time in the table, and the value.
_PLACE: Final = f"{RESERVED}place"
_BATCH: Final = f"{RESERVED}batch"
_TABLE: Final = f"{RESERVED}table"


def fill_omitted_values(
    lake: Lake, versions: DataFrame | ArrowRows, columns: Sequence[Column], table: IcebergTable
) -> tuple[DataFrame, list[Column]]:
    """Fill in the omitted values of records whose key has changed.

    Landing the same versions again gives the same values, whatever has landed since.

    Args:
        lake: the lake whose Spark session is used.
        versions: record versions with `change_set.FOLLOWS`.
        columns: their data columns.
        table: the table with all data that landed before, perhaps including these versions.

    Returns:
        The versions without `FOLLOWS`, and their data columns, which have the table's type where it
        is wider.
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
    omitted = [column.name for column in both if column.name in names]
    key = [column.name for column in both if column.primary_key]
    given = _cast_columns(columns, both)
    links = _links(rows, [given[name] for name in key]).localCheckpoint()
    values = links.join(_values_in_batch(rows, links, omitted, both, given), _ROW, "left")
    current = lake.spark.table(table.sql)
    values = values.join(_values_in_table(current, links, omitted, stored, both), _ROW, "left")
    values = select(
        values,
        [
            _ROW,
            *(
                f"IF({_BATCH}{n} IS NULL, {_TABLE}.v{n}, {_BATCH}{n}.value) AS {_CELL}{n}"
                for n in range(len(omitted))
            ),
            *(f"{_BATCH}{n}.open AS {_OPEN}{n}" for n in range(len(omitted))),
        ],
    )
    values = _resolve_references(values, len(omitted))
    cells = []
    places = {name: number for number, name in enumerate(omitted)}
    for column in both:
        cell = given[column.name]
        if column.name in places:
            is_open = f"{FOLLOWS} IS NOT NULL AND array_contains({OMITTED}, {literal(column.name)})"
            cell = f"IF({is_open}, {_CELL}{places[column.name]}, {cell})"
        cells.append(f"{cell} AS {quote(column.name)}")
    left_out = f"IF({FOLLOWS} IS NULL, {OMITTED}, NULL) AS {OMITTED}"
    data = {column.name for column in columns}
    others = [name for name in rows.columns if name not in {*data, OMITTED, FOLLOWS}]
    joined = rows.join(values, rows[SEQUENCE] == values[_ROW], "left")
    return select(joined, [*cells, left_out, *map(quote, others)]), both


def _cast_columns(columns: Iterable[Column], both: Iterable[Column]) -> dict[str, str]:
    """Return columns as SQL, cast to the types that can also hold the table's values."""
    return {
        column.name: as_type(column, wide.type) for column, wide in zip(columns, both, strict=True)
    }


def _key(values: Iterable[str]) -> str:
    """Return a record's key as one SQL value."""
    named = ", ".join(f"'k{number}', {value}" for number, value in enumerate(values))
    return f"named_struct({named})"


def _links(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the rows that follow others, with their times and their old and new keys."""
    # The record under the old key ends with its own tombstone.
    tombstones = rows.where(f"NOT {PROVIDES_DATA}").selectExpr(
        f"{SEQUENCE} AS {FOLLOWS}", f"{_key(key)} AS {_OLD}"
    )
    follow = rows.where(f"{FOLLOWS} IS NOT NULL").selectExpr(
        FOLLOWS, f"{SEQUENCE} AS {_ROW}", f"{MODIFIED} AS {_AT}", f"{_key(key)} AS {_NEW}"
    )
    return follow.join(tombstones, FOLLOWS).drop(FOLLOWS)


def _values_in_batch(
    rows: DataFrame,
    links: DataFrame,
    omitted: Sequence[str],
    both: Sequence[Column],
    given: Mapping[str, str],
) -> DataFrame:
    """Return the values that earlier rows of the batch have for the old keys.

    Returns:
        For each row with a match: for each column a value, or the row that has it, if that row
            follows
        another one, too (`open`).
    """
    types = {column.name: column.type.sql for column in both}
    key = [column.name for column in both if column.primary_key]
    facts = []
    for number, name in enumerate(omitted):
        is_provided = f"NOT coalesce(array_contains({OMITTED}, {literal(name)}), false)"
        facts.append(
            f"CASE WHEN {is_provided} THEN "
            f"named_struct('value', {given[name]}, 'open', CAST(NULL AS STRING)) "
            f"WHEN {FOLLOWS} IS NOT NULL THEN "
            f"named_struct('value', CAST(NULL AS {types[name]}), 'open', {SEQUENCE}) "
            f"END AS {_BATCH}{number}"
        )
    old = f"{_key(given[name] for name in key)} AS {_OLD}"
    events = select(rows.where(PROVIDES_DATA), [old, f"{SEQUENCE} AS {_PLACE}", *facts])
    latest = (
        f"max_by({_BATCH}{n}, IF({_BATCH}{n} IS NULL, NULL, {_PLACE})) AS {_BATCH}{n}"
        for n in range(len(omitted))
    )
    return group(links.join(events, _OLD).where(f"{_PLACE} < {_ROW}"), [_ROW], latest)


def _values_in_table(
    table: DataFrame,
    links: DataFrame,
    omitted: Sequence[str],
    stored: Mapping[str, Column],
    both: Sequence[Column],
) -> DataFrame:
    """Return the values that the table has for the old keys, before the times of the rows.

    If the table does not have older versions, the rows may have landed already: then the records of
    the new keys have the values.

    Returns:
        For each row with a match: a struct of the values, `v0`, `v1`, …, in the order of `omitted`.
    """
    wide = {column.name: column for column in both}
    key = [stored[column.name] for column in both if column.primary_key]
    # Columns that the table does not have are null in it.
    cells = ", ".join(
        f"'v{n}', "
        + (
            as_type(stored[name], wide[name].type)
            if name in stored
            else f"CAST(NULL AS {wide[name].type.sql})"
        )
        for n, name in enumerate(omitted)
    )
    bounded = table.where(_bounds(links, key, wide))
    versions = bounded.selectExpr(
        f"{_key(as_type(column, wide[column.name].type) for column in key)} AS {_KEY}",
        f"{time_in(VERSION, 0)} AS {_PLACE}",
        f"named_struct({cells}) AS {_CELL}",
    )
    is_before, is_after = f"{_KEY} = {_OLD} AND {_PLACE} < {_AT}", f"{_PLACE} >= {_AT}"
    found = links.join(versions, expr(f"({is_before}) OR ({_KEY} = {_NEW} AND {is_after})"))
    latest = (
        f"coalesce(max_by({_CELL}, {_PLACE}) FILTER (WHERE {is_before}), "
        f"min_by({_CELL}, {_PLACE}) FILTER (WHERE {is_after})) AS {_TABLE}"
    )
    return group(found, [_ROW], [latest])


def _bounds(links: DataFrame, key: Sequence[Column], wide: Mapping[str, Column]) -> str:
    """Return a condition that is true for all rows of the keys, to skip files without them."""
    conditions = []
    for number, column in enumerate(key):
        if column.type.kind in ORDERED and wide[column.name].type == column.type:
            both = f"{_OLD}.k{number}, {_NEW}.k{number}"
            (found,) = links.selectExpr(f"min(least({both}))", f"max(greatest({both}))").collect()
            least, greatest = bounds_of(column.type.kind, *found)
            conditions.append(f"{quote(column.name)} BETWEEN {least} AND {greatest}")
    return " AND ".join(conditions) or "true"


def _resolve_references(values: DataFrame, number: int) -> DataFrame:
    """Replace references to rows that follow others by the values of those rows.

    All references of a row are to the same row, the latest one before it that follows another one:
    that row either has a value of a column or follows another one for it.
    """
    reference = f"coalesce({', '.join(f'{_OPEN}{n}' for n in range(number))})"
    others = [f"{_ROW} AS {_OPEN}"]
    resolved = [_ROW]
    for n in range(number):
        others += [f"{_CELL}{n} AS {_OTHER_CELL}{n}", f"{_OPEN}{n} AS {_OTHER_OPEN}{n}"]
        resolved += [
            f"IF({_OPEN}{n} IS NULL, {_CELL}{n}, {_OTHER_CELL}{n}) AS {_CELL}{n}",
            f"IF({_OPEN}{n} IS NULL, NULL, {_OTHER_OPEN}{n}) AS {_OPEN}{n}",
        ]
    values = values.localCheckpoint()
    while not values.where(f"{reference} IS NOT NULL").isEmpty():
        opened = values.selectExpr("*", f"{reference} AS {_OPEN}")
        joined = opened.join(select(values, others), _OPEN, "left")
        values = select(joined, resolved).localCheckpoint()
    return values
