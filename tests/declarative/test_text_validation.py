"""Errors in the texts of a manifest are found without reading anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chronolake.config import DeclarativeSource
from chronolake.source.declarative.check import check_source
from chronolake.source.declarative.connect import open_api
from chronolake.source.declarative.manifests.manifest import Manifest, load, parse, to_mapped
from chronolake.source.declarative.manifests.problems import Problem
from chronolake.source.protocol import Level
from support.declarative.apis import Api, Reply
from support.declarative.stream_reads import requester, retriever, stream

_CURSOR = {
    "type": "DatetimeBasedCursor",
    "cursor_field": "at",
    "datetime_format": "%Y-%m-%d",
    "start_datetime": "2024-01-01",
}


def _manifest(*streams: Any, **more: Any) -> Manifest:
    return parse(to_mapped({"streams": list(streams), **more}), Path("manifest.yaml"))


def _asking(**asks: Any) -> dict[str, Any]:
    """Describe a stream whose requester has these fields."""
    described = retriever()
    described["requester"].update(asks)
    return stream(retriever=described)


def _by(**cursor: Any) -> dict[str, Any]:
    """Describe a stream whose cursor has these fields."""
    return stream(incremental_sync={**_CURSOR, **cursor})


def _handling(**one: Any) -> dict[str, Any]:
    """Describe a stream whose error handler has one filter with these fields."""
    handler = {
        "type": "DefaultErrorHandler",
        "response_filters": [{"type": "HttpResponseFilter", "action": "FAIL", **one}],
    }
    return _asking(error_handler=handler)


def _waiting(kind: str, **fields: Any) -> dict[str, Any]:
    """Describe a stream whose error handler has a backoff strategy with these fields."""
    handler = {"type": "DefaultErrorHandler", "backoff_strategies": [{"type": kind, **fields}]}
    return _asking(error_handler=handler)


def _adding(value: str) -> dict[str, Any]:
    field = {"type": "AddedFieldDefinition", "path": ["x"], "value": value}
    return stream(transformations=[{"type": "AddFields", "fields": [field]}])


def _paged(**strategy: Any) -> dict[str, Any]:
    """Describe a stream with this pagination strategy."""
    paginator = {"type": "DefaultPaginator", "pagination_strategy": strategy}
    return stream(retriever=retriever(paginator=paginator))


def _with_schema(properties: dict[str, Any], **cursor: Any) -> dict[str, Any]:
    schema = {"type": "InlineSchemaLoader", "schema": {"properties": properties}}
    return stream(incremental_sync={**_CURSOR, **cursor}, schema_loader=schema)


def _split(value: str) -> dict[str, Any]:
    """Describe a stream with partitions by `id` and `pid` that sends a template."""
    described = retriever(
        partition_router=[
            {"type": "ListPartitionRouter", "cursor_field": name, "values": ["x"]}
            for name in ("id", "pid")
        ]
    )
    described["requester"]["request_parameters"] = {"a": value}
    return stream(retriever=described)


def _dependent(parent: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Describe a stream whose parent is read incrementally."""
    config = {
        "type": "ParentStreamConfig",
        "parent_key": "id",
        "partition_field": "pid",
        "stream": parent,
        "incremental_dependency": True,
    }
    router = {"type": "SubstreamPartitionRouter", "parent_stream_configs": [config]}
    return stream(retriever=retriever(partition_router=router), **more)


def _of_parent(parent: dict[str, Any], value: str = "", **config: Any) -> dict[str, Any]:
    """Describe a stream that requests a template for each record of a parent."""
    described = {
        "type": "ParentStreamConfig",
        "parent_key": "id",
        "partition_field": "pid",
        "stream": parent,
        **config,
    }
    router = {"type": "SubstreamPartitionRouter", "parent_stream_configs": [described]}
    asks = {"request_parameters": {"a": value}}
    return stream(retriever=retriever(partition_router=router, asks=asks))


def _keyed(key: Any) -> dict[str, Any]:
    """Describe a stream with the field `order_id` in its schema, and a primary key."""
    schema = {"type": "InlineSchemaLoader", "schema": {"properties": {"order_id": {}}}}
    return stream(schema_loader=schema, primary_key=key)


