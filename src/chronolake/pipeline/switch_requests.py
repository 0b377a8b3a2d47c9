"""Requests to switch the mode of a pipeline's table, in the operational store.

A command that switches a table stores a request if another process runs the pipeline. That process
reads it within a second, switches the table, and stores the result, for which the command waits. A
request changes no configuration: it is refused if the other process reads another mode in its
chronolake.yml. A process that ends leaves its request as it is: the next holder of the pipeline's
lease, or the command itself, completes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING
from uuid import uuid4

from sqlalchemy.exc import SQLAlchemyError

from chronolake import database
from chronolake.pipeline.lease import holder
from chronolake.pipeline.runs import now
from chronolake.pipeline.store import MODE_REQUESTS
from chronolake.types import Mode

if TYPE_CHECKING:
    from pathlib import Path

    import sqlalchemy as sql

    from chronolake.pipeline.store import Store


class RequestState(StrEnum):
    """The progress of a request."""

    #: The process that runs the pipeline has not noticed it yet, or waits for its next boundary.
    REQUESTED = "requested"
    SWITCHING = "switching"
    DONE = "done"
    #: It was not possible; `error` is the reason.
    REFUSED = "refused"
    CANCELLED = "cancelled"


_OPEN = (RequestState.REQUESTED, RequestState.SWITCHING)


@dataclass(frozen=True)
class SwitchRequest:
    """A request to switch a table.

    Attributes:
        pipeline, stream: the stream that writes the table.
        id: the request's identity; a later one for the same table replaces it.
        mode: the new mode.
        requester: the process that waits for it.
        requested: when it was stored, ISO 8601 in UTC.
        state: its progress.
        holder: the process that has changed the state last, or None.
        error: why it was refused, or None.
        hint: what to do about that, or None.
    """

    pipeline: str
    stream: str
    id: str
    mode: Mode
    requester: str
    requested: str
    state: RequestState = RequestState.REQUESTED
    holder: str | None = None
    error: str | None = None
    hint: str | None = None


def store_request(store: Store, pipeline: str, stream: str, mode: Mode) -> SwitchRequest:
    """Store a request, which replaces an earlier one for the same table.

    Raises:
        LakeError: the store is not reachable.
    """
    request = SwitchRequest(pipeline, stream, uuid4().hex, mode, holder(), now())
    with store.transaction() as connection:
        connection.execute(MODE_REQUESTS.delete().where(_is_for(request)))
        connection.execute(MODE_REQUESTS.insert().values(**vars(request)))
    return request


def set_state(
    store: Store,
    request: SwitchRequest,
    state: RequestState,
    *,
    error: str | None = None,
    hint: str | None = None,
) -> bool:
    """Change the state of an open request; return False if it is not open any more.

    Raises:
        LakeError: the store is not reachable.
    """
    # A switch that has begun cannot be cancelled.
    before = (RequestState.REQUESTED,) if state is RequestState.CANCELLED else _OPEN
    is_open = (MODE_REQUESTS.c.id == request.id) & MODE_REQUESTS.c.state.in_(before)
    values = {"state": state, "holder": holder(), "error": error, "hint": hint}
    with store.transaction() as connection:
        changed = connection.execute(MODE_REQUESTS.update().where(is_open).values(values))
    return bool(changed.rowcount)


class RequestReader:
    """A reader of requests that never blocks a writer of the store, because it reads often."""

    def __init__(self, address: str | Path) -> None:
        """Prepare to read; nothing is opened.

        Args:
            address: the `store_database` of a lake.
        """
        self._address = address
        self._engine: sql.Engine | None = None

    def open_requests(self, pipeline: str) -> list[SwitchRequest]:
        """Return the requests of a pipeline that wait for an answer.

        Raises:
            LakeError: the store is not reachable.
        """
        is_open = MODE_REQUESTS.c.state.in_(_OPEN)
        return self._read((MODE_REQUESTS.c.pipeline == pipeline) & is_open)

    def current(self, request: SwitchRequest) -> SwitchRequest | None:
        """Return the current state of a request; None if a later one has replaced it.

        Raises:
            LakeError: the store is not reachable.
        """
        return next(iter(self._read(MODE_REQUESTS.c.id == request.id)), None)

    def _read(self, condition: sql.ColumnElement[bool]) -> list[SwitchRequest]:
        self._engine = self._engine or database.read_engine(self._address)
        if self._engine is None:
            return []
        try:
            with self._engine.begin() as connection:
                rows = connection.execute(MODE_REQUESTS.select().where(condition)).mappings().all()
        except SQLAlchemyError as failure:
            raise database.connection_error(failure, "The lake's operational store") from failure
        return [
            SwitchRequest(**{**row, "mode": Mode(row["mode"]), "state": RequestState(row["state"])})
            for row in rows
        ]


def _is_for(request: SwitchRequest) -> sql.ColumnElement[bool]:
    return (MODE_REQUESTS.c.pipeline == request.pipeline) & (
        MODE_REQUESTS.c.stream == request.stream
    )
