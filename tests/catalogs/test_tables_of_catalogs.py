"""Tables of other programs, which a catalog lists, are sources: their snapshots are copies."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import postgresql
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from chronolake.config import load_project
from chronolake.errors import ConfigurationError
from chronolake.lake import Lake
from chronolake.pipeline.sync import sync
from chronolake.types import ACTIVE, START
from support.catalogs.server import properties_on_s3, rest_catalog
from support.commands import run_words
from support.datalakes import iceberg, project
from support.store.projects import BucketProject
from support.store.server import SECRET_KEY, s3_server

_TIME: Final = pa.timestamp("us")
_HISTORY: Final = pa.schema([("id", pa.int64()), ("start", _TIME), ("end", _TIME)])
_JANUARY: Final = datetime(2026, 1, 1)
_FEBRUARY: Final = datetime(2026, 2, 1)


class FolderProject(BucketProject):
    """A project whose lake is in a folder."""

    @property
    def lake(self) -> dict[str, Any]:
        return {}


def _orders(catalog: Catalog) -> Table:
    """Create a table with two snapshots."""
    catalog.create_namespace("gold")
    table = catalog.create_table(
        "gold.orders", pa.schema([("id", pa.int64()), ("name", pa.string())])
    )
    _append(table, 1)
    _append(table, 2)
    return table


def _append(table: Table, number: int) -> None:
    table.append(pa.table({"id": [number], "name": [f"n{number}"]}))


def _versions(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((row["id"], row["name"], row[ACTIVE]) for row in rows)


def _starts(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(round(row[START].timestamp() * 1000) for row in rows)


@pytest.mark.long
def test_a_rest_catalog_with_tables_in_a_bucket(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, s3_socket: str
) -> None:
    place = tmp_path_factory.mktemp("s3")
    with (
        s3_server(place) as s3,
        rest_catalog(tmp_path, properties_on_s3(s3, f"{s3.bucket()}")) as rest,
    ):
        catalog = RestCatalog("writer", uri=rest.uri, **{"s3.endpoint": s3.endpoint})
        table = _orders(catalog)
        # The catalog sends the keys of the bucket.
        properties = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}
        place = {
            "catalog": {"uri": rest.uri, "properties": properties},
            "storage": {"endpoint": s3.endpoint},
        }
        gold = {"type": "copies", **place, "table": "gold.orders", "key": ["id"]}
        missing = gold | {"table": "gold.none"}
        there = FolderProject(
            tmp_path / "project",
            "",
            s3.port,
            {"shop": {"source": gold}, "none": {"source": missing}},
            socket=s3_socket,
            environment={},
        )
        there.run("discover", "shop")
        there.run("sync", "shop")
        _append(table, 3)
        there.run("sync", "shop")
        rows = there.rows("shop", "orders")
        assert _versions(rows) == [(number, f"n{number}", True) for number in (1, 2, 3)]
        assert _starts(rows) == [entry.timestamp_ms for entry in table.history()]
        reported = " ".join(there.run("sync", "none", code=1).split())
        assert "has no table gold.none" in reported

        old = catalog.create_table("gold.history", _HISTORY)
        old.append(pa.table({"id": [1], "start": [_JANUARY], "end": [None]}, _HISTORY))
        there.pipelines["history"] = {
            "source": {
                "type": "history",
                **place,
                "table": "gold.history",
                "stream": "old",
                "key": ["id"],
                "start": "start",
                "end": "end",
            }
        }
        there.configure()
        there.run("sync", "history")
        assert [row[ACTIVE] for row in there.rows("history", "old")] == [True]
        catalog.close()
    for file in (tmp_path / "project").rglob("*"):
        assert not file.is_file() or SECRET_KEY.encode() not in file.read_bytes()


def _sync(folder: Path, source: dict[str, Any]) -> list[dict[str, Any]]:
    found = project(folder, f"  shop:\n    source: {json.dumps(source)}\n")
    lake = Lake.open(found.lake.path, config=found.lake)
    assert [stream.error for stream in sync(lake, found, "shop").streams] == [None]
    rows: list[dict[str, Any]] = iceberg(found, "shop", "orders").scan().to_arrow().to_pylist()
    return rows


@pytest.mark.long
def test_a_catalog_in_postgresql(tmp_path: Path) -> None:
    with postgresql.server() as address:
        uri = address.replace("postgresql://", "postgresql+psycopg://")
        catalog = SqlCatalog("spark", uri=uri, warehouse=str(tmp_path / "gold"))
        table = _orders(catalog)
        catalog.engine.dispose()
        gold = {"type": "copies", "catalog": address, "key": ["id"]}
        rows = _sync(tmp_path, {**gold, "tables": {"orders": {"table": "gold.orders"}}})
    assert _versions(rows) == [(1, "n1", True), (2, "n2", True)]
    assert _starts(rows) == [entry.timestamp_ms for entry in table.history()]


@pytest.mark.long
def test_the_catalog_of_the_lake_is_the_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    catalog = SqlCatalog(
        "chronolake", uri=f"sqlite:///{lake / 'catalog.db'}", warehouse=str(lake / "tables")
    )
    _orders(catalog)
    old = catalog.create_table("gold.old", _HISTORY)
    rows = {"id": [1, 1], "start": [_JANUARY, _FEBRUARY], "end": [_FEBRUARY, None]}
    old.append(pa.table(rows, _HISTORY))
    catalog.engine.dispose()
    rows = _sync(tmp_path, {"type": "copies", "table": "gold.orders", "key": ["id"]})
    assert _versions(rows) == [(1, "n1", True), (2, "n2", True)]

    words = ("--key", "id", "--start", "start", "--end", "end", "--project", str(tmp_path))
    for table, code in (("gold.old", 0), ("gold.none", 1)):
        found, reported, error = run_words(
            capsys, "import-history", "crm.old", "--source-table", table, *words
        )
        assert found == code, f"{reported}{error}"
    assert "has no table gold.none" in " ".join(f"{reported}{error}".split())
    project_ = load_project(tmp_path / "chronolake.yml")
    versions = iceberg(project_, "crm", "old").scan().to_arrow()
    assert sorted(versions[ACTIVE].to_pylist()) == [False, True]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ("catalog: 'http://c', path: 'x_{date}.csv'", "catalog needs table"),
        ("table: gold.orders, path: 'x_{date}.csv'", "set path, or table"),
        ("table: gold.orders, format: delta", "table is only for the format iceberg"),
        ("table: orders", "schema.table"),
        ("format: iceberg, path: 's3://b/{stream}'", "without placeholders"),
        ("table: a.b, tables: {c: {table: a.c}}", "tables with a table each"),
    ],
)
def test_unclear_places_are_refused(tmp_path: Path, settings: str, reason: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        project(tmp_path, f"  shop:\n    source: {{type: copies, key: [id], {settings}}}\n")
    assert reason in f"{refused.value}"
