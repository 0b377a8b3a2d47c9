"""Conversion of a scenario's values and times to cell texts and to stored values.

Times are ISO texts with 0 to 9 fractional digits, or integers. Python's `datetime` supports neither
nanoseconds nor the year 0, so times are computed here in the proleptic Gregorian calendar, from
1970-01-01T00:00:00Z.

The expected contents use these Python values, by the column's type:

| kind | value |
|---|---|
| BOOLEAN | bool |
| SHORT, INT, LONG | int |
| DECIMAL | Decimal, rounded half up to the column's scale |
| FLOAT, DOUBLE | float; for FLOAT the nearest single-precision number |
| NAIVE_DATE | int, days since 1970-01-01 |
| NAIVE_DATETIME, UTC_DATETIME | int, microseconds since 1970-01-01T00:00:00 |
| BINARY | bytes |
| STRING, JSON, XML, NAIVE_TIME | str |

NULL is None.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from datetime import date
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from chronolake.types import LAST_MICROS, TMIN_MICROS, Kind

if TYPE_CHECKING:
    from chronolake.tester.definition import ColumnSpec


NANOS_PER_MILLI: Final = 1_000_000
NANOS_PER_SECOND: Final = 1_000_000_000
_SECONDS_PER_DAY: Final = 86_400
_DAYS_PER_400_YEARS: Final = 146_097
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_YEARS: Final = 400
_LEAP_YEARS_START: Final = 2000  # any multiple of 400 inside Python's range
_LAST_HOUR, _LAST_MINUTE = 23, 59

_TIME = re.compile(
    r"(?P<date>[+-]?\d{4,}-\d\d-\d\d)[T ](?P<hour>\d\d):(?P<minute>\d\d)"
    r"(?::(?P<second>\d\d)(?:\.(?P<fraction>\d{1,9}))?)?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
_DATE = re.compile(r"([+-]?\d{4,})-(\d\d)-(\d\d)")


def days(text: str) -> int:
    """Return the days since 1970-01-01 of an ISO date; any year, including the year 0.

    Raises:
        ValueError: the text is not a date.
    """
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError("not a date of the form YYYY-MM-DD")
    year, month, day = (int(part) for part in match.groups())
    # The calendar repeats every 400 years, so each year has an equivalent that Python supports.
    twin = _LEAP_YEARS_START + year % _YEARS
    cycles = (year - twin) // _YEARS
    return date(twin, month, day).toordinal() - _EPOCH_ORDINAL + cycles * _DAYS_PER_400_YEARS


def nanos(text: str) -> int:
    """Return the nanoseconds since the epoch of an ISO date-time; UTC if it has no offset.

    Raises:
        ValueError: the text is not a date-time.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError("not a date-time of the form YYYY-MM-DDTHH:MM:SS.fffZ")
    hour, minute, second = (int(match[part] or 0) for part in ("hour", "minute", "second"))
    if hour > _LAST_HOUR or minute > _LAST_MINUTE or second > _LAST_MINUTE:
        raise ValueError("not a time of day")
    seconds = days(match["date"]) * _SECONDS_PER_DAY + hour * 3600 + minute * 60 + second
    zone = match["zone"]
    if zone and zone != "Z":
        offset = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        seconds -= offset if zone[0] == "+" else -offset
    return seconds * NANOS_PER_SECOND + int((match["fraction"] or "").ljust(9, "0"))


