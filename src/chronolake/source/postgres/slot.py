"""Replication slot, publication, and evidence that the log is the one that was read before.

Source: `specs/postgres-facts.md` (2.1, 2.2, 3.1 to 3.4). The server retains its log from a
replication slot's position on, until the slot is advanced. `replication_stream` reads it.

A slot is decoded with the catalog at the time of a change. If the publication did not exist then,
the server refuses to decode the change (up to PostgreSQL 17), or omits it and warns (from 18 on),
even if the publication exists again. Only a new slot solves this.

A server that was restored from a snapshot of its files, or a standby that lagged when it was
promoted, has the same identifiers as before and writes other transactions at the same LSNs. A
stream's offset therefore contains evidence that the next run has to find in the log: the last
transaction that was read, by its LSN, its number and its commit time to the microsecond; or a
message with a random text that was written to the log after a copy had begun. The slot retains what
is needed to read it again.

If no message can be written, on a standby or without the privilege, the evidence is the last bytes
of the log before the offset. Physical replication sends them unchanged, whatever wrote them.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import uuid4

import psycopg
import structlog
from psycopg import pq, sql
from psycopg.errors import error_from_result

from chronolake.errors import SourceError
from chronolake.source.postgres.connection import connect, translate_errors
from chronolake.source.postgres.messages import LOG_DATA, LOG_HEADER_BYTES, PREFIX
from chronolake.source.protocol import Lag

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from psycopg.errors import Diagnostic

    from chronolake.config import PostgresSource
    from chronolake.source.postgres.messages import Transaction
    from chronolake.source.postgres.pgoutput import DecodedBatch


#: Timeout in seconds for decoding the log during a check.
_LOOK_SECONDS: Final = 20


@contextmanager
def collect_warnings(connection: psycopg.Connection) -> Iterator[list[str]]:
    """Collect the server's warnings while the block runs."""
    messages: list[str] = []

    def note_warning(notice: Diagnostic) -> None:
        messages.append(notice.message_primary or "a warning without a message")

    connection.add_notice_handler(note_warning)
    try:
        yield messages
    finally:
        connection.remove_notice_handler(note_warning)


def recovery_steps(slot: Slot) -> str:
    """Return the steps after which a slot and its publication can be read again."""
    return (
        f"SELECT pg_drop_replication_slot('{slot.name}'); then `chronolake check "
        "--create` to create it again, and `chronolake resync` to read the current rows."
    )


def missing_publication_error(slot: Slot) -> SourceError:
    """Return the error for a log with changes from a time without the publication."""
    return SourceError(
        f"The slot {slot.name} contains changes from a time when the publication "
        f"{slot.publication} did not exist: the publication was dropped, or created after "
        "the slot.",
        hint=recovery_steps(slot),
    )


def is_publication_missing(failure: SourceError) -> bool:
    """Return whether reading a slot failed because its publication did not exist."""
    cause = failure.__cause__
    return isinstance(cause, psycopg.errors.UndefinedObject) and "publication" in str(cause)


def is_publication_newer(connection: psycopg.Connection, slot: Slot) -> bool:
    """Return whether a publication was created or altered after the start of the slot's log.

    Raises:
        SourceError: the server does not return it.
    """
    query = (
        "SELECT age(p.xmin) <= age(s.catalog_xmin) FROM pg_publication p, pg_replication_slots s "
        "WHERE p.pubname = %s AND s.slot_name = %s"
    )
    with translate_errors():
        row = connection.execute(query, (slot.publication, slot.name)).fetchone()
    return row is None or bool(row[0])


def has_publication_gap(connection: psycopg.Connection, slot: Slot) -> bool | None:
    """Return whether a slot's log has changes from a time without its publication.

    A slot that is being read is not checked: its reader raises the error.

    Returns:
        None if this is not known, because the log is too long to be checked.

    Raises:
        SourceError: the slot cannot be read for another reason.
    """
    if not is_publication_newer(connection, slot):
        return False
    query = sql.SQL(
        "SELECT count(*) FROM pg_logical_slot_peek_binary_changes({}, NULL, NULL, "
        "'proto_version', '1', 'publication_names', {})"
    ).format(
        sql.Literal(slot.name),
        sql.Literal(sql.Identifier(slot.publication).as_string(connection)),
    )
    try:
        with translate_errors(), collect_warnings(connection) as warned, connection.transaction():
            connection.execute(f"SET LOCAL statement_timeout = '{_LOOK_SECONDS}s'")
            connection.execute(query)
    except SourceError as failure:
        if is_publication_missing(failure):
            return True
        if isinstance(failure.__cause__, psycopg.errors.ObjectInUse):
            return False
        if isinstance(failure.__cause__, psycopg.errors.QueryCanceled):
            return None
        raise
    return bool(warned)


