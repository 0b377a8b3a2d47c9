"""Pipelines run at their intervals and cron times, and failing ones back off."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronolake.schedule import LONGEST_SECONDS, Moment, Schedule, Timing

_EVERY = st.sampled_from([1.0, 30.0, 300.0, 3_600.0])
_START = datetime(2026, 2, 28, 23, 50, 30, tzinfo=UTC)


def moment(seconds: float) -> Moment:
    return Moment(seconds, _START + timedelta(seconds=seconds))


def schedule_of(text: str) -> Schedule:
    timing = Timing.parse(text)
    return Schedule(lambda _: timing, moment(0))


def test_a_pipeline_that_fails_backs_off_and_resumes() -> None:
    schedule = schedule_of("1s")
    waited = [schedule.note("a", began=moment(0), has_failed=True) for _ in range(12)]
    assert waited[:5] == [2.0, 4.0, 8.0, 16.0, 32.0]
    assert waited[-1] == LONGEST_SECONDS
    assert schedule.failures("a") == 12
    assert schedule.note("b", began=moment(0), has_failed=False) is None
    assert schedule.due(["a", "b", "new"], moment(1)) == ["b", "new"]
    assert schedule.pause("b", moment(0.5)) == 0.5
    assert schedule.note("a", began=moment(600), has_failed=False) is None
    assert schedule.due(["a"], moment(601)) == ["a"]


@given(_EVERY, st.lists(st.booleans(), max_size=80))
def test_runs_are_never_closer_than_the_interval_nor_too_far_apart(
    every: float, ended: list[bool]
) -> None:
    schedule, at, before = Schedule(lambda _: Timing(every)), 0.0, 0.0
    for has_failed in ended:
        schedule.note("a", began=moment(at), has_failed=has_failed)
        pause = schedule.pause("a", moment(at))
        assert every <= pause <= max(every, LONGEST_SECONDS)
        assert pause >= before or not has_failed
        if not has_failed:
            assert pause == every
        assert schedule.due(["a"], moment(at + pause / 2)) == []
        assert schedule.due(["a"], moment(at + pause)) == ["a"]
        at, before = at + pause, pause


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("*/5 * * * *", [270, 570, 870]),
        ("0 0 * * *", [570, 570 + 86_400, 570 + 2 * 86_400]),
        ("0 0 1 MAR *", [570]),
        ("30 6 * * MON-FRI", [23_970 + 86_400]),
    ],
)
def test_a_cron_expression_is_due_at_its_times_in_utc(cron: str, expected: list[int]) -> None:
    schedule = schedule_of(cron)
    for seconds in expected:
        assert schedule.due(["a"], moment(seconds - 1)) == []
        assert schedule.due(["a"], moment(seconds)) == ["a"]
        # The run takes a second, and the clock of intervals plays no part.
        assert schedule.note("a", began=moment(seconds), has_failed=False) is None


def test_times_that_pass_during_a_run_make_a_pipeline_due_once() -> None:
    schedule = schedule_of("* * * * *")
    schedule.note("a", began=moment(30), has_failed=False)

    assert schedule.due(["a"], moment(500)) == ["a"]
    schedule.note("a", began=moment(500), has_failed=False)
    assert schedule.due(["a"], moment(501)) == []


def test_a_failing_pipeline_with_a_cron_expression_leaves_times_out() -> None:
    schedule = schedule_of("* * * * *")
    waited = [schedule.note("a", began=moment(30), has_failed=True) for _ in range(6)]

    # The first time at least 60, 120, 240, 480, 600 and 600 seconds later.
    assert waited == [60.0, 120.0, 240.0, 480.0, 600.0, 600.0]


@pytest.mark.parametrize(
    "text",
    ["", "5", "5 m", "0s", "-1m", "* * * *", "60 * * * *", "0 0 31 2 *", "a b c d e", "@daily"],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"cron|such as|duration"):
        Timing.parse(text)
