"""Change data capture (CDC): the events of a server's binary log, as a replica reads them.

Source: MySQL's documentation of its protocol, "COM_BINLOG_DUMP" and "COM_BINLOG_DUMP_GTID";
MariaDB's documentation, "Replication Protocol". The server sends its log as fast as it is read, and
keeps it for as long as its own settings allow, whether it is read or not.
"""

from __future__ import annotations

import struct
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pymysql

from chronolake.errors import SourceError
from chronolake.source.mysql.binlog import LogEvent
from chronolake.source.mysql.connection import connect, execute, source_error, translate_errors
from chronolake.source.mysql.events import (
    ARTIFICIAL,
    HEADER,
    TYPE_PLACE,
    EventType,
    decode_rotate,
)
from chronolake.source.mysql.fields import log_error
from chronolake.source.mysql.gtids import MysqlGtids
from chronolake.source.mysql.offset import LogPlace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chronolake.source.mysql.connection import Server

#: Decoding is fastest in batches of some megabytes.
BATCH_BYTES: Final = 4 * 2**20
_DUMP, _DUMP_GTIDS = 0x12, 0x1E
#: The server ends at the end of its log instead of waiting.
_NO_WAIT, _BY_GTIDS = 0x01, 0x04
_FIRST: Final = 4
#: A replica with GTIDs, in MariaDB.
_CAPABILITY: Final = 4
_HEARTBEAT_NANOS: Final = 30_000_000_000
_CHECKSUM: Final = struct.Struct("<I")
_WRAP: Final = 2**32
#: The server does not have the log any more that is asked for.
_PURGED: Final = frozenset({1236, 1373, 4007})


class LogPurgedError(SourceError):
    """The server has removed the part of its log from which a run would continue."""


@dataclass
class LogStream:
    """The events of a server's log from some place on.

    Attributes:
        connection: the connection; it cannot be used for anything else.
        place: where the next event begins.
        upto: the place where the log ended when the run began.
    """

    connection: pymysql.Connection[Any]
    place: LogPlace
    upto: LogPlace
    _has_checksums: bool | None = field(default=None, init=False)

    def batches(self, batch_bytes: int | None = None) -> Iterator[list[LogEvent]]:
        """Read the events before `upto`, once.

        Args:
            batch_bytes: the minimum size of a batch in bytes; `BATCH_BYTES` by default.

        Yields:
            Batches of events; a transaction may continue in the next batch.

        Raises:
            SourceError: the log cannot be read any more.
        """
        limit = batch_bytes or BATCH_BYTES
        batch: list[LogEvent] = []
        size = 0
        end = self.upto.number
        with translate_errors():
            for event in self._events():
                if event.begin >= end:
                    break
                batch.append(event)
                size += len(event.data)
                if size >= limit:
                    yield batch
                    batch, size = [], 0
        if batch:
            yield batch

    def transaction(self) -> Iterator[bytes]:
        """Read the events of the first transaction."""
        with translate_errors():
            for event in self._events():
                yield event.data
                if event.data[TYPE_PLACE] in {EventType.XA_PREPARE, EventType.XID}:
                    return

    def place_of(self, number: int) -> LogPlace:
        """Return the place with a number (`LogPlace.number`)."""
        return self.place.with_number(number)

    def _events(self) -> Iterator[LogEvent]:
        while True:
            try:
                packet = self.connection._read_packet()  # noqa: SLF001 - no query has this result
            except pymysql.Error as failure:
                raise _error_of(failure) from failure
            data = packet._data  # noqa: SLF001
            if data[0] == 0xFE and len(data) < 9:  # noqa: PLR2004 - the end of a result
                return
            found = self._event(data[1:])
            if found is not None:
                yield found

    def _event(self, data: bytes) -> LogEvent | None:
        """Return an event with its place, or None if it is not stored in the log."""
        kind, size = data[TYPE_PLACE], len(data)
        content, checksum = data[: -_CHECKSUM.size], data[-_CHECKSUM.size :]
        if kind == EventType.FORMAT_DESCRIPTION:
            # The algorithm precedes the checksum, which this event has in any case.
            self._has_checksums = content[-1] == 1
            data = content
        elif self._has_checksums is not False:
            is_intact = _CHECKSUM.pack(zlib.crc32(content)) == checksum
            if self._has_checksums and not is_intact:
                raise log_error("an event does not match its checksum")
            # Before the description of the log, it is not known whether there are checksums.
            data = content if is_intact else data
        *_, position, flags = HEADER.unpack_from(data)
        if kind == EventType.ROTATE:
            self.place = LogPlace(*decode_rotate(data))
            return None
        begin = self.place
        if flags & ARTIFICIAL or not position:
            return LogEvent(data, begin.number, begin.number)
        # Positions in events have 32 bits.
        end = begin.position + size
        end += (position - end) % _WRAP
        self.place = LogPlace(begin.file, end)
        return LogEvent(data, end - size + begin.number - begin.position, self.place.number)


