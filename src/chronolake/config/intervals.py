"""Intervals of repeated work: `daily`, `weekly`, `12h`, or an ISO 8601 duration."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import AfterValidator

from chronolake.durations import length_of

if TYPE_CHECKING:
    from isodate import Duration

_NAMED: Final = {"daily": "P1D", "weekly": "P7D", "monthly": "P1M"}
_NEVER: Final = "never"
#: Tolerance, because daily runs are never exactly a day apart.
_SLACK: Final = timedelta(hours=1)
_SLACK_PART: Final = 20


def _known(text: str) -> str:
    if text != _NEVER:
        _length_of(text)
    return text


def _length_of(text: str) -> timedelta | Duration:
    """Return the length of an interval other than `never`.

    Raises:
        ValueError: the text is not a valid interval.
    """
    try:
        return length_of(_NAMED.get(text, text))
    except ValueError:
        raise ValueError(
            f"write {', '.join(_NAMED)}, {_NEVER}, a time such as 12h or 10d, or a duration of "
            "ISO 8601 such as P10D"
        ) from None


#: The interval of repeated work, in a configuration.
Period = Annotated[str, AfterValidator(_known)]


def is_never(period: str | None) -> bool:
    """Return whether an interval is missing or `never`."""
    return period is None or period == _NEVER


def is_due(period: str | None, last: datetime | None, now: datetime) -> bool:
    """Return whether repeated work is due.

    Args:
        period: the interval; None means never.
        last: when the work was last done, or None.
        now: the current time. Work is due up to an hour before the end of the interval; otherwise
            work that runs once a day would be a day late.
    """
    if period is None or is_never(period):
        return False
    if last is None:
        return True
    try:
        end: datetime = last + _length_of(period)
    except (OverflowError, ValueError):
        # After the last supported year.
        return False
    return now >= end - min(_SLACK, (end - last) / _SLACK_PART)
