"""Rows of tables without a primary key, told apart by a column of their own.

`_fivetran_id` is made of the columns of a unique index that are never null, or failing that of all
that a row says. Of rows that say the same, each has a number besides: none is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chronolake.changes import RESERVED
from chronolake.types import ROW_ID, Column, ColumnType, Kind, literal, quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from chronolake.source.postgres.catalog import SourceTable

#: The key of tables that have none.
ROW_KEY: Final = Column(ROW_ID, ColumnType(Kind.STRING), primary_key=True)
_SAME: Final = f"{RESERVED}same"


def identified(rows: DataFrame, table: SourceTable) -> DataFrame:
    """Give rows that have no key one.

    Args:
        rows: all rows of a table; its columns as texts.
        table: the table.

    Returns:
        The same rows with `_fivetran_id`: 64 hexadecimal digits that stay the same as long as the
        columns do that it is made of, under whatever names, and as long as others have no value.
    """
    names = [quoted(column.name) for column in table.columns]
    if table.distinct_by:
        return rows.selectExpr(f"{_hash(table, table.distinct_by)} AS {quoted(ROW_ID)}", *names)
    every = [column.name for column in table.columns]
    counted = rows.groupBy(*names).count().withColumnRenamed("count", _SAME)
    numbered = counted.selectExpr(*names, f"explode(sequence(1L, {_SAME})) AS {_SAME}")
    return numbered.selectExpr(f"{_hash(table, every, _SAME)} AS {quoted(ROW_ID)}", *names)


def _hash(table: SourceTable, names: Sequence[str], number: str = "1") -> str:
    """A hash over columns and a number, as SQL."""
    # By their numbers, and without nulls: another name, or a new column, changes nothing.
    cells = (
        f"{literal(str(column.number))}, {quoted(column.name)}"
        for column in table.columns
        if column.name in names
    )
    said = f"to_json(named_struct({', '.join(cells)}), map('ignoreNullFields', 'true'))"
    return f"sha2(concat_ws(':', {number}, {said}), 256)"
