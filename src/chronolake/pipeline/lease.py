"""Leases: only one process runs a pipeline at a time, even if another one was paused for hours.

A lease lasts a minute, and a thread renews it. Its *token* increases each time that the lease gets
another holder, and is published as a property of every table (a fencing token): a process cannot
write to a table that has a greater token than its own. So a process that wakes up after losing its
lease can still compute, but cannot publish rows.

Runs of `up` may follow each other without a gap. So a command that waits for the lease holds
another one, for its turn, and scheduled runs do not begin while somebody does.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

import sqlalchemy as sql
import structlog
from sqlalchemy.exc import SQLAlchemyError

from chronolake import database
from chronolake.cancellation import raise_if_cancelled
from chronolake.errors import LakeError, LeaseLostError, PipelineBusyError
from chronolake.pipeline.properties import LEASE_PROPERTY
from chronolake.pipeline.runs import Run, Status, now
from chronolake.pipeline.store import LEASES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from chronolake.config import LakeConfig
    from chronolake.errors import ChronolakeError
    from chronolake.iceberg import IcebergTable
    from chronolake.inspect.catalog import CatalogTable
    from chronolake.pipeline.store import Store

log = structlog.get_logger(__name__)

_SECONDS: Final = 60.0
_RENEWED_EVERY: Final = 10.0
#: How long a command waits for a run that has begun: for that of a few changes, but not for hours.
PATIENCE_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.1
#: Follows a pipeline's name in that of the lease of the process that has the next turn.
_NEXT: Final = "#next"
#: The leases that this process holds: the store's address, and the pipeline.
_held: set[tuple[str, str]] = set()
#: Held while a thread takes a lease and adds it to `_held`.
_taking: Final = threading.Lock()

_Taken = TypeVar("_Taken")


@dataclass(frozen=True)
class Lease:
    """The right to run a pipeline.

    Attributes:
        pipeline: the pipeline's name.
        token: greater than those of all earlier leases.
        store: the store of the lease; None for one that no other process can take.
    """

    pipeline: str
    token: int
    store: Store | None = None

    def expect_held(self) -> None:
        """Raise if another process has taken the lease.

        Raises:
            LeaseLostError: it has.
        """
        if self.store is not None:
            self.store.expect_holder(self.pipeline, self.token)

    def guard(self, table: IcebergTable) -> None:
        """Raise if a later lease has written to a table.

        Raises:
            LeaseLostError: one has.
        """
        stored = table.property_of(LEASE_PROPERTY)
        if stored is not None and int(stored) > self.token:
            raise LeaseLostError(
                f"Another process has taken over the pipeline {self.pipeline}.",
                table=str(table.name),
                hint="The last batch of this process was not published. Run the command again if "
                "needed.",
            )

    @property
    def properties(self) -> dict[str, str]:
        """Return the properties of a table that is written under the lease."""
        return {LEASE_PROPERTY: str(self.token)}


def holder() -> str:
    """Return this process's identity for others: host name, process id, and PID namespace."""
    return f"{socket.gethostname()}:{os.getpid()}:{_process_namespace()}"


