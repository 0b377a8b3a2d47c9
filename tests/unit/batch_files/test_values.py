"""The value of each text of each type, read alone and among others of its column."""

from __future__ import annotations

import base64
import math
from collections import Counter
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronolake.errors import ValueRefusedError
from chronolake.parsing.columns import MOVED, NOT_BASE64, ROUNDED, CellRefusedError, parse_texts
from chronolake.types import LAST_MICROS, TMAX_MICROS, TMIN_MICROS, ColumnType, Kind
from support.batch_columns import Decode, values

D15 = ColumnType(Kind.DECIMAL, 38, 15)
D10 = ColumnType(Kind.DECIMAL, 38, 10)
D18_2 = ColumnType(Kind.DECIMAL, 18, 2)
D37 = ColumnType(Kind.DECIMAL, 38, 37)
FIRST = (date(1, 1, 1) - date(1970, 1, 1)).days
LAST = (date(9999, 12, 31) - date(1970, 1, 1)).days


def micros(text: str) -> int:
    return int(np.datetime64(text, "us").astype(np.int64))


ACCEPTED: list[tuple[Kind | ColumnType, str, Any]] = [
    (Kind.BOOLEAN, "true", True),
    (Kind.BOOLEAN, "FALSE", False),
    (Kind.BOOLEAN, "True", True),
    (Kind.SHORT, "-32768", -32768),
    (Kind.SHORT, "32767", 32767),
    (Kind.INT, "-2147483648", -(2**31)),
    (Kind.INT, "2147483647", 2**31 - 1),
    (Kind.INT, "+007", 7),
    (Kind.LONG, "-9223372036854775808", -(2**63)),
    (Kind.LONG, "9223372036854775807", 2**63 - 1),
    (Kind.FLOAT, "200", 200.0),
    (Kind.FLOAT, "10.12", float(np.float32("10.12"))),
    (Kind.FLOAT, "3.4028235E+38", float(np.finfo(np.float32).max)),
    (Kind.FLOAT, "3.4028237E+38", float(np.finfo(np.float32).max)),
    (Kind.FLOAT, "-3.4028237E+38", -float(np.finfo(np.float32).max)),
    # As a double it would be halfway between two floats: it must be rounded only once.
    (Kind.FLOAT, "1.00000017881393432617187499", float(np.float32(1.0000001))),
    (Kind.FLOAT, "1e-60", 0.0),
    (Kind.FLOAT, "Infinity", math.inf),
    (Kind.DOUBLE, "-2.2250738585072014E-308", -2.2250738585072014e-308),
    (Kind.DOUBLE, "200", 200.0),
    (Kind.DOUBLE, "1.7976931348623157E308", 1.7976931348623157e308),
    (Kind.DOUBLE, "-Infinity", -math.inf),
    (Kind.DOUBLE, "1e-400", 0.0),
    (D15, "12345678901234567890123.12345", Decimal("12345678901234567890123.12345")),
    (D15, "1.2345678901234568E22", Decimal(12345678901234568000000)),
    (D15, "200", Decimal(200)),
    (D15, "850.5", Decimal("850.5")),
    (D15, "-0.000000000000001", Decimal("-1E-15")),
    (D15, "99999999999999999999999.999999999999999", Decimal("9" * 23 + "." + "9" * 15)),
    (D10, "12345.123456789011", Decimal("12345.1234567890")),
    (D10, "0.00000000005", Decimal("1E-10")),
    (D10, "-0.00000000005", Decimal("-1E-10")),
    (D10, "0.000000000049999999999999999999", Decimal(0)),
    (D10, "1E-400", Decimal(0)),
    (D10, "0E999999", Decimal(0)),
    (D10, "9" * 28, Decimal("9" * 28)),
    (D10, "-" + "9" * 28 + ".9999999999", Decimal("-" + "9" * 28 + ".9999999999")),
    (D18_2, "2300.0", Decimal(2300)),
    (D18_2, "0" * 50 + "1.005", Decimal("1.01")),
    (D18_2, "1.2345E4", Decimal("12345.00")),
    (D37, "9." + "9" * 37, Decimal("9." + "9" * 37)),
    (ColumnType(Kind.DECIMAL, 38, 38), "-0." + "1" * 38, Decimal("-0." + "1" * 38)),
    (ColumnType(Kind.DECIMAL, 38, 0), "-" + "9" * 38, Decimal("-" + "9" * 38)),
    (Kind.NAIVE_DATE, "2007-12-03", (date(2007, 12, 3) - date(1970, 1, 1)).days),
    (Kind.NAIVE_DATE, "0000-01-01", FIRST),
    (Kind.NAIVE_DATE, "0000-02-29", FIRST),
    (Kind.NAIVE_DATE, "0001-01-01", FIRST),
    (Kind.NAIVE_DATE, "9999-12-31", LAST),
    (Kind.NAIVE_DATE, "10000-01-01", LAST),
    (Kind.NAIVE_DATE, "+12345-06-07", LAST),
    (Kind.NAIVE_DATE, "+12344-02-29", LAST),
    (Kind.NAIVE_DATE, "+999999999-12-31", LAST),
    (Kind.NAIVE_DATE, "-0044-03-15", FIRST),
    (Kind.NAIVE_DATE, "-0004-02-29", FIRST),
    (Kind.NAIVE_DATE, "-999999999-01-01", FIRST),
    (Kind.NAIVE_DATE, "+2007-12-03", (date(2007, 12, 3) - date(1970, 1, 1)).days),
    (Kind.NAIVE_DATE, "infinity", LAST),
    (Kind.NAIVE_DATE, "-Infinity", FIRST),
    (Kind.NAIVE_DATETIME, "2007-12-03T10:15:30", micros("2007-12-03T10:15:30")),
    (Kind.NAIVE_DATETIME, "2007-12-03T10:15:30Z", micros("2007-12-03T10:15:30")),
    (Kind.NAIVE_DATETIME, "2007-12-03 10:15:30.5", micros("2007-12-03T10:15:30.5")),
    (Kind.NAIVE_DATETIME, "0000-06-01T10:00:00", TMIN_MICROS),
    (Kind.NAIVE_DATETIME, "9999-12-31T23:59:59.999999999", LAST_MICROS),
    (Kind.NAIVE_DATETIME, "2024-06-15T13:45", micros("2024-06-15T13:45")),
    (Kind.NAIVE_DATETIME, "2024-06-15 13:45Z", micros("2024-06-15T13:45")),
    (Kind.NAIVE_DATETIME, "+12345-06-07T00:00", LAST_MICROS),
    (Kind.NAIVE_DATETIME, "-0044-03-15T10:00:00.5", TMIN_MICROS),
    (Kind.NAIVE_DATETIME, "infinity", LAST_MICROS),
    (Kind.NAIVE_DATETIME, "-infinity", TMIN_MICROS),
    (Kind.UTC_DATETIME, "2007-12-03T10:15:30Z", micros("2007-12-03T10:15:30")),
    (Kind.UTC_DATETIME, "2007-12-03T10:15:30.1Z", micros("2007-12-03T10:15:30.1")),
    (Kind.UTC_DATETIME, "2007-12-03T10:15:30.123Z", micros("2007-12-03T10:15:30.123")),
    (Kind.UTC_DATETIME, "2007-12-03T10:15:30.123456Z", micros("2007-12-03T10:15:30.123456")),
    (Kind.UTC_DATETIME, "2007-12-03T10:15:30.123456789Z", micros("2007-12-03T10:15:30.123456")),
    (Kind.UTC_DATETIME, "1969-12-31T23:59:59.999999999Z", -1),
    (Kind.UTC_DATETIME, "2025-08-19T12:00:05.123", micros("2025-08-19T12:00:05.123")),
    (Kind.UTC_DATETIME, "2024-01-01T10:00:00+02:00", micros("2024-01-01T08:00")),
    (Kind.UTC_DATETIME, "2024-01-01T10:00+02:00", micros("2024-01-01T08:00")),
    (Kind.UTC_DATETIME, "2024-01-01T10:00:00.123456789-0130", micros("2024-01-01T11:30:00.123456")),
    (Kind.UTC_DATETIME, "0000-01-01T00:00:00Z", TMIN_MICROS),
    (Kind.UTC_DATETIME, "0001-01-01T00:00:00+01:00", TMIN_MICROS),
    (Kind.UTC_DATETIME, "9999-12-31T23:59:59.999Z", TMAX_MICROS),
    (Kind.UTC_DATETIME, "9999-12-31T23:59:59.999999999Z", LAST_MICROS),
    (Kind.UTC_DATETIME, "9999-12-31T23:59:59-01:00", LAST_MICROS),
    (Kind.UTC_DATETIME, "10000-01-01T00:30:00+01:00", micros("9999-12-31T23:30")),
    (Kind.UTC_DATETIME, "0000-12-31T23:30:00-01:00", micros("0001-01-01T00:30")),
    (Kind.UTC_DATETIME, "2024-06-15T13:45", micros("2024-06-15T13:45")),
    (Kind.UTC_DATETIME, "2024-06-15T13:45Z", micros("2024-06-15T13:45")),
    (Kind.UTC_DATETIME, "+12345-06-07T00:00:00Z", LAST_MICROS),
    (Kind.UTC_DATETIME, "+012345-06-07T00:00:00.123+02:00", LAST_MICROS),
    (Kind.UTC_DATETIME, "+1000000000-12-31T23:59:59.999999999Z", LAST_MICROS),
    (Kind.UTC_DATETIME, "-0044-03-15T00:00:00Z", TMIN_MICROS),
    (Kind.UTC_DATETIME, "-1000000000-01-01T00:00:00Z", TMIN_MICROS),
    (Kind.UTC_DATETIME, "Infinity", LAST_MICROS),
    (Kind.UTC_DATETIME, "-infinity", TMIN_MICROS),
    (Kind.NAIVE_TIME, "10:15:30", "10:15:30"),
    (Kind.NAIVE_TIME, "15:00", "15:00:00"),
    (Kind.NAIVE_TIME, "23:59:59.123456", "23:59:59.123456"),
    (Kind.NAIVE_TIME, "23:59:59.123456789", "23:59:59.123456"),
    (Kind.NAIVE_TIME, "10:15:30.100", "10:15:30.1"),
    (Kind.NAIVE_TIME, "10:15:30.000", "10:15:30"),
    (Kind.NAIVE_TIME, "10:20:00", "10:20:00"),
    (Kind.NAIVE_TIME, "10:20:00.0000001", "10:20:00"),
    (Kind.BINARY, "AAEC/w==", b"\x00\x01\x02\xff"),
    (Kind.BINARY, "[B@7d4991ad", b"[B@7d4991ad"),
    (Kind.BINARY, "", b""),
    (Kind.STRING, "null", "null"),
    (Kind.STRING, "", ""),
    (Kind.STRING, "0x10", "0x10"),
    (Kind.JSON, '{"a": "it\'s \\\\ \\n"}', '{"a": "it\'s \\\\ \\n"}'),
    (Kind.XML, '<?xml version="1.0"?>\r\n<a>\n</a>', '<?xml version="1.0"?>\r\n<a>\n</a>'),
    *((kind, "", None) for kind in Kind if kind not in ("STRING", "JSON", "XML", "BINARY")),
]

