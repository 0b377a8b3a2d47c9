"""A small table that a destination writes: keys, and the batch that wrote each last."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from chronolake import core
from chronolake.change_set import OP, SEQ, UNMODIFIED, Op
from chronolake.lake import Lake
from chronolake.types import Column, ColumnType, Kind, TableName
from support.lakes import lake_config

NAME: Final = TableName("sales", "customers")
COLUMNS: Final = (
    Column("id", ColumnType(Kind.LONG), primary_key=True),
    Column("name", ColumnType(Kind.STRING)),
    Column("_fivetran_synced", ColumnType(Kind.UTC_DATETIME)),
)


def opened(folder: Path, **settings: object) -> Lake:
    """Open the lake in a folder with some settings."""
    return Lake.open(folder, config=lake_config(folder, **settings))


def write(lake: Lake, keys: range, batch: str, name: TableName = NAME) -> None:
    """Replace the rows of some keys in a table with the columns `COLUMNS`."""
    rows = lake.spark.sql(
        f"SELECT {int(Op.REPLACE)} AS {OP}, id AS {SEQ}, CAST(null AS array<bigint>) AS "
        f"{UNMODIFIED}, id, '{batch}' AS name, now() AS _fivetran_synced "
        f"FROM range({keys.start}, {keys.stop})"
    )
    core.write_batch(lake, name, rows, columns=COLUMNS, batch=batch)
