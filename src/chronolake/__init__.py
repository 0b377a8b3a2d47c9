"""Replicate data into an Apache Iceberg lakehouse and keep every version of every record.

```python
import chronolake

lake = chronolake.Lake.open("lake")
orders = lake.table("shop.orders")
orders.df.show()
orders.as_of("2026-01-31T12:00:00Z").to_pandas()
lake.sql("SELECT count(*) FROM shop.orders").show()

print(chronolake.sync("shop", project="my-project"))
```
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from chronolake.errors import ChronolakeError, HistoryWarning

if TYPE_CHECKING:
    from chronolake.lake import Lake
    from chronolake.lake_table import LakeFrame, LakeTable
    from chronolake.pipeline.sync import RunResult
    from chronolake.pipeline.sync import run_pipeline as sync
    from chronolake.source.python.declarations import CHECKPOINT, stream, streams
    from chronolake.types import Column, ColumnType, Kind, Mode, TableName

    __version__: str

__all__ = [
    "CHECKPOINT",
    "ChronolakeError",
    "Column",
    "ColumnType",
    "HistoryWarning",
    "Kind",
    "Lake",
    "LakeFrame",
    "LakeTable",
    "Mode",
    "RunResult",
    "TableName",
    "__version__",
    "stream",
    "streams",
    "sync",
]

#: Names whose modules load PySpark or PyArrow, with the module that defines each.
_LOADED: Final = {
    "Column": ("chronolake.types", "Column"),
    "ColumnType": ("chronolake.types", "ColumnType"),
    "Kind": ("chronolake.types", "Kind"),
    "Lake": ("chronolake.lake", "Lake"),
    "LakeFrame": ("chronolake.lake_table", "LakeFrame"),
    "LakeTable": ("chronolake.lake_table", "LakeTable"),
    "Mode": ("chronolake.types", "Mode"),
    "RunResult": ("chronolake.pipeline.sync", "RunResult"),
    "TableName": ("chronolake.types", "TableName"),
    "CHECKPOINT": ("chronolake.source.python.declarations", "CHECKPOINT"),
    "stream": ("chronolake.source.python.declarations", "stream"),
    "streams": ("chronolake.source.python.declarations", "streams"),
    "sync": ("chronolake.pipeline.sync", "run_pipeline"),
}


def __getattr__(name: str) -> Any:
    """Import names that load slowly on first use, so that small programs start at once."""
    if name in _LOADED:
        module, attribute = _LOADED[name]
        return getattr(import_module(module), attribute)
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - reads files

        return version("chronolake")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the exported names, for completion in shells and notebooks, loaded or not."""
    return sorted({*globals(), *__all__})
