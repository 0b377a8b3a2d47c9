"""Limits of targets, and errors of their servers, without a server."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from chronolake.batch_files import error_of as sealed_error_of
from chronolake.batch_files.executor_errors import ExecutorError
from chronolake.errors import TargetBusyError, TargetError
from chronolake.target.database import _write_part
from chronolake.target.encoding import RowEncoder
from chronolake.target.limits import MYSQL, POSTGRES, TargetLimits, longest_row, target_columns
from chronolake.target.postgres_errors import error_of
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
