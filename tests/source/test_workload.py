"""Random work in a database: history holds one version for each committed change of a record."""

from __future__ import annotations

import random
from typing import Any

import psycopg
import pytest
import workload
from databases import Shop

from chronolake.failpoints import FAILPOINTS
from chronolake.types import ACTIVE, END, START
from processes import COMMAND, killed

_POINTS = [
    name for name in FAILPOINTS if name.startswith(("land.", "sync.", "publish.", "staged."))
]


@pytest.fixture
def shop(shop: Shop) -> Shop:
    """A shop with the tables of the random work."""
    workload.set_up(shop.dsn)
    return shop


def _told(shop: Shop, table: str, names: list[str]) -> dict[tuple[Any, ...], list[Any]]:
    """By key what a history table says that a record was; None where it was not there."""
    found: dict[tuple[Any, ...], list[Any]] = {}
    ends: dict[tuple[Any, ...], int] = {}
    rows = sorted(shop.table(table).to_pylist(), key=lambda row: row[START])
    for row in rows:
        key = tuple(row[name] for name in workload.TABLES[table])
        states = found.setdefault(key, [])
        if key in ends and ends[key] + 1 < row[START]:
            states.append(None)
        states.append(tuple(row[name] for name in names))
        ends[key] = row[END]
        assert row[START] <= row[END]
    for key, states in found.items():
        active = [row for row in rows if row[ACTIVE] and _key(row, table) == key]
        assert len(active) <= 1
        if not active:
            states.append(None)
    return found


def _key(row: dict[str, Any], table: str) -> tuple[Any, ...]:
    return tuple(row[name] for name in workload.TABLES[table])


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 6))]
)
def test_history_is_what_triggers_saw(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    shop.prepare()
    shop.synced()
    for _ in range(4):
        workload.work(shop.dsn, chance, 60)
        with monkeypatch.context() as patched:
            patched.setenv("CHRONOLAKE_FAILPOINT", f"{chance.choice(_POINTS)}=raise")
            shop.sync()
    shop.synced()

    for table in workload.TABLES:
        names = _plain_columns(shop, table)
        assert _told(shop, table, names) == _expected(shop, table, names), table
        with psycopg.connect(shop.dsn) as connection:
            columns = ", ".join(names)
            there = connection.execute(f"SELECT {columns} FROM {table}".encode()).fetchall()
        now = [row for row in shop.table(table).to_pylist() if row[ACTIVE]]
        assert sorted([tuple(row[name] for name in names) for row in now], key=repr) == sorted(
            there, key=repr
        )
    assert shop.agrees()


def _expected(shop: Shop, table: str, names: list[str]) -> dict[tuple[Any, ...], list[Any]]:
    """The same by what triggers saw."""
    return {
        key: [None if state is None else tuple(state[name] for name in names) for state in states]
        for key, states in workload.states(shop.dsn, table).items()
    }


def _plain_columns(shop: Shop, table: str) -> list[str]:
    """The columns whose values are the same in JSON and in Python."""
    rows = shop.rows(
        "SELECT attname FROM pg_attribute WHERE attrelid = "
        f"'public.{table}'::regclass AND attnum > 0 AND atttypid IN (20, 23, 25) ORDER BY attnum"
    )
    return [row[0] for row in rows]


_POINTS_OF_A_SYNC = [
    "land.staged=kill",
    "land.file-published=kill:1",
    "land.file-published=kill:2",
    "land.done=kill:1",
    "land.done=kill:3",
    "land.checkpointed=kill:1",
    "land.checkpointed=kill:2",
    "sync.surveyed=kill",
    "staged.deleted=kill",
    "publish.before-commit=kill",
    "publish.after-commit=kill",
]


@pytest.mark.long
def test_a_sync_may_be_killed_at_every_step(shop: Shop) -> None:
    chance = random.Random(11)
    shop.prepare()
    words = ("sync", "shop", "--project", str(shop.folder))
    died = 0
    for failpoint in _POINTS_OF_A_SYNC:
        workload.work(shop.dsn, chance, 30)
        died += killed(COMMAND, *words, failpoint=failpoint)
    assert not killed(COMMAND, *words, failpoint="")

    assert died == len(_POINTS_OF_A_SYNC)
    for table in workload.TABLES:
        names = _plain_columns(shop, table)
        assert _told(shop, table, names) == _expected(shop, table, names), table
    assert shop.agrees()
