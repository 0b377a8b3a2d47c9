"""Tokens, keys and cursors that look like numbers or lists are sent as the API returned them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import pytest

from support.declarative.apis import Api, ReceivedRequest, Reply
from support.declarative.stream_reads import option, read_stream, requester, retriever, stream

#: Tokens that Python's parser reads as a number, a list or None.
TOKENS = [
    "1e5",
    "0e462097431906509019562988736854",
    "65e123456789012345678901",
    "2.10",
    "1_000",
    "0x1f",
    "00",
    "007",
    "+5",
    "-0",
    "1.",
    "1,2",
    "(1, 2)",
    "[1,2]",
    "[1, 2]",
    "[1]",
    '{"a": 1}',
    "{'a': 1}",
    "'quoted'",
    '"quoted"',
    "1j",
    "True",
    "b'x'",
    "1234567890123456789",
]


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with Api() as running:
        yield running


def _pages(api: Api, token_of: Any) -> None:
    """Serve a page for each token, which names the next one; the first is requested without one."""
    following = dict(zip([None, *TOKENS], [*TOKENS, None], strict=True))

    def answer(asked: ReceivedRequest) -> Reply:
        token = token_of(asked)
        if token not in following:
            return Reply({"error": f"no page {token!r}"}, status=400)
        return Reply({"data": [{"id": token or "first"}], "next": following[token]})

    api.on("/items", answer)


def _paged(place: str, **more: Any) -> dict[str, Any]:
    where = {"type": "RequestOption", "inject_into": place, "field_name": "page"}
    return {
        "type": "DefaultPaginator",
        "page_token_option": where,
        "pagination_strategy": {
            "type": "CursorPagination",
            "cursor_value": "{{ response.get('next') }}",
            **more,
        },
    }


def _told(asked: ReceivedRequest) -> Any:
    """Return a request's token, wherever it is; a text of digits is a number in JSON."""
    if asked.method == "POST":
        if asked.headers.get("content-type") == "application/json":
            found = asked.json.get("page")
            return str(found) if type(found) is int else found
        return asked.form.get("page")
    return asked.params.get("page", asked.headers.get("page"))


@pytest.mark.parametrize(
    ("place", "asks"),
    [
        ("request_parameter", {}),
        ("header", {}),
        ("body_data", {"http_method": "POST"}),
        ("body_json", {"http_method": "POST", "request_body_json": {"kind": "page"}}),
    ],
)
def test_page_tokens_are_sent_unchanged(api: Api, place: str, asks: dict[str, Any]) -> None:
    _pages(api, _told)
    described = stream(retriever=retriever(paginator=_paged(place), asks=asks))

    read = read_stream(described, api)

    assert read.result.failure is None
    assert read.ids == ["first", *TOKENS]


@pytest.mark.parametrize(
    "asks",
    [
        {"request_parameters": {"page": "{{ next_page_token['next_page_token'] }}"}},
        {"request_parameters": "{{ {'page': (next_page_token or {}).get('next_page_token')} }}"},
        {"request_headers": {"page": "{{ next_page_token['next_page_token'] }}"}},
        {
            "http_method": "POST",
            "request_body_data": {"page": "{{ next_page_token['next_page_token'] }}"},
        },
        {
            "http_method": "POST",
            "request_body_json": {
                "kind": "page",
                "page": "{{ next_page_token['next_page_token'] }}",
            },
        },
    ],
)
def test_page_tokens_in_templates_are_sent_unchanged(api: Api, asks: dict[str, Any]) -> None:
    _pages(api, _told)
    paginator = {
        name: option for name, option in _paged("header").items() if name != "page_token_option"
    }
    described = stream(retriever=retriever(paginator=paginator, asks=asks))

    read = read_stream(described, api)

    assert read.result.failure is None
    assert read.ids == ["first", *TOKENS]


