"""Versions of a Delta table, which delta-rs writes, are copies."""

from __future__ import annotations

import json
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
import yaml

from chronolake.core import verify
from chronolake.lake import Lake
from chronolake.pipeline.store import StreamRun
from chronolake.pipeline.sync import sync
from chronolake.source.connectors.environments import environment
from chronolake.types import ACTIVE, START, TableName
from support.commands import run_words
from support.datalakes import iceberg, project

#: They install a package.
pytestmark = pytest.mark.long

_PACKAGE: Final = "deltalake==1.6.6"
_PLACE: Final = "é b%20/ü=?#"


@pytest.fixture(scope="module", autouse=True)
def _client() -> None:
    """Make delta-rs importable, which is in an environment of its own."""
    folder = str(next(environment([_PACKAGE]).glob("lib/python3*/site-packages")))
    if folder not in sys.path:
        # Last, so that all other packages are those of the tests.
        sys.path.append(folder)


class Orders:
    """A Delta table, and the pipeline `shop` of its versions."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.table = folder / "gold orders"
        self.folder = folder / "project"
        self.folder.mkdir()
        source = {"type": "copies", "format": "delta", "path": str(self.table), "key": ["id"]}
        text = json.dumps({**source, "stream": "orders", **settings})
        self.project = project(self.folder, f"  shop:\n    source: {text}\n")
        self.lake = Lake.open(self.project.lake.path, config=self.project.lake)

    @property
    def delta(self) -> Any:
        return import_module("deltalake").DeltaTable(str(self.table))

    def write(self, rows: list[dict[str, Any]], **how: Any) -> None:
        import_module("deltalake").write_deltalake(
            str(self.table), pa.Table.from_pylist(rows), partition_by=["place"], **how
        )

    def sync(self) -> StreamRun:
        (stream,) = sync(self.lake, self.project, "shop").streams
        return stream

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        assert verify(self.lake, TableName("shop", "orders")).holds
        found = iceberg(self.project, "shop", "orders").scan().to_arrow().to_pylist()
        return sorted((tuple(row[column] for column in columns) for row in found), key=repr)


def _row(number: int, name: str, place: str | None = _PLACE) -> dict[str, Any]:
    return {
        "id": number,
        "name": name,
        "place": place,
        "day": date(2026, 1, 2),
        "price": Decimal("1.50"),
        "at": datetime(2026, 1, 2, 3, tzinfo=UTC),
        "tags": ["a"],
    }


def test_each_version_is_a_copy(tmp_path: Path) -> None:
    shop = Orders(tmp_path)
    shop.write([_row(1, "a"), _row(2, "a", None)])
    shop.write([_row(3, "a", "x")], mode="append")
    assert shop.sync().error is None
    assert shop.rows("id", "name", "place", ACTIVE) == [
        (1, "a", _PLACE, True),
        (2, "a", None, True),
        (3, "a", "x", True),
    ]
    cells = shop.rows("day", "price", "at", "tags")
    assert cells[0] == (
        date(2026, 1, 2),
        Decimal("1.50"),
        datetime(2026, 1, 2, 3, tzinfo=UTC),
        '["a"]',
    )
    shop.delta.delete("id = 1")
    shop.delta.update(predicate="id = 2", updates={"name": "'b'"})
    shop.delta.optimize.compact()
    shop.write([_row(4, "a") | {"more": 7}], mode="append", schema_mode="merge")
    assert shop.sync().error is None
    assert shop.rows("id", "name", "more", ACTIVE) == [
        (1, "a", None, False),
        (2, "a", None, False),
        (2, "b", None, True),
        (3, "a", None, True),
        (4, "a", 7, True),
    ]
    times = {entry["timestamp"] for entry in shop.delta.history()}
    assert {round(at.timestamp() * 1000) for (at,) in shop.rows(START)} <= times
    lake = Lake.prepare(shop.project.lake)
    sync(lake, shop.project, "shop")
    assert not lake.has_started


def test_versions_whose_files_were_removed_are_left_out(tmp_path: Path) -> None:
    shop = Orders(tmp_path)
    shop.write([_row(1, "a"), _row(2, "a")])
    shop.write([_row(1, "b")], mode="overwrite")
    shop.write([_row(1, "c")], mode="overwrite")
    shop.delta.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    shop.write([_row(1, "d")], mode="overwrite")
    assert shop.sync().error is None
    assert shop.rows("id", "name", ACTIVE) == [(1, "c", False), (1, "d", True)]


def test_a_delta_table_is_proposed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Orders(tmp_path)
    shop.write([_row(1, "a"), _row(2, "a", None)])
    monkeypatch.chdir(tmp_path)
    code, _, error = run_words(capsys, "init", "--from", str(shop.table))
    assert code == 0, error
    content = yaml.safe_load(Path("chronolake.yml").read_text())
    assert content["pipelines"]["gold_orders"]["source"] == {
        "type": "copies",
        "format": "delta",
        "path": "gold orders",
        "key": ["id"],
    }
    code, reported, error = run_words(capsys, "check", "--json")
    assert code == 0, f"{reported}{error}"


def test_unsupported_tables_are_refused(tmp_path: Path) -> None:
    shop = Orders(tmp_path)
    assert "log of the Delta table cannot be read" in f"{shop.sync().error}"
    shop.write([_row(1, "a")])
    number = shop.delta.version() + 1
    (add,) = (
        action["add"]
        for action in map(
            json.loads, next(shop.table.glob("_delta_log/*.json")).read_text().splitlines()
        )
        if "add" in action
    )
    vector = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    actions = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        {"add": {**add, "deletionVector": vector}},
        {"commitInfo": {"timestamp": add["modificationTime"] + 60_000, "operation": "DELETE"}},
    ]
    commit = shop.table / "_delta_log" / f"{number:020}.json"
    commit.write_text("\n".join(map(json.dumps, actions)))
    assert "has deletion vectors" in f"{shop.sync().error}"
    assert shop.rows("id", ACTIVE) == [(1, True)]
