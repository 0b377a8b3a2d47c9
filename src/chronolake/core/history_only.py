"""Tables without a pipeline that can only be in history mode.

Source: `seeds/history-mode.txt`: "For the tables with _history suffix in the name, history mode is
the only sync mode." `lake.tables.TABLE.history_only` overrides the suffix. Tables that were in
another mode before stay as they are and can be written; they can only be switched to history mode.
Streams of pipelines follow `chronolake.stream_modes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronolake.errors import SchemaError
from chronolake.stream_modes import HISTORY_SUFFIX, has_history_suffix, setting_to_opt_out
from chronolake.types import Mode

if TYPE_CHECKING:
    from chronolake.config import LakeConfig
    from chronolake.types import TableName


def may_have_mode(config: LakeConfig, name: TableName, mode: Mode) -> bool:
    """Return whether a table without a pipeline may be given a mode."""
    return mode is Mode.HISTORY or not config.is_history_only(name)


def expect_mode(config: LakeConfig, name: TableName, mode: Mode) -> None:
    """Refuse to give a table without a pipeline a mode that it cannot have.

    Raises:
        SchemaError: the table can only be in history mode.
    """
    if may_have_mode(config, name, mode):
        return
    raise SchemaError(
        f"The table can only be in history mode, not in {mode} mode: {_reason(name)}.",
        table=str(name),
        hint=f"Use history mode. To allow every mode for this table, {opt_out(name)}.",
    )


def opt_out(name: TableName) -> str:
    """Return how to allow every mode for a table, as part of a sentence."""
    return f"{setting_to_opt_out(name)}, and restart the destination if it is running"


def _reason(name: TableName) -> str:
    if has_history_suffix(name.table):
        return f"its name ends in {HISTORY_SUFFIX}"
    return "history_only is true in chronolake.yml"
