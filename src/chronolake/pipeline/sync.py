"""A run of a pipeline: each of its streams is synced as far as possible.

Data of a source that is not itself a raw lake lands in Chronolake's own raw lake first (`landing`).
Then the landed files are applied to the tables, several at a time.

A stream that fails does not stop the others: the run is partial then, and the next one continues.
"""

from __future__ import annotations

import math
import os
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import structlog

from chronolake.config import WatchedProject, project_at
from chronolake.errors import (
    ChronolakeError,
    ConfigurationError,
    LakeError,
    LeaseLostError,
    SourceError,
)
from chronolake.failpoints import reach
from chronolake.lake import Lake
from chronolake.pipeline.apply import STEP_BYTES
from chronolake.pipeline.events import Event, EventKind, Report
from chronolake.pipeline.landing import LandResult, StreamLanding, TableDue
from chronolake.pipeline.lease import (
    PATIENCE_SECONDS,
    greatest_token,
    hold_lease,
    holder,
    note_refused,
)
from chronolake.pipeline.mode_switch import ModeWatch
from chronolake.pipeline.parallel import map_in_threads
from chronolake.pipeline.runs import Run, Stage, Status, StreamRun, now
from chronolake.pipeline.schema_changes import ColumnWatch
from chronolake.pipeline.store import CONTINUES_HINT, Store
from chronolake.pipeline.stream_run import RunSettings, StreamSync, describe_failure
from chronolake.pipeline.streams import (
    raise_if_not_installed,
    select_streams,
    source_of,
    streams_of,
)
from chronolake.source.protocol import (
    CaughtUp,
    ChangeSource,
    ReadProgress,
    SharedOffset,
    StreamFailure,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from chronolake.config import Project
    from chronolake.errors import StorageError
    from chronolake.pipeline.lease import Lease
    from chronolake.source.protocol import (
        ChangeBatch,
        CopyBatch,
        Offset,
        Reconciliation,
        Snapshot,
        Source,
    )

log = structlog.get_logger(__name__)

#: A small batch waits for commits and for the other core's tasks, so that two cores serve four.
_LEAST_THREADS: Final = 4
#: More statements at the same time would need more memory of the driver.
_MOST_THREADS: Final = 8


@dataclass(frozen=True)
class RunResult:
    """The result of a run: its identity, its status, and its streams in their order.

    Attributes:
        storage_failure: the full disk or unwritable folder that made a stream fail, or None.
    """

    run: str
    pipeline: str
    status: Status
    streams: tuple[StreamRun, ...]
    storage_failure: StorageError | None = None

    def __str__(self) -> str:
        lines = [f"{self.pipeline}: {self.status}"]
        for stream in self.streams:
            why = f": {stream.error}" if stream.error else ""
            lines.append(
                f"  {stream.table_name}  {stream.status}, {stream.written:,} rows written{why}"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        # Shells and notebooks print it, and all fields of all streams fill a screen.
        return f"<RunResult {self}>"


def run_pipeline(
    pipeline: str,
    *,
    project: str | Path | None = None,
    streams: Sequence[str] = (),
    resync: bool = False,
) -> RunResult:
    """Sync a pipeline's tables with its source; `chronolake.sync` is this function.

    Args:
        pipeline: a name below `pipelines` in chronolake.yml.
        project: the folder of chronolake.yml, or the file; by default the working folder or the
            nearest folder above it that has one.
        streams: names of the streams to sync; all of them by default.
        resync: whether to read all data of the source again.

    Returns:
        The outcome of each stream. A stream that failed does not raise: check `status`.

    Raises:
        ConfigurationError: the project, pipeline or stream does not exist, or its configuration is
            invalid.
        MissingExtraError: the packages that read the source are not installed.
        PipelineBusyError: another process runs the pipeline.
        SourceError: the source cannot be read at all.
        LakeError: the lake or its operational store cannot be used.
    """
    # Invalid arguments, and a source that cannot be read, are rejected before Spark starts.
    place = None if project is None else Path(project)
    found = project_at(place)
    raise_if_not_installed(found, pipeline)
    try:
        select_streams(streams_of(found, pipeline), pipeline, streams)
    except (ConfigurationError, SourceError) as failure:
        if found.lake.catalog.uri is not None or found.lake.catalog_file.is_file():
            note_refused(Store.open(found.lake), pipeline, failure)
        raise
    with Lake.prepare(found.lake) as lake:
        watched = WatchedProject(found, lambda: project_at(place))
        return sync(
            lake, found, pipeline, only=streams, reread=watched.current, full_refresh=resync
        )


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
    full_refresh: bool = False,
    is_scheduled: bool = False,
) -> RunResult:
    """Sync a pipeline's tables with its source.

    Args:
        lake: the project's lake.
        project: the configuration.
        pipeline: the pipeline's name.
        only: names of the streams to sync; all of them by default.
        watch: called with every event of the run, by several threads, but never by two at once.
        reread: returns the current project. It is called once a second and before each step: a
            table whose mode has changed is switched then, and the run continues. By default the
            configuration does not change.
        step_bytes: target size of the files that are applied and published together.
        source: the pipeline's source; None for the configured one (`source_of`).
        full_refresh: whether to read all data of the source again. Data that lands in Chronolake's
            raw lake is compared with the tables; for files of another system, each table is rebuilt
            atomically.
        is_scheduled: whether the run gives way to commands that wait for the pipeline. Others wait
            ten seconds for a run that has begun.

    Raises:
        ConfigurationError: the pipeline or stream does not exist, or its configuration is invalid.
        SourceError: the source cannot be read at all.
        PipelineBusyError: another process runs the pipeline.
        LeaseLostError: another process took over the pipeline.
        LakeError: the operational store is not reachable.
    """
    source = source or source_of(project, pipeline)
    run = Run(uuid4().hex, pipeline, now(), None, Status.RUNNING, holder())
    store = Store.open(lake.config)
    try:
        offered = streams_of(project, pipeline, source)
    except ChronolakeError as failure:
        note_refused(store, pipeline, failure)
        raise
    streams = select_streams(offered, pipeline, only)
    if full_refresh:
        lake.note_work(math.inf)
    peeked = lake.catalog.peek_each([stream.table for stream in streams])
    unreadable = {
        stream.name: table
        for stream, table in zip(streams, peeked, strict=True)
        if isinstance(table, LakeError)
    }
    if not streams:
        hint = f"`chronolake discover {pipeline}` shows what the source offers."
        log.warning("pipeline_without_streams", pipeline=pipeline, hint=hint)
    elif len(unreadable) == len(streams):
        raise next(iter(unreadable.values()))
    tables = [table for table in peeked if not isinstance(table, LakeError)]
    lake.note_found(tables)
    above = greatest_token(tables)
    wait_seconds = 0.0 if is_scheduled else PATIENCE_SECONDS
    with hold_lease(
        store, pipeline, above=above, wait_seconds=wait_seconds, gives_way=is_scheduled
    ) as lease:
        store.begin_run(run)
        report = Report(store, run, watch)
        report.emit(EventKind.RUN_BEGAN, streams=len(streams))
        current = _one_at_a_time(reread or (lambda: project))
        settings = RunSettings(source, project, current, step_bytes, full_refresh)
        syncs = {
            stream.name: StreamSync(lake, stream, lease, report, settings) for stream in streams
        }
        status = Status.FAILED
        try:
            with ModeWatch(lake, lease, store, settings, syncs=syncs, offered=offered) as modes:
                with _record_failure(store, run.id):
                    with report:
                        results = _run(
                            lake,
                            lease,
                            source,
                            syncs,
                            report,
                            modes=modes,
                            unreadable=unreadable,
                        )
                    status = _status_of(results)
                    store.end_run(run.id, status)
                if lake.config.maintenance.automatic:
                    for stream in syncs.values():
                        stream.maintain()
        finally:
            lake.executor_files.discard()
            report.emit(EventKind.RUN_ENDED, status=status, streams=len(streams))
    stored = (stream.storage_failure for stream in syncs.values())
    return RunResult(
        run.id,
        pipeline,
        status,
        tuple(stream.state for stream in syncs.values()),
        next((failure for failure in stored if failure), None),
    )


@contextmanager
def _record_failure(store: Store, run: str) -> Iterator[None]:
    """Record that a run has failed as a whole, and why, if the block fails."""
    try:
        yield
    except Exception as failure:
        store.end_run(run, Status.FAILED, **describe_failure(failure))
        raise
    except BaseException:
        store.end_run(run, Status.FAILED, error="The run was interrupted.", hint=CONTINUES_HINT)
        raise


def _run(
    lake: Lake,
    lease: Lease,
    source: Source,
    syncs: Mapping[str, StreamSync],
    report: Report,
    *,
    modes: ModeWatch,
    unreadable: Mapping[str, LakeError],
) -> list[StreamRun]:
    """Sync every stream as far as possible.

    Args:
        unreadable: why the tables of some streams cannot be read: these streams fail.

    Raises:
        LeaseLostError: another process took over the pipeline.
        LakeError: the operational store is not reachable.
    """
    store = report.store
    before = store.checkpoints(lease.pipeline) if isinstance(source, ChangeSource) else {}
    for name, stream in syncs.items():
        stream.note_state_before(before.get(name))
    report.note(stream.state for stream in syncs.values())
    if isinstance(source, ChangeSource):
        _land(lake, source, lease, syncs, store, modes=modes)
        after = store.checkpoints(lease.pipeline)
        for name, stream in syncs.items():
            stream.note_states(before.get(name), after.get(name))
            report.note_soon(stream.state)
    readable = [name for name in syncs if name not in unreadable]
    loaded = lake.catalog.peek_each([syncs[name].stream.table for name in readable])
    tables = {**unreadable, **dict(zip(readable, loaded, strict=True))}
    return map_in_threads(
        lambda given: StreamSync.finish(*given),
        [(stream, tables[name]) for name, stream in syncs.items()],
        threads=_threads(),
        cancel=lake.cancel_jobs,
    )


def _threads() -> int:
    """Return the number of streams that are applied at the same time.

    While Spark plans a statement, which takes most of the time of a small batch, it uses one core.
    """
    return min(_MOST_THREADS, max(_LEAST_THREADS, os.cpu_count() or 1))


def _one_at_a_time(read: Callable[[], Project]) -> Callable[[], Project]:
    lock = threading.Lock()

    def read_alone() -> Project:
        with lock:
            return read()

    return read_alone


def _status_of(streams: Sequence[StreamRun]) -> Status:
    """Return the status of a run from the outcomes of its streams."""
    failed = sum(stream.status is Status.FAILED for stream in streams)
    if not failed:
        return Status.SUCCEEDED
    return Status.PARTIAL if failed < len(streams) else Status.FAILED


def _land(
    lake: Lake,
    source: ChangeSource,
    lease: Lease,
    syncs: Mapping[str, StreamSync],
    store: Store,
    *,
    modes: ModeWatch,
) -> None:
    """Land new data of a source; a failure of the source is recorded for all streams."""
    if not syncs:
        return
    try:
        _land_batches(lake, source, lease, syncs, store, modes=modes)
    except LeaseLostError:
        raise
    except Exception as failure:  # noqa: BLE001 - landed files are applied even if the source fails
        for stream in syncs.values():
            stream.fail(failure)


def _land_batches(
    lake: Lake,
    source: ChangeSource,
    lease: Lease,
    syncs: Mapping[str, StreamSync],
    store: Store,
    *,
    modes: ModeWatch,
) -> None:
    """Land the data of a source that is newer than the last checkpoints, batch by batch.

    A stream's offset is stored after its files have landed, and only then acknowledged to the
    source, which may then discard the changes. If a run crashes in between, the next one reads the
    same changes again, and the duplicates are ignored.

    A stream that fails lands nothing more; the others continue.

    Raises:
        LeaseLostError: another process runs the pipeline.
        LakeError: the store is not reachable, or executors do not share the lake's folder.
        Exception: any error of the source. Batches that landed before stay, with their offsets.
    """
    offsets: dict[str, Offset] = {**store.checkpoints(lease.pipeline)}
    if offsets:
        # The last run may have crashed before it acknowledged them.
        source.acknowledge(offsets)
    full_refresh = next(iter(syncs.values())).settings.full_refresh
    landings = {
        name: StreamLanding(
            lake,
            stream.stream,
            lease,
            full_refresh,
            ColumnWatch(lake, store, stream.stream, stream.note_column_changes),
        )
        for name, stream in syncs.items()
    }
    wanted = {name: offsets.get(name) for name in landings}
    for batch in source.read(lake, wanted, full_refresh=full_refresh):
        modes.wait_while_switching()
        name = batch.stream
        if isinstance(batch, SharedOffset):
            reach("land.done")
            store.put_checkpoint(lease.pipeline, name, batch.position, token=lease.token)
            reach("land.checkpointed")
            offsets[name] = batch.position
            continue
        if name not in landings:
            continue
        stream = syncs[name]
        stream.begin(Stage.LANDING)
        if isinstance(batch, ReadProgress):
            stream.note_read(batch)
            continue
        landed = _land_batch(stream, landings[name], batch)
        if isinstance(landed, StreamFailure):
            del landings[name]
            stream.fail(landed.error)
        if not isinstance(landed, LandResult):
            continue
        reach("land.done")
        store.put_checkpoint(lease.pipeline, name, landed.position, token=lease.token)
        landings[name].watch.store(lease.token)
        reach("land.checkpointed")
        offsets[name] = landed.position
        source.acknowledge(offsets)
        if landed.files:
            log.info(
                "versions_landed",
                pipeline=lease.pipeline,
                stream=name,
                files=landed.files,
                bytes=landed.bytes,
                position=_short(landed.position),
            )
        stream.note_landed(landed)
    for landing in landings.values():
        landing.watch.end(lease.token)


def _land_batch(
    stream: StreamSync,
    landing: StreamLanding,
    batch: ChangeBatch | Snapshot | Reconciliation | CopyBatch | CaughtUp | StreamFailure,
) -> LandResult | StreamFailure | None:
    """Land a batch; whenever the stream's table is due, apply all landed files first.

    Returns:
        The result, the failure that stops the stream, or None if there was nothing to land.

    Raises:
        LeaseLostError: another process runs the pipeline.
    """
    if isinstance(batch, StreamFailure):
        return batch
    landed = None
    try:
        if isinstance(batch, CaughtUp):
            stream.apply()
            return None
        for step in landing.land(batch):
            if isinstance(step, TableDue):
                stream.apply()
            else:
                landed = step
    except LeaseLostError:
        raise
    except Exception as failure:  # noqa: BLE001 - must not affect the other streams
        return StreamFailure(batch.stream, failure)
    return landed


def _short(position: Offset) -> dict[str, Any]:
    """Return an offset for logs, without parts that grow with the stream."""
    return {name: value for name, value in position.items() if isinstance(value, str | int)}