REFUSED: list[tuple[Kind | ColumnType, str]] = [
    (Kind.BOOLEAN, "1"),
    (Kind.BOOLEAN, "yes"),
    (Kind.SHORT, "32768"),
    (Kind.SHORT, "-32769"),
    (Kind.INT, "2147483648"),
    (Kind.INT, "1.0"),
    (Kind.INT, "0x10"),
    (Kind.LONG, "-0X1f"),
    (Kind.LONG, "9223372036854775808"),
    (Kind.LONG, "1_000"),
    (Kind.LONG, "\u0663"),
    (Kind.LONG, "9" * 5000),
    (Kind.FLOAT, "3.5E38"),
    (Kind.FLOAT, "1e400"),
    (Kind.FLOAT, "0x1p3"),
    (Kind.DOUBLE, "1E309"),
    (Kind.DOUBLE, "-1e400"),
    (Kind.DOUBLE, "1,5"),
    (Kind.DOUBLE, "nan(1)"),
    (D15, "123456789012345678901234"),
    (D15, "99999999999999999999999.9999999999999995"),
    (D15, "1E23"),
    (D15, "1E999999999"),
    (D15, "NaN"),
    (D15, "abc"),
    (D10, "1" + "0" * 28),
    (D10, "9" * 39),
    (D18_2, "10000000000000000"),
    (D18_2, "9999999999999999.995"),
    # Both wrap around to small numbers in 128 bits.
    (D37, "12345678901234567890123456"),
    (D10, "34028236692093846346337460743.1768211456"),
    (ColumnType(Kind.DECIMAL, 38, 38), "1"),
    (Kind.NAIVE_DATE, "2024-02-30"),
    (Kind.NAIVE_DATE, "2024-1-1"),
    (Kind.NAIVE_DATE, "24-01-01"),
    (Kind.NAIVE_DATE, "+24-01-01"),
    (Kind.NAIVE_DATE, "-2023-02-29"),
    (Kind.NAIVE_DATE, "+12345-02-29"),
    (Kind.NAIVE_DATE, "9999999999999-01-01"),
    (Kind.NAIVE_DATE, "infinit"),
    (Kind.NAIVE_DATE, "--infinity"),
    (Kind.NAIVE_DATE, "2024-01-01T00:00:00"),
    (Kind.NAIVE_DATETIME, "2024-02-30T00:00:00"),
    (Kind.NAIVE_DATETIME, "2024-01-01T24:00:00"),
    (Kind.NAIVE_DATETIME, "2024-01-01T10:00:00+02:00"),
    (Kind.NAIVE_DATETIME, "2024-01-01T10:00:00123"),
    (Kind.NAIVE_DATETIME, "2024-01-01T10:00:0"),
    (Kind.NAIVE_DATETIME, "+12345-01-01"),
    (Kind.NAIVE_DATETIME, "2024-01-01T10"),
    (Kind.NAIVE_DATETIME, "2024-01-01"),
    (Kind.UTC_DATETIME, "2024-01-01T10:00:0"),
    (Kind.UTC_DATETIME, "+12345-01-01"),
    (Kind.UTC_DATETIME, "+12345-01-01T10"),
    (Kind.UTC_DATETIME, "+12345-13-01T10:00:00Z"),
    (Kind.UTC_DATETIME, "inf"),
    (Kind.UTC_DATETIME, "2024-01-01T10"),
    (Kind.UTC_DATETIME, "2024-01-01"),
    (Kind.UTC_DATETIME, "2024-01-01Z"),
    (Kind.UTC_DATETIME, "2024-01-01T10:00:60Z"),
    (Kind.UTC_DATETIME, "2024-01-01T10:00:00.Z"),
    (Kind.UTC_DATETIME, "2024-01-01T10:00:00+24:00"),
    (Kind.UTC_DATETIME, "yesterday"),
    (Kind.NAIVE_TIME, "24:00:00"),
    (Kind.NAIVE_TIME, "10"),
    (Kind.NAIVE_TIME, "10:15:30Z"),
]


