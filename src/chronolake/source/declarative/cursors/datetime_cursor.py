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

from chronolake.durations import iso_duration
from chronolake.errors import ConfigurationError
from chronolake.source.declarative.templating.templates import as_text, as_truth
from chronolake.source.declarative.templating.times import (
    Reader,
    formatted_exactly,
    parsed,
    parsed_by,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from chronolake.source.declarative.models.base import Component
    from chronolake.source.declarative.models.streams import DatetimeBasedCursor, MinMaxDatetime


Gap: TypeAlias = timedelta | Duration
#: Intervals with at most this gap are adjacent, if the granularity of the API's times is unknown.
_NEIGHBOURS = timedelta(milliseconds=1)


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
class Cutting:
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
            upper = self._after(begin)
            if upper is None or (upper > span.end if keeps_end else upper >= span.end):
                yield begin, span.end if span.is_last or grain is None else span.end - grain
                return
            yield begin, upper if grain is None else upper - grain
            begin = upper

    def _after(self, begin: datetime) -> datetime | None:
        """Return the start of the next slice, or None after the last one."""
        if self.step is None:
            return None
        try:
            upper = self.clamp(begin + self.step)
        except OverflowError:
            return None
        return upper if upper > begin else None

    def missing(self, spans: Iterable[Span], read: Sequence[Interval]) -> list[Span]:
        """Return the parts of spans that have not been read."""
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
        """Return intervals in increasing order, with adjacent or overlapping ones merged."""
        grain = self.grain or _NEIGHBOURS
        found: list[Interval] = []
        for interval in sorted(intervals, key=lambda one: (one.start, one.end)):
            if found and found[-1].end + grain >= interval.start:
                last = found[-1]
                times = [at for at in (last.latest, interval.latest) if at is not None]
                found[-1] = Interval(
                    last.start, max(last.end, interval.end), max(times) if times else None
                )
            else:
                found.append(interval)
        return found


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
        cutting: the rules for slices.
        names: the keys of a slice's bounds.
        is_data_feed: whether the API returns the newest records first, and cannot filter.
        is_filtered_here: whether records outside the wanted range are filtered on the client side.
    """

    field: str
    format: str
    formats: tuple[str, ...]
    start: datetime
    end: Callable[[], datetime]
    lookback: Gap | None
    cutting: Cutting
    names: tuple[str, str]
    is_data_feed: bool
    is_filtered_here: bool

    @property
    def reader(self) -> Reader:
        """Return the parser of records' times."""
        return Reader(self.formats)

    def parsed(self, value: Any) -> datetime:
        """Parse a time of a state or a slice, which are written in `format`.

        A state that another reader wrote may use any of the formats.

        Raises:
            ValueError: the value matches none of the formats.
        """
        return parsed_by(value, (self.format, *self.formats))

    def of_record(self, value: Any) -> datetime:
        """Parse the time of a record.

        Raises:
            ValueError: the value matches none of the formats.
        """
        return parsed_by(value, self.formats)

    def formatted(self, at: datetime) -> str:
        """Return a time as text for slices and state; `parsed` returns the same time."""
        return formatted_exactly(at, self.format)

    def is_beyond(self, at: datetime, end: datetime) -> bool:
        """Return whether a record is later than a slice, whose end may be as coarse as a day."""
        grain = self.cutting.grain
        written = self.parsed(self.formatted(at))
        try:
            return written > end if grain is None else written >= end + grain
        except OverflowError:
            return False

    def before(self, at: datetime) -> datetime:
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
            "A cursor has `step` and `cursor_granularity`, or neither.",
            hint="Give it both: they say how long a slice is, and how fine the API's times are.",
        )
    text = partial(_text, model, config)
    granularity = _duration("cursor_granularity", model.cursor_granularity)
    end = partial(_moment, model.end_datetime, model, config)
    clamping = model.clamping
    cutting = Cutting(
        step=_duration("step", text(model.step)),
        granularity=granularity,
        is_strict=model.is_compare_strictly,
    )
    if clamping is not None:
        period = _Period.of(text(clamping.target), clamping.target_details)
        cutting = replace(cutting, clamp=period.ceiling)
        end = partial(period.last_before, end, granularity)
    return TimeCursor(
        field=text(model.cursor_field),
        format=model.datetime_format,
        formats=(*model.cursor_datetime_formats, model.datetime_format),
        start=_moment(model.start_datetime, model, config),
        end=end,
        lookback=_duration("lookback_window", text(model.lookback_window)),
        cutting=cutting,
        names=(
            text(model.partition_field_start or _START),
            text(model.partition_field_end or _END),
        ),
        is_data_feed=model.is_data_feed,
        is_filtered_here=as_truth(
            model.is_client_side_incremental, {"config": config, "parameters": model.parameters}
        ),
    )


def _text(model: Component, config: Mapping[str, Any], template: str | None) -> str:
    if not template:
        return ""
    return as_text(template, {"config": config, "parameters": model.parameters})


def _duration(name: str, text: str | None) -> Gap | None:
    if not text:
        return None
    try:
        return iso_duration(text)
    except ValueError as failure:
        raise ConfigurationError(
            f"The cursor's `{name}` is no duration: {text!r}.",
            hint="Durations are written as ISO 8601 has them: P1D, PT1H, P1M.",
        ) from failure


def _moment(
    described: MinMaxDatetime | str | None, model: DatetimeBasedCursor, config: Mapping[str, Any]
) -> datetime:
    """Return a template's time, limited by its minimum and maximum; None: the present."""
    if not described:
        return datetime.now(UTC)
    if isinstance(described, str):
        return _read(_text(model, config, described), model.datetime_format)
    form = described.datetime_format or model.datetime_format
    found = _read(_text(described, config, described.datetime), form)
    if floor := _text(described, config, described.min_datetime):
        found = max(found, _read(floor, form))
    if ceiling := _text(described, config, described.max_datetime):
        found = min(found, _read(ceiling, form))
    return found


def _read(text: str, form: str) -> datetime:
    try:
        return parsed(text, form)
    except ValueError as failure:
        raise ConfigurationError(
            f"The time {text!r} does not have the format {form}.",
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
            f"The cursor's clamping has no such target: {target}.",
            hint="It is DAY, MONTH, or WEEK with a `weekday` as in MONDAY.",
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
