"""The state of a history table at a time, against a plain scan of the same columns.

Claims, for 1,000,000 records with 10 versions each: `as_of` takes at most 1.2 times as long as a
plain filter on `_fivetran_start` and `_fivetran_end` over the same columns; today's state (the view
`<table>_current`) at most 1.2 times as long as reading a live table of the same rows.

Every way sums the same columns of the rows that it finds, so that all of them are read; both ways
of a pair must find the same rows. They run in turns.

    python bench/as_of.py [--quick] [--rows N] [--repeat N]
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from functools import partial
from typing import Final

from pyspark.sql import DataFrame

from chronolake import core
from chronolake.lake import Lake
from harness import customers, lakes
from harness.clock import Times, interleaved, say, show
from harness.customers import DAY_MILLIS, NEWEST_MILLIS, Made

VERSIONS: Final = 10
_SUMS: Final = (
    "count(*)",
    "sum(id)",
    "sum(length(name))",
    "sum(length(city))",
    "sum(amount)",
    "sum(visits)",
    "count_if(member)",
    "max(seen)",
)


def summed(frame: DataFrame) -> tuple[object, ...]:
    (row,) = frame.selectExpr(*_SUMS).collect()
    return tuple(row)


def as_of(lake: Lake, made: Made, millis: int) -> DataFrame:
    return lake.table(made.name).as_of(datetime.fromtimestamp(millis / 1_000, UTC))


def filtered(lake: Lake, made: Made, millis: int) -> DataFrame:
    at = f"timestamp_millis({millis})"
    return lake.spark.sql(
        f"SELECT * FROM {made.sql} WHERE _fivetran_start <= {at} AND _fivetran_end >= {at}"
    )


def main() -> int:
    parser = lakes.options(__doc__, repeat=15)
    parser.add_argument("--rows", type=int, help="records of the table")
    flags: argparse.Namespace = parser.parse_args()
    keys = flags.rows or (5_000 if flags.quick else 1_000_000)
    with lakes.opened(flags) as (lake, _):
        say(f"Making {keys:,} records with {VERSIONS} versions each, and a live table of them")
        history = customers.history(lake, "history", keys, VERSIONS)
        live = customers.live(lake, "live", keys)
        view = core.create_current_view(lake, history.name)
        # All versions of a day start at different milliseconds: its middle is not a boundary.
        middle = NEWEST_MILLIS - (VERSIONS // 2) * DAY_MILLIS + DAY_MILLIS // 2
        times, found = Times(), {}

        def run(name: str, frame: partial[DataFrame], _: int) -> None:
            with times.of(name):
                found[name] = summed(frame())

        pairs = [
            (
                ("as_of, five days ago", partial(as_of, lake, history, middle)),
                ("plain filter", partial(filtered, lake, history, middle)),
            ),
            (
                ("as_of, now", partial(as_of, lake, history, NEWEST_MILLIS + DAY_MILLIS)),
                ("plain filter, now", partial(filtered, lake, history, NEWEST_MILLIS + DAY_MILLIS)),
            ),
            (
                ("view of today", partial(lake.spark.table, view.sql)),
                ("live table of the same rows", partial(lake.spark.table, live.sql)),
            ),
        ]
        ways = {name: partial(run, name, frame) for pair in pairs for name, frame in pair}
        interleaved(ways, range(3))
        times.forget()
        interleaved(ways, range(flags.repeat))
        rows: list[tuple[object, ...]] = []
        for (ours, _), (theirs, _) in pairs:
            ratio = times.median(ours) / times.median(theirs)
            rows += [
                (ours, times.median(ours), times.spread(ours), "", ""),
                (theirs, times.median(theirs), times.spread(theirs), ratio, "<= 1.20"),
            ]
        show(
            f"{keys:,} records, {VERSIONS} versions each",
            ("way", "median s", "min-max s", "ours / it", "claim"),
            rows,
        )
        same = all(found[ours] == found[theirs] for (ours, _), (theirs, _) in pairs)
        print(f"\nBoth of each pair found {'the same' if same else 'DIFFERENT ROWS'}.")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
