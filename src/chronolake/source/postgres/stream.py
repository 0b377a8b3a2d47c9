"""The server's log as it sends it: the protocol of streaming replication.

Source: PostgreSQL's documentation, "Streaming Replication Protocol". The server decodes its log
while it is read, and holds no more of it than `logical_decoding_work_mem`: nothing waits in memory
or in temporary files until everything has been decoded, and a transaction of any size comes in
parts (`inprogress`). It waits while nobody reads. What has landed is confirmed on the same
connection.
"""

from __future__ import annotations

import re
import selectors
import struct
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import pq, sql
from psycopg.errors import ObjectInUse, error_from_result

from chronolake.errors import SourceError
from chronolake.source.postgres.connection import APPLICATION, connected, sent, understood
from chronolake.source.postgres.inprogress import FRAME, InProgress, kinds_of
from chronolake.source.postgres.messages import (
    LOG_DATA,
    LOG_HEADER_BYTES,
    Kind,
    begin,
    misunderstood,
)
from chronolake.source.postgres.publication import (
    is_missing,
    recovery_of,
    warnings_of,
    was_missing,
)
from chronolake.source.postgres.slot import lsn_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from chronolake.source.postgres.slot import Slot

#: Decoding is fastest in batches of some megabytes.
BATCH_BYTES: Final = 4 * 2**20
#: Messages of so many bytes are looked at together, unless the server is silent.
_TOGETHER_BYTES: Final = 2**18
#: Kinds of messages, as `kinds_of` gives them.
_CHANGE: Final = re.compile(rb"[IUDTM]")
_BEGIN: Final = bytes([Kind.BEGIN])
_END: Final = bytes([Kind.COMMIT])
#: After so long without a message, the server is asked how far it is.
_SILENCE_SECONDS: Final = 1.0
#: A session that died is noticed by the server when it sends or waits; it decodes in between.
_IN_USE_SECONDS: Final = 30.0
_END_SECONDS: Final = 10.0
#: Landing may take long, and the server must not take that for a client that is gone.
_SETTINGS: Final = {
    "wal_sender_timeout": "0",
    "tcp_keepalives_idle": "60",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "6",
}
_STATUS: Final = struct.Struct(">cqqqqB")
_KEEPALIVE: Final = struct.Struct(">cqqB")


