"""Pipeline tables that tests write from landed rows, and read with PyIceberg."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import DataFrame
from sqlalchemy import NullPool, create_engine

from chronolake.change_set import (
    DELETED_AT,
    LANDED_FILE,
    LANDED_ROW,
    MODIFIED,
    OMITTED,
    PROVIDES_DATA,
    PURGED_AT,
    SEQUENCE,
)
from chronolake.core.apply_versions import ApplyResult, write_versions
from chronolake.lake import Lake
from chronolake.types import END, START, Column, ColumnType, Kind, TableName
from support.pipeline_model import LandedRow

SYNCED_MICROS: Final = 1_704_067_200_000_000
COLUMNS: Final = (
    Column("Id", ColumnType(Kind.STRING), primary_key=True),
    Column("Name", ColumnType(Kind.STRING)),
    Column("Size", ColumnType(Kind.LONG)),
)


def frame(lake: Lake, rows: Sequence[LandedRow]) -> DataFrame:
    """Return rows as Spark's rows."""
    columns = {
        "Id": pa.array([row.key for row in rows], pa.string()),
        "Name": pa.array([row.fields.get("Name") for row in rows], pa.string()),
        "Size": pa.array([row.fields.get("Size") for row in rows], pa.int64()),
        MODIFIED: pa.array([row.modified for row in rows], pa.int64()),
        SEQUENCE: pa.array([row.sequence for row in rows], pa.string()),
        DELETED_AT: pa.array([row.deleted for row in rows], pa.int64()),
        PURGED_AT: pa.array([row.purged for row in rows], pa.int64()),
        PROVIDES_DATA: pa.array(
            [row.provides_data and row.purged is None for row in rows], pa.bool_()
        ),
        OMITTED: pa.array(
            [sorted(row.omitted) if row.omitted else None for row in rows], pa.list_(pa.string())
        ),
        LANDED_FILE: pa.array([f"data-{row.place[0]:x}.parquet" for row in rows], pa.string()),
        LANDED_ROW: pa.array([row.place[1] for row in rows], pa.int64()),
    }
    return lake.spark.createDataFrame(pa.table(columns))


def write(
    lake: Lake,
    name: TableName,
    rows: Sequence[LandedRow],
    *,
    is_distinct: bool = False,
    erases: bool = False,
    expected_rows: int | None = None,
    tracked: Sequence[str] | None = None,
) -> ApplyResult:
    """Apply rows to a table."""
    return write_versions(
        lake,
        name,
        frame(lake, rows),
        synced_micros=SYNCED_MICROS,
        batch="some",
        properties={},
        has_each_once=is_distinct,
        expected_rows=len(rows) if expected_rows is None else expected_rows,
        erased=["Name", "Size"] if erases else [],
        tracked=tracked,
    )


def read(lake: Lake, name: TableName) -> list[dict[str, Any]]:
    """Return a table's rows as PyIceberg reads them, with times in microseconds."""
    catalog = SqlCatalog(
        "chronolake", uri=f"sqlite:///{lake.config.catalog_file}", warehouse=lake.warehouse
    )
    catalog.engine.dispose()
    catalog.engine = create_engine(f"sqlite:///{lake.config.catalog_file}", poolclass=NullPool)
    rows = catalog.load_table((name.schema, name.table)).scan().to_arrow()
    for column in (START, END):
        if column in rows.column_names:
            number = rows.column_names.index(column)
            rows = rows.set_column(number, column, rows[column].cast(pa.int64()))
    return rows.to_pylist()


def files(lake: Lake, name: TableName) -> list[str]:
    """Return the files of a table that readers see."""
    found = lake.spark.sql(f"SELECT file_path FROM chronolake.{name.sql}.files").collect()
    return sorted(row["file_path"] for row in found)


def check_hidden(lake: Lake, name: TableName) -> None:
    """Check that a version has at most one tombstone with data, and no row is duplicated."""
    found = lake.spark.sql(
        f"SELECT Id, _chronolake_version AS version FROM chronolake.{name.sql} "
        "VERSION AS OF 'chronolake-hidden'"
    ).collect()
    rows = [(row["Id"], row["version"]) for row in found]
    assert len(set(rows)) == len(rows)
    telling = [
        (key, version.split(" ")[0]) for key, version in rows if version.split(" ")[3] != "*"
    ]
    assert len(set(telling)) == len(telling)


def random_log(seed: int, *, keys: int, changes: int, step: int, purges: bool) -> list[LandedRow]:
    """Return a log as databases write it: sequences never repeat, and updates leave columns out."""
    chance = random.Random(seed)
    rows: list[LandedRow] = []
    alive: set[str] = set()
    times = dict.fromkeys([f"k{number}" for number in range(keys)], SYNCED_MICROS)
    for number in range(changes):
        key = f"k{chance.randrange(keys)}"
        # Several changes of a record at one instant, too.
        times[key] += chance.choice([0, 1, 1, 3]) * step
        deleted, purged, provides_data, omitted = None, None, True, frozenset[str]()
        fields = {"Name": f"n{number}", "Size": chance.choice([None, number])}
        if key in alive and chance.random() < 0.2:
            provides_data, fields = False, {}
            if purges and chance.random() < 0.3:
                # A purge is never at the same time as another change.
                times[key], purged = times[key] + step, times[key]
            else:
                deleted = times[key]
            alive.discard(key)
        else:
            if key in alive:
                omitted = frozenset(name for name in fields if chance.random() < 0.4)
            alive.add(key)
        rows.append(
            LandedRow(
                key=key,
                modified=times[key],
                sequence=f"{number:x}",
                place=(1 + number * 6 // changes, number),
                deleted=deleted,
                purged=purged,
                provides_data=provides_data,
                omitted=omitted,
                fields={name: value for name, value in fields.items() if name not in omitted},
            )
        )
    return rows
