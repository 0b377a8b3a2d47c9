"""Reading slices: their pages, when their records were changed, and which is the latest.

What reads slices knows nothing of a stream's state, so that a task elsewhere can do it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from chronolake.source.declarative.cursors.counting import count_reader
from chronolake.source.declarative.cursors.timing import time_cursor
from chronolake.source.declarative.language.cursors import (
    DatetimeBasedCursor,
    IncrementingCountCursor,
)
from chronolake.source.declarative.language.reports import AsyncRetriever
from chronolake.source.declarative.paging.pages import Retrieval
from chronolake.source.declarative.paging.reports import Reports, downloads_of
from chronolake.source.declarative.paging.rereading import Latest
from chronolake.source.declarative.partitions import inject_partition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from chronolake.source.declarative.api import Api
    from chronolake.source.declarative.cursors.timing import TimeCursor
    from chronolake.source.declarative.exchange.injection import Injection
    from chronolake.source.declarative.language.cursors import IncrementalSync
    from chronolake.source.declarative.language.streams import DeclarativeStream
    from chronolake.source.declarative.records.selection import Page
    from chronolake.source.declarative.records.transformations import Record
    from chronolake.source.declarative.streamslice import StreamSlice


@dataclass(frozen=True)
class Work:
    """A slice that is to be read.

    Attributes:
        slice: the slice.
        partition: the number of its partition in this run.
        wanted: from when and up to when records are wanted, in microseconds since 1970, both
            inclusive; None: all of them are.
    """

    slice: StreamSlice
    partition: int
    wanted: tuple[int, int] | None = None


class SliceReader:
    """Reads the slices of a stream; any number of threads may use it.

    Attributes:
        cursor: the stream's cursor over time, or None.
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
        """Make ready what the manifest says of a stream's requests.

        Args:
            stream: the stream.
            api: where it is read from.
            schema: of its records.
            dated_by: the cursor that tells when records were changed, where it is not the stream's
                own.
            is_embedded: whether the first page of a slice comes with it.

        Raises:
            ConfigurationError: the manifest and the configuration make no requests.
        """
        retriever = stream.retriever
        self._reports: Reports | None = None
        if isinstance(retriever, AsyncRetriever):
            self._reports = Reports(retriever, api, stream.name)
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
        """Begin to read a slice."""
        return Slice(
            self.pages(work), cursor=self.cursor, dated_by=self.dated_by, count=self._count
        )

    def pages(self, work: Work) -> Iterator[Page]:
        """The pages of a slice, each read when it is asked for.

        Raises:
            SourceError: the API does not answer, or not with records.
            ConfigurationError: the manifest and the configuration make no request.
        """
        one, keep = work.slice, self._keep(work.wanted)
        if self._reports is None:
            yield from self._retrieval.pages(one, keep)
            return
        for batch in self._reports.batches(one):
            yield self._retrieval.selected(batch, one, keep)

    def _inject(self, into: Injection, one: StreamSlice) -> None:
        """What the slice puts into a request."""
        inject_partition(self._routers, self._config, into, one)
        model = self._model
        options: list[tuple[Any, str]] = []
        if isinstance(model, DatetimeBasedCursor) and self.cursor is not None:
            begin, end = self.cursor.names
            options = [(model.start_time_option, begin), (model.end_time_option, end)]
        elif isinstance(model, IncrementingCountCursor):
            options = [(model.start_value_option, "start")]
        for option, name in options:
            if option is not None:
                into.put(option, one.get(name), self._config)

    def _latest_of_slice(self) -> Callable[[], Latest] | None:
        """What tells from which record on a slice can be asked for anew; None: nothing does."""
        cursor, count = self.cursor, self._count
        if cursor is not None:
            read = cursor.reader.micros
            return partial(
                Latest,
                lambda record: read(record.get(cursor.field)),
                lambda record: cursor.formatted(cursor.of_record(record[cursor.field])),
                cursor.names[0],
                partial(_is_beyond, cursor),
            )
        return None if count is None else partial(Latest, count, count, "start")

    def _keep(self, wanted: tuple[int, int] | None) -> Callable[[Record], bool]:
        """Whether a record is within what is wanted; one without a time is."""
        if self.cursor is None or wanted is None:
            return lambda _: True
        name, read = self.cursor.field, self.cursor.reader.micros
        lowest, greatest = wanted

        def keep(record: Record) -> bool:
            at = read(record.get(name))
            return at is None or lowest <= at <= greatest

        return keep


def _is_beyond(cursor: TimeCursor, bound: str, one: StreamSlice) -> bool:
    return cursor.is_beyond(cursor.parsed(bound), cursor.parsed(one.cursor_slice[cursor.names[1]]))


class Slice:
    """A slice while it is read; one thread uses it.

    Attributes:
        is_undated: whether a record did not tell when it was changed, though it should.
        times: when the records of the last page were changed, in microseconds since 1970; None
            where a record does not say it, or the stream has no cursor over time.
    """

    def __init__(
        self,
        pages: Iterator[Page],
        *,
        cursor: TimeCursor | None,
        dated_by: TimeCursor | None,
        count: Callable[[Record], int | None] | None,
    ) -> None:
        """Begin to read.

        Args:
            pages: the slice's pages, each read when it is asked for.
            cursor: the cursor over time whose state the slice moves.
            dated_by: the cursor that tells when records were changed.
            count: gives a record's number, where numbers are the cursor.
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
        """The records of the slice, page by page; raises what `SliceReader.pages` raises."""
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
        """The cursor of the latest record so far: a time, a number, or None."""
        if self._count is not None:
            return self._value
        if self._cursor is None or self._value is None:
            return None
        return self._cursor.of_record(self._value)
