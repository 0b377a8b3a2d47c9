"""Datetime cursors: start, end, step, and the intervals that are still to be read.

Intervals already read are subtracted from the wanted time range, and the rest is cut into slices.
This module is pure: it sends no requests.

Sources: `seeds/incremental-syncs.txt`, `specs/airbyte-declarative.md` (2.1, 2.6).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from isodate import Duration

from chronolake.durations import is_negative, iso_duration
from chronolake.errors import ConfigurationError
from chronolake.source.declarative.templating.templates import as_text, as_truth
from chronolake.source.declarative.templating.times import (
    Reader,
    format_exactly,
    has_time_zone,
    parse_time,
    parse_time_by,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from chronolake.source.declarative.models.base import Component
    from chronolake.source.declarative.models.streams import DatetimeBasedCursor, MinMaxDatetime


Gap: TypeAlias = timedelta | Duration
#: Intervals with at most this gap are adjacent, if the granularity of the API's times is unknown.
_ADJACENT_GAP = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Interval:
    """An interval that has been read, from `start` to `end`, both inclusive.

    Attributes:
        latest: the time of the latest record in it, or the interval's end if that record was later;
            None: no records. It may be later than the end of an interval that was truncated.
    """

    start: datetime
    end: datetime
    latest: datetime | None = None


@dataclass(frozen=True)
class Span:
    """A time range to read, from `start`, inclusive, to `end`.

    Attributes:
        is_last: whether this is the last range; then `end` is inclusive. If not, the next range
            begins at `end`.
    """

    start: datetime
    end: datetime
    is_last: bool


@dataclass(frozen=True)
class SliceRules:
    """The rules by which spans are cut into slices.

    Attributes:
        step: length of a slice; None: as long as its span.
        granularity: the smallest step of the API's times, which prevents slices from overlapping;
            None: adjacent slices share a bound.
        is_strict: whether the API rejects slices whose start equals their end.
        clamp: moves a bound up to the start of a period.
    """

    step: Gap | None = None
    granularity: Gap | None = None
    is_strict: bool = False
    clamp: Callable[[datetime], datetime] = lambda at: at

    @property
    def grain(self) -> Gap | None:
        """Return the granularity, or None if adjacent slices share a bound."""
        return self.granularity or None

    def slices(self, span: Span) -> Iterator[tuple[datetime, datetime]]:
        """Yield the bounds of a span's slices, both inclusive, in increasing order.

        If a slice would end exactly at the end of the last span, that moment becomes a slice of its
        own, as in the example of the specification.
        """
        grain = self.grain
        keeps_end = span.is_last and grain is not None and not self.is_strict
        begin = self.clamp(span.start)
        if begin > span.end or (begin == span.end and not keeps_end):
            return
        while True:
            upper = self._next_start(begin)
            if upper is None or (upper > span.end if keeps_end else upper >= span.end):
                yield begin, span.end if span.is_last or grain is None else span.end - grain
                return
            yield begin, upper if grain is None else upper - grain
            begin = upper

    def _next_start(self, begin: datetime) -> datetime | None:
        """Return the start of the next slice, or None after the last one."""
        if self.step is None:
            return None
        try:
            upper = self.clamp(begin + self.step)
        except OverflowError:
            return None
        return upper if upper > begin else None

    def missing(self, spans: Iterable[Span], read_intervals: Sequence[Interval]) -> list[Span]:
        """Return the parts of spans that have not been read."""
        grain = self.grain
        remaining = list(spans)
        for interval in self.merge(read_intervals):
            parts: list[Span] = []
            for span in remaining:
                if interval.end < span.start or interval.start > span.end:
                    parts.append(span)
                    continue
                if interval.start > span.start:
                    parts.append(Span(span.start, interval.start, is_last=False))
                rest = interval.end if grain is None else interval.end + grain
                if rest < span.end or (rest == span.end and span.is_last and grain is not None):
                    parts.append(replace(span, start=rest))
            remaining = parts
        return remaining

    def merge(self, intervals: Iterable[Interval]) -> list[Interval]:
        """Return intervals in increasing order, with adjacent or overlapping ones merged."""
        grain = self.grain or _ADJACENT_GAP
        merged: list[Interval] = []
        for interval in sorted(intervals, key=lambda interval: (interval.start, interval.end)):
            if merged and merged[-1].end + grain >= interval.start:
                last = merged[-1]
                times = [at for at in (last.latest, interval.latest) if at is not None]
                merged[-1] = Interval(
                    last.start, max(last.end, interval.end), max(times) if times else None
                )
            else:
                merged.append(interval)
        return merged


_START: Final = "start_time"
_END: Final = "end_time"
_WEEKDAYS: Final = ("MONDAY", "TUESDAY", "WEDNESDAY", "THURSDAY", "FRIDAY", "SATURDAY", "SUNDAY")


@dataclass(frozen=True)
class TimeCursor:
    """A cursor over time.

    Attributes:
        field: the records' field with their time.
        format: the format of times in slices and state.
        formats: the formats for parsing times; the first one that matches is used.
        start: the earliest time to read.
        end: returns the latest time to read; without an end, the present.
        lookback: how far before its state, or its start, a run begins.
        slice_rules: the rules for slices.
        names: the keys of a slice's bounds.
        is_data_feed: whether the API returns the newest records first, and cannot filter.
        is_filtered_client_side: whether records outside the wanted range are filtered after they
            were received.
    """

    field: str
    format: str
    formats: tuple[str, ...]
    start: datetime
    end: Callable[[], datetime]
    lookback: Gap | None
    slice_rules: SliceRules
    names: tuple[str, str]
    is_data_feed: bool
    is_filtered_client_side: bool

    @property
    def reader(self) -> Reader:
        """Return the parser of records' times."""
        return Reader(self.formats)

    def parse(self, value: Any) -> datetime:
        """Parse a time of a state or a slice, which are written in `format`.

        A state that another reader wrote may use any of the formats.

        Raises:
            ValueError: the value matches none of the formats.
        """
        return parse_time_by(value, (self.format, *self.formats))

    def parse_record_time(self, value: Any) -> datetime:
        """Parse the time of a record.

        Raises:
            ValueError: the value matches none of the formats.
        """
        return parse_time_by(value, self.formats)

    def format_time(self, at: datetime) -> str:
        """Return a time as text for slices and state; `parse` returns the same time."""
        return format_exactly(at, self.format)

    def continue_at(self, at: datetime) -> datetime:
        """Return from which time on to read after a record of this time.

        A format without a time zone may have the digits of UTC, or those of the API's own clock.
        The earlier of both is safe: west of UTC, that is the API's own.
        """
        offset = at.utcoffset()
        if offset is None or offset >= timedelta() or has_time_zone(self.format):
            return at
        return at.replace(tzinfo=UTC)

    def is_beyond(self, at: datetime, end: datetime) -> bool:
        """Return whether a record is later than a slice, whose end may be as coarse as a day."""
        grain = self.slice_rules.grain
        round_tripped = self.parse(self.format_time(at))
        try:
            return round_tripped > end if grain is None else round_tripped >= end + grain
        except OverflowError:
            return False

    def with_lookback(self, at: datetime) -> datetime:
        """Return where a run begins that continues at a time: earlier by the lookback window."""
        begin = max(at, self.start)
        try:
            return begin - self.lookback if self.lookback else begin
        except OverflowError:
            return self.start


