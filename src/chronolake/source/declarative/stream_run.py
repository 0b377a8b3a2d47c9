"""One run over a stream: threads that read slices into files, and the stream's offset.

The offset that a checkpoint stores contains the stream's state, its columns so far, and the time of
the last complete comparison with the API. Settings of single streams come from chronolake.yml.
"""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Self

import structlog

from chronolake.config import Nested, StreamConfig, is_never
from chronolake.errors import ChronolakeError, ConfigurationError
from chronolake.failpoints import reach
from chronolake.landing import ColumnRules
from chronolake.source.declarative.manifests.capabilities import (
    cursor_field_of,
    cursor_of,
    has_only_texts,
    primary_key_of,
)
from chronolake.source.declarative.models.streams import DatetimeBasedCursor
from chronolake.source.declarative.parent_streams import (
    iterate_parent_configs,
    iterate_parents,
    select_stream,
)
from chronolake.source.declarative.slice_files import hide, unexpected_error
from chronolake.source.protocol import COMPARED, DeclaredColumns
from chronolake.source.records.pending_files import filled_in
from chronolake.source.records.schema import Nesting, Shape, declared_columns, declared_fields
from chronolake.types import ColumnType, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from concurrent.futures import Future

    from chronolake.config import PipelineConfig, Project
    from chronolake.source.declarative.http.api_session import ApiSession
    from chronolake.source.declarative.models.streams import AnyStream, DeclarativeStream
    from chronolake.source.declarative.slice_files import SliceFiles, SliceResult
    from chronolake.source.declarative.spark.slice_waves import Cluster
    from chronolake.source.declarative.stream_reader import StreamReader, Work
    from chronolake.source.protocol import Offset
    from chronolake.source.records.identity import Identity
    from chronolake.source.records.pending_files import PendingFiles


@dataclass(frozen=True)
class Settings:
    """The settings of a stream that its source applies.

    Attributes:
        detect_deletes: how often the stream is compared with the API's complete data; None: never.
        may_become_empty: whether such a comparison may delete all records.
        nests: whether declared fields of objects become columns.
        cursor: the cursor's field, if it is part of the key.
        rules: the rules of its columns.
    """

    detect_deletes: str | None = None
    may_become_empty: bool = False
    nests: bool = False
    cursor: str | None = None
    rules: ColumnRules = field(default_factory=ColumnRules)

    @classmethod
    def of(
        cls, project: Project, pipeline: str, stream: AnyStream, api_config: Mapping[str, Any]
    ) -> Self:
        """Return the settings of a stream.

        Args:
            project: the configuration.
            pipeline: the pipeline's name.
            api_config: the user's settings for the manifest.

        Raises:
            ConfigurationError: the stream does not support a setting.
        """
        config = project.pipelines[pipeline]
        own = config.streams.get(stream.name, StreamConfig())
        asked = _RequestedSettings(project, pipeline, stream, own)
        return cls(
            asked.detect_deletes(config),
            own.may_become_empty,
            (own.nested or config.nested) is Nested.COLUMNS,
            asked.cursor(api_config),
            asked.rules(),
        )

    def identity_of(self, stream: DeclarativeStream) -> Identity:
        """Return the key of a stream's records."""
        return replace(primary_key_of(stream, self.cursor), rules=self.rules)

    def shape_of(
        self,
        stream: DeclarativeStream,
        schema: Mapping[str, Any],
        known: Mapping[str, ColumnType] | None = None,
    ) -> Shape:
        """Return the columns of a stream's records.

        Args:
            schema: the schema of its records.
            known: the types that columns have had so far.

        Raises:
            ConfigurationError: two fields would become the same column.
        """
        identity = self.identity_of(stream)
        nesting = Nesting(stream.name, schema, identity.columns) if self.nests else None
        declared = declared_columns(schema) if nesting is None else nesting.declared
        fields = declared_fields(schema) if nesting is None else frozenset(nesting.fields)
        typed = identity.add_key_column(declared)
        return Shape(
            {**typed, **(known or {})},
            frozenset(declared) & typed.keys(),
            nesting,
            stream.name,
            has_only_texts(stream),
            fields,
        )


