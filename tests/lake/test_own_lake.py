"""In our own raw lake, landed rows form a Data Lake v2, and are read as they were declared."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import count, permutations
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame

from chronolake import change_set
from chronolake.config import OnPurge
from chronolake.errors import BatchError, LeaseLostError, SchemaError, SourceError
from chronolake.failpoints import FailpointError
from chronolake.lake import Lake
from chronolake.landing import ObjectFolder, inspect_files, parse_field_type, type_of
from chronolake.landing.file_sequence import StagedFiles, publish, staging
from chronolake.landing.writer import land
from chronolake.pipeline.apply import apply
from chronolake.pipeline.lease import Lease, hold_lease
from chronolake.pipeline.rebuild import differences
from chronolake.pipeline.store import LEASES, Store
from chronolake.pipeline.streams import Stream
from chronolake.pipeline.table_writer import TableWriter
from chronolake.source.protocol import CaptureMethod, StreamDescriptor
from chronolake.stream_modes import StreamCapabilities
from chronolake.types import Column, ColumnType, Kind, Mode, TableName
from support.datalakes import iceberg_in
from support.document_reader import DocumentReader, micros
from support.seeds import with_drawn_seeds

_T: Final = 1_767_225_600_000_000
_SECOND: Final = 1_000_000
_NAME: Final = re.compile(r"batch=[0-9a-f]{9}/data-[0-9a-f]{11}\.parquet")
_numbers: Final = count()
_FIXED: Final = (
    pa.field(change_set.MODIFIED, pa.int64()),
    pa.field(change_set.SEQUENCE, pa.string()),
    pa.field(change_set.DELETED_AT, pa.int64()),
    pa.field(change_set.PURGED_AT, pa.int64()),
)

_OPTIONAL: Final = {
    change_set.OPERATED: pa.string(),
    change_set.PROVIDES_DATA: pa.bool_(),
    change_set.OMITTED: pa.list_(pa.string()),
}


def column(name: str, kind: Kind | ColumnType, *, key: bool = False) -> Column:
    return Column(name, kind if isinstance(kind, ColumnType) else ColumnType(kind), key)


def version(at: int, sequence: str = "1", **cells: Any) -> dict[str, Any]:
    return {change_set.MODIFIED: _T + at * _SECOND, change_set.SEQUENCE: sequence, **cells}


class Own:
    """A stream whose versions are landed by Chronolake, and its table."""

    def __init__(self, lake: Lake, root: Path) -> None:
        self.lake = lake
        self.folder = ObjectFolder(root, "shop", "orders")
        self.stream = Stream(
            pipeline="shop",
            descriptor=StreamDescriptor(
                StreamCapabilities("orders", reports_changes=True),
                CaptureMethod.EVERY_CHANGE,
                epsilon_micros=1,
                folder=self.folder,
            ),
            table=TableName(f"own_{next(_numbers)}", "orders"),
            mode=Mode.HISTORY,
            keep_source_timestamp=False,
            on_purge=OnPurge.CLOSE,
        )
        self.mark: str | None = None

    def frame(self, columns: Sequence[Column], rows: Sequence[dict[str, Any]]) -> DataFrame:
        fields = [pa.field(column.name, column.type.arrow) for column in columns]
        extra = {name for row in rows for name in row} & _OPTIONAL.keys()
        fields += [*_FIXED, *(pa.field(name, _OPTIONAL[name]) for name in sorted(extra))]
        cells = {field.name: [row.get(field.name) for row in rows] for field in fields}
        return self.lake.spark.createDataFrame(pa.table(cells, schema=pa.schema(fields)))

    def land(
        self,
        columns: Sequence[Column],
        rows: Sequence[dict[str, Any]],
        *,
        each_once: bool = False,
        has_new_columns: bool = False,
        files: int = 1,
    ) -> list[Path]:
        frame = self.frame(columns, rows).coalesce(1)
        if files > 1:
            frame = frame.repartition(files)
        landed = land(
            frame,
            columns,
            self.folder,
            guard=lambda: None,
            each_once=each_once,
            has_new_columns=has_new_columns,
        )
        return [file.path for file in landed]

    def keep(self, *, on_purge: OnPurge, is_ours: bool) -> None:
        offered = replace(self.stream.descriptor, is_ours=is_ours)
        self.stream = replace(self.stream, on_purge=on_purge, descriptor=offered)

    def apply(self) -> None:
        files = self.folder.files(after=self.mark)
        writer = TableWriter(self.lake, self.stream, Lease("shop", 1))
        for step in apply(writer, writer.find(), files):
            self.mark = step.watermark

    def table(self) -> pa.Table:
        name = self.stream.table
        return iceberg_in(self.lake.config, name.schema, name.table).scan().to_arrow()

    def rows(self, *names: str) -> list[tuple[Any, ...]]:
        found = self.table().to_pylist()
        return sorted((tuple(row[name] for name in names) for row in found), key=repr)

    def agrees(self) -> bool:
        found = differences(self.lake, self.stream, Lease("shop", 1))
        return found.missing == found.extra == 0


@pytest.fixture
def own(lake: Lake, tmp_path: Path) -> Own:
    return Own(lake, tmp_path / "raw")


EVERY: Final = (
    column("id", Kind.LONG, key=True),
    column("flag", Kind.BOOLEAN),
    column("small", Kind.SHORT),
    column("whole", Kind.INT),
    column("large", Kind.LONG),
    column("price", ColumnType(Kind.DECIMAL, 38, 10)),
    column("ratio", Kind.FLOAT),
    column("exact", Kind.DOUBLE),
    column("day", Kind.NAIVE_DATE),
    column("local", Kind.NAIVE_DATETIME),
    column("instant", Kind.UTC_DATETIME),
    column("bytes", Kind.BINARY),
    column("xml", Kind.XML),
    column("text", Kind.STRING),
    column("json", Kind.JSON),
    column("clock", Kind.NAIVE_TIME),
)
_LEAST: Final = {
    "flag": False,
    "small": -(2**15),
    "whole": -(2**31),
    "large": -(2**63),
    "price": Decimal("-9999999999999999999999999999.9999999999"),
    "ratio": -3.4028234663852886e38,
    "exact": 5e-324,
    "day": date(1, 1, 1),
    "local": datetime(1, 1, 1),
    "instant": datetime(1, 1, 1, tzinfo=UTC),
    "bytes": b"",
    "xml": "",
    "text": "",
    "json": "{}",
    "clock": "00:00:00",
}
_GREATEST: Final = {
    "flag": True,
    "small": 2**15 - 1,
    "whole": 2**31 - 1,
    "large": 2**63 - 1,
    "price": Decimal("0.0000000001"),
    "ratio": float("inf"),
    "exact": 1.7976931348623157e308,
    "day": date(9999, 12, 31),
    "local": datetime(9999, 12, 31, 23, 59, 59, 999999),
    "instant": datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    "bytes": bytes(range(256)),
    "xml": "<a>&amp;</a>",
    "text": 'null\n"quoted", ünïcödé \U0001f600 ${HOME} \\',
    "json": '{"a": [1, 2]}',
    "clock": "23:59:59.999999",
}


def test_every_type_is_read_as_it_was_declared(own: Own) -> None:
    rows = [
        version(1, id=-(2**63), **_LEAST),
        version(2, id=2**63 - 1, **_GREATEST),
        version(3, id=0),
    ]
    own.land(EVERY, rows)
    own.apply()

    table = own.table()
    for column in EVERY:
        kept = table.schema.field(column.name).type
        wanted = column.type.arrow
        large = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
        assert large.get(kept, kept) == wanted, column.name
    found = {row["id"]: row for row in table.to_pylist()}
    for row in rows:
        for column in EVERY:
            assert found[row["id"]][column.name] == row.get(column.name), column.name
    assert own.agrees()


def test_what_is_landed_is_a_data_lake(own: Own) -> None:
    columns = (
        column("id", Kind.LONG, key=True),
        column("Name", Kind.STRING),
        column("Age", Kind.INT),
        column("Empty", Kind.INT),
        # Fields whose names clash with other columns.
        column("name", Kind.STRING),
        column("Age_i", Kind.STRING),
        column("chronolake__own", Kind.STRING),
    )
    cells = {"Name": "Ann", "Age": 41, "name": "ann", "Age_i": "x", "chronolake__own": "o"}
    (path,) = own.land(columns, [version(1, id=7, **cells, **{change_set.OPERATED: "insert"})])

    assert _NAME.fullmatch(str(path.relative_to(own.folder.path)))
    assert own.folder.path == own.folder.root / "parquet/v2/org=shop/object=orders"
    # No code of ours reads it here.
    (row,) = pq.read_table(path, partitioning=None).to_pylist()
    assert row == {
        "Id": "7",
        "source__modified": datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC),
        "grax__idseq": "1",
        "chronolake__operation": "insert",
        "Name": "Ann",
        "Age": "41",
        "chronolake__field_4": "ann",
        "Age_i": "x",
        "chronolake__field_6": "o",
    }
    assert len({name.lower() for name in row}) == len(row)
    own.apply()
    names = [column.name for column in columns]
    assert own.rows(*names) == [(7, "Ann", 41, None, "ann", "x", "o")]
    types = {field.name: str(field.type) for field in own.table().schema}
    assert types["Empty"] == "int32", "a field without a value is a column all the same"


def test_others_read_it_by_the_rules_of_data_lakes(own: Own, lake: Lake) -> None:
    """Other readers can read it by the rules of data lakes.

    Without our metadata in the footer, typed fields are separate columns next to texts.
    """
    columns = (
        column("id", Kind.LONG, key=True),
        column("Age", Kind.INT),
        column("At", Kind.UTC_DATETIME),
        column("Price", ColumnType(Kind.DECIMAL, 10, 2)),
    )
    at = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
    (path,) = own.land(columns, [version(1, id=7, Age=41, At=at, Price=Decimal("1.50"))])
    bare = pq.read_table(path, partitioning=None).replace_schema_metadata(None)
    pq.write_table(bare, path)

    found = inspect_files(lake.spark, own.folder.files())

    assert found.key == ("Id",)
    assert {name: sorted(map(str, seen)) for name, seen in found.observed.items()} == {
        "Age": ["int"],
        "At": ["timestamp"],
        "Price": ["text"],
    }


READABLE: Final = (
    column("id", Kind.LONG, key=True),
    column("Name", Kind.STRING),
    column("Price", ColumnType(Kind.DECIMAL, 10, 2)),
    column("Size", Kind.INT),
    column("Ratio", Kind.DOUBLE),
    column("IsNew", Kind.BOOLEAN),
    column("Day", Kind.NAIVE_DATE),
    column("At", Kind.UTC_DATETIME),
    column("grax__restoredfrom", Kind.STRING),
    column("grax__deletesource", Kind.STRING),
)


def _random_versions(chance: random.Random) -> list[dict[str, Any]]:
    """Return versions of 20 records: changes, deletions and archivals."""
    rows = []
    for key in range(20):
        times = sorted(chance.sample(range(1_000), chance.randrange(1, 9)))
        for at in times:
            row = version(at, f"{at:08x}", id=key)
            gone = _T + at * _SECOND
            if chance.random() < 0.2:
                source = chance.choice([None, "grax"])
                row |= {change_set.DELETED_AT: gone, change_set.PROVIDES_DATA: False}
                rows.append(row | {"grax__deletesource": source})
                continue
            row |= {
                "Name": chance.choice([None, "Ann", "Ünï 'x'"]),
                "Price": chance.choice([None, Decimal("1.50"), Decimal("-0.07")]),
                "Size": chance.choice([None, 0, -7, 2**31 - 1]),
                "Ratio": chance.choice([None, 0.1, -1e300]),
                "IsNew": chance.choice([None, True, False]),
                "Day": chance.choice([None, date(2026, 2, 3)]),
                "At": chance.choice([None, datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC)]),
                "grax__restoredfrom": chance.choice([None, "7"]),
                change_set.PROVIDES_DATA: True,
            }
            if chance.random() < 0.2:
                row |= {change_set.DELETED_AT: gone + chance.randrange(1, 200 * _SECOND)}
            rows.append(row)
    return rows


def _land_shuffled(own: Own, chance: random.Random, rows: list[dict[str, Any]]) -> None:
    """Land versions in any order, some of them twice, in several files."""
    written = [*rows, *chance.sample(rows, len(rows) // 3)]
    chance.shuffle(written)
    for number in range(3):
        own.land(READABLE, written[number::3])


def _plain_value(value: object) -> object:
    """Return a table's value as the document has it: a text unless there is a typed column."""
    if isinstance(value, Decimal):
        return str(value)
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


