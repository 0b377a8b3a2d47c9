"""The messages of pgoutput that describe: what there is one of, and not one for each row.

Source: PostgreSQL's documentation, "Logical Replication Message Formats" (protocol version 1).
Numbers are big-endian; texts end with a zero byte.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from chronolake.errors import ReplicationProtocolError
from chronolake.source.postgres.encoding import UTF_8, TextCodec

#: The protocol's times count from here: microseconds from 1970 to 2000, UTC.
_EPOCH_MICROS: Final = 946_684_800_000_000
#: The kind of the server's messages that carry the log.
LOG_DATA: Final = ord("w")
#: Their kind, position, the position of the log's end, and the time come before what they carry.
LOG_HEADER_BYTES: Final = 25
#: The prefix of messages that we write to the log.
PREFIX: Final = "chronolake"
_OURS: Final = f"{PREFIX}\0".encode()
#: A message's prefix follows its kind, its flags and its position.
_PREFIX_PLACE: Final = 10


class Kind(IntEnum):
    """What a message is, by its first byte."""

    BEGIN = ord("B")
    COMMIT = ord("C")
    RELATION = ord("R")
    TYPE = ord("Y")
    ORIGIN = ord("O")
    MESSAGE = ord("M")
    INSERT = ord("I")
    UPDATE = ord("U")
    DELETE = ord("D")
    TRUNCATE = ord("T")


class ReplicaIdentity(StrEnum):
    """What a relation's updates and deletes say of the old row."""

    DEFAULT = "d"
    FULL = "f"
    INDEX = "i"
    NOTHING = "n"


@dataclass(frozen=True)
class RelationColumn:
    """A column of a relation.

    Attributes:
        name: its name.
        type_oid: its type, as `pg_type.oid`.
        type_modifier: its length, precision and the like; -1 without.
        is_identity: whether it is part of what tells rows apart.
    """

    name: str
    type_oid: int
    type_modifier: int
    is_identity: bool


@dataclass(frozen=True)
class Relation:
    """A table as it was when the changes after it were made.

    Attributes:
        oid: its identity, which survives renames.
        schema: its schema.
        name: its name.
        identity: what updates and deletes say of the old row.
        columns: in the order in which rows have them.
    """

    oid: int
    schema: str
    name: str
    identity: ReplicaIdentity
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True)
class Transaction:
    """A committed transaction.

    Attributes:
        commit_lsn: where its commit stands in the log; transactions come in this order.
        commit_micros: when it was committed, in microseconds since 1970; perhaps earlier than a
            transaction before.
        xid: its number, of which the lower 32 bits are told.
    """

    commit_lsn: int
    commit_micros: int
    xid: int


@dataclass(frozen=True)
class Truncate:
    """Relations that a transaction emptied.

    Attributes:
        relations: their oids.
        transaction: number of the transaction among those of the batch.
        ordinal: place of the message in its transaction.
    """

    relations: tuple[int, ...]
    transaction: int
    ordinal: int


@dataclass(frozen=True)
class Emitted:
    """A message that we have written to the log (`pg_logical_emit_message`).

    Attributes:
        lsn: where it is in the log.
        text: its content.
    """

    lsn: int
    text: str


