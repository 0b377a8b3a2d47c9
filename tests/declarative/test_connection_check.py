"""A connection is tried by the streams that the manifest names for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chronolake.config import DeclarativeSource
from chronolake.source.declarative.check import check_source
from chronolake.source.declarative.manifests.manifest import Manifest, parse, to_mapped
from chronolake.source.protocol import CheckResult, Level
from support.commands import run_words
from support.datalakes import project
from support.declarative.apis import Api, Reply
from support.declarative.stream_reads import option, requester, retriever, stream

_TABLES = [{"name": name} for name in ("one", "two", "three")]
_NAMED = {
    "type": "ComponentMappingDefinition",
    "field_path": ["name"],
    "value": "{{ components_values['name'] }}",
}


@pytest.fixture
def api() -> Iterator[Api]:
    records = Reply({"data": [{"id": 1}]})
    paths = {f"/tables/{table['name']}": records for table in _TABLES}
    with Api({"/tables": Reply({"data": _TABLES}), "/items": records, **paths}) as running:
        yield running


def _tables(**more: Any) -> dict[str, Any]:
    """Describe a stream for each of the API's tables."""
    path = {**_NAMED, "field_path": ["retriever", "requester", "path"]}
    return {
        "type": "DynamicDeclarativeStream",
        "stream_template": stream(""),
        "components_resolver": {
            "type": "HttpComponentsResolver",
            "retriever": retriever("/tables"),
            "components_mapping": [
                _NAMED,
                {**path, "value": "/tables/{{ components_values['name'] }}"},
            ],
        },
        **more,
    }


def _configured(count: int | None = None, name: str = "tables") -> dict[str, Any]:
    reported = {"type": "DynamicStreamCheckConfig", "dynamic_stream_name": name}
    return reported if count is None else {**reported, "stream_count": count}


def _manifest(
    check: dict[str, Any], *dynamic: dict[str, Any], streams: list[Any] | None = None
) -> Manifest:
    whole = {
        "streams": [stream()] if streams is None else streams,
        "dynamic_streams": list(dynamic or (_tables(name="tables"),)),
        "check": check,
    }
    return parse(to_mapped(whole), Path("manifest.yaml"))


def _findings(
    manifest: Manifest, api: Api, only: list[str] | None = None, **more: Any
) -> list[CheckResult]:
    source = DeclarativeSource(
        type="declarative", manifest="manifest.yaml", config={"api": api.url}, only=only, **more
    )
    return list(check_source(manifest, source))


def _tried(findings: list[CheckResult]) -> dict[str, Level]:
    kind = "connection, by "
    return {
        finding.what.removeprefix(kind): finding.level
        for finding in findings
        if finding.what.startswith(kind)
    }


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        ({"stream_names": ["items"]}, ["items"]),
        ({"dynamic_streams_check_configs": [_configured(2)]}, ["one", "two"]),
        ({"dynamic_streams_check_configs": [_configured()]}, ["one", "two", "three"]),
        ({"dynamic_streams_check_configs": [_configured(9)]}, ["one", "two", "three"]),
        (
            {"stream_names": ["items"], "dynamic_streams_check_configs": [_configured(1)]},
            ["items", "one"],
        ),
        (
            {"stream_names": ["two"], "dynamic_streams_check_configs": [_configured(2)]},
            ["two", "one"],
        ),
        ({"stream_names": []}, ["items"]),
        ({"type": "CheckDynamicStream", "stream_count": 3}, ["items", "one", "two"]),
        (
            {
                "type": "CheckDynamicStream",
                "stream_count": 3,
                "use_check_availability": False,
            },
            [],
        ),
    ],
)
def test_the_manifest_sets_the_number_of_streams_to_try(
    api: Api, check: dict[str, Any], expected: list[str]
) -> None:
    manifest = _manifest(check)
    assert manifest.problems == ()

    findings = _findings(manifest, api)

    assert list(_tried(findings)) == expected
    assert {finding.level for finding in findings} == {Level.OK}
    # The list of streams is requested once, and so is each stream that is tried.
    paths = ["/items" if name == "items" else f"/tables/{name}" for name in expected]
    assert api.paths() == ["/tables", *paths]