def time_cursor(model: DatetimeBasedCursor, config: Mapping[str, Any]) -> TimeCursor:
    """Return the cursor for a manifest's component and a configuration.

    Raises:
        ConfigurationError: a time, a duration or the combination of settings is invalid.
    """
    if bool(model.step) is not bool(model.cursor_granularity):
        raise ConfigurationError(
            "A cursor needs both `step` and `cursor_granularity`, or neither.",
            hint="Set both: the length of a slice, and the resolution of the API's times.",
        )
    text = partial(_evaluate, model, config)
    granularity = _parse_duration("cursor_granularity", model.cursor_granularity)
    end = partial(_evaluate_time, model.end_datetime, model, config)
    clamping = model.clamping
    slice_rules = SliceRules(
        step=_parse_duration("step", text(model.step)),
        granularity=granularity,
        is_strict=model.is_compare_strictly,
    )
    if clamping is not None:
        period = _Period.of(text(clamping.target), clamping.target_details)
        slice_rules = replace(slice_rules, clamp=period.ceiling)
        end = partial(period.last_before, end, granularity)
    return TimeCursor(
        field=text(model.cursor_field),
        format=model.datetime_format,
        formats=(*model.cursor_datetime_formats, model.datetime_format),
        start=_evaluate_time(model.start_datetime, model, config),
        end=end,
        lookback=_parse_duration("lookback_window", text(model.lookback_window)),
        slice_rules=slice_rules,
        names=(
            text(model.partition_field_start or _START),
            text(model.partition_field_end or _END),
        ),
        is_data_feed=model.is_data_feed,
        is_filtered_client_side=as_truth(
            model.is_client_side_incremental, {"config": config, "parameters": model.parameters}
        ),
    )


