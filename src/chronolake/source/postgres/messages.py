"""Decoders of single pgoutput messages: those that describe transactions and relations.

Source: PostgreSQL's documentation, "Logical Replication Message Formats" (protocol version 1).
Numbers are big-endian; texts end with a zero byte.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import Final

from chronolake.errors import ReplicationProtocolError
from chronolake.source.postgres.encoding import UTF_8, TextCodec

#: The protocol's epoch: microseconds from 1970 to 2000, UTC.
_EPOCH_MICROS: Final = 946_684_800_000_000
#: The type `text`.
TEXT_OID: Final = 25
#: The kind of the server's messages that carry the log.
LOG_DATA: Final = ord("w")
#: The message's kind, its LSN, the LSN of the log's end, and the time precede the data.
LOG_HEADER_BYTES: Final = 25
#: The prefix of messages that Chronolake writes to the log.
PREFIX: Final = "chronolake"
_OURS: Final = f"{PREFIX}\0".encode()
#: A message's prefix follows its kind, its flags and its LSN.
_PREFIX_PLACE: Final = 10


class Kind(IntEnum):
    """The kind of a message: its first byte."""

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
    """The replica identity of a relation: which values of old rows updates and deletes contain."""

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
        type_modifier: its length, precision or similar; -1 without.
        is_identity: whether it belongs to the replica identity.
    """

    name: str
    type_oid: int
    type_modifier: int
    is_identity: bool

    def as_text(self) -> RelationColumn:
        """Return the column with texts instead of its values."""
        return replace(self, type_oid=TEXT_OID, type_modifier=-1)


@dataclass(frozen=True)
class Relation:
    """A table's description that applies to the changes after it.

    Attributes:
        oid: its identity, which survives renames.
        schema: its schema.
        name: its name.
        identity: its replica identity.
        columns: its columns, in the order of the values in rows.
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
        commit_lsn: the LSN of its commit; transactions are ordered by it.
        commit_micros: its commit time in microseconds since 1970, which may be earlier than that of
            a preceding transaction.
        xid: the lower 32 bits of its number.
    """

    commit_lsn: int
    commit_micros: int
    xid: int


@dataclass(frozen=True)
class Truncate:
    """Relations that a transaction truncated.

    Attributes:
        relations: their oids.
        transaction: index of the transaction in the batch.
        ordinal: position of the message in its transaction.
    """

    relations: tuple[int, ...]
    transaction: int
    ordinal: int


@dataclass(frozen=True)
class LogicalMessage:
    """A message that Chronolake has written to the log (`pg_logical_emit_message`).

    Attributes:
        lsn: its LSN.
        text: its content.
    """

    lsn: int
    text: str


class Reader:
    """A reader of the fields of one message, in their order.

    Raises:
        ReplicationProtocolError: from every method, if the message ends before the field does.
    """

    def __init__(self, message: bytes, codec: TextCodec = UTF_8) -> None:
        self._message = message
        self._codec = codec
        self._position = 1

    def _number(self, form: struct.Struct) -> int:
        end = self._position + form.size
        if end > len(self._message):
            raise self.error("it ends too early")
        (value,) = form.unpack_from(self._message, self._position)
        self._position = end
        return int(value)

    def byte(self) -> int:
        """Read an unsigned 8-bit integer."""
        return self._number(_UINT8)

    def int16(self) -> int:
        """Read a signed 16-bit integer."""
        return self._number(_INT16)

    def int32(self) -> int:
        """Read a signed 32-bit integer."""
        return self._number(_INT32)

    def uint32(self) -> int:
        """Read an unsigned 32-bit integer: an oid, or a transaction's number."""
        return self._number(_UINT32)

    def int64(self) -> int:
        """Read a signed 64-bit integer: an LSN, or a time."""
        return self._number(_INT64)

    def text(self) -> str:
        """Read a text up to its zero byte; return an `Undecodable` if it is not valid."""
        end = self._message.find(b"\0", self._position)
        if end < 0:
            raise self.error("a text has no end")
        value = self._message[self._position : end]
        self._position = end + 1
        return self._codec.text(value)

    def counted_text(self) -> str:
        """Read a text after its length in bytes, a 32-bit integer."""
        end = self.int32() + self._position
        if not self._position <= end <= len(self._message):
            raise self.error("it ends too early")
        value = self._message[self._position : end]
        self._position = end
        return self._codec.text(value)

    def end(self) -> None:
        """Raise an error if bytes follow."""
        if self._position != len(self._message):
            raise self.error(f"{len(self._message) - self._position} bytes follow the last field")

    def error(self, what: str) -> ReplicationProtocolError:
        """Return an error about this message."""
        return protocol_error(
            f"a message of the kind {chr(self._message[0])!r} is malformed: {what}"
        )