def type_of(kind: Kind | ColumnType) -> ColumnType:
    return kind if isinstance(kind, ColumnType) else ColumnType(kind)


def quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


@pytest.mark.parametrize(("kind", "text", "expected"), ACCEPTED, ids=str)
def test_a_text_is_read_in_a_file(
    decode: Decode, kind: Kind | ColumnType, text: str, expected: Any
) -> None:
    table = decode(f"v,n\n{quoted(text)},1\n", {"v": kind, "n": Kind.INT})
    assert table["v"].type == type_of(kind).arrow
    assert values(table, "v") == [expected]


@pytest.mark.parametrize(("kind", "text", "expected"), ACCEPTED, ids=str)
def test_a_text_is_read_beside_any_other(kind: Kind | ColumnType, text: str, expected: Any) -> None:
    neighbours = [text for other, text, _ in ACCEPTED if other == kind]
    for neighbour in neighbours:
        array = parse_texts(pa.array([neighbour, None, text]), type_of(kind), Counter())
        assert values(pa.table({"v": array}), "v")[2] == expected
        assert array[1].as_py() is None


@pytest.mark.parametrize(("kind", "text"), REFUSED, ids=str)
def test_a_text_is_refused_with_its_place_and_without_its_words(
    decode: Decode, kind: Kind | ColumnType, text: str
) -> None:
    good = next(text for other, text, value in ACCEPTED if other == kind and value is not None)
    rows = f"{quoted(good)},1\n" * 3
    with pytest.raises(ValueRefusedError) as caught:
        decode(f"v,n\n{rows}{quoted(text)},1\n{rows}", {"v": kind, "n": Kind.INT})
    assert caught.value.row == 4
    assert caught.value.column == "v"
    assert len(text) < 3 or text not in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(("kind", "text"), REFUSED, ids=str)
