"""What is known of runs: an operational store beside the catalog, in tables of our own.

It lies in the catalog's database, SQLite or PostgreSQL. Nothing in it decides what a table holds:
how far tables are is published with their rows. It tells who runs a pipeline, what became of its
runs, and how far streams have come in sources whose versions land in our own raw lake.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self

import orjson
import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from chronolake.config import CatalogKind
from chronolake.errors import LakeError, LeaseLostError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from chronolake.config import LakeConfig

_BUSY_SECONDS: Final = 30
_KEPT_RUNS: Final = 1_000

_metadata = sql.MetaData()

RUNS: Final = sql.Table(
    "chronolake_runs",
    _metadata,
    sql.Column("id", sql.String, primary_key=True),
    sql.Column("pipeline", sql.String, nullable=False, index=True),
    sql.Column("began", sql.String, nullable=False),
    sql.Column("ended", sql.String),
    sql.Column("status", sql.String, nullable=False),
    sql.Column("holder", sql.String, nullable=False),
)
STREAM_RUNS: Final = sql.Table(
    "chronolake_stream_runs",
    _metadata,
    sql.Column("run", sql.String, primary_key=True),
    sql.Column("stream", sql.String, primary_key=True),
    sql.Column("table_name", sql.String, nullable=False),
    sql.Column("status", sql.String, nullable=False),
    sql.Column("files", sql.BigInteger, nullable=False),
    sql.Column("bytes", sql.BigInteger, nullable=False),
    sql.Column("rows", sql.BigInteger, nullable=False),
    sql.Column("written", sql.BigInteger, nullable=False),
    sql.Column("seconds", sql.Float, nullable=False),
    sql.Column("position", sql.String),
    sql.Column("error", sql.String),
)
LEASES: Final = sql.Table(
    "chronolake_leases",
    _metadata,
    sql.Column("pipeline", sql.String, primary_key=True),
    sql.Column("token", sql.BigInteger, nullable=False),
    sql.Column("holder", sql.String, nullable=False),
    sql.Column("expires", sql.Float, nullable=False),
)


CHECKPOINTS: Final = sql.Table(
    "chronolake_checkpoints",
    _metadata,
    sql.Column("pipeline", sql.String, primary_key=True),
    sql.Column("stream", sql.String, primary_key=True),
    sql.Column("position", sql.Text, nullable=False),
    sql.Column("stored", sql.String, nullable=False),
)


#: What sources have to remember: tokens that change with each use. Nothing of it is ever shown.
REMEMBERED: Final = sql.Table(
    "chronolake_remembered",
    _metadata,
    sql.Column("pipeline", sql.String, primary_key=True),
    sql.Column("told", sql.Text, nullable=False),
)


class Status(StrEnum):
    """What became of a run, or of one of its streams."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    PARTIAL = "partial"
    FAILED = "failed"


@dataclass(frozen=True)
class Run:
    """One run of a pipeline.

    Attributes:
        id: its identity.
        pipeline: which pipeline.
        began: when, ISO 8601 in UTC.
        ended: when, or None.
        status: what became of it.
        holder: the process, as host and number.
    """

    id: str
    pipeline: str
    began: str
    ended: str | None
    status: Status
    holder: str


@dataclass(frozen=True)
class StreamRun:
    """One stream in one run.

    Attributes:
        run: the run's identity.
        stream: which stream.
        table_name: the table that it fills.
        status: what became of it.
        files: files that were applied.
        bytes: their size.
        rows: rows that the source gave, duplicates included.
        written: rows of the table that are new or changed.
        seconds: how long it took.
        position: how far the table has come in its source, or None.
        error: why it failed, or None.
    """

    run: str
    stream: str
    table_name: str
    status: Status
    files: int = 0
    bytes: int = 0
    rows: int = 0
    written: int = 0
    seconds: float = 0.0
    position: str | None = None
    error: str | None = None


