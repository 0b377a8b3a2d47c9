"""Errors and warnings from Spark executors to the driver.

Errors: Spark transports only an exception's text. It begins with the text for readers of Spark's
own log, followed by the error's parts, encoded so that nothing on the way changes them. Only errors
of `chronolake.errors` are restored, by name; nothing else in the text is ever evaluated.

Warnings are logged by the driver, because users do not read the logs of executors. They are sent as
updates of an accumulator. Each Spark context has a single accumulator, because PySpark never frees
one.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import structlog
from pyspark.taskcontext import TaskContext

from chronolake import errors
from chronolake.errors import ChronolakeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark import Accumulator, SparkContext


_PLACES: Final = ("table", "batch", "file", "row", "column")
_SEALED: Final = re.compile(r"\[chronolake-error:([A-Za-z0-9_=-]+)\]")
_DEPTH: Final = 16


class ExecutorError(Exception):
    """An exception that an executor raises for a `ChronolakeError`; see `error_of`."""


def seal(error: ChronolakeError) -> ExecutorError:
    """Return the error as an exception whose text can be restored in the driver."""
    parts = {
        "kind": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
        **error.place,
    }
    code = base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()
    return ExecutorError(f"{error} [chronolake-error:{code}]")


def error_of(failure: BaseException) -> ChronolakeError | None:
    """Return the typed error inside a Spark failure, or None if it has no typed error.

    Args:
        failure: any exception, usually from a Spark action.
    """
    for text in _texts(failure):
        for code in _SEALED.findall(text):
            if (error := _unseal(code)) is not None:
                return error
    return None


def _texts(failure: BaseException) -> Iterator[str]:
    """Yield the texts of the failure and its causes, in Python and in the JVM."""
    current: BaseException | None = failure
    for _ in range(_DEPTH):
        if current is None:
            return
        yield str(current)
        cause = getattr(current, "java_exception", None)
        for _ in range(_DEPTH):
            if cause is None:
                break
            yield str(cause.toString())
            cause = cause.getCause()
        current = current.__cause__ or current.__context__


def _unseal(code: str) -> ChronolakeError | None:
    try:
        parts = json.loads(base64.urlsafe_b64decode(code))
    except (binascii.Error, ValueError):
        return None
    if not isinstance(parts, dict):
        return None
    kind = getattr(errors, str(parts.get("kind")), None)
    if not (isinstance(kind, type) and issubclass(kind, ChronolakeError)):
        return None
    return kind(
        str(parts.get("message")),
        hint=parts.get("hint"),
        **{name: parts[name] for name in _PLACES if name in parts},
    )


_log = structlog.get_logger(__name__)

#: Warnings: the event's name and its details, which contain counts and locations only.
ExecutorWarnings = tuple[tuple[str, dict[str, Any]], ...]


class _ToLog:
    """PySpark's `AccumulatorParam`: collects warnings in tasks, and logs them in the driver."""

    def zero(self, value: ExecutorWarnings) -> ExecutorWarnings:  # noqa: ARG002 - the protocol's
        return ()

    def addInPlace(self, value1: ExecutorWarnings, value2: ExecutorWarnings) -> ExecutorWarnings:  # noqa: N802 - the same
        if TaskContext.get() is not None:
            return value1 + value2
        for event, details in value2:
            _log.warning(event, **details)
        return ()


_carriers: WeakKeyDictionary[SparkContext, Accumulator[ExecutorWarnings]] = WeakKeyDictionary()


def warning_sender(context: SparkContext) -> Callable[[str, dict[str, Any]], None]:
    """Return a function with which an executor sends a warning's name and details to the driver.

    A warning is logged each time the DataFrame is read to its end.

    Args:
        context: the driver's context; the function may be sent to its executors.
    """
    if context not in _carriers:
        _carriers[context] = context.accumulator((), _ToLog())
    accumulator = _carriers[context]

    def warn(event: str, details: dict[str, Any]) -> None:
        accumulator.add(((event, details),))

    return warn


def log_warning(event: str, details: dict[str, Any]) -> None:
    """Log a warning in this process."""
    _log.warning(event, **details)