@pytest.mark.parametrize("seed", with_drawn_seeds(1, test="document reader", number=4))
def test_a_reader_that_knows_only_the_document_makes_the_same_history(own: Own, seed: int) -> None:
    """An independent reader in DuckDB reconstructs the table (`support.document_reader`)."""
    chance = random.Random(seed)
    _land_shuffled(own, chance, _random_versions(chance))
    own.apply()

    reader = DocumentReader(own.folder.path)

    names = [column.name for column in READABLE[1:] if not column.name.startswith("grax__")]
    assert list(reader.fields) == names
    read = [
        (
            row["Id"],
            micros(row["source__modified"]),
            micros(row["_end"]),
            row["grax__restoredfrom"],
            row["grax__deletesource"],
            *(row[name] for name in names),
        )
        for row in reader.history()
    ]
    stored = [
        (
            str(row["id"]),
            row["_fivetran_start"],
            None if row["_fivetran_active"] else row["_fivetran_end"],
            row["grax__restoredfrom"],
            row["grax__deletesource"],
            *(_plain_value(row[name]) for name in names),
        )
        for row in _with_micros(own.table())
    ]
    assert len(read) > 20
    assert sorted(read, key=repr) == sorted(stored, key=repr)


@pytest.mark.parametrize("seed", with_drawn_seeds(2, test="document reader, live", number=2))
def test_a_reader_that_knows_only_the_document_finds_the_current_rows(own: Own, seed: int) -> None:
    own.stream = replace(own.stream, mode=Mode.LIVE)
    chance = random.Random(seed)
    rows = _random_versions(chance)
    purge = {change_set.PURGED_AT: _T, change_set.PROVIDES_DATA: False}
    rows += [version(2_000, "ffffffff", id=key, **purge) for key in range(3)]
    _land_shuffled(own, chance, rows)
    own.apply()

    reader = DocumentReader(own.folder.path)

    names = list(reader.fields)
    read = [(row["Id"], *(row[name] for name in names)) for row in reader.current()]
    stored = [
        (str(row["id"]), *(_plain_value(row[name]) for name in names))
        for row in own.table().to_pylist()
    ]
    assert 0 < len(read) < 17
    assert sorted(read, key=repr) == sorted(stored, key=repr)


