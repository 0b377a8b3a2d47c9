"""Checks of a server and its tables, with the statements that fix each problem."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from chronolake.errors import SourceError
from chronolake.source.mysql.connection import execute, variables
from chronolake.source.mysql.log_stream import log_status
from chronolake.source.protocol import CheckResult, Level

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pymysql

    from chronolake.source.mysql.catalog import SourceTable
    from chronolake.source.mysql.connection import Server

#: The oldest versions with complete descriptions of tables in their log.
_OLDEST: Final = {False: (8, 0, 14), True: (10, 5, 0)}
_DAY_SECONDS: Final = 86_400
_PRIVILEGES: Final = {
    "REPLICATION SLAVE": "to read the binary log",
    "REPLICATION CLIENT": "to see where the binary log ends",
    "SELECT": "to copy tables",
}
_XA: Final = "XA_RECOVER_ADMIN"
_XA_PURPOSE: Final = (
    "to wait for prepared XA transactions before a table is copied; without it, a copy fails and "
    "is repeated if one of them is committed later"
)
#: Names of the same privileges in MariaDB.
_ALIASES: Final = {
    "BINLOG MONITOR": "REPLICATION CLIENT",
    "REPLICATION REPLICA": "REPLICATION SLAVE",
}


def check_server(connection: pymysql.Connection[Any], server: Server) -> Iterator[CheckResult]:
    """Yield the results of the checks of a server.

    Raises:
        SourceError: the server does not respond.
    """
    oldest = _OLDEST[server.is_mariadb]
    if server.numbers < oldest:
        yield CheckResult(
            "version",
            Level.FAILED,
            f"{server.name} does not describe its tables in its log",
            f"Upgrade to {'.'.join(map(str, oldest))} or later.",
        )
    found = variables(
        connection,
        *("log_bin", "binlog_format", "binlog_row_metadata", "binlog_row_image", "gtid_mode"),
        *("binlog_expire_logs_seconds", "expire_logs_days", "gtid_strict_mode", "server_id"),
    )
    if found.get("log_bin") != "ON":
        yield CheckResult(
            "log_bin",
            Level.FAILED,
            "the server writes no binary log",
            "Add log_bin to the server's configuration, and restart it.",
        )
        return
    yield from _check_filters(connection, server)
    yield from _check_settings(found)
    yield from _check_gtids(found, server)
    yield from _check_retention(found)
    yield from _check_privileges(connection, server)


def _check_filters(connection: pymysql.Connection[Any], server: Server) -> Iterator[CheckResult]:
    """Yield a result if the log does not contain all changes of the server."""
    try:
        status = log_status(connection, server)
    except SourceError:
        # The user lacks a privilege that is reported below.
        status = []
    for row in status:
        for name, value in zip(("binlog-do-db", "binlog-ignore-db"), row[2:4], strict=False):
            if value:
                yield CheckResult(
                    name,
                    Level.FAILED,
                    f"is {value}: the log lacks the changes of some databases, or statements that "
                    "are run in them",
                    f"Remove {name} from the server's configuration, restart it, and run "
                    "`chronolake resync`.",
                )
    logs = variables(connection, "log_slave_updates", "log_replica_updates")
    if "ON" in logs.values():
        return
    try:
        is_replica = bool(execute(connection, "SHOW REPLICA STATUS"))
    except SourceError:
        # The user lacks a privilege.
        is_replica = None
    if is_replica is not False:
        yield CheckResult(
            "log_slave_updates" if server.is_mariadb else "log_replica_updates",
            Level.FAILED if is_replica else Level.WARNING,
            "is OFF: the log of a replica lacks what it has received from its source"
            + ("" if is_replica else "; it could not be determined whether this is a replica"),
            "Set it to ON in the server's configuration, and restart it; or read from the source.",
        )


def _check_settings(found: dict[str, str]) -> Iterator[CheckResult]:
    for name, wanted in (("binlog_format", "ROW"), ("binlog_row_metadata", "FULL")):
        value = found.get(name, "missing")
        if value.upper() == wanted:
            yield CheckResult(name, Level.OK, value)
        else:
            yield CheckResult(
                name,
                Level.FAILED,
                f"is {value}: changes cannot be read from the log",
                f"SET GLOBAL {name} = '{wanted}'; also set it in the server's configuration. "
                "Sessions that are open keep the old value.",
            )
    image = found.get("binlog_row_image", "FULL")
    if image.upper() == "FULL":
        yield CheckResult("binlog_row_image", Level.OK, image)
    else:
        yield CheckResult(
            "binlog_row_image",
            Level.WARNING,
            f"is {image}: values that are not in the log are carried over from the last version, "
            "and a table is read again where that is not possible",
            "SET GLOBAL binlog_row_image = 'FULL';",
        )


def _check_gtids(found: dict[str, str], server: Server) -> Iterator[CheckResult]:
    name = "gtid_strict_mode" if server.is_mariadb else "gtid_mode"
    value = found.get(name, "OFF")
    if value == "ON":
        yield CheckResult(name, Level.OK, value)
        return
    fix = (
        "SET GLOBAL gtid_strict_mode = ON;"
        if server.is_mariadb
        else "Set enforce_gtid_consistency and gtid_mode to ON, step by step as MySQL's manual "
        "describes it."
    )
    yield CheckResult(
        name,
        Level.WARNING,
        f"is {value}: after a failover to another server, every table is read again",
        fix,
    )


def _check_retention(found: dict[str, str]) -> Iterator[CheckResult]:
    seconds = int(found.get("binlog_expire_logs_seconds", "0"))
    days = float(found.get("expire_logs_days", "0"))
    kept = seconds or int(days * _DAY_SECONDS)
    if 0 < kept < _DAY_SECONDS:
        yield CheckResult(
            "binlog_expire_logs_seconds",
            Level.WARNING,
            f"the server keeps its log for {kept / 3600:.3g} h: if the pipeline does not run for "
            "longer, every table is read again",
            "SET GLOBAL binlog_expire_logs_seconds = 259200;",
        )


def _check_privileges(connection: pymysql.Connection[Any], server: Server) -> Iterator[CheckResult]:
    grants = [str(grant) for (grant, *_) in execute(connection, "SHOW GRANTS")]
    held: set[str] = set()
    for grant in grants:
        match = re.match(r"GRANT (.*) ON ", grant)
        if match:
            words = {word.strip().upper() for word in match[1].split(",")}
            held |= words | {_ALIASES.get(word, word) for word in words}
    ((user,),) = execute(connection, "SELECT CURRENT_USER()")
    name, _, host = str(user).rpartition("@")
    wanted = [(privilege, purpose, Level.FAILED) for privilege, purpose in _PRIVILEGES.items()]
    if not server.is_mariadb:
        wanted.append((_XA, _XA_PURPOSE, Level.WARNING))
    for privilege, purpose, level in wanted:
        if held & {privilege, "ALL PRIVILEGES", "ALL"}:
            continue
        yield CheckResult(
            f"privilege {privilege}",
            level,
            f"the user lacks it: it is needed {purpose}",
            f"GRANT {privilege} ON *.* TO '{name}'@'{host}';",
        )


def check_table(table: SourceTable) -> Iterator[CheckResult]:
    """Yield the results of the checks of a table."""
    subject = f"table {table.stream}"
    if table.unlogged:
        yield CheckResult(
            subject,
            Level.WARNING,
            f"{table.unlogged}, which the log has in another form: every run reads it completely",
            "",
        )
    elif not table.log_key:
        yield CheckResult(
            subject,
            Level.WARNING,
            "has no primary key, and no unique index without nulls: every run reads it completely",
            "Add a primary key.",
        )
    elif not table.key:
        yield CheckResult(
            subject,
            Level.OK,
            f"identified by {', '.join(table.distinct_by)}",
        )
    parents = sorted({f"{cascade.schema}.{cascade.name}" for cascade in table.cascades})
    if parents and table.log_key:
        yield CheckResult(
            subject,
            Level.WARNING,
            "foreign keys delete or update its rows (ON DELETE CASCADE, for example), which the "
            f"log does not contain: it is read completely after such changes of {parents[0]}"
            f"{f' and {len(parents) - 1} more' if parents[1:] else ''}",
            "Delete and update these rows with statements of their own, and declare the foreign "
            "keys with RESTRICT; or use MySQL 9.6 or later.",
        )
    if not table.is_transactional:
        yield CheckResult(
            subject,
            Level.WARNING,
            f"has the engine {table.engine}, which is not transactional: a statement that fails "
            "halfway leaves what it has changed",
            f"ALTER TABLE {table.stream} ENGINE = InnoDB;",
        )
