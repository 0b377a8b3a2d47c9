"""Connections to MySQL and MariaDB servers.

Source: `PyMySQL`, of which this project uses the handshake, authentication, TLS and queries. The
session settings here determine the texts of values (`columns`).
"""

from __future__ import annotations

import re
import ssl
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql
from pymysql.constants import CLIENT, CR, ER

from chronolake.errors import ConfigurationError, SourceError
from chronolake.masking import URL_ESCAPES, is_broken_by_password, mask_text

if TYPE_CHECKING:
    from collections.abc import Iterator

_PORT: Final = 3306
_CONNECT_SECONDS: Final = 10
#: A server that is silent for longer has lost the connection; the log has heartbeats.
_SILENCE_SECONDS: Final = 3_600
_SCHEMES: Final = frozenset({"mysql", "mariadb"})
_OPTIONS: Final = frozenset({"ssl-mode", "ssl-ca", "ssl-cert", "ssl-key", "unix-socket"})
_SETTINGS: Final = (
    # Every value is printed, also one that the mode would not accept any more.
    "SET SESSION time_zone = '+00:00', sql_mode = '', net_write_timeout = 3600, "
    "net_read_timeout = 3600, innodb_lock_wait_timeout = 30, group_concat_max_len = 1048576"
)
#: Errors of the network, and of servers that start or shut down.
_PASSING: Final = frozenset(
    {
        *(CR.CR_CONNECTION_ERROR, CR.CR_CONN_HOST_ERROR, CR.CR_SERVER_GONE_ERROR),
        *(CR.CR_SERVER_LOST, ER.SERVER_SHUTDOWN),
    }
)
_HINTS: Final = {
    ER.ACCESS_DENIED_ERROR: "Check the user and the password in `dsn`.",
    ER.BAD_DB_ERROR: "Check the database in `dsn` and in `databases`.",
    ER.DBACCESS_DENIED_ERROR: "Run `chronolake check` to see the privileges that are missing.",
    ER.SPECIFIC_ACCESS_DENIED_ERROR: "Run `chronolake check` to see what is missing.",
    ER.TABLEACCESS_DENIED_ERROR: "Run `chronolake check` to see what is missing.",
}


@dataclass(frozen=True)
class Address:
    """Where a server is, and how to connect to it.

    Attributes:
        arguments: the arguments of `pymysql.connect`.
        schema: the database that the address names; empty if it names none.
        requires_tls: whether to refuse servers without TLS.
    """

    arguments: dict[str, Any]
    schema: str
    requires_tls: bool

    @classmethod
    def of(cls, dsn: str) -> Address:
        """Return the address that a DSN describes.

        Args:
            dsn: `mysql://user:password@host:port/database?ssl-mode=…`; the options are those of
                MySQL's own programs: `ssl-mode` (disabled, preferred, required, verify_ca,
                verify_identity), `ssl-ca`, `ssl-cert`, `ssl-key`, `unix-socket`.

        Raises:
            ConfigurationError: the DSN is not valid.
        """
        if is_broken_by_password(dsn):
            raise _invalid_address()
        parts = urlsplit(dsn)
        try:
            port = parts.port or _PORT
        except ValueError:
            # The message would show what may be a part of the password.
            raise _invalid_address() from None
        if parts.scheme not in _SCHEMES or not parts.hostname:
            raise _invalid_address()
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := sorted(options.keys() - _OPTIONS):
            raise ConfigurationError(
                f"`dsn` has the unknown option {unknown[0]}.",
                hint=f"Known options are {', '.join(sorted(_OPTIONS))}.",
            )
        arguments: dict[str, Any] = {
            "host": parts.hostname,
            "port": port,
            "user": unquote(parts.username or ""),
            "password": unquote(parts.password or ""),
            "ssl": _tls(options),
        }
        mode = options.get("ssl-mode", "preferred").lower()
        if mode == "disabled":
            arguments["ssl_disabled"] = True
        requires_tls = mode not in {"preferred", "disabled"}
        if "unix-socket" in options:
            arguments["unix_socket"] = options["unix-socket"]
        return cls(arguments, unquote(parts.path.strip("/")), requires_tls=requires_tls)


def _invalid_address() -> ConfigurationError:
    return ConfigurationError(
        "`dsn` is not the address of a MySQL server.",
        hint="Write it as mysql://user:password@host:3306/database; in a password, write "
        f"{URL_ESCAPES}.",
    )


def _tls(options: dict[str, str]) -> ssl.SSLContext | None:
    """Return how connections are encrypted, or None if they are not."""
    mode = options.get("ssl-mode", "preferred").lower().replace("-", "_")
    modes = {"disabled", "preferred", "required", "verify_ca", "verify_identity"}
    if mode not in modes:
        raise ConfigurationError(
            f"`dsn` has the unknown ssl-mode {mode}.",
            hint=f"Use one of {', '.join(sorted(modes))}.",
        )
    if mode == "disabled" or (mode == "preferred" and len(options.keys() & _OPTIONS) == 0):
        return None
    try:
        context = ssl.create_default_context(cafile=options.get("ssl-ca"))
        if "ssl-cert" in options:
            context.load_cert_chain(options["ssl-cert"], options.get("ssl-key"))
    except OSError as failure:
        raise ConfigurationError(
            f"A certificate in `dsn` cannot be read: {failure.strerror or failure}.",
            hint="Check the paths in ssl-ca, ssl-cert and ssl-key.",
        ) from failure
    context.check_hostname = mode == "verify_identity"
    if mode not in {"verify_ca", "verify_identity"}:
        context.verify_mode = ssl.CERT_NONE
    return context


