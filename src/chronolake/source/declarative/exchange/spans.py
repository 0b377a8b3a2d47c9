"""Spans of time that a manifest spells in ISO 8601, in seconds."""

from __future__ import annotations

from chronolake.durations import in_seconds, iso_duration
from chronolake.errors import ConfigurationError


def seconds_of(text: str, where: str, *, none: bool = False) -> float:
    """The seconds of a span; months and years are as long as the next ones are.

    Args:
        text: e.g. PT1M.
        where: whose span it is, for the error.
        none: whether it may be empty.

    Raises:
        ConfigurationError: it is no span, or an empty one where it may not be.
    """
    try:
        seconds = in_seconds(iso_duration(text))
    except (ValueError, OverflowError) as error:
        raise _no_span(text, where) from error
    if seconds < 0 or (seconds == 0 and not none):
        raise _no_span(text, where)
    return seconds


def _no_span(text: str, where: str) -> ConfigurationError:
    return ConfigurationError(
        f"{text!r} of {where} is no span of time.", hint="Give one in ISO 8601, e.g. PT1M."
    )