@dataclass
class LogStream:
    """A slot that is being read.

    Attributes:
        connection: where it is read; nothing else can be done with it.
        slot: the slot.
        upto: transactions that are committed before are read, the others are not.
        transactions: those that are in progress.
        may_confirm: whether positions can be confirmed while it is read. Where any client counts
            as a synchronous standby, commits would wait for one that confirms.
        warned: what the server warns of.
    """

    connection: psycopg.Connection
    slot: Slot
    upto: int
    transactions: InProgress
    may_confirm: bool = True
    warned: list[str] = field(default_factory=list)
    _held: list[bytes] = field(default_factory=list)
    _is_done: bool = False

    def batches(self, batch_bytes: int | None = None) -> Iterator[list[bytes]]:
        """Read the messages of all transactions that are committed before `upto`, once.

        They are as protocol version 1 has them. Transactions without any change are left out:
        whether the server sends them depends on its version, and on whether they were sent before
        they were committed.

        Args:
            batch_bytes: a batch is given when it has so many bytes of messages; `BATCH_BYTES` by
                default.

        Yields:
            Batches of messages; a transaction may go on in the next one.

        Raises:
            SourceError: the slot cannot be read, or its publication was missing when something
                changed: what changed then would be left out.
        """
        try:
            yield from self._batches(batch_bytes or BATCH_BYTES)
        except SourceError as failure:
            if is_missing(failure):
                raise was_missing(self.slot) from failure
            raise

    def _batches(self, batch_bytes: int) -> Iterator[list[bytes]]:
        batch: list[bytes] = []
        size = 0
        with understood():
            for committed in self._committed():
                messages = self._changing(committed)
                batch += messages
                size += sum(map(len, messages))
                if self._is_done:
                    break
                if size >= batch_bytes:
                    self._expect_nothing_skipped()
                    # Where it ends with a transaction, what was read so far can land.
                    end = _last_commit(batch) or len(batch)
                    yield batch[:end]
                    batch = batch[end:]
                    size = sum(map(len, batch))
        self._expect_nothing_skipped()
        if batch:
            yield batch

    def _changing(self, messages: Sequence[bytes]) -> list[bytes]:
        """Leave out transactions without changes, and all that is not before `upto`."""
        kinds = kinds_of(messages)
        found: list[bytes] = []
        held = self._held
        place = 0
        while place < len(messages):
            if held:
                end = kinds.find(_END, place)
                stop = len(messages) if end < 0 else end
                if _CHANGE.search(kinds, place, stop):
                    found += held
                    held.clear()
                    continue
                held += messages[place:stop]
                place = stop
                if end >= 0:
                    # Later transactions may need a description.
                    found += held[1:]
                    held.clear()
                    place += 1
                continue
            following = kinds.find(_BEGIN, place)
            if following < 0:
                found += messages[place:]
                break
            found += messages[place:following]
            if begin(messages[following]).commit_lsn >= self.upto:
                self._is_done = True
                break
            held.append(messages[following])
            place = following + 1
        return found

    def _committed(self) -> Iterator[Sequence[bytes]]:
        """The messages of committed transactions, as they follow each other."""
        transactions = self.transactions
        for received in self._received():
            begin = place = transactions.keep(received) if transactions.is_open else 0
            kinds = kinds_of(received)
            while (frame := FRAME.search(kinds, place)) is not None:
                place = frame.start()
                # What came before may be of a transaction that was committed earlier.
                yield received[begin:place]
                yield from transactions.add(received[place], upto=self.upto)
                place += 1
                if transactions.is_open:
                    place += transactions.keep(received[place:])
                begin = place
            yield received[begin:]

    def _received(self) -> Iterator[list[bytes]]:
        """What the server sends, until it has sent all before `upto`."""
        server = self.connection.pgconn
        self.confirm(0, wants_answer=True)
        received: list[bytes] = []
        waiting = 0
        with selectors.DefaultSelector() as readable:
            readable.register(server.socket, selectors.EVENT_READ)
            while True:
                size, data = server.get_copy_data(1)
                if size > 0 and data[0] == LOG_DATA:
                    received.append(bytes(data[LOG_HEADER_BYTES:]))
                    waiting += size
                    if waiting < _TOGETHER_BYTES:
                        continue
                elif size < 0:
                    raise self._ended(size)
                elif size == 0:
                    is_silent = not readable.select(_SILENCE_SECONDS)
                    if is_silent:
                        self.confirm(0, wants_answer=True)
                    server.consume_input()
                    # The server sends each message by itself, and is often waited for.
                    if not is_silent:
                        continue
                elif self._is_read(bytes(data)):
                    yield received
                    return
                if received:
                    yield received
                    received, waiting = [], 0

    def _is_read(self, keepalive: bytes) -> bool:
        kind, end, _, wants_answer = _KEEPALIVE.unpack(keepalive)
        if kind != b"k":
            raise misunderstood(f"a message of replication is of the kind {kind!r}")
        if wants_answer:
            self.confirm(0)
        return bool(end >= self.upto)

    def confirm(self, lsn: int, *, wants_answer: bool = False) -> None:
        """Let the slot forget what was committed before a position, when the server reads this.

        Args:
            lsn: the position, not before one that was confirmed; 0 changes nothing.
            wants_answer: whether the server is asked how far it is.

        Raises:
            SourceError: the server cannot be reached any more.
        """
        server = self.connection.pgconn
        with understood():
            # The server uses the time for nothing.
            server.put_copy_data(_STATUS.pack(b"r", lsn, lsn, lsn, 0, wants_answer))
            server.flush()

    def _ended(self, size: int) -> psycopg.Error:
        server = self.connection.pgconn
        if size == -1 and (result := server.get_result()) is not None:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                return error_from_result(result)
            return psycopg.OperationalError("the server has ended the stream of changes")
        return psycopg.OperationalError(server.get_error_message())

    def _expect_nothing_skipped(self) -> None:
        if any("publication" in warning for warning in self.warned):
            raise was_missing(self.slot)
        if self.warned:
            raise SourceError(
                f"PostgreSQL warned while the slot {self.slot.name} was read: {self.warned[0]}",
                hint=recovery_of(self.slot),
            )

    def end(self) -> None:
        """End the stream, so that the slot is free at once; what is still sent is passed over."""
        server = self.connection.pgconn
        patience = time.monotonic() + _END_SECONDS
        server.put_copy_end()
        server.flush()
        is_copying = True
        with selectors.DefaultSelector() as readable:
            readable.register(server.socket, selectors.EVENT_READ)
            while time.monotonic() < patience:
                if is_copying:
                    size, _ = server.get_copy_data(1)
                    is_copying = size >= 0
                    is_waiting = size == 0
                else:
                    is_waiting = bool(server.is_busy())
                    if not is_waiting and server.get_result() is None:
                        return
                if is_waiting and readable.select(_SILENCE_SECONDS):
                    server.consume_input()


