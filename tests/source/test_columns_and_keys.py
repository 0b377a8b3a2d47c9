"""The user can configure the columns and the keys of an API's streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from chronolake.pipeline.store import Status
from chronolake.types import ACTIVE
from support.commands import run_words
from support.declarative.apis import Api, Reply
from support.source.apishop import ApiShop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[ApiShop]:
    with Api() as api:
        yield ApiShop(tmp_path, api)


@pytest.mark.long
def test_objects_become_columns_if_configured(shop: ApiShop) -> None:
    shop.configure("orders: {}", "live: {mode: live, nested: columns}")
    ann = {"name": "Ann", "place": {"city": "Bonn", "zip": 1}}
    shop.put(1, "02-01", owner=ann)
    shop.put(2, "02-02", owner=None)
    shop.sync_or_fail()
    whole = '{"name":"Ann","place":{"city":"Bonn","zip":1}}'
    assert shop.rows("orders", "id", "owner") == [(1, whole), (2, None)]
    names = ("id", "owner_name", "owner_place_city", "owner_place")
    assert shop.rows("live", *names) == [(1, "Ann", "Bonn", '{"zip":1}'), (2, None, None, None)]

    # Existing values stay unchanged in their own column.
    shop.configure("orders: {}", "live: {mode: live}", more="nested: columns")
    shop.put(3, "02-03", owner={"name": "Ben"})
    shop.put(2, "02-02", owner={"name": "Bob"})
    shop.sync_or_fail()
    assert shop.rows("orders", "id", "owner", "owner_name") == [
        (1, whole, None),
        (2, None, "Bob"),
        (3, None, "Ben"),
    ]
    shop.configure("orders: {nested: json}")
    shop.put(4, "02-04", owner={"name": "Cora"})
    shop.sync_or_fail()
    assert shop.rows("orders", "id", "owner", "owner_name")[3] == (4, '{"name":"Cora"}', None)

    shop.configure("orders: {nested: columns}")
    shop.put(5, "02-05", owner={"name": "Dora"}, owner_name="Eve")
    run = shop.sync()["orders"]
    assert run.status is Status.FAILED
    assert "The fields owner.name and owner_name of the stream orders" in str(run.error)


def test_cursor_in_the_key_distinguishes_changes(
    shop: ApiShop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.configure("orders: {cursor_in_key: true}", "live: {mode: live}")
    shop.put(1, "02-01", state="new")
    shop.sync_or_fail()
    shop.put(1, "02-02", state="paid")
    shop.put(2, "02-03", state="new")
    shop.sync_or_fail()
    assert shop.rows("orders", "id", "state", ACTIVE) == [
        (1, "new", True),
        (1, "paid", True),
        (2, "new", True),
    ]
    _, reported, _ = run_words(capsys, "discover", "shop", "--json", "--project", str(shop.folder))
    keys = {load["stream"]: load["key"] for load in json.loads(reported)}
    assert keys == {"orders": ["id", "updated_at"], "live": ["id"]}

    # Another key needs another table, and a key has no nulls.
    shop.configure("orders: {}", "live: {mode: live, cursor_in_key: true}")
    shop.put(3, "02-04")
    runs = shop.sync()
    assert "key is id, but the table's key is id, updated_at" in str(runs["orders"].error)
    assert "key is id, updated_at, but the table's key is id" in str(runs["live"].error)
    shop.configure("orders: {cursor_in_key: true}")
    shop.api.on("/orders", lambda _: Reply({"data": [{"id": 4, "updated_at": None}]}))
    run = shop.sync()["orders"]
    assert "A record has no updated_at, which is part of its key" in str(run.error)
    assert [row[0] for row in shop.rows("orders", "id")] == [1, 1, 2]
