"""Wide tables: what grows with the number of columns, and how fast.

Claims, for tables of two rows: no step makes a call to the JVM for each column, and each takes at
most 10 times as long with 10 times as many columns. The steps are CreateTable and AlterTable (as
many columns again; half of them dropped; all texts to integers and back), a sync of a data lake, a
batch (a replaced and an updated row), a history batch, a query, and a switch to history mode.

Spark's own statements for some of this work are printed beside ours. All of it runs twice for each
width, the first round as a warm-up.

    python bench/wide.py [--quick] [--columns N ...] [--repeat N]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from chronolake import core
from chronolake.change_set import BITS_PER_WORD, OP, SEQ, UNMODIFIED, Op
from chronolake.config import Project, load_project
from chronolake.lake import Lake
from chronolake.pipeline.runs import Status
from chronolake.pipeline.sync import sync
from chronolake.query import run_query
from chronolake.session import CATALOG
from chronolake.types import (
    ACTIVE,
    END,
    START,
    SYNCED,
    TMAX_MICROS,
    Column,
    ColumnType,
    Kind,
    Mode,
    TableName,
)
from harness import lakes
from harness.clock import Times, say, show
from harness.jvm_calls import counted

CREATE: Final = "create"
ALTER: Final = "alter: add"
DROP: Final = "alter: drop"
RETYPE: Final = "alter: types"
FIRST: Final = "first sync"
NEXT: Final = "next sync"
BATCH: Final = "batch"
HISTORY: Final = "history batch"
QUERY: Final = "query"
SWITCH: Final = "switch to history"
STEPS: Final = (CREATE, ALTER, DROP, RETYPE, FIRST, NEXT, BATCH, HISTORY, QUERY, SWITCH)
_numbers = count()


@dataclass
class Measured:
    """Times of steps, and the calls to the JVM of each."""

    spark: SparkSession
    times: Times = field(default_factory=Times)
    calls: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Add the time and the calls of the block."""
        with self.times.of(name), counted(self.spark) as calls:
            yield
        self.calls[name] = calls.total


def columns_of(width: int) -> list[Column]:
    """Return a key, the time of the sync, and text columns: `width` of these."""
    texts = [Column(f"c{number:05}", ColumnType(Kind.STRING)) for number in range(width)]
    key = Column("id", ColumnType(Kind.STRING), primary_key=True)
    return [key, Column(SYNCED, ColumnType(Kind.UTC_DATETIME)), *texts]


def write_file(folder: Path, number: int, width: int) -> Path:
    """Write two records of a Data Lake v2, each time in a newer version."""
    at = datetime(2026, 1, 1, number, tzinfo=UTC)
    rows = {
        "Id": ["1", "2"],
        "source__modified": pa.array([at, at], pa.timestamp("us", tz="UTC")),
        "grax__idseq": [f"{number:x}"] * 2,
        **{f"c{place:05}": [f"{number} a {place}", f"{number} b"] for place in range(width)},
    }
    file = folder / "parquet/v2/org=X/object=Wide/batch=01" / f"data-{number:04x}.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(rows), file)
    return file


def ours(lake: Lake, project: Project, source: Path, width: int, times: Measured) -> None:
    name = TableName("bench", f"ours{next(_numbers)}")
    wanted = columns_of(2 * width)
    columns = wanted[: width + 2]
    with times.of(f"{CREATE} {width}"):
        core.create(lake, name, columns)
    with times.of(f"{ALTER} {width}"):
        core.alter(lake, name, wanted, drop_columns=False)
    with times.of(f"{DROP} {width}"):
        core.alter(lake, name, columns, drop_columns=True)
    cells = ["explode(array('1', '2'))", "current_timestamp()", *["'1'"] * width]
    lake.spark.sql(f"INSERT INTO {CATALOG}.{name.sql} SELECT {', '.join(cells)}")
    integers = [*columns[:2], *(replace(c, type=ColumnType(Kind.INT)) for c in columns[2:])]
    with times.of(f"{RETYPE} {width}"):
        core.alter(lake, name, integers, drop_columns=False)
        core.alter(lake, name, columns, drop_columns=False)
    with times.of(f"{SWITCH} {width}"):
        core.switch_mode(lake, name, Mode.HISTORY, markers=())
    for number, step in enumerate((FIRST, NEXT), start=1):
        write_file(source, number, width)
        with times.of(f"{step} {width}"):
            result = sync(lake, project, "crm")
        if result.status is not Status.SUCCEEDED:
            raise RuntimeError(str(result.streams))


