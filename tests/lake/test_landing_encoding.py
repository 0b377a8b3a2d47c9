"""Values and keys are written the same in our own files by SQL and by Arrow."""

from __future__ import annotations

import random
import struct
from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa
import pytest

from chronolake.lake import Lake
from chronolake.landing import as_text, identifier
from chronolake.landing.encoding import identifiers_of, texts_of
from chronolake.types import Column, ColumnType, Kind

_MANY: Final = 2_000
_TEXTS: Final = [
    "",
    "a",
    'say "x"',
    "back\\slash",
    "line\nend\ttab",
    "\x01\x1f",
    "é🙂",
    "null",
    "/",
]


def _doubles(rng: random.Random) -> list[float | None]:
    bits = [struct.unpack("<d", rng.randbytes(8))[0] for _ in range(_MANY)]
    near = [rng.choice([-1, 1]) * 10 ** rng.uniform(-6, 10) for _ in range(_MANY)]
    money = [rng.randrange(10**9) / 100 for _ in range(_MANY)]
    odd = [0.0, -0.0, 1e-3, 9.99e-4, 1e7, 9999999.9, 1e15, 1e22, 5e-324, 1.7976931348623157e308]
    return [*bits, *near, *money, *odd, float("inf"), -float("inf"), float("nan"), None]


def _floats(rng: random.Random) -> list[float | None]:
    bits = [struct.unpack("<f", rng.randbytes(4))[0] for _ in range(_MANY)]
    return [*bits, 0.1, 16777216.0, 1e10, 3.4028235e38, 1e-3, None]


def _micros(rng: random.Random) -> list[int | None]:
    instants = [rng.randrange(-(10**15), 10**16) for _ in range(_MANY)]
    whole = [micros // 10**6 * 10**6 for micros in instants] + [
        micros // 10**4 * 10**4 for micros in instants
    ]
    # The years 0, 1, 9999, 10000 and 20000.
    odd = [-62_167_219_200, -62_135_596_800, 253_402_300_799, 253_402_300_800, 568_971_820_800]
    return [*instants, *whole, *(seconds * 10**6 + 120 for seconds in odd), 0, None]


def _decimals(rng: random.Random) -> list[Decimal | None]:
    decimals = [Decimal(rng.randrange(-(10**38), 10**38)).scaleb(-20) for _ in range(_MANY)]
    small = [Decimal(units).scaleb(-20) for units in (0, 1, -1, 123, 10**13, 10**20)]
    return [*decimals, *small, None]


def _values(kind: Kind, rng: random.Random) -> tuple[ColumnType, pa.Array]:
    column_type = ColumnType(kind, 38, 20) if kind is Kind.DECIMAL else ColumnType(kind)
    match kind:
        case Kind.BOOLEAN:
            values = pa.array([True, False, None])
        case Kind.SHORT | Kind.INT | Kind.LONG:
            values = pa.array([0, -1, 2**15 - 1, -(2**15), None])
        case Kind.DECIMAL:
            values = pa.array(_decimals(rng), pa.decimal128(38, 20))
        case Kind.FLOAT:
            values = pa.array(_floats(rng), pa.float32())
        case Kind.DOUBLE:
            values = pa.array(_doubles(rng), pa.float64())
        case Kind.NAIVE_DATE:
            days = [-719_528, -719_162, 2_932_896, 2_932_897, 6_585_322, 0, None]
            values = pa.array(days, pa.int32())
        case Kind.NAIVE_DATETIME | Kind.UTC_DATETIME:
            values = pa.array(_micros(rng), pa.int64())
        case Kind.BINARY:
            values = pa.array([rng.randbytes(length) for length in range(120)] + [None])
        case _:
            values = pa.array([*_TEXTS, None])
    return column_type, values.cast(column_type.arrow)


@pytest.mark.parametrize("kind", list(Kind))
def test_arrow_spells_values_as_sql_does(lake: Lake, kind: Kind) -> None:
    column_type, values = _values(kind, random.Random(7))
    column = Column("v", column_type)
    rows = lake.spark.createDataFrame(pa.table({"v": values, "n": range(len(values))}))
    by_sql = rows.coalesce(1).orderBy("n").selectExpr(f"{as_text(column)} AS t").toArrow()
    theirs = by_sql["t"].to_pylist()
    ours = texts_of(values, kind).to_pylist()
    if kind in {Kind.FLOAT, Kind.DOUBLE}:
        # Before 19, Java writes a digit too many of some numbers.
        assert [_shape(our, kind) for our in ours] == [_shape(their, kind) for their in theirs]
        same = sum(our == other for our, other in zip(ours, theirs, strict=True))
        assert same > len(ours) * 0.8
    else:
        assert ours == theirs


def _shape(text: str | None, kind: Kind) -> object:
    """Return a number, and whether its text has an exponent and a decimal point."""
    if text is None or text == "NaN":
        return text
    number = np.float32(text) if kind is Kind.FLOAT else float(text)
    return number, "E" in text, "." in text


def test_arrow_identifies_records_as_sql_does(lake: Lake) -> None:
    rng = random.Random(3)
    rows = [(rng.choice([*_TEXTS, None]), rng.choice([1, 2, None])) for _ in range(200)]
    names, numbers = (pa.array([row[place] for row in rows]) for place in (0, 1))
    key = [
        Column("Name", ColumnType(Kind.STRING), primary_key=True),
        Column("number", ColumnType(Kind.LONG), primary_key=True),
    ]
    frame = lake.spark.createDataFrame(
        pa.table({"Name": names, "number": numbers, "n": range(200)})
    )
    for columns in (key, key[::-1], key[:1], key[1:]):
        by_sql = frame.coalesce(1).orderBy("n").selectExpr(f"{identifier(columns)} AS t").toArrow()
        texts = {"Name": names, "number": texts_of(numbers, Kind.LONG)}
        ours = identifiers_of(columns, texts)
        assert ours.to_pylist() == by_sql["t"].to_pylist()
