"""History of runs and of verifications, read from the operational store without Spark.

The store is opened read-only: nothing is created or written, and no writer is blocked.

A process that crashes cannot record the end of its run. Such a run is reported as dead, which
follows from its lease, whatever the store contains.

A lake without a store, because nothing ever ran, has no runs.
"""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sql
import structlog
from sqlalchemy.exc import SQLAlchemyError

from chronolake import database, exact_json
from chronolake.errors import LakeError
from chronolake.pipeline.lease import is_dead
from chronolake.pipeline.runs import (
    CUT,
    Run,
    Stage,
    Status,
    StreamRun,
    StreamTotals,
    VerificationResult,
    diff_states,
    now,
)
from chronolake.pipeline.store import (
    CONTINUES_HINT,
    LEASES,
    RUNS,
    STREAM_RUNS,
    STREAM_TOTALS,
    VERIFIED,
    Store,
    available_columns,
    run_from,
    stream_from,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sqlalchemy.engine import RowMapping

    from chronolake.config import LakeConfig
    from chronolake.core import VerifyReport
    from chronolake.pipeline.runs import Change


log = structlog.get_logger(__name__)


def note_verified(
    config: LakeConfig, reports: Iterable[VerifyReport], *, against_lake: bool = False
) -> None:
    """Record verification results; never fails, because the results are reported in any case.

    Args:
        config: the lake.
        reports: the results.
        against_lake: whether the tables were also compared with their raw lakes.
    """
    try:
        store = Store.open(config)
        for report in reports:
            broken = [
                f"{invariant.text} ({invariant.violations:,} rows)"
                for invariant in report.invariants
                if not invariant.holds
            ]
            store.note_verified(
                VerificationResult(
                    str(report.table),
                    now(),
                    report.holds,
                    report.rows,
                    against_lake,
                    "\n".join(broken) or None,
                )
            )
    except LakeError as failure:
        log.warning("verification_not_noted", reason=failure.message)


#: Number of a pipeline's runs that are first searched for a stream's last run.
_RECENT_RUNS: Final = 20
_DIED: Final = "The process ended before the run was finished."


@dataclass(frozen=True)
class StreamSums:
    """The totals of a run's streams.

    Attributes:
        streams: number of streams.
        failed: number of failed streams.
        parts: sum of the streams' fractions that are done, each from 0 to 1.
        rows_read: sum of `StreamRun.rows_read`; None if it is unknown for all streams.
        landed_rows: the same for `landed_rows`.
        rows: the same for `rows`.
        written: the same for `written`.
        failed_stream: the first failed stream by name, or None.
        error: its error, or None.
    """

    streams: int = 0
    failed: int = 0
    parts: float = 0.0
    rows_read: int | None = None
    landed_rows: int | None = None
    rows: int | None = None
    written: int | None = None
    failed_stream: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class StoreReader:
    """The store in a read-only transaction; an earlier version may have written it.

    Attributes:
        connection: the transaction's connection.
        run_columns: the columns of runs, null where the store lacks them.
        stream_columns: the same for streams in runs.
    """

    connection: sql.Connection
    run_columns: Sequence[sql.ColumnElement[Any]]
    stream_columns: Sequence[sql.ColumnElement[Any]]

    def runs(
        self, pipeline: str | None, status: Status | None, limit: int, after: str | None
    ) -> list[Run]:
        """Return up to `limit` runs, newest first (see the function `runs`)."""
        query = sql.select(*self.run_columns).order_by(RUNS.c.began.desc(), RUNS.c.id)
        if pipeline is not None:
            query = query.where(RUNS.c.pipeline == pipeline)
        if status is not None:
            # Dead runs are stored as running.
            stored = Status.RUNNING if status is Status.DEAD else status
            query = query.where(RUNS.c.status == stored)
        if after is not None:
            began = sql.select(RUNS.c.began).where(RUNS.c.id == after).scalar_subquery()
            is_older = (RUNS.c.began < began) | ((RUNS.c.began == began) & (RUNS.c.id > after))
            query = query.where(is_older)
        if status not in {Status.RUNNING, Status.DEAD}:
            query = query.limit(limit)
        found = self._runs(self.connection.execute(query).mappings().all())
        return [run for run in found if status is None or run.status is status][:limit]

    def run(self, identity: str) -> Run | None:
        """Return the run with an identity, or None."""
        query = sql.select(*self.run_columns).where(RUNS.c.id == identity)
        found = self._runs(self.connection.execute(query).mappings().all())
        return found[0] if found else None

    def newest(self, number: int, pipeline: str | None = None) -> list[Run]:
        """Return up to `number` newest runs of each pipeline, or of one; newest first."""
        place = sql.func.row_number().over(
            partition_by=RUNS.c.pipeline, order_by=(RUNS.c.began.desc(), RUNS.c.id)
        )
        ranked = sql.select(RUNS.c.id, place.label("place"))
        if pipeline is not None:
            ranked = ranked.where(RUNS.c.pipeline == pipeline)
        newest = ranked.subquery()
        query = (
            sql.select(*self.run_columns)
            .join(newest, newest.c.id == RUNS.c.id)
            .where(newest.c.place <= number)
            .order_by(RUNS.c.began.desc(), RUNS.c.id)
        )
        return self._runs(self.connection.execute(query).mappings().all())

    def streams_of(self, identities: Sequence[str]) -> dict[str, list[StreamRun]]:
        """Return the streams of runs, ordered by name; an empty list for a run without streams."""
        query = sql.select(*self.stream_columns).where(STREAM_RUNS.c.run.in_(identities))
        found: dict[str, list[StreamRun]] = defaultdict(list)
        rows = self.connection.execute(query.order_by(STREAM_RUNS.c.stream)).mappings()
        for row in rows:
            found[row["run"]].append(stream_from(row))
        return found

    def sums_of(self, identities: Sequence[str]) -> dict[str, StreamSums]:
        """Return the totals of runs' streams; zeros for a run without streams."""
        query = sql.select(*self.stream_columns).where(STREAM_RUNS.c.run.in_(identities))
        records = query.subquery().c
        total = records.bytes + records.bytes_left
        part = sql.case(
            (records.status == Status.SUCCEEDED, 1.0),
            (records.stage.in_((Stage.WAITING, Stage.LANDING)), 0.0),
            (total > 0, records.bytes * 1.0 / total),
            else_=0.0,
        )
        failed = sql.case((records.error.is_not(None), records.stream))
        names = ("rows_read", "landed_rows", "rows", "written")
        sums = sql.select(
            records.run,
            sql.func.count().label("streams"),
            sql.func.count(failed).label("failed"),
            sql.func.sum(part).label("parts"),
            *(sql.cast(sql.func.sum(records[name]), sql.BigInteger).label(name) for name in names),
            sql.func.min(failed).label("failed_stream"),
        ).group_by(records.run)
        found: dict[str, StreamSums] = defaultdict(StreamSums)
        for row in self.connection.execute(sums).mappings():
            known = {name: value for name, value in row.items() if name != "run"}
            found[row["run"]] = StreamSums(**{**known, "parts": float(row["parts"])})
        for run, totals in found.items():
            if totals.failed_stream is not None:
                is_it = (STREAM_RUNS.c.run == run) & (STREAM_RUNS.c.stream == totals.failed_stream)
                error = self.connection.execute(sql.select(STREAM_RUNS.c.error).where(is_it))
                found[run] = replace(totals, error=error.scalar_one())
        return found

    def last_of_streams(self, pipeline: str | None) -> list[tuple[Run, StreamRun]]:
        """Return each stream's last run among the recent runs."""
        recent = {run.id: run for run in self.newest(_RECENT_RUNS, pipeline)}
        place = sql.func.row_number().over(
            partition_by=(RUNS.c.pipeline, STREAM_RUNS.c.stream),
            order_by=(RUNS.c.began.desc(), RUNS.c.id),
        )
        ranked = (
            sql.select(STREAM_RUNS.c.run, STREAM_RUNS.c.stream, place.label("place"))
            .join(RUNS, RUNS.c.id == STREAM_RUNS.c.run)
            .where(STREAM_RUNS.c.run.in_(recent))
            .subquery()
        )
        is_same = (ranked.c.run == STREAM_RUNS.c.run) & (ranked.c.stream == STREAM_RUNS.c.stream)
        query = sql.select(*self.stream_columns).join(ranked, is_same).where(ranked.c.place == 1)
        rows = self.connection.execute(query).mappings()
        return [(recent[row["run"]], stream_from(row)) for row in rows]

    def fresh(self, pipeline: str | None) -> dict[tuple[str, str], str]:
        """Return when each stream's last successful run began, by pipeline and stream.

        Older runs are searched only for streams that have not succeeded in the recent ones.
        """
        recent = [run.id for run in self.newest(_RECENT_RUNS, pipeline)]
        runs = sql.select(RUNS.c.pipeline, STREAM_RUNS.c.stream).join(
            STREAM_RUNS, STREAM_RUNS.c.run == RUNS.c.id
        )
        of_recent = STREAM_RUNS.c.run.in_(recent)
        streams = {
            (row.pipeline, row.stream) for row in self._all(runs.where(of_recent).distinct())
        }
        succeeded = (
            runs.add_columns(sql.func.max(RUNS.c.began).label("began"))
            .where(STREAM_RUNS.c.status == Status.SUCCEEDED)
            .group_by(RUNS.c.pipeline, STREAM_RUNS.c.stream)
        )
        recent_rows = self._all(succeeded.where(of_recent))
        found = {(row.pipeline, row.stream): str(row.began) for row in recent_rows}
        if missing := {stream for _, stream in streams - found.keys()}:
            earlier = succeeded.where(STREAM_RUNS.c.stream.in_(missing))
            for row in self._all(earlier):
                found.setdefault((row.pipeline, row.stream), row.began)
        return found

    def _all(self, query: sql.Select[Any]) -> Sequence[sql.Row[Any]]:
        return self.connection.execute(query).all()

    def last_verifications(self) -> dict[str, VerificationResult]:
        """Return the last verification of each table, by the table's name as text."""
        columns = available_columns(self.connection, VERIFIED)
        if columns is None:
            return {}
        rows = self.connection.execute(sql.select(*columns)).mappings()
        return {row["table_name"]: VerificationResult(**row) for row in rows}

    def totals(self) -> list[StreamTotals]:
        """Return the sums of all streams."""
        columns = available_columns(self.connection, STREAM_TOTALS)
        if columns is None:
            return []
        rows = self.connection.execute(sql.select(*columns)).mappings()
        return [StreamTotals(**row) for row in rows]

    def _runs(self, rows: Iterable[RowMapping]) -> list[Run]:
        leases = {row.pipeline: row for row in self.connection.execute(sql.select(LEASES))}
        return [_with_actual_status(run_from(row), leases.get(row["pipeline"])) for row in rows]


@contextmanager
def read(config: LakeConfig) -> Iterator[StoreReader | None]:
    """Open the store of a lake for reading; yield None if there is no store.

    Raises:
        LakeError: the store is not reachable.
    """
    engine = database.read_engine(config.store_database)
    if engine is None:
        yield None
        return
    try:
        with engine.begin() as connection:
            columns = [
                available_columns(connection, table) for table in (RUNS, STREAM_RUNS, LEASES)
            ]
            runs, streams, leases = columns
            if runs is None or streams is None or leases is None:
                # A lake that only a destination has written to has a catalog but no store.
                yield None
            else:
                yield StoreReader(connection, runs, streams)
    except SQLAlchemyError as failure:
        # The driver's message may quote the address with its password.
        raise LakeError(
            f"The lake's operational store cannot be read: {type(failure).__name__}.",
            hint="Check the catalog's database.",
        ) from failure


def _with_actual_status(run: Run, lease: sql.Row[Any] | None) -> Run:
    """Return a run with its actual status: a running one is dead if its process has ended."""
    if run.status is not Status.RUNNING:
        return run
    is_held = (
        lease is not None
        and lease.holder == run.holder
        and lease.expires > time.time()
        and not is_dead(run.holder)
    )
    return run if is_held else replace(run, status=Status.DEAD, error=_DIED, hint=CONTINUES_HINT)


@dataclass(frozen=True)
class ObservedStream:
    """A stream in a run.

    Attributes:
        record: the stream's record; a running stream of a crashed process is dead.
        fraction: the part of the files to apply that were applied, from 0 to 1; None if unknown.
        changes: changes of the stream's source state and table offset by the run; empty if
            nothing changed or the changes are unknown.
    """

    record: StreamRun
    fraction: float | None
    changes: tuple[Change, ...]

    @property
    def states(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the stream's offsets before and after the run, as JSON types."""
        return _offsets_of(self.record)

    @property
    def changes_in_all(self) -> int:
        """Return the number of changes; only the first ones of a large state are stored."""
        count = self.states[1].get("source", {}).get(CUT)
        return max(count if isinstance(count, int) else 0, len(self.changes))

    @property
    def is_state_known(self) -> bool:
        """Return whether the stream's offset in its source or its table was recorded."""
        return bool(self.states[1]) or self.record.files_left is not None


@dataclass(frozen=True)
class ObservedRun:
    """A run of a pipeline.

    Attributes:
        run: the run's record; dead if its process has ended.
        seconds: its duration, or its duration so far; None if the end is unknown.
        streams: its streams, ordered by name.
        fraction: the part of the run that is done, from 0 to 1; None if unknown.
    """

    run: Run
    seconds: float | None
    streams: tuple[ObservedStream, ...]
    fraction: float | None

    def sum(self, name: str) -> int | None:
        """Return a counter's sum over the streams, such as of `written`; None if unknown."""
        values = [getattr(stream.record, name) for stream in self.streams]
        known_values = [value for value in values if value is not None]
        return sum(known_values) if known_values else None


@dataclass(frozen=True)
class ObservedRuns:
    """A page of runs, newest first.

    Attributes:
        next: the run after which the next page begins (`runs(after=…)`); None for the last page.
    """

    runs: tuple[ObservedRun, ...]
    next: str | None


@dataclass(frozen=True)
class RunSummary:
    """A summary of a run.

    Attributes:
        run: the run's record; dead if its process has ended.
        seconds: its duration, or its duration so far; None if the end is unknown.
        fraction: the part of the run that is done, from 0 to 1; None if unknown.
        sums: the totals of its streams.
    """

    run: Run
    seconds: float | None
    fraction: float | None
    sums: StreamSums


@dataclass(frozen=True)
class RunSummaries:
    """A page of run summaries, newest first.

    Attributes:
        runs: the summaries.
        next: the run after which the next page begins; None for the last page.
    """

    runs: tuple[RunSummary, ...]
    next: str | None


@dataclass(frozen=True)
class ObservedPipeline:
    """A pipeline that is configured, or has run.

    Attributes:
        name: its name.
        source: the type of its source; None if the pipeline is not configured.
        last: its last run, or None.
    """

    name: str
    source: str | None
    last: RunSummary | None


@dataclass(frozen=True)
class LastRuns:
    """The recent runs of a stream.

    Attributes:
        last: the stream's last run.
        fresh_as_of: when its last successful run began: the table contains all source data as of
            that time. None if no known run succeeded.
    """

    last: StreamRun
    fresh_as_of: str | None


def runs(
    config: LakeConfig,
    *,
    pipeline: str | None = None,
    status: Status | None = None,
    limit: int = 20,
    after: str | None = None,
) -> ObservedRuns:
    """Return a page of runs, newest first.

    Args:
        config: the lake.
        pipeline: only runs of this pipeline.
        status: only runs with this status.
        limit: maximum number of runs.
        after: only runs that are older than the run with this identity.

    Raises:
        LakeError: the store is not reachable.
    """
    with read(config) as store:
        if store is None:
            return ObservedRuns((), None)
        found = store.runs(pipeline, status, limit + 1, after)
        streams = store.streams_of([run.id for run in found[:limit]])
    seen = tuple(_observe_run(run, streams[run.id]) for run in found[:limit])
    return ObservedRuns(seen, seen[-1].run.id if len(found) > limit else None)


def summaries(
    config: LakeConfig,
    *,
    pipeline: str | None = None,
    status: Status | None = None,
    limit: int = 20,
    after: str | None = None,
) -> RunSummaries:
    """Return a page of run summaries, as `runs`; fast for any number of streams.

    Raises:
        LakeError: the store is not reachable.
    """
    with read(config) as store:
        if store is None:
            return RunSummaries((), None)
        found = store.runs(pipeline, status, limit + 1, after)
        sums = store.sums_of([run.id for run in found[:limit]])
    seen = tuple(_summarize(run, sums[run.id]) for run in found[:limit])
    return RunSummaries(seen, seen[-1].run.id if len(found) > limit else None)


def run(config: LakeConfig, identity: str) -> ObservedRun | None:
    """Return the run with an identity, or None.

    Raises:
        LakeError: the store is not reachable.
    """
    with read(config) as store:
        if store is None:
            return None
        found = store.run(identity)
        return (
            None if found is None else _observe_run(found, store.streams_of([identity])[identity])
        )


def pipelines(
    config: LakeConfig, configured: Mapping[str, str] | None = None
) -> list[ObservedPipeline]:
    """Return the configured pipelines in their order, then others that have run, by name.

    Args:
        config: the lake.
        configured: the types of the sources by pipeline name (`config.sources_of_project`); None if
            they are unknown.

    Raises:
        LakeError: the store is not reachable.
    """
    sources = configured or {}
    with read(config) as store:
        newest = {} if store is None else {run.pipeline: run for run in store.newest(1)}
        sums = {} if store is None else store.sums_of([run.id for run in newest.values()])
    seen = {name: _summarize(run, sums[run.id]) for name, run in newest.items()}
    names = [*sources, *sorted(set(seen) - set(sources))]
    return [ObservedPipeline(name, sources.get(name), seen.get(name)) for name in names]


def last_runs(config: LakeConfig, pipeline: str | None = None) -> dict[tuple[str, str], LastRuns]:
    """Return each stream's recent runs, by pipeline and stream.

    Args:
        config: the lake.
        pipeline: only streams of this pipeline.

    Raises:
        LakeError: the store is not reachable.
    """
    with read(config) as store:
        if store is None:
            return {}
        found, fresh = store.last_of_streams(pipeline), store.fresh(pipeline)
    return {
        (run.pipeline, stream.stream): LastRuns(
            replace(stream, status=_status(run, stream.status)),
            fresh.get((run.pipeline, stream.stream)),
        )
        for run, stream in found
    }


def last_verifications(config: LakeConfig) -> dict[str, VerificationResult]:
    """Return each table's last result of `chronolake verify`, by `str` of the table's name.

    Raises:
        LakeError: the store is not reachable.
    """
    with read(config) as store:
        return {} if store is None else store.last_verifications()


def totals(config: LakeConfig) -> list[StreamTotals]:
    """Return the sums of all ended runs of each stream.

    Raises:
        LakeError: the store is not reachable.
    """
    with read(config) as store:
        return [] if store is None else store.totals()


def behind_seconds(fresh_as_of: str | None) -> float | None:
    """Return the age of an instant in seconds; None for None."""
    if fresh_as_of is None:
        return None
    return round((datetime.now(UTC) - datetime.fromisoformat(fresh_as_of)).total_seconds(), 1)


def _status(run: Run, stream: Status) -> Status:
    is_left = run.status is not Status.RUNNING and stream is Status.RUNNING
    return Status.DEAD if is_left else stream


def _seconds(run: Run) -> float | None:
    if run.ended is None and run.status is not Status.RUNNING:
        return None
    ended = datetime.now(UTC) if run.ended is None else datetime.fromisoformat(run.ended)
    return max(0.0, (ended - datetime.fromisoformat(run.began)).total_seconds())


def _summarize(run: Run, sums: StreamSums) -> RunSummary:
    # A stream whose fraction is unknown has not begun to apply files.
    fraction = sums.parts / sums.streams if sums.parts else None
    return RunSummary(run, _seconds(run), fraction, sums)


def _observe_run(run: Run, streams: Sequence[StreamRun]) -> ObservedRun:
    seen = tuple(_observe_stream(run, stream) for stream in streams)
    parts = sum(stream.fraction or 0.0 for stream in seen)
    return ObservedRun(run, _seconds(run), seen, parts / len(seen) if parts else None)


def _observe_stream(run: Run, record: StreamRun) -> ObservedStream:
    record = replace(record, status=_status(run, record.status))
    changes = tuple(diff_states(*_offsets_of(record))) if record.stage is None else ()
    return ObservedStream(record, _fraction(record), changes)


def _fraction(record: StreamRun) -> float | None:
    if record.status is Status.SUCCEEDED:
        return 1.0
    if record.stage is Stage.WAITING:
        return 0.0
    if record.bytes_left is None or record.stage is Stage.LANDING:
        return None
    total = record.bytes + record.bytes_left
    return record.bytes / total if total else 1.0


def _offsets_of(record: StreamRun) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a stream's offsets before and after: in its source, if recorded, and in its table.

    An offset that is unknown afterwards is in neither result.
    """
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    if record.state_after is not None:
        # States are never deleted: without one, it was not recorded.
        if (state := _parse_object(record.state_after)) is None:
            return {}, {}
        after["source"] = state
        if record.state_before is not None:
            earlier = _parse_object(record.state_before)
            # Compared with nothing, the whole state would count as new.
            before["source"] = state if earlier is None else earlier
    if record.files_left is not None:
        # Earlier versions did not record the table's offset.
        sides = ((before, record.position_before), (after, record.position))
        for side, position in sides:
            if position is not None:
                side["applied"] = position
    return before, after


def _parse_object(text: str) -> dict[str, Any] | None:
    """Parse a stored state; return None if the text is not a JSON object."""
    try:
        found = exact_json.loads(text.encode())
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
