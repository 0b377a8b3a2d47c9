"""Records that an API returns again unchanged don't land, and change no table."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chronolake.source.declarative import stream_run
from chronolake.types import ACTIVE, DELETED
from support.datalakes import iceberg
from support.declarative.apis import Api, ReceivedRequest, Reply
from support.source.apishop import ApiShop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[ApiShop]:
    with Api() as api:
        yield ApiShop(tmp_path, api)


def _changed_manifest(shop: ApiShop, **cursor: Any) -> None:
    """Give the cursors of all streams more fields."""
    file = shop.folder / "shop.yaml"
    manifest = json.loads(file.read_text())
    for stream in manifest["streams"]:
        if stream.get("incremental_sync", {}).get("type") == "DatetimeBasedCursor":
            stream["incremental_sync"] |= cursor
    file.write_text(json.dumps(manifest))


def _raw_files(shop: ApiShop) -> set[str]:
    raw = Path(shop.project.lake.path) / "raw"
    return {str(file.relative_to(raw)) for file in raw.rglob("*.parquet")}


def _snapshots(shop: ApiShop, *tables: str) -> list[Any]:
    return [iceberg(shop.project, "shop", name).current_snapshot() for name in tables]


_TABLES = ("orders", "soft", "live", "counted", "notes")
_STREAMS = (
    "orders: {}",
    "soft: {mode: soft-delete}",
    "live: {mode: live}",
    "counted: {mode: live}",
    "notes: {}",
)


@pytest.mark.long
def test_a_run_without_changes_lands_nothing_and_commits_nothing(shop: ApiShop) -> None:
    """A run without changes writes nothing, in every mode.

    The streams have a lookback window, partitions, a count, and records without a time.
    """
    shop.configure(*_STREAMS)
    _changed_manifest(shop, lookback_window="P60D")
    for number, day in ((1, "01-20"), (2, "02-01"), (3, "02-01")):
        shop.put(number, day, state="new", owner={"name": "x", "tags": [1, 2]})
    shop.orders[4] = {"id": 4, "state": "undated"}
    shop.note(7, {"id": 1, "state": "a", "updated_at": "2026-01-05T12:00:00Z"}, {"id": 2})
    shop.sync_or_fail()
    files, snapshots = _raw_files(shop), _snapshots(shop, *_TABLES)
    assert len(shop.rows("orders", "id")) == 4

    shop.api.requests.clear()
    for _ in range(2):
        runs = shop.sync()
        assert {name: (run.landed_rows, run.written) for name, run in runs.items()} == (
            dict.fromkeys(_TABLES, (0, 0))
        )
    # They were requested and returned.
    assert {"/orders", "/teams/7/notes"} <= set(shop.api.paths())
    assert _raw_files(shop) == files
    assert _snapshots(shop, *_TABLES) == snapshots

    # Only the changed record lands.
    shop.put(3, "02-01", state="paid", owner={"name": "x", "tags": [1, 2]})
    shop.orders[4] = {"id": 4, "state": "still undated"}
    runs = shop.sync()
    assert {name: run.landed_rows for name, run in runs.items()} == {
        "orders": 2,
        "soft": 2,
        "live": 2,
        "counted": 2,
        "notes": 0,
    }
    assert shop.rows("orders", "id", "state", ACTIVE) == [
        (1, "new", True),
        (2, "new", True),
        # The same time with other content: it replaces the version.
        (3, "paid", True),
        (4, "undated", False),
        (4, "still undated", True),
    ]
    assert shop.rows("soft", "id", "state", DELETED)[-1] == (4, "still undated", False)
    assert shop.agrees()


@pytest.mark.long
def test_a_record_without_a_time_has_one_version_until_its_content_changes(
    shop: ApiShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.configure("orders: {}")
    _changed_manifest(shop, step="P1M")
    shop.put(1, "03-01", state="dated")
    undated = {"id": 2, "state": "first", "updated_at": None}

    def answer(asked: ReceivedRequest) -> Reply:
        found = json.loads(shop.records_between(asked, list(shop.orders.values())).content)["data"]
        # The record is returned with every slice.
        return Reply({"data": [*found, undated]})

    shop.api.on("/orders", answer)
    # Each slice lands separately, so that no landing knows of the others.
    monkeypatch.setattr(stream_run, "_LANDING_BYTES", 1)
    for _ in range(2):
        shop.sync_or_fail()
        assert shop.rows("orders", "id", "state", ACTIVE) == [
            (1, "dated", True),
            (2, "first", True),
        ]
    undated["state"] = "second"
    shop.sync_or_fail()
    undated["state"] = "first"
    shop.sync_or_fail()
    shop.sync_or_fail()
    assert shop.rows("orders", "id", "state", ACTIVE) == [
        (1, "dated", True),
        (2, "first", False),
        (2, "second", False),
        (2, "first", True),
    ]
    # A change now sets its time: from then on it has one.
    undated |= {"state": "third", "updated_at": "2099-01-01T00:00:00Z"}
    shop.sync_or_fail()
    assert shop.rows("orders", "id", "state", ACTIVE)[-1] == (2, "third", True)
    assert len(shop.rows("orders", "id")) == 5
    assert shop.agrees()


@pytest.mark.long
def test_a_future_record_hides_no_change_and_lands_once(shop: ApiShop) -> None:
    """A record from the future is in every answer; it hides no change and lands once."""
    shop.configure("orders: {}", end="2026-02-01T00:00:00Z")
    shop.put(1, "01-05", state="new")
    future = {"id": 2, "state": "odd", "updated_at": "2031-05-05T00:00:00Z"}

    def answer(asked: ReceivedRequest) -> Reply:
        found = json.loads(shop.records_between(asked, list(shop.orders.values())).content)["data"]
        return Reply({"data": [*found, future]})

    shop.api.on("/orders", answer)
    shop.sync_or_fail()
    shop.configure("orders: {}", end="2026-03-01T00:00:00Z")
    assert shop.sync()["orders"].landed_rows == 0
    shop.put(1, "03-05", state="paid")
    shop.configure("orders: {}", end="2026-04-01T00:00:00Z")
    assert shop.sync()["orders"].landed_rows == 1
    assert shop.rows("orders", "id", "state", ACTIVE) == [
        (1, "new", False),
        (1, "paid", True),
        (2, "odd", True),
    ]


@pytest.mark.long
def test_resync_lands_no_unchanged_rows(shop: ApiShop) -> None:
    shop.configure("orders: {}")
    for number in (1, 2, 3):
        shop.put(number, f"0{number}-01", state="new")
    shop.sync_or_fail()
    files = _raw_files(shop)
    shop.put(2, "02-01", state="paid")
    shop.orders.pop(3)
    runs = shop.sync(full_refresh=True)
    assert runs["orders"].landed_rows == 1
    assert len(_raw_files(shop)) == len(files) + 1
    assert [row[:2] for row in shop.rows("orders", "id", "state")] == [
        (1, "new"),
        (2, "paid"),
        (3, "new"),
    ]


@pytest.mark.long
def test_versions_are_the_contents_that_a_record_had_one_after_the_other(shop: ApiShop) -> None:
    """The versions equal the successive contents of a record in a model.

    Random changes are made to records without a time, in columns whose types change.
    """
    shop.configure("orders: {}")
    chance = random.Random(7)
    model: dict[int, list[Any]] = {}
    values: list[Any] = ["a", "b", None, {"x": 1}, [1], "5"]
    for _ in range(6):
        for number in chance.sample(range(8), 4):
            value = chance.choice(values)
            shop.orders[number] = {"id": number, "state": value}
            text = (
                value if isinstance(value, str | None) else json.dumps(value, separators=(",", ":"))
            )
            known = model.setdefault(number, [])
            if not known or known[-1] != text:
                known.append(text)
        shop.sync_or_fail()
    found: dict[int, list[Any]] = {}
    for number, state in shop.rows("orders", "id", "state"):
        found.setdefault(number, []).append(state)
    assert found == dict(sorted(model.items()))
    assert shop.agrees()
