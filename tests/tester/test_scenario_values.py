"""Values: the texts of cells, and the values that a table stores for them."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronolake.tester import values
from chronolake.tester.definition import ColumnSpec
from chronolake.tester.values import cast, cell_text, java_double, parse_value, text_of
from chronolake.types import LAST_MICROS, TMAX_MICROS, TMAX_TEXT, TMIN_MICROS, TMIN_TEXT, Kind


def column(kind: Kind, precision: int | None = None, scale: int | None = None) -> ColumnSpec:
    return ColumnSpec("c", kind, precision, scale)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (850.50, "850.5"),
        (2300.00, "2300.0"),
        (12345.123456789012345, "12345.123456789011"),
        (12345678901234567890123.12345, "1.2345678901234568E22"),
        (1e7, "1.0E7"),
        (9999999.0, "9999999.0"),
        (0.001, "0.001"),
        (0.00099, "9.9E-4"),
        (0.5, "0.5"),
        (-0.0, "-0.0"),
        (-2.2250738585072014e-308, "-2.2250738585072014E-308"),
        (120.0, "120.0"),
    ],
)
def test_fractions_are_printed_as_java_prints_them(number, text):
    assert java_double(number) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_printed_fractions_read_back_as_the_same_double(number):
    assert float(java_double(number)) == number


def test_json_values_become_the_texts_that_the_tester_writes():
    assert [cell_text(v) for v in (None, True, False, 200, "0200", 1.50, {"a": [1, None]})] == [
        None,
        "true",
        "false",
        "200",
        "0200",
        "1.5",
        '{"a":[1,null]}',
    ]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Kind.BOOLEAN, "true", True),
        (Kind.SHORT, "-32768", -32768),
        (Kind.LONG, "9223372036854775807", 2**63 - 1),
        (Kind.FLOAT, "10.12", 10.119999885559082),
        (Kind.FLOAT, "3.4028237E+38", 3.4028234663852886e38),
        (Kind.FLOAT, "Infinity", float("inf")),
        (Kind.DOUBLE, "200", 200.0),
        (Kind.NAIVE_DATE, "1970-01-02", 1),
        (Kind.NAIVE_DATE, "0000-01-01", TMIN_MICROS // 86_400_000_000),
        (Kind.NAIVE_TIME, "15:00", "15:00:00"),
        (Kind.NAIVE_TIME, "23:59:59.123456", "23:59:59.123456"),
        (Kind.NAIVE_TIME, "10:15:30.123456789", "10:15:30.123456"),
        (Kind.NAIVE_TIME, "10:20:00.500", "10:20:00.5"),
        (Kind.NAIVE_TIME, "10:20:00.0000001", "10:20:00"),
        (Kind.UTC_DATETIME, TMAX_TEXT, TMAX_MICROS),
        (Kind.UTC_DATETIME, TMIN_TEXT, TMIN_MICROS),
        (Kind.UTC_DATETIME, "0000-01-01T00:00:00Z", TMIN_MICROS),
        (Kind.UTC_DATETIME, "9999-12-31T23:59:59.999999999Z", LAST_MICROS),
        (Kind.UTC_DATETIME, "1969-12-31T23:59:59.999999999Z", -1),
        (Kind.UTC_DATETIME, "2025-08-19T12:00:05.123", 1755604805123000),
        (Kind.UTC_DATETIME, "1970-01-01T01:00:00+01:00", 0),
        (Kind.BINARY, "3q2+7w==", b"\xde\xad\xbe\xef"),
        (Kind.BINARY, "[B@7d4991ad", b"[B@7d4991ad"),
        (Kind.STRING, "", ""),
        (Kind.INT, "", None),
    ],
)
def test_cells_become_the_values_that_tables_keep(kind, text, value):
    assert parse_value(text, column(kind)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12345.123456789050", "12345.1234567891"),
        ("1.2345678901234568E22", "12345678901234568000000"),
        ("-0.00000000005", "-0.0000000001"),
        ("200", "200"),
    ],
)
def test_decimals_are_rounded_half_up_to_their_scale(text, value):
    assert parse_value(text, column(Kind.DECIMAL, 38, 10)) == Decimal(value)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (column(Kind.DECIMAL, 6, 3), "1000"),
        (column(Kind.DECIMAL, 6, 3), "999.9996"),
        (column(Kind.SHORT), "32768"),
        (column(Kind.INT), "1.5"),
        (column(Kind.BOOLEAN), "1"),
        (column(Kind.UTC_DATETIME), "yesterday"),
        (column(Kind.NAIVE_DATE), "2023-02-30"),
        (column(Kind.NAIVE_TIME), "24:00:00"),
        (column(Kind.DECIMAL, 6, 3), "NaN"),
        (column(Kind.DECIMAL, 38, 2), "1E99"),
        (column(Kind.DECIMAL, 38, 2), "1E999999"),
        (column(Kind.FLOAT), "1E39"),
        (column(Kind.DOUBLE), "1E999"),
    ],
)
def test_what_does_not_fit_a_column_is_refused_without_naming_the_value(spec, text):
    with pytest.raises(ValueError, match=r".+") as caught:
        parse_value(text, spec)
    assert text not in str(caught.value)


@given(st.integers(min_value=TMIN_MICROS * 1000, max_value=LAST_MICROS * 1000))
def test_times_survive_the_way_through_their_text(nanos):
    assert values.nanos(values.time_text(nanos)) == nanos


def test_times_carry_as_many_digits_as_they_need():
    texts = ["2025-11-21T14:54:16Z", "2025-11-21T14:54:16.100Z", "2025-11-21T14:54:16.000001Z"]
    assert [values.time_text(values.nanos(text)) for text in texts] == texts
    assert values.time_text(values.nanos("0000-02-29T00:00:00Z")) == "0000-02-29T00:00:00Z"


@pytest.mark.parametrize(
    ("value", "old", "new", "after"),
    [
        (1.5, column(Kind.DOUBLE), column(Kind.FLOAT), 1.5),
        (100.45, column(Kind.DOUBLE), column(Kind.FLOAT), 100.44999694824219),
        (7, column(Kind.INT), column(Kind.STRING), "7"),
        (7, column(Kind.INT), column(Kind.DECIMAL, 10, 2), Decimal(7)),
        ("7", column(Kind.STRING), column(Kind.LONG), 7),
        (b"x", column(Kind.BINARY), column(Kind.STRING), b"x".decode()),
        ("<a/>", column(Kind.XML), column(Kind.STRING), "<a/>"),
        (
            Decimal("1234567890123.4567"),
            column(Kind.DECIMAL, 17, 4),
            column(Kind.DECIMAL, 16, 3),
            Decimal("1234567890123.457"),
        ),
        (None, column(Kind.INT), column(Kind.BOOLEAN), None),
        (True, column(Kind.BOOLEAN), column(Kind.INT), 1),
        (1, column(Kind.INT), column(Kind.BOOLEAN), True),
        (2.0, column(Kind.DOUBLE), column(Kind.INT), 2),
        (2, column(Kind.NAIVE_DATE), column(Kind.UTC_DATETIME), 2 * 86_400_000_000),
        (2 * 86_400_000_000, column(Kind.NAIVE_DATETIME), column(Kind.NAIVE_DATE), 2),
        ("", column(Kind.STRING), column(Kind.INT), None),
        (1234, column(Kind.LONG), column(Kind.BINARY), b"1234"),
    ],
)
def test_stored_values_follow_a_change_of_type(value, old, new, after):
    assert cast(value, old, new) == after


@pytest.mark.parametrize(
    ("value", "old", "new"),
    [
        (2.5, column(Kind.DOUBLE), column(Kind.INT)),
        (2, column(Kind.INT), column(Kind.BOOLEAN)),
        (1e99, column(Kind.DOUBLE), column(Kind.DECIMAL, 38, 2)),
        (1e99, column(Kind.DOUBLE), column(Kind.FLOAT)),
        (float("inf"), column(Kind.DOUBLE), column(Kind.LONG)),
        (1, column(Kind.UTC_DATETIME), column(Kind.NAIVE_DATE)),
        (1, column(Kind.LONG), column(Kind.UTC_DATETIME)),
        ("10:15:30", column(Kind.NAIVE_TIME), column(Kind.NAIVE_DATETIME)),
        (b"1", column(Kind.BINARY), column(Kind.INT)),
    ],
)
def test_a_value_that_would_not_round_trip_does_not_fit(value, old, new):
    with pytest.raises(ValueError, match=r".+"):
        cast(value, old, new)


def test_a_change_that_would_lose_integer_digits_is_refused():
    with pytest.raises(ValueError, match="more digits"):
        cast(Decimal("123.4"), column(Kind.DECIMAL, 4, 1), column(Kind.DECIMAL, 3, 1))


def test_single_precision_numbers_print_their_own_digits():
    assert text_of(10.119999885559082, Kind.FLOAT) == "10.12"
