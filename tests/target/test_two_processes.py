"""Two processes publish one table: the second waits, or fails, and never interleaves."""

from __future__ import annotations

import threading

import pytest

from chronolake.errors import ChronolakeError, TargetBusyError
from chronolake.target import mysql, postgres
from chronolake.target.selection import database_of, relation_of
from support.target.targets import LIVE, Target, write


@pytest.mark.sampled
def test_second_process_fails_while_the_first_holds_the_lease(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (postgres, mysql):
        monkeypatch.setattr(module, "BUSY_SECONDS", 1.0)
    write(target.lake, range(10), "first")
    database = database_of("reporting", target.config)
    with (
        database.open(relation_of(target.config, LIVE)),
        pytest.raises(TargetBusyError, match="Another process"),
    ):
        target.publish(LIVE)
    target.publish(LIVE)
    target.expect_equal(LIVE)


@pytest.mark.sampled
def test_publications_at_the_same_time_are_serial(target: Target) -> None:
    write(target.lake, range(10), "first")
    target.publish(LIVE)
    write(target.lake, range(5, 500), "second")
    failures: list[ChronolakeError] = []

    def publish() -> None:
        try:
            target.publish(LIVE)
        except ChronolakeError as failure:
            failures.append(failure)

    threads = [threading.Thread(target=publish) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    target.expect_equal(LIVE)