@contextmanager
def streaming(
    dsn: str, slot: Slot, *, begins: int = 0, upto: int, folder: Path
) -> Iterator[LogStream]:
    """Read a slot, while the block runs; what is read stays in it until that is confirmed.

    Args:
        dsn: the server's address.
        slot: the slot.
        begins: transactions that are committed before this position are not sent; nor those before
            the slot's own position.
        upto: nor are those that are committed here or later.
        folder: where transactions wait that are not committed yet.

    Raises:
        SourceError: the slot cannot be read, or somebody else reads it.
    """
    with (
        connected(dsn, replication="database", as_stored=True, settings=_SETTINGS) as connection,
        warnings_of(connection) as warned,
    ):
        with understood():
            (standbys,) = connection.execute("SHOW synchronous_standby_names").fetchone() or ("",)
        # In a database without an encoding, texts come as bytes.
        names = standbys.decode() if isinstance(standbys, bytes) else str(standbys)
        is_counted = "*" in names or APPLICATION in names
        stream = LogStream(
            connection, slot, upto, InProgress(folder), may_confirm=not is_counted, warned=warned
        )
        try:
            _start(connection, slot, begins)
            yield stream
            with suppress(psycopg.Error):
                stream.end()
        finally:
            # After a failure, or if the server is busy, it is closed as it is.
            connection.close()


def _start(connection: psycopg.Connection, slot: Slot, begins: int) -> None:
    command = sql.SQL(
        "START_REPLICATION SLOT {slot} LOGICAL {begins} (proto_version '2', streaming 'on', "
        "publication_names {publications}, messages 'true')"
    ).format(
        slot=sql.Identifier(slot.name),
        begins=sql.SQL(lsn_text(begins)),
        # A list of identifiers, as the plugin reads it.
        publications=sql.Literal(sql.Identifier(slot.publication).as_string()),
    )
    patience = time.monotonic() + _IN_USE_SECONDS
    with understood():
        while True:
            result = connection.pgconn.exec_(sent(connection, command))
            if result.status == pq.ExecStatus.COPY_BOTH:
                return
            failure = error_from_result(result)
            if not isinstance(failure, ObjectInUse) or time.monotonic() > patience:
                raise failure
            # A run that was killed leaves a session that has not noticed yet.
            time.sleep(0.2)


def _last_commit(batch: list[bytes]) -> int:
    """The place after the last message that ends a transaction, or 0."""
    return kinds_of(batch).rfind(_END) + 1
