"""Keyset pagination: the order of a table's records, and the cursor where a page ends.

Records are ordered by their key columns, nulls first, each in the natural order of its type: texts
and bytes by their bytes, NaN after all numbers, both zeros equal. Rows of a table without a key are
ordered by their place in its files, so that none is lost between two pages.

Key completion returns the existing values that begin with a typed text.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from decimal import Decimal
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronolake.errors import UnknownColumnError, ValueRefusedError
from chronolake.formatting import Cell, cells
from chronolake.inspect.catalog import CatalogTable, look_up
from chronolake.inspect.history import NUMBERS, equal_to
from chronolake.inspect.scan import FILE, ROW, StoredRows
from chronolake.types import Column, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.expressions.literals import Literal

    from chronolake.config import LakeConfig
    from chronolake.types import TableName


#: The values by which a record is ordered.
Position: TypeAlias = tuple[Any, ...]

_PLACE: Final = (FILE, ROW)
_MAX_CURSOR_LENGTH: Final = 1_000_000


@dataclass(frozen=True)
class Order:
    """An order of a table's rows.

    Attributes:
        columns: the columns to order by.
        by_place: whether rows with equal values are ordered by their places.
    """

    table: TableName
    columns: tuple[Column, ...]
    by_place: bool = True

    @property
    def names(self) -> list[str]:
        """Return the names of the columns that `of` returns."""
        return [f"by{number}" for number in range(len(self.columns))] + (
            list(_PLACE) if self.by_place else []
        )

    @property
    def comparable_types(self) -> list[pa.DataType]:
        """Return the types of the columns that `of` returns."""
        kinds = [comparable_type(column.type.arrow) for column in self.columns]
        return kinds + [pa.int64()] * (len(self.names) - len(kinds))

    @property
    def fingerprint(self) -> str:
        """Return a short text that identifies the order."""
        identity = repr((str(self.table), self.columns, self.by_place))
        return blake2b(identity.encode(), digest_size=6).hexdigest()

    def of(self, rows: pa.Table) -> pa.Table:
        """Return the values to order by, in columns whose natural order is the wanted one.

        Args:
            rows: rows with the columns of the order, and their places.
        """
        columns = [to_comparable(rows[column.name]) for column in self.columns]
        columns += [rows[name] for name in _PLACE] if self.by_place else []
        return pa.table(columns, self.names)

    def indices(self, keys: pa.Table) -> pa.Array:
        """Return the indexes that sort rows returned by `of`."""
        return pc.sort_indices(
            keys,
            sort_keys=[(name, "ascending", "at_start") for name in self.names],
        )

    def are_after(self, keys: pa.Table, position: Position) -> NDArray[np.bool_]:
        """Return flags of the rows returned by `of` that follow a position."""
        after = np.zeros(keys.num_rows, np.bool_)
        equal = np.ones(keys.num_rows, np.bool_)
        for name, value in zip(self.names, position, strict=True):
            column = keys[name]
            if value is None:
                after |= equal & _mask(column.is_valid())
                equal &= _mask(column.is_null())
            else:
                scalar = pa.scalar(value, column.type)
                after |= equal & _mask(pc.greater(column, scalar))
                equal &= _mask(pc.equal(column, scalar))
        return after

    def position(self, keys: pa.Table, row: int) -> Position:
        """Return the position of one of the rows returned by `of`."""
        return tuple(keys[name][row].as_py() for name in self.names)


class FirstRows:
    """The first rows in an order among batches of rows; only these are kept in memory."""

    def __init__(self, order: Order, count: int) -> None:
        self._order = order
        self._count = count
        self.keys: pa.Table | None = None

    def add(self, keys: pa.Table) -> None:
        """Add more rows, as returned by `Order.of`."""
        if self.is_full and self.keys is not None:
            keys = keys.filter(_may_precede(keys, self.keys))
            if not keys.num_rows:
                return
        if self.keys is not None:
            keys = pa.concat_tables([self.keys, keys])
        self.keys = keys.take(self._order.indices(keys)[: self._count]).combine_chunks()

    @property
    def is_full(self) -> bool:
        """Return whether enough rows are kept: only smaller ones are still relevant."""
        return self.keys is not None and self.keys.num_rows == self._count


def _may_precede(keys: pa.Table, kept: pa.Table) -> pa.ChunkedArray:
    """Return flags of rows that may precede the last kept one, by their first column."""
    name = keys.column_names[0]
    last = kept[name][-1]
    if not last.is_valid:
        return keys[name].is_null()
    return pc.fill_null(pc.less_equal(keys[name], last), True)


def to_comparable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert values to a type that Arrow compares and sorts in the wanted order."""
    kind = values.type
    if pa.types.is_floating(kind):
        return pa.chunked_array([_sortable_floats(chunk) for chunk in values.chunks], pa.int64())
    if pa.types.is_boolean(kind):
        return values.cast(pa.int8())
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return values.cast(pa.int64())
    return values.cast(pa.int32()) if pa.types.is_date32(kind) else values


