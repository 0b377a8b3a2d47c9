"""Declarative source: reads the streams of a manifest into the raw lake.

The capture method depends on a stream's cursor. With a datetime cursor, each read captures the
present state, and versions begin at the modification time of the record. A stream without a cursor
is read completely and compared with its table.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

from chronolake.config import is_due
from chronolake.errors import ChronolakeError, ConfigurationError
from chronolake.landing import ColumnRules, wider
from chronolake.source.declarative.check import check_source, complete_manifest
from chronolake.source.declarative.connect import open_api
from chronolake.source.declarative.manifests.capabilities import (
    capabilities_of,
    capture_method_of,
    cursor_field_of,
    cursor_of,
    epsilon_of,
    max_concurrency,
)
from chronolake.source.declarative.manifests.config_validation import raise_if_incomplete
from chronolake.source.declarative.manifests.manifest import find, load
from chronolake.source.declarative.models.streams import DatetimeBasedCursor
from chronolake.source.declarative.parent_streams import is_outdated, select_stream
from chronolake.source.declarative.reconcile import CompleteRead
from chronolake.source.declarative.slice_files import SliceFiles, hide, unexpected_error
from chronolake.source.declarative.spark.slice_waves import cluster_for
from chronolake.source.declarative.stream_reader import StreamReader
from chronolake.source.declarative.stream_run import Run, Settings, StreamOffset
from chronolake.source.declarative.whole_stream import WholeStream
from chronolake.source.protocol import (
    CaptureMethod,
    ChangeBatch,
    CheckResult,
    DeclaredColumns,
    DescribedStream,
    ReadProgress,
    Reconciliation,
    Snapshot,
    StreamDescriptor,
    StreamFailure,
    raw_folder,
    spool_folder,
)
from chronolake.source.records.pending_files import (
    WHOLE_RECORDS,
    PendingFiles,
    filled_in,
    group_by_columns,
    read_files,
)
from chronolake.types import now_micros

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from chronolake.config import DeclarativeSource, Project
    from chronolake.lake import Lake
    from chronolake.source.declarative.api import Api
    from chronolake.source.declarative.manifests.manifest import Manifest
    from chronolake.source.declarative.models.streams import AnyStream
    from chronolake.source.protocol import Offset, TokenStore
    from chronolake.source.records.pending_files import Part
    from chronolake.types import Column

#: Subfolder for reads that no other run continues, below the folder of a stream's waiting records.
_WHOLE: Final = "whole"


@dataclass
class DeclarativeApi:
    """The streams of a manifest, as a source."""

    project: Project
    pipeline: str
    config: DeclarativeSource
    memory: TokenStore | None = None
    _landed: Mapping[str, Offset] = field(default_factory=dict, init=False)
    _learned: Manifest | ChronolakeError | None = field(default=None, init=False, repr=False)

    @cached_property
    def manifest(self) -> Manifest:
        """Return the manifest.

        Raises:
            ConfigurationError: the manifest does not exist, or cannot be parsed.
        """
        return load(
            find(self.config.manifest, beside=self.project.file.parent),
            allow_components=self.config.allow_components,
        )

    @property
    def _known(self) -> Manifest:
        """Return the manifest with all its streams; the API is queried for them once."""
        if self._learned is None:
            self._learned = complete_manifest(self.manifest, self.config, memory=self.memory)
        if isinstance(self._learned, ChronolakeError):
            raise self._learned
        return self._learned

    def _learn(self, manifest: Manifest | ChronolakeError) -> None:
        self._learned = manifest

    @property
    def streams(self) -> dict[str, AnyStream]:
        """Return the configured streams; the API is queried if only it knows them.

        Raises:
            ConfigurationError: the manifest lacks one of them, or cannot be parsed.
            SourceError: the API does not return its streams.
        """
        wanted, whole = self.config.only, self._known
        if wanted is not None:
            return {name: whole.stream(name) for name in wanted}
        if not whole.streams and whole.problems:
            whole.stream(next((problem.stream or "" for problem in whole.problems), ""))
        return dict(whole.streams)

    def discover(self) -> list[StreamDescriptor]:
        """Return descriptors of the configured streams."""
        patterns = self.project.pipelines[self.pipeline].tables
        return [
            self._descriptor(name, stream)
            for name, stream in self.streams.items()
            if patterns.select(name)
        ]

    def _descriptor(self, name: str, stream: AnyStream) -> StreamDescriptor:
        settings = Settings.of(self.project, self.pipeline, stream, self.config.config)
        return StreamDescriptor(
            capabilities_of(stream),
            capture_method_of(stream),
            epsilon_of(stream),
            raw_folder(self.project, self.pipeline, name),
            is_ours=True,
            key=settings.identity_of(select_stream(stream, {"": ""})).columns,
            cursor=cursor_field_of(stream, self.config.config),
            has_all_columns=False,
        )

    def describe_streams(self, names: Collection[str]) -> Iterator[DescribedStream | StreamFailure]:
        """Yield the columns that schemas declare; the API is queried if only it knows them."""
        streams = self.streams
        with self._open() as api:
            for name in names:
                either = streams[name]
                try:
                    stream = select_stream(either, {"": ""})
                    reader = StreamReader(stream, api)
                    settings = Settings.of(self.project, self.pipeline, either, api.config)
                    shape = settings.shape_of(stream, reader.schema)
                except ChronolakeError as failure:
                    yield StreamFailure(name, failure)
                else:
                    columns = shape.columns(settings.identity_of(stream).columns)
                    yield DescribedStream(name, columns)

    def _open(self) -> AbstractContextManager[Api]:
        return open_api(self._known, self.config, stream_names=self.config.only, memory=self.memory)

    def use_token_store(self, memory: TokenStore) -> None:
        """Set the store for tokens that change with each use."""
        self.memory = memory

    def read(
        self, lake: Lake, positions: Mapping[str, Offset | None], *, full_refresh: bool
    ) -> Iterator[ChangeBatch | Snapshot | Reconciliation | ReadProgress | StreamFailure]:
        """Yield changes since the last run, by stream; a failure does not stop other streams."""
        where = f"{self.project.file}: pipelines.{self.pipeline}.source.config"
        raise_if_incomplete(self.config.config, self.manifest, where)
        streams = self.streams
        with self._open() as api:
            for name, reported in positions.items():
                since = None if full_refresh else reported
                try:
                    yield from self._read_stream(
                        lake, api, name, streams[name], since, full_refresh=full_refresh
                    )
                except ChronolakeError as failure:
                    yield StreamFailure(name, failure)
                except Exception as failure:  # noqa: BLE001 - one stream must not stop the others
                    rules = ColumnRules.of(self.project.pipelines[self.pipeline], name)
                    mask = hide if rules else api.session.network.mask
                    yield StreamFailure(name, unexpected_error(failure, mask))

    def expect_window(self, stream: str) -> None:
        """Raise unless the stream has a cursor over time.

        Raises:
            ConfigurationError: it has none.
        """
        if not isinstance(cursor_of(self.streams[stream]), DatetimeBasedCursor):
            raise ConfigurationError(
                f"The stream {stream} has no cursor over time, so it cannot be read by a time "
                "range.",
                hint=f"`chronolake resync {self.pipeline} --stream {stream}` reads all of it.",
            )

    def read_window(
        self, lake: Lake, stream: str, position: Offset, begin: datetime, end: datetime
    ) -> Iterator[ChangeBatch | ReadProgress | StreamFailure]:
        """Yield the records whose cursor is in a time range; the stream's state stays."""
        where = f"{self.project.file}: pipelines.{self.pipeline}.source.config"
        raise_if_incomplete(self.config.config, self.manifest, where)
        with self._open() as api:
            try:
                yield from self._read_window(lake, api, stream, position, (begin, end))
            except ChronolakeError as failure:
                yield StreamFailure(stream, failure)

    def _read_window(
        self,
        lake: Lake,
        api: Api,
        name: str,
        position: Offset,
        window: tuple[datetime, datetime],
    ) -> Iterator[ChangeBatch | ReadProgress | StreamFailure]:
        either = self.streams[name]
        settings = Settings.of(self.project, self.pipeline, either, api.config)
        stream = select_stream(either, {"": ""})
        begin, end = window
        reader = StreamReader(
            stream,
            api,
            on_limit=self.config.on_partition_limit,
            dated_by=cursor_of(either),
            window=(begin, end - timedelta(microseconds=1)),
        )
        folder = raw_folder(self.project, self.pipeline, name)
        place = spool_folder(self.project, self.pipeline) / folder.name / _WHOLE
        PendingFiles(place).discard()
        waiting, _ = PendingFiles.recover(place, settings.rules.digest)
        shape = settings.shape_of(stream, reader.schema, StreamOffset.of(position).types)
        files = SliceFiles(waiting.folder, settings.identity_of(stream), shape)
        run = self._begin_run(lake, api, reader, files, waiting)
        landing = _PendingRecords(lake, name, waiting, Repeats(may_be=True))
        for place_after in run.read_with_progress(self._workers(api)):
            yield ReadProgress(name, run.rows)
            if place_after is not None:
                yield from landing.batches(position, position, files.columns(), run.declared())
                waiting.acknowledge()
        if run.failure is not None:
            yield StreamFailure(name, run.failure)

    def _begin_run(
        self,
        lake: Lake,
        api: Api,
        reader: StreamReader,
        files: SliceFiles,
        waiting: PendingFiles,
    ) -> Run:
        """Return a run over a stream, whose slices Spark's tasks read if there is a cluster."""
        return Run(
            reader,
            files,
            waiting,
            api.session,
            cluster=cluster_for(lake, api, reader, files, self._workers(api)),
            alone_bytes=self.config.spark_from_mib * 2**20,
        )

    def _workers(self, api: Api) -> int:
        return self.config.concurrency or max_concurrency(self.manifest, api.config)

    def check(
        self,
        *,
        create: bool,  # noqa: ARG002 - there is nothing to create
        positions: Mapping[str, Offset] | None = None,  # noqa: ARG002 - any state can be read
    ) -> list[CheckResult]:
        """Check the manifest, the configuration, the streams' capabilities and their connections.

        Raises:
            ConfigurationError: the manifest cannot be parsed.
        """
        found = check_source(self.manifest, self.config, memory=self.memory, learn=self._learn)
        return list(found)

    def acknowledge(self, positions: Mapping[str, Offset]) -> None:
        """Store the landed offsets, which `read` checks before it continues."""
        self._landed = positions

    def _read_stream(
        self,
        lake: Lake,
        api: Api,
        name: str,
        either: AnyStream,
        stored: Offset | None,
        *,
        full_refresh: bool,
    ) -> Iterator[ChangeBatch | Snapshot | Reconciliation | ReadProgress | StreamFailure]:
        known = StreamOffset.of(stored)
        settings = Settings.of(self.project, self.pipeline, either, api.config)
        is_first = not stored and not full_refresh
        is_compared = not is_first and self._is_due(settings, known, full_refresh=full_refresh)
        is_whole = capture_method_of(either) is CaptureMethod.SNAPSHOT_DIFF
        if is_outdated(either, known.state, api.config):
            stored, full_refresh = StreamOffset(None, known.types).as_json(), True
        folder = raw_folder(self.project, self.pipeline, name)
        place = spool_folder(self.project, self.pipeline) / folder.name
        if full_refresh or is_whole:
            # The files of an earlier run are not used by a run that reads everything.
            PendingFiles(place).discard()
        PendingFiles(place / _WHOLE).discard()
        waiting, left = PendingFiles.recover(place, settings.rules.digest)
        if waiting.parts and left is not None:
            landing = _PendingRecords(lake, name, waiting, Repeats(may_be=bool(stored)))
            yield from landing.batches(stored or {}, left)
            waiting.acknowledge()
            if self._landed.get(name) != left:
                return
            stored = left
        position = StreamOffset.of(stored)
        stream = select_stream(either, position.state)
        limit = self.config.on_partition_limit
        cursor = cursor_of(either)
        begin_reader = partial(
            StreamReader, stream, api, position.state, on_limit=limit, dated_by=cursor
        )
        reader = begin_reader()
        identity = settings.identity_of(stream)
        shape = settings.shape_of(stream, reader.schema, position.types)
        workers = self._workers(api)

        def begin_run(reader: StreamReader, waiting: PendingFiles) -> Run:
            files = SliceFiles(waiting.folder, identity, shape)
            return self._begin_run(lake, api, reader, files, waiting)

        run = begin_run(reader, waiting)
        run.compared = {"at": now_micros()} if is_first else known.compared
        # Report that this stream has begun: the API's first response may take long.
        yield ReadProgress(name, run.rows)
        if is_whole:
            whole_stream = WholeStream(name, api, run, begin_reader, begin_run, workers)
            yield from whole_stream.read(lake, may_become_empty=settings.may_become_empty)
            return
        repeats = Repeats(may_be=not is_first, until=run.reader.known_until)
        landing = _PendingRecords(lake, name, run.waiting, repeats)
        read = self._read(landing, run, workers, stored or {}, is_compared=is_compared)
        if not (yield from read):
            return
        if run.failure is not None:
            yield StreamFailure(name, run.failure)
        elif is_compared:
            # Stored separately, so that another run does not land these records.
            whole, _ = PendingFiles.recover(place / _WHOLE, settings.rules.digest)
            comparison = CompleteRead(api, either, run, whole, begin_run, workers, limit)
            try:
                yield comparison.read(lake, may_be_empty=settings.may_become_empty)
            finally:
                whole.discard()

    def _read(
        self,
        landing: _PendingRecords,
        run: Run,
        workers: int,
        before: Offset,
        *,
        is_compared: bool,
    ) -> Generator[ChangeBatch | ReadProgress, None, bool]:
        """Yield a stream's records until a batch is not landed; return whether all have landed."""
        for after in run.read_with_progress(workers):
            yield ReadProgress(landing.name, run.rows)
            if after is None:
                continue
            declared = run.declared()
            if is_compared:
                # Its other records may have values where the new ones have none.
                declared = replace(declared, names=frozenset())
            yield from landing.batches(before, after, run.files.columns(), declared)
            before = after
            run.waiting.acknowledge()
            if self._landed.get(landing.name) != after:
                run.stop()
        if run.is_stopped:
            run.waiting.discard()
        return not run.is_stopped

    @staticmethod
    def _is_due(settings: Settings, known: StreamOffset, *, full_refresh: bool) -> bool:
        """Return whether a stream is due for a comparison with the API's complete data."""
        period = settings.detect_deletes
        return period is not None and (
            full_refresh or is_due(period, known.compared_at, datetime.now(UTC))
        )


