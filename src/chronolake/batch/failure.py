"""Typed errors on their way from a Spark executor to the driver, as text.

Spark carries only an exception's text across. The text that a user reads in Spark's own log comes
first, then the error's parts, encoded so that nothing on the way changes them. Only errors of
`chronolake.errors` come back, by name; nothing else in the text is ever evaluated.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import TYPE_CHECKING, Final

from chronolake import errors
from chronolake.errors import ChronolakeError

if TYPE_CHECKING:
    from collections.abc import Iterator

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
