"""Pages over small lakes that PyIceberg made: without Spark and without a browser."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from layout import Make, arrow, column, maker

from chronolake.config import LakeConfig, load
from chronolake.types import TableName
from chronolake.ui.app import application
from chronolake.ui.security import Guard
from chronolake.ui.site import Site

Get = Callable[[str], httpx.Response]
BASE = "http://127.0.0.1:8787"
ORDERS = TableName("shop", "orders")
FIRST, SECOND = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


@pytest.fixture
def config(tmp_path: Path) -> LakeConfig:
    (tmp_path / "lake").mkdir()
    return load(tmp_path / "lake")


@pytest.fixture
def make(config: LakeConfig) -> Make:
    return maker(config)


@pytest.fixture
def get(config: LakeConfig) -> Iterator[Get]:
    site = Site(config)
    transport = httpx.ASGITransport(application(site, Guard(None, only_loopback=True)))

    def answer(url: str) -> httpx.Response:
        async def asked() -> httpx.Response:
            async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
                return await client.get(url)

        return asyncio.run(asked())

    yield answer
    site.close()


def test_only_what_is_a_time_is_shown_as_one(make: Make, get: Get) -> None:
    texts = ["id*:INT", "_chronolake_version:STRING", "_fivetran_synced:UTC_DATETIME"]
    make(ORDERS, texts, [(1, "AT-TZ", FIRST)])

    told = get("/part/past?table=shop.orders").text

    assert 'data-column="_chronolake_version" class="system">AT-TZ</td>' in told
    assert f'<time datetime="{FIRST}">2026-01-01 00:00:00</time>' in told


def test_partitions_of_all_specs_stand_under_their_fields(make: Make, get: Get) -> None:
    texts = ["id:INT", "day:NAIVE_DATE", "place:STRING"]
    table = make(ORDERS, texts, [(1, "2024-01-01", "x")], declared=False)
    columns = [column(text) for text in texts]
    for name in ("day", "place"):
        with table.update_spec() as spec:
            spec.add_identity(name)
            if name == "place":
                spec.remove_field("day")
        table.append(arrow(columns, [(2, "2024-01-02", "here")]))

    page = get("/table?name=shop.orders").text

    shown = page.partition('aria-label="Files by partition"')[2].partition("</table>")[0]
    rows = [row.partition('<td class="n">')[0] for row in shown.split("<tr>")[1:]]
    assert [row.count('<th scope="row">') for row in rows] == [0, 2, 2, 2]
    assert {'<th scope="row">2024-01-02</th><th scope="row"></th>',
            '<th scope="row"></th><th scope="row">here</th>',
            '<th scope="row"></th><th scope="row"></th>'} == set(rows[1:])  # fmt: skip
