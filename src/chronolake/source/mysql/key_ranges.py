"""Ranges of a table's key, which are read in parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from chronolake.source.mysql.connection import execute, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pymysql

    from chronolake.source.mysql.catalog import SourceTable

#: The maximum number of rows of a range.
ROWS: Final = 200_000
#: About how many bytes a range has, if the server's estimate of the size of rows is right.
RANGE_BYTES: Final = 64 * 2**20
#: Types of which the server orders values as it compares them with a constant.
_ORDERED: Final = frozenset(
    {
        *("tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "date", "datetime"),
        *("timestamp", "time", "year", "char", "varchar", "binary", "varbinary"),
    }
)
_BYTES: Final = frozenset({"binary", "varbinary"})
_TEXTS: Final = frozenset({"char", "varchar"})
_TIMES: Final = frozenset({"date", "datetime", "timestamp", "time"})


def key_ranges(connection: pymysql.Connection[Any], table: SourceTable) -> Iterator[str]:
    """Yield conditions, as SQL, of which each row of a table meets exactly one.

    A row that is added while the table is read meets one, too.

    Args:
        connection: a connection to the server.
        table: the table; without a key, all of its rows are one range.

    Raises:
        SourceError: the table cannot be read.
    """
    types = _types(connection, table)
    name = quoted(table.schema, table.name)
    if not types or any(kind not in _ORDERED for kind in types.values()):
        yield "TRUE"
        return
    cells = ", ".join(_literal(column, kind) for column, kind in types.items())
    order = ", ".join(quoted(column) for column in types)
    place = f"ORDER BY {order} LIMIT 1 OFFSET {_rows_of_range(connection, table) - 1}"
    after = "TRUE"
    while True:
        rows = execute(connection, f"SELECT {cells} FROM {name} WHERE {after} {place}")
        if not rows:
            yield after
            return
        bound = list(zip(types, map(str, rows[0]), strict=True))
        yield f"{after} AND {_compare(bound, '<', is_equal=True)}"
        after = _compare(bound, ">", is_equal=False)


def _rows_of_range(connection: pymysql.Connection[Any], table: SourceTable) -> int:
    found = execute(
        connection,
        "SELECT AVG_ROW_LENGTH FROM information_schema.TABLES "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        (table.schema, table.name),
    )
    row_bytes = int(found[0][0] or 0) if found else 0
    return max(1, min(ROWS, RANGE_BYTES // max(1, row_bytes)))


def _types(connection: pymysql.Connection[Any], table: SourceTable) -> dict[str, str]:
    rows = execute(
        connection,
        "SELECT COLUMN_NAME, DATA_TYPE FROM information_schema.COLUMNS "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        (table.schema, table.name),
    )
    types = {name: kind.lower() for name, kind in rows}
    return {name: types[name] for name in table.log_key}


def _literal(column: str, kind: str) -> str:
    """Return an expression for the text with which SQL writes a value of a column."""
    name = quoted(column)
    if kind in _BYTES:
        return f"CONCAT('x''', HEX({name}), '''')"
    if kind in _TEXTS:
        converted = f"HEX(CONVERT({name} USING utf8mb4))"
        return f"CONCAT('_utf8mb4 x''', {converted}, '''')"
    # A number is not compared with a text: both would be rounded.
    return f"QUOTE({name})" if kind in _TIMES else f"CAST({name} AS CHAR)"


def _compare(bound: Sequence[tuple[str, str]], operator: str, *, is_equal: bool) -> str:
    """Return a condition for keys before or after one, in the form for which an index is used."""
    (name, value), *rest = bound
    column = quoted(name)
    if not rest:
        return f"{column} {operator}{'=' if is_equal else ''} {value}"
    inner = _compare(rest, operator, is_equal=is_equal)
    return f"({column} {operator}= {value} AND ({column} {operator} {value} OR {inner}))"
