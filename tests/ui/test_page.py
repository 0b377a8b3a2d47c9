"""The web UI in a real browser, over a lake that Spark made."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect, sync_playwright

from chronolake.config import load
from chronolake.inspect.catalog import look_up
from chronolake.inspect.keyset import complete_key
from chronolake.inspect.tables import summary
from chronolake.inspect.time_travel import differences, rows_at
from chronolake.types import TMAX_TEXT
from chronolake.ui import links
from support.commands import run_command
from support.ui.uiprocess import Served, Shop, start, stop
from support.ui.uishop import (
    AFTER,
    BEFORE,
    LONG_TEXT,
    NAMES,
    NOTES,
    ODD,
    ORDERS,
    READINGS,
    SCRIPT,
    SENSOR,
)

Open = Callable[..., Page]

#: Whether everything that a page loads later has been loaded.
SETTLED = (
    """() => document.readyState === 'complete' && !document.querySelector('[aria-busy=true]')"""
)


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    # Closed with the module: until then, this thread has a running event loop.
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def usual(browser: Browser) -> Iterator[BrowserContext]:
    """Make one browser context for all tests, so that files such as Plotly's are loaded once."""
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    yield context
    context.close()


@pytest.fixture
def visit(browser: Browser, usual: BrowserContext, served: Served) -> Iterator[Open]:
    """Open a page; a script's error, a refused script or style, or a dialog fails the test."""
    wrong: list[str] = []
    opened_here: list[Page | BrowserContext] = []

    def opened(path: str, *, fails: bool = False, **how: Any) -> Page:
        context = browser.new_context(**how) if how else usual
        page = context.new_page()
        opened_here.append(context if how else page)
        page.set_default_timeout(20_000)

        def report(text: str) -> None:
            # The browser itself logs the status of a page that failed.
            if not (fails and text.startswith("Failed to load resource")):
                wrong.append(text)

        page.on("console", lambda message: report(message.text))
        page.on("pageerror", lambda failure: report(str(failure)))
        page.on("dialog", lambda dialog: (report(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.goto(served.url + path)
        page.wait_for_function(SETTLED)
        return page

    yield opened
    for page_ in opened_here:
        page_.close()
    assert wrong == []


PAGES = {
    "tables": "/",
    "choosing": "/record",
    "asking": links.record(NOTES),
    "timeline": links.record(ORDERS, {"id": 104}),
    "long timeline": links.record(SENSOR, {"id": 1}),
    "hostile record": links.record(NOTES, {"book": SCRIPT, "page": 6}),
    "now": links.time_travel(NOTES),
    "then": links.time_travel(ORDERS, at=BEFORE),
    "two times": links.time_travel(ORDERS, at=BEFORE, than=AFTER),
    "inside": links.table(ORDERS),
    "odd inside": links.table(ODD),
}
FAILING = {
    "wrong key": links.record(ORDERS, {"id": "x"}),
    "wrong time": links.time_travel(ORDERS, at="gestern"),
    "broken table": "/table?name=shop.broken",
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", [*PAGES, *FAILING])
def test_every_page_is_accessible_in_light_and_dark(visit: Open, name: str) -> None:
    path = PAGES.get(name) or FAILING[name]
    page = visit(path, fails=name in FAILING)
    for theme in ("light", "dark"):
        page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
        page.evaluate("document.dispatchEvent(new CustomEvent('theme'))")
        page.wait_for_timeout(150)
        found = Axe().run(page).response["violations"]
        grave = [
            (violation["id"], [node["html"][:200] for node in violation["nodes"][:3]])
            for violation in found
            if violation["impact"] in {"serious", "critical"}
        ]
        assert grave == [], theme
    page.set_viewport_size({"width": 390, "height": 800})
    # The page itself does not scroll sideways; the regions of wide tables do.
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("main h1").is_visible()


# ------------------------------------------------------------------------------- the list


def test_tables_are_sorted_filtered_and_searched_without_a_reload(visit: Open) -> None:
    page = visit("/")
    page.evaluate("window.stayed = true")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(len(NAMES))

    page.get_by_role("searchbox").fill("SHOP ord")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("orders")
    page.get_by_role("searchbox").fill("")
    page.locator("select[name=mode]").select_option("history")
    expect(rows).to_have_count(5)
    page.locator("select[name=mode]").select_option("")
    expect(rows).to_have_count(len(NAMES))

    heading = page.get_by_role("columnheader", name="Versions")
    heading.get_by_role("link").focus()
    page.keyboard.press("Enter")
    expect(heading).to_have_attribute("aria-sort", "descending")
    expect(rows.first).to_contain_text("sensor")
    expect(heading.get_by_role("link")).to_be_focused()
    page.keyboard.press("Enter")
    expect(heading).to_have_attribute("aria-sort", "ascending")
    # Unknown values are last, whatever the order.
    expect(rows.first).to_contain_text("brand_new")
    assert "sort=versions" in page.url
    assert page.evaluate("window.stayed")
    assert (
        visit(page.url.removeprefix(page.url.partition("/?")[0]))
        .locator("tbody tr")
        .first.inner_text()
        == rows.first.inner_text()
    )


def test_a_table_that_cannot_be_read_shows_the_error_in_its_row(visit: Open) -> None:
    row = visit("/").locator("tbody tr", has_text="broken")

    expect(row).to_contain_text("unreadable")
    expect(row).to_contain_text("metadata cannot be read")


def test_the_list_shows_what_chronolake_tables_prints(visit: Open, shop: Shop) -> None:
    page = visit("/")
    config = load(shop.folder)
    for name in (ORDERS, SENSOR, NOTES):
        reported = summary(look_up(config, name))
        cells = page.locator("tbody tr", has_text=name.table).locator("td")
        assert cells.nth(0).inner_text() == reported.mode.value
        assert cells.nth(1).inner_text() == f"{reported.active:,}"
        assert cells.nth(2).inner_text() == f"{reported.rows:,}"


# --------------------------------------------------------------------------- the timeline


ReadHistory = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def read_history(shop: Shop, capsys: pytest.CaptureFixture[str]) -> ReadHistory:
    """Return the versions that `chronolake history --json` prints of a record."""

    def read(table: str, key: str) -> list[dict[str, Any]]:
        code, out, _ = run_command(shop.folder, capsys, "history", table, "--key", key, "--json")
        assert code == 0
        versions: list[dict[str, Any]] = json.loads(out)["versions"]
        return versions

    return read


def listed(page: Page) -> list[dict[str, Any]]:
    """Return the versions that the list shows."""
    return page.locator("tr[data-version]").evaluate_all(
        """rows => rows.map(row => {
          const parts = (of, within, read) => Object.fromEntries(
            [...within.querySelectorAll(of)].map(one => [one.dataset.column, read(one)]));
          const [start, end] = [...row.querySelectorAll('.from time, .until time')];
          const wide = row.querySelector('td.wide');
          const text = (one, of) => one.querySelector(of).innerText;
          const changes = parts('.changes [data-column]', wide, one => [
            text(one, 'del'), text(one, 'ins')]);
          const values = parts(':scope > .pairs [data-column]', wide, one => text(one, 'dd'));
          return {start: start.dateTime, end: end.dateTime, changes, values,
            ending: row.querySelector('[data-ending]').innerText};
        })"""
    )


def text_of(value: object) -> str:
    if value is None:
        return "null"
    if value == "":
        return "empty text"
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_listed(versions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the program's output as the list displays it."""
    return [
        {
            "start": version["start"],
            "end": version["end"],
            "ending": version["ending"],
            "values": {}
            if place
            else {name: text_of(value) for name, value in version["values"].items()},
            "changes": {
                change["column"]: [text_of(change["old"]), text_of(change["new"])]
                for change in version["changes"]
            },
        }
        for place, version in enumerate(versions)
    ]


@pytest.mark.parametrize("order", [104, 99, 101])
def test_a_timeline_is_what_chronolake_history_prints(
    visit: Open, read_history: ReadHistory, order: int
) -> None:
    reported = read_history("shop.orders", f"id={order}")
    page = visit(links.record(ORDERS, {"id": order}))

    assert listed(page) == as_listed(reported)
    expect(page.locator("[data-chart][data-drawn]")).to_have_count(1)


def test_what_was_deleted_revived_or_over_at_once_can_be_seen(visit: Open) -> None:
    page = visit(links.record(ORDERS, {"id": 104}))
    expect(page.locator("tr.gap")).to_contain_text("deleted from 2026-10-16")
    expect(page.locator("tr[data-version='4']")).to_contain_text("revived")
    assert page.locator(".scatterlayer .trace").count() >= 5

    page = visit(links.record(ORDERS, {"id": 99}))
    expect(page.locator("tr[data-version='1']")).to_contain_text("ended at its start")
    # Its marker is in the chart, although its duration is zero.
    assert page.locator(".scatterlayer .points path").count() >= 1


def test_a_record_of_a_table_without_history_is_its_current_row(visit: Open) -> None:
    page = visit("/record?table=shop.customers&key.id=3")

    expect(page.get_by_text("keeps no versions")).to_be_visible()
    expect(page.locator("main table")).to_contain_text("Kyoto")


@pytest.mark.long
def test_ten_thousand_versions_stay_few_on_the_page(visit: Open, read_history: ReadHistory) -> None:
    page = visit(links.record(SENSOR, {"id": 1}))
    reported = read_history("plant.sensor", "id=1")
    assert len(reported) == READINGS

    assert page.evaluate("document.querySelectorAll('*').length") < 4_000
    assert listed(page) == as_listed(reported)[:50]
    page.get_by_role("link", name="Last").click()
    expect(page.locator(f"tr[data-version='{READINGS}']")).to_be_visible()
    assert listed(page) == as_listed(reported)[-50:]
    page.get_by_role("link", name="newest first").click()
    expect(page.locator("tr[data-version]").first).to_have_attribute("data-version", str(READINGS))
    # A link to one version opens the page of the list that contains it.
    page = visit(links.record(SENSOR, {"id": 1}, version=5_017) + "#v5017")
    expect(page.locator("#v5017")).to_be_in_viewport()
    assert listed(page)[16] == as_listed(reported)[5_016]


def test_a_version_in_the_chart_leads_to_the_list(visit: Open) -> None:
    page = visit(links.record(SENSOR, {"id": 1}))
    box = page.locator("[data-chart] .nsewdrag").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 24)
    page.wait_for_timeout(200)
    page.mouse.click(box["x"] + box["width"] * 0.2, box["y"] + 24)
    page.wait_for_function("() => document.activeElement.matches('tr[data-version]')")
    version = page.evaluate("Number(document.activeElement.dataset.version)")
    assert 1_000 < version < READINGS
    assert page.url.endswith(f"#v{version}")


def test_keys_are_suggested_as_they_are_typed(visit: Open, shop: Shop) -> None:
    page = visit(links.record(ORDERS))
    field = page.get_by_label("id LONG")
    field.fill("10")
    options = page.locator("datalist option")
    expect(options).not_to_have_count(0)
    page.wait_for_function(
        "() => [...document.querySelectorAll('option')].every(one => one.value.startsWith('10'))"
    )
    found = complete_key(load(shop.folder), ORDERS, {"id": "10"}, column="id", limit=20)
    assert options.evaluate_all("all => all.map(one => one.value)") == [
        str(value) for value in found
    ]
    field.fill("104")
    field.press("Enter")
    page.wait_for_function(SETTLED)
    assert page.url.endswith("/record?table=shop.orders&key.id=104")
    expect(page.locator("tr[data-version]")).to_have_count(4)


# ----------------------------------------------------------------------------- the past


def shown_rows(page: Page) -> list[dict[str, str]]:
    """Return rows of the page, by column: times as they are stored, other cells as their text."""
    return page.locator("table.rows tbody tr").evaluate_all(
        """rows => rows.map(row => Object.fromEntries([...row.cells].map(cell =>
          [cell.dataset.column, cell.querySelector('time')?.dateTime ?? cell.innerText])))"""
    )


def as_text(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [{name: text_of(value) for name, value in row.items()} for row in rows]


@pytest.mark.sampled
@pytest.mark.parametrize("at", [BEFORE, AFTER])
def test_rows_as_of_a_time_are_those_of_as_of(visit: Open, shop: Shop, at: str) -> None:
    page = visit(links.time_travel(ORDERS, at=at))
    found = shown_rows(page)
    while page.get_by_role("link", name="Next page").count():
        first = page.locator("table.rows tbody th").first.inner_text()
        page.get_by_role("link", name="Next page").click()
        expect(page.locator("table.rows tbody th").first).not_to_have_text(first)
        found += shown_rows(page)

    assert found == as_text(shop.expected[at])


def test_the_slider_shows_the_past_by_keyboard_without_a_reload(visit: Open, shop: Shop) -> None:
    page = visit(links.time_travel(ORDERS))
    page.evaluate("window.stayed = true")
    slider = page.get_by_role("slider", name="As of")
    slider.focus()
    for key in ("Home", "PageUp", "PageUp", "ArrowRight", "ArrowLeft", "PageUp"):
        before = page.locator("[data-past] h2").inner_text()
        page.keyboard.press(key)
        expect(page.locator("[data-past] h2")).not_to_have_text(before)
        page.wait_for_function(SETTLED)
        at = page.get_by_label("As of (UTC)").input_value()
        assert httpx_unquoted(page.url) == f"/past?table=shop.orders&at={at}"
        reported = rows_at(load(shop.folder), ORDERS, at, limit=50)
        assert shown_rows(page) == as_text(list(reported.rows))
        assert slider.get_attribute("aria-valuetext") == f"{at.replace('T', ' ')[:-1]} UTC"
    assert len(shown_rows(page)) > 5
    expect(page.locator("#announcement")).to_contain_text("As of 2026-10-")
    assert page.evaluate("window.stayed")


def httpx_unquoted(url: str) -> str:
    return re.sub(r"^http://[^/]+", "", url).replace("%3A", ":")


def test_a_typed_time_moves_the_slider_and_a_wrong_one_is_explained(visit: Open) -> None:
    page = visit(links.time_travel(ORDERS), fails=True)
    field = page.get_by_label("As of (UTC)")
    field.fill("2026-10-20 12:00")
    field.press("Enter")
    expect(page.locator("[data-past] h2")).to_have_text("As of 2026-10-20 12:00:00")
    assert 300 < int(page.get_by_role("slider", name="As of").input_value()) < 450
    field.fill("gestern")
    field.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("'gestern' is not a valid time")
    expect(field).to_have_attribute("aria-invalid", "true")


@pytest.mark.long
def test_two_times_stand_side_by_side(visit: Open, shop: Shop) -> None:
    page = visit(links.time_travel(ORDERS, at=BEFORE))
    page.get_by_label("Compare with (UTC)").fill(AFTER)
    page.get_by_label("Compare with (UTC)").press("Enter")
    expect(page.locator("[data-past] h2")).to_contain_text("From 2026-10-20")
    expect(page.get_by_role("slider", name="Compared with")).to_be_visible()

    reported = differences(load(shop.folder), ORDERS, BEFORE, AFTER, limit=50)
    counts = {
        change: int(page.locator(f"[data-count={change}]").inner_text().replace(",", ""))
        for change in ("inserted", "changed", "deleted")
    }
    assert counts == {
        "inserted": reported.inserted,
        "changed": reported.changed,
        "deleted": reported.deleted,
    }
    assert min(counts.values()) > 0
    found = page.locator("table.differences tbody tr").evaluate_all(
        """rows => rows.map(row => [row.querySelector('[data-change]').innerText,
          Object.fromEntries([...row.querySelectorAll('[data-column]')].map(one => [
            one.dataset.column,
            [...one.querySelectorAll('dd')].map(dd => dd.lastElementChild?.matches('.sr')
              ? dd.lastChild.textContent : (dd.lastElementChild ?? dd).innerText)]))])"""
    )
    assert len(found) == len(reported.records)
    for (change, columns), record in zip(found, reported.records, strict=True):
        assert change == record.change
        names = record.columns or tuple(
            name for name in (record.old or record.new or {}) if name not in record.key
        )
        assert list(columns) == list(names)
        for name, (old, new) in columns.items():
            assert old == ("absent" if record.old is None else text_of(record.old[name]))
            assert new == ("absent" if record.new is None else text_of(record.new[name]))
    # The order of the times does not matter, and the URL contains both.
    assert (
        visit(links.time_travel(ORDERS, at=AFTER, than=BEFORE)).locator("[data-past]").inner_text()
        == page.locator("[data-past]").inner_text()
    )


# --------------------------------------------------------------------------- hostile values


def test_hostile_values_stay_text(visit: Open) -> None:
    for path in (
        links.time_travel(NOTES),
        links.record(NOTES, {"book": SCRIPT, "page": 6}),
        links.record(ODD, {"k e.y\"'<i>": SCRIPT}),
        links.table(ODD),
        "/",
    ):
        page = visit(path)
        assert page.locator("main script, main img, main b:text('bold')").count() == 0
        assert page.evaluate("document.querySelectorAll('[onerror], [onclick]').length") == 0
    page = visit(links.time_travel(NOTES))
    shown = page.locator("table.rows").inner_text()
    assert SCRIPT in shown
    assert "a 'quoted\" \\ & <b>bold</b>" in shown
    assert "\\u202eright to left" in shown
    assert "\u202e" not in shown


@pytest.mark.long
def test_every_record_of_a_table_is_reached_by_its_link(visit: Open) -> None:
    page = visit(links.time_travel(NOTES))
    addresses = page.locator("table.rows tbody th a").evaluate_all("all => all.map(a => a.href)")
    texts = page.locator("table.rows td[data-column=page]").all_inner_texts()
    assert len(addresses) == 9
    for address, number in zip(addresses, texts, strict=True):
        page.goto(address)
        page.wait_for_function(SETTLED)
        expect(page.locator("tr[data-version]")).to_have_count(1)
        expect(page.locator("tr .pairs [data-column=page] dd").first).to_have_text(number)


def test_a_very_long_text_is_cut_and_can_be_opened(visit: Open) -> None:
    page = visit(links.record(NOTES, {"book": "long", "page": 4}))
    expect(page.locator("tr .pairs [data-column=text] dd").first).to_contain_text(
        "72,000 characters"
    )
    opened = page.locator("tr .pairs [data-column=text]")
    opened.locator("summary").press("Enter")
    assert opened.locator(".long").inner_text() == LONG_TEXT


# ------------------------------------------------------------------------- people's ways


def test_everything_can_be_reached_by_keyboard(visit: Open) -> None:
    page = visit("/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("searchbox")).to_be_focused()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_a_chosen_theme_is_remembered(visit: Open) -> None:
    page = visit("/", color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    button = page.get_by_role("button", name="Theme")
    expect(button).to_contain_text("system")
    button.focus()
    page.keyboard.press("Enter")
    expect(button).to_contain_text("light")
    light = page.evaluate(ground)
    assert light != dark
    page.reload()
    assert page.evaluate(ground) == light
    page.get_by_role("button", name="Theme").click()
    assert page.evaluate(ground) == dark


def test_times_are_in_utc_with_the_local_time_on_hover(visit: Open) -> None:
    page = visit(links.record(ORDERS, {"id": 104}), timezone_id="Asia/Tokyo", locale="en-GB")
    began = page.locator("tr[data-version='1'] .from time")

    assert began.get_attribute("datetime") == "2026-10-02T04:04:00Z"
    assert began.inner_text() == "2026-10-02 04:04:00"
    assert "13:04:00" in (began.get_attribute("title") or "")
    end = page.locator("tr[data-version='4'] .until time")
    assert end.get_attribute("datetime") == TMAX_TEXT
    assert end.inner_text() == "open end"


@pytest.mark.long
@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_charts_have_the_times_of_utc_wherever_the_browser_is(visit: Open, zone: str) -> None:
    drawn = """async selector => {
      const chart = document.querySelector(selector);
      const data = await (await fetch(chart.dataset.chart ?? chart.dataset.life)).json();
      const ticks = [...chart.querySelectorAll('.xtick text')].map(one => one.textContent);
      return [data, chart.calcdata.flat().map(point => point.x), ticks];
    }"""
    page = visit(links.record(ORDERS, {"id": 104}), timezone_id=zone)
    reported, places, ticks = page.evaluate(drawn, "[data-chart]")
    assert set(reported["starts"]) <= set(places)
    assert any("2026" in tick for tick in ticks)

    page = visit(f"/past?table={ORDERS}", timezone_id=zone)
    reported, places, ticks = page.evaluate(drawn, "[data-life]")
    assert {start + reported["width"] / 2 for start in reported["starts"]} == set(places)
    assert any("2026" in tick for tick in ticks)
    page.get_by_label("As of (UTC)").fill("2026-11")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="As of 2026-11-01")).to_be_visible()
    at = int(page.locator("[data-slider=at]").input_value()) / 1_000
    whole = reported["starts"][-1] + reported["width"] - reported["starts"][0]
    assert reported["starts"][0] + at * whole == pytest.approx(1_793_491_200_000, abs=whole / 1_000)


def test_versions_within_milliseconds_are_counted_and_a_click_shows_each(visit: Open) -> None:
    """Four versions that began within 20 ms, five days after the first and before the last one."""
    page = visit(links.record(ORDERS, {"id": 104}))
    first, burst = 1_790_000_000_000, 1_790_432_000_000
    starts = [first, burst, burst + 5, burst + 11, burst + 20, burst + 400_000_000]

    def crowded(route: Route) -> None:
        ends = [start - 1 for start in starts[1:]]
        reported = {
            "starts": starts,
            "ends": [*ends, None],
            "states": "rrrrra",
            "lanes": [],
            "more": 0,
        }
        route.fulfill(json=reported)

    page.route("**/part/timeline?*", crowded)
    page.reload()
    page.wait_for_selector("[data-chart][data-drawn]")
    clusters = """() => document.querySelector('[data-chart]').data
        .filter(trace => trace.name === 'clusters').flatMap(trace => trace.text)"""
    assert page.evaluate(clusters) == ["4"]

    label = page.locator("[data-chart] .textpoint text", has_text="4")
    box = label.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_timeout(200)
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_function(f"!({clusters})().length")
    seen = page.evaluate("document.querySelector('[data-chart]').layout.xaxis.range")
    begin, end = (datetime.fromisoformat(at) for at in seen)
    assert timedelta(milliseconds=20) < end - begin < timedelta(milliseconds=100)
    page.get_by_role("button", name="Reset zoom").click()
    page.wait_for_function(f"({clusters})().length === 1")


@pytest.mark.parametrize("width", [320, 390])
def test_on_a_phone_no_cell_reaches_into_its_neighbour(visit: Open, width: int) -> None:
    page = visit(links.record(ORDERS, {"id": 104}))
    page.set_viewport_size({"width": width, "height": 800})
    # The longest times: those of a table with microseconds.
    page.evaluate("""document.querySelectorAll('td time')
        .forEach(one => { one.textContent = '2026-10-02 04:04:00.123456 UTC' })""")
    overlapping = """() => [...document.querySelectorAll('.cards td')]
        .filter(cell => cell.scrollWidth > cell.clientWidth + 1).map(cell => cell.innerText)"""
    assert page.evaluate(overlapping) == []


def test_columns_without_a_lane_are_listed(visit: Open) -> None:
    page = visit(links.record(ORDERS, {"id": 104}))
    expect(page.locator("[data-chart-more]")).to_be_hidden()

    def with_more(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "more": 6})

    page.route("**/part/timeline?*", with_more)
    page.reload()
    page.wait_for_selector("[data-chart][data-drawn]")
    rows = page.evaluate("document.querySelector('[data-chart]').layout.yaxis.tickvals.length")
    expect(page.locator("[data-chart-more]")).to_contain_text(f"of {rows - 1 + 6};")


def test_without_javascript_everything_can_still_be_read(browser: Browser, served: Served) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(served.url)
    page.get_by_role("searchbox").fill("orders")
    page.get_by_role("button", name="Show").click()
    page.get_by_role("link", name="orders").click()
    page.get_by_role("link", name="Time travel").last.click()
    page.get_by_label("As of (UTC)").fill("2026-10-20T12:00:00Z")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("table.rows tbody tr")).to_have_count(50)
    page.locator("table.rows tbody th a").first.click()
    expect(page.locator("tr[data-version]").nth(1)).to_be_visible()
    context.close()


def test_a_link_on_another_site_leads_into_a_guarded_page(browser: Browser, shop: Shop) -> None:
    guarded = start(shop.folder, CHRONOLAKE_UI_TOKEN="sixteen letters!")
    try:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{guarded.url}/?token=sixteen+letters!")
        assert page.url == f"{guarded.url}/"
        expect(page.get_by_role("heading", name="Tables")).to_be_visible()
        # 127.0.0.1 and a data: page are different sites: a strict cookie is not sent.
        page.goto(f"data:text/html,<a href='{guarded.url}/record'>a shared link</a>")
        page.get_by_role("link").click()
        expect(page.get_by_role("heading", name="A record's timeline")).to_be_visible()
        stranger = browser.new_context().new_page()
        stranger.goto(f"data:text/html,<a href='{guarded.url}/record'>a shared link</a>")
        stranger.get_by_role("link").click()
        expect(stranger.get_by_role("heading", name="This page requires a token")).to_be_visible()
        context.close()
        stranger.context.close()
    finally:
        stop(guarded)