class _TlsConnection(pymysql.Connection):  # type: ignore[misc]
    """A connection that is not made without TLS."""

    def _request_authentication(self) -> None:
        if not self.server_capabilities & CLIENT.SSL:
            raise pymysql.OperationalError(
                CR.CR_SSL_CONNECTION_ERROR,
                "it does not offer TLS, which ssl-mode requires",
            )
        super()._request_authentication()


@contextmanager
def translate_errors() -> Iterator[None]:
    """Turn the server's errors in a block into errors with what to do."""
    try:
        yield
    except pymysql.Error as failure:
        raise source_error(failure) from failure


def source_error(failure: pymysql.Error) -> SourceError:
    """Return an error of the server, or of the connection to it."""
    number = failure.args[0] if failure.args else 0
    text = mask_text(str(failure.args[1] if len(failure.args) > 1 else failure))
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return SourceError(
            f"The MySQL server's certificate is not trusted: {text}",
            hint="Check ssl-ca in `dsn`, and the host that the certificate was issued for.",
        )
    if number in _PASSING:
        return SourceError(
            f"The MySQL server does not respond: {text}",
            hint="Check that it runs, and the host and port in `dsn`. The next run continues.",
        )
    hint = _HINTS.get(number, "Run `chronolake check` to see whether the server is set up.")
    return SourceError(f"The MySQL server reports error {number}: {text}", hint=hint)


@contextmanager
def connect(dsn: str, *, patience: int = _CONNECT_SECONDS) -> Iterator[pymysql.Connection[Any]]:
    """Connect to a server while the block runs; each statement is its own transaction.

    Args:
        dsn: its address.
        patience: the timeout of the connection in seconds.

    Raises:
        SourceError: the server cannot be reached, or refuses.
        ConfigurationError: the DSN is not valid.
    """
    address = Address.of(dsn)
    with translate_errors():
        connection = (_TlsConnection if address.requires_tls else pymysql.Connection)(
            **address.arguments,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=patience,
            read_timeout=_SILENCE_SECONDS,
            program_name="chronolake",
        )
    try:
        with translate_errors():
            execute(connection, _SETTINGS)
        yield connection
    finally:
        # The server ends what still runs.
        connection._force_close()  # noqa: SLF001 - `close` waits for the server


def execute(
    connection: pymysql.Connection[Any], statement: str, values: tuple[Any, ...] = ()
) -> list[tuple[Any, ...]]:
    """Run a statement, and return all rows of its result."""
    with translate_errors(), connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        return list(cursor.fetchall())


def variables(connection: pymysql.Connection[Any], *names: str) -> dict[str, str]:
    """Return global variables of the server as texts; those that it lacks are left out."""
    marks = ", ".join(["%s"] * len(names))
    rows = execute(
        connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({marks})", tuple(names)
    )
    return {name.lower(): value for name, value in rows}


def version_of(connection: pymysql.Connection[Any]) -> tuple[bool, str | None]:
    """Return whether a server is MariaDB, and its version; None if it has not the usual form."""
    text = str(connection.get_server_info())
    # MariaDB precedes its version with that of an old MySQL.
    found = re.search(r"\d+\.\d+\.\d+", text.removeprefix("5.5.5-"))
    return "mariadb" in text.lower(), found[0] if found else None


def numbers_of(version: str) -> tuple[int, ...]:
    """Return the parts of a version."""
    return tuple(map(int, version.split(".")))


@dataclass(frozen=True)
class Server:
    """A server.

    Attributes:
        is_mariadb: whether it is MariaDB.
        version: its version, such as `8.4.3`.
        identity: identifies it among servers; it survives restarts.
    """

    is_mariadb: bool
    version: str
    identity: str

    @classmethod
    def of(cls, connection: pymysql.Connection[Any]) -> Server:
        """Return the server of a connection.

        Raises:
            SourceError: the server does not respond.
        """
        is_mariadb, version = version_of(connection)
        if is_mariadb:
            ((number, host, port),) = execute(connection, "SELECT @@server_id, @@hostname, @@port")
            identity = f"mariadb-{number}@{host}:{port}"
        else:
            ((identity,),) = execute(connection, "SELECT @@server_uuid")
        return cls(is_mariadb, version or str(connection.get_server_info()), str(identity))

    @property
    def name(self) -> str:
        """Return the product and its version."""
        return f"{'MariaDB' if self.is_mariadb else 'MySQL'} {self.version}"

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return the parts of its version."""
        return numbers_of(self.version)


def quoted(*names: str) -> str:
    """Return a qualified name as SQL."""
    return ".".join(f"`{name.replace('`', '``')}`" for name in names)
