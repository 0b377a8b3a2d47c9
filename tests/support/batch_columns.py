"""Columns of change sets, as tests write and read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from chronolake.types import Column, ColumnType, Kind

Columns = dict[str, Kind | ColumnType]
Decode = Callable[..., pa.Table]


def columns_of(kinds: Columns) -> tuple[Column, ...]:
    return tuple(
        Column(name, kind if isinstance(kind, ColumnType) else ColumnType(kind))
        for name, kind in kinds.items()
    )


def values(table: pa.Table, name: str) -> list[Any]:
    """Return a column's values.

    Times are integers, because they can exceed the range of Python's datetime.
    """
    array = table[name]
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64())
    elif pa.types.is_date32(array.type):
        array = array.cast(pa.int32())
    return array.to_pylist()
