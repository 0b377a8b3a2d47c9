"""One run over a stream: slices read by several threads, their records in files."""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import structlog

from chronolake.changes import MODIFIED, SEQUENCE
from chronolake.errors import ChronolakeError
from chronolake.failpoints import reach
from chronolake.source.declarative.landing.place import Place
from chronolake.types import now_micros

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Future
    from threading import Event

    from chronolake.source.declarative.landing.identity import Identity
    from chronolake.source.declarative.landing.parts import Part, PartWriter, Waiting
    from chronolake.source.declarative.landing.shape import Shape
    from chronolake.source.declarative.reading import StreamReader, Work
    from chronolake.source.declarative.records.transformations import Record
    from chronolake.source.declarative.slices import Slice
    from chronolake.source.offered import Position

log = structlog.get_logger(__name__)

#: What waits is landed when it has so many bytes, or so many seconds after the last landing.
_LANDING_BYTES: Final = 256 * 2**20
_LANDING_SECONDS: Final = 120.0
#: Noting what is finished takes at most this part of the time.
_NOTING_SHARE: Final = 0.05


@dataclass(frozen=True)
class Read:
    """What one slice has brought.

    Attributes:
        parts: its records.
        latest: the cursor of the latest of them (`Slice.latest`).
    """

    parts: list[Part]
    latest: Any


class Run:
    """A stream while it is read.

    Attributes:
        failure: what went wrong first, or None.
        compared: the last complete comparison of the stream (`Place.compared`).
    """

    def __init__(
        self,
        reader: StreamReader,
        identity: Identity,
        shape: Shape,
        waiting: Waiting,
        cancelled: Event,
    ) -> None:
        """Prepare to read.

        Args:
            reader: the stream.
            identity: what tells its records apart.
            shape: its columns so far.
            waiting: where its records wait to be landed.
            cancelled: ends all requests when nobody wants the records any more.
        """
        self.reader = reader
        self._cancelled = cancelled
        self.identity = identity
        self.shape = shape
        self.waiting = waiting
        self.failure: ChronolakeError | None = None
        self.compared: Mapping[str, Any] | None = None
        self._noted = 0.0
        self._noting = 0.0

    @property
    def place(self) -> Position:
        """How far the stream is."""
        return Place(self.reader.state.as_json(), self.shape.types, self.compared).as_json()

    def read(self, workers: int, *, is_whole: bool = False) -> Iterator[Position]:
        """Read all slices; gives the stream's place each time when enough waits to be landed.

        What waits then is landed when the next place is asked for.

        Args:
            workers: how many requests are in flight.
            is_whole: whether only all slices together are of use.
        """
        begun = time.monotonic()
        with ThreadPoolExecutor(workers, thread_name_prefix=self.reader.stream.name) as pool:
            try:
                for work, read in self._finished(pool, workers):
                    self._take(work, read, is_noted=not is_whole)
                    is_late = time.monotonic() - begun > _LANDING_SECONDS
                    is_large = is_late or self.waiting.bytes >= _LANDING_BYTES
                    if self.waiting.parts and is_large and not is_whole:
                        yield self.place
                        begun = time.monotonic()
            except BaseException:
                # Nobody waits for what is still being read.
                self._cancelled.set()
                pool.shutdown(cancel_futures=True)
                raise
        self.reader.complete()
        yield self.place

    def _finished(
        self, pool: ThreadPoolExecutor, workers: int
    ) -> Iterator[tuple[Work, Future[Read]]]:
        """The slices as they are done, a few of them begun ahead."""
        pending: dict[Future[Read], Work] = {}
        slices = self.reader.work()
        is_over = False
        while pending or not is_over:
            while not is_over and len(pending) < 2 * workers:
                try:
                    work = next(slices)
                except StopIteration:
                    is_over = True
                except ChronolakeError as failure:
                    self._fail(failure)
                    is_over = True
                else:
                    pending[pool.submit(self._read, self.reader.read(work.slice))] = work
            done, _ = wait(pending, return_when=FIRST_COMPLETED)
            for one in done:
                yield pending.pop(one), one

    def _take(self, work: Work, read: Future[Read], *, is_noted: bool) -> None:
        try:
            found = read.result()
        except ChronolakeError as failure:
            self._fail(failure)
            return
        self.waiting.add(found.parts)
        self.reader.done(work, found.latest)
        reach("read.slice-done")
        if is_noted:
            self._note()
            reach("read.slice-noted")

    def _note(self) -> None:
        """Note what is finished, unless that would take most of the time."""
        now = time.monotonic()
        if now - self._noted < self._noting / _NOTING_SHARE:
            return
        self.waiting.note(self.place)
        self._noted = time.monotonic()
        self._noting = self._noted - now

    def _fail(self, failure: ChronolakeError) -> None:
        self.reader.failed()
        if self.failure is None:
            self.failure = failure
        log.warning("slice_failed", stream=self.reader.stream.name, reason=str(failure))

    def _read(self, one: Slice) -> Read:
        """Read a slice into files, in a thread of its own."""
        writer = self.waiting.writer()
        try:
            for records in one.pages():
                if records:
                    self._write(writer, one, records)
        except BaseException:
            writer.discard()
            raise
        return Read(writer.close(), one.latest)

    def _write(self, writer: PartWriter, one: Slice, records: list[Record]) -> None:
        now = now_micros()
        columns, arrays = self.shape.cells(self.identity.added(records), self.identity.columns)
        facts = {
            MODIFIED: pa.array([now if at is None else at for at in one.times], pa.int64()),
            # Of two answers the later one counts, and in an answer the later record.
            SEQUENCE: pa.array([f"{now:016x}{number:08x}" for number in range(len(records))]),
        }
        writer.add(columns, arrays, facts)
