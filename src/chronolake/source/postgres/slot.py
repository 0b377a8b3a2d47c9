"""A replication slot: what it holds is peeked at, and let go of only when it has landed.

Source: `specs/postgres-facts.md` (2.1, 2.2, 3.1 to 3.4). Transactions come whole, in the order of
their commits; what is peeked at stays until the slot is advanced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from psycopg import sql

from chronolake.errors import SourceError
from chronolake.source.postgres.connection import understood

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg
    from psycopg.errors import Diagnostic

#: Decoding is fastest in batches of some megabytes.
BATCH_BYTES: Final = 4 * 2**20
_ROWS_AT_ONCE: Final = 500
_CURSOR: Final = "chronolake_peek"


@dataclass(frozen=True)
class Slot:
    """A slot of the plugin pgoutput, and the publication that is read through it."""

    name: str
    publication: str


def lsn_text(lsn: int) -> str:
    """A place in the log as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    """The inverse of `lsn_text`."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


def written_upto(connection: psycopg.Connection) -> int:
    """How far the server's log is durable: what is read up to there is never taken back."""
    with understood():
        (text,) = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone() or ("",)
    return lsn_number(str(text))


def peek(
    connection: psycopg.Connection, slot: Slot, *, upto: int, batch_bytes: int = BATCH_BYTES
) -> Iterator[list[bytes]]:
    """The messages of all transactions that were committed before a place in the log.

    They stay in the slot. The client holds one batch at a time, however large a transaction is.

    Args:
        connection: nothing else may be done with it meanwhile.
        slot: the slot.
        upto: transactions whose commit stands before are read, the others are not.
        batch_bytes: a batch is given when it has so many bytes of messages.

    Yields:
        Batches of messages; a transaction may go on in the next one.

    Raises:
        SourceError: the slot cannot be read, or its publication was missing when something changed:
            what changed then would be left out.
    """
    warnings: list[str] = []

    def note(notice: Diagnostic) -> None:
        warnings.append(notice.message_primary or "a warning without words")

    query = sql.SQL(
        "SELECT data FROM pg_logical_slot_peek_binary_changes({slot}, {upto}::pg_lsn, NULL, "
        "'proto_version', '1', 'publication_names', {publications}, 'messages', 'true')"
    ).format(
        slot=sql.Literal(slot.name),
        upto=sql.Literal(lsn_text(upto)),
        # A list of identifiers, as the plugin reads it.
        publications=sql.Literal(sql.Identifier(slot.publication).as_string()),
    )
    connection.add_notice_handler(note)
    try:
        with (
            understood(),
            connection.transaction(),
            connection.cursor(_CURSOR, binary=True) as cursor,
        ):
            cursor.execute(query)
            batch: list[bytes] = []
            size = 0
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                _expect_nothing_skipped(slot, warnings)
                batch += (row[0] for row in rows)
                size += sum(len(row[0]) for row in rows)
                if size >= batch_bytes:
                    yield batch
                    batch, size = [], 0
            _expect_nothing_skipped(slot, warnings)
            if batch:
                yield batch
    finally:
        connection.remove_notice_handler(note)


def _expect_nothing_skipped(slot: Slot, warnings: list[str]) -> None:
    if warnings:
        raise SourceError(
            f"PostgreSQL warned while the slot {slot.name} was read: {warnings[0]}",
            hint=f"The publication {slot.publication} was missing when something changed: make it, "
            "drop the slot, and re-sync the pipeline.",
        )


def advance(connection: psycopg.Connection, slot: Slot, *, upto: int) -> None:
    """Let a slot forget all transactions that end at a place in the log or before.

    A place that it is beyond already changes nothing.

    Raises:
        SourceError: the slot cannot be advanced.
    """
    with understood():
        row = connection.execute(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s",
            (slot.name,),
        ).fetchone()
        if row is not None and row[0] is not None and lsn_number(str(row[0])) >= upto:
            return
        connection.execute(
            "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", (slot.name, lsn_text(upto))
        )