@pytest.mark.parametrize("token", [" 5", "5 ", "5\n", "\t[1]", "a\n", " ", "{{ config.api }}"])
def test_blanks_and_braces_of_a_token_are_sent(api: Api, token: str) -> None:
    api.on("/items", Reply({"data": [{"id": 1}], "next": token}), Reply({"data": []}))
    api.requests.clear()

    read = read_stream(stream(retriever=retriever(paginator=_paged("request_parameter"))), api)

    assert read.result.failure is None
    assert [request.params.get("page") for request in api.requests] == [None, token]


@pytest.mark.parametrize("nothing", [None, False, 0, "", [], {}, "None", "False", "0", "[]", "{}"])
def test_an_empty_token_ends_the_pages(api: Api, nothing: Any) -> None:
    api.on("/items", Reply({"data": [{"id": 1}], "next": nothing}))
    api.requests.clear()

    read = read_stream(stream(retriever=retriever(paginator=_paged("request_parameter"))), api)

    assert read.ids == [1]
    assert len(api.requests) == 1


def test_a_stop_condition_gets_unchanged_tokens(api: Api) -> None:
    _pages(api, _told)
    paginator = _paged("request_parameter", stop_condition="{{ not response.next }}")

    read = read_stream(stream(retriever=retriever(paginator=paginator)), api)

    assert read.ids == ["first", *TOKENS]


_TEXTS = TOKENS


@pytest.mark.parametrize(
    ("parts", "asks"),
    [
        ({"request_option": option("parent")}, {}),
        ({}, {"request_parameters": {"parent": "{{ stream_partition.parent }}"}}),
        ({}, {"request_headers": {"parent": "{{ stream_slice['parent'] }}"}}),
        ({}, {"path": "{{ stream_partition.parent | urlencode }}"}),
    ],
)
def test_partitions_are_requested_by_their_unchanged_keys(
    api: Api, parts: dict[str, Any], asks: dict[str, Any]
) -> None:
    api.on("/parents", Reply({"data": [{"id": text} for text in _TEXTS]}))

    def answer(asked: ReceivedRequest) -> Reply:
        key = asked.params.get("parent") or asked.headers.get("parent")
        return Reply({"data": [{"id": key}]})

    api.on("/items", answer)
    by_path = "path" in asks
    router = {
        "type": "SubstreamPartitionRouter",
        "parent_stream_configs": [
            {
                "type": "ParentStreamConfig",
                "parent_key": "id",
                "partition_field": "parent",
                "stream": stream("parents", retriever=retriever("/parents")),
                **parts,
            }
        ],
    }
    fields = [
        {"type": "AddedFieldDefinition", "path": ["of"], "value": "{{ stream_partition.parent }}"}
    ]
    described = stream(
        retriever={**retriever(partition_router=router), "requester": requester("/items") | asks},
        transformations=[{"type": "AddFields", "fields": fields}],
    )
    api.requests.clear()

    read = read_stream(described, api)

    if by_path:
        asked = [request.path for request in api.requests if request.path != "/parents"]
        assert [unquote(path.removeprefix("/")) for path in asked] == _TEXTS
        return
    assert read.result.failure is None
    assert read.ids == _TEXTS
    # A key that a transformation adds to the records is a text or the same number.
    assert [str(record["of"]) for record in read.result.records] == _TEXTS


@pytest.mark.parametrize(
    ("values", "sent"),
    [
        ("1e5,2e5,7", ["1e5", "2e5", "7"]),
        ("[1e5, 2.10, 3]", ["1e5", "2.10", "3"]),
        ("a", None),
    ],
)
def test_values_of_a_list_in_the_configuration_are_sent_as_they_are(
    api: Api, values: str, sent: list[str] | None
) -> None:
    api.on("/items", lambda asked: Reply({"data": [{"id": asked.params["team"]}]}))
    router = {
        "type": "ListPartitionRouter",
        "cursor_field": "team",
        "values": "{{ config['teams'] }}",
        "request_option": option("team"),
    }

    read = read_stream(
        stream(retriever=retriever(partition_router=router)), api, None, {"teams": values}
    )

    assert read.ids == (sent or [])
    assert (read.result.failure is not None) == (sent is None)
