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
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from chronolake.lake import Lake
from harness import batches, customers, lakes, statements
from harness.batches import Batch
from harness.clock import Times, say, show
from harness.customers import Made

_DELAY_MILLIS: Final = 40
_KEYS: Final = 10_000
_ROWS: Final = 100
_MOST_MORE: Final = 2
_SOURCE: Final = Path(__file__).parent / "harness" / "DelayedFileSystem.java"

Way = Callable[[Batch], object]


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


def merging(
    lake: Lake, made: Made, statement: Callable[[str, Batch], str], *, history: bool
) -> Way:
    def merge(batch: Batch) -> None:
        frame = lakes.changes(lake, made, batch, history=history)
        frame.createOrReplaceTempView("batch")
        frame.sparkSession.sql(statement("batch", batch))

    return merge


def commits(lake: Lake, made: Made) -> int:
    """Return the number of commits of a table so far: its metadata files are numbered."""
    return int(Path(lake.catalog.load(made.name).metadata_file).name.partition("-")[0])


def measured(lake: Lake, folder: Path, flags: Any) -> bool:
    storage = delayed(lake)
    rows, holds = [], True
    for kind, make, history in (
        ("upserts", batches.upserts, False),
        ("history", batches.history, True),
    ):
        ours = (
            customers.history(lake, kind, _KEYS, 10)
            if history
            else customers.live(lake, kind, _KEYS)
        )
        merged = customers.copied(lake, ours, f"{kind}_merged")

        def statement(view: str, batch: Batch) -> str:
            if history:  # noqa: B023
                return statements.merged(merged.sql, view, batch.since)  # noqa: B023
            return statements.upsert(merged.sql, view)  # noqa: B023

        ways: dict[str, tuple[Made, Way]] = {
            "chronolake": (
                ours,
                lambda batch: lakes.apply(lake, ours, batch, history=history),  # noqa: B023
            ),
            "one MERGE": (merged, merging(lake, merged, statement, history=history)),
        }
        warm_up, repeat = (2, 2) if flags.quick else (15, flags.repeat)
        times = Times()
        counted: dict[str, list[list[int]]] = {}
        for number in range(warm_up + 2 * repeat):
            batch = make(folder, keys=_KEYS, size=_ROWS, ordinal=number)
            delay = _DELAY_MILLIS if number >= warm_up and number % 2 else 0
            storage.delay(delay)
            for name, (made, way) in ways.items():
                before = storage.reads(), storage.writes(), commits(lake, made)
                with times.of(f"{name} {delay}"):
                    way(batch)
                after = storage.reads(), storage.writes(), commits(lake, made)
                counted.setdefault(name, []).append(
                    [new - old for new, old in zip(after, before, strict=True)]
                )
            storage.delay(0)
            if number == warm_up - 1:
                times.forget()
        sequential = {
            name: (times.median(f"{name} {_DELAY_MILLIS}") - times.median(f"{name} 0"))
            / (_DELAY_MILLIS / 1_000)
            for name in ways
        }
        rows += [
            (
                f"{kind}: {name}",
                times.median(f"{name} 0"),
                times.median(f"{name} {_DELAY_MILLIS}"),
                round(sequential[name], 1),
                *(statistics.median(column) for column in zip(*counted[name], strict=True)),
            )
            for name in ways
        ]
        holds &= sequential["chronolake"] <= sequential["one MERGE"] + _MOST_MORE
        same = customers.fingerprint(lake, ours) == customers.fingerprint(lake, merged)
        say(f"{kind}: the tables at the end are {'the same' if same else 'NOT THE SAME'}")
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