def test_streams_that_have_no_name_together_are_numbered(api: Api) -> None:
    check = {"dynamic_streams_check_configs": [_configured(1, "dynamic_stream_1")]}
    listed = {
        "type": "ParametrizedComponentsResolver",
        "stream_parameters": {
            "type": "StreamParametersDefinition",
            "list_of_parameters_for_stream": [{"name": "listed"}],
        },
        "components_mapping": [_NAMED],
    }

    manifest = _manifest(check, _tables(components_resolver=listed), _tables())

    assert manifest.problems == ()
    assert list(_tried(_findings(manifest, api))) == ["one"]


@pytest.mark.differs("a check of several streams")
def test_each_stream_that_fails_is_reported(api: Api) -> None:
    for name in ("one", "three"):
        api.on(f"/tables/{name}", Reply(status=403))

    tried = _tried(_findings(_manifest({"dynamic_streams_check_configs": [_configured()]}), api))

    assert tried == {"one": Level.FAILED, "two": Level.OK, "three": Level.FAILED}


def test_of_streams_that_the_user_does_not_want_none_is_tried(api: Api) -> None:
    manifest = _manifest({"dynamic_streams_check_configs": [_configured(1)]})

    assert list(_tried(_findings(manifest, api, ["items", "two"]))) == ["two"]
    # No stream made of a template is wanted, so the list of them is not requested.
    api.requests.clear()
    assert list(_tried(_findings(manifest, api, ["items"]))) == ["items"]
    assert api.paths() == ["/items"]


@pytest.mark.differs("config_overrides of a check")
def test_a_look_may_be_made_with_other_values(api: Api) -> None:
    authenticator = {
        "type": "OAuthAuthenticator",
        "token_refresh_endpoint": "{{ config['api'] }}/token",
        "client_id": "me",
        "client_secret": "hush-hush",
        "refresh_token_updater": {},
    }
    api.on("/token", Reply({"access_token": "a", "refresh_token": "b"}))
    parameters = {"size": "{{ config['size'] }}"}
    asks = {"request_parameters": parameters, "authenticator": authenticator}
    described = stream(retriever=retriever(asks=asks))
    rules = {
        "type": "ConfigNormalizationRules",
        "transformations": [
            {
                "type": "ConfigAddFields",
                "fields": [{"type": "AddedFieldDefinition", "path": ["size"], "value": "100"}],
            }
        ],
    }
    whole = {
        "streams": [described],
        "check": {"stream_names": ["items"], "config_overrides": {"size": 1}},
        "spec": {"type": "Spec", "config_normalization_rules": rules},
    }

    manifest = parse(to_mapped(whole), Path("manifest.yaml"))

    assert _tried(_findings(manifest, api)) == {"items": Level.OK}
    assert api.requests[-1].params == {"size": "1"}


@pytest.mark.parametrize(
    ("check", "path", "message"),
    [
        (
            {"dynamic_streams_check_configs": [_configured(1, "charts")]},
            "check.dynamic_streams_check_configs[0].dynamic_stream_name",
            "there is no dynamic stream charts",
        ),
        (
            {"dynamic_streams_check_configs": [_configured(1, "table")]},
            "check.dynamic_streams_check_configs[0].dynamic_stream_name",
            "there is no dynamic stream table",
        ),
        (
            {"dynamic_streams_check_configs": [_configured(0)]},
            "check.dynamic_streams_check_configs[0].stream_count",
            "greater than or equal to 1",
        ),
        ({"type": "CheckDynamicStream"}, "check.stream_count", "is missing"),
    ],
)
def test_an_invalid_check_is_reported(
    api: Api, check: dict[str, Any], path: str, message: str
) -> None:
    (problem,) = _manifest(check).problems

    assert (problem.path, problem.stream) == (path, None)
    assert message in problem.message
    assert Level.FAILED in {finding.level for finding in _findings(_manifest(check), api)}


