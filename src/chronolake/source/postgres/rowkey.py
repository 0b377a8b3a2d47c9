"""What identifies a record in the lake: a table's key, or a column of its own if it has none.

`_fivetran_id` is made of the columns of a unique index that are never null, or failing that of all
that a row says. Of rows that say the same, each has a number besides: none is lost. In the log only
rows of the first kind are told apart: what the others are called depends on how many there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from chronolake.arrowrows import ArrowRows, to_spark
from chronolake.changes import RESERVED
from chronolake.source.postgres.columns import Typing
from chronolake.types import ROW_ID, Column, ColumnType, Kind, literal, quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from chronolake.source.postgres.catalog import SourceTable
    from chronolake.source.postgres.columns import SourceColumn

#: The key of tables that have none.
ROW_KEY: Final = Column(ROW_ID, ColumnType(Kind.STRING), primary_key=True)
_SAME: Final = f"{RESERVED}same"


@dataclass(frozen=True)
class RowKey:
    """What identifies a record in the lake.

    Attributes:
        columns: those that tell rows apart, in the order of their numbers, which all are known; all
            of a row's columns together if there are none.
        is_hashed: whether the lake's key is `_fivetran_id`, and not these columns themselves.
    """

    columns: tuple[SourceColumn, ...]
    is_hashed: bool

    @classmethod
    def of(cls, table: SourceTable) -> Self:
        """What identifies a record of a table as it is in the catalog."""
        names = table.key or table.distinct_by
        mine = tuple(column for column in table.columns if column.name in names)
        return cls(mine, is_hashed=not table.key)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns that tell rows apart."""
        return tuple(column.name for column in self.columns)

    def declared(self, columns: Sequence[SourceColumn], *, beyond: set[str]) -> list[Column]:
        """A table's columns as they are declared to the lake, its key included.

        Args:
            columns: the columns.
            beyond: the names of those that have values which their types cannot hold: they are
                texts.
        """
        text = ColumnType(Kind.STRING)
        key = () if self.is_hashed else self.names
        found = [
            Column(
                column.name,
                text if column.name in beyond else column.type,
                primary_key=column.name in key,
            )
            for column in columns
        ]
        return [ROW_KEY, *found] if self.is_hashed else found

    def typed(
        self,
        rows: ArrowRows,
        columns: Sequence[SourceColumn],
        wanted: Sequence[Column],
        *,
        others: str = "",
        beyond: Mapping[str, str] | None = None,
    ) -> ArrowRows:
        """Rows with values of the types that are wanted, and with their key.

        Args:
            rows: rows whose columns are texts. If nothing tells them apart: all rows of the table,
                and nothing but its columns.
            columns: the columns as the source has them.
            wanted: the same as they are `declared`.
            others: columns that stay as they are, as a Spark schema.
            beyond: as of `Typing`.

        Returns:
            The rows. `_fivetran_id` is 64 hexadecimal digits that stay the same as long as the
            columns do that it is made of, under whatever names, and as long as others have no
            value.
        """
        mine = tuple(column for column in wanted if column is not ROW_KEY)
        if not self.is_hashed:
            typing = Typing(tuple(columns), mine, others, beyond or {})
            return rows.then(typing, typing.schema)
        row_id = f"{quoted(ROW_ID)} {ROW_KEY.type.sql}"
        both = ", ".join(filter(None, [row_id, others]))
        typing = Typing(tuple(columns), mine, both, beyond or {})
        texts = to_spark(rows)
        known = (
            texts.selectExpr(_hash(self.columns), "*") if self.columns else _told(texts, columns)
        )
        return ArrowRows(known, typing, typing.schema)


def _told(texts: DataFrame, columns: Sequence[SourceColumn]) -> DataFrame:
    """Rows told apart by all that they say, and by a number if others say the same."""
    names = [quoted(column.name) for column in columns]
    counted = texts.groupBy(*names).count().withColumnRenamed("count", _SAME)
    each = counted.selectExpr(*names, f"explode(sequence(1L, {_SAME})) AS {_SAME}")
    return each.selectExpr(_hash(columns, _SAME), *names)


def _hash(columns: Sequence[SourceColumn], number: str = "1") -> str:
    """`_fivetran_id` of columns and a number, as SQL."""
    # By their numbers, and without nulls: another name, or a new column, changes nothing.
    cells = (f"{literal(str(column.number))}, {quoted(column.name)}" for column in columns)
    said = f"to_json(named_struct({', '.join(cells)}), map('ignoreNullFields', 'true'))"
    return f"sha2(concat_ws(':', {number}, {said}), 256) AS {quoted(ROW_ID)}"
