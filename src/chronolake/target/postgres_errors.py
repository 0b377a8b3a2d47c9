"""Errors of PostgreSQL as errors of targets, without values of rows."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import psycopg

from chronolake.database import refusal
from chronolake.errors import TargetError
from chronolake.target.database import (
    OWN_PREFIX,
    duplicate_error,
    locked_error,
    resources_error,
    unreachable_error,
)
from chronolake.target.limits import POSTGRES

if TYPE_CHECKING:
    from collections.abc import Iterator

#: SQL states: a lock was not granted or a deadlock was found, and what is not a broken connection.
_LOCKED: Final = frozenset({"55P03", "40P01", "40001"})
_LIMITS: Final = "54"
_RESOURCES: Final = frozenset({"53000", "53100", "53200", "53400", "58030"})
_CANCELLED: Final = "57014"
#: Functions of the server that find an entry of an index, or a row, too long.
INDEX_FUNCTIONS: Final = frozenset(
    {"_bt_check_third_page", "index_form_tuple", "index_form_tuple_context"}
)
_ROW_FUNCTIONS: Final = frozenset(
    {"RelationGetBufferForTuple", "heap_insert", "heap_multi_insert", "raw_heap_insert"}
)
INDEX_HINT: Final = (
    "An entry of an index has up to about 2,700 bytes, after compression. Choose another key for "
    "the stream, shorten the values in the source, or exclude the table."
)
#: The column in the context of an error of COPY.
_COLUMN: Final = re.compile(r"^COPY .*, line \d+, column ([^:]+):", re.MULTILINE)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Turn the server's errors in a block into errors without values, with a hint."""
    try:
        yield
    except psycopg.Error as failure:
        raise error_of(failure) from None


def error_of(failure: psycopg.Error) -> TargetError:
    """Return the error for a response of the server, or for none; it contains no values."""
    diagnosis = failure.diag
    found = _error_by_state(failure) or _error_by_object(failure)
    if found is not None:
        return found
    if isinstance(failure, psycopg.IntegrityError):
        return _constraint_error(failure)
    if isinstance(failure, psycopg.OperationalError):
        reason = refusal(failure) or failure.sqlstate or type(failure).__name__
        return unreachable_error(reason)
    column = _COLUMN.search(diagnosis.context or "")
    return TargetError(
        f"PostgreSQL refused to write: {type(failure).__name__} ({failure.sqlstate}).",
        column=column[1] if column else diagnosis.column_name,
        hint="The value does not fit the type in the target; docs/targets.md lists them."
        if column
        else "Check the server's log.",
    )


def _error_by_state(failure: psycopg.Error) -> TargetError | None:
    """Return the error for locks, limits and resources; None for other states."""
    state = failure.sqlstate or ""
    if state in _LOCKED:
        return locked_error()
    if state[:2] == _LIMITS:
        return _limit_error(failure)
    if state in _RESOURCES:
        return resources_error(f"{type(failure).__name__} ({state})")
    if state == _CANCELLED:
        return TargetError(
            "A statement in the target was cancelled.",
            hint="Publish again. Check who or what cancels statements of the target's user.",
        )
    return None


def _error_by_object(failure: psycopg.Error) -> TargetError | None:
    """Return the error for privileges and for objects that depend on a table; None for others."""
    diagnosis = failure.diag
    if isinstance(failure, psycopg.errors.InsufficientPrivilege):
        return TargetError(
            f"The user of the target lacks a privilege: {diagnosis.message_primary}.",
            hint="Grant CREATE on the database, or create the schemas of the target tables and "
            "`state_schema` and make the user their owner. The user must own the target tables, "
            "and needs BYPASSRLS if they force row level security on their owner.",
        )
    if isinstance(failure, psycopg.errors.DependentObjectsStillExist):
        return TargetError(
            f"Other objects depend on the target table: {diagnosis.message_detail}.",
            hint="Drop them (such as views and foreign keys), publish, and create them again.",
        )
    return None


def _limit_error(failure: psycopg.Error) -> TargetError:
    """Return the error for a limit of PostgreSQL that depends on the values of a row."""
    diagnosis = failure.diag
    if diagnosis.source_function in INDEX_FUNCTIONS:
        index = diagnosis.constraint_name
        return TargetError(
            "A row has values that are too long for an index of the target table"
            + (f", {index}." if index else "."),
            hint=INDEX_HINT,
        )
    if diagnosis.source_function in _ROW_FUNCTIONS:
        return TargetError(
            f"A row does not fit in a page of PostgreSQL, which has {POSTGRES.row_bytes:,} bytes: "
            "only long texts and binary values are stored separately.",
            hint="Exclude columns in the pipeline, or remove the table from the target.",
        )
    return TargetError(
        f"A limit of PostgreSQL is exceeded: {type(failure).__name__} ({failure.sqlstate}).",
        hint="Exclude columns in the pipeline, or remove the table from the target. Columns that "
        "were dropped count, too, until the target table is dropped and published again.",
    )


def _constraint_error(failure: psycopg.IntegrityError) -> TargetError:
    """Return the error for a constraint that others have added to a target table."""
    diagnosis = failure.diag
    name = diagnosis.constraint_name or "without a name"
    if name.startswith(OWN_PREFIX):
        return duplicate_error("PostgreSQL")
    return TargetError(
        f"A constraint or unique index that others have added refuses rows of the lake: {name} "
        f"({type(failure).__name__}"
        + (f", table {diagnosis.table_name})." if diagnosis.table_name else ")."),
        column=diagnosis.column_name,
        hint="Drop the constraint or index, or change the rows in the source. The target is as it "
        "was.",
    )