#: More log than this is not expected to be left by a pipeline that runs regularly.
_MUCH_BYTES: Final = 10 * 2**30
_OTHER_NAME: Final = "Set another slot name in chronolake.yml: `slot: …` below `source`."


#: SQL for the LSN up to which a server's log can be read.
END_OF_LOG: Final = (
    "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() "
    "ELSE pg_current_wal_flush_lsn() END"
)
#: From this version on, standbys can keep copies of slots.
HAS_FAILOVER: Final = 170_000


@dataclass(frozen=True)
class Slot:
    """A slot of the plugin pgoutput, and the publication that is read through it.

    Attributes:
        name: the slot's name.
        publication: the publication's name.
        is_failover: whether standbys should keep a copy of the slot.
    """

    name: str
    publication: str
    is_failover: bool = False


def slot_of(config: PostgresSource, pipeline: str) -> Slot:
    """Return the slot and the publication of a pipeline."""
    name = config.slot_for(pipeline)
    return Slot(name, config.publication or name, config.failover)


def slot_exists(connection: psycopg.Connection, slot: Slot) -> bool:
    """Return whether the server has a slot of that name, perhaps in another database.

    Raises:
        SourceError: the server does not return it.
    """
    return _belongs_to_database(connection, slot) is not None


def is_in_database(connection: psycopg.Connection, slot: Slot) -> bool:
    """Return whether the connected database has a slot of that name.

    Raises:
        SourceError: the server does not return it.
    """
    return _belongs_to_database(connection, slot) is True


def _belongs_to_database(connection: psycopg.Connection, slot: Slot) -> bool | None:
    """Return whether a slot belongs to the connected database; None: no such slot exists."""
    query = (
        "SELECT coalesce(database = current_database(), false) FROM pg_replication_slots "
        "WHERE slot_name = %s"
    )
    with translate_errors():
        row = connection.execute(query, (slot.name,)).fetchone()
    return None if row is None else bool(row[0])


def format_lsn(lsn: int) -> str:
    """Return an LSN as PostgreSQL prints it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """Return the number of an LSN that `format_lsn` printed."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


def durable_lsn(connection: psycopg.Connection) -> int:
    """Return the LSN up to which the log is durable: nothing before it is ever taken back.

    For a standby, return the LSN up to which it has replayed its primary's log.
    """
    with translate_errors():
        (text,) = connection.execute(f"SELECT ({END_OF_LOG})::text").fetchone() or ("",)
    return parse_lsn(str(text))


def confirmed_lsn(connection: psycopg.Connection, slot: Slot) -> int:
    """Return the LSN where a slot begins: earlier commits are no longer in it.

    Raises:
        SourceError: the slot does not exist, or cannot be read here.
    """
    has_failover = connection.info.server_version >= HAS_FAILOVER
    is_copy = "synced AND pg_is_in_recovery()" if has_failover else "false"
    with translate_errors():
        row = connection.execute(
            "SELECT confirmed_flush_lsn::text, coalesce(plugin, 'none (a physical slot)'), "
            "coalesce(database = current_database(), true), two_phase, wal_status, "
            f"{is_copy} FROM pg_replication_slots WHERE slot_name = %s",
            (slot.name,),
        ).fetchone()
    if row is None:
        raise SourceError(
            f"The server has no replication slot {slot.name}.",
            hint="Run `chronolake check --create` to create the publication and the slot.",
        )
    begins, plugin, is_own_database, two_phase, wal_status, is_synced = row
    if is_synced:
        raise SourceError(
            f"The replication slot {slot.name} is this standby's copy of a slot of its primary.",
            hint="Read the primary, or this server after its promotion. To read the standby, "
            "give the pipeline its own slot there: `slot: …` below `source`.",
        )
    if not is_own_database:
        raise SourceError(
            f"The replication slot {slot.name} belongs to another database, and can only "
            "be read there.",
            hint=_OTHER_NAME,
        )
    if plugin != "pgoutput":
        raise SourceError(
            f"The replication slot {slot.name} belongs to another program: its plugin is "
            f"{plugin}, not pgoutput.",
            hint=_OTHER_NAME,
        )
    problems = {
        "it decodes prepared transactions before they are committed": two_phase,
        "the server removed log that it needs": wal_status == "lost",
    }
    for problem, has_problem in problems.items():
        if has_problem:
            raise SourceError(
                f"The replication slot {slot.name} cannot be read: {problem}.",
                hint=recovery_steps(slot),
            )
    return parse_lsn(str(begins))


