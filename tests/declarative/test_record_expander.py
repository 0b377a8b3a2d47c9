"""Each item of a list within a record becomes a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.models.records import DpathExtractor, JsonDecoder, RecordExpander
from chronolake.source.declarative.records.extractors import Expansion, create_extraction
from support.declarative.apis import Api, Reply
from support.declarative.responses import answer
from support.declarative.stream_reads import option, read_stream, retriever, stream

_ORDER = {"id": 1, "at": {"day": "mon"}, "lines": {"data": [{"id": 11}, {"id": 12}], "more": True}}


def _expander(**more: Any) -> dict[str, Any]:
    return {"type": "RecordExpander", "expand_records_from_field": ["lines", "data"], **more}


def _expanded(record: Any, **more: Any) -> list[Any]:
    model = RecordExpander.model_validate(_expander(**more))
    return list(Expansion(model, {"list": "data"}).of(record))


def _parent(source: list[str], target: list[str]) -> dict[str, Any]:
    return {"type": "ParentFieldPath", "parent_path": source, "record_path": target}


def test_each_item_is_a_record() -> None:
    assert _expanded(_ORDER) == [{"id": 11}, {"id": 12}]


def test_an_answer_counts_the_items() -> None:
    extractor = DpathExtractor.model_validate(
        {"type": "DpathExtractor", "field_path": ["data"], "record_expander": _expander()}
    )
    found = create_extraction(extractor, JsonDecoder(type="JsonDecoder"), {})(
        answer({"data": [_ORDER, {"id": 2}, _ORDER]})
    )

    assert found.count == 4
    assert [record["id"] for record in found.records] == [11, 12, 11, 12]


@pytest.mark.parametrize("record", [{"id": 1}, {"lines": {"data": []}}, {"lines": {"data": {}}}])
def test_a_record_without_items_is_dropped_or_kept(record: dict[str, Any]) -> None:
    assert _expanded(record) == []
    assert _expanded(record, on_no_records="emit_parent") == [record]


def test_a_value_that_is_not_an_object_is_unchanged() -> None:
    assert _expanded(7) == [7]
    assert _expanded(_ORDER, expand_records_from_field=[]) == [_ORDER]


def test_items_carry_their_record() -> None:
    first, second = _expanded(_ORDER, remain_original_record=True)

    assert first == {"id": 11, "original_record": _ORDER}
    first["original_record"]["at"]["day"] = "tue"
    assert second["original_record"] == _ORDER


def test_items_carry_some_fields_of_their_record() -> None:
    first, second = _expanded(
        _ORDER,
        parent_fields=[
            _parent(["at"], ["order", "at"]),
            _parent(["at", "day"], ["id"]),
            _parent(["none"], ["nothing"]),
        ],
    )

    assert first == {"id": "mon", "order": {"at": {"day": "mon"}}, "nothing": None}
    first["order"]["at"]["day"] = "tue"
    assert second["order"]["at"] == _ORDER["at"] == {"day": "mon"}


def test_a_field_needs_a_place_in_the_item() -> None:
    with pytest.raises(SourceError, match="on its path is not an object"):
        _expanded(_ORDER, parent_fields=[_parent(["at"], ["id", "at"])])


def test_items_are_put_into_their_record() -> None:
    first, second = _expanded(_ORDER, merge_parent=True)

    assert first == {"id": 11, "at": {"day": "mon"}, "lines": {"more": True}}
    first["at"]["day"] = "tue"
    assert second["at"] == {"day": "mon"}
    assert len(_ORDER["lines"]["data"]) == 2  # type: ignore[index]


def test_patterns_lead_to_several_lists() -> None:
    record = {"id": 1, "parts": [{"of": [{"a": 1}]}, {"of": "none"}, {"of": [{"a": 2}, 3]}]}

    found = _expanded(record, expand_records_from_field=["parts", "*", "of"], merge_parent=True)

    base = {"id": 1, "parts": [{}, {"of": "none"}, {}]}
    assert found == [{**base, "a": 1}, {**base, "a": 2}, {**base, "value": 3}]


def test_items_that_are_not_objects_become_objects_with_parent_fields() -> None:
    record = {"id": 1, "lines": {"data": [7]}}

    assert _expanded(record) == [7]
    assert _expanded(record, parent_fields=[_parent(["id"], ["order"])]) == [
        {"value": 7, "order": 1}
    ]


def test_paths_are_templates() -> None:
    path = ["lines", "{{ config['list'] }}"]
    assert len(_expanded(_ORDER, expand_records_from_field=path)) == 2


def test_a_truncated_list_is_reported_once() -> None:
    model = RecordExpander.model_validate(_expander(truncation_indicator_path=["lines", "more"]))
    expansion = Expansion(model, {})
    with capture_logs() as reported:
        assert len([*expansion.of(_ORDER), *expansion.of(_ORDER)]) == 4
    assert [event["event"] for event in reported] == ["nested_list_is_cut"]


@pytest.mark.parametrize(
    "more",
    [
        {"truncation_indicator_path": ["*"]},
        {"parent_fields": [_parent(["a*"], ["b"])]},
        {"parent_fields": [_parent(["a"], ["[b]"])]},
    ],
)
def test_what_leads_to_one_place_has_no_pattern(more: Mapping[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="several values"):
        _expanded(_ORDER, **more)


def _cut(**whole: Any) -> dict[str, Any]:
    more = {
        "truncation_indicator_path": ["lines", "more"],
        "truncated_list_retriever": retriever(
            "/orders/{{ stream_slice['parent_record']['id'] }}/lines", **whole
        ),
        "parent_fields": [_parent(["id"], ["order"])],
    }
    described = stream()
    described["retriever"]["record_selector"]["extractor"]["record_expander"] = _expander(**more)
    return described


def test_the_whole_of_a_list_that_is_cut_is_read() -> None:
    orders = [_ORDER, {"id": 2, "lines": {"data": [{"id": 21}], "more": False}}]
    pages = {
        "type": "DefaultPaginator",
        "page_token_option": option("page"),
        "pagination_strategy": {"type": "PageIncrement", "page_size": 2},
    }
    lines = {None: [{"id": 11}, {"id": 12}], "1": [{"id": 13}]}
    with Api(
        {
            "/items": Reply({"data": orders}),
            "/orders/1/lines": lambda asked: Reply({"data": lines[asked.params.get("page")]}),
        }
    ) as api:
        found = read_stream(_cut(paginator=pages), api)
        paths = api.paths()

    assert found.result.records == [
        {"id": 11, "order": 1},
        {"id": 12, "order": 1},
        {"id": 13, "order": 1},
        {"id": 21, "order": 2},
    ]
    assert paths == ["/items", "/orders/1/lines", "/orders/1/lines"]


def test_what_is_there_counts_if_the_whole_is_empty() -> None:
    with Api({"/items": Reply({"data": [_ORDER]}), "/orders/1/lines": Reply({"data": []})}) as api:
        assert read_stream(_cut(), api).ids == [11, 12]


def test_a_whole_list_that_cannot_be_read_fails() -> None:
    with Api({"/items": Reply({"data": [_ORDER]})}) as api:
        assert "/orders/1/lines" in str(read_stream(_cut(), api).result.failure)


def test_a_retriever_of_whole_lists_is_checked_first() -> None:
    router = {"type": "ListPartitionRouter", "cursor_field": "a", "values": ["b"]}
    with Api() as api:
        with pytest.raises(ConfigurationError, match="partition_router"):
            read_stream(_cut(partition_router=router), api)
        with pytest.raises(ConfigurationError, match=r"truncated_list_retriever\.requester"):
            read_stream(_cut(requester=None), api)
