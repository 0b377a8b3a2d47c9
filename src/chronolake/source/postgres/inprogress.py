"""Transactions that the server sends before they are committed, kept in files until they are.

Source: PostgreSQL's documentation, "Logical Replication Message Formats" (protocol version 2). The
server holds what transactions change in memory, up to `logical_decoding_work_mem`, and sends the
largest one when that is exceeded: `S (R|Y|O|I|U|D|T|M)* E`, again and again, with the number of
the subtransaction in every message. What a subtransaction changed is discarded when that is rolled
back (`A`). When the transaction is committed (`c`), its messages follow each other as if it had
been sent then, so that nothing else has to know.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from chronolake.source.postgres.messages import Kind, Reader, misunderstood

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

_START: Final = ord("S")
_STOP: Final = ord("E")
_COMMIT: Final = ord("c")
_ABORT: Final = ord("A")
#: Messages about transactions in progress, by their kinds.
FRAME: Final = re.compile(rb"[SEcA]")
#: So much of a transaction is in memory at once.
_BUFFER_BYTES: Final = 4 * 2**20
#: The bytes of a message's length, which is before it in a file, and of a transaction's number.
_LENGTH: Final = 4
_XID: Final = 4
_BEGIN: Final = struct.Struct(">cqqI")
_END: Final = struct.Struct(">cBqqq")


@dataclass
class InProgress:
    """The messages of one connection: gives those of committed transactions.

    Attributes:
        folder: where transactions wait; it is made when one does.
    """

    folder: Path
    _block: int | None = None
    _waiting: list[bytes] = field(default_factory=list)
    _waiting_bytes: int = 0
    _undone: dict[int, set[int]] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Whether the next message is of a transaction in progress."""
        return self._block is not None

    def keep(self, messages: Sequence[bytes]) -> int:
        """Take messages while they are of the transaction in progress; `is_open` is true.

        Returns:
            How many of them were taken.
        """
        end = kinds_of(messages).find(_STOP)
        for message in messages if end < 0 else messages[:end]:
            self._waiting += (len(message).to_bytes(_LENGTH, "big"), message)
            self._waiting_bytes += len(message)
        if end >= 0:
            self._flush()
            self._block = None
            return end + 1
        if self._waiting_bytes >= _BUFFER_BYTES:
            self._flush()
        return len(messages)

    def add(self, message: bytes, *, upto: int) -> Iterable[list[bytes]]:
        """Take a message about a transaction in progress: one that `FRAME` finds.

        Args:
            message: the message.
            upto: a transaction that is committed at this position or after gives nothing.

        Returns:
            The messages of the transaction that it commits, from BEGIN to COMMIT, in parts.

        Raises:
            ReplicationProtocolError: it is not as pgoutput sends it.
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
            return self._committed(reader, upto)
        else:
            raise misunderstood("a part of a transaction ends that has not begun")
        return ()

    def _file(self, xid: int) -> Path:
        return self.folder / f"{xid}.messages"

    def _flush(self) -> None:
        if self._waiting and self._block is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._file(self._block).open("ab") as file:
                file.write(b"".join(self._waiting))
        self._waiting, self._waiting_bytes = [], 0

    def _abort(self, xid: int, subtransaction: int) -> None:
        if xid == subtransaction:
            self._forget(xid)
        else:
            self._undone.setdefault(xid, set()).add(subtransaction)

    def _forget(self, xid: int) -> None:
        self._undone.pop(xid, None)
        self._file(xid).unlink(missing_ok=True)

    def _committed(self, reader: Reader, upto: int) -> Iterator[list[bytes]]:
        xid = reader.uint32()
        flags, commit_lsn, end_lsn = reader.byte(), reader.int64(), reader.int64()
        micros = reader.int64()
        reader.end()
        if commit_lsn < upto:
            yield [_BEGIN.pack(b"B", commit_lsn, micros, xid)]
            yield from self._kept(xid)
            yield [_END.pack(b"C", flags, commit_lsn, end_lsn, micros)]
        self._forget(xid)

    def _kept(self, xid: int) -> Iterator[list[bytes]]:
        """Its messages without what was undone, and as they would be without streaming."""
        undone = {one.to_bytes(_XID, "big") for one in self._undone.get(xid, ())}
        if not self._file(xid).is_file():
            return
        with self._file(xid).open("rb") as file:
            rest = b""
            while data := file.read(_BUFFER_BYTES):
                stored, rest = _split(rest + data)
                yield [
                    # The number of the subtransaction is left out.
                    one[:1] + one[1 + _XID :]
                    for one in stored
                    if one[0] != Kind.ORIGIN and one[1 : 1 + _XID] not in undone
                ]
        if rest:
            raise misunderstood("a part of a transaction in progress is missing")


def kinds_of(messages: Sequence[bytes]) -> bytes:
    """Return the first byte of each message, which says what it is."""
    return bytes([message[0] for message in messages])


def _split(data: bytes) -> tuple[list[bytes], bytes]:
    """The messages that are in a part of a file, and what follows the last whole one."""
    found: list[bytes] = []
    place = 0
    while (begin := place + _LENGTH) <= len(data):
        end = begin + int.from_bytes(data[place:begin], "big")
        if end > len(data):
            break
        found.append(data[begin:end])
        place = end
    return found, data[place:]
