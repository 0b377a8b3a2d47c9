"""Stream reader: determines a stream's slices, reads them, and updates the stream's state.

`SliceReader` and `Slice` read records, their modification times and the latest cursor value. They
do not depend on the stream's state, so that Spark tasks can use them. `StreamReader` determines the
slices and maintains the state.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from chronolake.config import OnPartitionLimit
from chronolake.errors import ConfigurationError
from chronolake.source.declarative.components.instances import create_instances
from chronolake.source.declarative.cursors.datetime_cursor import time_cursor
from chronolake.source.declarative.cursors.incrementing import (
    CountState,
    FullRefreshState,
    count_reader,
)
from chronolake.source.declarative.cursors.state import StreamState
from chronolake.source.declarative.models.base import CustomStateMigration
from chronolake.source.declarative.models.streams import (
    AsyncRetriever,
    CustomPartitionRouter,
    DatetimeBasedCursor,
    GroupingPartitionRouter,
    IncrementingCountCursor,
    LegacyToPerPartitionStateMigration,
    SubstreamPartitionRouter,
    UnionPartitionRouter,
)
from chronolake.source.declarative.parent_streams import get_parent_state, select_stream
from chronolake.source.declarative.partitions import (
    OpenPartitions,
    create_router,
    evaluate_name,
    inject_partition,
)
from chronolake.source.declarative.retrieval.async_jobs import AsyncJobs, downloads_of
from chronolake.source.declarative.retrieval.lazy_read import is_embedded
from chronolake.source.declarative.retrieval.pages import Retrieval
from chronolake.source.declarative.retrieval.pagination_reset import LatestRecord
from chronolake.source.declarative.retrieval.schema_loaders import load_schema
from chronolake.source.declarative.stream_slice import StreamSlice
from chronolake.source.declarative.templating.times import micros_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from chronolake.source.declarative.api import Api
    from chronolake.source.declarative.cursors.datetime_cursor import TimeCursor
    from chronolake.source.declarative.http.request_builder import Injection
    from chronolake.source.declarative.models.streams import (
        DeclarativeStream,
        IncrementalSync,
        ParentStreamConfig,
    )
    from chronolake.source.declarative.records.selector import Page
    from chronolake.source.declarative.records.transformations import Record


@dataclass(frozen=True)
class Work:
    """A slice to read.

    Attributes:
        partition: the number of its partition in this run.
        wanted: time range of wanted records in microseconds since 1970, both inclusive; None: all.
    """

    slice: StreamSlice
    partition: int
    wanted: tuple[int, int] | None = None


class SliceReader:
    """A reader of a stream's slices; thread-safe.

    Attributes:
        cursor: the stream's datetime cursor, or None.
    """

    def __init__(
        self,
        stream: DeclarativeStream,
        api: Api,
        schema: Mapping[str, Any],
        *,
        dated_by: IncrementalSync | None = None,
        is_embedded: bool = False,
    ) -> None:
        """Prepare a stream's requests.

        Args:
            api: the API to read from.
            schema: the schema of its records.
            dated_by: the cursor that contains records' modification times, if it is not the
                stream's own.
            is_embedded: whether the first page of a slice is embedded in it.

        Raises:
            ConfigurationError: the requests cannot be built from the manifest and the
                configuration.
        """
        retriever = stream.retriever
        self._jobs: AsyncJobs | None = None
        if isinstance(retriever, AsyncRetriever):
            self._jobs = AsyncJobs(retriever, api, stream.name)
            retriever = downloads_of(retriever)
        self._config = api.config
        self._model = model = stream.incremental_sync
        self._routers = stream.retriever.partition_router
        self.cursor: TimeCursor | None = None
        self._count: Callable[[Record], int | None] | None = None
        if isinstance(model, DatetimeBasedCursor):
            self.cursor = time_cursor(model, api.config)
        elif isinstance(model, IncrementingCountCursor):
            self._count = count_reader(model, api.config)
        self.dated_by = self.cursor
        if self.cursor is None and isinstance(dated_by, DatetimeBasedCursor):
            self.dated_by = time_cursor(dated_by, api.config)
        self._retrieval = Retrieval(
            retriever,
            api,
            stream.name,
            transformations=stream.transformations,
            schema=schema,
            cursor=self.cursor,
            latest=self._latest_of_slice(),
            inject=self._inject,
            is_embedded=is_embedded,
        )

    def read(self, work: Work) -> Slice:
        """Start to read a slice."""
        return Slice(
            self.pages(work), cursor=self.cursor, dated_by=self.dated_by, count=self._count
        )

    def pages(self, work: Work) -> Iterator[Page]:
        """Yield the pages of a slice; each is requested when it is needed.

        Raises:
            SourceError: the API does not respond, or its response contains no records.
            ConfigurationError: the requests cannot be built from the manifest and the
                configuration.
        """
        stream_slice, keep = work.slice, self._keep(work.wanted)
        if self._jobs is None:
            yield from self._retrieval.pages(stream_slice, keep)
            return
        for batch in self._jobs.batches(stream_slice):
            yield self._retrieval.select(batch, stream_slice, keep)

    def _inject(self, into: Injection, stream_slice: StreamSlice) -> None:
        """Put the slice's values into a request."""
        inject_partition(self._routers, self._config, into, stream_slice)
        model = self._model
        options: list[tuple[Any, str]] = []
        if isinstance(model, DatetimeBasedCursor) and self.cursor is not None:
            begin, end = self.cursor.names
            options = [(model.start_time_option, begin), (model.end_time_option, end)]
        elif isinstance(model, IncrementingCountCursor):
            options = [(model.start_value_option, "start")]
        for option, name in options:
            if option is not None:
                into.put(option, stream_slice.get(name), self._config)

    def _latest_of_slice(self) -> Callable[[], LatestRecord] | None:
        """Return a factory for `LatestRecord`, or None if slices cannot be continued."""
        cursor, count = self.cursor, self._count
        if cursor is not None:
            read = cursor.reader.micros
            return partial(
                LatestRecord,
                lambda record: read(record.get(cursor.field)),
                lambda record: cursor.format_time(
                    cursor.continue_at(cursor.parse_record_time(record[cursor.field]))
                ),
                cursor.names[0],
                partial(_is_beyond, cursor),
            )
        return None if count is None else partial(LatestRecord, count, count, "start")

    def _keep(self, time_range: tuple[int, int] | None) -> Callable[[Record], bool]:
        """Return a filter for records within a time range; records without a time are kept."""
        if self.cursor is None or time_range is None:
            return lambda _: True
        name, read = self.cursor.field, self.cursor.reader.micros
        lowest, greatest = time_range

        def keep(record: Record) -> bool:
            at = read(record.get(name))
            return at is None or lowest <= at <= greatest

        return keep


