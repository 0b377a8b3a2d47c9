"""Targets whose server accepts only tables with a key, or adds one."""

from __future__ import annotations

import pyarrow as pa
import pymysql
import pytest

from chronolake.config import MysqlTarget
from chronolake.target.database import Relation
from chronolake.target.limits import target_columns
from chronolake.target.selection import database_of
from chronolake.types import Column, ColumnType, Kind, TableName
from support.source import mysql_servers
from support.target.sessions import change_rows, load_rows

_NAME = TableName("sales", "keyed")


@pytest.mark.parametrize(
    ("flavor", "setting"),
    [
        ("mariadb", "innodb_force_primary_key"),
        pytest.param("mysql", "sql_require_primary_key", marks=pytest.mark.long),
        pytest.param("mysql", "sql_generate_invisible_primary_key", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("is_keyed", [True, False])
def test_tables_get_a_key(flavor: str, setting: str, *, is_keyed: bool) -> None:
    with mysql_servers.server(flavor, local_infile="1", **{setting: "ON"}) as address:
        config = MysqlTarget(type="mysql", dsn=f"{address}/reporting", tables=["*"])
        host, _, port = address.rpartition("@")[2].partition(":")
        with pymysql.connect(host=host, port=int(port), user="root") as connection:
            cursor = connection.cursor()
            cursor.execute("CREATE DATABASE reporting")
            with database_of("reporting", config).open(Relation("reporting", "keyed")) as session:
                declared = [
                    (Column("id", ColumnType(Kind.LONG), primary_key=is_keyed), 0),
                    (Column("v", ColumnType(Kind.STRING)), 1),
                ]
                key = {"id"} if is_keyed else ()
                columns = target_columns(session.limits, _NAME, declared, key)
                base = load_rows(session, columns, _rows([1, 2], ["a", "b"]))
                session.raise_if_changed(base)
                if is_keyed:
                    base = change_rows(session, base, "UI", _rows([1, 3], ["c", "d"]))
                base = load_rows(session, columns, _rows([1, 3], ["e", "f"]), base)
                session.raise_if_changed(base)
            cursor.execute("SELECT * FROM reporting.`keyed` ORDER BY id")
            assert list(cursor.fetchall()) == [(1, "e"), (3, "f")]


def _rows(ids: list[int], texts: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64()), "v": texts})
