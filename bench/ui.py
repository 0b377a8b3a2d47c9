"""The page in a real Chromium: when something is seen, and how long a hand waits for an answer.

Claims: with 1,000 tables, a record with 10,000 versions and a table of 1,000,000 of them, each
page shows something within half a second and everything within two; each interaction is answered
within one; the server is up within three. (The first look at the tables fills a cache: it has a
line of its own.)

Beside every figure stands the same for a small lake: ten tables, ten versions of the record, a
table of 1,000. The commands that show the same stand beside them, too.

    python bench/ui.py [--quick] [--repeat N]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from playwright.sync_api import Browser, Page, sync_playwright

from chronolake.lake import Lake
from measuring import customers, lakes
from measuring.clock import Times, say, show

_COMMAND: Final = (sys.executable, "-c", "from chronolake.cli import main; main()")
_FIRST_PAINT: Final = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
#: What has been painted when this is answered was seen.
_PAINTED: Final = "() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))"
_SETTLED: Final = "!document.querySelector('[aria-busy=true], [data-unread]')"
_MIDDLE: Final = "2024-12-27T12:00:00Z"
_EARLIER: Final = "2024-12-25T12:00:00Z"

SHOWN: Final = "{0}: first paint"
COMPLETE: Final = "{0}: everything"


@dataclass(frozen=True)
class Size:
    """How much a lake has."""

    tables: int
    versions_of_one: int
    keys: int


def filled(lake: Lake, size: Size) -> None:
    """Tables of the same files, a record with many versions, a table with many records."""
    customers.history(lake, "sensor", 1, size.versions_of_one)
    customers.history(lake, "orders", size.keys, 10)
    first = customers.history(lake, "table_0", 10, 10)
    for number in range(1, size.tables - 2):
        copy = customers.copied(lake, first, f"table_{number}")
        # Metadata of its own.
        lake.spark.sql(f"ALTER TABLE {copy.sql} SET TBLPROPERTIES ('copy' = '{number}')")


@contextmanager
def served(folder: Path, times: Times) -> Iterator[str]:
    """The page over a lake, in a process of its own; gives its address."""
    begun = time.perf_counter()
    server = subprocess.Popen(
        [*_COMMAND, "ui", "--lake", str(folder), "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        told = json.loads(server.stdout.readline() if server.stdout else "{}")
        times.add("the server is up", time.perf_counter() - begun)
        yield f"http://{told['host']}:{told['port']}"
    finally:
        server.terminate()
        server.wait()


def settled(page: Page) -> None:
    """Wait until nothing is being loaded, and all of it has been painted."""
    page.wait_for_function(_SETTLED)
    page.evaluate(_PAINTED)


def opened(browser: Browser, times: Times, name: str, url: str) -> Page:
    """Open a page as somebody does who has never been there."""
    # The policy forbids to evaluate texts, which is how the driver waits.
    page = browser.new_page(viewport={"width": 1280, "height": 900}, bypass_csp=True)
    begun = time.perf_counter()
    page.goto(url)
    settled(page)
    times.add(COMPLETE.format(name), time.perf_counter() - begun)
    first = page.wait_for_function(_FIRST_PAINT).json_value()
    times.add(SHOWN.format(name), first / 1_000)
    return page


def answered(times: Times, name: str, page: Page, do: Callable[[], object], until: str) -> None:
    """Do something by hand; the time until the page shows what comes of it."""
    with times.of(name):
        do()
        page.wait_for_function(until)
        settled(page)


def tables(browser: Browser, times: Times, base: str) -> None:
    page = opened(browser, times, "tables", base)
    search = page.get_by_role("searchbox")
    answered(
        times, "tables: search as it is typed", page, lambda: search.fill("sensor"),
        "document.querySelectorAll('[data-tables] tbody tr').length === 1",
    )  # fmt: skip
    search.fill("")
    page.wait_for_function("document.querySelectorAll('[data-tables] tbody tr').length > 1")
    link = page.locator("a[data-sort]").nth(2)
    answered(times, "tables: sort", page, link.click, "location.search.includes('sort')")
    page.close()


def record(browser: Browser, times: Times, base: str) -> None:
    name = quote(f"{customers.SCHEMA}.sensor")
    page = opened(browser, times, "timeline", f"{base}/record?table={name}&key.id=0")
    newest = page.get_by_role("link", name="Newest first")
    answered(
        times, "timeline: newest first", page, newest.click,
        "location.search.includes('newest')",
    )  # fmt: skip
    page.close()
    page = opened(browser, times, "timeline of one of many", f"{base}/record?table="
                  f"{quote(f'{customers.SCHEMA}.orders')}&key.id=7")  # fmt: skip
    page.close()


def past(browser: Browser, times: Times, base: str) -> None:
    name = quote(f"{customers.SCHEMA}.orders")
    page = opened(browser, times, "as it stood", f"{base}/past?table={name}&at={_MIDDLE}")
    slider = page.locator("[data-slider=at]")
    slider.focus()
    before = page.url
    answered(
        times, "as it stood: the slider moves", page, lambda: slider.press("PageUp"),
        f"location.href !== {json.dumps(before)}",
    )  # fmt: skip
    page.close()
    both = f"{base}/past?table={name}&at={_EARLIER}&than={_MIDDLE}"
    opened(browser, times, "two times side by side", both).close()
    opened(browser, times, "a table's inside", f"{base}/table?name={name}").close()


def commands(folder: Path, times: Times) -> None:
    """The commands that show the same."""
    for words in (
        ("tables",),
        ("history", f"{customers.SCHEMA}.sensor", "--key", "id=0"),
    ):
        with times.of(f"chronolake {words[0]} --json"):
            subprocess.run(
                [*_COMMAND, *words, "--lake", str(folder), "--json"],
                stdout=subprocess.DEVNULL,
                check=True,
            )


def measured(folder: Path, chromium: str, rounds: int) -> Times:
    times = Times()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(rounds):
            with served(folder, times) as base:
                opened(browser, times, "tables, for the first time", base).close()
                tables(browser, times, base)
                record(browser, times, base)
                past(browser, times, base)
            commands(folder, times)
        browser.close()
    return times


def main() -> int:
    parser = lakes.options(__doc__, repeat=5)
    flags: argparse.Namespace = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        say("Chromium is missing: apt-get install chromium")
        return 1
    small = Size(tables=10, versions_of_one=10, keys=100)
    large = Size(1_000, 10_000, 100_000) if not flags.quick else Size(30, 100, 1_000)
    found = []
    for size in (small, large):
        with lakes.opened(flags) as (lake, _):
            say(f"Making {size.tables:,} tables, {size.versions_of_one:,} versions of a record, "
                f"{10 * size.keys:,} in a table")  # fmt: skip
            filled(lake, size)
            found.append(measured(lake.config.path, chromium, flags.repeat))
    few, many = found
    show(
        f"seconds, small lake and large ({large.tables:,} tables, {large.versions_of_one:,} "
        f"versions of a record, {10 * large.keys:,} in a table)",
        ("what", "small", "large", "range", "large / small"),
        [
            (name, few.median(name), many.median(name), many.spread(name),
             many.median(name) / few.median(name))
            for name in many.seconds
        ],
    )  # fmt: skip
    claims = {": first paint": 0.5, ": everything": 2.0, "the server is up": 3.0}
    missed = []
    for name in many.seconds:
        most = next((limit for ending, limit in claims.items() if name.endswith(ending)), 1.0)
        is_claimed = not name.startswith(("chronolake ", "tables, for the first time"))
        if is_claimed and many.median(name) > most:
            missed.append(f"{name} ({many.median(name):.2f}, {most} asked)")
    say(f"\nThe claims: {'hold' if not missed else 'MISSED by ' + ', '.join(missed)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
