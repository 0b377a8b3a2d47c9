"""State of a stream, in our form and in the low-code form.

How far one partition of a stream has been read, and what of it a run still has to ask for.

Source: `seeds/incremental-syncs.txt`. A run that was cut off, or in which a slice failed, leaves a
plan with gaps: the next run asks for these, and for what has come since.

A stream's state: its own, which knows all that was read, and the form that other readers know.

Sources: `seeds/incremental-syncs.txt` ("Nested Streams"), `specs/airbyte-declarative.md` (2.4).
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self

import structlog

from chronolake.config import OnPartitionLimit
from chronolake.errors import ConfigurationError
from chronolake.source.declarative.cursors.datetime_cursor import Interval, Span
from chronolake.source.declarative.stream_slice import StreamSlice, key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from chronolake.source.declarative.cursors.datetime_cursor import TimeCursor


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


log = structlog.get_logger(__name__)

#: So many partitions have a state of their own.
MOST_PARTITIONS: Final = 10_000
_UNFINISHED: Final = "unfinished"
_DROPPED: Final = "partitions_dropped"
_LATEST: Final = "latest_record"
#: Dates without an offset may be so far ahead of UTC.
_TIME_ZONES: Final = timedelta(days=1)


class StreamState:
    """How far a stream with a cursor over time is, while a run reads it.

    One thread at a time may use it.
    """

    def __init__(
        self,
        cursor: TimeCursor,
        stored: Mapping[str, Any] | None,
        *,
        is_partitioned: bool,
        is_global: bool = False,
        legacy_field: str | None = None,
        stream: str = "",
        on_limit: OnPartitionLimit = OnPartitionLimit.DROP_OLDEST,
        most_partitions: int = MOST_PARTITIONS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin where a stored state ends.

        Args:
            cursor: the stream's cursor.
            stored: the state, as `as_json` or another reader has stored it; None: there is none.
            is_partitioned: whether the stream has partitions.
            is_global: whether they all have one cursor, if the state does not say otherwise.
            legacy_field: what tells partitions apart in states by their values, if the stream has
                such ones.
            stream: the stream's name, for messages.
            on_limit: what becomes of too many of them.
            most_partitions: how many are too many.
            clock: seconds, to tell how long a run takes.

        Raises:
            ConfigurationError: the stored state is none of the stream's.
        """
        self.cursor = cursor
        self.is_partitioned = is_partitioned
        self.is_global = is_global
        self.parent_state: dict[str, Any] | None = None
        self._legacy_field = legacy_field
        self._stream = stream
        self._on_limit = on_limit
        self._most = most_partitions
        self._clock = clock
        self._began = clock()
        self._end = cursor.end()
        self._progress: OrderedDict[bytes, tuple[Mapping[str, Any], Progress]] = OrderedDict()
        self._overall: datetime | None = None
        self._latest: datetime | None = None
        self._seen: datetime | None = None
        self._logged: set[str] = set()
        self._lookback_seconds = 0
        self._earlier_seconds = 0.0
        self._dropped = 0
        self._others: dict[str, Any] = {}
        self._has_moved = False
        if stored:
            self._restore(stored)
        self._idle = deque(self._progress)
        self._latest = self._overall

    @property
    def latest_known(self) -> datetime | None:
        """The latest time of a record that runs have read so far; None: there was none.

        It may be later than the state, which no record moves beyond its slice.
        """
        known = [at for at in (self._furthest, self._seen) if at is not None]
        return max(known) if known else None

    @property
    def _furthest(self) -> datetime | None:
        times = [one.latest for _, one in self._progress.values()]
        known = [at for at in (*times, self._overall, self._latest) if at is not None]
        return max(known) if known else None

    # ------------------------------------------------------------------ what was stored

    def _restore(self, stored: Mapping[str, Any]) -> None:
        reported = dict(stored)
        unfinished = reported.pop(_UNFINISHED, None)
        latest = reported.pop(_LATEST, None)
        try:
            self._seen = None if latest is None else datetime.fromisoformat(latest)
            if not self.is_partitioned:
                self._restore_plain(reported)
            else:
                self._restore_partitions(reported)
            if unfinished is not None:
                self._earlier_seconds = unfinished["seconds"]
                for partition, progress in unfinished["partitions"]:
                    found = Progress.from_json(progress)
                    self._progress[key_of(partition)] = (partition, found)
        except (KeyError, TypeError, ValueError, AttributeError) as failure:
            raise ConfigurationError(
                "The stored state is none that the stream's cursor can read.",
                hint="Re-sync the stream, or give it a state with the cursor's field and format.",
            ) from failure

    def _restore_plain(self, told: dict[str, Any]) -> None:
        cursor = self.cursor
        if told.pop("state_type", None) == "date-range":
            read = [
                Interval(start, end, min(end, latest))
                for start, end, latest in (
                    (
                        cursor.parsed(one["start"]),
                        cursor.parsed(one["end"]),
                        cursor.parsed(one.get("most_recent_cursor_value") or one["end"]),
                    )
                    for one in told.pop("slices")
                )
            ]
            progress = Progress.of_intervals(cursor, read) if read else Progress()
        else:
            value = told.pop(cursor.field, None)
            progress = Progress(None if value is None else cursor.parsed(value))
        self._others = told
        self._progress[key_of({})] = ({}, progress)

    def _restore_partitions(self, told: dict[str, Any]) -> None:
        if self._legacy_field is not None and self._is_legacy(told):
            told = {
                "states": [
                    {"partition": {self._legacy_field: name}, "cursor": cursor}
                    for name, cursor in told.items()
                ]
            }
        self.parent_state = told.get("parent_state") or None
        if "states" not in told and "state" not in told:
            # One value for all partitions.
            if self.cursor.field in told:
                self._overall = self.cursor.parsed(told[self.cursor.field])
            return
        self.is_global = bool(told.get("use_global_cursor", False))
        self._lookback_seconds = int(told.get("lookback_window") or 0)
        self._dropped = int(told.get(_DROPPED, 0))
        if overall := told.get("state"):
            self._overall = self.cursor.parsed(overall[self.cursor.field])
        for one in told.get("states", []):
            value = one["cursor"].get(self.cursor.field)
            progress = Progress(None if value is None else self.cursor.parsed(value))
            self._progress[key_of(one["partition"])] = (one["partition"], progress)

    def _is_legacy(self, told: Mapping[str, Any]) -> bool:
        """Whether a state is by the partitions' values, as older connectors have stored it."""
        return bool(told) and all(
            isinstance(one, dict) and list(one) == [self.cursor.field] for one in told.values()
        )

    # ------------------------------------------------------------------ while a run reads

    def slices(self, partition: StreamSlice) -> Iterator[StreamSlice]:
        """What has to be asked for of a partition."""
        cursor = self.cursor
        begin, end = cursor.names
        for span in self._of(partition).plan(cursor, self._end):
            for first, last in cursor.cutting.slices(span):
                yield StreamSlice(
                    partition.partition,
                    {begin: cursor.formatted(first), end: cursor.formatted(last)},
                    partition.extra_fields,
                )

    def _of(self, partition: StreamSlice) -> Progress:
        key = partition.partition_key
        if key in self._progress:
            found = self._progress[key][1]
            if self.is_global and not found.planned:
                found.value = self._shared()
            return found
        # Where some were forgotten, a partition that is not known may be one of them.
        progress = Progress(self._shared() if self.is_global or not self._dropped else None)
        self._progress[key] = (partition.partition, progress)
        self._limit()
        return progress

    def _shared(self) -> datetime | None:
        """Where a partition begins that has no state of its own.

        What came while the last run read is after its begin, at the earliest.
        """
        if self._overall is None or not self._lookback_seconds:
            return self._overall
        return self._written(self._overall - timedelta(seconds=self._lookback_seconds))

    def _written(self, at: datetime) -> datetime:
        """A time as a stored state gives it back."""
        return self.cursor.parsed(self.cursor.formatted(at))

    def _limit(self) -> None:
        if self.is_global or len(self._progress) <= self._most:
            return
        if self._on_limit is OnPartitionLimit.GLOBAL_CURSOR:
            log.warning("partitions_share_a_cursor", partitions=len(self._progress))
            self.is_global = True
            return
        # The oldest that this run has not begun, so that none is forgotten while it is read.
        while self._idle:
            oldest = self._idle.popleft()
            if not self._progress[oldest][1].planned:
                del self._progress[oldest]
                self._note_dropped()
                return

    def _note_dropped(self) -> None:
        if not self._dropped:
            log.warning("partitions_forgotten", most=self._most)
        self._dropped += 1

    def lowest(self, partition: StreamSlice) -> datetime:
        """From when on records of a partition are wanted."""
        known = self._progress.get(partition.partition_key)
        value = known[1].value if known is not None else self._shared()
        return self.cursor.before(self.cursor.start if value is None else value)

    @property
    def end(self) -> datetime:
        """Up to when records are wanted."""
        return self._end

    def note(self, one: StreamSlice, latest: datetime | None) -> None:
        """A slice has been read.

        A record may be later than its slice: a wrong time, or one that the API was not asked for.
        Nothing is known of what lies between, so it moves the state to the slice's end only.

        Args:
            one: the slice.
            latest: the time of its latest record, or None: there was none with a time.
        """
        begin, end = (self.cursor.parsed(one.cursor_slice[name]) for name in self.cursor.names)
        if latest is not None:
            self._seen = latest if self._seen is None else max(self._seen, latest)
            if latest > end:
                self._log_beyond(latest, end)
                latest = end
        known = self._progress.get(one.partition_key)
        if known is not None:
            known[1].note(self.cursor, Interval(begin, end, latest))
        if latest is not None:
            self._has_moved = True
            if self._latest is None or latest > self._latest:
                self._latest = latest

    def _log_beyond(self, latest: datetime, end: datetime) -> None:
        """Say once that records are later than their slice, and once that some are far ahead."""
        if not self.cursor.is_beyond(latest, end):
            return
        present = max(self._end, datetime.now(UTC))
        is_future = latest - present > _TIME_ZONES
        event = "records_from_the_future" if is_future else "records_beyond_their_slice"
        if event in self._logged:
            return
        self._logged.add(event)
        (log.warning if is_future else log.info)(
            event, stream=self._stream, latest=latest.isoformat(), end=end.isoformat()
        )

    def complete(self) -> None:
        """The run has read all that it wanted, of all partitions."""
        reached: list[datetime] = []
        for key, (_, progress) in list(self._progress.items()):
            if progress.planned:
                has_slices = bool(progress.read)
                progress.complete(self.cursor)
                if has_slices and progress.value is not None:
                    reached.append(progress.value)
                # What was read last is forgotten last.
                self._progress.move_to_end(key)
        if self._has_moved:
            known = reached if not self.is_global else []
            self._overall = max(known if self._latest is None else [*known, self._latest])
            self._lookback_seconds = math.ceil(self._seconds)
        self._earlier_seconds, self._began = 0.0, self._clock()
        while not self.is_global and len(self._progress) > self._most:
            self._progress.popitem(last=False)
            self._note_dropped()

    @property
    def _seconds(self) -> float:
        return self._earlier_seconds + self._clock() - self._began

    # ------------------------------------------------------------------ what is stored

    def as_json(self) -> dict[str, Any]:
        """All of it, so that a later run asks only for what is missing."""
        unfinished = [
            [partition, progress.as_json()]
            for partition, progress in self._progress.values()
            if progress.planned
        ]
        reported = self.exported()
        if unfinished:
            reported[_UNFINISHED] = {"seconds": round(self._seconds, 3), "partitions": unfinished}
        known, seen = self._furthest, self._seen
        if seen is not None and (known is None or seen > self._written(known)):
            reported[_LATEST] = seen.isoformat()
        return reported

    def exported(self) -> dict[str, Any]:
        """The state as other readers of such manifests have it."""
        cursor = self.cursor
        if not self.is_partitioned:
            (progress,) = [one for _, one in self._progress.values()] or [Progress()]
            return {**self._others, cursor.field: cursor.formatted(progress.reached(cursor))}
        reported: dict[str, Any] = {"use_global_cursor": self.is_global}
        if not self.is_global:
            reported["states"] = [
                {
                    "partition": partition,
                    "cursor": {cursor.field: cursor.formatted(progress.reached(cursor))},
                }
                for partition, progress in self._progress.values()
            ]
        if self._overall is not None:
            reported["state"] = {cursor.field: cursor.formatted(self._overall)}
        reported["lookback_window"] = self._lookback_seconds
        if self.parent_state is not None:
            reported["parent_state"] = self.parent_state
        if self._dropped:
            reported[_DROPPED] = self._dropped
        return reported
