"""Pipelines and runs in a real browser: finished runs, progress, and the usage of tables."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright
from pyiceberg.catalog.sql import SqlCatalog

from chronolake import inspect
from chronolake.config import load
from chronolake.pipeline import run_history
from chronolake.pipeline.runs import Status
from chronolake.ui.rendering import environment
from support.declarative.apis import Api, ReceivedRequest, Reply
from support.processes import COMMAND
from support.ui.uiprocess import Served, start, stop
from support.ui.uiruns import HOSTILE, REGIONS, STREAMS, configured

Open = Callable[[str], Page]


class SlowApi:
    """An API on a real port; each response takes `seconds`."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.seconds = 0.0
        for name in STREAMS:
            api.on(f"/{name}", self._answer)

    def _answer(self, asked: ReceivedRequest) -> Reply:
        region, since = asked.params["region"], asked.params["since"]
        old = "2026-10-01T00:00:00Z"
        found = [
            {"id": f"{region}-{number}", "updated_at": old} for number in range(25) if since <= old
        ]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return Reply(
            {"data": [*found, {"id": f"{region}-new", "updated_at": now}]}, slow=self.seconds
        )


@pytest.fixture(scope="module")
def api() -> Iterator[SlowApi]:
    with Api() as found:
        yield SlowApi(found)


@pytest.fixture(scope="module")
def folder(api: SlowApi, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project whose pipelines have run a few times, in a process that has ended."""
    made = tmp_path_factory.mktemp("runs")
    program = [
        sys.executable,
        str(Path(__file__).parents[1] / "support" / "ui" / "uiruns.py"),
        str(made),
        api.api.url,
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(program, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return made


@pytest.fixture(scope="module")
def page_of(folder: Path) -> Iterator[Served]:
    running = start(folder / "lake", "--config", str(folder / "chronolake.yml"))
    yield running
    assert stop(running) == 0


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium)
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Browser, page_of: Served) -> Iterator[Open]:
    with _visiting(browser, page_of) as opened:
        yield opened


@contextmanager
def _visiting(browser: Browser, page_of: Served) -> Iterator[Open]:
    """Open pages; a script's error, a refused script or style, or a dialog fails the test."""
    wrong: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 860})

    def opened(path: str) -> Page:
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda failure: wrong.append(str(failure)))
        page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
        page.goto(page_of.url + path)
        page.evaluate("window.stayed = true")
        return page

    yield opened
    context.close()
    assert wrong == []


def _runs(folder: Path) -> tuple[run_history.ObservedRun, ...]:
    return run_history.runs(load(folder / "lake"), limit=100).runs


def _run_of(folder: Path, pipeline: str, status: Status) -> run_history.ObservedRun:
    found = (run for run in _runs(folder) if run.run.pipeline == pipeline)
    return next(observed for observed in found if observed.run.status is status)


@pytest.mark.long
def test_pipelines_and_runs_are_listed_and_filtered(visit: Open, folder: Path) -> None:
    page = visit("/runs")
    pipelines = page.get_by_role("region", name="List of pipelines")
    assert pipelines.locator("tbody th").all_inner_texts() == ["crm", "shop", "never"]
    expect(pipelines.locator("tbody tr").nth(2)).to_contain_text("No runs yet.")
    expect(pipelines.locator("tbody tr").nth(1)).to_contain_text("declarative")
    runs = page.get_by_role("region", name="List of runs")
    found = _runs(folder)
    expect(runs.locator("tbody th")).to_have_count(len(found))
    expect(runs).to_contain_text("does not contain parquet/v2/org=X")

    page.get_by_role("navigation", name="Runs by status").get_by_text("partial").click()
    expect(runs.locator("tbody th")).to_have_count(1)
    pipelines.get_by_role("link", name="shop").click()
    expect(page.get_by_role("heading", name="Runs of shop")).to_be_visible()
    expect(runs.locator("tbody th")).to_have_count(
        sum(observed.run.pipeline == "shop" for observed in found)
    )
    page.get_by_role("navigation", name="Runs by status").get_by_text("dead").click()
    expect(page.get_by_text("No run matches")).to_be_visible()
    assert page.url.endswith("/runs?pipeline=shop&status=dead")


