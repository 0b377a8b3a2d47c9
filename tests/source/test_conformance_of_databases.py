"""Databases and projects of the Fivetran Connector SDK follow the source protocol."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from postgresql import server

from chronolake.config import FivetranSource
from chronolake.lake import Lake
from chronolake.pipeline.streams import source_of
from chronolake.source.conformance import CHECKS, Check, Subject, name_of
from chronolake.source.connectors.environments import environment
from chronolake.source.protocol import ChangeSource
from chronolake.source.records import reader
from support.connectors import Shop, failing
from support.datalakes import project
from support.source.mysql_servers import ONE_FLAVOR, MysqlShop
from support.source.mysql_servers import server as mysql_server

_CREATE = (
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)",
    "INSERT INTO orders VALUES (1, 'a'), (2, 'b'), (3, 'c')",
    "CREATE TABLE parts (item INTEGER, no INTEGER, PRIMARY KEY (item, no))",
    "INSERT INTO parts VALUES (1, 1), (1, 2)",
)
_CHANGE = (
    "UPDATE orders SET note = 'd' WHERE id = 1",
    "DELETE FROM orders WHERE id = 2",
    "INSERT INTO orders VALUES (4, NULL)",
    "UPDATE orders SET note = 'e' WHERE id = 1",
    "DELETE FROM parts WHERE no = 1",
)
_TABLES = ("orders", "parts")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    settings = {"max_replication_slots": "500", "max_wal_senders": "100"}
    with server(wal_level="logical", **settings) as found:
        yield found


def _run(address: str, *statements: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def _postgresql(folder: Path, address: str, name: str, method: str) -> Subject:
    _run(address, f"CREATE DATABASE {name}")
    own = f"{address.rpartition('/')[0]}/{name}"
    _run(own, *_CREATE)
    source = {"type": "postgres", "dsn": own, "method": method}
    if method == "logical_replication":
        source |= {"slot": name, "publication": name}
        _run(
            own,
            f"CREATE PUBLICATION {name} FOR ALL TABLES WITH (publish_via_partition_root = true)",
            f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')",
        )
    settings = project(folder, f"  shop:\n    source: {json.dumps(source)}\n")
    lake = Lake.open(settings.lake.path, config=settings.lake)

    def number() -> dict[str, int]:
        with psycopg.connect(own) as connection:
            found = {}
            for table in _TABLES:
                row = connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
                assert row is not None
                found[f"public.{table}"] = row[0]
            return found

    return Subject(
        lambda: cast("ChangeSource", source_of(settings, "shop")),
        lake,
        lambda: _run(own, *_CHANGE),
        count=number,
    )


@pytest.mark.sampled
@pytest.mark.parametrize("check", CHECKS, ids=name_of)
@pytest.mark.parametrize("method", ["logical_replication", "snapshot_diff"])
def test_postgresql(check: Check, method: str, address: str, tmp_path: Path) -> None:
    numbers = count()

    def new_subject() -> Subject:
        number = next(numbers)
        name = f"{method[:3]}_{name_of(check)}_{number}"
        return _postgresql(tmp_path / f"{number}", address, name, method)

    check(new_subject)


@pytest.fixture(scope="module", params=ONE_FLAVOR)
def mysql_address(request: pytest.FixtureRequest) -> Iterator[str]:
    with mysql_server(request.param) as found:
        yield found


def _mysql(folder: Path, address: str) -> Subject:
    shop = MysqlShop(folder, address)
    shop.prepare()
    shop.run(*_CREATE)
    return Subject(
        lambda: cast("ChangeSource", source_of(shop.project, "shop")),
        shop.lake,
        lambda: shop.run(*_CHANGE),
        count=lambda: {
            f"shop.{table}": shop.rows(f"SELECT count(*) FROM {table}")[0][0] for table in _TABLES
        },
    )


@pytest.mark.sampled
@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_mysql(check: Check, mysql_address: str, tmp_path: Path) -> None:
    numbers = count()
    check(lambda: _mysql(tmp_path / f"{next(numbers)}", mysql_address))


def _sqlite(folder: Path) -> Subject:
    folder.mkdir()
    file = folder / "office.db"

    def run(*statements: str) -> None:
        with closing(sqlite3.connect(file)) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    def number() -> dict[str, int]:
        with closing(sqlite3.connect(file)) as connection:
            return {
                table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                for table in _TABLES
            }

    @contextmanager
    def broken() -> Iterator[None]:
        # The last row of the first table overflows.
        value = "CASE WHEN id = 3 THEN abs(-9223372036854775808) ELSE note END AS note"
        run(
            "ALTER TABLE orders RENAME TO hidden",
            f"CREATE VIEW orders AS SELECT id, {value} FROM hidden",
        )
        yield
        run("DROP VIEW orders", "ALTER TABLE hidden RENAME TO orders")

    run(*_CREATE)
    tables = {"orders": {"key": ["id"]}, "parts": {"key": ["item", "no"]}}
    source: dict[str, Any] = {"type": "jdbc", "url": f"jdbc:sqlite:{file}", "tables": tables}
    settings = project(folder, f"  shop:\n    source: {json.dumps(source)}\n")
    lake = Lake.open(settings.lake.path, config=settings.lake)
    return Subject(
        lambda: cast("ChangeSource", source_of(settings, "shop")),
        lake,
        lambda: run(*_CHANGE),
        broken,
        number,
    )


@pytest.mark.sampled
@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_sqlite_over_jdbc(check: Check, tmp_path: Path) -> None:
    numbers = count()
    check(lambda: _sqlite(tmp_path / f"{next(numbers)}"))


_UPDATE = """
    import os

    rows = [(1, "a", 1), (2, "b", 2), (3, "c", 3)]
    run = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "given")).read()
    if run == "2":
        rows += [(1, "d", 4), (4, "e", 5), (2, None, 6)]
    for key, note, day in rows:
        if day > state.get("day", 0):
            if note is None:
                op.delete("orders", {"id": key})
            else:
                op.upsert("orders", {"id": key, "note": note})
            op.checkpoint({"day": day})
        if run == "fail" and day == 2:
            raise OSError("no answer")
"""


@pytest.fixture
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the SDK, and let each group of records be a batch."""
    environment([FivetranSource(type="fivetran", path="connector").sdk])
    monkeypatch.setattr(reader, "_BATCH_SECONDS", 0.0)


def _fivetran(folder: Path) -> Subject:
    shop = Shop(folder)
    given = folder / "given"
    given.write_text("1")
    columns = {"id": "INT", "note": "STRING"}
    shop.fivetran([{"table": "orders", "primary_key": ["id"], "columns": columns}], _UPDATE)

    return Subject(
        lambda: cast("ChangeSource", source_of(shop.project, "shop")),
        shop.lake,
        lambda: given.write_text("2"),
        lambda: failing(given),
        lambda: {"orders": 3},
        has_times=False,
    )


@pytest.mark.long
@pytest.mark.usefixtures("_small_batches")
@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_fivetran(check: Check, tmp_path: Path) -> None:
    numbers = count()
    check(lambda: _fivetran(tmp_path / f"{next(numbers)}"))
