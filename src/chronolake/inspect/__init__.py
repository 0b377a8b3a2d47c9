"""Inspection of a lake without Spark: its tables, timelines of records, and time travel.

This package only uses PyIceberg and PyArrow, so that it needs no JVM. The names below are public.
Internal modules: `time_travel` (a table's rows at a time), `activity` (how many versions began and
ended in each interval), `diff` (differences between two times), `keyset` (keyset pagination and key
completion), `lineage`, `scan`, `manifests`, `table_metadata` and `render`.
"""

from chronolake.inspect.catalog import check, look_up, missing, names
from chronolake.inspect.history import Change, Ending, Timeline, Version, history
from chronolake.inspect.lineage import Lineage
from chronolake.inspect.tables import MonthlyUsage, TableSummary, tables, usage

__all__ = [
    "Change",
    "Ending",
    "Lineage",
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
