"""Lakes in Azure, with a server that has its protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from postgresql import server
from pyiceberg.catalog.sql import SqlCatalog

from chronolake.config import StorageConfig
from chronolake.object_store import BucketPath
from support.store.azurite import Store, azurite
from support.store.bucket_rules import BUCKET_RULES
from support.store.projects import BucketProject

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("store")
    with azurite(folder) as found, pytest.MonkeyPatch.context() as patch:
        for name, value in found.environment.items():
            patch.setenv(name, value)
        yield found


@pytest.fixture
def bucket(store: Store, tmp_path: Path) -> BucketPath:
    keys = {name: store.environment.get(value[2:-1], value) for name, value in store.keys.items()}
    return BucketPath(f"{store.bucket}/{tmp_path.name}", StorageConfig.model_validate(keys))


@pytest.mark.parametrize("expect", BUCKET_RULES)
def test_the_rules_of_buckets_hold(
    bucket: BucketPath, expect: Callable[[BucketPath], None]
) -> None:
    expect(bucket)


def test_commands_work_on_a_lake(store: Store, tmp_path: Path) -> None:
    with (
        server(wal_level="logical") as address,
        psycopg.connect(address, autocommit=True) as shop,
    ):
        shop.execute("CREATE TABLE orders (id int PRIMARY KEY, name text)")
        shop.execute("INSERT INTO orders SELECT n, 'first' FROM generate_series(1, 50) n")
        pipelines = {"shop": {"source": {"type": "postgres", "dsn": address}}}
        there = BucketProject(
            tmp_path,
            f"{store.bucket}/lake",
            0,
            pipelines,
            keys=dict(store.keys),
            environment=store.environment,
        )
        there.run("check", "--create")
        there.run("sync", "shop")
        shop.execute("UPDATE orders SET name = 'other' WHERE id <= 3")
        shop.execute("DELETE FROM orders WHERE id = 4")
        there.run("sync", "shop")

        assert _active(there) == [
            (number, "other" if number <= 3 else "first") for number in range(1, 51) if number != 4
        ]
        assert [found["table"] for found in there.json("tables")] == ["shop.orders"]
        assert "other" in there.run("history", "shop.orders", "--key", "id=1")
        there.run("verify", "shop.orders", "--against-lake")
        there.run("rebuild", "shop.orders")
        assert len(_active(there)) == 49


def _active(there: BucketProject) -> list[tuple[Any, ...]]:
    lake = there.project.lake
    properties = lake.pyiceberg_properties
    catalog = SqlCatalog("chronolake", uri=f"sqlite:///{lake.catalog_file}", **properties)
    try:
        rows = catalog.load_table(("shop", "orders")).scan().to_arrow().to_pylist()
    finally:
        catalog.engine.dispose()
    return sorted((row["id"], row["name"]) for row in rows if row["_fivetran_active"])
