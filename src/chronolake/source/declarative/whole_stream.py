"""The complete read of a stream without a cursor, as one snapshot.

A record can move between the results of two requests while they are made: if a record of an earlier
page is deleted, the following ones move up, and one of them may be on no page. Therefore, if a
record seems to be deleted, everything is read a second time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from chronolake.change_set import SEQUENCE
from chronolake.errors import ChronolakeError, SourceError
from chronolake.source.declarative.manifests.capabilities import may_miss_records
from chronolake.source.protocol import ChangeBatch, ReadProgress, Snapshot, StreamFailure
from chronolake.source.records.pending_files import read_files
from chronolake.types import now_micros

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from chronolake.lake import Lake
    from chronolake.source.declarative.api import Api
    from chronolake.source.declarative.stream_reader import StreamReader
    from chronolake.source.declarative.stream_run import Run
    from chronolake.source.protocol import Offset
    from chronolake.source.records.pending_files import PendingFiles

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class WholeStream:
    """The inputs of a complete read.

    Attributes:
        name: the stream's name.
        api: the API to read from.
        run: reads the stream.
        begin_reader: returns a reader that begins where that of `run` did.
        begin_run: starts a run with a reader, whose records are stored in given files.
        workers: number of concurrent requests.
    """

    name: str
    api: Api
    run: Run
    begin_reader: Callable[[], StreamReader]
    begin_run: Callable[[StreamReader, PendingFiles], Run]
    workers: int

    def read(
        self, lake: Lake, *, may_become_empty: bool
    ) -> Iterator[ChangeBatch | Snapshot | ReadProgress | StreamFailure]:
        """Yield all records as one snapshot, because a partial read cannot replace the table.

        Args:
            lake: the lake whose Spark session reads the records.
            may_become_empty: whether the stream may have no records any more.
        """
        at = now_micros()
        position: Offset = {}
        for place in self.run.read_with_progress(self.workers, is_whole=True):
            position = position if place is None else place
            yield ReadProgress(self.name, self.run.rows)
        if self.run.failure is not None:
            yield StreamFailure(self.name, self.run.failure)
            return
        if not any(column.primary_key for column in self.run.files.columns()):
            # No record has ever been read.
            yield ChangeBatch(self.name, None, (), position)
            return

        def snapshot() -> Snapshot:
            """Return all records that have been read so far."""
            parts, columns = self.run.waiting.parts, self.run.files.columns()
            return Snapshot(
                self.name,
                read_files(lake, parts, columns, (SEQUENCE,)),
                columns,
                at,
                f"{at:016x}",
                position,
                is_distinct=False,
                order=SEQUENCE,
                may_be_empty=may_become_empty or bool(parts),
                is_protected=True,
                declared=self.run.declared(),
            )

        def again() -> Snapshot:
            self._read_again()
            return snapshot()

        again_if_needed = again if may_miss_records(self.run.reader.stream) else None
        yield replace(snapshot(), again=again_if_needed)
        self.run.waiting.acknowledge()

    def _read_again(self) -> None:
        log.info("snapshot_repeated", stream=self.name)
        try:
            # Responses that were cached in this run may be outdated.
            self.api.session.clear_cache()
            run = self.begin_run(self.begin_reader(), self.run.waiting)
            for _ in run.read(self.workers, is_whole=True):
                pass
            if run.failure is not None:
                raise run.failure
        except ChronolakeError as failure:
            raise SourceError(
                f"Records of the stream {self.name} were missing, and it could not be read a "
                f"second time to confirm that. Its table has not changed: {failure.message}",
                hint=failure.hint,
            ) from failure