def _with_micros(table: pa.Table) -> list[dict[str, Any]]:
    for name in ("_fivetran_start", "_fivetran_end"):
        place = table.column_names.index(name)
        table = table.set_column(place, name, table[name].cast(pa.int64()))
    return table.to_pylist()


def test_only_documented_columns_and_our_own_are_in_files(own: Own) -> None:
    """Files have the document's columns, the record's fields, and `chronolake__…`."""
    gone = {change_set.DELETED_AT: _T + 5 * _SECOND}
    tombstone = gone | {change_set.PROVIDES_DATA: False}
    purge = {change_set.PURGED_AT: _T, change_set.PROVIDES_DATA: False}
    fields = {"Size": 1, change_set.PROVIDES_DATA: True}
    rows = [
        version(1, id=1, **fields, grax__restoredfrom="9"),
        version(5, "2", id=1, **tombstone, **{change_set.OPERATED: "delete"}),
        version(1, id=2, **fields, **gone, grax__deletesource="grax"),
        version(1, id=3, **fields, **{change_set.OMITTED: ["Name"]}),
        version(1, id=4, **purge, grax__deletesource="grax"),
    ]
    (path,) = own.land(READABLE, rows)

    table = pq.read_table(path, partitioning=None)
    found = table.to_pylist()
    documented = {
        "Id", "source__modified", "grax__idseq", "grax__deleted", "grax__deletesource",
        "grax__purged", "grax__restoredfrom",
    }  # fmt: skip
    ours = {name for name in table.column_names if name.startswith("chronolake__")}
    assert ours == {"chronolake__is_mark", "chronolake__operation", "chronolake__unmodified"}
    assert set(table.column_names) - documented - ours == {"Size", "Size_i"}
    assert [row["grax__deletesource"] for row in found] == [None, "source", "grax", None, None]
    assert [row["grax__restoredfrom"] for row in found] == ["9", None, None, None, None]
    assert table.schema.field("grax__deletesource").type == pa.string()


