"""A declarative source: the streams of a manifest, brought into the raw lake.

What a stream can see of changes follows from its cursor. One over time sees the state at each look,
and its versions begin when the records say that they were changed. A stream without a cursor is
read as a whole, and compared with its table.
"""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import structlog

from chronolake.changes import MODIFIED, SEQUENCE
from chronolake.errors import ChronolakeError, ConfigurationError
from chronolake.failpoints import reach
from chronolake.source.declarative.api import api_of
from chronolake.source.declarative.configured import masking, missing_in
from chronolake.source.declarative.identity import Identity
from chronolake.source.declarative.manifest import find, load
from chronolake.source.declarative.network import Network, http_client
from chronolake.source.declarative.parents import chosen
from chronolake.source.declarative.parts import Waiting, by_columns, records_of, rows_of
from chronolake.source.declarative.place import Place
from chronolake.source.declarative.reading import StreamReader
from chronolake.source.declarative.schemas import schema_of
from chronolake.source.declarative.shape import Shape, declared_columns
from chronolake.source.declarative.traits import concurrency_of, epsilon_of, sight_of, traits_of
from chronolake.source.declarative.trying import findings_of
from chronolake.source.offered import (
    Failure,
    Finding,
    OfferedStream,
    Piece,
    Sight,
    Snapshot,
    raw_folder,
)
from chronolake.types import now_micros

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Future
    from threading import Event

    from pyspark.sql import SparkSession

    from chronolake.config import DeclarativeSource, Project
    from chronolake.lake import Lake
    from chronolake.source.declarative.api import Api
    from chronolake.source.declarative.language.streams import AnyStream, DeclarativeStream
    from chronolake.source.declarative.manifest import Manifest
    from chronolake.source.declarative.oauth import Remember
    from chronolake.source.declarative.parts import Part, PartWriter
    from chronolake.source.declarative.reading import Slice, Work
    from chronolake.source.declarative.transformations import Record
    from chronolake.source.offered import Position
    from chronolake.types import ColumnType

log = structlog.get_logger(__name__)

#: What waits is landed when it has so many bytes, or so many seconds after the last landing.
_LANDING_BYTES: Final = 256 * 2**20
_LANDING_SECONDS: Final = 120.0
#: Noting what is finished takes at most this part of the time.
_NOTING_SHARE: Final = 0.05


