"""Counts of the calls that Python makes to the JVM, and the lines of Chronolake that make them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from py4j.protocol import MEMORY_COMMAND_NAME
from pyspark.sql import SparkSession

_OURS: Final = "/src/chronolake/"


class Calls:
    """Calls to the JVM, by the line of Chronolake that made them."""

    def __init__(self) -> None:
        self.by_line: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return self.by_line.total()


@contextmanager
def counted(spark: SparkSession) -> Iterator[Calls]:
    """Count the calls of all threads while the block runs.

    Calls that free objects that Python has dropped are not counted, because they happen whenever
    the garbage collector runs.
    """
    client: Any = spark.sparkContext._gateway._gateway_client  # noqa: SLF001 - no public API
    send, calls = client.send_command, Calls()

    def send_counted(command: str, *given: Any, **named: Any) -> Any:
        if not command.startswith(MEMORY_COMMAND_NAME):
            calls.by_line[_line()] += 1
        return send(command, *given, **named)

    client.send_command = send_counted
    try:
        yield calls
    finally:
        client.send_command = send


def _line() -> str:
    """Return the innermost line of Chronolake that is running, or an empty text."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - traceback.walk_stack reads all of the stack
    while frame is not None:
        _, is_ours, file = frame.f_code.co_filename.rpartition(_OURS)
        if is_ours:
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
