"""A pipeline whose process is restarted misses no time of its schedule."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chronolake.config import Project, load
from chronolake.errors import PipelineBusyError
from chronolake.lake import Lake
from chronolake.pipeline import scheduled
from chronolake.pipeline.runs import Status
from chronolake.schedule import Moment


@pytest.mark.parametrize(
    ("last_run", "runs"), [(None, 1), (timedelta(hours=3), 1), (timedelta(0), 0)]
)
def test_a_cron_time_that_passes_during_a_restart_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last_run: timedelta | None, runs: int
) -> None:
    now = datetime.now(UTC)
    passed = now - timedelta(hours=1)
    config = load(tmp_path)
    pipeline = cast("Any", SimpleNamespace(every=f"{passed.minute} {passed.hour} * * *"))
    project = Project(tmp_path / "chronolake.yml", config, {"shop": pipeline})
    known = [] if last_run is None else [(now - last_run).isoformat()]
    found = [SimpleNamespace(run=SimpleNamespace(began=began)) for began in known]
    is_stopped, ran = Event(), []

    def sync(*_: object) -> Status:
        ran.append(1)
        is_stopped.set()
        return Status.SUCCEEDED

    monkeypatch.setattr(scheduled, "summaries", lambda *_, **__: SimpleNamespace(runs=found))
    monkeypatch.setattr(scheduled, "_sync", sync)
    monkeypatch.setattr(is_stopped, "wait", lambda _: is_stopped.set())
    lake = cast("Lake", SimpleNamespace(config=config))
    since = Moment.now()._replace(at=now - timedelta(hours=5))

    scheduled.sync_on_schedule(lake, lambda: project, "shop", is_stopped, since)

    assert len(ran) == runs


@pytest.mark.parametrize("every", ["1s", "* * * * *"])
def test_a_pipeline_that_a_command_runs_stays_due_and_does_not_back_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: str
) -> None:
    config = load(tmp_path)
    pipeline = cast("Any", SimpleNamespace(every=every))
    project = Project(tmp_path / "chronolake.yml", config, {"shop": pipeline})
    is_stopped = Event()
    waits: list[float] = []
    outcomes: list[Exception | None] = [PipelineBusyError("busy")] * 20 + [None]

    def sync(*_: object) -> Status:
        if (failure := outcomes.pop(0)) is not None:
            raise failure
        is_stopped.set()
        return Status.SUCCEEDED

    monkeypatch.setattr(scheduled, "summaries", lambda *_, **__: SimpleNamespace(runs=[]))
    monkeypatch.setattr(scheduled, "_sync", sync)
    monkeypatch.setattr(is_stopped, "wait", waits.append)
    lake = cast("Lake", SimpleNamespace(config=config))
    since = Moment.now()._replace(at=datetime.now(UTC) - timedelta(hours=1))

    scheduled.sync_on_schedule(lake, lambda: project, "shop", is_stopped, since)

    assert not outcomes
    assert len(waits) == 20
    assert max(waits) <= 2
