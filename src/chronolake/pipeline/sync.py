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

from chronolake.errors import ChronolakeError, LeaseLostError
from chronolake.iceberg import spark_words
from chronolake.pipeline.apply import STEP_BYTES, apply
from chronolake.pipeline.filling import watermark_of
from chronolake.pipeline.landing import land_new
from chronolake.pipeline.lease import greatest_token, holder, leased
from chronolake.pipeline.store import Run, Status, Store, StreamRun, now
from chronolake.pipeline.streams import chosen, reconfigured, source_of, streams_of
from chronolake.source.offered import PulledSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from chronolake.config import Project
    from chronolake.lake import Lake
    from chronolake.pipeline.landing import Landed
    from chronolake.pipeline.lease import Lease
    from chronolake.pipeline.streams import Stream
    from chronolake.source.offered import Source

log = structlog.get_logger(__name__)


class EventKind(StrEnum):
    """What an event of a run tells."""

    RUN_BEGAN = "run-began"
    STREAM_BEGAN = "stream-began"
    LANDED = "landed"
    PUBLISHED = "published"
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
        source: the pipeline's source, if it is not the one that is configured.

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
        status = Status.FAILED
        try:
            steps = _Steps(source, reread or (lambda: project), step_bytes)
            results = [_sync_stream(lake, stream, lease, report, steps) for stream in streams]
            failed = sum(result.status is Status.FAILED for result in results)
            if not failed:
                status = Status.SUCCEEDED
            elif failed < len(results):
                status = Status.PARTIAL
        finally:
            store.end_run(run.id, status)
            report.tell(EventKind.RUN_ENDED, status=status, streams=len(streams))
    return RunResult(run.id, pipeline, status, tuple(results))


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
    """How a run goes step by step: from where, under which configuration, and how far at once."""

    source: Source
    project: Callable[[], Project]
    bytes: int


def _sync_stream(
    lake: Lake, stream: Stream, lease: Lease, report: _Report, steps: _Steps
) -> StreamRun:
    began = time.monotonic()
    state = StreamRun(report.run.id, stream.name, str(stream.table), Status.RUNNING)
    report.note(EventKind.STREAM_BEGAN, state)
    try:
        state = replace(state, position=watermark_of(lake, stream))
        failure = None
        if isinstance(steps.source, PulledSource):
            landing = land_new(lake, stream, steps.source, lease, report.store)
            failure = _until_failure(landing, state, report)
        files = stream.folder.files(after=state.position)
        left, size = len(files), sum(file.size for file in files)
        applied = apply(
            lake,
            stream,
            lease,
            files,
            current=lambda known: reconfigured(known, steps.project()),
            step_bytes=steps.bytes,
        )
        for step in applied:
            left, size = left - step.files, size - step.bytes
            state = replace(
                state,
                files=state.files + step.files,
                bytes=state.bytes + step.bytes,
                rows=state.rows + step.rows,
                written=state.written + step.written,
                seconds=time.monotonic() - began,
                position=step.watermark,
            )
            report.note(EventKind.PUBLISHED, state, files_left=left, bytes_left=size)
        if failure is not None:
            # What had landed before is in the table.
            raise failure  # noqa: TRY301 - as if it had been raised when it happened
        state = replace(state, status=Status.SUCCEEDED)
    except LeaseLostError:
        raise
    except Exception as failure:  # noqa: BLE001 - the next stream must not suffer
        state = replace(state, status=Status.FAILED, error=_words(failure))
        log.warning(
            "stream_failed",
            pipeline=stream.pipeline,
            stream=stream.name,
            table=state.table_name,
            reason=state.error,
        )
    state = replace(state, seconds=time.monotonic() - began)
    report.note(EventKind.STREAM_ENDED, state)
    return state


def _until_failure(pieces: Iterator[Landed], state: StreamRun, report: _Report) -> Exception | None:
    """Land what a source has; gives what kept it from landing all, for later."""
    try:
        for piece in pieces:
            report.tell(EventKind.LANDED, stream=state, files=piece.files, bytes=piece.bytes)
    except LeaseLostError:
        raise
    except Exception as failure:  # noqa: BLE001 - what has landed must not wait for the source
        return failure
    return None


def _words(failure: BaseException) -> str:
    if isinstance(failure, ChronolakeError):
        return str(failure)
    return spark_words(failure) or f"{type(failure).__name__}: {failure}"
