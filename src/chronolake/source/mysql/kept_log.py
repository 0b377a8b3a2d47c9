"""What a server still has of its log, of which it removes the oldest files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chronolake.source.mysql.connection import execute
from chronolake.source.mysql.gtids import MysqlGtids
from chronolake.source.mysql.offset import parse_gtids

if TYPE_CHECKING:
    import pymysql

    from chronolake.source.mysql.connection import Server
    from chronolake.source.mysql.log_stream import LogEnd
    from chronolake.source.mysql.offset import LogOffset


def log_files(connection: pymysql.Connection[Any]) -> frozenset[str]:
    """Return the names of the files of a server's log.

    Raises:
        SourceError: the server does not respond, or refuses.
    """
    return frozenset(str(name) for name, *_ in execute(connection, "SHOW BINARY LOGS"))


@dataclass(frozen=True)
class KeptLog:
    """What a server still has of its log.

    Attributes:
        server: the server.
        files: the names of its files.
        purged: the transactions that were removed; None if that is not known.
        end: the end of the log.
    """

    server: Server
    files: frozenset[str]
    purged: MysqlGtids | None
    end: LogEnd

    @classmethod
    def of(cls, connection: pymysql.Connection[Any], server: Server, end: LogEnd) -> KeptLog:
        """Return what a server has of its log.

        Raises:
            SourceError: the server does not respond, or refuses.
        """
        files = log_files(connection)
        if server.is_mariadb or end.gtids is None:
            return cls(server, files, None, end)
        ((purged,),) = execute(connection, "SELECT @@global.gtid_purged")
        return cls(server, files, MysqlGtids.of(str(purged).replace("\n", "")), end)

    def continues_at(self, position: LogOffset) -> bool:
        """Return whether everything after an offset is there, as far as that is known."""
        if self.purged is not None and position.gtids is not None:
            return self.purged.is_subset_of(MysqlGtids.of(position.gtids))
        if position.server != self.server.identity or position.place.file in self.files:
            return True
        if position.gtids is None or self.end.gtids is None:
            return False
        is_mariadb = self.server.is_mariadb
        read = parse_gtids(position.gtids, is_mariadb=is_mariadb)
        return read == parse_gtids(self.end.gtids, is_mariadb=is_mariadb)

    def has_evidence_of(self, position: LogOffset) -> bool:
        """Return whether the last transaction before an offset is there, as far as is known."""
        evidence = position.evidence
        if evidence is None:
            return False
        if self.purged is not None and evidence.gtid is not None:
            return evidence.gtid not in self.purged
        return position.server != self.server.identity or evidence.place.file in self.files