def test_deletions_of_any_stream_have_their_source(own: Own) -> None:
    """A stream without a field for it: every deletion is one of the source."""
    columns = (
        column("id", Kind.LONG, key=True),
        column("name", Kind.STRING),
        # Not a text, or not exactly the document's name: ordinary fields.
        column("GRAX__DELETESOURCE", Kind.STRING),
        column("grax__restoredfrom", Kind.LONG),
    )
    gone = {change_set.DELETED_AT: _T + 2 * _SECOND, change_set.PROVIDES_DATA: False}
    exists = {change_set.PROVIDES_DATA: True}
    rows = [
        version(1, id=1, name="a", GRAX__DELETESOURCE="x", grax__restoredfrom=5, **exists),
        version(2, "2", id=1, **gone),
        version(1, id=2, name="b", **exists),
    ]
    (path,) = own.land(columns, rows)
    own.apply()

    found = pq.read_table(path, partitioning=None).to_pylist()
    assert [row["grax__deletesource"] for row in found] == [None, "source", None]
    assert found[0]["grax__restoredfrom"] == "5"
    assert "grax__restoredfrom_i" not in found[0]
    assert len({name.lower() for name in found[0]}) == len(found[0])
    assert own.rows("id", "name", "GRAX__DELETESOURCE", "grax__restoredfrom") == [
        (1, "a", "x", 5),
        (2, "b", None, None),
    ]
    assert "grax__deletesource" not in own.table().column_names
    assert own.agrees()


@pytest.mark.long
def test_composite_keys_are_compared_part_by_part(own: Own) -> None:
    columns = (
        column("left", Kind.STRING, key=True),
        column("right", Kind.STRING, key=True),
        column("n", Kind.INT),
    )
    rows = [
        version(1, left="a", right="bc", n=1),
        version(2, left="ab", right="c", n=2),
        version(3, left='a","b', right="c", n=3),
        version(4, left="a", right='b","c', n=4),
        version(5, left="", right="abc", n=5),
        version(6, left="a", right="bc", n=6),
    ]
    (path,) = own.land(columns, rows)
    own.apply()

    written = pq.read_table(path, partitioning=None).to_pylist()
    ids = [row["Id"] for row in written]
    assert len(set(ids)) == 5
    assert [json.loads(text) for text in ids] == [[row["left"], row["right"]] for row in rows]
    assert own.rows("n", "left", "right", "_fivetran_active") == [
        (row["n"], row["left"], row["right"], row["n"] != 1) for row in rows
    ]
    assert own.agrees()


