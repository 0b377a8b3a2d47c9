"""Evidence that the log at a position is the one that was read before.

A server that was restored from a snapshot of its files, or a standby that lagged when it was
promoted, has the same identifiers as before and writes other transactions at the same positions. So
a stream's position names something in the log that the next run has to find again: the last
transaction that was read, by its place, its number and its commit time to the microsecond; or a
message with a random text that was written to the log after a copy had begun. The slot keeps
what is needed to read it again.

Where no message can be written, on a standby or without the right to do so, it is the last bytes of
the log before the position: replication of whole servers sends them as they are, whatever wrote
them.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import uuid4

import psycopg
import structlog
from psycopg import pq
from psycopg.errors import error_from_result

from chronolake.errors import SourceError
from chronolake.source.postgres.connection import connected, understood
from chronolake.source.postgres.messages import LOG_DATA, LOG_HEADER_BYTES, PREFIX
from chronolake.source.postgres.slot import lsn_number, lsn_text, written_upto

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chronolake.source.postgres.messages import Transaction
    from chronolake.source.postgres.pgoutput import Decoded

log = structlog.get_logger(__name__)

_PAGE_BYTES: Final = 8_192
#: Fewer bytes may be of a page's header alone, which any log has.
_LEAST_BYTES: Final = 512
_BYTES: Final = re.compile(r"bytes ([0-9]+) ([0-9]+) [0-9a-f]{64}")


@dataclass(frozen=True)
class Evidence:
    """Something in the log that the next run has to find again.

    Attributes:
        lsn: where it is: its commit, or the message itself. The slot has to keep the log from here.
        until: its transaction was committed before this position.
        mark: what is found there: a transaction's number and commit time, a message's text, or the
            hash of the bytes before it with their timeline and their first position.
    """

    lsn: int
    until: int
    mark: str

    @classmethod
    def of(cls, transaction: Transaction) -> Self:
        """Take a transaction that was read as evidence."""
        until = transaction.commit_lsn + 1
        return cls(transaction.commit_lsn, until, _mark_of(transaction))

    @classmethod
    def from_json(cls, stored: Sequence[Any]) -> Self:
        """Return the inverse of `as_json`."""
        return cls(*stored)

    def as_json(self) -> list[Any]:
        """Return what a checkpoint stores."""
        return [self.lsn, self.until, self.mark]

    @property
    def is_bytes(self) -> bool:
        """Whether it is bytes of the log, which are in no stream of changes (`is_there`)."""
        return _BYTES.fullmatch(self.mark) is not None

    def is_there(self, dsn: str) -> bool:
        """Return whether a server's log has the same bytes.

        Raises:
            SourceError: the server does not answer.
        """
        found = _BYTES.fullmatch(self.mark)
        if found is None:
            return False
        timeline, begin = int(found[1]), int(found[2])
        with connected(dsn, replication="database") as connection:
            try:
                with understood():
                    data = _bytes_of(connection, timeline, begin, self.lsn)
            except SourceError as failure:
                cause = failure.__cause__
                if not isinstance(cause, psycopg.Error) or cause.sqlstate is None:
                    raise
                # It is not in the server's history.
                return False
        return _mark_of_bytes(timeline, begin, data) == self.mark

    def is_in(self, decoded: Decoded) -> bool:
        """Return whether a batch of the log contains it."""
        place = bisect_left(decoded.transactions, self.lsn, key=lambda one: one.commit_lsn)
        is_read = any(
            one.commit_lsn == self.lsn and _mark_of(one) == self.mark
            for one in decoded.transactions[place : place + 1]
        )
        return is_read or any(
            one.lsn == self.lsn and one.text == self.mark for one in decoded.emitted
        )

    def should_be_before(self, decoded: Decoded) -> bool:
        """Return whether a batch goes beyond its place, so that it can't follow any more."""
        transactions = decoded.transactions
        return bool(transactions) and transactions[-1].commit_lsn >= self.until


