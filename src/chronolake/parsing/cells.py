"""Parsing of single cells, exactly: the reference for the texts that are accepted.

The vectorized parsers in `columns` accept no text that is refused here, and return the same values.
Values have the form that PyArrow accepts for the column's type: times are integers, because
Python's own `datetime` overflows at both ends.
"""

from __future__ import annotations

import binascii
import re
from datetime import date
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from chronolake.types import LAST_MICROS, TMIN_MICROS, Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import ReadableBuffer

    from chronolake.types import ColumnType

#: A cell's value; times are microseconds or days since 1970-01-01.
Value = bool | int | float | Decimal | str

_RANGES: Final = {
    Kind.SHORT: (-(2**15), 2**15 - 1),
    Kind.INT: (-(2**31), 2**31 - 1),
    Kind.LONG: (-(2**63), 2**63 - 1),
}
_FLOAT_MAX: Final = float(np.finfo(np.float32).max)
# The largest FLOAT in the documents' own example rounds beyond the largest single-precision number.
_FLOAT_EXAMPLE_MAX: Final = 3.4028237e38
_EPOCH: Final = date(1970, 1, 1).toordinal()
FIRST_DAY: Final = date.min.toordinal() - _EPOCH
LAST_DAY: Final = date.max.toordinal() - _EPOCH
_SECOND: Final = 1_000_000
_LONGEST_NUMBER: Final = 4096
_EXACT: Final = Context(prec=100, Emax=999_999_999, Emin=-999_999_999)

_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,9})?")
_NOT_FINITE: Final = re.compile(r"nan|[+-]?inf(inity)?", re.IGNORECASE)
# Years of more than four digits: Java and ISO 8601 write them with a sign, others without.
_DAY: Final = r"(?P<year>[0-9]{4,12}|[+-][0-9]{4,12})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"
_CLOCK: Final = (
    r"(?P<hour>[0-9]{2})(:(?P<minute>[0-9]{2})(:(?P<second>[0-9]{2})"
    r"(\.(?P<fraction>[0-9]+))?)?)?"
)
_ZONE: Final = r"(?P<zone>[Zz]|[+-][0-9]{2}(:?[0-9]{2})?)?"
_DATE: Final = re.compile(_DAY)
_TIME: Final = re.compile(
    r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2})(:(?P<second>[0-9]{2})(\.(?P<fraction>[0-9]+))?)?"
)
_DATETIME: Final = re.compile(f"{_DAY}[T ]{_CLOCK}{_ZONE}")
_INFINITY: Final = re.compile(r"(?P<sign>[+-]?)infinity", re.IGNORECASE)
# The calendar repeats after this number of years, so that any year has an equivalent in Python's
# range.
_CYCLE_YEARS: Final = 400
_CYCLE_DAYS: Final = 146_097


class RefusedError(Exception):
    """A text is not a valid value of the type. Contains the reason, and never the text."""


class TooGreatError(RefusedError):
    """A text is a value of a wider type only."""


def boolean(text: str) -> bool:
    """Parse `true` or `false` in any case.

    Raises:
        RefusedError: the text is neither.
    """
    lower = text.strip().lower()
    if lower not in ("true", "false"):
        raise RefusedError("it is neither true nor false")
    return lower == "true"


def integer(text: str, kind: Kind) -> int:
    """Parse an integer within the kind's range.

    Raises:
        RefusedError: the text is not an integer, or is out of range.
    """
    text = text.strip()
    if not _INTEGER.fullmatch(text) or len(text) > _LONGEST_NUMBER:
        raise RefusedError("it is not a whole number")
    value = int(text)
    low, high = _RANGES[kind]
    if not low <= value <= high:
        raise TooGreatError(f"it is out of the range of {kind}")
    return value


def floating(text: str, kind: Kind) -> float:
    """Parse an IEEE 754 number, rounded to nearest; a finite text never becomes infinite.

    Raises:
        RefusedError: the text is not a number, or is too great.
    """
    text = text.strip()
    if _NOT_FINITE.fullmatch(text):
        return float(text)
    if not _NUMBER.fullmatch(text):
        raise RefusedError("it is not a number")
    value = float(text)
    if kind is Kind.FLOAT:
        if _FLOAT_MAX < abs(value) <= _FLOAT_EXAMPLE_MAX:
            return _FLOAT_MAX if value > 0 else -_FLOAT_MAX
        # Directly from the text: converting via a double would round twice.
        value = pa.scalar(text.removeprefix("+")).cast(pa.float32()).as_py()
    if np.isinf(value):
        raise TooGreatError(f"it is too large for {kind}")
    return value


def decimal(text: str, kind: ColumnType) -> tuple[Decimal, bool]:
    """Parse an exact decimal; also return whether digits beyond the scale were rounded (half up).

    Raises:
        RefusedError: the text is not a number, or has too many digits before the point.
    """
    text = text.strip()
    if not _NUMBER.fullmatch(text):
        raise RefusedError("it is not a number")
    precision, scale = kind.precision or 0, kind.scale or 0
    value = Decimal(text)
    if value and value.adjusted() >= precision - scale:
        raise TooGreatError(f"it has more digits before the point than {kind} can store")
    if value and value.adjusted() < -scale - 1:
        # Far below the last digit: zero, without building millions of digits first.
        return Decimal(0).scaleb(-scale), True
    kept = value.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _EXACT)
    if kept and kept.adjusted() >= precision - scale:
        raise TooGreatError(f"rounded, it has more digits before the point than {kind} can store")
    return kept, kept != value