class Store:
    """The operational store of a lake. Use `Store.open`."""

    def __init__(self, engine: sql.Engine) -> None:
        self._engine = engine

    @classmethod
    def open(cls, config: LakeConfig) -> Self:
        """Open the store of a lake, and make its tables where they are missing.

        Raises:
            LakeError: the database cannot be reached or written, or the catalog is a REST service.
        """
        store = cls(_engine(config))
        with store.transaction() as connection:
            _metadata.create_all(connection)
        return store

    @property
    def address(self) -> str:
        """Where it is, without a password."""
        return self._engine.url.render_as_string()

    @contextmanager
    def transaction(self) -> Iterator[sql.Connection]:
        """A connection whose changes are committed when the block ends.

        Raises:
            LakeError: the database does not answer, or refuses.
        """
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as failure:
            # The driver's message may quote the address, and with it a password.
            raise LakeError(
                f"The lake's operational store does not answer: {type(failure).__name__}.",
                hint="Check the catalog's database, and that it can be written.",
            ) from failure

    def begin_run(self, run: Run) -> None:
        """Note that a run has begun; others of the pipeline that are open have died.

        Of older runs the newest thousand are kept.
        """
        of_pipeline = sql.select(RUNS.c.id).where(RUNS.c.pipeline == run.pipeline)
        newest = of_pipeline.order_by(RUNS.c.began.desc()).limit(_KEPT_RUNS)
        with self.transaction() as connection:
            kept = set(connection.execute(newest).scalars())
            outdated = set(connection.execute(of_pipeline).scalars()) - kept
            connection.execute(STREAM_RUNS.delete().where(STREAM_RUNS.c.run.in_(outdated)))
            connection.execute(RUNS.delete().where(RUNS.c.id.in_(outdated)))
            open_streams = (STREAM_RUNS.c.status == Status.RUNNING) & STREAM_RUNS.c.run.in_(kept)
            connection.execute(
                STREAM_RUNS.update()
                .where(open_streams)
                .values(status=Status.FAILED, error="The process ended before the stream did.")
            )
            connection.execute(
                RUNS.update()
                .where(RUNS.c.pipeline == run.pipeline, RUNS.c.status == Status.RUNNING)
                .values(status=Status.FAILED, ended=run.began)
            )
            connection.execute(RUNS.insert().values(**vars(run)))

    def end_run(self, run: str, status: Status) -> None:
        """Note what became of a run."""
        with self.transaction() as connection:
            connection.execute(
                RUNS.update().where(RUNS.c.id == run).values(status=status, ended=now())
            )

    def note(self, stream: StreamRun) -> None:
        """Note how far a stream has come in a run."""
        same = (STREAM_RUNS.c.run == stream.run) & (STREAM_RUNS.c.stream == stream.stream)
        with self.transaction() as connection:
            connection.execute(STREAM_RUNS.delete().where(same))
            connection.execute(STREAM_RUNS.insert().values(**vars(stream)))

    def runs(self, *, pipeline: str | None = None, limit: int = 20) -> list[Run]:
        """The newest runs, the newest first."""
        query = sql.select(RUNS).order_by(RUNS.c.began.desc(), RUNS.c.id).limit(limit)
        if pipeline is not None:
            query = query.where(RUNS.c.pipeline == pipeline)
        with self.transaction() as connection:
            found = connection.execute(query).mappings().all()
        return [Run(**{**row, "status": Status(row["status"])}) for row in found]

    def streams_of(self, run: str) -> list[StreamRun]:
        """The streams of a run, by name."""
        query = sql.select(STREAM_RUNS).where(STREAM_RUNS.c.run == run)
        with self.transaction() as connection:
            found = connection.execute(query.order_by(STREAM_RUNS.c.stream)).mappings().all()
        return [StreamRun(**{**row, "status": Status(row["status"])}) for row in found]

    def checkpoints(self, pipeline: str) -> dict[str, dict[str, Any]]:
        """How far the streams of a pipeline have come in their source: those that have landed."""
        query = sql.select(CHECKPOINTS.c.stream, CHECKPOINTS.c.position)
        query = query.where(CHECKPOINTS.c.pipeline == pipeline)
        with self.transaction() as connection:
            found = connection.execute(query).all()
        return {row.stream: dict(orjson.loads(row.position)) for row in found}

    def put_checkpoint(
        self, pipeline: str, stream: str, position: Mapping[str, Any], *, token: int
    ) -> None:
        """Store how far a stream has come in its source.

        Args:
            pipeline: the pipeline.
            stream: its stream.
            position: what JSON can hold.
            token: of the lease under which it came so far.

        Raises:
            LeaseLostError: another process runs the pipeline by now; nothing has changed.
        """
        values = {"position": orjson.dumps(dict(position)).decode(), "stored": now()}
        with self.transaction() as connection:
            _expect_holder(connection, pipeline, token)
            connection.execute(CHECKPOINTS.delete().where(_is_of(pipeline, stream)))
            connection.execute(
                CHECKPOINTS.insert().values(pipeline=pipeline, stream=stream, **values)
            )

    def remembered(self, pipeline: str) -> dict[str, Any]:
        """What a pipeline's source remembers, by its own names; empty if it never did."""
        query = sql.select(REMEMBERED.c.told).where(REMEMBERED.c.pipeline == pipeline)
        with self.transaction() as connection:
            found = connection.execute(query).scalar_one_or_none()
        return {} if found is None else dict(orjson.loads(found))

    def remember(
        self,
        pipeline: str,
        name: str,
        told: Mapping[str, Any],
        *,
        since: Mapping[str, Any] | None,
    ) -> None:
        """Keep what a pipeline's source has to know, unless it knows something later by now.

        Args:
            pipeline: the pipeline.
            name: what the source calls it.
            told: what JSON can hold; it may be secret.
            since: what was remembered when `told` came to be, or None: nothing was.
        """
        query = sql.select(REMEMBERED.c.told).where(REMEMBERED.c.pipeline == pipeline)
        with self.transaction() as connection:
            found = connection.execute(query.with_for_update()).scalar_one_or_none()
            known = {} if found is None else dict(orjson.loads(found))
            if known.get(name) != since:
                return
            text = orjson.dumps({**known, name: dict(told)}).decode()
            connection.execute(REMEMBERED.delete().where(REMEMBERED.c.pipeline == pipeline))
            connection.execute(REMEMBERED.insert().values(pipeline=pipeline, told=text))

    def expect_holder(self, pipeline: str, token: int) -> None:
        """Refuse to go on under a lease that has passed to another process.

        Raises:
            LeaseLostError: it has.
        """
        with self.transaction() as connection:
            _expect_holder(connection, pipeline, token)