@pytest.mark.long
@pytest.mark.parametrize(
    "mode",
    [
        Mode.HISTORY,
        pytest.param(Mode.SOFT_DELETE, marks=pytest.mark.long),
        pytest.param(Mode.LIVE, marks=pytest.mark.long),
    ],
)
def test_a_landing_with_each_record_once_makes_the_table_that_any_makes(
    lake: Lake, tmp_path: Path, mode: Mode
) -> None:
    columns = (
        column("id", Kind.LONG, key=True),
        column("name", Kind.STRING),
        column("rare", Kind.INT),
    )
    rows = [version(1, id=key, name=f"n{key}", rare=5 if key == 7 else None) for key in range(20)]
    later = [version(2, "2", id=3, name="new"), version(3, "3", id=30, name="more")]
    tables = []
    for each_once in (True, False):
        own = Own(lake, tmp_path / str(each_once))
        own.stream = replace(own.stream, mode=mode)
        assert len(own.land(columns, rows, each_once=each_once, files=3)) == 3
        own.apply()
        own.land(columns, later, each_once=each_once)
        own.apply()
        assert own.agrees()
        found = own.table().drop_columns(["_fivetran_synced"]).to_pylist()
        tables.append(sorted(found, key=repr))
    assert tables[0] == tables[1]
    assert len(tables[0]) == (22 if mode is Mode.HISTORY else 21)


@pytest.mark.long
def test_columns_are_known_before_any_record(own: Own) -> None:
    first = (
        column("id", Kind.LONG, key=True),
        column("place", Kind.STRING, key=True),
        column("state", Kind.STRING),
    )
    assert own.land(first, []) == []
    (file,) = own.land(first, [], has_new_columns=True)
    assert pq.read_metadata(file).num_rows == 0
    own.apply()
    assert own.table().num_rows == 0
    assert own.table().column_names[:3] == ["id", "place", "state"]

    own.land(first, [version(0, id=1, place="a", state="new")], each_once=True)
    own.apply()
    own.land((*first, column("paid", Kind.BOOLEAN)), [], has_new_columns=True)
    own.apply()
    assert own.rows("id", "state", "paid") == [(1, "new", None)]
    assert own.agrees()


@pytest.mark.long
def test_what_is_known_of_one_landing_is_not_known_of_two(own: Own) -> None:
    columns = (column("id", Kind.LONG, key=True), column("name", Kind.STRING))
    own.land(columns, [version(1, id=1, name="a"), version(1, id=2, name="a")], each_once=True)
    own.land(columns, [version(2, "2", id=1, name="b")], each_once=True)
    own.apply()
    assert own.rows("id", "name", "_fivetran_active") == [
        (1, "a", False),
        (1, "b", True),
        (2, "a", True),
    ]
    assert own.agrees()


def test_records_that_were_deleted_are_ended_though_each_is_there_once(own: Own) -> None:
    columns = (column("id", Kind.LONG, key=True), column("name", Kind.STRING))
    gone = {change_set.DELETED_AT: _T + 5 * _SECOND}
    own.land(columns, [version(1, id=1, name="a", **gone), version(1, id=2)], each_once=True)
    own.apply()
    assert own.rows("id", "_fivetran_active") == [(1, False), (2, True)]


def test_a_purged_version_lands_without_values(own: Own) -> None:
    columns = (
        column("a", Kind.INT, key=True),
        column("b", Kind.INT, key=True),
        column("name", Kind.STRING),
    )
    purge = {change_set.PURGED_AT: _T + 9 * _SECOND}
    own.land(columns, [version(1, a=1, b=2, name="Ann"), version(1, "2", a=1, b=2, **purge)])
    (path,) = own.land(columns, [version(1, "3", a=1, b=2, name="must not stay", **purge)])
    own.apply()

    assert own.rows("a", "b", "name", "_fivetran_active") == [(1, 2, "Ann", False)]
    assert b"must not stay" not in path.read_bytes()


def _purgeable(own: Own) -> tuple[Column, ...]:
    """Land two records with two versions each, of which the first is to be purged."""
    columns = (
        column("left", Kind.STRING, key=True),
        column("right", Kind.LONG, key=True),
        column("name", Kind.STRING),
        column("size", Kind.INT),
    )
    first = {"left": "a", "right": 1}
    other = {"left": "a", "right": 2}
    own.land(columns, [version(1, **first, name="secret1", size=111_111)])
    own.land(columns, [version(1, **other, name="kept1", size=7)])
    own.land(
        columns,
        [version(2, "2", **other, name="kept2"), version(2, "2", **first, name="secret2")],
    )
    own.apply()
    return columns


def _said(folder: ObjectFolder) -> list[tuple[str, Any, Any]]:
    """Return the content of the files: identifier, name and size of each row, in order."""
    for file in folder.files():
        for row in pq.read_table(file.path, partitioning=None).to_pylist():
            assert row.get("size_i") == (row.get("size") and int(row["size"]))
    return [
        (row["Id"], row.get("name"), row.get("size"))
        for file in folder.files()
        for row in pq.read_table(file.path, partitioning=None).to_pylist()
    ]


