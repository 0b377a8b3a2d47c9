"""Pages that repeat are an error, and do not loop forever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronolake.errors import SourceError
from chronolake.source.declarative.records.selector import Page
from chronolake.source.declarative.retrieval.paginator import Repetition
from support.declarative.apis import Api, ReceivedRequest, Reply
from support.declarative.stream_reads import option, read_stream, retriever, stream


@pytest.fixture
def api() -> Iterator[Api]:
    with Api() as running:
        yield running


def paged(strategy: dict[str, Any], *, name: str = "page", **more: Any) -> dict[str, Any]:
    paginator = {
        "type": "DefaultPaginator",
        "page_token_option": option(name),
        "pagination_strategy": strategy,
    }
    return stream("orders", retriever=retriever(paginator=paginator, **more))


def cursor(value: str = "{{ response.next }}", **more: Any) -> dict[str, Any]:
    return {"type": "CursorPagination", "cursor_value": value, **more}


def message(read: Any) -> str:
    assert isinstance(read.result.failure, SourceError)
    return read.result.failure.message


@pytest.mark.differs("endless pagination")
def test_repeated_token_is_an_error(api: Api) -> None:
    numbers = iter(range(1000))
    api.on("/items", lambda _: Reply({"data": [{"id": next(numbers)}], "next": "abc"}))

    read = read_stream(paged(cursor()), api)

    assert message(read) == (
        "The pages of the stream orders do not end: page 2 (token 'abc') returns its own token as "
        "the next page's token."
    )
    assert len(api.requests) == 2


def test_cycle_of_tokens_is_an_error(api: Api) -> None:
    following = {None: "a", "a": "b", "b": "c", "c": "a"}
    numbers = iter(range(1000))

    def answer(asked: ReceivedRequest) -> Reply:
        token = asked.params.get("page")
        return Reply({"data": [{"id": next(numbers)}], "next": following[token]})

    api.on("/items", answer)

    assert "returns the token of an earlier page" in message(read_stream(paged(cursor()), api))
    assert len(api.requests) < 10


@pytest.mark.parametrize(
    "strategy",
    [
        {"type": "PageIncrement", "page_size": 2, "start_from_page": 1},
        {"type": "PageIncrement", "start_from_page": 1},
        {"type": "OffsetIncrement", "page_size": 2},
        cursor("{{ response.number }}", page_size=2),
    ],
)
def test_repeated_full_page_is_an_error(api: Api, strategy: dict[str, Any]) -> None:
    numbers = iter(range(1, 1000))
    rows = [{"id": 1}, {"id": 2}]
    api.on("/items", lambda _: Reply({"data": rows, "number": next(numbers), "at": "now"}))

    found = message(read_stream(paged(strategy), api))

    assert "orders do not end: page 2 (token" in found
    assert "has the same records as page 1" in found
    assert len(api.requests) == 2


@pytest.mark.parametrize("kind", ["PageIncrement", "OffsetIncrement"])
def test_api_that_counts_from_page_1_may_return_it_twice(api: Api, kind: str) -> None:
    pages = {"1": [{"id": 1}], "2": [{"id": 2}], "3": []}
    api.on("/items", lambda asked: Reply({"data": pages[asked.params.get("page", "1")]}))

    read = read_stream(paged({"type": kind, "page_size": 1}), api)

    assert read.ids == [1, 1, 2]


def test_first_page_returned_three_times_is_an_error(api: Api) -> None:
    api.on("/items", Reply({"data": [{"id": 1}]}))
    described = paged({"type": "PageIncrement", "page_size": 1})

    assert "page 3 (token 2) has the same records as page 2" in message(read_stream(described, api))


def test_transformations_do_not_hide_a_repeated_page(api: Api) -> None:
    api.on("/items", Reply({"data": [{"id": 1, "seen": 5}]}))
    described = paged({"type": "PageIncrement", "page_size": 1, "start_from_page": 1})
    described["transformations"] = [{"type": "RemoveFields", "field_pointers": [["seen"]]}]

    assert "same records" in message(read_stream(described, api))


def test_similar_pages_are_read(api: Api) -> None:
    pages = {
        # Full, empty, and short pages that are like another one, but not like a full one before.
        "0": [{"id": 1}, {"id": 2}],
        "1": [{"id": 2}, {"id": 1}],
        "2": [{"id": 1}, {"id": 2}],
        "3": [{"id": 5}],
        "4": [{"id": 5}],
        "5": [],
        "6": [],
        "7": [{"id": 6}],
    }

    def answer(asked: ReceivedRequest) -> Reply:
        number = asked.params.get("page", "0")
        later = str(int(number) + 1)
        return Reply({"data": pages[number], "next": later if later in pages else None})

    api.on("/items", answer)

    read = read_stream(paged(cursor(page_size=2)), api)

    assert read.result.failure is None
    assert read.ids == [1, 2, 2, 1, 1, 2, 5, 5, 6]


def test_short_page_returned_for_every_token_is_an_error(api: Api) -> None:
    numbers = iter(range(1000))
    api.on("/items", lambda _: Reply({"data": [{"id": 1}], "next": f"t{next(numbers)}"}))

    found = message(read_stream(paged(cursor(page_size=100)), api))

    assert "page 11 (token 't9') has the same records as page 10" in found


def _scrolling(api: Api) -> None:
    pages = iter([[{"id": 1}], [{"id": 2}], [{"id": 3}], []])
    api.on(
        "/items",
        lambda _: Reply({"data": (rows := next(pages)), "scroll_id": "abc" if rows else None}),
    )


def test_token_of_a_position_on_the_server_may_repeat(api: Api) -> None:
    _scrolling(api)
    assert read_stream(paged(cursor("{{ response.scroll_id }}")), api).ids == [1, 2, 3]


def test_configuration_lists_streams_whose_tokens_may_repeat(api: Api) -> None:
    pages = iter([[{"id": 1}], [{"id": 2}], []])
    api.on(
        "/items",
        lambda _: Reply({"data": (rows := next(pages)), "next": "abc" if rows else None}),
    )
    assert read_stream(paged(cursor()), api, may_repeat_tokens=["orders"]).ids == [1, 2]


def test_position_on_the_server_that_does_not_move_is_an_error(api: Api) -> None:
    api.on("/items", Reply({"data": [], "scroll_id": "abc"}))
    assert "same records" in message(read_stream(paged(cursor("{{ response.scroll_id }}")), api))


@given(lead=st.integers(0, 30), cycle=st.integers(1, 30))
def test_cycle_of_any_length_is_detected(lead: int, cycle: int) -> None:
    repetition = Repetition("orders", str)
    token = None
    for number in range(4 * (lead + cycle) + 4):
        at = number if number < lead else lead + (number - lead) % cycle
        following = {"next_page_token": f"t{at}"}
        try:
            repetition.raise_if_repeated(token, following, Page([], 0), None)
        except SourceError:
            assert number >= cycle
            return
        token = following
    pytest.fail("the cycle was not noticed")


@given(st.integers(1, 300))
def test_different_tokens_are_not_a_cycle(count: int) -> None:
    repetition = Repetition("orders", str)
    for number in range(count):
        token = {"next_page_token": number}
        repetition.raise_if_repeated(token, {"next_page_token": number + 1}, Page([], 0), None)
