"""Connections to a PostgreSQL server, with settings that make values' texts reproducible.

Source: `specs/postgres-facts.md` (5.2, 6.4). The text of a value depends on a session's settings.
Options of the connection override those of a role or a database.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from chronolake.database import refusal
from chronolake.errors import SourceError
from chronolake.masking import URL_ESCAPES, is_broken_by_password
from chronolake.source.postgres.encoding import encoding_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SETTINGS: Final = {
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "timezone": "UTC",
    "quote_all_identifiers": "off",
    "search_path": "",
    "client_encoding": "UTF8",
    # Reading a large transaction may take any time.
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "lock_timeout": "0",
    # Rows that a policy hides cause an error instead of being omitted silently.
    "row_security": "off",
    # The server reports skipped changes in warnings (`slot`).
    "client_min_messages": "warning",
}
#: Database encodings that Python's driver does not support: nothing is converted then.
_UNKNOWN: Final = {"EUC_TW"}
#: Part of the server's message about an encoding that it cannot convert to UTF-8.
_UNCONVERTIBLE: Final = "conversion between UTF8 and"
#: SQLSTATEs of errors about text that has no equivalent in UTF-8.
_NO_TEXT: Final = {"22021", "22P05"}
#: The application name of the sessions.
APPLICATION: Final = "chronolake"
#: SQLSTATE of lock timeouts.
_NO_LOCK: Final = "55P03"
_HAS_TRANSACTION_TIMEOUT: Final = 170_000
#: Earlier versions lack settings and columns that are used here.
OLDEST: Final = 140_000


@contextmanager
def connect(
    dsn: str,
    *,
    replication: str | None = None,
    as_stored: bool = False,
    settings: Mapping[str, str] | None = None,
    patience: int | None = None,
) -> Iterator[psycopg.Connection]:
    """Open a connection in autocommit mode while the block runs.

    Args:
        dsn: an address as libpq accepts it; it may contain a password.
        replication: `database` for a connection that accepts replication commands.
        as_stored: whether the server sends text as it is stored (`encoding.codec_of` decodes it) if
            it could fail to convert it to UTF-8.
        settings: additional settings of the session.
        patience: connect timeout in seconds, unless the address sets one.

    Raises:
        SourceError: the server cannot be reached, refuses or closes the connection, or is too old.
    """
    session_settings = {**_SETTINGS, **(settings or {})}
    options = " ".join(f"-c {name}={value}" for name, value in session_settings.items())
    with translate_errors():
        if "://" in dsn and is_broken_by_password(dsn):
            raise _invalid_address()
        parameters = psycopg.conninfo.conninfo_to_dict(dsn)
        # The user's options precede these, and cannot change how values are printed.
        combined_options = f"{parameters.pop('options', '') or ''} {options}".strip()
        _raise_if_split(parameters)
        if replication is not None:
            parameters["replication"] = replication
        if patience is not None:
            parameters.setdefault("connect_timeout", patience)
        connection = psycopg.connect(
            psycopg.conninfo.make_conninfo("", **parameters),
            autocommit=True,
            options=combined_options,
            application_name=APPLICATION,
        )
        with connection:
            version = connection.info.server_version
            if version < OLDEST:
                raise SourceError(
                    f"The server runs PostgreSQL {version // 10_000}, which is too old.",
                    hint=f"PostgreSQL {OLDEST // 10_000} or later is required.",
                )
            connection.execute("SET idle_session_timeout = 0")
            if version >= _HAS_TRANSACTION_TIMEOUT:
                connection.execute("SET transaction_timeout = 0")
            if as_stored:
                connection.execute(f"SET client_encoding TO '{client_encoding_of(connection)}'")
            yield connection


def client_encoding_of(connection: psycopg.Connection) -> str:
    """Return the `client_encoding` with which the server sends text as it is stored."""
    encoding = encoding_of(connection)
    return "SQL_ASCII" if encoding in _UNKNOWN else encoding


def encode_statement(connection: psycopg.Connection, query: sql.Composable) -> bytes:
    """Return a statement in the connection's encoding, also with `as_stored`."""
    # Nothing is converted then: names are stored as a UTF-8 client wrote them.
    is_bytes = connection.info.parameter_status("client_encoding") == "SQL_ASCII"
    return query.as_bytes(None if is_bytes else connection)


def is_encoding_error(failure: SourceError) -> bool:
    """Return whether the server could not convert a text to UTF-8."""
    cause = failure.__cause__
    return isinstance(cause, psycopg.Error) and cause.sqlstate in _NO_TEXT


def _raise_if_split(parameters: Mapping[str, Any]) -> None:
    """Raise an error if a password splits the address, before the driver prints a part of it.

    Raises:
        SourceError: the host or the port has unexpected characters.
    """
    host, port = str(parameters.get("host") or ""), str(parameters.get("port") or "0")
    if "@" in host or not all(part.isdigit() for part in port.split(",") if part):
        raise _invalid_address()


def _invalid_address() -> SourceError:
    return SourceError(
        "The server's address is not valid: its host or port contains unexpected characters.",
        hint=f"In a password, write {URL_ESCAPES}.",
    )


@contextmanager
def translate_errors() -> Iterator[None]:
    """Convert errors of PostgreSQL and its driver to `SourceError`.

    Raises:
        SourceError: with the server's own message, which contains no password.
    """
    try:
        yield
    except psycopg.ProgrammingError as failure:
        if failure.sqlstate is None:
            # The driver's message would contain the address.
            raise SourceError(
                "The server's address is not valid.",
                hint="Write it as postgresql://user:${PASSWORD}@host:5432/database.",
            ) from None
        raise _server_error(failure) from failure
    except psycopg.OperationalError as failure:
        if failure.sqlstate is not None:
            raise _server_error(failure) from failure
        if _UNCONVERTIBLE in str(failure):
            raise SourceError(
                f"PostgreSQL cannot convert the database to UTF-8: {_first_line(failure)}",
                hint="Dump the database, and restore it into one that was created with ENCODING "
                "'UTF8'.",
            ) from failure
        if refused := refusal(failure):
            raise SourceError(
                f"The server refuses the connection: {refused}",
                hint="Check the user, password and database in the address, and the server's "
                "pg_hba.conf. Then run it again.",
            ) from failure
        raise SourceError(
            f"The server cannot be reached: {_first_line(failure)}",
            hint="Check the address and the network, and that the server is running. Then run "
            "it again.",
        ) from failure
    except psycopg.Error as failure:
        raise _server_error(failure) from failure


def _server_error(failure: psycopg.Error) -> SourceError:
    if failure.sqlstate == _NO_LOCK:
        return SourceError(
            "Another statement was about to alter the table while it was read, and would "
            "have waited forever.",
            hint="Run it again: the statement can continue now.",
        )
    if isinstance(failure, psycopg.errors.ObjectInUse):
        return SourceError(
            f"PostgreSQL reports: {failure.diag.message_primary}.",
            hint="Another run or another program reads the slot: wait for it, end it with SELECT "
            "pg_terminate_backend(…), or give this pipeline its own slot (`slot: …`).",
        )
    diagnosis = failure.diag
    words = diagnosis.message_primary or _first_line(failure)
    detail = f" ({diagnosis.message_detail})" if diagnosis.message_detail else ""
    return SourceError(
        f"PostgreSQL reports: {words}{detail} [{failure.sqlstate}]",
        hint=diagnosis.message_hint or "Run `chronolake check` to see what the source needs.",
    )


def _first_line(failure: BaseException) -> str:
    return str(failure).strip().partition("\n")[0]
