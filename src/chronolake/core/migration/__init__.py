"""Migrations: operations on a whole table, its mode or a column.

Source: `specs/partner-sdk.md` 4.8 and 4.9, `seeds/history-mode.txt` ("Switching modes").
"""

from chronolake.core.migration.columns import (
    add_column_in_history,
    add_column_with_default,
    copy_column,
    drop_column_in_history,
    rename_column,
    set_column_value,
)
from chronolake.core.migration.modes import (
    SwitchPlan,
    missing_mark,
    plan_switch,
    switch_mode,
)
from chronolake.core.migration.tables import (
    copy_table,
    copy_table_to_history,
    drop_table,
    rename_table,
)

__all__ = [
    "SwitchPlan",
    "add_column_in_history",
    "add_column_with_default",
    "copy_column",
    "copy_table",
    "copy_table_to_history",
    "drop_column_in_history",
    "drop_table",
    "missing_mark",
    "plan_switch",
    "rename_column",
    "rename_table",
    "set_column_value",
    "switch_mode",
]
