"""Failing pipelines back off, and the others run as often as before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chronolake.cli.pipelines import LONGEST_SECONDS, Schedule

_EVERY = st.sampled_from([1.0, 30.0, 300.0, 3_600.0])


def test_a_pipeline_that_fails_backs_off_and_resumes() -> None:
    schedule = Schedule(1.0)
    waited = [schedule.note("a", began=0.0, has_failed=True) for _ in range(12)]
    assert waited[:5] == [2.0, 4.0, 8.0, 16.0, 32.0]
    assert waited[-1] == LONGEST_SECONDS
    assert schedule.failures("a") == 12
    assert schedule.note("b", began=0.0, has_failed=False) is None
    assert schedule.due(["a", "b", "new"], 1.0) == ["b", "new"]
    assert schedule.pause(["a", "b"], 0.5) == 0.5
    assert schedule.note("a", began=600.0, has_failed=False) is None
    assert schedule.due(["a"], 601.0) == ["a"]


@given(_EVERY, st.lists(st.booleans(), max_size=80))
def test_runs_are_never_closer_than_the_interval_nor_too_far_apart(
    every: float, ended: list[bool]
) -> None:
    schedule, at, before = Schedule(every), 0.0, 0.0
    for has_failed in ended:
        schedule.note("a", began=at, has_failed=has_failed)
        pause = schedule.pause(["a"], at)
        assert every <= pause <= max(every, LONGEST_SECONDS)
        assert pause >= before or not has_failed
        if not has_failed:
            assert pause == every
        assert schedule.due(["a"], at + pause / 2) == []
        assert schedule.due(["a"], at + pause) == ["a"]
        at, before = at + pause, pause


def test_without_pipelines_it_waits_as_usual() -> None:
    assert Schedule(30.0).pause([], 5.0) == 30.0
