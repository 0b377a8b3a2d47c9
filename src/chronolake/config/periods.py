"""How often something is done: `daily`, `weekly`, `12h`, or a duration as ISO 8601 has it."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Annotated, Final

from isodate import Duration, ISO8601Error, parse_duration
from pydantic import AfterValidator

_NAMED: Final = {"daily": "P1D", "weekly": "P7D", "monthly": "P1M"}
_NEVER: Final = "never"
_SHORT: Final = re.compile(r"(\d+)([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
#: What is done at the same time each day is never exactly a day apart.
_SLACK: Final = timedelta(hours=1)
_SLACK_PART: Final = 20


def _known(text: str) -> str:
    if text != _NEVER:
        _length_of(text)
    return text


def _length_of(text: str) -> timedelta | Duration:
    """How long a period is.

    Raises:
        ValueError: the text is no period, or one without a length.
    """
    refused = ValueError(
        f"write {', '.join(_NAMED)}, {_NEVER}, a time such as 12h or 10d, or a duration of ISO "
        "8601 such as P10D"
    )
    try:
        if short := _SHORT.fullmatch(text):
            length: timedelta | Duration = timedelta(**{_UNITS[short[2]]: int(short[1])})
        else:
            length = parse_duration(_NAMED.get(text, text))
        is_long = _EXAMPLE + length > _EXAMPLE
    except (ISO8601Error, OverflowError, ValueError):
        raise refused from None
    if not is_long:
        raise refused
    return length


#: Some day, to see whether a length of months has any.
_EXAMPLE: Final = datetime(2000, 1, 1)  # noqa: DTZ001 - the offset makes no difference

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
