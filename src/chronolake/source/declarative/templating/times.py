"""Parsing and formatting of times in a manifest's formats, and of ISO 8601 durations.

A format is either one of strptime and strftime, or one of four that are used alone: `%s` (seconds
since 1970), `%s_as_float`, `%ms` and `%epoch_microseconds`. `%_ms` in a format is a fraction with
three digits when printed, and with one to six digits when parsed. A format whose time ends with an
offset in digits (`+02:00`) has that offset. A time without an offset is in UTC.

Durations are converted to seconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from functools import lru_cache, partial

from chronolake.durations import in_seconds, iso_duration
from chronolake.errors import ConfigurationError

Value = str | int | float
_Read = Callable[[Value], int | None]

_SECOND = 1_000_000
_MINUTE = 60 * _SECOND
_DAY = 24 * 60 * _MINUTE
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Microseconds in one unit of the formats that count integer units since 1970.
_UNITS = {"%s": _SECOND, "%ms": 1000, "%epoch_microseconds": 1}
_DATE_LENGTH = 10
_LONGEST_FORMAT = 1_000
#: Field widths with three or more digits.
_PADDED = re.compile(r"%[-_0^#+EO]*\d{3}")
_DASHES = 2  # in a date
_KEPT = 20_000  # days in half a century
_MILLISECONDS = re.compile("%(%|_ms)")
#: A directive with its flags; the group is its letter.
_DIRECTIVE = re.compile(r"%[-_0^#EO]?(.?)", re.DOTALL)
#: The directives that contain the year; a format needs one of them.
_YEARS = frozenset("cCDFgGsxyY+")
#: The directives that contain the hour, and those that distinguish a.m. from p.m.
_HOURS = frozenset("HIklTRXcrs+")
_HALVES = frozenset("pPcrX")
_WRITTEN = frozenset("aAbBcCdDeFfgGhHIjklmMnpPrRsStTuUVwWxXyYzZ%")
_LAYOUT = re.compile(r"%Y-%m-%d(?:([T ])%H:%M:%S(\.(?:%f|%_ms))?(Z|%z|[+-]\d\d:?\d\d)?)?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_OFFSET = re.compile(r"([+-])([01]\d|2[0-3]):?([0-5]\d)", re.ASCII)
_PRINTS_OFFSET = re.compile(r"%[-_0^#EO:]*([z%])")
#: An offset in digits after a time of day, which is a directive or in digits itself.
_FIXED_OFFSET = re.compile(
    r"(?:%[HMSfIpTRX]|%_ms|:\d\d)(?:\.\d+)?([+-])([01]\d|2[0-3]):?([0-5]\d)(?!\d)", re.ASCII
)


def parse_time(value: Value, format: str) -> datetime:  # noqa: A002
    """Parse a value in a format and return the time with its offset.

    Raises:
        ValueError: the value does not match the format, or the format is invalid.
    """
    try:
        if unit := _UNITS.get(format):
            return _EPOCH + timedelta(microseconds=unit * int(value))
        if format == "%s_as_float":
            return datetime.fromtimestamp(float(value), tz=UTC)
        plain = _MILLISECONDS.sub(_any_fraction, format) if "%_ms" in format else format
        raise_if_too_long(plain)
        moment = datetime.strptime(str(value), plain)  # noqa: DTZ007 - the offset is set below
    except (ValueError, TypeError, OverflowError, OSError, re.error):
        # The value may come from a record, and messages must not contain values of records.
        raise ValueError(f"The time does not match the format {format!r}.") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=fixed_offset(format))


@lru_cache(maxsize=256)
def fixed_offset(format: str) -> timezone:  # noqa: A002
    """Return the offset that a format contains in digits, or UTC if it contains no offset."""
    found = _FIXED_OFFSET.search(format)
    if found is None:
        return UTC
    offset = timedelta(hours=int(found[2]), minutes=int(found[3]))
    return timezone(-offset if found[1] == "-" else offset) if offset else UTC


@lru_cache(maxsize=256)
def _prints_offset(format: str) -> bool:  # noqa: A002
    return any(found[1] == "z" for found in _PRINTS_OFFSET.finditer(format))


@lru_cache(maxsize=256)
def has_time_zone(format: str) -> bool:  # noqa: A002
    """Return whether a time in a format is known to be in UTC, or at a certain offset from it."""
    if format in _UNITS or format == "%s_as_float" or _prints_offset(format):
        return True
    if any(name in format for name in ("Z", "UTC", "GMT", "%s")):
        return True
    return _FIXED_OFFSET.search(format) is not None


def raise_if_invalid_format(format: str, *, is_read: bool) -> None:  # noqa: A002
    """Raise ValueError if a format is invalid.

    `is_read` means that times are parsed with the format. More directives are allowed for printing.

    Raises:
        ValueError: the format has no year, minutes without hours, hours of half a day, an unknown
            directive, or one directive twice.
    """
    if format in _UNITS or format == "%s_as_float":
        return
    _raise_if_incomplete({found[1] for found in _DIRECTIVE.finditer(format)})
    plain = _MILLISECONDS.sub(_any_fraction, format)
    raise_if_too_long(plain)
    if not is_read:
        for found in _DIRECTIVE.finditer(plain):
            if found[1] not in _WRITTEN:
                raise ValueError(f"the directive {found[0]} does not exist")
        return
    try:
        datetime.strptime("", plain)  # noqa: DTZ007 - only the format is of interest
    except re.error as failure:
        raise ValueError("it contains a directive twice") from failure
    except ValueError as failure:
        reported = str(failure)
        if "bad directive" in reported:
            raise ValueError(
                f"the directive %{reported[1:].partition(chr(39))[0]} does not exist"
            ) from failure
        if "stray %" in reported:
            raise ValueError("it ends with a single %") from failure


def _raise_if_incomplete(letters: set[str]) -> None:
    """Raise ValueError if the directives with these letters need others to denote a time."""
    if not letters & _YEARS:
        raise ValueError("it does not contain the year, as %Y does")
    if "M" in letters and not letters & _HOURS:
        raise ValueError("it contains the minute (%M) and no hour; the month is %m")
    if "I" in letters and not letters & _HALVES:
        raise ValueError("it contains hours up to 12 (%I) without %p; hours up to 23 are %H")


def parse_time_by(value: Value, formats: Sequence[str]) -> datetime:
    """Parse a value in the first format that it matches.

    Raises:
        ValueError: the value matches none of the formats.
    """
    for format_ in formats:
        try:
            return parse_time(value, format_)
        except ValueError:
            continue
    raise ValueError(f"The time matches none of the formats {', '.join(map(repr, formats))}.")


def format_time(value: datetime, format: str) -> str:  # noqa: A002
    """Format a time in its own offset, not in UTC; fractions of the format's unit are truncated."""
    moment = value if value.tzinfo else value.replace(tzinfo=UTC)
    if unit := _UNITS.get(format):
        micros = micros_of(moment)
        return str(micros // unit if micros >= 0 else -(-micros // unit))
    if format == "%s_as_float":
        return str(moment.timestamp())
    if "%_ms" in format:
        digits = f"{moment.microsecond // 1000:03d}"
        format = _MILLISECONDS.sub(  # noqa: A001
            lambda found: digits if found[1] == "_ms" else found[0], format
        )
    return format_with_strftime(moment, format)


def format_with_strftime(moment: date, format: str) -> str:  # noqa: A002
    """Format a time or a date with strftime.

    Raises:
        ValueError: the format is too long, or pads too widely (`%999Y` prints 999 characters).
    """
    raise_if_too_long(format)
    return moment.strftime(format)


@lru_cache(maxsize=256)
def raise_if_too_long(format: str) -> None:  # noqa: A002
    """Raise ValueError if a format would print a long string.

    Raises:
        ValueError: the format has more than 1,000 characters, or a width of three digits.
    """
    if len(format) > _LONGEST_FORMAT:
        raise ValueError("it is longer than 1,000 characters")
    if _PADDED.search(format):
        raise ValueError("it pads too widely")


def format_exactly(value: datetime, format: str) -> str:  # noqa: A002
    """Format a time so that `parse_time` returns the same time, except for truncated fractions.

    A format that prints the time's own offset keeps its time zone. For any other format, the time
    is converted to the offset that the format contains in digits, or to UTC, because its readers
    cannot know another offset.
    """
    if _prints_offset(format) or value.tzinfo is None:
        return format_time(value, format)
    try:
        return format_time(value.astimezone(fixed_offset(format)), format)
    except OverflowError:
        bounds = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
        return format_time(bounds[value.year > 1], format)


def micros_of(moment: datetime) -> int:
    """Return the exact microseconds since 1970 of a time with an offset."""
    return _micros(moment - _EPOCH)


class Reader:
    """A parser of one field's times, optimized for values that are similar to each other.

    It returns the times of `parse_time_by`, in microseconds since 1970.
    """

    def __init__(self, formats: Sequence[str]) -> None:
        self._reads = tuple(_create_parser(format_) for format_ in formats)
        # One attribute for both, so that threads never combine a value with another value's result.
        self._last: tuple[str, int | None] = ("", self._read(""))

    def micros(self, value: object) -> int | None:
        """Return a value's time in microseconds since 1970, or None if it matches no format."""
        last, known = self._last
        if isinstance(value, str):
            if value == last:
                return known
            known = self._read(value)
            self._last = (value, known)
            return known
        return self._read(value) if isinstance(value, int | float) else None

    def _read(self, value: Value) -> int | None:
        for read in self._reads:
            micros = read(value)
            if micros is not None:
                return micros
        return None


def _any_fraction(match: re.Match[str]) -> str:
    return "%f" if match[1] == "_ms" else match[0]


def _micros(since: timedelta) -> int:
    return (since.days * 86_400 + since.seconds) * _SECOND + since.microseconds


_EARLIEST = _micros(datetime.min.replace(tzinfo=UTC) - _EPOCH)
_LATEST = _micros(datetime.max.replace(tzinfo=UTC) - _EPOCH)


@lru_cache(maxsize=256)
def _create_parser(format: str) -> _Read:  # noqa: A002
    # Every slice parses times, and the tables of a format take a millisecond to build.
    if unit := _UNITS.get(format):
        return _create_number_parser(unit)
    known = _LAYOUT.fullmatch(format)
    if known is None:
        return lambda value: _parse_slowly(value, format)
    separator, fraction, suffix = known.groups(default="")
    if not separator:
        return partial(_read_date, format)
    return _create_time_parser(_Layout(format, separator, fraction=bool(fraction), suffix=suffix))


def _create_number_parser(unit: int) -> _Read:
    def read(value: Value) -> int | None:
        try:
            micros = unit * int(value)
        except (ValueError, OverflowError):
            return None
        return micros if _EARLIEST <= micros <= _LATEST else None

    return read


def _parse_slowly(value: Value, format: str) -> int | None:  # noqa: A002
    try:
        return micros_of(parse_time(value, format))
    except ValueError:
        return None


class _Days(dict[str, int]):
    """A cache of microseconds since 1970 by date with all digits; other strings raise KeyError."""

    def __missing__(self, text: str) -> int:
        if not _DATE.fullmatch(text):
            raise KeyError(text)
        try:
            day = date.fromisoformat(text)
        except ValueError:
            raise KeyError(text) from None
        if len(self) >= _KEPT:
            self.clear()
        self[text] = micros = (day - _EPOCH.date()).days * _DAY
        return micros


class _Offsets(dict[str, int]):
    """A cache of microseconds east of UTC by offset; strings in other forms raise KeyError."""

    def __missing__(self, text: str) -> int:
        found = _OFFSET.fullmatch(text)
        if found is None:
            raise KeyError(text)
        micros = (int(found[2]) * 60 + int(found[3])) * _MINUTE
        self[text] = micros = -micros if found[1] == "-" else micros
        return micros


_days = _Days()
_offsets = _Offsets({"Z": 0})


def _read_date(format: str, value: Value) -> int | None:  # noqa: A002
    text = str(value)
    try:
        return _days[text]
    except KeyError:
        return None if len(text) > _DATE_LENGTH else _parse_slowly(text, format)


@dataclass(frozen=True, slots=True)
class _Layout:
    """A common format: a date and a time, optionally with a fraction and an offset."""

    format: str
    separator: str
    fraction: bool
    suffix: str

    def refuses(self, text: str) -> bool:
        """Return whether the text lacks a required character, or has one that cannot match."""
        if ("T" in text or "t" in text) != (self.separator == "T"):
            return True
        end = text[-1:]
        if self.suffix == "%z":
            if end != "Z":
                return not (end.isdecimal() and ("+" in text or text.count("-") > _DASHES))
            # Only an offset in digits may have a fraction of its own.
            return not self.fraction and "." in text
        if self.suffix == "Z":
            return end not in {"Z", "z"} or "+" in text
        signed = "+" in text and not self.suffix.startswith("+")
        return signed or not (text.endswith(self.suffix) and end.isdecimal())


def _create_time_parser(layout: _Layout) -> _Read:
    """Return a function that parses strings of a layout with lookup tables, the fastest way.

    The tables contain the parts that have all their digits; strptime accepts each of them. All
    other strings ("2024-1-1") are parsed by strptime, unless they cannot match whatever their
    digits are.
    """
    quickly = (
        _create_fast_fraction_parser(layout) if layout.fraction else _create_fast_parser(layout)
    )
    dotless = not layout.fraction and layout.suffix != "%z"

    def read(value: Value) -> int | None:
        text = value if isinstance(value, str) else str(value)
        if dotless if "." in text else layout.fraction:
            return None
        try:
            return quickly(text)
        except (KeyError, ValueError):
            return None if layout.refuses(text) else _parse_slowly(text, layout.format)

    return read


def _create_fast_parser(layout: _Layout) -> Callable[[str], int]:
    days, offsets, minutes = _days, _offsets, _minute_table(layout)
    if layout.suffix == "%z":
        seconds = _second_table("")
        return lambda text: (
            days[text[:10]] + minutes[text[10:16]] + seconds[text[16:19]] - offsets[text[19:]]
        )
    ends = _second_table(layout.suffix)
    offset = _fixed_micros(layout.format)
    return lambda text: days[text[:10]] + minutes[text[10:16]] + ends[text[16:]] - offset


def _fixed_micros(format: str) -> int:  # noqa: A002
    return _micros(fixed_offset(format).utcoffset(None))


def _create_fast_fraction_parser(layout: _Layout) -> Callable[[str], int]:
    days, minutes, seconds = _days, _minute_table(layout), _second_table(".")
    offsets: dict[str, int] = (
        _offsets if layout.suffix == "%z" else {layout.suffix: _fixed_micros(layout.format)}
    )
    size = None if layout.suffix == "%z" else len(layout.suffix)

    def quickly(text: str) -> int:
        end = len(text) - (_offset_length(text) if size is None else size)
        digits = text[20:end]
        if not (digits.isdecimal() and digits.isascii()):
            raise KeyError(text)
        return (
            days[text[:10]]
            + minutes[text[10:16]]
            + seconds[text[16:20]]
            + int(digits) * _FRACTIONS[len(digits)]
            - offsets[text[end:]]
        )

    return quickly


def _offset_length(text: str) -> int:
    if text.endswith("Z"):
        return 1
    return 6 if text[-3:-2] == ":" else 5


#: The microseconds in a unit of the last of N fractional digits.
_FRACTIONS = {digits: int("1".ljust(7 - digits, "0")) for digits in range(1, 7)}


def _minute_table(layout: _Layout) -> dict[str, int]:
    return {
        f"{layout.separator}{minute // 60:02d}:{minute % 60:02d}": minute * _MINUTE
        for minute in range(24 * 60)
    }


def _second_table(suffix: str) -> dict[str, int]:
    return {f":{second:02d}{suffix}": second * _SECOND for second in range(60)}


def seconds_of(text: str, where: str, *, none: bool = False) -> float:
    """Return the seconds of a duration. Months and years are as long as the next ones from now.

    Args:
        text: an ISO 8601 duration, for example PT1M.
        where: the option with the duration, for the error message.
        none: whether a duration of zero is allowed.

    Raises:
        ConfigurationError: the duration is invalid or negative, or zero although `none` is false.
    """
    try:
        seconds = in_seconds(iso_duration(text))
    except (ValueError, OverflowError) as error:
        raise _duration_error(text, where) from error
    if seconds < 0 or (seconds == 0 and not none):
        raise _duration_error(text, where)
    return seconds


def _duration_error(text: str, where: str) -> ConfigurationError:
    return ConfigurationError(
        f"{text!r} is not a valid duration for {where}.",
        hint="Write an ISO 8601 duration, for example PT1M.",
    )