def _error_of(failure: pymysql.Error) -> SourceError:
    number = failure.args[0] if failure.args else 0
    if number not in _PURGED:
        return source_error(failure)
    return LogPurgedError(
        f"The server has removed a part of its binary log that was not read yet: {failure.args[1]}",
        hint="Let it keep its log for longer (binlog_expire_logs_seconds), and run `chronolake "
        "resync` to read the current rows.",
    )


@contextmanager
def open_stream(
    dsn: str, server: Server, *, server_id: int, begins: LogPlace, gtids: str | None, upto: LogPlace
) -> Iterator[LogStream]:
    """Read a server's log while the block runs.

    Args:
        dsn: the server's address.
        server: the server.
        server_id: the number of this replica, which no other replica may have.
        begins: the place where to begin; it does not matter with `gtids`.
        gtids: the transactions that are not sent; None: the server does not use GTIDs, or the log
            of the same server continues.
        upto: only transactions before this place are read.

    Raises:
        SourceError: the server refuses.
        LogPurgedError: from the stream, if the server does not have this part of its log any more.
    """
    with connect(dsn) as connection:
        execute(connection, "SET @master_binlog_checksum = @@global.binlog_checksum")
        execute(connection, f"SET @master_heartbeat_period = {_HEARTBEAT_NANOS}")
        if server.is_mariadb:
            execute(connection, f"SET @mariadb_slave_capability = {_CAPABILITY}")
        if gtids is None:
            command = _dump(begins.file, begins.position, server_id)
        elif server.is_mariadb:
            execute(connection, "SET @slave_connect_state = %s", (gtids,))
            execute(connection, "SET @slave_gtid_strict_mode = 1")
            execute(connection, "SET @slave_gtid_ignore_duplicates = 1")
            command = _dump("", _FIRST, server_id)
        else:
            command = _dump_gtids(gtids, server_id)
        with translate_errors():
            connection._write_bytes(struct.pack("<i", len(command)) + command)  # noqa: SLF001
            connection._next_seq_id = 1  # noqa: SLF001
        yield LogStream(connection, begins, upto)


def _dump(file: str, position: int, server_id: int) -> bytes:
    return struct.pack("<BIHI", _DUMP, position, _NO_WAIT, server_id) + file.encode()


def _dump_gtids(gtids: str, server_id: int) -> bytes:
    encoded = MysqlGtids.of(gtids).encoded()
    head = struct.pack("<BHII", _DUMP_GTIDS, _NO_WAIT | _BY_GTIDS, server_id, 0)
    return head + struct.pack("<QI", _FIRST, len(encoded)) + encoded


@dataclass(frozen=True)
class LogEnd:
    """The end of a server's log.

    Attributes:
        place: where the next transaction will begin.
        gtids: all transactions that the server has committed; None if it does not use GTIDs.
        micros: the server's time, in microseconds since 1970.
    """

    place: LogPlace
    gtids: str | None
    micros: int

    @classmethod
    def of(cls, connection: pymysql.Connection[Any], server: Server) -> LogEnd:
        """Return the present end of a server's log.

        Raises:
            SourceError: the server writes no log, or refuses.
        """
        rows = log_status(connection, server)
        if not rows:
            raise SourceError(
                "The server writes no binary log.",
                hint="Set log_bin in its configuration, and restart it. `chronolake check` lists "
                "everything that is needed.",
            )
        file, position = rows[0][:2]
        place = LogPlace(str(file), int(position))
        micros = micros_of(connection)
        if server.is_mariadb:
            ((gtids,),) = execute(
                connection, "SELECT BINLOG_GTID_POS(%s, %s)", (file, int(position))
            )
            # All domains of the log, also those of which the file contains nothing.
            return cls(place, str(gtids) if gtids else None, micros)
        gtids = str(rows[0][4]).replace("\n", "")
        ((mode,),) = execute(connection, "SELECT @@global.gtid_mode")
        return cls(place, gtids if mode == "ON" else None, micros)


def log_status(connection: pymysql.Connection[Any], server: Server) -> list[tuple[Any, ...]]:
    """Return the status of a server's log: a row, or none if it writes no log.

    Its columns are the file, the position, and the databases that are or are not logged.
    """
    has_new_name = not server.is_mariadb and server.numbers >= (8, 2)
    return list(
        execute(connection, "SHOW BINARY LOG STATUS" if has_new_name else "SHOW MASTER STATUS")
    )


def micros_of(connection: pymysql.Connection[Any]) -> int:
    """Return a server's time, in microseconds since 1970."""
    ((now,),) = execute(connection, "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1e6 AS SIGNED)")
    return int(now)
