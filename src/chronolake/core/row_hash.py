"""Row hashes, by which a table is compared with a snapshot of its source.

Source: `seeds/history-mode.txt` ("History mode and … Teleport Sync differences"). A row's hash is
stored in its column `_chronolake_hash`, so that it is versioned with the table. It covers the names
and values of the columns that are not null: after a column is added in which all rows are null, all
hashes stay valid. A table property contains the columns and types that the hashes cover. After such
a column is removed or its type changes, the table's hashes are no longer valid, and it is compared
by value.
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

#: The columns that the hashes cover, in their order, with their types, as JSON.
HASHED_PROPERTY: Final = "chronolake.hashed"


def hashed_columns(table: IcebergTable, description: TableDescription) -> tuple[Column, ...] | None:
    """Return the columns that the hashes of a table's rows cover, in their order.

    Returns:
        None if the rows have no hashes, or if the hashes cover other columns or types.
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
    """Return the value of `HASHED_PROPERTY` if all rows have hashes of these columns."""
    return orjson.dumps([(column.name, str(column.type)) for column in columns]).decode()


def hash_of(columns: Sequence[Column], value: Callable[[str], str]) -> str:
    """Return SQL for a row's hash (bigint).

    Args:
        columns: the columns that it covers, in their order.
        value: returns a column's value as SQL, by its name.
    """
    # Nulls leave the hash unchanged. A number has another hash in another type.
    parts = (
        f"IF({value(column.name)} IS NULL, NULL, {literal(column.name)}), "
        f"CAST({value(column.name)} AS {column.type.sql})"
        for column in columns
    )
    return f"xxhash64({', '.join(parts)})"
