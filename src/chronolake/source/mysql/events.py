"""Events of the binary log that delimit and describe transactions.

Source: MySQL's source documentation, "Replication Event Types"; MariaDB's documentation,
"Replication Protocol". Events here have no checksum.
"""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final
from uuid import UUID

import pyarrow as pa

from chronolake.errors import SourceError
from chronolake.source.mysql.fields import FieldReader, log_error
from chronolake.source.mysql.statements import Statement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chronolake.source.mysql.values import ToUtf8


class EventType(IntEnum):
    """The type of an event."""

    QUERY = 2
    ROTATE = 4
    FORMAT_DESCRIPTION = 15
    XID = 16
    EXECUTE_LOAD_QUERY = 18
    TABLE_MAP = 19
    WRITE_ROWS_V1 = 23
    UPDATE_ROWS_V1 = 24
    DELETE_ROWS_V1 = 25
    INCIDENT = 26
    WRITE_ROWS = 30
    UPDATE_ROWS = 31
    DELETE_ROWS = 32
    GTID = 33
    ANONYMOUS_GTID = 34
    XA_PREPARE = 38
    PARTIAL_UPDATE_ROWS = 39
    TRANSACTION_PAYLOAD = 40
    GTID_TAGGED = 42
    MARIADB_GTID = 162
    QUERY_COMPRESSED = 165
    WRITE_ROWS_COMPRESSED_V1 = 166
    UPDATE_ROWS_COMPRESSED_V1 = 167
    DELETE_ROWS_COMPRESSED_V1 = 168
    WRITE_ROWS_COMPRESSED = 169
    UPDATE_ROWS_COMPRESSED = 170
    DELETE_ROWS_COMPRESSED = 171


#: The time, the type, the server, the size, the end and the flags of an event.
HEADER: Final = struct.Struct("<IBIIIH")
#: The place of an event's type.
TYPE_PLACE: Final = 4
#: The flag of events that are not in the log, and have no position.
ARTIFICIAL: Final = 0x20
_MICROS: Final = 1_000_000
#: Times of commits have 55 bits, and a flag for a second time.
_TIME_BYTES: Final = 7
_HAS_ORIGINAL_TIME: Final = 1 << 55
#: Flags of MariaDB's GTID events.
_STANDALONE, _GROUP_COMMIT, _PREPARED_XA = 1, 2, 64
#: Flags of the SQL mode.
_ANSI_QUOTES: Final = 1 << 2
_NO_BACKSLASH_ESCAPES: Final = 1 << 20


@dataclass(frozen=True)
class TransactionBegin:
    """The begin of a transaction.

    Attributes:
        gtid: its identifier; None if the server does not use them.
        commit_micros: the time of its commit on the server where it was committed first, in
            microseconds since 1970; a whole second in MariaDB.
        is_standalone: whether it ends with the next statement.
        prepared_xid: the XA transaction of which it is the first part, in MariaDB.
    """

    gtid: str | None
    commit_micros: int
    is_standalone: bool = False
    prepared_xid: str | None = None


def decode_begin(event: bytes) -> TransactionBegin:
    """Decode the event with which a transaction begins, of any server.

    Raises:
        SourceError: it is not valid.
    """
    seconds, kind, server, *_ = HEADER.unpack_from(event)
    reader = FieldReader(event, HEADER.size)
    match kind:
        case EventType.MARIADB_GTID:
            number, domain, flags = reader.unsigned(8), reader.unsigned(4), reader.byte()
            return TransactionBegin(
                f"{domain}-{server}-{number}",
                seconds * _MICROS,
                is_standalone=bool(flags & _STANDALONE),
                prepared_xid=_xid(reader, flags) if flags & _PREPARED_XA else None,
            )
        case EventType.GTID_TAGGED:
            return _tagged(reader, seconds)
    reader.byte()
    server_id, number = UUID(bytes=reader.take(16)), reader.unsigned(8)
    gtid = None if kind == EventType.ANONYMOUS_GTID else f"{server_id}:{number}"
    micros = seconds * _MICROS
    if not reader.is_at_end:
        # The logical clock.
        reader.take(1 + 16)
        if not reader.is_at_end:
            micros = reader.unsigned(_TIME_BYTES)
            if micros & _HAS_ORIGINAL_TIME:
                micros = reader.unsigned(_TIME_BYTES)
    return TransactionBegin(gtid, micros)


def _xid(reader: FieldReader, flags: int) -> str:
    """Return an identifier of MariaDB's GTID event, as statements write it."""
    if flags & _GROUP_COMMIT:
        reader.take(8)
    kind, size, rest = reader.unsigned(4), reader.byte(), reader.byte()
    return f"X'{reader.take(size).hex()}',X'{reader.take(rest).hex()}',{kind}"


#: Numbers of the fields of a tagged GTID event.
_SERVER, _NUMBER, _TAG, _IMMEDIATE, _ORIGINAL = 1, 2, 3, 6, 7
_LAST_FIELD: Final = 7


