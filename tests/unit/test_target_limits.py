"""Limits of targets, and errors of their servers, without a server."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pymysql
import pytest

from chronolake.config import MysqlTarget, PostgresTarget
from chronolake.errors import ConfigurationError, TargetBusyError, TargetError
from chronolake.executor_errors import ExecutorError
from chronolake.executor_errors import error_of as sealed_error_of
from chronolake.target.additions import Addition, list_additions
from chronolake.target.check import warnings_of
from chronolake.target.database import Relation, Survey, _write_part
from chronolake.target.encoding import RowEncoder
from chronolake.target.limits import MYSQL, POSTGRES, TargetLimits, longest_row, target_columns
from chronolake.target.mysql import insert_statements
from chronolake.target.mysql_errors import error_of as mysql_error_of
from chronolake.target.postgres_errors import error_of
from chronolake.target.selection import TargetTable, relation_of, select_tables
from chronolake.types import Column, ColumnType, Kind, TableName

_TABLE = TableName("sales", "values")
_LIMITS = pytest.mark.parametrize("limits", [POSTGRES, MYSQL], ids=["postgres", "mysql"])
#: A value of each type that a key may have.
_KEYS: dict[Kind, tuple[ColumnType, Any]] = {
    Kind.BOOLEAN: (ColumnType(Kind.BOOLEAN), True),
    Kind.SHORT: (ColumnType(Kind.SHORT), 1),
    Kind.INT: (ColumnType(Kind.INT), 1),
    Kind.LONG: (ColumnType(Kind.LONG), 1),
    Kind.FLOAT: (ColumnType(Kind.FLOAT), 1.5),
    Kind.DOUBLE: (ColumnType(Kind.DOUBLE), 1.5),
    Kind.DECIMAL: (ColumnType(Kind.DECIMAL, 38, 10), Decimal("1.5")),
    Kind.NAIVE_DATE: (ColumnType(Kind.NAIVE_DATE), dt.date(2026, 1, 1)),
    Kind.NAIVE_DATETIME: (ColumnType(Kind.NAIVE_DATETIME), dt.datetime(2026, 1, 1)),
    Kind.UTC_DATETIME: (ColumnType(Kind.UTC_DATETIME), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
    Kind.BINARY: (ColumnType(Kind.BINARY), b"\0\xff"),
    Kind.STRING: (ColumnType(Kind.STRING), "a text"),
    Kind.XML: (ColumnType(Kind.XML), "<a/>"),
    Kind.JSON: (ColumnType(Kind.JSON), "{}"),
    Kind.NAIVE_TIME: (ColumnType(Kind.NAIVE_TIME), "23:59:59"),
}


def _columns(limits: TargetLimits, columns: list[Column]) -> Any:
    numbered = [(column, number) for number, column in enumerate(columns)]
    return target_columns(limits, _TABLE, numbered, {item.name for item in columns[:1]})


@_LIMITS
@pytest.mark.parametrize("kind", list(_KEYS))
def test_key_may_have_any_type(limits: TargetLimits, kind: Kind) -> None:
    column_type, value = _KEYS[kind]
    columns = _columns(limits, [Column("k", column_type, primary_key=True)])
    # PostgreSQL's type `json` cannot be indexed.
    assert columns[0].sql != "json"
    rows = pa.RecordBatch.from_arrays([pa.array([value], column_type.arrow)], ["k"])
    assert RowEncoder(limits, columns, str(_TABLE)).encode(rows).size > 1


def test_json_is_a_text_only_in_a_key() -> None:
    json = [Column("a", ColumnType(Kind.JSON)), Column("b", ColumnType(Kind.JSON))]
    assert [column.sql for column in _columns(POSTGRES, json)] == ["text", "json"]


@pytest.mark.parametrize(
    ("limits", "name", "is_valid"),
    [
        (POSTGRES, "xmin", False),
        (POSTGRES, "tableoid", False),
        (POSTGRES, "XMIN", True),
        (POSTGRES, "oid", True),
        (MYSQL, "xmin", True),
        (MYSQL, "DB_Row_Id", False),
        (MYSQL, "fts_doc_id", False),
    ],
)
def test_columns_of_the_server_itself_are_errors(
    limits: TargetLimits, name: str, *, is_valid: bool
) -> None:
    columns = [Column("id", ColumnType(Kind.LONG)), Column(name, ColumnType(Kind.LONG))]
    if is_valid:
        assert len(_columns(limits, columns)) == 2
        return
    with pytest.raises(TargetError, match="does not support the name of the column") as caught:
        _columns(limits, columns)
    assert caught.value.column == name


@_LIMITS
def test_numbers_of_columns_are_limited(limits: TargetLimits) -> None:
    """The temporary table with changes has one column more than the target table."""
    columns = [Column(f"c{n}", ColumnType(Kind.LONG)) for n in range(limits.columns + 1)]
    assert len(_columns(limits, columns[:-1])) == limits.columns
    with pytest.raises(TargetError, match=f"up to {limits.columns} columns"):
        _columns(limits, columns)
    numbered = [(column, number) for number, column in enumerate(columns)]
    names = [column.name for column in columns[: limits.key_columns + 1]]
    target_columns(limits, _TABLE, numbered[:-1], names[:-1])
    with pytest.raises(TargetError, match=f"keys with up to {limits.key_columns} columns"):
        target_columns(limits, _TABLE, numbered[:-1], names)


@_LIMITS
def test_longest_row_counts_fixed_and_separate_values(limits: TargetLimits) -> None:
    numbers = [Column(f"c{n}", ColumnType(Kind.LONG)) for n in range(1_015)]
    assert longest_row(limits, _columns(limits, numbers[:900])) < limits.row_bytes
    assert longest_row(limits, _columns(limits, numbers)) > limits.row_bytes
    texts = [Column(f"c{n}", ColumnType(Kind.STRING)) for n in range(500)]
    assert longest_row(limits, _columns(limits, [numbers[0], *texts[1:190]])) < limits.row_bytes
    assert longest_row(limits, _columns(limits, [numbers[0], *texts[1:]])) > limits.row_bytes


class _Refusing:
    def write(self, part: int, lines: Iterator[pa.Buffer], encoder: RowEncoder) -> None:
        for _ in lines:
            pass


def test_errors_of_tasks_keep_their_column_and_hint() -> None:
    columns = _columns(POSTGRES, [Column("name", ColumnType(Kind.STRING))])
    encoder = RowEncoder(POSTGRES, columns, str(_TABLE))
    rows = pa.RecordBatch.from_arrays([pa.array(["secret\0"])], ["c0"])
    with pytest.raises(ExecutorError) as caught:
        list(_write_part(_Refusing(), encoder, [rows], has_operations=False))
    failure = sealed_error_of(caught.value)
    assert isinstance(failure, TargetError)
    assert (failure.table, failure.column) == (str(_TABLE), "name")
    assert "NUL" in failure.message
    assert "Change the value" in (failure.hint or "")
    assert str(failure).count("table") == 2  # once as the place, once in the hint


@pytest.mark.parametrize(
    ("failure", "kind", "text"),
    [
        (psycopg.errors.DiskFull, TargetError, "lacks resources: DiskFull"),
        (psycopg.errors.OutOfMemory, TargetError, "lacks resources: OutOfMemory"),
        (psycopg.errors.ProgramLimitExceeded, TargetError, "A limit of PostgreSQL"),
        (psycopg.errors.TooManyColumns, TargetError, "A limit of PostgreSQL"),
        (psycopg.errors.DeadlockDetected, TargetBusyError, "has locked"),
        (psycopg.errors.LockNotAvailable, TargetBusyError, "has locked"),
        (psycopg.errors.QueryCanceled, TargetError, "was cancelled"),
        (psycopg.errors.ForeignKeyViolation, TargetError, "that others have added"),
        (psycopg.errors.CheckViolation, TargetError, "that others have added"),
        (psycopg.errors.AdminShutdown, TargetError, "does not respond"),
        (psycopg.errors.TooManyConnections, TargetError, "does not respond"),
        (psycopg.OperationalError, TargetError, "does not respond"),
    ],
)
def test_errors_of_postgres_are_named(
    failure: type[psycopg.Error], kind: type[TargetError], text: str
) -> None:
    found = error_of(failure("a value"))
    assert type(found) is kind
    assert text in found.message
    assert "a value" not in str(found)
    assert found.hint


@pytest.mark.parametrize(
    ("number", "message", "kind", "texts"),
    [
        (1062, "Duplicate entry 'a value' for key 't.mine'", TargetError, ["others have", "mine"]),
        (1062, "Duplicate entry 'a value' for key 'mine'", TargetError, ["others have", "mine"]),
        (1062, "Duplicate entry 'a value' for key 'PRIMARY'", TargetError, ["keys that are equal"]),
        (1451, "... (`r`.`f`, CONSTRAINT `f``k` FOREIGN KEY (`id`) ...)", TargetError, ["f`k"]),
        (3730, "... foreign key constraint 'fk' on table 'f'.", TargetError, ["fk", "others"]),
        (3819, "Check constraint 'ck' is violated.", TargetError, ["ck", "others"]),
        (4025, "CONSTRAINT `ck` failed for `r`.`p`", TargetError, ["ck", "others"]),
        (1048, "Column 'v' cannot be null", TargetError, ["Column 'v'"]),
        (1644, "a value", TargetError, ["trigger that others have added"]),
        (1118, "Row size too large (> 8126).", TargetError, ["do not fit", "8,126"]),
        (1153, "Got a packet bigger", TargetError, ["max_allowed_packet"]),
        (1114, "The table 't' is full", TargetError, ["lacks resources"]),
        (1045, "Access denied", TargetError, ["refuses the connection"]),
        (1142, "INSERT command denied", TargetError, ["lacks a privilege"]),
        (2013, "Lost connection", TargetError, ["does not respond"]),
        (1213, "Deadlock", TargetBusyError, ["has locked"]),
    ],
)
def test_errors_of_mysql_are_named(
    number: int, message: str, kind: type[TargetError], texts: list[str]
) -> None:
    found = mysql_error_of(pymysql.OperationalError(number, message))
    assert type(found) is kind
    for text in texts:
        assert text in found.message
    assert "a value" not in str(found)
    assert found.hint


def test_value_of_mysql_that_does_not_fit_is_named_by_its_column() -> None:
    failure = pymysql.DataError(1406, "Data too long for column 'v' at row 1")
    assert mysql_error_of(failure).column == "v"


def test_inserts_are_split_by_size() -> None:
    rows = [[b"1", b"'" + b"x" * 300_000 + b"'"]] * 10
    found = list(insert_statements(b"INSERT INTO t VALUES ", rows, ["id", "v"], 16 * 2**20))
    assert [statement.count(b"(1,") for statement in found] == [3, 3, 3, 1]
    assert all(statement.startswith(b"INSERT INTO t VALUES (1,'x") for statement in found)
    found = list(insert_statements(b"INSERT INTO t VALUES ", rows, ["id", "v"], 400_000))
    assert len(found) == 10
    assert list(insert_statements(b"INSERT INTO t VALUES ", [], ["id"], 1_000)) == []


def test_row_that_is_larger_than_a_packet_is_an_error_with_its_column() -> None:
    rows = [[b"1", b"x" * 1_000, b"2"]]
    with pytest.raises(TargetError, match="max_allowed_packet") as caught:
        list(insert_statements(b"INSERT INTO t VALUES ", rows, ["id", "v", "n"], 1_024))
    assert caught.value.column == "v"
    assert "1,0" in (caught.value.hint or "")


def test_table_that_cannot_be_published_does_not_affect_others() -> None:
    config = PostgresTarget(
        type="postgres",
        dsn="postgresql://localhost/reports",
        tables=["shop.items", "shop.later", "crm.*"],
        rename={"crm.accounts": "shop.items", "crm.notes": "n" * 64},
    )
    names = ["shop.items", "shop.other", "crm.accounts", "crm.notes", "crm.people"]
    known = [TableName(*name.split(".")) for name in names]
    found = select_tables("reporting", config, known)
    assert [str(table.name) for table in found.tables] == ["crm.people"]
    assert list(found.missing) == ["shop.later"]
    assert {str(name) for name in found.failures} == {"shop.items", "crm.accounts", "crm.notes"}
    failure = found.failures[TableName("shop", "items")]
    assert "crm.accounts and shop.items have the same name" in failure.message


def test_own_tables_of_a_target_are_never_replaced() -> None:
    known = [TableName("chronolake", "parts"), TableName("shop", "chronolake_state")]
    postgres = PostgresTarget(type="postgres", dsn="postgresql://localhost/r", tables=["*"])
    assert list(select_tables("reporting", postgres, known).failures) == known[:1]
    mysql = MysqlTarget(type="mysql", dsn="mysql://localhost/r", tables=["*"])
    found = select_tables("reporting", mysql, known)
    assert list(found.failures) == known[1:]
    assert "own tables" in found.failures[known[1]].message


def test_broken_address_of_mysql_is_not_shown() -> None:
    config = MysqlTarget(type="mysql", dsn="mysql://user:pass/word@host/reports", tables=["*"])
    with pytest.raises(ConfigurationError, match="not a valid address") as caught:
        relation_of(config, _TABLE)
    assert "word" not in caught.value.message


def test_additions_are_listed_without_end() -> None:
    found = list_additions([Addition("index", f"i{n:02}") for n in range(25)])
    assert found.startswith("index i00, index i01")
    assert found.endswith("index i19, and 5 more")
    assert str(Addition("row level security", "")) == "row level security"
    assert Addition("trigger", "t").may_change_rows
    assert not Addition("index", "i").may_change_rows


def test_check_warns_of_long_rows_and_triggers() -> None:
    relation = Relation("shop", "items")
    table = TargetTable(TableName("shop", "items"), relation)
    wide = _columns(POSTGRES, [Column(f"c{n}", ColumnType(Kind.LONG)) for n in range(1_200)])
    (warning,) = warnings_of(Survey(POSTGRES), table, wide)
    assert "supports about 8,160" in warning.message
    assert warning.hint
    added = {relation: [Addition("trigger", "t"), Addition("index", "i")]}
    (warning,) = warnings_of(Survey(POSTGRES, {}, added), table, wide[:10])
    assert "trigger t" in warning.message
    assert "index" not in warning.message
    assert list(warnings_of(Survey(POSTGRES), table, wide[:10])) == []
