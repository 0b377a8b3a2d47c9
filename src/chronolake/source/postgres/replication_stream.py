"""Change data capture (CDC): the streaming replication protocol, with transactions in progress.

Source: PostgreSQL's documentation, "Streaming Replication Protocol" and "Logical Replication
Message Formats" (protocol version 2). The server decodes its log while it is read, and waits while
nothing is read. It holds up to `logical_decoding_work_mem` of changes in memory. Nothing waits in
memory or in temporary files until everything is decoded. Landed changes are confirmed on the same
connection.

If the limit is exceeded, the server sends the largest transaction in parts before it is committed:
`S (R|Y|O|I|U|D|T|M)* E`, repeatedly, with the number of the subtransaction in every message. They
are stored in files until the commit. Changes of a subtransaction are discarded when it is rolled
back (`A`). When the transaction is committed (`c`), its messages are returned as if it had been
sent then, so that no other code handles streaming. Rows are decoded only then, and column rules
(`protected_texts`) apply to decoded rows. If there are any, the files are encrypted with a key that
is only in the memory of this process.
"""

from __future__ import annotations

import re
import selectors
import struct
import time
from array import array
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate, pairwise
from secrets import token_bytes
from typing import TYPE_CHECKING, BinaryIO, Final

import psycopg
from psycopg import pq, sql
from psycopg.errors import ObjectInUse, error_from_result

