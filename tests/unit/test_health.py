"""Metrics do not depend on sources that do not respond or fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

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


def test_any_error_of_a_source_is_logged_without_its_message() -> None:
    project = SimpleNamespace(pipelines={"shop": SimpleNamespace()})

    with capture_logs() as events:
        lags = dict(health._lags_of(cast("Project", project)))

    assert lags == {}
    assert [(event["event"], event["reason"]) for event in events] == [
        ("lag_not_known", "AttributeError")
    ]
