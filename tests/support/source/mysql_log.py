"""What the source reads of a server's binary log, without a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pymysql
from pymysql.converters import encoders

from chronolake.source.mysql.binlog import Changes, Decoder, LogEvent, LoggedStatement
from chronolake.source.mysql.character_sets import CharacterSets
from chronolake.source.mysql.connection import Server, connect
from chronolake.source.mysql.log_stream import LogEnd, open_stream


class NoPrepared:
    """No XA transactions."""

    def note(self, xid: str, begin: LogEvent) -> None:
        raise AssertionError(xid)

    def end(self, xid: str, *, is_committed: bool) -> list[bytes]:
        raise AssertionError(xid)


def log_end(dsn: str) -> LogEnd:
    """Return the end of a server's log."""
    with connect(dsn) as connection:
        return LogEnd.of(connection, Server.of(connection))


def read_log(
    dsn: str, begins: LogEnd, *, table: str, batch_bytes: int | None = None
) -> tuple[list[Changes], list[LoggedStatement]]:
    """Return the changes of a table, and the statements, from a place in the log to its end."""
    changes: list[Changes] = []
    statements: list[LoggedStatement] = []
    with connect(dsn) as connection:
        server = Server.of(connection)
        end = LogEnd.of(connection, server)
        with open_stream(
            dsn, server, server_id=4711, begins=begins.place, gtids=None, upto=end.place
        ) as stream:
            decoder = Decoder(
                server.is_mariadb,
                lambda _, name: name == table,
                CharacterSets(connection).to_utf8,
                NoPrepared(),
            )
            for batch in stream.batches(batch_bytes):
                decoded = decoder.decode(batch)
                changes += decoded.changes
                statements += decoded.statements
    return changes, statements


def rows_of(changes: list[Changes]) -> pa.Table:
    """Return the new rows of changes as texts."""
    return pa.concat_tables(
        [
            pa.table(
                {
                    column.name: cells.texts
                    for column, cells in zip(change.relation.columns, change.new, strict=True)
                }
            )
            for change in changes
        ]
    )


@contextmanager
def raw_cursor(dsn: str, database: str = "shop") -> Iterator[pymysql.cursors.Cursor]:
    """Yield a cursor whose results are the server's texts, in UTC."""
    host, _, port = dsn.removeprefix("mysql://root@").partition("/")[0].partition(":")
    with pymysql.connect(
        host=host,
        port=int(port),
        user="root",
        database=database,
        autocommit=True,
        charset="utf8mb4",
        conv=encoders,
    ) as connection:
        cursor = connection.cursor()
        cursor.execute("SET SESSION sql_mode = '', time_zone = '+00:00'")
        yield cursor


def texts(cursor: pymysql.cursors.Cursor, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query as the server prints them."""
    cursor.execute(query)
    return [
        tuple(cell.decode() if isinstance(cell, bytes) else cell for cell in row)
        for row in cursor.fetchall()
    ]
