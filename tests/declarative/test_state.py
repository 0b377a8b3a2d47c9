"""A stream's state: what a run requests, what it stores for the next, and its exported form."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from chronolake.config import OnPartitionLimit
from chronolake.errors import ConfigurationError
from chronolake.source.declarative.cursors.datetime_cursor import TimeCursor, time_cursor
from chronolake.source.declarative.cursors.state import StreamState
from chronolake.source.declarative.models.streams import DatetimeBasedCursor
from chronolake.source.declarative.stream_slice import StreamSlice
from chronolake.source.declarative.templating.times import micros_of
from support.declarative.apis import Api, ReceivedRequest, Reply
from support.declarative.stream_reads import option, read_stream, stream

_START = datetime(2024, 1, 1, tzinfo=UTC)


def cursor(*, end: str = "2024-01-10", **described: Any) -> TimeCursor:
    model = {
        "type": "DatetimeBasedCursor",
        "cursor_field": "updated",
        "start_datetime": "2024-01-01",
        "end_datetime": end,
        "datetime_format": "%Y-%m-%d",
        "step": "P1D",
        "cursor_granularity": "P1D",
        **described,
    }
    return time_cursor(DatetimeBasedCursor.model_validate(model), {})


def day(number: int) -> datetime:
    return _START + timedelta(days=number - 1)


def state_of(stored: Any = None, **settings: Any) -> StreamState:
    described = settings.pop("cursor", None) or cursor()
    return StreamState(described, stored, is_partitioned=False, **settings)


def by_team(stored: Any = None, **settings: Any) -> StreamState:
    described = settings.pop("cursor", None) or cursor(step="P9D")
    return StreamState(described, stored, is_partitioned=True, **settings)


def team(name: object) -> StreamSlice:
    return StreamSlice({"team": name})


def begins(state: StreamState, partition: StreamSlice | None = None) -> list[str]:
    return [slice_["start_time"] for slice_ in state.slices(partition or StreamSlice())]


def read(state: StreamState, partition: StreamSlice, latest: int | None) -> None:
    """Read all of a partition."""
    for slice_ in list(state.slices(partition)):
        state.note(slice_, None if latest is None else day(latest))


def stored(state: StreamState) -> dict[str, Any]:
    """Return the state as a store returns it."""
    found: dict[str, Any] = json.loads(json.dumps(state.as_json()))
    return found


def test_run_continues_at_the_last_record() -> None:
    first = state_of()
    for slice_ in list(first.slices(StreamSlice())):
        first.note(slice_, day(4) if slice_["start_time"] == "2024-01-04" else None)
    first.complete()
    assert first.as_json() == first.export() == {"updated": "2024-01-04"}
    assert begins(state_of(stored(first)))[:2] == ["2024-01-04", "2024-01-05"]


def test_run_without_records_does_not_move_the_start() -> None:
    first = state_of()
    read(first, StreamSlice(), None)
    first.complete()
    assert first.export() == {"updated": "2024-01-01"}


@pytest.mark.differs("slices beyond a gap")
def test_interrupted_run_continues_with_the_missing_slices() -> None:
    first = state_of()
    for slice_ in list(first.slices(StreamSlice())):
        if slice_["start_time"] not in {"2024-01-03", "2024-01-07"}:
            first.note(slice_, first.cursor.parse(slice_["start_time"]))
    # Other tools can represent only what is before the first gap.
    assert first.export() == {"updated": "2024-01-02"}

    second = state_of(stored(first))
    assert begins(second) == ["2024-01-03", "2024-01-07"]
    for slice_ in list(second.slices(StreamSlice())):
        second.note(slice_, None)
    second.complete()
    assert second.as_json() == {"updated": "2024-01-10"}


def test_newer_records_are_requested_as_well() -> None:
    first = state_of()
    slices = list(first.slices(StreamSlice()))
    for slice_ in slices[:-1]:
        first.note(slice_, day(9))
    later = state_of(stored(first), cursor=cursor(end="2024-01-12"))
    assert begins(later) == ["2024-01-10", "2024-01-11", "2024-01-12"]

    first.note(slices[-1], None)
    whole = state_of(stored(first), cursor=cursor(end="2024-01-12"))
    assert begins(whole) == ["2024-01-09", "2024-01-10", "2024-01-11", "2024-01-12"]


def test_state_of_another_reader_is_read() -> None:
    assert begins(state_of({"updated": "2024-01-08", "other": 1}))[0] == "2024-01-08"
    reported = state_of({"updated": "2024-01-08", "other": 1}).export()
    assert reported == {"updated": "2024-01-08", "other": 1}
    between = {
        "state_type": "date-range",
        "slices": [
            {"start": "2024-01-01", "end": "2024-01-03", "most_recent_cursor_value": "2024-01-02"},
            {"start": "2024-01-05", "end": "2024-01-08"},
        ],
    }
    assert begins(state_of(between)) == ["2024-01-04", "2024-01-08", "2024-01-09", "2024-01-10"]
    with pytest.raises(ConfigurationError, match="not valid for the stream's cursor"):
        state_of({"updated": "yesterday"})


def test_each_partition_continues_at_its_own_records() -> None:
    first = by_team(clock=iter([0.0, 5.2, 5.2]).__next__)
    for name, latest in (("a", 5), ("b", 8), ("c", None)):
        read(first, team(name), latest)
    first.complete()
    assert first.export() == {
        "use_global_cursor": False,
        "states": [
            {"partition": {"team": "a"}, "cursor": {"updated": "2024-01-05"}},
            {"partition": {"team": "b"}, "cursor": {"updated": "2024-01-08"}},
            {"partition": {"team": "c"}, "cursor": {"updated": "2024-01-01"}},
        ],
        "state": {"updated": "2024-01-08"},
        "lookback_window": 6,
    }
    second = by_team(stored(first))
    assert [begins(second, team(name)) for name in "abc"] == [
        ["2024-01-05"],
        ["2024-01-08"],
        ["2024-01-01", "2024-01-10"],
    ]
    # A new partition begins at the last shared position, minus the duration of the last run.
    assert begins(second, team("d")) == ["2024-01-07"]
    assert second.export()["states"][3]["cursor"] == {"updated": "2024-01-07"}


def test_failed_partition_holds_back_the_global_cursor() -> None:
    before = {
        "use_global_cursor": False,
        "states": [{"partition": {"team": "a"}, "cursor": {"updated": "2024-01-02"}}],
        "state": {"updated": "2024-01-02"},
        "lookback_window": 3,
    }
    run = by_team(before)
    read(run, team("a"), 6)
    assert begins(run, team("b"))
    reported = run.export()
    assert reported["state"] == {"updated": "2024-01-02"}
    assert reported["lookback_window"] == 3
    assert reported["states"][0]["cursor"] == {"updated": "2024-01-06"}

    again = by_team(stored(run))
    assert begins(again, team("a")) == []
    assert begins(again, team("b")) == ["2024-01-01", "2024-01-10"]


@pytest.mark.parametrize("is_flat", [True, False])
def test_one_cursor_may_be_all_partitions(is_flat: bool) -> None:
    flat = {"updated": "2024-01-05"}
    whole = {"use_global_cursor": True, "state": flat, "lookback_window": 0}
    run = by_team(flat if is_flat else whole, is_global=True)
    assert begins(run, team("a")) == begins(run, team("b")) == ["2024-01-05"]
    for name in "ab":
        read(run, team(name), 7)
    assert run.export()["state"] == flat
    run.complete()
    assert run.export()["state"] == {"updated": "2024-01-07"}
    assert "states" not in run.export()


def test_the_oldest_partitions_are_forgotten_and_read_in_full() -> None:
    run = by_team(max_partitions=3)
    for number in range(5):
        read(run, team(number), 5 + number)
    run.complete()
    reported = stored(run)
    assert [partition_state["partition"]["team"] for partition_state in reported["states"]] == [
        2,
        3,
        4,
    ]
    assert reported["partitions_dropped"] == 2

    again = by_team(reported, max_partitions=3)
    assert begins(again, team(0)) == ["2024-01-01", "2024-01-10"]
    assert begins(again, team(4)) == ["2024-01-09"]


def test_partitions_above_the_limit_share_a_cursor() -> None:
    run = by_team(max_partitions=3, on_limit=OnPartitionLimit.GLOBAL_CURSOR)
    for number in range(5):
        read(run, team(number), 5 + number)
    run.complete()
    reported = stored(run)
    assert reported["use_global_cursor"]
    assert "states" not in reported
    assert begins(by_team(reported), team(0)) == ["2024-01-08"]


def test_numbers_and_texts_are_different_partitions() -> None:
    run = by_team()
    read(run, team(1), 5)
    read(run, team("1"), 6)
    assert len(run.export()["states"]) == 2


def test_times_are_compared_as_times() -> None:
    """As texts, 28-12-2023 would be after 05-01-2024."""
    described = cursor(
        start_datetime="01-12-2023", end_datetime="10-01-2024", datetime_format="%d-%m-%Y"
    )
    run = by_team(cursor=described)
    for name, latest in (("a", datetime(2023, 12, 28, tzinfo=UTC)), ("b", day(5))):
        for slice_ in list(run.slices(team(name))):
            run.note(slice_, latest)
    run.complete()
    assert run.export()["state"] == {"updated": "05-01-2024"}


@given(
    st.lists(st.sets(st.integers(0, 40)), max_size=6),
    st.integers(1, 7),
    st.integers(5, 30),
)
def test_interrupted_runs_request_each_day_once(
    failing: Sequence[set[int]], step: int, days: int
) -> None:
    """However many runs stop or fail in some slices, together they request everything once."""
    described = cursor(end=f"2024-01-{days:02d}", step=f"P{step}D")
    asked: Counter[str] = Counter()
    reported: Any = None
    for failed in [*failing, set()]:
        run = state_of(reported, cursor=described)
        for number, slice_ in enumerate(list(run.slices(StreamSlice()))):
            if number in failed:
                continue
            begin, end = (run.cursor.parse(slice_[name]) for name in ("start_time", "end_time"))
            asked.update(str(begin + timedelta(n)) for n in range((end - begin).days + 1))
            run.note(slice_, None)
        reported = stored(run)
    assert asked == Counter(str(day(number)) for number in range(1, days + 1))


_KINDS: dict[str, Callable[..., StreamState]] = {
    "one": state_of,
    "partitions": by_team,
    "global": lambda stored=None, **more: by_team(stored, is_global=True, **more),
}


def _reached(state: StreamState) -> list[datetime]:
    """Return all times in the exported state."""
    exported = state.export()
    values = [
        exported,
        exported.get("state", {}),
        *(partition_state["cursor"] for partition_state in exported.get("states", [])),
    ]
    return [state.cursor.parse(cursor["updated"]) for cursor in values if "updated" in cursor]


@pytest.mark.differs("records beyond their slice")
@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("lookback", [None, "P2D"])
def test_run_after_a_future_record_starts_at_the_end(kind: str, lookback: str | None) -> None:
    partition = StreamSlice() if kind == "one" else team("a")
    more = {"lookback_window": lookback} if lookback else {}
    first = _KINDS[kind](cursor=cursor(**more), clock=lambda: 0.0)
    for slice_ in list(first.slices(partition)):
        first.note(slice_, datetime(2031, 5, 5, tzinfo=UTC))
    first.complete()
    assert set(_reached(first)) == {day(10)}

    later = _KINDS[kind](stored(first), cursor=cursor(end="2024-01-15", **more))
    begin = 8 if lookback else 10
    asked = list(later.slices(partition))
    assert [slice_["start_time"] for slice_ in asked] == [
        f"2024-01-{number:02d}" for number in range(begin, 16)
    ]
    # Records up to that time may have been read before, so they are compared.
    assert later.latest_known == datetime(2031, 5, 5, tzinfo=UTC)
    for slice_ in asked:
        later.note(
            slice_, day(12) if slice_["start_time"] <= "2024-01-12" <= slice_["end_time"] else None
        )
    later.complete()
    assert set(_reached(later)) == {day(12)}


@given(
    st.sampled_from(sorted(_KINDS)),
    st.lists(
        st.tuples(
            st.integers(0, 20),
            st.lists(st.tuples(st.booleans(), st.none() | st.integers(-50, 4000)), max_size=12),
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(
        [
            {},
            {"step": "P3D"},
            {"step": None, "cursor_granularity": None},
            {"lookback_window": "P2D"},
            {"is_compare_strictly": True},
            {"datetime_format": "%Y-%m-%dT%H:%M:%S", "cursor_granularity": "PT1S"},
            {"datetime_format": "%Y-%m-%dT%H:%M:%S"},
        ]
    ),
)
def test_state_never_exceeds_the_requested_range(
    kind: str, runs: Sequence[tuple[int, list[tuple[bool, int | None]]]], described: dict[str, Any]
) -> None:
    """That is true for all times of records and all failed slices, also in the stored form."""
    is_precise = "T" in described.get("datetime_format", "")
    zero = "T00:00:00" if is_precise else ""
    end, exported = 5, None
    greatest = _START
    for more, answers in runs:
        end += more
        made = cursor(
            **{
                **described,
                "start_datetime": f"2024-01-01{zero}",
                "end_datetime": day(end).strftime("%Y-%m-%d") + zero,
            }
        )
        state = _KINDS[kind](exported, cursor=made)
        partitions = [StreamSlice()] if kind == "one" else [team("a"), team("b")]
        slices = [slice_ for partition in partitions for slice_ in list(state.slices(partition))]
        failed = False
        for number, slice_ in enumerate(slices):
            is_read, latest = answers[number] if number < len(answers) else (True, None)
            failed = failed or not is_read
            if is_read:
                greatest = max(greatest, made.parse(slice_["end_time"]))
                state.note(slice_, None if latest is None else _START + timedelta(hours=7 * latest))
        if not failed:
            state.complete()
        assert max(_reached(state), default=_START) <= greatest
        exported = stored(state)
        assert max(_reached(_KINDS[kind](exported, cursor=made)), default=_START) <= greatest


def test_a_state_of_others_does_not_exceed_its_intervals() -> None:
    interval = {
        "start": "2024-01-01",
        "end": "2024-01-08",
        "most_recent_cursor_value": "2031-05-05",
    }
    state = state_of({"state_type": "date-range", "slices": [interval]})
    assert state.export() == {"updated": "2024-01-08"}
    read(state, StreamSlice(), None)
    state.complete()
    assert state.export() == {"updated": "2024-01-08"}


def test_records_beyond_their_slice_are_logged_once() -> None:
    state = state_of(stream="orders")
    with capture_logs() as logs:
        for slice_ in list(state.slices(StreamSlice())):
            state.note(slice_, state.cursor.parse(slice_["end_time"]) + timedelta(hours=17))
        assert logs == []
        for latest in (day(11), day(12), datetime(2999, 5, 5, tzinfo=UTC)):
            read(state, StreamSlice(), None)
            for slice_ in list(state_of().slices(StreamSlice()))[-2:]:
                state.note(slice_, latest)
    assert [(event["event"], event["log_level"], event["stream"]) for event in logs] == [
        ("records_beyond_their_slice", "info", "orders"),
        ("records_from_the_future", "warning", "orders"),
    ]


#: Formats, the smallest unit of each, and how an API parses a time in it. The last is independent
#: of the code under test.
def _iso(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _since_1970(unit: timedelta) -> Callable[[str], datetime]:
    return lambda text: datetime(1970, 1, 1, tzinfo=UTC) + float(text) * unit


_SECOND, _MILLISECOND, _MICROSECOND = (
    timedelta(microseconds=micros) for micros in (10**6, 1000, 1)
)
FORMATS: dict[str, tuple[timedelta, Callable[[str], datetime]]] = {
    "%Y-%m-%d": (timedelta(days=1), _iso),
    "%Y%m%d": (timedelta(days=1), _iso),
    "%d-%m-%Y": (timedelta(days=1), lambda text: _iso("-".join(reversed(text.split("-"))))),
    "%m-%d-%Y": (timedelta(days=1), lambda text: _iso(f"{text[6:]}-{text[:5]}")),
    "%d/%m/%Y %H:%M": (
        timedelta(minutes=1),
        lambda text: _iso("-".join(reversed(text[:10].split("/"))) + text[10:]),
    ),
    "%Y-%m-%dT%H": (timedelta(hours=1), _iso),
    "%Y-%m-%dT%H:%M:%S": (_SECOND, _iso),
    "%Y-%m-%dT%H:%M:%SZ": (_SECOND, _iso),
    "%Y-%m-%dT%H:%M:%S%z": (_SECOND, _iso),
    "%Y-%m-%d %H:%M:%S": (_SECOND, _iso),
    "%Y-%m-%d %H:%M:%S%z": (_SECOND, _iso),
    "%Y-%m-%dT%H:%M:%S+00:00": (_SECOND, _iso),
    "%Y-%m-%dT%H:%M:%S+0000": (_SECOND, _iso),
    "%Y-%m-%dT%H:%M:%S-12:00": (_SECOND, _iso),
    "%Y-%m-%dT%H:%M:%S+0530": (_SECOND, _iso),
    "%Y-%m-%dT%H:%M:%S.%f": (_MICROSECOND, _iso),
    "%Y-%m-%dT%H:%M:%S.%fZ": (_MICROSECOND, _iso),
    "%Y-%m-%dT%H:%M:%S.%f%z": (_MICROSECOND, _iso),
    "%Y-%m-%d %H:%M:%S.%f+05:45": (_MICROSECOND, _iso),
    "%Y-%m-%dT%H:%M:%S.%_msZ": (_MILLISECOND, _iso),
    "%Y-%m-%dT%H:%M:%S.%_ms%z": (_MILLISECOND, _iso),
    "modified:gt:%Y-%m-%dT%H:%M:%SZ": (_SECOND, lambda text: _iso(text[12:])),
    "%Y-%m-%d %H:%M:%S %Z": (_SECOND, lambda text: _iso(text.replace(" UTC", "Z"))),
    "%s": (_SECOND, _since_1970(_SECOND)),
    "%s_as_float": (_MILLISECOND, _since_1970(_SECOND)),
    "%ms": (_MILLISECOND, _since_1970(_MILLISECOND)),
    "%epoch_microseconds": (_MICROSECOND, _since_1970(_MICROSECOND)),
}
#: Formats without a time zone.
CLOCKLESS = {
    "%Y-%m-%d",
    "%Y%m%d",
    "%d-%m-%Y",
    "%m-%d-%Y",
    "%d/%m/%Y %H:%M",
    "%Y-%m-%dT%H",
    "%Y-%m-%dT%H:%M:%S",
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%dT%H:%M:%S.%f",
}
_OFFSETS = [timezone(timedelta(minutes=minutes)) for minutes in (0, 420, -300, 345, 840, -720)]
_RECORD_AT = datetime(2024, 3, 5, 20, 10, 30, 123456, UTC)


def written(at: datetime, code: str, offset: timezone) -> str | None:
    """Format a record's time as an API does that reads the format as `FORMATS` describes."""
    if (digits := re.search(r"[+-]\d\d:?\d\d$", code)) is not None:
        offset = datetime.strptime(digits[0], "%z").tzinfo  # type: ignore[assignment]
    elif "%z" not in code:
        offset = UTC
    if code in {"%s", "%ms", "%epoch_microseconds"}:
        return str((at - datetime(1970, 1, 1, tzinfo=UTC)) // FORMATS[code][0])
    if code == "%s_as_float":
        return str(at.timestamp())
    milliseconds = f"{at.microsecond // 1000:03d}"
    return at.astimezone(offset).strftime(code.replace("%_ms", milliseconds))


@pytest.mark.differs("times with an offset")
@pytest.mark.differs("offsets in a format")
@pytest.mark.differs("a state's format")
@pytest.mark.parametrize("output", FORMATS)
def test_a_state_is_never_ahead_of_its_records_whatever_the_formats_and_offsets(
    output: str,
) -> None:
    """For each pair of formats: what is written is not after the record, nor a unit before it."""
    unit, understood = FORMATS[output]
    for code, offset in itertools.product(FORMATS, _OFFSETS):
        described = cursor(
            cursor_datetime_formats=[code],
            datetime_format=output,
            start_datetime={
                "type": "MinMaxDatetime",
                "datetime": "2024-01-01",
                "datetime_format": "%Y-%m-%d",
            },
            end_datetime={
                "type": "MinMaxDatetime",
                "datetime": "2024-04-01",
                "datetime_format": "%Y-%m-%d",
            },
            step=None,
            cursor_granularity=None,
        )
        text = written(_RECORD_AT, code, offset)
        record = FORMATS[code][1](text)
        first = state_of(cursor=described)
        ((slice_),) = list(first.slices(StreamSlice()))
        assert described.reader.micros(text) == micros_of(record), (code, offset)
        first.note(slice_, described.parse_record_time(text))
        first.complete()

        value = first.export()["updated"]
        at = record
        if output in CLOCKLESS and record.tzinfo is not None:
            # The digits of the API's own clock, which may be what it compares.
            at = min(record, record.replace(tzinfo=UTC))
        assert timedelta(0) <= at - understood(value) < unit, (code, offset, value)
        ((again),) = list(state_of(stored(first), cursor=described).slices(StreamSlice()))
        assert again["start_time"] == value, (code, offset)


@pytest.mark.parametrize("clock", [timezone(timedelta(hours=hours)) for hours in (-11, -5, 0, 9)])
@pytest.mark.parametrize("code", ["%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"])
def test_no_change_is_missed_whether_an_api_reads_its_own_clock_or_utc(
    clock: timezone, code: str
) -> None:
    """The API shows its times with an offset, and is asked for times without one."""
    rows = [datetime(2026, 1, 5, 21, 0, tzinfo=clock) + timedelta(hours=3 * n) for n in range(4)]
    described = stream(
        incremental_sync={
            "type": "DatetimeBasedCursor",
            "cursor_field": "updated",
            "datetime_format": code,
            "cursor_datetime_formats": ["%Y-%m-%dT%H:%M:%S%z"],
            "start_datetime": {
                "type": "MinMaxDatetime",
                "datetime": "2026-01-01",
                "datetime_format": "%Y-%m-%d",
            },
            "end_datetime": {
                "type": "MinMaxDatetime",
                "datetime": "2026-02-01",
                "datetime_format": "%Y-%m-%d",
            },
            "start_time_option": option("since"),
        }
    )
    for read_as in (clock, UTC):
        there: list[int] = []

        def answer(
            asked: ReceivedRequest, read_as: Any = read_as, there: list[int] = there
        ) -> Reply:
            since = datetime.strptime(asked.params["since"], code).replace(tzinfo=read_as)
            found = [
                {"id": number, "updated": rows[number].isoformat()}
                for number in there
                if rows[number] >= since
            ]
            return Reply({"data": found})

        state, seen = None, set[int]()
        with Api({"/items": answer}) as api:
            for number in range(len(rows)):
                there.append(number)
                found = read_stream(described, api, state)
                assert found.result.failure is None
                state = found.result.state
                seen |= set(found.ids)
        assert seen == set(range(len(rows))), (read_as, api.requests)
