"""Timing of several ways to do the same work, and tables of the results."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version

#: The ways by name; each runs the batch of a number.
Ways = Mapping[str, Callable[[int], None]]


class Times:
    """Seconds of repeated work, by name."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Add the time of the block to `name`, if it raises nothing."""
        begin = time.perf_counter()
        yield
        self.add(name, time.perf_counter() - begin)

    def add(self, name: str, seconds: float) -> None:
        """Add a time that was measured elsewhere."""
        self.seconds[name].append(seconds)

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def percentile(self, name: str, percent: int) -> float:
        ordered = sorted(self.seconds[name])
        return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]

    def spread(self, name: str) -> str:
        return f"{min(self.seconds[name]):.2f}-{max(self.seconds[name]):.2f}"

    def forget(self) -> None:
        """Discard all times, after the warm-up."""
        self.seconds.clear()


def interleaved(ways: Ways, rounds: Sequence[int]) -> None:
    """Run every way in every round, each round beginning with another one: A B C, B C A, ..."""
    names = list(ways)
    for place, number in enumerate(rounds):
        first = place % len(names)
        for name in names[first:] + names[:first]:
            ways[name](number)


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table: the first column aligned left, the others right."""
    texts = [list(header), *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(row[place]) for row in texts) for place in range(len(header))]
    print(f"\n{title}")
    for number, row in enumerate(texts):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  " + "  ".join(cells).rstrip())
        if number == 0:
            print("  " + "  ".join("-" * width for width in widths))


def _text(cell: object) -> str:
    return f"{cell:.2f}" if isinstance(cell, float) else str(cell)


def say(text: str) -> None:
    """Print a line and flush it: some steps take minutes."""
    print(text, flush=True)


def machine() -> str:
    """Describe the machine and the versions of the measured programs."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    names = ("pyspark", "duckdb", "pyarrow")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    return (
        f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, {versions}; load {os.getloadavg()[0]:.1f}"
    )
