"""Avro files as records, events, dated copies and tables of versions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row

from chronolake.core import verify
from chronolake.lake import Lake
from chronolake.pipeline.store import StreamRun
from chronolake.pipeline.sync import sync
from chronolake.types import ACTIVE, TableName
from support.commands import run_words
from support.datalakes import iceberg, project

_AT = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)


def _optional(kind: Any) -> list[Any]:
    return ["null", kind]


#: Every logical type that Spark reads, optional fields, and nested ones.
_TYPES: dict[str, Any] = {
    "id": "long",
    "name": _optional("string"),
    "millis": _optional({"type": "long", "logicalType": "timestamp-millis"}),
    "micros": {"type": "long", "logicalType": "timestamp-micros"},
    "local": {"type": "long", "logicalType": "local-timestamp-micros"},
    "day": {"type": "int", "logicalType": "date"},
    "price": _optional({"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}),
    "fixed": {
        "type": "fixed",
        "name": "price16",
        "size": 16,
        "logicalType": "decimal",
        "precision": 38,
        "scale": 3,
    },
    "kind": {"type": "enum", "name": "kinds", "symbols": ["A", "B"]},
    "data": "bytes",
    "flag": "boolean",
    "share": "double",
    "place": _optional(
        {
            "type": "record",
            "name": "place",
            "fields": [{"name": "city", "type": "string"}, {"name": "zip", "type": "int"}],
        }
    ),
    "tags": {"type": "array", "items": "string"},
    "extra": {"type": "map", "values": "int"},
}


def _schema(*names: str) -> str:
    fields = [{"name": name, "type": _TYPES[name]} for name in names or _TYPES]
    return json.dumps({"type": "record", "name": "orders", "fields": fields})


def _row(number: int, **cells: Any) -> dict[str, Any]:
    row = {
        "id": number,
        "name": f"n{number}",
        "millis": _AT,
        "micros": _AT + timedelta(microseconds=7),
        "local": datetime(1800, 1, 1, 2, 3),
        "day": date(1500, 2, 3),
        "price": Decimal("12.50"),
        "fixed": Decimal("12345678901234567890.125"),
        "kind": "B",
        "data": b"\x00\xff",
        "flag": True,
        "share": 0.5,
        "place": Row(city="Kiel", zip=24103),
        "tags": ["a", "b"],
        "extra": {"x": 1},
    }
    return row | cells


_DDL = {
    "id": "long", "name": "string", "millis": "timestamp", "micros": "timestamp",
    "local": "timestamp_ntz", "day": "date", "price": "decimal(10,2)", "fixed": "decimal(38,3)",
    "kind": "string", "data": "binary", "flag": "boolean", "share": "double",
    "place": "struct<city: string, zip: int>", "tags": "array<string>", "extra": "map<string,int>",
}  # fmt: skip


class Exports:
    """The pipeline `shop` of Avro files in `exports`."""

    def __init__(self, folder: Path, source: str) -> None:
        self.folder = folder
        self.exports = folder / "exports"
        self.exports.mkdir()
        self.project = project(folder, f"  shop:\n    source: {{{source}}}\n")
        self.lake = Lake.open(self.project.lake.path, config=self.project.lake)

    def write(
        self,
        name: str,
        rows: Sequence[dict[str, Any]],
        *names: str,
        codec: str = "uncompressed",
    ) -> Path:
        """Write an Avro file with some fields; by default with all."""
        names = names or tuple(_TYPES)
        ddl = ", ".join(f"{field} {_DDL[field]}" for field in names)
        found = self.lake.spark.createDataFrame(
            [tuple(row[field] for field in names) for row in rows], ddl
        )
        part = self.folder / "part"
        writer = found.coalesce(1).write.format("avro").option("avroSchema", _schema(*names))
        writer.option("compression", codec).mode("overwrite").save(str(part))
        target = self.exports / name
        shutil.copy(next(part.glob("*.avro")), target)
        return target

    def sync(self) -> StreamRun:
        (stream,) = sync(self.lake, self.project, "shop").streams
        return stream

    def rows(self, table: str = "orders") -> list[dict[str, Any]]:
        assert verify(self.lake, TableName("shop", table)).holds
        found: list[dict[str, Any]] = (
            iceberg(self.project, "shop", table).scan().to_arrow().to_pylist()
        )
        return found


@pytest.mark.sampled
@pytest.mark.parametrize("codec", ["uncompressed", "deflate", "snappy", "zstandard", "bzip2", "xz"])
def test_types_and_codecs(tmp_path: Path, codec: str) -> None:
    shop = Exports(tmp_path, "type: files, path: 'exports/*.avro', key: [id], stream: orders")
    empty = dict.fromkeys(("name", "millis", "price", "place"))
    shop.write("a.avro", [_row(1), _row(2, **empty)], codec=codec)
    assert shop.sync().error is None
    one, two = sorted(shop.rows(), key=lambda row: int(row["id"]))
    expected = _row(1) | {
        "place": '{"city":"Kiel","zip":24103}',
        "tags": '["a","b"]',
        "extra": '{"x":1}',
    }
    assert {name: one[name] for name in _TYPES} == expected
    assert {name: two[name] for name in empty} == empty


@pytest.mark.long
def test_events_are_numbered_in_parts_of_files(tmp_path: Path) -> None:
    shop = Exports(tmp_path, "type: files, path: 'exports/*.avro', stream: orders")
    rows = [_row(number, name="x" * 200) for number in range(2_000)]
    shop.write("a b+%20.avro", rows, "id", "name")
    shop.write("b.avro", rows[:5], "id", "flag")
    # Several tasks read one file.
    shop.lake.spark.conf.set("spark.sql.files.maxPartitionBytes", "50000")
    assert shop.sync().error is None
    found = {(row["source_file"], row["source_row"]): row["id"] for row in shop.rows()}
    assert found == {
        **{("a b+%20.avro", number): number for number in range(2_000)},
        **{("b.avro", number): number for number in range(5)},
    }


def test_of_rows_with_one_key_the_later_one_wins(tmp_path: Path) -> None:
    shop = Exports(
        tmp_path, "type: files, path: 'exports/*.avro', key: [id], modified: micros, stream: orders"
    )
    rows = [_row(1, name=f"{number}") for number in range(20)]
    shop.write("a.avro", rows, "id", "name", "micros")
    assert shop.sync().error is None
    assert [(row["name"], row[ACTIVE]) for row in shop.rows()] == [("19", True)]


@pytest.mark.long
def test_copies_with_different_schemas(tmp_path: Path) -> None:
    shop = Exports(tmp_path, "type: copies, path: 'exports/orders_{date}/*.avro', key: [id]")
    (shop.exports / "orders_2026-01-01").mkdir()
    (shop.exports / "orders_2026-01-02").mkdir()
    shop.write("orders_2026-01-01/a.avro", [_row(1), _row(2)], "id", "name")
    shop.write("orders_2026-01-01/b.avro", [_row(3)], "id", "name", "price")
    shop.write("orders_2026-01-02/a.avro", [_row(1), _row(3, name="c")], "id", "name")
    assert shop.sync().error is None
    found = sorted((row["id"], row["name"], row["price"], row[ACTIVE]) for row in shop.rows())
    assert found == [
        (1, "n1", None, True),
        (2, "n2", None, False),
        (3, "c", None, True),
        (3, "n3", Decimal("12.50"), False),
    ]


@pytest.mark.long
@pytest.mark.parametrize("end", [-1, -17, -200, 30, 2, 0])
def test_incomplete_files_are_rejected(tmp_path: Path, end: int) -> None:
    shop = Exports(tmp_path, "type: copies, path: 'exports/orders_{date}.avro', key: [id]")
    shop.write("orders_2026-01-01.avro", [_row(1)], "id", "name")
    file = shop.write("orders_2026-01-02.avro", [_row(n) for n in range(50)], "id", "name")
    content = file.read_bytes()
    file.write_bytes(content[:end])
    assert "The file cannot be read" in f"{shop.sync().error}"
    assert [row["id"] for row in shop.rows()] == [1]
    file.write_bytes(content)
    assert shop.sync().error is None
    assert len([row for row in shop.rows() if row[ACTIVE]]) == 50


@pytest.mark.long
def test_history_is_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop = Exports(tmp_path, "type: files, path: 'exports/*.avro', stream: orders")
    later = _AT + timedelta(days=1)
    rows = [_row(1, millis=later, micros=_AT), _row(1, name="b", millis=None, micros=later)]
    file = shop.write("orders.avro", rows, "id", "name", "micros", "millis")
    code, output, errors = run_words(
        capsys,
        *("import-history", "crm.orders", str(file), "--key", "id", "--start", "micros"),
        *("--end", "millis", "--project", str(tmp_path)),
    )
    assert code == 0, output + errors
    found = iceberg(shop.project, "crm", "orders").scan().to_arrow().to_pylist()
    assert sorted((row["name"], row[ACTIVE]) for row in found) == [("b", True), ("n1", False)]