@dataclass(frozen=True)
class _RequestedSettings:
    """A stream's settings, checked against what it supports."""

    project: Project
    pipeline: str
    stream: AnyStream
    own: StreamConfig

    def detect_deletes(self, config: PipelineConfig) -> str | None:
        """Return how often the stream is compared."""
        reason = self._reason_against_comparisons()
        if self.own.detect_deletes is None:
            # The pipeline's setting applies to those streams that support it.
            wanted = config.detect_deletes if reason is None else None
        else:
            wanted = self.own.detect_deletes
        if is_never(wanted):
            return None
        if reason is not None:
            raise self._unsupported_error("detect_deletes", *reason)
        return wanted

    def _reason_against_comparisons(self) -> tuple[str, str] | None:
        """Return why the stream cannot be compared, and what to do, or None if it can."""
        leave = f"Remove streams.{self.stream.name}.detect_deletes."
        if cursor_of(self.stream) is None:
            return "it has no cursor, so each run already reads and compares all records", leave
        if not self._identity.paths:
            return (
                "it has no primary key, so a changed record would look deleted",
                "Set its primary_key in the manifest, or remove detect_deletes.",
            )
        for parent in iterate_parents(self.stream):
            if isinstance(cursor_of(parent), DatetimeBasedCursor):
                reason = (
                    f"its parent {parent.name} is read incrementally, so records of earlier "
                    "parents would look deleted"
                )
                return reason, leave
        if self.own.cursor_in_key:
            reason = "its cursor is part of its key, so a changed record would look deleted"
            return reason, "Use either cursor_in_key or detect_deletes."
        return None

    def cursor(self, config: Mapping[str, Any]) -> str | None:
        """Return the cursor's field, if it should be part of the key."""
        if not self.own.cursor_in_key:
            return None
        model = cursor_of(self.stream)
        leave = f"Remove streams.{self.stream.name}.cursor_in_key."
        if not isinstance(model, DatetimeBasedCursor):
            raise self._unsupported_error("cursor_in_key", "it has no datetime cursor", leave)
        if not self._identity.paths:
            reason = "it has no primary key, so the whole record is its key"
            raise self._unsupported_error("cursor_in_key", reason, leave)
        return cursor_field_of(self.stream, config)

    def rules(self) -> ColumnRules:
        """Return the rules of the stream's columns."""
        config = self.project.pipelines[self.pipeline]
        rules = ColumnRules.of(config, self.stream.name)
        place = f"pipelines.{self.pipeline}.streams.{self.stream.name}"
        for parent in iterate_parent_configs(self.stream):
            # The state of the stream names its partitions.
            name = parent.stream.name
            ColumnRules.of(config, name).expect_plain(
                [parent.parent_key.partition("/")[0]],
                place=f"pipelines.{self.pipeline}.streams.{name}",
                reason=f"its values are stored in the state of the stream {self.stream.name}",
            )
            rules.expect_plain(
                [parent.partition_field], place=place, reason="its values are stored in the state"
            )
        # A key within an object identifies records, too.
        rules.expect_stored({path[0] for path in self._identity.paths}, place=place)
        return rules

    @property
    def _identity(self) -> Identity:
        return primary_key_of(select_stream(self.stream, {"": ""}))

    def _unsupported_error(self, key: str, reason: str, hint: str) -> ConfigurationError:
        name = self.stream.name
        return ConfigurationError(
            f"{self.project.file}: pipelines.{self.pipeline}.streams.{name}.{key}: "
            f"the stream {name} does not support it: {reason}.",
            hint=hint,
        )


