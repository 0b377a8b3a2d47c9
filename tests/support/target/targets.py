"""A lake whose tables are published to a real database, and compared with it row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg
import pyarrow as pa
import pymysql

from chronolake import core
from chronolake.change_set import OP, SEQ, UNMODIFIED, Op
from chronolake.config import MysqlTarget, PostgresTarget, RelationalTarget
from chronolake.lake import Lake
from chronolake.target.limits import INTERNAL, SYSTEM_TIMES, TargetLimits
from chronolake.target.publication import PublishResult, publish_table
from chronolake.target.selection import TargetTable, database_of, relation_of
from chronolake.types import (
    ACTIVE,
    END,
    START,
    TMAX_MICROS,
    TMAX_SECOND_MICROS,
    TMIN_MICROS,
    Column,
    ColumnType,
    Kind,
    TableName,
)

LIVE: Final = TableName("sales", "customers")
COLUMNS: Final = (
    Column("id", ColumnType(Kind.LONG), primary_key=True),
    Column("name", ColumnType(Kind.STRING)),
    Column("_fivetran_synced", ColumnType(Kind.UTC_DATETIME)),
)
HISTORY: Final = TableName("sales", "orders")
HISTORY_COLUMNS: Final = (
    Column("id", ColumnType(Kind.LONG), primary_key=True),
    Column("name", ColumnType(Kind.STRING)),
    Column(START, ColumnType(Kind.UTC_DATETIME), primary_key=True),
    Column(END, ColumnType(Kind.UTC_DATETIME)),
    Column(ACTIVE, ColumnType(Kind.BOOLEAN)),
    Column("_fivetran_synced", ColumnType(Kind.UTC_DATETIME)),
)
#: 2026-01-01T00:00:00Z
FIRST: Final = 1_767_225_600_000_000
_TIMES: Final = {Kind.NAIVE_DATETIME, Kind.UTC_DATETIME}


class Target:
    """A database that gets tables of a lake."""

    def __init__(self, lake: Lake, config: RelationalTarget) -> None:
        self.lake = lake
        self.config = config

    def publish(
        self, name: TableName, *, takes_over: bool = False, is_dry_run: bool = False
    ) -> PublishResult:
        return publish_table(
            self.lake,
            "reporting",
            database_of("reporting", self.config),
            TargetTable(name, relation_of(self.config, name)),
            takes_over=takes_over,
            is_dry_run=is_dry_run,
        )

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements as another user of the database; return the rows of the last one."""
        rows: list[tuple[Any, ...]] = []
        if isinstance(self.config, PostgresTarget):
            with psycopg.connect(self.config.dsn, autocommit=True) as connection:
                for statement in statements:
                    cursor = connection.execute(statement.encode())
                    rows = cursor.fetchall() if cursor.description else []
            return rows
        address, _, database = self.config.dsn.rpartition("/")
        host, _, port = address.rpartition("@")[2].partition(":")
        found = pymysql.connect(
            host=host, port=int(port), user="root", database=database, autocommit=True
        )
        try:
            with found.cursor() as cursor:
                cursor.execute("SET time_zone = '+00:00'")
                for statement in statements:
                    cursor.execute(statement)
                    rows = list(cursor.fetchall())
        finally:
            found.close()
        return rows

    def table(self, name: TableName) -> str:
        """Return the table in the target as SQL."""
        relation = relation_of(self.config, name)
        mark = '"' if isinstance(self.config, PostgresTarget) else "`"
        return f"{mark}{relation.schema}{mark}.{mark}{relation.table}{mark}"

    def rows(self, name: TableName) -> list[tuple[Any, ...]]:
        """Return the rows in the target, sorted; times are microseconds since 1970."""
        description = self.lake.describe(name)
        assert description is not None
        columns = [column for column in description.columns if column.name not in INTERNAL]
        is_postgres = isinstance(self.config, PostgresTarget)
        mark = '"' if is_postgres else "`"
        selected = []
        for column in columns:
            text = f"{mark}{column.name}{mark}"
            if column.type.kind in _TIMES and is_postgres:
                text = f"(extract(epoch FROM {text}) * 1000000)::bigint"
            elif column.type.kind in _TIMES:
                text = f"timestampdiff(MICROSECOND, '1970-01-01', {text})"
            elif column.type.kind is Kind.JSON:
                text = f"CAST({text} AS {'text' if is_postgres else 'char'})"
            selected.append(text)
        rows = self.run(f"SELECT {', '.join(selected)} FROM {self.table(name)}")
        return sorted(rows, key=repr)

    def expected(self, name: TableName, limits: TargetLimits) -> list[tuple[Any, ...]]:
        """Return the rows that the target must have, from the lake, in the same form."""
        description = self.lake.describe(name)
        assert description is not None
        columns = [column for column in description.columns if column.name not in INTERNAL]
        table = self.lake.table(name).to_arrow()
        is_mysql = isinstance(self.config, MysqlTarget)
        values = []
        for column in columns:
            found = table[column.name]
            if column.type.kind in _TIMES:
                found = found.cast(pa.int64())
                items = found.to_pylist()
                if column.name in SYSTEM_TIMES:
                    items = [clamped(item, limits) for item in items]
            else:
                items = found.to_pylist()
                if limits.product == "MariaDB" and column.type.kind is Kind.DOUBLE:
                    # It has no -0.
                    items = [None if item is None else item + 0.0 for item in items]
                if is_mysql and column.type.kind is Kind.BOOLEAN:
                    items = [None if item is None else int(item) for item in items]
            values.append(items)
        return sorted(zip(*values, strict=True), key=repr)

    def leftovers(self) -> list[str]:
        """Return the temporary tables in the target."""
        schema = "chronolake" if isinstance(self.config, PostgresTarget) else "reporting"
        rows = self.run(
            f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{schema}' "
            "AND table_name LIKE '%load%'"
        )
        return [name for (name,) in rows]

    def expect_equal(self, name: TableName) -> None:
        """Compare a target table with the lake, row by row."""
        database = database_of("reporting", self.config)
        with database.open(relation_of(self.config, name)) as session:
            limits = session.limits
        # 0.0 equals -0.0.
        assert repr(self.rows(name)) == repr(self.expected(name, limits))


