"""Threads that apply the streams of a run at the same time, and that end together."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, TypeVar

from chronolake.cancellation import cancel_if

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

#: Time for cancelled calls to end. A thread that takes longer does not keep its process from
#: ending, and the pipeline's lease keeps it from publishing anything after another run has begun.
_END_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.1


def map_in_threads(
    work: Callable[[_Item], _Result],
    items: Sequence[_Item],
    *,
    threads: int,
    cancel: Callable[[], None],
) -> list[_Result]:
    """Call a function for each item, in several threads, and return the results in items' order.

    If a call raises, or this thread is interrupted, the other calls are cancelled (`cancellation`)
    before the error is raised.

    Args:
        work: is called with an item; the calls begin in their order.
        items: one alone is processed in this thread.
        threads: the maximum number of threads.
        cancel: ends what cancelled calls wait for, such as the jobs of Spark.

    Raises:
        BaseException: the first error of a call.
    """
    if min(len(items), threads) <= 1:
        return [work(item) for item in items]
    results: dict[int, _Result] = {}
    numbers = iter(range(len(items)))
    is_stopped = threading.Event()
    ends: SimpleQueue[BaseException | None] = SimpleQueue()

    def run() -> None:
        error = None
        try:
            with cancel_if(is_stopped.is_set):
                while not is_stopped.is_set() and (number := next(numbers, None)) is not None:
                    results[number] = work(items[number])
        except BaseException as failure:  # noqa: BLE001 - raised in the thread that waits
            error = failure
        ends.put(error)

    workers = [
        # A daemon, because a second Ctrl-C ends the process without waiting for it.
        threading.Thread(target=copy_context().run, args=(run,), name=f"stream-{n}", daemon=True)
        for n in range(min(len(items), threads))
    ]
    try:
        _run(workers, ends)
    except BaseException:
        is_stopped.set()
        with suppress(Exception):  # The first error may be the reason, and is more important.
            cancel()
        _join(workers)
        raise
    return [results[number] for number in range(len(items))]


def _run(workers: Sequence[threading.Thread], ends: SimpleQueue[BaseException | None]) -> None:
    for worker in workers:
        worker.start()
    left = len(workers)
    while left:
        try:
            # A signal that arrives just before a wait without a timeout does not end that wait.
            error = ends.get(timeout=_POLL_SECONDS)
        except Empty:
            continue
        left -= 1
        if error is not None:
            raise error


def _join(workers: Sequence[threading.Thread]) -> None:
    until = time.monotonic() + _END_SECONDS
    for worker in workers:
        if worker.ident is not None:
            worker.join(max(0.0, until - time.monotonic()))