def comparable_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that `to_comparable` returns for values of a type."""
    return to_comparable(pa.chunked_array([], kind)).type


def at_least(column: Column, value: Any) -> BooleanExpression | None:
    """Return a filter for values not less than a comparable one; None if statistics cannot help."""
    from pyiceberg.expressions import GreaterThanOrEqual  # noqa: PLC0415 - slow to import

    literal = _literal(column, value)
    return None if literal is None else GreaterThanOrEqual(column.name, literal)


def at_most(column: Column, value: Any) -> BooleanExpression | None:
    """Return a filter for values up to a comparable one; None if statistics cannot help."""
    from pyiceberg.expressions import IsNull, LessThanOrEqual, Or  # noqa: PLC0415 - slow to import

    if value is None:
        return IsNull(column.name)
    literal = _literal(column, value)
    if literal is None:
        return None
    return Or(LessThanOrEqual(column.name, literal), IsNull(column.name))


def _literal(column: Column, value: Any) -> Literal[Any] | None:
    from pyiceberg.expressions.literals import LongLiteral, literal  # noqa: PLC0415 - slow to import

    kind = column.type.kind
    if value is None or kind in {Kind.BOOLEAN, Kind.FLOAT, Kind.DOUBLE}:
        return None
    # Integers, times in microseconds and days since 1970 are all of this kind.
    return LongLiteral(value) if isinstance(value, int) else literal(value)


def _sortable_floats(values: pa.Array) -> pa.Array:
    """Convert floats to integers of the same order, based on their bits."""
    numbers = np.asarray(values.cast(pa.float64()).fill_null(0.0)).copy()
    numbers[numbers == 0] = 0.0  # positive and negative zero
    numbers[np.isnan(numbers)] = np.nan  # all bit patterns of NaN
    bits = numbers.view(np.int64)
    ordered = np.where(bits < 0, bits ^ np.int64(0x7FFF_FFFF_FFFF_FFFF), bits)
    return pa.array(ordered, mask=np.asarray(values.is_null()))


def _mask(values: pa.ChunkedArray) -> NDArray[np.bool_]:
    return np.asarray(pc.fill_null(values, False))


def encode_cursor(order: Order, position: Position) -> str:
    """Return a position as a text for URLs."""
    values = [order.fingerprint, *(_to_json(value) for value in position)]
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _to_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value) if isinstance(value, Decimal) else value


def decode_cursor(order: Order, text: str) -> Position:
    """Return the position of a text that `encode_cursor` returned.

    Raises:
        ValueRefusedError: the text is not a cursor of this order.
    """
    try:
        values = _decode(text, order.fingerprint)
        return tuple(
            _from_json(value, kind)
            for value, kind in zip(values, order.comparable_types, strict=True)
        )
    except (ValueError, TypeError, ArithmeticError, RecursionError, binascii.Error) as failure:
        raise ValueRefusedError(
            "The cursor is not valid for this table.",
            hint="Start with the first page.",
            table=str(order.table),
        ) from failure


def _decode(text: str, fingerprint: str) -> list[Any]:
    if len(text) > _MAX_CURSOR_LENGTH:
        raise ValueError
    padded = text + "=" * (-len(text) % 4)
    values = json.loads(base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True))
    if not isinstance(values, list) or values[:1] != [fingerprint]:
        raise TypeError
    return values[1:]


def _from_json(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_integer(kind):
        if type(value) is not int:
            raise TypeError
        return pa.scalar(value, kind).as_py()
    if not isinstance(value, str):
        raise TypeError
    if pa.types.is_binary(kind):
        return base64.b64decode(value, validate=True)
    if pa.types.is_decimal(kind):
        return pa.scalar(Decimal(value), kind).as_py()
    return pa.scalar(value, kind).as_py()


_TEXTS: Final = {Kind.STRING, Kind.XML, Kind.JSON, Kind.NAIVE_TIME}
_LAST_CHARACTER: Final = 0x10_FFFF


def complete_key(
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
    prefix = typed.get(column) or ""
    if wanted.type.kind in NUMBERS:
        prefix = prefix.strip()
    if prefix and wanted.type.kind in _TEXTS:
        condition = And(condition, _has_prefix(column, prefix))
    return _read_values(found, wanted, condition, prefix, limit)


def _key_column(table: CatalogTable, name: str) -> Column:
    columns = {column.name: column for column in table.columns}
    # A table of another engine has no declared key: any columns may be requested.
    key = table.key or tuple(columns)
    if name not in columns or name not in key:
        raise UnknownColumnError(
            "The table's key has no such column.",
            hint=f"The key is {', '.join(key)}.",
            table=str(table.name),
            column=name,
        )
    return columns[name]


def _has_prefix(column: str, prefix: str) -> BooleanExpression:
    """Return a filter for texts with a prefix, as a range that statistics of row groups can use."""
    from pyiceberg.expressions import (  # noqa: PLC0415 - slow to import
        And,
        GreaterThanOrEqual,
        LessThan,
        StartsWith,
    )
    from pyiceberg.expressions.literals import literal  # noqa: PLC0415 - slow to import

    condition = And(
        StartsWith(column, literal(prefix)), GreaterThanOrEqual(column, literal(prefix))
    )
    following = ord(prefix[-1]) + 1
    if following <= _LAST_CHARACTER and not 0xD800 <= following <= 0xDFFF:  # noqa: PLR2004 - surrogates
        condition = And(condition, LessThan(column, literal(prefix[:-1] + chr(following))))
    return condition


def _read_values(
    table: CatalogTable, column: Column, condition: BooleanExpression, prefix: str, limit: int
) -> list[Cell]:
    order = Order(table.name, (column,), by_place=False)
    first_rows = FirstRows(order, limit)
    # Contains the values in addition to the comparable values.
    kept: pa.Table | None = None
    for rows in StoredRows(table).batches([column.name], condition):
        values = _drop_duplicates(rows.drop_columns([FILE, ROW])[0])
        keys = pa.table([to_comparable(values), values], ["by0", "value"])
        if first_rows.is_full and first_rows.keys is not None:
            keys = keys.filter(pc.less(keys["by0"], first_rows.keys["by0"][-1]))
        keys = _filter_prefix(keys, column, prefix)
        if kept is not None:
            seen = pc.is_in(keys["by0"], value_set=kept["by0"].combine_chunks())
            keys = keys.filter(pc.invert(seen))
        if keys.num_rows:
            first_rows.add(keys)
            kept = first_rows.keys
    return [] if kept is None else cells(kept["value"])


def _drop_duplicates(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the distinct values: both zeros are one value, and so are all NaN."""
    keys = to_comparable(values)
    numbers = pa.array(np.arange(len(values)))
    firsts = (
        pa.table([keys, numbers], ["key", "number"])
        .group_by("key", use_threads=False)
        .aggregate([("number", "min")])
    )
    return values.take(firsts["number_min"])


def _filter_prefix(keys: pa.Table, column: Column, prefix: str) -> pa.Table:
    """Return the values whose text has a prefix."""
    if not prefix or not keys.num_rows:
        return keys
    if column.type.kind in _TEXTS:
        return keys.filter(pc.starts_with(keys["value"], prefix))
    if pa.types.is_integer(keys["value"].type):
        return keys.filter(pc.starts_with(keys["value"].cast(pa.string()), prefix))
    texts = [_text(cell) for cell in cells(keys["value"])]
    return keys.filter(pa.array([text.startswith(prefix) for text in texts]))


def _text(cell: Cell) -> str:
    return str(cell).lower() if isinstance(cell, bool) else str(cell)
