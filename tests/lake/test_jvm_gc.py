"""A process that writes for long does not fill the JVM with garbage of its batches."""

from __future__ import annotations

import gc

import pytest
from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame

from chronolake import core, garbage_collection
from chronolake.change_set import OP, SEQ, UNMODIFIED, Op
from chronolake.lake import Lake
from chronolake.types import ACTIVE, END, START, Column, ColumnType, Kind, TableName

NAME = TableName("leftovers", "t")
COLUMNS = (
    Column("id", ColumnType(Kind.LONG), primary_key=True),
    Column(START, ColumnType(Kind.UTC_DATETIME), primary_key=True),
    Column(END, ColumnType(Kind.UTC_DATETIME)),
    Column(ACTIVE, ColumnType(Kind.BOOLEAN)),
)


def changes(lake: Lake, hour: int) -> DataFrame:
    rows = " UNION ALL ".join(
        f"SELECT {int(op)} AS {OP}, 0L AS {SEQ}, CAST(NULL AS ARRAY<BIGINT>) AS {UNMODIFIED}, "
        f"1L AS id, TIMESTAMP'2024-01-01 {hour:02}:00:00' AS {START}, "
        f"TIMESTAMP'9999-12-31 23:59:59.999' AS {END}, true AS {ACTIVE}"
        for op in (Op.EARLIEST, Op.REPLACE)
    )
    return lake.spark.sql(rows)


def held() -> int:
    """Return the number of Java objects that this process keeps alive."""
    return sum(isinstance(candidate, JavaObject) for candidate in gc.get_objects())


@pytest.mark.long
def test_batches_leave_nothing_in_the_jvm(lake: Lake) -> None:
    core.create(lake, NAME, COLUMNS)
    after = []
    enabled = gc.isenabled()
    # As in a large process, where Python's own collector almost never runs.
    gc.disable()
    try:
        for hour in range(6):
            garbage_collection._next = 0.0
            core.write_history_batch(
                lake, NAME, changes(lake, hour), columns=COLUMNS, batch=f"b{hour}"
            )
            after.append(held())
    finally:
        if enabled:
            gc.enable()
    assert after[-1] - after[1] < 20, after
