"""Snapshot diff of a PostgreSQL table, of which 1 % has changed since the last run.

Claim: for 5,000,000 rows of ten columns a run costs at most 1.5 times reading the table once.

For comparison, the table is read in two ways: ours, which copies ranges of pages, and Spark's JDBC
reader with as many tasks. Also measured are a run without fingerprints, which compares all rows
with the table, and how a run grows from a tenth of the rows to all of them.

    python bench/snapshot_diff.py [--quick] [--rows N] [--repeat N]
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import psycopg

from chronolake.arrow_tasks import to_spark
from chronolake.config import Project
from chronolake.lake import Lake
from chronolake.source.postgres import catalog
from chronolake.source.postgres.connection import connect
from chronolake.source.postgres.initial_copy import lock_table, read_texts
from chronolake.source.postgres.snapshot import export_snapshot
from chronolake.source.relational.row_versions import RowKey
from harness import lakes, shop
from harness.clock import Times, say, show

sys.path[:0] = [str(Path(__file__).parents[1] / "examples")]

from postgresql import server  # noqa: E402

READ: Final = "read once, by ranges of pages"
JDBC: Final = "read once, Spark's JDBC reader"
RUN: Final = "a run, 1 % differs"
WHOLE: Final = "the same, all rows compared"


def changed(address: str, turn: int) -> None:
    """Change one row of a hundred; each turn changes others."""
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(
            "UPDATE orders SET visits = visits + 1, state = 'changed' "
            f"WHERE id % 100 = {turn % 100}"
        )


def read_once(lake: Lake, address: str) -> None:
    """Read all rows with their types, as a run does, and discard them."""
    with connect(address) as connection:
        (table,) = catalog.tables_in(connection, ["public"])
    with export_snapshot(address) as snapshot, lock_table(address, snapshot, table) as held:
        found, key = held.table.columns, RowKey.of(held.table)
        texts = read_texts(lake.spark, address, held)
        rows = to_spark(key.convert(texts, found, key.declare(found, out_of_range=set())))
        rows.write.format("noop").mode("overwrite").save()


def read_over_jdbc(lake: Lake, address: str, rows: int) -> None:
    """Read all rows with Spark's own reader, and discard them."""
    shop.over_jdbc(lake.spark, address, rows).write.format("noop").mode("overwrite").save()


def measured(address: str, lake: Lake, project: Project, rows: int, rounds: int) -> Times:
    times = Times()
    for turn in range(rounds + 1):
        if turn == 1:
            # The first turn compiles: it is not counted.
            times.forget()
        changed(address, turn)
        with times.of(READ):
            read_once(lake, address)
        with times.of(JDBC):
            read_over_jdbc(lake, address, rows)
        with times.of(RUN):
            shop.synced(lake, project)
        changed(address, turn + 50)
        with times.of(WHOLE):
            shop.synced(lake, project, full_refresh=True)
    return times


def main() -> int:
    parser = lakes.options(__doc__, repeat=3)
    parser.add_argument("--rows", type=int, help="rows of the table")
    flags: argparse.Namespace = parser.parse_args()
    rows = flags.rows or (20_000 if flags.quick else 5_000_000)
    found: dict[int, Times] = {}
    with ExitStack() as stack:
        address = stack.enter_context(server(max_wal_size="4GB"))
        lake, _ = stack.enter_context(lakes.opened(flags))
        project = shop.project_of(lake.config.path, address, ", method: snapshot_diff")
        shop.create(address)
        filled = 0
        for size in (rows // 10, rows):
            say(f"{size:,} rows")
            shop.fill(address, filled, size)
            filled = size
            shop.synced(lake, project)
            found[size] = measured(address, lake, project, size, flags.repeat)
    for size, times in found.items():
        show(
            f"{size:,} rows of ten columns",
            ("way", "s", "range", "against reading once"),
            [
                (way, times.median(way), times.spread(way), times.median(way) / times.median(READ))
                for way in (READ, JDBC, RUN, WHOLE)
            ],
        )
    ratio = found[rows].median(RUN) / found[rows].median(READ)
    verdict = "holds" if ratio <= 1.5 else "MISSED"
    say(f"\nA run at most 1.50 of reading once: {verdict} ({ratio:.2f})")
    growth = found[rows].median(RUN) / found[rows // 10].median(RUN)
    say(f"A run over ten times the rows costs {growth:.2f} times as much")
    return 0


if __name__ == "__main__":
    sys.exit(main())