def _tagged(reader: FieldReader, seconds: int) -> TransactionBegin:
    """Decode a GTID event with a tag.

    Source: MySQL's source documentation, "Binary serialization library".
    """
    for _ in range(3):
        # The version of the format, the size, and the last field that must be understood.
        _varlen(reader)
    server, number, tag, times = b"", 0, "", dict[int, int]()
    while not reader.is_at_end:
        field = _varlen(reader)
        if field == _SERVER:
            server = bytes(_varlen(reader) for _ in range(16))
        elif field == _NUMBER:
            number = _signed(_varlen(reader))
        elif field == _TAG:
            tag = reader.take(_varlen(reader)).decode()
        elif field <= _LAST_FIELD:
            times[field] = _varlen(reader)
        else:
            break
    micros = times.get(_ORIGINAL) or times.get(_IMMEDIATE) or seconds * _MICROS
    return TransactionBegin(f"{UUID(bytes=server)}:{tag}:{number}", micros)


def _varlen(reader: FieldReader) -> int:
    """Read a number whose first byte contains, as its trailing ones, how many bytes follow."""
    first = reader.byte()
    # Eight ones are followed by eight bytes.
    extra = (~first & (first + 1)).bit_length() - 1
    value = int.from_bytes(bytes([first]) + reader.take(extra), "little")
    return value >> min(extra + 1, 8)


def _signed(value: int) -> int:
    return -(value >> 1) - 1 if value & 1 else value >> 1


def decode_rotate(event: bytes) -> tuple[str, int]:
    """Return the file and the position where the log continues."""
    reader = FieldReader(event, HEADER.size)
    place = reader.unsigned(8)
    return reader.rest().decode(), place


def decode_query(event: bytes, to_utf8: ToUtf8) -> tuple[str, Statement | None]:
    """Return the text of a statement, and its parts unless it only delimits transactions.

    Args:
        event: the event.
        to_utf8: converts binary values in the character set of a collation to texts.
    """
    reader = FieldReader(event, HEADER.size)
    reader.take(8)
    size = reader.byte()
    reader.take(2)
    status = FieldReader(reader.take(reader.unsigned(2)))
    if event[TYPE_PLACE] == EventType.EXECUTE_LOAD_QUERY:
        reader.take(13)
    schema = reader.take(size).decode(errors="replace")
    reader.byte()
    query = reader.rest()
    if event[TYPE_PLACE] == EventType.QUERY_COMPRESSED:
        query = decompressed(query)
    if query in {b"BEGIN", b"COMMIT", b"ROLLBACK"}:
        return query.decode(), None
    session = _Session.of(status)
    text = query.decode(errors="replace")
    if session.collation is not None and not query.isascii():
        # Names and texts are as the client has sent them; a text may also have any bytes.
        with suppress(SourceError):
            (text,) = to_utf8(session.collation, pa.array([query], pa.binary())).to_pylist()
    statement = Statement.of(
        text,
        schema,
        has_ansi_quotes=bool(session.mode & _ANSI_QUOTES),
        has_escapes=not session.mode & _NO_BACKSLASH_ESCAPES,
    )
    return text, statement


class _Status(IntEnum):
    """Numbers of a statement's status variables."""

    FLAGS = 0
    SQL_MODE = 1
    INCREMENTS = 3
    CHARACTER_SET = 4
    CATALOG = 6


@dataclass(frozen=True)
class _Session:
    """The session that ran a statement.

    Attributes:
        mode: its SQL mode.
        collation: the number of a collation of its client's character set; None if not known.
    """

    mode: int = 0
    collation: int | None = None

    @classmethod
    def of(cls, status: FieldReader) -> _Session:
        """Return what the status variables of an event describe, which have an order."""
        mode = 0
        while not status.is_at_end:
            match status.byte():
                case _Status.FLAGS | _Status.INCREMENTS:
                    status.take(4)
                case _Status.SQL_MODE:
                    mode = status.unsigned(8)
                case _Status.CATALOG:
                    status.take(status.byte())
                case _Status.CHARACTER_SET:
                    return cls(mode, status.unsigned(2))
                case _:
                    break
        return cls(mode)


def decompressed(data: bytes) -> bytes:
    """Return the content of a part of an event that MariaDB has compressed."""
    width = data[0] & 7
    return zlib.decompress(data[1 + width :])


#: Fields of a compressed transaction.
_END_OF_FIELDS, _COMPRESSION, _SIZE = 0, 2, 3
_ZSTD: Final = 0


def payload_events(event: bytes) -> Iterator[bytes]:
    """Yield the events of a compressed transaction.

    Raises:
        SourceError: it is compressed in another way than MySQL documents.
    """
    reader = FieldReader(event, HEADER.size)
    compression, size = _ZSTD, 0
    while (field := reader.number()) != _END_OF_FIELDS:
        content = FieldReader(reader.text())
        if field == _COMPRESSION:
            compression = content.number()
        elif field == _SIZE:
            size = content.number()
    data = reader.rest()
    if compression == _ZSTD:
        data = pa.decompress(data, decompressed_size=size, codec="zstd").to_pybytes()
    place = 0
    while place < len(data):
        end = place + HEADER.unpack_from(data, place)[3]
        if not place + HEADER.size <= end <= len(data):
            raise log_error("a compressed transaction is damaged")
        yield data[place:end]
        place = end
