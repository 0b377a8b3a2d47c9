"""Intervals of time: how what is missing is cut into slices, and what is known of those read.

Source: `seeds/incremental-syncs.txt`. Nothing here reads anything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

from isodate import Duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

Gap: TypeAlias = timedelta | Duration
#: Where nothing tells how fine the times of an API are, intervals this far apart are one.
_NEIGHBOURS = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Interval:
    """What has been read: from `start` to `end`, both inclusive.

    Attributes:
        latest: the time of the latest record in it, or where it ended when that record was beyond;
            None: there was none. It may be later than the end of one that was cut short.
    """

    start: datetime
    end: datetime
    latest: datetime | None = None


@dataclass(frozen=True)
class Span:
    """What is to be read: from `start`, inclusive, to `end`.

    Attributes:
        is_last: whether nothing follows: then the end is inclusive. Otherwise what follows begins
            there.
    """

    start: datetime
    end: datetime
    is_last: bool


@dataclass(frozen=True)
class Cutting:
    """How spans are cut into slices.

    Attributes:
        step: how long a slice is; None: as long as its span.
        granularity: the smallest step of the API's times, which keeps slices from overlapping;
            None: neighbours share a bound.
        is_strict: whether the API refuses slices that begin where they end.
        clamp: moves a bound up to the begin of a period.
    """

    step: Gap | None = None
    granularity: Gap | None = None
    is_strict: bool = False
    clamp: Callable[[datetime], datetime] = lambda at: at

    @property
    def grain(self) -> Gap | None:
        """The granularity; None where neighbours share a bound."""
        return self.granularity or None

    def slices(self, span: Span) -> Iterator[tuple[datetime, datetime]]:
        """The bounds of the slices of a span, both inclusive, in increasing order.

        Where a slice would end exactly at the end of the last span, that moment is a slice of its
        own, as the document's example has it.
        """
        grain = self.grain
        keeps_end = span.is_last and grain is not None and not self.is_strict
        begin = self.clamp(span.start)
        if begin > span.end or (begin == span.end and not keeps_end):
            return
        while True:
            upper = self._after(begin)
            if upper is None or (upper > span.end if keeps_end else upper >= span.end):
                yield begin, span.end if span.is_last or grain is None else span.end - grain
                return
            yield begin, upper if grain is None else upper - grain
            begin = upper

    def _after(self, begin: datetime) -> datetime | None:
        """Where the slice after one begins; None: there is none."""
        if self.step is None:
            return None
        try:
            upper = self.clamp(begin + self.step)
        except OverflowError:
            return None
        return upper if upper > begin else None

    def missing(self, spans: Iterable[Span], read: Sequence[Interval]) -> list[Span]:
        """What of some spans has not been read."""
        grain = self.grain
        left = list(spans)
        for one in self.merged(read):
            parts: list[Span] = []
            for span in left:
                if one.end < span.start or one.start > span.end:
                    parts.append(span)
                    continue
                if one.start > span.start:
                    parts.append(Span(span.start, one.start, is_last=False))
                rest = one.end if grain is None else one.end + grain
                if rest < span.end or (rest == span.end and span.is_last and grain is not None):
                    parts.append(replace(span, start=rest))
            left = parts
        return left

    def merged(self, intervals: Iterable[Interval]) -> list[Interval]:
        """The same intervals in increasing order, those without a gap between them as one."""
        grain = self.grain or _NEIGHBOURS
        found: list[Interval] = []
        for one in sorted(intervals, key=lambda one: (one.start, one.end)):
            if found and found[-1].end + grain >= one.start:
                last = found[-1]
                times = [at for at in (last.latest, one.latest) if at is not None]
                found[-1] = Interval(
                    last.start, max(last.end, one.end), max(times) if times else None
                )
            else:
                found.append(one)
        return found
