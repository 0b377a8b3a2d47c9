"""What `up` occupies while it follows changes, and what it uses while nothing changes.

Claims, on two cores, for PostgreSQL tables with 1,000 rows and `every: 1s`:

1. With three changes a second over 10 tables for 30 minutes, memory is flat: its mean over the last
   10 minutes is at most 10 % above that of minutes 5 to 15, for Python and for Java.
2. The log that the replication slot retains is bounded by a segment and what is written meanwhile:
   64 MiB.

How much of the processors `up` uses with 50 tables without changes is measured, without a claim.

    python bench/up_memory.py [--quick] [--tables N] [--minutes N] [--idle-tables N]
                              [--idle-minutes N]
"""

from __future__ import annotations

import argparse
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
from pyiceberg.table import StaticTable

from chronolake.session import java_home
from engine import ROOT, Shop
from harness.clock import machine, say, show

sys.path[:0] = [str(ROOT / "examples")]

from postgresql import server  # noqa: E402

CHANGES_PER_SECOND: Final = 3
MOST_GROWTH: Final = 1.10
MOST_RETAINED_MIB: Final = 64.0
#: The log that a slot retains varies within a run, so that it is measured more often than the rest.
_SLOT_SECONDS: Final = 5.0
_PROBE_SECONDS: Final = 5.0
#: The first copy may take this long on a machine that does other work.
_COPY_SECONDS: Final = 600.0
#: Rows up to this id are changed by measurements of the time until a change is visible only.
_PROBED_ROWS: Final = 3
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_USED: Final = re.compile(r"\bused (\d+)K")
_SLOT: Final = """
    SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::float8,
           pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::float8
    FROM pg_replication_slots
"""


@dataclass(frozen=True)
class Process:
    """A process, read from /proc.

    Attributes:
        parent: the id of the process that started it.
        is_java: whether it is a JVM.
        is_zombie: whether it has ended, and its parent has not asked how.
        ticks: processor time of the process and of its children that have ended.
    """

    pid: int
    parent: int
    is_java: bool
    is_zombie: bool
    ticks: int

    @property
    def _folder(self) -> Path:
        return Path(f"/proc/{self.pid}")

    @property
    def threads(self) -> int:
        return len(list((self._folder / "task").iterdir()))

    @property
    def descriptors(self) -> int:
        return len(list((self._folder / "fd").iterdir()))

    def memory(self, measure: str) -> float:
        """Return the resident (`Rss`) or the proportional (`Pss`) memory in MiB.

        Forks share most of their memory, which `Pss` divides among them.
        """
        for line in (self._folder / "smaps_rollup").read_text().splitlines():
            if line.startswith(f"{measure}:"):
                return int(line.split()[1]) / 1024
        raise ValueError(measure)


def processes_below(root: int) -> list[Process]:
    """Return a process and all that it started, directly or not."""
    everything = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                text = (folder / "stat").read_text()
            except OSError:
                continue  # It has ended.
            name, _, rest = text.partition("(")[2].rpartition(")")
            fields = rest.split()
            is_zombie = fields[0] == "Z"
            ticks = sum(map(int, fields[11:15]))
            process = Process(int(folder.name), int(fields[1]), name == "java", is_zombie, ticks)
            everything.append(process)
    found = [process for process in everything if process.pid == root]
    for process in found:
        found += [child for child in everything if child.parent == process.pid]
    return found


@dataclass(frozen=True)
class Occupied:
    """What the processes of `up` occupy at one time; memory in MiB.

    Attributes:
        python: the proportional memory of all Python processes together.
        up: the resident memory of the first one.
        java: the resident memory of Java.
        heap: the used part of Java's heap, garbage included.
        metaspace: the used part of Java's metaspace.
        python_threads: of all Python processes together, as `python_descriptors`.
    """

    python: float
    up: float
    java: float
    heap: float
    metaspace: float
    processes: int
    zombies: int
    python_threads: int
    python_descriptors: int
    java_threads: int
    java_descriptors: int

    @classmethod
    def of(cls, up: int) -> Occupied:
        """Measure.

        Raises:
            OSError: a process ended meanwhile.
        """
        below = processes_below(up)
        python = [found for found in below if not found.is_java and not found.is_zombie]
        (java,) = (process for process in below if process.is_java)
        heap, metaspace = _heap(java.pid)
        return cls(
            python=sum(process.memory("Pss") for process in python),
            up=python[0].memory("Rss"),
            java=java.memory("Rss"),
            heap=heap,
            metaspace=metaspace,
            processes=len(python),
            zombies=sum(found.is_zombie for found in below),
            python_threads=sum(process.threads for process in python),
            python_descriptors=sum(process.descriptors for process in python),
            java_threads=java.threads,
            java_descriptors=java.descriptors,
        )


