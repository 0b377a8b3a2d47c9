"""Landing: new data of a source is written to the raw lake, before it is applied to a table.

A stream's offset is stored after its files have landed, and only then acknowledged to the source,
which may then discard the changes. If a run crashes in between, the next one reads the same changes
again, and the duplicates are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import structlog

from chronolake.arrow_tasks import to_spark
from chronolake.description import describe_loaded
from chronolake.errors import LeaseLostError
from chronolake.failpoints import reach
from chronolake.landing import Control, ControlKind, declare, land, land_control, rows_in
from chronolake.pipeline.key_changes import with_carried
from chronolake.pipeline.reconcile import Compared, expect_empty
from chronolake.pipeline.snapshot_diff import changed, versions_of
from chronolake.pipeline.table_writer import expect_same_key
from chronolake.source.protocol import (
    COMPARED,
    CaughtUp,
    ChangeBatch,
    ReadProgress,
    Reconciliation,
    StreamFailure,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from chronolake.arrow_tasks import ArrowRows
    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake
    from chronolake.landing import DataFile
    from chronolake.pipeline.lease import Lease
    from chronolake.pipeline.store import Store
    from chronolake.pipeline.streams import Stream
    from chronolake.source.protocol import ChangeSource, Offset, Snapshot
    from chronolake.types import Column

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class LandResult:
    """The result of landing one batch.

    Attributes:
        stream: the stream's name.
        files: number of files.
        bytes: their size.
        rows: their rows.
        rows_read: rows that the source returned for them; None if unknown.
        failure: why it could not land, or None. After a failure the stream lands nothing more.
    """

    stream: str
    files: int = 0
    bytes: int = 0
    rows: int = 0
    rows_read: int | None = 0
    failure: Exception | None = None


def land_new(
    lake: Lake,
    streams: Sequence[Stream],
    source: ChangeSource,
    lease: Lease,
    store: Store,
    *,
    begin: Callable[[str], None],
    complete: Callable[[str], None],
    full_refresh: bool = False,
) -> Iterator[LandResult | ReadProgress]:
    """Land the data of a source that is newer than the last checkpoints.

    Args:
        lake: the lake whose Spark session is used.
        streams: the streams of the pipeline to land.
        source: the pipeline's source.
        lease: the pipeline's lease.
        store: the store of its checkpoints.
        begin: called with a stream's name whenever the source continues with it, before anything
            lands.
        complete: applies all landed files to a stream's table, before the table is compared with a
            snapshot.
        full_refresh: whether to read all data of the source again.

    Raises:
        LeaseLostError: another process runs the pipeline; the step has not landed, or will land
            again.
        LakeError: the store is not reachable, or executors do not share the lake's folder.
        Exception: any error of the source. What landed before stays, with its checkpoint.
    """
    # Executors write files of the raw lake, which the driver renames.
    lake.containment.expect_shared(lake.spark, str(lake.config.path))
    pipeline = lease.pipeline
    positions: dict[str, Offset] = {**store.checkpoints(pipeline)}
    if positions:
        # The last run may have crashed before it acknowledged them.
        source.acknowledge(positions)
    landing = {
        stream.name: _Landing(lake, stream, lease, complete, full_refresh=full_refresh)
        for stream in streams
    }
    wanted = {name: positions.get(name) for name in landing}
    for brought in source.read(lake, wanted, full_refresh=full_refresh):
        name = brought.stream
        if name not in landing:
            continue
        begin(name)
        if isinstance(brought, ReadProgress):
            yield brought
            continue
        if isinstance(brought, StreamFailure):
            del landing[name]
            yield LandResult(name, failure=brought.error)
            continue
        try:
            if isinstance(brought, CaughtUp):
                complete(name)
                continue
            step, position = landing[name].of(brought)
        except LeaseLostError:
            raise
        except Exception as failure:  # noqa: BLE001 - must not affect the other streams
            del landing[name]
            yield LandResult(name, failure=failure)
            continue
        reach("land.done")
        store.put_checkpoint(pipeline, name, position, token=lease.token)
        reach("land.checkpointed")
        positions[name] = position
        source.acknowledge(positions)
        if step.files:
            log.info(
                "versions_landed",
                pipeline=pipeline,
                stream=name,
                files=step.files,
                bytes=step.bytes,
                position=_shown(position),
            )
        yield step


def _shown(position: Offset) -> dict[str, Any]:
    """Return an offset for logs, without parts that grow with the stream."""
    return {
        name: reported for name, reported in position.items() if isinstance(reported, str | int)
    }


@dataclass(frozen=True)
class _Landing:
    """The landing of a stream's data, under a lease."""

    lake: Lake
    stream: Stream
    lease: Lease
    complete: Callable[[str], None]
    full_refresh: bool

    def of(self, brought: ChangeBatch | Snapshot | Reconciliation) -> tuple[LandResult, Offset]:
        """Land data that was read; return the result and the stream's new offset."""
        names = self.stream.names
        names.expect_fit([column.name for column in brought.columns], place=self.stream.place)
        brought = names.of(brought)
        if isinstance(brought, Reconciliation):
            files, position = self._of_reconciliation(brought)
            return self._landed(files, rows_read=brought.rows), position
        if isinstance(brought, ChangeBatch):
            return self._landed(self._of_piece(brought)), brought.position
        files, is_first = self._of_snapshot(brought)
        landed = self._landed(files)
        # The number of compared rows is unknown.
        return landed if is_first else replace(landed, rows_read=None), brought.position

    def _landed(self, files: Sequence[DataFile], *, rows_read: int | None = None) -> LandResult:
        rows = rows_in(files)
        size = sum(file.size for file in files)
        given = rows if rows_read is None else rows_read
        return LandResult(self.stream.name, len(files), size, rows, given)

    def _of_piece(self, piece: ChangeBatch) -> list[DataFile]:
        if piece.versions is None and not piece.columns:
            return []
        self._name(piece.numbers)
        self._expect_same_key(self.lake.catalog.find(self.stream.table), piece.columns)
        if piece.versions is None:
            return declare(piece.columns, self.stream.folder, guard=self.lease.expect_held)
        versions, columns = piece.versions, piece.columns
        if piece.has_followers:
            self.complete(self.stream.name)
            table = self.lake.catalog.load(self.stream.table)
            versions, columns = with_carried(self.lake, versions, columns, table)
        if piece.is_undated or (piece.may_repeat and self._had_table):
            # It is compared with all data that has landed.
            self.complete(self.stream.name)
            known = self.lake.catalog.find(self.stream.table)
            versions = changed(self.lake, to_spark(versions), columns, known)
        return self._land(versions, columns, each_once=piece.is_distinct)

    @cached_property
    def _had_table(self) -> bool:
        """Return whether the table existed before the stream's first versions of this run."""
        return self.lake.catalog.find(self.stream.table) is not None

    def _of_snapshot(self, snapshot: Snapshot) -> tuple[list[DataFile], bool]:
        """Land a snapshot; return the new files, and whether they contain all of its rows."""
        # It is compared with a table that has the same names.
        self._name(snapshot.numbers)
        self.complete(self.stream.name)
        table = self.lake.catalog.find(self.stream.table)
        self._expect_same_key(table, snapshot.columns)
        if table is not None and not snapshot.may_be_empty:
            expect_empty(self.lake, table, snapshot.stream)
        versions, columns = versions_of(self.lake, snapshot, table)
        if self.full_refresh:
            self._note(ControlKind.RESYNCED, {"at": snapshot.at_micros})
        known = set() if table is None else describe_loaded(table).by_name.keys()
        files = self._land(
            versions,
            columns,
            each_once=snapshot.is_distinct,
            has_new_columns=any(column.name not in known for column in columns),
            texts=snapshot.texts,
        )
        return files, table is None

    def _of_reconciliation(self, census: Reconciliation) -> tuple[list[DataFile], Offset]:
        self.complete(self.stream.name)
        table = self.lake.catalog.find(self.stream.table)
        self._expect_same_key(table, census.columns)
        returned: list[DataFile] = []
        gone: list[DataFile] = []
        if table is None:
            missed = self._land(census.versions, census.columns)
        else:
            compared = Compared(self.lake, census, table)
            compared.expect_some()
            is_gone = not compared.gone()[0].isEmpty()
            twice = census.again() if is_gone and census.again is not None else census
            missed = self._land(compared.missed(), census.columns)
            reach("read.missed-landed")
            if missed:
                self.complete(self.stream.name)
                compared = replace(compared, table=self.lake.catalog.load(self.stream.table))
            returned = self._land(compared.returned(), census.columns)
            # The versions landed above belong to existing records and do not add deleted ones.
            if is_gone:
                gone = self._land(*replace(compared, census=twice).gone(), each_once=True)
        counts = {
            "missed": rows_in(missed),
            "deleted": rows_in(gone),
            "returned": rows_in(returned),
        }
        log.info(
            "stream_compared",
            pipeline=self.stream.pipeline,
            stream=self.stream.name,
            records=census.rows,
            **counts,
        )
        position = {**census.position, COMPARED: {"at": census.at_micros, **counts}}
        return [*missed, *returned, *gone], position

    def _expect_same_key(self, table: IcebergTable | None, columns: Sequence[Column]) -> None:
        """Raise if the key has changed, before data that the table rejects is landed."""
        if table is not None:
            key = [column.name for column in columns if column.primary_key]
            expect_same_key(table, self.stream, key, self.stream.namings)

    def _land(
        self,
        versions: DataFrame | ArrowRows,
        columns: Sequence[Column],
        *,
        each_once: bool = False,
        has_new_columns: bool = False,
        texts: Mapping[str, str] | None = None,
    ) -> list[DataFile]:
        return land(
            versions,
            columns,
            self.stream.folder,
            guard=self.lease.expect_held,
            each_once=each_once,
            has_new_columns=has_new_columns,
            texts=texts,
        )

    def _name(self, numbers: Mapping[str, int] | None) -> None:
        if numbers is not None:
            self._note(ControlKind.NAMED, {"fields": dict(sorted(numbers.items()))})

    def _note(self, kind: ControlKind, told: Mapping[str, Any]) -> None:
        control = Control(kind, told)
        if land_control(self.stream.folder, control, guard=self.lease.expect_held):
            log.info(
                "control_landed",
                pipeline=self.stream.pipeline,
                stream=self.stream.name,
                kind=kind,
                **told,
            )