@dataclass(frozen=True)
class Reached:
    """How far the log was read.

    Attributes:
        lsn: where the next run goes on: nothing follows up to `upto`.
        evidence: what proves a log up to there.
        upto: all that was committed before this position was read.
    """

    lsn: int
    evidence: Evidence | None
    upto: int


def _mark_of(transaction: Transaction) -> str:
    return f"{transaction.xid} {transaction.commit_micros}"


def emit(connection: psycopg.Connection) -> Evidence | None:
    """Write a small message to the server's log, as evidence for positions up to its end.

    It is durable when the function returns. No table and no privilege beyond the default is needed.

    Returns:
        None if the server is a standby, or the role must not call `pg_logical_emit_message`: then
        there are `bytes_before`.

    Raises:
        SourceError: the server cannot be reached.
    """
    text = uuid4().hex
    with understood():
        if connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
            return None
    try:
        with connection.transaction():
            # Standbys need not have it, and the role may have turned durable commits off.
            connection.execute("SET LOCAL synchronous_commit = local")
            row = connection.execute(
                "SELECT pg_logical_emit_message(true, %s, %s)::text", (PREFIX, text)
            ).fetchone()
    except psycopg.errors.DatabaseError as failure:
        if failure.sqlstate is None:
            with understood():
                raise
        return None
    assert row is not None  # noqa: S101 - the query gives one row
    return Evidence(lsn_number(str(row[0])), written_upto(connection), text)


def bytes_before(dsn: str, lsn: int) -> Evidence | None:
    """Take the last bytes of a server's log before a position as evidence.

    Args:
        dsn: the server's address.
        lsn: the position; the log is durable up to there.

    Returns:
        None if the server does not send them, or there are too few on their page.

    Raises:
        SourceError: the server cannot be reached.
    """
    with connected(dsn, replication="database") as connection:
        with understood():
            row = connection.execute(
                "SELECT setting::bigint FROM pg_settings WHERE name = 'wal_segment_size'"
            ).fetchone()
        assert row is not None  # noqa: S101 - every server has the setting
        # The slot keeps this file of the log, but perhaps not the one before.
        file = lsn - lsn % int(row[0])
        begin = max(file, lsn - lsn % _PAGE_BYTES - _PAGE_BYTES)
        if lsn - begin < _LEAST_BYTES:
            return None
        try:
            with understood():
                system = connection.execute("IDENTIFY_SYSTEM").fetchone()
                assert system is not None  # noqa: S101 - every server answers
                timeline = int(system[1])
                data = _bytes_of(connection, timeline, begin, lsn)
        except SourceError as failure:
            log.warning(
                "log_position_without_evidence",
                reason=failure.message,
                hint="A server that is restored from a snapshot may not be noticed. "
                "`chronolake check` says what to grant.",
            )
            return None
    if len(data) < lsn - begin:
        return None
    return Evidence(lsn, lsn, _mark_of_bytes(timeline, begin, data))


def _mark_of_bytes(timeline: int, begin: int, data: bytes) -> str:
    return f"bytes {timeline} {begin} {sha256(data).hexdigest()}"


def _bytes_of(connection: psycopg.Connection, timeline: int, begin: int, end: int) -> bytes:
    """Read bytes of the log; fewer if the timeline ends before. The connection is used up.

    Raises:
        psycopg.Error: they are not in the server's log.
    """
    server = connection.pgconn
    command = f"START_REPLICATION PHYSICAL {lsn_text(begin)} TIMELINE {timeline}"
    result = server.exec_(command.encode())
    if result.status == pq.ExecStatus.FATAL_ERROR:
        raise error_from_result(result)
    found = b""
    if result.status == pq.ExecStatus.COPY_BOTH:
        while len(found) < end - begin:
            size, data = server.get_copy_data(0)
            if size < 0:
                break
            message = bytes(data)
            found += message[LOG_HEADER_BYTES:] if message[0] == LOG_DATA else b""
    # Nothing else is read of it, and nothing is confirmed.
    connection.close()
    return found[: end - begin]
