"""The tables of a SQL Server database that a pipeline brings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chronolake.config import SqlServerMethod
from chronolake.source.jdbc import JdbcReader, each_table, offered_by
from chronolake.source.protocol import Sight, raw_folder
from chronolake.source.sqlserver.cdc import CapturedTable
from chronolake.source.sqlserver.change_tracking import TrackedTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from chronolake.config import Project, SqlServerSource
    from chronolake.lake import Lake
    from chronolake.source.jdbc import Reader
    from chronolake.source.protocol import Failure, OfferedStream, Piece, Position, Snapshot


@dataclass(frozen=True)
class SqlServerDatabase:
    """The tables of a database, by change tracking or change data capture.

    Attributes:
        reader: what reads the database; the configuration's address if there is none.
    """

    project: Project
    pipeline: str
    config: SqlServerSource
    reader: Reader | None = None

    @property
    def _is_captured(self) -> bool:
        return self.config.method is SqlServerMethod.CDC

    def offered(self) -> list[OfferedStream]:
        """The tables that the configuration names."""
        sight = Sight.EVERY_CHANGE if self._is_captured else Sight.OBSERVED_CHANGES
        return offered_by(self.project, self.pipeline, self.config, sight)

    def bring(
        self, lake: Lake, positions: Mapping[str, Position | None], *, anew: bool
    ) -> Iterator[Piece | Snapshot | Failure]:
        """What has changed in each table; all of a table at first."""
        reader = self.reader or JdbcReader(self.config)
        kind = CapturedTable if self._is_captured else TrackedTable

        def read(name: str, told: Position) -> Iterator[Piece | Snapshot]:
            landing = raw_folder(self.project, self.pipeline, name)
            table = kind(lake.spark, reader, self.pipeline, name, self.config, landing)
            return table.bring(told, anew=anew)

        return each_table(reader, positions, read)

    def landed(self, positions: Mapping[str, Position]) -> None:
        """The database forgets by itself, after its own retention."""