def micros(text: str) -> int:
    """Return the microseconds since the epoch, truncated, and limited to the years 1 to 9999.

    Raises:
        ValueError: the text is not a date-time.
    """
    return min(max(nanos(text) // 1000, TMIN_MICROS), LAST_MICROS)


def date_text(count: int) -> str:
    """Return the ISO date `count` days after 1970-01-01, which must be in the years 0 to 9999."""
    cycles, rest = divmod(
        count + _EPOCH_ORDINAL - date(_LEAP_YEARS_START, 1, 1).toordinal(), _DAYS_PER_400_YEARS
    )
    twin = date.fromordinal(date(_LEAP_YEARS_START, 1, 1).toordinal() + rest)
    return f"{twin.year + cycles * _YEARS:04d}-{twin.month:02d}-{twin.day:02d}"


def time_text(count: int, *, zone: str = "Z") -> str:
    """Return the ISO text of `count` nanoseconds since the epoch, with 0, 3, 6 or 9 digits.

    The number of fractional digits is the smallest that is exact, as the vendor's tester prints
    times.
    """
    seconds, fraction = divmod(count, NANOS_PER_SECOND)
    day, rest = divmod(seconds, _SECONDS_PER_DAY)
    text = f"{date_text(day)}T{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    if fraction:
        digits = f"{fraction:09d}"
        while digits.endswith("000"):
            digits = digits[:-3]
        text += f".{digits}"
    return text + zone


Value = bool | int | float | Decimal | str | bytes | None

_PLAIN_FROM, _PLAIN_BELOW = 1e-3, 1e7
_MICROS_PER_DAY: Final = 86_400_000_000
_INTEGER_BITS: Final = {Kind.SHORT: 16, Kind.INT: 32, Kind.LONG: 64}
_INTEGER = re.compile(r"[+-]?\d+")
_TIME_OF_DAY = re.compile(
    r"(?P<minutes>(?:[01]\d|2[0-3]):[0-5]\d)(?:(?P<seconds>:[0-5]\d)(?P<fraction>\.\d{1,9})?)?"
)
#: The greatest FLOAT in the documents' example, slightly above the type's maximum, which it means.
_FLOAT_EXAMPLE_MAX: Final = 3.4028237e38
_EXACT: Final = Context(
    prec=100, rounding=ROUND_HALF_UP, Emax=999_999_999, Emin=-999_999_999, traps=[]
)
_TEXTS: Final = frozenset({Kind.STRING, Kind.JSON, Kind.XML})
_NUMBERS: Final = frozenset(
    {Kind.BOOLEAN, Kind.SHORT, Kind.INT, Kind.LONG, Kind.DECIMAL, Kind.FLOAT, Kind.DOUBLE}
)
# Types whose values have the same text in every engine when converted to text.
_PLAIN_TEXT: Final = frozenset(
    {Kind.BOOLEAN, Kind.SHORT, Kind.INT, Kind.LONG, Kind.NAIVE_DATE, Kind.NAIVE_TIME, *_TEXTS}
)


def java_double(number: float) -> str:
    """Format a double as Java does.

    There is at least one fractional digit. E notation is used from 10^7 on and below 10^-3. The
    digits are the fewest that parse as the same double.
    """
    if number == 0 or not math.isfinite(number):
        special = {math.inf: "Infinity", -math.inf: "-Infinity"}
        if math.isnan(number):
            return "NaN"
        return special.get(number, "-0.0" if math.copysign(1, number) < 0 else "0.0")
    sign, digit_tuple, exponent = Decimal(repr(number)).as_tuple()
    digits = "".join(map(str, digit_tuple))
    point = len(digits) + int(exponent)
    digits = digits.rstrip("0") or "0"
    if _PLAIN_FROM <= abs(number) < _PLAIN_BELOW:
        if point <= 0:
            text = "0." + "0" * -point + digits
        else:
            text = f"{digits[:point].ljust(point, '0')}.{digits[point:] or '0'}"
    else:
        text = f"{digits[0]}.{digits[1:] or '0'}E{point - 1}"
    return "-" + text if sign else text


def cell_text(value: Any) -> str | None:
    """Return the text that the tester writes for a JSON value; None for a JSON null.

    Strings are copied unchanged, whatever the column's type; integers keep their digits; fractions
    are formatted as Java doubles; objects and arrays become compact JSON.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return java_double(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def parse_value(text: str, column: ColumnSpec) -> Value:
    """Return the value that a table stores for a cell's text.

    Times are truncated to microseconds, and dates are limited to the years 1 to 9999. Text in a
    BINARY column that is not valid Base64 means its UTF-8 bytes. An empty text is NULL, except in
    text columns.

    Raises:
        ValueError: the text does not fit the column. The message does not contain the value.
    """
    if column.kind in _TEXTS:
        return text
    if not text:
        return b"" if column.kind is Kind.BINARY else None
    if column.kind is Kind.BOOLEAN:
        if text.lower() not in {"true", "false"}:
            raise ValueError("neither true nor false")
        return text.lower() == "true"
    if column.kind in _INTEGER_BITS:
        return _parse_integer(text, column.kind)
    if column.kind in {Kind.FLOAT, Kind.DOUBLE}:
        number = float(text)
        if math.isinf(number) and "inf" not in text.lower():
            raise ValueError("too large")
        return _parse_float(number, column.kind)
    return _parse_other(text, column)


def _parse_other(text: str, column: ColumnSpec) -> Value:
    match column.kind:
        case Kind.DECIMAL:
            try:
                number = Decimal(text)
            except InvalidOperation:
                raise ValueError("not a decimal number") from None
            return fit_decimal(number, column)
        case Kind.NAIVE_DATE:
            count = days(text)
            return min(max(count, TMIN_MICROS // _MICROS_PER_DAY), LAST_MICROS // _MICROS_PER_DAY)
        case Kind.NAIVE_DATETIME | Kind.UTC_DATETIME:
            return micros(text)
        case Kind.NAIVE_TIME:
            match = _TIME_OF_DAY.fullmatch(text)
            if match is None:
                raise ValueError("not a time of the form HH:MM:SS")
            # As many digits as tables store, and one text for each time.
            fraction = (match["fraction"] or "")[:7].rstrip("0").rstrip(".")
            return f"{match['minutes']}{match['seconds'] or ':00'}{fraction}"
        case Kind.BINARY:
            try:
                return base64.b64decode(text, validate=True)
            except binascii.Error:
                return text.encode()
    raise ValueError(f"values of {column.kind} are not supported")


def _parse_integer(text: str, kind: Kind) -> int:
    if not _INTEGER.fullmatch(text):
        # `850.0` means an integer where JSON had a fraction.
        number = Decimal(text) if re.fullmatch(r"[+-]?\d+\.0+", text) else None
        if number is None:
            raise ValueError("not a whole number")
        text = str(int(number))
    value, bits = int(text), _INTEGER_BITS[kind]
    if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise ValueError(f"beyond {bits} bits")
    return value


def _parse_float(number: float, kind: Kind) -> float:
    if kind is not Kind.FLOAT or not math.isfinite(number):
        return number
    with np.errstate(over="ignore"):
        nearest = float(np.float32(number))
    if math.isfinite(nearest):
        return nearest
    if abs(number) > _FLOAT_EXAMPLE_MAX:
        raise ValueError("too large")
    return math.copysign(float(np.finfo(np.float32).max), number)


def fit_decimal(number: Decimal, column: ColumnSpec) -> Decimal:
    """Return a number rounded half up to a DECIMAL column's scale.

    Raises:
        ValueError: the number has more integer digits than the column.
    """
    if not number.is_finite():
        raise ValueError("not a finite number")
    if column.precision is None:
        return number
    digits = column.precision - (column.scale or 0)
    if not number or number.adjusted() < digits:
        rounded = number.quantize(Decimal(1).scaleb(-(column.scale or 0)), context=_EXACT)
        if not rounded or rounded.adjusted() < digits:
            return rounded
    raise ValueError(f"more digits than {column.type_name}")


def text_of(value: Value, kind: Kind) -> str:  # noqa: PLR0911 - one case per kind
    """Return the text of a value that is not NULL, as in a batch file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float):
        # A single-precision number has fewer digits than the double that contains it.
        return java_double(float(str(np.float32(value))) if kind is Kind.FLOAT else value)
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, int) and kind is Kind.NAIVE_DATE:
        return date_text(value)
    if isinstance(value, int) and kind in {Kind.NAIVE_DATETIME, Kind.UTC_DATETIME}:
        zone = "Z" if kind is Kind.UTC_DATETIME else ""
        return time_text(value * 1000, zone=zone)
    return str(value)