@cache
def _process_namespace() -> str:
    """Return a hash of boot and PID namespace, because containers may share a host name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        namespace = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return ""
    return hashlib.sha256(f"{boot}{namespace}".encode()).hexdigest()[:8]


@contextmanager
def hold_lease(
    store: Store,
    pipeline: str,
    *,
    seconds: float = _SECONDS,
    above: int = 0,
    wait_seconds: float = 0.0,
    gives_way: bool = False,
) -> Iterator[Lease]:
    """Hold the lease of a pipeline while the block runs.

    Args:
        store: the store of the leases.
        seconds: duration of the lease without renewal.
        above: the greatest token of the pipeline's tables; the lease's token is greater, even if
            the store was lost or restored.
        wait_seconds: how long to wait for a process that holds the lease.
        gives_way: whether a process that waits for the lease comes first.

    Raises:
        PipelineBusyError: another process holds the lease, or waits for it and comes first.
        CallCancelledError: the call was cancelled while it waited.
        LakeError: the store is not reachable.
    """
    key = store.address, pipeline
    if gives_way:
        raise_if_busy(store, f"{pipeline}{_NEXT}")

    def take() -> Lease:
        with _taking:
            taken = _take(store, pipeline, seconds, above, is_held_here=key in _held)
            _held.add(key)
            return taken

    lease = _in_turn(store, pipeline, wait_seconds, take)
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


def wait_until_free(store: Store, pipeline: str) -> None:
    """Wait until a pipeline's lease can be taken; it is not taken.

    Raises:
        PipelineBusyError: it is still held after ten seconds.
        CallCancelledError: the call was cancelled meanwhile.
        LakeError: the store is not reachable.
    """
    _in_turn(store, pipeline, PATIENCE_SECONDS, lambda: raise_if_busy(store, pipeline))


def _in_turn(store: Store, pipeline: str, seconds: float, take: Callable[[], _Taken]) -> _Taken:
    """Return what `take` returns, as soon as it does not raise that the pipeline is busy.

    While this waits, scheduled runs give way.

    Raises:
        PipelineBusyError: the pipeline is still busy after some seconds.
    """
    until = time.monotonic() + seconds
    with ExitStack() as turn:
        has_turn = False
        while True:
            try:
                return take()
            except PipelineBusyError:
                if time.monotonic() >= until:
                    raise
            if not has_turn:
                # If others wait, too, any of them may be the next.
                with suppress(PipelineBusyError):
                    turn.enter_context(hold_lease(store, f"{pipeline}{_NEXT}"))
                    has_turn = True
                    log.info("pipeline_awaited", pipeline=pipeline, seconds=seconds)
            raise_if_cancelled()
            time.sleep(_POLL_SECONDS)


def greatest_token(tables: Iterable[IcebergTable | None]) -> int:
    """Return the greatest token that tables were written with."""
    return _greatest(table.property_of(LEASE_PROPERTY) for table in tables if table is not None)


def greatest_token_read(tables: Iterable[CatalogTable]) -> int:
    """Return the greatest token that tables were written with, as they were read without Spark."""
    return _greatest(table.iceberg.properties.get(LEASE_PROPERTY) for table in tables)


def _greatest(stored: Iterable[str | None]) -> int:
    return max((int(token) for token in stored if token is not None), default=0)


def _take(store: Store, pipeline: str, seconds: float, above: int, *, is_held_here: bool) -> Lease:
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
    """Raise if a pipeline's lease cannot be taken now; the lease is not taken.

    Raises:
        PipelineBusyError: another process, or another thread of this one, holds it.
        LakeError: the store is not reachable.
    """
    with store.transaction() as connection:
        row = connection.execute(LEASES.select().where(LEASES.c.pipeline == pipeline)).one_or_none()
    _raise_unless_free(row, pipeline, is_held_here=(store.address, pipeline) in _held)


def raise_if_any_busy(config: LakeConfig) -> None:
    """Raise if a pipeline of a lake is running; nothing is written.

    Raises:
        PipelineBusyError: one is.
        LakeError: the store is not reachable.
    """
    try:
        engine = database.read_engine(config.store_database)
        if engine is None:
            return
        with engine.begin() as connection:
            if not sql.inspect(connection).has_table(LEASES.name):
                return
            rows = connection.execute(LEASES.select()).all()
    except SQLAlchemyError as failure:
        raise database.connection_error(failure, "The operational store") from failure
    for row in rows:
        _raise_unless_free(row, row.pipeline, is_held_here=True)


def note_refused(store: Store, pipeline: str, failure: ChronolakeError) -> None:
    """Record a run that could not begin, with the reason."""
    at = now()
    run = Run(uuid4().hex, pipeline, at, at, Status.FAILED, holder())
    store.note_failed(replace(run, error=failure.statement, hint=failure.hint))


def _raise_unless_free(row: sql.Row[Any] | None, pipeline: str, *, is_held_here: bool) -> None:
    if row is not None and not _is_free(row, is_held_here=is_held_here):
        raise PipelineBusyError(
            f"The pipeline {pipeline} is run by {row.holder.rpartition(':')[0]}.",
            hint="Wait until it has finished. If that process crashed on another machine, its "
            "lease expires within a minute.",
        )


def _is_free(row: sql.Row[Any], *, is_held_here: bool) -> bool:
    """Return whether a stored lease is free."""
    # A lease of this process that is not in `_held` is left over from a failed request.
    is_left = row.holder == holder() and not is_held_here
    return is_left or row.expires <= time.time() or is_dead(row.holder)


def is_dead(who: str) -> bool:
    """Return whether a process of this machine has ended; False for other machines."""
    here, numbering = f"{socket.gethostname()}:", f":{_process_namespace()}"
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
            # The lease is still valid for a while; if it expires, publishing is rejected.
            log.warning("lease_not_renewed", pipeline=lease.pipeline, reason=failure.message)
            continue
        if not kept:
            log.warning("lease_lost", pipeline=lease.pipeline)
            return


def _set_expiry(connection: sql.Connection, lease: Lease, expires: float) -> bool:
    mine = (LEASES.c.pipeline == lease.pipeline) & (LEASES.c.token == lease.token)
    return bool(connection.execute(LEASES.update().where(mine).values(expires=expires)).rowcount)
