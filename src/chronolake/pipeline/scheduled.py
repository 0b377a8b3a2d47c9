"""A pipeline that is synced on its schedule, until it is stopped or has no schedule any more."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import structlog

from chronolake.errors import ChronolakeError, PipelineBusyError
from chronolake.pipeline.events import EventKind
from chronolake.pipeline.mode_switch import IdleModes
from chronolake.pipeline.run_history import summaries
from chronolake.pipeline.runs import Status
from chronolake.pipeline.sync import sync
from chronolake.schedule import LONGEST_SECONDS, Moment, Schedule, Timing
from chronolake.storage import storage_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Event as Flag

    from chronolake.config import Project
    from chronolake.lake import Lake
    from chronolake.pipeline.events import Event

log = structlog.get_logger(__name__)

#: Maximum seconds until a change of chronolake.yml is noticed between runs.
_RELOAD_SECONDS: Final = 2.0
#: For a pipeline that lost its schedule a moment ago.
_UNSCHEDULED: Final = Timing(LONGEST_SECONDS)


def sync_on_schedule(
    lake: Lake,
    project: Callable[[], Project],
    pipeline: str,
    is_stopped: Flag,
    since: Moment | None = None,
) -> None:
    """Sync a pipeline whenever it is due by `every`; runs that fail back off.

    Args:
        lake: the project's lake.
        project: returns the current project.
        pipeline: the pipeline's name.
        is_stopped: is set to end the loop after the current run. It also ends if the pipeline has
            no `every`, or was removed, or if the lake's configuration has changed.
        since: when the schedule began, if that was before: the pipeline is due if a time of its
            cron expression has passed since then, and since its last run.
    """
    schedule = Schedule(
        lambda name: _timing_of(project(), name) or _UNSCHEDULED,
        Moment.now() if since is None else _after_last_run(lake, pipeline, since),
    )
    was_busy = False
    modes = IdleModes(project(), pipeline)
    while not is_stopped.is_set():
        now = project()
        if _timing_of(now, pipeline) is None or now.lake != lake.config:
            return
        pause = schedule.pause(pipeline, Moment.now())
        if pause > 0:
            modes.switch(lake, now)
            is_stopped.wait(min(pause, _RELOAD_SECONDS))
            continue
        began = Moment.now()
        try:
            status = _sync(lake, project, pipeline)
        except PipelineBusyError as failure:
            # A command runs it, maybe for hours, or waits for its turn. It stays due, and must not
            # back off.
            if not was_busy:
                log.info("pipeline_busy", pipeline=pipeline, reason=failure.statement)
            was_busy = True
            is_stopped.wait(_RELOAD_SECONDS)
            continue
        was_busy = False
        note_run(schedule, pipeline, status, began)


def note_run(schedule: Schedule, pipeline: str, status: Status | None, began: Moment) -> None:
    """Record how a run ended, and log if the pipeline backs off.

    Args:
        schedule: the schedule of the pipeline.
        pipeline: the pipeline's name.
        status: how the run ended; None if it could not begin.
        began: when it began.
    """
    has_failed = status not in {Status.SUCCEEDED, Status.PARTIAL}
    seconds = schedule.note(pipeline, began=began, has_failed=has_failed)
    if seconds is not None:
        log.warning(
            "pipeline_backs_off",
            pipeline=pipeline,
            failures_in_a_row=schedule.failures(pipeline),
            seconds_between_runs=round(seconds),
        )


def _after_last_run(lake: Lake, pipeline: str, since: Moment) -> Moment:
    """Return the beginning of a schedule, or of the pipeline's last run if that is later."""
    try:
        found = summaries(lake.config, pipeline=pipeline, limit=1).runs
    except ChronolakeError:
        # An additional run is harmless.
        return since
    began = [datetime.fromisoformat(summary.run.began).astimezone(UTC) for summary in found]
    return since._replace(at=max([since.at, *began]))


def _timing_of(project: Project, pipeline: str) -> Timing | None:
    config = project.pipelines.get(pipeline)
    return None if config is None or config.every is None else Timing.parse(config.every)


def _sync(lake: Lake, project: Callable[[], Project], pipeline: str) -> Status | None:
    """Run the pipeline once; return None if no run could begin.

    Raises:
        PipelineBusyError: another process runs it.
    """
    try:
        result = sync(
            lake, project(), pipeline, watch=_log_event, reread=project, is_scheduled=True
        )
    except PipelineBusyError:
        raise
    except ChronolakeError as failure:
        error = storage_error(failure) or failure
        log.error(  # noqa: TRY400 - the text of an unexpected error may contain values
            "run_failed",
            pipeline=pipeline,
            error=type(error).__name__,
            reason=error.statement,
            hint=error.hint,
        )
        return None
    return result.status


def _log_event(event: Event) -> None:
    """Log the end of a stream that has written something or failed, and the end of its run."""
    stream = event.stream
    if event.kind is EventKind.STREAM_ENDED and stream is not None:
        if not (stream.files or stream.landed_files or stream.error):
            return
        log.info(
            "stream_ended",
            pipeline=event.pipeline,
            run=event.run,
            stream=stream.stream,
            table=stream.table_name,
            status=stream.status,
            rows=stream.rows,
            written=stream.written,
            seconds=round(stream.seconds, 3),
        )
    elif event.kind is EventKind.RUN_ENDED:
        level = log.debug if event.status is Status.SUCCEEDED else log.warning
        level("run_ended", pipeline=event.pipeline, run=event.run, status=event.status)
