"""A history batch, against the documents' statements, one MERGE, and DuckDB.

Claims: a batch of 20,000 customers with all four kinds of file goes into 2,000,000 active versions
with 10 versions each

1. in at most 0.6 of the time of the documents' statements, run one by one with Spark SQL on the
   same Iceberg table, and in at most 0.7 of the time of one single MERGE;
2. with the history 10 times longer in at most 1.2 times the time, with 10 times the active keys in
   at most 6 times.

DuckDB's time for the same change is printed, too: what one machine can do without Spark and
Iceberg. All ways apply the same batches to copies of one table, in turns, and must end in the same
table. A second part sends batches in which some customers are late by two versions.

    python bench/history_batch.py [--quick] [--active N] [--repeat N] [--only-growth] [--profile]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chronolake.lake import Lake
from harness import batches, customers, duckdb_baseline, lakes, statements
from harness.batches import Batch
from harness.clock import say, show
from harness.comparison import Contest, Pair, Rival, grown
from harness.customers import Made
from harness.profile import profiled

VERSIONS: Final = 10
LONGER: Final = 10
WIDER: Final = 10
_TIMES: Final = ("_fivetran_start", "_fivetran_end")
_SUMS: Final = (
    "SELECT count(*), sum(id), sum(visits), sum(amount), count(score), sum(length(city)), "
    "sum(CASE WHEN _fivetran_active THEN id END), "
    + ", ".join(f"sum(CAST({{micros}}({time}) AS decimal(38,0)))" for time in _TIMES)
    + " FROM {table}"
)


@dataclass(frozen=True)
class Size:
    """The sizes of a measurement.

    Attributes:
        active: active versions of the tables.
        growth: the same, for the tables whose growth is measured.
        batch: customers of a batch.
        repeat: measured rounds.
        warm_up: rounds before them.
    """

    active: int
    growth: int
    batch: int
    repeat: int
    warm_up: int = 10


class Copies:
    """Copies of one history table: one for each way."""

    def __init__(self, lake: Lake, folder: Path, size: Size) -> None:
        self._lake = lake
        self._folder = folder
        self._size = size
        self._sent = 0
        self.ours = customers.history(lake, "ours", size.active, VERSIONS)
        self.documented = customers.copied(lake, self.ours, "documented")
        self.merged = customers.copied(lake, self.ours, "merged")
        self.duck = duckdb_baseline.Duck(folder)
        self.duck.load("history", customers.data_files(lake, self.ours))

    def contest(self) -> Contest:
        """Set up ours, and the ways that it is compared with."""
        spark = self._lake.spark

        def documented(view: str, batch: Batch) -> None:
            statements.documented(spark, self.documented.sql, view, batch.since)

        def merged(view: str, batch: Batch) -> None:
            spark.sql(statements.merged(self.merged.sql, view, batch.since))

        return Contest(
            self._lake,
            self.ours,
            [Rival("the documents' statements", documented, 0.6), Rival("one MERGE", merged, 0.7)],
            lambda rows, batch: self.duck.history("history", rows, batch.since),
            history=True,
        )

    def batch(self, late: float = 0.0) -> Batch:
        """Make the next batch; its customers are in no earlier one."""
        size = self._size
        if (self._sent + 1) * size.batch > size.active:
            raise SystemExit("Too many rounds for so few customers: raise --active.")
        self._sent += 1
        return batches.history(
            self._folder, keys=size.active, size=size.batch, ordinal=self._sent - 1, late=late
        )

    def pairs(self, rounds: int, late: float = 0.0) -> list[Pair]:
        """Make the batches for a number of rounds."""
        return [(self.batch(late), self.batch(late)) for _ in range(rounds)]

    def agree(self) -> bool:
        """Print a fingerprint of each way's table; return whether all tables are equal."""
        lake = self._lake
        tables = {"ours": self.ours, "documents": self.documented, "MERGE": self.merged}
        prints = {name: customers.fingerprint(lake, made) for name, made in tables.items()}
        row = lake.spark.sql(_SUMS.format(micros="unix_micros", table=self.ours.sql)).first()
        spark_sums = " ".join(map(str, row or ()))
        row = self.duck.sums(_SUMS.format(micros="epoch_us", table="history"))
        duck_sums = " ".join(map(str, row or ()))
        same = len(set(prints.values())) == 1 and spark_sums == duck_sums
        say(f"\nThe tables at the end are {'the same' if same else 'NOT THE SAME'}:")
        for name, text in prints.items():
            say(f"  {name}: {text}")
        say(f"  sums of ours:   {spark_sums}\n  sums of DuckDB: {duck_sums}")
        return same


