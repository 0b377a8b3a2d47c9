"""One pass through a server's binary log for all tables of a pipeline that are behind.

It begins at the earliest offset of the tables, with the transaction that each offset is recognized
by (`Evidence`). XA transactions that were prepared before are read again when they are committed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from chronolake.cancellation import raise_if_cancelled
from chronolake.errors import SourceError
from chronolake.failpoints import reach
from chronolake.source.mysql.binlog import Decoder
from chronolake.source.mysql.character_sets import CharacterSets
from chronolake.source.mysql.connection import connect
from chronolake.source.mysql.log_stream import LogEnd, LogStream, open_stream
from chronolake.source.mysql.offset import Evidence, LogOffset, LogPlace, parse_gtids
from chronolake.source.mysql.table_replication import ReadEnd, TableReplication

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from chronolake.source.mysql.binlog import LogEvent
    from chronolake.source.mysql.connection import Server
    from chronolake.source.mysql.gtids import MariadbGtids, MysqlGtids
    from chronolake.source.mysql.statements import Statement


@dataclass(frozen=True)
class LogBegin:
    """Where a pass through the log begins.

    Attributes:
        place: the place; it does not matter with `gtids`.
        gtids: the transactions that are not sent.
        prepared: the XA transactions that were prepared before.
    """

    place: LogPlace
    gtids: str | None
    prepared: Mapping[str, LogPlace]

    @classmethod
    def of(cls, positions: Sequence[LogOffset], server: Server) -> LogBegin:
        """Return where all of some offsets are still to be read, with the evidence of each."""
        prepared: dict[str, LogPlace] = {}
        for position in positions:
            prepared |= position.prepared
        places = [position.place for position in positions]
        places += [
            position.evidence.place
            for position in positions
            if position.evidence is not None and position.server == server.identity
        ]
        place = min(places, key=lambda found: found.number)
        sets = [
            _before_evidence(position, server)
            for position in positions
            if position.gtids is not None
        ]
        if len(sets) < len(positions):
            return cls(place, None, prepared)
        common = sets[0]
        for other in sets[1:]:
            common = common.intersection(other)  # type: ignore[arg-type]
        return cls(place, str(common), prepared)


def _before_evidence(position: LogOffset, server: Server) -> MysqlGtids | MariadbGtids:
    """Return the transactions that need not be read again."""
    before = None if position.evidence is None else position.evidence.before
    text = position.gtids if before is None else before
    return parse_gtids(text or "", is_mariadb=server.is_mariadb)


@dataclass
class LogStep:
    """What a pass through the log has reached."""

    end: ReadEnd
    is_between_transactions: bool


@dataclass
class LogReader:
    """Reads a server's log for some tables.

    Attributes:
        dsn: the server's address.
        server: the server.
        server_id: the number of this replica.
        folder: the folder of spools.
    """

    dsn: str = field(repr=False)
    server: Server
    server_id: int
    folder: Path

    def read(
        self, begins: LogBegin, end: LogEnd, replications: Sequence[TableReplication]
    ) -> Iterator[LogStep]:
        """Read the log, and add its changes to tables.

        Yields:
            What was reached after each batch, and the end of the log.
        """
        prepared = _Prepared(self, dict(begins.prepared))
        with (
            connect(self.dsn) as connection,
            self.open(begins.place, end.place, gtids=begins.gtids) as stream,
        ):
            prepared.stream = stream

            def is_read(schema: str, name: str) -> bool:
                return any(replication.needs(schema, name) for replication in replications)

            sets = CharacterSets(connection)
            decoder = Decoder(self.server.is_mariadb, is_read, sets.to_utf8, prepared)
            gtids: list[str] = []
            reached, evidence = begins.place, None
            for batch in stream.batches():
                raise_if_cancelled()
                decoded = decoder.decode(batch)
                reach("read.log-batch")
                for replication in replications:
                    replication.add(decoded)
                gtids += [gtid for each in decoded.transactions if (gtid := each.gtid) is not None]
                if decoded.ended is None:
                    continue
                last = decoded.ended.transaction
                reached = stream.place_of(decoded.ended.end)
                evidence = Evidence(last.gtid, stream.place_of(last.commit_lsn), last.commit_micros)
                read = gtids if decoder.is_between_transactions else gtids[:-1]
                yield LogStep(
                    ReadEnd(reached, tuple(read), evidence, dict(prepared.places)),
                    decoder.is_between_transactions,
                )
            if decoder.is_between_transactions:
                # The file of the last transaction may be removed before the next one is written.
                done = ReadEnd(end.place, tuple(gtids), evidence, dict(prepared.places))
                yield LogStep(done, is_between_transactions=True)

    def statements(self, begin: LogEnd, end: LogEnd) -> list[Statement]:
        """Return the statements between two ends of the log of this server."""
        found: list[Statement] = []
        if begin.place == end.place:
            return found
        with (
            connect(self.dsn) as connection,
            self.open(begin.place, end.place) as stream,
        ):
            to_utf8 = CharacterSets(connection).to_utf8
            decoder = Decoder(self.server.is_mariadb, _reads_nothing, to_utf8, _Ignored())
            for batch in stream.batches():
                found += [logged.statement for logged in decoder.decode(batch).statements]
        return found

    def open(
        self,
        begins: LogPlace,
        upto: LogPlace,
        *,
        gtids: str | None = None,
        is_second: bool = False,
    ) -> AbstractContextManager[LogStream]:
        """Open the server's log (`open_stream`).

        Args:
            begins, upto, gtids: the part of the log.
            is_second: whether the log is open already, and is read again beside that.
        """
        return open_stream(
            self.dsn,
            self.server,
            server_id=self.server_id + is_second,
            begins=begins,
            gtids=gtids,
            upto=upto,
        )


def _reads_nothing(schema: str, table: str) -> bool:
    del schema, table
    return False


class _Ignored:
    """Prepared transactions whose rows are not read."""

    def note(self, xid: str, begin: LogEvent) -> None:
        """Do nothing."""

    def end(self, xid: str, *, is_committed: bool) -> Iterable[bytes]:
        """Return no events."""
        del xid, is_committed
        return ()


@dataclass
class _Prepared:
    """The XA transactions that were prepared and not ended yet."""

    reader: LogReader
    places: dict[str, LogPlace]
    stream: LogStream | None = field(default=None, repr=False)

    def note(self, xid: str, begin: LogEvent) -> None:
        """Note where a prepared transaction begins."""
        if self.stream is not None:
            self.places[xid] = self.stream.place_of(begin.begin)

    def end(self, xid: str, *, is_committed: bool) -> Iterable[bytes]:
        """Forget a transaction that has ended, and return the events of one that is committed."""
        place = self.places.pop(xid, None)
        if not is_committed:
            return ()
        if place is None:
            raise SourceError(
                f"The XA transaction {xid} was prepared before the log was read, and is committed "
                "now.",
                hint="Run `chronolake resync` to read the current rows.",
            )
        return self._events_at(place)

    def _events_at(self, place: LogPlace) -> Iterator[bytes]:
        end = replace(place, position=place.position + 2**34)
        with self.reader.open(place, end, is_second=True) as stream:
            yield from stream.transaction()


def is_at(position: LogOffset, end: LogEnd, server: Server) -> bool:
    """Return whether an offset is at the end of the log."""
    if position.server != server.identity or position.place != end.place:
        return False
    if position.gtids is None or end.gtids is None:
        return position.gtids == end.gtids
    read = parse_gtids(position.gtids, is_mariadb=server.is_mariadb)
    return read == parse_gtids(end.gtids, is_mariadb=server.is_mariadb)


def is_subset(one: MysqlGtids | MariadbGtids, other: MysqlGtids | MariadbGtids) -> bool:
    """Return whether a set has all transactions of another one of the same product."""
    return one.is_subset_of(other)  # type: ignore[arg-type]
