"""The operational store: tables in a database, with their schema migrations.

It is stored in the catalog's database or in another one, SQLite or PostgreSQL. It does not
determine the content of tables: their offsets are published with their rows. It records who runs a
pipeline, the outcomes of runs, and the checkpoints of streams whose changes land in Chronolake's
own raw lake.

Migrations only add columns, which have a default or are nullable: so a process of an earlier
version can still write to a store that a later version has opened.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Self

import orjson
import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from chronolake import database, exact_json, identity
from chronolake.errors import LeaseLostError
from chronolake.pipeline.runs import (
    Run,
    Stage,
    Status,
    StreamRun,
    StreamTotals,
    VerificationResult,
    now,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

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
    sql.Column("landing_seconds", sql.Float),
    sql.Column("applying_seconds", sql.Float),
    sql.Column("column_changes", sql.Text),
    sql.Column("mode_changes", sql.Text),
)
#: Sums over all ended runs; the runs themselves are removed after some time.
STREAM_TOTALS: Final = sql.Table(
    "chronolake_stream_totals",
    _metadata,
    sql.Column("pipeline", sql.String, primary_key=True),
    sql.Column("stream", sql.String, primary_key=True),
    sql.Column("table_name", sql.String, nullable=False),
    sql.Column("runs", sql.BigInteger, nullable=False),
    sql.Column("failures", sql.BigInteger, nullable=False),
    sql.Column("files", sql.BigInteger, nullable=False),
    sql.Column("bytes", sql.BigInteger, nullable=False),
    sql.Column("rows", sql.BigInteger, nullable=False),
    sql.Column("written", sql.BigInteger, nullable=False),
    sql.Column("landed_rows", sql.BigInteger, nullable=False),
    sql.Column("landed_bytes", sql.BigInteger, nullable=False),
    sql.Column("landing_seconds", sql.Float, nullable=False),
    sql.Column("applying_seconds", sql.Float, nullable=False),
    sql.Column("succeeded", sql.String),
)
LEASES: Final = sql.Table(
    "chronolake_leases",
    _metadata,
    sql.Column("pipeline", sql.String, primary_key=True),
    sql.Column("token", sql.BigInteger, nullable=False),
    sql.Column("holder", sql.String, nullable=False),
    sql.Column("expires", sql.Float, nullable=False),
)
#: The last request to switch each table of a pipeline (`switch_requests`).
MODE_REQUESTS: Final = sql.Table(
    "chronolake_mode_requests",
    _metadata,
    sql.Column("pipeline", sql.String, primary_key=True),
    sql.Column("stream", sql.String, primary_key=True),
    sql.Column("id", sql.String, nullable=False),
    sql.Column("mode", sql.String, nullable=False),
    sql.Column("requester", sql.String, nullable=False),
    sql.Column("requested", sql.String, nullable=False),
    sql.Column("state", sql.String, nullable=False),
    sql.Column("holder", sql.String),
    sql.Column("error", sql.Text),
    sql.Column("hint", sql.Text),
)
CHECKPOINTS: Final = sql.Table(
    "chronolake_checkpoints",
    _metadata,
    sql.Column("pipeline", sql.String, primary_key=True),
    sql.Column("stream", sql.String, primary_key=True),
    sql.Column("position", sql.Text, nullable=False),
    sql.Column("stored", sql.String, nullable=False),
)
#: The columns of streams that have landed, with their types, as a JSON object; and as arrays, the
#: names of those that the source declares, and of those that it has declared and no longer does.
COLUMNS: Final = sql.Table(
    "chronolake_stream_columns",
    _metadata,
    sql.Column("pipeline", sql.String, primary_key=True),
    sql.Column("stream", sql.String, primary_key=True),
    sql.Column("columns", sql.Text, nullable=False),
    sql.Column("declared", sql.Text),
    sql.Column("removed", sql.Text),
)
#: Tokens of sources that change with each use. They are never shown.
TOKENS: Final = sql.Table(
    "chronolake_remembered",
    _metadata,
    sql.Column("pipeline", sql.String, primary_key=True),
    sql.Column("told", sql.Text, nullable=False),
)
#: The last result of `chronolake verify` for each table; it never contains values of rows.
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

# Key of the advisory lock: any number that no other program is likely to lock.
_OPENING: Final = 0x6368726F6E6F


def migrate(connection: sql.Connection) -> None:
    """Create missing tables and columns, in a transaction that can write.

    Several processes may do so at the same time: SQLite's transaction excludes the others, and with
    PostgreSQL an advisory lock does.
    """
    existing = _columns_of(connection)
    missing = [
        (table, column)
        for table in _metadata.sorted_tables
        for column in table.columns
        if column.name not in existing.get(table.name, set())
    ]
    if not missing:
        return
    is_postgresql = connection.dialect.name == "postgresql"
    if is_postgresql:
        connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_OPENING)))
        existing = _columns_of(connection)
    _metadata.create_all(connection)
    prepared = connection.dialect.identifier_preparer
    for table, column in missing:
        if table.name not in existing or column.name in existing[table.name]:
            continue
        kind = column.type.compile(connection.dialect)
        added = f"{prepared.quote(column.name)} {kind}"
        connection.exec_driver_sql(f"ALTER TABLE {prepared.quote(table.name)} ADD COLUMN {added}")


def available_columns(
    connection: sql.Connection, table: sql.Table
) -> list[sql.ColumnElement[Any]] | None:
    """Return a table's columns for a query; an earlier version may have written the store.

    Missing columns are null. Returns None if the table is missing.
    """
    existing = _columns_of(connection).get(table.name)
    if existing is None:
        return None
    return [
        column if column.name in existing else sql.cast(sql.null(), column.type).label(column.name)
        for column in table.columns
    ]


def _columns_of(connection: sql.Connection) -> dict[str, set[str]]:
    inspector = sql.inspect(connection)
    return {
        table.name: {column["name"] for column in inspector.get_columns(table.name)}
        for table in _metadata.sorted_tables
        if inspector.has_table(table.name)
    }


_RETAINED_RUNS: Final = 1_000
#: Number of runs for which the streams' states before and after are stored.
_RETAINED_STATES: Final = 100
#: Hint after a run that did not end properly.
CONTINUES_HINT: Final = "The next run continues from the offsets of its tables."
_DIED: Final = {
    "status": Status.FAILED,
    "stage": None,
    "error": "The process ended before the stream was finished.",
    "hint": CONTINUES_HINT,
}
_DIED_RUN: Final = "The process ended before the run was finished."


class Store:
    """The operational store of a lake. Use `Store.open`."""

    def __init__(self, engine: sql.Engine) -> None:
        self._engine = engine

    @classmethod
    def open(cls, config: LakeConfig) -> Self:
        """Open the store of a lake, and create missing tables.

        Raises:
            LakeError: the database is not reachable or not writable.
            LakeLocationError: the lake was copied or moved.
        """
        identity.claim(config)
        store = cls(database.write_engine(config, config.store_database))
        with store.transaction() as connection:
            migrate(connection)
        return store

    @property
    def address(self) -> str:
        """Return the store's address without a password."""
        return self._engine.url.render_as_string()

    @contextmanager
    def transaction(self) -> Iterator[sql.Connection]:
        """Open a transaction that is committed when the block ends.

        Raises:
            StorageError: the disk is full or not writable.
            LakeError: the database is not reachable, or rejects a statement.
        """
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as failure:
            raise database.connection_error(failure, "The lake's operational store") from failure

    def begin_run(self, run: Run) -> None:
        """Record that a run has begun; other open runs of the pipeline have crashed.

        The newest 1,000 older runs are kept, and the streams' states of the newest 100.
        """
        of_pipeline = sql.select(RUNS.c.id).where(RUNS.c.pipeline == run.pipeline)
        newest = of_pipeline.order_by(RUNS.c.began.desc()).limit(_RETAINED_RUNS)
        with self.transaction() as connection:
            kept = list(connection.execute(newest).scalars())
            outdated = set(connection.execute(of_pipeline).scalars()) - set(kept)
            connection.execute(STREAM_RUNS.delete().where(STREAM_RUNS.c.run.in_(outdated)))
            connection.execute(RUNS.delete().where(RUNS.c.id.in_(outdated)))
            # The states of older ones have been removed before.
            aged = kept[_RETAINED_STATES - 1 : _RETAINED_STATES + 49]
            connection.execute(
                STREAM_RUNS.update()
                .where(STREAM_RUNS.c.run.in_(aged))
                .values(state_before=None, state_after=None)
            )
            open_streams = (STREAM_RUNS.c.status == Status.RUNNING) & STREAM_RUNS.c.run.in_(kept)
            connection.execute(STREAM_RUNS.update().where(open_streams).values(_DIED))
            is_open = (RUNS.c.pipeline == run.pipeline) & (RUNS.c.status == Status.RUNNING)
            crashed = list(connection.execute(sql.select(RUNS.c.id).where(is_open)).scalars())
            connection.execute(
                RUNS.update()
                .where(is_open)
                .values(status=Status.FAILED, error=_DIED_RUN, hint=_DIED["hint"])
            )
            for identity in crashed:
                _add_to_totals(connection, identity)
            connection.execute(RUNS.insert().values(**vars(run)))

    def end_run(
        self, run: str, status: Status, *, error: str | None = None, hint: str | None = None
    ) -> None:
        """Record the outcome of a run; its open streams are recorded as failed."""
        values = {"status": status, "ended": now(), "error": error, "hint": hint}
        is_open = (STREAM_RUNS.c.run == run) & (STREAM_RUNS.c.status == Status.RUNNING)
        left = {"error": error or _DIED["error"], "hint": hint or _DIED["hint"]}
        with self.transaction() as connection:
            connection.execute(RUNS.update().where(RUNS.c.id == run).values(values))
            connection.execute(STREAM_RUNS.update().where(is_open).values({**_DIED, **left}))
            _add_to_totals(connection, run)

    def note_failed(self, run: Run) -> None:
        """Record a run that could not begin; other runs of its pipeline are not affected."""
        with self.transaction() as connection:
            connection.execute(RUNS.insert().values(**vars(run)))

    def note(self, *streams: StreamRun) -> None:
        """Record the progress of streams in a run."""
        if not streams:
            return
        same = (STREAM_RUNS.c.run == sql.bindparam("of_run")) & (
            STREAM_RUNS.c.stream == sql.bindparam("of_stream")
        )
        replaced = [{"of_run": stream.run, "of_stream": stream.stream} for stream in streams]
        with self.transaction() as connection:
            connection.execute(STREAM_RUNS.delete().where(same), replaced)
            connection.execute(STREAM_RUNS.insert(), [vars(stream) for stream in streams])

    def note_verified(self, verified: VerificationResult) -> None:
        """Record the result of verifying a table; it replaces the previous one."""
        same = VERIFIED.c.table_name == verified.table_name
        with self.transaction() as connection:
            connection.execute(VERIFIED.delete().where(same))
            connection.execute(VERIFIED.insert().values(**vars(verified)))

    def runs(self, *, pipeline: str | None = None, limit: int = 20) -> list[Run]:
        """Return the newest runs, newest first."""
        query = sql.select(RUNS).order_by(RUNS.c.began.desc(), RUNS.c.id).limit(limit)
        if pipeline is not None:
            query = query.where(RUNS.c.pipeline == pipeline)
        with self.transaction() as connection:
            found = connection.execute(query).mappings().all()
        return [run_from(row) for row in found]

    def streams_of(self, run: str) -> list[StreamRun]:
        """Return the streams of a run, ordered by name."""
        query = sql.select(STREAM_RUNS).where(STREAM_RUNS.c.run == run)
        with self.transaction() as connection:
            found = connection.execute(query.order_by(STREAM_RUNS.c.stream)).mappings().all()
        return [stream_from(row) for row in found]

    def checkpoints(self, pipeline: str) -> dict[str, dict[str, Any]]:
        """Return the checkpoints of a pipeline's streams: their offsets in the source."""
        query = sql.select(CHECKPOINTS.c.stream, CHECKPOINTS.c.position)
        query = query.where(CHECKPOINTS.c.pipeline == pipeline)
        with self.transaction() as connection:
            found = connection.execute(query).all()
        return {row.stream: dict(exact_json.loads(row.position.encode())) for row in found}

    def put_checkpoint(
        self, pipeline: str, stream: str, position: Mapping[str, Any], *, token: int
    ) -> None:
        """Store a stream's offset in its source.

        Args:
            stream: its stream.
            position: the offset, a JSON object.
            token: token of the lease under which its data landed.

        Raises:
            LeaseLostError: another process has taken the pipeline's lease; nothing has changed.
        """
        self.put_checkpoints(pipeline, {stream: position}, token=token)

    def put_checkpoints(
        self, pipeline: str, positions: Mapping[str, Mapping[str, Any]], *, token: int
    ) -> None:
        """Store offsets of several streams, all or none; see `put_checkpoint`."""
        with self.transaction() as connection:
            _expect_holder(connection, pipeline, token)
            for stream, position in positions.items():
                values = {"position": exact_json.dumps(dict(position)).decode(), "stored": now()}
                connection.execute(
                    CHECKPOINTS.delete().where(_is_of(CHECKPOINTS, pipeline, stream))
                )
                connection.execute(
                    CHECKPOINTS.insert().values(pipeline=pipeline, stream=stream, **values)
                )

    def columns(
        self, pipeline: str, stream: str
    ) -> tuple[dict[str, str], frozenset[str], frozenset[str]] | None:
        """Return the columns of a stream that have landed.

        Returns:
            Their types, the names of those that the source declares, and of those that it has
            declared and no longer does; None if no columns are stored.
        """
        query = sql.select(COLUMNS.c.columns, COLUMNS.c.declared, COLUMNS.c.removed)
        with self.transaction() as connection:
            row = connection.execute(query.where(_is_of(COLUMNS, pipeline, stream))).one_or_none()
        if row is None:
            return None
        # An earlier version may have written the row.
        declared, removed = (
            frozenset(orjson.loads(names or "[]")) for names in (row.declared, row.removed)
        )
        return dict(orjson.loads(row.columns)), declared, removed

    def put_columns(
        self,
        pipeline: str,
        stream: str,
        types: Mapping[str, str],
        *,
        declared: Collection[str],
        removed: Collection[str],
        token: int,
    ) -> None:
        """Store the columns of a stream.

        Args:
            stream: its stream.
            types: the types of the columns by name.
            declared: those of them that the source declares.
            removed: those that it has declared and no longer does.
            token: token of the lease under which their data landed.

        Raises:
            LeaseLostError: another process has taken the pipeline's lease; nothing has changed.
        """
        values = {
            "columns": orjson.dumps(dict(types)).decode(),
            "declared": orjson.dumps(sorted(declared)).decode(),
            "removed": orjson.dumps(sorted(removed)).decode(),
        }
        with self.transaction() as connection:
            _expect_holder(connection, pipeline, token)
            connection.execute(COLUMNS.delete().where(_is_of(COLUMNS, pipeline, stream)))
            connection.execute(COLUMNS.insert().values(pipeline=pipeline, stream=stream, **values))

    def load_tokens(self, pipeline: str) -> dict[str, Any]:
        """Return the tokens of a pipeline's source by name; empty if no token is stored."""
        query = sql.select(TOKENS.c.told).where(TOKENS.c.pipeline == pipeline)
        with self.transaction() as connection:
            found = connection.execute(query).scalar_one_or_none()
        return {} if found is None else dict(orjson.loads(found))

    def store_token(
        self,
        pipeline: str,
        name: str,
        token: Mapping[str, Any],
        *,
        since: Mapping[str, Any] | None,
    ) -> None:
        """Store a token of a pipeline's source, unless another process has stored a newer one.

        Args:
            name: the source's name of the token.
            token: the token, a JSON object; it may be secret.
            since: the stored token from which `token` was derived, or None.
        """
        query = sql.select(TOKENS.c.told).where(TOKENS.c.pipeline == pipeline)
        with self.transaction() as connection:
            found = connection.execute(query.with_for_update()).scalar_one_or_none()
            known = {} if found is None else dict(orjson.loads(found))
            if known.get(name) != since:
                return
            text = orjson.dumps({**known, name: dict(token)}).decode()
            connection.execute(TOKENS.delete().where(TOKENS.c.pipeline == pipeline))
            connection.execute(TOKENS.insert().values(pipeline=pipeline, told=text))

    def expect_holder(self, pipeline: str, token: int) -> None:
        """Raise if another process has taken the lease.

        Raises:
            LeaseLostError: it has.
        """
        with self.transaction() as connection:
            _expect_holder(connection, pipeline, token)


