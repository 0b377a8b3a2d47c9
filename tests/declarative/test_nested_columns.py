"""Objects in records as columns: each declared field one, the rest together."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronolake.errors import ConfigurationError
from chronolake.source.records.schema import Nesting, Shape
from chronolake.types import ColumnType, Kind

_ADDRESS = {
    "type": ["object", "null"],
    "properties": {
        "city": {"type": "string"},
        "since": {"type": "string", "format": "date"},
        "geo": {"type": "object", "properties": {"lat": {"type": "number"}}},
        "lines": {"type": "array", "items": {"type": "string"}},
    },
}
_SCHEMA = {
    "properties": {
        "id": {"type": "integer"},
        "address": _ADDRESS,
        "free": {"type": "object"},
        "either": {"type": ["object", "string"], "properties": {"a": {"type": "string"}}},
    }
}


def columns(records: list[dict[str, Any]], schema: Any = _SCHEMA, **types: Kind) -> dict[str, Any]:
    """Return the type and the values of each column that records are spread into."""
    nesting = Nesting("orders", schema, ("id",))
    known = {**nesting.declared, **{name: ColumnType(kind) for name, kind in types.items()}}
    shape = Shape(known, frozenset(nesting.declared), nesting)
    found, arrays = shape.cells(records, ("id",))
    both = zip(found, arrays, strict=True)
    return {column.name: (column.type.kind, array.to_pylist()) for column, array in both}


def test_declared_fields_of_objects_are_columns() -> None:
    geo = {"lat": 52, "lon": 13.4}
    address = {"city": "Berlin", "since": "2024-01-01", "geo": geo, "lines": ["a"], "zip": 1}
    found = columns(
        [
            {"id": 1, "address": address, "free": {"a": 1}, "either": {"a": "x"}},
            {"id": 2, "address": None, "either": "x"},
            {"id": 3, "address": {"city": None, "geo": None}},
        ]
    )
    assert list(found) == [
        "id",
        "address_city",
        "address_since",
        "address_geo_lat",
        "address_lines",
        "free",
        "either",
        "address_geo",
        "address",
    ]
    assert found["address_city"] == (Kind.STRING, ["Berlin", None, None])
    assert found["address_since"][0] is Kind.NAIVE_DATE
    assert found["address_geo_lat"] == (Kind.DOUBLE, [52.0, None, None])
    assert found["address_lines"] == (Kind.JSON, ['["a"]', None, None])
    assert found["free"] == (Kind.JSON, ['{"a":1}', None, None])
    assert found["either"] == (Kind.STRING, ['{"a":"x"}', "x", None])
    # Undeclared fields stay together in one column.
    assert found["address_geo"] == (Kind.JSON, ['{"lon":13.4}', None, None])
    assert found["address"] == (Kind.JSON, ['{"zip":1}', None, None])


def test_a_value_that_is_not_the_declared_object_is_kept() -> None:
    found = columns([{"id": 1, "address": 5}, {"id": 2, "address": "x"}, {"id": 3, "address": []}])
    assert found["address"] == (Kind.JSON, ["5", '"x"', "[]"])
    assert found["address_city"] == (Kind.STRING, [None, None, None])
    found = columns([{"id": 1, "address": {"geo": "here"}}])
    assert found["address_geo"] == (Kind.JSON, ['"here"'])
    assert "address" not in found


def test_a_field_whose_values_do_not_fit_gets_a_wider_column() -> None:
    found = columns([{"id": 1, "address": {"city": 5, "geo": {"lat": "north"}}}])
    assert found["address_city"] == (Kind.STRING, ["5"])
    assert found["address_geo_lat"] == (Kind.STRING, ["north"])


def test_a_column_from_before_stays() -> None:
    found = columns([{"id": 1, "address": {"city": "Berlin"}}], address=Kind.JSON)
    assert found["address"] == (Kind.JSON, [None])
    assert found["address_city"] == (Kind.STRING, ["Berlin"])


def test_a_key_that_is_an_object_stays_one() -> None:
    nesting = Nesting("orders", _SCHEMA, ("address",))
    assert nesting.declared["address"] == ColumnType(Kind.JSON)
    assert nesting.flatten([{"address": {"city": "x"}}]) == [{"address": {"city": "x"}}]


@pytest.mark.parametrize(
    "more",
    [
        {"address_city": {"type": "string"}},
        {"address_geo": {"type": "string"}},
        {"address_geo": {"type": "object", "properties": {"lat": {"type": "string"}}}},
    ],
)
def test_two_fields_that_would_be_one_column_are_refused(more: dict[str, Any]) -> None:
    for properties in ({"address": _ADDRESS, **more}, {**more, "address": _ADDRESS}):
        with pytest.raises(ConfigurationError) as refused:
            Nesting("orders", {"properties": properties}, ("id",))
        (name,) = more
        assert name in refused.value.message
        assert name.replace("_", ".") in refused.value.message
        assert "streams.orders.nested" in (refused.value.hint or "")


def test_an_undeclared_field_must_not_be_such_a_column_either() -> None:
    with pytest.raises(ConfigurationError, match=r"address\.city and address_city"):
        columns([{"id": 1, "address": {"city": "Berlin"}, "address_city": "Bonn"}])


_NAMES = st.sampled_from("abc")
_LEAVES = st.sampled_from([{"type": "string"}, {"type": "object"}, {"type": "array"}])
_SCHEMAS = st.recursive(
    _LEAVES,
    lambda inner: st.builds(
        lambda properties: {"type": ["object", "null"], "properties": properties},
        st.dictionaries(_NAMES, inner, max_size=3),
    ),
    max_leaves=8,
)
_VALUES = st.recursive(
    st.none() | st.integers(0, 3) | st.sampled_from(["", "x"]) | st.lists(st.integers(0, 1)),
    lambda inner: st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=8,
)


def _pruned(value: Any) -> Any:
    """Remove what has no information: nulls in objects, and objects that contain nothing else."""
    if not isinstance(value, dict):
        return value
    found = {name: _pruned(inner) for name, inner in value.items()}
    return {name: inner for name, inner in found.items() if inner is not None} or None


def _joined(column: str, schema: Any, cells: dict[str, Any]) -> Any:
    """Return the value that columns represent."""
    own = cells.get(column)
    properties = schema.get("properties")
    if not properties or (own is not None and not isinstance(own, dict)):
        return own
    inside = {
        name: _joined(f"{column}_{name}", property_, cells)
        for name, property_ in properties.items()
    }
    return {**(own or {}), **inside}


@given(st.dictionaries(st.sampled_from("pq"), _SCHEMAS), st.data())
def test_no_value_is_lost(properties: dict[str, Any], data: st.DataObject) -> None:
    """A record can be restored from its columns, except for empty objects."""
    record = {name: data.draw(_VALUES) for name in properties}
    nesting = Nesting("orders", {"properties": properties}, ())
    (cells,) = nesting.flatten([record])
    reported = {
        name: _joined(name, property_, dict(cells)) for name, property_ in properties.items()
    }
    assert _pruned(reported) == _pruned(record)
    assert json.dumps(cells)