def change(
    lake: Lake, name: TableName, columns: Sequence[Column], number: int, *, is_history: bool
) -> tuple[DataFrame, list[Column]]:
    """Make a replaced row and an updated row, which leaves a column as it is."""
    at = datetime(2026, 1, 1, number, tzinfo=UTC)
    texts = [column.name for column in columns if column.name.startswith("c")]
    cells: dict[str, object] = {
        "id": ["1", "2"],
        SYNCED: pa.array([at, at], pa.timestamp("us", tz="UTC")),
        **{text: [f"{number} a", f"{number} b"] for text in texts},
    }
    if is_history:
        end = pa.array([TMAX_MICROS] * 2, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
        cells |= {START: cells[SYNCED], END: end, ACTIVE: [True, True]}
    # The last text column of the second row keeps its value.
    word, bit = divmod(len(cells) - 1, BITS_PER_WORD)
    names = [*(name for name in cells if name != texts[-1]), texts[-1]]
    first = number == 1
    bits = [None, None if first else [0] * word + [1 << bit if bit < 63 else -(1 << 63)]]
    rows = {
        OP: pa.array([int(Op.REPLACE), int(Op.REPLACE if first else Op.UPDATE)], pa.int32()),
        SEQ: pa.array([0, 1], pa.int64()),
        UNMODIFIED: pa.array(bits, pa.list_(pa.int64())),
        **{column: cells[column] for column in names},
    }
    by_name = {column.name: column for column in columns}
    spark = lake.session_for(name, 100 * len(names))
    return spark.createDataFrame(pa.table(rows)), [by_name[column] for column in names]


def batches(lake: Lake, width: int, times: Measured) -> None:
    """Write a batch and a history batch into tables of two rows, and read the latter."""
    for step, write in ((BATCH, core.write_batch), (HISTORY, core.write_history_batch)):
        name = TableName("bench", f"batch{next(_numbers)}")
        columns = columns_of(width)
        if step == HISTORY:
            of_history = {START: Kind.UTC_DATETIME, END: Kind.UTC_DATETIME, ACTIVE: Kind.BOOLEAN}
            columns += [
                Column(column, ColumnType(kind), primary_key=column == START)
                for column, kind in of_history.items()
            ]
        core.create(lake, name, columns)
        for number in (1, 2):
            rows, carried = change(lake, name, columns, number, is_history=step == HISTORY)
            passed = times if number > 1 else Measured(lake.spark)
            with passed.of(f"{step} {width}"):
                write(lake, name, rows, columns=carried, batch=f"{number}")
    with times.of(f"{QUERY} {width}"):
        list(run_query(lake, f"SELECT * FROM {name.sql}").rows())


def theirs(lake: Lake, source: Path, width: int, times: Times) -> None:
    """Do the same with Spark's statements; a file is read and appended without checks."""
    name = f"{CATALOG}.bench.theirs{next(_numbers)}"
    wanted = [f"`{column.name}` {column.type.sql}" for column in columns_of(2 * width)]
    with times.of(f"{CREATE} {width}, Spark"):
        lake.spark.sql(f"CREATE TABLE {name} ({', '.join(wanted[: width + 2])}) USING iceberg")
    with times.of(f"{ALTER} {width}, Spark"):
        lake.spark.sql(f"ALTER TABLE {name} ADD COLUMNS ({', '.join(wanted[width + 2 :])})")
    copy = f"{CATALOG}.bench.copy{next(_numbers)}"
    for number, step in enumerate((FIRST, NEXT), start=1):
        frame = lake.spark.read.parquet(str(write_file(source, number, width)))
        with times.of(f"{step} {width}, Spark"):
            if step == FIRST:
                frame.writeTo(copy).using("iceberg").create()
            else:
                frame.writeTo(copy).append()
    # A MERGE of the same number of rows, for a batch and a history batch.
    frame.createOrReplaceTempView("bench_rows")
    for step in (BATCH, HISTORY):
        with times.of(f"{step} {width}, Spark"):
            lake.spark.sql(
                f"MERGE INTO {copy} AS t USING bench_rows AS b ON t.Id = b.Id "
                "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )


def main() -> int:
    parser = lakes.options(__doc__, repeat=1)
    parser.add_argument("--columns", type=int, nargs="+", help="the widths")
    flags = parser.parse_args()
    widths = flags.columns or ([5, 10] if flags.quick else [10, 100, 1_000])
    times = Times()
    calls: dict[str, int] = {}
    with lakes.opened(flags) as (lake, sent):
        for width in widths:
            for turn in range(flags.repeat + 1):
                say(f"{width:,} columns, {'warm-up' if turn == 0 else f'round {turn}'}")
                source = sent / f"{width}-{turn}"
                source.mkdir()
                file = source / "chronolake.yml"
                file.write_text(
                    f"pipelines: {{crm: {{source: {{type: data_lake_v2, path: {source}, org: X}}, "
                    f"schema: crm_{width}_{turn}}}}}\n"
                )
                measured = Measured(lake.spark)
                project = load_project(file, lake=sent.parent / "lake")
                ours(lake, project, source, width, measured)
                batches(lake, width, measured)
                theirs(lake, sent / f"plain-{width}-{turn}", width, measured.times)
                if turn:
                    for name, seconds in measured.times.seconds.items():
                        times.seconds[name] += seconds
                    calls |= measured.calls
    rows = []
    for step in STEPS:
        for narrower, width in zip([widths[0], *widths], widths, strict=False):
            name = f"{step} {width}"
            mine = times.median(name)
            other: object = "-"
            if f"{name}, Spark" in times.seconds:
                other = times.median(f"{name}, Spark")
            growth = mine / times.median(f"{step} {narrower}")
            rows.append((f"{step}, {width:,} columns", mine, other, growth, calls[name]))
    show(
        "Wide tables, two rows",
        ("way", "ours s", "Spark s", "of the narrower", "JVM calls"),
        rows,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
