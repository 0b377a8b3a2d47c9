"""Where the operational store is: the catalog's database, to be written or only read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import sqlalchemy as sql
from sqlalchemy.pool import NullPool

from chronolake.config import CatalogKind
from chronolake.errors import LakeError
from chronolake.permissions import make_lake
from chronolake.storage import storage_error, uses

if TYPE_CHECKING:
    from sqlalchemy.engine.interfaces import DBAPIConnection
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import ConnectionPoolEntry

    from chronolake.config import LakeConfig

_BUSY_SECONDS: Final = 30
_ANSWER: Final = re.compile(r"failed: [^\s:]+:  (.+)")
_UNGIVEN: Final = "no password supplied"


def refusal(failure: BaseException) -> str | None:
    """Return why a server refuses a connection, such as a wrong password, in its own words.

    Returns:
        None if no server has answered.
    """
    # What a server says has its severity, in the server's language, and two spaces before it.
    answered = _ANSWER.search(str(failure))
    if answered is not None:
        return answered[1]
    return "it asks for a password, and none is given" if _UNGIVEN in str(failure) else None


def unanswered(failure: SQLAlchemyError, what: str) -> LakeError:
    """Return the error for what a database raised; it has no part of an address.

    Args:
        failure: what was raised.
        what: what the database holds, such as "The lake's catalog".
    """
    if stored := storage_error(failure):
        return stored
    if refused := refusal(failure):
        return LakeError(
            f"The catalog's database refuses the connection: {refused}",
            hint="Check user, password and database in `lake.catalog.uri`.",
        )
    # The driver's message may quote the address, and with it a password.
    return LakeError(
        f"{what} does not answer: {type(failure).__name__}.",
        hint="Check the catalog's database, and that it can be written.",
    )


def writing(config: LakeConfig) -> sql.Engine:
    """The database of a lake's store; a SQLite file's folder is made.

    Raises:
        LakeError: the catalog is a REST service.
        StorageError: the folder cannot be created.
    """
    if config.catalog.kind is CatalogKind.REST:
        # Leases have to be where every process of the lake sees them.
        raise LakeError(
            "Pipelines need a catalog in SQLite or PostgreSQL: a REST catalog has no place for "
            "their runs and leases.",
            hint="Set lake.catalog.uri to a PostgreSQL database, or leave it out.",
        )
    if config.catalog.uri is not None:
        return sql.create_engine(_postgresql(config.catalog.uri), poolclass=NullPool)
    make_lake(config)
    uses(config.path)
    engine = sql.create_engine(
        sql.URL.create("sqlite", database=str(config.catalog_file)),
        poolclass=NullPool,
        connect_args={"timeout": _BUSY_SECONDS},
    )

    @sql.event.listens_for(engine, "begin")
    def _begin(connection: sql.Connection) -> None:
        # What is read in a transaction decides what it writes: no other writer may come between.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    _leave_transactions_to_us(engine)
    level = "FULL" if config.fsync else "NORMAL"

    @sql.event.listens_for(engine, "connect")
    def _sync(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        # Some builds of SQLite leave out the sync of a commit by default.
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA synchronous = {level}")
        cursor.close()

    return engine


def reading(config: LakeConfig) -> sql.Engine | None:
    """The same database for those who only look: nothing is made or written, and nobody waits.

    Returns:
        None: there is none, because nothing was ever written, or the catalog is a REST service.
    """
    if config.catalog.kind is CatalogKind.REST:
        return None
    if config.catalog.uri is not None:
        return sql.create_engine(
            _postgresql(config.catalog.uri),
            poolclass=NullPool,
            execution_options={"postgresql_readonly": True},
        )
    if not config.catalog_file.is_file():
        return None
    engine = sql.create_engine(
        sql.URL.create(
            "sqlite",
            database=f"file:{quote(str(config.catalog_file))}",
            query={"mode": "ro", "uri": "true"},
        ),
        poolclass=NullPool,
        connect_args={"timeout": _BUSY_SECONDS},
    )

    @sql.event.listens_for(engine, "begin")
    def _begin(connection: sql.Connection) -> None:
        # All that is read in a transaction is of one moment.
        connection.exec_driver_sql("BEGIN")

    _leave_transactions_to_us(engine)
    return engine


def _postgresql(uri: str) -> sql.URL:
    return sql.make_url(uri).set(drivername="postgresql+psycopg")


def _leave_transactions_to_us(engine: sql.Engine) -> None:
    @sql.event.listens_for(engine, "connect")
    def _connect(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        # Otherwise the driver begins transactions by itself, and later.
        connection.isolation_level = None
