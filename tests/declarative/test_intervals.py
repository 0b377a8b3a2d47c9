"""Slices of time: the documents' examples, and invariants of all slices."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isodate import parse_duration

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.cursors.datetime_cursor import (
    Interval,
    SliceRules,
    Span,
    time_cursor,
)
from chronolake.source.declarative.cursors.state import StreamState
from chronolake.source.declarative.models.streams import DatetimeBasedCursor
from chronolake.source.declarative.stream_slice import StreamSlice

_EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)


def at(seconds: int) -> datetime:
    return _EPOCH + seconds * _SECOND


def sliced(**described: object) -> list[tuple[str, str]]:
    """Return the slices of a first run with the described cursor."""
    cursor = time_cursor(
        DatetimeBasedCursor.model_validate(
            {"type": "DatetimeBasedCursor", "cursor_field": "updated_at", **described}
        ),
        {},
    )
    state = StreamState(cursor, None, is_partitioned=False)
    return [tuple(slice_.cursor_slice.values()) for slice_ in state.slices(StreamSlice())]


def test_example_of_the_specification_has_five_slices() -> None:
    """`seeds/incremental-syncs.txt`: the end has its own slice."""
    found = sliced(
        start_datetime="2022-01-01T00:00:00",
        end_datetime="2022-01-05T00:00:00",
        datetime_format="%Y-%m-%dT%H:%M:%S",
        cursor_granularity="PT1S",
        step="P1D",
    )
    assert found == [
        ("2022-01-01T00:00:00", "2022-01-01T23:59:59"),
        ("2022-01-02T00:00:00", "2022-01-02T23:59:59"),
        ("2022-01-03T00:00:00", "2022-01-03T23:59:59"),
        ("2022-01-04T00:00:00", "2022-01-04T23:59:59"),
        ("2022-01-05T00:00:00", "2022-01-05T00:00:00"),
    ]


def test_a_lookback_reaches_before_the_start() -> None:
    """`seeds/incremental-syncs.txt`: from 2022-01-01 to 2022-03-01."""
    found = sliced(
        start_datetime="2022-02-01T00:00:00.000000+0000",
        end_datetime="2022-03-01T00:00:00.000000+0000",
        datetime_format="%Y-%m-%dT%H:%M:%S.%f%z",
        cursor_granularity="PT0.000001S",
        lookback_window="P31D",
        step="P1D",
    )
    assert found[0] == ("2022-01-01T00:00:00.000000+0000", "2022-01-01T23:59:59.999999+0000")
    assert found[-1] == ("2022-03-01T00:00:00.000000+0000", "2022-03-01T00:00:00.000000+0000")
    assert len(found) == 60


@pytest.mark.differs("negative durations")
@pytest.mark.parametrize("duration", ["-P1D", "-P1M", "-P9000Y"])
@pytest.mark.parametrize("name", ["lookback_window", "step"])
def test_negative_durations_are_refused(name: str, duration: str) -> None:
    more = {"step": "P1D", "cursor_granularity": "P1D", name: duration}

    with pytest.raises(ConfigurationError, match=f"`{name}` is negative"):
        sliced(start_datetime="2022-02-01", datetime_format="%Y-%m-%d", **more)


@pytest.mark.parametrize(
    ("slice_rules", "expected"),
    [
        (SliceRules(), [(0, 10)]),
        (SliceRules(timedelta(seconds=4), _SECOND), [(0, 3), (4, 7), (8, 10)]),
        (SliceRules(timedelta(seconds=5), _SECOND), [(0, 4), (5, 9), (10, 10)]),
        (SliceRules(timedelta(seconds=5), _SECOND, is_strict=True), [(0, 4), (5, 10)]),
        # Neighbours share a bound.
        (SliceRules(timedelta(seconds=5), timedelta(0)), [(0, 5), (5, 10)]),
        (SliceRules(timedelta(seconds=30), _SECOND), [(0, 10)]),
    ],
)
def test_span_is_cut_into_slices(slice_rules: SliceRules, expected: list[tuple[int, int]]) -> None:
    found = slice_rules.slices(Span(at(0), at(10), is_last=True))
    assert list(found) == [(at(begin), at(end)) for begin, end in expected]


def test_months_are_as_long_as_they_are() -> None:
    slice_rules = SliceRules(parse_duration("P1M"), timedelta(days=1))
    span = Span(datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 3, 10, tzinfo=UTC), is_last=True)
    assert [(begin.day, end.day) for begin, end in slice_rules.slices(span)] == [
        (1, 31),
        (1, 29),
        (1, 10),
    ]


_SPANS = st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted)


@given(_SPANS, st.integers(1, 20) | st.none(), st.integers(0, 3), st.booleans(), st.booleans())
def test_slices_follow_each_other_and_leave_nothing_out(
    span: list[int], step: int | None, grain: int, is_last: bool, is_strict: bool
) -> None:
    step = None if step is None else max(step, grain)
    slice_rules = SliceRules(
        None if step is None else step * _SECOND, grain * _SECOND, is_strict=is_strict
    )
    begin, end = span
    found = list(slice_rules.slices(Span(at(begin), at(end), is_last=is_last)))
    if begin == end and (not grain or is_strict or not is_last):
        assert found == []
        return
    assert found[0][0] == at(begin)
    last = end if is_last or not grain else end - grain
    assert found[-1][1] == at(last)
    for (_, before), (after, _) in itertools.pairwise(found):
        assert after == before + grain * _SECOND
    longest = None if step is None else (step + (grain if is_strict else 0)) * _SECOND
    for first, final in found:
        assert longest is None or final - first <= longest


@given(_SPANS, st.lists(_SPANS, max_size=5), st.integers(0, 2))
def test_missing_and_read_intervals_cover_the_range(
    span: list[int], read: list[list[int]], grain: int
) -> None:
    slice_rules = SliceRules(None, grain * _SECOND)
    # The API has only times of its granularity.
    unit = max(grain, 1)
    wanted = Span(at(span[0] * unit), at(span[1] * unit), is_last=True)
    intervals = [Interval(at(begin * unit), at(end * unit)) for begin, end in read]
    left = slice_rules.missing([wanted], intervals)

    def moments(begin: datetime, end: datetime) -> set[datetime]:
        # Half seconds distinguish open bounds from closed ones.
        steps = int((end - begin) / (_SECOND / 2))
        return {begin + number * _SECOND / 2 for number in range(steps + 1)}

    covered = set().union(
        *(moments(interval.start, interval.end) for interval in (*left, *intervals))
    )
    # The gap between neighbors is smaller than the API's granularity.
    joined = slice_rules.merge([*intervals, *(Interval(gap.start, gap.end) for gap in left)])
    covered |= set().union(*(moments(interval.start, interval.end) for interval in joined))
    if wanted.start < wanted.end or grain:
        assert moments(wanted.start, wanted.end) <= covered
    for gap in left:
        assert wanted.start <= gap.start <= gap.end <= wanted.end
