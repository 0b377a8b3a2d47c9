"""What the web UI shows when the lake, the store or a URL is not as it should be."""

from __future__ import annotations

import html
import os
import re
import select
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from playwright.sync_api import Page, expect, sync_playwright
from pyiceberg.catalog.sql import SqlCatalog
from starlette.requests import Request

from chronolake import database
from chronolake.config import load
from chronolake.pipeline.lease import hold_lease, holder
from chronolake.pipeline.runs import Run, Stage, Status, StreamRun, now
from chronolake.pipeline.store import Store, migrate
from chronolake.ui.pages.tables import HEADINGS, TablesQuery
from chronolake.ui.rendering import environment
from support.ui.uiprocess import start, stop
from support.waiting import wait_until


@pytest.fixture
def browsed(chromium: str) -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        yield browser.new_page()
        browser.close()


@pytest.mark.long
def test_a_run_stays_visible_while_the_store_cannot_be_read(tmp_path: Path, browsed: Page) -> None:
    store = Store.open(load(tmp_path))
    with hold_lease(store, "shop"):
        store.begin_run(Run("r1", "shop", now(), None, Status.RUNNING, holder()))
        store.note(StreamRun("r1", "orders", "s.t", Status.RUNNING, stage=Stage.LANDING))
        served = start(tmp_path)
        try:
            browsed.goto(f"{served.url}/run?id=r1")
            catalog, away = tmp_path / "catalog.db", tmp_path / "away.db"
            catalog.rename(away)
            expect(browsed.locator("[data-old]")).to_contain_text("retries automatically")
            expect(browsed.locator("#announcement")).to_contain_text("This page is stale")
            expect(browsed.locator("[data-stream=orders]")).to_be_visible()
            away.rename(catalog)
            store.note(StreamRun("r1", "items", "s.i", Status.RUNNING, stage=Stage.LANDING))
            expect(browsed.locator("[data-stream=items]")).to_be_visible(timeout=20_000)
            expect(browsed.locator("[data-old]")).to_have_count(0)
        finally:
            stop(served)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake with a table without recorded usage, and one with invalid usage records."""
    folder = tmp_path_factory.mktemp("lake")
    catalog = SqlCatalog("chronolake", uri=f"sqlite:///{folder}/catalog.db")
    catalog.create_namespace("s")
    rows = pa.table({"id": pa.array([1, 2], pa.int64())})
    key = '[{"name": "id", "type": "LONG", "primary_key": true}]'
    for name, usage in {"t": {}, "odd": {"chronolake.usage.2026-11": "[7"}}.items():
        catalog.create_table(
            ("s", name),
            rows.schema,
            location=str(folder / name),
            properties={"chronolake.stream": "shop/orders", "chronolake.columns": key} | usage,
        ).append(rows)
    catalog.engine.dispose()
    return folder


@contextmanager
def page_over(folder: Path, *words: str) -> Iterator[httpx.Client]:
    served = start(folder, *words)
    try:
        with httpx.Client(base_url=served.url, timeout=30) as client:
            yield client
    finally:
        stop(served)


@pytest.fixture(scope="module")
def asked(lake: Path) -> Iterator[httpx.Client]:
    with page_over(lake) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/?page=" + "9" * 5_000, 200),
        ("/record?table=s.t&key.id=1&page=" + "9" * 5_000, 200),
        ("/record?table=s.t&key.id=1&version=" + "9" * 5_000, 200),
        ("/usage?until=2020-01", 200),
        ("/part/usage?until=0000-01", 200),
        ("/table?name=s.odd", 200),
        ("/assets/" + "a" * 300 + ".css", 404),
        ("/assets/..%2Fapp.py", 404),
        ("/assets/page.css", 200),
    ],
)
def test_no_url_breaks_the_page(asked: httpx.Client, path: str, status: int) -> None:
    assert asked.get(path).status_code == status


def test_invalid_usage_does_not_make_a_table_unreadable(asked: httpx.Client) -> None:
    assert "unreadable" not in all_read(asked)


def all_read(asked: httpx.Client) -> str:
    """Return the list of tables once all of them are read."""
    reported = ""

    def is_read() -> bool:
        nonlocal reported
        reported = asked.get("/part/tables").text
        return "data-unread" not in reported

    wait_until(is_read, "the tables are not read")
    return reported


def told_by_a_later_version(lake: Path) -> None:
    """Store runs with values and states that this version does not know, and one without state."""
    store = Store.open(load(lake))
    for name in ("odd", "earlier"):
        store.begin_run(Run(name, "shop", now(), now(), Status.SUCCEEDED, holder()))
        store.note(StreamRun(name, "orders", "s.t", Status.SUCCEEDED))
    for name, state in {"a": "{", "b": "[1]", "c": '{"… changes in all": "many"}'}.items():
        store.note(StreamRun("odd", name, "s.t", Status.SUCCEEDED, state_after=state))
    with store.transaction() as connection:
        connection.exec_driver_sql(
            "UPDATE chronolake_stream_runs SET status = 'resting', stage = 'dreaming' "
            "WHERE run = 'odd' AND stream = 'orders'"
        )


def test_what_a_later_version_noted_is_not_known(lake: Path, asked: httpx.Client) -> None:
    told_by_a_later_version(lake)

    odd = asked.get("/run?id=odd")
    assert odd.status_code == 200
    assert "not known</span>" in odd.text
    for path in ("/", "/runs", "/table?name=s.t"):
        assert asked.get(path).status_code == 200
    # A run without a stored state may have changed anything.
    earlier = asked.get("/run?id=earlier").text
    assert "Not known: the streams'" in earlier
    assert "no stream's offset changed" not in earlier


def test_all_streams_of_a_large_run_are_reached(lake: Path, asked: httpx.Client) -> None:
    store = Store.open(load(lake))
    store.begin_run(Run("large", "shop", now(), now(), Status.PARTIAL, holder()))
    names = [f"s{number:04}" for number in range(1_001)]
    store.note(*(StreamRun("large", name, "s.t", Status.SUCCEEDED) for name in names))
    url: str | None = "/run?id=large"
    seen: list[str] = []
    while url:
        reported = asked.get(url).text
        seen += re.findall(r'data-stream="([^"]+)"', reported)
        following = re.search(r'rel="next" href="([^"]+)"', reported)
        url = html.unescape(following[1]) if following else None
    assert seen == names
    for odd in ("-1", "501x", "9" * 5_000):
        assert asked.get(f"/run?id=large&first={odd}").status_code == 200


def test_tables_are_shown_although_the_store_makes_no_sense(tmp_path: Path, lake: Path) -> None:
    shutil.copytree(lake, tmp_path, dirs_exist_ok=True)
    # `Store.open` refuses a copied lake.
    config = load(tmp_path)
    store = Store(database.write_engine(config, config.store_database))
    with store.transaction() as connection:
        migrate(connection)
    store.begin_run(Run("senseless", "shop", "once", None, Status.SUCCEEDED, holder()))
    store.note(StreamRun("senseless", "orders", "s.t", Status.SUCCEEDED))
    with page_over(tmp_path) as asked:
        assert asked.get("/").status_code == 200
        assert asked.get("/table?name=s.t").status_code == 200


def test_what_is_still_being_read_is_not_reported_as_missing() -> None:
    seen = {"count": 3, "found": 0, "tables": [], "broken": 0, "headings": HEADINGS}

    def rendered(text: str, unread: int) -> str:
        scope = {"type": "http", "path": "/", "headers": [], "query_string": text.encode()}
        query = TablesQuery.of(Request(scope))
        template = environment().get_template("tables_list.html")
        return template.render(seen | {"query": query, "unread": unread})

    assert "still being read" in rendered("mode=history", 2)
    assert "data-unread" in rendered("mode=history", 2)
    assert "No table matches" in rendered("mode=history", 0)
    assert "No table has this name" in rendered("search=x", 2)


def test_a_missing_lake_is_distinguished_from_a_lake_without_runs(tmp_path: Path) -> None:
    with page_over(tmp_path / "lake") as asked:
        for path in ("/runs", "/part/runs", "/run?id=x"):
            assert "There is no lake in" in asked.get(path).text
    project = tmp_path / "chronolake.yml"
    project.write_text("lake: {path: lake}\npipelines: {}\n", encoding="utf-8")
    with page_over(tmp_path / "lake", "--config", str(project)) as asked:
        assert "Nothing has run yet" in asked.get("/runs").text
        # The lake existed, and has been removed.
        (tmp_path / "lake/warehouse").mkdir(parents=True)
        assert "There is no lake in" in asked.get("/runs").text


@pytest.mark.long
def test_many_who_wait_take_nothing_from_others(tmp_path: Path) -> None:
    catalog = SqlCatalog("chronolake", uri=f"sqlite:///{tmp_path}/catalog.db")
    catalog.create_namespace("s")
    schema = pa.schema([("id", pa.int64())])
    hung, _ = (
        catalog.create_table(("s", name), schema, str(tmp_path / name)) for name in ("hung", "t")
    )
    catalog.engine.dispose()
    # Opening a pipe without a writer blocks.
    pipe = Path(hung.metadata_location)
    pipe.unlink()
    os.mkfifo(pipe)
    with page_over(tmp_path) as asked:
        assert asked.get("/record").status_code == 200
        place = (asked.base_url.host, asked.base_url.port)
        many = [socket.create_connection(place) for _ in range(60)]
        for connection in many:
            connection.sendall(b"GET /table?name=s.hung HTTP/1.1\r\nHost: localhost\r\n\r\n")
        # Requests beyond the waiting queue are refused at once.
        wait_until(lambda: len(select.select(many, [], [], 1)[0]) >= 20, "none is refused")
        refused = select.select(many, [], [], 1)[0][-1].recv(65_536).decode()
        assert refused.startswith("HTTP/1.1 503")
        assert "retry-after: 5" in refused
        begun = time.monotonic()
        for path in ("/", "/runs", "/record", "/past"):
            assert asked.get(path).status_code == 200
        assert time.monotonic() - begun < 10
        for connection in many:
            connection.close()
        # Closed connections are not served: only the few whose turn had come have opened the pipe.
        time.sleep(1)
        writing = os.open(pipe, os.O_WRONLY)
        pipe.unlink()
        os.close(writing)
        assert expect_status(asked, "/table?name=s.t", 200)


def expect_status(asked: httpx.Client, path: str, status: int) -> httpx.Response:
    """Repeat a request until its response has this status."""
    wait_until(lambda: asked.get(path).status_code == status, f"the status is not {status}")
    return asked.get(path)
