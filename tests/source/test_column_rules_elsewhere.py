"""Values of columns with rules appear in no file of the lake: sources other than PostgreSQL."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import structlog

from chronolake.config import Project, load_project
from chronolake.errors import ConfigurationError
from chronolake.lake import Lake
from chronolake.pipeline.store import Status
from chronolake.pipeline.streams import source_of
from chronolake.pipeline.sync import sync
from chronolake.source.protocol import Source
from chronolake.types import ACTIVE
from support.datalakes import DataLake, iceberg, project
from support.declarative.apis import Api
from support.processes import run_command_until_failpoint
from support.source.apishop import ApiShop
from support.source.mysql_servers import ONE_FLAVOR, MysqlShop
from support.source.mysql_servers import server as mysql_server
from support.source.secrets import COLUMNS, KEY, RULES, STORED_COLUMNS, Secrets, hashed, stored_row
from support.source.sqlserver import Change, Instance, Server

_T = 1_767_225_600_000_000
Rows = dict[int, dict[str, Any]]


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    """Yield the events that are logged during the test."""
    with structlog.testing.capture_logs() as events:
        yield events


def _sync(of: Project, pipeline: str, source: Source | None = None, **how: Any) -> None:
    lake = Lake.open(of.lake.path, config=of.lake)
    result = sync(lake, of, pipeline, source=source, **how)
    assert result.status is Status.SUCCEEDED, result.streams


def _expect_stored(of: Project, pipeline: str, table: str, rows: Rows) -> None:
    """Check the active rows of a table."""
    found = iceberg(of, pipeline, table).scan().to_arrow().to_pylist()
    assert not [name for name in found[0] if name.startswith("exclude_")]
    columns = ["id", "name", *STORED_COLUMNS]
    active = [tuple(row[name] for name in columns) for row in found if row.get(ACTIVE, True)]
    assert sorted(active) == sorted(stored_row(row) for row in rows.values())


def _row(secrets: Secrets, number: int) -> dict[str, Any]:
    return {"id": number, "name": f"n{number}", **secrets.row()}


@pytest.mark.long
def test_jdbc(tmp_path: Path, logged: list[Any]) -> None:
    secrets = Secrets()
    file = tmp_path / "office.db"
    source = f"{{type: jdbc, url: 'jdbc:sqlite:{file}', tables: {{people: {{key: [id]}}}}}}"
    of = project(tmp_path, f"  office:\n    source: {source}\n    {RULES}\n")
    kinds = {name: "TEXT" if name.endswith("text") else "BIGINT" for name in COLUMNS}
    columns = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    rows: Rows = {}
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute(f"CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, {columns})")
        for numbers, removed in (((1, 2), ()), ((1, 3), (2,))):
            rows |= {number: _row(secrets, number) for number in numbers}
            for row in (rows[number] for number in numbers):
                marks = ", ".join("?" * len(row))
                connection.execute(f"REPLACE INTO people VALUES ({marks})", [*row.values()])
            for number in removed:
                connection.execute("DELETE FROM people WHERE id = ?", [number])
                del rows[number]
            _sync(of, "office")
            _expect_stored(of, "office", "people", rows)
            assert secrets.found_in(tmp_path, apart_from=[file.name]) == []
    assert not secrets.are_in(repr(logged))


@pytest.mark.long
@pytest.mark.parametrize("flavor", ONE_FLAVOR)
def test_mysql(flavor: str, tmp_path: Path, logged: list[Any]) -> None:
    secrets = Secrets()
    kinds = {name: "TEXT" if name.endswith("text") else "BIGINT" for name in COLUMNS}
    columns = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    rows: Rows = {}
    with mysql_server(flavor) as address:
        shop = MysqlShop(tmp_path, address)
        shop.prepare()
        shop.configure(rules=RULES)
        shop.run(f"CREATE TABLE people (id INT PRIMARY KEY, name TEXT, {columns})")

        def write(*numbers: int) -> None:
            for number in numbers:
                rows[number] = _row(secrets, number)
                marks = ", ".join(["%s"] * len(rows[number]))
                with shop.connect(database="shop") as connection, connection.cursor() as cursor:
                    cursor.execute(
                        f"REPLACE INTO people VALUES ({marks})", [*rows[number].values()]
                    )

        words = ("sync", "shop", "--project", str(tmp_path))
        write(1, 2)
        assert run_command_until_failpoint(*words, failpoint="copy.staged=kill")
        assert secrets.found_in(tmp_path) == []
        write(1, 3)
        _sync(shop.project, "shop")
        write(2, 4)
        shop.run("DELETE FROM people WHERE id = 3")
        del rows[3]
        assert run_command_until_failpoint(*words, failpoint="land.staged=kill")
        assert secrets.found_in(tmp_path) == []
        _sync(shop.project, "shop")
        _expect_stored(shop.project, "shop", "people", rows)
        assert secrets.found_in(tmp_path) == []
    assert not secrets.are_in(repr(logged))


@pytest.mark.long
@pytest.mark.parametrize("method", ["change_tracking", "cdc"])
def test_sql_server(tmp_path: Path, method: str) -> None:
    secrets = Secrets()
    kinds = {name: "STRING" if name.endswith("text") else "BIGINT" for name in COLUMNS}
    instance = Instance("dbo_items", ["id", "name", *COLUMNS], oldest=10)
    server = Server(
        {"id": "INT", "name": "STRING", **kinds},
        ["id"],
        at_micros=_T + 60_000_000,
        instances=[instance],
        commits={10: _T - 3_600_000_000},
    )
    of = project(
        tmp_path,
        "  office:\n    source: {type: sqlserver, url: 'jdbc:sqlserver://db.internal', "
        f"method: {method}, tables: {{dbo.items: {{key: [id]}}}}}}\n    {RULES}\n",
    )
    source = dataclasses.replace(source_of(of, "office"), reader=server)
    rows = {number: _row(secrets, number) for number in (1, 2)}
    for row in rows.values():
        server.put(**row)
    _sync(of, "office", source)
    _expect_stored(of, "office", "items", rows)
    rows |= {number: _row(secrets, number) for number in (1, 3)}
    server.at_micros += 3_600_000_000
    if method == "change_tracking":
        for number in (1, 3):
            server.put(**rows[number])
    else:
        server.commits[11] = server.at_micros
        changed = frozenset(COLUMNS)
        instance.changes = [Change(11, 1, 4, rows[1], changed), Change(11, 2, 2, rows[3])]
    _sync(of, "office", source)
    _expect_stored(of, "office", "items", rows)
    assert secrets.found_in(tmp_path) == []


@pytest.fixture
def api() -> Iterator[Api]:
    with Api() as found:
        yield found


def _api_shop(tmp_path: Path, api: Api, stream: str) -> tuple[ApiShop, Secrets]:
    shop = ApiShop(tmp_path, api)
    shop.configure(stream, more=RULES)
    return shop, Secrets()


def _put_orders(shop: ApiShop, secrets: Secrets, day: str, *numbers: int) -> None:
    for number in numbers:
        shop.put(number, day, **{k: v for k, v in _row(secrets, number).items() if k != "id"})


@pytest.mark.long
@pytest.mark.parametrize(
    "stream", ["orders: {detect_deletes: PT0.001S}", "turns: {}", "counted: {}"]
)
def test_api(tmp_path: Path, api: Api, logged: list[Any], stream: str) -> None:
    shop, secrets = _api_shop(tmp_path, api, stream)
    name = stream.partition(":")[0]
    _put_orders(shop, secrets, "02-01", 1, 2)
    shop.sync_or_fail()
    _expect_stored(shop.project, "shop", name, shop.orders)
    assert secrets.found_in(tmp_path) == []
    _put_orders(shop, secrets, "02-02", 1, 3)
    shop.sync_or_fail()
    _expect_stored(shop.project, "shop", name, shop.orders)
    shop.sync_or_fail(full_refresh=True)
    assert secrets.found_in(tmp_path) == []
    assert not secrets.are_in(repr(logged))
    assert shop.agrees()


@pytest.mark.long
def test_api_that_tasks_read(tmp_path: Path, api: Api) -> None:
    shop, secrets = _api_shop(tmp_path, api, "orders: {}")
    file = tmp_path / "chronolake.yml"
    file.write_text(file.read_text().replace("only:", "spark_from_mib: 0\n      only:"))
    shop.project = load_project(file)
    _put_orders(shop, secrets, "02-01", *range(1, 20))
    shop.sync_or_fail()
    _expect_stored(shop.project, "shop", "orders", shop.orders)
    assert secrets.found_in(tmp_path) == []


@pytest.mark.sampled
@pytest.mark.parametrize(
    "failpoint", ["read.slice-noted=kill", "read.slice-done=kill", "land.staged=kill"]
)
def test_a_killed_run_of_an_api_leaves_no_values(tmp_path: Path, api: Api, failpoint: str) -> None:
    shop, secrets = _api_shop(tmp_path, api, "orders: {}")
    # Whichever slice is read first has records.
    _put_orders(shop, secrets, "02-01", 1, 2)
    _put_orders(shop, secrets, "08-01", 3, 4)
    words = ("sync", "shop", "--project", str(tmp_path))
    assert run_command_until_failpoint(*words, failpoint=failpoint)
    assert secrets.found_in(tmp_path) == []
    if failpoint.startswith("read."):
        assert list(tmp_path.rglob("*.arrow")), "records were waiting to be landed"
    shop.sync_or_fail()
    _expect_stored(shop.project, "shop", "orders", shop.orders)
    assert secrets.found_in(tmp_path) == []


def test_records_that_wait_are_read_again_under_other_rules(tmp_path: Path, api: Api) -> None:
    shop = ApiShop(tmp_path, api)
    secrets = Secrets()
    shop.configure("orders: {}")
    # Whichever slice is read first has records.
    _put_orders(shop, secrets, "02-01", 1, 2)
    _put_orders(shop, secrets, "08-01", 3, 4)
    words = ("sync", "shop", "--project", str(tmp_path))
    assert run_command_until_failpoint(*words, failpoint="read.slice-noted=kill")
    assert secrets.found_in(tmp_path), "the records are waiting"
    shop.configure("orders: {}", more=RULES)
    shop.sync_or_fail()
    _expect_stored(shop.project, "shop", "orders", shop.orders)
    assert secrets.found_in(tmp_path) == []


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ("columns: {exclude: [updated_at]}", "updated_at cannot be in columns.exclude"),
        ("columns: {mask: ['i?']}", "id cannot be in columns.mask"),
    ],
)
def test_columns_that_an_api_stream_needs(
    tmp_path: Path, api: Api, rules: str, problem: str
) -> None:
    shop = ApiShop(tmp_path, api)
    shop.configure("orders: {}", more=rules)
    with pytest.raises(ConfigurationError, match=problem):
        shop.sync()


def test_keys_that_are_partitions_of_another_stream(tmp_path: Path, api: Api) -> None:
    shop = ApiShop(tmp_path, api)
    shop.configure("notes: {}", more=f"columns: {{hash: [team], hash_key: '{KEY}'}}")
    with pytest.raises(ConfigurationError, match=r"team cannot be in columns\.hash"):
        shop.sync()
    shop.configure(f"teams: {{columns: {{hash: [id], hash_key: '{KEY}'}}}}", "notes: {}")
    with pytest.raises(ConfigurationError, match="stored in the state of the stream notes"):
        shop.sync()


def test_values_in_an_unexpected_error(
    tmp_path: Path, api: Api, logged: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, secrets = _api_shop(tmp_path, api, "orders: {}")
    _put_orders(shop, secrets, "02-01", 1)

    def fail(_: object, records: list[Any], __: object) -> None:
        raise ValueError(records)

    monkeypatch.setattr("chronolake.source.records.schema.Shape.cells", fail)
    found = shop.sync()["orders"]
    assert "details are left out" in (found.error or "")
    assert not secrets.are_in(repr(logged))
    assert secrets.found_in(tmp_path) == []


@pytest.fixture
def files(tmp_path: Path) -> DataLake:
    return DataLake(tmp_path / "theirs")


def _people_of(tmp_path: Path, more: str = RULES) -> Project:
    source = "{type: data_lake_v2, path: ../theirs, org: X}"
    return project(
        tmp_path / "ours", f"  crm:\n    mode: history\n    source: {source}\n    {more}\n"
    )


def _versions(rows: list[dict[str, Any]], at: int) -> list[dict[str, Any]]:
    """Return rows of a file: each field as text, and numbers also as numbers."""
    modified = {"source__modified": _T + at * 1_000_000, "grax__idseq": f"{at:04}"}
    return [
        {
            "Id": str(row["id"]),
            **modified,
            **{name: None if cell is None else str(cell) for name, cell in row.items()},
            **{f"{name}_i": cell for name, cell in row.items() if isinstance(cell, int)},
        }
        for row in rows
    ]


@pytest.mark.long
def test_data_lake(tmp_path: Path, files: DataLake, logged: list[Any]) -> None:
    secrets = Secrets()
    rows = {number: _row(secrets, number) for number in (1, 2)}
    files.write("people", _versions([*rows.values()], 1))
    of = _people_of(tmp_path)
    _sync(of, "crm")
    _expect_stored(of, "crm", "people", rows)
    rows |= {number: _row(secrets, number) for number in (1, 3)}
    files.write("people", _versions([rows[1], rows[3]], 2))
    _sync(of, "crm")
    _expect_stored(of, "crm", "people", rows)
    _sync(of, "crm", full_refresh=True)
    _expect_stored(of, "crm", "people", rows)
    assert secrets.found_in(tmp_path / "ours") == []
    assert not secrets.are_in(repr(logged))


def test_new_rules_rebuild_a_table_of_a_data_lake(tmp_path: Path, files: DataLake) -> None:
    secrets = Secrets()
    rows = {1: _row(secrets, 1)}
    files.write("people", _versions([*rows.values()], 1))
    _sync(_people_of(tmp_path, ""), "crm")
    of = _people_of(tmp_path)
    _sync(of, "crm")
    _expect_stored(of, "crm", "people", rows)


def test_rules_name_the_columns_of_the_source(tmp_path: Path, files: DataLake) -> None:
    row = {"Id": "1", "source__modified": _T, "grax__idseq": "1", "a": "x", "b": "y", "c": "z"}
    files.write("people", [row])
    of = _people_of(
        tmp_path,
        f"columns: {{hash: [a], exclude: [c], hash_key: '{KEY}', rename: {{a: b, b: d}}}}",
    )
    _sync(of, "crm")
    (found,) = iceberg(of, "crm", "people").scan().to_arrow().to_pylist()
    assert {name: found.get(name) for name in "abcd"} == {
        "a": None,
        "b": hashed("x"),
        "c": None,
        "d": "y",
    }


@pytest.mark.long
def test_fields_of_a_data_lake_are_cast(tmp_path: Path, files: DataLake) -> None:
    def row(number: int, price: str) -> dict[str, Any]:
        return {
            "Id": str(number),
            "source__modified": _T + number,
            "grax__idseq": str(number),
            "price": price,
            "n": str(number),
            "n_i": number,
        }

    files.write("items", [row(1, "1.50")])
    types = "{price: 'decimal(9,2)', n: string}"
    of = _people_of(tmp_path, f"columns: {{type: {types}, rename: {{price: cost}}}}")
    _sync(of, "crm")
    files.write("items", [row(2, "2")])
    _sync(of, "crm")
    found = iceberg(of, "crm", "items").scan().to_arrow().to_pylist()
    assert sorted((row["cost"], row["n"]) for row in found) == [
        (Decimal("1.50"), "1"),
        (Decimal("2.00"), "2"),
    ]
    files.write("items", [row(3, "free")])
    lake = Lake.open(of.lake.path, config=of.lake)
    (stream,) = sync(lake, of, "crm").streams
    assert "does not fit DECIMAL(9,2)" in (stream.error or "")
    _sync(_people_of(tmp_path, "columns: {}"), "crm")
    found = iceberg(of, "crm", "items").scan().to_arrow().to_pylist()
    assert sorted((row["price"], row["n"]) for row in found) == [("1.50", 1), ("2", 2), ("free", 3)]


_FUNCTIONS = """
import json
from pathlib import Path

