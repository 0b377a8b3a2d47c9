"""Databases that Spark reads over JDBC: the differences between two runs are read."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from postgresql import server

from chronolake.config import Project
from chronolake.lake import Lake
from chronolake.pipeline.store import StreamRun
from chronolake.pipeline.streams import source_of
from chronolake.pipeline.sync import sync
from chronolake.source.protocol import ExperimentalSource
from chronolake.types import ACTIVE, START
from support.commands import run_words
from support.datalakes import iceberg, project


class Office:
    """The pipeline `office` of a SQLite file."""

    def __init__(self, folder: Path, tables: str) -> None:
        self.file = folder / "office.db"
        source = f"{{type: jdbc, url: 'jdbc:sqlite:{self.file}', tables: {tables}}}"
        self.project = project(folder, f"  office:\n    source: {source}\n")
        self.lake = Lake.open(self.project.lake.path, config=self.project.lake)

    def run(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.file)) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    def sync(self) -> list[StreamRun]:
        return list(sync(self.lake, self.project, "office").streams)

    def versions(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        return versions(self.project, name, *columns)


def versions(of: Project, name: str, *columns: str) -> list[tuple[Any, ...]]:
    """Return the columns of every version, and whether it is active, by key and start."""
    rows = iceberg(of, "office", name).scan().to_arrow().to_pylist()
    rows.sort(key=lambda row: (repr(row[columns[0]]), row[START]))
    return [tuple(row[column] for column in (*columns, ACTIVE)) for row in rows]


def test_differences_become_versions(tmp_path: Path) -> None:
    office = Office(tmp_path, "{items: {key: [id]}, parts: {key: [item, number], split_by: item}}")
    office.run(
        "CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, weight REAL, data BLOB)",
        "INSERT INTO items VALUES (1, 'a', 0.5, x'00ff'), (2, NULL, NULL, NULL)",
        "CREATE TABLE parts (item INTEGER, number INTEGER, PRIMARY KEY (item, number))",
        "INSERT INTO parts VALUES (1, 1)",
    )
    assert [stream.error for stream in office.sync()] == [None, None]
    office.run(
        "UPDATE items SET name = 'b' WHERE id = 1",
        "DELETE FROM items WHERE id = 2",
        "ALTER TABLE items ADD COLUMN more TEXT",
        "INSERT INTO parts VALUES (1, 2), (700, 1)",
    )
    assert [stream.error for stream in office.sync()] == [None, None]
    after = [(1, "a", 0.5, b"\x00\xff", None, False), (1, "b", 0.5, b"\x00\xff", None, True)]
    after.append((2, None, None, None, None, False))
    columns = ("id", "name", "weight", "data", "more")
    assert office.versions("items", *columns) == after
    assert office.versions("parts", "item", "number") == [
        (1, 1, True),
        (1, 2, True),
        (700, 1, True),
    ]
    assert [stream.written for stream in office.sync()] == [0, 0], "nothing differs"
    assert office.versions("items", *columns) == after


def test_unreadable_tables_report_why_and_land_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = "{gone: {key: [id]}, items: {key: [nr]}, pairs: {key: [id]}, empty: {key: [id]}}"
    office = Office(tmp_path, tables)
    office.run(
        "CREATE TABLE items (id INTEGER PRIMARY KEY)",
        "CREATE TABLE pairs (id INTEGER, name TEXT)",
        "INSERT INTO pairs VALUES (1, 'a'), (1, 'b'), (2, 'c')",
        "CREATE TABLE empty (id INTEGER)",
        "INSERT INTO empty VALUES (NULL)",
    )
    gone, items, pairs, empty = (stream.error or "" for stream in office.sync())
    assert "The table gone cannot be read" in gone
    assert "no such table" in gone
    assert str(office.file) not in gone, "an address may hold a password"
    assert "has no column nr" in items
    assert "Two rows of pairs have the same id" in pairs
    assert "lack their key" in empty
    assert not list(tmp_path.glob("lake/raw/**/data-*")), "nothing has landed"
    # Commands that need no Spark do not need the database either.
    code, reported, _ = run_words(
        capsys, "discover", "office", "--json", "--project", str(tmp_path)
    )
    assert code == 0
    assert {load["sees"] for load in json.loads(reported)} == {"snapshot-diff"}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with server(version=18) as found:
        yield found


def test_types_of_a_database(address: str, tmp_path: Path) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE kinds (id bigint PRIMARY KEY, flag bool, small smallint, price "
            "numeric(10,2), at timestamptz, local timestamp, day date, raw bytea, list text[], "
            "doc jsonb, code uuid)"
        )
        connection.execute(
            "INSERT INTO kinds VALUES (1, true, 5, 1.50, '2026-01-02 03:04:05.678901+02', "
            "'2026-01-02 03:04:05.678901', '2026-01-02', '\\x00ff', '{a,\"b c\"}', '{\"a\": 1}', "
            "'00000000-0000-0000-0000-000000000001')"
        )
        connection.execute("INSERT INTO kinds VALUES (2)")
    at = psycopg.conninfo.conninfo_to_dict(address)
    source = (
        f"{{type: jdbc, url: 'jdbc:postgresql://{at['host']}:{at['port']}/{at['dbname']}', "
        f"user: {at['user']}, password: '{at['password']}', "
        "tables: {public.kinds: {key: [id], split_by: id}}}"
    )
    there = project(tmp_path, f"  office:\n    source: {source}\n")
    lake = Lake.open(there.lake.path, config=there.lake)
    (stream,) = sync(lake, there, "office").streams
    assert stream.error is None
    rows = versions(
        there, "kinds", "id", "flag", "small", "price", "local", "day", "raw", "list", "doc", "code"
    )
    assert rows == [
        (
            1,
            True,
            5,
            Decimal("1.50"),
            datetime(2026, 1, 2, 3, 4, 5, 678901),
            date(2026, 1, 2),
            b"\x00\xff",
            '["a","b c"]',
            '{"a": 1}',
            "00000000-0000-0000-0000-000000000001",
            True,
        ),
        (2, *[None] * 9, True),
    ]
    ((_, at, _), _) = versions(there, "kinds", "id", "at")
    assert at.isoformat() == "2026-01-02T01:04:05.678901+00:00"
    (stream,) = sync(lake, there, "office").streams
    assert (stream.error, stream.written) == (None, 0)


@pytest.mark.parametrize(
    ("url", "is_experimental"),
    [("jdbc:sqlite:x.db", False), ("jdbc:sqlserver://db:1433;databaseName=office", True)],
)
def test_databases_that_were_not_run_are_experimental(
    tmp_path: Path, url: str, *, is_experimental: bool
) -> None:
    source = f"{{type: jdbc, url: '{url}', tables: {{items: {{key: [id]}}}}}}"
    found = source_of(project(tmp_path, f"  office:\n    source: {source}\n"), "office")
    assert isinstance(found, ExperimentalSource)
    assert (found.experimental is not None) == is_experimental
