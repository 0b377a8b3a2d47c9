"""Reading a stream: its slices, their pages, and what their records tell of its state."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from chronolake.config import OnPartitionLimit
from chronolake.errors import ConfigurationError
from chronolake.source.declarative.cursors.counting import CountState, WholeState
from chronolake.source.declarative.cursors.state import StreamState
from chronolake.source.declarative.cursors.timing import time_cursor
from chronolake.source.declarative.language.cursors import (
    DatetimeBasedCursor,
    IncrementingCountCursor,
)
from chronolake.source.declarative.language.reports import AsyncRetriever
from chronolake.source.declarative.language.streams import (
    GroupingPartitionRouter,
    SubstreamPartitionRouter,
    UnionPartitionRouter,
)
from chronolake.source.declarative.manifests.schemas import schema_of
from chronolake.source.declarative.paging.embedded import is_embedded
from chronolake.source.declarative.paging.pages import Retrieval
from chronolake.source.declarative.paging.reports import Reports, downloads_of
from chronolake.source.declarative.paging.rereading import Latest
from chronolake.source.declarative.parents import chosen, parent_state_in
from chronolake.source.declarative.partitions import OpenPartitions, named, router_of
from chronolake.source.declarative.slices import Slice
from chronolake.source.declarative.streamslice import StreamSlice
from chronolake.source.declarative.templating.times import micros_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime

    from chronolake.source.declarative.api import Api
    from chronolake.source.declarative.cursors.timing import TimeCursor
    from chronolake.source.declarative.exchange.injection import Injection
    from chronolake.source.declarative.language.cursors import IncrementalSync
    from chronolake.source.declarative.language.streams import DeclarativeStream, ParentStreamConfig
    from chronolake.source.declarative.records.selection import Page
    from chronolake.source.declarative.records.transformations import Record

log = structlog.get_logger(__name__)


class State(Protocol):
    """How far a stream is, whatever its cursor is."""

    parent_state: dict[str, Any] | None

    def slices(self, partition: StreamSlice) -> Iterator[StreamSlice]:
        """What has to be asked for of a partition."""
        ...

    def note(self, one: StreamSlice, latest: Any) -> None:
        """A slice has been read, and this is the cursor of its latest record, or None."""
        ...

    def complete(self) -> None:
        """The run has read everything."""
        ...

    def as_json(self) -> dict[str, Any]:
        """What is stored."""
        ...

    def exported(self) -> dict[str, Any]:
        """The state as other readers of such manifests have it."""
        ...


@dataclass(frozen=True)
class Work:
    """A slice that is to be read.

    Attributes:
        slice: the slice.
        partition: the number of its partition in this run.
    """

    slice: StreamSlice
    partition: int


class StreamReader:
    """A stream that is read in one run.

    `work`, `done` and the state are one thread's; any number of threads may read slices.
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
    ) -> None:
        """Make ready what the manifest says of a stream.

        Args:
            stream: the stream.
            api: where it is read from.
            stored: its state (`State.as_json`, or another reader's); None: there is none.
            on_limit: what becomes of more partitions than have a state of their own.
            dated_by: the cursor that tells when records were changed, where it is not the stream's
                own: of a stream that takes turns with another one.
            since: with a cursor over time, a later start than the manifest's.

        Raises:
            ConfigurationError: the manifest and the configuration make no requests, or the state is
                none of the stream's.
            SourceError: the API does not tell the schema.
        """
        retriever = stream.retriever
        self._reports: Reports | None = None
        if isinstance(retriever, AsyncRetriever):
            self._reports = Reports(retriever, api)
            retriever = downloads_of(retriever)
        self.stream = stream
        self._api = api
        self._stored = stored or {}
        self._router = router_of(stream.retriever.partition_router, api.config, self._parent)
        self.cursor: TimeCursor | None = None
        self._since = since
        self.state: State = self._state_of(stored, on_limit)
        self._dated_by = self.cursor
        if self.cursor is None and isinstance(dated_by, DatetimeBasedCursor):
            self._dated_by = time_cursor(dated_by, api.config)
        self.schema = schema_of(stream, api)
        self._retrieval = Retrieval(
            retriever,
            api,
            stream.name,
            transformations=stream.transformations,
            schema=self.schema,
            cursor=self.cursor,
            latest=self._latest_of_slice(),
            inject=self._inject,
            is_embedded=is_embedded(stream, stored),
        )
        self._open = OpenPartitions(self.state.parent_state)
        self._left: Counter[int] = Counter()
        self._has_failed = False
        self._is_warned = False

    def _state_of(self, stored: Mapping[str, Any] | None, on_limit: OnPartitionLimit) -> State:
        model = self.stream.incremental_sync
        routers = self.stream.retriever.partition_router
        if isinstance(model, IncrementingCountCursor):
            if routers:
                raise ConfigurationError(
                    f"The stream {self.stream.name} has partitions, and a cursor that counts.",
                    hint="A stream with partitions needs a cursor over time.",
                )
            return CountState(model, self._api.config, stored)
        if not isinstance(model, DatetimeBasedCursor):
            return WholeState()
        self.cursor = time_cursor(model, self._api.config)
        if self._since is not None:
            self.cursor = replace(self.cursor, start=max(self.cursor.start, self._since))
        is_grouped = any(isinstance(one, GroupingPartitionRouter) for one in routers)
        return StreamState(
            self.cursor,
            stored,
            is_partitioned=bool(routers),
            is_global=model.global_substream_cursor or is_grouped,
            legacy_field=self._legacy_field(),
            on_limit=on_limit,
        )

    def _legacy_field(self) -> str | None:
        """What tells partitions apart in states by their values, if such ones are migrated."""
        routers = self.stream.retriever.partition_router
        if not (self.stream.state_migrations and len(routers) == 1):
            return None
        router = routers[0]
        if isinstance(router, UnionPartitionRouter):
            return named(router, self._api.config, router.partition_field)
        if not isinstance(router, SubstreamPartitionRouter):
            return None
        (parent, *others) = router.parent_stream_configs
        return None if others else named(parent, self._api.config, parent.partition_field)

    # ------------------------------------------------------------------ what there is to read

    def work(self) -> Iterator[Work]:
        """The slices that have to be asked for, as they are found: parents are read meanwhile.

        Raises:
            SourceError: a parent stream cannot be read.
            ConfigurationError: what tells the partitions is wrong.
        """
        partitions = iter([StreamSlice()]) if self._router is None else self._router.partitions()
        begun: set[bytes] = set()
        for partition in partitions:
            parents = self._router.parent_state() if self._router is not None else None
            number = self._open.open(parents)
            key = partition.partition_key
            if key in begun:
                # Two parent records with one key: what is read for one is read for both.
                self._open.close(number)
                continue
            begun.add(key)
            # One more than there are, so that it stays open until all are known.
            self._left[number] = 1
            for one in self.state.slices(partition):
                self._left[number] += 1
                yield Work(one, number)
            self._finish(number)

    def done(self, work: Work, latest: Any) -> None:
        """A slice has been read, and all of its records are where they have to be.

        Args:
            work: the slice.
            latest: what `Slice.latest` said.
        """
        self.state.note(work.slice, latest)
        self._finish(work.partition)

    def failed(self) -> None:
        """Some slice, or the list of them, could not be read: the run is not complete."""
        self._has_failed = True

    def _finish(self, number: int) -> None:
        self._left[number] -= 1
        if not self._left[number]:
            del self._left[number]
            self._open.close(number)
            self.state.parent_state = self._open.state

    def complete(self) -> None:
        """The run has ended; if nothing failed, everything has been read."""
        if self._has_failed or self._left:
            return
        if self._router is not None and (parents := self._router.parent_state()) is not None:
            self.state.parent_state = parents
        self.state.complete()

    def _parent(self, config: ParentStreamConfig) -> _Parent:
        stored = parent_state_in(self._stored, config) if config.incremental_dependency else None
        return _Parent(StreamReader(chosen(config.stream, stored), self._api, stored))

    # ------------------------------------------------------------------ reading a slice

    def read(self, one: StreamSlice) -> Slice:
        """Begin to read a slice."""
        count = self.state.count_in if isinstance(self.state, CountState) else None
        return Slice(
            one,
            self.pages(one),
            cursor=self.cursor,
            dated_by=self._dated_by,
            count=count,
            warn=self._warn_of_undated,
        )

    def pages(self, one: StreamSlice) -> Iterator[Page]:
        """The pages of a slice, each read when it is asked for.

        Raises:
            SourceError: the API does not answer, or not with records.
            ConfigurationError: the manifest and the configuration make no request.
        """
        keep = self._keep(one)
        if self._reports is None:
            yield from self._retrieval.pages(one, keep)
            return
        for batch in self._reports.batches(one):
            yield self._retrieval.selected(batch, one, keep)

    def _inject(self, into: Injection, one: StreamSlice) -> None:
        """What the slice puts into a request."""
        if self._router is not None:
            self._router.inject(into, one)
        model = self.stream.incremental_sync
        options: list[tuple[Any, str]] = []
        if isinstance(model, DatetimeBasedCursor) and self.cursor is not None:
            begin, end = self.cursor.names
            options = [(model.start_time_option, begin), (model.end_time_option, end)]
        elif isinstance(model, IncrementingCountCursor):
            options = [(model.start_value_option, "start")]
        for option, name in options:
            if option is not None:
                into.put(option, one.get(name), self._api.config)

    def _latest_of_slice(self) -> Callable[[], Latest] | None:
        """What tells from which record on a slice can be asked for anew; None: nothing does."""
        cursor, state = self.cursor, self.state
        if cursor is not None:
            read = cursor.reader.micros
            return partial(
                Latest,
                lambda record: read(record.get(cursor.field)),
                lambda record: cursor.formatted(cursor.parsed(record[cursor.field])),
                cursor.names[0],
            )
        if isinstance(state, CountState):
            return partial(Latest, state.count_in, state.count_in, "start")
        return None

    def _keep(self, one: StreamSlice) -> Callable[[Record], bool]:
        """Whether a record is within what is wanted; one without a time is."""
        state = self.state
        if self.cursor is None or not isinstance(state, StreamState):
            return lambda _: True
        name, read = self.cursor.field, self.cursor.reader.micros
        lowest, greatest = micros_of(state.lowest(one)), micros_of(state.end)

        def keep(record: Record) -> bool:
            at = read(record.get(name))
            return at is None or lowest <= at <= greatest

        return keep

    def _warn_of_undated(self) -> None:
        """Say once that records lack their cursor."""
        if not self._is_warned and self._dated_by is not None:
            self._is_warned = True
            name = self._dated_by.field
            log.warning("records_without_cursor", stream=self.stream.name, cursor=name)


@dataclass
class _Parent:
    """A stream that is read for the partitions of another."""

    reader: StreamReader

    def records(self) -> Iterator[tuple[StreamSlice, Record]]:
        for work in self.reader.work():
            one = self.reader.read(work.slice)
            last: Record | None = None
            for records in one.pages():
                for record in records:
                    if last is not None:
                        yield work.slice, last
                    last = record
            # The last record comes when the slice counts as read: its partition is the one that
            # carries the parent's state on.
            self.reader.done(work, one.latest)
            if last is not None:
                yield work.slice, last
        self.reader.complete()

    def state(self) -> dict[str, Any]:
        return self.reader.state.exported()