from chronolake.errors import SourceError
from chronolake.source.postgres.connection import (
    APPLICATION,
    connect,
    encode_statement,
    translate_errors,
)
from chronolake.source.postgres.messages import (
    LOG_DATA,
    LOG_HEADER_BYTES,
    Kind,
    Reader,
    decode_begin,
    protocol_error,
)
from chronolake.source.postgres.slot import (
    collect_warnings,
    format_lsn,
    is_publication_missing,
    missing_publication_error,
    recovery_steps,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from chronolake.source.postgres.slot import Slot


_START: Final = ord("S")
_STOP: Final = ord("E")
_COMMIT: Final = ord("c")
_ABORT: Final = ord("A")
#: Kinds of messages about transactions in progress.
FRAME: Final = re.compile(rb"[SEcA]")
#: Up to this many bytes of a transaction are buffered in memory.
_BUFFER_BYTES: Final = 4 * 2**20
#: A file consists of blocks: the number of messages, their lengths, and the messages.
_COUNT: Final = struct.Struct(">I")
_LENGTHS: Final = "I"
#: AES-256 in Galois/Counter Mode: the sizes of its key, its nonces and its tags.
_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
#: The size of a transaction's number in bytes.
_XID: Final = 4
_BEGIN: Final = struct.Struct(">cqqI")
_END: Final = struct.Struct(">cBqqq")


@dataclass
class InProgress:
    """The transactions in progress of one connection, which returns messages of committed ones.

    Attributes:
        folder: the folder of their files, created when it is needed.
        is_encrypted: whether the files are encrypted.
    """

    folder: Path
    is_encrypted: bool = False
    _block: int | None = None
    _waiting: list[bytes] = field(default_factory=list)
    _waiting_bytes: int = 0
    _rolled_back: dict[int, set[int]] = field(default_factory=dict)
    _key: bytes = field(default_factory=partial(token_bytes, _KEY_BYTES), repr=False)

    @property
    def is_open(self) -> bool:
        """Return whether the next message belongs to a transaction in progress."""
        return self._block is not None

    def store(self, messages: Sequence[bytes]) -> int:
        """Store messages as long as they belong to the open transaction; `is_open` is true.

        Returns:
            How many messages were stored.
        """
        end = kinds_of(messages).find(_STOP)
        own = messages if end < 0 else messages[:end]
        self._waiting += own
        self._waiting_bytes += sum(map(len, own))
        if end >= 0:
            self._flush()
            self._block = None
            return end + 1
        if self._waiting_bytes >= _BUFFER_BYTES:
            self._flush()
        return len(messages)

    def process(self, message: bytes, *, upto: int) -> Iterable[list[bytes]]:
        """Process a message about a transaction in progress: one that matches `FRAME`.

        Args:
            upto: transactions that are committed at this LSN or later are discarded.

        Returns:
            The messages of the transaction that it commits, from BEGIN to COMMIT, in parts.

        Raises:
            ReplicationProtocolError: the message is not valid pgoutput.
        """
        kind = message[0]
        reader = Reader(message)
        if kind == _START:
            self._block = reader.uint32()
            if reader.byte():
                self._forget(self._block)
        elif kind == _ABORT:
            self._abort(reader.uint32(), reader.uint32())
        elif kind == _COMMIT:
            return self._commit(reader, upto)
        else:
            raise protocol_error("a part of a transaction ends without a begin")
        return ()

    def _file(self, xid: int) -> Path:
        return self.folder / f"{xid}.messages"

    def _flush(self) -> None:
        if self._waiting and self._block is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            lengths = array(_LENGTHS, map(len, self._waiting))
            with self._file(self._block).open("ab") as file:
                file.write(_COUNT.pack(len(lengths)))
                file.write(lengths.tobytes())
                if self.is_encrypted:
                    nonce = token_bytes(_NONCE_BYTES)
                    data = self._cipher.encrypt(nonce, b"".join(self._waiting), None)
                    file.write(nonce)
                    file.write(data)
                else:
                    file.writelines(self._waiting)
        self._waiting, self._waiting_bytes = [], 0

    def _abort(self, xid: int, subtransaction: int) -> None:
        if xid == subtransaction:
            self._forget(xid)
        else:
            self._rolled_back.setdefault(xid, set()).add(subtransaction)

    def _forget(self, xid: int) -> None:
        self._rolled_back.pop(xid, None)
        self._file(xid).unlink(missing_ok=True)

    def _commit(self, reader: Reader, upto: int) -> Iterator[list[bytes]]:
        xid = reader.uint32()
        flags, commit_lsn, end_lsn = reader.byte(), reader.int64(), reader.int64()
        micros = reader.int64()
        reader.end()
        if commit_lsn < upto:
            yield [_BEGIN.pack(b"B", commit_lsn, micros, xid)]
            yield from self._read_messages(xid)
            yield [_END.pack(b"C", flags, commit_lsn, end_lsn, micros)]
        self._forget(xid)

    def _read_messages(self, xid: int) -> Iterator[list[bytes]]:
        """Return messages without rolled-back ones, in the format without streaming."""
        rolled_back = {
            subtransaction.to_bytes(_XID, "big")
            for subtransaction in self._rolled_back.get(xid, ())
        }
        if not self._file(xid).is_file():
            return
        with self._file(xid).open("rb") as file:
            while head := file.read(_COUNT.size):
                lengths = array(_LENGTHS)
                lengths.frombytes(file.read(_COUNT.unpack(head)[0] * lengths.itemsize))
                data = self._read_block(file, sum(lengths))
                ranges = pairwise(accumulate(lengths, initial=0))
                # Leave out the number of the subtransaction.
                yield [
                    data[begin : begin + 1] + data[begin + 1 + _XID : end]
                    for begin, end in ranges
                    if data[begin] != Kind.ORIGIN
                    and not (rolled_back and data[begin + 1 : begin + 1 + _XID] in rolled_back)
                ]

    def _read_block(self, file: BinaryIO, size: int) -> bytes:
        """Read the messages of a block."""
        if not self.is_encrypted:
            return file.read(size)
        nonce = file.read(_NONCE_BYTES)
        return self._cipher.decrypt(nonce, file.read(size + _TAG_BYTES), None)

    @cached_property
    def _cipher(self) -> AESGCM:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - only for column rules

        return AESGCM(self._key)


def kinds_of(messages: Sequence[bytes]) -> bytes:
    """Return the first byte of each message: its kind."""
    return bytes([message[0] for message in messages])


#: Decoding is fastest in batches of some megabytes.
BATCH_BYTES: Final = 4 * 2**20
#: Messages are processed together up to this many bytes, unless the server is silent.
_TOGETHER_BYTES: Final = 2**18
#: Kinds of messages, as returned by `kinds_of`.
_CHANGE: Final = re.compile(rb"[IUDTM]")
_STREAM_BEGIN: Final = bytes([Kind.BEGIN])
_STREAM_END: Final = bytes([Kind.COMMIT])
#: After this time without a message, the server is asked for its position.
_SILENCE_SECONDS: Final = 1.0
#: The server notices a dead session only when it sends or waits, not while it decodes.
_IN_USE_SECONDS: Final = 30.0
_END_SECONDS: Final = 10.0
#: Landing may take long, and the server must not close the connection meanwhile.
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
    """A stream of a slot's messages.

    Attributes:
        connection: the replication connection; it cannot be used for anything else.
        upto: only transactions that are committed before this LSN are read.
        transactions: the transactions in progress.
        may_confirm: whether LSNs can be confirmed while the slot is read. If any client counts as a
            synchronous standby, commits would wait for one that confirms.
        warnings: the server's warnings.
    """

    connection: psycopg.Connection
    slot: Slot
    upto: int
    transactions: InProgress
    may_confirm: bool = True
    warnings: list[str] = field(default_factory=list)
    _pending: list[bytes] = field(default_factory=list)
    _is_done: bool = False

    def batches(self, batch_bytes: int | None = None) -> Iterator[list[bytes]]:
        """Read the messages of all transactions that are committed before `upto`, once.

        Messages have the format of protocol version 1. Transactions without any change are omitted:
        whether the server sends them depends on its version, and on whether they were sent before
        they were committed.

        Args:
            batch_bytes: the minimum size of a batch in bytes; `BATCH_BYTES` by default.

        Yields:
            Batches of messages; a transaction may continue in the next batch.

        Raises:
            SourceError: the slot cannot be read, or its publication did not exist at the time of a
                change, which would be omitted.
        """
        try:
            yield from self._batches(batch_bytes or BATCH_BYTES)
        except SourceError as failure:
            if is_publication_missing(failure):
                raise missing_publication_error(self.slot) from failure
            raise

    def _batches(self, batch_bytes: int) -> Iterator[list[bytes]]:
        batch: list[bytes] = []
        size = 0
        with translate_errors():
            for committed in self._committed_messages():
                messages = self._drop_empty(committed)
                batch += messages
                size += sum(map(len, messages))
                if self._is_done:
                    break
                if size >= batch_bytes:
                    self._raise_if_skipped()
                    # If the batch ends with a transaction, everything read so far can land.
                    end = _last_commit(batch) or len(batch)
                    yield batch[:end]
                    batch = batch[end:]
                    size = sum(map(len, batch))
        self._raise_if_skipped()
        if batch:
            yield batch

    def _drop_empty(self, messages: Sequence[bytes]) -> list[bytes]:
        """Leave out transactions without changes, and everything that is not before `upto`."""
        kinds = kinds_of(messages)
        kept: list[bytes] = []
        pending = self._pending
        index = 0
        while index < len(messages):
            if pending:
                end = kinds.find(_STREAM_END, index)
                stop = len(messages) if end < 0 else end
                if _CHANGE.search(kinds, index, stop):
                    kept += pending
                    pending.clear()
                    continue
                pending += messages[index:stop]
                index = stop
                if end >= 0:
                    # Later transactions may need a description.
                    kept += pending[1:]
                    pending.clear()
                    index += 1
                continue
            next_begin = kinds.find(_STREAM_BEGIN, index)
            if next_begin < 0:
                kept += messages[index:]
                break
            kept += messages[index:next_begin]
            if decode_begin(messages[next_begin]).commit_lsn >= self.upto:
                self._is_done = True
                break
            pending.append(messages[next_begin])
            index = next_begin + 1
        return kept

    def _committed_messages(self) -> Iterator[Sequence[bytes]]:
        """Return the messages of committed transactions in the order of their commits."""
        transactions = self.transactions
        for received in self._receive():
            begin = place = transactions.store(received) if transactions.is_open else 0
            kinds = kinds_of(received)
            while (frame := FRAME.search(kinds, place)) is not None:
                place = frame.start()
                # Earlier messages may belong to a transaction that was committed before.
                yield received[begin:place]
                yield from transactions.process(received[place], upto=self.upto)
                place += 1
                if transactions.is_open:
                    place += transactions.store(received[place:])
                begin = place
            yield received[begin:]

    def _receive(self) -> Iterator[list[bytes]]:
        """Return the server's messages, until it has sent everything before `upto`."""
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
                    raise self._end_error(size)
                elif size == 0:
                    is_silent = not readable.select(_SILENCE_SECONDS)
                    if is_silent:
                        self.confirm(0, wants_answer=True)
                    server.consume_input()
                    # The server sends each message separately, and may have to be waited for.
                    if not is_silent:
                        continue
                elif self._has_reached_end(bytes(data)):
                    yield received
                    return
                if received:
                    yield received
                    received, waiting = [], 0

    def _has_reached_end(self, keepalive: bytes) -> bool:
        kind, end, _, wants_answer = _KEEPALIVE.unpack(keepalive)
        if kind != b"k":
            raise protocol_error(f"a replication message has the unknown kind {kind!r}")
        if wants_answer:
            self.confirm(0)
        return bool(end >= self.upto)

    def confirm(self, lsn: int, *, wants_answer: bool = False) -> None:
        """Confirm an LSN: the slot then discards what was committed before it.

        Args:
            lsn: the LSN, not before one that was confirmed; 0 changes nothing.
            wants_answer: whether to ask the server for its position.

        Raises:
            SourceError: the server cannot be reached any more.
        """
        server = self.connection.pgconn
        with translate_errors():
            # The server does not use the time.
            server.put_copy_data(_STATUS.pack(b"r", lsn, lsn, lsn, 0, wants_answer))
            server.flush()

    def _end_error(self, size: int) -> psycopg.Error:
        server = self.connection.pgconn
        if size == -1 and (result := server.get_result()) is not None:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                return error_from_result(result)
            return psycopg.OperationalError("the server ended the replication stream")
        return psycopg.OperationalError(server.get_error_message())

    def _raise_if_skipped(self) -> None:
        if any("publication" in warning for warning in self.warnings):
            raise missing_publication_error(self.slot)
        if self.warnings:
            raise SourceError(
                f"PostgreSQL printed a warning while the slot {self.slot.name} was read: "
                f"{self.warnings[0]}",
                hint=recovery_steps(self.slot),
            )

    def end(self) -> None:
        """End the stream and release the slot; messages that are still sent are ignored."""
        server = self.connection.pgconn
        deadline = time.monotonic() + _END_SECONDS
        server.put_copy_end()
        server.flush()
        is_copying = True
        with selectors.DefaultSelector() as readable:
            readable.register(server.socket, selectors.EVENT_READ)
            while time.monotonic() < deadline:
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
def open_stream(
    dsn: str, slot: Slot, *, begins: int = 0, upto: int, folder: Path, is_encrypted: bool = False
) -> Iterator[LogStream]:
    """Read a slot while the block runs; the slot retains what is read until it is confirmed.

    Args:
        dsn: the server's address.
        begins: transactions that are committed before this LSN, or before the slot's own position,
            are not sent.
        upto: transactions that are committed at this LSN or later are not sent either.
        folder: the folder for transactions that are not committed yet.
        is_encrypted: whether files in the folder are encrypted.

    Raises:
        SourceError: the slot cannot be read, or another process reads it.
    """
    with (
        connect(dsn, replication="database", as_stored=True, settings=_SETTINGS) as connection,
        collect_warnings(connection) as warnings,
    ):
        with translate_errors():
            (standbys,) = connection.execute("SHOW synchronous_standby_names").fetchone() or ("",)
        # In a database without an encoding, texts are returned as bytes.
        names = standbys.decode() if isinstance(standbys, bytes) else str(standbys)
        is_synchronous = "*" in names or APPLICATION in names
        stream = LogStream(
            connection,
            slot,
            upto,
            InProgress(folder, is_encrypted),
            may_confirm=not is_synchronous,
            warnings=warnings,
        )
        try:
            _start(connection, slot, begins)
            yield stream
            with suppress(psycopg.Error):
                stream.end()
        finally:
            # After a failure, or if the server is busy, the connection is closed immediately.
            connection.close()


def _start(connection: psycopg.Connection, slot: Slot, begins: int) -> None:
    command = sql.SQL(
        "START_REPLICATION SLOT {slot} LOGICAL {begins} (proto_version '2', streaming 'on', "
        "publication_names {publications}, messages 'true')"
    ).format(
        slot=sql.Identifier(slot.name),
        begins=sql.SQL(format_lsn(begins)),
        # The plugin expects a list of identifiers.
        publications=sql.Literal(sql.Identifier(slot.publication).as_string()),
    )
    deadline = time.monotonic() + _IN_USE_SECONDS
    with translate_errors():
        while True:
            result = connection.pgconn.exec_(encode_statement(connection, command))
            if result.status == pq.ExecStatus.COPY_BOTH:
                return
            failure = error_from_result(result)
            if not isinstance(failure, ObjectInUse) or time.monotonic() > deadline:
                raise failure
            # A killed run leaves a session that has not ended yet.
            time.sleep(0.2)


def _last_commit(batch: list[bytes]) -> int:
    """Return the index after the last message that ends a transaction, or 0."""
    return kinds_of(batch).rfind(_STREAM_END) + 1
