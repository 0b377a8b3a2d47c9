"""One run of a pipeline: its streams one after the other, each as far as it comes.

What a source gives that keeps no lake of its own lands in ours first (`landing`).

A stream that fails does not stop the others; the run is partial then, and the next one continues.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import structlog

from chronolake.errors import ChronolakeError, LeaseLostError, SourceError
from chronolake.iceberg import spark_words
from chronolake.pipeline.apply import STEP_BYTES, apply
from chronolake.pipeline.filling import watermark_of
from chronolake.pipeline.landing import land_new
from chronolake.pipeline.lease import greatest_token, holder, leased
from chronolake.pipeline.rebuild import rebuild
from chronolake.pipeline.store import Run, Status, Store, StreamRun, now
from chronolake.pipeline.streams import chosen, reconfigured, source_of, streams_of
from chronolake.source.offered import PulledSource
from chronolake.table import maintain, planned

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from chronolake.config import Project
    from chronolake.lake import Lake
    from chronolake.pipeline.landing import Landed
    from chronolake.pipeline.lease import Lease
    from chronolake.pipeline.streams import Stream
    from chronolake.rawlake import DataFile
    from chronolake.source.offered import Source

log = structlog.get_logger(__name__)


class EventKind(StrEnum):
    """What an event of a run tells."""

    RUN_BEGAN = "run-began"
    STREAM_BEGAN = "stream-began"
    APPLYING = "applying"
    LANDED = "landed"
    PUBLISHED = "published"
    MAINTAINING = "maintaining"
    STREAM_ENDED = "stream-ended"
    RUN_ENDED = "run-ended"


@dataclass(frozen=True)
class Event:
    """Something that happened in a run, for those who watch it.

    Attributes:
        kind: what.
        pipeline: in which pipeline.
        run: the run's identity.
        status: what became of the run, when it ended.
        stream: how far the stream has come, for events of a stream.
        files_left: files of the stream that are still to be applied.
        bytes_left: their size.
        streams: number of the pipeline's streams in the run.
        files: files that have landed in the raw lake, with `LANDED`.
        bytes: their size.
    """

    kind: EventKind
    pipeline: str
    run: str
    status: Status | None = None
    stream: StreamRun | None = None
    files_left: int = 0
    bytes_left: int = 0
    streams: int = 0
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class RunResult:
    """What became of a run: its identity, its status, and its streams in their order."""

    run: str
    pipeline: str
    status: Status
    streams: tuple[StreamRun, ...]


def sync(
    lake: Lake,
    project: Project,
    pipeline: str,
    *,
    only: Sequence[str] = (),
    watch: Callable[[Event], None] = lambda _: None,
    reread: Callable[[], Project] | None = None,
    step_bytes: int = STEP_BYTES,
    source: Source | None = None,
    anew: bool = False,
) -> RunResult:
    """Bring a pipeline's tables to what its source has.

    Args:
        lake: the project's lake.
        project: the configuration.
        pipeline: the pipeline's name.
        only: streams to sync; all of them if none is named.
        watch: told of everything that happens.
        reread: gives the project as it is by now. It is asked before each step: a stream whose mode
            has changed is switched there, and goes on. By default nothing changes during a run.
        step_bytes: files of about so many bytes are applied and published together.
        source: the pipeline's source, if it is not the one that is configured (`source_of`).
        anew: whether all that a source has is read once more: if it keeps no lake of its own,
            compared with the tables; of one that does, each table is made anew in one step.

    Raises:
        ConfigurationError: there is no such pipeline or stream, or it is configured wrongly.
        SourceError: the source cannot be read at all.
        PipelineBusyError: another process runs the pipeline.
        LeaseLostError: another process took the pipeline over.
        LakeError: the operational store does not answer.
    """
    source = source or source_of(project, pipeline)
    streams = chosen(streams_of(project, pipeline, source), pipeline, only)
    store = Store.open(lake.config)
    above = greatest_token(lake.catalog.find(stream.table) for stream in streams)
    with leased(store, pipeline, above=above) as lease:
        run = Run(uuid4().hex, pipeline, now(), None, Status.RUNNING, holder())
        store.begin_run(run)
        report = _Report(store, run, watch)
        report.tell(EventKind.RUN_BEGAN, streams=len(streams))
        steps = _Steps(source, reread or (lambda: project), step_bytes, anew)
        syncs = {stream.name: _StreamSync(lake, stream, lease, report, steps) for stream in streams}
        status = Status.FAILED
        try:
            try:
                if isinstance(source, PulledSource):
                    _land(lake, source, lease, syncs)
                results = [one.finish() for one in syncs.values()]
                status = _status_of(results)
            finally:
                store.end_run(run.id, status)
            if lake.config.maintenance.automatic:
                for one in syncs.values():
                    one.maintain()
        finally:
            report.tell(EventKind.RUN_ENDED, status=status, streams=len(streams))
    return RunResult(run.id, pipeline, status, tuple(results))


def _status_of(streams: Sequence[StreamRun]) -> Status:
    """What becomes of a run whose streams ended so."""
    failed = sum(stream.status is Status.FAILED for stream in streams)
    if not failed:
        return Status.SUCCEEDED
    return Status.PARTIAL if failed < len(streams) else Status.FAILED


@dataclass(frozen=True)
class _Report:
    """Where a run says what happens: the store, and whoever watches."""

    store: Store
    run: Run
    watch: Callable[[Event], None]

    def tell(self, kind: EventKind, **details: Any) -> None:
        self.watch(Event(kind, self.run.pipeline, self.run.id, **details))

    def note(self, kind: EventKind, stream: StreamRun, **details: Any) -> None:
        self.store.note(stream)
        self.tell(kind, stream=stream, **details)


@dataclass(frozen=True)
class _Steps:
    """How a run goes: from where, under which configuration, how far at once, and whether anew."""

    source: Source
    project: Callable[[], Project]
    bytes: int
    anew: bool


class _StreamSync:
    """One stream in one run."""

    def __init__(
        self, lake: Lake, stream: Stream, lease: Lease, report: _Report, steps: _Steps
    ) -> None:
        self.stream = stream
        self.report = report
        self.steps = steps
        self._lake = lake
        self._lease = lease
        self._began = 0.0
        self._failure: Exception | None = None
        self._state = StreamRun(report.run.id, stream.name, str(stream.table), Status.RUNNING)

    def begin(self) -> None:
        """Say that it begins, unless it has been said."""
        if not self._began:
            self._began = time.monotonic()
            self.report.note(EventKind.STREAM_BEGAN, self._state)

    def note_landed(self, landed: Landed) -> None:
        """Remember what has landed, or why nothing more does."""
        if landed.failure is not None:
            self._failure = landed.failure
        else:
            told = {"files": landed.files, "bytes": landed.bytes}
            self.report.tell(EventKind.LANDED, stream=self._state, **told)

    def fail(self, failure: Exception) -> None:
        """Remember what keeps more from landing, unless something did before."""
        self._failure = self._failure or failure

    def finish(self) -> StreamRun:
        """Bring the table as far as it comes.

        Raises:
            LeaseLostError: another process took the pipeline over.
        """
        self.begin()
        try:
            self.apply()
            if self._failure is not None:
                # What had landed before is in the table.
                raise self._failure  # noqa: TRY301 - as if it had been raised when it happened
            self._note(status=Status.SUCCEEDED)
        except LeaseLostError:
            raise
        except Exception as failure:  # noqa: BLE001 - the next stream must not suffer
            self._note(status=Status.FAILED, error=_words(failure))
            log.warning(
                "stream_failed",
                pipeline=self.stream.pipeline,
                stream=self.stream.name,
                table=self._state.table_name,
                reason=self._state.error,
            )
        self._note(seconds=time.monotonic() - self._began)
        self.report.note(EventKind.STREAM_ENDED, self._state)
        return self._state

    def _note(self, **changes: Any) -> None:
        self._state = replace(self._state, **changes)

    def apply(self) -> None:
        """Bring the table to all that has landed."""
        makes_anew = self.steps.anew and not self.stream.offered.is_ours
        if makes_anew and self._lake.catalog.find(self.stream.table) is not None:
            self._make_anew()
            return
        # The table itself knows how far it is: the answer to the last step may have been lost.
        self._note(position=watermark_of(self._lake, self.stream))
        files = self.stream.folder.files(after=self._state.position)
        left, size = len(files), sum(file.size for file in files)
        self._tell_left(files)
        applied = apply(
            self._lake,
            self.stream,
            self._lease,
            files,
            current=lambda known: reconfigured(known, self.steps.project()),
            step_bytes=self.steps.bytes,
        )
        for step in applied:
            left, size = left - step.files, size - step.bytes
            self._note(
                files=self._state.files + step.files,
                bytes=self._state.bytes + step.bytes,
                rows=self._state.rows + step.rows,
                written=self._state.written + step.written,
                seconds=time.monotonic() - self._began,
                position=step.watermark,
            )
            self.report.note(EventKind.PUBLISHED, self._state, files_left=left, bytes_left=size)

    def maintain(self) -> None:
        """Put the table's files in order, if it was written and needs it; never fails."""
        name = self.stream.table
        try:
            if self._state.files and planned(self._lake, name).is_needed:
                self._lease.expect_held()
                self.report.tell(EventKind.MAINTAINING, stream=self._state)
                maintain(self._lake, name, only_if_needed=True)
        except Exception as failure:  # noqa: BLE001 - the rows are there; the next run tries again
            log.warning("not_maintained", table=str(name), reason=_words(failure))

    def _make_anew(self) -> None:
        """Make the table of all that there is now in a lake that somebody else writes."""
        files = self.stream.folder.files()
        if not files:
            raise SourceError(
                "The lake has no files of the object.",
                table=str(self.stream.table),
                file=str(self.stream.folder.path),
                hint="Check `path` and `org` of the source in chronolake.yml.",
            )
        self._tell_left(files)
        made = rebuild(self._lake, self.stream, self._lease, upto=files[-1], may_be_other=True)
        self._note(
            files=len(made.files),
            bytes=sum(file.size for file in made.files),
            rows=made.read,
            written=made.written,
            seconds=time.monotonic() - self._began,
            position=made.files[-1].mark,
        )
        self.report.note(EventKind.PUBLISHED, self._state)

    def _tell_left(self, files: Sequence[DataFile]) -> None:
        """Tell what is to be applied, before any of it is."""
        if files:
            size = sum(file.size for file in files)
            told = {"files_left": len(files), "bytes_left": size}
            self.report.tell(EventKind.APPLYING, stream=self._state, **told)


def _land(lake: Lake, source: PulledSource, lease: Lease, syncs: Mapping[str, _StreamSync]) -> None:
    """Land what a source has; what keeps it from landing all is remembered by the streams."""
    if not syncs:
        return
    for one in syncs.values():
        one.begin()
    first = next(iter(syncs.values()))
    landing = land_new(
        lake,
        [one.stream for one in syncs.values()],
        source,
        lease,
        first.report.store,
        complete=lambda name: syncs[name].apply(),
        anew=first.steps.anew,
    )
    try:
        for step in landing:
            syncs[step.stream].note_landed(step)
    except LeaseLostError:
        raise
    except Exception as failure:  # noqa: BLE001 - what has landed must not wait for the source
        for one in syncs.values():
            one.fail(failure)


def _words(failure: BaseException) -> str:
    if isinstance(failure, ChronolakeError):
        return str(failure)
    return spark_words(failure) or f"{type(failure).__name__}: {failure}"
