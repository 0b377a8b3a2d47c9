"""State of a stream, in Chronolake's own form and in the form of other low-code readers.

`Progress` holds the offset of one partition: the intervals that have been read, and those that a
run still has to read. A run that was interrupted, or in which a slice failed, leaves a plan with
gaps; the next run reads the gaps and everything newer.

`StreamState` holds the state of a whole stream. Its own form contains all intervals; the exported
form is the one that other readers understand.

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
    """The offset of a partition, or of a stream without partitions.

    Attributes:
        value: the latest record's time at the end of the last complete run; None: no such run, or
            no records.
        planned: the spans that later, incomplete runs planned to read.
        read: the intervals of these spans that have been read.
    """

    value: datetime | None = None
    planned: list[Span] = field(default_factory=list)
    read: list[Interval] = field(default_factory=list)

    def plan(self, cursor: TimeCursor, end: datetime) -> list[Span]:
        """Start or continue a run, and return the spans to read.

        Args:
            cursor: the stream's cursor.
            end: end of the range to read, inclusive.
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
        """Return the latest record's time in any interval."""
        times = [one.latest for one in self.read if one.latest is not None]
        if self.value is not None:
            times.append(self.value)
        return max(times) if times else None

    def reached(self, cursor: TimeCursor) -> datetime:
        """Return the time of the latest record before the first gap, for the exported state.

        Records from before the start do not move it back.
        """
        value = cursor.start if self.value is None else self.value
        base = Interval(min(cursor.start, value), max(cursor.start, value), self.value)
        first = cursor.cutting.merged([base, *self.read])[0]
        return max(first.latest or cursor.start, value)

    @classmethod
    def of_intervals(cls, cursor: TimeCursor, read: Sequence[Interval]) -> Self:
        """Return the progress for intervals that another reader stored.

        The gaps between them are missing, and everything from the end of the last one on.
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
        """Record that a slice has been read."""
        self.read = cursor.cutting.merged([*self.read, interval])

    def complete(self, cursor: TimeCursor) -> None:
        """Record that a run has read everything it planned."""
        self.value = max(self.latest or cursor.start, self.value or cursor.start)
        self.planned, self.read = [], []

    def as_json(self) -> dict[str, Any]:
        """Return the progress as JSON."""
        return {
            "value": _text(self.value),
            "planned": [[_text(one.start), _text(one.end), one.is_last] for one in self.planned],
            "read": [[_text(one.start), _text(one.end), _text(one.latest)] for one in self.read],
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Self:
        """Return the progress from JSON that `as_json` returned."""
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

#: The most partitions that have their own state.
MOST_PARTITIONS: Final = 10_000
_UNFINISHED: Final = "unfinished"
_DROPPED: Final = "partitions_dropped"
_LATEST: Final = "latest_record"
#: Dates without an offset may be ahead of UTC by this much.
_TIME_ZONES: Final = timedelta(days=1)


class StreamState:
    """State of a stream with a datetime cursor, while a run reads it; not thread-safe."""

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
        """Continue from a stored state.

        Args:
            cursor: the stream's cursor.
            stored: the state, as `as_json` or another reader has stored it, or None.
            is_partitioned: whether the stream has partitions.
            is_global: whether all partitions share one cursor; the stored state takes precedence.
            legacy_field: the key of partitions in states by partition values, if the stream has
                such states.
            stream: the stream's name, for messages.
            on_limit: what to do if there are too many partitions.
            most_partitions: the largest number of partitions with their own state.
            clock: returns seconds, to measure the duration of a run.

        Raises:
            ConfigurationError: the stored state is not valid for the stream.
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
        """Return the latest time of all records read so far, or None without records.

        It may be later than the state, because a record does not move the state beyond its slice.
        """
        known = [at for at in (self._furthest, self._seen) if at is not None]
        return max(known) if known else None

    @property
    def _furthest(self) -> datetime | None:
        times = [one.latest for _, one in self._progress.values()]
        known = [at for at in (*times, self._overall, self._latest) if at is not None]
        return max(known) if known else None

    # ------------------------------------------------------------------ restoring a stored state

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
        """Return whether a state is keyed by partition values, the format of older connectors."""
        return bool(told) and all(
            isinstance(one, dict) and list(one) == [self.cursor.field] for one in told.values()
        )

    # ------------------------------------------------------------------ updates during a run

    def slices(self, partition: StreamSlice) -> Iterator[StreamSlice]:
        """Yield the slices of a partition that have to be read."""
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
        # After some partitions were dropped, an unknown partition may be one of them.
        progress = Progress(self._shared() if self.is_global or not self._dropped else None)
        self._progress[key] = (partition.partition, progress)
        self._limit()
        return progress

    def _shared(self) -> datetime | None:
        """Return where a partition without its own state begins.

        It is moved back by the duration of the last run, because records may have been added while
        that run was reading.
        """
        if self._overall is None or not self._lookback_seconds:
            return self._overall
        return self._written(self._overall - timedelta(seconds=self._lookback_seconds))

    def _written(self, at: datetime) -> datetime:
        """Return a time as it will be after it was stored and parsed."""
        return self.cursor.parsed(self.cursor.formatted(at))

    def _limit(self) -> None:
        if self.is_global or len(self._progress) <= self._most:
            return
        if self._on_limit is OnPartitionLimit.GLOBAL_CURSOR:
            log.warning("partitions_share_a_cursor", partitions=len(self._progress))
            self.is_global = True
            return
        # Drop the oldest partition that this run has not begun, so that none is dropped during its
        # read.
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
        """Return the time from which records of a partition are wanted."""
        known = self._progress.get(partition.partition_key)
        value = known[1].value if known is not None else self._shared()
        return self.cursor.before(self.cursor.start if value is None else value)

    @property
    def end(self) -> datetime:
        """Return the time up to which records are wanted."""
        return self._end

    def note(self, one: StreamSlice, latest: datetime | None) -> None:
        """Record that a slice has been read.

        A record may be later than its slice, because its time is wrong or the API ignored the
        bounds. The range in between has not been read, so such a record moves the state only to the
        slice's end.

        Args:
            one: the slice.
            latest: the time of its latest record, or None if no record has a time.
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
        """Log once that records are later than their slice, and once that some are in future."""
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
        """Record that the run has read everything it planned, in all partitions."""
        reached: list[datetime] = []
        for key, (_, progress) in list(self._progress.items()):
            if progress.planned:
                has_slices = bool(progress.read)
                progress.complete(self.cursor)
                if has_slices and progress.value is not None:
                    reached.append(progress.value)
                # The partitions that were read last are dropped last.
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

    # ------------------------------------------------------------------ state to store

    def as_json(self) -> dict[str, Any]:
        """Return the complete state, so that a later run reads only what is missing."""
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
        """Return the state in the form that other readers of such manifests use."""
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
