"""Schemas that are loaded from the API: which fields there are, and their types."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.connect import create_api
from chronolake.source.declarative.http.transport import Network, http_client
from chronolake.source.declarative.manifests.manifest import Manifest, parse, to_mapped
from chronolake.source.declarative.models.streams import DeclarativeStream
from chronolake.source.declarative.retrieval.schema_loaders import load_schema
from chronolake.source.declarative.stream_reader import StreamReader
from support.declarative.apis import Api as Server
from support.declarative.apis import Reply

_STRING = {"type": ["null", "string"]}
_INTEGER = {"type": ["null", "integer"]}


@pytest.fixture
def server() -> Iterator[Server]:
    with Server({"/items": Reply([])}) as running:
        yield running


def _retriever(path: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "SimpleRetriever",
        "requester": {"type": "HttpRequester", "url_base": "{{ config['url'] }}", "path": path},
        "record_selector": {
            "type": "RecordSelector",
            "extractor": {"type": "DpathExtractor", "field_path": []},
        },
        **more,
    }


def _identifier(**more: Any) -> dict[str, Any]:
    return {
        "schema_pointer": ["fields"],
        "key_pointer": ["name"],
        "type_pointer": ["kind"],
        **more,
    }


def _loader(**more: Any) -> dict[str, Any]:
    return {
        "type": "DynamicSchemaLoader",
        "retriever": _retriever("/schema"),
        "schema_type_identifier": _identifier(),
        **more,
    }


def _manifest(*loaders: dict[str, Any]) -> Manifest:
    stream = {
        "type": "DeclarativeStream",
        "name": "items",
        "schema_loader": list(loaders),
        "retriever": _retriever("/items"),
    }
    return parse(to_mapped({"streams": [stream]}), Path("manifest.yaml"))


def _schema(server: Server, *loaders: dict[str, Any], **config: Any) -> dict[str, Any]:
    manifest = _manifest(*loaders)
    server.requests.clear()
    with http_client() as client:
        api = create_api(manifest, {"url": server.url, **config}, Network(client))
        stream = api.manifest.stream("items")
        assert isinstance(stream, DeclarativeStream)
        first = load_schema(stream, api)
        # A schema that was loaded in the run is not requested again.
        assert StreamReader(stream, api).schema == first
    assert server.paths().count("/schema") <= len(loaders)
    return first


def _properties(server: Server, *fields: Any, **more: Any) -> dict[str, Any]:
    server.on("/schema", Reply({"fields": list(fields)}))
    found: dict[str, Any] = _schema(server, _loader(**more))["properties"]
    return found


def test_the_schema_is_inferred_from_the_first_record(server: Server) -> None:
    server.on("/schema", Reply([{"fields": [{"name": "id", "kind": "integer"}]}, {"fields": 5}]))
    assert _schema(server, _loader()) == {
        "$schema": "https://json-schema.org/draft-07/schema#",
        "type": "object",
        "additionalProperties": True,
        "properties": {"id": _INTEGER},
    }


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("date", {"type": ["null", "string"], "format": "date"}),
        ("timestamp_with_timezone", {"type": ["null", "string"], "format": "date-time"}),
        (["string", "integer"], {"oneOf": [_STRING, _INTEGER]}),
        ("int", _INTEGER),
        (["a", "b"], {"type": ["null", "boolean"]}),
        ("list", {"type": ["null", "array"], "items": _INTEGER}),
        (
            "lists",
            {"type": ["null", "array"], "items": {"type": ["null", "array"], "items": _STRING}},
        ),
    ],
)
def test_types_are_mapped(server: Server, kind: Any, expected: dict[str, Any]) -> None:
    table = [
        {"current_type": "int", "target_type": "string", "condition": "{{ raw_schema['wide'] }}"},
        {"current_type": "int", "target_type": "integer"},
        {"current_type": ["a", "b"], "target_type": "boolean"},
        {"current_type": "list", "target_type": {"field_type": "array", "items": "integer"}},
        {
            "current_type": "lists",
            "target_type": {
                "field_type": "array",
                "items": {"field_type": "array", "items": "string"},
            },
        },
    ]
    field = {"name": "x", "kind": kind, "wide": False}
    identifier = _identifier(types_mapping=table)
    assert _properties(server, field, schema_type_identifier=identifier) == {"x": expected}


def test_a_condition_decides_about_a_type(server: Server) -> None:
    table = [{"current_type": "int", "target_type": "string", "condition": "{{ raw_schema.wide }}"}]
    identifier = _identifier(types_mapping=table)
    field = {"name": "x", "kind": "int", "wide": True}
    assert _properties(server, field, schema_type_identifier=identifier) == {"x": _STRING}


def test_fields_without_a_type_are_texts(server: Server) -> None:
    assert _properties(server, {"name": "x"}) == {"x": _STRING}
    untyped = {"schema_pointer": ["fields"], "key_pointer": ["{{ config['key'] }}"]}
    loader = _loader(schema_type_identifier=untyped)
    assert _schema(server, loader, key="name")["properties"] == {"x": _STRING}


def test_keys_of_an_object_may_be_the_fields(server: Server) -> None:
    server.on("/schema", Reply({"a": 1, "b": 2}))
    loader = _loader(schema_type_identifier={"key_pointer": []})
    assert _schema(server, loader)["properties"] == {"a": _STRING, "b": _STRING}


def test_fields_are_filtered_and_changed(server: Server) -> None:
    added = {"type": "AddedFieldDefinition", "path": ["extra"], "value": "{{ {'type': 'null'} }}"}
    found = _properties(
        server,
        {"name": "Id", "kind": "integer"},
        {"name": "_hidden", "kind": "string"},
        schema_filter={"type": "RecordFilter", "condition": "{{ '_hidden' not in record }}"},
        schema_transformations=[
            {"type": "KeysToLower"},
            {"type": "AddFields", "fields": [added]},
        ],
    )
    assert found == {"id": _INTEGER, "extra": {"type": "null"}}


def test_without_records_the_schema_has_no_fields(server: Server) -> None:
    server.on("/schema", Reply([]))
    assert _schema(server, _loader())["properties"] == {}


def test_several_loaders_make_one_schema(server: Server) -> None:
    server.on("/schema", Reply({"fields": [{"name": "a"}, {"name": "b"}]}))
    inline = {"type": "InlineSchemaLoader", "schema": {"properties": {"b": _INTEGER}}}
    found = _schema(server, inline, _loader())["properties"]
    assert found == {"a": _STRING, "b": _INTEGER}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({}, "no list of fields"),
        ({"fields": [{"kind": "string"}]}, "without a name"),
        ({"fields": [{"name": "x", "kind": "money"}]}, "type for the field x"),
        ({"fields": [{"name": "x", "kind": ["string"]}]}, "type for the field x"),
        ({"fields": [{"name": "x", "kind": None}]}, "type for the field x"),
    ],
)
def test_an_invalid_schema_fails_the_stream(server: Server, answer: Any, message: str) -> None:
    server.on("/schema", Reply([answer, {"fields": []}] if answer else [{"other": 1}]))
    with pytest.raises(SourceError, match=message):
        _schema(server, _loader())


def test_an_api_without_a_schema_fails_the_stream(server: Server) -> None:
    server.on("/schema", Reply({}, status=403))
    with pytest.raises(SourceError):
        _schema(server, _loader())


def test_only_arrays_have_items() -> None:
    table = [{"current_type": "x", "target_type": {"field_type": "string", "items": "string"}}]
    manifest = _manifest(_loader(schema_type_identifier=_identifier(types_mapping=table)))
    assert "only an array can have items" in [problem.message for problem in manifest.problems]
    with pytest.raises(ConfigurationError):
        manifest.stream("items")


@pytest.mark.differs("schemas outside the manifest's folder")
def test_a_schema_is_read_below_the_manifest_alone(server: Server, tmp_path: Path) -> None:
    (tmp_path / "there.json").write_text('{"properties": {"id": {"type": "integer"}}}')
    folder = tmp_path / "manifest"
    folder.mkdir()
    loader = {"type": "JsonFileSchemaLoader", "file_path": "../there.json"}
    stream = {
        "type": "DeclarativeStream",
        "name": "items",
        "retriever": _retriever("/items"),
        "schema_loader": loader,
    }
    found = parse(to_mapped({"streams": [stream]}), folder / "manifest.yaml")
    with http_client() as client:
        api = create_api(found, {"url": server.url}, Network(client))
        with pytest.raises(ConfigurationError, match="outside the manifest's folder"):
            load_schema(found.stream("items"), api)