def _evaluate(model: Component, config: Mapping[str, Any], template: str | None) -> str:
    if not template:
        return ""
    return as_text(template, {"config": config, "parameters": model.parameters})


def _parse_duration(name: str, text: str | None) -> Gap | None:
    if not text:
        return None
    try:
        duration = iso_duration(text)
    except ValueError as failure:
        raise ConfigurationError(
            f"The cursor's `{name}` is not a valid duration: {text!r}.",
            hint="Use an ISO 8601 duration, e.g. P1D, PT1H or P1M.",
        ) from failure
    if is_negative(duration):
        # Records would be skipped: a run would begin later than where the last one ended.
        raise ConfigurationError(
            f"The cursor's `{name}` is negative: {text!r}.", hint="Remove the sign."
        )
    return duration


def _evaluate_time(
    bound: MinMaxDatetime | str | None, model: DatetimeBasedCursor, config: Mapping[str, Any]
) -> datetime:
    """Return a template's time, limited by its minimum and maximum; None: the present."""
    if not bound:
        return datetime.now(UTC)
    if isinstance(bound, str):
        return _parse_time(_evaluate(model, config, bound), model.datetime_format)
    datetime_format = bound.datetime_format or model.datetime_format
    time = _parse_time(_evaluate(bound, config, bound.datetime), datetime_format)
    if floor := _evaluate(bound, config, bound.min_datetime):
        time = max(time, _parse_time(floor, datetime_format))
    if ceiling := _evaluate(bound, config, bound.max_datetime):
        time = min(time, _parse_time(ceiling, datetime_format))
    return time


def _parse_time(text: str, datetime_format: str) -> datetime:
    try:
        return parse_time(text, datetime_format)
    except ValueError as failure:
        raise ConfigurationError(
            f"The time {text!r} does not have the format {datetime_format}.",
            hint="Check the dates in the source's `config`, and `datetime_format` in the manifest.",
        ) from failure


@dataclass(frozen=True)
class _Period:
    """The days, weeks or months that slices' bounds are aligned to."""

    target: str
    weekday: int = 0

    @classmethod
    def of(cls, target: str, details: Mapping[str, Any]) -> _Period:
        if target in {"DAY", "MONTH"}:
            return cls(target)
        day = details.get("weekday")
        if target == "WEEK" and day in _WEEKDAYS:
            return cls(target, _WEEKDAYS.index(day))
        raise ConfigurationError(
            f"The cursor's clamping has an invalid target: {target}.",
            hint="Use DAY, MONTH, or WEEK with a `weekday` such as MONDAY.",
        )

    def floor(self, at: datetime) -> datetime:
        day = at.replace(hour=0, minute=0, second=0, microsecond=0)
        if self.target == "MONTH":
            return day.replace(day=1)
        if self.target == "WEEK":
            return day - timedelta(days=(day.weekday() - self.weekday) % 7)
        return day

    def ceiling(self, at: datetime) -> datetime:
        floor = self.floor(at)
        if floor == at:
            return at
        if self.target == "MONTH":
            return (floor + timedelta(days=32)).replace(day=1)
        return floor + timedelta(days=7 if self.target == "WEEK" else 1)

    def last_before(self, end: Callable[[], datetime], granularity: Gap | None) -> datetime:
        """Return the last moment of the last complete period before an end."""
        default = timedelta(seconds=1) if self.target == "DAY" else timedelta(days=1)
        return self.floor(end()) - (granularity or default)