_UINT8: Final = struct.Struct(">B")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_UINT32: Final = struct.Struct(">I")
_INT64: Final = struct.Struct(">q")


def protocol_error(what: str) -> ReplicationProtocolError:
    """Return an error about a server's stream."""
    return ReplicationProtocolError(
        f"The server's replication stream is not valid: {what}.",
        hint="Nothing of it was applied, and the server still retains it. Check that the "
        "slot's plugin is pgoutput and that the server runs PostgreSQL 14 or later; if "
        "so, report a bug.",
    )


def decode_begin(message: bytes) -> Transaction:
    """Decode a `BEGIN` message."""
    reader = Reader(message)
    transaction = Transaction(reader.int64(), reader.int64() + _EPOCH_MICROS, reader.uint32())
    reader.end()
    return transaction


@dataclass(frozen=True)
class Commit:
    """The end of a transaction.

    Attributes:
        commit_lsn: the same as in its `BEGIN`.
        end_lsn: the LSN after the transaction.
    """

    commit_lsn: int
    end_lsn: int


def decode_commit(message: bytes) -> Commit:
    """Decode a `COMMIT` message."""
    reader = Reader(message)
    reader.byte()
    commit = Commit(reader.int64(), reader.int64())
    reader.int64()
    reader.end()
    return commit


def decode_relation(message: bytes, codec: TextCodec = UTF_8) -> Relation:
    """Decode a `RELATION` message, with names in the codec's encoding."""
    reader = Reader(message, codec)
    oid, schema, name, identity = reader.uint32(), reader.text(), reader.text(), reader.byte()
    if chr(identity) not in set(ReplicaIdentity):
        raise reader.error(f"{chr(identity)!r} is not a replica identity")
    number = reader.int16()
    if number < 0:
        raise reader.error(f"it has {number} columns")
    columns = []
    for _ in range(number):
        flags, column = reader.byte(), reader.text()
        type_oid, modifier = reader.uint32(), reader.int32()
        columns.append(RelationColumn(column, type_oid, modifier, is_identity=bool(flags & 1)))
    reader.end()
    # The protocol leaves out the schema of system types.
    return Relation(
        oid, schema or "pg_catalog", name, ReplicaIdentity(chr(identity)), tuple(columns)
    )


def decode_truncate(message: bytes) -> tuple[int, ...]:
    """Return the oids of the relations in a `TRUNCATE` message."""
    reader = Reader(message)
    number = reader.int32()
    reader.byte()
    if not 0 <= number <= len(message) // _UINT32.size:
        raise reader.error(f"it has {number} relations")
    oids = tuple(reader.uint32() for _ in range(number))
    reader.end()
    return oids


def decode_emitted(message: bytes) -> list[LogicalMessage]:
    """Decode a `MESSAGE`; return nothing if an application has emitted it."""
    if not message.startswith(_OURS, _PREFIX_PLACE):
        return []
    reader = Reader(message)
    reader.byte()
    lsn = reader.int64()
    reader.text()
    emitted = LogicalMessage(lsn, reader.counted_text())
    reader.end()
    return [emitted]