def clamped(micros: int | None, limits: TargetLimits) -> int | None:
    """Return a time within the limits of a target."""
    if micros is None or not limits.clamps:
        return micros
    if micros == TMIN_MICROS or micros < limits.tmin:
        return limits.tmin
    return limits.tmax if micros >= TMAX_SECOND_MICROS else min(micros, limits.tmax)


def write(lake: Lake, keys: Sequence[int], text: str, name: TableName = LIVE) -> None:
    """Replace the rows of some keys."""
    if lake.describe(name) is None:
        core.create(lake, name, COLUMNS)
    listed = ", ".join(f"({key})" for key in keys)
    rows = lake.spark.sql(
        f"SELECT {int(Op.REPLACE)} AS {OP}, id AS {SEQ}, CAST(null AS array<bigint>) AS "
        f"{UNMODIFIED}, CAST(id AS bigint) AS id, '{text}' AS name, now() AS _fivetran_synced "
        f"FROM VALUES {listed} AS t(id)"
    )
    core.write_batch(lake, name, rows, columns=COLUMNS, batch=text)


def delete(lake: Lake, keys: Sequence[int], batch: str, name: TableName = LIVE) -> None:
    """Delete the rows of some keys."""
    listed = ", ".join(f"({key})" for key in keys)
    rows = lake.spark.sql(
        f"SELECT {int(Op.DELETE)} AS {OP}, id AS {SEQ}, CAST(null AS array<bigint>) AS "
        f"{UNMODIFIED}, CAST(id AS bigint) AS id, CAST(null AS string) AS name, now() AS "
        f"_fivetran_synced FROM VALUES {listed} AS t(id)"
    )
    core.write_batch(lake, name, rows, columns=COLUMNS, batch=batch)


def write_versions(
    lake: Lake, key: int, texts: Sequence[str], *, name: TableName = HISTORY, first: int = FIRST
) -> None:
    """Replace the versions of a record: one each second, of which the last is active."""
    if lake.describe(name) is None:
        core.create(lake, name, HISTORY_COLUMNS)
    rows = []
    for number, text in enumerate(texts):
        start = first + number * 1_000_000
        is_last = number == len(texts) - 1
        end = TMAX_MICROS if is_last else start + 999_000
        rows.append(
            f"(CAST({key} AS bigint), '{text}', timestamp_micros({start}), "
            f"timestamp_micros({end}), {str(is_last).lower()})"
        )
    changes = lake.spark.sql(
        f"SELECT {int(Op.REPLACE)} AS {OP}, id AS {SEQ}, CAST(null AS array<bigint>) AS "
        f"{UNMODIFIED}, id, name, start AS {START}, end AS {END}, active AS {ACTIVE}, "
        f"now() AS _fivetran_synced FROM VALUES {', '.join(rows)} "
        "AS t(id, name, start, end, active)"
    )
    core.write_batch(lake, name, changes, columns=HISTORY_COLUMNS, batch=f"{key} {texts}")
