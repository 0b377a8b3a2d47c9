"""Events of a run, reported to a watcher and recorded in the store for other processes.

The outcome of a stream with new data is recorded immediately. Stages and steps may be short: a
thread records them, at most once a second, so that they do not slow the run down.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self

import structlog

from chronolake.errors import LakeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from chronolake.pipeline.runs import Run, Status, StreamRun
    from chronolake.pipeline.store import Store
    from chronolake.types import Mode

log = structlog.get_logger(__name__)

_NOTED_EVERY_SECONDS: Final = 1.0


class EventKind(StrEnum):
    """The kind of an event of a run."""

    RUN_BEGAN = "run-began"
    STREAM_BEGAN = "stream-began"
    APPLYING = "applying"
    LANDED = "landed"
    COLUMNS_CHANGED = "columns-changed"
    PUBLISHED = "published"
    SWITCHING = "switching"
    SWITCHED = "switched"
    MAINTAINING = "maintaining"
    STREAM_ENDED = "stream-ended"
    RUN_ENDED = "run-ended"


@dataclass(frozen=True)
class Event:
    """An event of a run.

    Attributes:
        kind: the kind of event.
        pipeline: the pipeline's name.
        run: the run's identity.
        status: the run's outcome, when it has ended.
        stream: the stream's progress, for events of a stream.
        files_left: files of the stream that are still to be applied.
        bytes_left: their size.
        streams: number of the pipeline's streams in the run.
        files: number of files that have landed in the raw lake, with `LANDED`.
        bytes: their size.
        mode: the mode to which the stream's table is switched, with `SWITCHING` and `SWITCHED`.
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
    mode: Mode | None = None


class Report(AbstractContextManager["Report"]):
    """Reporter of a run's events to the store and to a watcher.

    Pending records are written when the block ends.

    Attributes:
        store: the store that records it.
    """

    def __init__(self, store: Store, run: Run, watch: Callable[[Event], None]) -> None:
        self.run = run
        self.store = store
        self._watch = watch
        self._emitting = threading.Lock()
        self._waiting: dict[str, StreamRun] = {}
        #: Held only briefly, so that a run never waits for the store because of pending records.
        self._changing = threading.Lock()
        #: Held while the store is written, so that an older record never overwrites a newer one.
        self._writing = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_noting, name="run-notes", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def emit(self, kind: EventKind, **details: Any) -> None:
        """Report an event to the watcher, which need not be thread-safe."""
        with self._emitting:
            self._watch(Event(kind, self.run.pipeline, self.run.id, **details))

    def note(self, streams: Iterable[StreamRun]) -> None:
        """Record the progress of streams immediately.

        Raises:
            LakeError: the store is not reachable.
        """
        given = list(streams)
        with self._writing:
            with self._changing:
                for stream in given:
                    self._waiting.pop(stream.stream, None)
            self.store.note(*given)

    def note_soon(self, stream: StreamRun) -> None:
        """Record a stream's progress within a second, unless a newer one is recorded before."""
        with self._changing:
            self._waiting[stream.stream] = stream

    def _keep_noting(self) -> None:
        while not self._ended.wait(_NOTED_EVERY_SECONDS):
            self._note_waiting()
        self._note_waiting()

    def _note_waiting(self) -> None:
        with self._writing:
            with self._changing:
                waiting, self._waiting = list(self._waiting.values()), {}
            if not waiting:
                return
            try:
                self.store.note(*waiting)
            except LakeError as failure:
                # Only progress is lost; the outcome is recorded separately.
                log.warning("progress_not_noted", run=self.run.id, reason=failure.message)
