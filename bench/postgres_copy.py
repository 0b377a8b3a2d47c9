"""The first copy of a PostgreSQL table.

Claims, for 10,000,000 rows of ten columns:

1. They land in the raw lake in at most 2 times the time in which `psql` copies them to a file.
2. They are in the published table in at most 5 times that time.
3. That is sooner than the same by Spark's own JDBC reader, with as many tasks.

Ours is the first run of a pipeline that reads the log. Two other times are printed for comparison:
the first run of a pipeline without the log (`snapshot_diff`), for which the server also computes a
fingerprint of each row for the next run; and Spark's reader into a plain table without history.

    python bench/postgres_copy.py [--quick] [--rows N] [--repeat N]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from chronolake.config import Project
from chronolake.lake import Lake
from harness import lakes, shop
from harness.clock import Times, say, show

sys.path[:0] = [str(Path(__file__).parents[1] / "examples")]

from postgresql import psql, server  # noqa: E402

PSQL: Final = "psql, COPY to a file"
PLAIN: Final = "Spark's JDBC reader, to a plain table"
JDBC: Final = "Spark's JDBC reader, to the published history"
LANDED: Final = "ours, to the raw lake"
OURS: Final = "ours, to the published history"
COMPARED: Final = "the same, with fingerprints for the next run"


def copied_by_psql(address: str, file: Path) -> None:
    """Copy the table to a CSV file with `psql`."""
    with file.open("wb") as output:
        statement = "COPY orders TO STDOUT (FORMAT csv)"
        subprocess.run([str(psql()), address, "-qc", statement], check=True, stdout=output)
    file.unlink()


def copied_over_jdbc(lake: Lake, address: str, rows: int) -> None:
    """Copy the table to a plain Iceberg table over JDBC."""
    name = "chronolake.plain.orders"
    lake.spark.sql("CREATE NAMESPACE IF NOT EXISTS chronolake.plain")
    shop.over_jdbc(lake.spark, address, rows).writeTo(name).using("iceberg").create()
    lake.spark.sql(f"DROP TABLE {name} PURGE")


def copied_by_us(project: Project) -> tuple[float, float]:
    """Copy the table into a new lake in each round, which has no state of it."""
    with Lake.open(project.lake.path, config=project.lake) as lake:
        return shop.synced(lake, project)


def measured(address: str, lake: Lake, sent: Path, flags: argparse.Namespace, rows: int) -> Times:
    times = Times()
    for turn in range(flags.repeat + 1):
        if turn == 1:
            # The first turn compiles: it is not counted.
            times.forget()
        with times.of(PSQL):
            copied_by_psql(address, sent / "orders.csv")
        with times.of(PLAIN):
            copied_over_jdbc(lake, address, rows)
        _, published = copied_by_us(shop.jdbc_project_of(sent / f"jdbc{turn}", address))
        times.add(JDBC, published)
        shop.publish(address)
        landed, published = copied_by_us(shop.project_of(sent / f"lake{turn}", address))
        shop.unpublish(address)
        times.add(LANDED, landed)
        times.add(OURS, published)
        compared = shop.project_of(sent / f"diff{turn}", address, ", method: snapshot_diff")
        _, published = copied_by_us(compared)
        times.add(COMPARED, published)
    return times


def main() -> int:
    parser = lakes.options(__doc__, repeat=1)
    parser.add_argument("--rows", type=int, help="rows of the table")
    flags: argparse.Namespace = parser.parse_args()
    rows = flags.rows or (20_000 if flags.quick else 10_000_000)
    with ExitStack() as stack:
        address = stack.enter_context(server(wal_level="logical", max_wal_size="4GB"))
        lake, sent = stack.enter_context(lakes.opened(flags))
        say(f"Writing {rows:,} rows")
        shop.create(address)
        shop.fill(address, 0, rows)
        times = measured(address, lake, sent, flags, rows)
    base = times.median(PSQL)
    show(
        f"The first copy of {rows:,} rows of ten columns",
        ("way", "s", "range", "against psql"),
        [
            (way, times.median(way), times.spread(way), times.median(way) / base)
            for way in (PSQL, LANDED, OURS, COMPARED, JDBC, PLAIN)
        ],
    )
    for way, limit, other in ((LANDED, 2.0, PSQL), (OURS, 5.0, PSQL), (OURS, 1.0, JDBC)):
        ratio = times.median(way) / times.median(other)
        verdict = "holds" if ratio <= limit else "MISSED"
        say(f"{way}: at most {limit:.2f} of {other}: {verdict} ({ratio:.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
