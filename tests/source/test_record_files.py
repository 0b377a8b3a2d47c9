"""Files with records or events: each of them is read once."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chronolake.config import load_project
from chronolake.core import verify
from chronolake.lake import Lake
from chronolake.pipeline.store import StreamRun
from chronolake.pipeline.sync import sync
from chronolake.types import ACTIVE, DELETED, START, TableName
from support.commands import run_words
from support.datalakes import iceberg, project
from support.processes import KILLED, run_command


class Exports:
    """The pipeline `shop` of files in `exports`."""

    def __init__(self, folder: Path, settings: str, *, more: str = "") -> None:
        self.exports = folder / "exports"
        self.exports.mkdir()
        source = f"{{type: files, {settings}}}"
        self.project = project(folder, f"  shop:\n    source: {source}\n{more}")
        self.lake = Lake.open(self.project.lake.path, config=self.project.lake)

    def write(self, name: str, content: bytes, *, at: int = 0) -> None:
        path = self.exports / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        # The time of a file is the time of its rows if there is no other.
        os.utime(path, (1_767_225_600 + at, 1_767_225_600 + at))

    def sync(self) -> list[StreamRun]:
        streams = list(sync(self.lake, self.project, "shop").streams)
        assert [stream.error for stream in streams] == [None] * len(streams)
        return streams

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        found = iceberg(self.project, "shop", table).scan().to_arrow().to_pylist()
        assert verify(self.lake, TableName("shop", table)).holds
        return sorted((tuple(row[column] for column in columns) for row in found), key=repr)


def _lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_records_of_files_become_versions(tmp_path: Path) -> None:
    shop = Exports(
        tmp_path,
        "path: 'exports/{stream}/*.csv.gz', key: [id], modified: at, deleted: gone, "
        "types: {id: LONG, at: UTC_DATETIME}",
    )
    head = b"id,name,at,gone\n"
    shop.write(
        "orders/b.csv.gz",
        gzip.compress(head + b"1,a,2026-01-01T10:00:00Z,\n2,b,2026-01-01T10:00:00Z,\n"),
    )
    # A later change of 1 is in a file that is read first, and 2 is deleted.
    shop.write(
        "orders/a.csv.gz",
        gzip.compress(head + b"1,c,2026-01-02T10:00:00Z,false\n2,,2026-01-03T10:00:00Z,true\n"),
    )
    shop.write("items/a.csv.gz", gzip.compress(head + b"7,x,2026-01-01T10:00:00Z,\n"))
    assert [stream.stream for stream in shop.sync()] == ["items", "orders"]
    expected = [(1, "a", 1, False), (1, "c", 2, True), (2, "b", 1, False)]

    def orders() -> list[tuple[Any, ...]]:
        found = shop.rows("orders", "id", "name", START, ACTIVE)
        return [(key, name, at.day, is_active) for key, name, at, is_active in found]

    assert orders() == expected
    assert shop.rows("items", "id", "name") == [(7, "x")]
    # A late change, and a new column.
    shop.write("orders/c.csv.gz", gzip.compress(b"id,at,more\n1,2026-01-01T12:00:00Z,new\n"))
    shop.sync()
    assert (1, None, 1, False) in orders()
    assert len(orders()) == len(expected) + 1


@pytest.mark.long
@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_rows_without_a_key_are_events(tmp_path: Path, ending: str) -> None:
    shop = Exports(
        tmp_path,
        f"path: 'exports/*.{ending}', stream: events, types: {{size: LONG}}",
        more="    mode: live\n",
    )
    columns = ("source_file", "source_row", "kind", "size")

    def write(name: str, rows: list[dict[str, Any]], at: int) -> None:
        if ending == "jsonl":
            content = _lines(rows)
        elif ending == "csv":
            lines = [",".join(f"{value}" for value in row.values()) for row in rows]
            content = "\n".join([",".join(rows[0]), *lines]).encode()
        else:
            pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
            content = (tmp_path / "rows.parquet").read_bytes()
        shop.write(f"{name}.{ending}", content, at=at)

    write("a b+%20", [{"kind": "x", "size": 1}, {"kind": "x", "size": 1}], 0)
    shop.sync()
    first = [(f"a b+%20.{ending}", number, "x", 1) for number in range(2)]
    assert shop.rows("events", *columns) == first
    # Read once, even if its first rows are deleted later; an appended file is read again.
    lake = Lake.prepare(shop.project.lake)
    sync(lake, shop.project, "shop")
    assert not lake.has_started
    write("a b+%20", [{"kind": "x", "size": 1}] * 3, 5)
    write("b", [{"kind": "y", "size": 2}], 5)
    shop.sync()
    expected = [*first, (f"a b+%20.{ending}", 2, "x", 1), (f"b.{ending}", 0, "y", 2)]
    assert shop.rows("events", *columns) == expected


@pytest.mark.long
def test_the_date_in_a_path_is_the_time_of_its_rows(tmp_path: Path) -> None:
    shop = Exports(tmp_path, "path: 'exports/{stream}_{date}.ndjson', key: [id]")
    shop.write("orders_2026-01-03.ndjson", _lines([{"id": 1, "size": 3.5}]))
    shop.sync()
    shop.write("orders_2026-01-02.ndjson", _lines([{"id": 1, "size": 2.0}, {"id": 2}]))
    shop.sync()
    found = shop.rows("orders", "id", "size", START, ACTIVE)
    assert [(key, size, at.day, is_active) for key, size, at, is_active in found] == [
        (1, 2.0, 2, False),
        (1, 3.5, 3, True),
        (2, None, 2, True),
    ]


def test_a_deleted_record_is_marked_in_a_soft_delete_table(tmp_path: Path) -> None:
    shop = Exports(
        tmp_path,
        "path: 'exports/orders_{date:%Y%m%dT%H}.jsonl', key: [id], deleted: gone",
        more="    mode: soft-delete\n",
    )
    shop.write("orders_20260101T01.jsonl", _lines([{"id": 1, "gone": False}, {"id": 2}]))
    shop.write("orders_20260101T02.jsonl", _lines([{"id": 1, "gone": True}]))
    shop.sync()
    assert shop.rows("orders", "id", DELETED) == [(1, True), (2, False)]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("settings", "content", "reason"),
    [
        ("key: [nr]", b"id\n1\n", "no column nr"),
        ("key: [id], modified: at", b"id\n1\n", "no column at"),
        ("modified: at", b"id,at\n1,\n", "A row has no at"),
        ("modified: at", b"id,at\n1,soon\n", "is not of the type TIMESTAMP"),
        ("types: {id: LONG}", b"id\nx\n", "is not of the type LONG"),
        ("key: [id]", b"", "it has no header"),
        ("key: [id]", b"id,a\n1,x\n,y\n", "A row has no id: row 2 of the file a.csv."),
        ("key: [id], modified: a", b"id,a\n1,\n", "A row has no a: row 1 of the file a.csv."),
        ("key: [id], deleted: a", b"id,a\n1,\n2,x\n", "A text in a means neither"),
        ("key: [id]", "id,a\n1,\u00e9\n".encode("latin-1"), "it is not text in UTF-8"),
        ("key: [id]", "id,a\n1,\u00e9\n".encode("utf-16"), "it is not text in UTF-8"),
        ("key: [id]", b"id,a,a\n1,x,y\n", "two columns have the name 'a'"),
        ("key: [id]", b'id,a\n1,x\n2,"y\n3,z\n', "it ends within a quoted value"),
        ("key: [id]", gzip.compress(b'id,a\n1,"x', mtime=0), "it ends within a quoted value"),
        ("key: [id], format: jsonl", b'[{"id": 1}]\n', "its row 1 is not a JSON object"),
        ("key: [id], format: jsonl", b'{"id": 1}\n\n{"id": 2\n', "its row 2 is not a JSON object"),
        ("key: [id], format: jsonl", b'{"id": 1}\n5\n', "its row 2 is not a JSON object"),
        ("key: [id], format: jsonl", b'{\n "id": 1\n}\n', "its row 2 is not a JSON object"),
    ],
)
def test_files_that_cannot_be_read_are_reported(
    tmp_path: Path, settings: str, content: bytes, reason: str
) -> None:
    ending = "csv.gz" if content.startswith(b"\x1f\x8b") else "csv"
    shop = Exports(tmp_path, f"path: 'exports/*.{ending}', stream: orders, {settings}")
    shop.write(f"a.{ending}", content)
    (stream,) = sync(shop.lake, shop.project, "shop").streams
    assert reason in (stream.error or "")
    assert "SQLSTATE" not in (stream.error or "")


def test_quotes_and_marks_of_encodings(tmp_path: Path) -> None:
    """Only a quote at the begin of a value has to be closed; a byte order mark is not a value."""
    shop = Exports(tmp_path, "path: 'exports/{stream}.csv', key: [id]")
    shop.write("inches.csv", b'\xef\xbb\xbfid,size\n1,5" pipe\n2,"a ""b"""\n3,"c\nd"')
    shop.sync()
    assert shop.rows("inches", "id", "size") == [("1", '5" pipe'), ("2", 'a "b"'), ("3", "c\nd")]


