"""Progress of a pipeline's run in the terminal, or as JSON lines."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import orjson
from py4j.protocol import Py4JError
from rich.progress import (
    BarColumn,
    DownloadColumn,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.text import Text

from chronolake.cli.app import console, discard_stdout
from chronolake.formatting import size
from chronolake.pipeline.events import EventKind
from chronolake.pipeline.runs import Status

if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import Task

    from chronolake.lake import Lake
    from chronolake.pipeline.events import Event
    from chronolake.pipeline.runs import StreamRun

_ASKED_EVERY_SECONDS = 1.0
_STYLES = {Status.SUCCEEDED: "green", Status.PARTIAL: "yellow", Status.FAILED: "bold red"}


class SparkTasks(ProgressColumn):
    """Progress of Spark's current tasks: a step of gigabytes has many, but updates its bar once.

    Spark's tasks may belong to several streams, so every bar shows those of all.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._asked_at = float("-inf")
        self._text = Text()
        self._stages: set[int] = set()
        self._began = 0.0
        self._done_before = 0
        super().__init__()

    def render(self, task: Task) -> Text:  # noqa: ARG002 - Rich calls it for each bar, and often
        """Return the number of finished tasks and the remaining time; empty while Spark is idle."""
        if time.monotonic() - self._asked_at >= _ASKED_EVERY_SECONDS:
            self._asked_at = time.monotonic()
            self._text = self._describe_tasks()
        return self._text

    def _describe_tasks(self) -> Text:
        if not self._lake.has_started:
            return Text()
        try:
            tracker = self._lake.spark.sparkContext.statusTracker()
            stages = [
                stage
                for number in tracker.getActiveStageIds()
                if (stage := tracker.getStageInfo(number)) is not None
            ]
        except (Py4JError, OSError):
            # Spark is stopping, and the run's own error is more important.
            return Text()
        if not stages:
            return Text()
        numbers = {stage.stageId for stage in stages}
        done = sum(stage.numCompletedTasks for stage in stages)
        if numbers != self._stages:
            self._stages, self._began, self._done_before = numbers, time.monotonic(), done
        total = sum(stage.numTasks for stage in stages)
        text = f"{done:,} of {total:,} tasks"
        if newly := done - self._done_before:
            left = (time.monotonic() - self._began) * (total - done) / newly
            text += f", about {timedelta(seconds=round(left))} left"
        return Text(text, style="dim")


