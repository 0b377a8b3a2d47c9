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
from array import array
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
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
#: A file has blocks: how many messages, their lengths, and the messages.
_COUNT: Final = struct.Struct(">I")
_LENGTHS: Final = "I"
#: The bytes of a transaction's number.
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
        mine = messages if end < 0 else messages[:end]
        self._waiting += mine
        self._waiting_bytes += sum(map(len, mine))
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
            lengths = array(_LENGTHS, map(len, self._waiting))
            with self._file(self._block).open("ab") as file:
                file.write(_COUNT.pack(len(lengths)))
                file.write(lengths.tobytes())
                file.writelines(self._waiting)
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
            while head := file.read(_COUNT.size):
                lengths = array(_LENGTHS)
                lengths.frombytes(file.read(_COUNT.unpack(head)[0] * lengths.itemsize))
                data = file.read(sum(lengths))
                places = pairwise(accumulate(lengths, initial=0))
                # The number of the subtransaction is left out.
                yield [
                    data[begin : begin + 1] + data[begin + 1 + _XID : end]
                    for begin, end in places
                    if data[begin] != Kind.ORIGIN
                    and not (undone and data[begin + 1 : begin + 1 + _XID] in undone)
                ]


def kinds_of(messages: Sequence[bytes]) -> bytes:
    """Return the first byte of each message, which says what it is."""
    return bytes([message[0] for message in messages])
