"""The output of tables and values in a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from chronolake.config import LakeConfig
from chronolake.formatting import cell, instant, size
from chronolake.inspect import history, render, tables
from chronolake.types import TMAX_MICROS, TMAX_TEXT, TMIN_MICROS, TMIN_TEXT, TableName
from support.inspect.layout import HISTORY, TMAX, Make

ORDERS = TableName("shop", "orders")


def printed(what: RenderableType, width: int = 80) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, highlight=False).print(what)
    text = stream.getvalue()
    assert all(len(line) <= width for line in text.splitlines())
    return text


def test_tables_are_readable_in_80_columns(config: LakeConfig, make: Make) -> None:
    make(ORDERS, ["id*:INT", *HISTORY], [(1, "2024-01-01T00:00:00Z", TMAX, True)])
    make(TableName("a.b", "[red]markup[/red]"), ["id*:INT"])

    text = printed(render.tables(tables(config)), 100)

    assert "shop.orders" in text
    assert "history" in text
    assert "[red]" in text
    printed(render.tables(tables(config)), 80)


def test_an_empty_lake_is_reported_as_empty() -> None:
    assert "no tables yet" in printed(render.tables([]))


def test_a_timeline_is_readable_in_80_columns(config: LakeConfig, make: Make) -> None:
    make(
        ORDERS,
        ["id*:INT", "note:STRING", *HISTORY],
        [
            (1, "first\x1b[31m\nline", "2024-01-01T00:00:00Z", "2024-01-01T23:59:59.999Z", False),
            (1, "x" * 5000, "2024-01-02T00:00:00Z", "2024-01-03T23:59:59.999Z", False),
            (1, "x" * 5000, "2024-01-04T00:00:00Z", TMAX, True),
        ],
    )

    text = printed(render.timeline(history(config, ORDERS, {"id": "1"})))

    assert "3 versions" in text
    assert "\x1b" not in text
    assert r"first\x1b[31m\nline" in text
    assert "→" in text
    assert "(5,000 characters)" in " ".join(text.split())
    assert "no changes" in text
    assert "No such record" in printed(render.timeline(history(config, ORDERS, {"id": "2"})))


def test_a_wide_record_shows_its_first_columns_and_the_number_of_others(
    config: LakeConfig, make: Make
) -> None:
    wide = [f"c{number}:INT" for number in range(300)]
    make(ORDERS, ["id*:INT", *wide], [(1, *range(300))])

    text = printed(render.timeline(history(config, ORDERS, {"id": "1"})))

    assert "and 277 more columns: use --json" in text


def test_null_is_distinguished_from_texts_that_look_like_it() -> None:
    words = ("null", "", " ", "x")
    assert [cell(word).plain for word in words] == ['"null"', '""', " ", "x"]
    assert cell(None).plain == "null"


def test_rows_too_wide_for_a_table_become_blocks() -> None:
    names = [f"column_{number}" for number in range(30)]

    text = printed(render.rows(names, [tuple(range(30)), tuple(range(30))], width=80))

    assert "row 2" in text
    assert "column_29" in text
    assert "row 1" not in printed(render.rows(["a", "b"], [(1, None)], width=80))


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (TMAX_MICROS, TMAX_TEXT),
        (TMIN_MICROS, TMIN_TEXT),
        (0, "1970-01-01T00:00:00Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (1_500_000, "1970-01-01T00:00:01.500Z"),
    ],
)
def test_every_instant_has_a_text(micros: int, text: str) -> None:
    assert instant(micros) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**40, "5.0 TiB")],
)
def test_sizes_are_words(count: int, text: str) -> None:
    assert size(count) == text