def day(text: str) -> tuple[int, bool]:
    """Return the days since 1970-01-01, and whether the date was moved into the years 1 to 9999.

    Raises:
        RefusedError: the text is not a date `YYYY-MM-DD`, nor an infinity.
    """
    text = text.strip()
    if infinite := _INFINITY.fullmatch(text):
        return (FIRST_DAY if infinite["sign"] == "-" else LAST_DAY), True
    found = _DATE.fullmatch(text)
    if not found:
        raise RefusedError("it is not a date YYYY-MM-DD")
    days = _days(found)
    kept = min(max(days, FIRST_DAY), LAST_DAY)
    return kept, kept != days


def micros(text: str, kind: Kind) -> tuple[int, bool]:
    """Return microseconds since 1970-01-01T00:00:00Z, and whether they were moved into the range.

    The range is the years 1 to 9999. Digits beyond microseconds are truncated. A NAIVE_DATETIME may
    end in Z; an UTC_DATETIME may have no zone, or an offset. Seconds may be missing, because Java
    omits them if they are 0; minutes may be missing only before a zone.

    Raises:
        RefusedError: the text is not such a time, nor an infinity.
    """
    text = text.strip()
    if infinite := _INFINITY.fullmatch(text):
        return (TMIN_MICROS if infinite["sign"] == "-" else LAST_MICROS), True
    found = _DATETIME.fullmatch(text)
    if not found or not (found["minute"] or found["zone"]):
        raise RefusedError("it is not a time YYYY-MM-DDTHH:MM:SS")
    exact = _days(found) * 86_400 * _SECOND + _clock(found)
    zone = found["zone"]
    if zone and zone not in "Zz":
        if kind is Kind.NAIVE_DATETIME:
            raise RefusedError("it has an offset, but the column has no time zone")
        exact -= _offset(zone)
    kept = min(max(exact, TMIN_MICROS), LAST_MICROS)
    return kept, kept != exact


def lacks_seconds(text: str) -> bool:
    """Return whether a text is a time that ends with its minutes, so that it may be truncated."""
    found = _DATETIME.fullmatch(text.strip())
    return found is not None and not (found["second"] or found["zone"])


def clock(text: str) -> str:
    """Parse a time of day as `HH:MM:SS`, with up to six digits of its fraction and no final zeros.

    Equal times are therefore equal texts, also in a key.

    Raises:
        RefusedError: the text is not a time of day.
    """
    found = _TIME.fullmatch(text.strip())
    if not found:
        raise RefusedError("it is not a time HH:MM:SS")
    _clock(found)
    whole = f"{found['hour']}:{found['minute']}:{found['second'] or '00'}"
    fraction = (found["fraction"] or "")[:6].rstrip("0")
    return f"{whole}.{fraction}" if fraction else whole


def octets(text: ReadableBuffer) -> tuple[bytes, bool]:
    """Return the bytes of a Base64 text and True, or any other text unchanged and False."""
    try:
        return binascii.a2b_base64(text, strict_mode=True), True
    except binascii.Error:
        return bytes(text), False


def _days(match: re.Match[str]) -> int:
    """Return the days since 1970-01-01, for any year of the proleptic calendar."""
    year, month, number = int(match["year"]), int(match["month"]), int(match["day"])
    cycles, rest = divmod(year, _CYCLE_YEARS)
    try:
        ordinal = date(_CYCLE_YEARS + rest, month, number).toordinal()
    except ValueError:
        ordinal = -1
    if ordinal < 0:
        raise RefusedError("the day does not exist")
    return ordinal - _EPOCH + (cycles - 1) * _CYCLE_DAYS


def _clock(match: re.Match[str]) -> int:
    """Return microseconds since midnight."""
    hour, minute, second = (int(match[part] or 0) for part in ("hour", "minute", "second"))
    if hour > 23 or minute > 59 or second > 59:  # noqa: PLR2004
        raise RefusedError("the time of day does not exist")
    fraction = int((match["fraction"] or "")[:6].ljust(6, "0"))
    return ((hour * 60 + minute) * 60 + second) * _SECOND + fraction


def _offset(zone: str) -> int:
    """Return the microseconds by which a zone such as `+02:00` is ahead of UTC."""
    digits = zone[1:].replace(":", "")
    hours, minutes = int(digits[:2]), int(digits[2:] or 0)
    if hours > 23 or minutes > 59:  # noqa: PLR2004
        raise RefusedError("the offset does not exist")
    ahead = (hours * 60 + minutes) * 60 * _SECOND
    return ahead if zone[0] == "+" else -ahead


READERS: Final[dict[Kind, Callable[[str, ColumnType], tuple[Value, bool]]]] = {
    Kind.BOOLEAN: lambda text, _: (boolean(text), False),
    Kind.SHORT: lambda text, of: (integer(text, of.kind), False),
    Kind.INT: lambda text, of: (integer(text, of.kind), False),
    Kind.LONG: lambda text, of: (integer(text, of.kind), False),
    Kind.FLOAT: lambda text, of: (floating(text, of.kind), False),
    Kind.DOUBLE: lambda text, of: (floating(text, of.kind), False),
    Kind.DECIMAL: decimal,
    Kind.NAIVE_DATE: lambda text, _: day(text),
    Kind.NAIVE_DATETIME: lambda text, of: micros(text, of.kind),
    Kind.UTC_DATETIME: lambda text, of: micros(text, of.kind),
    Kind.NAIVE_TIME: lambda text, _: (clock(text), False),
}
