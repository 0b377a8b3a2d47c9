"""Any table of any types, written by another writer, is read back as plain Python expects it."""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chronolake.batch_files.decoder import ReadOptions, decode_file
from chronolake.batch_files.files import BatchFile, FileForm
from chronolake.change_set import SEQ, Op
from chronolake.change_set import UNMODIFIED as WORDS
from chronolake.types import Column, ColumnType, Kind
from support import batch_writer
from support.batch_columns import values

KEPT = object()


@dataclass(frozen=True)
class Case:
    """A column: its type, and its cells as (text, value) pairs."""

    type: ColumnType
    cells: list[tuple[str | None, Any]]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
padding = st.integers(0, 9)


def whole(kind: Kind, bits: int) -> st.SearchStrategy[tuple[str, Any]]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).map(lambda n: (str(n), n))


def double(value: float) -> tuple[str, float]:
    if math.isinf(value):
        return ("Infinity" if value > 0 else "-Infinity", value)
    return ("NaN" if math.isnan(value) else repr(value).replace("e", "E"), value)


@st.composite
def decimals(draw: st.DrawFn, kind: ColumnType) -> tuple[str, Any]:
    precision, scale = kind.precision or 0, kind.scale or 0
    limit = 10 ** min(precision, draw(st.integers(1, 38)))
    exact = Decimal(draw(st.integers(-limit + 1, limit - 1))).scaleb(-scale, Context(prec=60))
    if draw(st.booleans()):
        # Digits beyond the scale, always towards zero so that the value still fits.
        return f"{exact:f}{'.' if scale == 0 else ''}{draw(st.integers(0, 4))}", exact
    text = draw(st.sampled_from([f"{exact:f}", f"{exact:E}"]))
    return text, exact.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, Context(prec=60))


@st.composite
def times(draw: st.DrawFn, kind: Kind) -> tuple[str, Any]:
    day = draw(st.dates())
    second = draw(st.integers(0, 86_399))
    digits = draw(st.text("0123456789", max_size=9))
    clock = str(timedelta(seconds=second)).zfill(8)
    text = f"{day.isoformat()}T{clock}{'.' if digits else ''}{digits}"
    micros = ((day - date(1970, 1, 1)).days * 86_400 + second) * 1_000_000
    micros += int(digits[:6].ljust(6, "0"))
    zone = "Z" if kind is Kind.UTC_DATETIME else ""
    return text + draw(st.sampled_from([zone, zone, "Z", ""])), micros


def _without_final_zeros(clock: str) -> str:
    return clock.rstrip("0") if "." in clock else clock


def cells(kind: ColumnType) -> st.SearchStrategy[tuple[str | None, Any]]:
    match kind.kind:
        case Kind.BOOLEAN:
            good: Any = st.sampled_from([("true", True), ("false", False)])
        case Kind.SHORT | Kind.INT | Kind.LONG:
            good = whole(kind.kind, {"SHORT": 16, "INT": 32, "LONG": 64}[kind.kind])
        case Kind.FLOAT:
            good = st.floats(width=32).map(
                lambda n: (double(n)[0] if not math.isfinite(n) else str(np.float32(n)), n)
            )
        case Kind.DOUBLE:
            good = st.floats().map(double)
        case Kind.DECIMAL:
            good = decimals(kind)
        case Kind.NAIVE_DATE:
            good = st.dates().map(lambda d: (d.isoformat(), (d - date(1970, 1, 1)).days))
        case Kind.NAIVE_DATETIME | Kind.UTC_DATETIME:
            good = times(kind.kind)
        case Kind.BINARY:
            good = st.binary(max_size=20).map(lambda b: (base64.b64encode(b).decode(), b))
        case Kind.NAIVE_TIME:
            good = st.times().map(lambda t: (t.isoformat(), _without_final_zeros(t.isoformat())))
        case _:
            good = texts.map(lambda t: (t, t))
    return st.one_of(good, good, good, st.just((None, None)), st.just((None, KEPT)))


@st.composite
def cases(draw: st.DrawFn) -> list[Case]:
    height = draw(st.integers(0, 12))
    made = []
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(list(Kind)))
        precision = draw(st.integers(1, 38))
        of = ColumnType(kind, precision, draw(st.integers(0, precision)))
        made.append(Case(of, draw(st.lists(cells(of), min_size=height, max_size=height))))
    return made


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or (
            left == right and math.copysign(1, left) == math.copysign(1, right)
        )
    return left == right and type(left) is type(right)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cases(),
    st.permutations(range(6)),
    st.sampled_from(["off", "zstd", "gzip"]),
    st.booleans(),
    st.sampled_from([1, 50, 1 << 20]),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_any_table_round_trips(
    tmp_path: Path,
    columns: list[Case],
    order: list[int],
    compression: str,
    encrypt: bool,
    block_size: int,
    end: str,
    last_end: bool,
) -> None:
    order = [place for place in order if place < len(columns)]
    height = len(columns[0].cells)
    update = any(value is KEPT for column in columns for _, value in column.cells)
    # In the file's own order; an unmodified cell holds the marker.
    rows = [
        [
            batch_writer.UNMODIFIED
            if columns[place].cells[row][1] is KEPT
            else columns[place].cells[row][0]
            for place in order
        ]
        for row in range(height)
    ]
    names = [f"c{place}" for place in order]
    if end == "\r\n" and not last_end and rows and len(names) == 1 and rows[-1] == [""]:
        last_end = True  # an empty last line without a line end does not count
    elif not last_end and rows and len(names) == 1 and rows[-1] == [""]:
        last_end = True
    content = batch_writer.csv_bytes(names, rows, end=end, last_end=last_end)
    key = bytes(range(32)) if encrypt else None
    path = batch_writer.write(tmp_path / "f", content, compression=compression, key=key)
    options = ReadOptions(
        FileForm("csv", compression, encrypt, batch_writer.NULL, batch_writer.UNMODIFIED),  # type: ignore[arg-type]
        tuple(Column(f"c{place}", column.type) for place, column in enumerate(columns)),
        {},
        "sample.table",
        "batch-1",
        block_size,
    )
    op = Op.UPDATE if update else Op.REPLACE
    batches = list(decode_file(BatchFile(str(path), op, key), 7, options))
    if height == 0:
        assert sum(batch.num_rows for batch in batches) == 0
        return
    table = pa.Table.from_batches(batches)
    assert values(table, SEQ) == [7 * 2**40 + row for row in range(height)]
    words = values(table, WORDS)
    for place, column in enumerate(columns):
        found = values(table, f"c{place}")
        wanted = [None if value is KEPT else value for _, value in column.cells]
        assert len(found) == len(wanted)
        assert all(map(same, found, wanted)), (column.type, found, wanted)
        kept = [bool(word and word[0] >> place & 1) for word in words]
        assert kept == [value is KEPT for _, value in column.cells]
