"""Dated copies and files with records in a bucket."""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
import zstandard
from pyiceberg.catalog.sql import SqlCatalog

from chronolake.object_store import BucketPath
from chronolake.source.connectors.environments import environment
from chronolake.types import ACTIVE
from support.commands import run_words
from support.store.projects import CREDENTIALS, BucketProject, bucket_engine
from support.store.server import S3Server


@pytest.fixture(scope="module")
def socket() -> Iterator[str]:
    with bucket_engine() as found:
        yield found


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


def _parquet(*ids: int) -> bytes:
    content = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": list(ids)}), content)
    return bytes(content.getvalue())


@pytest.mark.long
def test_files_in_a_bucket(tmp_path: Path, bucket: BucketPath, s3: S3Server, socket: str) -> None:
    sources: dict[str, Any] = {
        "shop": {"type": "copies", "path": f"{bucket}/dumps/{{stream}}/{{date}}", "key": ["id"]},
        "texts": {"type": "copies", "path": f"{bucket}/orders_{{date}}.csv.zst", "key": ["id"]},
        "web": {"type": "files", "path": f"{bucket}/web/*.jsonl.gz", "stream": "clicks"},
        "logs": {"type": "files", "path": f"{bucket}/logs/*.parquet", "stream": "events"},
    }
    sources["shop"]["format"] = "parquet"
    there = BucketProject(
        tmp_path,
        f"{bucket}/lake",
        s3.port,
        {name: {"source": source} for name, source in sources.items()},
        socket,
    )
    bucket.joinpath("dumps", "orders", "2026-01-01", "part 1.parquet").create(_parquet(1, 2))
    bucket.joinpath("dumps", "orders", "2026-01-03", "part 1.parquet").create(_parquet(1, 2))
    bucket.joinpath("orders_2026-01-01.csv.zst").create(zstandard.compress(b"id,name\n1,a\n"))
    bucket.joinpath("orders_2026-01-02.csv.zst").create(zstandard.compress(b"id,name\n1,b\n"))
    bucket.joinpath("web", "a b.jsonl.gz").create(gzip.compress(b'{"page": "x"}\n{"page": "y"}\n'))
    bucket.joinpath("logs", "a%20b c.parquet").create(_parquet(7, 8))
    for name in sources:
        there.run("sync", name)
    bucket.joinpath("dumps", "orders", "2026-01-02", "part 1.parquet").create(_parquet(2, 3))
    there.run("sync", "shop")

    rows = there.rows("shop", "orders")
    assert sorted((row["id"], row[ACTIVE]) for row in rows) == [
        (1, False),
        (1, True),
        (2, True),
        (3, False),
    ]
    texts = there.rows("texts", "orders")
    assert sorted((row["name"], row[ACTIVE]) for row in texts) == [("a", False), ("b", True)]
    clicks = there.rows("web", "clicks")
    found = sorted((row["source_file"], row["source_row"], row["page"]) for row in clicks)
    assert found == [("a b.jsonl.gz", 0, "x"), ("a b.jsonl.gz", 1, "y")]
    events = there.rows("logs", "events")
    found = sorted((row["source_file"], row["source_row"], row["id"]) for row in events)
    assert found == [("a%20b c.parquet", 0, 7), ("a%20b c.parquet", 1, 8)]


