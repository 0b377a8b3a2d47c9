"""Databases that tables are published to, and the lake with the tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from postgresql import server

from chronolake.config import MysqlTarget, PostgresTarget, RelationalTarget
from chronolake.lake import Lake
from support.lakes import lake_config
from support.source import mysql_servers
from support.target.targets import Target


@pytest.fixture(
    scope="session",
    params=["postgres", "mariadb", pytest.param("mysql", marks=pytest.mark.long)],
)
def config(request: pytest.FixtureRequest) -> Iterator[RelationalTarget]:
    """Yield the settings of a target, for each kind of database."""
    with config_of(request.param) as found:
        yield found


@contextmanager
def config_of(kind: str) -> Iterator[RelationalTarget]:
    """Run a database, and yield the settings of a target in it."""
    if kind == "postgres":
        with server() as address:
            yield PostgresTarget(type="postgres", dsn=address, tables=["*"])
        return
    with mysql_servers.server(kind, local_infile="1") as address:
        yield MysqlTarget(type="mysql", dsn=f"{address}/reporting", tables=["*"])


@pytest.fixture
def target(config: RelationalTarget, tmp_path: Path) -> Iterator[Target]:
    """Yield an empty target of an empty lake."""
    with Lake.open(tmp_path, config=lake_config(tmp_path)) as lake:
        found = Target(lake, config)
        if isinstance(config, PostgresTarget):
            found.run(
                "DROP SCHEMA IF EXISTS sales CASCADE", "DROP SCHEMA IF EXISTS chronolake CASCADE"
            )
        else:
            Target(
                lake, config.model_copy(update={"dsn": config.dsn.rpartition("/")[0] + "/mysql"})
            ).run("DROP DATABASE IF EXISTS reporting", "CREATE DATABASE reporting")
        yield found
