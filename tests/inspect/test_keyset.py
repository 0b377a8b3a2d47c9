"""The order of pages, cursors, and the widths of buckets: without a lake."""

from __future__ import annotations

import base64
import json
import math
import re
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chronolake.errors import ValueRefusedError
from chronolake.inspect.activity import choose_buckets
from chronolake.inspect.diff import Fingerprints
from chronolake.inspect.keyset import FirstRows, Order, decode_cursor, encode_cursor, to_comparable
from chronolake.inspect.scan import FILE, ROW
from chronolake.types import TMAX_MICROS, TMIN_MICROS, TableName
from support.inspect.layout import column
from support.inspect.versions import to_comparable as in_python

ORDERS = TableName("shop", "orders")
_KINDS: dict[str, st.SearchStrategy[Any]] = {
    "BOOLEAN": st.booleans(),
    "INT": st.integers(-(2**31), 2**31 - 1),
    "LONG": st.integers(-(2**63), 2**63 - 1),
    "DOUBLE": st.floats(),
    "FLOAT": st.floats(width=32),
    "DECIMAL(38;10)": st.decimals(-(10**27), 10**27, places=10),
    "STRING": st.text(max_size=5),
    "BINARY": st.binary(max_size=5),
}


def keyed(kind: str, values: list[Any]) -> tuple[Order, pa.Table]:
    key_column = column(f"k*:{kind}")
    numbers = list(range(len(values)))
    rows = pa.table(
        {"k": pa.array(values, key_column.type.arrow), FILE: [7] * len(values), ROW: numbers},
        schema=pa.schema([("k", key_column.type.arrow), (FILE, pa.int64()), (ROW, pa.int64())]),
    )
    order = Order(ORDERS, (key_column,))
    return order, order.of(rows)


@given(st.data())
@pytest.mark.parametrize("kind", _KINDS)
def test_rows_are_ordered_as_their_type_is_and_each_cursor_divides_them(
    kind: str, data: st.DataObject
) -> None:
    values = data.draw(st.lists(st.none() | _KINDS[kind], max_size=12))
    order, keys = keyed(kind, values)

    found = order.indices(keys).to_pylist()

    assert found == sorted(range(len(values)), key=lambda row: (in_python(values[row]), row))
    for place, row in enumerate(found):
        text = encode_cursor(order, order.position(keys, row))
        assert re.fullmatch(r"[A-Za-z0-9_-]+", text)
        after = order.are_after(keys, decode_cursor(order, text))
        assert {number for number in range(len(values)) if after[number]} == set(found[place + 1 :])


@given(st.lists(st.none() | st.integers(0, 9), max_size=40), st.integers(1, 5), st.integers(1, 9))
def test_the_smallest_rows_are_kept_in_any_order(
    values: list[int | None], count: int, size: int
) -> None:
    order, keys = keyed("INT", values)
    smallest = FirstRows(order, count)

    for start in range(0, len(values), size):
        smallest.add(keys.slice(start, size))

    found = [] if smallest.keys is None else smallest.keys[ROW].to_pylist()
    assert (
        found == sorted(range(len(values)), key=lambda row: (in_python(values[row]), row))[:count]
    )


@pytest.mark.parametrize(
    "content",
    [
        [],
        [None],
        ["1", 7, 0],
        [1.5, 7, 0],
        [True, 7, 0],
        [2**31, 7, 0],
        [-(2**31) - 1, 7, 0],
        [10**400, 7, 0],
        [1, 7],
        [1, 7, 0, 0],
        [[1], 7, 0],
        [{"a": 1}, 7, 0],
        {"k": 1},
        "text",
        None,
    ],
)
def test_an_invalid_cursor_is_refused(content: Any) -> None:
    order = Order(ORDERS, (column("k*:INT"),))
    value = [order.fingerprint, *content] if isinstance(content, list) else content
    text = base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    with pytest.raises(ValueRefusedError, match="cursor") as refused:
        decode_cursor(order, text)
    assert refused.value.table == "shop.orders"


@pytest.mark.parametrize(
    "text",
    ["", "é", "AAAA", "====", "W10", "W10=", "[]", "a b", "x" * 2_000_000, "W1tbW1tb" * 9_999],
)
def test_a_text_that_is_not_a_cursor_is_refused(text: str) -> None:
    with pytest.raises(ValueRefusedError, match="cursor"):
        decode_cursor(Order(ORDERS, (column("k*:STRING"),)), text)


def test_cursors_of_other_tables_and_keys_are_refused() -> None:
    given_out = encode_cursor(Order(ORDERS, (column("k*:INT"),)), (1, 2, 3))

    for other in (
        Order(TableName("shop", "other"), (column("k*:INT"),)),
        Order(ORDERS, (column("j*:INT"),)),
        Order(ORDERS, (column("k*:LONG"),)),
        Order(ORDERS, (column("k*:INT"),), by_place=False),
    ):
        with pytest.raises(ValueRefusedError, match="cursor"):
            decode_cursor(other, given_out)


