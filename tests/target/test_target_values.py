"""Values at the extremes of their types are equal in the target, or converted as documented."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronolake.config import MysqlTarget, RelationalTarget
from chronolake.errors import TargetError
from chronolake.target.database import Relation
from chronolake.target.encoding import RowEncoder
from chronolake.target.limits import (
    KAFKA,
    MYSQL,
    MYSQL_TMAX_MICROS,
    POSTGRES,
    TargetLimits,
    mysql_limits,
    raise_unless_mode,
    target_columns,
)
from chronolake.target.selection import database_of
from chronolake.target.state import Published
from chronolake.types import (
    TMAX_MICROS,
    TMIN_MICROS,
    Column,
    ColumnType,
    Kind,
    Mode,
    TableName,
)
from support.target.targets import Target

_TABLE = TableName("sales", "values")
_KEY = Column("id", ColumnType(Kind.LONG), primary_key=True)
_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=50)
_FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
_DOUBLES = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)
_MICROS = st.integers(TMIN_MICROS, TMAX_MICROS + 999)
_DECIMAL = ColumnType(Kind.DECIMAL, 38, 10)

_VALUES: dict[Kind, tuple[ColumnType, st.SearchStrategy[Any]]] = {
    Kind.BOOLEAN: (ColumnType(Kind.BOOLEAN), st.booleans()),
    Kind.SHORT: (ColumnType(Kind.SHORT), st.integers(-(2**15), 2**15 - 1)),
    Kind.INT: (ColumnType(Kind.INT), st.integers(-(2**31), 2**31 - 1)),
    Kind.LONG: (ColumnType(Kind.LONG), st.integers(-(2**63), 2**63 - 1)),
    Kind.FLOAT: (ColumnType(Kind.FLOAT), _FLOATS),
    Kind.DOUBLE: (ColumnType(Kind.DOUBLE), _DOUBLES),
    Kind.DECIMAL: (
        _DECIMAL,
        st.integers(-(10**38) + 1, 10**38 - 1).map(
            # `scaleb` would round to the precision of the context.
            lambda n: Decimal(f"{n}e-10")
        ),
    ),
    Kind.NAIVE_DATE: (ColumnType(Kind.NAIVE_DATE), st.dates()),
    Kind.NAIVE_DATETIME: (ColumnType(Kind.NAIVE_DATETIME), _MICROS),
    Kind.UTC_DATETIME: (ColumnType(Kind.UTC_DATETIME), _MICROS),
    Kind.BINARY: (ColumnType(Kind.BINARY), st.binary(max_size=50)),
    Kind.STRING: (ColumnType(Kind.STRING), _TEXTS),
    Kind.XML: (ColumnType(Kind.XML), _TEXTS),
    Kind.JSON: (ColumnType(Kind.JSON), st.sampled_from(['{"b": 1,  "a": [1e400]}', '"\\u0000"'])),
    Kind.NAIVE_TIME: (ColumnType(Kind.NAIVE_TIME), st.just("23:59:59.999999")),
}


def _columns(limits: TargetLimits, *columns: Column) -> Any:
    numbered = [(column, number) for number, column in enumerate((_KEY, *columns))]
    return target_columns(limits, _TABLE, numbered, {"id"})


@pytest.mark.parametrize("kind", list(_VALUES))
def test_values_of_a_type_are_equal_in_the_target(target: Target, kind: Kind) -> None:
    """The rows are encoded and loaded as Spark's tasks do it."""
    column_type, values = _VALUES[kind]
    with database_of("reporting", target.config).open(_relation(target.config)) as session:

        @settings(max_examples=15)
        @given(st.lists(st.none() | values, min_size=1, max_size=20))
        def check(items: list[Any]) -> None:
            columns = _columns(session.limits, Column("v", column_type))
            load = session.create_load(columns, is_stage=False)
            encoder = RowEncoder(session.limits, columns, str(_TABLE))
            encoder.rows["I"] = len(items)
            array = (
                pa.array(items, pa.int64()).cast(column_type.arrow)
                if kind in {Kind.NAIVE_DATETIME, Kind.UTC_DATETIME}
                else pa.array(items, column_type.arrow)
            )
            keys = pa.array(range(len(items)), pa.int64())
            batch = pa.RecordBatch.from_arrays([keys, array], names=["id", "v"])
            session.sink(load, columns, is_stage=False).write(
                0, iter([encoder.encode(batch)]), encoder
            )
            assert session.written(load, 1).rows == {"I": len(items)}
            assert _stored(target, load, kind) == [_expected(item, kind, target) for item in items]
            session.drop(load)

        check()


def _relation(config: RelationalTarget) -> Relation:
    return Relation("reporting" if isinstance(config, MysqlTarget) else "sales", "values")


def _stored(target: Target, load: str, kind: Kind) -> list[Any]:
    is_mysql = isinstance(target.config, MysqlTarget)
    value = "v"
    if kind in {Kind.NAIVE_DATETIME, Kind.UTC_DATETIME}:
        value = (
            "timestampdiff(MICROSECOND, '1970-01-01', v)"
            if is_mysql
            else "(extract(epoch FROM v) * 1000000)::bigint"
        )
    elif kind is Kind.FLOAT and not is_mysql:
        value = "v::double precision"
    elif kind is Kind.JSON and not is_mysql:
        value = "v::text"
    table = f"`{load}`" if is_mysql else f'chronolake."{load}"'
    found = [row[0] for row in target.run(f"SELECT {value} FROM {table} ORDER BY id")]
    return [bytes(item) if isinstance(item, memoryview) else item for item in found]


