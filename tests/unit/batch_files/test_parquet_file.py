"""Parquet files: nulls, times as texts or timestamps, and types that do not match."""

from __future__ import annotations

import io
import subprocess
import sys
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from chronolake.batch_files import parquet_file
from chronolake.change_set import SEQ, Op
from chronolake.change_set import UNMODIFIED as WORDS
from chronolake.errors import MalformedFileError, OversizeError, ValueRefusedError
from chronolake.types import LAST_MICROS, TMIN_MICROS, ColumnType, Kind
from support.batch_columns import Decode, values
from support.batch_writer import NULL, UNMODIFIED

KINDS: dict[str, Kind | ColumnType] = {
    "boolean": Kind.BOOLEAN,
    "short": Kind.SHORT,
    "int": Kind.INT,
    "long": Kind.LONG,
    "float": Kind.FLOAT,
    "double": Kind.DOUBLE,
    "decimal": ColumnType(Kind.DECIMAL, 20, 4),
    "instant": Kind.UTC_DATETIME,
    "day": Kind.NAIVE_DATE,
    "naive": Kind.NAIVE_DATETIME,
    "clock": Kind.NAIVE_TIME,
    "binary": Kind.BINARY,
    "text": Kind.STRING,
    "json": Kind.JSON,
}
TABLE = pa.table(
    {
        "text": pa.array(["null", "", None]),
        "boolean": pa.array([True, False, None]),
        "short": pa.array([-32768, 32767, None], pa.int32()),
        "int": pa.array([-(2**31), 2**31 - 1, None], pa.int32()),
        "long": pa.array([-(2**63), 2**63 - 1, None], pa.int64()),
        "float": pa.array([1.5, -2.5, None], pa.float32()),
        "double": pa.array([1.5, -2.5, None], pa.float64()),
        "decimal": pa.array([Decimal("1.5000"), Decimal("-9.9999"), None], pa.decimal128(20, 4)),
        "instant": pa.array(["9999-12-31T23:59:59.999Z", "2024-01-01T00:00:00.123456789Z", None]),
        "day": pa.array(["0000-01-01", "2024-02-29", None]),
        "naive": pa.array(["2024-01-01T00:00:01", "2024-01-01T00:00:00.1", None]),
        "clock": pa.array(["10:15", "10:15:30", None]),
        "binary": pa.array([b"\x00\xff", b"", None]),
        "json": pa.array(['{"a": 1}', "{}", None]),
    }
)
BASE = int(np.datetime64("2024-01-01", "us").astype(np.int64))
EXPECTED: dict[str, list[Any]] = {
    **{name: TABLE[name].to_pylist() for name in KINDS if name not in ("instant", "day")},
    "instant": [253_402_300_799_999_000, BASE + 123_456, None],
    "day": [-719_162, (date(2024, 2, 29) - date(1970, 1, 1)).days, None],
    "naive": [BASE + 1_000_000, BASE + 100_000, None],
    "clock": ["10:15:00", "10:15:30", None],
}


def parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


@pytest.mark.parametrize("compression", ["off", "zstd", "gzip"])
@pytest.mark.parametrize("encrypt", [True, False])
def test_every_type_is_read(decode: Decode, key: bytes, compression: str, *, encrypt: bool) -> None:
    table = decode(
        parquet(TABLE),
        KINDS,
        form="parquet",
        compression=compression,
        key=key if encrypt else None,
    )
    for name, expected in EXPECTED.items():
        assert values(table, name) == expected, name
    assert values(table, SEQ) == [0, 1, 2]


def test_rows_are_numbered_through_row_groups(decode: Decode) -> None:
    table = pa.table({"id": pa.array(range(50_000), pa.int64())})
    found = decode(parquet(table, row_group_size=7_000), {"id": Kind.LONG}, form="parquet")
    assert values(found, "id") == values(found, SEQ) == list(range(50_000))


