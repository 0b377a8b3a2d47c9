"""The core: what happens to a table. Every change is staged, then published in one step."""

from chronolake.description import TableDescription, describe
from chronolake.table.create import create
from chronolake.table.history import write_history_batch
from chronolake.table.result import BatchResult
from chronolake.table.upsert import write_batch

__all__ = [
    "BatchResult",
    "TableDescription",
    "create",
    "describe",
    "write_batch",
    "write_history_batch",
]
