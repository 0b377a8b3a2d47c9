"""Random work in a database: history holds one version for each committed change of a record."""

from __future__ import annotations

import os
import random
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from typing import Any

import pytest

from chronolake.failpoints import FAILPOINTS
from chronolake.pipeline.runs import Status
from support.engines import Up, forks_of
from support.processes import run_command_until_failpoint
from support.seeds import draw_seeds
from support.source import workload
from support.source.databases import Shop
from support.waiting import wait_until

_POINTS = [
    name for name in FAILPOINTS if name.startswith(("land.", "sync.", "publish.", "staged."))
]


@pytest.fixture
def shop(shop: Shop) -> Shop:
    """Return a shop with the tables of the random work."""
    workload.set_up(shop.dsn)
    return shop


@pytest.mark.parametrize(
    ("seed", "syncs"),
    [
        (1, 2),
        *(pytest.param(seed, 4, marks=pytest.mark.long) for seed in draw_seeds("workload", 4)),
    ],
)
def test_history_is_what_triggers_saw(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, seed: int, syncs: int
) -> None:
    chance = random.Random(seed)
    alterations = workload.Alterations()
    shop.prepare()
    shop.sync_or_fail()
    for _ in range(syncs):
        for _ in range(3):
            workload.work(shop.dsn, chance, 20)
            alterations.alter(shop.dsn, chance)
        with monkeypatch.context() as patched:
            patched.setenv("CHRONOLAKE_FAILPOINT", f"{chance.choice(_POINTS)}=raise")
            if shop.sync().status is Status.SUCCEEDED:
                alterations.note_read()
    shop.sync_or_fail()

    for table in workload.TABLES:
        names = workload.plain_columns(shop.dsn, table)
        assert shop.states(table, workload.TABLES[table], names) == _expected(shop, table, names), (
            table
        )
        there = sorted(shop.rows(f"SELECT {', '.join(names)} FROM {table}"), key=repr)
        assert shop.present(table, names) == there
    assert shop.agrees()


def _expected(shop: Shop, table: str, names: list[str]) -> dict[tuple[Any, ...], list[Any]]:
    """Return the same states from the triggers' audit."""
    return {
        key: [
            None if state is None else tuple(state.get(name) for name in names) for state in states
        ]
        for key, states in workload.states(shop.dsn, table).items()
    }


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_a_table_as_of_a_time_is_what_a_reader_saw_then(shop: Shop, seed: int) -> None:
    workload.work(shop.dsn, random.Random(seed), 40)
    shop.prepare()
    shop.sync_or_fail()
    moments = []
    with ThreadPoolExecutor(4) as workers:
        for turn in range(2):
            working = [
                workers.submit(
                    workload.work,
                    shop.dsn,
                    random.Random(f"{seed} {turn} {number}"),
                    50,
                    pause_seconds=0.2,
                )
                for number in range(3)
            ]
            looking = workers.submit(_read_while_working, shop.dsn, working)
            # The log is read while others write.
            shop.sync_or_fail()
            for worker in working:
                worker.result()
            moments += looking.result()
    shop.sync_or_fail()

    assert len(moments) >= 4
    for at, seen in random.Random(seed).sample(moments, min(9, len(moments))):
        for table, rows in seen.items():
            names = workload.plain_columns(shop.dsn, table)
            found = shop.lake.table(f"shop.{table}").as_of(at).select(*names).toArrow()
            assert sorted(found.to_pylist(), key=repr) == sorted(
                ({name: row[name] for name in names} for row in rows), key=repr
            ), (table, at)


