"""A PostgreSQL database as a source without its log: each run reads every table as a whole.

Source: `seeds/history-mode.txt` ("History mode and … Teleport Sync differences"). What differs from
the table in the lake is brought, at the time of the run: what changed back and forth between two
runs is not seen. It needs nothing of the server but the right to read, and may read a standby.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from chronolake.errors import SourceError
from chronolake.landing import landed_micros
from chronolake.source.postgres import catalog
from chronolake.source.postgres.check import table_findings, version_of
from chronolake.source.postgres.connection import connected
from chronolake.source.postgres.offset import LogPosition
from chronolake.source.postgres.selection import WantedTables
from chronolake.source.postgres.slot import is_here, slot_of
from chronolake.source.postgres.snapshot import exported_snapshot
from chronolake.source.postgres.snapshot_diff import Look
from chronolake.source.protocol import Failure, Finding, Level, OfferedStream, Sight

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from chronolake.config import PostgresSource, Project
    from chronolake.lake import Lake
    from chronolake.source.protocol import Described, Piece, Position, Reading, Snapshot


def read_whole(
    lake: Lake,
    wanted: WantedTables,
    positions: Mapping[str, Position | None],
    *,
    anew: bool = False,
) -> Iterator[Piece | Snapshot | Reading | Failure]:
    """Bring tables as they are in one snapshot of their database.

    Args:
        lake: the lake whose Spark does the work.
        wanted: the tables.
        positions: where their streams were before; None: nothing has landed.
        anew: whether they are compared with the lake's tables, whatever is known of them.

    Raises:
        SourceError: the database cannot be read at all.
    """
    dsn = wanted.config.dsn
    with connected(dsn) as connection:
        server = catalog.server_of(connection)
        major = connection.info.server_version // 10_000
    with exported_snapshot(dsn) as snapshot:
        for name, told in positions.items():
            try:
                table = wanted.table(name)
                landed = landed_micros(wanted.landed_of(name))
            except SourceError as failure:
                yield Failure(name, failure)
                continue
            position = (
                LogPosition.before_all_of(table, server=server)
                if told is None
                else LogPosition.from_json(told)
            )
            folder = wanted.fingerprints_of(name)
            look = Look(lake.spark, dsn, snapshot, server, major, folder)
            yield from look.at(table, position.not_before(landed), anew=anew)


@dataclass
class ComparedDatabase:
    """The tables of a database, by the difference of snapshots."""

    project: Project
    pipeline: str
    config: PostgresSource

    @cached_property
    def _wanted(self) -> WantedTables:
        return WantedTables(self.project, self.pipeline, self.config)

    def offered(self) -> list[OfferedStream]:
        """The tables that the configuration wants; one that is not there fails by itself."""
        return self._wanted.offered(Sight.SNAPSHOT_DIFF)

    def bring(
        self,
        lake: Lake,
        positions: Mapping[str, Position | None],
        *,
        anew: bool,
    ) -> Iterator[Piece | Snapshot | Reading | Failure]:
        """All tables as they are in one snapshot of the database."""
        self._wanted.forget_fingerprints(but=self._wanted.names)
        yield from read_whole(lake, self._wanted, positions, anew=anew)

    def described(self, names: Collection[str]) -> Iterator[Described | Failure]:
        """The columns of tables, as the catalog has them."""
        yield from self._wanted.described(names)

    def findings(
        self,
        *,
        create: bool,  # noqa: ARG002 - nothing has to be made
        positions: Mapping[str, Position] | None = None,  # noqa: ARG002 - none is in a log
    ) -> list[Finding]:
        """What the database lacks."""
        with connected(self.config.dsn) as connection:
            found = [Finding("server", Level.OK, version_of(connection))]
            slot = slot_of(self.config, self.pipeline)
            if is_here(connection, slot):
                found.append(
                    Finding(
                        f"slot {slot.name}",
                        Level.WARNING,
                        "keeps the server's log, and nothing reads it any more",
                        f"SELECT pg_drop_replication_slot('{slot.name}');",
                    )
                )
            for table in self._wanted.there.values():
                found += table_findings(connection, table)
            return found

    def landed(self, positions: Mapping[str, Position]) -> None:
        """The database keeps nothing for a pipeline."""
