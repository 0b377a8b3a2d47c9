"""Requests are built as the reference builds them."""

from __future__ import annotations

from typing import Any

import pytest

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.http.request_builder import (
    EncodedRequest,
    Injection,
    Request,
    build_request,
    encode,
    merge,
)
from chronolake.source.declarative.models.requests import HttpRequester, RequestOption
from chronolake.source.declarative.stream_slice import StreamSlice

BASE = "https://api.example.com/v1"


def requester(**fields: Any) -> HttpRequester:
    whole = {"type": "HttpRequester", "url_base": BASE, "path": "items", **fields}
    return HttpRequester.model_validate(whole)


def request(
    fields: dict[str, Any],
    *injected: Injection,
    config: dict[str, Any] | None = None,
    stream_slice: StreamSlice | None = None,
    token: dict[str, Any] | None = None,
    path: str | None = None,
) -> Request:
    return build_request(
        requester(**fields),
        config or {},
        stream_slice=stream_slice,
        next_page_token=token,
        injected=injected,
        path=path,
    )


def wire(fields: dict[str, Any], *injected: Injection, **how: Any) -> EncodedRequest:
    return encode(request(fields, *injected, **how))


def option(into: str, name: str | None = None, path: list[str] | None = None) -> RequestOption:
    return RequestOption.model_validate(
        {"type": "RequestOption", "inject_into": into, "field_name": name, "field_path": path}
    )


@pytest.mark.parametrize(
    ("base", "path", "url"),
    [
        ("https://a.example/api/", "items", "https://a.example/api/items"),
        ("https://a.example/api", "/items", "https://a.example/api/items"),
        ("https://a.example/api", "items/", "https://a.example/api/items/"),
        ("https://a.example/api/", "", "https://a.example/api/"),
        ("https://a.example/api", None, "https://a.example/api"),
        ("https://a.example/api", "https://b.example/x?y=1", "https://b.example/x?y=1"),
    ],
)
def test_path_is_appended_to_the_base_url(base: str, path: str | None, url: str) -> None:
    assert request({"url_base": base, "path": path}).url == url
    assert request({"url_base": None, "url": base, "path": path}).url == url


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("https://api.example.com/v1/items?page=2", "https://api.example.com/v1/items?page=2"),
        ("/v1/items?page=2", "https://api.example.com/v1/items?page=2"),
        ("more", "https://api.example.com/v1/more"),
    ],
)
def test_next_page_is_a_path_or_a_whole_url(path: str, url: str) -> None:
    assert request({}, path=path).url == url


def test_parameter_of_the_next_url_is_not_sent_twice() -> None:
    fields = {"request_parameters": {"limit": "10", "sort": "id"}}

    sent = wire(fields, path="https://api.example.com/v1/items?limit=10&sort=name&page=2")

    assert sent.url == "https://api.example.com/v1/items?limit=10&sort=name&page=2&sort=id"


def test_parameters_keep_their_text() -> None:
    fields = {
        "request_parameters": {
            "version": "2.10",
            "flag": True,
            "many": ["a", "b"],
            "list": "{{ ['x', 'y'] }}",
            "text": "a b&c",
            "number": 5,
        }
    }

    assert wire(fields).url == (
        f"{BASE}/items?version=2.10&flag=True&many=a&many=b&list=x&list=y&text=a+b%26c&number=5"
    )


def test_parameter_whose_template_is_null_is_omitted() -> None:
    fields = {
        "request_parameters": {
            "gone": "{{ config.get('absent') or '' }}",
            "zero": "{{ 0 }}",
            "missing": "{{ stream_slice['absent'] }}",
        },
        "request_headers": {"X-Gone": "{{ config.get('absent') or '' }}", "X-There": "yes"},
    }

    sent = request(fields, stream_slice=StreamSlice())

    assert dict(sent.params) == {"zero": "0"}
    assert dict(sent.headers) == {"X-There": "yes"}


def test_templates_see_the_slice_and_the_token() -> None:
    fields = {
        "path": "{{ stream_partition.account }}/items",
        "request_parameters": {
            "from": "{{ stream_interval.start_time }}",
            "of": "{{ stream_slice.extra_fields.name }}",
            "name": "{{ name }}",
            "page": "{{ next_page_token.next_page_token }}",
            "user": "{{ config['user'] }}",
            "kind": "{{ parameters['kind'] }}",
        },
        "$parameters": {"kind": "open"},
    }
    part = StreamSlice({"account": 7}, {"start_time": "2024-01-01"}, {"name": "Ada"})

    sent = request(
        fields, config={"user": "u"}, stream_slice=part, token={"next_page_token": "abc"}
    )

    assert sent.url == f"{BASE}/7/items"
    assert dict(sent.params) == {
        "from": "2024-01-01",
        "of": "Ada",
        "name": "Ada",
        "page": "abc",
        "user": "u",
        "kind": "open",
    }


def test_parameters_can_be_one_template() -> None:
    assert dict(request({"request_parameters": "{{ {'a': 1, 'b': None} }}"}).params) == {"a": 1}
    assert not request({"request_parameters": "not=understood"}).params


