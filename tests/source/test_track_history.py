"""Changes of untracked columns update the active version, whatever the source."""

from __future__ import annotations

import random
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from chronolake.types import ACTIVE, END, START
from support.commands import run_words
from support.datalakes import iceberg, project
from support.processes import run_command, run_command_until_failpoint
from support.source.databases import Shop

_LARGE = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 200) n)"


@pytest.fixture(params=["logical_replication", "snapshot_diff"])
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _command(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> str:
    code, output, errors = run_words(capsys, *words, "--project", str(folder))
    assert code == 0, output + errors
    return output


@pytest.mark.long
def test_untracked_columns_of_postgresql(
    shop: Shop, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = "track_history: {only: [STATUS, big]}"
    shop.configure(method=method, rules=rules)
    shop.run(
        "CREATE TABLE items (id int PRIMARY KEY, status text, seen int, big text)",
        f"INSERT INTO items VALUES (1, 'new', 1, {_LARGE}), (2, 'new', 1, NULL)",
    )
    shop.prepare()

    def sync(*statements: str) -> list[tuple[Any, ...]]:
        shop.run(*statements)
        _command(capsys, shop.folder, "sync", "shop")
        return shop.versions("items", ["id", "status", "seen"])

    assert sync() == [(1, "new", 1, True), (2, "new", 1, True)]
    starts = {row["id"]: row[START] for row in shop.table("items").to_pylist()}
    found = sync("UPDATE items SET seen = 2 WHERE id = 1")
    assert found == [(1, "new", 2, True), (2, "new", 1, True)]
    assert {row["id"]: row[START] for row in shop.table("items").to_pylist()} == starts
    found = sync("UPDATE items SET status = 'paid', seen = 3 WHERE id = 1")
    assert found == [(1, "new", 2, False), (1, "paid", 3, True), (2, "new", 1, True)]
    sync("UPDATE items SET seen = 4 WHERE id = 1", "DELETE FROM items WHERE id = 2")
    found = sync("INSERT INTO items VALUES (2, 'new', 5, NULL)")
    tracked = [
        (1, "new", 2, False),
        (1, "paid", 4, True),
        (2, "new", 1, False),
        (2, "new", 5, True),
    ]
    assert found == tracked, "versions are not merged across a deletion"
    before = shop.table("items").to_pylist()
    _command(capsys, shop.folder, "resync", "shop")
    assert shop.table("items").to_pylist() == before
    for words in (["verify"], ["verify", "--against-lake"]):
        _command(capsys, shop.folder, *words, "shop.items")
    shop.configure(method=method)
    assert sync() == [
        (1, "new", 1, False),
        (1, "new", 2, False),
        (1, "paid", 3, False),
        (1, "paid", 4, True),
        (2, "new", 1, False),
        (2, "new", 5, True),
    ], "the raw lake has all changes"
    assert "chronolake.track-history" not in iceberg(shop.project, "shop", "items").properties
    shop.configure(method=method, rules=rules)
    assert sync() == tracked
    assert shop.agrees()
    shop.run("ALTER TABLE items ADD note text")
    found = sync("UPDATE items SET note = 'x' WHERE id = 1")
    assert found == tracked, "a new column is not listed"
    _command(capsys, shop.folder, "rebuild", "shop.items")
    assert shop.versions("items", ["id", "status", "seen"]) == tracked
    assert shop.agrees()


def _merged(states: Iterable[tuple[Any, ...] | None]) -> list[tuple[Any, ...] | None]:
    """Return states of which each differs from the one before by its first value."""
    found: list[tuple[Any, ...] | None] = []
    for state in states:
        before = found[-1] if found else None
        if state is None or before is None or state[0] != before[0]:
            found.append(state)
        else:
            found[-1] = state
    return found


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_random_changes_in_postgresql(shop: Shop, seed: int) -> None:
    """The table has the states that PostgreSQL had, with neighbors of one status merged."""
    chance = random.Random(seed)
    shop.configure(rules="track_history: {except: ['S*']}")
    shop.run("CREATE TABLE items (id int PRIMARY KEY, status text, seen int, size int, big text)")
    shop.prepare()
    shop.sync_or_fail()
    shop.configure(rules="track_history: {except: [seen, 'siz?']}")
    states: dict[int, list[tuple[Any, ...] | None]] = {}
    present: dict[int, tuple[Any, ...]] = {}
    for number in range(120):
        key = chance.randrange(8)
        if key not in present:
            present[key] = (chance.choice("ab"), number, 0)
            status, seen, size = present[key]
            shop.run(
                f"INSERT INTO items VALUES ({key}, '{status}', {seen}, {size}, "
                f"{chance.choice(['NULL', _LARGE])})"
            )
        elif chance.random() < 0.15:
            shop.run(f"DELETE FROM items WHERE id = {key}")
            del present[key]
            states[key].append(None)
            continue
        else:
            status, _, size = present[key]
            status = chance.choice([status, status, "a", "b"])
            present[key] = (status, number, size + 1)
            shop.run(
                f"UPDATE items SET status = '{status}', seen = {number}, size = size + 1 "
                f"WHERE id = {key}"
            )
        states.setdefault(key, []).append(present[key])
        if number % 40 == 39:
            shop.sync_or_fail()
    expected = {(key,): _merged(found) for key, found in states.items()}
    assert shop.states("items", ["id"], ["status", "seen", "size"]) == expected
    assert shop.agrees()


@pytest.mark.long
@pytest.mark.parametrize("failpoint", ["staged.deleted=kill", "staged.appended=kill:2"])
def test_a_killed_run(shop: Shop, failpoint: str) -> None:
    """The version that readers see and the hidden ones change in one step."""
    shop.configure(rules="track_history: {only: [status]}")
    shop.run(
        "CREATE TABLE items (id int PRIMARY KEY, status text, seen int)",
        "INSERT INTO items SELECT n, 'new', 0 FROM generate_series(1, 9) n",
    )
    shop.prepare()
    shop.sync_or_fail()
    before = shop.table("items").to_pylist()
    shop.run("UPDATE items SET seen = 1", "UPDATE items SET status = 'paid' WHERE id = 9")
    words = ("sync", "shop", "--project", str(shop.folder))
    assert run_command_until_failpoint(*words, failpoint=failpoint)
    assert shop.table("items").to_pylist() == before
    code, output = run_command(*words)
    assert code == 0, output
    expected = [(number, "new", 1, number < 9) for number in range(1, 10)]
    assert shop.versions("items", ["id", "status", "seen"]) == [*expected, (9, "paid", 1, True)]
    assert shop.agrees()


_FUNCTIONS = """
    import chronolake

    @chronolake.stream(key="id", cursor="at", deletes="gone", capture="log")
    def orders(state):
        changes = {changes}
        yield [
            {{"id": 1, "at": f"2026-01-01T{{hour:02}}:00:00Z", "status": status, "seen": seen,
              "gone": status is None}}
            for hour, status, seen in changes[state.get("done", 0):]
        ]
        state["done"] = len(changes)
"""


@pytest.mark.long
def test_late_changes_of_a_python_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A late change splits the version that was merged from the changes around it."""
    given = "  p:\n    source: {type: python, run: tracked_functions:orders}\n"
    of = project(tmp_path, given + "    track_history: {only: [status]}\n")
    changes: list[tuple[int, str | None, int]] = []

    def sync(*more: tuple[int, str | None, int]) -> list[tuple[Any, ...]]:
        changes.extend(more)
        code = textwrap.dedent(_FUNCTIONS).format(changes=changes)
        (tmp_path / "tracked_functions.py").write_text(code)
        sys.modules.pop("tracked_functions", None)
        _command(capsys, tmp_path, "sync", "p")
        rows = iceberg(of, "p", "orders").scan().to_arrow().to_pylist()
        return [
            (row[START].hour, None if row[ACTIVE] else row[END].hour, row["status"], row["seen"])
            for row in sorted(rows, key=lambda row: row[START])
        ]

    assert sync((1, "new", 1), (2, "new", 2), (8, "new", 8)) == [(1, None, "new", 8)]
    assert sync((5, "new", 5)) == [(1, None, "new", 8)], "nothing is visible of it"
    # What was seen at 5 is only in hidden rows of the table.
    split = [(1, 5, "new", 5), (6, 7, "paid", 6), (8, None, "new", 8)]
    assert sync((6, "paid", 6)) == split
    found = sync((7, "paid", 7), (10, None, 0), (12, "new", 12))
    assert found == [(1, 5, "new", 5), (6, 7, "paid", 7), (8, 10, "new", 8), (12, None, "new", 12)]
    _command(capsys, tmp_path, "verify", "--against-lake", "p.orders")


def test_a_setting_names_columns_that_exist(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.run("CREATE TABLE items (id int PRIMARY KEY, status text)")
    shop.prepare()
    shop.configure(streams="{public.items: {track_history: {only: [stauts]}}}")
    code, output, _ = run_words(capsys, "check", "--project", str(shop.folder))
    assert code != 0
    assert "track_history.only: the stream has no column 'stauts'" in " ".join(output.split())