def _filtered(condition: str) -> dict[str, Any]:
    described = stream()
    described["retriever"]["record_selector"]["record_filter"] = {
        "type": "RecordFilter",
        "condition": condition,
    }
    return described


def _optional(
    name: str, place: str = "request_parameter", *, asks: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """Describe a stream whose page token has this option."""
    paginator = {
        "type": "DefaultPaginator",
        "page_token_option": {"type": "RequestOption", "inject_into": place, "field_name": name},
        "pagination_strategy": {"type": "PageIncrement", "page_size": 5},
    }
    return stream(retriever=retriever(paginator=paginator, asks=asks or {}), **more)


def _bounds(start: str, end: str) -> dict[str, Any]:
    """Describe a cursor with names for the bounds of its slices."""
    of_parameter = {"type": "RequestOption", "inject_into": "request_parameter"}
    return {
        **_CURSOR,
        "start_time_option": {**of_parameter, "field_name": start},
        "end_time_option": {**of_parameter, "field_name": end},
    }


def _by_path(kind: str) -> dict[str, Any]:
    described = _optional("page")
    described["retriever"]["paginator"] |= {
        "page_token_option": {"type": "RequestPath"},
        "pagination_strategy": {"type": kind, "page_size": 5},
    }
    return described


def _without_url() -> dict[str, Any]:
    described = stream()
    del described["retriever"]["requester"]["url_base"]
    return described


def _listed(values: Any) -> dict[str, Any]:
    router = {"type": "ListPartitionRouter", "cursor_field": "id", "values": values}
    return stream(retriever=retriever(partition_router=router))


def _with_parameters(described: dict[str, Any], **parameters: Any) -> dict[str, Any]:
    return {**described, "$parameters": parameters}


def _decoded(**decoder: Any) -> dict[str, Any]:
    return stream(retriever=retriever(decoder=decoder))


def _one(found: Manifest) -> Problem:
    (problem,) = found.problems
    return problem


@pytest.mark.parametrize(
    ("described", "path", "message", "hint"),
    [
        (_asking(request_headers={"a": "{{ config[ }}"}), "a", "is not valid", "Correct it"),
        (_asking(request_headers={"a": "{{ confg.x }}"}), "a", "`confg` does not", "'config'"),
        (
            _asking(request_parameters={"a": "{{ now_ut() }}"}),
            "a",
            "function `now_ut`",
            "'now_utc'",
        ),
        (_asking(request_body_json={"a": [{"b": "{{ 1|hsh }}"}]}), "b", "filter `hsh`", "'hash'"),
        (_adding("{% if record.x is defind %}1{% endif %}"), "value", "test `defind`", "'defined'"),
        (
            _adding("{{ record.x | regex_search('(') }}"),
            "value",
            "not a valid regular expression",
            "",
        ),
        (
            _adding("{{ now_utc() - duration('1D') }}"),
            "value",
            "'1D' is not a valid duration",
            "ISO 8601",
        ),
        (
            _asking(request_headers={"a": "{{ record.id }}"}),
            "a",
            "`record` does not",
            "Variables there",
        ),
        (_asking(request_headers={"{{ nam }}": 1}), "{{ nam }}", "`nam` does not exist", ""),
        (_asking(request_headers={"a": "{{ stream_state.x }}"}), "a", "`stream_state`", "interval"),
        (_handling(predicate="{{ respnse.x }}"), "predicate", "`respnse`", "'response'"),
        (
            _handling(http_codes=[429, 4290]),
            "http_codes[1]",
            "4290 is not a valid HTTP status",
            "three digits",
        ),
        (_waiting("WaitTimeFromHeader", header="a", regex="["), "regex", "not a valid regular", ""),
        (
            _by(step="1 day", cursor_granularity="P1D"),
            "step",
            "'1 day' is not a valid duration",
            "P1D",
        ),
        (
            _by(step="P1D", cursor_granularity="{{ 1 }}"),
            "cursor_granularity",
            "not a valid duration",
            "",
        ),
        (_by(step="P1D"), "step", "`step` and `cursor_granularity`, or neither", ""),
        (_by(lookback_window="P1X"), "lookback_window", "not a valid duration", ""),
        (
            _by(datetime_format="%Y-%Q"),
            "datetime_format",
            "the directive %Q does not exist",
            "strptime",
        ),
        (
            _by(datetime_format="YYYY-MM-DD"),
            "datetime_format",
            "does not contain the year",
            "strptime",
        ),
        (_by(datetime_format="%H:%M"), "datetime_format", "not contain the year", "strptime"),
        (_by(cursor_datetime_formats=["ISO"]), "cursor_datetime_formats[0]", "the year", ""),
        (
            _by(start_datetime="2024-01-01T00:00:00Z"),
            "start_datetime",
            "does not match the format %Y-%m-%d",
            "datetime_format",
        ),
        (
            _by(
                end_datetime={
                    "type": "MinMaxDatetime",
                    "datetime": "01.02.2024",
                    "datetime_format": "%d/%m/%Y",
                }
            ),
            "end_datetime.datetime",
            "does not match the format %d/%m/%Y",
            "",
        ),
        (_paged(type="PageIncrement", page_size="ten"), "page_size", "'ten' is not an integer", ""),
        (_paged(type="OffsetIncrement", page_size="ten"), "page_size", "not an integer", ""),
        (
            _paged(type="CursorPagination", cursor_value="{{ response.x }}", page_size="1O"),
            "page_size",
            "not an integer",
            "template",
        ),
        (
            _asking(error_handler={"type": "DefaultErrorHandler", "max_retries": "many"}),
            "max_retries",
            "not an integer",
            "",
        ),
        (_by(cursor_field="meta.updated"), "cursor_field", "is read as a single key", "AddFields"),
        (
            _with_schema({"updated_at": {}}, cursor_field="updatd_at"),
            "cursor_field",
            "not a field of the stream's schema",
            "'updated_at'",
        ),
        (
            _split("{{ stream_slice.idd }}"),
            "request_parameters.a",
            "`stream_slice['idd']` does not exist: the stream's slices contain id, pid",
            "'id'",
        ),
        (_split("{{ stream_partition['team'] }}"), "a", "slices contain id, pid", "Use a name"),
        (_split("{{ stream_interval.get('start_tim') }}"), "a", "slices contain id, pid", ""),
        (
            _dependent(stream("parents")),
            "incremental_dependency",
            "has no effect: the stream has no cursor",
            "incremental_sync",
        ),
        (
            _dependent(stream("parents"), incremental_sync=_CURSOR),
            "incremental_dependency",
            "has no effect: the parent has no cursor",
            "",
        ),
        (_by(datetime_format="%Y-%"), "datetime_format", "single %", "strptime"),
        (_by(cursor_datetime_formats=["%Y %Y"]), "cursor_datetime_formats[0]", "twice", ""),
        (
            _by(clamping={"target": "MONHT"}),
            "clamping.target",
            "the target MONHT does not exist",
            "'MONTH'",
        ),
        (
            _by(start_datetime={"type": "MinMaxDatetime", "datetime": "{{ confi.x }}"}),
            "start_datetime.datetime",
            "`confi`",
            "'config'",
        ),
        (
            _decoded(type="CsvDecoder", encoding="utf-99"),
            "encoding",
            "the encoding 'utf-99' does not exist",
            "",
        ),
        (_decoded(type="JsonItemsDecoder", items_path="$.data"), "items_path", "JSONPath", ""),
        (
            _asking(request_parametrs={"a": 1}),
            "request_parametrs",
            "has no",
            "'request_parameters'",
        ),
        (_by(lookback_windows="P1D"), "lookback_windows", "has no", "'lookback_window'"),
        (_asking(url_base="ftp://a.example"), "url_base", "ftp:// is not supported", "https://"),
        (
            _with_parameters(_asking(path="/{{ parameters['endpont'] }}"), endpoint="x"),
            "path",
            "`parameters['endpont']` does not exist: the component has no such `$parameters`",
            "'endpoint'",
        ),
        (_asking(path="/{{ parameters.x }}"), "path", "`parameters['x']` does not exist", ""),
        (
            _asking(request_parameters={"a": "{{ next_page_token['next_page_tokn'] }}"}),
            "request_parameters.a",
            "does not exist: it contains only `next_page_token`",
            "'next_page_token'",
        ),
        (
            _of_parent(
                stream("parents"),
                "{{ stream_slice.extra_fields['regon'] }}",
                extra_fields=[["region"]],
            ),
            "request_parameters.a",
            "`stream_slice['extra_fields']['regon']` does not exist",
            "'region'",
        ),
        (
            _of_parent(stream("parents"), "{{ stream_partition.partition.pidd }}"),
            "request_parameters.a",
            "`stream_partition['partition']['pidd']` does not exist",
            "'pid'",
        ),
        (
            _of_parent(stream("parents"), parent_key="meta.id"),
            "parent_key",
            "is read as a single key",
            "'meta/id'",
        ),
        (
            _of_parent(_with_schema({"order_id": {}}), parent_key="ordr_id/x"),
            "parent_key",
            "'ordr_id' is not a field of the parent's schema",
            "'order_id'",
        ),
        (_keyed("meta.id"), "primary_key", "is read as a single key", "[[meta, id]]"),
        (_keyed([["ordr_id"]]), "primary_key[0]", "not a field of the stream's", "'order_id'"),
        (
            _by(datetime_format="%Y-%M-%d", start_datetime="{{ config.start }}"),
            "datetime_format",
            "the minute (%M) and no hour; the month is %m",
            "strptime",
        ),
        (_by(cursor_datetime_formats=["%Y-%m-%d %I:%M"]), "formats[0]", "without %p", ""),
        (_by(lookback_window="-P1D"), "lookback_window", "'-P1D' is negative", "sign"),
        (
            _by(step="P1D", cursor_granularity="P1M"),
            "cursor_granularity",
            "'P1M' is longer than the step 'P1D'",
            "resolution",
        ),
        (
            _waiting("ConstantBackoffStrategy", backoff_time_in_seconds="ten"),
            "backoff_time_in_seconds",
            "'ten' is not a number",
            "template",
        ),
        (
            _waiting("WaitUntilTimeFromHeader", header="a", min_wait="5s"),
            "min_wait",
            "'5s' is not a number",
            "",
        ),
        (
            _paged(
                type="CursorPagination",
                cursor_value="{{ response.next }}",
                stop_condition="not response.next",
            ),
            "stop_condition",
            "contains no template, and is always true",
            "{{",
        ),
        (
            _paged(type="CursorPagination", cursor_value="response.next"),
            "cursor_value",
            "is the token of every page",
            "{{",
        ),
        (_filtered("record.x == 1"), "condition", "is always true", "{{"),
        (_handling(predicate="response.error"), "predicate", "is always true", ""),
        (_listed("a,b"), "values", "'a,b' is not a list", "template"),
        (_without_url(), "requester", "neither `url` nor `url_base`", "url_base"),
        (
            _asking(request_body_json={"a": 1}, request_body_data={"b": 2}),
            "request_body_data",
            "a JSON body and another body",
            "once",
        ),
        (
            _optional("page", asks={"request_parameters": {"page": 1}}),
            "page_token_option",
            "the request_parameter 'page' is set by the requester and by the paginator",
            "once",
        ),
        (
            _optional("X-From", "header", asks={"request_headers": {"X-From": "1"}}),
            "page_token_option",
            "the header 'X-From' is set",
            "once",
        ),
        (
            _optional("since", incremental_sync=_bounds("since", "until")),
            "start_time_option",
            "is set by the paginator and by the cursor's start_time_option",
            "once",
        ),
        (
            stream(incremental_sync=_bounds("at", "at")),
            "end_time_option",
            "set by the cursor's start_time_option and by the cursor's end_time_option",
            "once",
        ),
        (_by_path("PageIncrement"), "page_token_option", "cannot be a number", "RequestOption"),
    ],
)
def test_an_invalid_text_is_reported_with_its_location(
    described: dict[str, Any], path: str, message: str, hint: str
) -> None:
    found = _manifest(described)

    problem = _one(found)
    assert problem.path.startswith("streams[0].")
    assert problem.path.endswith(path)
    assert problem.stream == "items"
    assert message in problem.message
    assert hint in (problem.hint or "")
    # The error may never occur: the reference reads such streams.
    assert list(found.streams) == ["items"]


@pytest.mark.parametrize(
    "described",
    [
        _split("/a/{ {x} }/{{ stream_partition.id }}"),
        _asking(request_body_json={"query": "}} {x} {% raw %}{{ anything }}{% endraw %}"}),
        _adding("{% for one in record['a'] %}{{ one }}{{ loop.index }}{% endfor %}"),
        _adding("{% set a = record.b %}{{ a | hash('md5') }} {{ stream_slice }}"),
        _waiting("WaitTimeFromResponse", wait_time_in_seconds="{{ whatever | unknown }}"),
        _waiting("WaitTimeFromHeader", header="a", regex="{{ config['pattern'] }}"),
        _by(step="{{ config['step'] }}", cursor_granularity="PT0.000001S"),
        _by(
            datetime_format="%Y-%m-%dT%H:%M:%S.%_msZ",
            cursor_datetime_formats=["%s_as_float"],
            start_datetime="2024-01-01T00:00:00.000Z",
        ),
        _by(cursor_datetime_formats=["%d/%b/%Y %I:%M %p", "%Y%m%d%H%M"], lookback_window="PT0S"),
        _by(step="P1M", cursor_granularity="P1M"),
        _waiting("ExponentialBackoffStrategy", factor="2.5"),
        _filtered("true"),
        _listed("['a', 'b']"),
        _listed("{{ config['values'] }}"),
        _listed(["a,b"]),
        _optional("page", asks={"request_parameters": {"page": "{{ config.page }}", "n": 1}}),
        _optional("page", asks={"request_headers": {"page": "1"}}),
        _optional("page", incremental_sync=_bounds("since", "until")),
        _asking(url="https://a.example", url_base=""),
        _keyed([["meta", "id"]]),
        _keyed("zzz"),
        _of_parent(
            stream("parents"), "{{ next_page_token.next_page_token.x }}", parent_key="a/b.c"
        ),
        _of_parent(_with_schema({"meta.id": {}}), parent_key="meta.id"),
        _with_parameters(_asking(path="/{{ parameters.endpoint.name }}"), endpoint={"name": "x"}),
        _asking(path="/{{ parameters.get('endpoint', 'x') }}{{ parameters.other or 'y' }}"),
        # This format parses no times, and formats for output support more directives.
        _by(datetime_format="%-d.%-m.%Y", cursor_datetime_formats=["%Y-%m-%d"]),
        stream(name="stream_state"),
        # An unknown key may be there on purpose, as may a parameter that is passed on.
        _asking(purpose="to ask", use_caches=True, **{"$parameters": {"use_caches": True}}),
    ],
)
def test_what_the_reference_reads_is_not_a_problem(described: dict[str, Any]) -> None:
    assert _manifest(described).problems == ()


def test_requests_know_what_partitions_carry() -> None:
    parent = {
        "type": "ParentStreamConfig",
        "stream": stream("parents"),
        "parent_key": "id",
        "partition_field": "parent",
        "extra_fields": [["region"], ["owner", "id"]],
    }
    router = {"type": "SubstreamPartitionRouter", "parent_stream_configs": [parent]}
    described = stream(
        retriever={
            **retriever(partition_router=router),
            "requester": requester("/{{ region }}/{{ regon }}"),
        }
    )

    assert _one(_manifest(described)).message == "the variable `regon` does not exist there"


def test_texts_of_streams_with_other_problems_are_reported_too() -> None:
    described = _asking(request_headers={"a": "{{ confg.x }}"})
    del described["retriever"]["record_selector"]

    found = _manifest(described)

    assert [problem.path.rpartition(".")[2] for problem in found.problems] == [
        "a",
        "record_selector",
    ]
    assert not found.streams


def test_budget_concurrency_and_rules_are_checked() -> None:
    window = {
        "type": "FixedWindowCallRatePolicy",
        "period": "1h",
        "call_limit": 5,
        "matchers": [{"method": "PSOT", "url_path_pattern": "("}],
    }
    rates = {"type": "MovingWindowCallRatePolicy", "rates": [], "matchers": []}
    added = {"type": "AddedFieldDefinition", "path": ["a"], "value": "{{ confg.a }}"}
    rules = {
        "type": "ConfigNormalizationRules",
        "transformations": [{"type": "ConfigAddFields", "fields": [added]}],
    }

    found = _manifest(
        stream(),
        api_budget={"type": "HTTPAPIBudget", "policies": [window, rates]},
        concurrency_level={"type": "ConcurrencyLevel", "default_concurrency": "{{ cnfig.x }}"},
        spec={"type": "Spec", "config_normalization_rules": rules},
    )

    assert {problem.path for problem in found.problems} == {
        "api_budget.policies[0].period",
        "api_budget.policies[0].matchers[0].method",
        "api_budget.policies[0].matchers[0].url_path_pattern",
        "api_budget.policies[1].rates",
        "concurrency_level.default_concurrency",
        "spec.config_normalization_rules.transformations[0].fields[0].value",
    }


def _dynamic(template: dict[str, Any], value: str) -> dict[str, Any]:
    mapping = {"type": "ComponentMappingDefinition", "field_path": ["name"], "value": value}
    return {
        "type": "DynamicDeclarativeStream",
        "name": "tables",
        "stream_template": template,
        "components_resolver": {
            "type": "ParametrizedComponentsResolver",
            "stream_parameters": {
                "type": "StreamParametersDefinition",
                "list_of_parameters_for_stream": [{"name": "one"}, {"name": "two"}],
            },
            "components_mapping": [
                mapping,
                {
                    **mapping,
                    "field_path": ["retriever", "requester", "path"],
                    "value": "/{{ components_values['name'] }}",
                },
            ],
        },
    }


def test_problems_of_stream_templates_are_reported_once_and_without_inserted_values() -> None:
    template = _asking(path="{{ to be replaced }}", request_headers={"a": "{{ confg.x }}"})
    named = "{{ components_values['name'] }}"

    with Api({}) as api:
        found = _manifest(dynamic_streams=[_dynamic(template, named)])
        source = DeclarativeSource(
            type="declarative", manifest="manifest.yaml", config={"api": api.url}
        )
        with open_api(found, source, stream_names=None) as ready:
            whole = ready.manifest

    assert (
        _one(found).path
        == "dynamic_streams[0].stream_template.retriever.requester.request_headers.a"
    )
    assert whole.problems == found.problems
    assert list(whole.streams) == ["one", "two"]
    wrong = _manifest(dynamic_streams=[_dynamic(stream(), "{{ component_values['name'] }}")])
    assert _one(wrong).hint == "Did you mean 'components_values'?"


def test_a_check_reports_line_path_and_hint(tmp_path: Path) -> None:
    file = tmp_path / "manifest.yaml"
    file.write_text(
        """\
streams:
  - name: items
    retriever:
      requester:
        url_base: "{{ config['api'] }}"
        path: /items
        request_headers:
          x: "{{ confg['y'] }}"
      record_selector: {extractor: {field_path: [data]}}
"""
    )
    with Api({"/items": Reply({"data": []})}) as api:
        config = {"api": api.url}
        for only, level in ((None, Level.WARNING), (["items"], Level.FAILED)):
            source = DeclarativeSource(
                type="declarative", manifest="manifest.yaml", config=config, only=only
            )
            first = next(iter(check_source(load(file), source)))
            assert (first.level, first.fix) == (level, "Did you mean 'config'?")
            assert first.message.startswith(f"{file}, line 8: the stream items: streams[0].")
            assert first.message.endswith(
                "request_headers.x: the variable `confg` does not exist there"
            )


_SPEC = {
    "type": "Spec",
    "connection_specification": {
        "type": "object",
        "properties": {
            "token": {"type": "string"},
            "api": {},
            "account": {
                "type": "object",
                "properties": {"name": {}},
                "oneOf": [{"properties": {"id": {}}}, {"properties": {"key": {}}}],
            },
        },
        "oneOf": [{"properties": {"region": {"type": "string"}}}],
    },
}


@pytest.mark.parametrize(
    ("described", "message", "hint", "level"),
    [
        (
            _asking(request_headers={"Authorization": "Bearer {{ config['tokn'] }}"}),
            "`config['tokn']` does not exist: the `spec` has no such setting",
            "Did you mean 'token'?",
            Level.FAILED,
        ),
        (_asking(path="/{{ config.regoin }}/items"), "config['regoin']", "'region'", Level.FAILED),
        (_asking(path="/{{ config['place'] }}"), "config['place']", "Use a name", Level.FAILED),
        (_asking(path="/{{ config.get('tokens') }}"), "'tokens'", "'token'", Level.FAILED),
        (
            _asking(path="/{{ config['account'].nam }}"),
            "`config['account']['nam']` does not exist: `account` contains id, key, name",
            "'name'",
            Level.FAILED,
        ),
        (_asking(path="/{{ config.get('account').names }}"), "['names']", "'name'", Level.FAILED),
        # An empty header is not sent, and an empty field of a record is kept.
        (_asking(request_headers={"a": "{{ config['tokn'] }}"}), "'tokn'", "", Level.WARNING),
        (_adding("{{ config['tokn'] }}"), "'tokn'", "'token'", Level.WARNING),
        (_dependent(stream("parents")), "has no effect", "", Level.WARNING),
    ],
)
def test_a_setting_that_the_spec_lacks_is_reported(
    described: dict[str, Any], message: str, hint: str, level: Level
) -> None:
    found = _manifest(described, spec=_SPEC)
    problem = _one(found)
    assert message in problem.message
    assert hint in (problem.hint or "")
    assert "items" in found.streams

    source = DeclarativeSource(type="declarative", manifest="m.yaml", config={}, only=["items"])
    (reported,) = [result for result in check_source(found, source) if result.what == "manifest"]
    assert reported.level is level


@pytest.mark.parametrize(
    "described",
    [
        _asking(path="/{{ config['token'] }}/{{ config.region }}"),
        # Optional keys, a method, a template's own variable, and a nested one.
        _asking(path="/{{ config.get('place', 'x') }}"),
        _asking(path="/{{ config['place'] or 'x' }}"),
        _asking(path="/{{ config['place'] if config['place'] is defined else '' }}"),
        _asking(path="/{{ config.items() | list | length }}"),
        _asking(path="/{% set config = {'a': 1} %}{{ config.a }}"),
        _asking(path="/{{ config['tok' ~ 'n'] }}"),
        _split("{{ stream_slice.pid }}{{ stream_slice.get('id') }}{{ stream_slice.parent_slice }}"),
        _split("{{ stream_slice.extra_fields['query_properties'] }}"),
        _of_parent(
            stream("p"), "{{ stream_slice.extra_fields['x.y'] }}", extra_fields=[["x", "y"]]
        ),
        _asking(path="/{{ config['account']['id'] }}/{{ config.account.get('name') }}"),
        _asking(path="/{{ config.token.upper() }}/{{ config.api.any.thing }}"),
        _by(cursor_field="{{ config.token }}"),
        _with_schema({"meta.updated": {}}, cursor_field="meta.updated"),
        _with_schema({"a": {}, "b": {}}, cursor_field="zzz"),
        _dependent(_by(), incremental_sync=_CURSOR),
        _paged(type="PageIncrement", page_size="{{ config.token }}"),
        _paged(type="PageIncrement", page_size="10"),
    ],
)
def test_existing_and_optional_names_are_not_problems(described: dict[str, Any]) -> None:
    assert _manifest(described, spec=_SPEC).problems == ()


def test_settings_that_the_manifest_makes_itself_are_there() -> None:
    field = {"type": "AddedFieldDefinition", "path": ["made"], "value": "x"}
    rules = {
        "type": "ConfigNormalizationRules",
        "transformations": [{"type": "ConfigAddFields", "fields": [field]}],
    }
    spec = {**_SPEC, "config_normalization_rules": rules}
    assert _manifest(_asking(path="/{{ config['made'] }}"), spec=spec).problems == ()


def test_without_a_spec_the_settings_are_unknown() -> None:
    assert _manifest(_asking(path="/{{ config['made'] }}")).problems == ()