def _merge_columns(several: Iterable[Sequence[Column]]) -> list[Column]:
    """Return the columns of several files, in types that hold the values of all."""
    found: dict[str, Column] = {}
    for column in (column for columns in several for column in columns):
        known = found.get(column.name, column)
        found[column.name] = replace(column, type=wider(known.type, column.type))
    return list(found.values())


@dataclass(frozen=True)
class Repeats:
    """Which records of a run may repeat records of earlier runs.

    Attributes:
        may_be: whether any may.
        until: the latest time of earlier records, in microseconds since 1970, or None if unknown.
    """

    may_be: bool
    until: int | None = None

    def are_in(self, parts: Sequence[Part]) -> bool:
        """Return whether files may contain records that were read before."""
        return self.may_be and any(
            self.until is None or part.earliest is None or part.earliest <= self.until
            for part in parts
        )


@dataclass(frozen=True)
class _PendingRecords:
    """The landing of a stream's waiting records in the raw lake."""

    lake: Lake
    name: str
    waiting: PendingFiles
    repeats: Repeats

    def batches(
        self,
        before: Offset,
        after: Offset,
        columns: Sequence[Column] = (),
        declared: DeclaredColumns | None = None,
    ) -> Iterator[ChangeBatch]:
        """Yield the waiting records; files with the same columns form one batch.

        Records that may repeat earlier ones form a single batch, because records are compared with
        those before them, in any file.

        Args:
            before: the stream's offset before the records.
            after: the stream's offset after all of them, which the last batch carries.
            columns: the columns of all the stream's records; by default, those of the files.
            declared: what the source declares; None: an earlier run has read the records.
        """
        parts = self.waiting.parts
        declared = declared or DeclaredColumns(filled=filled_in(parts))
        groups = group_by_columns(parts)
        if not groups:
            yield ChangeBatch(self.name, None, (), after, declared=declared)
            return
        is_undated = any(part.is_undated for part in parts)
        may_repeat = self.repeats.are_in(parts)
        if may_repeat or is_undated:
            columns = columns or _merge_columns(given for given, _ in groups)
            rows = read_files(self.lake, parts, columns, WHOLE_RECORDS)
            yield ChangeBatch(
                self.name,
                rows,
                columns,
                after,
                may_repeat=may_repeat,
                is_undated=is_undated,
                is_protected=True,
                declared=declared,
            )
            return
        for number, (given, group) in enumerate(groups, 1):
            position = after if number == len(groups) else before
            rows = read_files(self.lake, group, given, WHOLE_RECORDS)
            yield ChangeBatch(
                self.name, rows, given, position, is_protected=True, declared=declared
            )
