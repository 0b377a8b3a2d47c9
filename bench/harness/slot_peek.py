"""The log as it was read before it was streamed: by the function that peeks at a slot.

The server decodes everything before it returns the first row, and writes it to a temporary file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
from psycopg import sql

from chronolake.source.postgres.connection import connect
from chronolake.source.postgres.database import PostgresDatabase
from chronolake.source.postgres.messages import Kind
from chronolake.source.postgres.slot import Slot, format_lsn

_BATCH_BYTES: Final = 4 * 2**20
_ROWS_AT_ONCE: Final = 500


@dataclass
class Peeked:
    """A replacement of `LogStream`."""

    connection: psycopg.Connection
    slot: Slot
    upto: int
    may_confirm: bool = False

    def confirm(self, lsn: int) -> None:
        raise NotImplementedError(lsn)

    def batches(self) -> Iterator[list[bytes]]:
        query = sql.SQL(
            "SELECT data FROM pg_logical_slot_peek_binary_changes({slot}, {upto}::pg_lsn, NULL, "
            "'proto_version', '1', 'publication_names', {publications}, 'messages', 'true')"
        ).format(
            slot=sql.Literal(self.slot.name),
            upto=sql.Literal(format_lsn(self.upto)),
            publications=sql.Literal(sql.Identifier(self.slot.publication).as_string()),
        )
        connection = self.connection
        with connection.transaction(), connection.cursor("peek", binary=True) as cursor:
            cursor.execute(query)
            batch: list[bytes] = []
            size = 0
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                batch += (row[0] for row in rows)
                size += sum(len(row[0]) for row in rows)
                if size >= _BATCH_BYTES:
                    commits = (
                        n for n in range(len(batch), 0, -1) if batch[n - 1][0] == Kind.COMMIT
                    )
                    end = next(commits, len(batch))
                    yield batch[:end]
                    batch = batch[end:]
                    size = sum(map(len, batch))
            if batch:
                yield batch


class PeekedDatabase(PostgresDatabase):
    """The same source, which reads its log in the old way."""

    @contextmanager
    def _open_stream(self, begins: int, upto: int, folder: Path) -> Iterator[Peeked]:  # type: ignore[override]
        del begins, folder
        with connect(self.config.dsn) as connection:
            yield Peeked(connection, self.slot, upto)
