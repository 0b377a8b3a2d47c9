"""Decoder of row images: the rows of many events of the binary log as Arrow columns.

Source: MySQL's source documentation, "Rows_event". An event contains rows of one table, and each
row one or two images: the values before and after the change. An image is a bitmap of nulls, and
the values of the columns that are present, one after the other.

Nothing marks where a row ends, so the first rows of all events are decoded in one step, then their
second rows, and so on: each step finds where the values of one column begin and end, with numpy
over one buffer. The values themselves are converted afterwards, all of a column at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from chronolake.source.mysql.fields import log_error
from chronolake.source.mysql.table_map import LogType
from chronolake.source.mysql.texts import decimal_bytes, little_endian
from chronolake.source.relational.changes import Flags

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chronolake.source.mysql.table_map import LogColumn
    from chronolake.source.relational.changes import Bytes, Places

_T = LogType
_FIXED: Final = {
    **dict.fromkeys((_T.TINY, _T.YEAR), 1),
    _T.SHORT: 2,
    **dict.fromkeys((_T.INT24, _T.DATE, _T.TIME), 3),
    **dict.fromkeys((_T.LONG, _T.FLOAT, _T.TIMESTAMP), 4),
    **dict.fromkeys((_T.LONGLONG, _T.DOUBLE, _T.DATETIME), 8),
}
#: Bytes before the fraction of a second.
_TEMPORAL: Final = {_T.TIMESTAMP2: 4, _T.DATETIME2: 5, _T.TIME2: 3}
_LENGTH_IN_ONE_BYTE: Final = 256


@dataclass(frozen=True)
class Shape:
    """How many bytes the values of a column have.

    Attributes:
        size: the number of bytes of each value; None: a value begins with its length.
        prefix: how many bytes that length has.
    """

    size: int | None
    prefix: int = 0


def shape_of(column: LogColumn) -> Shape:
    """Return how many bytes the values of a column have in the log."""
    given = column.metadata
    if column.type in _FIXED:
        return Shape(_FIXED[column.type])
    if column.type in _TEMPORAL:
        return Shape(_TEMPORAL[column.type] + (given[0] + 1) // 2)
    match column.type:
        case _T.NEWDECIMAL:
            found = Shape(decimal_bytes(*given))
        case _T.BIT:
            found = Shape(given[1] + (given[0] > 0))
        case _T.ENUM | _T.SET:
            found = Shape(given[1])
        case _T.STRING:
            found = Shape(None, 1 if string_bytes(column) < _LENGTH_IN_ONE_BYTE else 2)
        case _T.VARCHAR | _T.VAR_STRING | _T.COMPRESSED_VARCHAR:
            length = int.from_bytes(bytes(given), "little")
            found = Shape(None, 1 if length < _LENGTH_IN_ONE_BYTE else 2)
        case _:
            # BLOB and everything that is stored like it.
            found = Shape(None, given[0])
    return found


def string_bytes(column: LogColumn) -> int:
    """Return the greatest number of bytes of a CHAR or BINARY value."""
    kind, low = column.metadata
    return low | ((kind & 0x30) ^ 0x30) << 4


@dataclass(frozen=True)
class Values:
    """The values of one column in a buffer.

    Attributes:
        starts: where each value begins, after its length.
        lengths: how many bytes it has.
        is_valid: flags of values that are not null.
        is_partial: flags of JSON values of which only the changes are in the buffer.
    """

    starts: Places
    lengths: Places
    is_valid: Flags
    is_partial: Flags

    def take(self, numbers: Places) -> Values:
        """Return the values with some numbers."""
        return Values(
            self.starts[numbers],
            self.lengths[numbers],
            self.is_valid[numbers],
            self.is_partial[numbers],
        )


@dataclass(frozen=True)
class Images:
    """The rows of some events.

    Attributes:
        events: the number of each row's event.
        images: for each image of a row, the values of the columns that are present, by column
            number.
    """

    events: Places
    images: tuple[dict[int, Values], ...]


def locate_rows(
    buffer: Bytes,
    begins: Places,
    ends: Places,
    columns: Sequence[LogColumn],
    present: Sequence[Sequence[int]],
    *,
    is_partial: bool = False,
) -> Images:
    """Find the values of all rows of some events.

    Args:
        buffer: the events, followed by at least eight bytes.
        begins: where the rows of each event begin.
        ends: where the events end.
        columns: the columns of the table of all events.
        present: for each image of a row, the numbers of the columns that it contains.
        is_partial: whether the last images may contain changes of JSON values instead of values.

    Returns:
        The rows, those of an event after those of the preceding one.

    Raises:
        SourceError: a row exceeds its event.
    """
    shapes = [shape_of(column) for column in columns]
    documents = [n for n, column in enumerate(columns) if column.type is _T.JSON]
    active = np.flatnonzero(begins < ends)
    places = begins[active]
    events: list[Places] = []
    found: list[list[list[Values]]] = [[[] for _ in numbers] for numbers in present]
    while len(active):
        events.append(active)
        limits = ends[active]
        for image, numbers in zip(found, present, strict=True):
            partial = dict[int, Flags]()
            if is_partial and image is found[-1]:
                partial, places = _partial_values(buffer, places, documents)
            nulls, places = places, places + (len(numbers) + 7) // 8
            _expect_within(places, limits)
            for bit, number in enumerate(numbers):
                is_valid = (buffer[nulls + bit // 8] >> (bit % 8) & 1) == 0
                values = _locate(*(buffer, places, shapes[number], is_valid, partial.get(number)))
                places = values.starts + values.lengths
                _expect_within(places, limits)
                image[bit].append(values)
        remains = places < limits
        active, places = active[remains], places[remains]
    numbers_of_events = np.concatenate([np.zeros(0, np.int64), *events])
    # Rows are ordered by event, and stay in their order within it.
    order = np.argsort(numbers_of_events, kind="stable")
    images = tuple(
        {
            number: _concatenate(parts).take(order)
            for number, parts in zip(numbers, image, strict=True)
        }
        for image, numbers in zip(found, present, strict=True)
    )
    return Images(numbers_of_events[order], images)


def _partial_values(
    buffer: Bytes, places: Places, documents: Sequence[int]
) -> tuple[dict[int, Flags], Places]:
    """Return which JSON values of rows are partial, by column number, and where the rows begin.

    A number before a row means whether bits follow: one for each JSON column of the table.
    """
    has_bits = (buffer[places] & 1).astype(np.bool_)
    bits = places + 1
    flags = {
        number: has_bits & (buffer[bits + bit // 8] >> (bit % 8) & 1).astype(np.bool_)
        for bit, number in enumerate(documents)
    }
    return flags, bits + np.where(has_bits, (len(documents) + 7) // 8, 0)


def _locate(
    buffer: Bytes, places: Places, shape: Shape, is_valid: Flags, is_partial: Flags | None
) -> Values:
    if is_partial is None:
        is_partial = np.zeros(len(places), np.bool_)
    if shape.size is not None:
        return Values(places, np.where(is_valid, shape.size, 0), is_valid, is_partial)
    lengths = little_endian(buffer, places, shape.prefix).astype(np.int64)
    return Values(
        np.where(is_valid, places + shape.prefix, places),
        np.where(is_valid, lengths, 0),
        is_valid,
        is_partial,
    )


def _concatenate(parts: Sequence[Values]) -> Values:
    if not parts:
        nothing, none = np.zeros(0, np.int64), np.zeros(0, np.bool_)
        return Values(nothing, nothing, none, none)
    return Values(
        np.concatenate([part.starts for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.is_valid for part in parts]),
        np.concatenate([part.is_partial for part in parts]),
    )


def _expect_within(places: Places, limits: Places) -> None:
    if (places > limits).any():
        raise log_error("a row exceeds its event")


def strings(buffer: Bytes, values: Values) -> pa.Array:
    """Return the bytes of values as an Arrow column, null where a value is null."""
    offsets = np.zeros(len(values.lengths) + 1, np.int64)
    np.cumsum(values.lengths, out=offsets[1:])
    total = int(offsets[-1])
    if total > _LONG_VALUE * max(1, len(values.lengths)):
        pieces = zip(values.starts.tolist(), values.lengths.tolist(), strict=True)
        data = pa.py_buffer(
            b"".join(buffer[start : start + length].tobytes() for start, length in pieces)
        )
    else:
        places = np.arange(total) + np.repeat(values.starts - offsets[:-1], values.lengths)
        data = pa.py_buffer(buffer[places])
    is_large = total > _GREATEST_ARRAY
    validity = pa.py_buffer(np.packbits(values.is_valid, bitorder="little"))
    return pa.Array.from_buffers(
        pa.large_binary() if is_large else pa.binary(),
        len(values.lengths),
        [validity, pa.py_buffer(offsets.astype(np.int64 if is_large else np.int32)), data],
    )


#: Values that are longer on average are copied one by one: gathering costs nine bytes for each.
_LONG_VALUE: Final = 512
_GREATEST_ARRAY: Final = 2**31 - 1
