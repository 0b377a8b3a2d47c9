"""Completion of keys: the existing values that begin with a typed text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronolake.errors import UnknownColumnError
from chronolake.formatting import Cell, cells
from chronolake.inspect.catalog import LookedUp, look_up
from chronolake.inspect.history import NUMBERS, equal_to
from chronolake.inspect.keyset import Order, Smallest, comparable
from chronolake.inspect.scan import FILE, ROW, StoredRows
from chronolake.types import Column, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.expressions import BooleanExpression

    from chronolake.config import LakeConfig
    from chronolake.types import TableName

_TEXTS: Final = {Kind.STRING, Kind.XML, Kind.JSON, Kind.NAIVE_TIME}
_LAST_LETTER: Final = 0x10_FFFF


def completions(
    config: LakeConfig,
    name: TableName,
    typed: Mapping[str, str | None],
    *,
    column: str,
    limit: int = 20,
) -> list[Cell]:
    """Return values of a key column that begin with the typed text, given the other key columns.

    All versions count, also those of deleted records. Null is never returned.

    Args:
        config: the lake.
        name: the table.
        typed: the typed texts: for `column` the beginning of the value in the format of `Cell`
            (texts unchanged, numbers and times as texts, binary values in base64); for other key
            columns the whole value, None for null. Missing columns may have any value.
        column: the column to complete.
        limit: the maximum number of values.

    Returns:
        The distinct values, sorted in the order of their type.

    Raises:
        LakeError: the lake does not exist, or cannot be read.
        TableNotFoundError: the table does not exist.
        UnknownColumnError: a column is not a key column.
        ValueRefusedError: the typed text of another column is not a valid value of its type.
    """
    from pyiceberg.expressions import And, NotNull  # noqa: PLC0415 - slow to import

    found = look_up(config, name)
    wanted = _key_column(found, column)
    condition: BooleanExpression = NotNull(column)
    for other, text in typed.items():
        _key_column(found, other)
        if other != column:
            condition = And(condition, equal_to(found, other, text))
    begin = typed.get(column) or ""
    if wanted.type.kind in NUMBERS:
        begin = begin.strip()
    if begin and wanted.type.kind in _TEXTS:
        condition = And(condition, _begins(column, begin))
    return _values(found, wanted, condition, begin, limit)


def _key_column(found: LookedUp, name: str) -> Column:
    columns = {column.name: column for column in found.columns}
    # A table of another engine has no declared key: any columns may be requested.
    key = found.key or tuple(columns)
    if name not in columns or name not in key:
        raise UnknownColumnError(
            "The table's key has no such column.",
            hint=f"The key is {', '.join(key)}.",
            table=str(found.name),
            column=name,
        )
    return columns[name]


def _begins(column: str, begin: str) -> BooleanExpression:
    """Return a filter for texts with a prefix, as a range that statistics of row groups can use."""
    from pyiceberg.expressions import (  # noqa: PLC0415 - slow to import
        And,
        GreaterThanOrEqual,
        LessThan,
        StartsWith,
    )
    from pyiceberg.expressions.literals import literal  # noqa: PLC0415 - slow to import

    condition = And(StartsWith(column, literal(begin)), GreaterThanOrEqual(column, literal(begin)))
    following = ord(begin[-1]) + 1
    if following <= _LAST_LETTER and not 0xD800 <= following <= 0xDFFF:  # noqa: PLR2004 - surrogates
        condition = And(condition, LessThan(column, literal(begin[:-1] + chr(following))))
    return condition


def _values(
    found: LookedUp, column: Column, condition: BooleanExpression, begin: str, limit: int
) -> list[Cell]:
    order = Order(found.name, (column,), by_place=False)
    smallest = Smallest(order, limit)
    # Contains the values in addition to the comparable values.
    kept: pa.Table | None = None
    for rows in StoredRows(found).batches([column.name], condition):
        values = _distinct(rows.drop_columns([FILE, ROW])[0])
        keys = pa.table([comparable(values), values], ["by0", "value"])
        if smallest.is_full and smallest.keys is not None:
            keys = keys.filter(pc.less(keys["by0"], smallest.keys["by0"][-1]))
        keys = _beginning(keys, column, begin)
        if kept is not None:
            seen = pc.is_in(keys["by0"], value_set=kept["by0"].combine_chunks())
            keys = keys.filter(pc.invert(seen))
        if keys.num_rows:
            smallest.add(keys)
            kept = smallest.keys
    return [] if kept is None else cells(kept["value"])


def _distinct(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the distinct values: both zeros are one value, and so are all NaN."""
    keys = comparable(values)
    numbers = pa.array(np.arange(len(values)))
    firsts = (
        pa.table([keys, numbers], ["key", "number"])
        .group_by("key", use_threads=False)
        .aggregate([("number", "min")])
    )
    return values.take(firsts["number_min"])


def _beginning(keys: pa.Table, column: Column, begin: str) -> pa.Table:
    """Return the values whose text has a prefix."""
    if not begin or not keys.num_rows:
        return keys
    if column.type.kind in _TEXTS:
        return keys.filter(pc.starts_with(keys["value"], begin))
    if pa.types.is_integer(keys["value"].type):
        return keys.filter(pc.starts_with(keys["value"].cast(pa.string()), begin))
    texts = [_text(cell) for cell in cells(keys["value"])]
    return keys.filter(pa.array([text.startswith(begin) for text in texts]))


def _text(cell: Cell) -> str:
    return str(cell).lower() if isinstance(cell, bool) else str(cell)
