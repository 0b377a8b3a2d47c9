"""The operational store for those who only look: nothing is made or written, and nobody waits.

What a run's process could not note any more is seen from its lease: a run whose process is gone is
dead, whatever the store says.
"""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from chronolake import database
from chronolake.errors import LakeError
from chronolake.pipeline.lease import is_dead
from chronolake.pipeline.runs import Run, Stage, Status, StreamRun, Verified
from chronolake.pipeline.schema import LEASES, RUNS, STREAM_RUNS, VERIFIED, known_of
from chronolake.pipeline.store import GOES_ON, run_from, stream_from

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sqlalchemy.engine import RowMapping

    from chronolake.config import LakeConfig

#: What became of a stream lately is looked for in so many of its pipeline's runs, at first.
_RECENT_RUNS: Final = 20
_DIED: Final = "Its process is gone: it ended before the run did."


@dataclass(frozen=True)
class StreamSums:
    """What the streams of a run come to together.

    Attributes:
        streams: how many there are.
        failed: how many of them failed.
        parts: the sum of the parts that are done of each, from 0 to 1.
        rows_read: as of `StreamRun`; None: no stream tells it. So with the others.
        landed_rows: as there.
        rows: as there.
        written: as there.
        failed_stream: the first that failed, by name, or None.
        error: why it did, or None.
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
    """The store in one transaction that only reads; it may be an earlier version's.

    Attributes:
        connection: the transaction's.
        run_columns: the columns of runs, as far as the store has them.
        stream_columns: those of streams in runs.
    """

    connection: sql.Connection
    run_columns: Sequence[sql.ColumnElement[Any]]
    stream_columns: Sequence[sql.ColumnElement[Any]]

    def runs(
        self, pipeline: str | None, status: Status | None, limit: int, after: str | None
    ) -> list[Run]:
        """At most so many of the newest runs, the newest first (see `observed.runs`)."""
        query = sql.select(*self.run_columns).order_by(RUNS.c.began.desc(), RUNS.c.id)
        if pipeline is not None:
            query = query.where(RUNS.c.pipeline == pipeline)
        if status is not None:
            # What is dead was stored as running.
            stored = Status.RUNNING if status is Status.DEAD else status
            query = query.where(RUNS.c.status == stored)
        if after is not None:
            began = sql.select(RUNS.c.began).where(RUNS.c.id == after).scalar_subquery()
            is_older = (RUNS.c.began < began) | ((RUNS.c.began == began) & (RUNS.c.id > after))
            query = query.where(is_older)
        if status not in {Status.RUNNING, Status.DEAD}:
            query = query.limit(limit)
        found = self._runs(self.connection.execute(query).mappings().all())
        return [one for one in found if status is None or one.status is status][:limit]

    def run(self, identity: str) -> Run | None:
        """The run of an identity, or None."""
        query = sql.select(*self.run_columns).where(RUNS.c.id == identity)
        found = self._runs(self.connection.execute(query).mappings().all())
        return found[0] if found else None

    def newest(self, number: int, pipeline: str | None = None) -> list[Run]:
        """So many of the newest runs of each pipeline, or of one; the newest first."""
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
        """The streams of runs, by name; of a run without any an empty list."""
        query = sql.select(*self.stream_columns).where(STREAM_RUNS.c.run.in_(identities))
        found: dict[str, list[StreamRun]] = defaultdict(list)
        rows = self.connection.execute(query.order_by(STREAM_RUNS.c.stream)).mappings()
        for row in rows:
            found[row["run"]].append(stream_from(row))
        return found

    def sums_of(self, identities: Sequence[str]) -> dict[str, StreamSums]:
        """What the streams of runs come to; of a run without any, nothing."""
        query = sql.select(*self.stream_columns).where(STREAM_RUNS.c.run.in_(identities))
        told = query.subquery().c
        whole = told.bytes + told.bytes_left
        part = sql.case(
            (told.status == Status.SUCCEEDED, 1.0),
            (told.stage.in_((Stage.WAITING, Stage.LANDING)), 0.0),
            (whole > 0, told.bytes * 1.0 / whole),
            else_=0.0,
        )
        failed = sql.case((told.error.is_not(None), told.stream))
        names = ("rows_read", "landed_rows", "rows", "written")
        sums = sql.select(
            told.run,
            sql.func.count().label("streams"),
            sql.func.count(failed).label("failed"),
            sql.func.sum(part).label("parts"),
            *(sql.cast(sql.func.sum(told[name]), sql.BigInteger).label(name) for name in names),
            sql.func.min(failed).label("failed_stream"),
        ).group_by(told.run)
        found: dict[str, StreamSums] = defaultdict(StreamSums)
        for row in self.connection.execute(sums).mappings():
            known = {name: value for name, value in row.items() if name != "run"}
            found[row["run"]] = StreamSums(**{**known, "parts": float(row["parts"])})
        for run, one in found.items():
            if one.failed_stream is not None:
                is_it = (STREAM_RUNS.c.run == run) & (STREAM_RUNS.c.stream == one.failed_stream)
                error = self.connection.execute(sql.select(STREAM_RUNS.c.error).where(is_it))
                found[run] = replace(one, error=error.scalar_one())
        return found

    def last_of_streams(self, pipeline: str | None) -> list[tuple[Run, StreamRun]]:
        """What became of each stream when it last ran, in the recent runs."""
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
        """When the last run began in which a stream succeeded, by pipeline and stream.

        All runs are looked at only for streams that have not succeeded in the recent ones.
        """
        recent = [run.id for run in self.newest(_RECENT_RUNS, pipeline)]
        there = sql.select(RUNS.c.pipeline, STREAM_RUNS.c.stream).join(
            STREAM_RUNS, STREAM_RUNS.c.run == RUNS.c.id
        )
        of_recent = STREAM_RUNS.c.run.in_(recent)
        every = {(row.pipeline, row.stream) for row in self._all(there.where(of_recent).distinct())}
        succeeded = (
            there.add_columns(sql.func.max(RUNS.c.began).label("began"))
            .where(STREAM_RUNS.c.status == Status.SUCCEEDED)
            .group_by(RUNS.c.pipeline, STREAM_RUNS.c.stream)
        )
        lately = self._all(succeeded.where(of_recent))
        found = {(row.pipeline, row.stream): str(row.began) for row in lately}
        if missing := {stream for _, stream in every - found.keys()}:
            earlier = succeeded.where(STREAM_RUNS.c.stream.in_(missing))
            for row in self._all(earlier):
                found.setdefault((row.pipeline, row.stream), row.began)
        return found

    def _all(self, query: sql.Select[Any]) -> Sequence[sql.Row[Any]]:
        return self.connection.execute(query).all()

    def verified(self) -> dict[str, Verified]:
        """What was found last of each table, by the table's name as a text."""
        columns = known_of(self.connection, VERIFIED)
        if columns is None:
            return {}
        rows = self.connection.execute(sql.select(*columns)).mappings()
        return {row["table_name"]: Verified(**row) for row in rows}

    def _runs(self, rows: Iterable[RowMapping]) -> list[Run]:
        leases = {row.pipeline: row for row in self.connection.execute(sql.select(LEASES))}
        return [_told(run_from(row), leases.get(row["pipeline"])) for row in rows]


