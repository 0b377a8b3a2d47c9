"""A PostgreSQL database as a source without its log: each run reads every table completely.

Source: `seeds/history-mode.txt` ("History mode and … Teleport Sync differences"). Differences from
the table in the lake land with the time of the run: intermediate changes between two runs are not
captured. The source only needs the privilege to read, and may be a standby.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from chronolake.errors import SourceError
from chronolake.landing import landed_micros
from chronolake.source.postgres import catalog
from chronolake.source.postgres.check import check_table, version_of
from chronolake.source.postgres.connection import connect
from chronolake.source.postgres.initial_copy import copy_table
from chronolake.source.postgres.offset import LogOffset
from chronolake.source.postgres.selection import TableSelection
from chronolake.source.postgres.slot import is_in_database, slot_of
from chronolake.source.postgres.snapshot import export_snapshot
from chronolake.source.postgres.snapshot_diff import SnapshotDiff
from chronolake.source.protocol import (
    CaptureMethod,
    CheckResult,
    Level,
    StreamDescriptor,
    StreamFailure,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from chronolake.config import PostgresSource, Project
    from chronolake.lake import Lake
    from chronolake.source.protocol import (
        ChangeBatch,
        DescribedStream,
        Offset,
        ReadProgress,
        Snapshot,
        Where,
    )


def read_snapshots(
    lake: Lake,
    selection: TableSelection,
    positions: Mapping[str, Offset | None],
    *,
    full_refresh: bool = False,
    where: Where | None = None,
    publication: str | None = None,
) -> Iterator[ChangeBatch | Snapshot | ReadProgress | StreamFailure]:
    """Read tables in one snapshot of their database.

    Args:
        lake: the lake whose Spark session does the work.
        selection: the selected tables.
        positions: the offsets of their streams; None: nothing has landed.
        full_refresh: whether to compare all rows with the lake's tables in any case.
        where: which rows to read; None: all.
        publication: the publication whose row filters apply, if any.

    Raises:
        SourceError: the database cannot be read at all.
    """
    dsn = selection.config.dsn
    with connect(dsn) as connection:
        server = catalog.server_of(connection)
        major = connection.info.server_version // 10_000
    with export_snapshot(dsn) as snapshot:
        for name, stored in positions.items():
            try:
                table = selection.table(name)
                landed = landed_micros(selection.landing_folder(name))
            except SourceError as failure:
                yield StreamFailure(name, failure)
                continue
            position = (
                LogOffset.initial(table, server=server)
                if stored is None
                else LogOffset.from_json(stored)
            )
            position = position.not_before(landed)
            if where is not None:
                yield from copy_table(
                    lake.spark,
                    dsn,
                    snapshot,
                    table,
                    position,
                    server=server,
                    publication=publication,
                    where=where,
                )
                continue
            folder = selection.fingerprints_of(name)
            snapshot_diff = SnapshotDiff(
                *(lake.spark, dsn, snapshot, server, major, folder),
                is_shared=lake.executor_files.are_shared,
                publication=publication,
            )
            yield from snapshot_diff.read(table, position, full_refresh=full_refresh)


@dataclass
class SnapshotDatabase:
    """The tables of a database, by snapshot diff."""

    project: Project
    pipeline: str
    config: PostgresSource

    @cached_property
    def _selection(self) -> TableSelection:
        return TableSelection(self.project, self.pipeline, self.config)

    def discover(self) -> list[StreamDescriptor]:
        """Return the selected tables. A missing table fails on its own."""
        return self._selection.discover(CaptureMethod.SNAPSHOT_DIFF)

    def read(
        self,
        lake: Lake,
        positions: Mapping[str, Offset | None],
        *,
        full_refresh: bool,
    ) -> Iterator[ChangeBatch | Snapshot | ReadProgress | StreamFailure]:
        """Read all tables in one snapshot of the database."""
        self._selection.remove_fingerprints(keep=self._selection.names)
        yield from read_snapshots(lake, self._selection, positions, full_refresh=full_refresh)

    def read_where(
        self, lake: Lake, stream: str, position: Offset, where: Where
    ) -> Iterator[ChangeBatch | Snapshot | ReadProgress | StreamFailure]:
        """Read the matching rows of a table."""
        yield from read_snapshots(lake, self._selection, {stream: position}, where=where)

    def describe_streams(self, names: Collection[str]) -> Iterator[DescribedStream | StreamFailure]:
        """Return the columns of tables from the catalog."""
        yield from self._selection.describe_streams(names)

    def check(
        self,
        *,
        create: bool,  # noqa: ARG002 - nothing has to be made
        positions: Mapping[str, Offset] | None = None,  # noqa: ARG002 - none is in a log
    ) -> list[CheckResult]:
        """Return the problems of the database."""
        with connect(self.config.dsn) as connection:
            results = [CheckResult("server", Level.OK, version_of(connection))]
            slot = slot_of(self.config, self.pipeline)
            if is_in_database(connection, slot):
                results.append(
                    CheckResult(
                        f"slot {slot.name}",
                        Level.WARNING,
                        "retains the server's log, but nothing reads it any more",
                        f"SELECT pg_drop_replication_slot('{slot.name}');",
                    )
                )
            for table in self._selection.tables.values():
                results += check_table(connection, table)
            return results

    def acknowledge(self, positions: Mapping[str, Offset]) -> None:
        """Do nothing: the database keeps no state for a pipeline."""
