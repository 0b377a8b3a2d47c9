"""Reading a lake without Spark: its tables, the timelines of records, and tables as they stood.

Everything here uses PyIceberg and PyArrow only, so that an answer needs no JVM. Beside the names
below there are `past` (a table's life, its rows at a time, what differs between two times), `keys`
(completions of keys), `health` and `inside`.
"""

from chronolake.look.catalog import check, look_up, missing, names
from chronolake.look.history import Timeline, history
from chronolake.look.tables import TableSummary, tables
from chronolake.look.usage import MonthlyUsage, usage
from chronolake.look.versions import Change, Ending, Version

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