class Reader:
    """Reads the fields of one message, one after the other.

    Raises:
        ReplicationProtocolError: by every method: the message ends before the field does.
    """

    def __init__(self, message: bytes, codec: TextCodec = UTF_8) -> None:
        self._message = message
        self._codec = codec
        self._place = 1

    def _number(self, form: struct.Struct) -> int:
        end = self._place + form.size
        if end > len(self._message):
            raise self.wrong("it ends too early")
        (value,) = form.unpack_from(self._message, self._place)
        self._place = end
        return int(value)

    def byte(self) -> int:
        """An unsigned number of 8 bits."""
        return self._number(_UINT8)

    def int16(self) -> int:
        """A signed number of 16 bits."""
        return self._number(_INT16)

    def int32(self) -> int:
        """A signed number of 32 bits."""
        return self._number(_INT32)

    def uint32(self) -> int:
        """An unsigned number of 32 bits: an oid, or the number of a transaction."""
        return self._number(_UINT32)

    def int64(self) -> int:
        """A signed number of 64 bits: a place in the log, or a time."""
        return self._number(_INT64)

    def text(self) -> str:
        """A text, up to its zero byte; an `Undecodable` if it is not valid."""
        end = self._message.find(b"\0", self._place)
        if end < 0:
            raise self.wrong("a text in it does not end")
        found = self._message[self._place : end]
        self._place = end + 1
        return self._codec.text(found)

    def counted_text(self) -> str:
        """A text after the number of its bytes, of 32 bits."""
        end = self.int32() + self._place
        if not self._place <= end <= len(self._message):
            raise self.wrong("it ends too early")
        found = self._message[self._place : end]
        self._place = end
        return self._codec.text(found)

    def end(self) -> None:
        """Expect that nothing follows."""
        if self._place != len(self._message):
            raise self.wrong(f"{len(self._message) - self._place} bytes follow its last field")

    def wrong(self, what: str) -> ReplicationProtocolError:
        """An error about this message."""
        return misunderstood(f"a message {chr(self._message[0])!r} is not as expected: {what}")


_UINT8: Final = struct.Struct(">B")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_UINT32: Final = struct.Struct(">I")
_INT64: Final = struct.Struct(">q")


def misunderstood(what: str) -> ReplicationProtocolError:
    """An error about a server's stream."""
    return ReplicationProtocolError(
        f"The server's stream of changes is not understood: {what}.",
        hint="Nothing of it was applied, and the server keeps it. Check that the slot's plugin is "
        "pgoutput and that the server is PostgreSQL 14 or later; otherwise report it.",
    )


def begin(message: bytes) -> Transaction:
    """Read a `BEGIN`."""
    reader = Reader(message)
    found = Transaction(reader.int64(), reader.int64() + _EPOCH_MICROS, reader.uint32())
    reader.end()
    return found


@dataclass(frozen=True)
class Commit:
    """The end of a transaction.

    Attributes:
        commit_lsn: as its beginning told.
        end_lsn: the position that a reader has when it has read the transaction.
    """

    commit_lsn: int
    end_lsn: int


def commit(message: bytes) -> Commit:
    """Read a `COMMIT`."""
    reader = Reader(message)
    reader.byte()
    found = Commit(reader.int64(), reader.int64())
    reader.int64()
    reader.end()
    return found


def relation(message: bytes, codec: TextCodec = UTF_8) -> Relation:
    """Read a `RELATION`, whose names are in an encoding."""
    reader = Reader(message, codec)
    oid, schema, name, identity = reader.uint32(), reader.text(), reader.text(), reader.byte()
    if chr(identity) not in set(ReplicaIdentity):
        raise reader.wrong(f"{chr(identity)!r} is no replica identity")
    number = reader.int16()
    if number < 0:
        raise reader.wrong(f"{number} columns")
    columns = []
    for _ in range(number):
        flags, column = reader.byte(), reader.text()
        type_oid, modifier = reader.uint32(), reader.int32()
        columns.append(RelationColumn(column, type_oid, modifier, is_identity=bool(flags & 1)))
    reader.end()
    # Types of the system have no schema in the protocol.
    return Relation(
        oid, schema or "pg_catalog", name, ReplicaIdentity(chr(identity)), tuple(columns)
    )


def truncated(message: bytes) -> tuple[int, ...]:
    """The oids of the relations that a `TRUNCATE` names."""
    reader = Reader(message)
    number = reader.int32()
    reader.byte()
    if not 0 <= number <= len(message) // _UINT32.size:
        raise reader.wrong(f"{number} relations")
    found = tuple(reader.uint32() for _ in range(number))
    reader.end()
    return found


def emitted(message: bytes) -> list[Emitted]:
    """Read a `MESSAGE`; empty if an application has emitted it."""
    if not message.startswith(_OURS, _PREFIX_PLACE):
        return []
    reader = Reader(message)
    reader.byte()
    lsn = reader.int64()
    reader.text()
    found = Emitted(lsn, reader.counted_text())
    reader.end()
    return [found]
