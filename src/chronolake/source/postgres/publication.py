"""A publication that was missing for a while: what changed meanwhile is in no log of the slot.

A slot is read with the catalog of the time at which something changed. If the publication was not
there then, the server refuses to decode the change (up to PostgreSQL 17), or leaves it out and
warns (from 18 on). It may be there again: only a new slot gets over that.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import sql

from chronolake.errors import SourceError
from chronolake.source.postgres.connection import understood

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg.errors import Diagnostic

    from chronolake.source.postgres.slot import Slot

#: A look does not decode the log for longer than that.
_LOOK_SECONDS: Final = 20


@contextmanager
def warnings_of(connection: psycopg.Connection) -> Iterator[list[str]]:
    """Collect what a server warns of, while the block runs."""
    warned: list[str] = []

    def note(notice: Diagnostic) -> None:
        warned.append(notice.message_primary or "a warning without words")

    connection.add_notice_handler(note)
    try:
        yield warned
    finally:
        connection.remove_notice_handler(note)


def recovery_of(slot: Slot) -> str:
    """Return the steps after which a slot and its publication can be read again."""
    return (
        f"SELECT pg_drop_replication_slot('{slot.name}'); then `chronolake check --create` makes "
        "it again, and `chronolake resync` brings what there is now."
    )


def was_missing(slot: Slot) -> SourceError:
    """Return the error of a log that has changes from when the publication was not there."""
    return SourceError(
        f"The publication {slot.publication} was not there when something changed that the slot "
        f"{slot.name} has to tell: it was dropped, or made after the slot.",
        hint=recovery_of(slot),
    )


def is_missing(failure: SourceError) -> bool:
    """Return whether reading a slot failed because its publication was not there."""
    cause = failure.__cause__
    return isinstance(cause, psycopg.errors.UndefinedObject) and "publication" in str(cause)


def is_newer(connection: psycopg.Connection, slot: Slot) -> bool:
    """Return whether a publication was made, or altered, after what the slot's log begins with.

    Raises:
        SourceError: the server does not say.
    """
    query = (
        "SELECT age(p.xmin) <= age(s.catalog_xmin) FROM pg_publication p, pg_replication_slots s "
        "WHERE p.pubname = %s AND s.slot_name = %s"
    )
    with understood():
        row = connection.execute(query, (slot.publication, slot.name)).fetchone()
    return row is None or bool(row[0])


def has_gap(connection: psycopg.Connection, slot: Slot) -> bool | None:
    """Return whether a slot's log has changes from when its publication was not there.

    A slot that is being read is not looked at: who reads it finds out.

    Returns:
        None if that is not known, because its log is too long for a look.

    Raises:
        SourceError: the slot cannot be read for another reason.
    """
    if not is_newer(connection, slot):
        return False
    query = sql.SQL(
        "SELECT count(*) FROM pg_logical_slot_peek_binary_changes({}, NULL, NULL, "
        "'proto_version', '1', 'publication_names', {})"
    ).format(
        sql.Literal(slot.name),
        sql.Literal(sql.Identifier(slot.publication).as_string(connection)),
    )
    try:
        with understood(), warnings_of(connection) as warned, connection.transaction():
            connection.execute(f"SET LOCAL statement_timeout = '{_LOOK_SECONDS}s'")
            connection.execute(query)
    except SourceError as failure:
        if is_missing(failure):
            return True
        if isinstance(failure.__cause__, psycopg.errors.ObjectInUse):
            return False
        if isinstance(failure.__cause__, psycopg.errors.QueryCanceled):
            return None
        raise
    return bool(warned)
