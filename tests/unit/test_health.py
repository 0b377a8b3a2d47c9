"""Metrics do not wait for sources that do not respond."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from chronolake.config import Project
from chronolake.engine import health
from chronolake.source.protocol import Lag


def test_requests_do_not_queue_up_behind_a_source_that_does_not_respond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, responds = threading.Event(), threading.Event()

    def lags(_: object) -> Iterator[tuple[str, Lag]]:
        asked.set()
        assert responds.wait(60)
        yield "shop", Lag(1, 2, None)

    monkeypatch.setattr(health, "_lags_of", lags)
    collector = health.LakeCollector(lambda: cast("Project", None), lambda: None)
    first: list[Any] = []
    request = threading.Thread(target=lambda: first.append(collector._current_lags()))
    request.start()
    assert asked.wait(60)

    assert collector._current_lags() == {}
    responds.set()
    request.join()
    assert first == [{"shop": Lag(1, 2, None)}]
    assert collector._current_lags() == first[0]
