"""States of a database that several connections look at.

Source: `specs/postgres-facts.md` (1.1, 1.3). A slot of its own exports the snapshot, and says to
which place in the log it belongs; without the log, a transaction does.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import structlog
from psycopg import sql

from chronolake.errors import SourceError
from chronolake.source.postgres.connection import connected, understood
from chronolake.source.postgres.slot import lsn_number

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

log = structlog.get_logger(__name__)

#: After so long without a snapshot a warning says why, and then so often.
_PATIENCE_SECONDS: Final = 5.0
_TOLD_EVERY_SECONDS: Final = 60.0
#: Statements that are polite give up sooner than that.
_LOCK_SECONDS: Final = 5


@dataclass(frozen=True)
class DatabaseSnapshot:
    """A state of a database that others can look at, as long as it is held.

    Attributes:
        name: by which they find it.
        lsn: what was committed before this place in the log is in it, and nothing else; 0 if it was
            taken without the log.
        at_micros: the server's time before it was taken, in microseconds since 1970.
    """

    name: str
    lsn: int
    at_micros: int


@contextmanager
def held_snapshot(dsn: str) -> Iterator[DatabaseSnapshot]:
    """Hold a snapshot of a database, while the block runs.

    It is that of a slot which goes with the block. Making one waits until the transactions that are
    open have ended; a warning says which is the oldest, again and again.

    Raises:
        SourceError: the server cannot be reached, or refuses.
    """
    at_micros = _clock(dsn)
    # Nothing else may be sent on the connection that exports.
    with connected(dsn, replication="database") as connection, understood():
        with _told_if_it_waits(dsn):
            _, lsn, name, _ = row_of(
                connection,
                # By default, it exports its snapshot.
                f"CREATE_REPLICATION_SLOT chronolake_{uuid4().hex} TEMPORARY LOGICAL pgoutput",
            )
        yield DatabaseSnapshot(str(name), lsn_number(str(lsn)), at_micros)


@contextmanager
def exported_snapshot(dsn: str) -> Iterator[DatabaseSnapshot]:
    """Hold a snapshot of a database that needs no log, also of a standby, while the block runs.

    Raises:
        SourceError: the server cannot be reached, or refuses.
    """
    at_micros = _clock(dsn)
    with connected(dsn) as connection:
        with understood():
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            (name,) = row_of(connection, "SELECT pg_export_snapshot()")
        yield DatabaseSnapshot(str(name), 0, at_micros)


@contextmanager
def in_snapshot(connection: psycopg.Connection, snapshot: DatabaseSnapshot) -> Iterator[None]:
    """Look at a snapshot, while the block runs.

    Raises:
        SourceError: it is not held any more.
    """
    with understood():
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(
            sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot.name))
        )
    yield
    with understood():
        connection.execute("ROLLBACK")


@contextmanager
def beside(dsn: str, snapshot: DatabaseSnapshot) -> Iterator[psycopg.Connection]:
    """A connection that looks at a snapshot, of a table that another one of ours holds.

    A statement that wants to change the table waits for whoever holds it, and what comes later
    waits for that statement. So if this connection has to wait, it may be for a run that waits for
    it, which the server cannot know: it gives up soon, and the statement goes on.

    Raises:
        SourceError: the snapshot is not held any more, or, while the block runs, the table cannot
            be had.
    """
    with connected(dsn) as connection, in_snapshot(connection, snapshot):
        with understood():
            connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
        yield connection


@contextmanager
def _told_if_it_waits(dsn: str) -> Iterator[None]:
    """Say which transaction the block waits for, if it takes long."""
    done = threading.Event()

    def tell() -> None:
        pause = _PATIENCE_SECONDS
        while not done.wait(pause):
            pause = _TOLD_EVERY_SECONDS
            try:
                _tell_oldest_transaction(dsn)
            except SourceError as failure:
                log.warning("snapshot_waits", reason=failure.message)

    telling = threading.Thread(target=tell, name="snapshot-waits", daemon=True)
    telling.start()
    try:
        yield
    finally:
        # What waits for the server ends with the process.
        done.set()


def _tell_oldest_transaction(dsn: str) -> None:
    with connected(dsn) as connection, understood():
        oldest = connection.execute(
            "SELECT pid, usename, application_name, "
            "extract(epoch FROM clock_timestamp() - xact_start)::bigint FROM pg_stat_activity "
            "WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() "
            "ORDER BY xact_start LIMIT 1"
        ).fetchone()
    if oldest is None:
        log.warning(
            "snapshot_waits",
            reason="a copy begins when the transactions that are open have ended",
            hint="SELECT * FROM pg_prepared_xacts; tells those that are prepared, and a member of "
            "pg_read_all_stats sees other users' in pg_stat_activity",
        )
        return
    pid, user, application, seconds = oldest
    log.warning(
        "snapshot_waits",
        reason="a copy begins when the transactions that are open have ended",
        hint=f"SELECT pg_terminate_backend({pid}); ends the oldest one",
        pid=pid,
        user=user,
        application=application,
        seconds=seconds,
    )


def _clock(dsn: str) -> int:
    """The server's time, in microseconds since 1970."""
    with connected(dsn) as connection, understood():
        (micros,) = row_of(
            connection, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
        )
    return int(str(micros))


def row_of(connection: psycopg.Connection, query: str) -> tuple[object, ...]:
    """The one row that a query gives."""
    row = connection.execute(query.encode()).fetchone()
    assert row is not None  # noqa: S101 - these queries give one row
    return tuple(row)
