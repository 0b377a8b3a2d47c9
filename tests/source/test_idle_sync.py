"""A sync of a source without changes starts no JVM; any change, of data or settings, starts one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from chronolake.errors import CommitConflictError
from chronolake.lake import Lake
from chronolake.pipeline.store import Status
from chronolake.pipeline.sync import sync
from chronolake.types import TableName
from support.datalakes import DataLake, project
from support.declarative.apis import Api
from support.processes import COMMAND
from support.source.apishop import ApiShop
from support.source.databases import Shop

_ORDERS = TableName("shop", "orders")


def _sync_lazily(shop: Shop | ApiShop) -> bool:
    """Sync with a lake that was only prepared; return whether that has started Spark."""
    lake = Lake.prepare(shop.project.lake)
    result = sync(lake, shop.project, "shop")
    assert result.status is Status.SUCCEEDED, result.streams
    return lake.has_started


@pytest.fixture
def filled(shop: Shop) -> Shop:
    """Return a database with a table that has been synced."""
    shop.run(
        "CREATE TABLE orders (id int PRIMARY KEY, state text)",
        "INSERT INTO orders VALUES (1, 'new'), (2, 'new')",
    )
    shop.prepare()
    shop.sync_or_fail()
    return shop


@pytest.mark.long
def test_a_database_without_changes_needs_no_jvm(filled: Shop) -> None:
    # The run after a copy reads the log up to the copy.
    _sync_lazily(filled)
    assert not _sync_lazily(filled)
    filled.run("CREATE TABLE IF NOT EXISTS orders (id int)")
    assert not _sync_lazily(filled)

    filled.run("UPDATE orders SET state = 'paid' WHERE id = 1")
    assert _sync_lazily(filled)
    assert filled.present("orders", ("id", "state")) == [(1, "paid"), (2, "new")]
    assert not _sync_lazily(filled)
    assert filled.agrees()


def test_a_changed_mode_is_applied_without_new_data(filled: Shop) -> None:
    _sync_lazily(filled)
    filled.configure(mode="live")
    assert _sync_lazily(filled)
    assert not _sync_lazily(filled)


def test_the_command_works_without_java_if_nothing_changed(filled: Shop) -> None:
    _sync_lazily(filled)
    environment = {**os.environ, "JAVA_HOME": "/nonexistent", "PATH": "/nonexistent"}

    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "sync", "shop", "--project", str(filled.folder)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert (done.returncode, "nothing new" in done.stdout) == (0, True), done.stderr
    assert "Starting Spark" not in done.stderr


@pytest.mark.long
def test_an_api_without_new_records_needs_no_jvm(tmp_path: Path, api: Api) -> None:
    shop = ApiShop(tmp_path, api)
    shop.configure("orders: {}")
    shop.put(1)
    shop.sync_or_fail()
    shop.orders.clear()
    assert not _sync_lazily(shop)

    shop.put(2, at="02-02")
    assert _sync_lazily(shop)
    assert shop.rows("orders", "id") == [(1,), (2,)]


_MODES = ("history", "soft-delete", "live")
_OWNER = {"name": "x", "place": {"city": "y"}}


@pytest.mark.long
@pytest.mark.parametrize("mode", _MODES)
def test_an_api_that_returns_its_last_records_again_needs_no_jvm(
    tmp_path: Path, api: Api, mode: str
) -> None:
    shop = ApiShop(tmp_path, api)
    shop.configure(f"orders: {{mode: {mode}}}")
    shop.put(1, state="new", owner=_OWNER)
    shop.put(2)
    shop.sync_or_fail()
    # The cursor is inclusive: both records are returned in every run.
    assert not _sync_lazily(shop)

    shop.put(2, state="paid")
    assert _sync_lazily(shop)
    assert shop.rows("orders", "id", "state")[-1] == (2, "paid")
    assert not _sync_lazily(shop)
    shop.put(2)
    assert _sync_lazily(shop)
    shop.put(3)
    assert _sync_lazily(shop)
    shop.orders[3]["comment"] = "a new field"
    assert _sync_lazily(shop)
    assert not _sync_lazily(shop)
    assert {row[0] for row in shop.rows("orders", "id")} == {1, 2, 3}
    assert shop.agrees()


@pytest.mark.long
@pytest.mark.sampled
@pytest.mark.parametrize("mode", _MODES[1:])
def test_a_stream_without_a_cursor_needs_no_jvm_if_all_records_are_the_same(
    tmp_path: Path, api: Api, mode: str
) -> None:
    shop = ApiShop(tmp_path, api)
    shop.configure(f"teams: {{mode: {mode}}}")
    for team in (1, 2, 3):
        shop.note(team)
    shop.sync_or_fail()
    assert not _sync_lazily(shop)

    # The remaining records equal the table's, but one is missing.
    del shop.notes[2]
    assert _sync_lazily(shop)
    assert not _sync_lazily(shop)
    shop.note(2)
    assert _sync_lazily(shop)
    assert not _sync_lazily(shop)
    shop.notes = {4: []}
    assert _sync_lazily(shop)
    assert shop.agrees()


@pytest.fixture
def api() -> Iterator[Api]:
    with Api() as served:
        yield served


def _row(name: str, day: int) -> dict[str, Any]:
    return {
        "Id": "1",
        "Name": name,
        "source__modified": datetime(2026, 1, day, tzinfo=UTC),
        "grax__idseq": str(day),
    }


def test_a_data_lake_without_new_files_needs_no_jvm(tmp_path: Path) -> None:
    source = DataLake(tmp_path / "source")
    source.write("Account", [_row("a", 1)])
    found = project(
        tmp_path,
        f"  crm: {{source: {{type: data_lake_v2, path: '{source.root}', org: X}}}}\n",
    )
    sync(Lake.open(found.lake.path, config=found.lake), found, "crm")

    idle = Lake.prepare(found.lake)
    assert sync(idle, found, "crm").status is Status.SUCCEEDED
    assert not idle.has_started

    source.write("Account", [_row("b", 2)])
    busy = Lake.prepare(found.lake)
    assert sync(busy, found, "crm").status is Status.SUCCEEDED
    assert busy.has_started


def test_a_state_that_was_read_without_java_conflicts_with_later_commits(filled: Shop) -> None:
    stale = Lake.prepare(filled.project.lake).catalog.load(_ORDERS)
    filled.run("INSERT INTO orders VALUES (3, 'new')")
    filled.sync_or_fail()
    change = stale.builder().setProperties(stale.catalog.map({"a": "b"})).build()

    with pytest.raises(CommitConflictError):
        stale.commit(change)

    fresh = Lake.prepare(filled.project.lake).catalog.load(_ORDERS)
    fresh.commit(fresh.builder().setProperties(fresh.catalog.map({"a": "b"})).build())
    assert filled.lake.catalog.load(_ORDERS).property_of("a") == "b"


def test_both_ways_of_reading_a_state_agree(filled: Shop) -> None:
    stored = Lake.prepare(filled.project.lake).catalog.load(_ORDERS)
    loaded = filled.lake.catalog.load(_ORDERS)

    assert stored.properties == loaded.properties
    assert stored.fields == loaded.fields
    assert (stored.location, stored.metadata_file) == (loaded.location, loaded.metadata_file)
    assert (stored.snapshot_id, stored.rows) == (loaded.snapshot_id, loaded.rows)
    assert str(stored.metadata.uuid()) == str(loaded.metadata.uuid())


def test_java_starts_with_options_for_small_work_only_if_little_is_known_to_follow(
    filled: Shop,
) -> None:
    def prepare(*, is_short_lived: bool = True) -> Lake:
        return Lake.prepare(filled.project.lake, is_short_lived=is_short_lived)

    unknown = prepare()
    assert not unknown._is_small
    small = prepare()
    small.note_tables([_ORDERS])
    assert small._is_small
    small.note_work(2**30)
    assert not small._is_small
    missing = prepare()
    missing.note_tables([_ORDERS, TableName("shop", "missing")])
    assert not missing._is_small
    lasting = prepare(is_short_lived=False)
    lasting.note_tables([_ORDERS])
    assert not lasting._is_small
