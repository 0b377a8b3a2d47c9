"""A slice while it is read: its records, when they were changed, and which is the latest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from chronolake.source.declarative.cursors.timing import TimeCursor
    from chronolake.source.declarative.records.selection import Page
    from chronolake.source.declarative.records.transformations import Record
    from chronolake.source.declarative.streamslice import StreamSlice


class Slice:
    """A slice while it is read; one thread uses it.

    Attributes:
        slice: which one.
        times: when the records of the last page were changed, in microseconds since 1970; None
            where a record does not say it, or the stream has no cursor over time.
    """

    def __init__(
        self,
        one: StreamSlice,
        pages: Iterator[Page],
        *,
        cursor: TimeCursor | None,
        dated_by: TimeCursor | None,
        count: Callable[[Record], int | None] | None,
        warn: Callable[[], None],
    ) -> None:
        """Begin to read.

        Args:
            one: the slice.
            pages: its pages, each read when it is asked for.
            cursor: the cursor over time whose state the slice moves.
            dated_by: the cursor that tells when records were changed.
            count: gives a record's number, where numbers are the cursor.
            warn: says that a record does not tell when it was changed.
        """
        self.slice = one
        self.times: list[int | None] = []
        self._pages = pages
        self._cursor = cursor
        self._dated_by = dated_by
        self._reader = None if dated_by is None else dated_by.reader
        self._count = count
        self._warn = warn
        self._micros: int | None = None
        self._value: Any = None

    def pages(self) -> Iterator[list[Record]]:
        """The records of the slice, page by page; raises what `StreamReader.pages` raises."""
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
            self._warn()
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
        return self._cursor.parsed(self._value)
