"""Small batches into a table: by ours, and by one MERGE into a copy of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chronolake.lake import Lake
from harness import batches, customers, lakes, statements
from harness.batches import Batch
from harness.customers import Made

OURS: Final = "chronolake"
MERGE: Final = "one MERGE"


@dataclass(frozen=True)
class Way:
    """A way to write a batch, and its own copy of the table."""

    name: str
    made: Made
    write: Callable[[Batch], object]


@dataclass(frozen=True)
class Contest:
    """One kind of batch, and both ways to write it."""

    kind: str
    ways: tuple[Way, Way]
    make: Callable[[int], Batch]


def contests(lake: Lake, folder: Path, *, keys: int, size: int) -> Iterator[Contest]:
    """Make the tables of upserts, then those of history batches.

    Args:
        lake: where the tables are made.
        folder: where the batches' files are written.
        keys: how many records a table has.
        size: how many records a batch has.
    """

    def contest(kind: str, *, history: bool) -> Contest:
        make = batches.history if history else batches.upserts
        ours = (
            customers.history(lake, kind, keys, 10) if history else customers.live(lake, kind, keys)
        )
        merged = customers.copied(lake, ours, f"{kind}_merged")

        def merge(batch: Batch) -> None:
            frame = lakes.changes(lake, merged, batch, history=history)
            frame.createOrReplaceTempView("batch")
            frame.sparkSession.sql(
                statements.merged(merged.sql, "batch", batch.since)
                if history
                else statements.upsert(merged.sql, "batch")
            )

        return Contest(
            kind,
            (
                Way(OURS, ours, lambda batch: lakes.apply(lake, ours, batch, history=history)),
                Way(MERGE, merged, merge),
            ),
            lambda number: make(folder, keys=keys, size=size, ordinal=number),
        )

    yield contest("upserts", history=False)
    yield contest("history", history=True)


def commits(lake: Lake, made: Made) -> int:
    """Return the number of commits of a table so far: its metadata files are numbered."""
    return int(Path(lake.catalog.load(made.name).metadata_file).name.partition("-")[0])


def are_same(lake: Lake, contest: Contest) -> bool:
    """Return whether both ways have made the same rows."""
    ours, merged = (customers.fingerprint(lake, way.made) for way in contest.ways)
    return ours == merged
