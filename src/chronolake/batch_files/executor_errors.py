"""Errors and warnings on their way from a Spark executor to the driver.

Typed errors on their way from a Spark executor to the driver, as text.

Spark carries only an exception's text across. The text that a user reads in Spark's own log comes
first, then the error's parts, encoded so that nothing on the way changes them. Only errors of
`chronolake.errors` come back, by name; nothing else in the text is ever evaluated.

Warnings of executors, logged by the driver: an executor's own log is nobody's to read.

They travel as an accumulator's updates. One accumulator serves a Spark context for good, because
PySpark never forgets one.
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
    """What an executor raises instead of a `ChronolakeError`; `error_of` gives that back."""


def sealed(error: ChronolakeError) -> ExecutorError:
    """The error as an exception whose text survives the way to the driver."""
    parts = {
        "kind": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
        **error.place,
    }
    code = base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()
    return ExecutorError(f"{error} [chronolake-error:{code}]")


def error_of(failure: BaseException) -> ChronolakeError | None:
    """The typed error inside a Spark failure, or None if there is none.

    Args:
        failure: what a Spark action raised, or anything else.
    """
    for text in _texts(failure):
        for code in _SEALED.findall(text):
            if (found := _opened(code)) is not None:
                return found
    return None


def _texts(failure: BaseException) -> Iterator[str]:
    """What the failure and its causes say, in Python and in the JVM."""
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


def _opened(code: str) -> ChronolakeError | None:
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
