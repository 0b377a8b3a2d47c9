"""Proposals for databases over JDBC, and for SQL Server."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from chronolake.config import JdbcAddress, LakeConfig
from chronolake.errors import ConfigurationError
from chronolake.masking import URL_ESCAPES, is_broken_by_password, is_secret
from chronolake.scaffold.document import Entry, literal
from chronolake.scaffold.proposal import (
    ProposedPipeline,
    Variable,
    name_from,
    password_variable,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chronolake.config import SparkConfig
    from chronolake.scaffold.origin import Request
    from chronolake.source.jdbc_metadata import DatabaseTable

_SQLSERVER: Final = "jdbc:sqlserver:"
_SQLITE: Final = "jdbc:sqlite:"
_POSTGRESQL: Final = "jdbc:postgresql:"
#: Drivers that are among Spark's jars of a lake.
_INCLUDED: Final = (_SQLITE, _POSTGRESQL)
#: A user and a password before the host.
_USER: Final = re.compile(r"(?<=//)([^/@:?;]+)(?::([^/@?;]*))?@")
_ORACLE: Final = re.compile(r"(?<=thin:)([^/@:]+)/([^@]*)@")
#: Parameters of a URL, with what separates them.
_PARAMETER: Final = re.compile(r"([?&;])([\w.-]+)=([^?&;]*)")
#: Those of SQL Server, whose values may be in braces.
_BRACED: Final = re.compile(r"(;)([\w.-]+)=(\{(?:[^}]|\}\})*\}|[^;]*)")
_USERS: Final = frozenset({"user", "username"})
_PLAIN: Final = re.compile(r"[A-Za-z_][\w$]*(\.[A-Za-z_][\w$]*)*", re.ASCII)
_DATABASE: Final = re.compile(r"(?i)[?&;]database(?:name)?=(\{[^}]*\}|[^?&;]+)")


def propose_jdbc(request: Request, spark: SparkConfig) -> ProposedPipeline:
    """Return the pipeline for a database over JDBC.

    Args:
        request: the database.
        spark: how Spark starts, with the driver's jar.

    Raises:
        ConfigurationError: the address is not complete, or no table has a key.
        SourceError: the database cannot be reached, or refuses the connection.
    """
    url, user, password = address_of(request.origin)
    if not url.startswith(_INCLUDED) and request.driver_jar is None:
        raise ConfigurationError(
            f"The JDBC driver of {url.split(':')[1]} is not included.",
            hint="Download its jar, and set --driver-jar to it.",
        )
    name = request.name or name_from(_database_of(url))
    variables: tuple[Variable, ...] = ()
    if password is not None:
        variables = (password_variable(name, "password", password, "the user's password"),)
        if variables[0].value is None:
            raise ConfigurationError(
                f"The environment variable {variables[0].name} is not set.",
                hint="Set it to the password.",
            )
    given = variables[0].value if variables else None
    tables = _list(request, url, user, given, spark)
    return proposal_of(name, url, user, variables, tables)


def proposal_of(
    name: str,
    url: str,
    user: str | None,
    variables: tuple[Variable, ...],
    tables: Sequence[DatabaseTable],
) -> ProposedPipeline:
    """Return the pipeline for the tables of a database.

    Raises:
        ConfigurationError: no table has a key.
    """
    usable = [table for table in tables if table.key and _PLAIN.fullmatch(table.name)]
    if not usable:
        raise ConfigurationError(
            f"None of the {len(tables)} tables of the database has a primary key.",
            hint="Write the pipeline yourself, with the columns that identify a row of each table.",
        )
    entries = []
    if url.startswith(_SQLSERVER):
        experimental = "Experimental: it has not been run against a SQL Server yet."
        about = (
            "change_tracking reads the current state of rows that have changed; cdc reads every "
            "change. The database has to be set up for either: see docs/sqlserver.md. Or set type: "
            "jdbc, without a method, to compare complete tables."
        )
        entries += [
            Entry("type", "sqlserver", experimental),
            Entry("method", "change_tracking", about),
        ]
    else:
        about = "Every run reads every table completely, and compares it."
        if url.startswith(_POSTGRESQL):
            about += (
                " The type postgres reads changes from the server's log: see docs/postgresql.md."
            )
        entries.append(Entry("type", "jdbc", about))
    entries.append(Entry("url", literal(url), "The database's address, without its password."))
    if user is not None:
        entries.append(Entry("user", literal(user)))
    if variables:
        entries.append(Entry("password", f"${{{variables[0].name}}}"))
    about = "The tables, with the columns that identify a row."
    found: list[Entry] = []
    for table in usable:
        settings = [Entry("key", [*table.key])]
        if table.is_numbered:
            why = "For a large table: several tasks read ranges of a column." if not found else ""
            settings.append(Entry("split_by", table.key[0], why, is_disabled=True))
        found.append(Entry(table.name, tuple(settings)))
    entries.append(Entry("tables", tuple(found), about))
    return ProposedPipeline(name, tuple(entries), variables=variables, notes=_notes(tables))


def _notes(tables: Sequence[DatabaseTable]) -> tuple[str, ...]:
    keyless = [table.name for table in tables if not table.key]
    quoted = [table.name for table in tables if table.key and not _PLAIN.fullmatch(table.name)]
    notes = []
    if keyless:
        notes.append(
            f"Tables without a primary key are not included: {', '.join(keyless)}. Add them with "
            "the columns that identify a row."
        )
    if quoted:
        notes.append(
            f"Tables whose names need quotes are not included: {', '.join(quoted)}. Add them as "
            "they are written in SQL, and set `streams.NAME.table`."
        )
    return tuple(notes)


def _list(
    request: Request, url: str, user: str | None, password: str | None, spark: SparkConfig
) -> list[DatabaseTable]:
    from chronolake.source.jdbc_metadata import list_tables  # noqa: PLC0415 - it loads PySpark

    # The tables are not known yet.
    address = JdbcAddress.model_construct(url=url, user=user, password=password)
    with tempfile.TemporaryDirectory(prefix="chronolake-init-") as folder:
        lake = request.open_lake(LakeConfig(path=Path(folder), spark=spark))
        session = lake.spark
        request.report("Listing the tables ...")
        return list_tables(session, address)


def address_of(origin: str) -> tuple[str, str | None, str | None]:
    """Return a JDBC URL without user and password, and both.

    Raises:
        ConfigurationError: the address is not complete, or contains other secrets.
    """
    return _without_password(_jdbc_url(origin))


def _jdbc_url(origin: str) -> str:
    """Return the address as a JDBC URL.

    Raises:
        ConfigurationError: it is not complete.
    """
    if not origin.startswith("jdbc:"):
        return _sqlserver_url(origin)
    if origin.startswith(_SQLITE):
        # A relative path would depend on the folder in which a command runs.
        file = Path(origin.removeprefix(_SQLITE)).expanduser().absolute()
        if not file.is_file():
            raise ConfigurationError(f"There is no file {file}.", hint="Check the path.")
        return f"{_SQLITE}{file}"
    return origin


def _sqlserver_url(origin: str) -> str:
    if is_broken_by_password(origin):
        raise ConfigurationError(
            "The address cannot be parsed: its user or password contains a character that must be "
            "escaped.",
            hint=f"Write {URL_ESCAPES}.",
        )
    parts = urlsplit(origin)
    database = unquote(parts.path.strip("/"))
    place = parts.netloc.rpartition("@")[2]
    if not place or not database:
        raise ConfigurationError(
            "The address contains no host or no database.",
            hint="Write sqlserver://user:password@host:1433/database.",
        )
    given = {"databaseName": database, **dict(parse_qsl(parts.query))}
    if parts.username is not None:
        given["user"] = unquote(parts.username)
    if parts.password is not None:
        given["password"] = unquote(parts.password)
    pairs = ";".join(f"{key}={_quoted(value)}" for key, value in given.items())
    return f"{_SQLSERVER}//{place};{pairs}"


def _quoted(value: str) -> str:
    return value if not set(";{}=?&") & set(value) else f"{{{value.replace('}', '}}')}}}"


def _without_password(url: str) -> tuple[str, str | None, str | None]:
    """Return a JDBC URL without user and password, and both."""
    user, password = None, None
    for pattern in (_USER, _ORACLE):
        if (found := pattern.search(url)) is not None:
            user, password = found[1], found[2]
            url = pattern.sub("", url, count=1)
            if pattern is _ORACLE:
                url = url.replace("thin:", "thin:@", 1)
    kept = []
    for separator, key, value in _parameters(url):
        if key.lower() in _USERS:
            user = value
        elif key.lower() == "password":
            password = value
        elif is_secret(key):
            raise ConfigurationError(
                f"The address contains the secret {key}.",
                hint="Leave it out, and add it to `properties` as a reference to an environment "
                "variable.",
            )
        else:
            kept.append((separator, f"{key}={_requoted(url, value)}"))
    return f"{_before_parameters(url)}{_joined(kept)}", user, password


def _parameters(url: str) -> list[tuple[str, str, str]]:
    """Return the parameters of a URL: what precedes each one, its name, and its value."""
    return [
        (found[1], found[2], _unquoted(found[3]) if url.startswith(_SQLSERVER) else found[3])
        for found in _pattern_of(url).finditer(url)
    ]


def _pattern_of(url: str) -> re.Pattern[str]:
    return _BRACED if url.startswith(_SQLSERVER) else _PARAMETER


def _before_parameters(url: str) -> str:
    found = _pattern_of(url).search(url)
    return url if found is None else url[: found.start()]


def _unquoted(value: str) -> str:
    return value[1:-1].replace("}}", "}") if value.startswith("{") else value


def _requoted(url: str, value: str) -> str:
    return _quoted(value) if url.startswith(_SQLSERVER) else value


def _joined(pairs: Sequence[tuple[str, str]]) -> str:
    text = ""
    for separator, pair in pairs:
        # Of a query, the first parameter follows a question mark.
        first = "?" if separator in "?&" and "?" not in text else separator
        text += f"{first}{pair}"
    return text


def _database_of(url: str) -> str:
    """Return the name of a database from its URL."""
    if url.startswith(_SQLITE):
        return Path(url.removeprefix(_SQLITE)).stem
    if (found := _DATABASE.search(url)) is not None:
        return _unquoted(found[1])
    return re.split(r"[/:]", re.split(r"[?;]", url)[0])[-1]
