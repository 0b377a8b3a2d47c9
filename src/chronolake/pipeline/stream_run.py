"""A stream in a run: its landed files are applied to its table, as far as possible."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson
import structlog

from chronolake.cancellation import acquire, raise_if_cancelled
from chronolake.core import maintain, plan_table
from chronolake.errors import ChronolakeError, LakeError, LeaseLostError, SourceError
from chronolake.iceberg import catalog_error, hide_values, jvm_ended, spark_words
from chronolake.pipeline.applied_files import AppliedFiles
from chronolake.pipeline.apply import apply, rebuild_if_outdated
from chronolake.pipeline.events import EventKind
from chronolake.pipeline.rebuild import rebuild
from chronolake.pipeline.runs import ModeChange, Stage, Status, StreamRun, encode_states
from chronolake.pipeline.streams import with_current_configuration
from chronolake.pipeline.table_writer import StoredTable, TableWriter, watermark_of
from chronolake.source.protocol import ChangeSource
from chronolake.storage import storage_error
from chronolake.types import STREAM_PROPERTY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chronolake.config import Project
    from chronolake.errors import StorageError
    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake
    from chronolake.landing import DataFile
    from chronolake.pipeline.apply import StepResult
    from chronolake.pipeline.events import Report
    from chronolake.pipeline.landing import LandResult
    from chronolake.pipeline.lease import Lease
    from chronolake.pipeline.schema_changes import ColumnChange
    from chronolake.pipeline.streams import Stream
    from chronolake.source.protocol import Offset, ReadProgress, Source

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run.

    Attributes:
        source: the source.
        initial: the configuration with which the run began.
        project: returns the current configuration.
        bytes: target size of the files that are applied and published together.
        full_refresh: whether all data of the source is read again.
    """

    source: Source
    initial: Project
    project: Callable[[], Project]
    bytes: int
    full_refresh: bool


