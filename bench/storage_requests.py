"""Requests to storage that a batch makes one after the other, against one MERGE.

On an object store, each request takes 20 to 50 ms. Here, Hadoop's local file system waits as long
for each file that is opened or closed (`harness/DelayedFileSystem.java`). The difference of a
batch's time with and without the delay, divided by the delay, is the number of its requests that
wait for each other. Requests of the catalog are not part of it: one for each commit.

Claim: a batch of 100 rows makes at most two more such requests than one MERGE.

    python bench/storage_requests.py [--quick] [--repeat N]
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any, Final

from chronolake.lake import Lake
from harness import lakes, ways
from harness.clock import Times, say, show

_DELAY_MILLIS: Final = 40
_KEYS: Final = 10_000
_ROWS: Final = 100
_MOST_MORE: Final = 2
_SOURCE: Final = Path(__file__).parent / "harness" / "DelayedFileSystem.java"


def delayed(lake: Lake) -> Any:
    """Install the file system that waits, without a delay yet; return it."""
    jvm: Any = lake.spark._jvm  # noqa: SLF001 - PySpark has no public API for it
    hadoop = lake.spark._jsc.hadoopConfiguration()  # noqa: SLF001
    local = jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI("file:///"), hadoop)
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(_SOURCE.read_text())
    made = compiler.getClassLoader().loadClass("chronolake.DelayedFileSystem").newInstance()
    return made.under(local, str(lake.config.path))


def measured(lake: Lake, folder: Path, flags: Any) -> bool:
    storage = delayed(lake)
    rows, holds = [], True
    for contest in ways.contests(lake, folder, keys=_KEYS, size=_ROWS):
        warm_up, repeat = (2, 2) if flags.quick else (15, flags.repeat)
        times = Times()
        counted: dict[str, list[list[int]]] = {}
        for number in range(warm_up + 2 * repeat):
            batch = contest.make(number)
            delay = _DELAY_MILLIS if number >= warm_up and number % 2 else 0
            storage.delay(delay)
            for way in contest.ways:
                before = storage.reads(), storage.writes(), ways.commits(lake, way.made)
                with times.of(f"{way.name} {delay}"):
                    way.write(batch)
                after = storage.reads(), storage.writes(), ways.commits(lake, way.made)
                counted.setdefault(way.name, []).append(
                    [new - old for new, old in zip(after, before, strict=True)]
                )
            storage.delay(0)
            if number == warm_up - 1:
                times.forget()
        sequential = {
            name: (times.median(f"{name} {_DELAY_MILLIS}") - times.median(f"{name} 0"))
            / (_DELAY_MILLIS / 1_000)
            for name in counted
        }
        rows += [
            (
                f"{contest.kind}: {name}",
                times.median(f"{name} 0"),
                times.median(f"{name} {_DELAY_MILLIS}"),
                round(sequential[name], 1),
                *(statistics.median(column) for column in zip(*counted[name], strict=True)),
            )
            for name in counted
        ]
        holds &= sequential[ways.OURS] <= sequential[ways.MERGE] + _MOST_MORE
        same = ways.are_same(lake, contest)
        say(f"{contest.kind}: the tables at the end are {'the same' if same else 'NOT THE SAME'}")
    show(
        f"One batch of {_ROWS} rows into {_KEYS:,} records",
        ("way", "s", f"s at {_DELAY_MILLIS} ms", "in sequence", "reads", "writes", "commits"),
        rows,
    )
    say(f"At most {_MOST_MORE} more than one MERGE: {'holds' if holds else 'DOES NOT HOLD'}")
    return holds


def main() -> int:
    flags = lakes.options(__doc__, repeat=8).parse_args()
    with lakes.opened(flags, fsync=False) as (lake, folder):
        measured(lake, folder, flags)
    return 0


if __name__ == "__main__":
    sys.exit(main())
