"""A SQL Server database as a source (experimental)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chronolake.config import SqlServerMethod
from chronolake.source.jdbc import JdbcReader, read_tables, streams_of
from chronolake.source.protocol import CaptureMethod, raw_folder
from chronolake.source.sqlserver.cdc import CapturedTable
from chronolake.source.sqlserver.change_tracking import TrackedTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from chronolake.config import Project, SqlServerSource
    from chronolake.lake import Lake
    from chronolake.source.jdbc import Reader
    from chronolake.source.protocol import (
        ChangeBatch,
        Offset,
        Snapshot,
        StreamDescriptor,
        StreamFailure,
    )


@dataclass(frozen=True)
class SqlServerDatabase:
    """The tables of a database, by change tracking or change data capture.

    Attributes:
        reader: the database reader; by default one for the configured address.
    """

    project: Project
    pipeline: str
    config: SqlServerSource
    reader: Reader | None = None

    @property
    def experimental(self) -> str:
        """Return why the source is experimental (see `ExperimentalSource`)."""
        return (
            "It has not been run against a SQL Server yet; docs/sqlserver.md lists what was tested."
        )

    @property
    def _is_captured(self) -> bool:
        return self.config.method is SqlServerMethod.CDC

    def discover(self) -> list[StreamDescriptor]:
        """Return the configured tables."""
        capture_method = (
            CaptureMethod.EVERY_CHANGE if self._is_captured else CaptureMethod.OBSERVED_CHANGES
        )
        return streams_of(self.project, self.pipeline, self.config, capture_method)

    def read(
        self, lake: Lake, positions: Mapping[str, Offset | None], *, full_refresh: bool
    ) -> Iterator[ChangeBatch | Snapshot | StreamFailure]:
        """Read the changes of each table, and all rows in its first run."""
        reader = self.reader or JdbcReader(self.config)
        kind = CapturedTable if self._is_captured else TrackedTable

        def read(name: str, stored: Offset) -> Iterator[ChangeBatch | Snapshot]:
            landing = raw_folder(self.project, self.pipeline, name)
            table = kind(lake.spark, reader, self.pipeline, name, self.config, landing)
            return table.read(stored, full_refresh=full_refresh)

        return read_tables(reader, positions, read)

    def acknowledge(self, positions: Mapping[str, Offset]) -> None:
        """Do nothing: the database removes changes after its own retention period."""
