"""Big loads and big incremental updates through a real server.

Claims, for 5,000,000 customers (ten columns) in encrypted batch files below 100 MB, sent over gRPC:
a live table and a history table are loaded in at most 3 times the time of Spark's own INSERT of the
same rows, decoded by the same code; changes of 10 % of the customers are applied in at most 1.2
times the time of one Iceberg MERGE.

Server and client share a process, so that both sides have the same JVM; the client only waits. Both
ways must end in the same tables. Each step runs once: a load is long enough to be compiled.

    python bench/destination_load.py [--quick] [--rows N] [--changed PERCENT]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chronolake import core
from chronolake.change_set import OP, Op
from chronolake.frames import temp_view
from chronolake.lake import Lake
from chronolake.server import ServeOptions, Server
from chronolake.types import TableName
from harness import batches, customers, lakes, statements
from harness.batches import Batch
from harness.clock import Times, machine, say, show
from harness.customers import HISTORY, HISTORY_NAMES, LIVE, LIVE_NAMES, SCHEMA, Made
from harness.sender import Sender

OURS: Final = "chronolake, over gRPC"
SPARK: Final = "Spark's own statement"
#: The highest ratio of our time to that of the other way.
LOAD_CLAIM: Final = 3.0
CHANGE_CLAIM: Final = 1.2
#: About 50 MB of text and encoded times in a file.
ROWS_PER_FILE: Final = 400_000

#: Returns the statement that applies the rows of a view to a table.
Statement = Callable[[str, str], str]


@dataclass(frozen=True)
class Size:
    """The sizes of a comparison.

    Attributes:
        name: a prefix of its tables' names.
        keys: how many customers the tables have.
        changed: how many of them a batch changes.
    """

    name: str
    keys: int
    changed: int


class Comparison:
    """The same batches into two tables, by both ways."""

    def __init__(self, lake: Lake, sender: Sender, size: Size, *, is_history: bool) -> None:
        """Make two empty tables."""
        self.lake, self.sender, self.is_history = lake, sender, is_history
        self.rows: list[tuple[object, ...]] = []
        kind = "history" if is_history else "live"
        self.ours, self.theirs = (
            Made(TableName(SCHEMA, f"{size.name}_{kind}_{way}"), size.keys)
            for way in ("ours", "theirs")
        )
        for made in (self.ours, self.theirs):
            core.create(lake, made.name, HISTORY if is_history else LIVE)

    def run(self, step: str, batch: Batch, statement: Statement, claim: float) -> None:
        """Send a batch to one table, and apply it to the other by a statement."""
        times = Times()
        with times.of(OURS):
            self.sender.send(self.ours, batch, history=self.is_history)
        changes = lakes.changes(
            self.lake, self.theirs, batch, history=self.is_history, spark=self.lake.spark
        )
        with times.of(SPARK), temp_view(changes) as view:
            self.lake.spark.sql(statement(self.theirs.sql, view))
        mine, theirs = times.median(OURS), times.median(SPARK)
        size = sum(Path(file.path).stat().st_size for file in batch.files)
        largest = max(Path(file.path).stat().st_size for file in batch.files)
        say(f"  {step}: {mine:.1f} s, {SPARK} {theirs:.1f} s; {machine().rpartition('; ')[2]}")
        self.rows.append(
            (
                f"{'history' if self.is_history else 'live'}: {step}",
                len(batch.files),
                f"{size / 1e6:.0f}",
                f"{largest / 1e6:.0f}",
                mine,
                theirs,
                mine / theirs,
                f"<= {claim:.2f}",
            )
        )

    def agrees(self) -> bool:
        """Return whether both tables have the same rows."""
        found = [customers.fingerprint(self.lake, made) for made in (self.ours, self.theirs)]
        say(f"  the tables are {'the same' if found[0] == found[1] else f'NOT THE SAME: {found}'}")
        return found[0] == found[1]


def inserted(names: tuple[str, ...]) -> Statement:
    """Return the INSERT of the replace rows."""

    def statement(target: str, view: str) -> str:
        listed = ", ".join(names)
        replaces = f"{OP} = {Op.REPLACE:d}"
        return f"INSERT INTO {target} ({listed}) SELECT {listed} FROM {view} WHERE {replaces}"

    return statement


def compare(
    lake: Lake, sender: Sender, folder: Path, size: Size
) -> tuple[list[tuple[object, ...]], bool]:
    """Load both kinds of tables, change them, and return what was measured."""
    keys, changed = size.keys, size.changed
    say(f"{size.name}: {keys:,} customers, {changed:,} changed")
    live = Comparison(lake, sender, size, is_history=False)
    load = batches.loads(folder, keys=keys, per_file=ROWS_PER_FILE, is_history=False)
    live.run(f"load of {keys:,} rows", load, inserted(LIVE_NAMES), LOAD_CLAIM)
    upserts = batches.upserts(folder, keys=keys, size=changed, ordinal=0)
    live.run(f"{changed:,} upserts, half of them new", upserts, statements.upsert, CHANGE_CLAIM)
    updates = batches.updates(folder, keys=keys, size=changed, ordinal=1)
    live.run(f"{changed:,} partial updates", updates, statements.update, CHANGE_CLAIM)

    history = Comparison(lake, sender, size, is_history=True)
    load = batches.loads(folder, keys=keys, per_file=ROWS_PER_FILE, is_history=True)
    history.run(f"load of {keys:,} versions", load, inserted(HISTORY_NAMES), LOAD_CLAIM)
    batch = batches.history(folder, keys=keys, size=changed, ordinal=0)
    history.run(
        f"changes of {changed:,} customers",
        batch,
        lambda target, view: statements.merged(target, view, batch.since),
        CHANGE_CLAIM,
    )
    return [*live.rows, *history.rows], live.agrees() & history.agrees()


def main() -> int:
    parser = lakes.options(__doc__, repeat=1)
    parser.add_argument("--rows", type=int, default=5_000_000, help="customers")
    parser.add_argument("--changed", type=int, default=10, help="changed customers, in percent")
    flags = parser.parse_args()
    keys = 20_000 if flags.quick else flags.rows
    with (
        lakes.opened(flags) as (lake, folder),
        Server(lake, ServeOptions(port=0, metrics_port=0, grace=5)) as server,
    ):
        sender = Sender(server.port)
        # The statements of both ways are compiled once before they are measured.
        compare(lake, sender, folder, Size("warm", 20_000, 2_000))
        big = Size("big", keys, keys * flags.changed // 100)
        rows, same = compare(lake, sender, folder, big)
        header = ("step", "files", "MB", "largest", "ours s", "Spark s", "ours / Spark", "claim")
        show("Big batches through gRPC", header, rows)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