@pytest.mark.long
def test_a_failed_run_has_a_hint(visit: Open, folder: Path) -> None:
    partial = _run_of(folder, "crm", Status.PARTIAL)
    (contact,) = [stream.record for stream in partial.streams if stream.record.error]
    assert contact.hint
    page = visit("/runs?status=partial")
    page.locator("tbody th a").last.click()

    why = page.locator("tr.why:not([data-column-changes])")
    expect(why).to_contain_text("What to do:")
    expect(why).to_contain_text(contact.hint)
    expect(page.locator("[data-stream]").first).to_contain_text("Contact")
    # A name that looks like markup stays a text.
    expect(page.get_by_text(HOSTILE.replace("/", ""), exact=True).first).to_be_visible()
    assert page.locator("main img").count() == 0

    failed = _run_of(folder, "crm", Status.FAILED)
    page = visit(f"/run?id={failed.run.id}")
    expect(page.locator(".state-error")).to_contain_text("Check `path` and `org` of the source")
    dead = _run_of(folder, "crm", Status.DEAD)
    page = visit(f"/run?id={dead.run.id}")
    expect(page.locator("[data-status]")).to_have_text("dead")
    expect(page.locator(".state-error")).to_contain_text("The next run continues")


@pytest.mark.long
def test_changes_of_columns_and_modes_are_shown(visit: Open, folder: Path) -> None:
    page = visit(f"/run?id={_run_of(folder, 'crm', Status.PARTIAL).run.id}")
    expect(page.locator("[data-column-changes]")).to_have_text("Columns: added City (STRING)")
    streams = [stream.record for run in _runs(folder) for stream in run.streams]
    (switched,) = [stream for stream in streams if stream.changed_modes]
    (change,) = switched.changed_modes
    page = visit(f"/run?id={switched.run}")
    shown = page.locator(f"[data-stream={switched.stream}] + [data-mode-changes]")
    expect(shown).to_contain_text(f"Mode: from history to live ({change['rows']} rows, ")


@pytest.mark.long
def test_what_a_run_has_moved_is_shown_as_a_difference(visit: Open, folder: Path) -> None:
    run = _run_of(folder, "shop", Status.SUCCEEDED)
    page = visit(f"/run?id={run.run.id}")
    moved = page.locator("[data-moved]")
    expect(moved).to_have_count(len(STREAMS))
    stream = run.streams[0]
    assert stream.changes_in_all == len(stream.changes) > REGIONS
    row = moved.filter(has=page.get_by_role("rowheader", name=stream.record.stream))
    row.locator("summary").click()
    assert row.locator("dt").all_inner_texts() == [
        "applied up to" if change.path == "applied" else change.path for change in stream.changes
    ]
    assert row.locator("del").all_inner_texts() == [change.before for change in stream.changes]
    assert row.locator("ins").all_inner_texts() == [change.after for change in stream.changes]


@pytest.mark.long
def test_a_running_sync_moves_the_progress(browser: Browser, api: SlowApi, tmp_path: Path) -> None:
    lake = configured(tmp_path, api.api.url).lake.path
    lake.mkdir()
    SqlCatalog("chronolake", uri=f"sqlite:///{lake}/catalog.db").engine.dispose()
    page_of = start(lake, "--config", str(tmp_path / "chronolake.yml"))
    try:
        with _visiting(browser, page_of) as visit:
            _run_and_follow(visit("/runs"), tmp_path, api)
            usage = visit("/usage").locator(".figures tbody tr")
            expect(usage).to_have_count(len(STREAMS))
            assert set(usage.locator("td:last-child").all_inner_texts()) == {f"{REGIONS * 26:,}"}
    finally:
        assert stop(page_of) == 0


def test_a_known_part_of_a_run_is_shown() -> None:
    template = environment().get_template("run_progress.html")
    shown = template.render(part=0.377, of="The run")
    assert 'value="37.7"' in shown
    assert 'aria-label="The run: 37 %"' in shown
    assert "37 %</span>" in shown
    unknown = template.render(part=None, of="The run")
    assert "value" not in unknown
    assert 'aria-label="The run: progress is not known yet"' in unknown


