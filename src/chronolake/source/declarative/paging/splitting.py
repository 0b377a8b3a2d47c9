"""Slices that are too long for the API: they are read in halves."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from chronolake.durations import iso_duration
from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.exchange.verdicts import Action
from chronolake.source.declarative.paging.rereading import actions_of
from chronolake.source.declarative.streamslice import StreamSlice

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from chronolake.source.declarative.cursors.timing import TimeCursor
    from chronolake.source.declarative.language.streams import SimpleRetriever

#: A slice is halved so many times.
_DEEPEST: Final = 10
#: The least that each part of a format can tell apart, the finest first.
_FINEST: Final = (
    (("%epoch_microseconds", "%s_as_float", "%f"), timedelta(microseconds=1)),
    (("%_ms", "%ms"), timedelta(milliseconds=1)),
    (("%S", "%s"), timedelta(seconds=1)),
    (("%M",), timedelta(minutes=1)),
    (("%H", "%I"), timedelta(hours=1)),
    (("%d",), timedelta(days=1)),
)


@dataclass(frozen=True)
class Splitting:
    """How the slices of a stream are halved.

    Attributes:
        cursor: the stream's.
        shortest: slices up to this length are not; None: only those of one moment are not.
        advice: what to do if the API refuses the smallest ones, too.
    """

    cursor: TimeCursor
    shortest: timedelta | None
    advice: str | None

    def halves(self, one: StreamSlice, depth: int, refusal: SourceError) -> list[StreamSlice]:
        """The two halves of a slice.

        Args:
            one: the slice.
            depth: how often a longer one has been halved for it.
            refusal: why.

        Raises:
            SourceError: it cannot be halved.
        """
        begin, end = self.cursor.names
        first, last = (self.cursor.parsed(one.cursor_slice[name]) for name in (begin, end))
        middle = None if depth >= _DEEPEST else self._middle(first, last)
        if middle is None:
            raise SourceError(
                f"The API refuses a slice that cannot be made smaller. {refusal.message}",
                hint=self.advice or refusal.hint,
            ) from refusal
        return [
            StreamSlice(
                one.partition,
                {
                    **one.cursor_slice,
                    begin: self.cursor.formatted(lower),
                    end: self.cursor.formatted(upper),
                },
                one.extra_fields,
            )
            for lower, upper in ((first, middle[0]), (middle[1], last))
        ]

    def _middle(self, first: datetime, last: datetime) -> tuple[datetime, datetime] | None:
        """Where the first half ends, and where the second one begins."""
        grain = self.cursor.cutting.granularity
        if first >= last or (self.shortest is not None and last - first <= self.shortest):
            return None
        if not isinstance(grain, timedelta):
            return None
        half = ((last - first) // grain + 1) // 2
        upper = first + half * grain - grain
        return (upper, upper + grain) if half else None


def splitting_of(retriever: SimpleRetriever, cursor: TimeCursor | None) -> Splitting | None:
    """How a retriever's slices are halved; None: they are not.

    Raises:
        ConfigurationError: what it says of that does not go together.
    """
    model = retriever.request_window_splitting
    if model is None:
        if Action.SPLIT_REQUEST_WINDOW in actions_of(retriever.requester.error_handler):
            raise ConfigurationError(
                "An error handler says SPLIT_REQUEST_WINDOW, and the retriever has no "
                "request_window_splitting.",
                hint="Give the retriever a request_window_splitting.",
            )
        return None
    for reason in _obstacles(retriever, cursor):
        raise ConfigurationError(
            f"A request_window_splitting does not go together with {reason}.",
            hint="It needs a DatetimeBasedCursor with `step` and `cursor_granularity`.",
        )
    if cursor is None:
        return None
    return Splitting(cursor, _shortest(model.min_split_window), model.failure_message)


def _obstacles(retriever: SimpleRetriever, cursor: TimeCursor | None) -> Iterator[str]:
    if cursor is None or not cursor.cutting.granularity:
        yield "a stream without a cursor_granularity"
        return
    if cursor.is_filtered_here:
        yield "is_client_side_incremental: the API does not know the slice"
    if retriever.properties is not None:
        yield "properties that are asked for in chunks"
    grain = cursor.cutting.granularity
    finest = next((gap for parts, gap in _FINEST if any(map(cursor.format.count, parts))), None)
    if finest is not None and isinstance(grain, timedelta) and grain < finest:
        yield "a cursor_granularity that the datetime_format cannot write"


def _shortest(text: str | None) -> timedelta | None:
    if not text:
        return None
    try:
        found = iso_duration(text)
    except ValueError:
        found = timedelta(0)
    if not isinstance(found, timedelta) or found <= timedelta(0):
        raise ConfigurationError(
            f"The min_split_window {text!r} is no fixed span of time.",
            hint="Give days, hours, minutes or seconds in ISO 8601, e.g. P1D.",
        )
    return found
