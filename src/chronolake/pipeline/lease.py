"""Who may run a pipeline: one process at a time, also when one was paused for hours.

A lease is held for a minute and renewed by a thread. Its *token* increases each time that the lease
changes hands, and is published with every table as a property: a table that carries a greater token
than a process has refuses to be written by it. So a process that wakes after its lease has passed
on can compute what it likes, but publish no rows.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from chronolake.errors import LakeError, LeaseLostError, PipelineBusyError
from chronolake.pipeline.properties import LEASE_PROPERTY
from chronolake.pipeline.store import LEASES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import sqlalchemy as sql

    from chronolake.iceberg import IcebergTable
    from chronolake.pipeline.store import Store

log = structlog.get_logger(__name__)

_SECONDS: Final = 60.0
_RENEWED_EVERY: Final = 10.0
#: The leases that this process holds: the store's address, and the pipeline.
_held: set[tuple[str, str]] = set()
#: Taking a lease and noting it are one step for the threads of a process.
_taking: Final = threading.Lock()


@dataclass(frozen=True)
class Lease:
    """The right to run a pipeline.

    Attributes:
        pipeline: which one.
        token: greater than those of all leases before.
        store: where it is kept; None for one that nobody else can take.
    """

    pipeline: str
    token: int
    store: Store | None = None

    def expect_held(self) -> None:
        """Refuse to go on when the lease has passed to another process.

        Raises:
            LeaseLostError: it has.
        """
        if self.store is not None:
            self.store.expect_holder(self.pipeline, self.token)

    def guard(self, table: IcebergTable) -> None:
        """Refuse to write to a table that a later lease has written to.

        Raises:
            LeaseLostError: there is one.
        """
        stored = table.property_of(LEASE_PROPERTY)
        if stored is not None and int(stored) > self.token:
            raise LeaseLostError(
                f"Another process runs the pipeline {self.pipeline} by now.",
                table=str(table.name),
                hint="Nothing of this process's last batch was published. Run it again if needed.",
            )

    @property
    def properties(self) -> dict[str, str]:
        """What a table gets that is written under the lease."""
        return {LEASE_PROPERTY: str(self.token)}


def holder() -> str:
    """This process, as others see it: its machine, its number, and what gives it that number."""
    return f"{socket.gethostname()}:{os.getpid()}:{_numbering()}"


@cache
def _numbering() -> str:
    """What tells apart the processes of one number: containers may share the name of a machine."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        namespace = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return ""
    return hashlib.sha256(f"{boot}{namespace}".encode()).hexdigest()[:8]


@contextmanager
def leased(
    store: Store, pipeline: str, *, seconds: float = _SECONDS, above: int = 0
) -> Iterator[Lease]:
    """Hold the lease of a pipeline while the block runs.

    Args:
        store: where leases are kept.
        pipeline: the pipeline.
        seconds: how long the lease lasts without being renewed.
        above: the greatest token that a table of the pipeline has: the lease's is greater, also
            when the store was lost or restored.

    Raises:
        PipelineBusyError: another process holds it.
        LakeError: the store does not answer.
    """
    key = store.address, pipeline
    with _taking:
        lease = _taken(store, pipeline, seconds, above, is_held_here=key in _held)
        _held.add(key)
    done = threading.Event()
    renewing = threading.Thread(
        target=_renew, args=(store, lease, seconds, done), name=f"lease-{pipeline}", daemon=True
    )
    renewing.start()
    try:
        yield lease
    finally:
        _held.discard(key)
        done.set()
        renewing.join()
        with store.transaction() as connection:
            _set_expiry(connection, lease, 0.0)


def greatest_token(tables: Iterable[IcebergTable | None]) -> int:
    """The greatest token that tables were written under."""
    stored = (table.property_of(LEASE_PROPERTY) for table in tables if table is not None)
    return max((int(token) for token in stored if token is not None), default=0)


def _taken(store: Store, pipeline: str, seconds: float, above: int, *, is_held_here: bool) -> Lease:
    with store.transaction() as connection:
        row = connection.execute(
            LEASES.select().where(LEASES.c.pipeline == pipeline).with_for_update()
        ).one_or_none()
        _raise_unless_free(row, pipeline, is_held_here=is_held_here)
        values = {"holder": holder(), "expires": time.time() + seconds}
        token = max(above, 0 if row is None else row.token) + 1
        if row is None:
            connection.execute(LEASES.insert().values(pipeline=pipeline, token=token, **values))
            return Lease(pipeline, token, store)
        connection.execute(
            LEASES.update().where(LEASES.c.pipeline == pipeline).values(token=token, **values)
        )
        return Lease(pipeline, token, store)


def raise_if_busy(store: Store, pipeline: str) -> None:
    """Raise if a pipeline's lease cannot be taken now; take nothing.

    Raises:
        PipelineBusyError: another process, or another thread of this one, holds it.
        LakeError: the store does not answer.
    """
    with store.transaction() as connection:
        row = connection.execute(LEASES.select().where(LEASES.c.pipeline == pipeline)).one_or_none()
    _raise_unless_free(row, pipeline, is_held_here=(store.address, pipeline) in _held)


def _raise_unless_free(row: sql.Row[Any] | None, pipeline: str, *, is_held_here: bool) -> None:
    if row is not None and not _is_free(row, is_held_here=is_held_here):
        raise PipelineBusyError(
            f"The pipeline {pipeline} is run by {row.holder.rpartition(':')[0]}.",
            hint="Wait until it has finished. The lease of a process that died without a word "
            "on another machine passes within a minute.",
        )


def _is_free(row: sql.Row[Any], *, is_held_here: bool) -> bool:
    """Whether a stored lease is nobody's any more."""
    # One that this process took without being told so, or could not give back, is left over.
    is_left = row.holder == holder() and not is_held_here
    return is_left or row.expires <= time.time() or is_dead(row.holder)


def is_dead(who: str) -> bool:
    """Whether a process of this machine is gone; of others nothing is known."""
    here, numbering = f"{socket.gethostname()}:", f":{_numbering()}"
    if not (who.startswith(here) and who.endswith(numbering)):
        return False
    try:
        os.kill(int(who.removeprefix(here).removesuffix(numbering)), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _renew(store: Store, lease: Lease, seconds: float, done: threading.Event) -> None:
    while not done.wait(min(_RENEWED_EVERY, seconds / 3)):
        try:
            with store.transaction() as connection:
                kept = _set_expiry(connection, lease, time.time() + seconds)
        except LakeError as failure:
            # The lease lasts a while longer; if it does not, publishing is refused.
            log.warning("lease_not_renewed", pipeline=lease.pipeline, reason=failure.message)
            continue
        if not kept:
            log.warning("lease_lost", pipeline=lease.pipeline)
            return


def _set_expiry(connection: sql.Connection, lease: Lease, expires: float) -> bool:
    mine = (LEASES.c.pipeline == lease.pipeline) & (LEASES.c.token == lease.token)
    return bool(connection.execute(LEASES.update().where(mine).values(expires=expires)).rowcount)
