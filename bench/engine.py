"""Small commands in an engine that runs, and the time until a change is visible with `up`.

Claims, on two cores, for PostgreSQL tables with 1,000 rows:

1. A sync of five changed rows in an engine takes at most 1 second, as a whole process.
2. With `up` and `every: 1s`, a change is visible to a reader at most 2 seconds after its COMMIT
   (the median), for one table; it is also measured for 10 and 50 tables.

The alternatives are the same commands without an engine, and dlt's `scd2` into DuckDB, which has no
process that stays, if `make bench-tools` has made its environment.

    python bench/engine.py [--quick] [--repeat N] [--tables 1,10,50] [--changes N]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
from pyiceberg.expressions import And, EqualTo
from pyiceberg.table import StaticTable

from chronolake.session import java_home
from harness.clock import Times, machine, say, show
from startup import DLT_PYTHON, HARNESS

ROOT: Final = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "examples")]

from postgresql import server  # noqa: E402

COMMAND: Final = (sys.executable, "-m", "chronolake")
WARM: Final = "sync, 5 rows changed, in an engine"
COLD: Final = "sync, 5 rows changed, without"
IDLE: Final = "sync, nothing changed, in an engine"
QUERY: Final = "query, count(*), in an engine"
QUERY_COLD: Final = "query, count(*), without"
DLT: Final = "dlt scd2 into DuckDB, 5 rows changed"
COUNT: Final = "SELECT count(*) FROM shop.t0"
_START_SECONDS: Final = 300.0
_VISIBLE_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.01


class Shop:
    """Tables in a database, and the project that reads them."""

    def __init__(self, address: str, folder: Path, tables: int) -> None:
        self.address = address
        self.folder = folder
        self.tables = tables
        self.changes = 0
        self.environment = {
            **os.environ,
            "JAVA_HOME": java_home(),
            "SHOP_DSN": address,
            "XDG_RUNTIME_DIR": str(folder),
        }
        (folder / "dlt").mkdir()
        (folder / "chronolake.yml").write_text(
            "lake: {path: lake}\n"
            "up: {ui: off, health: off}\n"
            "pipelines:\n"
            "  shop: {source: {type: postgres, dsn: '${SHOP_DSN}'}, mode: history, every: 1s}\n"
        )
        with psycopg.connect(address, autocommit=True) as connection:
            for number in range(tables):
                connection.execute(
                    f"CREATE TABLE t{number} (id int PRIMARY KEY, name text, visits int)"
                )
                connection.execute(
                    f"INSERT INTO t{number} "
                    "SELECT n, 'name ' || n, 0 FROM generate_series(1, 1000) n"
                )

    def change(self, table: int, rows: int) -> int:
        """Change rows of a table; return the value that they have now."""
        self.changes += 1
        with psycopg.connect(self.address, autocommit=True) as connection:
            connection.execute(f"UPDATE t{table} SET visits = {self.changes} WHERE id <= {rows}")
        return self.changes

    def run(self, *words: str) -> None:
        done = subprocess.run(
            [*COMMAND, *words],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{words}: {done.stdout}{done.stderr}")

    def dlt(self) -> None:
        subprocess.run(
            [str(DLT_PYTHON), "-P", str(HARNESS / "dlt_shop.py"), str(self.folder / "dlt"), "t0"],
            cwd=self.folder,
            env={**self.environment, "CI": "true"},
            input=self.address,
            capture_output=True,
            text=True,
            check=True,
        )

    @contextmanager
    def started(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a command that stays, until the block ends; its engine is ready."""
        with (self.folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*COMMAND, *words], cwd=self.folder, env=self.environment, stdout=log, stderr=log
            )
        try:
            until = time.monotonic() + _START_SECONDS
            while self.state() is None or process.poll() is not None:
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError((self.folder / "log").read_text())
                time.sleep(1)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()

    def state(self) -> dict[str, Any] | None:
        done = subprocess.run(
            [*COMMAND, "engine", "status", "--json"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        state: dict[str, Any] = json.loads(done.stdout)
        return state if state["running"] else None

    def wait_until_visible(self, table: int, value: int, seconds: float = _VISIBLE_SECONDS) -> None:
        """Return as soon as a reader finds a value in a table.

        Raises:
            TimeoutError: no reader found it in this time.
        """
        until, seen = time.monotonic() + seconds, None
        while time.monotonic() < until:
            location = self.location(table)
            if location != seen and location is not None:
                seen = location
                found = StaticTable.from_metadata(location).scan(
                    And(EqualTo("visits", value), EqualTo("_fivetran_active", True)),
                    selected_fields=("id",),
                )
                if found.to_arrow().num_rows:
                    return
            time.sleep(_POLL_SECONDS)
        raise TimeoutError(f"t{table} has no row with visits = {value} after {seconds:.0f} s")

    def location(self, table: int) -> str | None:
        """Return where the current metadata of a table is stored, or None if it has none yet."""
        try:
            with sqlite3.connect(
                f"file:{self.folder}/lake/catalog.db?mode=ro", uri=True
            ) as catalog:
                row = catalog.execute(
                    "SELECT metadata_location FROM iceberg_tables WHERE table_name = ?",
                    (f"t{table}",),
                ).fetchone()
        except sqlite3.Error:
            return None
        return None if row is None else str(row[0])


def measure_commands(address: str, times: Times, repeat: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shop = Shop(address, Path(folder), 1)
        shop.run("check", "--create")
        shop.run("sync", "shop", "--no-engine")
        if DLT_PYTHON.exists():
            shop.dlt()
        with shop.started("engine", "run"):
            for _ in range(3):
                # The first statements of a JVM are slow, and are not what is measured.
                shop.change(0, 5)
                shop.run("sync", "shop")
                shop.run("query", COUNT)
            for turn in range(repeat):
                say(f"round {turn + 1}")
                for name, words, changes in (
                    (WARM, ("sync", "shop"), True),
                    (IDLE, ("sync", "shop"), False),
                    (QUERY, ("query", COUNT), False),
                    (COLD, ("sync", "shop", "--no-engine"), True),
                    (QUERY_COLD, ("query", COUNT, "--no-engine"), False),
                ):
                    if changes:
                        shop.change(0, 5)
                    elif words[0] == "sync":
                        # The run after a change acknowledges what was read of the log.
                        shop.run(*words)
                    with times.of(name):
                        shop.run(*words)
                if DLT_PYTHON.exists():
                    shop.change(0, 5)
                    with times.of(DLT):
                        shop.dlt()


def measure_latency(address: str, tables: int, changes: int) -> tuple[float, float, float]:
    """Return the median and the 95th percentile of the seconds until changes are visible.

    The third value is the memory of Java in MiB.
    """
    with tempfile.TemporaryDirectory() as folder:
        shop = Shop(address, Path(folder), tables)
        shop.run("check", "--create")
        with shop.started("up"):
            for table in range(tables):
                shop.wait_until_visible(table, 0)
            waited = []
            for number in range(changes + 5):
                table = number % tables
                value = shop.change(table, 3)
                began = time.monotonic()
                shop.wait_until_visible(table, value)
                if number >= 5:
                    waited.append(time.monotonic() - began)
            state = shop.state() or {}
        ordered = sorted(waited)
        return (
            statistics.median(ordered),
            ordered[int(len(ordered) * 0.95)],
            state.get("memory_bytes", 0) / 2**20,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round: shows that it works")
    parser.add_argument("--repeat", type=int, default=5, help="measured rounds of commands")
    parser.add_argument("--tables", default="1,10,50", help="numbers of tables for `up`")
    parser.add_argument("--changes", type=int, default=60, help="changes for each number of tables")
    flags = parser.parse_args()
    say(machine())
    times = Times()
    with server(wal_level="logical") as address:
        measure_commands(address, times, 1 if flags.quick else flags.repeat)
    rows = [(name, times.median(name), times.spread(name)) for name in times.seconds]
    show("Whole processes", ("command", "s", "of"), rows)
    latencies = []
    for tables in [1] if flags.quick else map(int, flags.tables.split(",")):
        with server(wal_level="logical") as address:
            say(f"up with {tables} tables")
            found = measure_latency(address, tables, 10 if flags.quick else flags.changes)
            latencies.append((f"{tables} tables", *found))
    show("From COMMIT to visible, with up", ("tables", "median s", "95 % s", "MiB"), latencies)
    show(
        "Claims",
        ("claim", "seconds", "at most"),
        [(WARM, times.median(WARM), 1.0), ("visible, 1 table", latencies[0][1], 2.0)],
    )


if __name__ == "__main__":
    main()