class Progress:
    """Display of a run's events: bars on a terminal, a line for each stream, or JSON lines."""

    def __init__(self, lake: Lake, *, json: bool) -> None:
        self.json = json
        self._is_closed = False
        self._screen = console()
        self._tasks: dict[str, TaskID] = {}
        self._landed: dict[str, int] = {}
        self._maintenance_task: TaskID | None = None
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TextColumn("{task.fields[rows]:,} rows"),
            TimeRemainingColumn(),
            SparkTasks(lake),
            console=console(stderr=True),
            transient=True,
            disable=json or not console(stderr=True).is_terminal,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def show(self, event: Event) -> None:
        """Show an event; the run goes on if the output's reader, such as `head`, has closed it."""
        if self._is_closed:
            return
        try:
            self._show(event)
        except BrokenPipeError:
            self._is_closed = True
            discard_stdout()

    def _show(self, event: Event) -> None:
        if self.json:
            line = orjson.dumps(_as_json(event), option=orjson.OPT_APPEND_NEWLINE)
            sys.stdout.write(line.decode())
            sys.stdout.flush()
            return
        stream = event.stream
        if stream is not None and event.kind is EventKind.STREAM_BEGAN:
            task = self._bars.add_task(stream.table_name, total=None, rows=0)
            self._tasks[stream.stream] = task
        elif stream is not None and event.kind is EventKind.LANDED:
            landed = self._landed.get(stream.stream, 0) + event.bytes
            self._landed[stream.stream] = landed
            description = f"{stream.table_name}, {size(landed)} landed"
            self._bars.update(self._tasks[stream.stream], description=description)
        elif stream is not None and event.kind in {EventKind.APPLYING, EventKind.PUBLISHED}:
            self._bars.update(
                self._tasks[stream.stream],
                description=stream.table_name,
                total=stream.bytes + event.bytes_left,
                completed=stream.bytes,
                rows=stream.rows,
            )
        elif stream is not None and event.kind is EventKind.STREAM_ENDED:
            self._bars.remove_task(self._tasks.pop(stream.stream))
            self._landed.pop(stream.stream, None)
            self._screen.print(_format_outcome(stream))
        elif stream is not None and event.kind is EventKind.SWITCHING:
            paused = f"  switching to {event.mode} mode; the sync is paused"
            self._screen.print(Text.assemble((stream.table_name, "bold"), paused))
        elif stream is not None and event.kind is EventKind.MAINTAINING:
            self._show_maintenance(stream)
        elif event.kind is EventKind.RUN_ENDED and event.status is not None:
            if self._maintenance_task is not None:
                self._bars.remove_task(self._maintenance_task)
                self._maintenance_task = None
            words = Text(event.status, style=_STYLES[event.status])
            self._screen.print(Text.assemble((event.pipeline, "bold"), "  ", words))

    def _show_maintenance(self, stream: StreamRun) -> None:
        description = f"{stream.table_name}, compacting files"
        if self._maintenance_task is None:
            self._maintenance_task = self._bars.add_task(description, total=None, rows=stream.rows)
        self._bars.update(self._maintenance_task, description=description, rows=stream.rows)


def _format_outcome(stream: StreamRun) -> Text:
    """Format the outcome of a stream on one line."""
    if stream.error is not None:
        words = f"  {stream.error} {stream.hint}" if stream.hint else f"  {stream.error}"
        return Text.assemble((stream.table_name, "bold"), "  ", ("failed", "bold red"), words)
    if not stream.files and not stream.changed_modes:
        return Text.assemble((stream.table_name, "bold"), ("  nothing new", "dim"))
    return Text.assemble(
        (stream.table_name, "bold"),
        f"  {stream.files:,} files, {size(stream.bytes)}, {stream.rows:,} rows; "
        f"{stream.written:,} rows written",
        *(f"; {change['change']} column {change['column']}" for change in stream.changed_columns),
        *(f"; switched to {change['to']} mode" for change in stream.changed_modes),
        (f"  {stream.seconds:.1f} s", "dim"),
    )


def _as_json(event: Event) -> dict[str, Any]:
    content: dict[str, Any] = {
        "event": event.kind,
        "pipeline": event.pipeline,
        "run": event.run,
    }
    if event.status is not None:
        content["status"] = event.status
    if event.mode is not None:
        content["mode"] = event.mode
    if event.stream is not None:
        content |= stream_json(event.stream)
    if event.kind is EventKind.LANDED:
        content |= {"files_landed": event.files, "bytes_landed": event.bytes}
    if event.kind in {EventKind.APPLYING, EventKind.PUBLISHED}:
        content |= {"files_left": event.files_left, "bytes_left": event.bytes_left}
    return content


def stream_json(stream: StreamRun) -> dict[str, Any]:
    """Return a stream of a run as JSON types."""
    landed = None
    if stream.landed_files is not None:
        landed = {
            "files": stream.landed_files,
            "bytes": stream.landed_bytes,
            "rows": stream.landed_rows,
        }
    return {
        "stream": stream.stream,
        "table": stream.table_name,
        "status": stream.status,
        "files": stream.files,
        "bytes": stream.bytes,
        "rows": stream.rows,
        "written": stream.written,
        "seconds": round(stream.seconds, 3),
        "position": stream.position,
        "error": stream.error,
        "hint": stream.hint,
        "rows_read": stream.rows_read,
        "column_changes": stream.changed_columns,
        "mode_changes": stream.changed_modes,
        "landed": landed,
    }
