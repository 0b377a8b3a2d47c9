"""Dated copies and files with records in a bucket."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from chronolake.object_store import BucketPath
from chronolake.types import ACTIVE
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
