"""A Data Lake v2 that someone else writes is synced into tables."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chronolake import core
from chronolake.core import migration
from chronolake.errors import ConfigurationError, LeaseLostError, PipelineBusyError
from chronolake.failpoints import FAILPOINTS
from chronolake.inspect import Lineage, history
from chronolake.landing import inspect_files
from chronolake.landing.reader import KEY
from chronolake.pipeline import rebuild as rebuild_module
from chronolake.pipeline.lease import Lease, hold_lease
from chronolake.pipeline.rebuild import differences, rebuild
from chronolake.pipeline.state import move_watermark, table_offsets
from chronolake.pipeline.store import Status, Store
from chronolake.pipeline.streams import Stream, streams_of
from chronolake.pipeline.sync import Event, EventKind
from chronolake.types import (
    ACTIVE,
    DELETED,
    START,
    TMAX_MICROS,
    Column,
    ColumnType,
    Kind,
    Mode,
    TableName,
)
from support import pipeline_model
from support.commands import run_words
from support.datalakes import DataLake, file_row, iceberg
from support.lake.pipelines import Pipeline
from support.pipeline_model import LandedRow
from support.seeds import with_drawn_seeds

_T: Final = 1_767_225_600_000_000
_SECOND: Final = 1_000_000
_ACCOUNTS: Final = TableName("crm", "Account")


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return Pipeline(tmp_path)


def _row(key: str, at: int, sequence: str, **fields: Any) -> dict[str, Any]:
    return {
        "Id": key,
        "source__modified": _T + at * _SECOND,
        "grax__idseq": sequence,
        **fields,
    }


def test_the_example_file_of_the_document(pipeline: Pipeline) -> None:
    """The example file of the document makes the expected versions.

    The file is from `seeds/data-lake-v2.txt`, "A full example"; only a purge mentions the record 2.
    """
    instants = {f"t{number}": number for number in range(1, 10)}

    def row(key: str, modified: str, sequence: str, **marks: Any) -> dict[str, Any]:
        for mark in ("grax__deleted", "grax__purged"):
            if mark in marks:
                marks[mark] = _T + instants[marks[mark]] * _SECOND
        return _row(key, instants[modified], sequence, **marks)

    pipeline.source.write(
        "Account",
        [
            row("1", "t4", "a", Name="Alice"),
            row("2", "t5", "q", grax__purged="t1"),
            row("1", "t5", "b", Name="Alicia"),
            row(
                "3", "t1", "x", grax__deleted="t3", grax_deletesource="grax", Name="Bob",
                Fax="800-555-1212",
            ),
            row("1", "t6", "c", Name="Allison"),
            row("4", "t8", "a", grax__restoredfrom="3", Name="Bob"),
            row("4", "t9", "g", grax__restoredfrom="3", Name="Bill", Fax="888-111-5555"),
        ],
    )  # fmt: skip

    pipeline.done()

    def at(name: str) -> int:
        return _T + instants[name] * _SECOND

    assert pipeline.versions("Name", "Fax") == [
        ("1", at("t4"), at("t5") - 1_000, False, "Alice", None),
        ("1", at("t5"), at("t6") - 1_000, False, "Alicia", None),
        ("1", at("t6"), TMAX_MICROS, True, "Allison", None),
        ("2", at("t5"), at("t5"), False, None, None),
        ("3", at("t1"), at("t3"), False, "Bob", "800-555-1212"),
        ("4", at("t8"), at("t9") - 1_000, False, "Bob", None),
        ("4", at("t9"), TMAX_MICROS, True, "Bill", "888-111-5555"),
    ]
    # The example's `grax_deletesource` is the column that the document calls `grax__deletesource`.
    assert "grax_deletesource" not in pipeline.types()
    assert "source__modified" not in pipeline.types(), "_fivetran_start replaces it"
    found = {key: history(pipeline.lake.config, _ACCOUNTS, {"Id": key}) for key in ("3", "4")}
    assert [version.outcome for version in found["3"].versions] == ["archived"]
    assert found["3"].lineage == Lineage("Id", restored_as=("4",))
    assert found["4"].lineage == Lineage("Id", restored_from=("3",))


def test_both_spellings_of_the_delete_source_are_one_column(pipeline: Pipeline) -> None:
    """Each row has the first value of the two columns, whatever the files they are in."""
    deleted = {"grax__deleted": _T + 5 * _SECOND}
    written, example = "grax__deletesource", "grax_deletesource"
    pipeline.source.write("Account", [_row("1", 1, "1", **deleted, **{written: "grax"})])
    pipeline.source.write("Account", [_row("2", 1, "1", **deleted, **{example: "grax"})])
    pipeline.source.write(
        "Account",
        [
            _row("3", 1, "1", **deleted, **{written: "source", example: "grax"}),
            _row("4", 1, "1", **deleted, **{written: "", example: "grax"}),
            _row("5", 1, "1", **deleted, **{written: "source", example: None}),
            _row("6", 1, "1"),
        ],
    )
    # A column without any value, beside the other spelling.
    pipeline.source.write(
        "Account",
        [_row("7", 1, "1", **deleted, **{written: None, example: "grax"})],
        statistics=False,
    )

    pipeline.done()

    assert example not in pipeline.types()
    assert {row["Id"]: row[written] for row in pipeline.rows()} == {
        "1": "grax", "2": "grax", "3": "source", "4": "grax", "5": "source", "6": None, "7": "grax",
    }  # fmt: skip


@pytest.mark.long
def test_records_have_many_fields(pipeline: Pipeline) -> None:
    """Records may have many fields.

    The conclusions that Spark draws from equal columns must not grow with their combinations.
    """

    def wide(key: int, at: int, sequence: str) -> dict[str, Any]:
        fields = {f"F{number}": (key + 1) * (number + at) for number in range(60)}
        texts = {name: str(value) for name, value in fields.items()}
        typed = {f"{name}_i": value for name, value in fields.items()}
        return _row(str(key), at, sequence, **texts, **typed)

    large = pipeline.source.write("Account", [wide(key, 1, "1") for key in range(3_000)])
    assert large.stat().st_size > 2**20, "too small to be taken for much data"
    pipeline.done()
    pipeline.source.write("Account", [wide(key, 2, "2") for key in range(5)])
    pipeline.done()

    rows = {(row["Id"], row[ACTIVE]): row for row in pipeline.rows()}
    assert len(rows) == 3_005
    for key in range(3_000):
        wanted = wide(key, 2 if key < 5 else 1, "")
        assert all(rows[str(key), True][f"F{n}"] == wanted[f"F{n}_i"] for n in range(60))
    (stream,) = streams_of(pipeline.project, "crm")
    with hold_lease(Store.open(pipeline.lake.config), "crm") as lease:
        found = differences(pipeline.lake, stream, lease)
    assert (found.rows, found.missing, found.extra) == (3_005, 0, 0)


@pytest.mark.long
def test_a_column_has_the_narrowest_type_and_keeps_the_sources_spelling(
    pipeline: Pipeline,
) -> None:
    pipeline.source.write("Account", [_row("1", 1, "1", N="5", N_i=5, Name="one")])
    pipeline.done()
    assert pipeline.types()["N"] == "int"

    # Widened in place, then rewritten as a number, then as the texts in the lake.
    pipeline.source.write("Account", [_row("2", 1, "1", N="5000000000", N_i=5_000_000_000)])
    pipeline.done()
    assert pipeline.types()["N"] == "long"
    pipeline.source.write("Account", [_row("3", 1, "1", N="5.50", N_f=5.5)])
    pipeline.done()
    assert pipeline.types()["N"] == "double"
    assert {row["Id"]: row["N"] for row in pipeline.rows()} == {"1": 5, "2": 5e9, "3": 5.5}
    pipeline.source.write("Account", [_row("4", 1, "1", N="five", New="n")])
    pipeline.done()

    assert pipeline.types()["N"] == "string"
    assert {row["Id"]: row["N"] for row in pipeline.rows()} == {
        "1": "5",
        "2": "5000000000",
        "3": "5.50",
        "4": "five",
    }
    assert {row["Id"]: (row["Name"], row["New"]) for row in pipeline.rows()}["1"] == ("one", None)


def test_integers_that_are_not_exact_doubles_make_a_text_column(pipeline: Pipeline) -> None:
    wide = 2**53 + 1
    pipeline.source.write("Account", [_row("1", 1, "1", N=str(wide), N_i=wide)])
    pipeline.done()
    pipeline.source.write("Account", [_row("2", 1, "1", N="0.5", N_f=0.5)])
    pipeline.done()

    assert {row["Id"]: row["N"] for row in pipeline.rows()} == {"1": str(wide), "2": "0.5"}


def test_absent_null_and_empty_are_null(pipeline: Pipeline) -> None:
    pipeline.source.write(
        "Account",
        [
            _row("1", 1, "1", Name="", Empty=None),
            _row("2", 1, "1", Name=None, Empty=None),
            _row("3", 1, "1", Name="x", Empty=None),
        ],
    )
    pipeline.source.write("Account", [_row("4", 1, "1")])

    pipeline.done()

    assert [row["Name"] for row in sorted(pipeline.rows(), key=lambda row: row["Id"])] == [
        None,
        None,
        "x",
        None,
    ]
    # A field that never had a value has no column.
    assert "Empty" not in pipeline.types()


def test_names_may_hold_what_patterns_consist_of(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path / "[a] {b}*?")
    pipeline.source.write("Account's {x}", [_row("1", 1, "1", Name="x")])

    pipeline.done()

    rows = pipeline.lake.table("crm.Account's {x}").df.collect()
    assert [row["Name"] for row in rows] == ["x"]
    assert {path.name for path in tmp_path.iterdir()} == {"[a] {b}*?"}


def test_every_kind_of_typed_field_and_of_time(pipeline: Pipeline) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 123456)
    typed = {
        "B": "true", "B_b": True, "D": "2026-01-02", "D_d": date(2026, 1, 2),
        "Ts": "2026-01-02T03:04:05.123Z", "Ts_ts": at, "T": "03:04:05.120Z",
        "T_t": time(3, 4, 5, 120_000),
    }  # fmt: skip
    for number, unit in enumerate(("ms", "us", "ns")):
        kind = pa.timestamp(unit, tz=None if number % 2 else "UTC")
        pipeline.source.write(
            "Account",
            [{**_row(str(number), 0, "1", **typed), "source__modified": at}],
            source__modified=kind,
            Ts_ts=kind,
            T_t=pa.time32("ms") if unit == "ms" else pa.time64(unit),
        )

    pipeline.done()

    assert pipeline.types() | {"B": "boolean", "D": "date", "Ts": "timestamptz"} == pipeline.types()
    micros = 1_767_323_045_123_456
    found = {row["Id"]: (row[START], row["B"], row["D"], row["T"]) for row in pipeline.rows()}
    reported = (True, date(2026, 1, 2), "03:04:05.12")
    assert found == {
        "0": (micros // 1000 * 1000, *reported),
        "1": (micros, *reported),
        "2": (micros, *reported),
    }
    # Once the field is a text, it is unchanged from the source.
    pipeline.source.write("Account", [_row("3", 0, "1", T="noon")])
    pipeline.done()
    assert {row["T"] for row in pipeline.rows()} == {"03:04:05.120Z", "noon"}


@pytest.mark.long
def test_a_purge_never_empties_fields(pipeline: Pipeline) -> None:
    pipeline.source.write("Account", [_row("1", 1, "1", Name="kept")])
    pipeline.done()
    pipeline.source.write("Account", [_row("1", 1, "2", grax__purged=_T + 9 * _SECOND)])
    pipeline.done()
    # A late version from before the purge is closed as well.
    pipeline.source.write("Account", [_row("1", 2, "3", Name="late")])
    pipeline.done()

    assert pipeline.versions("Name") == [
        ("1", _T + _SECOND, _T + 2 * _SECOND - 1_000, False, "kept"),
        ("1", _T + 2 * _SECOND, _T + 9 * _SECOND, False, "late"),
    ]


@pytest.mark.sampled
@pytest.mark.parametrize("on_purge", ["close", "erase"])
def test_a_purge_provides_who_deleted_the_record(pipeline: Pipeline, on_purge: str) -> None:
    times = {"grax__deleted": _T + 8 * _SECOND, "grax__purged": _T + 9 * _SECOND}
    pipeline.configure(f"    on_purge: {on_purge}\n")
    pipeline.source.write("Account", [_row("1", 5, "1", Name="a"), _row("2", 5, "2", Name="b")])
    pipeline.done()
    purges = [
        _row("1", 5, "2", **times, grax__deletesource="grax", grax__restoredfrom="0"),
        _row("2", 5, "1", **times, grax__deletesource="source"),
        _row("3", 5, "1", **times, grax__deletesource="grax"),
    ]
    pipeline.source.write("Account", purges)
    pipeline.done()

    names = ("a", "b") if on_purge == "close" else (None, None)
    ended = _T + 5 * _SECOND, _T + 8 * _SECOND, False
    expected = [
        ("1", *ended, names[0], "grax", "0"),
        ("2", *ended, names[1], "source", None),
        ("3", *ended, None, "grax", None),
    ]
    columns = "Name", "grax__deletesource", "grax__restoredfrom"
    assert pipeline.versions(*columns) == expected
    # Rows that land again, and those of a table made from all files, are the same.
    pipeline.source.write("Account", [_row("2", 5, "2", Name="b"), *purges])
    pipeline.done()
    assert pipeline.versions(*columns) == expected
    (stream,) = streams_of(pipeline.project, "crm")
    with hold_lease(Store.open(pipeline.lake.config), "crm") as lease:
        found = differences(pipeline.lake, stream, lease)
    assert (found.missing, found.extra) == (0, 0)


@pytest.mark.long
def test_a_purge_may_erase_the_values_of_versions(pipeline: Pipeline) -> None:
    pipeline.source.write(
        "Account", [_row("1", 1, "1", Name="a"), _row("1", 5, "2", Name="b"), _row("2", 1, "1")]
    )
    pipeline.done()
    pipeline.source.write("Account", [_row("1", 5, "3", grax__purged=_T + 9 * _SECOND)])
    pipeline.done()
    assert [row[4] for row in pipeline.versions("Name")] == ["a", "b", None]

    # A setting that changes later applies to existing versions as well, and to late ones.
    pipeline.configure("    on_purge: erase\n    keep_source_timestamp: true\n")
    pipeline.source.write("Account", [_row("1", 3, "4", Name="late"), _row("1", 20, "5", Name="c")])
    pipeline.done()

    assert pipeline.versions("Name", "source__modified") == [
        ("1", _T + _SECOND, _T + 3 * _SECOND - 1_000, False, None, _T + _SECOND),
        ("1", _T + 3 * _SECOND, _T + 5 * _SECOND - 1_000, False, None, _T + 3 * _SECOND),
        ("1", _T + 5 * _SECOND, _T + 9 * _SECOND, False, None, _T + 5 * _SECOND),
        # The record came back, with new data.
        ("1", _T + 20 * _SECOND, TMAX_MICROS, True, "c", _T + 20 * _SECOND),
        ("2", _T + _SECOND, TMAX_MICROS, True, None, _T + _SECOND),
    ]


@pytest.mark.long
def test_a_version_of_which_only_purges_speak_is_there_without_data(pipeline: Pipeline) -> None:
    """A version that only purges mention exists without data.

    Files that were written after the purge contain such versions; the order of the files and the
    mode do not matter.
    """
    purged = {"grax__purged": _T + 9 * _SECOND}
    pipeline.source.write(
        "Account",
        [
            _row("1", 1, "1", Name="a"),
            _row("1", 5, "3", **purged),
            _row("2", 3, "1", **purged),
            _row("3", 2, "2", **purged, Name="must not stay"),
        ],
    )
    pipeline.done()
    expected = [
        ("1", _T + _SECOND, _T + 5 * _SECOND - 1_000, False, "a"),
        ("1", _T + 5 * _SECOND, _T + 9 * _SECOND, False, None),
        ("2", _T + 3 * _SECOND, _T + 9 * _SECOND, False, None),
        ("3", _T + 2 * _SECOND, _T + 9 * _SECOND, False, None),
    ]
    assert pipeline.versions("Name") == expected
    # Late data of such a version replaces it, although its sequence is smaller.
    pipeline.source.write("Account", [_row("1", 5, "2", Name="b"), _row("2", 3, "1", **purged)])
    pipeline.done()
    expected[1] = (*expected[1][:4], "b")
    assert pipeline.versions("Name") == expected
    pipeline.configure("    mode: soft-delete\n")
    pipeline.done()
    found = {row["Id"]: (row["Name"], row[DELETED]) for row in pipeline.rows()}
    assert found == {"1": ("b", True), "2": (None, True), "3": (None, True)}


@pytest.mark.sampled
@pytest.mark.parametrize(
    "empty", [pa.null(), pa.struct([("a", pa.int32())]), pa.list_(pa.int8())], ids=str
)
def test_a_column_without_values_may_have_any_type(pipeline: Pipeline, empty: pa.DataType) -> None:
    """A column without values may have any type.

    Its type is not applied to the column in other files, nor their type to it.
    """
    pipeline.source.write(
        "Account", [_row("1", 1, "1", Name=None, Size=None)], Name=empty, Size=empty
    )
    pipeline.source.write("Account", [_row("2", 1, "1", Name="x", Size="5", Size_i=5)])
    pipeline.done()
    assert {row["Id"]: (row["Name"], row["Size"]) for row in pipeline.rows()} == {
        "1": (None, None),
        "2": ("x", 5),
    }


@pytest.mark.long
def test_columns_that_hold_several_values_are_json(pipeline: Pipeline) -> None:
    """Columns that hold several values become JSON.

    UUIDs, 16-bit numbers and a field with the name of Spark's own are read as well.
    """
    folder = pipeline.source.path("Account", 0).parent
    folder.mkdir(parents=True)
    halves = np.array([1.5, -0.0, 65504, 6e-8], np.float16)
    at = datetime(2026, 1, 2, 3, 4, 5, 123456)
    inner = pa.struct([("n", pa.int32()), ("a b`c", pa.string())])
    nested = {
        "Struct": pa.array(
            [{"n": 1, "a b`c": None}, None, {"n": None, "a b`c": 'x"'}, None], inner
        ),
        "List": pa.array([[{"n": 2}], [], None, [None]], pa.list_(inner)),
        "Map": pa.array([[("k", [1])], [], None, None], pa.map_(pa.string(), pa.list_(pa.int64()))),
        "Times": pa.array([[at], None, None, None], pa.list_(pa.timestamp("us", "UTC"))),
        "Nanos": pa.array([[at], None, None, None], pa.list_(pa.timestamp("ns"))),
        "Clocks": pa.array(
            [{"t": time(3, 4, 5)}] + 3 * [None], pa.struct([("t", pa.time64("us"))])
        ),
        "Half": pa.array(halves),
        "Halves": pa.array([[h] for h in halves], pa.list_(pa.float16())),
        "Uuid": pa.array([bytes(range(16))] * 4, pa.uuid()),
        "_metadata": pa.array(["m", None, None, None]),
    }
    base = {
        "Id": pa.array([str(number) for number in range(4)]),
        "source__modified": pa.array([_T] * 4, pa.timestamp("us", tz="UTC")),
        "grax__idseq": pa.array(["1"] * 4),
    }
    pq.write_table(pa.table({**base, **nested}), folder / "data-01.parquet")
    # Another file has texts in these columns.
    texts = {name: ["text"] for name in nested}
    second = pa.table({**{name: column.slice(0, 1) for name, column in base.items()}, **texts})
    pq.write_table(second.set_column(0, "Id", [["9"]]), folder / "data-02.parquet")

    pipeline.done()

    rows = {row["Id"]: row for row in pipeline.rows()}
    assert {name: rows["9"][name] for name in nested} == dict.fromkeys(nested, "text")
    first = rows["0"]
    assert [first[name] for name in ("Struct", "List", "Map")] == [
        '{"n":1,"a b`c":null}',
        '[{"n":2,"a b`c":null}]',
        '{"k":[1]}',
    ]
    assert first["Times"] == '["2026-01-02T03:04:05.123456Z"]'
    assert first["Nanos"] == '["2026-01-02T03:04:05.123456Z"]'
    assert first["Clocks"] == '{"t":"03:04:05"}'
    assert first["Uuid"] == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert first["_metadata"] == "m"
    assert [float(rows[str(number)]["Half"]) for number in range(4)] == halves.tolist()
    assert [rows[str(number)]["Halves"] for number in (0, 2)] == ["[1.5]", "[65504.0]"]
    assert [rows[key]["Struct"] for key in "123"] == [None, '{"n":null,"a b`c":"x\\""}', None]
    assert [rows[key]["List"] for key in "123"] == ["[]", None, "[null]"]


def test_what_files_may_look_like(pipeline: Pipeline) -> None:
    """Unusual files are read.

    They have columns without a type, dates beyond Python's range, INT96, few statistics, no rows,
    or deltas.
    """
    folder = pipeline.source.path("Account", 0).parent
    folder.mkdir(parents=True)
    times = pa.array([_T], pa.timestamp("us", tz="UTC"))
    base = {"Id": ["1"], "source__modified": times, "grax__idseq": ["1"]}
    beyond = pa.array([2_932_897 + 400_000], pa.int32()).cast(pa.date32())
    first = pa.table({**base, "Empty": pa.nulls(1), "D": ["12000-01-01"], "D_d": beyond})
    pq.write_table(first, folder / "data-01.parquet")
    second = pa.table({**base, "Id": ["2"], "N": ["5"], "N_i": [5]})
    pq.write_table(second, folder / "data-02.parquet", write_statistics=["N"])
    third = pa.table({**base, "Id": ["3"]})
    pq.write_table(third, folder / "data-03.parquet", use_deprecated_int96_timestamps=True)
    pq.write_table(third.slice(0, 0), folder / "data-04.parquet")
    fifth = pa.table({**base, "Id": ["4"], "N": ["-7"], "N_i": [-7], "Text": ["prefix and more"]})
    encodings = {
        "Id": "DELTA_BYTE_ARRAY",
        "source__modified": "DELTA_BINARY_PACKED",
        "grax__idseq": "DELTA_LENGTH_BYTE_ARRAY",
        "N": "DELTA_BYTE_ARRAY",
        "N_i": "DELTA_BINARY_PACKED",
        "Text": "DELTA_LENGTH_BYTE_ARRAY",
    }
    pq.write_table(
        fifth, folder / "data-05.parquet", use_dictionary=False, column_encoding=encodings
    )

    pipeline.done()

    scan = iceberg(pipeline.project, "crm", "Account").scan(selected_fields=("Id", "N", "Text"))
    rows = {row["Id"]: (row["N"], row["Text"]) for row in scan.to_arrow().to_pylist()}
    assert rows == {
        "1": (None, None),
        "2": (5, None),
        "3": (None, None),
        "4": (-7, "prefix and more"),
    }
    types = pipeline.types()
    assert (types["N"], types["D"], "Empty" in types) == ("int", "date", False)


def test_a_row_that_equals_the_stored_one_changes_nothing(pipeline: Pipeline) -> None:
    rows = [_row("1", 1, "1", Name="a"), _row("1", 2, "2", Name=None), _row("2", 1, "1", Name="b")]
    pipeline.source.write("Account", rows)
    pipeline.done()
    before = pipeline.rows()

    pipeline.source.write("Account", [rows[0], rows[1], _row("2", 1, "1", Name="other")])
    result = pipeline.sync()

    # Of equal sequences, the later file counts if its values differ.
    assert result.streams[0].written == 1
    changed = [row for row in pipeline.rows() if row not in before]
    assert [(row["Id"], row["Name"]) for row in changed] == [("2", "other")]


def test_a_column_that_another_program_added_is_kept(pipeline: Pipeline) -> None:
    pipeline.source.write("Account", [_row("1", 1, "1", Name="a")])
    pipeline.done()
    name = "chronolake.crm.`Account`"
    pipeline.lake.spark.sql(f"ALTER TABLE {name} ADD COLUMN note string")
    pipeline.lake.spark.sql(f"UPDATE {name} SET note = 'mine'")

    pipeline.source.write("Account", [_row("1", 5, "2", Name="b")])
    pipeline.done()

    found = sorted(pipeline.rows(), key=lambda row: row[START])
    assert [(row["Name"], row["note"]) for row in found] == [("a", "mine"), ("b", None)]


def test_a_field_with_the_name_of_a_system_column_is_refused(pipeline: Pipeline) -> None:
    pipeline.source.write("Account", [_row("1", 1, "1", _fivetran_deleted="true")])

    (stream,) = pipeline.sync().streams

    assert "_fivetran_deleted, but Chronolake reserves this name" in (stream.error or "")
    assert "Account.rename: {_fivetran_deleted: source_fivetran_deleted}" in (stream.hint or "")


@pytest.mark.long
def test_fields_get_other_names(pipeline: Pipeline) -> None:
    pipeline.source.write("Account", [_row("1", 1, "1", _fivetran_deleted="true", N="5", N_i=5)])
    pipeline.configure("    rename: {columns: {_fivetran_deleted: gone, N: number}}\n")
    pipeline.done()
    assert [(row["gone"], row["number"]) for row in pipeline.rows()] == [("true", 5)]
    # A column that is renamed later contains the earlier values.
    pipeline.configure(
        "    rename: {columns: {_fivetran_deleted: gone}, tables: {Account: Account}}\n"
        "    streams: {Account: {rename: {N: total}}}\n"
    )
    pipeline.source.write("Account", [_row("1", 5, "2", N="6", N_i=6)])
    pipeline.done()
    found = sorted(pipeline.rows(), key=lambda row: row[START])
    assert [(row["gone"], row["total"]) for row in found] == [("true", 5), (None, 6)]
    assert "number" not in found[0]
    pipeline.configure("    rename: {columns: {_fivetran_deleted: N, Id: key}}\n")
    (stream,) = pipeline.sync().streams
    assert "The field _fivetran_deleted cannot be renamed to N" in (stream.error or "")


def test_a_table_is_not_rebuilt_from_fewer_files(pipeline: Pipeline) -> None:
    path = pipeline.source.write("Account", [_row("1", 1, "1", N="5", N_i=5)])
    pipeline.source.write("Account", [_row("2", 1, "1", N="6", N_i=6)])
    pipeline.done()
    before = pipeline.rows()
    path.unlink()

    # A type change would rebuild the table.
    pipeline.source.write("Account", [_row("3", 1, "1", N="x")])
    (stream,) = pipeline.sync().streams

    assert "1 of the 2 files that the table was built from are missing" in (stream.error or "")
    assert pipeline.rows() == before


@pytest.mark.long
def test_a_lost_store_does_not_stop_a_pipeline(pipeline: Pipeline) -> None:
    pipeline.source.write("Account", [_row("1", 1, "1", Name="a")])
    pipeline.done()
    pipeline.done()
    with Store.open(pipeline.project.lake).transaction() as connection:
        connection.exec_driver_sql("DELETE FROM chronolake_leases")

    pipeline.source.write("Account", [_row("1", 2, "2", Name="b")])
    pipeline.done()

    assert len(pipeline.rows()) == 2


def test_one_failing_stream_does_not_stop_the_others(pipeline: Pipeline) -> None:
    pipeline.source.write("Account", [_row("1", 1, "1", Name="x")])
    broken = pipeline.source.write("Broken", [_row("1", 1, "1")])
    broken.write_bytes(b"PAR1 is not enough")
    pipeline.source.write("Contact", [_row("1", 1, "1", Name="y")])
    events: list[Event] = []

    result = pipeline.sync(watch=events.append)

    assert result.status is Status.PARTIAL
    assert [stream.status for stream in result.streams] == [
        Status.SUCCEEDED,
        Status.FAILED,
        Status.SUCCEEDED,
    ]
    assert broken.name in (result.streams[1].error or "")
    assert [event.kind for event in events][-1] is EventKind.RUN_ENDED
    store = Store.open(pipeline.project.lake)
    (run,) = store.runs(pipeline="crm")
    assert run.status is Status.PARTIAL
    assert [stream_run.rows for stream_run in store.streams_of(run.id)] == [1, 0, 1]
    # The next run continues.
    broken.unlink()
    pipeline.source.write("Broken", [_row("1", 1, "1", Name="z")])
    pipeline.done()
    assert [row["Name"] for row in pipeline.rows("Broken")] == ["z"]


def _write_bad(path: Path, flaw: str) -> None:
    count = 2_000
    rows = pa.table(
        {
            "Id": [str(number) for number in range(count)],
            "source__modified": pa.array([_T] * count, pa.timestamp("us", tz="UTC")),
            "grax__idseq": ["1"] * count,
            "Name": [f"name {number * 7919}" for number in range(count)],
            "Size": pa.array(range(count), pa.float64()),
        }
    )
    if flaw == "null key":
        rows = rows.set_column(0, "Id", [[None, *(str(number) for number in range(1, count))]])
    options: dict[str, Any] = {"compression": "brotli" if flaw == "brotli" else "snappy"}
    if flaw == "byte stream split":
        options |= {"use_dictionary": False, "column_encoding": {"Size": "BYTE_STREAM_SPLIT"}}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path, **options)
    content = path.read_bytes()
    if flaw == "cut short":
        path.write_bytes(content[:-100])
    if flaw == "corrupt page":
        column = pq.read_metadata(path).row_group(0).column(3)
        begin = column.dictionary_page_offset or column.data_page_offset
        path.write_bytes(content[: begin + 200] + b"\xff" * 200 + content[begin + 400 :])


_FLAWS: Final = {
    "cut short": "not a readable Parquet file",
    "corrupt page": "cannot be read",
    "brotli": "compressed with Brotli",
    "byte stream split": "encoded as BYTE_STREAM_SPLIT",
    "null key": "1 rows lack their key",
}


@pytest.mark.long
def test_a_bad_file_stops_its_stream_or_is_left_out(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = {flaw: flaw.title().replace(" ", "") for flaw in _FLAWS}
    bad = {}
    for flaw, name in objects.items():
        pipeline.source.write(name, [_row("good", 1, "1", Name="x")])
        bad[flaw] = pipeline.source.path(name, 900)
        _write_bad(bad[flaw], flaw)
    errors = {stream_run.stream: stream_run.error or "" for stream_run in pipeline.sync().streams}
    for flaw, reason in _FLAWS.items():
        assert reason in errors[objects[flaw]], flaw
        assert bad[flaw].name in errors[objects[flaw]], flaw

    pipeline.configure(source=", on_bad_file: quarantine")
    pipeline.done()
    for name in objects.values():
        assert [row["Id"] for row in pipeline.rows(name)] == ["good"]
    # Known bad files are not read again, and later files are read.
    assert [stream_run.files for stream_run in pipeline.sync().streams] == [0] * len(objects)
    for name in objects.values():
        pipeline.source.files = 1_000
        pipeline.source.write(name, [_row("later", 1, "1", Name="y")])
    pipeline.done()
    project = str(pipeline.project.file)
    reported = json.loads(run_words(capsys, "status", "--project", project, "--json")[1])
    assert {
        table["stream"]: [file["mark"] for file in table["quarantined"]] for table in reported
    } == {objects[flaw]: [f"{path.parent.name}/{path.name}"] for flaw, path in bad.items()}
    assert all(table["quarantined"][0]["reason"] for table in reported)
    streams = {stream.name: stream for stream in streams_of(pipeline.project, "crm")}
    stream = streams[objects["cut short"]]
    with hold_lease(Store.open(pipeline.project.lake), "crm") as lease:
        assert differences(pipeline.lake, stream, lease).count == 0
        # The restored file is in the table that is made from all files.
        _write_bad(bad["cut short"], "")
        rebuild(pipeline.lake, stream, lease)
        assert differences(pipeline.lake, stream, lease).count == 0
    assert len(pipeline.rows(stream.name)) == 2_002
    reported = json.loads(run_words(capsys, "status", "--project", project, "--json")[1])
    assert [table["quarantined"] for table in reported if table["stream"] == stream.name] == [[]]
    code, out, _ = run_words(
        capsys, "verify", f"crm.{objects['brotli']}", "--project", project, "--json"
    )
    assert code == 0
    assert bad["brotli"].name in out


def test_a_file_without_what_every_file_has_is_named(pipeline: Pipeline) -> None:
    path = pipeline.source.write("Account", [{"Id": "1", "Name": "x"}])

    (stream,) = pipeline.sync().streams

    assert stream.status is Status.FAILED
    assert "source__modified" in (stream.error or "")
    assert str(path) in (stream.error or "")


def test_a_row_without_key_time_or_sequence_is_refused(pipeline: Pipeline) -> None:
    pipeline.source.write("Account", [_row("1", 1, "1"), {**_row("2", 1, "1"), "Id": None}])

    (stream,) = pipeline.sync().streams

    assert "1 rows lack their key" in (stream.error or "")


@pytest.mark.long
def test_a_second_process_is_refused_while_one_runs(pipeline: Pipeline) -> None:
    pipeline.source.write("Account", [_row("1", 1, "1")])

    with (
        hold_lease(Store.open(pipeline.project.lake), "crm"),
        pytest.raises(PipelineBusyError, match="crm is run by"),
    ):
        pipeline.sync()

    pipeline.done()


def test_who_lost_the_lease_publishes_nothing(pipeline: Pipeline) -> None:
    pipeline.source.write("Account", [_row("1", 1, "1", Name="one")])
    store = Store.open(pipeline.project.lake)
    with hold_lease(store, "crm", seconds=0.05):
        pass
    pipeline.done()
    before = pipeline.rows()
    (stream,) = streams_of(pipeline.project, "crm")

    with pytest.raises(LeaseLostError, match="Another process"):
        rebuild(pipeline.lake, stream, Lease("crm", 1))
    with pytest.raises(LeaseLostError, match="Another process"):
        _write_late(pipeline, stream)
    with pytest.raises(LeaseLostError, match="Another process"):
        move_watermark(pipeline.lake, stream, Lease("crm", 1), None)

    assert pipeline.rows() == before


def _write_late(pipeline: Pipeline, stream: Stream) -> None:
    """Run a rebuild whose lease passes on after it has first read the table."""
    lease = Lease("crm", 2)
    made = rebuild_module._built_from_lake

    @contextmanager
    def overtaken(*given: Any, **named: Any) -> Iterator[Any]:
        with made(*given, **named) as found:
            with hold_lease(Store.open(pipeline.project.lake), "crm") as newer:
                assert newer.token > lease.token
                move_watermark(pipeline.lake, stream, newer, stream.folder.files()[-1].mark)
            yield found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rebuild_module, "_built_from_lake", overtaken)
        rebuild(pipeline.lake, stream, lease)


def test_a_table_that_something_else_fills_is_refused(pipeline: Pipeline) -> None:
    pipeline.source.write("Account", [_row("1", 1, "1")])
    pipeline.done()
    pipeline.configure("    streams: {Contact: {table: Account}, Account: {table: Other}}\n")
    pipeline.source.write("Contact", [_row("1", 1, "1")])

    result = pipeline.sync("Contact")

    assert result.status is Status.FAILED
    assert "it is filled by crm/Account" in (result.streams[0].error or "")


@pytest.mark.long
def test_a_mode_that_changes_is_changed_before_the_data(pipeline: Pipeline) -> None:
    pipeline.source.write("Account", [_row("1", 1, "1", Name="a"), _row("1", 2, "2", Name="b")])
    pipeline.source.write("Account", [_row("2", 1, "1", Name="c", grax__deleted=_T)])
    pipeline.done()
    history = pipeline.versions("Name")

    for mode, names in (("live", ["b"]), ("soft-delete", ["b", "c"])):
        # Also without new files.
        pipeline.configure(f"    mode: {mode}\n")
        pipeline.done()
        assert sorted(row["Name"] for row in pipeline.rows()) == names
    for mode, names in (("live", ["b", "d"]), ("soft-delete", ["b", "c", "d"])):
        pipeline.configure(f"    mode: {mode}\n")
        pipeline.source.write("Account", [_row("3", 1, "1", Name="d")])
        pipeline.done()
        assert sorted(row["Name"] for row in pipeline.rows()) == names
    pipeline.configure()
    pipeline.source.write("Account", [_row("3", 1, "2", Name="e")])
    pipeline.done()

    # The lake has every version: no history is lost.
    assert pipeline.versions("Name") == [
        *history,
        ("3", _T + _SECOND, TMAX_MICROS, True, "e"),
    ]


@pytest.mark.long
def test_a_mode_that_changes_while_its_pipeline_runs(pipeline: Pipeline) -> None:
    """The mode of a table can be switched while its pipeline runs.

    The stream pauses at its next checkpoint, its table is switched, and the sync continues.
    """
    for file in range(4):
        pipeline.source.write("Account", [_row("1", file, str(file), Name=f"n{file}")])
        pipeline.source.write("Contact", [_row("1", file, str(file), Name=f"c{file}")])
    modes: list[tuple[str, int, str]] = []

    def watch(event: Event) -> None:
        stream = event.stream
        if event.kind is not EventKind.PUBLISHED or stream is None:
            return
        fields = pipeline.types(stream.stream)
        modes.append((stream.stream, stream.files, "history" if ACTIVE in fields else "live"))
        if modes == [("Account", 1, "history"), ("Account", 2, "history")]:
            pipeline.configure("    mode: live\n")
        if stream.stream == "Contact" and stream.files == 2:
            pipeline.configure("    streams: {Account: {mode: live}, Contact: {mode: history}}\n")

    for name in ("Account", "Contact"):
        result = pipeline.sync(name, watch=watch, reread=lambda: pipeline.project, step_bytes=1)
        assert result.status is Status.SUCCEEDED, [stream.error for stream in result.streams]

    assert modes == [
        ("Account", 1, "history"),
        ("Account", 2, "history"),
        ("Account", 3, "live"),
        ("Account", 4, "live"),
        ("Contact", 1, "live"),
        ("Contact", 2, "live"),
        ("Contact", 3, "history"),
        ("Contact", 4, "history"),
    ]
    assert [row["Name"] for row in pipeline.rows()] == ["n3"]
    assert [row[-1] for row in pipeline.versions("Name", name="Contact")] == [
        "c0",
        "c1",
        "c2",
        "c3",
    ]


@pytest.mark.long
def test_a_column_that_is_renamed_while_its_pipeline_runs(pipeline: Pipeline) -> None:
    """The steps after the change of chronolake.yml apply the column under its new name."""
    for file in range(4):
        pipeline.source.write("Account", [_row("1", file, str(file), Name=f"n{file}")])

    def watch(event: Event) -> None:
        stream = event.stream
        if event.kind is EventKind.PUBLISHED and stream is not None and stream.files == 2:
            pipeline.configure("    rename: {columns: {Name: title}}\n")

    result = pipeline.sync(watch=watch, reread=lambda: pipeline.project, step_bytes=1)

    assert result.status is Status.SUCCEEDED, [stream.error for stream in result.streams]
    assert "Name" not in pipeline.types("Account")
    assert [row[-1] for row in pipeline.versions("title")] == ["n0", "n1", "n2", "n3"]


@pytest.mark.long
def test_several_type_changes_cause_one_rebuild(pipeline: Pipeline) -> None:
    for key, fields in enumerate(
        [{"N": "5", "N_i": 5}, {"N": "6", "N_i": 6}, {"N": "x"}, {"D": "1", "D_i": 1}, {"D": "y"}]
    ):
        pipeline.source.write("Account", [_row(str(key), 1, "1", **fields)])
    steps: list[tuple[int, int, int]] = []

    def watch(event: Event) -> None:
        if event.kind is EventKind.PUBLISHED and event.stream is not None:
            steps.append((event.stream.files, event.stream.rows, event.files_left))

    result = pipeline.sync(watch=watch, step_bytes=1)

    assert result.status is Status.SUCCEEDED, [stream.error for stream in result.streams]
    # The third file's text makes the column a text; the same in the fifth costs nothing more.
    assert steps == [(1, 1, 4), (2, 2, 3), (5, 5, 0)]
    assert pipeline.versions("N", "D") == [
        (key, _T + _SECOND, TMAX_MICROS, True, number, other)
        for key, number, other in [
            ("0", "5", None),
            ("1", "6", None),
            ("2", "x", None),
            ("3", None, "1"),
            ("4", None, "y"),
        ]
    ]


@pytest.mark.long
def test_a_file_without_rows_is_passed_over(pipeline: Pipeline) -> None:
    pipeline.source.write("Account", [_row("1", 1, "1")])
    pipeline.done()
    empty = pipeline.source.write("Account", [_row("2", 1, "1")])
    pq.write_table(pq.read_table(empty).slice(0, 0), empty)
    (before,) = pipeline.sync().streams
    # The table does not list the empty file: the reported position is not ahead of the table's.
    assert (
        before.position
        == pipeline.source.path("Account", 1).relative_to(empty.parent.parent).as_posix()
    )
    pipeline.source.write("Account", [_row("3", 1, "1")])
    pipeline.done()
    assert [row[0] for row in pipeline.versions()] == ["1", "3"]


@pytest.mark.long
def test_only_its_pipeline_may_change_a_pipeline_table(pipeline: Pipeline) -> None:
    pipeline.source.write("Account", [_row("1", 1, "1", Name="a"), _row("1", 2, "2", Name="b")])
    pipeline.done()
    lake, name = pipeline.lake, TableName("crm", "Account")
    view = core.create_current_view(lake, name)
    before = pipeline.versions("Name")
    column = Column("New", ColumnType(Kind.INT))

    def seven(kind: ColumnType) -> pa.Scalar:
        return pa.scalar(7, kind.arrow)

    rows = lake.table(name).df
    for change in (
        lambda: migration.switch_mode(lake, name, Mode.LIVE),
        lambda: migration.rename_table(lake, name, TableName("crm", "other")),
        lambda: migration.drop_table(lake, name),
        lambda: migration.rename_column(lake, name, "Name", "Other"),
        lambda: migration.add_column_in_history(lake, name, column, seven, at_micros=_T),
        lambda: core.alter(lake, name, (KEY, column), drop_columns=True),
        lambda: core.resync(lake, name, rows, at_micros=_T, batch="r"),
    ):
        with pytest.raises(ConfigurationError, match="written by stream Account of pipeline crm"):
            change()
    assert pipeline.versions("Name") == before
    # A copy is a table of its own.
    copy = TableName("crm", "copy")
    migration.copy_table(lake, name, copy)
    assert migration.switch_mode(lake, copy, Mode.LIVE)

    pipeline.configure("    mode: live\n")
    pipeline.done()
    # The view that needs the history is dropped with it.
    assert not lake.spark.catalog.tableExists(view.sql)


def test_a_history_stream_by_its_name_has_no_other_mode(pipeline: Pipeline) -> None:
    pipeline.configure("    mode: live\n")
    pipeline.source.write("Order_history", [_row("1", 1, "1")])

    with pytest.raises(ConfigurationError, match="can only be in history mode"):
        pipeline.sync()


def test_the_sources_time_stays_where_it_is_wanted(pipeline: Pipeline) -> None:
    pipeline.configure("    keep_source_timestamp: true\n")
    at = _T + _SECOND
    pipeline.source.write("Account", [_row("1", 1, "1"), {**_row("1", 1, "2"), "Name": "x"}])
    pipeline.source.write("Account", [{**_row("1", 1, "1"), "source__modified": at + 300}])

    pipeline.done()

    found = sorted(pipeline.rows(), key=lambda row: row[START])
    # Closer than a millisecond: the later one is moved, and keeps its own time in another column.
    assert [(row[START], row["source__modified"]) for row in found] == [
        (at, at),
        (at + 1_000, at + 300),
    ]


def test_positions_are_shown_and_moved(pipeline: Pipeline) -> None:
    pipeline.source.write("Account", [_row("1", 1, "1", Name="a")])
    first = streams_of(pipeline.project, "crm")
    assert [position.watermark for position in table_offsets(pipeline.project.lake, first)] == [
        None
    ]
    pipeline.done()
    (stream,) = streams_of(pipeline.project, "crm")
    (position,) = table_offsets(pipeline.project.lake, [stream])
    assert position.watermark == stream.folder.files()[-1].mark
    assert position.capture_method == "observed-changes"
    before = pipeline.versions("Name")

    with hold_lease(Store.open(pipeline.project.lake), "crm") as lease:
        move_watermark(pipeline.lake, stream, lease, None)
    assert table_offsets(pipeline.project.lake, [stream])[0].watermark is None
    pipeline.done()

    assert pipeline.versions("Name") == before


@pytest.mark.long
def test_a_rebuilt_table_equals_the_table(pipeline: Pipeline) -> None:
    rows = _random_rows(7, files=4, rows=40)
    _write_random(pipeline.source, rows)
    pipeline.done()
    before = pipeline.versions("Name")
    old = iceberg(pipeline.project, "crm", "Account")
    (stream,) = streams_of(pipeline.project, "crm")

    with hold_lease(Store.open(pipeline.project.lake), "crm") as lease:
        rebuild(pipeline.lake, stream, lease)

    assert pipeline.versions("Name") == before
    new = iceberg(pipeline.project, "crm", "Account")
    assert new.metadata.table_uuid == old.metadata.table_uuid
    # Readers of the old table can continue.
    assert old.scan().to_arrow().num_rows == len(before)
    # The next files are written to the new one.
    pipeline.source.write("Account", [_row("zz", 1, "1", Name="after")])
    pipeline.done()
    assert ("zz", _T + _SECOND, TMAX_MICROS, True, "after") in pipeline.versions("Name")


@pytest.mark.long
def test_a_table_is_compared_with_its_lake(pipeline: Pipeline) -> None:
    _write_random(pipeline.source, _random_rows(3, files=3, rows=30))
    pipeline.done()
    (stream,) = streams_of(pipeline.project, "crm")
    usage = pipeline.lake.catalog.load(stream.table).properties

    with hold_lease(Store.open(pipeline.project.lake), "crm") as lease:
        same = differences(pipeline.lake, stream, lease)
        spark, name = pipeline.lake.spark, f"chronolake.{stream.table.sql}"
        spark.sql(f"DELETE FROM {name} WHERE _fivetran_active AND Id <= 'k4'")
        spark.sql(f"UPDATE {name} SET Name = 'other' WHERE _fivetran_active AND Id = 'k5'")
        other = differences(pipeline.lake, stream, lease)

    assert (same.missing, same.extra) == (0, 0)
    assert same.rows == other.rows + other.missing - other.extra
    assert other.missing > other.extra == 1
    # A comparison does not count as use of the table.
    assert pipeline.lake.catalog.load(stream.table).properties == usage


def _random_rows(seed: int, *, files: int, rows: int) -> list[LandedRow]:
    chance = random.Random(seed)
    found = []
    for file in range(files):
        for place in range(rows):
            modified = _T + chance.randrange(10) * _SECOND
            purged = deleted = None
            if chance.random() < 0.1:
                purged = modified + chance.randrange(-2, 6) * _SECOND
            if chance.random() < 0.2:
                deleted = modified + chance.randrange(-1, 5) * _SECOND
            form = chance.choice(["i", "i", "f", "text", None]) if file > 1 else "i"
            text = {"i": str(place), "f": f"{place}.50", "text": f"n{place}", None: None}[form]
            fields = {"Name": f"{file}.{place}", "N": text, "form": form}
            source = None
            if deleted is not None:
                # Purges with equal times are equal.
                draw = chance.randrange(2) if purged is None else (purged + deleted) // _SECOND
                source = "grax" if draw % 2 else "source"
            found.append(
                LandedRow(
                    f"k{chance.randrange(12)}",
                    modified,
                    chance.choice(["9", "a", "10", "1a"]),
                    (file, place),
                    deleted,
                    purged,
                    {} if purged is not None else fields,
                    delete_source=source,
                )
            )
    return found


def _write_random(source: DataLake, rows: Sequence[LandedRow]) -> None:
    for number in sorted({row.place[0] for row in rows}):
        _write_file(source, [row for row in rows if row.place[0] == number])


def _write_file(source: DataLake, rows: Sequence[LandedRow]) -> None:
    written = []
    for row in rows:
        fields: dict[str, Any] = {"Name": row.fields.get("Name"), "N": row.fields.get("N")}
        if row.fields.get("form") == "i":
            fields["N_i"] = int(row.fields["N"])
        elif row.fields.get("form") == "f":
            fields["N_f"] = float(row.fields["N"])
        written.append(file_row(row, **fields))
    source.write("Account", written)


def _expected(rows: Sequence[LandedRow]) -> list[tuple[Any, ...]]:
    forms = {row.fields.get("form") for row in rows} - {None}
    of_type = str if "text" in forms else float if "f" in forms else int

    def value(text: str | None) -> Any:
        return None if text is None else of_type(text)

    return sorted(
        (
            version.key,
            version.start,
            version.end,
            version.active,
            # A version that is known from a purge alone has no fields.
            version.fields.get("Name"),
            value(version.fields.get("N")),
            version.delete_source,
        )
        for version in pipeline_model.versions(rows, 1_000)
    )


@pytest.mark.parametrize("seed", with_drawn_seeds(1, test="data lake", number=10))
def test_a_table_is_a_function_of_its_files(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table is a function of its files.

    It does not depend on how files are distributed over runs, on changes of their fields, or on
    where a run breaks off.
    """
    chance = random.Random(seed)
    pipeline = Pipeline(tmp_path)
    files = 7
    rows = _random_rows(seed, files=files, rows=30)
    done = 0
    while done < files:
        upto = min(files, done + chance.choice([1, 2, 3]))
        for number in range(done, upto):
            _write_file(pipeline.source, [row for row in rows if row.place[0] == number])
        before, done = done, upto
        old, new = (_expected([row for row in rows if row.place[0] < n]) for n in (before, done))
        while chance.random() < 0.4:
            point = chance.choice(FAILPOINTS)
            monkeypatch.setenv("CHRONOLAKE_FAILPOINT", f"{point}=raise")
            pipeline.sync()
            monkeypatch.delenv("CHRONOLAKE_FAILPOINT")
            if pipeline.lake.describe(TableName("crm", "Account")) is not None:
                found = [row[:4] for row in pipeline.versions()]
                assert found in ([row[:4] for row in old], [row[:4] for row in new]), point
        pipeline.done()
        assert pipeline.versions("Name", "N", "grax__deletesource") == new
        assert core.verify(pipeline.lake, TableName("crm", "Account")).holds
    (stream,) = streams_of(pipeline.project, "crm")
    with hold_lease(Store.open(pipeline.lake.config), "crm") as lease:
        # A table made from all files at once would be the same.
        found = differences(pipeline.lake, stream, lease)
    assert (found.missing, found.extra) == (0, 0)


