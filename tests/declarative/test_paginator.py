"""Pages follow one another as in the reference's paginators."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.models.pagination import Paginator
from chronolake.source.declarative.models.records import Decoder, Extractor
from chronolake.source.declarative.retrieval.paginator import Pages
from chronolake.source.declarative.stream_slice import StreamSlice
from support.declarative.responses import answer

_SLICE = StreamSlice({"id": 7}, {"start_time": "2024-01-01"})
_BODY = {"data": [1, 2], "next": "abc", "n": 3, "more": False, "zero": 0}
_LINKS = {
    "X-Next": "tok",
    "Link": '<https://a/b?p=2>; rel="next", <https://a/b?p=9>; rel="last"',
}
_PATH = {"type": "RequestPath"}


def _option(name: str, inject_into: str = "request_parameter") -> dict[str, Any]:
    return {"type": "RequestOption", "field_name": name, "inject_into": inject_into}


def _pages(
    strategy: dict[str, Any],
    *,
    size: dict[str, Any] | None = None,
    token: dict[str, Any] | None = None,
    decoder: dict[str, Any] | None = None,
    extractor: dict[str, Any] | None = None,
) -> Pages:
    paginator = {
        "type": "DefaultPaginator",
        "pagination_strategy": strategy,
        "page_size_option": size,
        "page_token_option": token or _option("page"),
    }
    return Pages(
        TypeAdapter[Any](Paginator).validate_python(paginator),
        {"size": 7},
        TypeAdapter[Any](Decoder).validate_python(decoder or {"type": "JsonDecoder"}),
        TypeAdapter[Any](Extractor | None).validate_python(extractor),
    )


def _following(
    pages: Pages,
    *,
    extracted: int = 1,
    last: Any = None,
    body: Any = _BODY,
    headers: dict[str, str] | None = None,
    record: dict[str, Any] | None = None,
    kept: int | None = None,
) -> Any:
    token = pages.next_token(
        answer(body, headers),
        extracted,
        record,
        None if last is None else {"next_page_token": last},
        last_page_size=extracted if kept is None else kept,
        stream_slice=_SLICE,
    )
    return None if token is None else token["next_page_token"]


def _pagenumbers(**fields: Any) -> dict[str, Any]:
    return {"type": "PageIncrement", **fields}


def _offsets(**fields: Any) -> dict[str, Any]:
    return {"type": "OffsetIncrement", **fields}


def _cursor(value: str, **fields: Any) -> dict[str, Any]:
    return {"type": "CursorPagination", "cursor_value": value, **fields}


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (_pagenumbers(start_from_page=1), None),
        (_pagenumbers(start_from_page=1, inject_on_first_request=True), {"next_page_token": 1}),
        (_pagenumbers(inject_on_first_request=True), {"next_page_token": 0}),
        (_offsets(), None),
        (_offsets(inject_on_first_request=True), {"next_page_token": 0}),
        (_cursor("x"), None),
    ],
)
def test_first_request_has_a_token_only_if_configured(
    strategy: dict[str, Any], expected: Any
) -> None:
    assert _pages(strategy).initial_token() == expected


@pytest.mark.parametrize(
    ("strategy", "extracted", "last", "expected"),
    [
        # Without a token, the page was the first one.
        (_pagenumbers(page_size=3, start_from_page=1), 3, None, 2),
        (_pagenumbers(page_size=3, start_from_page=1), 3, 0, 1),
        (_pagenumbers(page_size=3, start_from_page=1), 3, 5, 6),
        (_pagenumbers(page_size=3, start_from_page=1), 2, 5, None),
        (_pagenumbers(page_size="3"), 2, None, None),
        (_pagenumbers(page_size="{{ config.size }}"), 7, None, 1),
        (_pagenumbers(page_size="{{ config.size }}"), 6, None, None),
        (_pagenumbers(), 1, None, 1),
        (_pagenumbers(), 0, None, None),
        (_pagenumbers(page_size=0), 1, None, 1),
        # A token that is false ends the pagination.
        (_pagenumbers(start_from_page=-1), 6, None, None),
        (_pagenumbers(start_from_page=-2), 6, None, -1),
        (_offsets(page_size=3), 3, None, 3),
        (_offsets(page_size=3), 3, 5, 8),
        (_offsets(page_size=3), 4, 0, 4),
        (_offsets(page_size=3), 2, 5, None),
        (_offsets(), 2, 5, 7),
        (_offsets(), 0, 5, None),
        (_offsets(page_size="{{ config.size }}"), 7, 14, 21),
        (_offsets(page_size="{{ response.n }}"), 3, None, 3),
        (_offsets(page_size="{{ response.n }}"), 2, None, None),
    ],
)
def test_pages_are_counted_by_the_records_of_responses(
    strategy: dict[str, Any], extracted: int, last: Any, expected: Any
) -> None:
    assert _following(_pages(strategy), extracted=extracted, last=last, kept=0) == expected


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (_cursor("{{ response.next }}"), "abc"),
        (_cursor("{{ response.next }}", stop_condition="{{ not response.more }}"), None),
        (_cursor("{{ response.zero }}"), None),
        (_cursor("{{ response.nope }}"), None),
        (_cursor("{{ response }}"), _BODY),
        (_cursor("{{ last_record['id'] }}"), 7),
        (_cursor("{{ last_record['id'] }}", stop_condition="{{ last_page_size < 2 }}"), 7),
        (_cursor("{{ last_page_size }}"), 2),
        (_cursor("{{ headers['link']['next']['url'] }}"), "https://a/b?p=2"),
        (
            _cursor(
                "{{ headers.link.next.url }}", stop_condition="{{ 'next' not in headers.link }}"
            ),
            "https://a/b?p=2",
        ),
        (_cursor("{{ headers.get('link', {}).get('next', {}).get('url') }}"), "https://a/b?p=2"),
        (_cursor("{{ headers['X-Next'] }}"), "tok"),
        (_cursor("{{ headers.get('x-next') }}"), "tok"),
        (_cursor("{{ stream_partition['id'] }}"), 7),
        (_cursor("{{ stream_interval.start_time }}"), "2024-01-01"),
        (_cursor("const", stop_condition=""), "const"),
        (
            _cursor(
                "{{ response.next }}",
                stop_condition="{{ last_page_size < page_size }}",
                page_size=2,
            ),
            "abc",
        ),
        (
            _cursor(
                "{{ response.next }}",
                stop_condition="{{ last_page_size < page_size }}",
                page_size="{{ config.size }}",
            ),
            None,
        ),
    ],
)
def test_next_token_is_read_from_the_response(strategy: dict[str, Any], expected: Any) -> None:
    pages = _pages(strategy)
    found = _following(pages, extracted=5, kept=2, headers=_LINKS, record={"id": 7})
    assert found == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ([{"next": "r1"}, {"next": "r2"}], "r1"),
        ([], None),
    ],
)
def test_templates_see_the_first_item_of_a_root_list(body: Any, expected: Any) -> None:
    assert _following(_pages(_cursor("{{ response.next }}")), body=body) == expected


def test_response_without_records_has_no_last_record() -> None:
    pages = _pages(_cursor("more", stop_condition="{{ last_record is none }}"))
    assert _following(pages, extracted=0) is None
    assert _following(pages, extracted=1, record={"id": 1}) == "more"


def test_response_without_links_has_an_empty_link() -> None:
    pages = _pages(_cursor("more", stop_condition="{{ 'next' not in headers['link'] }}"))
    assert _following(pages) is None


def test_templates_see_the_content_of_a_compressed_response() -> None:
    gzip = {"type": "GzipDecoder", "decoder": {"type": "JsonDecoder"}}
    pages = _pages(_cursor("{{ response.next }}"), decoder=gzip)
    assert _following(pages) == "abc"


def test_the_size_of_pages_is_in_every_request() -> None:
    pages = _pages(_offsets(page_size=3), size=_option("limit", "header"), token=_option("offset"))
    assert pages.injection(None).headers == {"limit": 3}
    assert pages.injection(None).params == {}
    following = pages.injection({"next_page_token": 6})
    assert (following.headers, following.params) == ({"limit": 3}, {"offset": 6})


def test_a_token_of_zero_is_in_the_request() -> None:
    pages = _pages(_pagenumbers(inject_on_first_request=True), token=_option("page", "body_json"))
    assert pages.injection(pages.initial_token()).body_json == {"page": 0}


def test_a_token_may_be_the_path() -> None:
    pages = _pages(_cursor("{{ response.next }}"), token=_PATH)
    assert pages.path({"next_page_token": "https://a/b"}) == "https://a/b"
    assert pages.path({"next_page_token": 5}) == "5"
    assert pages.path(None) is None
    assert pages.injection({"next_page_token": "https://a/b"}).params == {}
    assert _pages(_cursor("x")).path({"next_page_token": "https://a/b"}) is None


@pytest.mark.parametrize("paginator", [None, {"type": "NoPagination"}])
def test_without_a_paginator_there_is_one_page(paginator: Any) -> None:
    component: Any = TypeAdapter(Paginator | None).validate_python(paginator)
    csv: Any = TypeAdapter(Decoder).validate_python({"type": "CsvDecoder"})
    pages = Pages(component, {}, csv)
    assert pages.initial_token() is None
    assert pages.injection(None).params == {}
    assert pages.path(None) is None
    assert _following(pages) is None


@pytest.mark.parametrize(
    ("strategy", "options", "words"),
    [
        (_pagenumbers(page_size="x"), {}, "not a whole number"),
        (_cursor("y", page_size="{{ config.nope }}"), {}, "not a whole number"),
        (_pagenumbers(), {"size": _option("s")}, "no page_size"),
        (_offsets(page_size="{{ response.n }}"), {"size": _option("s")}, "no page_size"),
        (_pagenumbers(page_size=2), {"size": _option("{{ 'page' }}")}, "'page'"),
        (_cursor("x", stop_condition="{{ last_page_size < page_size }}"), {}, "page_size"),
        (_cursor("x"), {"decoder": {"type": "JsonlDecoder"}}, "cannot be paginated"),
        (
            _offsets(),
            {
                "extractor": {
                    "type": "CombinedExtractor",
                    "extractors": [{"type": "DpathExtractor", "field_path": ["a"]}],
                }
            },
            "CombinedExtractor",
        ),
    ],
)
def test_invalid_combinations_of_settings_are_refused(
    strategy: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        _pages(strategy, **options)
