"""Evidence that the log at a position is the one that was read before.

A server that was restored from a snapshot of its files, or a standby that lagged when it was
promoted, has the same identifiers as before and writes other transactions at the same positions. So
a stream's position names something in the log that the next run has to find again: the last
transaction that was read, by its place, its number and its commit time to the microsecond; or a
message with a random text that was written to the log after a copy had begun. The slot keeps
what is needed to read it again.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import psycopg
import structlog

from chronolake.source.postgres.connection import understood
from chronolake.source.postgres.messages import PREFIX
from chronolake.source.postgres.slot import lsn_number, written_upto

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chronolake.source.postgres.messages import Transaction
    from chronolake.source.postgres.pgoutput import Decoded

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Evidence:
    """Something in the log that the next run has to find again.

    Attributes:
        lsn: where it is: its commit, or the message itself. The slot has to keep the log from here.
        until: its transaction was committed before this position.
        mark: what is found there: a transaction's number and commit time, or a message's text.
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
        a warning is logged.

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
        log.warning(
            "log_position_without_evidence",
            reason=failure.diag.message_primary,
            hint="A server that is restored from a snapshot may not be noticed. "
            "`chronolake check` says what to grant.",
        )
        return None
    assert row is not None  # noqa: S101 - the query gives one row
    return Evidence(lsn_number(str(row[0])), written_upto(connection), text)
