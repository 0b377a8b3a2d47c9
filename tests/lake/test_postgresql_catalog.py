"""A lake whose catalog is a real PostgreSQL database."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import postgresql
import psycopg
import pytest

from chronolake import core, inspect
from chronolake.change_set import OP, SEQ, UNMODIFIED, Op
from chronolake.config import LakeConfig, load
from chronolake.errors import LakeError, TableExistsError, TableNotFoundError
from chronolake.lake import Lake
from chronolake.types import Column, ColumnType, Kind, TableName
from support.lakes import lake_config

NAME = TableName("a.b c", "People's")
COLUMNS = (
    Column("id", ColumnType(Kind.LONG), primary_key=True),
    Column("name", ColumnType(Kind.STRING)),
    Column("_fivetran_synced", ColumnType(Kind.UTC_DATETIME)),
)


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with postgresql.server() as address:
        yield address


@pytest.fixture(scope="module")
def config(uri: str, tmp_path_factory: pytest.TempPathFactory) -> LakeConfig:
    folder = tmp_path_factory.mktemp("lake")
    return lake_config(folder, **{"catalog.uri": uri})


def test_an_empty_database_is_a_lake_without_tables(config: LakeConfig) -> None:
    assert inspect.tables(config) == []
    assert inspect.names(config) == []


def test_what_is_written_is_read_back_through_the_same_catalog(
    config: LakeConfig, uri: str
) -> None:
    with Lake.open(config.path, config=config) as lake:
        core.create(lake, NAME, COLUMNS)
        with pytest.raises(TableExistsError):
            core.create(lake, NAME, COLUMNS)
        rows = lake.spark.sql(
            f"SELECT {int(Op.REPLACE)} AS {OP}, id AS {SEQ}, CAST(null AS array<bigint>) AS "
            f"{UNMODIFIED}, id, concat('n', id) AS name, now() AS _fivetran_synced FROM range(10)"
        )
        core.write_batch(lake, NAME, rows, columns=COLUMNS, batch="b1")
        assert lake.tables() == [NAME]
        assert lake.table(NAME).df.count() == 10
        assert core.verify(lake, NAME).holds

    (found,) = inspect.tables(config)
    assert (found.name, found.rows, found.columns) == (NAME, 10, COLUMNS)
    (row,) = inspect.history(config, NAME, {"id": "7"}).versions
    assert row.values["name"] == "n7"
    with pytest.raises(TableNotFoundError):
        inspect.history(config, TableName("a", "b"), {"id": "7"})
    assert not config.catalog_file.exists()
    with psycopg.connect(uri) as connection:
        stored = connection.execute("SELECT catalog_name, table_name FROM iceberg_tables")
        assert stored.fetchall() == [("chronolake", NAME.table)]


@pytest.mark.long
def test_a_server_that_does_not_respond_times_out(config: LakeConfig, uri: str) -> None:
    name = TableName("silent", "t")
    with Lake.open(config.path, config=config) as lake, ThreadPoolExecutor(1) as threads:
        core.create(lake, name, COLUMNS)
        with psycopg.connect(uri) as connection:
            found = connection.execute(
                "SELECT pid FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
            backends = [pid for (pid,) in found]
        assert backends
        for pid in backends:
            os.kill(pid, signal.SIGSTOP)
        try:
            asked = threads.submit(lake.describe, name)
            # Another connection may get a response; the limit on the waiting time is what counts.
            assert isinstance(asked.exception(timeout=150), LakeError | type(None))
        finally:
            for pid in backends:
                os.kill(pid, signal.SIGCONT)
        assert lake.describe(name) is not None


def test_the_error_for_a_wrong_password_does_not_contain_it(uri: str, tmp_path: Path) -> None:
    wrong = uri.replace("lake@", "cake@")
    config = load(tmp_path, overrides={"catalog.uri": wrong, "spark.master": "local[2]"})

    with pytest.raises(LakeError) as looked:
        inspect.tables(config)
    with pytest.raises(LakeError) as opened:
        Lake.open(tmp_path, config=config)

    for refused in (looked, opened):
        assert "cake" not in str(refused.value)