def _heap(java: int, *, collect: bool = False) -> tuple[float, float]:
    """Return the used heap and metaspace of a JVM in MiB, after a garbage collection if wanted."""
    jcmd = str(Path(java_home()) / "bin" / "jcmd")
    if collect:
        subprocess.run([jcmd, str(java), "GC.run"], capture_output=True, check=True)
    text = subprocess.run(
        [jcmd, str(java), "GC.heap_info"], capture_output=True, text=True, check=True
    ).stdout
    heap = metaspace = 0
    for line in text.splitlines():
        if found := _USED.search(line):
            used = int(found[1])
            if line.strip().startswith("Metaspace"):
                metaspace = used
            elif not line.strip().startswith("class space"):
                heap += used
    return heap / 1024, metaspace / 1024


class Slot:
    """The log that the replication slot retains, in a thread of its own."""

    def __init__(self, address: str) -> None:
        self._connection = psycopg.connect(address, autocommit=True)
        self._most = (0.0, 0.0)

    def read(self) -> None:
        row = self._connection.execute(_SLOT).fetchone()
        assert row is not None
        self._most = max(self._most[0], row[0]), max(self._most[1], row[1])

    def most(self) -> tuple[float, float]:
        """Return the most that was retained since the last call, and the most unconfirmed: MiB."""
        self.read()
        retained, unconfirmed = self._most
        self._most = 0.0, 0.0
        return retained / 2**20, unconfirmed / 2**20


@contextmanager
def repeated(seconds: float, work: Any) -> Iterator[None]:
    """Call a function at an interval in a thread, until the block ends."""
    ended = threading.Event()

    def repeat() -> None:
        due = time.monotonic()
        while not ended.is_set():
            work()
            due = max(due + seconds, time.monotonic())
            ended.wait(due - time.monotonic())

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class Changes:
    """Single rows that change, one table after the other."""

    def __init__(self, address: str, tables: int) -> None:
        self._connection = psycopg.connect(address, autocommit=True)
        self._tables = tables
        self.made = 0

    def make(self) -> None:
        self.made += 1
        row = _PROBED_ROWS + 1 + self.made % (1000 - _PROBED_ROWS)
        self._connection.execute(
            f"UPDATE t{self.made % self._tables} SET name = 'name {self.made}' WHERE id = {row}"
        )


def lake_of(shop: Shop) -> tuple[int, float, int]:
    """Return the number of files of a lake, their size in MiB and the number of visible rows."""
    sizes = [entry.stat().st_size for entry in _files(shop.folder / "lake")]
    rows = 0
    for table in range(shop.tables):
        location = shop.location(table)
        assert location is not None
        scan = StaticTable.from_metadata(location).scan(selected_fields=("id",))
        rows += scan.to_arrow().num_rows
    return len(sizes), sum(sizes) / 2**20, rows


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(Path(entry.path))
            else:
                yield entry


def _attempted(measure: Any) -> Any:
    """Return what a function returns; again if a file or process was removed meanwhile."""
    for _ in range(20):
        try:
            return measure()
        except OSError:
            time.sleep(0.2)
    return measure()


@dataclass(frozen=True)
class Minute:
    """What was measured at the end of a minute.

    Attributes:
        retained: the most that the slot retained in this minute, in MiB.
        unconfirmed: the most that was not confirmed, in MiB.
        visible: the median seconds from COMMIT to visible.
    """

    number: int
    occupied: Occupied
    retained: float
    unconfirmed: float
    files: int
    mebibytes: float
    rows: int
    visible: float

    HEADER = (
        "minute", "Python", "up RSS", "Java RSS", "heap", "metaspace", "processes", "zombies",
        "threads", "fds", "Java threads", "Java fds", "retained", "unconfirmed", "files",
        "lake", "rows", "visible s",
    )  # fmt: skip

    def cells(self) -> tuple[object, ...]:
        now = self.occupied
        sizes = (now.python, now.up, now.java, now.heap, now.metaspace)
        return (
            str(self.number), *map(round, sizes), now.processes, now.zombies,
            now.python_threads, now.python_descriptors, now.java_threads, now.java_descriptors,
            self.retained, self.unconfirmed, self.files, round(self.mebibytes), self.rows,
            self.visible,
        )  # fmt: skip


