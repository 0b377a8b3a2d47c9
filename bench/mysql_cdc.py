"""Changes of a MySQL table, from the server's binary log to the published history.

Claims, on two cores, for 500,000 changes of a table of ten columns:

1. The log is decoded at least five times as fast as Debezium's engine turns it into records.
2. Changes are in the published history about as fast as Debezium's engine reads them.
3. The first copy of a table is in the raw lake in half the time in which Debezium's engine reads
   it.

Side by side, on the same server and the same log:

* the log to columns: ours without landing; Debezium's engine with a consumer that only counts
  `SourceRecord`s, with the start of Java left out;
* the raw lake, and the published history: ours;
* the first copy: `mysqldump` into a file, Debezium's engine (`initial_only`) counting records, ours
  to the raw lake and to the published table.

    python bench/mysql_cdc.py [--quick] [--changes N] [--rows N] [--repeat N]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import urlsplit

ROOT: Final = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from harness import debezium, lakes, shop  # noqa: E402
from harness.clock import Times, say, show  # noqa: E402
from support.source.mysql_log import log_end, raw_cursor, read_log  # noqa: E402
from support.source.mysql_servers import server  # noqa: E402

DECODED: Final = "log to columns"
ENGINE: Final = "log to records, Debezium's engine"
LANDED: Final = "log to the raw lake"
PUBLISHED: Final = "log to the published history"
DUMP: Final = "copy, mysqldump"
ENGINE_COPY: Final = "copy, Debezium's engine"
LANDED_COPY: Final = "copy to the raw lake"
PUBLISHED_COPY: Final = "copy to the published table"
_TABLE: Final = (
    "CREATE TABLE orders (id INT PRIMARY KEY, customer INT, state TEXT, amount DECIMAL(12,2), "
    "rate DOUBLE, paid BOOL, day DATE, at TIMESTAMP(6) NULL, note TEXT, visits BIGINT)"
)
_ROW: Final = (
    "n, n % 1000, CONCAT('state ', n % 7), n / 100, n / 7, n % 2 = 0, "
    "DATE'2024-01-01' + INTERVAL n % 1000 DAY, NOW(6), CONCAT('note number ', n), 0"
)


def fill(dsn: str, first: int, upto: int, rows: int) -> None:
    """Insert rows with keys from `first` to before `upto`, `rows` in each statement."""
    with raw_cursor(dsn) as cursor:
        cursor.execute("SET SESSION cte_max_recursion_depth = 100000000")
        for begin in range(first, upto, rows):
            last = min(begin + rows, upto) - 1
            cursor.execute(
                f"INSERT INTO orders WITH RECURSIVE s AS (SELECT {begin} AS n UNION ALL "
                f"SELECT n + 1 FROM s WHERE n < {last}) SELECT {_ROW} FROM s"
            )


def changed(dsn: str, changes: int, rows: int) -> None:
    """Change rows: of ten changes, seven are updates, two inserts and one a delete."""
    keys = changes // 5
    fill(dsn, 0, keys, rows)
    with raw_cursor(dsn) as cursor:
        for turn in range(7):
            for begin in range(0, keys // 2, rows):
                upto = min(begin + rows, keys // 2)
                first = turn % 2 * (keys // 2)
                cursor.execute(
                    "UPDATE orders SET visits = visits + 1, state = 'changed' "
                    f"WHERE id >= {first + begin} AND id < {first + upto}"
                )
        cursor.execute(f"DELETE FROM orders WHERE id >= {keys // 2}")


def mark(dsn: str) -> None:
    """Write a row that lets Debezium's engine store an offset."""
    with raw_cursor(dsn) as cursor:
        cursor.execute("INSERT INTO marks VALUES (NULL)")
    time.sleep(0.5)


