"""Migrations: everything that changes a whole table, its mode or a column at once.

Source: `specs/partner-sdk.md` 4.8 and 4.9, `seeds/history-mode.txt` ("Switching modes").
"""

from chronolake.table.migration.columns import (
    add_column_with_default,
    copy_column,
    rename_column,
    set_column_value,
)
from chronolake.table.migration.modes import SwitchPlan, plan_switch, switch_mode
from chronolake.table.migration.tables import (
    copy_table,
    copy_table_to_history,
    drop_table,
    rename_table,
)
from chronolake.table.migration.versions import add_column_in_history, drop_column_in_history

__all__ = [
    "SwitchPlan",
    "add_column_in_history",
    "add_column_with_default",
    "copy_column",
    "copy_table",
    "copy_table_to_history",
    "drop_column_in_history",
    "drop_table",
    "plan_switch",
    "rename_column",
    "rename_table",
    "set_column_value",
    "switch_mode",
]
