"""A replication slot: the server keeps its log from there on, until the slot is advanced.

Source: `specs/postgres-facts.md` (2.1, 2.2, 3.1 to 3.4). How it is read: `stream`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chronolake.errors import SourceError
from chronolake.source.offered import Lag
from chronolake.source.postgres.connection import understood
from chronolake.source.postgres.publication import (
    recovery_of,
)

if TYPE_CHECKING:
    import psycopg

    from chronolake.config import PostgresSource

#: So much log is more than a pipeline that runs leaves.
_MUCH_BYTES: Final = 10 * 2**30
_OTHER_NAME: Final = (
    "Give this pipeline's another name, in chronolake.yml: `slot: …` below `source`."
)


#: How far a server's log can be read, as SQL.
END_OF_LOG: Final = (
    "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() "
    "ELSE pg_current_wal_flush_lsn() END"
)
#: From this version on, standbys may keep copies of slots.
HAS_FAILOVER: Final = 170_000


@dataclass(frozen=True)
class Slot:
    """A slot of the plugin pgoutput, and the publication that is read through it.

    Attributes:
        name: the slot's name.
        publication: the publication's name.
        is_failover: whether standbys should keep a copy of the slot.
    """

    name: str
    publication: str
    is_failover: bool = False


def slot_of(config: PostgresSource, pipeline: str) -> Slot:
    """The slot and the publication of a pipeline."""
    name = config.slot_for(pipeline)
    return Slot(name, config.publication or name, config.failover)


def exists(connection: psycopg.Connection, slot: Slot) -> bool:
    """Whether a server has a slot of that name, perhaps of another database.

    Raises:
        SourceError: it does not say.
    """
    return _is_here(connection, slot) is not None


def is_here(connection: psycopg.Connection, slot: Slot) -> bool:
    """Whether the database that is connected has a slot of that name.

    Raises:
        SourceError: it does not say.
    """
    return _is_here(connection, slot) is True


def _is_here(connection: psycopg.Connection, slot: Slot) -> bool | None:
    """Whether a slot is of the database that is connected; None: there is no such slot."""
    query = (
        "SELECT coalesce(database = current_database(), false) FROM pg_replication_slots "
        "WHERE slot_name = %s"
    )
    with understood():
        row = connection.execute(query, (slot.name,)).fetchone()
    return None if row is None else bool(row[0])


def lsn_text(lsn: int) -> str:
    """A place in the log as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    """The inverse of `lsn_text`."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


def written_upto(connection: psycopg.Connection) -> int:
    """How far the server's log is durable: what is read up to there is never taken back.

    Of a standby: how far it has replayed its primary's log.
    """
    with understood():
        (text,) = connection.execute(f"SELECT ({END_OF_LOG})::text").fetchone() or ("",)
    return lsn_number(str(text))


def confirmed(connection: psycopg.Connection, slot: Slot) -> int:
    """Where a slot begins: what was committed before is not in it any more.

    Raises:
        SourceError: there is no such slot, or it is none that can be read here.
    """
    has_failover = connection.info.server_version >= HAS_FAILOVER
    is_copy = "synced AND pg_is_in_recovery()" if has_failover else "false"
    with understood():
        row = connection.execute(
            "SELECT confirmed_flush_lsn::text, coalesce(plugin, 'none: it is a physical slot'), "
            "coalesce(database = current_database(), true), two_phase, wal_status, "
            f"{is_copy} FROM pg_replication_slots WHERE slot_name = %s",
            (slot.name,),
        ).fetchone()
    if row is None:
        raise SourceError(
            f"The server has no replication slot {slot.name}.",
            hint="`chronolake check --create` makes publication and slot.",
        )
    begins, plugin, is_of_this, two_phase, wal_status, is_synced = row
    if is_synced:
        raise SourceError(
            f"The replication slot {slot.name} is a copy that this standby keeps of its primary's.",
            hint="Read the primary, or this server when it has been promoted. To read the standby, "
            "give the pipeline a slot of its own there: `slot: …` below `source`.",
        )
    if not is_of_this:
        raise SourceError(
            f"The replication slot {slot.name} is of another database, and may be read there.",
            hint=_OTHER_NAME,
        )
    if plugin != "pgoutput":
        raise SourceError(
            f"The replication slot {slot.name} is that of another program: its plugin is not "
            f"pgoutput, but {plugin}.",
            hint=_OTHER_NAME,
        )
    problems = {
        "it decodes prepared transactions before they are committed": two_phase,
        "the server has removed log that it needed": wal_status == "lost",
    }
    for words, is_so in problems.items():
        if is_so:
            raise SourceError(
                f"The replication slot {slot.name} cannot be read: {words}.",
                hint=recovery_of(slot),
            )
    return lsn_number(str(begins))


def lag(connection: psycopg.Connection, slot: Slot) -> Lag:
    """How much log a slot is behind, and keeps.

    Raises:
        SourceError: there is no such slot, or it cannot be read any more.
    """
    confirmed(connection, slot)
    with understood():
        row = connection.execute(
            f"SELECT pg_wal_lsn_diff({END_OF_LOG}, confirmed_flush_lsn)::bigint, "
            f"pg_wal_lsn_diff({END_OF_LOG}, restart_lsn)::bigint, wal_status, "
            "safe_wal_size, pg_size_pretty(safe_wal_size) "
            "FROM pg_replication_slots WHERE slot_name = %s",
            (slot.name,),
        ).fetchone()
    behind, kept, status, safe, words = row or (0, 0, "reserved", None, None)
    warning = None
    if safe is not None and status != "reserved":
        left = f"in {words} of log" if safe and safe > 0 else "at the next checkpoint"
        warning = f"the server may give up the slot {slot.name} {left}: sync now"
    elif safe is None and kept > _MUCH_BYTES:
        warning = f"the slot {slot.name} has no limit and fills the server's disk: sync now"
    return Lag(max(0, behind), max(0, kept), warning)


def advance(connection: psycopg.Connection, slot: Slot, *, upto: int) -> None:
    """Let a slot forget all transactions that end at a place in the log or before.

    A place that it is beyond already changes nothing.

    Raises:
        SourceError: the slot cannot be advanced.
    """
    with understood():
        row = connection.execute(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s",
            (slot.name,),
        ).fetchone()
        if row is not None and row[0] is not None and lsn_number(str(row[0])) >= upto:
            return
        connection.execute(
            "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", (slot.name, lsn_text(upto))
        )
