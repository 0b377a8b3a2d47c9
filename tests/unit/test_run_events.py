"""Progress of a run: recorded often enough to be watched, and rarely enough to cost nothing."""

from __future__ import annotations

import time
from pathlib import Path
from unittest.mock import patch

import sqlalchemy as sql
import structlog

from chronolake.config import load
from chronolake.errors import LakeError
from chronolake.pipeline import run_history
from chronolake.pipeline.events import Report
from chronolake.pipeline.runs import Run, Stage, Status, StreamRun
from chronolake.pipeline.store import Store
from support.waiting import wait_until

_RUN = Run("r", "shop", "2026-01-01T00:00:00.000Z", None, Status.RUNNING, "here:1:")


def _stream(rows: int, stage: Stage | None = Stage.APPLYING) -> StreamRun:
    return StreamRun("r", "orders", "shop.orders", Status.RUNNING, rows=rows, stage=stage)


def _opened(folder: Path) -> tuple[Store, list[str]]:
    """Open a store; return it and the statements that write the offsets of streams."""
    store = Store.open(load(folder))
    store.begin_run(_RUN)
    written: list[str] = []

    @sql.event.listens_for(store._engine, "before_cursor_execute")
    def _told(_1: object, _2: object, statement: str, *_: object) -> None:
        if statement.startswith("INSERT INTO chronolake_stream_runs"):
            written.append(statement)

    return store, written


def test_steps_are_noted_once_a_second_at_most_and_the_last_one_always(tmp_path: Path) -> None:
    store, written = _opened(tmp_path)
    began = time.monotonic()
    with Report(store, _RUN, lambda _: None) as report:
        for rows in range(20_000):
            report.note_soon(_stream(rows))
        took = time.monotonic() - began
    assert len(written) <= took + 2
    assert [stream_run.rows for stream_run in store.streams_of("r")] == [19_999]


def test_what_waits_never_overwrites_what_was_noted_at_once(tmp_path: Path) -> None:
    store, written = _opened(tmp_path)
    with Report(store, _RUN, lambda _: None) as report:
        report.note_soon(_stream(1))
        report.note([_stream(2, None)])
    assert len(written) == 1
    assert store.streams_of("r") == [_stream(2, None)]


def test_a_step_is_seen_within_seconds_although_nothing_follows(tmp_path: Path) -> None:
    store, _ = _opened(tmp_path)
    with Report(store, _RUN, lambda _: None) as report:
        report.note_soon(_stream(7))
        wait_until(lambda: store.streams_of("r"), "it is not stored")
    ((stream_run,),) = (run.streams for run in run_history.runs(load(tmp_path)).runs)
    assert stream_run.record.rows == 7


def test_a_store_that_does_not_answer_stops_no_run_while_it_works(tmp_path: Path) -> None:
    store, _ = _opened(tmp_path)
    away = patch.object(Store, "transaction", side_effect=LakeError("It is away."))
    with (
        structlog.testing.capture_logs() as reported,
        Report(store, _RUN, lambda _: None) as report,
    ):
        with away:
            report.note_soon(_stream(1))
            time.sleep(1.5)
        report.note_soon(_stream(2))
    assert [event["event"] for event in reported] == ["progress_not_noted"]
    assert [stream_run.rows for stream_run in store.streams_of("r")] == [2]
