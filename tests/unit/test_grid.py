"""Tables for terminals show every cell, whatever the width."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from chronolake.cli.app import grid_of
from chronolake.grid import Grid

LONG = "production_eu.customer_subscription_invoice_line_items"


def printed(grid: Grid, width: int) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, highlight=False).print(grid)
    return stream.getvalue()


def status(*tables: str) -> Grid:
    grid = grid_of("table", "mode", "captures", "waiting", "last run", "fresh as of")
    for table in tables:
        mode = Text("soft-delete (auto)")
        grid.add_row(table, mode, "every-change", "12,345", "succeeded", "28 h ago")
    return grid


@pytest.mark.parametrize("tables", [["shop.orders"], ["shop.orders", LONG]], ids=["short", "long"])
def test_no_word_is_cut_off_at_any_width(tables: list[str]) -> None:
    words = ["soft-delete", "(auto)", "every-change", "12,345", "succeeded", "28", "ago", "fresh"]
    for width in range(len(LONG), 160):
        shown = printed(status(*tables), width)
        assert max(len(line.rstrip()) for line in shown.splitlines()) <= width
        for word in [*tables, *words]:
            assert word in shown, width


def test_what_fits_is_a_table() -> None:
    assert printed(status("shop.orders"), 100).splitlines()[1].split() == [
        *("table", "mode", "captures", "waiting", "last", "run", "fresh", "as", "of")
    ]
    # Only the mode is wrapped.
    assert [line.split() for line in printed(status("shop.orders"), 80).splitlines()[3:5]] == [
        ["shop.orders", "soft-delete", "every-change", "12,345", "succeeded", "28", "h", "ago"],
        ["(auto)"],
    ]


def test_rows_of_a_narrow_terminal_have_a_title_and_their_cells() -> None:
    assert printed(status(LONG), 80).splitlines() == [
        LONG,
        "  mode: soft-delete (auto) · captures: every-change · waiting: 12,345 · last    ",
        "  run: succeeded · fresh as of: 28 h ago                                        ",
    ]


def test_the_title_of_a_row_is_the_column_that_names_it() -> None:
    grid = grid_of("began (UTC)", "pipeline", "stream", "rows", title="stream")
    grid.add_row("2026-11-26 20:00:00", "salesforce", "Account", "1,234")
    grid.add_row("", "", LONG, "5")

    assert [line.strip() for line in printed(grid, 60).splitlines()] == [
        "Account",
        "began (UTC): 2026-11-26 20:00:00 · pipeline: salesforce ·",
        "rows: 1,234",
        LONG,
        "rows: 5",
    ]