@pytest.mark.long
def test_ten_thousand_files_with_three_hundred_schemas(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    chance = random.Random(5)
    schemas = [
        [f"F{field}" for field in sorted(chance.sample(range(400), chance.randrange(3, 12)))]
        for _ in range(300)
    ]
    files = 10_000
    for number in range(files):
        names = schemas[number % len(schemas)]
        fields: dict[str, Any] = dict.fromkeys(names, f"{number}")
        fields[f"{names[0]}_i"] = number
        pipeline.source.write("Account", [_row(f"k{number % 500}", number, "1", **fields)])

    pipeline.done()

    found = pipeline.rows()
    assert len(found) == files
    assert sum(row[ACTIVE] for row in found) == 500
    assert core.verify(pipeline.lake, TableName("crm", "Account")).holds


@pytest.mark.parametrize("seed", range(4))
def test_forms_of_fields_are_found_in_footers_and_columns(pipeline: Pipeline, seed: int) -> None:
    """Footers and columns show the forms of fields, also without statistics or rows."""
    chance = random.Random(seed)
    forms: dict[str, set[str]] = {}
    for number in range(12):
        rows = []
        for place in range(chance.choice([1, 2, 3])):
            row: dict[str, Any] = _row(f"k{place}", number, "1")
            for name in chance.sample(["A", "B", "C", "D"], 3):
                value, typed = chance.choice(
                    [(None, {}), ("", {}), ("x", {}), ("7", {"_i": 7}), ("0.5", {"_f": 0.5}),
                     (str(2**40), {"_i": 2**40}), ("true", {"_b": True})]
                )  # fmt: skip
                row |= {name: value} | {name + ending: cell for ending, cell in typed.items()}
                if value:
                    form = next(iter(typed), "text") + ("l" if value == str(2**40) else "")
                    forms.setdefault(name, set()).add(form)
            rows.append(row)
        pipeline.source.write("Account", rows, statistics=number % 3 > 0)

    files = streams_of(pipeline.project, "crm")[0].folder.files()
    found = inspect_files(pipeline.lake.spark, files).observed

    words = {"_i": "int", "_il": "long", "_f": "float", "_b": "boolean", "text": "text"}

    def widest(types: set[str]) -> set[str]:
        # Of the integers, only the greatest type counts, whether there are others or not.
        return types - {"int"} if "long" in types else types

    assert {
        name: widest({kind.value for kind in types}) for name, types in found.items() if types
    } == {name: widest({words[form] for form in types}) for name, types in forms.items()}
