"""Connections to a PostgreSQL server: settings under which values read the same everywhere.

Source: `specs/postgres-facts.md` (5.2, 6.4). What a value's text looks like depends on a session's
settings; what the connection itself gives comes before those of a role or a database.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import psycopg

from chronolake.errors import SourceError

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
    # Reading a large transaction takes as long as it takes.
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    # Rows that a policy hides are an error, and not left out in silence.
    "row_security": "off",
    # What the server skips it says in warnings (`slot`).
    "client_min_messages": "warning",
}
#: How libpq quotes a server that refuses a connection, and what it says without asking one.
_ANSWER: Final = re.compile(r"failed: [^\s:]+:  (.+)")
_UNGIVEN: Final = "no password supplied"
#: What the server says when a lock was waited for too long.
_NO_LOCK: Final = "55P03"
_HAS_TRANSACTION_TIMEOUT: Final = 170_000
#: Versions before do not know the settings and columns that are used here.
OLDEST: Final = 140_000


@contextmanager
def connected(dsn: str, *, replication: str | None = None) -> Iterator[psycopg.Connection]:
    """A connection that commits each statement, for as long as the block runs.

    Args:
        dsn: an address as libpq takes it; it may hold a password.
        replication: `database` for a connection that takes commands of replication.

    Raises:
        SourceError: the server cannot be reached, refuses, breaks the connection off, or is old.
    """
    options = " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items())
    with understood():
        given = psycopg.conninfo.conninfo_to_dict(dsn)
        # What a user's own options say comes first, and cannot change how values read.
        both = f"{given.pop('options', '') or ''} {options}".strip()
        _expect_whole(given)
        if replication is not None:
            given["replication"] = replication
        connection = psycopg.connect(
            psycopg.conninfo.make_conninfo("", **given),
            autocommit=True,
            options=both,
            application_name="chronolake",
        )
        with connection:
            version = connection.info.server_version
            if version >= _HAS_TRANSACTION_TIMEOUT:
                connection.execute("SET transaction_timeout = 0")
            if version < OLDEST:
                raise SourceError(
                    f"The server is PostgreSQL {version // 10_000}.",
                    hint=f"PostgreSQL {OLDEST // 10_000} or later is needed.",
                )
            yield connection


def _expect_whole(given: Mapping[str, Any]) -> None:
    """Refuse an address that a password has broken in two, before the driver quotes a part of it.

    Raises:
        SourceError: it is one.
    """
    host, port = str(given.get("host") or ""), str(given.get("port") or "0")
    if "@" in host or not all(one.isdigit() for one in port.split(",") if one):
        raise SourceError(
            "The address of the server is not understood: its host or port has other characters "
            "than such names have.",
            hint="In a password, write @ as %40, / as %2F and : as %3A.",
        )


@contextmanager
def understood() -> Iterator[None]:
    """Turn what PostgreSQL and its driver raise into errors of ours.

    Raises:
        SourceError: with the server's own words, which name no password.
    """
    try:
        yield
    except psycopg.ProgrammingError as failure:
        if failure.sqlstate is None:
            # The driver quotes the address that it does not understand.
            raise SourceError(
                "The address of the server is not understood.",
                hint="Write it as postgresql://user:${PASSWORD}@host:5432/database.",
            ) from None
        raise _said(failure) from failure
    except psycopg.OperationalError as failure:
        if failure.sqlstate is not None:
            raise _said(failure) from failure
        if refused := refusal(failure):
            raise SourceError(
                f"The server refuses the connection: {refused}",
                hint="Check user, password and database in the address, and the server's "
                "pg_hba.conf; then run it again.",
            ) from failure
        raise SourceError(
            f"The server cannot be reached: {_first_line(failure)}",
            hint="Check address and network, and that the server runs; then run it again.",
        ) from failure
    except psycopg.Error as failure:
        raise _said(failure) from failure


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


def _said(failure: psycopg.Error) -> SourceError:
    if failure.sqlstate == _NO_LOCK:
        return SourceError(
            "Another statement came to change the table while it was read, and would have waited "
            "for that for ever.",
            hint="Run it again: the statement goes on now.",
        )
    diagnosis = failure.diag
    words = diagnosis.message_primary or _first_line(failure)
    detail = f" ({diagnosis.message_detail})" if diagnosis.message_detail else ""
    return SourceError(
        f"PostgreSQL says: {words}{detail} [{failure.sqlstate}]",
        hint=diagnosis.message_hint or "`chronolake check` says what the source needs.",
    )


def _first_line(failure: BaseException) -> str:
    return str(failure).strip().partition("\n")[0]
