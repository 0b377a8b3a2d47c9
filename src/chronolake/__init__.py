"""Replicate data into an Apache Iceberg lakehouse and keep every version of every record.

```python
import chronolake

lake = chronolake.Lake.open("lake")
orders = lake.table("shop.orders")
orders.df.show()
orders.as_of("2026-01-31T12:00:00Z").show()
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chronolake.errors import ChronolakeError, HistoryWarning
from chronolake.types import Column, ColumnType, Kind, Mode, TableName

if TYPE_CHECKING:
    from chronolake.lake import Lake
    from chronolake.reading import LakeTable

__all__ = [
    "ChronolakeError",
    "Column",
    "ColumnType",
    "HistoryWarning",
    "Kind",
    "Lake",
    "LakeTable",
    "Mode",
    "TableName",
]


def __getattr__(name: str) -> Any:
    """Load the names that need Spark when they are first used: commands that look do without."""
    if name == "Lake":
        from chronolake.lake import Lake  # noqa: PLC0415

        return Lake
    if name == "LakeTable":
        from chronolake.reading import LakeTable  # noqa: PLC0415

        return LakeTable
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
