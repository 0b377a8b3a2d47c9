"""A batch's files are decoded once, whatever the write does with them."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark import Accumulator
from pyspark.sql import DataFrame

from chronolake import core
from chronolake.change_set import OP, SEQ, UNMODIFIED, Op
from chronolake.lake import Lake
from chronolake.types import ACTIVE, END, START, Column, ColumnType, Kind, TableName

LIVE = (
    Column("id", ColumnType(Kind.LONG), primary_key=True),
    Column("name", ColumnType(Kind.STRING)),
)
HISTORY = (
    *LIVE,
    Column(START, ColumnType(Kind.UTC_DATETIME), primary_key=True),
    Column(END, ColumnType(Kind.UTC_DATETIME)),
    Column(ACTIVE, ColumnType(Kind.BOOLEAN)),
)
NAME_LEFT_AS_IT_IS = "array(2L)"
NOTHING = "CAST(NULL AS ARRAY<BIGINT>)"


@pytest.fixture
def name(lake: Lake) -> TableName:
    return TableName("sample", f"one_pass_{uuid4().hex}")


def counted(lake: Lake, rows: list[str]) -> tuple[DataFrame, Accumulator[int]]:
    """Return a change set, and a counter of its rows that were decoded until now."""
    made = lake.spark.sparkContext.accumulator(0)

    def counting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            made.add(batch.num_rows)
            yield batch

    frame = lake.spark.sql(" UNION ALL ".join(f"SELECT {row}" for row in rows)).coalesce(1)
    return frame.mapInArrow(counting, frame.schema), made


def live(op: Op, key: int, name: str, unmodified: str = NOTHING) -> str:
    return (
        f"{int(op)} AS {OP}, {key}L AS {SEQ}, {unmodified} AS {UNMODIFIED}, "
        f"{key}L AS id, {name} AS name"
    )


def version(op: Op, key: int, name: str, hour: int, unmodified: str = NOTHING) -> str:
    return (
        f"{live(op, key, name, unmodified)}, TIMESTAMP'2024-01-01 {hour:02}:00:00' AS {START}, "
        f"TIMESTAMP'9999-12-31 23:59:59.999' AS {END}, true AS {ACTIVE}"
    )


def test_of_a_live_table(lake: Lake, name: TableName) -> None:
    core.create(lake, name, LIVE)
    first, made = counted(lake, [live(Op.REPLACE, 1, "'a'"), live(Op.REPLACE, 2, "'b'")])
    core.write_batch(lake, name, first, columns=LIVE, batch="1")
    assert made.value == 2
    second, made = counted(
        lake,
        [
            live(Op.UPDATE, 1, "NULL", NAME_LEFT_AS_IT_IS),
            live(Op.DELETE, 2, "NULL"),
            live(Op.REPLACE, 3, "'c'"),
        ],
    )
    core.write_batch(lake, name, second, columns=LIVE, batch="2")
    assert made.value == 3


@pytest.mark.long
def test_updates_without_a_row_are_counted_whatever_becomes_of_their_keys(
    lake: Lake, name: TableName
) -> None:
    core.create(lake, name, LIVE)
    first, _ = counted(lake, [live(Op.REPLACE, 1, "'a'")])
    core.write_batch(lake, name, first, columns=LIVE, batch="1")
    changed = [(Op.UPDATE, key) for key in (1, 2, 2, 3)]
    rows = [live(op, key, "'b'") for op, key in [*changed, (Op.DELETE, 1), (Op.DELETE, 2)]]
    second, _ = counted(lake, rows)
    result = core.write_batch(lake, name, second, columns=LIVE, batch="2")
    # Two updates of 2, which is deleted afterwards, and one of 3.
    assert result.ignored == 3
    assert lake.table(name).df.count() == 0


@pytest.mark.long
def test_of_a_history_table(lake: Lake, name: TableName) -> None:
    core.create(lake, name, HISTORY)
    first, made = counted(lake, [version(Op.REPLACE, key, "'a'", 1) for key in (1, 2)])
    core.write_history_batch(lake, name, first, columns=HISTORY, batch="1")
    assert made.value == 2
    # The update of key 3 has no base version, so the write reads the table once more.
    second, made = counted(
        lake,
        [
            *(version(Op.EARLIEST, key, "NULL", 2) for key in (1, 3)),
            *(version(Op.UPDATE, key, "NULL", 2, NAME_LEFT_AS_IT_IS) for key in (1, 3)),
        ],
    )
    result = core.write_history_batch(lake, name, second, columns=HISTORY, batch="2")
    assert result.ignored == 1
    assert made.value == 4
