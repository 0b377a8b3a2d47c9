"""Servers of MySQL and MariaDB with other settings, and without TLS."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pymysql
import pytest

from chronolake import core
from chronolake.config import MysqlTarget
from chronolake.errors import TargetError
from chronolake.lake import Lake
from chronolake.target.mysql import connect, unescape
from chronolake.types import Column, ColumnType, Kind, TableName
from support.lakes import lake_config
from support.source import mysql_servers
from support.target.targets import Target


def test_rows_are_inserted_where_load_data_local_is_disabled(tmp_path: Path) -> None:
    name = TableName("sales", "texts")
    columns = [
        Column("id", ColumnType(Kind.LONG), primary_key=True),
        Column("text", ColumnType(Kind.STRING)),
        Column("data", ColumnType(Kind.BINARY)),
        Column("discount %", ColumnType(Kind.STRING)),
    ]
    with (
        mysql_servers.server("mariadb", local_infile="0", max_allowed_packet="1M") as address,
        Lake.open(tmp_path, config=lake_config(tmp_path)) as lake,
    ):
        host, _, port = address.rpartition("@")[2].partition(":")
        with pymysql.connect(host=host, port=int(port), user="root") as connection:
            connection.cursor().execute("CREATE DATABASE reporting")
        config = MysqlTarget(type="mysql", dsn=f"{address}/reporting", tables=["*"])
        core.create(lake, name, columns)
        texts = ["tab\t", "back\\slash", "line\nfeed", "\\N", "", None, "100 %"]
        data = [b"\0\t", b"\\", b"", None, b"x", b"\xff", b"%s"]
        rows = pa.table({"id": range(7), "text": texts, "data": data, "discount %": texts})
        lake.spark.createDataFrame(rows).writeTo("chronolake.sales.texts").append()
        target = Target(lake, config)
        assert target.publish(name).rows == {"I": 7}
        target.expect_equal(name)
        long = pa.table({"id": [8], "text": ["x" * 2**20], "data": [b""], "discount %": ["%s"]})
        lake.spark.createDataFrame(long).writeTo("chronolake.sales.texts").append()
        with pytest.raises(TargetError, match="larger than `max_allowed_packet`") as caught:
            target.publish(name)
        assert (caught.value.table, caught.value.column) == (str(name), "text")
        assert str(caught.value).count("sales.texts") == 1
        with (
            pytest.raises(TargetError, match="does not offer TLS"),
            connect(f"{config.dsn}?ssl-mode=required"),
        ):
            pass


def test_fields_are_unescaped_as_load_data_does() -> None:
    assert unescape(b"\\N") is None
    assert unescape(b"a\\tb\\\\n\\n\\0") == "a\tb\\n\n\0"
