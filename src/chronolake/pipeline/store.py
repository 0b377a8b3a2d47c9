"""The operational store: tables beside the catalog, with their schema migrations.

The tables of the operational store, and how those of an earlier version become them.

Columns only come, and each has a default or may be null: a process of an earlier version goes on
writing to a store that a later one has opened.

What is known of runs: an operational store beside the catalog, in tables of our own.

It lies in the catalog's database, SQLite or PostgreSQL. Nothing in it decides what a table holds:
how far tables are is published with their rows. It tells who runs a pipeline, what became of its
runs, and how far streams have come in sources whose versions land in our own raw lake.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Self

import orjson
import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from chronolake import database, identity
from chronolake.errors import LeaseLostError
from chronolake.pipeline.runs import Run, Stage, Status, StreamRun, Verified, now

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy.engine import RowMapping

    from chronolake.config import LakeConfig


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
    sql.Column("error", sql.Text),
    sql.Column("hint", sql.Text),
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
    sql.Column("hint", sql.Text),
    sql.Column("stage", sql.String),
    sql.Column("rows_read", sql.BigInteger),
    sql.Column("landed_files", sql.BigInteger),
    sql.Column("landed_bytes", sql.BigInteger),
    sql.Column("landed_rows", sql.BigInteger),
    sql.Column("files_left", sql.BigInteger),
    sql.Column("bytes_left", sql.BigInteger),
    sql.Column("position_before", sql.String),
    sql.Column("state_before", sql.Text),
    sql.Column("state_after", sql.Text),
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
#: What `chronolake verify` found last of each table: never a row's values.
VERIFIED: Final = sql.Table(
    "chronolake_verified",
    _metadata,
    sql.Column("table_name", sql.String, primary_key=True),
    sql.Column("at", sql.String, nullable=False),
    sql.Column("holds", sql.Boolean, nullable=False),
    sql.Column("rows", sql.BigInteger, nullable=False),
    sql.Column("against_lake", sql.Boolean, nullable=False),
    sql.Column("broken", sql.Text),
)

# Any number that nobody else is likely to lock.
_OPENING: Final = 0x6368726F6E6F


def bring_up(connection: sql.Connection) -> None:
    """Make the tables and columns that are missing, in a transaction that can write.

    Any number of processes may do so at once: with SQLite the transaction keeps the others out,
    with PostgreSQL a lock does.
    """
    there = _columns_of(connection)
    missing = [
        (table, column)
        for table in _metadata.sorted_tables
        for column in table.columns
        if column.name not in there.get(table.name, set())
    ]
    if not missing:
        return
    is_postgresql = connection.dialect.name == "postgresql"
    if is_postgresql:
        connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_OPENING)))
        there = _columns_of(connection)
    _metadata.create_all(connection)
    prepared = connection.dialect.identifier_preparer
    for table, column in missing:
        if table.name not in there or column.name in there[table.name]:
            continue
        kind = column.type.compile(connection.dialect)
        added = f"{prepared.quote(column.name)} {kind}"
        connection.exec_driver_sql(f"ALTER TABLE {prepared.quote(table.name)} ADD COLUMN {added}")


def known_of(connection: sql.Connection, table: sql.Table) -> list[sql.ColumnElement[Any]] | None:
    """The columns of a table as they can be selected from a store that may be an earlier version's.

    What it has not yet is null. None: it has not the table.
    """
    there = _columns_of(connection).get(table.name)
    if there is None:
        return None
    return [
        column if column.name in there else sql.cast(sql.null(), column.type).label(column.name)
        for column in table.columns
    ]


def _columns_of(connection: sql.Connection) -> dict[str, set[str]]:
    inspector = sql.inspect(connection)
    return {
        table.name: {column["name"] for column in inspector.get_columns(table.name)}
        for table in _metadata.sorted_tables
        if inspector.has_table(table.name)
    }


_KEPT_RUNS: Final = 1_000
#: Of so many of them, what their streams' states were before and after.
_KEPT_STATES: Final = 100
#: What to do after a run that did not come to its end.
GOES_ON: Final = "The next run continues where its tables are."
_DIED: Final = {
    "status": Status.FAILED,
    "stage": None,
    "error": "The process ended before the stream did.",
    "hint": GOES_ON,
}
_DIED_RUN: Final = "Its process ended before it did."


class Store:
    """The operational store of a lake. Use `Store.open`."""

    def __init__(self, engine: sql.Engine) -> None:
        self._engine = engine

    @classmethod
    def open(cls, config: LakeConfig) -> Self:
        """Open the store of a lake, and make its tables where they are missing.

        Raises:
            LakeError: the database cannot be reached or written, or the catalog is a REST service.
            LakeLocationError: the lake was copied or moved.
        """
        identity.claim(config)
        store = cls(database.writing(config))
        with store.transaction() as connection:
            bring_up(connection)
        return store

    @property
    def address(self) -> str:
        """Where it is, without a password."""
        return self._engine.url.render_as_string()

    @contextmanager
    def transaction(self) -> Iterator[sql.Connection]:
        """A connection whose changes are committed when the block ends.

        Raises:
                StorageError: the disk is full or cannot be written.
            LakeError: the database does not answer, or refuses.
        """
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as failure:
            raise database.unanswered(failure, "The lake's operational store") from failure

    def begin_run(self, run: Run) -> None:
        """Note that a run has begun; others of the pipeline that are open have died.

        Of older runs the newest thousand are kept, and of the newest hundred the streams' states.
        """
        of_pipeline = sql.select(RUNS.c.id).where(RUNS.c.pipeline == run.pipeline)
        newest = of_pipeline.order_by(RUNS.c.began.desc()).limit(_KEPT_RUNS)
        with self.transaction() as connection:
            kept = list(connection.execute(newest).scalars())
            outdated = set(connection.execute(of_pipeline).scalars()) - set(kept)
            connection.execute(STREAM_RUNS.delete().where(STREAM_RUNS.c.run.in_(outdated)))
            connection.execute(RUNS.delete().where(RUNS.c.id.in_(outdated)))
            # What is older than these few has none any more.
            aged = kept[_KEPT_STATES - 1 : _KEPT_STATES + 49]
            connection.execute(
                STREAM_RUNS.update()
                .where(STREAM_RUNS.c.run.in_(aged))
                .values(state_before=None, state_after=None)
            )
            open_streams = (STREAM_RUNS.c.status == Status.RUNNING) & STREAM_RUNS.c.run.in_(kept)
            connection.execute(STREAM_RUNS.update().where(open_streams).values(_DIED))
            connection.execute(
                RUNS.update()
                .where(RUNS.c.pipeline == run.pipeline, RUNS.c.status == Status.RUNNING)
                .values(status=Status.FAILED, error=_DIED_RUN, hint=_DIED["hint"])
            )
            connection.execute(RUNS.insert().values(**vars(run)))

    def end_run(
        self, run: str, status: Status, *, error: str | None = None, hint: str | None = None
    ) -> None:
        """Note what became of a run; streams of it that have not ended did not come to it."""
        reported = {"status": status, "ended": now(), "error": error, "hint": hint}
        is_open = (STREAM_RUNS.c.run == run) & (STREAM_RUNS.c.status == Status.RUNNING)
        left = {"error": error or _DIED["error"], "hint": hint or _DIED["hint"]}
        with self.transaction() as connection:
            connection.execute(RUNS.update().where(RUNS.c.id == run).values(reported))
            connection.execute(STREAM_RUNS.update().where(is_open).values({**_DIED, **left}))

    def note_failed(self, run: Run) -> None:
        """Note a run that could not begin; what else runs of its pipeline goes on."""
        with self.transaction() as connection:
            connection.execute(RUNS.insert().values(**vars(run)))

    def note(self, *streams: StreamRun) -> None:
        """Note how far streams have come in a run."""
        with self.transaction() as connection:
            for stream in streams:
                same = STREAM_RUNS.c.stream == stream.stream
                connection.execute(
                    STREAM_RUNS.delete().where(STREAM_RUNS.c.run == stream.run, same)
                )
            if streams:
                connection.execute(STREAM_RUNS.insert(), [vars(stream) for stream in streams])

    def note_verified(self, verified: Verified) -> None:
        """Keep what was found of a table, in place of what was found before."""
        same = VERIFIED.c.table_name == verified.table_name
        with self.transaction() as connection:
            connection.execute(VERIFIED.delete().where(same))
            connection.execute(VERIFIED.insert().values(**vars(verified)))

    def runs(self, *, pipeline: str | None = None, limit: int = 20) -> list[Run]:
        """The newest runs, the newest first."""
        query = sql.select(RUNS).order_by(RUNS.c.began.desc(), RUNS.c.id).limit(limit)
        if pipeline is not None:
            query = query.where(RUNS.c.pipeline == pipeline)
        with self.transaction() as connection:
            found = connection.execute(query).mappings().all()
        return [run_from(row) for row in found]

    def streams_of(self, run: str) -> list[StreamRun]:
        """The streams of a run, by name."""
        query = sql.select(STREAM_RUNS).where(STREAM_RUNS.c.run == run)
        with self.transaction() as connection:
            found = connection.execute(query.order_by(STREAM_RUNS.c.stream)).mappings().all()
        return [stream_from(row) for row in found]

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


def run_from(row: RowMapping) -> Run:
    """A run as a row of the store tells it."""
    return Run(**{**row, "status": _status(row["status"])})


def stream_from(row: RowMapping) -> StreamRun:
    """A stream of a run as a row of the store tells it."""
    # A later version may do what this one has no word for: nobody knows how far that is.
    stage = row["stage"] if row["stage"] in set(Stage) else None
    kinds = {"status": _status(row["status"]), "stage": None if stage is None else Stage(stage)}
    return StreamRun(**{**row, **kinds})


def _status(told: str) -> Status:
    return Status(told) if told in set(Status) else Status.UNKNOWN


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
