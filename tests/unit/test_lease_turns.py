"""Commands get a pipeline's lease between scheduled runs that follow each other without a gap."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from chronolake.config import load
from chronolake.errors import PipelineBusyError
from chronolake.pipeline.lease import hold_lease, wait_until_free
from chronolake.pipeline.store import Store


def test_a_command_gets_its_turn_between_scheduled_runs(tmp_path: Path) -> None:
    store = Store.open(load(tmp_path))
    stopped, began, refused = threading.Event(), threading.Event(), threading.Event()

    def run_without_gaps() -> None:
        while not stopped.is_set():
            try:
                with hold_lease(store, "shop", gives_way=True):
                    began.set()
                    stopped.wait(0.02)
            except PipelineBusyError:
                refused.set()

    schedule = threading.Thread(target=run_without_gaps)
    schedule.start()
    try:
        assert began.wait(60)
        wait_until_free(store, "shop")
        with hold_lease(store, "shop", wait_seconds=60) as lease:
            assert refused.wait(60)
            lease.expect_held()
    finally:
        stopped.set()
        schedule.join()
    with hold_lease(store, "shop", gives_way=True):
        pass


def test_a_command_waits_only_for_a_while(tmp_path: Path) -> None:
    store = Store.open(load(tmp_path))
    with hold_lease(store, "shop"):
        with (
            pytest.raises(PipelineBusyError, match="is run by"),
            hold_lease(store, "shop", wait_seconds=0.2),
        ):
            pass
        with hold_lease(store, "other", gives_way=True):
            pass
    with hold_lease(store, "shop", gives_way=True):
        pass