def test_a_text_is_refused_beside_any_other(kind: Kind | ColumnType, text: str) -> None:
    for neighbour in [text for other, text, _ in ACCEPTED if other == kind]:
        with pytest.raises(CellRefusedError) as caught:
            parse_texts(pa.array([None, neighbour, text]), type_of(kind), Counter())
        assert caught.value.index == 2


@given(
    year=st.integers(-20_000, 20_000) | st.integers(-(10**9), 10**9),
    month=st.integers(1, 12),
    day=st.integers(1, 28),
    second=st.integers(0, 86_399),
    spelling=st.sampled_from(["+{:04}", "+{:06}", "{:04}"]),
    kind=st.sampled_from([Kind.NAIVE_DATE, Kind.NAIVE_DATETIME, Kind.UTC_DATETIME]),
)
def test_any_year_is_read_and_moved_into_the_years_1_to_9999(
    year: int, month: int, day: int, second: int, spelling: str, kind: Kind
) -> None:
    signed = f"-{-year:04}" if year < 0 else spelling.format(year)
    clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    # Java omits seconds that are 0.
    clock = clock.removesuffix(":00") if second % 60 == 0 else clock
    text = f"{signed}-{month:02}-{day:02}"
    if kind is not Kind.NAIVE_DATE:
        text += f"T{clock}" + ("Z" if kind is Kind.UTC_DATETIME else "")
    in_range = date(min(max(year, 1), 9999), month, day)
    days = (in_range - date(1970, 1, 1)).days
    exact = days if kind is Kind.NAIVE_DATE else (days * 86_400 + second) * 1_000_000
    first, last = (FIRST, LAST) if kind is Kind.NAIVE_DATE else (TMIN_MICROS, LAST_MICROS)
    expected = first if year < 1 else last if year > 9999 else exact
    tally: Counter[str] = Counter()
    for neighbour in ([], ["2024-01-01" if kind is Kind.NAIVE_DATE else "2024-01-01T00:00:00Z"]):
        array = parse_texts(pa.array([text, *neighbour]), type_of(kind), tally)
        assert values(pa.table({"v": array}), "v")[0] == expected
    assert tally[MOVED] == 2 * (not 1 <= year <= 9999)


