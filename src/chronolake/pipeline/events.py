"""What happens in a run, told to whoever watches, and noted in the store for other processes.

What a stream has come to is noted at once where something begins or ends. In between, steps may
follow each other quickly: they are noted by a thread, once a second at most, so that looking at a
run costs it nothing.
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

log = structlog.get_logger(__name__)

_NOTED_EVERY_SECONDS: Final = 1.0


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


class Report(AbstractContextManager["Report"]):
    """Where a run says what happens: the store, and whoever watches.

    What waits to be noted is noted when the block ends.

    Attributes:
        run: the run.
        store: where it is noted.
    """

    def __init__(self, store: Store, run: Run, watch: Callable[[Event], None]) -> None:
        self.run = run
        self.store = store
        self._watch = watch
        self._waiting: dict[str, StreamRun] = {}
        #: Held for moments only: a run never waits for the store because of what is noted soon.
        self._changing = threading.Lock()
        #: Held while the store is written: what is noted later is never overwritten by what is not.
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

    def tell(self, kind: EventKind, **details: Any) -> None:
        """Tell those who watch."""
        self._watch(Event(kind, self.run.pipeline, self.run.id, **details))

    def note(self, streams: Iterable[StreamRun]) -> None:
        """Note at once how far streams are.

        Raises:
            LakeError: the store does not answer.
        """
        given = list(streams)
        with self._writing:
            with self._changing:
                for stream in given:
                    self._waiting.pop(stream.stream, None)
            self.store.note(*given)

    def note_soon(self, stream: StreamRun) -> None:
        """Note within a second how far a stream is, unless something later is noted before."""
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
                # It only shows how far the run is; what comes of it is noted once more.
                log.warning("progress_not_noted", run=self.run.id, reason=failure.message)