def streamed(dsn: str, port: int, flags: argparse.Namespace, times: Times) -> None:
    """Change rows, and read the log with both."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        tables = "shop.orders,shop.marks"
        debezium.seconds(
            port, folder, mode="no_data", table=tables, records=1, meanwhile=lambda: mark(dsn)
        )
        begins = log_end(dsn)
        changed(dsn, flags.changes, flags.rows)
        begin = time.perf_counter()
        changes, _ = read_log(dsn, begins, table="orders")
        times.add(DECODED, time.perf_counter() - begin)
        found = sum(change.number for change in changes)
        if found < flags.changes:
            raise RuntimeError(f"{found} changes were read")
        del changes
        _, seconds = debezium.seconds(
            port, folder, mode="no_data", table="shop.orders", records=flags.changes
        )
        times.add(ENGINE, seconds)


def copied(port: int, flags: argparse.Namespace, times: Times) -> None:
    """Copy a table with all."""
    with TemporaryDirectory() as name, (Path(name) / "dump").open("wb") as dump:
        begin = time.perf_counter()
        subprocess.run(
            [
                *("mysqldump", "--host=127.0.0.1", f"--port={port}", "--user=root", "--quick"),
                *("--single-transaction", "--skip-lock-tables", "shop", "orders"),
            ],
            stdout=dump,
            check=True,
        )
        times.add(DUMP, time.perf_counter() - begin)
        _, seconds = debezium.seconds(
            port, Path(name), mode="initial_only", table="shop.orders", records=flags.changes
        )
        times.add(ENGINE_COPY, seconds)


def main() -> int:
    parser = lakes.options(__doc__, repeat=1)
    parser.add_argument("--changes", type=int, help="row changes, and rows of the copied table")
    parser.add_argument("--rows", type=int, default=1_000, help="rows of a transaction")
    flags: argparse.Namespace = parser.parse_args()
    flags.changes = changes = flags.changes or (20_000 if flags.quick else 500_000)
    times = Times()
    debezium.jars()
    with ExitStack() as stack:
        address = stack.enter_context(server("mysql", innodb_buffer_pool_size="1G"))
        dsn, port = f"{address}/shop", urlsplit(address).port or 0
        with raw_cursor(f"{address}/mysql", database="mysql") as cursor:
            cursor.execute("CREATE DATABASE shop")
        with raw_cursor(dsn) as cursor:
            cursor.execute(_TABLE)
            cursor.execute("CREATE TABLE marks (id INT AUTO_INCREMENT PRIMARY KEY)")
        lake, _ = stack.enter_context(lakes.opened(flags))
        project = shop.mysql_project_of(lake.config.path, dsn)
        shop.synced(lake, project)
        for turn in range(flags.repeat + 1):
            say(f"{changes:,} changes")
            if turn == 1:
                # The first turn compiles: it is not counted.
                times.forget()
            streamed(dsn, port, flags, times)
            for name, seconds in zip((LANDED, PUBLISHED), shop.synced(lake, project), strict=True):
                times.add(name, seconds)
            with raw_cursor(dsn) as cursor:
                cursor.execute("TRUNCATE orders")
            fill(dsn, 0, changes, 10_000)
            copied(port, flags, times)
            found = shop.synced(lake, project, full_refresh=True)
            for name, seconds in zip((LANDED_COPY, PUBLISHED_COPY), found, strict=True):
                times.add(name, seconds)
            with raw_cursor(dsn) as cursor:
                cursor.execute("TRUNCATE orders")
            shop.synced(lake, project)
    for title, ways, other in (
        ("changes", (ENGINE, DECODED, LANDED, PUBLISHED), ENGINE),
        ("rows of a first copy", (DUMP, ENGINE_COPY, LANDED_COPY, PUBLISHED_COPY), DUMP),
    ):
        show(
            f"{changes:,} {title}, a table of ten columns",
            ("way", "s", "a second", f"against {other}"),
            [
                (
                    way,
                    times.median(way),
                    int(changes / times.median(way)),
                    times.median(way) / times.median(other),
                )
                for way in ways
            ],
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