def _expected(item: Any, kind: Kind, target: Target) -> Any:
    if item is None or not isinstance(target.config, MysqlTarget):
        return item
    return int(item) if kind is Kind.BOOLEAN else item


def test_times_are_moved_to_the_limits_of_mysql() -> None:
    end = Column("_fivetran_end", ColumnType(Kind.UTC_DATETIME))
    other = Column("born", ColumnType(Kind.UTC_DATETIME))
    encoder = RowEncoder(MYSQL, _columns(MYSQL, end, other), str(_TABLE))
    times = [TMAX_MICROS, TMIN_MICROS, MYSQL_TMAX_MICROS + 1, 0, 5_000_000]
    array = pa.array(times, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    keys = pa.array(range(5), pa.int64())
    lines = encoder.encode(pa.RecordBatch.from_arrays([keys, array, array], ["a", "b", "c"]))
    assert [row.split("\t")[1] for row in lines.to_pybytes().decode().splitlines()] == [
        "2038-01-19 03:14:07.999000",
        "1970-01-01 00:00:01.000000",
        "2038-01-19 03:14:07.999000",
        "1970-01-01 00:00:01.000000",
        "1970-01-01 00:00:05.000000",
    ]
    # Tmax and Tmin of the lake are not reported: they have equivalents.
    assert encoder.changed == {"_fivetran_end": 2}


def test_mysql_5_6_has_no_milliseconds() -> None:
    limits = mysql_limits((5, 6, 51), is_mariadb=False)
    columns = _columns(limits, Column("_fivetran_end", ColumnType(Kind.UTC_DATETIME)))
    assert columns[1].sql == "timestamp"
    encoder = RowEncoder(limits, columns, str(_TABLE))
    array = pa.array([TMAX_MICROS, 1_500_000], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2]), array], ["a", "b"])
    texts = encoder.encode(batch).to_pybytes().decode().splitlines()
    assert texts[0].startswith("1\t2038-01-19 03:14:07.000000")
    assert texts[1].startswith("2\t1970-01-01 00:00:01.000000")
    assert encoder.changed == {"_fivetran_end": 1}


@pytest.mark.parametrize(
    ("limits", "column", "reason"),
    [
        (POSTGRES, Column("a" * 64, ColumnType(Kind.INT)), "64 bytes"),
        (POSTGRES, Column("ä" * 32, ColumnType(Kind.INT)), "64 bytes"),
        (MYSQL, Column("a" * 65, ColumnType(Kind.INT)), "65 characters"),
        (MYSQL, Column("ID", ColumnType(Kind.INT)), "does not distinguish"),
        (MYSQL, Column("a ", ColumnType(Kind.INT)), "does not support the name"),
        (MYSQL, Column("d", ColumnType(Kind.DECIMAL, 38, 31)), "digits after the point"),
    ],
)
def test_columns_that_do_not_fit_are_errors(
    limits: TargetLimits, column: Column, reason: str
) -> None:
    with pytest.raises(TargetError, match=reason) as caught:
        _columns(limits, column)
    assert caught.value.column == column.name


def test_values_that_do_not_fit_are_errors_without_the_value() -> None:
    text = Column("name", ColumnType(Kind.STRING))
    encoder = RowEncoder(POSTGRES, _columns(POSTGRES, text), str(_TABLE))
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array(["secret\0"])], ["a", "b"])
    with pytest.raises(TargetError, match="NUL") as caught:
        encoder.encode(batch)
    assert "secret" not in str(caught.value)
    columns = target_columns(MYSQL, _TABLE, [(text, 1)], {"name"})
    long = pa.RecordBatch.from_arrays([pa.array(["x" * 701])], ["a"])
    with pytest.raises(TargetError, match="length of 701"):
        RowEncoder(MYSQL, columns, str(_TABLE)).encode(long)


def test_numbers_that_mysql_lacks_become_null_and_are_counted() -> None:
    columns = _columns(MYSQL, Column("v", ColumnType(Kind.DOUBLE)))
    encoder = RowEncoder(MYSQL, columns, str(_TABLE))
    values = pa.array([math.nan, math.inf, 1.5, None])
    lines = encoder.encode(pa.RecordBatch.from_arrays([pa.array(range(4)), values], ["a", "b"]))
    assert lines.to_pybytes() == b"0\t\\N\n1\t\\N\n2\t1.5\n3\t\\N\n"
    assert encoder.changed == {"v": 2}


def test_kafka_cannot_hold_history() -> None:
    with pytest.raises(TargetError, match="Apache Kafka does not support history mode") as caught:
        raise_unless_mode(KAFKA, _TABLE, Mode.HISTORY)
    assert "live and soft-delete" in (caught.value.hint or "")


def test_state_is_read_as_it_was_written() -> None:
    columns = _columns(POSTGRES, Column("v", _DECIMAL))
    state = Published("a.b", None, 5, columns, "load", has_rows=True, physical="7")
    assert Published.from_text(state.to_text()) == state


def test_dates_have_all_years() -> None:
    columns = _columns(POSTGRES, Column("v", ColumnType(Kind.NAIVE_DATE)))
    encoder = RowEncoder(POSTGRES, columns, str(_TABLE))
    days = pa.array([dt.date.min, dt.date.max])
    lines = encoder.encode(pa.RecordBatch.from_arrays([pa.array([1, 2]), days], ["a", "b"]))
    assert lines.to_pybytes() == b"1\t0001-01-01\n2\t9999-12-31\n"