def test_nan_is_a_number(decode: Decode) -> None:
    table = decode("v,w\nNaN,nan\n", {"v": Kind.DOUBLE, "w": Kind.FLOAT})
    assert math.isnan(values(table, "v")[0])
    assert math.isnan(values(table, "w")[0])


@pytest.mark.parametrize(
    ("kind", "texts", "note", "count"),
    [
        (D10, ["1.00000000001", "1.00000000000", "2", "0.000000000001"], ROUNDED, 2),
        (D10, ["1.00000000001", "1e-30", "2"], ROUNDED, 2),
        (Kind.NAIVE_DATE, ["0000-01-01", "0001-01-01", "0000-12-31"], MOVED, 2),
        (Kind.UTC_DATETIME, ["0000-01-01T00:00:00Z", "2024-01-01T00:00:00Z"], MOVED, 1),
        (Kind.UTC_DATETIME, ["9999-12-31T23:59:59-01:00", "2024-01-01T00:00:00Z"], MOVED, 1),
        (Kind.NAIVE_DATETIME, ["0000-01-01T00:00:00Z", "2024-01-01T00:00:00Z"], MOVED, 1),
        (Kind.BINARY, ["AAEC", "[B@", "AAE", "===="], NOT_BASE64, 3),
    ],
)
def test_adjusted_values_are_counted(
    kind: Kind | ColumnType, texts: list[str], note: str, count: int
) -> None:
    tally: Counter[str] = Counter()
    parse_texts(pa.array(texts), type_of(kind), tally)
    assert tally == {note: count}


def test_every_byte_survives_base64(decode: Decode) -> None:
    whole = bytes(range(256))
    table = decode(f"v\n{base64.b64encode(whole).decode()}\n", {"v": Kind.BINARY})
    assert values(table, "v") == [whole]


def test_text_that_is_not_utf8_is_refused(decode: Decode) -> None:
    for kind in (Kind.STRING, Kind.JSON, Kind.LONG):
        with pytest.raises(ValueRefusedError, match=r"UTF-8|whole number") as caught:
            decode(b"n,v\n1,2\n2,\xff\xfe\n", {"v": kind, "n": Kind.INT})
        assert (caught.value.row, caught.value.column) == (2, "v")