@dataclass
class DeclarativeApi:
    """The streams of a manifest."""

    project: Project
    pipeline: str
    config: DeclarativeSource
    _recalled: Mapping[str, Any] = field(default_factory=dict, repr=False)
    _remember: Remember | None = field(default=None, repr=False)

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest.

        Raises:
            ConfigurationError: there is none, or it cannot be read at all.
        """
        return load(find(self.config.manifest, beside=self.project.file.parent))

    @property
    def streams(self) -> dict[str, AnyStream]:
        """The streams that the configuration wants.

        Raises:
            ConfigurationError: the manifest has not one of them, or cannot be read.
        """
        wanted = self.config.only
        if wanted is not None:
            return {name: self.manifest.stream(name) for name in wanted}
        if not self.manifest.streams:
            self.manifest.stream(next((one.stream or "" for one in self.manifest.problems), ""))
        return dict(self.manifest.streams)

    def offered(self) -> list[OfferedStream]:
        """The streams that can be read, of those that the configuration wants."""
        return [self._offered(name, stream) for name, stream in self.streams.items()]

    def _offered(self, name: str, stream: AnyStream) -> OfferedStream:
        return OfferedStream(
            traits_of(stream),
            sight_of(stream),
            epsilon_of(stream),
            raw_folder(self.project, self.pipeline, name),
            is_ours=True,
            key=Identity.of(chosen(stream, {"": ""})).columns,
        )

    def recall(self, recalled: Mapping[str, Any], remember: Remember) -> None:
        """Go on with what earlier runs had to remember: tokens that change with each use.

        Args:
            recalled: what `remember` was given last.
            remember: keeps what the next run has to know.
        """
        self._recalled, self._remember = recalled, remember

    def bring(
        self, lake: Lake, positions: Mapping[str, Position | None], *, anew: bool
    ) -> Iterator[Piece | Snapshot | Failure]:
        """What has changed since the last run, stream by stream; one that fails stops no other."""
        missing = missing_in(self.config.config, self.manifest.specification)
        if missing:
            raise ConfigurationError(
                f"{self.project.file}: pipelines.{self.pipeline}.source.config lacks "
                f"{', '.join(missing)}.",
                hint="The manifest's `spec` says what each of them is.",
            )
        mask = masking(self.config.config, self.manifest.specification)
        with http_client() as client:
            network = Network(client, allowed_hosts=self.config.allowed_hosts, mask=mask)
            api = api_of(
                self.manifest,
                self.config.config,
                network,
                remember=self._remember,
                recalled=self._recalled,
            )
            for name, told in positions.items():
                try:
                    yield from self._bring(lake, api, name, None if anew else told, anew=anew)
                except ChronolakeError as failure:
                    yield Failure(name, failure)

    def findings(self, *, create: bool) -> list[Finding]:  # noqa: ARG002 - it makes nothing
        """What is wrong with manifest and configuration, what streams can do, whether they answer.

        Raises:
            ConfigurationError: the manifest cannot be read at all.
        """
        return list(findings_of(self.manifest, self.config))

    def landed(self, positions: Mapping[str, Position]) -> None:
        """The API keeps nothing for a pipeline; what has landed is forgotten in `bring`."""

    def _bring(
        self, lake: Lake, api: Api, name: str, told: Position | None, *, anew: bool
    ) -> Iterator[Piece | Snapshot | Failure]:
        stream = chosen(self.streams[name], Place.of(told).state)
        folder = self.project.lake.path / "raw" / "_spool" / self.pipeline.replace("/", "_")
        place = folder / raw_folder(self.project, self.pipeline, name).name
        if anew or sight_of(stream) is Sight.SNAPSHOT_DIFF:
            # What another run has left does not belong to this one, which reads everything.
            Waiting(place).discard()
        waiting, left = Waiting.left(place)
        if waiting.parts and left is not None:
            yield from _pieces(lake.spark, name, waiting, told or {}, left)
            waiting.landed()
            told = left
        position = Place.of(told)
        reader = StreamReader(stream, api, position.state, on_limit=self.config.on_partition_limit)
        identity = Identity.of(stream)
        shape = Shape({**identity.typed(_declared(stream, api)), **position.types})
        run = _Run(reader, identity, shape, waiting, api.access.cancelled)
        workers = self.config.concurrency or concurrency_of(self.manifest, self.config.config)
        if sight_of(stream) is Sight.SNAPSHOT_DIFF:
            yield from self._whole(lake.spark, name, run, workers)
            return
        before: Position = told or {}
        for after in run.read(workers):
            yield from _pieces(lake.spark, name, waiting, before, after)
            before = after
            waiting.landed()
        if run.failure is not None:
            yield Failure(name, run.failure)

    def _whole(
        self, spark: SparkSession, name: str, run: _Run, workers: int
    ) -> Iterator[Piece | Snapshot | Failure]:
        """All records, to be compared with the table; some of them say nothing about the others."""
        at = now_micros()
        (position,) = run.read(workers, is_whole=True)
        if run.failure is not None:
            yield Failure(name, run.failure)
            return
        columns = run.shape.columns(run.identity.columns)
        if not any(column.primary_key for column in columns):
            # Nobody has ever seen a record.
            yield Piece(name, None, (), position)
            return
        rows = records_of(spark, run.waiting.parts, columns)
        sequence = f"{at:016x}"
        yield Snapshot(name, rows, columns, at, sequence, position, is_distinct=False)
        run.waiting.landed()


def _pieces(
    spark: SparkSession,
    name: str,
    waiting: Waiting,
    before: Position,
    after: Position,
) -> Iterator[Piece]:
    """What waits, the files with the same columns together; the last says where the stream is."""
    groups = by_columns(waiting.parts)
    if not groups:
        yield Piece(name, None, (), after)
    for number, (columns, parts) in enumerate(groups, 1):
        position = after if number == len(groups) else before
        yield Piece(name, rows_of(spark, parts), columns, position)


def _declared(stream: DeclarativeStream, api: Api) -> dict[str, ColumnType]:
    return declared_columns(schema_of(stream, api.file, api.config))


class _Run:
    """One run over a stream: slices read by several threads, their records in files."""

    def __init__(
        self,
        reader: StreamReader,
        identity: Identity,
        shape: Shape,
        waiting: Waiting,
        cancelled: Event,
    ) -> None:
        self.reader = reader
        self._cancelled = cancelled
        self.identity = identity
        self.shape = shape
        self.waiting = waiting
        self.failure: ChronolakeError | None = None
        self._noted = 0.0
        self._noting = 0.0

    @property
    def place(self) -> Position:
        """How far the stream is."""
        return Place(self.reader.state.as_json(), self.shape.types).as_json()

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
    ) -> Iterator[tuple[Work, Future[_Read]]]:
        """The slices as they are done, a few of them begun ahead."""
        pending: dict[Future[_Read], Work] = {}
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

    def _take(self, work: Work, read: Future[_Read], *, is_noted: bool) -> None:
        try:
            found = read.result()
        except ChronolakeError as failure:
            self._fail(failure)
            return
        self.waiting.parts += found.parts
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

    def _read(self, one: Slice) -> _Read:
        """Read a slice into files, in a thread of its own."""
        writer = self.waiting.writer()
        try:
            for records in one.pages():
                if records:
                    self._write(writer, one, records)
        except BaseException:
            writer.discard()
            raise
        return _Read(writer.close(), one.latest)

    def _write(self, writer: PartWriter, one: Slice, records: list[Record]) -> None:
        now = now_micros()
        columns, arrays = self.shape.cells(self.identity.added(records), self.identity.columns)
        facts = {
            MODIFIED: pa.array([now if at is None else at for at in one.times], pa.int64()),
            # Of two answers the later one counts, and in an answer the later record.
            SEQUENCE: pa.array([f"{now:016x}{number:08x}" for number in range(len(records))]),
        }
        writer.add(columns, arrays, facts)


@dataclass(frozen=True)
class _Read:
    """What one slice has brought."""

    parts: list[Part]
    latest: Any
