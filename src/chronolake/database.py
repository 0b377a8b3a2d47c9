"""Engines on the databases of the catalog and of the operational store, to write or to read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import sqlalchemy as sql
from sqlalchemy.pool import NullPool

from chronolake.errors import LakeError
from chronolake.extras import POSTGRESQL_CATALOG, require
from chronolake.permissions import make_folder, make_lake
from chronolake.storage import register_folder, storage_error

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy.engine.interfaces import DBAPIConnection
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import ConnectionPoolEntry

    from chronolake.config import LakeConfig

_BUSY_SECONDS: Final = 30
_ANSWER: Final = re.compile(r"failed: [^\s:]+:  (.+)")
_UNGIVEN: Final = "no password supplied"


def refusal(failure: BaseException) -> str | None:
    """Return why a server refuses a connection, such as a wrong password, in the server's words.

    Returns:
        None if the failure is not a response of the server.
    """
    # The server's message follows its severity, in the server's language, and two spaces.
    answered = _ANSWER.search(str(failure))
    if answered is not None:
        return answered[1]
    return (
        "the server requires a password, and none is configured"
        if _UNGIVEN in str(failure)
        else None
    )


def connection_error(failure: SQLAlchemyError, what: str) -> LakeError:
    """Return the error for a database failure; it does not contain any part of an address.

    Args:
        failure: the driver's error.
        what: what the database stores, such as "The lake's catalog".
    """
    if stored := storage_error(failure):
        return stored
    if refused := refusal(failure):
        return LakeError(
            f"The catalog's database refused the connection: {refused}",
            hint="Check user, password and database in `lake.catalog.uri` and `lake.store`.",
        )
    # The driver's message may quote the address with its password.
    return LakeError(
        f"{what} does not respond: {type(failure).__name__}.",
        hint="Check that the catalog's database is running and writable.",
    )


def write_engine(config: LakeConfig, database: str | Path) -> sql.Engine:
    """Return an engine that writes to a database; create a SQLite file's folder.

    Args:
        config: the lake.
        database: its `catalog_database` or `store_database`.

    Raises:
        MissingExtraError: the database is in PostgreSQL, and its driver is not installed.
        StorageError: the folder cannot be created.
    """
    if isinstance(database, str):
        return sql.create_engine(_postgresql(database), poolclass=NullPool)
    make_lake(config)
    make_folder(database.parent, shared=config.shared)
    register_folder(database.parent)
    engine = sql.create_engine(
        sql.URL.create("sqlite", database=str(database)),
        poolclass=NullPool,
        connect_args={"timeout": _BUSY_SECONDS},
    )

    @sql.event.listens_for(engine, "begin")
    def _begin(connection: sql.Connection) -> None:
        # A transaction's writes depend on its reads, so no other writer may run in between.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    _leave_transactions_to_us(engine)
    level = "FULL" if config.fsync else "NORMAL"

    @sql.event.listens_for(engine, "connect")
    def _sync(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        # Some builds of SQLite do not sync on commit by default.
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA synchronous = {level}")
        cursor.close()

    return engine


def read_engine(database: str | Path | None) -> sql.Engine | None:
    """Return an engine that only reads a database: it creates nothing and never blocks a writer.

    Args:
        database: the `catalog_database` or `store_database` of a lake.

    Returns:
        None for a REST catalog, which has no database, or if nothing was ever written to the file.
    """
    if database is None:
        return None
    if isinstance(database, str):
        return sql.create_engine(
            _postgresql(database),
            poolclass=NullPool,
            execution_options={"postgresql_readonly": True},
        )
    if not database.is_file():
        return None
    engine = sql.create_engine(
        sql.URL.create(
            "sqlite",
            database=f"file:{quote(str(database))}",
            query={"mode": "ro", "uri": "true"},
        ),
        poolclass=NullPool,
        connect_args={"timeout": _BUSY_SECONDS},
    )

    @sql.event.listens_for(engine, "begin")
    def _begin(connection: sql.Connection) -> None:
        # All reads of a transaction use one snapshot.
        connection.exec_driver_sql("BEGIN")

    _leave_transactions_to_us(engine)
    return engine


def _postgresql(uri: str) -> sql.URL:
    require("postgres", POSTGRESQL_CATALOG)
    return sql.make_url(uri).set(drivername="postgresql+psycopg")


def _leave_transactions_to_us(engine: sql.Engine) -> None:
    @sql.event.listens_for(engine, "connect")
    def _connect(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        # Without this, the driver begins transactions itself, and later.
        connection.isolation_level = None