class StreamSync:
    """A stream in a run.

    Attributes:
        report: the reporter of the run's events.
        settings: the settings of the run.
        state: the stream's progress.
    """

    def __init__(
        self, lake: Lake, stream: Stream, lease: Lease, report: Report, settings: RunSettings
    ) -> None:
        self.stream = stream
        self.report = report
        self.settings = settings
        self.state = StreamRun(
            report.run.id, stream.name, str(stream.table), Status.RUNNING, stage=Stage.WAITING
        )
        self._lake = lake
        self._lease = lease
        self._began = 0.0
        self._stage_began = 0.0
        self._is_applied = False
        self._has_read_progress = False
        #: Held while the table is written or switched: landing does not need it.
        self._writing = threading.RLock()
        #: Held while `state` changes, because a switch runs in another thread.
        self._noting = threading.Lock()
        self._failure: Exception | None = None
        #: The full disk or unwritable folder that rebuilt the stream fail, or None.
        self.storage_failure: StorageError | None = None

    def note_state_before(self, before: Offset | None) -> None:
        """Record the stream's source offset before anything is read."""
        self._note(state_before=encode_states(before, before)[0])
        if isinstance(self.settings.source, ChangeSource):
            self._note(rows_read=0, landed_files=0, landed_bytes=0, landed_rows=0)

    def note_states(self, before: Offset | None, after: Offset | None) -> None:
        """Record the stream's source offsets before and after landing."""
        first, second = encode_states(before, after)
        self._note(state_before=first, state_after=second)
        self._change_stage(Stage.WAITING)

    def begin(self, stage: Stage) -> None:
        """Record that a stage has begun, and report the stream's begin the first time."""
        if self.state.stage is stage:
            return
        is_first = not self._began
        self._began = self._began or time.monotonic()
        self._change_stage(stage)
        self._note(seconds=time.monotonic() - self._began)
        self.report.note_soon(self.state)
        if is_first:
            self.report.emit(EventKind.STREAM_BEGAN, stream=self.state)

    def note_read(self, progress: ReadProgress) -> None:
        """Record the number of rows that the source has read."""
        self._has_read_progress = True
        self._note(rows_read=progress.rows, seconds=time.monotonic() - self._began)
        self.report.note_soon(self.state)

    def note_landed(self, landed: LandResult) -> None:
        """Record the result of landing a batch."""
        known = self.state
        if not self._has_read_progress:
            is_known = known.rows_read is not None and landed.rows_read is not None
            read = (known.rows_read or 0) + (landed.rows_read or 0)
            self._note(rows_read=read if is_known else None)
        self._note(
            landed_files=(known.landed_files or 0) + landed.files,
            landed_bytes=(known.landed_bytes or 0) + landed.bytes,
            landed_rows=(known.landed_rows or 0) + landed.rows,
            seconds=time.monotonic() - self._began,
        )
        self.report.note_soon(self.state)
        if landed.files:
            sizes = {"files": landed.files, "bytes": landed.bytes}
            self.report.emit(EventKind.LANDED, stream=self.state, **sizes)

    def note_column_changes(self, changes: Sequence[ColumnChange]) -> None:
        """Record changes of the stream's columns in its source."""
        known = self.state.column_changes
        before = [] if known is None else orjson.loads(known)
        every = [*before, *(change.as_json() for change in changes)]
        self._note(column_changes=orjson.dumps(every).decode())
        self.report.note_soon(self.state)
        self.report.emit(EventKind.COLUMNS_CHANGED, stream=self.state)
        log.info(
            "columns_changed",
            pipeline=self.stream.pipeline,
            stream=self.stream.name,
            table=self.state.table_name,
            changes=[str(change) for change in changes],
        )

    def fail(self, failure: Exception) -> None:
        """Record the failure that stopped landing; the first one is kept."""
        self._failure = self._failure or failure

    def finish(self, table: IcebergTable | LakeError | None) -> StreamRun:
        """Apply all landed files, as far as possible, and return the outcome.

        Args:
            table: the table as it was loaded under the lease, or why it could not be; None if it
                does not exist.

        Raises:
            LeaseLostError: another process took over the pipeline.
            CallCancelledError: the run was cancelled.
        """
        self.begin(Stage.APPLYING)
        try:
            if isinstance(table, LakeError):
                raise table  # noqa: TRY301 - as if raised here
            with acquire(self._writing):
                self._apply_new_files(table)
            if self._failure is not None:
                # The files that landed before the failure were applied.
                raise self._failure  # noqa: TRY301 - as if raised when it occurred
            self._note(status=Status.SUCCEEDED)
        except LeaseLostError:
            raise
        except Exception as failure:  # noqa: BLE001 - must not affect the other streams
            # Of a run that ends, the failure is a consequence, and not the stream's outcome.
            raise_if_cancelled()
            self.storage_failure = storage_error(failure)
            described = describe_failure(failure, hides_values=bool(self.stream.rules))
            self._note(status=Status.FAILED, **described)
            log.warning(
                "stream_failed",
                pipeline=self.stream.pipeline,
                stream=self.stream.name,
                table=self.state.table_name,
                reason=self.state.error,
                hint=self.state.hint,
            )
        self._change_stage(None)
        self._note(seconds=time.monotonic() - self._began)
        if self.state.files or self.state.landed_files or self.state.error:
            self.report.note([self.state])
        else:
            # Hundreds of streams may end at once without new data: one transaction records them.
            self.report.note_soon(self.state)
        self.report.emit(EventKind.STREAM_ENDED, stream=self.state)
        return self.state

    def _change_stage(self, stage: Stage | None) -> None:
        """Record that a stage has begun, and add the duration of the one before."""
        now = time.monotonic()
        spent = now - self._stage_began
        if self.state.stage is Stage.LANDING:
            self._note(landing_seconds=(self.state.landing_seconds or 0.0) + spent)
        elif self.state.stage is Stage.APPLYING:
            self._note(applying_seconds=(self.state.applying_seconds or 0.0) + spent)
        self._stage_began = now
        self._note(stage=stage)

    def _note(self, **changes: Any) -> None:
        with self._noting:
            self.state = replace(self.state, **changes)

    def configured(self) -> Stream:
        """Return the stream with its current configuration.

        Raises:
            ConfigurationError: the stream does not support the configured mode.
        """
        project = self.settings.project()
        if project is self.settings.initial:
            return self.stream
        return with_current_configuration(self.stream, project)

    def outdated(self, stream: Stream, table: IcebergTable) -> bool:
        """Return whether the stream's table does not match a configuration of the stream.

        Args:
            stream: the stream with this configuration.
            table: the table.
        """
        if self._rebuilds or table.property_of(STREAM_PROPERTY) != stream.identity:
            return False
        stored = StoredTable(TableWriter(self._lake, stream, self._lease), table)
        return stored.applied.furthest is not None and not stored.matches_configuration

    def switch(self, stream: Stream, begin: Callable[[], None]) -> bool:
        """Rebuild the table by a configuration of the stream, also while data of it lands.

        The table is a function of the files that have landed, so that it does not matter when this
        happens.

        Args:
            stream: the stream with this configuration.
            begin: called before the table is rebuilt, if it has to be.

        Returns:
            Whether the table has the configuration now; False while files are applied to it: the
            thread that applies them switches it after its current step.

        Raises:
            LeaseLostError: another process took over the pipeline.
            CallCancelledError: the run was cancelled.
            ChronolakeError: the table cannot be rebuilt, and is unchanged.
        """
        if self._rebuilds or not self._writing.acquire(blocking=False):
            return False
        try:
            writer = TableWriter(self._lake, stream, self._lease)
            stored = writer.find()
            if stored is not None and self.outdated(stream, stored.table):
                begin()
                self.report.emit(EventKind.SWITCHING, stream=self.state, mode=stream.mode)
                change = rebuild_if_outdated(writer, stored)
                if change is not None:
                    self._note_switched(change)
        finally:
            self._writing.release()
        return True

    def _note_switched(self, change: ModeChange) -> None:
        with self._noting:
            self.state = self.state.with_mode_change(change)
        self.report.note([self.state])
        self.report.emit(EventKind.SWITCHED, stream=self.state, mode=change.after)

    def apply(self) -> None:
        """Apply all landed files to the table."""
        with acquire(self._writing):
            self._apply()

    def _apply(self) -> None:
        table = self._lake.catalog.find(self.stream.table) if self._rebuilds else None
        if table is not None:
            self._note(position_before=AppliedFiles.of(table).watermark)
            self._rebuild_table()
            return
        writer = self._writer()
        stored = writer.find()
        self._apply_files(writer, stored, self._files_after(stored))

    def _apply_new_files(self, table: IcebergTable | None) -> None:
        """Apply the files that have landed since the table's watermark.

        Args:
            table: the table as it was loaded together with others, maybe some time ago.
        """
        if self._rebuilds:
            self._apply()
            return
        writer = self._writer()
        stored = writer.stored(table)
        files = self._files_after(stored)
        if files:
            # The table knows its own offset: the response to the last commit may have been lost.
            current = writer.find()
            if watermark_of(current) != watermark_of(stored):
                files = self._files_after(current)
            stored = current
        self._apply_files(writer, stored, files)

    @property
    def _rebuilds(self) -> bool:
        return self.settings.full_refresh and not self.stream.descriptor.is_ours

    def _writer(self) -> TableWriter:
        """Return a writer, which reads the stream's control records once."""
        return TableWriter(self._lake, self.stream, self._lease)

    def _files_after(self, stored: StoredTable | None) -> list[DataFile]:
        return self.stream.folder.files(after=watermark_of(stored))

    def _apply_files(
        self, writer: TableWriter, stored: StoredTable | None, files: Sequence[DataFile]
    ) -> None:
        self._note(position=watermark_of(stored))
        if not self._is_applied:
            self._is_applied = True
            self._note(position_before=self.state.position)
        self._report_pending(files)
        applied = apply(
            writer,
            stored,
            files,
            current=lambda _: self.configured(),
            step_bytes=self.settings.bytes,
        )
        for step in applied:
            if isinstance(step, ModeChange):
                self._note_switched(step)
                continue
            self._note_applied(step, left=self.state)
            self._report_published()

    def _note_applied(self, step: StepResult, *, left: StreamRun) -> None:
        if step.changes:
            self.note_column_changes(step.changes)
        self._note(
            files=left.files + step.files,
            bytes=left.bytes + step.bytes,
            rows=left.rows + step.rows,
            written=left.written + step.written,
            seconds=time.monotonic() - self._began,
            position=step.watermark,
            files_left=(left.files_left or 0) - step.files,
            bytes_left=(left.bytes_left or 0) - step.bytes,
        )

    def _report_published(self) -> None:
        if not self.stream.descriptor.is_ours:
            # The source's rows are the files that it contains.
            self._note(rows_read=self.state.rows)
        self.report.note_soon(self.state)
        pending = {"files_left": self.state.files_left, "bytes_left": self.state.bytes_left}
        self.report.emit(EventKind.PUBLISHED, stream=self.state, **pending)

    def maintain(self) -> None:
        """Run maintenance of the table if it was written and needs it; never fails."""
        name = self.stream.table
        try:
            if self.state.files and plan_table(self._lake, name).is_needed:
                self._lease.expect_held()
                self.report.emit(EventKind.MAINTAINING, stream=self.state)
                maintain(self._lake, name, only_if_needed=True)
        except Exception as failure:  # noqa: BLE001 - the rows are published; the next run retries
            log.warning(
                "not_maintained", table=str(name), reason=describe_failure(failure)["error"]
            )

    def _rebuild_table(self) -> None:
        """Rebuild the table from the current files of a lake that another system writes."""
        files = self.stream.folder.files()
        if not files:
            raise SourceError(
                "The source lake has no files for this object.",
                table=str(self.stream.table),
                file=str(self.stream.folder.path),
                hint="Check `path` and `org` of the source in chronolake.yml.",
            )
        self._report_pending(files)
        stream = self.configured()
        rebuilt = rebuild(self._lake, stream, self._lease, upto=files[-1], may_be_other=True)
        self._note(
            files=len(rebuilt.files),
            bytes=sum(file.size for file in rebuilt.files),
            rows=rebuilt.read,
            written=rebuilt.written,
            seconds=time.monotonic() - self._began,
            position=rebuilt.files[-1].mark,
            files_left=0,
            bytes_left=0,
        )
        self._report_published()

    def _report_pending(self, files: Sequence[DataFile]) -> None:
        """Report the files to apply, before any of them is applied."""
        pending = {"files_left": len(files), "bytes_left": sum(file.size for file in files)}
        self._note(**pending)
        self.report.note_soon(self.state)
        if files:
            self.report.emit(EventKind.APPLYING, stream=self.state, **pending)


def describe_failure(
    failure: BaseException, *, hides_values: bool = False
) -> dict[str, str | None]:
    """Return the error message of a failure, and its hint.

    Args:
        failure: any error. Messages of errors that are not of chronolake may quote values of rows.
        hides_values: whether columns have rules, so that such messages are not shown.
    """
    failure = storage_error(failure) or catalog_error(failure) or jvm_ended(failure) or failure
    if isinstance(failure, ChronolakeError):
        return {"error": failure.statement, "hint": failure.hint}
    message = spark_words(failure) or f"{type(failure).__name__}: {failure}"
    return {"error": hide_values(failure, message) if hides_values else message, "hint": None}
