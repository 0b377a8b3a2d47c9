"""Streams that a manifest does not list: from the API, the configuration, or on a condition."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from chronolake.config import DeclarativeSource
from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.api import Api
from chronolake.source.declarative.check import check_source, sample
from chronolake.source.declarative.connect import create_api
from chronolake.source.declarative.http.transport import Network, http_client
from chronolake.source.declarative.manifests.manifest import Manifest, parse, to_mapped
from chronolake.source.declarative.manifests.yaml_source import read
from chronolake.source.declarative.models.streams import DeclarativeStream, SimpleRetriever
from chronolake.source.protocol import Level
from support.declarative.apis import Api as Server
from support.declarative.apis import Reply


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


def _retriever(path: str = "/items", **more: Any) -> dict[str, Any]:
    return {
        "type": "SimpleRetriever",
        "requester": {"type": "HttpRequester", "url_base": "{{ config['url'] }}", "path": path},
        "record_selector": {
            "type": "RecordSelector",
            "extractor": {"type": "DpathExtractor", "field_path": []},
        },
        **more,
    }


def _stream(name: str = "", **more: Any) -> dict[str, Any]:
    inline = {"type": "InlineSchemaLoader", "schema": {}}
    whole = {"type": "DeclarativeStream", "schema_loader": inline, "retriever": _retriever()}
    return {**whole, "name": name, **more}


def _sets(path: list[str], value: str, **more: Any) -> dict[str, Any]:
    return {"type": "ComponentMappingDefinition", "field_path": path, "value": value, **more}


_NAMED = _sets(["name"], "{{ components_values['name'] }}")
_PATH = ["retriever", "requester", "path"]


def _resolver(kind: str, *mappings: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": f"{kind}ComponentsResolver", "components_mapping": list(mappings), **more}


def _listed(values: list[dict[str, Any]], *mappings: dict[str, Any]) -> dict[str, Any]:
    listed = {"type": "StreamParametersDefinition", "list_of_parameters_for_stream": values}
    return _resolver("Parametrized", *mappings, stream_parameters=listed)


def _configured(
    *mappings: dict[str, Any], lists: tuple[dict[str, Any], ...] = (), **more: Any
) -> dict[str, Any]:
    configs = [{"type": "StreamConfig", **list_} for list_ in lists]
    whole = configs or {"type": "StreamConfig", "configs_pointer": ["tables"]}
    return _resolver("Config", *mappings, stream_config=whole, **more)


def _dynamic(
    resolver: dict[str, Any], template: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    return {
        "type": "DynamicDeclarativeStream",
        "stream_template": template or _stream(),
        "components_resolver": resolver,
        **more,
    }


def _manifest(
    *dynamic: dict[str, Any], streams: list[dict[str, Any]] | None = None, **more: Any
) -> Manifest:
    whole = {"streams": streams or [], "dynamic_streams": list(dynamic), **more}
    return parse(to_mapped(whole), Path("manifest.yaml"))


def _api(
    manifest: Manifest,
    server: Server | None = None,
    *,
    wanted: list[str] | None = None,
    **config: Any,
) -> Api:
    url = server.url if server is not None else "http://nowhere.example"
    with http_client() as client:
        return create_api(manifest, {"url": url, **config}, Network(client), stream_names=wanted)


def _made(dynamic: dict[str, Any], **config: Any) -> Manifest:
    manifest = _manifest(dynamic)
    assert manifest.problems == ()
    assert not manifest.is_whole
    found = _api(manifest, **config).manifest
    assert found.is_whole
    return found


def _plain(manifest: Manifest, name: str) -> DeclarativeStream:
    found = manifest.stream(name)
    assert isinstance(found, DeclarativeStream)
    return found


def _path(manifest: Manifest, name: str) -> str | None:
    retriever = _plain(manifest, name).retriever
    assert isinstance(retriever, SimpleRetriever)
    return retriever.requester.path


# ------------------------------------------------------------------ where streams come from


def test_streams_of_the_api(server: Server) -> None:
    server.on("/tables", Reply([{"id": 1, "name": "one"}, {"id": 2, "name": "two"}]))
    manifest = _manifest(
        _dynamic(
            _resolver(
                "Http",
                _NAMED,
                _sets(_PATH, "/tables/{{ components_values['id'] }}"),
                # Values from the API are not parsed as YAML, and add no structure.
                _sets(["primary_key"], "{{ 'a: b' }}", create_or_update=True),
                retriever=_retriever("/tables"),
            )
        ),
        streams=[_stream("items")],
    )
    found = _api(manifest, server).manifest
    assert [*found.streams] == ["items", "one", "two"]
    assert _path(found, "two") == "/tables/2"
    assert _plain(found, "one").primary_key is None
    assert server.paths() == ["/tables"]


def test_streams_of_partitions(server: Server) -> None:
    server.on("/a/tables", Reply([{"name": "x"}]))
    server.on("/b/tables", Reply([{"name": "y"}]))
    router = {"type": "ListPartitionRouter", "cursor_field": "base", "values": ["a", "b"]}
    retriever = _retriever("/{{ stream_partition['base'] }}/tables", partition_router=router)
    name = _sets(["name"], "{{ stream_slice['base'] }} {{ components_values['name'] }}")
    manifest = _manifest(_dynamic(_resolver("Http", name, retriever=retriever)))
    assert [*_api(manifest, server).manifest.streams] == ["a x", "b y"]


def test_listed_streams_need_no_request(server: Server) -> None:
    resolver = _resolver("Http", _NAMED, retriever=_retriever("/tables"))
    manifest = _manifest(_dynamic(resolver), streams=[_stream("items")])
    assert [*_api(manifest, server, wanted=["items"]).manifest.streams] == ["items"]
    assert server.requests == []
    server.on("/tables", Reply({}, status=403))
    with pytest.raises(SourceError):
        _api(manifest, server)


def test_streams_of_the_configuration() -> None:
    named = _dynamic(_configured(_NAMED, _sets(_PATH, "/t/{{ components_values['id'] }}")))
    found = _made(named, tables=[{"name": "one", "id": 1}, {"name": "two", "id": 2}])
    assert {name: _path(found, name) for name in found.streams} == {"one": "/t/1", "two": "/t/2"}
    assert [*_made(named, tables={"name": "only", "id": 1}).streams] == ["only"]
    assert [*_made(named).streams] == []


def test_default_values_are_applied_after_the_configuration() -> None:
    lists = (
        {
            "configs_pointer": ["{{ parameters['where'] }}", "tables"],
            "default_values": [{"name": "always"}],
            "$parameters": {"where": "here"},
        },
    )
    found = _made(_dynamic(_configured(_NAMED, lists=lists)), here={"tables": [{"name": "a"}]})
    assert [*found.streams] == ["a", "always"]


def test_several_lists_are_combined() -> None:
    lists = ({"configs_pointer": ["tables"]}, {"configs_pointer": ["years"]})
    name = _sets(
        ["name"],
        "{{ components_values['name'] }} {{ components_values['source_config_1'][1] }} "
        "{{ components_values['source_config_1'][0] }}",
    )
    found = _made(
        _dynamic(_configured(name, lists=lists)),
        tables=[{"name": "a"}, {"name": "b"}],
        years=[2024, 2025],
    )
    assert [*found.streams] == ["a 2024 0", "a 2025 1", "b 2024 0", "b 2025 1"]


def test_streams_of_a_list_in_the_manifest() -> None:
    found = _made(_dynamic(_listed([{"name": "one"}, {"name": "two"}], _NAMED)))
    assert [*found.streams] == ["one", "two"]


def test_two_that_take_turns_may_be_the_template() -> None:
    template = {
        "type": "StateDelegatingStream",
        "name": "",
        "full_refresh_stream": _stream("x"),
        "incremental_stream": _stream("x"),
    }
    mappings = (_NAMED, _sets(["*", "name"], "{{ components_values['name'] }}"))
    found = _made(_dynamic(_listed([{"name": "one"}], *mappings), template))
    turns = found.stream("one")
    assert not isinstance(turns, DeclarativeStream)
    assert turns.incremental_stream.name == "one"


# ------------------------------------------------------------------ what is put into a template


def _put(*mappings: dict[str, Any], template: dict[str, Any] | None = None, **more: Any) -> Any:
    """Return the stream that mappings make, as its requests show its parameters and path."""
    values = {"name": "one", **more}
    return _plain(_made(_dynamic(_listed([values], _NAMED, *mappings), template)), "one")


@pytest.mark.parametrize(
    ("value", "more", "expected"),
    [
        ("{{ components_values['key'] }}", {}, "id"),
        ("[a, b]", {}, ("a", "b")),
        ("{{ ['a', 'b'] }}", {}, ("a", "b")),
        ("%Y: [", {}, "%Y: ["),
        ("2024-01-01", {}, "2024-01-01"),
        ("{{ 1 + 1 }}", {"value_type": "string"}, "2"),
        ("{{ parameters['mine'] }}", {"$parameters": {"mine": "m"}}, "m"),
        ("{{ stream_template_config['type'] }}", {}, "DeclarativeStream"),
    ],
)
def test_values_are_read(value: str, more: dict[str, Any], expected: Any) -> None:
    mapping = _sets(["primary_key"], value, create_or_update=True, **more)
    assert _put(mapping, key="id").primary_key == expected


def test_only_existing_values_are_replaced_unless_create_or_update_is_set() -> None:
    path = ["retriever", "requester", "request_parameters", "a"]
    assert _put(_sets(path, "x")).retriever.requester.request_parameters is None
    made = _put(_sets(path, "x", create_or_update=True))
    assert made.retriever.requester.request_parameters == {"a": "x"}
    nothing = _put(_sets(path, "{{ components_values['b'] }}", create_or_update=True), b=0)
    assert nothing.retriever.requester.request_parameters is None


def test_paths_are_templates_and_patterns() -> None:
    part = "{{ components_values['part'] }}"
    made = _put(_sets(["retriever", part, "path"], "/there"), part="requester")
    assert made.retriever.requester.path == "/there"
    assert _put(_sets(["**", "path"], "/there")).retriever.requester.path == "/there"


def test_mappings_may_have_a_condition() -> None:
    mapping = _sets(
        ["primary_key"],
        "{{ components_values['key'] }}",
        create_or_update=True,
        condition="{{ components_values.get('key') }}",
    )
    found = _made(
        _dynamic(_configured(_NAMED, mapping)), tables=[{"name": "a", "key": "id"}, {"name": "b"}]
    )
    assert [_plain(found, name).primary_key for name in "ab"] == ["id", None]


@pytest.mark.parametrize(("outer", "expected"), [(True, "/new"), (False, "/old")])
def test_parameters_reach_all_of_a_stream(outer: bool, expected: str) -> None:
    template = _stream()
    del template["retriever"]["requester"]["path"]
    template["$parameters"] = {"where": "/old"}
    template["retriever"]["requester"]["path"] = "{{ parameters['where'] }}"
    mapping = _sets(["$parameters", "where"], "/new")
    dynamic = _dynamic(
        _listed([{"name": "one"}], _NAMED, mapping), template, use_parent_parameters=outer
    )
    retriever = _plain(_made(dynamic), "one").retriever
    assert isinstance(retriever, SimpleRetriever)
    assert retriever.requester.parameters["where"] == expected


def test_values_get_what_they_inherit() -> None:
    cursor = "{{ {'type': 'DatetimeBasedCursor', 'cursor_field': 'at', 'datetime_format': '%Y',"
    cursor += " 'start_datetime': {'datetime': '2024'}} }}"
    made = _put(_sets(["incremental_sync"], cursor, create_or_update=True))
    assert made.incremental_sync.start_datetime.type == "MinMaxDatetime"


def test_a_value_without_a_target_is_reported() -> None:
    mapping = _sets(["name", "deeper"], "x", create_or_update=True)
    with pytest.raises(ConfigurationError, match=r"on the path name\.deeper"):
        _put(mapping)


# ------------------------------------------------------------------ what is wrong


def test_problems_of_a_stream_template_are_reported_before_it_is_used(tmp_path: Path) -> None:
    template = _stream("x", incremental_sync={"type": "CustomIncrementalSync"})
    template["retriever"]["requester"]["path"] = None
    dynamic = _dynamic(_listed([{"name": "one"}], _NAMED, _sets(_PATH, "/x")), template)
    file = tmp_path / "manifest.yaml"
    file.write_text(yaml.safe_dump({"streams": [_stream("items")], "dynamic_streams": [dynamic]}))
    manifest = parse(read(file), file)
    [problem] = manifest.problems
    assert problem.path == "dynamic_streams[0].stream_template.incremental_sync"
    assert problem.stream == "dynamic_streams[0]"
    assert "which is not run" in problem.message
    assert problem.line == 1 + file.read_text().splitlines().index("    incremental_sync:")
    assert [*manifest.streams] == ["items"]
    with pytest.raises(ConfigurationError, match="which is not run"):
        manifest.stream("one")


def test_what_mappings_put_in_may_be_missing() -> None:
    template = _stream()
    del template["retriever"]["record_selector"]
    selector = "{{ {'type': 'RecordSelector', 'extractor': {'field_path': []}} }}"
    where = ["retriever", "record_selector"]
    mapping = _sets(where, selector, create_or_update=True)
    assert _put(mapping, template=template).retriever.record_selector.extractor.field_path == []
    manifest = _manifest(_dynamic(_listed([{"name": "one"}], _NAMED), template))
    assert [problem.message for problem in manifest.problems] == ["it is missing"]


@pytest.mark.parametrize(
    ("resolver", "message"),
    [
        ({"type": "CustomComponentsResolver"}, "which is not run"),
        (_listed([], _sets(["name"], "x", condition="{{ 1 }}")), "have a condition"),
        (_listed([], _sets([], "x")), "at least 1"),
        (_resolver("Http", _NAMED), "missing"),
        (_configured(_NAMED) | {"stream_config": []}, "at least 1"),
    ],
)
def test_problems_of_a_resolver_are_reported(resolver: dict[str, Any], message: str) -> None:
    manifest = _manifest(_dynamic(resolver, name="tables"))
    assert [problem.stream for problem in manifest.problems] == ["tables"]
    assert message in manifest.problems[0].message


def test_one_stream_that_is_wrong_stops_no_other() -> None:
    values: list[dict[str, Any]] = [
        {"name": "one"},
        {"name": "one"},
        {"name": 7},
        {"name": "two"},
        {"name": ""},
    ]
    found = _made(_dynamic(_listed(values, _NAMED)))
    assert [*found.streams] == ["one", "two"]
    assert [problem.message for problem in found.problems] == [
        "there are two streams named one",
        "input should be a valid string",
        "input should be a valid string",
    ]
    assert found.problems[0].path == "dynamic_streams[0].stream_template"


# ------------------------------------------------------------------ on a condition


def _conditional(condition: str, *streams: dict[str, Any]) -> dict[str, Any]:
    return {"type": "ConditionalStreams", "condition": condition, "streams": list(streams)}


def test_streams_on_a_condition() -> None:
    extra = _conditional("{{ config['extra'] }}", _stream("extra"), _stream("more"))
    manifest = _manifest(streams=[_stream("items"), extra])
    assert manifest.problems == ()
    assert [*manifest.streams] == ["items"]
    assert [*_api(manifest, extra=True).manifest.streams] == ["items", "extra", "more"]
    assert [*_api(manifest, extra="false").manifest.streams] == ["items"]
    assert [*_api(manifest).manifest.streams] == ["items"]


def test_one_stream_may_be_described_for_two_conditions() -> None:
    manifest = _manifest(
        streams=[
            _conditional("{{ config['new'] }}", _stream("items", primary_key="new")),
            _conditional("{{ not config['new'] }}", _stream("items", primary_key="old")),
        ]
    )
    for new, key in ((True, "new"), (False, "old")):
        found = _api(manifest, new=new).manifest
        assert found.problems == ()
        assert _plain(found, "items").primary_key == key


def test_problems_of_conditional_streams_are_reported_once() -> None:
    broken = _stream("broken", retriever={"type": "CustomRetriever"})
    manifest = _manifest(streams=[_conditional("{{ true }}", broken, _stream("fine"))])
    [problem] = manifest.problems
    assert (problem.path, problem.stream) == ("streams[0].streams[0].retriever", "broken")
    found = _api(manifest).manifest
    assert found.problems == manifest.problems
    assert [*found.streams] == ["fine"]
    nothing = _manifest(streams=[{"type": "ConditionalStreams", "streams": []}])
    assert [problem.message for problem in nothing.problems] == ["it is missing"]


# ------------------------------------------------------------------ who asks for them


def _source(**config: Any) -> DeclarativeSource:
    return DeclarativeSource(type="declarative", manifest="manifest.yaml", config=config)


def test_streams_that_others_read_are_known_among_dynamic_ones() -> None:
    parent = {
        "type": "ParentStreamConfig",
        "stream": _stream("items"),
        "parent_key": "id",
        "partition_field": "item",
    }
    router = {"type": "SubstreamPartitionRouter", "parent_stream_configs": [parent]}
    template = _stream(retriever=_retriever(partition_router=router))
    manifest = _manifest(_dynamic(_listed([{"name": "notes"}], _NAMED), template))
    assert _api(manifest).asked_again == {"items"}


def test_trying_sees_dynamic_streams(server: Server) -> None:
    server.on("/tables", Reply([{"name": "one"}, {"name": "two"}]))
    server.on("/items", Reply([{"id": 1}]))
    manifest = _manifest(
        _dynamic(_resolver("Http", _NAMED, retriever=_retriever("/tables"))),
        check={"type": "CheckDynamicStream", "stream_count": 1},
    )
    source = _source(url=server.url)
    found = sample(manifest, source, "two", limit=5)
    assert found.records == [{"id": 1}]
    findings = list(check_source(manifest, source))
    assert [finding.what for finding in findings] == [
        "stream one",
        "stream two",
        "connection, by one",
    ]
    assert {finding.level for finding in findings} == {Level.OK}
    server.on("/tables", Reply({}, status=403))
    [failed] = check_source(manifest, source)
    assert failed.level is Level.FAILED
