"""How often something is done: `daily`, `weekly`, `12h`, or a duration as ISO 8601 has it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import AfterValidator

from chronolake.durations import length_of

if TYPE_CHECKING:
    from isodate import Duration

_NAMED: Final = {"daily": "P1D", "weekly": "P7D", "monthly": "P1M"}
_NEVER: Final = "never"
#: What is done at the same time each day is never exactly a day apart.
_SLACK: Final = timedelta(hours=1)
_SLACK_PART: Final = 20


def _known(text: str) -> str:
    if text != _NEVER:
        _length_of(text)
    return text


def _length_of(text: str) -> timedelta | Duration:
    """Return the length of a period other than `never`.

    Raises:
        ValueError: the text is not a period.
    """
    try:
        return length_of(_NAMED.get(text, text))
    except ValueError:
        raise ValueError(
            f"write {', '.join(_NAMED)}, {_NEVER}, a time such as 12h or 10d, or a duration of "
            "ISO 8601 such as P10D"
        ) from None


#: How often something is done, in a configuration.
Period = Annotated[str, AfterValidator(_known)]


def is_never(period: str | None) -> bool:
    """Whether a period, or none, says that nothing is done."""
    return period is None or period == _NEVER


def is_due(period: str | None, last: datetime | None, now: datetime) -> bool:
    """Whether something has to be done again.

    Args:
        period: how often; None: never.
        last: when it was done last; None: it never was.
        now: the present. A little before the period has ended counts as its end, at most an hour:
            what is run once a day would come a day late otherwise.
    """
    if period is None or is_never(period):
        return False
    if last is None:
        return True
    try:
        end: datetime = last + _length_of(period)
    except (OverflowError, ValueError):
        # After the last year that there is.
        return False
    return now >= end - min(_SLACK, (end - last) / _SLACK_PART)