def _is_of(pipeline: str, stream: str) -> sql.ColumnElement[bool]:
    return (CHECKPOINTS.c.pipeline == pipeline) & (CHECKPOINTS.c.stream == stream)


def _expect_holder(connection: sql.Connection, pipeline: str, token: int) -> None:
    query = sql.select(LEASES.c.token).where(LEASES.c.pipeline == pipeline).with_for_update()
    stored = connection.execute(query).scalar_one_or_none()
    if stored != token:
        raise LeaseLostError(
            f"Another process runs the pipeline {pipeline} by now.",
            hint="Nothing that this process brought last counts. Run it again if needed.",
        )


def now() -> str:
    """The time as ISO 8601 in UTC, with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _engine(config: LakeConfig) -> sql.Engine:
    uri = config.catalog.uri
    if config.catalog.kind is CatalogKind.REST:
        # Leases have to be where every process of the lake sees them.
        raise LakeError(
            "Pipelines need a catalog in SQLite or PostgreSQL: a REST catalog has no place for "
            "their runs and leases.",
            hint="Set lake.catalog.uri to a PostgreSQL database, or leave it out.",
        )
    if uri is not None:
        url = sql.make_url(uri).set(drivername="postgresql+psycopg")
        return sql.create_engine(url, poolclass=NullPool)
    config.path.mkdir(parents=True, exist_ok=True)
    engine = sql.create_engine(
        sql.URL.create("sqlite", database=str(config.catalog_file)),
        poolclass=NullPool,
        connect_args={"timeout": _BUSY_SECONDS},
    )

    @sql.event.listens_for(engine, "begin")
    def _begin(connection: sql.Connection) -> None:
        # What is read in a transaction decides what it writes: no other writer may come between.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    @sql.event.listens_for(engine, "connect")
    def _connect(connection: object, _: object) -> None:
        # Otherwise the driver begins transactions by itself, and later.
        connection.isolation_level = None  # type: ignore[attr-defined]

    return engine
