"""Values of a column in the binary log as texts, in the form that the copy of a table has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronolake.errors import SourceError
from chronolake.source.mysql import texts
from chronolake.source.mysql.json_binary import json_text
from chronolake.source.mysql.row_images import string_bytes, strings
from chronolake.source.mysql.table_map import BINARY_COLLATION, LogType

if TYPE_CHECKING:
    from chronolake.source.mysql.row_images import Values
    from chronolake.source.mysql.table_map import LogColumn
    from chronolake.source.relational.changes import Bytes, Places

#: Converts binary values in the character set of a collation to texts.
ToUtf8: TypeAlias = Callable[[int, pa.Array], pa.Array]

_T = LogType
_INTEGERS: Final = {_T.TINY: 1, _T.SHORT: 2, _T.INT24: 3, _T.LONG: 4, _T.LONGLONG: 8}
_HEX: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)


def texts_of(buffer: Bytes, values: Values, column: LogColumn, to_utf8: ToUtf8) -> pa.Array:
    """Return the values of a column as texts; bytes as hexadecimal digits.

    Args:
        buffer: the buffer.
        values: where the values are in it.
        column: the column.
        to_utf8: converts binary values in the character set of a collation to texts.

    Raises:
        SourceError: the column's type is not supported.
    """
    if column.type is _T.JSON:
        found = strings(buffer, values).to_pylist()
        return pa.array([None if item is None else json_text(item) for item in found], pa.string())
    if column.type in _WITH_LENGTH:
        return _characters(buffer, values, column, to_utf8)
    places = np.where(values.is_valid, values.starts, 0)
    if column.type in _LABELLED:
        found = _labels(buffer, places, column, to_utf8)
    else:
        found = _printer_of(column)(buffer, places, column)
    if values.is_valid.all():
        return found
    return pc.if_else(pa.array(values.is_valid), found, pa.scalar(None, pa.string()))


_WITH_LENGTH: Final = frozenset(
    {
        *(_T.STRING, _T.VARCHAR, _T.VAR_STRING, _T.TINY_BLOB, _T.MEDIUM_BLOB, _T.LONG_BLOB),
        *(_T.BLOB, _T.GEOMETRY, _T.VECTOR),
    }
)
_LABELLED: Final = frozenset({_T.ENUM, _T.SET})


def _integers(buffer: Bytes, places: Places, column: LogColumn) -> pa.Array:
    width = _INTEGERS[column.type]
    return texts.integers(buffer, places, width, is_unsigned=column.is_unsigned)


def _bits(buffer: Bytes, places: Places, column: LogColumn) -> pa.Array:
    odd_bits, whole_bytes = column.metadata
    return texts.bits(buffer, places, whole_bytes + (odd_bits > 0))


_PRINTERS: Final[Mapping[LogType, Callable[[Bytes, Places, LogColumn], pa.Array]]] = {
    **dict.fromkeys(_INTEGERS, _integers),
    _T.FLOAT: lambda buffer, places, _: texts.floats(buffer, places, 4),
    _T.DOUBLE: lambda buffer, places, _: texts.floats(buffer, places, 8),
    _T.NEWDECIMAL: lambda buffer, places, of: texts.decimals(buffer, places, *of.metadata),
    _T.DATE: lambda buffer, places, _: texts.dates(buffer, places),
    _T.DATETIME2: lambda buffer, places, of: texts.datetimes(buffer, places, *of.metadata),
    _T.TIMESTAMP2: lambda buffer, places, of: texts.timestamps(buffer, places, *of.metadata),
    _T.TIME2: lambda buffer, places, of: texts.times(buffer, places, *of.metadata),
    _T.YEAR: lambda buffer, places, _: texts.years(buffer, places),
    _T.BIT: _bits,
}


def _printer_of(column: LogColumn) -> Callable[[Bytes, Places, LogColumn], pa.Array]:
    printer = _PRINTERS.get(column.type)
    if printer is None:
        raise SourceError(
            f"The column {column.name} has the type {column.type.name}, which is not supported.",
            hint="Dates and times have this type in tables of old versions: rebuild the table with "
            "ALTER TABLE … FORCE. Or exclude the column: columns: {exclude: [...]} in "
            "chronolake.yml.",
        )
    return printer


def _labels(buffer: Bytes, places: Places, column: LogColumn, to_utf8: ToUtf8) -> pa.Array:
    numbers = texts.little_endian(buffer, places, column.metadata[1])
    collation = BINARY_COLLATION if column.collation is None else column.collation
    labels = to_utf8(collation, pa.array(column.labels, pa.binary()))
    return (_enum if column.type is _T.ENUM else _set)(numbers, labels)


def changed_json(buffer: Bytes, old: Values, new: Values) -> pa.Array:
    """Return JSON values after changes of which some are partial.

    Args:
        buffer: the buffer.
        old: the values before the changes.
        new: the values, or the changes where they are partial.
    """
    rows = zip(strings(buffer, old).to_pylist(), strings(buffer, new).to_pylist(), strict=True)
    changed = [
        None
        if after is None
        else json_text(before or b"", after)
        if is_partial
        else json_text(after)
        for (before, after), is_partial in zip(rows, new.is_partial.tolist(), strict=True)
    ]
    return pa.array(changed, pa.string())


def _enum(numbers: texts.Numbers, labels: pa.Array) -> pa.Array:
    # 0 is the empty text that replaces a label that does not exist.
    known = pa.concat_arrays([pa.array([""]), labels.cast(pa.string())])
    return known.take(pa.array(np.minimum(numbers, len(labels))))


def _set(numbers: texts.Numbers, labels: pa.Array) -> pa.Array:
    distinct, places = np.unique(numbers, return_inverse=True)
    names = labels.to_pylist()
    found = [
        ",".join(name for bit, name in enumerate(names) if number >> bit & 1)
        for number in distinct.tolist()
    ]
    return pa.array(found, pa.string()).take(pa.array(places))


def _characters(buffer: Bytes, values: Values, column: LogColumn, to_utf8: ToUtf8) -> pa.Array:
    found = strings(buffer, values)
    is_binary = column.type in {_T.GEOMETRY, _T.VECTOR}
    if is_binary or column.collation in {None, BINARY_COLLATION}:
        if column.type is _T.STRING:
            # Zeros at the end of BINARY(n) are not in the log.
            found = _padded(found, string_bytes(column))
        return hexadecimal(found)
    return to_utf8(column.collation or 0, found)


def _padded(found: pa.Array, size: int) -> pa.Array:
    lengths = pc.binary_length(found)
    missing = pc.subtract(size, lengths)
    if pc.max(missing).as_py() in {None, 0}:
        return found
    return pc.binary_join_element_wise(
        found, pc.binary_repeat(pa.scalar(b"\0", found.type), missing), pa.scalar(b"", found.type)
    )


def hexadecimal(found: pa.Array) -> pa.Array:
    """Return the hexadecimal digits of binary values."""
    is_large = found.type == pa.large_binary()
    width = np.int64 if is_large else np.int32
    validity, offsets, data = found.buffers()
    ends = np.frombuffer(offsets, width, len(found) + 1, found.offset * width().itemsize)
    content = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]] if data else np.zeros(0, np.uint8)
    digits = np.stack([_HEX[content >> 4], _HEX[content & 15]], axis=1)
    places = pa.py_buffer((ends.astype(np.int64) - ends[0]) * 2)
    doubled = pa.Array.from_buffers(
        pa.large_string(), len(found), [validity, places, pa.py_buffer(digits.reshape(-1))]
    )
    return doubled if is_large else doubled.cast(pa.string())
