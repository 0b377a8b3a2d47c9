"""Reading a lake without Spark: its tables, the timelines of records, and tables as they stood.

Everything here uses PyIceberg and PyArrow only, so that an answer needs no JVM. Beside the names
below there are `time_travel` (a table's life, its rows at a time, what differs between two times),
`key_completion` (completions of keys), `tables` and `table_metadata`.
"""

from chronolake.inspect.catalog import check, look_up, missing, names
from chronolake.inspect.history import Change, Ending, Timeline, Version, history
from chronolake.inspect.tables import TableSummary, tables
from chronolake.inspect.usage import MonthlyUsage, usage

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