def _run_and_follow(page: Page, folder: Path, api: SlowApi) -> None:
    """Run the pipeline, and follow its progress on the page."""
    api.seconds = 0.5
    command = [sys.executable, "-c", COMMAND, "sync", "shop", "--project", str(folder)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        page.get_by_role("region", name="List of runs").locator(
            "tr", has=page.locator(".badge", has_text="running")
        ).locator("th a").click(timeout=90_000)
        page.evaluate("window.stayed = true")
        seen = _followed(page, deadline=time.monotonic() + 180)
    finally:
        api.seconds = 0
        reported, _ = running.communicate(timeout=120)
    assert running.returncode == 0, reported
    assert page.evaluate("window.stayed"), "the page was reloaded"
    assert {stage for stages, _, _ in seen for stage in stages} >= {"landing", "applying"}
    read = [rows for _, rows, _ in seen]
    assert read == sorted(read)
    assert len({rows for rows in read if 0 < rows < len(STREAMS) * REGIONS * 26}) >= 2
    # Whether a page shows a part of a run depends on when its streams are applied.
    parts = [part for _, _, part in seen if part is not None]
    assert parts == sorted(parts)
    expect(page.locator("[data-status]")).to_have_text("succeeded")
    expect(page.locator("#announcement")).to_have_text("The run has ended: succeeded.")
    expect(page.locator("progress")).to_have_count(0)
    expect(page.get_by_role("heading", name="Offset changes")).to_be_visible()


_LOOKING = """() => ({
  running: document.querySelector('[data-running]') !== null,
  stages: [...document.querySelectorAll('[data-stream] .badge')].map(one => one.textContent),
  read: [...document.querySelectorAll('[data-stream] [data-label=Read]')].map(
    one => Number(one.textContent.replace(/\\D/g, ''))),
  part: document.querySelector('[data-run-progress] progress[value]')?.value ?? null,
})"""


def _followed(page: Page, *, deadline: float) -> list[tuple[list[str], int, float | None]]:
    """Return what a run's page shows until the run has ended: stages, rows read, and progress."""
    found: list[tuple[list[str], int, float | None]] = []
    while time.monotonic() < deadline:
        now: dict[str, Any] = page.evaluate(_LOOKING)
        if found and not now["running"]:
            return found
        if now["stages"]:
            found.append((now["stages"], sum(now["read"]), now["part"]))
        page.wait_for_timeout(200)
    raise AssertionError(found[-1:])


@pytest.mark.long
def test_monthly_active_rows_are_drawn_and_listed(visit: Open, folder: Path) -> None:
    page = visit("/usage")
    page.wait_for_selector("[data-usage-chart][data-drawn]")
    known = {str(usage.table): usage for usage in inspect.usage(load(folder / "lake"))}
    page.wait_for_function("!document.querySelector('[data-unread]')")
    rows = page.locator(".figures tbody tr")
    expect(rows).to_have_count(len(known))
    listed = dict(
        zip(
            rows.locator("th").all_inner_texts(),
            rows.locator("td:last-child").all_inner_texts(),
            strict=True,
        )
    )
    assert listed == {name: f"{usage.rows:,}" for name, usage in known.items()}
    drawn = page.evaluate(
        "document.querySelector('[data-usage-chart]').data.map(one => one.y[one.y.length - 1])"
    )
    assert sum(drawn) == sum(usage.rows for usage in known.values())
    total = page.locator("tfoot td").last
    expect(total).to_have_text(f"{sum(drawn):,}")


PAGES = ("/runs", "/runs?status=dead", "/runs?pipeline=never", "/usage", "/usage?until=2020-01")


@pytest.mark.long
def test_these_pages_are_accessible_in_light_and_dark(visit: Open, folder: Path) -> None:
    runs = [f"/run?id={run.run.id}" for run in _runs(folder)]
    for path in (*PAGES, *runs):
        page = visit(path)
        for theme in ("light", "dark"):
            page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
            page.evaluate("document.dispatchEvent(new CustomEvent('theme'))")
            page.wait_for_timeout(150)
            grave = [
                (violation["id"], [node["html"][:200] for node in violation["nodes"][:3]])
                for violation in Axe().run(page).response["violations"]
                if violation["impact"] in {"serious", "critical"}
            ]
            assert grave == [], (path, theme)
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
        page.close()


def test_a_lake_without_runs_has_a_hint(browser: Browser, tmp_path: Path) -> None:
    SqlCatalog("chronolake", uri=f"sqlite:///{tmp_path}/catalog.db").engine.dispose()
    running = start(tmp_path)
    try:
        page = browser.new_page()
        page.goto(f"{running.url}/runs")
        expect(page.locator(".state")).to_contain_text("chronolake sync")
        assert re.search("Nothing has run yet", page.locator("h2").inner_text())
        page.goto(f"{running.url}/run?id=none")
        expect(page.get_by_role("alert")).to_contain_text("There is no such run")
        page.close()
    finally:
        stop(running)
    assert [file.name for file in tmp_path.iterdir()] == ["catalog.db"]
