"""Errors of MySQL and MariaDB as errors of targets, without values of rows."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pymysql
from pymysql.constants import ER

from chronolake.errors import TargetError
from chronolake.target.database import (
    duplicate_error,
    locked_error,
    resources_error,
    unreachable_error,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_WARNING_COLUMN: Final = re.compile(r"column '([^']+)'|column `?([^`' ]+)`? at row")
_PRIVILEGES: Final = frozenset(
    {
        *(ER.DBACCESS_DENIED_ERROR, ER.TABLEACCESS_DENIED_ERROR, ER.COLUMNACCESS_DENIED_ERROR),
        ER.SPECIFIC_ACCESS_DENIED_ERROR,
    }
)
#: Errors of connections: those of the client itself, and the server's.
_CLIENT_ERRORS: Final = range(2_000, 3_000)
_REFUSALS: Final = frozenset(
    {
        *(ER.CON_COUNT_ERROR, ER.SERVER_SHUTDOWN, ER.HOST_IS_BLOCKED, ER.HOST_NOT_PRIVILEGED),
        *(ER.ACCESS_DENIED_ERROR, ER.BAD_DB_ERROR),
    }
)
_RESOURCES: Final = frozenset(
    {ER.DISK_FULL, ER.RECORD_FILE_FULL, ER.OUTOFMEMORY, ER.OUT_OF_SORTMEMORY, ER.OUT_OF_RESOURCES}
    | {ER.GET_ERRNO, ER.ERROR_ON_WRITE}
)
_ROW_SIZE: Final = frozenset({ER.TOO_BIG_ROWSIZE, ER.TOO_MANY_FIELDS})
_KEY_SIZE: Final = frozenset({ER.TOO_LONG_KEY, ER.TOO_MANY_KEY_PARTS, 1709})
#: A statement or a value is larger than the server accepts.
_PACKET: Final = frozenset({ER.NET_PACKET_TOO_LARGE, ER.WARN_ALLOWED_PACKET_OVERFLOWED})
#: Constraints, and where their names are in messages. The messages contain values, too.
_CONSTRAINTS: Final = {
    ER.DUP_ENTRY: re.compile(r"for key '(?:[^']*\.)?([^'.]+)'$"),
    ER.ROW_IS_REFERENCED: None,
    ER.NO_REFERENCED_ROW: None,
    ER.ROW_IS_REFERENCED_2: re.compile(r"CONSTRAINT `((?:[^`]|``)+)` FOREIGN KEY"),
    ER.NO_REFERENCED_ROW_2: re.compile(r"CONSTRAINT `((?:[^`]|``)+)` FOREIGN KEY"),
    3730: re.compile(r"foreign key constraint '([^']+)' on table"),
    3819: re.compile(r"^Check constraint '(.+)' is violated"),
    4025: re.compile(r"^CONSTRAINT `((?:[^`]|``)+)` failed"),
    ER.BAD_NULL_ERROR: re.compile(r"^(Column '.+') cannot be null$"),
    # A trigger of others has signalled an error.
    1644: None,
}
PRIMARY: Final = "PRIMARY"
_NO_TRIGGERS: Final = 1419
_LOCKED: Final = frozenset({ER.LOCK_WAIT_TIMEOUT, ER.LOCK_DEADLOCK})


@contextmanager
def translate_errors() -> Iterator[None]:
    """Turn the server's errors in a block into errors without values, with a hint."""
    try:
        yield
    except pymysql.Error as failure:
        raise error_of(failure) from None


def error_of(failure: pymysql.Error) -> TargetError:
    """Return the error for a response of the server, or for none; it contains no values."""
    number = failure.args[0] if failure.args and isinstance(failure.args[0], int) else 0
    message = str(failure.args[1]) if len(failure.args) > 1 else ""
    found = _access_error(number) or limit_error(number, message)
    if found is not None:
        return found
    if number in _CONSTRAINTS:
        name = constraint_of(failure) or "without a name"
        if name == PRIMARY:
            return duplicate_error("MySQL")
        return TargetError(
            "A constraint, unique index or trigger that others have added refuses rows of the "
            f"lake: {name} (error {number}).",
            hint="Drop it, or change the rows in the source. The rows of the target are as they "
            "were.",
        )
    return TargetError(
        f"MySQL refused to write: {type(failure).__name__} (error {number}).",
        column=column_of(message),
        hint="The value may not fit the type in the target; docs/targets.md lists them.",
    )


def _access_error(number: int) -> TargetError | None:
    """Return the error for locks, privileges and connections; None for other numbers."""
    if number in _LOCKED:
        return locked_error()
    if number == _NO_TRIGGERS:
        return TargetError(
            "The user of the target may not create triggers, which detect changes by others.",
            hint="Set log_bin_trust_function_creators = 1 on the server, or set `detect_changes: "
            "false` for the target.",
        )
    if number in _PRIVILEGES:
        return TargetError(
            f"The user of the target lacks a privilege (error {number}).",
            hint="Grant SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX and TRIGGER on "
            "the target's database.",
        )
    if number in _CLIENT_ERRORS or number in _REFUSALS:
        return unreachable_error(f"error {number}")
    return None


def limit_error(number: int, message: str) -> TargetError | None:
    """Return the error for a limit of the server; None if the number means something else."""
    if number in _RESOURCES:
        return resources_error(f"error {number}")
    if number in _ROW_SIZE:
        return TargetError(
            f"Rows of the table do not fit (error {number}): InnoDB supports about 8,126 bytes, to "
            "which each text or binary value adds up to 41.",
            hint="Exclude columns in the pipeline, or remove the table from the target.",
        )
    if number in _KEY_SIZE:
        return TargetError(
            f"The key of the table is too long for an index (error {number}).",
            hint="Choose another key for the stream, or remove the table from the target.",
        )
    if number in _PACKET:
        return packet_error(column_of(message))
    return None


def packet_error(column: str | None, size: int | None = None) -> TargetError:
    """Return the error for a row that is larger than the server accepts."""
    needed = "" if size is None else f" of at least {size:,} bytes"
    return TargetError(
        "A row is larger than `max_allowed_packet` of the target's server.",
        column=column,
        hint=f"Set a larger max_allowed_packet{needed} on the server, or exclude the column.",
    )


def constraint_of(failure: pymysql.Error) -> str | None:
    """Return the name of the constraint or index that refuses a row; None if it has no name."""
    pattern = _CONSTRAINTS.get(failure.args[0])
    found = pattern.search(str(failure.args[1])) if pattern is not None else None
    return found[1].replace("``", "`") if found else None


def column_of(message: str) -> str | None:
    """Return the column that a message of the server names."""
    found = _WARNING_COLUMN.search(message)
    return next(filter(None, found.groups()), None) if found else None
