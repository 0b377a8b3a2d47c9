"""Snapshots of a database that several connections share.

Source: `specs/postgres-facts.md` (1.1, 1.3). A temporary slot exports the snapshot together with
its LSN. Without the log, a transaction exports it.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import psycopg
import structlog
from psycopg import sql

from chronolake.source.postgres.connection import connect, translate_errors
from chronolake.source.postgres.slot import parse_lsn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from chronolake.source.postgres.slot import Evidence

log = structlog.get_logger(__name__)

#: Seconds without a snapshot until the first warning, and between further warnings.
_PATIENCE_SECONDS: Final = 5.0
_REPORT_EVERY_SECONDS: Final = 60.0
#: Timeout in seconds for locks, so that blocked statements of others can continue.
_LOCK_SECONDS: Final = 5


@dataclass(frozen=True)
class DatabaseSnapshot:
    """An exported snapshot of a database, valid as long as it is held.

    Attributes:
        name: the name under which other connections import it.
        lsn: it contains exactly what was committed before this LSN; 0 if it was taken without the
            log.
        at_micros: the server's time before it was taken, in microseconds since 1970.
        evidence: proves that a log up to `lsn` is this server's; None if there is no evidence.
    """

    name: str
    lsn: int
    at_micros: int
    evidence: Evidence | None = None


class SnapshotRequest:
    """A requested snapshot, which the server creates when open transactions have ended.

    Attributes:
        dsn: the server's address.
    """

    def __init__(self, dsn: str, connection: psycopg.Connection) -> None:
        self.dsn = dsn
        self._connection = connection
        self._at_micros = _server_micros(dsn)
        self._began = time.monotonic()
        self._warned = self._began
        self._pause = _PATIENCE_SECONDS
        self._snapshot: DatabaseSnapshot | None = None
        self._failure: BaseException | None = None
        self._is_cancelled = False
        self._thread = threading.Thread(target=self._create, name="snapshot", daemon=True)
        self._thread.start()

    @property
    def seconds(self) -> float:
        """Return the seconds since the request."""
        return time.monotonic() - self._began

    def wait(self, seconds: float) -> DatabaseSnapshot | None:
        """Wait for the snapshot, and log from time to time which transaction blocks it.

        Args:
            seconds: the timeout.

        Returns:
            The snapshot, or None after the timeout.

        Raises:
            SourceError: the server refuses.
        """
        until = time.monotonic() + seconds
        while self._thread.is_alive() and (remaining := until - time.monotonic()) > 0:
            self._thread.join(
                min(remaining, max(0.0, self._warned + self._pause - time.monotonic()))
            )
            if self._thread.is_alive() and time.monotonic() >= self._warned + self._pause:
                self._warned, self._pause = time.monotonic(), _REPORT_EVERY_SECONDS
                oldest = oldest_transaction(self.dsn)
                log.warning(
                    "snapshot_waits", reason=oldest.reason, hint=oldest.hint, **oldest.facts
                )
        if self._failure is not None:
            raise self._failure
        return self._snapshot

    def cancel(self) -> None:
        """Stop waiting. An existing snapshot stays valid."""
        self._is_cancelled = True
        if self._thread.is_alive():
            with suppress(psycopg.Error):
                self._connection.cancel_safe()
            self._thread.join(_PATIENCE_SECONDS)

    def _create(self) -> None:
        try:
            with translate_errors():
                _, lsn, name, _ = fetch_row(
                    self._connection,
                    # By default, it exports its snapshot.
                    f"CREATE_REPLICATION_SLOT chronolake_{uuid4().hex} TEMPORARY LOGICAL pgoutput",
                )
            self._snapshot = DatabaseSnapshot(str(name), parse_lsn(str(lsn)), self._at_micros)
        except Exception as failure:  # noqa: BLE001 - the thread that waits raises it
            if not self._is_cancelled:
                self._failure = failure


@contextmanager
def request_snapshot(dsn: str) -> Iterator[SnapshotRequest]:
    """Request a snapshot of a database, and hold it while the block runs.

    It is the snapshot of a temporary slot, which is dropped after the block.

    Raises:
        SourceError: the server cannot be reached, or refuses.
    """
    # Nothing else may be sent on the connection that exports.
    with connect(dsn, replication="database") as connection:
        request = SnapshotRequest(dsn, connection)
        try:
            yield request
        finally:
            request.cancel()


@contextmanager
def export_snapshot(dsn: str) -> Iterator[DatabaseSnapshot]:
    """Hold a snapshot of a database without the log, also of a standby, while the block runs.

    Raises:
        SourceError: the server cannot be reached, or refuses.
    """
    at_micros = _server_micros(dsn)
    with connect(dsn) as connection:
        with translate_errors():
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            (name,) = fetch_row(connection, "SELECT pg_export_snapshot()")
        yield DatabaseSnapshot(str(name), 0, at_micros)


@contextmanager
def use_snapshot(connection: psycopg.Connection, snapshot: DatabaseSnapshot) -> Iterator[None]:
    """Use a snapshot on a connection while the block runs.

    Raises:
        SourceError: the snapshot is not held any more.
    """
    with translate_errors():
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(
            sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot.name))
        )
    yield
    with translate_errors():
        connection.execute("ROLLBACK")


@contextmanager
def connect_to_snapshot(dsn: str, snapshot: DatabaseSnapshot) -> Iterator[psycopg.Connection]:
    """Open a second connection in a snapshot of a table that another connection has locked.

    A statement that alters the table waits for the lock, and later statements wait for that one. If
    this connection has to wait, it may wait for a run that waits for it, a deadlock that the server
    cannot detect. It therefore uses a short lock timeout, after which the statement continues.

    Raises:
        SourceError: the snapshot is not held any more, or, while the block runs, the table cannot
            be locked.
    """
    with connect(dsn) as connection, use_snapshot(connection, snapshot):
        with translate_errors():
            connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
        yield connection


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction that blocks snapshots and slots.

    Attributes:
        reason: a description of the transaction.
        hint: how to end it.
        facts: the same for programs.
    """

    reason: str
    hint: str
    facts: Mapping[str, object]


