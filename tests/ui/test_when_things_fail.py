"""What the page tells when the lake, the store or a person's URL is not as it should be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright
from uiprocess import start, stop

from chronolake.config import load
from chronolake.pipeline.lease import holder, leased
from chronolake.pipeline.runs import Run, Stage, Status, StreamRun, now
from chronolake.pipeline.store import Store


@pytest.fixture
def browsed(chromium: str) -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        yield browser.new_page()
        browser.close()


def test_a_run_stays_in_sight_while_the_store_cannot_be_read(tmp_path: Path, browsed: Page) -> None:
    store = Store.open(load(tmp_path))
    with leased(store, "shop"):
        store.begin_run(Run("r1", "shop", now(), None, Status.RUNNING, holder()))
        store.note(StreamRun("r1", "orders", "s.t", Status.RUNNING, stage=Stage.LANDING))
        served = start(tmp_path)
        try:
            browsed.goto(f"{served.url}/run?id=r1")
            catalog, away = tmp_path / "catalog.db", tmp_path / "away.db"
            catalog.rename(away)
            expect(browsed.locator("[data-old]")).to_contain_text("goes on asking")
            expect(browsed.locator("#said")).to_contain_text("What is shown is old")
            expect(browsed.locator("[data-stream=orders]")).to_be_visible()
            away.rename(catalog)
            store.note(StreamRun("r1", "items", "s.i", Status.RUNNING, stage=Stage.LANDING))
            expect(browsed.locator("[data-stream=items]")).to_be_visible(timeout=20_000)
            expect(browsed.locator("[data-old]")).to_have_count(0)
        finally:
            stop(served)
