"""Completions of keys."""

from __future__ import annotations

from typing import Any

import pytest

from chronolake.config import LakeConfig
from chronolake.errors import TableNotFoundError, UnknownColumnError, ValueRefusedError
from chronolake.formatting import Cell
from chronolake.inspect.keyset import complete_key
from chronolake.types import TableName
from support.inspect.layout import HISTORY, TMAX, Make

ORDERS = TableName("shop", "orders")


@pytest.mark.parametrize(
    ("kind", "stored", "typed", "found"),
    [
        ("STRING", ["b", "ab", "a", "a", "ä", None, "A"], "a", ["a", "ab"]),
        ("STRING", ["b", "a", None, ""], "", ["", "a", "b"]),
        ("STRING", ["100%", "100_", "1000", "%"], "100%", ["100%"]),
        ("STRING", ["a'b", 'a"b', "a"], "a'", ["a'b"]),
        ("STRING", ["🦆", "🦆x", "\U0010ffff", "\U0010ffffy"], "\U0010ffff",
         ["\U0010ffff", "\U0010ffffy"]),
        ("STRING", ["\ud7ff", "\ud7ffa", "\ue000"], "\ud7ff", ["\ud7ff", "\ud7ffa"]),
        ("STRING", [f"{'x' * 40}1", f"{'x' * 40}2", "x"], "x" * 40,
         [f"{'x' * 40}1", f"{'x' * 40}2"]),
        ("JSON", ['{"a": 1}', "[]"], "{", ['{"a": 1}']),
        ("LONG", [12, 1, 120, 21, -12, 2**62, None], "12", [12, 120]),
        ("LONG", [-12, -1, 1], "-1", [-12, -1]),
        ("SHORT", [3, 1, 2], "", [1, 2, 3]),
        ("BOOLEAN", [True, False, None], "t", [True]),
        ("BOOLEAN", [True, False, None], "", [False, True]),
        ("DECIMAL(8;2)", ["1.50", "15.00", "-1.50", "0.15"], "1.", ["1.50"]),
        ("DECIMAL(38;10)", ["0.0000000001", "1"], "0.00000", ["0.0000000001"]),
        ("DOUBLE", [1.5, 0.0, -0.0, float("nan"), 1e300, None], "", [0.0, 1.5, 1e300, "NaN"]),
        ("DOUBLE", [1.5, 15.0, float("nan")], "1.", [1.5]),
        ("FLOAT", [0.1, 0.15, 1.0], "0.1", [0.1, 0.15]),
        ("NAIVE_DATE", ["2024-02-29", "2024-01-01", "0001-01-01"], "2024-02", ["2024-02-29"]),
        ("UTC_DATETIME", ["2024-02-29T10:00:00Z", TMAX, "0001-01-01T00:00:00Z"], "2024-02-29T1",
         ["2024-02-29T10:00:00Z"]),
        ("UTC_DATETIME", ["2024-02-29T10:00:00Z", TMAX], "9999", [TMAX]),
        ("NAIVE_DATETIME", ["2024-02-29T10:00:00.500"], "2024-02-29T10:00:00.5",
         ["2024-02-29T10:00:00.500"]),
        ("BINARY", [b"\x00\x01\x02", b"\xff", b"\x00"], "AA", [b"\x00", b"\x00\x01\x02"]),
        ("STRING", [], "a", []),
    ],
)  # fmt: skip
def test_values_with_the_prefix_are_sorted_and_distinct(
    config: LakeConfig, make: Make, kind: str, stored: list[Any], typed: str, found: list[Cell]
) -> None:
    half = len(stored) // 2
    appends = [[(value, 1) for value in part] for part in (stored, stored[:half])]
    make(ORDERS, [f"k*:{kind}", "n:INT"], *(part for part in appends if part))

    values = complete_key(config, ORDERS, {"k": typed} if typed else {}, column="k")

    expected = ["AA==", "AAEC"] if kind == "BINARY" else found
    assert values == expected
    assert [type(value) for value in values] == [type(value) for value in expected]


def test_a_long_list_is_cut_and_the_first_ones_stay(config: LakeConfig, make: Make) -> None:
    numbers = [number * 7919 % 5003 for number in range(5003)]
    make(ORDERS, ["k*:INT"], *([(number,) for number in numbers[start::4]] for start in range(4)))

    assert complete_key(config, ORDERS, {}, column="k", limit=3) == [0, 1, 2]
    found = complete_key(config, ORDERS, {"k": "49"}, column="k", limit=50)
    assert found == sorted(n for n in range(5003) if str(n).startswith("49"))[:50]


def test_the_other_columns_of_the_key_are_given(config: LakeConfig, make: Make) -> None:
    odd = "a.b \"c' d"
    rows = [(1, "x", 0), (1, "y", 0), (2, "z", 0), (None, "n", 0), (1, None, 0)]
    make(ORDERS, ["a*:INT", f"{odd}*:STRING", "v:INT"], rows)

    assert complete_key(config, ORDERS, {"a": "1"}, column=odd) == ["x", "y"]
    assert complete_key(config, ORDERS, {"a": None}, column=odd) == ["n"]
    assert complete_key(config, ORDERS, {"a": "1", odd: "y"}, column=odd) == ["y"]
    assert complete_key(config, ORDERS, {odd: "z"}, column="a") == [2]
    assert complete_key(config, ORDERS, {"a": "3"}, column=odd) == []


def test_a_time_of_day_among_the_other_columns_may_be_spelled_in_any_way(
    config: LakeConfig, make: Make
) -> None:
    make(ORDERS, ["at*:NAIVE_TIME", "b*:INT"], [("09:05:00", 1), ("09:05:01", 2)])

    assert complete_key(config, ORDERS, {"at": "9:05"}, column="b") == [1]


def test_deleted_records_are_found_too(config: LakeConfig, make: Make) -> None:
    gone = (1, "2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z", False)
    make(ORDERS, ["id*:INT", *HISTORY], [gone], [(2, "2024-01-01T00:00:00Z", TMAX, True)])

    assert complete_key(config, ORDERS, {}, column="id") == [1, 2]


def test_a_column_outside_the_key_is_refused(config: LakeConfig, make: Make) -> None:
    make(ORDERS, ["id*:INT", "v:INT", *HISTORY])

    for column in ("v", "_fivetran_start", "ID", "id; DROP TABLE x"):
        with pytest.raises(UnknownColumnError) as refused:
            complete_key(config, ORDERS, {}, column=column)
        assert refused.value.column == column
        with pytest.raises(UnknownColumnError):
            complete_key(config, ORDERS, {column: "1"}, column="id")
    with pytest.raises(TableNotFoundError):
        complete_key(config, TableName("shop", "Orders"), {}, column="id")
    assert complete_key(config, ORDERS, {"id": "no number"}, column="id") == []


def test_an_invalid_value_of_another_column_is_refused(config: LakeConfig, make: Make) -> None:
    make(ORDERS, ["a*:INT", "b*:INT"])

    with pytest.raises(ValueRefusedError) as refused:
        complete_key(config, ORDERS, {"a": "one"}, column="b")
    assert refused.value.column == "a"
    assert "one" not in refused.value.message


def test_any_column_of_a_table_of_another_engine_can_be_completed(
    config: LakeConfig, make: Make
) -> None:
    make(ORDERS, ["a:INT", "b:STRING"], [(1, "x")], declared=False)

    assert complete_key(config, ORDERS, {"a": "1"}, column="b") == ["x"]
