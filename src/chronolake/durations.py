"""Durations in configuration and flags: `30s`, `5m`, `12h`, `10d`, or ISO 8601 such as `P1M`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final, cast

from isodate import Duration, parse_duration

_SHORT: Final = re.compile(r"(\d+)([smhd])", re.ASCII)
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
#: Date to which durations are added to compare them.
_EXAMPLE: Final = datetime(2000, 1, 1)  # noqa: DTZ001 - the offset makes no difference


def iso_duration(text: str) -> timedelta | Duration:
    """Parse an ISO 8601 duration, which may be zero.

    Returns:
        A `timedelta`, or an `isodate.Duration` if it has years or months.

    Raises:
        ValueError: the text is not a duration, or the duration is too long.
        TypeError: the argument is not a string.
    """
    try:
        return cast("timedelta | Duration", parse_duration(text))
    except OverflowError as failure:
        raise ValueError(f"too long: {text}") from failure


def is_longer(length: timedelta | Duration, other: timedelta | Duration) -> bool:
    """Return whether a duration is longer than another one; months are as long as in January 2000.

    Raises:
        OverflowError, ValueError: a duration is longer than all valid years.
    """
    return bool(_EXAMPLE + length > _EXAMPLE + other)


def is_negative(length: timedelta | Duration) -> bool:
    """Return whether a duration is shorter than nothing, such as -P1D."""
    try:
        return is_longer(timedelta(), length)
    except (OverflowError, ValueError):
        return str(length).startswith("-")


def length_of(text: str) -> timedelta | Duration:
    """Parse a positive duration.

    Args:
        text: a number of seconds, minutes, hours or days such as `5m`, or an ISO 8601 duration.

    Returns:
        A `timedelta`, or an `isodate.Duration` if it has years or months: the length of those
            depends on the day that it is added to.

    Raises:
        ValueError: the text is not a duration, or the duration is zero, negative or too long.
    """
    try:
        if short := _SHORT.fullmatch(text):
            length: timedelta | Duration = timedelta(**{_UNITS[short[2]]: int(short[1])})
        else:
            length = iso_duration(text)
        is_positive = is_longer(length, timedelta())
    except (OverflowError, TypeError, ValueError) as failure:
        raise ValueError(_REFUSED) from failure
    if not is_positive:
        raise ValueError(_REFUSED)
    return length


def seconds_of(text: str) -> float:
    """Return a duration in seconds, as `in_seconds` does.

    Raises:
        ValueError: the text is not a duration, as for `length_of`.
    """
    try:
        return in_seconds(length_of(text))
    except (OverflowError, ValueError) as failure:
        raise ValueError(_REFUSED) from failure


def in_seconds(length: timedelta | Duration) -> float:
    """Return the seconds of a duration; months and years are as long as the next ones.

    Raises:
        OverflowError, ValueError: the duration would end after the last valid year.
    """
    if isinstance(length, Duration):
        length = length.totimedelta(start=datetime.now(UTC))
    return float(length.total_seconds())


_REFUSED: Final = (
    "write a duration such as 30s, 5m, 12h or 10d, or an ISO 8601 duration such as P10D"
)
