"""A complete read of a stream that is otherwise read incrementally: it finds what was deleted.

While all slices are read, records change, and pass from slices that are still to be read into some
that have been. So what has changed since the begin is asked for once more in the end: a record that
is in neither was not there when that began.

Pages shift, too, when a record goes that stood on one before. So where something seems to have gone
everything is read a second time: what is deleted are records that neither read has brought.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import structlog

from chronolake.errors import ChronolakeError, SourceError
from chronolake.failpoints import reach
from chronolake.source.declarative.cursors.datetime_cursor import time_cursor
from chronolake.source.declarative.cursors.state import StreamState
from chronolake.source.declarative.landing.file_writer import records_of
from chronolake.source.declarative.manifests.capabilities import cursor_of
from chronolake.source.declarative.models.cursors import DatetimeBasedCursor
from chronolake.source.declarative.parent_streams import chosen
from chronolake.source.declarative.stream_reader import StreamReader
from chronolake.source.declarative.templating.times import micros_of
from chronolake.source.protocol import COMPARED, ChangeBatch, Reconciliation

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from chronolake.config import OnPartitionLimit
    from chronolake.source.declarative.api import Api
    from chronolake.source.declarative.cursors.datetime_cursor import TimeCursor
    from chronolake.source.declarative.landing.file_writer import Waiting
    from chronolake.source.declarative.landing.run import Run
    from chronolake.source.declarative.models.streams import AnyStream, DeclarativeStream

log = structlog.get_logger(__name__)

#: So much the API's clock may be behind ours, or ahead of it.
_SKEW: Final = timedelta(minutes=5)
#: A cursor whose end is cut to seconds, or a little before the present, is waited for so long.
_PATIENCE: Final = timedelta(minutes=5)
_MINUTE: Final = timedelta(seconds=61)
_LOOK_SECONDS: Final = 0.2


@dataclass(frozen=True)
class Comparison:
    """What it takes to read a stream as a whole.

    Attributes:
        api: where it is read from.
        stream: the stream.
        run: the run that has read it incrementally.
        waiting: where its records wait, apart from those of other runs.
        begun: begins a run over a stream, whose records wait there.
        workers: how many requests are in flight.
        on_limit: what becomes of too many partitions.
    """

    api: Api
    stream: AnyStream
    run: Run
    waiting: Waiting
    begun: Callable[[StreamReader, Waiting], Run]
    workers: int
    on_limit: OnPartitionLimit

    def taken(self, spark: SparkSession, *, may_be_empty: bool) -> Reconciliation | ChangeBatch:
        """Read everything; nothing has landed.

        Args:
            spark: what the records are given to.
            may_be_empty: whether it may be that there are no records any more.

        Returns:
            What is to be compared with the table; nothing, if nobody has ever seen a record.

        Raises:
            SourceError: something could not be read, or not up to the present.
            ConfigurationError: the manifest and the configuration make no requests.
        """
        begun = datetime.now(UTC)
        since, until = self._read_all(begun)
        reach("read.census-taken")
        if not any(column.primary_key for column in self.run.files.columns()):
            compared = {**self.run.place, COMPARED: {"at": micros_of(begun)}}
            return ChangeBatch(self.stream.name, None, (), compared)

        def census() -> Reconciliation:
            """Of all that waits by now."""
            columns = self.run.files.columns()
            return Reconciliation(
                self.stream.name,
                records_of(spark, self.waiting.parts, columns, facts=True),
                columns,
                sum(part.rows for part in self.waiting.parts),
                micros_of(begun),
                self.run.place,
                since_micros=since,
                until_micros=until,
                is_dated=self._time_cursor() is not None,
                may_be_empty=may_be_empty,
            )

        def again() -> Reconciliation:
            log.info("comparison_repeated", stream=self.stream.name)
            self._read_all(datetime.now(UTC))
            return census()

        return replace(census(), again=again)

    def _read_all(self, begun: datetime) -> tuple[int | None, int | None]:
        """Read all records, to where they already wait; gives from when to when they are."""
        # What was asked for earlier in this run may have changed since.
        self.api.access.forget_answers()
        self._expect_present(begun)
        asked_for = _asked_for(self._read(chosen(self.stream, None)))
        self._catch_up(begun)
        return asked_for

    def _time_cursor(self) -> TimeCursor | None:
        model = cursor_of(self.stream)
        if not isinstance(model, DatetimeBasedCursor):
            return None
        return time_cursor(model, self.api.config)

    def _expect_present(self, now: datetime) -> None:
        """Refuse a cursor that ends before the present: what changed since would look deleted."""
        cursor = self._time_cursor()
        if cursor is not None and not reaches(cursor, now - _PATIENCE):
            raise _too_early(self.stream, cursor)

    def _catch_up(self, begun: datetime) -> None:
        """Read what has changed since the begin."""
        cursor = self._time_cursor()
        if cursor is None:
            return
        all_read = datetime.now(UTC)
        while not reaches(cursor, all_read):
            if datetime.now(UTC) > all_read + _PATIENCE:
                raise _too_early(self.stream, cursor)
            self.api.access.cancelled.wait(_LOOK_SECONDS)
        self.api.access.forget_answers()
        self._read(chosen(self.stream, {"": ""}), since=begun - _SKEW, beyond=_SKEW)

    def _read(
        self,
        stream: DeclarativeStream,
        since: datetime | None = None,
        beyond: timedelta = timedelta(),
    ) -> StreamReader:
        """Read all slices of a stream."""
        try:
            reader = StreamReader(
                stream,
                self.api,
                on_limit=self.on_limit,
                dated_by=cursor_of(self.stream),
                since=since,
                beyond=beyond,
            )
            run = self.begun(reader, self.waiting)
            for _ in run.read(self.workers, is_whole=True):
                pass
            if run.failure is not None:
                raise run.failure
        except ChronolakeError as failure:
            log.warning("comparison_failed", stream=self.stream.name, reason=str(failure))
            raise SourceError(
                f"The stream {self.stream.name} could not be compared with all that the API has, "
                f"and nothing was deleted: {failure.message}",
                hint=failure.hint,
            ) from failure
        return reader


def reaches(cursor: TimeCursor, at: datetime) -> bool:
    """Whether a read that begins now brings what has changed until a time, as requests tell it.

    A time that is written without its hour or its minute stands for all of that day or hour.
    """
    end = cursor.end()
    reported = cursor.formatted(end)
    try:
        is_coarse = reported == cursor.formatted(end + _MINUTE)
    except OverflowError:
        return True
    if is_coarse:
        return end >= at or reported == cursor.formatted(at.astimezone(end.tzinfo))
    return cursor.parsed(reported) >= at


def _asked_for(reader: StreamReader) -> tuple[int | None, int | None]:
    """From when to when records were asked for, in microseconds since 1970; None: without end."""
    state = reader.state
    if not isinstance(state, StreamState):
        return None, None
    return micros_of(state.cursor.before(state.cursor.start)), micros_of(state.end)


def _too_early(stream: AnyStream, cursor: TimeCursor) -> SourceError:
    end = cursor.end().isoformat(timespec="seconds")
    return SourceError(
        f"The stream {stream.name} is read up to {end} only: what "
        "has changed since would look deleted, and so nothing was.",
        hint="With detect_deletes, let the cursor's end_datetime be the present, or leave it out.",
    )