def test_lines_of_json_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    shop = Exports(tmp_path, "path: 'exports/*.jsonl', stream: orders, key: [id]")
    shop.write("a.jsonl", b'\xef\xbb\xbf{"id": 1}\r\n  {"id": 2}')
    shop.sync()
    assert shop.rows("orders", "id") == [(1,), (2,)]


def test_a_column_without_a_name_can_be_renamed(tmp_path: Path) -> None:
    """Pandas writes its index as such a column."""
    shop = Exports(tmp_path, "path: 'exports/orders.csv', key: [id]")
    shop.write("orders.csv", b",id\n0,5\n")
    (stream,) = sync(shop.lake, shop.project, "shop").streams
    assert "shop.streams.orders.rename: {'': source_column}" in (stream.hint or "")
    file = tmp_path / "chronolake.yml"
    file.write_text(f"{file.read_text()}    streams: {{orders: {{rename: {{'': place}}}}}}\n")
    shop.project = load_project(file)
    shop.sync()
    assert shop.rows("orders", "id", "place") == [("5", "0")]


@pytest.mark.sampled
@pytest.mark.parametrize(
    "mark", ["true", "T", "yes", "Y", "1", "2", "1.0", "2026-01-02T00:00:00Z", " TRUE "]
)
def test_marks_of_deleted_rows_are_understood(tmp_path: Path, mark: str) -> None:
    shop = Exports(tmp_path, "path: 'exports/*.csv', stream: orders, key: [id], deleted: gone")
    shop.write("a.csv", b"id,gone\n1,\n2,false\n3,0\n4,N\n")
    shop.write("b.csv", f"id,gone\n1,{mark}\n2,no\n3,F\n4,0.0\n".encode(), at=60)
    shop.sync()
    active = [key for key, is_active in shop.rows("orders", "id", ACTIVE) if is_active]
    assert active == ["2", "3", "4"]