def cast(  # noqa: PLR0911 - one case per pair of kinds
    value: Value, old: ColumnSpec, new: ColumnSpec
) -> Value:
    """Return a stored value after its column's type was changed.

    The guides do not define most type changes. The rules are those that `docs/architecture.md`
    ("Changes of a column's type") documents.

    Raises:
        ValueError: the value does not fit the new type.
    """
    if value is None or old.kind is new.kind is not Kind.DECIMAL:
        return value
    if isinstance(value, bytes):
        if new.kind not in _TEXTS:
            raise ValueError("bytes can only become text")
        return value.decode()
    if new.kind is Kind.BINARY:
        return text_of(value, old.kind).encode()
    if new.kind in _TEXTS:
        return text_of(value, old.kind)
    if isinstance(value, str):
        if old.kind not in _TEXTS:
            raise ValueError("a time of day can only become text")
        return parse_value(value, new)
    if old.kind in _NUMBERS and new.kind in _NUMBERS:
        return _cast_number(value, new)
    if old.kind not in _NUMBERS and new.kind not in _NUMBERS and isinstance(value, int):
        return _cast_time(value, old.kind, new.kind)
    raise ValueError("numbers cannot become times")


def _cast_number(value: float | Decimal, new: ColumnSpec) -> Value:
    if new.kind in {Kind.FLOAT, Kind.DOUBLE}:
        number = _parse_float(float(value), new.kind)
        if isinstance(value, int) and number != value:
            raise ValueError("more digits than the type stores")
        return number
    if new.kind is Kind.DECIMAL:
        return fit_decimal(
            Decimal(repr(value)) if isinstance(value, float) else Decimal(value), new
        )
    if not math.isfinite(value) or int(value) != value:
        raise ValueError("not a whole number")
    if new.kind is Kind.BOOLEAN:
        if value not in {0, 1}:
            raise ValueError("neither true nor false")
        return bool(value)
    return _parse_integer(str(int(value)), new.kind)


def _cast_time(value: int, old: Kind, new: Kind) -> Value:
    if new is Kind.NAIVE_TIME:
        raise ValueError("only text can become a time of day")
    if old is Kind.NAIVE_DATE:
        return value * _MICROS_PER_DAY
    if new is not Kind.NAIVE_DATE:
        return value
    if value % _MICROS_PER_DAY:
        raise ValueError("a date has no time of day")
    return value // _MICROS_PER_DAY


def cast_is_exact(old: ColumnSpec, new: ColumnSpec) -> bool:
    """Return whether all engines agree on the values after a type change.

    They do not if numbers or times become text, because engines print them differently.
    """
    if old.kind is new.kind or new.kind not in {*_TEXTS, Kind.BINARY}:
        return True
    return old.kind in _PLAIN_TEXT or old.kind is Kind.BINARY


def to_json(value: Value, kind: Kind) -> bool | int | float | str | None:
    """Return a value as JSON: numbers and booleans unchanged, all others as in a batch file.

    LONG and DECIMAL become strings, because JSON parsers may round them, and so do numbers that
    JSON does not support (NaN, Infinity).
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else java_double(value)
    if isinstance(value, int) and kind in {Kind.SHORT, Kind.INT}:
        return value
    return text_of(value, kind)
