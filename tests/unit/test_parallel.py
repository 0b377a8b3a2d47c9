"""Calls in several threads: results in order, and all end together."""

from __future__ import annotations

import os
import signal
import threading
from contextvars import ContextVar

import pytest

from chronolake.cancellation import raise_if_cancelled
from chronolake.errors import CallCancelledError, LakeError
from chronolake.pipeline.parallel import map_in_threads

_WAIT_SECONDS = 60.0


def _nothing() -> None:
    """Cancel nothing."""


class Calls:
    """Calls that wait until they are cancelled, except one that fails once all others wait."""

    def __init__(self, others: int) -> None:
        self.others = others
        self.waiting = threading.Semaphore(0)
        self.cancelled = threading.Event()
        self.ended: list[int] = []

    def wait(self, number: int) -> None:
        self.waiting.release()
        assert self.cancelled.wait(_WAIT_SECONDS)
        self.ended.append(number)
        raise_if_cancelled()

    def wait_or_fail(self, number: int) -> None:
        if number:
            self.wait(number)
        for _ in range(self.others):
            assert self.waiting.acquire(timeout=_WAIT_SECONDS)
        raise LakeError("The store is not reachable.")


@pytest.mark.parametrize("threads", [1, 2, 3, 20])
@pytest.mark.parametrize("items", [0, 1, 2, 7])
def test_the_results_are_in_the_order_of_the_items(items: int, threads: int) -> None:
    given = list(range(items))
    assert map_in_threads(str, given, threads=threads, cancel=_nothing) == list(map(str, given))


def test_calls_run_at_the_same_time_and_with_the_context_of_the_caller() -> None:
    variable = ContextVar("variable", default="")
    variable.set("of the caller")
    together = threading.Barrier(3)

    def work(_: int) -> str:
        together.wait(_WAIT_SECONDS)
        return variable.get()

    assert map_in_threads(work, range(3), threads=3, cancel=_nothing) == ["of the caller"] * 3


def test_one_item_needs_no_thread() -> None:
    work = map_in_threads(lambda _: threading.current_thread(), [0], threads=4, cancel=_nothing)
    assert work == [threading.current_thread()]


def test_the_first_error_cancels_the_other_calls_and_begins_no_further_one() -> None:
    calls = Calls(others=2)
    with pytest.raises(LakeError, match="not reachable"):
        map_in_threads(calls.wait_or_fail, range(9), threads=3, cancel=calls.cancelled.set)
    assert sorted(calls.ended) == [1, 2]


def test_an_interruption_cancels_all_calls() -> None:
    calls = Calls(others=2)

    def interrupt() -> None:
        for _ in range(2):
            assert calls.waiting.acquire(timeout=_WAIT_SECONDS)
        os.kill(os.getpid(), signal.SIGINT)

    # PySpark's handler, if an earlier test has started Spark, asks its JVM first.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            map_in_threads(calls.wait, range(9), threads=2, cancel=calls.cancelled.set)
    finally:
        signal.signal(signal.SIGINT, before)
    assert sorted(calls.ended) == [0, 1]


def test_an_error_of_the_cancellation_does_not_replace_the_first_one() -> None:
    calls = Calls(others=1)

    def cancel() -> None:
        calls.cancelled.set()
        raise OSError("Java has ended")

    with pytest.raises(LakeError, match="not reachable"):
        map_in_threads(calls.wait_or_fail, range(4), threads=2, cancel=cancel)


def test_cancelled_calls_raise_at_their_next_step() -> None:
    calls = Calls(others=1)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            calls.wait_or_fail(number)
        except BaseException as error:
            errors.append(error)
            raise

    with pytest.raises(LakeError):
        map_in_threads(work, range(2), threads=2, cancel=calls.cancelled.set)
    assert [type(error) for error in errors] == [LakeError, CallCancelledError]
