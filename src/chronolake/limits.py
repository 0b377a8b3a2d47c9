"""Which modes a stream can be in, and why not in the others.

Source: `seeds/history-mode.txt` ("Switching to history mode", "Limitations").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chronolake.errors import ConfigurationError
from chronolake.types import Mode

#: For tables of such a name, history is the only mode.
_HISTORY_SUFFIX: Final = "_history"


@dataclass(frozen=True)
class StreamCapabilities:
    """What decides about the modes of a stream that is pulled from a source.

    Tables that are pushed over gRPC are their sender's business.

    Attributes:
        name: the stream's name.
        reports_changes: whether each change comes with a time that increases with every change: a
            timestamp of the row, or the time in the source's log.
        is_reimported: whether every sync brings the whole stream.
        is_history_only: whether the source allows no other mode than history.
    """

    name: str
    reports_changes: bool
    is_reimported: bool
    is_history_only: bool = False


def allowed_modes(stream: StreamCapabilities) -> list[Mode]:
    """The modes that a pulled stream can be in."""
    return [mode for mode in Mode if _reason_against(stream, mode) is None]


def best_mode(stream: StreamCapabilities) -> Mode:
    """Return the mode that `auto` stands for: history if the stream supports it."""
    allowed = allowed_modes(stream)
    best = (mode for mode in (Mode.HISTORY, Mode.SOFT_DELETE, Mode.LIVE) if mode in allowed)
    return next(best, Mode.HISTORY)


def check_mode(stream: StreamCapabilities, mode: Mode) -> None:
    """Refuse a mode that a pulled stream cannot be in.

    Raises:
        ConfigurationError: history mode for a stream that cannot have it, or another mode for one
            that can have no other.
    """
    reason = _reason_against(stream, mode)
    if reason is None:
        return
    others = " or ".join(allowed_modes(stream))
    can = "cannot" if mode is Mode.HISTORY else "can only"
    raise ConfigurationError(
        f"The stream {stream.name} {can} be in history mode: {reason}.",
        hint=f"Set its mode to {others}.",
    )


def _reason_against(stream: StreamCapabilities, mode: Mode) -> str | None:
    """Why a pulled stream cannot be in a mode, or None: it can."""
    if mode is not Mode.HISTORY:
        if stream.name.endswith(_HISTORY_SUFFIX):
            return f"its name ends in {_HISTORY_SUFFIX}"
        return "its source tells nothing else" if stream.is_history_only else None
    if stream.is_reimported:
        return "every sync imports all of it, so that nothing tells what changed and when"
    if not stream.reports_changes:
        return "it has no timestamp that increases with every change"
    return None
