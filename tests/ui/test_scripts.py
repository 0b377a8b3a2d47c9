"""The web UI's scripts in a browser, over a small lake made by PyIceberg."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, Route, expect, sync_playwright

from chronolake.config import load
from chronolake.types import TableName
from support.inspect.layout import HISTORY, TMAX, maker
from support.ui.uiprocess import start, stop

SETTLED = (
    """() => document.readyState === 'complete' && !document.querySelector('[aria-busy=true]')"""
)
FIRST, SECOND, LAST = (f"2026-01-0{day}T00:00:00.123456Z" for day in (1, 2, 3))
LONG = "a text without a record, " * 40

Open = Callable[[str], Page]


@pytest.fixture(scope="module")
def visit(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    folder = tmp_path_factory.mktemp("scripts")
    make = maker(load(folder))
    rows = [(number, at, TMAX, True) for number, at in enumerate((FIRST, SECOND, LAST))]
    make(TableName("shop", "orders"), ["id*:INT", *HISTORY], rows)
    make(TableName("shop", "once"), ["id*:INT", *HISTORY], rows[:1])
    make(TableName("shop", "names"), ["id*:STRING"], [("a",), ("ab",)])
    long = '{"padding": "' + "p" * 600 + '", "state": '
    make(
        TableName("shop", "docs"),
        ["id*:STRING", "doc:JSON", "text:STRING", *HISTORY],
        [(" k", f"{long}1}}", "a  b", FIRST, SECOND, False),
         (" k", f"{long}2}}", "a  b ", SECOND, TMAX, True)],
    )  # fmt: skip
    make(TableName("shop", "keyless"), ["text:STRING"], [(LONG,)])
    served = start(folder)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        context = browser.new_context()

        def opened(path: str) -> Page:
            page = context.new_page()
            page.set_default_timeout(20_000)
            page.goto(served.url + path)
            page.wait_for_function(SETTLED)
            return page

        yield opened
        browser.close()
    assert stop(served) == 0


def rows_of(page: Page) -> int:
    page.wait_for_timeout(300)
    page.wait_for_function(SETTLED)
    return page.locator("table.rows tbody tr").count()


@pytest.mark.long
def test_slider_and_steps_reach_every_state_between_milliseconds(visit: Open) -> None:
    page = visit("/past?table=shop.orders&at=2026-01-01")
    slider, field = page.locator("[data-slider=at]"), page.locator("input[name=at]")
    later, earlier = page.locator("[data-step='1']"), page.locator("[data-step='-1']")
    end = page.locator("[data-step-end]")
    assert rows_of(page) == 0

    slider.press("End")
    assert rows_of(page) == 3
    slider.press("Home")
    assert rows_of(page) == 1

    for _ in range(5):
        later.click()
    assert rows_of(page) == 3
    expect(end).to_have_text("There are no later changes.")
    shown = field.input_value()
    later.click()
    assert field.input_value() == shown

    for _ in range(5):
        earlier.click()
    assert rows_of(page) == 1
    expect(end).to_have_text("There are no earlier changes.")
    later.click()
    expect(end).to_have_text("")


def test_a_table_of_one_moment_has_one_step(visit: Open) -> None:
    page = visit("/past?table=shop.once")

    page.locator("[data-step='-1']").click()
    assert rows_of(page) == 1
    page.locator("[data-step='-1']").click()

    expect(page.locator("[data-step-end]")).to_have_text("There are no earlier changes.")
    assert rows_of(page) == 1


def test_the_field_that_is_wrong_is_marked_and_none_if_the_lake_does_not_answer(
    visit: Open,
) -> None:
    page = visit("/past?table=shop.orders")
    at, than = page.locator("input[name=at]"), page.locator("input[name=than]")

    than.fill("never")
    than.press("Enter")

    expect(than).to_have_attribute("aria-invalid", "true")
    expect(at).not_to_have_attribute("aria-invalid", "true")
    page.route(
        "**/part/past?*",
        lambda route: route.fulfill(status=503, body='<div class="state state-error">no</div>'),
    )
    than.fill("")
    than.press("Enter")
    expect(page.locator("[data-past]")).to_have_text("no")
    expect(at).not_to_have_attribute("aria-invalid", "true")
    expect(than).not_to_have_attribute("aria-invalid", "true")


def test_an_older_answer_replaces_no_newer_suggestions(visit: Open) -> None:
    page = visit("/record?table=shop.names")
    waiting: list[Route] = []

    def answer(route: Route) -> None:
        if "key.id=ab" in route.request.url:
            route.fulfill(body=json.dumps(["new", "x" * 200, "x" * 201, "a\nb"]))
        else:
            waiting.append(route)

    page.route("**/part/keys?*", answer)
    field = page.locator("#key-1")
    field.fill("a")
    page.wait_for_timeout(300)
    field.fill("ab")
    options = page.locator("#values-1 option")
    expect(options).to_have_count(2)
    for route in waiting:
        route.fulfill(body='["old"]')
    page.wait_for_timeout(300)

    assert waiting
    shown = options.evaluate_all("all => all.map((one) => one.value)")
    assert shown == ["new", "x" * 200]


def test_a_change_in_a_long_value_is_seen_and_its_whole_can_be_read(visit: Open) -> None:
    page = visit("/record?table=shop.docs&key.id=%20k")
    change = page.locator(".changes [data-column=doc]")
    assert change.locator("del").inner_text().endswith('"state": 1}')
    assert change.locator("ins mark").inner_text() == "2"
    blank = page.locator(".changes [data-column=text] ins .blank")
    assert blank.evaluate("one => one.getBoundingClientRect().width") > 2
    page.get_by_text("All values").click()
    opened = page.locator("tr[data-version='2'] details .pairs [data-column=doc]")
    opened.locator("summary").press("Enter")
    expect(opened.locator(".long")).to_contain_text('"state": 2}')

    page = visit(f"/past?table=shop.docs&at={FIRST}&than={LAST}")
    assert page.locator(".sides .old mark").inner_text() == "1"
    page.locator(".sides .new summary").press("Enter")
    expect(page.locator(".sides .new .long")).to_contain_text('"padding": "ppp')


def test_a_long_value_of_a_table_without_a_key_can_be_read(visit: Open) -> None:
    page = visit("/past?table=shop.keyless")
    cell = page.locator("td[data-column=text]")
    assert len(cell.inner_text()) < 100
    cell.locator("summary").press("Enter")
    page.keyboard.press("Tab")
    expect(cell.locator(".long")).to_be_focused()
    assert cell.locator(".long").inner_text() == LONG


def test_blanks_in_rows_keep_their_width(visit: Open) -> None:
    page = visit(f"/past?table=shop.docs&at={LAST}")
    assert page.locator("td[data-column=text]").inner_text() == "a  b "
    assert page.locator("tbody th").inner_text() == " k"


def test_a_narrow_window_can_sort_the_tables(visit: Open) -> None:
    page = visit("/")
    sort = page.get_by_label("Sort by")
    expect(sort).to_be_hidden()
    page.set_viewport_size({"width": 390, "height": 800})
    rows = page.locator("tbody tr")
    sort.select_option("Rows")
    expect(page.get_by_label("Order")).to_have_value("down")
    expect(rows.first).to_contain_text("orders")
    assert page.url.endswith("/?sort=rows&order=down")
    page.get_by_label("Order").select_option("ascending")
    expect(rows.last).to_contain_text("orders")
    # The form keeps the order that was chosen by the headings.
    page.set_viewport_size({"width": 1280, "height": 800})
    page.get_by_role("link", name="Versions").click()
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Versions")
    expect(sort).to_have_value("versions")
