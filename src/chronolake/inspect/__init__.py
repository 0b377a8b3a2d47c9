"""Inspection of a lake without Spark: its tables, timelines of records, and time travel.

This package only uses PyIceberg and PyArrow, so that it needs no JVM. In addition to the names
below there are `time_travel` (a table's activity, its rows at a time, differences between two
times), `keyset` (completions of keys), `tables` and `table_metadata`.
"""

from chronolake.inspect.catalog import check, look_up, missing, names
from chronolake.inspect.history import Change, Ending, Timeline, Version, history
from chronolake.inspect.tables import MonthlyUsage, TableSummary, tables, usage

__all__ = [
    "Change",
    "Ending",
    "MonthlyUsage",
    "TableSummary",
    "Timeline",
    "Version",
    "check",
    "history",
    "look_up",
    "missing",
    "names",
    "tables",
    "usage",
]
