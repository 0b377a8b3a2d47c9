"""Times as texts and integers: the tester's ISO texts, with 0 to 9 digits of a second.

Python's `datetime` knows neither nanoseconds nor the year 0, so times are counted here, in the
proleptic Gregorian calendar, from 1970-01-01T00:00:00Z.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Final

from chronolake.types import LAST_MICROS, TMIN_MICROS

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
    """Days since 1970-01-01 of an ISO date; any year, the year 0 included.

    Raises:
        ValueError: the text is no date.
    """
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError("not a date of the form YYYY-MM-DD")
    year, month, day = (int(part) for part in match.groups())
    # The calendar repeats every 400 years, so any year has a twin that Python can count.
    twin = _LEAP_YEARS_START + year % _YEARS
    cycles = (year - twin) // _YEARS
    return date(twin, month, day).toordinal() - _EPOCH_ORDINAL + cycles * _DAYS_PER_400_YEARS


def nanos(text: str) -> int:
    """Nanoseconds since the epoch of an ISO date-time; no zone is read as UTC.

    Raises:
        ValueError: the text is no date-time.
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
    """Microseconds since the epoch, finer digits cut off, within the years 1 to 9999.

    Raises:
        ValueError: the text is no date-time.
    """
    return min(max(nanos(text) // 1000, TMIN_MICROS), LAST_MICROS)


def date_text(count: int) -> str:
    """The ISO date that is `count` days after 1970-01-01, which must lie in the years 0 to 9999."""
    cycles, rest = divmod(
        count + _EPOCH_ORDINAL - date(_LEAP_YEARS_START, 1, 1).toordinal(), _DAYS_PER_400_YEARS
    )
    twin = date.fromordinal(date(_LEAP_YEARS_START, 1, 1).toordinal() + rest)
    return f"{twin.year + cycles * _YEARS:04d}-{twin.month:02d}-{twin.day:02d}"


def time_text(count: int, *, zone: str = "Z") -> str:
    """The ISO text of `count` nanoseconds since the epoch: 0, 3, 6 or 9 digits of a second.

    The number of digits is the smallest that loses nothing, as the vendor's tester prints times.
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
