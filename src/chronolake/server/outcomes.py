"""What a failed request is answered with: a task that somebody can act upon, or a gRPC status.

A task stops the sync and shows the customer what to change. A gRPC status stops it too, and the
caller tries again by itself: that is right for everything that no customer can mend.
"""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import grpc

from chronolake.errors import (
    BatchError,
    BatchFileError,
    ChronolakeError,
    ConfigurationError,
    LakeError,
    MissingRequirementError,
    OversizeError,
    RefusedPathError,
    SchemaError,
    TableExistsError,
    TableNotFoundError,
    ValueRefusedError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A status text travels in an HTTP/2 header, percent-encoded. Callers refuse headers of 8 to 10
#: kilobytes altogether and the call then fails without any text, so it is kept well below.
STATUS_BYTES: Final = 6_000

_ACTIONABLE: Final = (
    ConfigurationError,
    MissingRequirementError,
    LakeError,
    TableNotFoundError,
    TableExistsError,
    SchemaError,
    BatchError,
)
_PACKAGE: Final = str(Path(__file__).parent.parent)
_URL_CREDENTIALS: Final = re.compile(r"(?<=://)[^/@\s]+@")


def is_actionable(error: ChronolakeError) -> bool:
    """Whether somebody can mend what is wrong, so that the answer is a task.

    A batch file that cannot be read is written anew when the caller starts again; a value that its
    column cannot hold, a row that is too long, and a folder that files may not lie in, do not
    change by themselves.
    """
    if isinstance(error, BatchFileError):
        return isinstance(error, ValueRefusedError | OversizeError | RefusedPathError)
    return isinstance(error, _ACTIONABLE)


def status_of(error: ChronolakeError) -> grpc.StatusCode:
    """The gRPC status of an error that is no task; UNAVAILABLE if the same call may work later."""
    return grpc.StatusCode.UNAVAILABLE if error.retryable else grpc.StatusCode.INTERNAL


def text_of(error: ChronolakeError) -> str:
    """The error in words, without the credentials of a URL that may stand in it."""
    return _URL_CREDENTIALS.sub("", str(error))


def status_text(text: str, limit: int = STATUS_BYTES) -> str:
    """The text, cut between two characters so that it takes less than `limit` bytes on the wire."""
    # Half a surrogate pair cannot be sent at all.
    text = text.encode(errors="replace").decode()
    used = 0
    for index, character in enumerate(text):
        used += len(_on_the_wire(character))
        if used >= limit - len(_on_the_wire("…")):
            return text[:index] + "…"
    return text


def _on_the_wire(character: str) -> str:
    if " " <= character <= "~" and character != "%":
        return character
    return quote(character, safe="")


def unexpected(failure: BaseException) -> dict[str, str]:
    """What may be logged about a failure that nobody foresaw: types and places, never its text.

    The text of a Spark or Arrow failure may quote a cell value.

    Returns:
        `error`: the exception's type and Spark's name for the condition, `cause`: the types it
        came from, `at`: the innermost places in this package.
    """
    types = [_type_name(cause) for cause in _causes(failure)]
    frames = [
        f"{Path(frame.filename).relative_to(_PACKAGE)}:{frame.lineno}"
        for frame in traceback.extract_tb(failure.__traceback__)
        if frame.filename.startswith(_PACKAGE)
    ]
    said = {"error": types[0], "cause": " < ".join(types[1:]), "at": " > ".join(frames[-6:])}
    return {name: text for name, text in said.items() if text}


def _causes(failure: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = failure
    seen: set[int] = set()
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _type_name(failure: BaseException) -> str:
    name = type(failure).__name__
    condition = getattr(failure, "getCondition", None)
    try:
        said = condition() if callable(condition) else None
    except Exception:  # noqa: BLE001 - asking the JVM about a failure may fail as well
        said = None
    return f"{name}[{said}]" if said else name
