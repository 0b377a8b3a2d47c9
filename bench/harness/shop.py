"""A PostgreSQL database with one table of ten columns, and the pipeline that reads it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import psycopg
from pyspark.sql import DataFrame, SparkSession

from chronolake.config import Project, load_project
from chronolake.lake import Lake
from chronolake.pipeline.events import Event, EventKind
from chronolake.pipeline.runs import Status
from chronolake.pipeline.sync import sync
from chronolake.source.protocol import Source

NAME: Final = "orders"
_TABLE: Final = (
    "CREATE TABLE orders (id int PRIMARY KEY, customer int, state text, amount numeric(12,2), "
    "rate float8, paid bool, day date, at timestamptz, note text, visits bigint)"
)
_ROW: Final = (
    "n, n % 1000, 'state ' || n % 7, n / 100.0, n / 7.0, n % 2 = 0, "
    "date '2024-01-01' + n % 1000, now(), 'note number ' || n, 0"
)


def create(address: str) -> None:
    """Create the table, empty."""
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(_TABLE)


def fill(address: str, begin: int, upto: int, *, step: int = 1_000_000) -> None:
    """Insert the rows with keys from `begin` to before `upto`, `step` rows in each statement."""
    with psycopg.connect(address, autocommit=True) as connection:
        for first in range(begin, upto, step):
            last = min(first + step, upto) - 1
            connection.execute(
                f"INSERT INTO orders SELECT {_ROW} FROM generate_series({first}, {last}) n"
            )


def publish(address: str) -> None:
    """Create the publication and the slot for reading the log."""
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(
            "CREATE PUBLICATION chronolake_shop FOR TABLE orders "
            "WITH (publish_via_partition_root = true)"
        )
        connection.execute(
            "SELECT pg_create_logical_replication_slot('chronolake_shop', 'pgoutput')"
        )


def unpublish(address: str) -> None:
    """Remove the publication and the slot for reading the log."""
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("SELECT pg_drop_replication_slot('chronolake_shop')")
        connection.execute("DROP PUBLICATION chronolake_shop")


def project_of(folder: Path, address: str, more: str = "") -> Project:
    """Write the project whose pipeline `shop` reads the database into the lake of a folder."""
    os.environ["SHOP_DSN"] = address
    return _project(folder, f"type: postgres, dsn: '${{SHOP_DSN}}'{more}")


def mysql_project_of(folder: Path, address: str) -> Project:
    """Write the same project for a database of MySQL."""
    os.environ["SHOP_DSN"] = address
    return _project(folder, "type: mysql, dsn: '${SHOP_DSN}', tables: [shop.orders]")


def jdbc_project_of(folder: Path, address: str) -> Project:
    """Write the same project for Spark's JDBC reader, with as many tasks."""
    reported = _jdbc(address)
    os.environ["SHOP_PASSWORD"] = reported["password"]
    table = f"public.{NAME}: {{key: [id], split_by: id}}"
    return _project(
        folder,
        f"type: jdbc, url: '{reported['url']}', user: '{reported['user']}', "
        f"password: '${{SHOP_PASSWORD}}', tables: {{{table}}}",
    )


def _project(folder: Path, source: str) -> Project:
    folder.mkdir(exist_ok=True)
    file = folder / "chronolake.yml"
    file.write_text(f"pipelines: {{shop: {{source: {{{source}}}}}}}\n", encoding="utf-8")
    return load_project(file, lake=folder)


def _jdbc(address: str) -> dict[str, str]:
    parts = urlsplit(address)
    return {
        "url": f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}",
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
    }


def synced(
    lake: Lake, project: Project, *, full_refresh: bool = False, source: Source | None = None
) -> tuple[float, float]:
    """Sync once; return the seconds until all had landed, and until all was published.

    Args:
        lake: the lake.
        project: the project.
        full_refresh: whether the tables are read once more.
        source: the source, if it is not the configured one.
    """
    begin = time.perf_counter()
    landed = [begin]

    def watch(event: Event) -> None:
        if event.kind is EventKind.LANDED:
            landed[0] = time.perf_counter()

    result = sync(lake, project, "shop", watch=watch, full_refresh=full_refresh, source=source)
    if result.status is not Status.SUCCEEDED:
        raise RuntimeError(str(result.streams))
    return landed[0] - begin, time.perf_counter() - begin


def over_jdbc(spark: SparkSession, address: str, rows: int) -> DataFrame:
    """Read the table with Spark's own JDBC reader, with as many tasks as ours."""
    return (
        spark.read.format("jdbc")
        .options(
            **_jdbc(address),
            driver="org.postgresql.Driver",
            dbtable=NAME,
            fetchsize="10000",
            partitionColumn="id",
            lowerBound="0",
            upperBound=str(rows),
            numPartitions=str(spark.sparkContext.defaultParallelism),
        )
        .load()
    )
