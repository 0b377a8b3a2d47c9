"""A schema with other columns: kept columns keep their field ids, new ones get unused ids."""

from __future__ import annotations

from typing import Any

from chronolake.iceberg.schema_update import evolve_fields, properties_of_columns
from chronolake.types import Column, ColumnType, Kind

_STORED = [
    {"id": 1, "name": "id", "required": False, "type": "long"},
    {"id": 4, "name": "a.b", "required": False, "type": "decimal(9, 2)"},
    {"id": 2, "name": "text", "required": False, "type": "string", "doc": "kept"},
    {"id": 3, "name": "number", "required": False, "type": "int"},
]


def _column(name: str, kind: Kind, *size: int) -> Column:
    return Column(name, ColumnType(kind, *size))


_COLUMNS = [
    _column("id", Kind.LONG),
    _column("a.b", Kind.DECIMAL, 9, 2),
    _column("text", Kind.JSON),
    _column("number", Kind.SHORT),
]


def _evolve(columns: list[Column], *replaced: str) -> list[dict[str, Any]]:
    return evolve_fields(_STORED, columns, replaced, last_id=7)


def test_equal_columns_change_nothing() -> None:
    assert _evolve(_COLUMNS) == _STORED


def test_new_columns_get_ids_that_the_table_has_never_used() -> None:
    added = [_column("first", Kind.BINARY), _column("second", Kind.UTC_DATETIME)]
    assert _evolve([*_COLUMNS, *added]) == [
        *_STORED,
        {"id": 8, "name": "first", "required": False, "type": "binary"},
        {"id": 9, "name": "second", "required": False, "type": "timestamptz"},
    ]


def test_dropped_columns_leave_the_others_as_they_are() -> None:
    assert _evolve(_COLUMNS[1:3]) == _STORED[1:3]


def test_a_wider_type_keeps_the_field() -> None:
    columns = [*_COLUMNS[:1], _column("a.b", Kind.DECIMAL, 11, 2), _column("number", Kind.LONG)]
    assert _evolve(columns) == [
        _STORED[0],
        {**_STORED[1], "type": "decimal(11,2)"},
        {**_STORED[3], "type": "long"},
    ]


def test_a_replaced_column_gets_a_new_field_at_its_place() -> None:
    columns = [_COLUMNS[0], _column("a.b", Kind.STRING), *_COLUMNS[2:]]
    assert _evolve(columns, "a.b") == [
        _STORED[0],
        {"id": 8, "name": "a.b", "required": False, "type": "string"},
        *_STORED[2:],
    ]


def test_properties_of_a_column_are_recognized_by_its_whole_name() -> None:
    keys = [
        "write.metadata.metrics.column.a.b",
        "write.metadata.metrics.column.a",
        "write.parquet.bloom-filter-enabled.column.text",
        "write.metadata.metrics.default",
    ]
    assert properties_of_columns(keys, {"a", "text"}) == keys[1:3]