def lag(connection: psycopg.Connection, slot: Slot) -> Lag:
    """Return how much log a slot lags behind, and how much it retains.

    Raises:
        SourceError: the slot does not exist, or cannot be read any more.
    """
    confirmed_lsn(connection, slot)
    with translate_errors():
        row = connection.execute(
            f"SELECT pg_wal_lsn_diff({END_OF_LOG}, confirmed_flush_lsn)::bigint, "
            f"pg_wal_lsn_diff({END_OF_LOG}, restart_lsn)::bigint, wal_status, "
            "safe_wal_size, pg_size_pretty(safe_wal_size) "
            "FROM pg_replication_slots WHERE slot_name = %s",
            (slot.name,),
        ).fetchone()
    behind, retained, status, safe_bytes, safe_size = row or (0, 0, "reserved", None, None)
    warning = None
    if safe_bytes is not None and status != "reserved":
        when = (
            f"after {safe_size} more of log"
            if safe_bytes and safe_bytes > 0
            else "at the next checkpoint"
        )
        warning = f"the server may invalidate the slot {slot.name} {when}: sync now"
    elif safe_bytes is None and retained > _MUCH_BYTES:
        warning = f"the slot {slot.name} has no size limit and fills the server's disk: sync now"
    return Lag(max(0, behind), max(0, retained), warning)


def advance(connection: psycopg.Connection, slot: Slot, *, upto: int) -> None:
    """Advance a slot beyond all transactions that end at an LSN or before.

    Nothing changes if the slot is already beyond the LSN.

    Raises:
        SourceError: the slot cannot be advanced.
    """
    with translate_errors():
        row = connection.execute(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s",
            (slot.name,),
        ).fetchone()
        if row is not None and row[0] is not None and parse_lsn(str(row[0])) >= upto:
            return
        connection.execute(
            "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", (slot.name, format_lsn(upto))
        )


log = structlog.get_logger(__name__)

_PAGE_BYTES: Final = 8_192
#: Fewer bytes may contain only a page's header, which is the same in any log.
_LEAST_BYTES: Final = 512
_BYTES: Final = re.compile(r"bytes ([0-9]+) ([0-9]+) [0-9a-f]{64}")


@dataclass(frozen=True)
class Evidence:
    """Evidence in the log that the next run has to find again.

    Attributes:
        lsn: the LSN of the commit, or of the message. The slot has to retain the log from here on.
        until: the transaction was committed before this LSN.
        mark: the expected contents: a transaction's number and commit time, a message's text, or
            the hash of the bytes before the LSN with their timeline and first LSN.
    """

    lsn: int
    until: int
    mark: str

    @classmethod
    def of(cls, transaction: Transaction) -> Self:
        """Return a transaction that was read as evidence."""
        until = transaction.commit_lsn + 1
        return cls(transaction.commit_lsn, until, _mark_of(transaction))

    @classmethod
    def from_json(cls, stored: Sequence[Any]) -> Self:
        """Return the evidence that `as_json` stored."""
        return cls(*stored)

    def as_json(self) -> list[Any]:
        """Return the evidence in the form that a checkpoint stores."""
        return [self.lsn, self.until, self.mark]

    @property
    def is_bytes(self) -> bool:
        """Return whether it consists of bytes of the log, which `is_on_server` looks up."""
        return _BYTES.fullmatch(self.mark) is not None

    def is_on_server(self, dsn: str) -> bool:
        """Return whether a server's log has the same bytes.

        Raises:
            SourceError: the server does not respond.
        """
        match = _BYTES.fullmatch(self.mark)
        if match is None:
            return False
        timeline, begin = int(match[1]), int(match[2])
        with connect(dsn, replication="database") as connection:
            try:
                with translate_errors():
                    data = _read_bytes(connection, timeline, begin, self.lsn)
            except SourceError as failure:
                cause = failure.__cause__
                if not isinstance(cause, psycopg.Error) or cause.sqlstate is None:
                    raise
                # The position is not in the server's history.
                return False
        return _mark_of_bytes(timeline, begin, data) == self.mark

    def is_in(self, decoded: DecodedBatch) -> bool:
        """Return whether a batch of the log contains the evidence."""
        index = bisect_left(
            decoded.transactions, self.lsn, key=lambda transaction: transaction.commit_lsn
        )
        is_read = any(
            transaction.commit_lsn == self.lsn and _mark_of(transaction) == self.mark
            for transaction in decoded.transactions[index : index + 1]
        )
        return is_read or any(
            emitted.lsn == self.lsn and emitted.text == self.mark for emitted in decoded.emitted
        )

    def should_be_before(self, decoded: DecodedBatch) -> bool:
        """Return whether a batch extends beyond the evidence, so that it cannot follow any more."""
        transactions = decoded.transactions
        return bool(transactions) and transactions[-1].commit_lsn >= self.until