_STATE: Final = "state"
_COLUMNS: Final = "columns"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class StreamOffset:
    """A stream's offset.

    Attributes:
        state: the stream's state, or None.
        types: the types of the columns so far, by name.
        compared: the last complete comparison (`protocol.COMPARED`), or None.
    """

    state: Mapping[str, Any] | None = None
    types: Mapping[str, ColumnType] = field(default_factory=dict)
    compared: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, stored: Mapping[str, Any] | None) -> Self:
        """Return the offset in a checkpoint, which may also be another reader's state."""
        if not stored:
            return cls()
        if _COLUMNS not in stored:
            return cls(stored)
        types = {name: ColumnType(Kind(kind)) for name, kind in stored[_COLUMNS].items()}
        return cls(stored[_STATE], types, stored.get(COMPARED))

    @property
    def compared_at(self) -> datetime | None:
        """Return when the last complete comparison began."""
        if self.compared is None:
            return None
        return _EPOCH + timedelta(microseconds=self.compared["at"])

    def as_json(self) -> dict[str, Any]:
        """Return the offset as JSON; `of` reads it."""
        columns = {name: kind.kind for name, kind in self.types.items()}
        reported = {_STATE: self.state, _COLUMNS: columns}
        return reported if self.compared is None else {**reported, COMPARED: dict(self.compared)}


log = structlog.get_logger(__name__)

#: Records are landed when they reach this size in bytes, or this many seconds after the last
#: landing.
_LANDING_BYTES: Final = 256 * 2**20
_LANDING_SECONDS: Final = 120.0
#: The most slices that are passed to Spark at once.
_MOST_IN_WAVE: Final = 10_000
#: Seconds between two reports of progress.
_REPORT_SECONDS: Final = 1.0
#: The largest share of the time that writing the journal may take.
_NOTING_SHARE: Final = 0.05