@pytest.mark.parametrize(
    ("array", "kind", "expected"),
    [
        (pa.array([datetime(2024, 1, 1)], pa.timestamp("ms")), Kind.UTC_DATETIME, BASE),
        (pa.array([datetime(2024, 1, 1)], pa.timestamp("us", "UTC")), Kind.UTC_DATETIME, BASE),
        (pa.array([-1], pa.timestamp("ns")), Kind.NAIVE_DATETIME, -1),
        (pa.array([date(2024, 1, 1)]), Kind.NAIVE_DATE, BASE // 86_400_000_000),
        (pa.array([2**62], pa.timestamp("us")), Kind.NAIVE_DATETIME, 253_402_300_799_999_999),
        (pa.array([2**62], pa.timestamp("ms")), Kind.UTC_DATETIME, 253_402_300_799_999_000),
        (pa.array([-(2**62)], pa.timestamp("ms", "UTC")), Kind.UTC_DATETIME, TMIN_MICROS),
        (pa.array(["+12345-06-07T00:00:00Z"]), Kind.UTC_DATETIME, LAST_MICROS),
        (pa.array(["-0044-03-15T00:00"]), Kind.NAIVE_DATETIME, TMIN_MICROS),
        (pa.array(["-0044-03-15"]), Kind.NAIVE_DATE, -719_162),
        (pa.array(["infinity"]), Kind.NAIVE_DATE, 2_932_896),
        # Texts in Parquet files are complete.
        (pa.array(["2024-01-01T00:00"]), Kind.NAIVE_DATETIME, BASE),
        (pa.array([4_000_000], pa.date32()), Kind.NAIVE_DATE, 2_932_896),
        (pa.array([time(10, 15, 30)], pa.time64("us")), Kind.NAIVE_TIME, "10:15:30"),
        (pa.array([time(10, 15, 30, 500)], pa.time64("us")), Kind.NAIVE_TIME, "10:15:30.0005"),
        (pa.array([Decimal("1.23456")]), ColumnType(Kind.DECIMAL, 9, 4), Decimal("1.2346")),
        (pa.array([Decimal("1.5")]), ColumnType(Kind.DECIMAL, 38, 37), Decimal("1.5")),
        (pa.array([7], pa.int32()), Kind.LONG, 7),
        (pa.array(["7"]), Kind.LONG, 7),
        (pa.array(["x"]).dictionary_encode(), Kind.STRING, "x"),
        (pa.array(["x"], pa.large_string()), Kind.STRING, "x"),
        (pa.array([None], pa.null()), Kind.UTC_DATETIME, None),
        (pa.array([float("inf")]), Kind.DOUBLE, float("inf")),
    ],
)
def test_other_fitting_types_are_taken(
    decode: Decode, array: pa.Array, kind: Kind | ColumnType, expected: Any
) -> None:
    found = decode(parquet(pa.table({"v": array})), {"v": kind}, form="parquet")
    assert values(found, "v") == [expected]


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array([1.5]), Kind.LONG),
        (pa.array([1], pa.int64()), Kind.INT),
        (pa.array([1]), Kind.STRING),
        (pa.array([b"x"]), Kind.STRING),
        (pa.array([1.5]), Kind.FLOAT),
        (pa.array([True]), Kind.INT),
        (pa.array([[1]]), Kind.STRING),
        (pa.array([1]), Kind.UTC_DATETIME),
    ],
)
def test_a_type_that_does_not_match_is_refused(decode: Decode, array: pa.Array, kind: Kind) -> None:
    with pytest.raises(MalformedFileError) as caught:
        decode(parquet(pa.table({"v": array})), {"v": kind}, form="parquet")
    assert caught.value.column == "v"


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array(["1", "x"]), Kind.LONG),
        (pa.array([1, 40_000], pa.int32()), Kind.SHORT),
        (pa.array([None, "AAEC"]), Kind.BINARY),
        (pa.array([Decimal(1), Decimal(1000)]), ColumnType(Kind.DECIMAL, 3, 1)),
        (pa.array(["x", UNMODIFIED]), Kind.STRING),
    ],
)
def test_a_value_that_does_not_fit_is_named(
    decode: Decode, array: pa.Array, kind: Kind | ColumnType
) -> None:
    with pytest.raises(ValueRefusedError) as caught:
        decode(parquet(pa.table({"v": array})), {"v": kind}, form="parquet")
    assert (caught.value.row, caught.value.column) == (2, "v")


def test_markers_in_columns_of_text_are_honoured(decode: Decode) -> None:
    table = pa.table(
        {
            "text": [NULL, UNMODIFIED, "x", None],
            "long": [NULL, UNMODIFIED, "7", None],
            "binary": [NULL, UNMODIFIED, None, None],
        }
    )
    kinds = {"text": Kind.STRING, "long": Kind.LONG, "binary": Kind.BINARY}
    found = decode(parquet(table), kinds, form="parquet", op=Op.UPDATE)
    assert values(found, "text") == [None, None, "x", None]
    assert values(found, "long") == [None, None, 7, None]
    assert values(found, WORDS) == [None, [7], None, None]


