"""Columns of Arrow tables that a source yields, in the column types of the lake."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from chronolake import exact_json
from chronolake.landing.encoding import texts_of
from chronolake.types import MAX_PRECISION, ColumnType, Kind

#: The column type for each type of Arrow that has the same values.
_ARROW: Final = {
    pa.bool_(): Kind.BOOLEAN,
    pa.int8(): Kind.SHORT,
    pa.int16(): Kind.SHORT,
    pa.uint8(): Kind.SHORT,
    pa.int32(): Kind.INT,
    pa.uint16(): Kind.INT,
    pa.int64(): Kind.LONG,
    pa.uint32(): Kind.LONG,
    pa.float16(): Kind.FLOAT,
    pa.float32(): Kind.FLOAT,
    pa.float64(): Kind.DOUBLE,
    pa.date32(): Kind.NAIVE_DATE,
    pa.date64(): Kind.NAIVE_DATE,
    pa.binary(): Kind.BINARY,
    pa.large_binary(): Kind.BINARY,
    pa.binary_view(): Kind.BINARY,
}


def type_of_arrow(type_: pa.DataType) -> ColumnType | None:
    """Return the type for values of an Arrow type; None if they are all null."""
    is_ = pa.types
    if is_.is_null(type_):
        return None
    if is_.is_dictionary(type_):
        return type_of_arrow(type_.value_type)
    if is_.is_decimal(type_) and type_.scale >= 0 and type_.precision <= MAX_PRECISION:
        return ColumnType(Kind.DECIMAL, type_.precision, type_.scale)
    if type_ == pa.uint64():
        return ColumnType(Kind.DECIMAL, 20, 0)
    return ColumnType(_kind_of(type_))


def _kind_of(type_: pa.DataType) -> Kind:
    is_ = pa.types
    if is_.is_timestamp(type_):
        return Kind.NAIVE_DATETIME if type_.tz is None else Kind.UTC_DATETIME
    if is_.is_time(type_):
        return Kind.NAIVE_TIME
    if is_.is_nested(type_):
        return Kind.JSON
    if is_.is_fixed_size_binary(type_):
        return Kind.BINARY
    return _ARROW.get(type_, Kind.STRING)


def from_arrow(values: pa.Array, given: ColumnType, kind: ColumnType) -> pa.Array:
    """Return Arrow values in a type that holds them; parts of a microsecond are cut off.

    Args:
        values: the values.
        given: their own type (`type_of_arrow`).
        kind: the same type or a wider one.
    """
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if given.kind is Kind.JSON:
        texts = [None if value is None else exact_json.dumps(value) for value in values.to_pylist()]
        return widen(pa.array(texts, pa.binary()).cast(pa.string()), given, kind)
    own = values.cast(given.arrow, safe=False) if values.type != given.arrow else values
    return widen(own, given, kind)


def widen(values: pa.Array, given: ColumnType, kind: ColumnType) -> pa.Array:
    """Return a column's values in a type that holds them.

    Args:
        values: the values, with the Arrow type of `given`.
        given: their own type.
        kind: the same type or a wider one.
    """
    if kind == given:
        return values
    if kind.kind is Kind.STRING:
        return texts_of(values, given.kind)
    return values.cast(kind.arrow)
