"""Reading a lake without Spark: its tables and the timelines of records.

Everything here uses PyIceberg and PyArrow only, so that an answer needs no JVM.
"""

from chronolake.look.catalog import check, names
from chronolake.look.history import Change, Ending, Timeline, Version, history
from chronolake.look.tables import TableSummary, tables
from chronolake.look.usage import MonthlyUsage, usage

__all__ = [
    "Change",
    "Ending",
    "MonthlyUsage",
    "TableSummary",
    "Timeline",
    "Version",
    "check",
    "history",
    "names",
    "tables",
    "usage",
]
