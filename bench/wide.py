"""Wide tables: what grows with the number of columns, and how fast.

Claims, for tables of text columns and two rows: CreateTable and AlterTable (as many columns again)
of 1,000 columns take at most 10 times as long as those of 10; a sync of a data lake of 1,000
columns takes at most 10 times as long as one of 10, and 10 times as long as to read the same file
with Spark and write it as a plain Iceberg table.

Beside ours stand Spark's own statements for the same work. All of it runs twice for each width, the
first round as a warm-up.

    python bench/wide.py [--quick] [--columns N ...] [--repeat N]
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from chronolake import table
from chronolake.config import Project, load_project
from chronolake.lake import Lake
from chronolake.pipeline.runs import Status
from chronolake.pipeline.sync import sync
from chronolake.session import CATALOG
from chronolake.types import SYNCED, Column, ColumnType, Kind, TableName
from measuring import lakes
from measuring.clock import Times, say, show

CREATE: Final = "create"
ALTER: Final = "alter"
FIRST: Final = "first sync"
NEXT: Final = "next sync"
_numbers = count()


def columns_of(width: int) -> list[Column]:
    """A key, the time of the sync, and text columns: `width` of these."""
    texts = [Column(f"c{number:05}", ColumnType(Kind.STRING)) for number in range(width)]
    key = Column("id", ColumnType(Kind.STRING), primary_key=True)
    return [key, Column(SYNCED, ColumnType(Kind.UTC_DATETIME)), *texts]


def write_file(folder: Path, number: int, width: int) -> Path:
    """Two records of a Data Lake v2, each time in a newer version."""
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


def ours(lake: Lake, project: Project, source: Path, width: int, times: Times) -> None:
    name = TableName("bench", f"ours{next(_numbers)}")
    wanted = columns_of(2 * width)
    with times.of(f"{CREATE} {width}"):
        table.create(lake, name, wanted[: width + 2])
    with times.of(f"{ALTER} {width}"):
        table.alter(lake, name, wanted, drop_columns=False)
    for number, step in enumerate((FIRST, NEXT), start=1):
        write_file(source, number, width)
        with times.of(f"{step} {width}"):
            result = sync(lake, project, "crm")
        if result.status is not Status.SUCCEEDED:
            raise RuntimeError(str(result.streams))


def theirs(lake: Lake, source: Path, width: int, times: Times) -> None:
    """The same with Spark's statements; a file is read and appended, no question asked."""
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


def main() -> int:
    parser = lakes.options(__doc__, repeat=1)
    parser.add_argument("--columns", type=int, nargs="+", help="the widths")
    flags = parser.parse_args()
    widths = flags.columns or ([5, 10] if flags.quick else [10, 100, 1_000])
    times = Times()
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
                round_times = Times()
                ours(
                    lake, load_project(file, lake=sent.parent / "lake"), source, width, round_times
                )
                theirs(lake, sent / f"plain-{width}-{turn}", width, round_times)
                if turn:
                    for name, seconds in round_times.seconds.items():
                        times.seconds[name] += seconds
    rows = []
    for step in (CREATE, ALTER, FIRST, NEXT):
        for width in widths:
            mine, other = times.median(f"{step} {width}"), times.median(f"{step} {width}, Spark")
            growth = mine / times.median(f"{step} {widths[0]}")
            rows.append((f"{step}, {width:,} columns", mine, other, mine / other, growth))
    show(
        "Wide tables, two rows",
        ("way", "ours s", "Spark s", "ours / Spark", f"of {widths[0]} columns"),
        rows,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
