"""URLs of the web UI, sorting and paging of lists, and the display of values."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.requests import Request

from chronolake.errors import ValueRefusedError
from chronolake.formatting import instant
from chronolake.inspect import Change, Ending, Timeline, Version
from chronolake.types import LAST_MICROS, TMAX_TEXT, TMIN_MICROS, TMIN_TEXT, Mode, TableName
from chronolake.ui import links, rendering
from chronolake.ui.pages.record import chart_data, page_of, version_page

NAMES = st.text(min_size=1, max_size=12)


def request(url: str) -> Request:
    parts = urlsplit(url)
    scope = {"type": "http", "path": parts.path, "query_string": parts.query.encode()}
    return Request(scope | {"headers": [], "method": "GET"})


@given(schema=NAMES, table=NAMES)
def test_every_table_s_url_names_it_again(schema: str, table: str) -> None:
    name = TableName(schema, table)
    assert TableName.parse(str(name)) == name
    assert links.table_of(request(links.time_travel(name))) == name


@given(
    key=st.dictionaries(
        st.text(min_size=1, max_size=8),
        st.none() | st.text(max_size=8) | st.integers() | st.booleans(),
        min_size=1,
        max_size=3,
    )
)
def test_every_record_s_url_gives_its_key_again(key: dict[str, str | int | bool | None]) -> None:
    found = links.key_of(request(links.record(TableName("s", "t"), key)))
    assert found == {
        name: None if value is None else links.text_of(value) for name, value in key.items()
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-05-02", "2026-05-02T00:00:00Z"),
        ("2026-05-02 12:30", "2026-05-02T12:30:00Z"),
        ("2026-05-02T12:30:00.123456Z", "2026-05-02T12:30:00.123456Z"),
        ("2026-05-02T12:30:00+02:00", "2026-05-02T10:30:00Z"),
        # In a URL that was typed by hand, a plus is a blank.
        ("2026-05-02T12:30:00 02:00", "2026-05-02T10:30:00Z"),
        ("2026-05-02 12:30:00.5 0200", "2026-05-02T10:30:00.500Z"),
        ("2026", "2026-01-01T00:00:00Z"),
        ("2026-11", "2026-11-01T00:00:00Z"),
        ("2026-05-02t12:30:00z", "2026-05-02T12:30:00Z"),
        ("0001-01-01T00:00:00+14:00", TMIN_TEXT),
        (TMAX_TEXT, TMAX_TEXT),
        (instant(LAST_MICROS), instant(LAST_MICROS)),
    ],
)
def test_a_time_may_be_written_as_people_do(text: str, expected: str) -> None:
    assert instant(links.micros_of(text)) == expected


@given(st.integers(TMIN_MICROS, LAST_MICROS))
def test_every_instant_that_we_write_is_read(micros: int) -> None:
    assert links.micros_of(instant(micros)) == micros


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "1", "", "2026-05-02T25:00"])
def test_an_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(ValueRefusedError, match=f"^'{text}' is not a valid time"):
        links.micros_of(text)


def version(start: str | None, end: str | None, ending: Ending, *changed: str) -> Version:
    return Version(start, end, ending, None, {}, tuple(Change(name, 1, 2) for name in changed))


def timeline(*versions: Version) -> Timeline:
    return Timeline(TableName("s", "t"), Mode.HISTORY, {"id": "1"}, versions)


LIFE = timeline(
    version(TMIN_TEXT, TMIN_TEXT, Ending.DELETED),
    version("2026-01-01T00:00:00Z", "2026-01-01T23:59:59.999Z", Ending.REPLACED, "a"),
    version("2026-01-02T00:00:00Z", "2026-01-02T00:00:00Z", Ending.DELETED, "a", "b"),
    version("2026-02-01T00:00:00Z", TMAX_TEXT, Ending.ACTIVE, "a"),
)


def test_a_list_marks_reinserted_records_and_versions_that_were_never_valid() -> None:
    shown = version_page(LIFE, 1, size=10).versions

    assert [version.number for version in shown] == [1, 2, 3, 4]
    assert [version.deleted_since for version in shown] == [
        None,
        TMIN_TEXT,
        None,
        "2026-01-02T00:00:00Z",
    ]
    assert [version.is_instant for version in shown] == [True, False, True, False]


@given(count=st.integers(0, 40), size=st.integers(1, 9), newest=st.booleans(), wanted=st.integers())
def test_pages_hold_every_version_once_in_order(
    count: int, size: int, newest: bool, wanted: int
) -> None:
    life = timeline(
        *(version(f"20{n:02}-01-01T00:00:00Z", TMAX_TEXT, Ending.ACTIVE) for n in range(count))
    )
    pages = version_page(life, 1, size=size).pages
    found = [
        version.number
        for number in range(1, pages + 1)
        for version in version_page(life, number, size=size, newest_first=newest).versions
    ]
    assert found == (list(range(count, 0, -1)) if newest else list(range(1, count + 1)))
    assert 1 <= version_page(life, wanted, size=size).number <= pages
    for number in range(1, count + 1):
        page = page_of(number, count, size=size, newest_first=newest)
        listed = version_page(life, page, size=size, newest_first=newest).versions
        assert number in {version.number for version in listed}


def test_a_chart_has_no_ends_of_time_and_a_lane_for_each_column_that_changed() -> None:
    reported = chart_data(LIFE)

    second = 1767225600000.0
    assert reported["starts"] == [None, second, second + 86_400_000, second + 31 * 86_400_000]
    assert reported["ends"] == [None, second + 86_399_999, second + 86_400_000, None]
    assert reported["states"] == "drda"
    assert reported["lanes"] == [
        {"column": "a", "places": [1, 2, 3]},
        {"column": "b", "places": [2]},
    ]
    # The end of time as another engine writes it.
    other = version("2026-01-01T00:00:00Z", "9999-12-31T00:00:00Z", Ending.ACTIVE)
    assert chart_data(timeline(other))["ends"] == [None]


@pytest.mark.parametrize(
    ("value", "html"),
    [
        (True, '<span class="bool">true</span>'),
        (1234567, '<span class="num">1234567</span>'),
        ("<script>&\"'", "&lt;script&gt;&amp;&#34;&#39;"),
        ("a\u202eb", 'a<span class="escape">\\u202e</span>b'),
        ("\n", '<span class="escape">\\n</span>'),
        ("a\r\nb", 'a<span class="escape">\\r\\n</span>b'),
        ("x" * 300, "x" * 240 + '<span class="null">… (300 characters)</span>'),
    ],
)
def test_a_value_is_text_whatever_it_holds(value: object, html: str) -> None:
    assert str(rendering.cell(value)) == html  # type: ignore[arg-type]


def seen(html: str) -> str:
    """Return the readable text of HTML."""
    return unescape(re.sub("<[^>]*>", "", html))


@pytest.mark.parametrize(("value", "like"), [(None, "null"), ("", "empty text")])
def test_null_is_distinguished_from_the_text_null(value: str | None, like: str) -> None:
    real, text = rendering.cell(value), rendering.cell(like)

    assert seen(real) == text == like
    assert "aria-label=" in real
    assert "title=" in real


def test_blanks_at_the_ends_of_a_text_are_marked() -> None:
    assert rendering.cell("a  b") == "a  b"
    assert 'aria-label="1 blank"' in rendering.cell("a  b ")
    assert 'title="2 blanks">  </span>x' in rendering.cell("  x")
    # The place where a long text is cut is not its end.
    assert "blank" not in rendering.cell("x " * 200)


@given(st.text(), st.text(), st.text(max_size=400), st.text(max_size=400))
@example("x" * 500, "y" * 500, "", " ")
@example("<b>" * 200, "", "1", "2")
@example("", "z" * 500, "", "a")
def test_a_change_in_a_long_text_is_seen(before: str, after: str, old: str, new: str) -> None:
    texts = [f"{before}{middle}{after}" for middle in (old, new)]
    shown = rendering.diff_cells(*texts)

    assert (shown[0] == shown[1]) == (texts[0] == texts[1])
    assert max(len(seen(html)) for html in shown) < 10 * 400


def test_a_long_text_can_be_opened_as_long_as_a_page_has_room() -> None:
    budget, text = rendering.TextBudget(), "<i>" * 1_000
    opened = [budget.render(text) for _ in range(60)]

    assert seen(opened[0]).endswith(text)
    assert budget.is_short
    assert not opened[-1].startswith("<details")
    assert "3,000 characters" in opened[-1]
    assert sum(map(len, opened)) < 700_000
    other = rendering.TextBudget()
    assert not any("<details" in html for html in (other.render("short"), other.render(None)))
    assert not other.is_short


@pytest.mark.parametrize(
    ("passed", "words"),
    [
        (timedelta(seconds=0.5), "just now"),
        (timedelta(seconds=59), "59 s ago"),
        (timedelta(minutes=61), "1 h ago"),
        (timedelta(days=364), "364 d ago"),
        (timedelta(days=800), "2 y ago"),
        (-timedelta(days=1), "just now"),
    ],
)
def test_ages_are_printed_in_their_largest_unit(passed: timedelta, words: str) -> None:
    now = datetime(2026, 6, 1, tzinfo=UTC)
    assert rendering.age((now - passed).isoformat(), now=now) == words


def test_links_contain_only_the_given_parameters() -> None:
    assert links.to("/past", at=None, than="") == "/past"
    url = links.record(TableName("a.b", "c&d=?#"), {"k&": "v=%+ ", "n": None}, page=2)
    assert parse_qsl(urlsplit(url).query) == [
        ("table", "`a.b`.c&d=?#"),
        ("key.k&", "v=%+ "),
        ("null", "n"),
        ("page", "2"),
    ]