import chronolake

@chronolake.stream(key="id", capture="CAPTURE")
def people(state):
    yield json.loads(Path("FILE").read_text())
    state["n"] = 1
"""


@pytest.mark.sampled
@pytest.mark.parametrize("capture", ["snapshot", "polling", "log"])
def test_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: list[Any], capture: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    secrets = Secrets()
    file = tmp_path / "outside" / "people.json"
    file.parent.mkdir()
    module = f"people_{capture}"
    code = _FUNCTIONS.replace("CAPTURE", capture).replace("FILE", str(file))
    (tmp_path / f"{module}.py").write_text(code)
    source = f"{{type: python, run: '{module}:people'}}"
    of = project(tmp_path, f"  office:\n    source: {source}\n    {RULES}\n")
    rows: Rows = {}
    for numbers in ((1, 2), (2, 3)):
        rows |= {number: _row(secrets, number) for number in numbers}
        file.write_text(json.dumps([*rows.values()]))
        _sync(of, "office")
        _expect_stored(of, "office", "people", rows)
    assert secrets.found_in(tmp_path, apart_from=[file.name]) == []
    assert not secrets.are_in(repr(logged))


@pytest.mark.sampled
@pytest.mark.parametrize("capture", ["snapshot", "polling"])
def test_what_a_killed_sync_of_a_function_leaves(tmp_path: Path, capture: str) -> None:
    secrets = Secrets()
    file = tmp_path / "outside" / "people.json"
    file.parent.mkdir()
    file.write_text(json.dumps([_row(secrets, 1)]))
    code = _FUNCTIONS.replace("CAPTURE", capture).replace("FILE", str(file))
    (tmp_path / "killed_people.py").write_text(code)
    source = "{type: python, run: 'killed_people:people'}"
    of = project(tmp_path, f"  office:\n    source: {source}\n    {RULES}\n")
    words = ("sync", "office", "--project", str(tmp_path))
    assert run_command_until_failpoint(*words, failpoint="land.staged=kill")
    assert list((of.lake.path / "raw").rglob("*.arrow")), "the records wait"
    assert secrets.found_in(tmp_path, apart_from=[file.name]) == []
