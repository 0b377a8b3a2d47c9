"""The condition of a query for single records, or for a slice of a table.

The server compares a text with a number as floating-point numbers, which makes different values
equal. So each value is written in the form that its column's type has in SQL.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from chronolake.errors import SourceError
from chronolake.source.mysql.connection import quoted
from chronolake.source.relational.single_rows import expect_columns

if TYPE_CHECKING:
    from chronolake.source.mysql.catalog import SourceTable
    from chronolake.source.mysql.columns import SourceColumn
    from chronolake.source.protocol import Where

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_BYTES: Final = re.compile(r"(?:[0-9A-Fa-f]{2})*")
_NUMERIC: Final = frozenset(
    {
        *("tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "bit", "year"),
        *("float", "double"),
    }
)
#: A column with one bit has these values in the lake.
_FLAGS: Final = {"true": "1", "false": "0"}


def condition_of(table: SourceTable, where: Where) -> str:
    """Return a condition, as SQL, that the matching rows of a table meet.

    Args:
        table: the table.
        where: the records; values of binary columns are in hexadecimal.

    Raises:
        SourceError: `where` names a column that the table does not have, or a value is not one of
            the column's type.
    """
    columns = {column.name: column for column in table.columns}
    expect_columns(table.stream, columns, where)
    found: dict[tuple[str, ...], dict[tuple[str, ...], None]] = {}
    for record in where:
        values = tuple(_literal(table, columns[name], text) for name, text in record.items())
        found.setdefault(tuple(record), {})[values] = None
    return " OR ".join(
        f"({', '.join(map(quoted, names))}) IN ({', '.join(map(_row, rows))})"
        for names, rows in found.items()
    )


def _row(values: tuple[str, ...]) -> str:
    return f"({', '.join(values)})"


def _literal(table: SourceTable, column: SourceColumn, text: str) -> str:
    if column.base in _NUMERIC:
        number = _FLAGS.get(text, text) if column.form == "bit(1)" else text
        if _NUMBER.fullmatch(number) is None:
            raise _value_error(table, column, text, "a number")
        return number
    if column.form == "binary":
        if _BYTES.fullmatch(text) is None:
            raise _value_error(table, column, text, "bytes in hexadecimal")
        return f"x'{text}'"
    return f"_utf8mb4 x'{text.encode().hex()}'"


def _value_error(table: SourceTable, column: SourceColumn, text: str, what: str) -> SourceError:
    return SourceError(
        f"{text!r} is not a value of the column {column.name} of {table.stream}.",
        hint=f"Give {what}.",
    )