def oldest_transaction(dsn: str) -> OpenTransaction:
    """Return the transaction that has been open for the longest time.

    Raises:
        SourceError: the server cannot be reached.
    """
    with connect(dsn) as connection, translate_errors():
        if fetch_row(connection, "SELECT pg_is_in_recovery()") == (True,):
            return OpenTransaction(
                "a standby waits until its primary logs its open transactions",
                "Run SELECT pg_log_standby_snapshot() on the primary, which logs them at "
                "once unless transactions stay open there",
                {},
            )
        oldest = connection.execute(
            "SELECT extract(epoch FROM clock_timestamp() - since)::bigint, pid, usename, "
            "application, datname, gid, quote_literal(gid) FROM ("
            "SELECT xact_start, pid, usename, application_name, datname, NULL "
            "FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() "
            "UNION ALL SELECT prepared, NULL, owner, NULL, database, gid FROM pg_prepared_xacts"
            ") open(since, pid, usename, application, datname, gid) ORDER BY since LIMIT 1"
        ).fetchone()
    reason = "it waits until the open transactions end"
    if oldest is None:
        hint = "Members of pg_read_all_stats see other users' transactions in pg_stat_activity"
        return OpenTransaction(reason, hint, {})
    seconds, pid, user, application, database, gid, literal = oldest
    if gid is not None:
        return OpenTransaction(
            f"{reason}; the oldest is {gid!r}, prepared by user {user} in the database "
            f"{database} {seconds} s ago",
            f"To end it, run COMMIT PREPARED {literal} or ROLLBACK PREPARED {literal} in "
            "that database",
            {"gid": gid, "user": user, "database": database, "seconds": seconds},
        )
    process = f"process {pid} (user {user}, application {application!r}, database {database})"
    return OpenTransaction(
        f"{reason}; the oldest belongs to {process} and has been open for {seconds} s",
        f"To end it, run SELECT pg_terminate_backend({pid})",
        {"pid": pid, "user": user, "application": application, "seconds": seconds},
    )


def _server_micros(dsn: str) -> int:
    """Return the server's time, in microseconds since 1970."""
    with connect(dsn) as connection, translate_errors():
        (micros,) = fetch_row(
            connection, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
        )
    return int(str(micros))


def fetch_row(connection: psycopg.Connection, query: str) -> tuple[object, ...]:
    """Return the single row of a query's result."""
    row = connection.execute(query.encode()).fetchone()
    assert row is not None  # noqa: S101 - these queries give one row
    return tuple(row)