def test_erased_values_are_removed_from_our_own_files(own: Own, lake: Lake) -> None:
    own.keep(on_purge=OnPurge.ERASE, is_ours=True)
    columns = _purgeable(own)
    before = {file.mark: file.path.stat().st_ino for file in own.folder.files()}
    key = {"left": "a", "right": 1}

    own.land(columns, [version(2, "3", **key, **{change_set.PURGED_AT: _T + 5 * _SECOND})])
    own.apply()

    first, other = '["a","1"]', '["a","2"]'
    erased = [
        (first, None, None),
        (other, "kept1", "7"),
        (other, "kept2", None),
        (first, None, None),
        (first, None, None),
    ]
    assert _said(own.folder) == erased
    after = {file.mark: file.path.stat().st_ino for file in own.folder.files()}
    is_same = [after[mark] == inode for mark, inode in before.items()]
    assert is_same == [False, True, False], "only records with content are written again"
    # Late versions, and one that came after the purge.
    (late,) = own.land(
        columns,
        [
            version(0, **key, name="secret0", size=222_222),
            version(3, **key, name="secret3"),
            version(6, **key, name="back"),
        ],
    )
    own.apply()
    assert _said(own.folder)[len(erased) :] == [
        (first, None, None),
        (first, None, None),
        (first, "back", None),
    ]
    for file in own.folder.files():
        assert b"secret" not in file.path.read_bytes()
    found = own.rows("right", "name", "size", "_fivetran_active")
    assert found == [
        (1, "back", None, True),
        *[(1, None, None, False)] * 4,
        (2, "kept1", 7, False),
        (2, "kept2", None, True),
    ]
    assert own.agrees()
    for file in (late, *(file.path for file in own.folder.files())):
        row = pq.read_table(file, partitioning=None).to_pylist()[0]
        assert row["left"] == "a", "whose the rows are stays"


@pytest.mark.long
def test_what_was_purged_before_erasing_was_wanted(own: Own) -> None:
    own.keep(on_purge=OnPurge.CLOSE, is_ours=True)
    columns = _purgeable(own)
    purge = {
        change_set.PURGED_AT: _T + 5 * _SECOND,
        change_set.PROVIDES_DATA: True,
        "name": "must not land",
    }
    (path,) = own.land(columns, [version(2, "3", left="a", right=1, **purge)])
    own.apply()
    assert "name" not in pq.read_schema(path).names
    assert len([name for _, name, _ in _said(own.folder) if name]) == 4

    own.keep(on_purge=OnPurge.ERASE, is_ours=True)
    own.apply()

    assert [name for _, name, _ in _said(own.folder) if name] == ["kept1", "kept2"]
    assert own.rows("right", "name") == [(1, None), (1, None), (2, "kept1"), (2, "kept2")]
    assert own.agrees()


def test_who_lost_the_lease_erases_nothing(own: Own, lake: Lake) -> None:
    own.keep(on_purge=OnPurge.ERASE, is_ours=True)
    columns = _purgeable(own)
    purge = {change_set.PURGED_AT: _T + 5 * _SECOND}
    own.land(columns, [version(2, "3", left="a", right=1, **purge)])
    before = _said(own.folder)
    store = Store.open(lake.config)
    pipeline = f"shop{next(_numbers)}"
    with hold_lease(store, pipeline, seconds=0.0) as lost:
        with store.transaction() as connection:
            connection.execute(
                LEASES.update().where(LEASES.c.pipeline == pipeline).values(token=lost.token + 1)
            )
        files = own.folder.files(after=own.mark)
        writer = TableWriter(own.lake, own.stream, lost)
        with pytest.raises(LeaseLostError, match="Another process has taken over the pipeline"):
            list(apply(writer, writer.find(), files))

    assert _said(own.folder) == before