@pytest.mark.long
def test_unchanged_rows_of_a_changed_file_are_the_same_versions(tmp_path: Path) -> None:
    shop = Exports(tmp_path, "path: 'exports/orders.csv', key: [id]")
    shop.write("orders.csv", b"id,name\n1,a\n2,a\n")
    shop.sync()
    shop.write("orders.csv", b"id,name\n1,a\n2,b\n3,a\n", at=60)
    shop.sync()
    assert shop.rows("orders", "id", "name", ACTIVE) == [
        ("1", "a", True),
        ("2", "a", False),
        ("2", "b", True),
        ("3", "a", True),
    ]


@pytest.mark.parametrize("kind", ["files", "copies"])
def test_a_missing_folder_is_an_error_and_an_empty_one_is_not(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    date = "_{date}" if kind == "copies" else "*"
    shop = Exports(tmp_path, f"path: 'exports/orders{date}.csv', key: [id]")
    file = tmp_path / "chronolake.yml"
    file.write_text(file.read_text().replace("type: files", f"type: {kind}"))
    shop.project = load_project(file)
    shop.exports.rmdir()
    code, reported, _ = run_words(capsys, "check", "--project", str(tmp_path))
    assert code == 1
    assert "does not exist" in reported
    (stream,) = sync(shop.lake, shop.project, "shop").streams
    assert "folder with the source's files does not exist" in (stream.error or "")
    assert str(shop.exports) in (stream.error or "")
    shop.exports.mkdir()
    code, reported, _ = run_words(capsys, "check", "--project", str(tmp_path))
    assert code == 0
    assert "matches no files" in reported
    shop.sync()
    assert "no_files_match" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("failpoint", ["land.file-published", "land.done", "land.checkpointed"])
def test_a_sync_of_files_may_be_killed(tmp_path: Path, failpoint: str) -> None:
    shop = Exports(tmp_path, "path: 'exports/*.jsonl', stream: events")
    rows = [{"size": number} for number in range(50)]
    shop.write("a.jsonl", _lines(rows))
    shop.write("b.jsonl", _lines(rows))
    words = ("sync", "shop", "--project", str(tmp_path))
    assert run_command(*words, failpoint=f"{failpoint}=kill")[0] == KILLED
    shop.write("c.jsonl", _lines(rows))
    code, output = run_command(*words)
    assert code == 0, output
    expected = [(file, number, number) for file in ("a", "b", "c") for number in range(50)]
    found = shop.rows("events", "source_file", "source_row", "size")
    assert sorted(found) == [(f"{file}.jsonl", row, size) for file, row, size in expected]
