r"""The publication of a table to PostgreSQL and MariaDB.

Claim, for 10,000,000 rows of eight columns with a primary key: the first load takes at most 3 times
the time in which `psql \copy` (for MariaDB: one `LOAD DATA LOCAL`) loads the same rows from a file,
and creates the primary key. The file is on the same disk; the time to write it is not counted.

The time of changes of 1 % of the rows, which are in all data files, is printed for comparison.

    python bench/targets.py [--rows N] [--databases postgres,mariadb]
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pymysql
import structlog

from chronolake import core
from chronolake.config import MysqlTarget, PostgresTarget, RelationalTarget, load
from chronolake.lake import Lake
from chronolake.target.publication import publish_table
from chronolake.target.selection import TargetTable, database_of, relation_of
from chronolake.types import Column, ColumnType, Kind, TableName

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("examples", "tests")]

from postgresql import psql, server  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME: Final = TableName("sales", "orders")
COLUMNS: Final = (
    Column("id", ColumnType(Kind.LONG), primary_key=True),
    Column("customer", ColumnType(Kind.LONG)),
    Column("status", ColumnType(Kind.STRING)),
    Column("note", ColumnType(Kind.STRING)),
    Column("amount", ColumnType(Kind.DECIMAL, 12, 2)),
    Column("placed", ColumnType(Kind.UTC_DATETIME)),
    Column("paid", ColumnType(Kind.BOOLEAN)),
    Column("_fivetran_synced", ColumnType(Kind.UTC_DATETIME)),
)
_ROWS: Final = """SELECT id, id % 100003 AS customer,
  element_at(array('new', 'paid', 'sent', 'back'), CAST(id % 4 + 1 AS int)) AS status,
  concat('order ', id, ' of a customer') AS note, CAST(id % 1000000 / 100 AS decimal(12,2))
  AS amount, timestamp_micros(1700000000000000 + id * 1000003) AS placed, id % 3 = 0 AS paid,
  timestamp'2026-01-01 00:00:00' AS _fivetran_synced FROM range({rows})"""
_POSTGRES: Final = """CREATE TABLE plain (id bigint NOT NULL, customer bigint, status text,
  note text, amount numeric(12,2), placed timestamptz, paid boolean, synced timestamptz)"""
_MYSQL: Final = """CREATE TABLE plain (id bigint NOT NULL, customer bigint, status longtext,
  note longtext, amount decimal(12,2), placed datetime(6), paid tinyint(1), synced timestamp(6)
  NULL) CHARACTER SET utf8mb4"""


@contextmanager
def databases(kind: str) -> Iterator[RelationalTarget]:
    """Run a server, and yield the settings of a target in it."""
    if kind == "postgres":
        with server(max_wal_size="8GB", shared_buffers="512MB") as address:
            yield PostgresTarget(type="postgres", dsn=address, tables=["*"])
        return
    from support.source import mysql_servers  # noqa: PLC0415 - needs an installed server

    with mysql_servers.server(
        kind, local_infile="1", innodb_buffer_pool_size="512M", skip_log_bin="1"
    ) as address:
        _run_mysql(address, "CREATE DATABASE reporting")
        yield MysqlTarget(type="mysql", dsn=f"{address}/reporting", tables=["*"])


def _run_mysql(address: str, *statements: str) -> None:
    host, _, port = address.split("@")[1].partition("/")[0].partition(":")
    database = address.partition("@")[2].partition("/")[2] or None
    connection = pymysql.connect(
        host=host, port=int(port), user="root", database=database, local_infile=True
    )
    with connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        connection.commit()


def load_file(config: RelationalTarget, file: Path) -> float:
    """Load a file as the database's own program does, and create the key; return the seconds."""
    began = time.monotonic()
    if isinstance(config, PostgresTarget):
        copy = f"\\copy plain FROM '{file}'"
        key = "ALTER TABLE plain ADD PRIMARY KEY (id)"
        words = [part for text in (_POSTGRES, copy, key, "ANALYZE plain") for part in ("-c", text)]
        subprocess.run([str(psql()), config.dsn, "-q", *words], check=True)
    else:
        _run_mysql(
            config.dsn,
            _MYSQL,
            f"LOAD DATA LOCAL INFILE '{file}' INTO TABLE plain",
            "ALTER TABLE plain ADD PRIMARY KEY (id)",
        )
    return time.monotonic() - began


def write_file(lake: Lake, config: RelationalTarget, folder: Path) -> Path:
    """Write the rows in the text format that both databases read."""
    is_mysql = isinstance(config, MysqlTarget)
    rows = lake.spark.sql(
        "SELECT concat_ws('\\t', id, customer, status, note, amount, "
        "date_format(placed, 'yyyy-MM-dd HH:mm:ss.SSSSSS'), "
        f"{'CAST(paid AS int)' if is_mysql else 'paid'}, "
        "date_format(_fivetran_synced, 'yyyy-MM-dd HH:mm:ss')) FROM sales.orders"
    )
    parts = folder / f"parts-{config.type}"
    rows.write.text(str(parts))
    file = folder / f"{config.type}.tsv"
    with file.open("wb") as output:
        for part in sorted(parts.glob("part-*.txt")):
            with part.open("rb") as source:
                while chunk := source.read(2**22):
                    output.write(chunk)
            part.unlink()
    folder.chmod(0o755)
    return file


def publish(lake: Lake, config: RelationalTarget) -> float:
    """Publish the table, and return the seconds."""
    table = TargetTable(NAME, relation_of(config, NAME))
    result = publish_table(lake, "bench", database_of("bench", config), table)
    print(f"  {result.outcome}: {dict(result.rows)} in {result.seconds:.1f} s", flush=True)
    return result.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--databases", default="postgres,mariadb")
    flags = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory(prefix="bench-targets-") as name:
        folder = Path(name)
        lake_config = load(folder / "lake", overrides={"spark.master": "local[2]"})
        with Lake.open(folder / "lake", config=lake_config) as lake:
            core.create(lake, NAME, COLUMNS)
            lake.sql(f"INSERT INTO sales.orders {_ROWS.format(rows=flags.rows)}")
            for kind in flags.databases.split(","):
                with databases(kind) as config:
                    measure(lake, kind, config, folder, flags.rows)


def measure(lake: Lake, kind: str, config: RelationalTarget, folder: Path, rows: int) -> None:
    """Measure one database, and print the ratios."""
    print(f"{kind}, {rows:,} rows", flush=True)
    file = write_file(lake, config, folder)
    plain = load_file(config, file)
    size = file.stat().st_size
    file.unlink()
    own = "psql \\copy" if kind == "postgres" else "LOAD DATA LOCAL"
    print(f"  {own} and the key: {plain:.1f} s ({size / 2**20:.0f} MiB)", flush=True)
    ours = publish(lake, config)
    print(f"  first load / {own}: {ours / plain:.2f}", flush=True)
    lake.sql(f"UPDATE sales.orders SET status = 'late' WHERE id % 100 = {len(kind)}")
    changed = publish(lake, config)
    print(f"  changes of 1 % / first load: {changed / ours:.2f}", flush=True)


if __name__ == "__main__":
    main()