class Run:
    """A run that reads a stream.

    Attributes:
        failure: the first error, or None.
        is_stopped: whether the run was asked to stop.
        rows: number of records read.
        is_complete: whether all slices have been read.
        compared: the last complete comparison of the stream (`Place.compared`).
    """

    def __init__(
        self,
        reader: StreamReader,
        files: SliceFiles,
        waiting: PendingFiles,
        session: ApiSession,
        *,
        cluster: Cluster | None = None,
        alone_bytes: int = 0,
    ) -> None:
        """Prepare to read.

        Args:
            reader: the stream.
            files: writes records to files while they are read.
            waiting: stores finished slices until they are landed.
            session: the API session; it is cancelled when the records are no longer needed.
            cluster: reads a large stream's slices; None: all slices are read in this process.
            alone_bytes: bytes to read in this process before the cluster reads the rest.
        """
        self.reader = reader
        self._cancelled = session.cancelled
        # A message may contain a value.
        self._mask = hide if files.identity.rules else session.network.mask
        self.files = files
        self.waiting = waiting
        self.failure: ChronolakeError | None = None
        self.is_stopped = False
        self.rows = 0
        self.is_complete = False
        self._filled: frozenset[str] = frozenset()
        self.compared: Mapping[str, Any] | None = None
        self._cluster = cluster
        self._alone_bytes = alone_bytes
        self._slices = 0
        self._bytes = 0
        self._noted = 0.0
        self._noting = 0.0

    @property
    def place(self) -> Offset:
        """Return the stream's offset."""
        types = self.files.shape.current_types()
        return StreamOffset(self.reader.state.as_json(), types, self.compared).as_json()

    def declared(self) -> DeclaredColumns:
        """Return what the schema declares, if everything was read, and what records contain."""
        is_whole = self.is_complete and self.failure is None
        names = self.files.shape.fields if is_whole else frozenset()
        return DeclaredColumns(names, self._filled)

    def read(self, workers: int, *, is_whole: bool = False) -> Iterator[Offset]:
        """Read all slices; yield the stream's offset whenever enough records wait to be landed.

        The caller lands them before it requests the next offset.

        Args:
            workers: number of concurrent requests.
            is_whole: whether the records are useful only once all slices have been read.
        """
        found = self.read_with_progress(workers, is_whole=is_whole)
        return (place for place in found if place is not None)

    def read_with_progress(
        self, workers: int, *, is_whole: bool = False
    ) -> Iterator[Offset | None]:
        """Yield as `read` does, and None about every second while slices are read (`rows`)."""
        begun = reported = time.monotonic()
        with ThreadPoolExecutor(workers, thread_name_prefix=self.reader.stream.name) as pool:
            try:
                with closing(self._read_works(pool, workers)) as finished:
                    for work, read in finished:
                        self._take(work, read, is_noted=not is_whole)
                        is_late = time.monotonic() - begun > _LANDING_SECONDS
                        is_due = is_late or self.waiting.bytes >= _LANDING_BYTES
                        if self.waiting.parts and is_due and not is_whole:
                            yield self.place
                            if self.is_stopped:
                                pool.shutdown(cancel_futures=True)
                                return
                            begun = time.monotonic()
                        elif time.monotonic() - reported > _REPORT_SECONDS:
                            yield None
                            reported = time.monotonic()
            except BaseException:
                # The results of requests in flight are no longer needed.
                self._cancelled.set()
                pool.shutdown(cancel_futures=True)
                raise
        self.reader.complete()
        self.is_complete = True
        yield self.place

    def stop(self) -> None:
        """Stop sending requests, because the stream's records cannot be landed."""
        self.is_stopped = True

    def _read_works(
        self, pool: ThreadPoolExecutor, workers: int
    ) -> Generator[tuple[Work, SliceResult | ChronolakeError]]:
        """Yield the slices as they finish."""
        works = self._works()
        yield from self._read_here(works, pool, workers, lambda: self._is_large)
        while self._cluster is not None and (wave := list(islice(works, self._wave_size(workers)))):
            if len(wave) > 1:
                yield from self._cluster.read(wave)
            else:
                yield from self._read_here(iter(wave), pool, workers, lambda: False)

    def _works(self) -> Iterator[Work]:
        """Yield the slices to read; record the error if they cannot be determined."""
        try:
            yield from self.reader.work()
        except ChronolakeError as failure:
            self._fail(failure)

    def _read_here(
        self,
        works: Iterator[Work],
        pool: ThreadPoolExecutor,
        workers: int,
        is_enough: Callable[[], bool],
    ) -> Iterator[tuple[Work, SliceResult | ChronolakeError]]:
        """Read slices in threads, some of them ahead, until enough are read; yield each result."""
        pending: dict[Future[SliceResult], Work] = {}
        while True:
            while len(pending) < 2 * workers and not is_enough():
                work = next(works, None)
                if work is None:
                    break
                pending[pool.submit(self.files.read, self.reader.slices.read(work))] = work
            if not pending:
                return
            done, _ = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                work = pending.pop(future)
                try:
                    yield work, future.result()
                except ChronolakeError as failure:
                    yield work, failure
                except Exception as failure:  # noqa: BLE001 - one slice must not stop the others
                    yield work, unexpected_error(failure, self._mask)

    @property
    def _is_large(self) -> bool:
        """Return whether enough has been read that the cluster should read the rest."""
        return self._cluster is not None and self._bytes >= self._alone_bytes

    def _wave_size(self, workers: int) -> int:
        """Return how many slices the cluster reads at once; their records are landed together."""
        bytes_per_slice = max(1, self._bytes // max(1, self._slices))
        return min(max(_LANDING_BYTES // bytes_per_slice, workers), _MOST_IN_WAVE)

    def _take(self, work: Work, result: SliceResult | ChronolakeError, *, is_noted: bool) -> None:
        if isinstance(result, ChronolakeError):
            self._fail(result)
            return
        if result.is_undated:
            self.reader.warn_of_undated()
        self.waiting.add(result.parts)
        self._slices += 1
        self._bytes += sum(part.bytes for part in result.parts)
        self.rows += sum(part.rows for part in result.parts)
        self._filled |= filled_in(result.parts)
        self.reader.mark_read(work, result.latest)
        reach("read.slice-done")
        if is_noted:
            self._note()

    def _note(self) -> None:
        """Write the journal, unless that would take too large a share of the time."""
        now = time.monotonic()
        if now - self._noted < self._noting / _NOTING_SHARE:
            return
        self.waiting.note(self.place)
        self._noted = time.monotonic()
        self._noting = self._noted - now
        reach("read.slice-noted")

    def _fail(self, failure: ChronolakeError) -> None:
        self.reader.mark_failed()
        if self.failure is None:
            self.failure = failure
        log.warning("slice_failed", stream=self.reader.stream.name, reason=str(failure))