class Probes:
    """Seconds from COMMIT to visible, of one change after the other, in a thread of its own."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._waited: list[float] = []

    def make(self) -> None:
        table = self._shop.changes % self._shop.tables
        value = self._shop.change(table, _PROBED_ROWS)
        began = time.monotonic()
        try:
            self._shop.wait_until_visible(table, value)
        except TimeoutError as error:
            say(str(error))
        self._waited.append(time.monotonic() - began)

    def median(self) -> float:
        """Return the median since the last call; NaN without any."""
        waited, self._waited = self._waited, []
        return statistics.median(waited) if waited else math.nan


def measure_changes(address: str, tables: int, minutes: int) -> list[Minute]:
    """Measure each minute of `up` while rows change."""
    measured = []
    with tempfile.TemporaryDirectory() as folder:
        shop = Shop(address, Path(folder), tables)
        shop.run("check", "--create")
        with shop.started("up") as process:
            for table in range(tables):
                shop.wait_until_visible(table, 0, _COPY_SECONDS)
            slot, changes, probes = Slot(address), Changes(address, tables), Probes(shop)
            began = time.monotonic()
            say(" | ".join(Minute.HEADER))
            with (
                repeated(1 / CHANGES_PER_SECOND, changes.make),
                repeated(_SLOT_SECONDS, slot.read),
                repeated(_PROBE_SECONDS, probes.make),
            ):
                for number in range(1, minutes + 1):
                    time.sleep(max(0.0, began + 60 * number - time.monotonic()))
                    occupied = _attempted(lambda: Occupied.of(process.pid))
                    retained, unconfirmed = slot.most()
                    files, mebibytes, rows = _attempted(lambda: lake_of(shop))
                    minute = Minute(
                        number, occupied, retained, unconfirmed, files, mebibytes, rows,
                        probes.median(),
                    )  # fmt: skip
                    measured.append(minute)
                    say(" | ".join(str(cell) for cell in minute.cells()))
            (java,) = (found for found in processes_below(process.pid) if found.is_java)
            heap, metaspace = _heap(java.pid, collect=True)
            say(
                f"{changes.made} changes; after a collection at the end, {heap:.0f} MiB of heap "
                f"and {metaspace:.0f} of metaspace; {_heap_settings(java.pid)}"
            )
    return measured


def _heap_settings(java: int) -> str:
    words = Path(f"/proc/{java}/cmdline").read_text().split("\0")
    return " ".join(word for word in words if word.startswith(("-Xm", "-XX:+Use")))


def measure_idle(address: str, tables: int, minutes: int) -> list[tuple[str, float, float]]:
    """Return seconds of processors that `up` and the server used while nothing changed.

    Each row has the seconds, and their part of the time.
    """
    with tempfile.TemporaryDirectory() as folder:
        shop = Shop(address, Path(folder), tables)
        shop.run("check", "--create")
        with shop.started("up") as process, psycopg.connect(address) as connection:
            for table in range(tables):
                shop.wait_until_visible(table, 0, _COPY_SECONDS)
            backend = connection.info.backend_pid
            (postmaster,) = (found.parent for found in processes_below(backend)[:1])
            time.sleep(60)  # The compiler still works on the first copies.
            before, began = _used(process.pid, postmaster), time.monotonic()
            time.sleep(60 * minutes)
            after, elapsed = _used(process.pid, postmaster), time.monotonic() - began
    return [(name, after[name] - before[name], (after[name] - before[name]) / elapsed * 100)
            for name in before]  # fmt: skip


def _used(up: int, postmaster: int) -> dict[str, float]:
    below = processes_below(up)
    return {
        "Python": sum(found.ticks for found in below if not found.is_java) / _TICKS,
        "Java": sum(found.ticks for found in below if found.is_java) / _TICKS,
        "PostgreSQL": sum(found.ticks for found in processes_below(postmaster)) / _TICKS,
    }


def growth(measured: list[Minute]) -> list[tuple[str, float, float, float]]:
    """Return means of minutes 5 to 15 and of the last 10 minutes, and their ratio."""
    early = [minute for minute in measured if 5 <= minute.number <= 15] or measured
    late = measured[-10:]
    rows = []
    for name in ("python", "up", "java", "heap", "metaspace"):
        before, after = (
            statistics.mean(getattr(minute.occupied, name) for minute in minutes)
            for minutes in (early, late)
        )
        rows.append((name, before, after, after / before))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two minutes: shows that it works")
    parser.add_argument("--tables", type=int, default=10, help="tables that change")
    parser.add_argument("--minutes", type=int, default=30, help="minutes of changes; 0: none")
    parser.add_argument("--idle-tables", type=int, default=50, help="tables without changes")
    parser.add_argument("--idle-minutes", type=int, default=5, help="minutes without; 0: none")
    flags = parser.parse_args()
    say(machine())
    minutes, idle = (2, 1) if flags.quick else (flags.minutes, flags.idle_minutes)
    if minutes:
        with server(wal_level="logical") as address:
            measured = measure_changes(address, flags.tables, minutes)
        rows = [minute.cells() for minute in measured if minute.number % 5 == 0 or minutes < 5]
        show(f"up with {flags.tables} tables; sizes in MiB", Minute.HEADER, rows)
        grown = growth(measured)
        show("Means in MiB", ("", "minutes 5-15", "last 10", "ratio"), grown)
        ratios = {name: ratio for name, _, _, ratio in grown}
        show(
            "Claims",
            ("claim", "measured", "at most"),
            [
                ("memory of Python, last 10 minutes", ratios["python"], MOST_GROWTH),
                ("memory of Java, last 10 minutes", ratios["java"], MOST_GROWTH),
                ("MiB of log retained", max(m.retained for m in measured), MOST_RETAINED_MIB),
            ],
        )
    if idle:
        with server(wal_level="logical") as address:
            used = measure_idle(address, flags.idle_tables, idle)
        title = f"{flags.idle_tables} tables without changes, {idle} minutes"
        show(title, ("process", "s of processors", "% of one core"), used)


if __name__ == "__main__":
    main()
