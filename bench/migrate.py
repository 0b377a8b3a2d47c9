"""Switching a table's mode against copying it, and migrations that must not grow with the table.

Claims: switching 10,000,000 rows to history costs at most 1.5 times CREATE TABLE AS SELECT of the
same table; renaming a table or a column, adding a column without a default, and dropping a column
take as long with 10,000,000 rows as with 100,000 (at most 1.5 times, for they take milliseconds).

Both ways read the same table and write every row; they run in turns, each round from a new copy of
the table's metadata.

    python bench/migrate.py [--quick] [--rows N] [--repeat N]
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Final

from chronolake import core
from chronolake.core import migration
from chronolake.lake import Lake
from chronolake.session import CATALOG
from chronolake.types import Column, ColumnType, Kind, Mode, TableName
from harness import customers, lakes
from harness.clock import Times, interleaved, say, show
from harness.customers import Made

SWITCH: Final = "switch to history"
COPY: Final = "CREATE TABLE AS SELECT"
SMALLER: Final = 100


def switched(lake: Lake, times: Times, made: Made, number: int) -> None:
    copy = customers.copied(lake, made, f"switched_{number}")
    with times.of(SWITCH):
        migration.switch_mode(lake, copy.name, Mode.HISTORY)
    lake.catalog.drop(copy.name, purge=False)


def created(lake: Lake, times: Times, made: Made, number: int) -> None:
    name = TableName(customers.SCHEMA, f"created_{number}")
    # The same properties as the product's tables, so that the same work is compared.
    options = ", ".join(f"'{key}' = '{value}'" for key, value in table_properties().items())
    with times.of(COPY):
        lake.spark.sql(
            f"CREATE TABLE {CATALOG}.{name.sql} USING iceberg TBLPROPERTIES ({options}) "
            f"AS SELECT * FROM {made.sql}"
        )
    lake.catalog.drop(name, purge=True)


def table_properties() -> dict[str, str]:
    from chronolake.core.create import PROPERTIES  # noqa: PLC0415 - not part of the public API

    return dict(PROPERTIES)


def small(lake: Lake, times: Times, made: Made, number: int) -> None:
    """Measure the migrations that change no rows."""
    copy = customers.copied(lake, made, f"small_{made.keys}_{number}")
    renamed = TableName(customers.SCHEMA, f"renamed_{made.keys}_{number}")
    wide = (*customers.LIVE, Column("extra", ColumnType(Kind.STRING)))
    with times.of("rename table"):
        migration.rename_table(lake, copy.name, renamed)
    with times.of("add column without default"):
        core.alter(lake, renamed, wide, drop_columns=False)
    with times.of("rename column"):
        migration.rename_column(lake, renamed, "extra", "more")
    with times.of("drop column"):
        core.alter(lake, renamed, customers.LIVE, drop_columns=True)
    lake.catalog.drop(renamed, purge=False)


def main() -> int:
    parser = lakes.options(__doc__, repeat=3)
    parser.add_argument("--rows", type=int, help="rows of the table")
    flags: argparse.Namespace = parser.parse_args()
    rows = flags.rows or (20_000 if flags.quick else 10_000_000)
    with lakes.opened(flags) as (lake, _):
        say(f"Making a table of {rows:,} rows, and one of {rows // SMALLER:,}")
        large = customers.live(lake, "large", rows)
        little = customers.live(lake, "little", rows // SMALLER)
        times = Times()
        ways = {
            SWITCH: partial(switched, lake, times, large),
            COPY: partial(created, lake, times, large),
        }
        interleaved(ways, [0])
        times.forget()
        interleaved(ways, range(1, 1 + flags.repeat))
        ratio = times.median(SWITCH) / times.median(COPY)
        show(
            f"{rows:,} rows",
            ("way", "median s", "min-max s", "ours / it", "claim"),
            [
                (SWITCH, times.median(SWITCH), times.spread(SWITCH), "", ""),
                (COPY, times.median(COPY), times.spread(COPY), ratio, "<= 1.50"),
            ],
        )
        both = {large.keys: Times(), little.keys: Times()}
        rounds = 5 * flags.repeat
        for number in range(rounds + 5):
            for made in (little, large):
                small(lake, both[made.keys], made, number)
            if number == 4:
                for times in both.values():
                    times.forget()
        show(
            "Migrations that touch no row, milliseconds",
            ("operation", f"{little.keys:,} rows", f"{large.keys:,} rows", "growth", "claim"),
            [
                (
                    name,
                    1_000 * both[little.keys].median(name),
                    1_000 * both[large.keys].median(name),
                    both[large.keys].median(name) / both[little.keys].median(name),
                    "<= 1.50",
                )
                for name in both[large.keys].seconds
            ],
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