@contextmanager
def read(config: LakeConfig) -> Iterator[StoreReader | None]:
    """Read the store of a lake; None: it has none.

    Raises:
        LakeError: the store does not answer.
    """
    engine = database.reading(config)
    if engine is None:
        yield None
        return
    try:
        with engine.begin() as connection:
            columns = [known_of(connection, table) for table in (RUNS, STREAM_RUNS, LEASES)]
            runs, streams, leases = columns
            if runs is None or streams is None or leases is None:
                # A lake that only a destination has written to has a catalog and no store.
                yield None
            else:
                yield StoreReader(connection, runs, streams)
    except SQLAlchemyError as failure:
        # The driver's message may quote the address, and with it a password.
        raise LakeError(
            f"The lake's operational store cannot be read: {type(failure).__name__}.",
            hint="Check the catalog's database.",
        ) from failure


def _told(run: Run, lease: sql.Row[Any] | None) -> Run:
    """A run as it is: what the store takes for running is dead when its process is."""
    if run.status is not Status.RUNNING:
        return run
    is_held = (
        lease is not None
        and lease.holder == run.holder
        and lease.expires > time.time()
        and not is_dead(run.holder)
    )
    return run if is_held else replace(run, status=Status.DEAD, error=_DIED, hint=GOES_ON)