@pytest.mark.parametrize(
    ("fields", "body", "kind"),
    [
        ({"request_body_json": {"a": {"b": "{{ 1 }}"}}}, b'{"a": {"b": 1}}', "application/json"),
        (
            {"request_body_json": "{{ {'a': config['x']} }}"},
            b'{"a": 5}',
            "application/json",
        ),
        (
            {"request_body_data": {"a": "2.10", "b": ["x", "y"]}},
            b"a=2.10&b=x&b=y",
            "application/x-www-form-urlencoded",
        ),
        ({"request_body_data": "plain {{ config['x'] }}"}, b"plain 5", None),
        (
            {"request_body": {"type": "RequestBodyPlainText", "value": "as it is"}},
            b"as it is",
            None,
        ),
        ({"request_body": {"type": "RequestBodyPlainText", "value": "[1, 2]"}}, b"[1, 2]", None),
        (
            {"request_body": {"type": "RequestBodyUrlEncodedForm", "value": {"a": "1"}}},
            b"a=1",
            "application/x-www-form-urlencoded",
        ),
        (
            {"request_body": {"type": "RequestBodyJsonObject", "value": {"a": [1, None]}}},
            b'{"a": [1, null]}',
            "application/json",
        ),
        (
            {
                "request_body": {
                    "type": "RequestBodyGraphQL",
                    "value": {"query": "query { items { id } }", "variables": {"n": 2}},
                }
            },
            b'{"query": "query { items { id } }", "variables": {"n": 2}}',
            "application/json",
        ),
        ({}, None, None),
    ],
)
def test_bodies(fields: dict[str, Any], body: bytes | None, kind: str | None) -> None:
    sent = wire({"http_method": "POST", **fields}, config={"x": 5})

    assert sent.body == body
    assert sent.headers.get("Content-Type") == kind


def test_get_can_have_a_body() -> None:
    assert wire({"request_body_json": {"a": 1}}).body == b'{"a": 1}'


def test_content_type_of_the_manifest_is_kept() -> None:
    fields = {
        "http_method": "POST",
        "request_headers": {"content-type": "application/vnd.api+json"},
        "request_body_json": {"a": 1},
    }

    assert wire(fields).headers == {"content-type": "application/vnd.api+json"}


def test_two_kinds_of_body_are_refused() -> None:
    fields = {
        "http_method": "POST",
        "request_body_json": {"a": 1},
        "request_body_data": {"b": "1"},
    }

    with pytest.raises(ConfigurationError, match="JSON body and another"):
        wire(fields)


def test_object_parameter_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'where' is an object"):
        request({"request_parameters": {"where": {"a": 1}}})


def test_header_with_a_line_break_is_refused_without_its_value() -> None:
    with pytest.raises(ConfigurationError) as caught:
        wire({"request_headers": {"X-Key": "abc\r\nX-Other: 1"}})

    assert "abc" not in str(caught.value)


def test_same_parameter_from_two_places_is_refused() -> None:
    page = Injection({"limit": 10}, place="the paginator")

    with pytest.raises(ConfigurationError) as caught:
        request({"request_parameters": {"limit": "10"}}, page)

    assert "'limit'" in str(caught.value)
    assert "by the requester and by the paginator" in str(caught.value)


def test_json_bodies_are_merged_unless_they_conflict() -> None:
    first = Injection(body_json={"query": {"a": 1, "size": 5}}, place="the one")
    second = Injection(body_json={"query": {"b": 2, "size": 5}}, place="the other")

    assert merge([first, second]).body_json == {"query": {"a": 1, "b": 2, "size": 5}}
    assert first.body_json == {"query": {"a": 1, "size": 5}}
    second.body_json["query"]["size"] = 6
    with pytest.raises(ConfigurationError, match=r"'query.size' .* the one and by the other"):
        merge([first, second])


def test_text_body_cannot_be_merged() -> None:
    text, form = Injection(body_data="text", place="one"), Injection(body_data={"a": 1})

    assert merge([text, Injection()]).body_data == "text"
    for both in ([text, form], [form, text], [text, text]):
        with pytest.raises(ConfigurationError, match="is text set by"):
            merge(both)


def test_options_put_values_into_their_places() -> None:
    into = Injection()
    into.put(option("request_parameter", "page"), 2)
    into.put(option("header", "X-{{ config['name'] }}"), "h", {"name": "Page"})
    into.put(option("body_data", "form"), "f")
    into.put(option("body_json", path=["paging", "from"]), 10)
    into.put(option("body_json", path=["paging", "size"]), 5)

    assert into.params == {"page": 2}
    assert into.headers == {"X-Page": "h"}
    assert into.body_data == {"form": "f"}
    assert into.body_json == {"paging": {"from": 10, "size": 5}}
    with pytest.raises(ConfigurationError):
        into.put(option("body_json", path=["paging", "size", "deep"]), 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"inject_into": "header"},
        {"inject_into": "body_json", "field_name": "a", "field_path": ["b"]},
        {"inject_into": "header", "field_path": ["a", "b"]},
        {"inject_into": "elsewhere", "field_name": "a"},
    ],
)
def test_option_without_a_target_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="RequestOption"):
        RequestOption.model_validate({"type": "RequestOption", **fields})


def test_properties_are_joined_into_a_parameter() -> None:
    fields = {"request_parameters": {"properties": {"type": "QueryProperties"}}}
    part = StreamSlice(extra_fields={"query_properties": ["id", "name"]})

    assert dict(request(fields, stream_slice=part).params) == {"properties": "id,name"}
    with pytest.raises(ConfigurationError, match="needs query properties"):
        request(fields, stream_slice=StreamSlice())
