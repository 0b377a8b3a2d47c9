"""Requests name the properties that they need, and the parts of a record are joined."""

from __future__ import annotations

from typing import Any

import pytest

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.models.streams import QueryProperties
from chronolake.source.declarative.retrieval.pages import Properties
from chronolake.source.declarative.stream_slice import StreamSlice
from support.declarative.apis import Api, ReceivedRequest, Reply
from support.declarative.stream_reads import read_stream, requester, retriever, stream

_ROWS = [{"id": "x", "a": 1, "b": {"in": 2}, "c": 3}, {"id": "y", "a": 4, "b": {"too": 5}}]


def _asked_for(asked: ReceivedRequest) -> Reply:
    names = asked.params["fields"].split(",")
    return Reply({"data": [{n: row[n] for n in names if n in row} for row in _ROWS]})


def _query(**more: Any) -> dict[str, Any]:
    return {"type": "QueryProperties", "property_list": ["a", "b", "c"], **more}


def _chunking(limit: int | None, by: str = "property_count", **more: Any) -> dict[str, Any]:
    return {
        "type": "PropertyChunking",
        "property_limit_type": by,
        "property_limit": limit,
        **more,
    }


def _stream(query: dict[str, Any], **more: Any) -> dict[str, Any]:
    return stream(retriever=retriever(asks={"request_parameters": {"fields": query}}), **more)


def _chunks(schema: dict[str, Any] | None = None, **more: Any) -> list[list[str]]:
    model = QueryProperties.model_validate(_query(**more))
    slice_ = StreamSlice({"team": 1}, {"start": 2}, {"other": 3})
    made = list(Properties(model, {}, schema, lambda _: tuple).slices(slice_))
    assert all(dict(chunk) == {"team": 1, "start": 2} for chunk in made)
    return [chunk.extra_fields["query_properties"] for chunk in made]


def test_partial_records_are_merged() -> None:
    merge = {"type": "GroupByKeyMergeStrategy", "key": "id"}
    query = _query(
        always_include_properties=["id"],
        property_chunking=_chunking(1, record_merge_strategy=merge),
    )
    with Api({"/items": _asked_for}) as api:
        found = read_stream(_stream(query), api)
        asked = [request.params["fields"] for request in api.requests]

    assert found.result.failure is None
    assert found.result.records == _ROWS
    assert asked == ["id,a", "id,b", "id,c"]


def test_records_without_the_key_are_not_merged() -> None:
    query = _query(property_chunking=_chunking(2))
    with Api({"/items": _asked_for}) as api:
        found = read_stream(_stream(query), api)

    assert found.result.records == [
        {"a": 1, "b": {"in": 2}},
        {"a": 4, "b": {"too": 5}},
        {"c": 3},
        {},
    ]


def test_pages_follow_the_last_part() -> None:
    rows = {"0": [{"id": "x"}, {"id": "y"}], "2": [{"id": "z"}]}
    described = _stream(_query(property_chunking=_chunking(2)))
    described["retriever"]["paginator"] = {
        "type": "DefaultPaginator",
        "page_token_option": {
            "type": "RequestOption",
            "inject_into": "request_parameter",
            "field_name": "offset",
        },
        "pagination_strategy": {"type": "OffsetIncrement", "page_size": 2},
    }
    with Api(
        {"/items": lambda request: Reply({"data": rows[request.params.get("offset", "0")]})}
    ) as api:
        found = read_stream(described, api)
        asked = [
            (request.params["fields"], request.params.get("offset")) for request in api.requests
        ]

    assert found.ids == ["x", "y", "z"]
    assert asked == [("a,b", None), ("c", None), ("a,b", "2"), ("c", "2")]


