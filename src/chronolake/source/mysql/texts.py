"""Values of the binary log as the texts that the server prints, for whole columns at once.

Source: MySQL's source code, `log_event.cc` ("log_event_print_value") and `decimal.cc`
("bin2decimal"). All functions get one buffer, and the positions of values in it. Null values have
any position inside of the buffer; their texts are undefined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chronolake.source.relational.changes import Bytes, Places

Numbers: TypeAlias = NDArray[np.uint64]

_ZERO: Final = ord("0")
#: Nine decimal digits are stored in four bytes; fewer digits need fewer bytes.
_GROUP: Final = 9
_BYTES_OF_DIGITS: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def little_endian(buffer: Bytes, places: Places, width: int) -> Numbers:
    """Return unsigned numbers of up to eight bytes, the least byte first."""
    numbers = np.zeros(len(places), np.uint64)
    for byte in range(width):
        numbers |= buffer[places + byte].astype(np.uint64) << np.uint64(8 * byte)
    return numbers


def big_endian(buffer: Bytes, places: Places, width: int) -> Numbers:
    """Return unsigned numbers of up to eight bytes, the greatest byte first."""
    numbers = np.zeros(len(places), np.uint64)
    for byte in range(width):
        numbers = (numbers << np.uint64(8)) | buffer[places + byte].astype(np.uint64)
    return numbers


def integers(buffer: Bytes, places: Places, width: int, *, is_unsigned: bool) -> pa.Array:
    """Return integers of up to eight bytes."""
    numbers = little_endian(buffer, places, width)
    if is_unsigned:
        return pa.array(numbers).cast(pa.string())
    shift = np.uint64(64 - 8 * width)
    signed = (numbers << shift).view(np.int64) >> shift.astype(np.int64)
    return pa.array(signed).cast(pa.string())


def floats(buffer: Bytes, places: Places, width: int) -> pa.Array:
    """Return floating-point numbers; those of four bytes as the doubles that they are."""
    numbers = little_endian(buffer, places, width)
    if width == np.dtype(np.float32).itemsize:
        values = numbers.astype(np.uint32).view(np.float32).astype(np.float64)
    else:
        values = numbers.view(np.float64)
    return pa.array(values).cast(pa.string())


def bits(buffer: Bytes, places: Places, width: int) -> pa.Array:
    """Return bit values as unsigned numbers."""
    return pa.array(big_endian(buffer, places, width)).cast(pa.string())


def years(buffer: Bytes, places: Places) -> pa.Array:
    """Return years; the year 0 is stored as 0, others as their distance from 1900."""
    stored = buffer[places].astype(np.int64)
    return _fixed([(np.where(stored == 0, 0, stored + 1900), 4)])


def dates(buffer: Bytes, places: Places) -> pa.Array:
    """Return dates, of which any part may be zero."""
    stored = little_endian(buffer, places, 3).astype(np.int64)
    return _fixed([(stored >> 9, 4), "-", (stored >> 5 & 15, 2), "-", (stored & 31, 2)])


def datetimes(buffer: Bytes, places: Places, digits: int) -> pa.Array:
    """Return dates and times (`DATETIME2`), of which any part may be zero.

    Args:
        digits: the number of fractional digits.
    """
    stored = big_endian(buffer, places, 5).astype(np.int64) - 0x80_0000_0000
    year_month, day, seconds = stored >> 22, stored >> 17 & 31, stored & 0x1FFFF
    return _fixed(
        [
            *((year_month // 13, 4), "-", (year_month % 13, 2), "-", (day, 2), " "),
            *_clock(seconds >> 12, seconds >> 6 & 63, seconds & 63),
            *_fraction(_fractions(buffer, places + 5, digits), digits),
        ]
    )


def timestamps(buffer: Bytes, places: Places, digits: int) -> pa.Array:
    """Return points in time (`TIMESTAMP2`) as dates and times in UTC; 0 is the zero date."""
    seconds = big_endian(buffer, places, 4).astype(np.int64)
    fractions = _fractions(buffer, places + 4, digits)
    is_zero = (seconds == 0) & (fractions == 0)
    days, rest = seconds // 86_400, seconds % 86_400
    date = (np.datetime64("1970-01-01") + days).astype("datetime64[D]")
    months = date.astype("datetime64[M]")
    year = months.astype("datetime64[Y]").astype(np.int64) + 1970
    month = months.astype(np.int64) % 12 + 1
    day = (date - months.astype("datetime64[D]")).astype(np.int64) + 1
    parts = [np.where(is_zero, 0, part) for part in (year, month, day)]
    return _fixed(
        [
            *((parts[0], 4), "-", (parts[1], 2), "-", (parts[2], 2), " "),
            *_clock(rest // 3600, rest // 60 % 60, rest % 60),
            *_fraction(fractions, digits),
        ]
    )


def times(buffer: Bytes, places: Places, digits: int) -> pa.Array:
    """Return durations (`TIME2`), which may be negative and have up to three digits of hours."""
    width = 3 + (digits + 1) // 2
    stored = big_endian(buffer, places, width).astype(np.int64) - (1 << (8 * width - 1))
    is_negative = stored < 0
    stored = np.abs(stored)
    shift = 8 * (width - 3)
    fractions = _unscaled(stored & ((1 << shift) - 1), digits)
    clock = stored >> shift
    hours = clock >> 12 & 0x3FF
    rest = _fixed(
        [
            *_clock(hours % 100, clock >> 6 & 63, clock & 63),
            *_fraction(fractions, digits),
        ]
    )
    hundreds = pa.array(hours // 100).cast(pa.string())
    hundreds = pc.if_else(pc.equal(hundreds, "0"), "", hundreds)
    return pc.binary_join_element_wise(
        pc.if_else(pa.array(is_negative), "-", ""), hundreds, rest, ""
    )


def decimals(buffer: Bytes, places: Places, precision: int, scale: int) -> pa.Array:
    """Return decimals as texts with all digits of their scale."""
    integral = precision - scale
    groups = [integral % _GROUP, *[_GROUP] * (integral // _GROUP)]
    groups += [*[_GROUP] * (scale // _GROUP), scale % _GROUP]
    # The highest bit is set in numbers that are not negative; the bytes of others are inverted.
    is_negative = (buffer[places] & 0x80) == 0
    mask = np.where(is_negative, np.uint64(0xFFFF_FFFF), np.uint64(0))
    parts: list[Bytes] = []
    place = places
    for digits in groups:
        width = _BYTES_OF_DIGITS[digits]
        if not width:
            continue
        stored = big_endian(buffer, place, width)
        if place is places:
            stored ^= np.uint64(0x80 << (8 * (width - 1)))
        stored = (stored ^ mask) & np.uint64((1 << (8 * width)) - 1)
        parts.append(_digits(stored.astype(np.int64), digits))
        place = place + width
    matrix = np.hstack(parts) if parts else np.zeros((len(places), 0), np.uint8)
    whole = pc.utf8_ltrim(_joined(matrix[:, :integral]), "0")
    whole = pc.if_else(pc.equal(whole, ""), "0", whole)
    signed = pc.binary_join_element_wise(pc.if_else(pa.array(is_negative), "-", ""), whole, "")
    if not scale:
        return signed
    return pc.binary_join_element_wise(signed, _joined(matrix[:, integral:]), ".")


def decimal_bytes(precision: int, scale: int) -> int:
    """Return how many bytes a decimal has."""
    return sum(
        digits // _GROUP * 4 + _BYTES_OF_DIGITS[digits % _GROUP]
        for digits in (precision - scale, scale)
    )


def _clock(hours: Places, minutes: Places, seconds: Places) -> list[tuple[Places, int] | str]:
    return [(hours, 2), ":", (minutes, 2), ":", (seconds, 2)]


def _fractions(buffer: Bytes, places: Places, digits: int) -> Places:
    """Return stored fractions of seconds, in units of the last digit."""
    width = (digits + 1) // 2
    return _unscaled(big_endian(buffer, places, width).astype(np.int64), digits)


def _unscaled(stored: Places, digits: int) -> Places:
    # An odd number of digits is stored with one more.
    return stored // 10 if digits % 2 else stored


def _fraction(fractions: Places, digits: int) -> list[tuple[Places, int] | str]:
    return [".", (fractions, digits)] if digits else []


def _fixed(parts: Sequence[tuple[Places, int] | str]) -> pa.Array:
    """Return texts of numbers with a fixed number of digits, and characters between them."""
    count = next(len(part[0]) for part in parts if not isinstance(part, str))
    columns = [
        np.full((count, 1), ord(part), np.uint8) if isinstance(part, str) else _digits(*part)
        for part in parts
    ]
    return _joined(np.hstack(columns))


def _digits(numbers: Places, count: int) -> Bytes:
    """Return the decimal digits of numbers, one row for each number."""
    powers = 10 ** np.arange(count - 1, -1, -1, dtype=np.int64)
    digits: Bytes = (numbers[:, np.newaxis] // powers % 10 + _ZERO).astype(np.uint8)
    return digits


def _joined(rows: Bytes) -> pa.Array:
    """Return a text for each row of characters."""
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1]
    data = pa.py_buffer(np.ascontiguousarray(rows))
    return pa.StringArray.from_buffers(len(rows), pa.py_buffer(offsets), data)
