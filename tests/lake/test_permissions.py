"""Only its owner can access a lake, whatever the umask is."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chronolake.config import load
from chronolake.pipeline.store import Store
from support.datalakes import project
from support.declarative.apis import Api, Reply
from support.processes import COMMAND

#: Creates a table, writes a row, and lands a file in the raw lake, in its own process.
_PROGRAM = """
import sys
from pathlib import Path
from chronolake import core
from chronolake.lake import Lake
from chronolake.types import Column, ColumnType, Kind, TableName
sys.path[:0] = ["tests"]
from support.lakes import lake_config

folder, shared = Path(sys.argv[1]), sys.argv[2] == "shared"
with Lake.open(folder, config=lake_config(folder, shared=shared)) as lake:
    name = TableName("shop", "orders")
    core.create(lake, name, (Column("id", ColumnType(Kind.LONG), primary_key=True),))
    lake.sql("INSERT INTO shop.orders VALUES (1)")
"""


_MANIFEST = """
version: 6.48.0
type: DeclarativeSource
check: {type: CheckStream, stream_names: [orders]}
streams:
  - type: DeclarativeStream
    name: orders
    primary_key: id
    retriever:
      type: SimpleRetriever
      requester: {type: HttpRequester, url_base: "{{ config['url'] }}", path: /orders}
      record_selector: {extractor: {type: DpathExtractor, field_path: []}}
    schema_loader: {type: InlineSchemaLoader, schema: {}}
"""


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes(lake: Path) -> tuple[set[int], set[int]]:
    """Return the modes of all folders and of all files of a lake."""
    places = [lake, *lake.rglob("*")]
    return (
        {mode(place) for place in places if place.is_dir()},
        {mode(place) for place in places if place.is_file()},
    )


def written(folder: Path, kind: str) -> None:
    program = [sys.executable, "-c", _PROGRAM, str(folder), kind]
    subprocess.run(program, check=True, timeout=120, capture_output=True)


@pytest.mark.long
def test_whatever_is_created_is_for_the_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "lake"
    written(folder, "private")
    assert any((folder / "tables").rglob("*.parquet"))
    assert modes(folder) == ({0o700}, {0o600})
    assert mode(folder.parent) == 0o700


def test_a_command_lands_and_writes_for_the_owner_only(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(_MANIFEST)
    with Api() as api:
        api.on("/orders", lambda _: Reply([{"id": 1, "state": "new"}]))
        source = f"{{type: declarative, manifest: shop.yaml, config: {{url: '{api.url}'}}}}"
        project(tmp_path, f"  shop:\n    source: {source}\n")
        words = [sys.executable, "-c", COMMAND, "sync", "--project", str(tmp_path)]
        subprocess.run(words, check=True, timeout=240, capture_output=True)
    folder = tmp_path / "lake"
    assert any((folder / "raw").rglob("*.parquet"))
    assert any((folder / "tables").rglob("*.parquet"))
    assert modes(folder) == ({0o700}, {0o600})


@pytest.mark.long
def test_a_shared_lake_follows_the_umask(tmp_path: Path) -> None:
    os.umask(0o027)
    folder = tmp_path / "lake"
    written(folder, "shared")
    folders, files = modes(folder)
    assert all(folder & 0o007 == 0 or folder == 0o755 for folder in folders)
    assert mode(folder / "catalog.db") == 0o640
    assert mode(folder) == 0o750
    assert files >= {0o640}


def test_what_exists_keeps_its_mode(tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    folder.mkdir(mode=0o750)

    Store.open(load(folder))

    assert mode(folder) == 0o750
    assert mode(folder / "catalog.db") == 0o600
    assert {mode(folder / name) for name in ("raw", "tables")} == {0o700}
    (folder / "catalog.db").chmod(0o640)
    (folder / "raw").rmdir()
    Store.open(load(folder))
    assert mode(folder / "catalog.db") == 0o640
    assert not (folder / "raw").exists(), "a lake that exists gets nothing"
