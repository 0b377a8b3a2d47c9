"""Reconciliation: a complete read of an incremental stream, which detects deleted records.

Records change during the read, and can move from slices that are not read yet into slices that are.
Therefore, changes since the start are requested once more at the end: a record that is in neither
result did not exist when the second read began.

Pages also shift when a record of an earlier page is deleted. Therefore, if records seem to be
deleted, everything is read a second time: only records that both reads lack are deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import structlog

from chronolake.arrow_tasks import to_spark
from chronolake.errors import ChronolakeError, SourceError
from chronolake.failpoints import reach
from chronolake.source.declarative.cursors.datetime_cursor import time_cursor
from chronolake.source.declarative.cursors.state import StreamState
from chronolake.source.declarative.manifests.capabilities import cursor_of
from chronolake.source.declarative.models.streams import DatetimeBasedCursor
from chronolake.source.declarative.parent_streams import select_stream
from chronolake.source.declarative.stream_reader import StreamReader
from chronolake.source.declarative.templating.times import micros_of
from chronolake.source.protocol import COMPARED, ChangeBatch, DeclaredColumns, Reconciliation
from chronolake.source.records.pending_files import WHOLE_RECORDS, filled_in, read_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from chronolake.config import OnPartitionLimit
    from chronolake.lake import Lake
    from chronolake.source.declarative.api import Api
    from chronolake.source.declarative.cursors.datetime_cursor import TimeCursor
    from chronolake.source.declarative.models.streams import AnyStream, DeclarativeStream
    from chronolake.source.declarative.stream_run import Run
    from chronolake.source.records.pending_files import PendingFiles

log = structlog.get_logger(__name__)

#: The largest difference between the API's clock and this machine's, in either direction.
_SKEW: Final = timedelta(minutes=5)
#: How long to wait for a cursor whose end is truncated to seconds or a little before the present.
_PATIENCE: Final = timedelta(minutes=5)
_MINUTE: Final = timedelta(seconds=61)
_LOOK_SECONDS: Final = 0.2


@dataclass(frozen=True)
class CompleteRead:
    """The inputs of a complete read of a stream.

    Attributes:
        api: the API to read from.
        run: the run that has read the stream incrementally.
        waiting: stores the records, separately from those of other runs.
        begin_run: starts a run over a stream, whose records are stored in `waiting`.
        workers: number of concurrent requests.
        on_limit: what to do if there are too many partitions.
    """

    api: Api
    stream: AnyStream
    run: Run
    waiting: PendingFiles
    begin_run: Callable[[StreamReader, PendingFiles], Run]
    workers: int
    on_limit: OnPartitionLimit

    def read(self, lake: Lake, *, may_be_empty: bool) -> Reconciliation | ChangeBatch:
        """Read everything; nothing is landed.

        Args:
            lake: the lake whose Spark session reads the records.
            may_be_empty: whether the stream may have become empty.

        Returns:
            The records to compare with the table, or an empty batch if no record was ever read.

        Raises:
            SourceError: something could not be read, or not up to the present.
            ConfigurationError: the requests cannot be built from the manifest and the
                configuration.
        """
        begun = datetime.now(UTC)
        since, until = self._read_all(begun)
        reach("read.census-taken")
        if not any(column.primary_key for column in self.run.files.columns()):
            compared = {**self.run.place, COMPARED: {"at": micros_of(begun)}}
            return ChangeBatch(self.stream.name, None, (), compared)

        def reconciliation() -> Reconciliation:
            """Return all records that have been read so far."""
            columns = self.run.files.columns()
            return Reconciliation(
                self.stream.name,
                to_spark(read_files(lake, self.waiting.parts, columns, WHOLE_RECORDS)),
                columns,
                sum(part.rows for part in self.waiting.parts),
                micros_of(begun),
                self.run.place,
                since_micros=since,
                until_micros=until,
                is_dated=self._time_cursor() is not None,
                may_be_empty=may_be_empty,
                is_protected=True,
                declared=DeclaredColumns(
                    self.run.files.shape.fields, filled_in(self.waiting.parts)
                ),
            )

        def again() -> Reconciliation:
            log.info("comparison_repeated", stream=self.stream.name)
            self._read_all(datetime.now(UTC))
            return reconciliation()

        return replace(reconciliation(), again=again)

    def _read_all(self, begun: datetime) -> tuple[int | None, int | None]:
        """Read all records into `waiting`; return the start and end of the requested time range."""
        # Responses that were cached earlier in this run may be outdated.
        self.api.session.clear_cache()
        self._expect_present(begun)
        asked_for = _requested_range(self._read(select_stream(self.stream, None)))
        self._catch_up(begun)
        return asked_for

    def _time_cursor(self) -> TimeCursor | None:
        model = cursor_of(self.stream)
        if not isinstance(model, DatetimeBasedCursor):
            return None
        return time_cursor(model, self.api.config)

    def _expect_present(self, now: datetime) -> None:
        """Raise if the cursor ends before the present: later changes would look like deletions."""
        cursor = self._time_cursor()
        if cursor is not None and not is_requested_until(cursor, now - _PATIENCE):
            raise _outdated_end_error(self.stream, cursor)

    def _catch_up(self, begun: datetime) -> None:
        """Read the changes since the start."""
        cursor = self._time_cursor()
        if cursor is None:
            return
        all_read = datetime.now(UTC)
        while not is_requested_until(cursor, all_read):
            if datetime.now(UTC) > all_read + _PATIENCE:
                raise _outdated_end_error(self.stream, cursor)
            self.api.session.cancelled.wait(_LOOK_SECONDS)
        self.api.session.clear_cache()
        self._read(select_stream(self.stream, {"": ""}), since=begun - _SKEW, beyond=_SKEW)

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
            run = self.begin_run(reader, self.waiting)
            for _ in run.read(self.workers, is_whole=True):
                pass
            if run.failure is not None:
                raise run.failure
        except ChronolakeError as failure:
            log.warning("comparison_failed", stream=self.stream.name, reason=str(failure))
            raise SourceError(
                f"The stream {self.stream.name} could not be compared with the API's "
                f"complete data, so no record was deleted: {failure.message}",
                hint=failure.hint,
            ) from failure
        return reader


def is_requested_until(cursor: TimeCursor, at: datetime) -> bool:
    """Return whether the requests of a read that begins now include all changes up to a time.

    A time that is formatted without its hour or minute includes that whole day or hour.
    """
    end = cursor.end()
    reported = cursor.format_time(end)
    try:
        is_coarse = reported == cursor.format_time(end + _MINUTE)
    except OverflowError:
        return True
    if is_coarse:
        return end >= at or reported == cursor.format_time(at.astimezone(end.tzinfo))
    return cursor.parse(reported) >= at


def _requested_range(reader: StreamReader) -> tuple[int | None, int | None]:
    """Return the requested time range in microseconds since 1970; None: unbounded."""
    state = reader.state
    if not isinstance(state, StreamState):
        return None, None
    return micros_of(state.cursor.with_lookback(state.cursor.start)), micros_of(state.end)


def _outdated_end_error(stream: AnyStream, cursor: TimeCursor) -> SourceError:
    end = cursor.end().isoformat(timespec="seconds")
    return SourceError(
        f"The stream {stream.name} is only read up to {end}. Records that "
        "changed later would look deleted, so no record was deleted.",
        hint="For detect_deletes, set the cursor's end_datetime to the present, or remove it.",
    )
