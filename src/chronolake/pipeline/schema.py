"""The tables of the operational store, and how those of an earlier version become them.

Columns only come, and each has a default or may be null: a process of an earlier version goes on
writing to a store that a later one has opened.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sql

_metadata = sql.MetaData()

RUNS: Final = sql.Table(
    "chronolake_runs",
    _metadata,
    sql.Column("id", sql.String, primary_key=True),
    sql.Column("pipeline", sql.String, nullable=False, index=True),
    sql.Column("began", sql.String, nullable=False),
    sql.Column("ended", sql.String),
    sql.Column("status", sql.String, nullable=False),
    sql.Column("holder", sql.String, nullable=False),
    sql.Column("error", sql.Text),
    sql.Column("hint", sql.Text),
)
STREAM_RUNS: Final = sql.Table(
    "chronolake_stream_runs",
    _metadata,
    sql.Column("run", sql.String, primary_key=True),
    sql.Column("stream", sql.String, primary_key=True),
    sql.Column("table_name", sql.String, nullable=False),
    sql.Column("status", sql.String, nullable=False),
    sql.Column("files", sql.BigInteger, nullable=False),
    sql.Column("bytes", sql.BigInteger, nullable=False),
    sql.Column("rows", sql.BigInteger, nullable=False),
    sql.Column("written", sql.BigInteger, nullable=False),
    sql.Column("seconds", sql.Float, nullable=False),
    sql.Column("position", sql.String),
    sql.Column("error", sql.String),
    sql.Column("hint", sql.Text),
    sql.Column("stage", sql.String),
    sql.Column("rows_read", sql.BigInteger),
    sql.Column("landed_files", sql.BigInteger),
    sql.Column("landed_bytes", sql.BigInteger),
    sql.Column("landed_rows", sql.BigInteger),
    sql.Column("files_left", sql.BigInteger),
    sql.Column("bytes_left", sql.BigInteger),
    sql.Column("position_before", sql.String),
    sql.Column("state_before", sql.Text),
    sql.Column("state_after", sql.Text),
)
LEASES: Final = sql.Table(
    "chronolake_leases",
    _metadata,
    sql.Column("pipeline", sql.String, primary_key=True),
    sql.Column("token", sql.BigInteger, nullable=False),
    sql.Column("holder", sql.String, nullable=False),
    sql.Column("expires", sql.Float, nullable=False),
)
CHECKPOINTS: Final = sql.Table(
    "chronolake_checkpoints",
    _metadata,
    sql.Column("pipeline", sql.String, primary_key=True),
    sql.Column("stream", sql.String, primary_key=True),
    sql.Column("position", sql.Text, nullable=False),
    sql.Column("stored", sql.String, nullable=False),
)
#: What sources have to remember: tokens that change with each use. Nothing of it is ever shown.
REMEMBERED: Final = sql.Table(
    "chronolake_remembered",
    _metadata,
    sql.Column("pipeline", sql.String, primary_key=True),
    sql.Column("told", sql.Text, nullable=False),
)
#: What `chronolake verify` found last of each table: never a row's values.
VERIFIED: Final = sql.Table(
    "chronolake_verified",
    _metadata,
    sql.Column("table_name", sql.String, primary_key=True),
    sql.Column("at", sql.String, nullable=False),
    sql.Column("holds", sql.Boolean, nullable=False),
    sql.Column("rows", sql.BigInteger, nullable=False),
    sql.Column("against_lake", sql.Boolean, nullable=False),
    sql.Column("broken", sql.Text),
)

# Any number that nobody else is likely to lock.
_OPENING: Final = 0x6368726F6E6F


def bring_up(connection: sql.Connection) -> None:
    """Make the tables and columns that are missing, in a transaction that can write.

    Any number of processes may do so at once: with SQLite the transaction keeps the others out,
    with PostgreSQL a lock does.
    """
    there = _columns_of(connection)
    missing = [
        (table, column)
        for table in _metadata.sorted_tables
        for column in table.columns
        if column.name not in there.get(table.name, set())
    ]
    if not missing:
        return
    is_postgresql = connection.dialect.name == "postgresql"
    if is_postgresql:
        connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_OPENING)))
        there = _columns_of(connection)
    _metadata.create_all(connection)
    prepared = connection.dialect.identifier_preparer
    for table, column in missing:
        if table.name not in there or column.name in there[table.name]:
            continue
        kind = column.type.compile(connection.dialect)
        added = f"{prepared.quote(column.name)} {kind}"
        connection.exec_driver_sql(f"ALTER TABLE {prepared.quote(table.name)} ADD COLUMN {added}")


def known_of(connection: sql.Connection, table: sql.Table) -> list[sql.ColumnElement[Any]] | None:
    """The columns of a table as they can be selected from a store that may be an earlier version's.

    What it has not yet is null. None: it has not the table.
    """
    there = _columns_of(connection).get(table.name)
    if there is None:
        return None
    return [
        column if column.name in there else sql.cast(sql.null(), column.type).label(column.name)
        for column in table.columns
    ]


def _columns_of(connection: sql.Connection) -> dict[str, set[str]]:
    inspector = sql.inspect(connection)
    return {
        table.name: {column["name"] for column in inspector.get_columns(table.name)}
        for table in _metadata.sorted_tables
        if inspector.has_table(table.name)
    }