def test_an_unknown_stream_is_reported(api: Api) -> None:
    findings = _findings(_manifest({"stream_names": ["items", "itmes"]}), api)

    assert _tried(findings) == {"items": Level.OK, "itmes": Level.FAILED}
    assert findings[-1].fix == "Did you mean 'items'?"


def test_each_configured_stream_that_the_manifest_lacks_is_reported(api: Api) -> None:
    whole = {"streams": [stream(), stream("orders")], "check": {"stream_names": ["items"]}}
    manifest = parse(to_mapped(whole), Path("manifest.yaml"))

    findings = _findings(manifest, api, ["items", "Orders", "zebras"])

    reported = {finding.what: finding.fix for finding in findings if finding.level is Level.FAILED}
    assert reported == {
        "stream Orders": "Did you mean 'orders'?",
        "stream zebras": "Correct `source.only`.",
    }


def test_streams_that_may_lack_records_must_be_there(api: Api) -> None:
    checked = _manifest({"type": "CheckStream", "stream_names": ["items"]})
    found = _findings(checked, api, may_lack_records=["items", "itms"])
    assert [finding.fix for finding in found if finding.level is Level.FAILED] == [
        "Did you mean 'items'?"
    ]


def test_an_unreadable_stream_is_reported_once_and_another_one_is_tried(api: Api) -> None:
    wrong = stream("other", retriever={"type": "SimpleRetriever"})
    manifest = _manifest({"stream_names": ["other"]}, streams=[stream(), wrong])

    findings = _findings(manifest, api)

    assert list(_tried(findings)) == ["items"]
    assert Level.FAILED not in {finding.level for finding in findings}


