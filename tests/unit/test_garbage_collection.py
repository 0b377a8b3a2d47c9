"""Java objects that a process no longer uses are freed, in a small share of its time."""

from __future__ import annotations

import gc
import time

import pytest

from chronolake import session


def collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats()[2:])


def test_the_next_collection_waits_many_times_the_duration_of_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "_next", 0.0)
    begin = time.monotonic()
    before = collections()

    session.collect_garbage()
    end = time.monotonic()
    session.collect_garbage()

    assert collections() == before + 1
    assert begin + 2 <= session._next <= end + max(2, 20 * (end - begin))


def test_a_large_process_collects_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_next", 0.0)
    # A collection visits all of them.
    objects: list[list[int]] = [[number] for number in range(3_000_000)]

    begin = time.monotonic()
    session.collect_garbage()
    spent = time.monotonic() - begin

    assert objects
    assert session._next - begin >= max(2, 10 * spent)


def test_a_failed_collection_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "_next", 0.0)
    monkeypatch.setattr(gc, "collect", fail)
    with pytest.raises(KeyboardInterrupt):
        session.collect_garbage()
    assert session._next < time.monotonic() + 60