@pytest.mark.parametrize("bad", ["1e9999999", "NaN", "x", "1.00000000001"])
def test_an_invalid_decimal_in_a_cursor_is_refused(bad: str) -> None:
    order = Order(ORDERS, (column("k*:DECIMAL(38;10)"),))
    reported = json.dumps([order.fingerprint, bad, 1, 2]).encode()

    with pytest.raises(ValueRefusedError, match="cursor"):
        decode_cursor(order, base64.urlsafe_b64encode(reported).decode())


# --------------------------------------------------------------------------- fingerprints


_TOLD: list[Any] = [
    ("BOOLEAN", [True, False, None]),
    ("LONG", [0, 1, -1, 2**63 - 1, None]),
    ("DOUBLE", [0.0, 1.0, -1.0, math.inf, math.nan, None]),
    ("DECIMAL(12;3)", [Decimal(0), Decimal("0.001"), Decimal("-0.001"), None]),
    ("STRING", ["", "a", "b", "null", "é", "\0", None]),
    ("BINARY", [b"", b"a", b"\0", b"\xff", None]),
]


@pytest.mark.parametrize(("kind", "values"), _TOLD)
def test_fingerprints_differ_where_values_do(kind: str, values: list[Any]) -> None:
    marks = Fingerprints(b"0123456789abcdef")
    array = pa.chunked_array([pa.array(values, column(f"v:{kind}").type.arrow)])

    assert len(set(marks.of([array]).to_pylist())) == len(values)
    assert marks.of([array]).equals(marks.of([array]))
    assert marks.of([array]).to_pylist() != marks.of([array, array]).to_pylist()
    assert not marks.of([array]).equals(Fingerprints(bytes(16)).of([array]))


def test_fingerprints_distinguish_columns_but_not_both_zeros() -> None:
    marks = Fingerprints(b"0123456789abcdef")
    one, other = pa.chunked_array([["x", "y"]]), pa.chunked_array([["y", "x"]])
    first, second = marks.of([one, other]).to_pylist()
    assert first != second

    zeros = marks.of([pa.chunked_array([[0.0, -0.0, math.nan, -math.nan]])]).to_pylist()
    assert zeros[0] == zeros[1]
    assert zeros[2] == zeros[3]


@given(st.lists(st.tuples(st.text(), st.none() | st.integers(-9, 9)), min_size=2, max_size=30))
def test_fingerprints_are_equal_exactly_where_rows_are(rows: list[tuple[str, int | None]]) -> None:
    columns = [pa.chunked_array([[row[0] for row in rows]], pa.string())]
    columns.append(pa.chunked_array([[row[1] for row in rows]], pa.int64()))
    marks = Fingerprints(b"0123456789abcdef").of(columns).to_pylist()

    assert len(set(marks)) == len(set(rows))
    assert all(
        (marks[0] == mark) == (rows[0] == row) for mark, row in zip(marks, rows, strict=True)
    )


def test_floats_of_four_bytes_keep_their_order() -> None:
    numbers = [-math.inf, -1.5, -1e-40, 0.0, 1e-40, 0.1, math.inf, math.nan]
    whole = to_comparable(pa.chunked_array([pa.array(numbers, pa.float32())])).to_pylist()

    assert whole == sorted(whole)
    assert len(set(whole)) == len(whole)


# --------------------------------------------------------------------------- buckets


@given(
    st.integers(TMIN_MICROS, TMAX_MICROS) | st.integers(-9, 9),
    st.integers(0, TMAX_MICROS) | st.integers(0, 9),
    st.integers(1, 500) | st.integers(1, 3),
)
@example(-5, 10, 1)
def test_buckets_are_never_more_than_wanted_and_not_far_fewer(
    first: int, span: int, most: int
) -> None:
    last = min(first + span, TMAX_MICROS)
    begin, width = choose_buckets(first, last, most)

    assert begin <= first
    assert 1 <= (last - begin) // width + 1 <= most
    # The next readable width is at most four times as wide, and its buckets have other bounds.
    assert width <= max(1, 4 * (last - first) // max(1, most - 2) + 4) or most <= 3


def test_buckets_of_one_instant_are_one() -> None:
    assert choose_buckets(5, 5, 120) == (5, 1)
    assert choose_buckets(-5, -5, 1) == (-5, 1)


def test_widths_are_readable() -> None:
    hour = 3_600_000_000
    assert choose_buckets(hour, 5 * 24 * hour, 119) == (0, 2 * hour)
    assert choose_buckets(0, 100 * hour - 1, 100) == (0, hour)
    widths = [choose_buckets(0, 10**power, 120)[1] for power in range(18)]
    assert all(width <= other for width, other in pairwise(widths))
