"""Keys of every type: loads and changes have the same rows as the lake's table."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from chronolake.config import MysqlTarget, PostgresTarget
from chronolake.errors import TargetError
from chronolake.target.database import Relation, TargetSession
from chronolake.target.limits import TargetColumn, target_columns
from chronolake.target.selection import database_of
from chronolake.types import Column, ColumnType, Kind, TableName
from support.target.sessions import change_rows, load_rows
from support.target.targets import Target

_TABLE = TableName("sales", "keyed")
_TIMES = ColumnType(Kind.NAIVE_DATETIME), ColumnType(Kind.UTC_DATETIME)
#: Two keys of each type.
_KEYS: dict[ColumnType, list[Any]] = {
    ColumnType(Kind.BOOLEAN): [False, True],
    ColumnType(Kind.SHORT): [-(2**15), 2**15 - 1],
    ColumnType(Kind.INT): [-(2**31), 2**31 - 1],
    ColumnType(Kind.LONG): [-(2**63), 2**63 - 1],
    ColumnType(Kind.FLOAT): [-1.5, 2.25],
    ColumnType(Kind.DOUBLE): [-0.1, 1e300],
    ColumnType(Kind.DECIMAL, 38, 10): [1, 2],
    ColumnType(Kind.NAIVE_DATE): [0, 20_000],
    _TIMES[0]: [-1, 1_767_225_600_000_001],
    _TIMES[1]: [-1, 1_767_225_600_000_001],
    ColumnType(Kind.BINARY): [b"", b"\0\\\xff"],
    ColumnType(Kind.STRING): ["a", "A "],
    ColumnType(Kind.XML): ["<a/>", "<b/>"],
    ColumnType(Kind.JSON): ['{"a": 1}', '{"a":1}'],
    ColumnType(Kind.NAIVE_TIME): ["00:00:00", "23:59:59.999999"],
}
_SINGLE = [[column_type] for column_type in _KEYS]
_COMPOSITE = [
    [ColumnType(Kind.STRING), ColumnType(Kind.LONG)],
    [ColumnType(Kind.BINARY), ColumnType(Kind.STRING), ColumnType(Kind.UTC_DATETIME)],
    list(_KEYS),
]


@pytest.mark.parametrize(
    "types", [*_SINGLE, *_COMPOSITE], ids=lambda types: "+".join(item.kind.value for item in types)
)
def test_keys_of_a_type_are_loaded_and_changed(target: Target, types: list[ColumnType]) -> None:
    with database_of("reporting", target.config).open(_relation(target)) as session:
        columns = _columns(session, types)
        base = load_rows(session, columns, _rows(types, ["first", "second"]))
        assert _texts(target) == ["first", "second"]
        change_rows(session, base, "UD", _rows(types, ["changed", "second"]))
    assert _texts(target) == ["changed"]


@pytest.mark.parametrize("config", ["postgres"], indirect=True)
def test_key_that_no_index_can_store_is_named(target: Target) -> None:
    """PostgreSQL compresses keys: whether one fits depends on its characters."""
    types = [ColumnType(Kind.LONG), ColumnType(Kind.STRING)]
    letters = random.Random(1)
    long = "".join(chr(letters.randrange(0x4E00, 0x9FFF)) for _ in range(3_000))
    with database_of("reporting", target.config).open(_relation(target)) as session:
        columns = _columns(session, types)
        fits = _batch([pa.array([1, 2]), pa.array(["a" * 3_000, "b"])], ["first", "second"])
        base = load_rows(session, columns, fits)
        rows = _batch([pa.array([3]), pa.array([long])], ["third"])
        with pytest.raises(TargetError, match="A key has a value of 9,000 bytes") as caught:
            load_rows(session, columns, rows, base)
        assert (caught.value.table, caught.value.column) == (str(_TABLE), "k1")
        with pytest.raises(TargetError, match="A key has a value of 9,000 bytes") as caught:
            change_rows(session, base, "I", rows)
        assert caught.value.column == "k1"
    assert _texts(target) == ["first", "second"]


def _relation(target: Target) -> Relation:
    return Relation("reporting" if isinstance(target.config, MysqlTarget) else "sales", "keyed")


def _columns(session: TargetSession, types: list[ColumnType]) -> tuple[TargetColumn, ...]:
    keys = [Column(f"k{n}", item, primary_key=True) for n, item in enumerate(types)]
    columns = [*keys, Column("v", ColumnType(Kind.STRING))]
    numbered = [(column, number) for number, column in enumerate(columns)]
    return target_columns(session.limits, _TABLE, numbered, {column.name for column in keys})


def _rows(types: list[ColumnType], texts: list[str]) -> pa.RecordBatch:
    return _batch([_array(item) for item in types], texts)


def _array(column_type: ColumnType) -> pa.Array:
    values = _KEYS[column_type]
    if column_type in _TIMES:
        return pa.array(values, pa.int64()).cast(column_type.arrow)
    if column_type.kind is Kind.NAIVE_DATE:
        return pa.array(values, pa.int32()).cast(column_type.arrow)
    return pa.array(values, column_type.arrow)


def _batch(keys: list[pa.Array], texts: list[str]) -> pa.RecordBatch:
    names = [f"k{n}" for n in range(len(keys))]
    return pa.RecordBatch.from_arrays([*keys, pa.array(texts)], [*names, "v"])


def _texts(target: Target) -> list[str]:
    table = "sales.keyed" if isinstance(target.config, PostgresTarget) else "keyed"
    return sorted(text for (text,) in target.run(f"SELECT v FROM {table}"))
