"""Landing: batches of a source are written to the raw lake, before they are applied to a table.

The loop over the batches is in `sync`, which also stores the offsets.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import structlog

from chronolake.arrow_tasks import are_here, to_spark
from chronolake.change_set import PROVIDES_DATA
from chronolake.description import describe_loaded
from chronolake.failpoints import reach
from chronolake.iceberg import frozen
from chronolake.landing import Control, ControlKind, declare, land, land_control, rows_in
from chronolake.pipeline.copy_diff import diff_copies
from chronolake.pipeline.key_changes import fill_omitted_values
from chronolake.pipeline.protected_columns import protect_batch
from chronolake.pipeline.reconcile import TableComparison, expect_empty
from chronolake.pipeline.snapshot_diff import diff_snapshot, drop_repeats, keep_last_rows
from chronolake.pipeline.table_writer import StoredTable, TableWriter
from chronolake.source.protocol import (
    COMPARED,
    ChangeBatch,
    CopiesLanded,
    CopyBatch,
    CopyRejected,
    Reconciliation,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from chronolake.arrow_tasks import ArrowRows
    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake
    from chronolake.landing import DataFile
    from chronolake.pipeline.lease import Lease
    from chronolake.pipeline.schema_changes import ColumnWatch
    from chronolake.pipeline.streams import Stream
    from chronolake.source.protocol import Landable, Offset, Snapshot
    from chronolake.types import Column

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class LandResult:
    """The result of landing one batch.

    Attributes:
        stream: the stream's name.
        position: the stream's offset after the batch.
        files: number of files.
        bytes: their size.
        rows: their rows.
        rows_read: rows that the source returned for them; None if unknown.
    """

    stream: str
    position: Offset
    files: int
    bytes: int
    rows: int
    rows_read: int | None


@dataclass(frozen=True)
class TableDue:
    """A request to apply all landed files to the stream's table before landing continues."""

    stream: str


#: Files of a batch, and requests to update the table that the batch is compared with.
_Files: TypeAlias = "Generator[TableDue, None, list[DataFile]]"

_Repeatable = TypeVar("_Repeatable", "Snapshot", "Reconciliation")


