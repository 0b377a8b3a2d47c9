"""Templates do not change their arguments; URLs are sent as `requests` does."""

from __future__ import annotations

import copy
import json
import socket
import threading
from typing import Any

import pytest
import requests

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.http.client import Sender
from chronolake.source.declarative.http.request_builder import Request, encode_url
from chronolake.source.declarative.http.transport import Network, http_client
from chronolake.source.declarative.stream_slice import StreamSlice
from chronolake.source.declarative.templating.templates import as_text, evaluate


def _given() -> dict[str, Any]:
    return {
        "config": {"key": "k", "list": [1, 2], "inner": {"a": {"b": [1]}}},
        "parameters": {"a": [1]},
        "record": {"id": 1, "tags": ["x"]},
        "response": {"data": [{"id": 1}]},
        "stream_slice": StreamSlice({"p": {"q": 1}}, {"start": "1"}, {"extra": [1]}),
    }


@pytest.mark.differs("templates that mutate their context")
@pytest.mark.parametrize(
    "text",
    [
        "{{ config.clear() }}",
        "{{ config.pop('key') }}",
        "{{ config.popitem() }}",
        "{{ config.update({'key': 'x'}) }}",
        "{{ config.setdefault('new', 1) }}",
        "{{ config['list'].append(3) }}",
        "{{ config['list'].sort(reverse=true) }}",
        "{{ config.inner.a.b.extend([2]) }}",
        "{{ (config | attr('clear'))() }}",
        "{{ dict.clear(config) }}",
        "{{ dict.update(config, key='x') }}",
        "{{ [].append.__class__ }}{{ config.clear() }}",
        "{{ max(['key'], key=config.pop) }}",
        "{{ min(['key', 'list'], key=config.pop) }}",
        "{% for f in [config] | map(attribute='clear') %}{{ f() }}{% endfor %}",
        "{% set f = config.clear %}{{ f() }}",
        "{% set copied = dict(config) %}{{ copied.inner.clear() }}",
        "{% for one in config.values() if one is mapping %}{{ one.clear() }}{% endfor %}",
        "{{ parameters.a.append(2) }}",
        "{{ record.pop('id') }}",
        "{{ record.tags.append('y') }}",
        "{{ response.data[0].clear() }}",
        "{{ stream_slice.p.clear() }}",
        "{{ stream_slice.partition.clear() }}",
        "{{ stream_interval.cursor_slice.clear() }}",
        "{{ stream_partition.extra_fields.extra.append(2) }}",
        "{% set config.key = 'x' %}",
    ],
)
def test_no_template_changes_what_it_is_given(text: str) -> None:
    given = _given()

    with pytest.raises(ConfigurationError):
        evaluate(text, given)

    before = _given()
    for name, value in before.items():
        assert str(given[name]) == str(value)
    assert given["stream_slice"].extra_fields == before["stream_slice"].extra_fields


def test_templates_print_what_they_are_given_and_change_what_is_their_own() -> None:
    given = _given()

    assert json.loads(json.dumps(evaluate("{{ config | tojson }}", given))) == given["config"]
    assert evaluate("{{ config }}", given) == given["config"]
    assert evaluate("{{ dict(config, key='x').key }}", given) == "x"
    assert as_text("{% set l = [] %}{% set _ = l.append(config.key) %}{{ l[0] }}", given) == "k"
    text = "{% set d = dict(config) %}{% set _ = d.update({'key': 'x'}) %}{{ d.key }}"
    assert as_text(text, given) == "x"
    # Variables may be put into a template's own values.
    text = "{% set l = [] %}{% set _ = l.append(record) %}{{ l[0].id }}"
    assert as_text(text, given) == "1"
    text = "{% set d = {} %}{% set _ = d.update(config.inner) %}{% set _ = d.pop('a') %}{{ d }}"
    assert as_text(text, given) == "{}"
    assert given == {**_given(), "stream_slice": given["stream_slice"]}
    assert copy.deepcopy(given["config"]) == _given()["config"]


# --------------------------------------------------------------------------- URLs


def _line_of(ask: Any) -> str:
    """Return the first line of a request as a server receives it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        lines: list[str] = []

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                lines.append(connection.recv(65_536).split(b"\r\n")[0].decode("latin-1"))
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

        thread = threading.Thread(target=serve)
        thread.start()
        ask(f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    return lines[0]


_SIGNS = "".join(chr(code) for code in range(33, 127) if chr(code) not in "?#%\\")


@pytest.mark.parametrize(
    "path",
    [
        "/a|b",
        "/a b",
        f"/{_SIGNS}",
        f"/a?{_SIGNS}",
        "/a%7Cb%2fc%zz",
        "/é/日本?ü=ß",
        "/a/../b/./c",
        "/a//b",
        "/a;b=c,d:e@f",
        "/[1]/{2}/<3>/`4`/^5^/\"6\"/'7'",
        "/a?b=c|d&e=%7c&f=a b",
        "/a?redirect=https://b.example/?c=d",
        "/a?share=100%",
        "/a%?share=%zz&next=%7c",
    ],
)
@pytest.mark.parametrize("params", [{}, {"name": "1|2 é%", "share": "100%"}], ids=["", "params"])
def test_paths_are_encoded_as_the_reference_encodes_them(path: str, params: dict[str, str]) -> None:
    def ours(base: str) -> None:
        with http_client() as client:
            Sender(Network(client), {}).send(Request("GET", f"{base}{path}", params=params))

    # Neither sends a parameter again that the URL already contains.
    others = {name: text for name, text in params.items() if f"{name}={text}" not in path}
    theirs = _line_of(lambda base: requests.get(f"{base}{path}", others, timeout=10))

    assert _line_of(ours) == theirs


def test_a_bar_in_a_path_is_encoded_once() -> None:
    assert encode_url("https://a.example/x|y") == "https://a.example/x%7Cy"
    assert encode_url(encode_url("https://a.example/x|y")) == "https://a.example/x%7Cy"
    assert encode_url("no url") == "no url"