@pytest.mark.long
def test_erasing_that_was_cut_off_is_done_again(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    own.keep(on_purge=OnPurge.ERASE, is_ours=True)
    columns = _purgeable(own)
    purge = {change_set.PURGED_AT: _T + 5 * _SECOND}
    own.land(columns, [version(2, "3", left="a", right=1, **purge)])

    with monkeypatch.context() as patched:
        patched.setenv("CHRONOLAKE_FAILPOINT", "land.file-replaced=raise")
        with pytest.raises(FailpointError):
            own.apply()
    half_done = [name for _, name, _ in _said(own.folder) if name]
    assert sorted(half_done)[:2] == ["kept1", "kept2"]
    assert len(half_done) == 3, "one of two files was replaced"
    own.apply()

    assert [name for _, name, _ in _said(own.folder) if name] == ["kept1", "kept2"]
    assert own.agrees()
    assert list((own.folder.path / "_staging").iterdir()) == []


@pytest.mark.sampled
@pytest.mark.parametrize(("on_purge", "is_ours"), [(OnPurge.CLOSE, True), (OnPurge.ERASE, False)])
def test_files_are_not_changed_otherwise(own: Own, on_purge: OnPurge, *, is_ours: bool) -> None:
    """Files are not changed otherwise.

    A purge that only closes changes none, and files that someone else has written are never
    changed.
    """
    own.keep(on_purge=on_purge, is_ours=is_ours)
    columns = _purgeable(own)
    purge = {change_set.PURGED_AT: _T + 5 * _SECOND}
    own.land(columns, [version(2, "3", left="a", right=1, **purge)])
    before = [file.path.read_bytes() for file in own.folder.files()]

    own.apply()

    assert [file.path.read_bytes() for file in own.folder.files()] == before


@pytest.mark.long
def test_what_a_log_leaves_out_is_as_it_was(own: Own) -> None:
    """Values that a log leaves out stay unchanged.

    There are deletions with only a key, and updates without unchanged columns.
    """
    columns = (
        column("id", Kind.INT, key=True),
        column("price", ColumnType(Kind.DECIMAL, 9, 2)),
        column("text, large", Kind.STRING),
    )
    reported = {change_set.PROVIDES_DATA: True}
    price = Decimal("9.50")
    omitted = {change_set.OMITTED: ["text, large"], change_set.OPERATED: "update"}
    deleted = {
        change_set.PROVIDES_DATA: False,
        change_set.DELETED_AT: _T + 3 * _SECOND,
        "price": price,
    }
    first = [
        version(1, id=1, price=price, **{"text, large": "long", **reported}),
        version(1, id=2, price=price, **{"text, large": "same", **reported}),
    ]
    second = [
        version(2, "2", id=1, price=None, **reported, **omitted),
        version(3, "3", id=1, **deleted),
        version(4, "4", id=2, price=None, **reported, **omitted),
    ]
    own.land(columns, first)
    own.apply()
    (path,) = own.land(columns, second)
    own.apply()

    written = pq.read_table(path, partitioning=None).to_pylist()
    assert [row["chronolake__unmodified"] for row in written] == [
        '["text, large"]',
        None,
        '["text, large"]',
    ]
    assert [row["chronolake__is_mark"] for row in written] == [None, True, None]
    assert "price" not in written[0], "neither a row of the file nor a deletion reports it"
    names = ("id", "price", "text, large", "_fivetran_start", "_fivetran_end", "_fivetran_active")
    at = [datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC) for second in range(5)]
    last = datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)
    micro = timedelta(microseconds=1)
    assert sorted(own.rows(*names), key=lambda row: (row[0], row[3])) == [
        (1, price, "long", at[1], at[2] - micro, False),
        (1, None, "long", at[2], at[3], False),
        (2, price, "same", at[1], at[4] - micro, False),
        (2, None, "same", at[4], last, True),
    ]
    assert own.agrees()


@pytest.mark.long
def test_a_fields_type_follows_what_the_source_declares(own: Own) -> None:
    key = column("id", Kind.INT, key=True)
    wanted = []
    for number, (kind, cell, name) in enumerate(
        [
            (ColumnType(Kind.INT), 5, "int32"),
            (ColumnType(Kind.LONG), 2**40, "int64"),
            (ColumnType(Kind.DECIMAL, 12, 3), Decimal("1.250"), "decimal128(22, 3)"),
            (ColumnType(Kind.STRING), "", "string"),
        ]
    ):
        own.land((key, column("n", kind)), [version(number, id=number, n=cell)])
        own.apply()
        assert str(own.table().schema.field("n").type).removeprefix("large_") == name
        wanted.append(cell)
    assert own.rows("id", "n") == [(0, "5"), (1, str(2**40)), (2, "1.250"), (3, "")]
    assert own.agrees()


def test_a_key_that_changes_is_refused(own: Own) -> None:
    own.land((column("a", Kind.INT, key=True), column("b", Kind.INT)), [version(1, a=1, b=2)])
    own.apply()
    before = own.rows("a", "b")
    own.land((column("a", Kind.INT), column("b", Kind.INT, key=True)), [version(2, a=1, b=3)])

    with pytest.raises(SourceError, match="The source's key is b, but the table's key is a"):
        own.apply()
    with pytest.raises(SourceError, match="Some files identify a record by a, others by b"):
        inspect_files(own.lake.spark, own.folder.files())
    assert own.rows("a", "b") == before


def test_versions_without_what_identifies_them_are_refused(own: Own) -> None:
    one, two = column("a", Kind.INT, key=True), column("b", Kind.INT, key=True)
    whole = version(1, a=1, b=1)
    for lacking in ({"b": None}, {change_set.MODIFIED: None}, {change_set.SEQUENCE: None}):
        with pytest.raises(BatchError, match="1 versions lack their key, modification time or"):
            own.land((one, two), [whole, {**whole, **lacking}])
    with pytest.raises(SchemaError, match="no primary key"):
        own.land((column("a", Kind.INT),), [whole])
    with pytest.raises(SchemaError, match="which is reserved in a data lake"):
        own.land((one, column("grax__deleted", Kind.INT)), [whole])
    assert own.folder.files() == []
    assert own.land((one, two), []) == []


def test_who_may_not_write_any_more_lands_nothing(own: Own) -> None:
    key = column("id", Kind.INT, key=True)

    def refuse() -> None:
        raise RuntimeError("the lease was lost")

    with pytest.raises(RuntimeError, match="the lease was lost"):
        land(own.frame((key,), [version(1, id=1)]), (key,), own.folder, guard=refuse)

    assert own.folder.files() == []
    assert {path.name for path in own.folder.path.rglob("*")} == {"_staging", "_lock"}


