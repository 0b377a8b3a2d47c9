"""Java objects that a process no longer uses are freed, in a small share of its time."""

from __future__ import annotations

import gc
import math
import time

import pytest

from chronolake import garbage_collection
from chronolake.garbage_collection import collect_garbage


@pytest.fixture(autouse=True)
def due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage_collection, "_next", 0.0)


def test_the_next_collection_waits_many_times_the_duration_of_the_last() -> None:
    begin = time.monotonic()
    collect_garbage()
    end = time.monotonic()
    assert begin + 2 <= garbage_collection._next <= end + max(2, 20 * (end - begin))


def test_nothing_is_collected_before_the_next_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    monkeypatch.setattr(gc, "collect", lambda: done.append(None))
    collect_garbage()
    assert len(done) == 1
    monkeypatch.setattr(garbage_collection, "_next", math.inf)
    collect_garbage()
    assert len(done) == 1


def test_a_large_process_collects_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    # As if there were millions of objects.
    monkeypatch.setattr(gc, "collect", lambda: time.sleep(0.2))
    begin = time.monotonic()
    collect_garbage()
    assert garbage_collection._next >= begin + 0.2 + 20 * 0.2


def test_a_failed_collection_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(gc, "collect", fail)
    with pytest.raises(KeyboardInterrupt):
        collect_garbage()
    assert garbage_collection._next < math.inf
