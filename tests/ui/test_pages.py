"""Pages over small lakes that PyIceberg made: without Spark and without a browser."""

from __future__ import annotations

import asyncio
import html
from collections.abc import Callable, Iterator
from urllib.parse import urlencode

import httpx
import pytest

from chronolake.config import LakeConfig
from chronolake.types import TableName
from chronolake.ui.security import Guard
from chronolake.ui.server import application
from chronolake.ui.site import Site
from support.inspect.layout import HISTORY, TMAX, Make, arrow, column

Get = Callable[[str], httpx.Response]
BASE = "http://127.0.0.1:8787"
ORDERS = TableName("shop", "orders")
FIRST, SECOND = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


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

    reported = get("/part/past?table=shop.orders").text

    assert 'data-column="_chronolake_version" class="system">AT-TZ</td>' in reported
    assert f'<time datetime="{FIRST}">2026-01-01 00:00:00</time>' in reported


def test_the_source_s_own_instants_are_times_on_every_page(make: Make, get: Get) -> None:
    texts = ["id*:INT", "seen:UTC_DATETIME", "said:STRING", *HISTORY]
    ended = "2026-01-01T23:59:59.999Z"
    make(ORDERS, texts, [(1, TMAX, FIRST, FIRST, ended, False),
                         (1, SECOND, SECOND, SECOND, TMAX, True)])  # fmt: skip
    # As a value, the end of time is not an open end.
    old = f'<time datetime="{TMAX}">9999-12-31 23:59:59.999</time>'
    new = f'<time datetime="{SECOND}">2026-01-02 00:00:00</time>'

    for piece in (
        get("/part/versions?table=shop.orders&key.id=1").text.partition("<del>")[2],
        get(f"/part/past?table=shop.orders&at={FIRST}&than={SECOND}").text.partition("<dt>")[2],
    ):
        assert old in piece
        assert new in piece
        # A text that looks like a time is not shown as one.
        assert f'<time datetime="{FIRST}">' not in piece
    row = get(f"/part/past?table=shop.orders&at={FIRST}").text
    assert f'data-column="seen">{old}</td>' in row
    assert f'data-column="said">{FIRST}</td>' in row


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


def test_before_the_switch_to_history_mode_nothing_is_known(make: Make, get: Get) -> None:
    since = {"history_since": str(1_767_225_600_000_000)}  # FIRST
    make(ORDERS, ["id*:INT", *HISTORY], [(1, FIRST, TMAX, True)], **since)
    note = f'switched to history mode at <time datetime="{FIRST}"'

    before = get("/part/past?table=shop.orders&at=2025-06-01").text
    two = get(f"/part/past?table=shop.orders&at=2025-06-01&than={SECOND}").text
    since_then = get(f"/part/past?table=shop.orders&at={FIRST}&than={SECOND}").text

    assert note in before
    assert "had no rows" not in before
    assert note in two
    assert note not in since_then
    assert note not in get(f"/part/past?table=shop.orders&at={SECOND}").text


def test_restored_records_are_linked_and_archived_ones_are_distinguished(
    make: Make, get: Get
) -> None:
    texts = ["Id*:STRING", "grax__deletesource:STRING", "grax__restoredfrom:STRING", *HISTORY]
    ended = "2026-01-02T23:59:59.999Z"
    make(
        ORDERS,
        texts,
        [
            ("3", "grax", None, FIRST, SECOND, False),
            ("3", None, None, "2026-01-05T00:00:00Z", TMAX, True),
            ("4 & <5>", "source", "3", FIRST, ended, False),
            ("7", None, "6", FIRST, TMAX, True),
        ],
    )

    old = get("/record?table=shop.orders&key.Id=3").text
    new = get(f"/record?{urlencode({'table': 'shop.orders', 'key.Id': '4 & <5>'})}").text

    link = html.escape(f"/record?{urlencode({'table': 'shop.orders', 'key.Id': '4 & <5>'})}")
    assert f'<dt>Restored as</dt><dd><a href="{link}">4 &amp; &lt;5&gt;</a></dd>' in old
    assert '<span class="badge deleted" data-ending>archived</span>' in old
    assert "archived from" in old
    assert "Restored from" not in old
    assert (
        '<dt>Restored from</dt><dd><a href="/record?table=shop.orders&amp;key.Id=3">3</a></dd>'
        in new
    )
    assert '<span class="badge deleted" data-ending>deleted</span>' in new
    assert "<dt>Deleted</dt>" in new
    chart = get("/part/timeline?table=shop.orders&key.Id=3").json()
    assert chart["states"] == "xa"
    # A record that was restored may have no row, and the link leads back.
    gone = get("/record?table=shop.orders&key.Id=6").text
    assert "No record has this key" in gone
    assert '<dt>Restored as</dt><dd><a href="/record?table=shop.orders&amp;key.Id=7">7</a>' in gone