def _read_while_working(
    dsn: str, working: list[Future[None]]
) -> list[tuple[datetime, dict[str, list[dict[str, Any]]]]]:
    found = []
    while not all(worker.done() for worker in working):
        found.append(workload.read_all(dsn))
        time.sleep(0.05)
    return [*found, workload.read_all(dsn)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "turns"),
    [
        (1, 3),
        *(pytest.param(seed, 8, marks=pytest.mark.long) for seed in draw_seeds("up", 4)),
    ],
)
def test_history_is_what_triggers_saw_whatever_of_up_is_killed(
    shop: Shop, seed: int, turns: int
) -> None:
    chance = random.Random(seed)
    alterations = workload.Alterations()
    shop.prepare()
    # Changes before the first copy are not part of any history.
    shop.sync_or_fail()
    with shop.project.file.open("a") as file:
        file.write("    every: 1s\nup: {ui: 'off', health: 'off', grace: 60s}\n")
    up = Up(shop.folder)

    def is_current() -> bool:
        _keep_running(up)
        return _is_current(shop)

    up.start()
    try:
        wait_until(up.tasks, "up does not run")
        for _ in range(turns):
            for _ in range(3):
                workload.work(shop.dsn, chance, 20)
                alterations.alter(shop.dsn, chance)
            _end_something(up, chance)
        wait_until(is_current, "up does not read all changes")
        assert up.end(signal.SIGTERM) == 0
    finally:
        up.stop()

    for table in workload.TABLES:
        names = workload.plain_columns(shop.dsn, table)
        there = sorted(shop.rows(f"SELECT {', '.join(names)} FROM {table}"), key=repr)
        assert shop.present(table, names) == there
    assert shop.agrees()


def _end_something(up: Up, chance: random.Random) -> None:
    """Kill a process of `up`, or let it end; start it again if it has ended."""
    assert up.process is not None
    what = chance.choice(["up", "java", "pipeline", "terminated"])
    if what == "java":
        wait_until(lambda: _kill_java(up), "up has no Java")
    elif what == "pipeline":
        for pid in forks_of(up.process):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    else:
        up.end(signal.SIGKILL if what == "up" else signal.SIGTERM)
        up.start()


def _kill_java(up: Up) -> bool:
    """Kill the JVM of `up`; return False while it has none, or does not listen yet."""
    _keep_running(up)
    java = up.state().get("java_pid")
    if java is None:
        return False
    with suppress(ProcessLookupError):
        os.kill(java, signal.SIGKILL)
    return True


def _keep_running(up: Up) -> None:
    """Start `up` again if it has given up, because its JVM was killed too often in a row."""
    assert up.process is not None
    if up.process.poll() == 1:
        up.start()


def _is_current(shop: Shop) -> bool:
    """Return whether the history tables have the states that the triggers saw."""
    for table in workload.TABLES:
        names = workload.plain_columns(shop.dsn, table)
        try:
            found = shop.states(table, workload.TABLES[table], names)
        except KeyError:
            # A new column has not been read yet.
            return False
        if found != _expected(shop, table, names):
            return False
    return True


_POINTS_OF_A_SYNC = [
    "read.log-batch=kill",
    "land.staged=kill",
    "land.file-published=kill:1",
    "land.file-published=kill:2",
    "land.done=kill:1",
    "land.done=kill:2",
    "land.checkpointed=kill:1",
    "land.checkpointed=kill:2",
    "sync.surveyed=kill",
    "staged.deleted=kill",
    "publish.before-commit=kill",
    "publish.after-commit=kill",
]


@pytest.mark.long
def test_sync_can_be_killed_at_every_step(shop: Shop) -> None:
    chance = random.Random(11)
    shop.prepare()
    words = ("sync", "shop", "--project", str(shop.folder))
    # Changes before the first copy are not part of any history.
    assert not run_command_until_failpoint(*words, failpoint="")
    died = 0
    for failpoint in _POINTS_OF_A_SYNC:
        # The failpoints that a run reaches depend on the changes to read.
        for _ in range(3):
            workload.work(shop.dsn, chance, 30)
            if run_command_until_failpoint(*words, failpoint=failpoint):
                died += 1
                break
    assert not run_command_until_failpoint(*words, failpoint="")

    assert died == len(_POINTS_OF_A_SYNC)
    for table in workload.TABLES:
        names = workload.plain_columns(shop.dsn, table)
        assert shop.states(table, workload.TABLES[table], names) == _expected(shop, table, names), (
            table
        )
    assert shop.agrees()
