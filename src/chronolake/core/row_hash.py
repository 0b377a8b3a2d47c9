"""Hashes of rows, by which a table is compared with a snapshot of its source.

Source: `seeds/history-mode.txt` ("History mode and … Teleport Sync differences"). A row's hash
stands beside it, in the column `_chronolake_hash`, so that it is versioned with the table. It is
made of the names and values of the columns that are not null: where a column comes that no row has
a value for, all hashes stay right. Which columns and types the hashes of a table's rows are made of
is one of its properties; where a column has gone or got another type, the table has no hashes any
more that say something, and is compared by value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from chronolake.types import HASH, literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from chronolake.description import TableDescription
    from chronolake.iceberg import IcebergTable
    from chronolake.types import Column

#: The columns that the hashes are made of, in their order, with their types, as JSON.
HASHED_PROPERTY: Final = "chronolake.hashed"


def hashed_columns(table: IcebergTable, description: TableDescription) -> tuple[Column, ...] | None:
    """The columns that the hashes of a table's rows are made of, in their order.

    Returns:
        None, if the rows have none, or have some of other columns or types.
    """
    if HASH not in description.by_name:
        return None
    reported = table.property_of(HASHED_PROPERTY)
    if reported is None:
        return None
    covered: list[tuple[str, str]] = [(name, kind) for name, kind in orjson.loads(reported)]
    stored = [description.by_name.get(name) for name, _ in covered]
    found = tuple(column for column in stored if column is not None)
    is_same = [(column.name, str(column.type)) for column in found] == covered
    return found if found and is_same else None


def property_for(columns: Iterable[Column]) -> str:
    """What `HASHED_PROPERTY` says of a table whose rows all have hashes of these columns."""
    return orjson.dumps([(column.name, str(column.type)) for column in columns]).decode()


def hash_of(columns: Sequence[Column], value: Callable[[str], str]) -> str:
    """A row's hash as SQL (bigint).

    Args:
        columns: the columns that it is made of, in their order.
        value: a column's value as SQL, by its name.
    """
    # What is null leaves such a hash as it is. A number has another hash in another type.
    parts = (
        f"IF({value(column.name)} IS NULL, NULL, {literal(column.name)}), "
        f"CAST({value(column.name)} AS {column.type.sql})"
        for column in columns
    )
    return f"xxhash64({', '.join(parts)})"