def _add_to_totals(connection: sql.Connection, run: str) -> None:
    """Add the streams of an ended run to their sums; only one process runs a pipeline."""
    pipeline = connection.execute(sql.select(RUNS.c.pipeline).where(RUNS.c.id == run)).scalar_one()
    is_same = STREAM_TOTALS.c.pipeline == pipeline
    stored = connection.execute(sql.select(STREAM_TOTALS).where(is_same)).mappings()
    known = {row["stream"]: StreamTotals(**row) for row in stored}
    streams = connection.execute(sql.select(STREAM_RUNS).where(STREAM_RUNS.c.run == run)).mappings()
    for stream in [stream_from(row) for row in streams]:
        before = known.get(stream.stream, StreamTotals(pipeline, stream.stream, stream.table_name))
        values = vars(before.with_run(stream, now()))
        connection.execute(
            STREAM_TOTALS.delete().where(is_same, STREAM_TOTALS.c.stream == stream.stream)
        )
        connection.execute(STREAM_TOTALS.insert().values(**values))


def run_from(row: RowMapping) -> Run:
    """Convert a row of the store to a run."""
    return Run(**{**row, "status": _status(row["status"])})


def stream_from(row: RowMapping) -> StreamRun:
    """Convert a row of the store to a stream of a run."""
    # A later version may have stored a stage that this version does not know.
    stage = row["stage"] if row["stage"] in set(Stage) else None
    kinds = {"status": _status(row["status"]), "stage": None if stage is None else Stage(stage)}
    return StreamRun(**{**row, **kinds})


def _status(stored: str) -> Status:
    return Status(stored) if stored in set(Status) else Status.UNKNOWN


def _is_of(table: sql.Table, pipeline: str, stream: str) -> sql.ColumnElement[bool]:
    return (table.c.pipeline == pipeline) & (table.c.stream == stream)


def _expect_holder(connection: sql.Connection, pipeline: str, token: int) -> None:
    query = sql.select(LEASES.c.token).where(LEASES.c.pipeline == pipeline).with_for_update()
    stored = connection.execute(query).scalar_one_or_none()
    if stored != token:
        raise LeaseLostError(
            f"Another process has taken over the pipeline {pipeline}.",
            hint="The last batch of this process was discarded. Run the command again if needed.",
        )