def test_a_deleted_row_of_a_soft_delete_table_is_marked(make: Make, get: Get) -> None:
    columns = ["Id*:STRING", "grax__deletesource:STRING", "_fivetran_deleted:BOOLEAN"]
    make(ORDERS, columns, [("1", "grax", True), ("2", "source", True), ("3", "grax", False)])
    pages = [get(f"/record?table=shop.orders&key.Id={key}").text for key in (1, 2, 3)]
    assert '<span class="badge deleted" data-ending>archived</span>' in pages[0]
    assert '<span class="badge deleted" data-ending>deleted</span>' in pages[1]
    assert "data-ending" not in pages[2]


def test_the_time_that_is_wrong_is_marked(make: Make, get: Get) -> None:
    make(ORDERS, ["id*:INT"], [(1,)])

    def marked(query: str) -> list[bool]:
        page, piece = (get(f"{path}?table=shop.orders&{query}") for path in ("/past", "/part/past"))
        assert page.status_code == piece.status_code == 400
        shown = [f'name="{name}"' in field for field in page.text.split("<input")
                 if "aria-invalid" in field for name in ("at", "than")]  # fmt: skip
        assert f'data-wrong="{"at" if shown == [True, False] else "than"}"' in piece.text
        return shown

    assert marked("at=never&than=2026-01-01") == [True, False]
    assert marked("at=2026-01-01&than=never") == [False, True]
    # No snapshot of this time is kept.
    assert marked("at=2020-01-01") == [True, False]
    assert marked("than=2020-01-01") == [False, True]
    other = get("/past?table=shop.orders&after=nonsense")
    assert other.status_code == 400
    assert "aria-invalid" not in other.text


@pytest.mark.parametrize(
    ("at", "words"),
    [("0001-01-01", "0001-01-01 00:00:00"), (TMAX, "9999-12-31 23:59:59.999")],
)
def test_the_earliest_and_latest_times_can_be_requested(
    make: Make, get: Get, at: str, words: str
) -> None:
    make(ORDERS, ["id*:INT", *HISTORY], [(1, FIRST, TMAX, True)])

    reported = get(f"/part/past?table=shop.orders&at={at}").text

    assert f">{words}</time></h2>" in reported


def test_a_key_with_a_line_break_stays_as_it_is_in_the_form(make: Make, get: Get) -> None:
    make(ORDERS, ["id*:STRING", "v:INT"], [("a\nb", 7), ("ab", 8)])

    page = get("/record?table=shop.orders&key.id=a%0Ab").text
    value = html.unescape(page.partition('name="was.id" value="')[2].partition('"')[0])
    sent = {"table": "shop.orders", "key.id": "ab", "was.id": value}

    assert '<input type="text" id="key-1" name="key.id" value="ab"' in page
    again = get(f"/record?{urlencode(sent)}").text
    assert '<span class="num">7</span>' in again
    assert (
        '<span class="num">8</span>'
        in get(f"/record?{urlencode(sent | {'key.id': 'ab', 'was.id': 'x'})}").text
    )


def test_records_of_a_table_without_a_key_have_no_timeline(make: Make, get: Get) -> None:
    make(ORDERS, ["id:INT"], [(1,)])

    page = get("/record?table=shop.orders&key.id=1")

    assert page.status_code == 400
    assert "The table has no key" in page.text
    for piece in ("versions", "timeline"):
        assert get(f"/part/{piece}?table=shop.orders&key.id=1").status_code == 400


def test_too_many_versions_are_refused(
    make: Make, get: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(ORDERS, ["id*:INT", *HISTORY], [(1, at, at, False) for at in (FIRST, SECOND)])
    monkeypatch.setattr("chronolake.ui.site._MAX_VERSIONS", 1)

    page = get("/record?table=shop.orders&key.id=1")

    assert page.status_code == 400
    assert "more than 1 versions" in page.text
    assert "chronolake query" in page.text