def test_files_stay_small(own: Own, lake: Lake) -> None:
    key, blob = column("id", Kind.LONG, key=True), column("blob", Kind.BINARY)
    # Bytes that do not compress: a file is about as large as its content.
    rows = lake.spark.range(0, 3_000, 1, 1).selectExpr(
        "id",
        "unhex(concat_ws('', transform(sequence(1, 64), i -> sha2(concat(id, '-', i), 256)))) "
        "AS blob",
        f"{_T}L AS {change_set.MODIFIED}",
        f"'1' AS {change_set.SEQUENCE}",
        f"CAST(NULL AS BIGINT) AS {change_set.DELETED_AT}",
        f"CAST(NULL AS BIGINT) AS {change_set.PURGED_AT}",
    )
    limit = 2**20
    files = land(rows, (key, blob), own.folder, guard=lambda: None, file_bytes=limit)

    assert [file.path for file in files] == [file.path for file in own.folder.files()]
    assert len(files) > 5
    assert max(file.size for file in files) <= limit * 100 // 96
    assert sum(pq.read_metadata(file.path).num_rows for file in files) == 3_000


def test_names_increase_when_the_clock_jumps_back(own: Own) -> None:
    key = column("id", Kind.INT, key=True)
    (first,) = own.land((key,), [version(1, id=1)])
    future = int(time.time() * 1_000) + 86_400_000 * 365
    late = own.folder.path / f"batch={future // 43_200_000 * 43_200:09x}"
    late.mkdir()
    first.rename(late / f"data-{future:x}.parquet")

    (second,) = own.land((key,), [version(2, id=2)])

    assert second.name == f"data-{future + 1:x}.parquet"
    assert own.folder.newest() == own.folder.files()[-1].name
    (late / "data-zzzzzzzzzzzzz.parquet").write_bytes(b"")
    with pytest.raises(SourceError, match="a name that Chronolake does not use"):
        own.land((key,), [version(2, id=2)])


def _publish_many(root: Path, process: int, times: int) -> None:
    folder = ObjectFolder(root, "shop", "orders")
    for number in range(times):
        with staging(folder) as staged:
            assert isinstance(staged, StagedFiles)
            names = [f"{part}.parquet" for part in range(3)]
            for part, name in enumerate(names):
                (staged.place / name).write_text(f"{process} {number} {part}")
            publish(folder, staged, names, guard=lambda: None)


def _contents(folder: ObjectFolder) -> Iterator[tuple[int, ...]]:
    for file in folder.files():
        yield tuple(int(word) for word in file.path.read_text().split())


@pytest.mark.long
def test_names_increase_across_processes(tmp_path: Path) -> None:
    folder = ObjectFolder(tmp_path, "shop", "orders")
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_publish_many, args=(tmp_path, number, 40)) for number in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=120)
        assert worker.exitcode == 0

    files = folder.files()
    # A file is moved last: the files appeared in the order of their names.
    appeared = [file.path.stat().st_ctime_ns for file in files]
    assert appeared == sorted(appeared)
    contents = list(_contents(folder))
    assert len(set(contents)) == len(contents) == 4 * 40 * 3
    for process in range(4):
        # Rows that one process lands together are adjacent, in their order.
        mine = [
            (number, content) for number, content in enumerate(contents) if content[0] == process
        ]
        assert [version[1:] for _, version in mine] == sorted(version[1:] for _, version in mine)
        for begin in range(0, len(mine), 3):
            places = [place for place, _ in mine[begin : begin + 3]]
            assert places == list(range(places[0], places[0] + 3))
    assert [file.batch for file in files] == sorted(file.batch for file in files)
    assert list((folder.path / "_staging").iterdir()) == []


def test_what_died_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = ObjectFolder(tmp_path, "shop", "orders")
    context = multiprocessing.get_context("spawn")
    dies = context.Process(target=_die_while_staging, args=(tmp_path,))
    dies.start()
    dies.join(timeout=60)
    assert dies.exitcode == -9
    (left,) = (path for path in (folder.path / "_staging").iterdir() if path.is_dir())
    assert (left / "half.parquet").exists()

    with staging(folder) as mine:
        with staging(folder):
            # A folder in use is left alone.
            assert isinstance(mine, StagedFiles)
            assert mine.place.is_dir()
        assert not left.exists()
    assert list((folder.path / "_staging").iterdir()) == []


def _die_while_staging(root: Path) -> None:
    with staging(ObjectFolder(root, "shop", "orders")) as staged:
        assert isinstance(staged, StagedFiles)
        (staged.place / "half.parquet").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)


def test_types_are_put_together_in_any_order() -> None:
    kinds = [ColumnType(kind) for kind in Kind] + [
        ColumnType(Kind.DECIMAL, precision, scale)
        for precision, scale in ((5, 5), (20, 0), (38, 20), (38, 38))
    ]
    for kind in kinds:
        assert parse_field_type(str(kind)) == kind
        assert type_of([kind]) == kind
    for three in permutations(kinds, 3):
        assert type_of(three) == type_of(sorted(three, key=str)), three
