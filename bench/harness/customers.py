"""A table of customers, made in Spark: ten columns of mixed types, live or with a history.

Everything follows from a row's id and version, so that every copy of a table is the same. A
customer's newest version starts on 2025-01-01, at a millisecond of its own; older ones start one
day before the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame

from chronolake import core
from chronolake.lake import Lake
from chronolake.session import CATALOG
from chronolake.types import Column, ColumnType, Kind, TableName

SCHEMA: Final = "bench"
LIVE: Final = (
    Column("id", ColumnType(Kind.LONG), primary_key=True),
    Column("name", ColumnType(Kind.STRING)),
    Column("city", ColumnType(Kind.STRING)),
    Column("amount", ColumnType(Kind.DECIMAL, 18, 2)),
    Column("score", ColumnType(Kind.DOUBLE)),
    Column("visits", ColumnType(Kind.INT)),
    Column("born", ColumnType(Kind.NAIVE_DATE)),
    Column("seen", ColumnType(Kind.UTC_DATETIME)),
    Column("member", ColumnType(Kind.BOOLEAN)),
    Column("_fivetran_synced", ColumnType(Kind.UTC_DATETIME)),
)
HISTORY: Final = (
    *LIVE,
    Column("_fivetran_start", ColumnType(Kind.UTC_DATETIME), primary_key=True),
    Column("_fivetran_end", ColumnType(Kind.UTC_DATETIME)),
    Column("_fivetran_active", ColumnType(Kind.BOOLEAN)),
)
LIVE_NAMES: Final = tuple(column.name for column in LIVE)
HISTORY_NAMES: Final = tuple(column.name for column in HISTORY)

NEWEST_MILLIS: Final = 1_735_689_600_000  # 2025-01-01T00:00:00Z
DAY_MILLIS: Final = 86_400_000
#: A customer's millisecond of the day is its id times this, modulo the day.
JITTER: Final = 37

_ROWS_PER_FILE: Final = 5_000_000
# `age` counts versions back from the newest one, 0.
_START: Final = f"{NEWEST_MILLIS} + id * {JITTER} % {DAY_MILLIS} - age * {DAY_MILLIS}"
_LIVE_CELLS: Final = {
    "id": "id",
    "name": "concat('Customer-', id)",
    "city": "concat('City-', id * 7919 % 40)",
    "amount": "cast((id * 31 + age * 17) % 1000000 / 100 AS decimal(18,2))",
    "score": "pmod(xxhash64(id, age), 1000000) / 997.0D",
    "visits": "cast(id % 1000 - age AS int)",
    "born": "date_add(DATE'1950-01-01', cast(id % 20000 AS int))",
    "seen": f"timestamp_millis({_START} - 5000)",
    "member": "(id + age) % 3 = 0",
    "_fivetran_synced": f"timestamp_millis({_START} + 60000)",
}
_HISTORY_CELLS: Final = {
    **_LIVE_CELLS,
    "_fivetran_start": f"timestamp_millis({_START})",
    "_fivetran_end": "CASE WHEN age = 0 THEN TIMESTAMP'9999-12-31 23:59:59.999Z' "
    f"ELSE timestamp_millis({_START} + {DAY_MILLIS - 1}) END",
    "_fivetran_active": "age = 0",
}


@dataclass(frozen=True)
class Made:
    """A table that was made.

    Attributes:
        name: its name.
        keys: how many customers it has: their ids are 0 to `keys` - 1.
    """

    name: TableName
    keys: int

    @property
    def sql(self) -> str:
        """The table's name in Spark SQL."""
        return f"{CATALOG}.{self.name.sql}"


def live(lake: Lake, name: str, keys: int) -> Made:
    """Make a live table, with its files as a compaction leaves them: few, sorted by key."""
    made = Made(TableName(SCHEMA, name), keys)
    core.create(lake, made.name, LIVE)
    newest = _range(lake, keys, 1).selectExpr("id", "0L AS age")
    _append(newest, _LIVE_CELLS, made)
    return made


def history(lake: Lake, name: str, keys: int, versions: int) -> Made:
    """Make a history table with `versions` versions of each customer, the newest one active.

    The rows are written straight to `main`, clustered as maintenance leaves them: by partition,
    then by key and start.
    """
    made = Made(TableName(SCHEMA, name), keys)
    core.create(lake, made.name, HISTORY)
    active = _range(lake, keys, 1).selectExpr("id", "0L AS age")
    _append(active, _HISTORY_CELLS, made)
    if versions > 1:
        closed = _range(lake, keys, versions - 1).selectExpr(
            "id", f"explode(sequence({versions - 1}L, 1L, -1L)) AS age"
        )
        _append(closed, _HISTORY_CELLS, made)
    return made


def copied(lake: Lake, original: Made, name: str) -> Made:
    """Register a copy of the table; it begins with the same files as the original.

    No write ever changes or removes a data file, so that both can be written to.
    """
    metadata = lake.catalog.load(original.name).metadata.metadataFileLocation()
    lake.spark.sql(
        f"CALL {CATALOG}.system.register_table("
        f"table => '{SCHEMA}.{name}', metadata_file => '{metadata}')"
    )
    return Made(TableName(SCHEMA, name), original.keys)


def data_files(lake: Lake, made: Made) -> list[str]:
    """Return the paths of a table's Parquet files."""
    rows = lake.spark.sql(f"SELECT file_path FROM {made.sql}.data_files").collect()
    return [row.file_path.removeprefix("file:") for row in rows]


def fingerprint(lake: Lake, made: Made) -> str:
    """Return a text that differs if a row differs."""
    columns = ", ".join(column.name for column in lake.catalog.load(made.name).fields)
    row = lake.spark.sql(
        f"SELECT count(*), sum(cast(xxhash64({columns}) AS decimal(38,0))) FROM {made.sql}"
    ).first()
    return f"{row[0]} rows, {row[1]}"


def _range(lake: Lake, keys: int, rows_each: int) -> DataFrame:
    files = max(1, -(-keys * rows_each // _ROWS_PER_FILE))
    return lake.spark.range(0, keys, 1, files)


def _append(ages: DataFrame, cells: Mapping[str, str], made: Made) -> None:
    rows = ages.selectExpr(*(f"{cell} AS {name}" for name, cell in cells.items()))
    rows.writeTo(made.sql).append()