def test_the_unmodified_marker_in_a_key_is_refused(decode: Decode) -> None:
    table = pa.table({"k": ["1", UNMODIFIED], "v": [UNMODIFIED, "x"]})
    kinds = {"k": Kind.LONG, "v": Kind.STRING}
    with pytest.raises(ValueRefusedError, match="unmodified marker, in a key") as caught:
        decode(parquet(table), kinds, form="parquet", op=Op.UPDATE, primary_key=["k"])
    assert (caught.value.row, caught.value.column) == (2, "k")


def test_an_empty_text_in_a_key_of_another_type_is_refused(decode: Decode) -> None:
    table = pa.table({"k": ["2024-01-01T00:00:00Z", None, ""], "v": [1, 2, 3]})
    kinds = {"k": Kind.UTC_DATETIME, "v": Kind.LONG}
    with pytest.raises(ValueRefusedError, match="it is empty") as caught:
        decode(parquet(table), kinds, form="parquet", primary_key=["k"])
    assert (caught.value.row, caught.value.column) == (3, "k")


def test_an_empty_text_is_a_value_where_no_marker_is_named(decode: Decode) -> None:
    table = pa.table({"text": ["", None], "binary": [b"", None]})
    kinds = {"text": Kind.STRING, "binary": Kind.BINARY}
    found = decode(parquet(table), kinds, form="parquet", null="")
    assert values(found, "text") == ["", None]
    assert values(found, "binary") == [b"", None]


def test_odd_names_are_read(decode: Decode) -> None:
    names = ["a.b", "a", "größe, cm", "`tick`", "A"]
    table = pa.table({name: [number] for number, name in enumerate(names)})
    found = decode(parquet(table), dict.fromkeys(names, Kind.LONG), form="parquet")
    assert [values(found, name) for name in names] == [[0], [1], [2], [3], [4]]


def test_absent_columns_are_null_unless_required(decode: Decode) -> None:
    content = parquet(pa.table({"a": [1, 2]}))
    found = decode(content, {"b": Kind.LONG}, form="parquet")
    assert values(found, "b") == [None, None]
    with pytest.raises(MalformedFileError) as caught:
        decode(content, {"b": Kind.LONG}, form="parquet", required=["b"])
    assert caught.value.column == "b"


def test_what_is_not_parquet_is_refused(decode: Decode, key: bytes) -> None:
    whole = parquet(TABLE)
    for content in (b"", b"a,b\n1,2\n", whole[:-1], whole[: len(whole) // 2], whole[1:]):
        for chosen in (key, None):
            with pytest.raises(MalformedFileError, match="not a readable Parquet"):
                decode(content, KINDS, form="parquet", key=chosen)


_DAMAGE = """
import sys
from collections import Counter, defaultdict
from pathlib import Path
sys.path[:0] = ["tests", "tests/unit/batch_files"]
from chronolake.batch_files import parquet_file
from chronolake.batch_files.files import BatchFile, FileForm
from chronolake.change_set import Op
from chronolake.errors import ChronolakeError
from support.batch_columns import columns_of
from support.damaged_parquet import damage_footers
from test_parquet_file import KINDS, TABLE, parquet

path = Path(sys.argv[1])
form = FileForm("parquet", "off", False, "null", "unmodified")
for damaged in damage_footers(parquet(TABLE), seed=5, number=1000):
    path.write_bytes(damaged)
    pieces = parquet_file.pieces(
        BatchFile(str(path), Op.REPLACE),
        form,
        columns=columns_of(KINDS),
        required=frozenset(),
        tallies=defaultdict(Counter),
    )
    try:
        list(pieces)
    except ChronolakeError:
        pass
"""


def test_a_damaged_footer_never_ends_the_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _DAMAGE, str(tmp_path / "file")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr


def test_a_sealed_file_beyond_the_limit_is_refused_with_the_limit(
    decode: Decode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_file, "CONTENT_LIMIT", 1 << 20)
    table = pa.table({"v": [np.random.default_rng(1).bytes(1 << 21)]})
    with pytest.raises(OversizeError, match="1 MiB"):
        decode(parquet(table), {"v": Kind.BINARY}, form="parquet", compression="zstd")
    assert decode(parquet(table), {"v": Kind.BINARY}, form="parquet").num_rows == 1