def test_properties_are_fetched_once() -> None:
    endpoint = {
        "type": "PropertiesFromEndpoint",
        "property_field_path": ["name", "short"],
        "retriever": retriever("/fields"),
    }
    described = _stream(_query(property_list=endpoint, property_chunking=_chunking(1)))
    described["retriever"]["partition_router"] = {
        "type": "ListPartitionRouter",
        "cursor_field": "team",
        "values": ["1", "2"],
    }
    names = [{"name": {"short": "a"}}, {"name": {}}, {"name": {"short": "c"}}]
    with Api({"/items": _asked_for, "/fields": Reply({"data": names})}) as api:
        found = read_stream(described, api)
        paths = api.paths()

    assert found.result.failure is None
    assert paths == ["/fields", *["/items"] * 4]


def test_failed_request_for_properties_fails_the_slice() -> None:
    endpoint = {
        "type": "PropertiesFromEndpoint",
        "property_field_path": ["name"],
        "retriever": retriever("/fields"),
    }
    with Api({"/fields": Reply(status=403)}) as api:
        found = read_stream(_stream(_query(property_list=endpoint)), api)

    assert "/fields returned status 403" in str(found.result.failure)


def test_templates_see_the_properties_of_a_requester() -> None:
    asks = {
        "request_parameters": {"fields": "{{ stream_slice.extra_fields.query_properties|join }}"},
        "query_properties": _query(property_list=["a", "b"]),
    }
    with Api({"/items": Reply({"data": [{"id": 1}]})}) as api:
        found = read_stream(stream(retriever=retriever(asks=asks)), api)
        asked = [request.params["fields"] for request in api.requests]

    assert found.ids == [1]
    assert asked == ["ab"]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, [["a", "b", "c"]]),
        ({"always_include_properties": ["id"]}, [["id", "a", "b", "c"]]),
        ({"property_chunking": _chunking(2)}, [["a", "b"], ["c"]]),
        ({"property_chunking": _chunking(8, "characters")}, [["a", "b"], ["c"]]),
        ({"property_chunking": _chunking(None)}, [["a", "b", "c"]]),
        (
            {"property_chunking": _chunking(None), "always_include_properties": ["id"]},
            [["a", "b", "c", "id"]],
        ),
        (
            {"property_chunking": _chunking(2), "always_include_properties": ["id"]},
            [["id", "a", "b"], ["id", "c"]],
        ),
    ],
)
def test_properties_are_split_into_chunks(more: dict[str, Any], expected: list[list[str]]) -> None:
    assert _chunks(**more) == expected


def test_a_selector_takes_those_that_the_schema_has() -> None:
    selector = {
        "type": "JsonSchemaPropertySelector",
        "transformations": [{"type": "KeysReplace", "old": "my_", "new": ""}],
    }
    schema: dict[str, Any] = {"properties": {"my_a": {}, "c": {}, "d": {}}}

    assert _chunks(schema, property_selector=selector) == [["a", "c"]]
    assert _chunks(schema, property_selector=selector, property_chunking=_chunking(1)) == [
        ["a"],
        ["c"],
    ]
    assert _chunks(None, property_selector=selector) == [["a", "b", "c"]]


def test_only_one_list_of_properties_is_allowed() -> None:
    asks = {"request_parameters": {"one": _query(), "two": _query()}}
    with Api() as api, pytest.raises(ConfigurationError, match="one QueryProperties"):
        read_stream(stream(retriever=retriever(asks=asks)), api)


def test_an_endpoint_is_checked_before_anything_is_read() -> None:
    wrong = {**retriever("/fields"), "requester": requester("/fields")}
    wrong["paginator"] = {
        "type": "DefaultPaginator",
        "page_size_option": {
            "type": "RequestOption",
            "inject_into": "request_parameter",
            "field_name": "size",
        },
        "pagination_strategy": {"type": "OffsetIncrement"},
    }
    endpoint = {
        "type": "PropertiesFromEndpoint",
        "property_field_path": ["name"],
        "retriever": wrong,
    }
    with Api() as api:
        with pytest.raises(ConfigurationError, match="page_size"):
            read_stream(_stream(_query(property_list=endpoint)), api)
        assert api.requests == []
