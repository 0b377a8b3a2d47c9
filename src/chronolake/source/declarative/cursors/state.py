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
from chronolake.source.declarative.stream_slice import StreamSlice, partition_key_of

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
            self.planned = [
                Span(cursor.with_lookback(self.value or cursor.start), end, is_last=True)
            ]
            return list(self.planned)
        last_planned = self.planned[-1]
        remaining = cursor.slice_rules.missing(self.planned, self.read)
        if end > last_planned.end:
            if remaining and remaining[-1].is_last:
                begin = max(last_planned.start, cursor.with_lookback(remaining[-1].start))
                remaining[-1] = Span(begin, end, is_last=True)
            else:
                begin = cursor.with_lookback(self.latest or cursor.start)
                remaining.append(Span(begin, end, is_last=True))
            self.planned[-1] = Span(last_planned.start, end, is_last=True)
        return remaining

    @property
    def latest(self) -> datetime | None:
        """Return the latest record's time in any interval."""
        times = [interval.latest for interval in self.read if interval.latest is not None]
        if self.value is not None:
            times.append(self.value)
        return max(times) if times else None

    def reached_time(self, cursor: TimeCursor) -> datetime:
        """Return the time of the latest record before the first gap, for the exported state.

        Records from before the start do not move it back.
        """
        value = cursor.start if self.value is None else self.value
        base = Interval(min(cursor.start, value), max(cursor.start, value), self.value)
        first = cursor.slice_rules.merge([base, *self.read])[0]
        return max(first.latest or cursor.start, value)

    @classmethod
    def of_intervals(cls, cursor: TimeCursor, read: Sequence[Interval]) -> Self:
        """Return the progress for intervals that another reader stored.

        The gaps between them are missing, and everything from the end of the last one on.
        """
        merged = cursor.slice_rules.merge(read)
        last = merged.pop()
        grain = cursor.slice_rules.grain
        begin = cursor.with_lookback(last.end)
        end = begin if grain is None else begin - grain
        if end >= last.start:
            merged.append(replace(last, end=end))
        begin = min([cursor.start, *(interval.start for interval in merged)])
        return cls(None, [Span(begin, last.end, is_last=True)], merged)

    def note(self, cursor: TimeCursor, interval: Interval) -> None:
        """Record that a slice has been read."""
        self.read = cursor.slice_rules.merge([*self.read, interval])

    def complete(self, cursor: TimeCursor) -> None:
        """Record that a run has read everything it planned."""
        self.value = max(self.latest or cursor.start, self.value or cursor.start)
        self.planned, self.read = [], []

    def as_json(self) -> dict[str, Any]:
        """Return the progress as JSON."""
        return {
            "value": _format_time(self.value),
            "planned": [
                [_format_time(span.start), _format_time(span.end), span.is_last]
                for span in self.planned
            ],
            "read": [
                [_format_time(part.start), _format_time(part.end), _format_time(part.latest)]
                for part in self.read
            ],
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Return the progress from JSON that `as_json` returned."""
        return cls(
            _parse_optional_time(stored["value"]),
            [
                Span(_parse_time(start), _parse_time(end), last)
                for start, end, last in stored["planned"]
            ],
            [
                Interval(_parse_time(start), _parse_time(end), _parse_optional_time(latest))
                for start, end, latest in stored["read"]
            ],
        )


def _format_time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _parse_optional_time(text: str | None) -> datetime | None:
    return None if text is None else _parse_time(text)


def _parse_time(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


log = structlog.get_logger(__name__)

#: The most partitions that have their own state.
MAX_PARTITIONS: Final = 10_000
_UNFINISHED: Final = "unfinished"
_DROPPED: Final = "partitions_dropped"
_LATEST: Final = "latest_record"
#: Dates without an offset may be ahead of UTC by this much.
_MAX_TIME_ZONE_OFFSET: Final = timedelta(days=1)


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
        max_partitions: int = MAX_PARTITIONS,
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
            max_partitions: the largest number of partitions with their own state.
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
        self._max_partitions = max_partitions
        self._clock = clock
        self._started = clock()
        self._end = cursor.end()
        self._progress: OrderedDict[bytes, tuple[Mapping[str, Any], Progress]] = OrderedDict()
        self._overall: datetime | None = None
        self._latest: datetime | None = None
        self._latest_seen: datetime | None = None
        self._logged: set[str] = set()
        self._lookback_seconds = 0
        self._earlier_seconds = 0.0
        self._dropped = 0
        self._others: dict[str, Any] = {}
        self._has_moved = False
        if stored:
            self._restore(stored)
        self._not_begun = deque(self._progress)
        self._latest = self._overall

    @property
    def latest_known(self) -> datetime | None:
        """Return the latest time of all records read so far, or None without records.

        It may be later than the state, because a record does not move the state beyond its slice.
        """
        times = [at for at in (self._latest_reached, self._latest_seen) if at is not None]
        return max(times) if times else None

    @property
    def _latest_reached(self) -> datetime | None:
        times = [progress.latest for _, progress in self._progress.values()]
        reached = [at for at in (*times, self._overall, self._latest) if at is not None]
        return max(reached) if reached else None

    # ------------------------------------------------------------------ restoring a stored state

    def _restore(self, stored: Mapping[str, Any]) -> None:
        state = dict(stored)
        unfinished = state.pop(_UNFINISHED, None)
        latest = state.pop(_LATEST, None)
        try:
            self._latest_seen = None if latest is None else datetime.fromisoformat(latest)
            if not self.is_partitioned:
                self._restore_plain(state)
            else:
                self._restore_partitions(state)
            if unfinished is not None:
                self._earlier_seconds = unfinished["seconds"]
                for partition, progress in unfinished["partitions"]:
                    restored = Progress.from_json(progress)
                    self._progress[partition_key_of(partition)] = (partition, restored)
        except (KeyError, TypeError, ValueError, AttributeError) as failure:
            raise ConfigurationError(
                "The stored state is not valid for the stream's cursor.",
                hint="Resync the stream, or set a state with the cursor's field and format.",
            ) from failure

    def _restore_plain(self, state: dict[str, Any]) -> None:
        cursor = self.cursor
        if state.pop("state_type", None) == "date-range":
            read = [
                Interval(start, end, min(end, latest))
                for start, end, latest in (
                    (
                        cursor.parse(interval["start"]),
                        cursor.parse(interval["end"]),
                        cursor.parse(interval.get("most_recent_cursor_value") or interval["end"]),
                    )
                    for interval in state.pop("slices")
                )
            ]
            progress = Progress.of_intervals(cursor, read) if read else Progress()
        else:
            value = state.pop(cursor.field, None)
            progress = Progress(None if value is None else cursor.parse(value))
        self._others = state
        self._progress[partition_key_of({})] = ({}, progress)

    def _restore_partitions(self, state: dict[str, Any]) -> None:
        if self._legacy_field is not None and self._is_legacy(state):
            state = {
                "states": [
                    {"partition": {self._legacy_field: name}, "cursor": cursor}
                    for name, cursor in state.items()
                ]
            }
        self.parent_state = state.get("parent_state") or None
        if "states" not in state and "state" not in state:
            # One value for all partitions.
            if self.cursor.field in state:
                self._overall = self.cursor.parse(state[self.cursor.field])
            return
        self.is_global = bool(state.get("use_global_cursor", False))
        self._lookback_seconds = int(state.get("lookback_window") or 0)
        self._dropped = int(state.get(_DROPPED, 0))
        if overall := state.get("state"):
            self._overall = self.cursor.parse(overall[self.cursor.field])
        for entry in state.get("states", []):
            value = entry["cursor"].get(self.cursor.field)
            progress = Progress(None if value is None else self.cursor.parse(value))
            self._progress[partition_key_of(entry["partition"])] = (entry["partition"], progress)

    def _is_legacy(self, state: Mapping[str, Any]) -> bool:
        """Return whether a state is keyed by partition values, the format of older connectors."""
        return bool(state) and all(
            isinstance(value, dict) and list(value) == [self.cursor.field]
            for value in state.values()
        )

    # ------------------------------------------------------------------ updates during a run

    def slices(self, partition: StreamSlice) -> Iterator[StreamSlice]:
        """Yield the slices of a partition that have to be read."""
        cursor = self.cursor
        begin, end = cursor.names
        for span in self._progress_of(partition).plan(cursor, self._end):
            for first, last in cursor.slice_rules.slices(span):
                yield StreamSlice(
                    partition.partition,
                    {begin: cursor.format_time(first), end: cursor.format_time(last)},
                    partition.extra_fields,
                )

    def _progress_of(self, partition: StreamSlice) -> Progress:
        key = partition.partition_key
        if key in self._progress:
            progress = self._progress[key][1]
            if self.is_global and not progress.planned:
                progress.value = self._shared_start()
            return progress
        # After some partitions were dropped, an unknown partition may be one of them.
        progress = Progress(self._shared_start() if self.is_global or not self._dropped else None)
        self._progress[key] = (partition.partition, progress)
        self._enforce_limit()
        return progress

    def _shared_start(self) -> datetime | None:
        """Return where a partition without its own state begins.

        It is moved back by the duration of the last run, because records may have been added while
        that run was reading.
        """
        if self._overall is None or not self._lookback_seconds:
            return self._overall
        return self._round_trip(self._overall - timedelta(seconds=self._lookback_seconds))

    def _round_trip(self, at: datetime) -> datetime:
        """Return a time as it will be after it was stored and parsed."""
        return self.cursor.parse(self.cursor.format_time(at))

    def _enforce_limit(self) -> None:
        if self.is_global or len(self._progress) <= self._max_partitions:
            return
        if self._on_limit is OnPartitionLimit.GLOBAL_CURSOR:
            log.warning("partitions_share_a_cursor", partitions=len(self._progress))
            self.is_global = True
            return
        # Drop the oldest partition that this run has not begun, so that none is dropped during its
        # read.
        while self._not_begun:
            oldest = self._not_begun.popleft()
            if not self._progress[oldest][1].planned:
                del self._progress[oldest]
                self._note_dropped()
                return

    def _note_dropped(self) -> None:
        if not self._dropped:
            log.warning("partitions_forgotten", most=self._max_partitions)
        self._dropped += 1

    def lower_bound(self, partition: StreamSlice) -> datetime:
        """Return the time from which records of a partition are wanted."""
        known = self._progress.get(partition.partition_key)
        value = known[1].value if known is not None else self._shared_start()
        return self.cursor.with_lookback(self.cursor.start if value is None else value)

    @property
    def end(self) -> datetime:
        """Return the time up to which records are wanted."""
        return self._end

    def note(self, stream_slice: StreamSlice, latest: datetime | None) -> None:
        """Record that a slice has been read.

        A record may be later than its slice, because its time is wrong or the API ignored the
        bounds. The range in between has not been read, so such a record moves the state only to the
        slice's end.

        Args:
            latest: the time of its latest record, or None if no record has a time.
        """
        begin, end = (
            self.cursor.parse(stream_slice.cursor_slice[name]) for name in self.cursor.names
        )
        if latest is not None:
            self._latest_seen = (
                latest if self._latest_seen is None else max(self._latest_seen, latest)
            )
            if latest > end:
                self._log_beyond(latest, end)
            latest = min(self.cursor.continue_at(latest), end)
        known = self._progress.get(stream_slice.partition_key)
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
        is_future = latest - present > _MAX_TIME_ZONE_OFFSET
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
            times = reached if not self.is_global else []
            self._overall = max(times if self._latest is None else [*times, self._latest])
            self._lookback_seconds = math.ceil(self._seconds)
        self._earlier_seconds, self._started = 0.0, self._clock()
        while not self.is_global and len(self._progress) > self._max_partitions:
            self._progress.popitem(last=False)
            self._note_dropped()

    @property
    def _seconds(self) -> float:
        return self._earlier_seconds + self._clock() - self._started

    # ------------------------------------------------------------------ state to store

    def as_json(self) -> dict[str, Any]:
        """Return the complete state, so that a later run reads only what is missing."""
        unfinished = [
            [partition, progress.as_json()]
            for partition, progress in self._progress.values()
            if progress.planned
        ]
        state = self.export()
        if unfinished:
            state[_UNFINISHED] = {"seconds": round(self._seconds, 3), "partitions": unfinished}
        known, seen = self._latest_reached, self._latest_seen
        if seen is not None and (known is None or seen > self._round_trip(known)):
            state[_LATEST] = seen.isoformat()
        return state

    def export(self) -> dict[str, Any]:
        """Return the state in the form that other readers of such manifests use."""
        cursor = self.cursor
        if not self.is_partitioned:
            (progress,) = [progress for _, progress in self._progress.values()] or [Progress()]
            return {**self._others, cursor.field: cursor.format_time(progress.reached_time(cursor))}
        state: dict[str, Any] = {"use_global_cursor": self.is_global}
        if not self.is_global:
            state["states"] = [
                {
                    "partition": partition,
                    "cursor": {cursor.field: cursor.format_time(progress.reached_time(cursor))},
                }
                for partition, progress in self._progress.values()
            ]
        if self._overall is not None:
            state["state"] = {cursor.field: cursor.format_time(self._overall)}
        state["lookback_window"] = self._lookback_seconds
        if self.parent_state is not None:
            state["parent_state"] = self.parent_state
        if self._dropped:
            state[_DROPPED] = self._dropped
        return state