@dataclass(frozen=True)
class StreamLanding:
    """The landing of a stream's batches in a run.

    Attributes:
        lake: the lake whose Spark session is used.
        lease: the lease of its pipeline.
        full_refresh: whether all data of the source is read again.
        watch: reports or refuses changes of columns.
    """

    lake: Lake
    stream: Stream
    lease: Lease
    full_refresh: bool
    watch: ColumnWatch
    #: Tables with which the current batch is compared.
    _frozen: ExitStack = field(default_factory=ExitStack, init=False, repr=False)

    def land(self, batch: Landable) -> Iterator[TableDue | LandResult]:
        """Land a batch of the stream.

        Yields:
            `TableDue` whenever rows are to be compared with the table. The caller then applies all
            landed files before it continues the iteration. The last item is the result.

        Raises:
            ConfigurationError: columns have reserved or duplicate names, or a key column is
                excluded or masked.
            SourceError: the stream has another key than its table, its data cannot be stored, or
                its columns have changed and its schema is frozen.
            LeaseLostError: another process runs the pipeline; the batch has not landed, or will
                land again.
        """
        with self._frozen:
            yield from self._land_batch(self._prepare(batch))

    def _land_batch(self, batch: Landable) -> Iterator[TableDue | LandResult]:
        rows_read: int | None
        if isinstance(batch, Reconciliation):
            files, position = yield from self._land_reconciliation(batch)
            rows_read = batch.rows
        elif isinstance(batch, CopyBatch):
            files, position, rows_read = yield from self._land_copies(batch)
        elif isinstance(batch, ChangeBatch):
            files, position = (yield from self._land_changes(batch)), batch.position
            rows_read = rows_in(files)
        else:
            files, is_first = yield from self._land_snapshot(batch)
            position = batch.position
            # The number of compared rows is unknown.
            rows_read = rows_in(files) if is_first else None
        yield LandResult(
            self.stream.name,
            position,
            len(files),
            sum(file.size for file in files),
            rows_in(files),
            rows_read,
        )

    def _prepare(self, batch: Landable) -> Landable:
        """Return a batch as it is stored: by the stream's rules, types and names."""
        batch = protect_batch(batch, self.stream.rules, place=self.stream.place)
        batch = self.stream.types.apply_to(batch)
        names = self.stream.names
        names.expect_fit([column.name for column in batch.columns], place=self.stream.place)
        return self.watch.accept(names.apply_to(batch))

    def _read_again(self, batch: _Repeatable) -> _Repeatable:
        """Return a batch with the records of a second read, or unchanged if one read is enough."""
        if batch.again is None:
            return batch
        found = self._prepare(batch.again())
        assert isinstance(found, type(batch))  # noqa: S101 - nothing changes the type
        return found

    def _land_changes(self, batch: ChangeBatch) -> _Files:
        if batch.versions is None and not batch.columns:
            return []
        self._land_names(batch.numbers)
        self._expect_same_key(self.lake.catalog.find(self.stream.table), batch.columns)
        if batch.versions is None:
            return declare(batch.columns, self.stream.folder, guard=self.lease.expect_held)
        versions, columns = batch.versions, batch.columns
        if batch.has_followers:
            yield self._table_due
            table = self._freeze(self.lake.catalog.load(self.stream.table))
            versions, columns = fill_omitted_values(self.lake, versions, columns, table)
        if batch.is_undated or (batch.may_repeat and self._had_table):
            # It is compared with all data that has landed.
            yield self._table_due
            if self._change_nothing(versions, columns, is_complete=False):
                return []
            known = self.lake.catalog.find(self.stream.table)
            compared = None if known is None else self._freeze(known)
            versions = drop_repeats(self.lake, to_spark(versions), columns, compared)
        return self._land(versions, columns, each_once=batch.is_distinct)

    def _change_nothing(
        self, rows: ArrowRows | DataFrame, columns: Sequence[Column], *, is_complete: bool
    ) -> bool:
        """Return whether rows certainly equal the table's (`unchanged_rows.change_nothing`)."""
        from chronolake.pipeline.unchanged_rows import (  # noqa: PLC0415 - loads pandas, and only some streams need it
            change_nothing,
        )

        return change_nothing(
            self.lake.config, self.stream.table, rows, columns, is_complete=is_complete
        )

    def _freeze(self, table: IcebergTable) -> IcebergTable:
        """Return a table whose state does not change while the batch is compared with it."""
        return self._frozen.enter_context(frozen(table, self.lake.spark))

    @property
    def _table_due(self) -> TableDue:
        return TableDue(self.stream.name)

    @cached_property
    def _had_table(self) -> bool:
        """Return whether the table existed before the stream's first versions of this run."""
        return self.lake.catalog.find(self.stream.table) is not None

    def _land_snapshot(
        self, snapshot: Snapshot
    ) -> Generator[TableDue, None, tuple[list[DataFile], bool]]:
        """Land a snapshot; return the new files, and whether they contain all of its rows."""
        # It is compared with a table that has the same names.
        self._land_names(snapshot.numbers)
        yield self._table_due
        table = self.lake.catalog.find(self.stream.table)
        self._expect_same_key(table, snapshot.columns)
        if table is not None or are_here(snapshot.rows):
            snapshot = keep_last_rows(snapshot)
        is_plain = snapshot.present is None and not snapshot.texts and not self.full_refresh
        if is_plain and self._change_nothing(snapshot.rows, snapshot.columns, is_complete=True):
            return [], False
        if table is not None:
            table = self._freeze(table)
            if not snapshot.may_be_empty:
                expect_empty(self.lake, table, snapshot.stream)
        versions, columns = diff_snapshot(self.lake, snapshot, table)
        if table is not None and snapshot.again is not None and _has_deletions(versions):
            snapshot = keep_last_rows(self._read_again(snapshot))
            versions, columns = diff_snapshot(self.lake, snapshot, table)
        if self.full_refresh:
            self._land_control(ControlKind.RESYNCED, {"at": snapshot.at_micros})
        known = set() if table is None else describe_loaded(table).by_name.keys()
        files = self._land(
            versions,
            columns,
            each_once=snapshot.is_distinct,
            has_new_columns=any(column.name not in known for column in columns),
            texts=snapshot.texts,
        )
        return files, table is None

    def _land_reconciliation(
        self, reconciliation: Reconciliation
    ) -> Generator[TableDue, None, tuple[list[DataFile], Offset]]:
        yield self._table_due
        table = self.lake.catalog.find(self.stream.table)
        self._expect_same_key(table, reconciliation.columns)
        returned: list[DataFile] = []
        gone: list[DataFile] = []
        if table is None:
            missed = self._land(reconciliation.versions, reconciliation.columns)
        else:
            comparison = TableComparison(self.lake, reconciliation, self._freeze(table))
            comparison.expect_some()
            is_gone = not comparison.tombstones()[0].isEmpty()
            twice = self._read_again(reconciliation) if is_gone else reconciliation
            missed = self._land(comparison.missed_versions(), reconciliation.columns)
            reach("read.missed-landed")
            if missed:
                yield self._table_due
                table = self._freeze(self.lake.catalog.load(self.stream.table))
                comparison = replace(comparison, table=table)
            returned = self._land(comparison.returned_records(), reconciliation.columns)
            # The versions landed above belong to existing records and do not add deleted ones.
            if is_gone:
                gone = self._land(
                    *replace(comparison, reconciliation=twice).tombstones(), each_once=True
                )
        counts = {
            "missed": rows_in(missed),
            "deleted": rows_in(gone),
            "returned": rows_in(returned),
        }
        log.info(
            "stream_compared",
            pipeline=self.stream.pipeline,
            stream=self.stream.name,
            records=reconciliation.rows,
            **counts,
        )
        position = {**reconciliation.position, COMPARED: {"at": reconciliation.at_micros, **counts}}
        return [*missed, *returned, *gone], position

    def _land_copies(
        self, batch: CopyBatch
    ) -> Generator[TableDue, None, tuple[list[DataFile], Offset, int]]:
        """Land the differences of dated copies; return the files, the offset, and the rows."""
        yield self._table_due
        table = self.lake.catalog.find(self.stream.table)
        files: list[DataFile] = []
        if batch.rows is not None:
            self._expect_same_key(table, batch.columns)
        elif table is None:
            return files, batch.position(CopiesLanded([0])), 0
        known = set() if table is None else describe_loaded(table).by_name.keys()
        table = None if table is None else self._freeze(table)
        with diff_copies(self.lake.spark, batch, table) as differences:
            result = differences.result
            if isinstance(result, CopyRejected):
                return [], batch.position(result), 0
            for versions in differences.steps:
                has_new = any(column.name not in known for column in differences.columns)
                files += self._land(
                    versions,
                    differences.columns,
                    each_once=differences.is_distinct,
                    has_new_columns=has_new and not files,
                )
                reach("land.step-done")
        log.info(
            "copies_compared",
            pipeline=self.stream.pipeline,
            stream=self.stream.name,
            table=str(self.stream.table),
            first=batch.copies[0].name,
            last=batch.copies[-1].name,
            copies=len(batch.copies),
            rows=sum(result.rows),
            differences=rows_in(files),
        )
        return files, batch.position(result), sum(result.rows)

    def _expect_same_key(self, table: IcebergTable | None, columns: Sequence[Column]) -> None:
        """Raise if the key has changed, before data that the table rejects is landed."""
        if table is not None:
            key = [column.name for column in columns if column.primary_key]
            writer = TableWriter(self.lake, self.stream, self.lease)
            StoredTable(writer, table).expect_same_key(key)

    def _land(
        self,
        versions: DataFrame | ArrowRows,
        columns: Sequence[Column],
        *,
        each_once: bool = False,
        has_new_columns: bool = False,
        texts: Mapping[str, str] | None = None,
    ) -> list[DataFile]:
        if not are_here(versions):
            # Executors write files of the raw lake, which the driver renames.
            self.lake.containment.expect_shared(self.lake.spark, self.lake.config.raw_location)
        return land(
            versions,
            columns,
            self.stream.folder,
            guard=self.lease.expect_held,
            each_once=each_once,
            has_new_columns=has_new_columns,
            texts=texts,
        )

    def _land_names(self, numbers: Mapping[str, int] | None) -> None:
        if numbers is not None:
            self._land_control(ControlKind.NAMED, {"fields": dict(sorted(numbers.items()))})

    def _land_control(self, kind: ControlKind, details: Mapping[str, Any]) -> None:
        control = Control(kind, details)
        if land_control(self.stream.folder, control, guard=self.lease.expect_held):
            log.info(
                "control_landed",
                pipeline=self.stream.pipeline,
                stream=self.stream.name,
                kind=kind,
                **details,
            )


def _has_deletions(versions: DataFrame | ArrowRows) -> bool:
    return not to_spark(versions).where(f"NOT {PROVIDES_DATA}").isEmpty()