def _is_beyond(cursor: TimeCursor, bound: str, stream_slice: StreamSlice) -> bool:
    return cursor.is_beyond(
        cursor.parse(bound), cursor.parse(stream_slice.cursor_slice[cursor.names[1]])
    )


class Slice:
    """A slice while it is read; not thread-safe.

    Attributes:
        is_undated: whether a record lacks a modification time that it should have.
        times: modification times of the last page's records, in microseconds since 1970; None if a
            record has no time, or the stream has no datetime cursor.
    """

    def __init__(
        self,
        pages: Iterator[Page],
        *,
        cursor: TimeCursor | None,
        dated_by: TimeCursor | None,
        count: Callable[[Record], int | None] | None,
    ) -> None:
        """Start to read.

        Args:
            pages: the slice's pages; each is requested when it is needed.
            cursor: the datetime cursor whose state the slice updates.
            dated_by: the cursor that contains records' modification times.
            count: returns a record's number, for an incrementing cursor.
        """
        self.is_undated = False
        self.times: list[int | None] = []
        self._pages = pages
        self._cursor = cursor
        self._dated_by = dated_by
        self._reader = None if dated_by is None else dated_by.reader
        self._count = count
        self._micros: int | None = None
        self._value: Any = None

    def pages(self) -> Iterator[list[Record]]:
        """Yield the slice's records by page; raise the same errors as `SliceReader.pages`."""
        for page in self._pages:
            self.times = self._times_of(page.records)
            if self._count is not None:
                self._note_counts(page.records, self._count)
            yield page.records

    def _note_counts(self, records: list[Record], count: Callable[[Record], int | None]) -> None:
        counts = [found for found in map(count, records) if found is not None]
        if counts:
            self._value = max(counts) if self._value is None else max(self._value, *counts)

    def _times_of(self, records: list[Record]) -> list[int | None]:
        if self._dated_by is None or self._reader is None:
            return [None] * len(records)
        name, read = self._dated_by.field, self._reader.micros
        times = [None if (value := record.get(name)) is None else read(value) for record in records]
        known = [at for at in times if at is not None]
        if len(known) < len(times):
            self.is_undated = True
        if known and (self._micros is None or max(known) > self._micros):
            self._micros = max(known)
            self._value = records[times.index(self._micros)][name]
        return times

    @property
    def latest(self) -> Any:
        """Return the latest record's cursor value so far: a time, a number, or None."""
        if self._count is not None:
            return self._value
        if self._cursor is None or self._value is None:
            return None
        return self._cursor.parse_record_time(self._value)


log = structlog.get_logger(__name__)


