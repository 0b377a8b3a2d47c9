"""Upserts and partial updates of a live table, against one MERGE, and DuckDB.

Claims: 20,000 upserts (half of the keys are new) go into 2,000,000 rows in at most 0.6 of the time
of one Iceberg MERGE; a table or a batch of 10 times the size takes less than 10 times as long.

DuckDB's time is printed, too: what one machine can do without Spark and Iceberg. All ways apply
the same batches to copies of one table, in turns, and must end in the same table.

    python bench/upsert.py [--quick] [--rows N] [--repeat N] [--profile]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from chronolake.lake import Lake
from harness import batches, customers, duckdb_baseline, lakes, statements
from harness.batches import Batch
from harness.clock import say, show
from harness.comparison import Contest, Pair, Rival, grown
from harness.customers import Made
from harness.profile import profiled

TIMES_LARGER: Final = 10
_SUMS: Final = (
    "SELECT count(*), sum(id), sum(visits), sum(amount), count(score), sum(length(city)), "
    "sum(CASE WHEN member THEN id END), sum(CAST({micros}(seen) AS decimal(38,0))) FROM {table}"
)


class Maker(Protocol):
    """A function that makes a batch of the live table."""

    def __call__(self, folder: Path, *, keys: int, size: int, ordinal: int) -> Batch: ...


@dataclass(frozen=True)
class Size:
    """The sizes: rows of the table, rows of a batch, rounds, rounds before them."""

    rows: int
    batch: int
    repeat: int
    warm_up: int = 10


def pairs(make: Maker, folder: Path, size: Size, *, first: int, rounds: int) -> list[Pair]:
    """Make the batches for a number of rounds, numbered from `first`."""
    sent = [
        make(folder, keys=size.rows, size=size.batch, ordinal=first + number)
        for number in range(2 * rounds)
    ]
    return list(zip(sent[::2], sent[1::2], strict=True))


def growth(lake: Lake, folder: Path, size: Size) -> None:
    """Measure ours, upserting into a larger table, and a larger batch."""

    def into(made: Made, count: int) -> Callable[[int], object]:
        sent = [
            batches.upserts(folder, keys=made.keys, size=count, ordinal=number)
            for number in range(size.warm_up + size.repeat)
        ]
        return lambda number: lakes.apply(lake, made, sent[number], history=False)

    rows, many, count = size.rows, size.rows * TIMES_LARGER, size.batch * TIMES_LARGER
    large_table, large_batch = f"{size.batch:,} into {many:,}", f"{count:,} into {rows:,}"
    grown(
        f"Growth: upserts from files, table and batch {TIMES_LARGER} times",
        {
            f"{size.batch:,} into {rows:,}": into(customers.live(lake, "base", rows), size.batch),
            large_table: into(customers.live(lake, "larger", many), size.batch),
            large_batch: into(customers.live(lake, "other", rows), count),
        },
        warm_up=size.warm_up,
        repeat=size.repeat,
        claims={large_table: 10.0, large_batch: 10.0},
    )


def measured(lake: Lake, folder: Path, size: Size, flags: argparse.Namespace) -> int:
    say(f"Making {size.rows:,} rows, and copies")
    spark = lake.spark
    ours = customers.live(lake, "ours", size.rows)
    merged = customers.copied(lake, ours, "merged")
    ducks = duckdb_baseline.Duck(folder)
    ducks.load("live", customers.data_files(lake, ours))

    def upsert(view: str, _batch: Batch) -> None:
        spark.sql(statements.upsert(merged.sql, view))

    def update(view: str, _batch: Batch) -> None:
        spark.sql(statements.update(merged.sql, view))

    upserting = Contest(
        lake,
        ours,
        [Rival("one MERGE", upsert, 0.6)],
        lambda rows, _batch: ducks.upsert("live", rows),
        history=False,
    )
    updating = Contest(
        lake,
        ours,
        [Rival("one MERGE", update, None)],
        lambda rows, _batch: ducks.update("live", rows),
        history=False,
    )
    # The two kinds take turns, so that both find the same tables.
    kinds = ((upserting, batches.upserts, "upserts"), (updating, batches.updates, "updates"))
    for contest, make, _ in kinds:
        contest.run(pairs(make, folder, size, first=0, rounds=size.warm_up), warm_up=True)
    first = 2 * size.warm_up
    if flags.profile:
        for _, make, kind in kinds:
            batch = make(folder, keys=size.rows, size=size.batch, ordinal=first)
            with profiled(spark, f"One batch of {kind} of ours, from files"):
                result = lakes.apply(lake, ours, batch, history=False)
            show("Its stages", ("stage", "s"), list(result.seconds.items()))
        return 0
    for contest, make, kind in kinds:
        contest.run(pairs(make, folder, size, first=first, rounds=size.repeat))
        contest.show(f"{size.batch:,} {kind} into {size.rows:,} rows")
    same = agree(lake, ours, merged, ducks)
    if not flags.no_growth:
        growth(lake, folder, size)
    return 0 if same else 1


def agree(lake: Lake, ours: Made, merged: Made, ducks: duckdb_baseline.Duck) -> bool:
    """Print a fingerprint of each way's table; return whether all tables are equal."""
    prints = [customers.fingerprint(lake, made) for made in (ours, merged)]
    row = lake.spark.sql(_SUMS.format(micros="unix_micros", table=ours.sql)).first()
    spark_sums = " ".join(map(str, row or ()))
    duck_sums = " ".join(map(str, ducks.sums(_SUMS.format(micros="epoch_us", table="live")) or ()))
    same = prints[0] == prints[1] and spark_sums == duck_sums
    say(f"\nThe tables at the end are {'the same' if same else 'NOT THE SAME'}:")
    say(f"  ours: {prints[0]}\n  MERGE: {prints[1]}")
    say(f"  sums of ours:   {spark_sums}\n  sums of DuckDB: {duck_sums}")
    return same


def main() -> int:
    parser = lakes.options(__doc__, repeat=6)
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the table")
    parser.add_argument("--batch", type=int, default=20_000, help="rows of a batch")
    parser.add_argument("--no-growth", action="store_true", help="leave growth out")
    parser.add_argument("--profile", action="store_true", help="only show where the time goes")
    flags = parser.parse_args()
    size = Size(flags.rows, flags.batch, flags.repeat)
    if flags.quick:
        size = Size(rows=20_000, batch=200, repeat=1, warm_up=1)
    with lakes.opened(flags) as (lake, folder):
        return measured(lake, folder, size, flags)


if __name__ == "__main__":
    sys.exit(main())
