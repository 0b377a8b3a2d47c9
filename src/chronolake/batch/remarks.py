"""Warnings of executors, logged by the driver: an executor's own log is nobody's to read.

They travel as an accumulator's updates. One accumulator serves a Spark context for good, because
PySpark never forgets one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import structlog
from pyspark.taskcontext import TaskContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark import Accumulator, SparkContext

_log = structlog.get_logger(__name__)

#: Warnings: each the event's name and its details, which are counts and places only.
Remarks = tuple[tuple[str, dict[str, Any]], ...]


class _ToLog:
    """PySpark's `AccumulatorParam`: gathers remarks in a task, logs what reaches the driver."""

    def zero(self, value: Remarks) -> Remarks:  # noqa: ARG002 - the protocol's
        return ()

    def addInPlace(self, value1: Remarks, value2: Remarks) -> Remarks:  # noqa: N802 - the same
        if TaskContext.get() is not None:
            return value1 + value2
        for event, details in value2:
            _log.warning(event, **details)
        return ()


_carriers: WeakKeyDictionary[SparkContext, Accumulator[Remarks]] = WeakKeyDictionary()


def carrier(context: SparkContext) -> Callable[[str, dict[str, Any]], None]:
    """What an executor calls with a warning's name and details, so that the driver logs it.

    A warning comes once for each time that the DataFrame is read to its end.

    Args:
        context: the driver's context; the function may travel to its executors.
    """
    if context not in _carriers:
        _carriers[context] = context.accumulator((), _ToLog())
    accumulator = _carriers[context]

    def remark(event: str, details: dict[str, Any]) -> None:
        accumulator.add(((event, details),))

    return remark


def logged(event: str, details: dict[str, Any]) -> None:
    """Log a warning here and now."""
    _log.warning(event, **details)