@pytest.mark.parametrize("answer", [Reply({"data": _TABLES}), Reply(status=403)])
def test_a_check_requests_the_list_of_streams_once(
    api: Api, answer: Reply, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.on("/tables", answer)
    whole = {"dynamic_streams": [_tables(name="tables")], "check": {"stream_names": ["two"]}}
    (tmp_path / "manifest.yaml").write_text(json.dumps(whole))
    project(
        tmp_path,
        "  shop:\n    mode: live\n    source: {type: declarative, manifest: manifest.yaml, "
        f"config: {{api: '{api.url}'}}}}\n",
    )

    code, reported, _ = run_words(capsys, "check", "--json", "--project", str(tmp_path))

    assert api.paths().count("/tables") == 1
    words = {load["what"]: load for load in json.loads(reported)}["pipelines.shop"]
    assert (code == 0) is words["ok"] is (answer.status == 200)
    assert ("3 streams: one, two, three" in words["message"]) is words["ok"]


def test_what_is_configured_for_no_stream_hides_none(
    api: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = {"streams": [stream(), stream("orders")], "check": {"stream_names": ["items"]}}
    (tmp_path / "manifest.yaml").write_text(json.dumps(whole))
    project(
        tmp_path,
        "  shop:\n    mode: live\n    source: {type: declarative, manifest: manifest.yaml, "
        f"config: {{api: '{api.url}'}}}}\n"
        "    streams: {itmes: {mode: live}, Orders: {nested: json}, orders: {mode: history}}\n",
    )
    where = ("--project", str(tmp_path))

    code, reported, error = run_words(capsys, "discover", "shop", "--json", *where)

    assert code == 1
    assert [load["stream"] for load in json.loads(reported)] == ["items", "orders"]
    hints = [json.loads(line)["hint"] for line in error.splitlines()]
    assert hints == ["Did you mean 'items'?", "Did you mean 'orders'?"]
    code, reported, error = run_words(capsys, "discover", "shop", *where)
    assert code == 1
    assert "orders" in reported
    assert "pipelines.shop.streams.itmes: the source has no such stream" in error
    code, reported, _ = run_words(capsys, "check", "--json", *where)
    assert code == 1
    found = [load for load in json.loads(reported) if load["what"] == "pipelines.shop"]
    assert [result["ok"] for result in found] == [False, False, True]
    assert [result["hint"] for result in found[:2]] == hints
    assert found[2]["message"] == "2 streams: items, orders"
    (tried,) = [
        load for load in json.loads(reported) if load["what"].endswith("connection, by items")
    ]
    assert tried["message"] == "1 request, records found"


def _nested() -> Manifest:
    """Describe a stream with a slice for each of the API's tables."""
    parent = {
        "type": "ParentStreamConfig",
        "stream": stream("tables", retriever=retriever("/tables")),
        "parent_key": "name",
        "partition_field": "table",
    }
    router = {"type": "SubstreamPartitionRouter", "parent_stream_configs": [parent]}
    asks = requester("/tables/{{ stream_partition.table }}")
    described = stream(retriever={**retriever(partition_router=router), "requester": asks})
    check = {"stream_names": ["items"]}
    return parse(to_mapped({"streams": [described], "check": check}), Path("manifest.yaml"))


def test_a_look_takes_the_first_slice_alone(api: Api) -> None:
    api.on("/tables/one", Reply({"data": []}))

    findings = _findings(_nested(), api)

    assert findings[-1].message == "2 requests, no records found"
    assert api.paths() == ["/tables", "/tables/one"]


@pytest.mark.differs("a check of a stream without slices")
def test_a_stream_without_slices_is_not_a_failure(api: Api) -> None:
    api.on("/tables", Reply({"data": []}))

    assert _tried(_findings(_nested(), api)) == {"items": Level.WARNING}


def test_settings_of_streams_that_are_not_tried_are_checked_with_the_configuration() -> None:
    cursor = {
        "type": "DatetimeBasedCursor",
        "cursor_field": "at",
        "datetime_format": "%Y-%m-%d",
        "start_datetime": "{{ config['start'] }}",
    }
    paginator = {
        "type": "DefaultPaginator",
        "page_size_option": option("limit"),
        "pagination_strategy": {"type": "PageIncrement", "page_size": "{{ config['size'] }}"},
    }
    unsized = {**paginator, "pagination_strategy": {"type": "PageIncrement"}}
    parent = {
        "type": "ParentStreamConfig",
        "parent_key": "id",
        "partition_field": "pid",
        "stream": stream("parents", incremental_sync=cursor),
    }
    router = {"type": "SubstreamPartitionRouter", "parent_stream_configs": [parent]}
    streams = [
        stream("items"),
        stream("dated", incremental_sync=cursor),
        stream("children", retriever=retriever(partition_router=router)),
        stream("paged", retriever=retriever(paginator=paginator)),
        stream("unsized", retriever=retriever(paginator=unsized)),
    ]
    manifest = parse(
        to_mapped({"streams": streams, "check": {"stream_names": ["items"]}}), Path("m.yaml")
    )

    def failed(api: Api, **config: Any) -> dict[str, str]:
        source = DeclarativeSource(
            type="declarative", manifest="m.yaml", config={"api": api.url, **config}
        )
        found = check_source(manifest, source)
        return {one.what: one.message for one in found if one.level is Level.FAILED}

    with Api({"/items": Reply({"data": [{"id": 1}]})}) as api:
        wrong = failed(api, start="01.02.2024", size="ten")
        right = failed(api, start="2024-02-01", size=10)
        assert len(api.requests) == 2, "only the first stream is requested"

    assert wrong == {
        "streams dated, children": "The time '01.02.2024' does not have the format %Y-%m-%d.",
        "stream paged": "The page_size \"{{ config['size'] }}\" is not a whole number.",
        "stream unsized": "There is a page_size_option, but no page_size that is known before a "
        "response.",
    }
    assert right.keys() == {"stream unsized"}