@dataclass(frozen=True)
class ReadEnd:
    """The end of what was read of the log.

    Attributes:
        lsn: the LSN where the next run continues: nothing follows up to `upto`.
        evidence: proves the identity of the log up to there.
        upto: everything that was committed before this LSN was read.
    """

    lsn: int
    evidence: Evidence | None
    upto: int


def _mark_of(transaction: Transaction) -> str:
    return f"{transaction.xid} {transaction.commit_micros}"


def emit_evidence(connection: psycopg.Connection) -> Evidence | None:
    """Write a small message to the server's log, as evidence for offsets up to its end.

    The message is durable when the function returns. It needs no table, and no privilege beyond the
    default.

    Returns:
        None if the server is a standby, or the role may not call `pg_logical_emit_message`. Use
        `bytes_before` then.

    Raises:
        SourceError: the server cannot be reached.
    """
    text = uuid4().hex
    with translate_errors():
        if connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
            return None
    try:
        with connection.transaction():
            # Standbys need not have received it, and the role may have disabled durable commits.
            connection.execute("SET LOCAL synchronous_commit = local")
            row = connection.execute(
                "SELECT pg_logical_emit_message(true, %s, %s)::text", (PREFIX, text)
            ).fetchone()
    except psycopg.errors.DatabaseError as failure:
        if failure.sqlstate is None:
            with translate_errors():
                raise
        return None
    assert row is not None  # noqa: S101 - the query gives one row
    return Evidence(parse_lsn(str(row[0])), durable_lsn(connection), text)


def bytes_before(dsn: str, lsn: int) -> Evidence | None:
    """Return the last bytes of a server's log before an LSN as evidence.

    Args:
        dsn: the server's address.
        lsn: the LSN; the log is durable up to it.

    Returns:
        None if the server does not send the bytes, or there are too few on their page.

    Raises:
        SourceError: the server cannot be reached.
    """
    with connect(dsn, replication="database") as connection:
        with translate_errors():
            row = connection.execute(
                "SELECT setting::bigint FROM pg_settings WHERE name = 'wal_segment_size'"
            ).fetchone()
        assert row is not None  # noqa: S101 - every server has the setting
        # The slot retains this file of the log, but perhaps not the previous one.
        file_begin = lsn - lsn % int(row[0])
        begin = max(file_begin, lsn - lsn % _PAGE_BYTES - _PAGE_BYTES)
        if lsn - begin < _LEAST_BYTES:
            return None
        try:
            with translate_errors():
                system = connection.execute("IDENTIFY_SYSTEM").fetchone()
                assert system is not None  # noqa: S101 - every server answers
                timeline = int(system[1])
                data = _read_bytes(connection, timeline, begin, lsn)
        except SourceError as failure:
            log.warning(
                "log_position_without_evidence",
                reason=failure.message,
                hint="A restore of the server from a snapshot may go unnoticed. Run "
                "`chronolake check` to see what to grant.",
            )
            return None
    if len(data) < lsn - begin:
        return None
    return Evidence(lsn, lsn, _mark_of_bytes(timeline, begin, data))


def _mark_of_bytes(timeline: int, begin: int, data: bytes) -> str:
    return f"bytes {timeline} {begin} {sha256(data).hexdigest()}"


def _read_bytes(connection: psycopg.Connection, timeline: int, begin: int, end: int) -> bytes:
    """Read bytes of the log, or fewer if the timeline ends earlier. The connection is then closed.

    Raises:
        psycopg.Error: the bytes are not in the server's log.
    """
    server = connection.pgconn
    command = f"START_REPLICATION PHYSICAL {format_lsn(begin)} TIMELINE {timeline}"
    result = server.exec_(command.encode())
    if result.status == pq.ExecStatus.FATAL_ERROR:
        raise error_from_result(result)
    data = b""
    if result.status == pq.ExecStatus.COPY_BOTH:
        while len(data) < end - begin:
            size, copied = server.get_copy_data(0)
            if size < 0:
                break
            message = bytes(copied)
            data += message[LOG_HEADER_BYTES:] if message[0] == LOG_DATA else b""
    # Nothing else is read from it, and nothing is confirmed.
    connection.close()
    return data[: end - begin]
