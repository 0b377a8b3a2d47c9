"""Reading a stream: which slices there are, and what their records tell of its state."""

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
from chronolake.source.declarative.components.preparing import prepare
from chronolake.source.declarative.cursors.counting import CountState, WholeState
from chronolake.source.declarative.cursors.state import StreamState
from chronolake.source.declarative.language.cursors import (
    DatetimeBasedCursor,
    IncrementingCountCursor,
)
from chronolake.source.declarative.language.custom import CustomStateMigration
from chronolake.source.declarative.language.streams import (
    CustomPartitionRouter,
    GroupingPartitionRouter,
    LegacyToPerPartitionStateMigration,
    SubstreamPartitionRouter,
    UnionPartitionRouter,
)
from chronolake.source.declarative.manifests.schemas import schema_of
from chronolake.source.declarative.paging.embedded import is_embedded
from chronolake.source.declarative.parents import chosen, parent_state_in
from chronolake.source.declarative.partitions import OpenPartitions, named, router_of
from chronolake.source.declarative.slices import SliceReader, Work
from chronolake.source.declarative.streamslice import StreamSlice
from chronolake.source.declarative.templating.times import micros_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from chronolake.source.declarative.api import Api
    from chronolake.source.declarative.language.cursors import IncrementalSync
    from chronolake.source.declarative.language.streams import DeclarativeStream, ParentStreamConfig
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
        beyond: timedelta = timedelta(),
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
            beyond: with a cursor over time, how much later than the manifest's its end is.

        Raises:
            ConfigurationError: the manifest and the configuration make no requests, or the state is
                none of the stream's.
            SourceError: the API does not tell the schema.
        """
        stored = self._made_ready(stream, api, stored)
        self.stream = stream
        self.dated_by = dated_by
        self._api = api
        self._stored = stored or {}
        self._router = router_of(stream.retriever.partition_router, api.config, self._parent)
        self._since = since
        self._beyond = beyond
        self.schema = schema_of(stream, api)
        self.slices = SliceReader(
            stream,
            api,
            self.schema,
            dated_by=dated_by,
            is_embedded=is_embedded(stream, stored),
        )
        self.state: State = self._state_of(stored, on_limit)
        latest = self.state.latest_known if isinstance(self.state, StreamState) else None
        #: Up to when records may have been read before; None: nobody knows.
        self.known_until = None if latest is None else micros_of(latest)
        if (
            isinstance(self.state, StreamState)
            and self.state.lowest(StreamSlice()) > self.state.end
        ):
            log.warning("state_in_the_future", stream=stream.name)
        self._open = OpenPartitions(self.state.parent_state)
        self._left: Counter[int] = Counter()
        self._has_failed = False
        self._is_warned = False

    def _made_ready(
        self, stream: DeclarativeStream, api: Api, stored: Mapping[str, Any] | None
    ) -> Mapping[str, Any] | None:
        """Make what the connector's own classes are needed for; gives the state as they want it."""
        prepare(stream, api.access, api.config, self._parent)
        for one in stream.state_migrations:
            if isinstance(one, CustomStateMigration) and stored:
                state = deepcopy(dict(stored))
                if one.calls.call("should_migrate", state):
                    stored = one.calls.mapping("migrate", state)
        return stored

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
        if not isinstance(model, DatetimeBasedCursor) or self.slices.cursor is None:
            return WholeState()
        cursor = self.slices.cursor
        if self._since is not None:
            cursor = replace(cursor, start=max(cursor.start, self._since))
        if self._beyond:
            end = cursor.end() + self._beyond
            cursor = replace(cursor, end=lambda: end)
        is_grouped = any(isinstance(one, GroupingPartitionRouter) for one in routers)
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
        """What tells partitions apart in states by their values, if such ones are migrated."""
        routers = self.stream.retriever.partition_router
        migrations = self.stream.state_migrations
        is_migrated = any(isinstance(one, LegacyToPerPartitionStateMigration) for one in migrations)
        if not (is_migrated and len(routers) == 1):
            return None
        router = routers[0]
        if isinstance(router, UnionPartitionRouter):
            return named(router, self._api.config, router.partition_field)
        if not isinstance(router, SubstreamPartitionRouter | CustomPartitionRouter):
            return None
        if not router.parent_stream_configs:
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
            if self.slices.cursor is not None:
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
                yield Work(one, number, self._wanted(one))
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

    def _wanted(self, one: StreamSlice) -> tuple[int, int] | None:
        """From when and up to when records of a slice are wanted; None: all of them are."""
        if not isinstance(self.state, StreamState):
            return None
        return micros_of(self.state.lowest(one)), micros_of(self.state.end)

    def warn_of_undated(self) -> None:
        """Say once that records lack their cursor."""
        if not self._is_warned and self.slices.dated_by is not None:
            self._is_warned = True
            name = self.slices.dated_by.field
            log.warning("records_without_cursor", stream=self.stream.name, cursor=name)


@dataclass
class _Parent:
    """A stream that is read for the partitions of another."""

    reader: StreamReader

    _open: int = 0
    _are_all_known: bool = False

    def records(self) -> Iterator[tuple[StreamSlice, Record]]:
        for one, read in self.slices():
            for record in read():
                yield one, record

    def slices(self) -> Iterator[tuple[StreamSlice, Callable[[], Iterator[Record]]]]:
        for work in self.reader.work():
            self._open += 1
            yield work.slice, partial(self._read, work)
        self._are_all_known = True
        self._complete()

    def _read(self, work: Work) -> Iterator[Record]:
        one = self.reader.slices.read(work)
        last: Record | None = None
        for records in one.pages():
            for record in records:
                if last is not None:
                    yield last
                last = record
        # The last record comes when the slice counts as read: its partition is the one that
        # carries the parent's state on.
        self.reader.done(work, one.latest)
        self._open -= 1
        if last is not None:
            yield last
        self._complete()

    def _complete(self) -> None:
        if self._are_all_known and not self._open:
            self.reader.complete()

    def state(self) -> dict[str, Any]:
        return self.reader.state.exported()
