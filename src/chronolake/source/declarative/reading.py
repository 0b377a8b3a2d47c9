"""Reading a stream: its slices, their pages, and what their records tell of its state."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from chronolake.config import OnPartitionLimit
from chronolake.errors import ConfigurationError
from chronolake.source.declarative.counting import CountState, WholeState
from chronolake.source.declarative.cursor import time_cursor
from chronolake.source.declarative.injection import Injection
from chronolake.source.declarative.language.cursors import (
    DatetimeBasedCursor,
    IncrementingCountCursor,
)
from chronolake.source.declarative.language.records import JsonDecoder
from chronolake.source.declarative.language.streams import (
    GroupingPartitionRouter,
    SubstreamPartitionRouter,
)
from chronolake.source.declarative.paging import Pages
from chronolake.source.declarative.parents import chosen, parent_state_in
from chronolake.source.declarative.partitions import OpenPartitions, named, router_of
from chronolake.source.declarative.records import Page, Selection
from chronolake.source.declarative.requesting import request_of
from chronolake.source.declarative.schemas import schema_of
from chronolake.source.declarative.state import StreamState
from chronolake.source.declarative.streamslice import StreamSlice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from chronolake.source.declarative.api import Api
    from chronolake.source.declarative.cursor import TimeCursor
    from chronolake.source.declarative.language.streams import DeclarativeStream, ParentStreamConfig
    from chronolake.source.declarative.transformations import Record

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
    ) -> None:
        """Make ready what the manifest says of a stream.

        Args:
            stream: the stream.
            api: where it is read from.
            stored: its state (`State.as_json`, or another reader's); None: there is none.
            on_limit: what becomes of more partitions than have a state of their own.

        Raises:
            ConfigurationError: the manifest and the configuration make no requests, or the state is
                none of the stream's.
        """
        retriever = stream.retriever
        self.stream = stream
        self._api = api
        self._stored = stored or {}
        self._requester = retriever.requester
        self._sender = api.sender(retriever.requester, stream.name)
        self._ignores_slicer = retriever.ignore_stream_slicer_parameters_on_paginated_requests
        decoder = retriever.decoder or JsonDecoder(type="JsonDecoder")
        self._router = router_of(retriever.partition_router, api.config, self._parent)
        self.cursor: TimeCursor | None = None
        self.state: State = self._state_of(stored, on_limit)
        cursor = self.cursor
        self._selection = Selection(
            retriever.record_selector,
            decoder=decoder,
            transformations=stream.transformations,
            config=api.config,
            schema=schema_of(stream, api.file, api.config),
            is_client_side=cursor is not None and cursor.is_filtered_here,
        )
        self._pages = Pages(
            retriever.paginator, api.config, decoder, retriever.record_selector.extractor
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
        return Slice(self, one)

    def pages(self, one: StreamSlice) -> Iterator[Page]:
        """The pages of a slice, each read when it is asked for.

        Raises:
            SourceError: the API does not answer, or not with records.
            ConfigurationError: the manifest and the configuration make no request.
        """
        keep = self._keep(one)
        is_feed = self.cursor is not None and self.cursor.is_data_feed
        filters = self.cursor is not None and self.cursor.is_filtered_here and not is_feed
        token = self._pages.initial()
        while True:
            request = request_of(
                self._requester,
                self._api.config,
                stream_slice=one,
                next_page_token=token,
                injected=[self._pages.injection(token), self._slicer(one, token)],
                path=self._pages.path(token),
            )
            answer = self._sender.send(request)
            if answer is None:
                return
            page = self._selection.page(answer, one, token, keep=keep if filters else None)
            ends = is_feed and page.last is not None and not keep(page.last)
            token = (
                None
                if ends
                else self._pages.following(
                    answer,
                    page.extracted,
                    page.last,
                    token,
                    last_page_size=len(page.records),
                    stream_slice=one,
                )
            )
            if is_feed:
                page = Page([record for record in page.records if keep(record)], page.extracted)
            yield page
            if token is None:
                return

    def _slicer(self, one: StreamSlice, token: Mapping[str, Any] | None) -> Injection:
        """What the slice puts into a request."""
        into = Injection(place="the slice")
        if self._ignores_slicer and token is not None:
            return into
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
        return into

    def _keep(self, one: StreamSlice) -> Callable[[Record], bool]:
        """Whether a record is within what is wanted; one without a time is."""
        state = self.state
        if self.cursor is None or not isinstance(state, StreamState):
            return lambda _: True
        name, read = self.cursor.field, self.cursor.reader.micros
        lowest, greatest = (
            read(self.cursor.formatted(at)) for at in (state.lowest(one), state.end)
        )

        def keep(record: Record) -> bool:
            at = read(record.get(name))
            if at is None or lowest is None or greatest is None:
                return True
            return lowest <= at <= greatest

        return keep

    def note_without_cursor(self) -> None:
        """Say once that records lack their cursor."""
        if not self._is_warned:
            self._is_warned = True
            model = self.stream.incremental_sync
            name = model.cursor_field if model is not None else ""
            log.warning("records_without_cursor", stream=self.stream.name, cursor=name)


class Slice:
    """A slice while it is read."""

    def __init__(self, reader: StreamReader, one: StreamSlice) -> None:
        self.slice = one
        self._reader = reader
        self._micros: int | None = None
        self._value: Any = None
        self._times = None if reader.cursor is None else reader.cursor.reader
        self._micros_of_page: list[int | None] = []

    def pages(self) -> Iterator[list[Record]]:
        """The records of the slice, page by page; raises what `StreamReader.pages` raises."""
        for page in self._reader.pages(self.slice):
            self._observe(page.records)
            yield page.records

    @property
    def times(self) -> list[int | None]:
        """When the records of the last page were modified, in microseconds since 1970.

        None where a record does not say it, or the stream has no cursor over time.
        """
        return self._micros_of_page

    def _observe(self, records: list[Record]) -> None:
        self._micros_of_page = [None] * len(records)
        if self._times is not None and self._reader.cursor is not None:
            self._observe_times(records, self._reader.cursor.field, self._times.micros)
            return
        state = self._reader.state
        if isinstance(state, CountState):
            counts = [found for found in map(state.count_in, records) if found is not None]
            if counts:
                self._value = max(counts) if self._value is None else max(self._value, *counts)

    def _observe_times(
        self, records: list[Record], name: str, read: Callable[[Any], int | None]
    ) -> None:
        times = [None if (value := record.get(name)) is None else read(value) for record in records]
        self._micros_of_page = times
        known = [at for at in times if at is not None]
        if len(known) < len(times):
            self._reader.note_without_cursor()
        if known and (self._micros is None or max(known) > self._micros):
            self._micros = max(known)
            self._value = records[times.index(self._micros)][name]

    @property
    def latest(self) -> Any:
        """The cursor of the latest record so far: a time, a number, or None."""
        if self._reader.cursor is None or self._value is None:
            return self._value
        return self._reader.cursor.parsed(self._value)


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