def growth(lake: Lake, folder: Path, size: Size) -> None:
    """Measure ours on a table, on one with a longer history, and on one with more keys."""
    keys, longer, wider = size.growth, VERSIONS * LONGER, size.growth * WIDER

    def into(made: Made) -> Callable[[int], object]:
        place = folder / made.name.table
        place.mkdir()
        sent = [
            batches.history(place, keys=made.keys, size=size.batch, ordinal=number)
            for number in range(size.warm_up + size.repeat)
        ]
        return lambda number: lakes.apply(lake, made, sent[number], history=True)

    long_name, wide_name = f"{keys:,} x {longer} versions", f"{wider:,} x {VERSIONS} versions"
    grown(
        f"Growth: {size.batch:,} customers, from files, history and keys {LONGER} times",
        {
            f"{keys:,} x {VERSIONS} versions": into(
                customers.history(lake, "base", keys, VERSIONS)
            ),
            long_name: into(customers.history(lake, "longer", keys, longer)),
            wide_name: into(customers.history(lake, "wider", wider, VERSIONS)),
        },
        warm_up=size.warm_up,
        repeat=size.repeat,
        claims={long_name: 1.2, wide_name: 6.0},
    )


def compared(lake: Lake, folder: Path, size: Size, flags: argparse.Namespace) -> bool:
    """Measure ours and the other ways; return whether all tables are equal at the end."""
    say(f"Making {size.active * VERSIONS:,} versions, and copies")
    copies = Copies(lake, folder, size)
    contest = copies.contest()
    contest.run(copies.pairs(size.warm_up), warm_up=True)
    if flags.profile:
        batch = copies.batch()
        with profiled(lake.spark, "One history batch of ours, from files"):
            result = lakes.apply(lake, copies.ours, batch, history=True)
        show("Its stages", ("stage", "s"), list(result.seconds.items()))
        return True
    what = f"{size.batch:,} customers into {size.active:,} active versions with {VERSIONS} each"
    contest.run(copies.pairs(size.repeat))
    contest.show(what)
    contest.run(copies.pairs(max(1, size.repeat // 2), late=flags.late))
    contest.show(f"{what}; {flags.late:.1%} of them late by two versions")
    return copies.agree()


def measured(lake: Lake, folder: Path, size: Size, flags: argparse.Namespace) -> int:
    same = flags.only_growth or compared(lake, folder, size, flags)
    if not (flags.no_growth or flags.profile):
        say(f"\nMaking {size.growth * VERSIONS * (1 + LONGER + WIDER):,} versions for the growth")
        growth(lake, folder, size)
    return 0 if same else 1


def main() -> int:
    parser = lakes.options(__doc__, repeat=6)
    parser.add_argument("--active", type=int, default=2_000_000, help="active versions")
    parser.add_argument("--batch", type=int, default=20_000, help="customers of a batch")
    parser.add_argument("--late", type=float, default=0.01, help="part of a late batch's customers")
    parser.add_argument("--active-growth", type=int, default=500_000, help="the same, for growth")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--no-growth", action="store_true", help="leave growth out")
    part.add_argument("--only-growth", action="store_true", help="leave all but growth out")
    parser.add_argument("--profile", action="store_true", help="only show where the time goes")
    flags = parser.parse_args()
    size = Size(flags.active, flags.active_growth, flags.batch, flags.repeat)
    if flags.quick:
        size = Size(active=20_000, growth=5_000, batch=200, repeat=1, warm_up=1)
    with lakes.opened(flags) as (lake, folder):
        return measured(lake, folder, size, flags)


if __name__ == "__main__":
    sys.exit(main())
