"""Small commands from a shell, as whole processes: five changed rows, no change, and a query.

Claims, on two cores, for two PostgreSQL tables with 1,000 and 2,000 rows:

1. A sync without changes takes at most 2 seconds.
2. A sync of five changed rows takes at most 0.65 of a bare program with PySpark and Iceberg that
   creates a table and inserts five rows, and at most 1.4 of the same program with an archive of
   its classes and Java's options for small work.

dlt's `scd2` strategy into DuckDB does the same as ours in turns with it, if `make bench-tools` has
made its environment.

    python bench/startup.py [--quick] [--repeat N]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psycopg

from chronolake import jars
from chronolake.class_archive import archive_file
from chronolake.session import java_home
from harness.clock import Times, machine, say, show

ROOT: Final = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "examples")]

from postgresql import server  # noqa: E402

HARNESS: Final = ROOT / "bench" / "harness"
DLT_PYTHON: Final = ROOT / ".venv-bench" / "bin" / "python"
COMMAND: Final = (sys.executable, "-c", "from chronolake.cli import main; main()")
SMALL: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

COPY: Final = "sync, first copy"
CHANGED: Final = "sync, 5 rows changed"
CHANGED_OFF: Final = "sync, 5 rows changed, without the archive of classes"
IDLE: Final = "sync, nothing changed"
QUERY: Final = "query, count(*)"
BARE: Final = "bare PySpark and Iceberg, 5 rows"
BARE_FAST: Final = "the same with an archive, C1 and serial GC"
DLT: Final = "dlt scd2 into DuckDB, 5 rows changed"
DLT_IDLE: Final = "dlt scd2 into DuckDB, nothing changed"

#: What is measured, what it is compared with, and the most that it may take of that.
CLAIMS: Final = ((CHANGED, BARE, 0.65), (CHANGED, BARE_FAST, 1.4))


class Shop:
    """Two tables in a database, and the projects that read them."""

    def __init__(self, address: str, folder: Path, times: Times) -> None:
        self.address = address
        self.folder = folder
        self.times = times
        self._turn = 0
        (folder / "dlt").mkdir()
        (folder / "chronolake.yml").write_text(
            "lake: {path: lake}\n"
            "pipelines:\n"
            "  shop: {source: {type: postgres, dsn: '${SHOP_DSN}'}, mode: history}\n"
        )
        self._run(
            "CREATE TABLE customers (id int PRIMARY KEY, name text, visits int)",
            "INSERT INTO customers SELECT n, 'name ' || n, 0 FROM generate_series(1, 1000) n",
            "CREATE TABLE orders (id int PRIMARY KEY, customer int, amount numeric(12,2))",
            "INSERT INTO orders SELECT n, n % 1000 + 1, n / 7.0 FROM generate_series(1, 2000) n",
        )

    def _run(self, *statements: str) -> None:
        with psycopg.connect(self.address, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def change(self) -> None:
        """Change five rows of one table."""
        self._turn += 1
        first = self._turn * 5
        self._run(
            f"UPDATE customers SET visits = visits + 1 WHERE id BETWEEN {first} AND {first + 4}"
        )

    def command(self, name: str, *words: str, **environment: str) -> None:
        """Run a command of ours as a process."""
        self._time(name, [*COMMAND, *words], {"SHOP_DSN": self.address, **environment})

    def dlt(self, name: str) -> None:
        """Run dlt as a process, if it is installed."""
        if DLT_PYTHON.exists():
            program = [
                str(DLT_PYTHON),
                "-P",
                str(HARNESS / "dlt_shop.py"),
                str(self.folder / "dlt"),
                "customers",
                "orders",
            ]
            self._time(name, program, {}, sent=self.address)

    def bare(self, name: str, options: str) -> None:
        """Run the bare program as a process."""
        with tempfile.TemporaryDirectory(dir=self.folder) as lake:
            files = ",".join(str(path) for path in jars.paths(java_home()))
            program = [
                sys.executable,
                "-P",
                str(HARNESS / "bare_iceberg.py"),
                lake,
                files,
                options,
            ]
            self._time(name, program, {})

    def _time(
        self, name: str, program: list[str], environment: Mapping[str, str], *, sent: str = ""
    ) -> None:
        with self.times.of(name):
            done = subprocess.run(
                program,
                cwd=self.folder,
                env={**os.environ, "CI": "true", "JAVA_HOME": java_home(), **environment},
                input=sent,
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode != 0:
            raise RuntimeError(f"{name}: {done.stdout}{done.stderr}")


def measured(shop: Shop, repeat: int) -> None:
    archive = shop.folder / "bare.jsa"
    say("prepare")
    subprocess.run([sys.executable, "-m", "chronolake.class_training"], check=True)
    shop.bare("prepare", f"{SMALL} -XX:ArchiveClassesAtExit={archive}")
    shop.command("prepare", "check", "--create")
    shop.command(COPY, "sync", "shop")
    shop.dlt("prepare")
    for turn in range(repeat):
        say(f"round {turn + 1}")
        shop.change()
        shop.command(CHANGED, "sync", "shop")
        shop.dlt(DLT)
        # The run after a change acknowledges what was read of the log.
        shop.command("prepare", "sync", "shop")
        shop.command(IDLE, "sync", "shop")
        shop.dlt(DLT_IDLE)
        shop.bare(BARE, "")
        shop.bare(BARE_FAST, f"{SMALL} -XX:SharedArchiveFile={archive} -Xlog:disable")
        shop.command(QUERY, "query", "SELECT count(*) FROM shop.customers")
        shop.change()
        shop.command(CHANGED_OFF, "sync", "shop", CHRONOLAKE_CLASS_ARCHIVE="off")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round: shows that it works")
    parser.add_argument("--repeat", type=int, default=3, help="measured rounds")
    flags = parser.parse_args()
    say(machine())
    times = Times()
    with server(wal_level="logical") as address, tempfile.TemporaryDirectory() as folder:
        measured(Shop(address, Path(folder), times), 1 if flags.quick else flags.repeat)
    del times.seconds["prepare"]
    say(f"\narchive of classes: {archive_file(java_home()).stat().st_size / 2**20:.0f} MiB")
    floor = times.median(BARE_FAST)
    rows = [
        (name, times.median(name), times.spread(name), times.median(name) / floor)
        for name in times.seconds
    ]
    show("Whole processes", ("command", "s", "of", f"of {BARE_FAST[:8]} archive"), rows)
    show(
        "Claims",
        ("claim", "ratio", "at most"),
        [
            *(
                (f"{name} / {other}", times.median(name) / times.median(other), most)
                for name, other, most in CLAIMS
            ),
            (f"{IDLE}, in seconds", times.median(IDLE), 2.0),
        ],
    )


if __name__ == "__main__":
    main()
