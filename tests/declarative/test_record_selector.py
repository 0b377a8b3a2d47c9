"""Responses become records by the reference's selector, filter and transformations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from chronolake.errors import SourceError
from chronolake.source.declarative.models.records import JsonDecoder, RecordSelector, Transformation
from chronolake.source.declarative.records.selector import Page, Selection, create_converter
from chronolake.source.declarative.stream_slice import StreamSlice
from support.declarative.responses import answer

_CONFIG = {"k": "z", "size": 7}
_SLICE = StreamSlice(
    partition={"id": 7, "parent_slice": {}},
    cursor_slice={"start_time": "2024-01-01", "end_time": "2024-02-01"},
    extra_fields={"e": "E"},
)


def _selection(
    *transformations: dict[str, Any],
    condition: str | None = None,
    schema: dict[str, Any] | None = None,
    is_client_side: bool = False,
    **selector: Any,
) -> Selection:
    if condition is not None:
        selector["record_filter"] = {"type": "RecordFilter", "condition": condition}
    extractor = {"type": "DpathExtractor", "field_path": ["data"]}
    return Selection(
        RecordSelector.model_validate(
            {"type": "RecordSelector", "extractor": extractor, **selector}
        ),
        decoder=JsonDecoder(type="JsonDecoder"),
        transformations=[
            TypeAdapter[Any](Transformation).validate_python(transformation)
            for transformation in transformations
        ],
        config=_CONFIG,
        schema=schema,
        is_client_side=is_client_side,
    )


def _page(selection: Selection, *records: Any, **options: Any) -> Page:
    return selection.page(answer({"data": list(records)}), _SLICE, **options)


def _transformed(transformation: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    [changed] = _page(_selection(transformation), record).records
    return changed


def _add(*fields: tuple[list[str], str], condition: str = "", **more: str) -> dict[str, Any]:
    return {
        "type": "AddFields",
        "condition": condition,
        "fields": [
            {"type": "AddedFieldDefinition", "path": path, "value": value, **more}
            for path, value in fields
        ],
    }


def _remove(*pointers: list[str], condition: str = "") -> dict[str, Any]:
    return {"type": "RemoveFields", "field_pointers": pointers, "condition": condition}


def _lift(*path: str, **options: Any) -> dict[str, Any]:
    return {"type": "DpathFlattenFields", "field_path": path, **options}


@pytest.mark.parametrize(
    ("transformation", "record", "expected"),
    [
        (_add((["x"], "10")), {}, {"x": 10}),
        (_add((["x"], "10"), value_type="string"), {}, {"x": "10"}),
        (_add((["x"], "{{ record['a'] }}")), {"a": "2.10"}, {"a": "2.10", "x": "2.10"}),
        (
            _add((["x"], "{{ record['a'] }}"), value_type="string"),
            {"a": "2.10"},
            {"a": "2.10", "x": "2.10"},
        ),
        (
            _add((["x"], "{{ record['a'] }}"), value_type="number"),
            {"a": "5"},
            {"a": "5", "x": "5"},
        ),
        (_add((["x"], "{{ record['a'] }}")), {"a": None}, {"a": None, "x": None}),
        (_add((["x"], "{{ record.nope }}")), {}, {"x": ""}),
        (_add((["x"], "{{ (record.a | int) + 1 }}")), {"a": "4"}, {"a": "4", "x": 5}),
        (
            _add((["x"], "{{ config['k'] }}-{{ stream_slice.start_time }}")),
            {},
            {"x": "z-2024-01-01"},
        ),
        (_add((["x"], "{{ stream_slice.extra_fields.e }}")), {}, {"x": "E"}),
        (_add((["x", "y"], "{{ stream_partition['id'] }}")), {}, {"x": {"y": 7}}),
        (_add((["x", "1", "y"], "v")), {}, {"x": [None, {"y": "v"}]}),
        (_add((["a", "2"], "v")), {"a": [1]}, {"a": [1, None, "v"]}),
        (_add((["0"], "v")), {}, {"0": "v"}),
        (_add((["x"], "[]"), (["y"], "{{ record['x'] }}")), {}, {"x": [], "y": []}),
        (_add((["x"], "{{ record.a }}"), condition="{{ value > 3 }}"), {"a": 5}, {"a": 5, "x": 5}),
        (_add((["x"], "{{ record.a }}"), condition="{{ value > 3 }}"), {"a": 2}, {"a": 2}),
        (
            _add((["x"], "1"), condition="{{ 'x' in path and record.a }}"),
            {"a": 2},
            {"a": 2, "x": 1},
        ),
    ],
)
def test_fields_are_added(transformation: Any, record: Any, expected: Any) -> None:
    assert _transformed(transformation, record) == expected


@pytest.mark.parametrize("record", [{"a": 1}, {"a": None}, {"a": [1]}])
def test_a_field_is_only_added_within_an_object(record: dict[str, Any]) -> None:
    with pytest.raises(SourceError, match="cannot be added"):
        _transformed(_add((["a", "b"], "v")), record)


def test_each_record_has_a_list_of_its_own() -> None:
    first, second = _page(_selection(_add((["x"], "[1]"))), {}, {}).records
    assert first["x"] == second["x"] == [1]
    assert first["x"] is not second["x"]


@pytest.mark.parametrize(
    ("transformation", "record", "expected"),
    [
        (_remove(["a"], ["b", "c"], ["zz"]), {"a": 1, "b": {"c": 1, "d": 2}}, {"b": {"d": 2}}),
        (_remove(["a", "0"]), {"a": [1, 2]}, {"a": [None, 2]}),
        (_remove(["a", "1"]), {"a": [1, 2]}, {"a": [1]}),
        (_remove(["a", "*"]), {"a": [1, 2, 3]}, {"a": [None, None]}),
        (_remove(["a", "*", "k"]), {"a": [{"k": 1}, {"k": 2}]}, {"a": [{}, {}]}),
        (
            _remove(["**", "x"]),
            {"a": {"x": 1, "b": {"x": 2, "c": [{"x": 3}]}}},
            {"a": {"b": {"c": [{}]}}},
        ),
        (_remove(["**"]), {"a": {"b": 1}}, {}),
        (_remove(["a?"]), {"ab": 1, "b": 2}, {"b": 2}),
        # With a condition, the pointers do not matter.
        (
            _remove(["zz"], condition="{{ property == '' }}"),
            {"a": "", "b": {"c": "", "d": "x"}, "l": ["", ""]},
            {"b": {"d": "x"}, "l": [None]},
        ),
        (
            _remove(["a"], ["b"], condition="{{ property is none }}"),
            {"a": None, "l": [None, 1, None], "b": {"c": None}},
            {"l": [None, 1], "b": {}},
        ),
    ],
)
def test_fields_are_removed(transformation: Any, record: Any, expected: Any) -> None:
    assert _transformed(transformation, record) == expected


def test_own_keys_are_put_in_lower_case() -> None:
    assert _transformed({"type": "KeysToLower"}, {"Ab": {"Cd": 1}}) == {"ab": {"Cd": 1}}


@pytest.mark.parametrize(
    ("old", "new", "record", "expected"),
    [
        (" ", "_", {"a b": {"c d": 1}, "l": [{"e f": 1}]}, {"a_b": {"c_d": 1}, "l": [{"e f": 1}]}),
        ("{{ record.o }}", "{{ config.k }}", {"o": "x", "xx": 1}, {"o": "x", "zz": 1}),
        ("1", "2", {"a1": 1}, {"a2": 1}),
    ],
)
def test_texts_in_keys_are_replaced(old: str, new: str, record: Any, expected: Any) -> None:
    assert _transformed({"type": "KeysReplace", "old": old, "new": new}, record) == expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("FirstName", "first_name"), ("HTTPServer", "httpserver"), ("a b", "a_b"),
        ("$abc", "_abc"), ("abc$", "abc_"), ("a$", "a_"), ("1st", "_1_st"), ("_x", "_x"),
        ("x1y2", "x_1_y_2"), ("", ""), ("éÀÜ", "e_au"), ("user.ID-no", "user_id_no"),
        ("A1", "a_1"), ("straße", "strasse"), ("a  b  c", "a_b_c"), ("$", ""), ("$$a$$", "_a_"),
    ],
)  # fmt: skip
def test_keys_are_put_in_snake_case(key: str, expected: str) -> None:
    assert _transformed({"type": "KeysToSnakeCase"}, {key: {key: 1}}) == {expected: {expected: 1}}


def test_keys_in_other_scripts_stay_apart() -> None:
    keys = {"имя": 1, "имяДва": 2, "名前": 3}
    assert len(_transformed({"type": "KeysToSnakeCase"}, keys)) == 3


@pytest.mark.parametrize(
    ("lists", "record", "expected"),
    [
        (
            True,
            {"a": {"b": 1, "c": {"b": 2}}, "d": [{"b": 3}, {"x": 4}], "e": [], "f": {}, "b": 9},
            {"b": 9, "d.1.x": 4, "d.0.b": 3, "a.c.b": 2, "a.b": 1},
        ),
        (False, {"a": {"b": 1, "l": [{"x": 1}]}, "b": 2}, {"b": 2, "l": [{"x": 1}], "a.b": 1}),
        (True, {"x": {"a": {"i": 1}}, "y": {"a": {"i": 2}}}, {"i": 2, "a.i": 1}),
    ],
)
def test_nested_fields_are_flattened(lists: bool, record: Any, expected: Any) -> None:
    transformation = {"type": "FlattenFields", "flatten_lists": lists}
    assert list(_transformed(transformation, record).items()) == list(expected.items())


@pytest.mark.parametrize(
    ("transformation", "record", "expected"),
    [
        (_lift("d"), {"d": {"x": 1}, "a": 1}, {"d": {"x": 1}, "a": 1, "x": 1}),
        (_lift("d", delete_origin_value=True), {"d": {"x": 1}, "a": 1}, {"a": 1, "x": 1}),
        (_lift("d", replace_record=True), {"d": {"x": 1}, "a": 1}, {"x": 1}),
        (_lift("d", replace_record=True), {"d": {}, "a": 1}, {"d": {}, "a": 1}),
        (_lift("d"), {"d": {"a": 1}, "a": 2}, {"d": {"a": 1}, "a": 2}),
        (_lift("d", delete_origin_value=True), {"d": {"d": 1}}, {"d": {"d": 1}}),
        (_lift("d"), {"d": [1]}, {"d": [1]}),
        (_lift("d"), {"a": 1}, {"a": 1}),
        (_lift("d", "0"), {"d": [{"x": 1}]}, {"d": [{"x": 1}], "x": 1}),
        (
            _lift("d", "*", delete_origin_value=True),
            {"d": {"q": {"x": 1}, "r": {"y": 1}}, "a": 1},
            {"d": {}, "a": 1, "x": 1},
        ),
        (
            _lift("{{ config.k }}", "e", delete_origin_value=True),
            {"z": {"e": {"x": 1}, "f": 2}},
            {"z": {"f": 2}, "x": 1},
        ),
        (
            _lift(
                "d",
                key_transformation={
                    "type": "KeyTransformation", "prefix": "p_", "suffix": "_{{ config.k }}"
                },
            ),
            {"d": {"x": 1}, "x": 2},
            {"d": {"x": 1}, "x": 2, "p_x_z": 1},
        ),
    ],
)  # fmt: skip
def test_one_nested_object_is_flattened(transformation: Any, record: Any, expected: Any) -> None:
    assert _transformed(transformation, record) == expected


@pytest.mark.parametrize(
    ("condition", "records", "expected"),
    [
        ("{{ record.a > 1 }}", [{"a": 1}, {"a": 2}], [{"a": 2}]),
        (
            "{{ record.a }}",
            [{"a": 0}, {"a": "no"}, {"a": None}, {"a": ""}, {"a": []}, {"a": "false"}, {}],
            [{"a": "no"}],
        ),
        ("", [{"a": 1}], []),
        ("{{ record['id'] == stream_partition['id'] }}", [{"id": 7}, {"id": "7"}], [{"id": 7}]),
        ("{{ next_page_token['next_page_token'] == 5 }}", [{"a": 1}], [{"a": 1}]),
        (
            "{{ record.t >= stream_interval.start_time }}",
            [{"t": "2024-01-02"}, {"t": "2023-01-02"}],
            [{"t": "2024-01-02"}],
        ),
    ],
)
def test_records_are_filtered(condition: str, records: Any, expected: Any) -> None:
    page = _page(_selection(condition=condition), *records, next_page_token={"next_page_token": 5})
    assert page == Page(expected, extracted=len(records))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # A filter sees added fields only if they are added before it runs.
        ({}, []),
        ({"transform_before_filtering": True}, [{"a": 1, "x": 1}]),
        ({"is_client_side": True}, [{"a": 1, "x": 1}]),
        ({"is_client_side": True, "transform_before_filtering": False}, []),
    ],
)
def test_records_are_filtered_before_they_are_transformed_by_default(
    options: dict[str, Any], expected: Any
) -> None:
    selection = _selection(_add((["x"], "1")), condition="{{ record.x == 1 }}", **options)
    assert _page(selection, {"a": 1}).records == expected


def test_the_cursor_filters_where_the_filter_does() -> None:
    selection = _selection(_add((["x"], "{{ record.a }}")), condition="", is_client_side=True)
    page = _page(selection, {"a": 1}, {"a": 2}, {"a": 3}, keep=lambda record: record["x"] < 3)
    assert page.records == [{"a": 1, "x": 1}, {"a": 2, "x": 2}]
    assert page.last == {"a": 2, "x": 2}
    assert page.extracted == 3


def test_a_page_without_records_has_no_last_one() -> None:
    selection = _selection(_add((["x"], "{{ record.a }}")))
    assert _page(selection) == Page([], 0)
    assert _page(selection).last is None


@pytest.mark.parametrize("record", [None, "text", [1], 5])
def test_records_that_are_not_objects_are_refused(record: Any) -> None:
    with pytest.raises(SourceError, match="not objects"):
        _page(_selection(), {"a": 1}, record)


def test_records_that_are_not_objects_may_be_filtered_out() -> None:
    assert _page(_selection(condition="{{ record is mapping }}"), {"a": 1}, None).records == [
        {"a": 1}
    ]


def _property(kind: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"v": {"type": kind, **more}}}


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        (_property("string"), 1, "1"),
        (_property("string"), 1e22, "1e+22"),
        (_property("string"), True, "True"),
        (_property("string"), {"a": 1}, "{'a': 1}"),
        (_property("string"), None, "None"),
        (_property(["null", "string"]), None, None),
        (_property("number"), "1.5", 1.5),
        (_property("number"), 1, 1.0),
        (_property("number"), "x", "x"),
        (_property("number"), 10**400, 10**400),
        (_property("integer"), "1_000", 1000),
        (_property("integer"), 1.7, 1),
        (_property("integer"), "1.5", "1.5"),
        (_property(["integer", "null"]), "1", 1),
        (_property("boolean"), "Yes", True),
        (_property("boolean"), " off ", False),
        (_property("boolean"), "x", "x"),
        (_property("boolean"), [1], True),
        (_property("boolean"), None, False),
        (_property(["string", "integer"]), 1, 1),
        (_property("array"), "x", ["x"]),
        (_property(["null", "array"]), None, None),
        (_property("array"), None, [None]),
        (_property("array", items={"type": ["string", "null"]}), "a", ["a"]),
        (_property("array", items={"type": ["string", "null"]}), [1, None], ["1", None]),
        (_property("array", items={"type": "string"}), "a", "a"),
        (_property("array", items={"type": "string"}), [1, 2.5, None], ["1", "2.5", "None"]),
        (_property("object"), "x", "x"),
        (
            _property("array", items={"type": "array", "items": {"type": "integer"}}),
            [["1"], ["2", "x"]],
            [[1], [2, "x"]],
        ),
        (
            _property(["null", "object"], properties={"n": {"type": "integer"}}),
            {"n": "5", "m": "6"},
            {"n": 5, "m": "6"},
        ),
        ({"properties": {"v": {"anyOf": [{"type": "integer"}]}}}, "1", "1"),
    ],
)
def test_values_are_converted_to_the_declared_types(schema: Any, value: Any, expected: Any) -> None:
    record = {"v": value}
    create_converter(schema).convert_contents(record)
    assert record == {"v": expected}
    assert type(record["v"]) is type(expected)


def test_a_schema_may_refer_to_itself() -> None:
    properties = {
        "a": {"type": "integer"},
        "c": {"$ref": "#/definitions/r"},
        "d": {"$ref": "#/definitions/i"},
    }
    definitions = {"r": {"properties": properties}, "i": {"type": "integer"}}
    record = {"a": "1", "c": {"a": "2", "c": {"a": "3"}}, "d": "4"}
    create_converter({"$ref": "#/definitions/r", "definitions": definitions}).convert_contents(
        record
    )
    assert record == {"a": 1, "c": {"a": 2, "c": {"a": 3}}, "d": "4"}


def test_values_are_converted_last() -> None:
    selection = _selection(
        _add((["x"], "12")),
        condition="{{ record.a == 1 }}",
        schema={"properties": {"x": {"type": "string"}, "a": {"type": "string"}}},
        schema_normalization="Default",
    )
    assert _page(selection, {"a": 1}, {"a": "1"}).records == [{"a": "1", "x": "12"}]


def test_values_are_unchanged_unless_the_manifest_configures_it() -> None:
    assert _page(_selection(schema=_property("string")), {"v": 1}).records == [{"v": 1}]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=6,
)


@given(_JSON, st.sampled_from(["string", "number", "integer", "boolean", "array", "object"]))
def test_to_convert_twice_is_to_convert_once(value: Any, kind: str) -> None:
    converter = create_converter(_property(["null", kind]))
    once = {"v": value}
    converter.convert_contents(once)
    twice = dict(once)
    converter.convert_contents(twice)
    # Texts such as "nan" become a number that does not equal itself.
    assert repr(twice) == repr(once)
