"""Slices that Spark's tasks read: the same tables, the same requests, one budget and one token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from apis import Api
from structlog.testing import capture_logs
from test_declarative import Shop

from chronolake.config import load_project
from chronolake.pipeline.store import Status, Store

_DAYS = 12


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with Api() as api:
        shop = Shop(tmp_path, api)
        _only_orders(shop, "spark_from_mib: 0\n      concurrency: 4")
        yield shop


def _only_orders(shop: Shop, more: str) -> None:
    shop.configure(more=f"only: [orders]\n      {more}", end=f"2026-01-{_DAYS + 1}")
    file = shop.project.file
    words = "      customers: {mode: live}\n      notes: {mode: soft-delete}\n"
    file.write_text(file.read_text().replace(words, "").replace("    streams:\n", ""))
    shop.project = load_project(file)


def _spread(shop: Shop) -> list[int]:
    """How many slices each job read, of a sync."""
    with capture_logs() as told:
        shop.sync()
    return [one["slices"] for one in told if one["event"] == "slices_spread"]


def test_tasks_read_what_the_driver_would(shop: Shop) -> None:
    for number in range(1, 3 * _DAYS):
        shop.put(number, f"{1 + number % _DAYS:02d}", state="new", total=number)
    # What no schema knows has other types in other slices.
    shop.put(50, "02", extra=1)
    shop.put(51, "09", extra="one")
    assert _spread(shop) == [_DAYS + 1]
    days = [f"{day:02d}" for day in range(1, _DAYS + 2)]
    asked = [(one.params["since"], one.params.get("offset")) for one in shop.api.asked]
    assert len(asked) == len(set(asked))
    assert shop.days_asked() == days
    assert [row[:2] for row in shop.versions("id", "state")] == [
        *((number, "new") for number in range(1, 3 * _DAYS)),
        (50, None),
        (51, None),
    ]
    extra = {row["id"]: row["extra"] for row in shop.table("orders").to_pylist()}
    assert extra[50] == "1"
    assert extra[51] == "one"
    assert Store.open(shop.project.lake).checkpoints("shop")["orders"]["state"] == {
        "updated_at": f"2026-01-{_DAYS}T12:00:00Z"
    }
    assert not list(shop.folder.rglob("*.arrow"))


def test_a_slice_that_fails_in_a_task_keeps_what_others_have_brought(shop: Shop) -> None:
    for number in range(1, _DAYS + 1):
        shop.put(number, f"{number:02d}", state="new")
    shop.closed_days = {"02", "07"}
    with capture_logs():
        (run,) = shop.sync().values()
    assert run.status is Status.FAILED
    assert "/orders is answered with status 403" in str(run.error)
    assert [row[0] for row in shop.versions("id")] == [1, 3, 4, 5, 6, 8, 9, 10, 11, 12]
    shop.days_asked()
    shop.closed_days = set()
    shop.synced()
    assert shop.days_asked()[:2] == ["02", "07"]
    assert len(shop.versions("id")) == _DAYS
