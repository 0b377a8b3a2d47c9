"""A table is switched to another mode while a sync of its stream reads the source."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_declarative import Shop

from chronolake.pipeline.events import Event, EventKind
from chronolake.pipeline.runs import Status
from chronolake.pipeline.store import Store
from chronolake.pipeline.sync import sync
from chronolake.source.declarative import stream_run
from chronolake.types import ACTIVE, DELETED
from support.declarative.apis import Api, ReceivedRequest, Reply

#: Seconds after which a condition that does not become true fails a test.
_PATIENCE = 120


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with Api() as api:
        yield Shop(tmp_path, api)


def wait_until(is_true: Callable[[], bool]) -> None:
    """Wait for a condition."""
    pause = threading.Event()
    for _ in range(_PATIENCE * 20):
        if is_true():
            return
        pause.wait(0.05)
    raise AssertionError("It did not become true.")


def mode_of(shop: Shop) -> str:
    """Return the mode of the orders' table, as PyIceberg sees it."""
    names = set(shop.table("orders").column_names)
    return "history" if ACTIVE in names else "soft-delete" if DELETED in names else "live"


def configure(shop: Shop, mode: str, days: int) -> None:
    shop.configure(
        mode=mode, more="only: [orders]\n      concurrency: 2", end=f"2026-01-{days}", own="{}"
    )


def rows_of(shop: Shop) -> list[dict[str, Any]]:
    """Return the rows of the orders' table, without the times and places of their reads."""
    table = shop.table("orders")
    names = [name for name in table.column_names if not name.startswith("_chronolake")]
    rows = table.select(names).drop_columns(["_fivetran_synced"]).to_pylist()
    return sorted(rows, key=lambda row: tuple(map(str, row.values())))


@pytest.mark.parametrize(
    "modes", [("live",), pytest.param(("live", "soft-delete"), marks=pytest.mark.long)]
)
def test_a_table_is_switched_during_a_long_read_of_an_api(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modes: tuple[str, ...]
) -> None:
    """The API answers the page of a day only after the table was switched: no page is read twice."""
    # Each day lands on its own.
    monkeypatch.setattr(stream_run, "_LANDING_BYTES", 0)
    configure(shop, "history", 10)
    for day in range(1, 28):
        shop.put(day, f"{day:02d}", state="new")
        shop.put(1, f"{min(day, 9):02d}", state=f"changed {min(day, 9)}")
    shop.sync_or_fail()
    shop.days_asked()
    shop.put(1, "20", state="paid")
    shop.put(2, "21", state="paid")
    configure(shop, "history", 28)
    waiting = {f"{12 + 5 * number}": mode for number, mode in enumerate(modes)}

    def answer(asked: ReceivedRequest) -> Reply:
        mode = waiting.pop(asked.params["since"][8:10], None)
        if mode is not None:
            configure(shop, mode, 28)
            wait_until(lambda: mode_of(shop) == mode)
        return shop.answer_orders(asked)

    shop.api.on("/orders", answer)
    events: list[Event] = []
    result = sync(
        shop.lake, shop.project, "shop", watch=events.append, reread=lambda: shop.project
    )

    (stream,) = result.streams
    assert stream.status is Status.SUCCEEDED, stream.error
    pages = [(asked.params["since"], asked.params.get("offset")) for asked in shop.api.requests]
    assert len(pages) == len(set(pages)) >= 18
    switched = [event.mode for event in events if event.kind is EventKind.SWITCHED]
    assert switched == list(modes)
    (recorded,) = Store.open(shop.project.lake).streams_of(result.run)
    assert [change["to"] for change in recorded.changed_modes] == list(modes)
    # The same as a table that is switched between two syncs.
    found = rows_of(shop)
    (tmp_path / "twin").mkdir()
    twin = Shop(tmp_path / "twin", shop.api)
    twin.orders = shop.orders
    configure(twin, "history", 28)
    twin.sync_or_fail()
    configure(twin, modes[-1], 28)
    twin.sync_or_fail()
    assert found == rows_of(twin)
