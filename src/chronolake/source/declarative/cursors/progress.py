"""How far one partition of a stream has been read, and what of it a run still has to ask for.

Source: `seeds/incremental-syncs.txt`. A run that was cut off, or in which a slice failed, leaves a
plan with gaps: the next run asks for these, and for what has come since.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from chronolake.source.declarative.cursors.intervals import Interval, Span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chronolake.source.declarative.cursors.timing import TimeCursor


@dataclass
class Progress:
    """How far a partition is, or a stream without partitions.

    Attributes:
        value: the latest record's time when the last run that was complete ended; None: there was
            no such run, or no record.
        planned: what the runs since then wanted, if they were not complete.
        read: what they have read of it.
    """

    value: datetime | None = None
    planned: list[Span] = field(default_factory=list)
    read: list[Interval] = field(default_factory=list)

    def plan(self, cursor: TimeCursor, end: datetime) -> list[Span]:
        """Begin a run, or go on with one: what has to be asked for.

        Args:
            cursor: the stream's cursor.
            end: up to when, inclusive.
        """
        if not self.planned:
            self.planned = [Span(cursor.before(self.value or cursor.start), end, is_last=True)]
            return list(self.planned)
        wanted = self.planned[-1]
        left = cursor.cutting.missing(self.planned, self.read)
        if end > wanted.end:
            if left and left[-1].is_last:
                begin = max(wanted.start, cursor.before(left[-1].start))
                left[-1] = Span(begin, end, is_last=True)
            else:
                begin = cursor.before(self.latest or cursor.start)
                left.append(Span(begin, end, is_last=True))
            self.planned[-1] = Span(wanted.start, end, is_last=True)
        return left

    @property
    def latest(self) -> datetime | None:
        """The latest record's time, wherever it was read."""
        times = [one.latest for one in self.read if one.latest is not None]
        if self.value is not None:
            times.append(self.value)
        return max(times) if times else None

    def reached(self, cursor: TimeCursor) -> datetime:
        """The time of the latest record before which nothing is missing, as state tells it.

        Records from before the start do not move it back.
        """
        value = cursor.start if self.value is None else self.value
        base = Interval(min(cursor.start, value), max(cursor.start, value), self.value)
        first = cursor.cutting.merged([base, *self.read])[0]
        return max(first.latest or cursor.start, value)

    @classmethod
    def of_intervals(cls, cursor: TimeCursor, read: Sequence[Interval]) -> Self:
        """What another reader left, which had read these intervals at once.

        What lies between them is missing, and all from the end of the last one on.
        """
        merged = cursor.cutting.merged(read)
        last = merged.pop()
        grain = cursor.cutting.grain
        begin = cursor.before(last.end)
        left = begin if grain is None else begin - grain
        if left >= last.start:
            merged.append(replace(last, end=left))
        begin = min([cursor.start, *(one.start for one in merged)])
        return cls(None, [Span(begin, last.end, is_last=True)], merged)

    def note(self, cursor: TimeCursor, interval: Interval) -> None:
        """A slice has been read."""
        self.read = cursor.cutting.merged([*self.read, interval])

    def complete(self, cursor: TimeCursor) -> None:
        """A run has read all that it wanted."""
        self.value = max(self.latest or cursor.start, self.value or cursor.start)
        self.planned, self.read = [], []

    def as_json(self) -> dict[str, Any]:
        """What is stored of it."""
        return {
            "value": _text(self.value),
            "planned": [[_text(one.start), _text(one.end), one.is_last] for one in self.planned],
            "read": [[_text(one.start), _text(one.end), _text(one.latest)] for one in self.read],
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Self:
        """The inverse of `as_json`."""
        return cls(
            _time(told["value"]),
            [Span(_moment(start), _moment(end), last) for start, end, last in told["planned"]],
            [
                Interval(_moment(start), _moment(end), _time(latest))
                for start, end, latest in told["read"]
            ],
        )


def _text(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _time(text: str | None) -> datetime | None:
    return None if text is None else _moment(text)


def _moment(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