class State(Protocol):
    """State of a stream with any kind of cursor."""

    parent_state: dict[str, Any] | None

    def slices(self, partition: StreamSlice) -> Iterator[StreamSlice]:
        """Yield the slices of a partition that have to be read."""
        ...

    def note(self, stream_slice: StreamSlice, latest: Any) -> None:
        """Record that a slice has been read; `latest` is its latest cursor value, or None."""
        ...

    def complete(self) -> None:
        """Record that the run has read everything."""
        ...

    def as_json(self) -> dict[str, Any]:
        """Return the state to store."""
        ...

    def export(self) -> dict[str, Any]:
        """Return the state in the form that other readers of such manifests use."""
        ...


class StreamReader:
    """A reader of a stream in one run.

    `work`, `done` and the state are not thread-safe; slices may be read by several threads.
    """

    def __init__(
        self,
        stream: DeclarativeStream,
        api: Api,
        stored: Mapping[str, Any] | None = None,
        *,
        on_limit: OnPartitionLimit = OnPartitionLimit.DROP_OLDEST,
        dated_by: IncrementalSync | None = None,
        since: datetime | None = None,
        beyond: timedelta = timedelta(),
        window: tuple[datetime, datetime] | None = None,
    ) -> None:
        """Prepare to read a stream.

        Args:
            api: the API to read from.
            stored: its state (from `State.as_json` or another reader), or None.
            on_limit: what to do if there are too many partitions.
            dated_by: the cursor that contains records' modification times, if it is not the
                stream's own: the one of a delegating stream.
            since: for a datetime cursor, a later start than the manifest's.
            beyond: for a datetime cursor, how much later than the manifest's its end is.
            window: for a datetime cursor, another start, and an end that may be earlier than the
                manifest's; both inclusive.

        Raises:
            ConfigurationError: the requests cannot be built from the manifest and the
                configuration, or the state is not valid for the stream.
            SourceError: the API does not return the schema.
        """
        stored = self._prepare(stream, api, stored)
        self.stream = stream
        self.dated_by = dated_by
        self._api = api
        self._stored = stored or {}
        self._router = create_router(stream.retriever.partition_router, api.config, self._parent)
        self._since = since
        self._beyond = beyond
        self._window = window
        self.schema = load_schema(stream, api)
        self.slices = SliceReader(
            stream,
            api,
            self.schema,
            dated_by=dated_by,
            is_embedded=is_embedded(stream, stored),
        )
        self.state: State = self._state_of(stored, on_limit)
        latest = self.state.latest_known if isinstance(self.state, StreamState) else None
        #: The latest time of records that may have been read before; None if unknown.
        self.known_until = None if latest is None else micros_of(latest)
        if (
            isinstance(self.state, StreamState)
            and self.state.lower_bound(StreamSlice()) > self.state.end
        ):
            log.warning("state_in_the_future", stream=stream.name)
        self._open = OpenPartitions(self.state.parent_state)
        self._left: Counter[int] = Counter()
        self._has_failed = False
        self._is_warned = False

    def _prepare(
        self, stream: DeclarativeStream, api: Api, stored: Mapping[str, Any] | None
    ) -> Mapping[str, Any] | None:
        """Create the connector's custom components; return the state after their migrations."""
        create_instances(stream, api.session, api.config, self._parent)
        for migration in stream.state_migrations:
            if isinstance(migration, CustomStateMigration) and stored:
                state = deepcopy(dict(stored))
                if migration.calls.call("should_migrate", state):
                    stored = migration.calls.call_for_mapping("migrate", state)
        return stored

    def _state_of(self, stored: Mapping[str, Any] | None, on_limit: OnPartitionLimit) -> State:
        model = self.stream.incremental_sync
        routers = self.stream.retriever.partition_router
        if isinstance(model, IncrementingCountCursor):
            if routers:
                raise ConfigurationError(
                    f"The stream {self.stream.name} has partitions, but its cursor is not a "
                    "datetime cursor.",
                    hint="Use a DatetimeBasedCursor for a stream with partitions.",
                )
            return CountState(model, self._api.config, stored)
        if not isinstance(model, DatetimeBasedCursor) or self.slices.cursor is None:
            return FullRefreshState()
        cursor = self.slices.cursor
        if self._since is not None:
            cursor = replace(cursor, start=max(cursor.start, self._since))
        if self._window is not None:
            start, until = self._window
            last = min(cursor.end(), until)
            cursor = replace(cursor, start=start, end=lambda: last)
        if self._beyond:
            end = cursor.end() + self._beyond
            cursor = replace(cursor, end=lambda: end)
        is_grouped = any(isinstance(router, GroupingPartitionRouter) for router in routers)
        return StreamState(
            cursor,
            stored,
            is_partitioned=bool(routers),
            is_global=model.global_substream_cursor or is_grouped,
            legacy_field=self._legacy_field(),
            stream=self.stream.name,
            on_limit=on_limit,
        )

    def _legacy_field(self) -> str | None:
        """Return the partitions' key in states by partition values, if such states are migrated."""
        routers = self.stream.retriever.partition_router
        migrations = self.stream.state_migrations
        is_migrated = any(
            isinstance(migration, LegacyToPerPartitionStateMigration) for migration in migrations
        )
        if not (is_migrated and len(routers) == 1):
            return None
        router = routers[0]
        if isinstance(router, UnionPartitionRouter):
            return evaluate_name(router, self._api.config, router.partition_field)
        if not isinstance(router, SubstreamPartitionRouter | CustomPartitionRouter):
            return None
        if not router.parent_stream_configs:
            return None
        (parent, *others) = router.parent_stream_configs
        return None if others else evaluate_name(parent, self._api.config, parent.partition_field)

    # ------------------------------------------------------------------ slices

    def work(self) -> Iterator[Work]:
        """Yield the slices to read as they are found; parent streams are read in between.

        Raises:
            SourceError: a parent stream cannot be read.
            ConfigurationError: the partition routers are invalid.
        """
        partitions = iter([StreamSlice()]) if self._router is None else self._router.partitions()
        begun: set[bytes] = set()
        for partition in partitions:
            parents = self._router.parent_state() if self._router is not None else None
            number = self._open.open(parents)
            if self.slices.cursor is not None:
                key = partition.partition_key
                if key in begun:
                    # Two parent records have the same key: one read is enough for both.
                    self._open.close(number)
                    continue
                begun.add(key)
            # Starts at 1 instead of 0, so that the partition stays open until all its slices are
            # known.
            self._left[number] = 1
            for slice_ in self.state.slices(partition):
                self._left[number] += 1
                yield Work(slice_, number, self._wanted_range(slice_))
            self._finish(number)

    def mark_read(self, work: Work, latest: Any) -> None:
        """Record that a slice has been read and its records are stored.

        Args:
            work: the slice.
            latest: the value of `Slice.latest`.
        """
        self.state.note(work.slice, latest)
        self._finish(work.partition)

    def mark_failed(self) -> None:
        """Record that a slice, or the list of slices, could not be read: the run is incomplete."""
        self._has_failed = True

    def _finish(self, number: int) -> None:
        self._left[number] -= 1
        if not self._left[number]:
            del self._left[number]
            self._open.close(number)
            self.state.parent_state = self._open.state

    def complete(self) -> None:
        """End the run; if nothing failed, everything has been read."""
        if self._has_failed or self._left:
            return
        if self._router is not None and (parents := self._router.parent_state()) is not None:
            self.state.parent_state = parents
        self.state.complete()

    def _parent(self, config: ParentStreamConfig) -> _Parent:
        stored = get_parent_state(self._stored, config) if config.incremental_dependency else None
        return _Parent(StreamReader(select_stream(config.stream, stored), self._api, stored))

    def _wanted_range(self, stream_slice: StreamSlice) -> tuple[int, int] | None:
        """Return the time range of wanted records of a slice, or None if all are wanted."""
        if not isinstance(self.state, StreamState):
            return None
        return micros_of(self.state.lower_bound(stream_slice)), micros_of(self.state.end)

    def warn_of_undated(self) -> None:
        """Log once that records lack their cursor value."""
        if not self._is_warned and self.slices.dated_by is not None:
            self._is_warned = True
            name = self.slices.dated_by.field
            log.warning("records_without_cursor", stream=self.stream.name, cursor=name)


@dataclass
class _Parent:
    """A stream that is read for the partitions of another one."""

    reader: StreamReader

    _open: int = 0
    _are_all_known: bool = False

    def records(self) -> Iterator[tuple[StreamSlice, Record]]:
        for parent_slice, read in self.slices():
            for record in read():
                yield parent_slice, record

    def slices(self) -> Iterator[tuple[StreamSlice, Callable[[], Iterator[Record]]]]:
        for work in self.reader.work():
            self._open += 1
            yield work.slice, partial(self._read, work)
        self._are_all_known = True
        self._complete()

    def _read(self, work: Work) -> Iterator[Record]:
        parent_slice = self.reader.slices.read(work)
        last: Record | None = None
        for records in parent_slice.pages():
            for record in records:
                if last is not None:
                    yield last
                last = record
        # The last record is yielded after the slice is marked as read, because its partition is the
        # one that carries the parent's new state.
        self.reader.mark_read(work, parent_slice.latest)
        self._open -= 1
        if last is not None:
            yield last
        self._complete()

    def _complete(self) -> None:
        if self._are_all_known and not self._open:
            self.reader.complete()

    def state(self) -> dict[str, Any]:
        return self.reader.state.export()
