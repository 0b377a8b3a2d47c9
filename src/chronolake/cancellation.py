"""Cancellation of calls: work for a caller that has disconnected stops before it changes anything.

A call runs in one thread, within `cancel_if`. It checks for cancellation between its steps,
the last time right before a commit. Committed changes stay.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from chronolake.errors import CallCancelledError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

_STEP_SECONDS: Final = 0.1

_is_cancelled: ContextVar[Callable[[], bool] | None] = ContextVar("is_cancelled", default=None)


@contextmanager
def cancel_if(is_cancelled: Callable[[], bool]) -> Iterator[None]:
    """Run a block as a call that is cancelled once `is_cancelled`, or an outer one, is true."""
    outer = _is_cancelled.get()
    token = _is_cancelled.set(is_cancelled if outer is None else lambda: outer() or is_cancelled())
    try:
        yield
    finally:
        _is_cancelled.reset(token)


def raise_if_cancelled() -> None:
    """Raise if the call of this thread was cancelled.

    Raises:
        CallCancelledError: it was. Nothing has been committed since the last check.
    """
    is_cancelled = _is_cancelled.get()
    if is_cancelled is not None and is_cancelled():
        raise CallCancelledError(
            "The caller cancelled the call, or its deadline has passed; the table is unchanged.",
            hint="Send the request again, with a longer deadline.",
        )


@contextmanager
def acquire(lock: threading.RLock) -> Iterator[None]:
    """Hold a lock during a block; a cancelled call stops waiting for it.

    Raises:
        CallCancelledError: the call was cancelled, and the block was not entered.
    """
    while not lock.acquire(timeout=_STEP_SECONDS):
        raise_if_cancelled()
    try:
        raise_if_cancelled()
        yield
    finally:
        lock.release()
