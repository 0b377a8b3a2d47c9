"""The modes that a stream supports, and the reasons against the others.

Source: `seeds/history-mode.txt` ("Switching to history mode", "Limitations").
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chronolake.errors import ConfigurationError
from chronolake.types import Mode

if TYPE_CHECKING:
    from chronolake.types import TableName

#: Streams, and tables without a pipeline, whose name has this suffix support only history mode.
HISTORY_SUFFIX: Final = "_history"


@dataclass(frozen=True)
class StreamCapabilities:
    """The properties of a source's stream that determine its modes.

    The senders of destination tables (over gRPC) choose the modes of those, within the rule of
    `chronolake.core.history_only`.

    Attributes:
        name: the stream's name.
        reports_changes: whether each change has a time that increases with every change: a
            timestamp of the row, the time in the source's log, or the time of the complete read
            that shows it.
        is_history_only: whether the source supports only history mode.
        is_history_table: whether the table can only be in history mode; None: if the stream's name
            ends in `_history`.
    """

    name: str
    reports_changes: bool
    is_history_only: bool = False
    is_history_table: bool | None = None


def has_history_suffix(name: str) -> bool:
    """Return whether the name of a table or stream means that it is only in history mode."""
    return name.endswith(HISTORY_SUFFIX)


def setting_to_opt_out(table: TableName) -> str:
    """Return the setting that allows every mode for a table, as part of a sentence."""
    # A name may contain any characters; JSON's quotes are valid in YAML.
    name = json.dumps(str(table), ensure_ascii=False)
    return f"set `lake.tables: {{{name}: {{history_only: false}}}}` in chronolake.yml"


def allowed_modes(stream: StreamCapabilities) -> list[Mode]:
    """Return the modes that a stream supports."""
    return [mode for mode in Mode if _reason_against(stream, mode) is None]


def best_mode(stream: StreamCapabilities) -> Mode:
    """Return the mode for `auto`: history if the stream supports it."""
    allowed = allowed_modes(stream)
    best = (mode for mode in (Mode.HISTORY, Mode.SOFT_DELETE, Mode.LIVE) if mode in allowed)
    return next(best, Mode.HISTORY)


def check_mode(stream: StreamCapabilities, mode: Mode, *, table: TableName | None = None) -> None:
    """Raise if a stream does not support a mode.

    Args:
        stream: the stream.
        mode: the mode.
        table: its table, for the setting that the hint proposes.

    Raises:
        ConfigurationError: the mode is not supported.
    """
    reason = _reason_against(stream, mode)
    if reason is None:
        return
    others = " or ".join(allowed_modes(stream))
    can = "cannot" if mode is Mode.HISTORY else "can only"
    hint = f"Set its mode to {others}."
    if mode is not Mode.HISTORY and not stream.is_history_only and table is not None:
        hint += f" If it only has such a name, {setting_to_opt_out(table)}."
    raise ConfigurationError(
        f"The stream {stream.name} {can} be in history mode: {reason}.", hint=hint
    )


def _reason_against(stream: StreamCapabilities, mode: Mode) -> str | None:
    """Return why a stream does not support a mode, or None if it does."""
    if mode is not Mode.HISTORY:
        if has_history_suffix(stream.name) and stream.is_history_table is not False:
            return f"its name ends in {HISTORY_SUFFIX}"
        if stream.is_history_table:
            return f"its table has a name that ends in {HISTORY_SUFFIX}, or `history_only`"
        return "its source does not support other modes" if stream.is_history_only else None
    if not stream.reports_changes:
        return "it has no timestamp that increases with every change"
    return None