@pytest.mark.long
def test_a_bucket_is_proposed(
    tmp_path: Path,
    bucket: BucketPath,
    s3: S3Server,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHRONOLAKE_STORAGE_ENDPOINT", s3.endpoint)
    dumps = bucket.joinpath("dumps", "x=1")
    dumps.joinpath("orders_2026-01-30.parquet").create(_parquet(1, 2))
    dumps.joinpath("orders_2026-01-31.parquet").create(_parquet(1, 2, 3))
    dumps.joinpath("orders_2026-02-01.parquet").create(b"is not read")
    dumps.joinpath("orders_2026-02-02.parquet").create(_parquet(1, 2, 3, 4))
    dumps.joinpath("web", "a.jsonl.gz").create(gzip.compress(b'{"page": "x"}\n{"page": "x"}\n'))
    url = str(dumps)
    for origin, sources in (
        (
            f"{url}/",
            {
                "x_1": {
                    "type": "copies",
                    "path": f"{url}/orders_{{date:%Y-%m-%d}}.parquet",
                    "key": ["id"],
                },
                "x_1_a": {"type": "files", "path": f"{url}/web/a.jsonl.gz"},
            },
        ),
        (
            f"{url}/orders_2026-01-30.parquet",
            {
                "orders_2026_01_30": {
                    "type": "copies",
                    "path": f"{url}/orders_{{date:%Y-%m-%d}}.parquet",
                    "key": ["id"],
                }
            },
        ),
    ):
        code, _, error = run_words(capsys, "init", "--from", origin, "--force")
        assert code == 0, error
        content = yaml.safe_load(Path("chronolake.yml").read_text())
        found = {name: pipeline["source"] for name, pipeline in content["pipelines"].items()}
        assert found == sources
        code, reported, error = run_words(capsys, "check", "--json")
        assert code == 0, f"{reported}{error}"
    code, _, error = run_words(capsys, "init", "--from", f"{bucket}/none/", "--force")
    assert code == 1
    assert "There are no files in" in error


class FolderProject(BucketProject):
    """A project whose lake is in a folder."""

    @property
    def lake(self) -> dict[str, Any]:
        return {"storage": super().lake["storage"]}


def _versions(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((row["id"], row["name"], row[ACTIVE]) for row in rows)


@pytest.mark.long
def test_snapshots_of_an_iceberg_table_in_a_bucket(
    tmp_path: Path, bucket: BucketPath, s3: S3Server, socket: str
) -> None:
    catalog = SqlCatalog(
        "gold",
        uri=f"sqlite:///{tmp_path / 'gold.db'}",
        warehouse=f"{bucket}/gold tables",
        **s3.storage.for_pyiceberg("s3://"),
    )
    catalog.create_namespace("gold")
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    table = catalog.create_table("gold.orders", schema)
    table.append(pa.table({"id": [1, 2], "name": ["a", "a"]}))
    table.overwrite(pa.table({"id": [1], "name": ["b"]}))
    catalog.engine.dispose()
    place = {"format": "iceberg", "path": table.location(), "key": ["id"]}
    source = {"type": "copies", "stream": "orders", **place}
    there = FolderProject(tmp_path, "", s3.port, {"shop": {"source": source}}, socket)
    there.run("sync", "shop")
    expected = [(1, "a", False), (1, "b", True), (2, "a", False)]
    assert _versions(there.rows("shop", "orders")) == expected
    there.environment = {**CREDENTIALS, "CHRONOLAKE_STORAGE_ENDPOINT": s3.endpoint}
    proposed = there.run("init", "--from", table.location(), "--output", "-")
    (pipeline,) = yaml.safe_load(proposed)["pipelines"].values()
    assert pipeline["source"] == {"type": "copies", **place}
    # The history in the lake is an existing table of versions, too.
    with there.table("shop", "orders").scan().to_arrow_batch_reader() as versions:
        rows = versions.read_all().select(["id", "name", "_fivetran_start", "_fivetran_end"])
    catalog.create_table("gold.history", rows.schema).append(rows)
    catalog.engine.dispose()
    words = ("--key", "id", "--start", "_fivetran_start", "--end", "_fivetran_end")
    for number, path in enumerate(
        [(f"{bucket}/gold tables/gold/history", "--format", "iceberg"), _newest(bucket)]
    ):
        there.run("import-history", f"old{number}.orders", *path, *words)
        assert _versions(there.rows(f"old{number}", "orders")) == expected


def _newest(bucket: BucketPath) -> tuple[str]:
    """Return the newest metadata file of the table with versions."""
    files = bucket.joinpath("gold tables", "gold", "history", "metadata").objects()
    return (max(str(file.path) for file in files if file.path.name.endswith(".metadata.json")),)


@pytest.mark.long
def test_versions_of_a_delta_table_in_a_bucket(
    tmp_path: Path, bucket: BucketPath, s3: S3Server
) -> None:
    folder = str(next(environment(["deltalake==1.6.6"]).glob("lib/python3*/site-packages")))
    if folder not in sys.path:
        # Last, so that all other packages are those of the tests.
        sys.path.append(folder)
    delta = import_module("deltalake")
    options = {"endpoint_url": s3.endpoint, "region": "us-east-1", "allow_http": "true"}

    def write(name: str, rows: list[dict[str, Any]], **how: Any) -> None:
        delta.write_deltalake(
            f"{bucket}/gold/{name}",
            pa.Table.from_pylist(rows),
            storage_options={f"AWS_{key.upper()}": value for key, value in options.items()},
            **how,
        )

    place = {"partition_by": ["name"], "mode": "overwrite"}
    write("orders", [{"id": 1, "name": "é b%20/ü"}, {"id": 2, "name": "x"}], **place)
    write("orders", [{"id": 1, "name": "y"}], **place)
    source = {"type": "copies", "format": "delta", "path": f"{bucket}/gold/orders", "key": ["id"]}
    there = FolderProject(
        tmp_path,
        *("", s3.port, {"shop": {"source": {**source, "stream": "orders"}}}),
        environment={**CREDENTIALS, "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{folder}"},
    )
    there.run("sync", "shop")
    expected = [(1, "y", True), (1, "é b%20/ü", False), (2, "x", False)]
    assert _versions(there.rows("shop", "orders")) == expected
    rows = [("a", "2026-01-01", None), ("b", "2025-01-01", "2026-01-01")]
    names = ("name", "begin", "finish")
    write("history", [{"id": 1, **dict(zip(names, row, strict=True))} for row in rows])
    words = ("--key", "id", "--start", "begin", "--end", "finish", "--format", "delta")
    there.run("import-history", "old.orders", f"{bucket}/gold/history", *words)
    assert _versions(there.rows("old", "orders")) == [(1, "a", True), (1, "b", False)]
