"""Many small batches through a real server, against one MERGE for each.

50 tables get 20 batches of 100 rows each, sent over gRPC by 8 clients at once: batches a second,
and how long a caller waits. Then one batch alone on the warm server, live and history: each kind
has had 20 batches before, because the JVM compiles a kind's code when that kind is first sent.

Claims: more batches a second than one Iceberg MERGE for each batch, run in the same Spark session
by as many threads; one batch alone takes under 0.7 s.

Server and clients share a process, so that both sides have the same warm JVM; the clients only
wait. Every table belongs to one client: nobody waits for another's batch into the same table.

    python bench/small_batches.py [--quick] [--repeat N]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame

from chronolake.frames import temp_view
from chronolake.lake import Lake
from chronolake.server import ServeOptions, Server
from harness import batches, customers, lakes, statements
from harness.batches import Batch
from harness.clock import Times, interleaved, say, show
from harness.customers import Made
from harness.sender import Sender, spent, stage_seconds

OURS: Final = "chronolake, over gRPC"
MERGED: Final = "one MERGE each"

Merge = Callable[[Lake, Made, Batch], None]


@dataclass(frozen=True)
class Size:
    """The sizes of a measurement.

    Attributes:
        tables, keys: how many tables, and rows of each before the batches.
        batches: how many batches each table gets in all.
        turn: how many of them before the other way has its turn.
        clients: how many send at once.
        batch: rows of a batch.
        alone_keys: rows (or active versions) of the tables for batches alone.
        repeat, warm_up: how many batches alone are measured, and how many run before these.
    """

    tables: int = 50
    keys: int = 1_000
    batches: int = 20
    turn: int = 4
    clients: int = 8
    batch: int = 100
    alone_keys: int = 10_000
    repeat: int = 20
    warm_up: int = 20


def at_once(lake: Lake, server: Server, folder: Path, size: Size) -> bool:
    """Send to many tables from many clients; return whether both ways ended in the same tables."""
    say(f"Making {size.tables} tables, twice")
    ours = [customers.live(lake, f"many_{n}", size.keys) for n in range(size.tables)]
    theirs = [customers.copied(lake, made, f"merged_{n}") for n, made in enumerate(ours)]
    sent = [
        batches.upserts(folder, keys=size.keys, size=size.batch, ordinal=number)
        for number in range(size.batches + 1)
    ]
    senders = [Sender(server.port) for _ in range(size.clients)]
    times = Times()

    def ours_of(client: int, chosen: Sequence[Batch], waited: Times) -> None:
        for batch in chosen:
            for made in ours[client :: size.clients]:
                with waited.of(OURS):
                    senders[client].send(made, batch, history=False)

    def theirs_of(client: int, chosen: Sequence[Batch], waited: Times) -> None:
        for batch in chosen:
            for made in theirs[client :: size.clients]:
                with waited.of(MERGED):
                    merge_upserts(lake, made, batch)

    works = {OURS: ours_of, MERGED: theirs_of}
    waited = Times()

    def run(way: str, chosen: Sequence[Batch]) -> None:
        with times.of(way), ThreadPoolExecutor(size.clients) as threads:
            list(
                threads.map(lambda client: works[way](client, chosen, waited), range(size.clients))
            )

    def run_turn(way: str, number: int) -> None:
        run(way, turns[number])

    turns = [sent[:1]]
    interleaved({way: partial(run_turn, way) for way in works}, [0])
    times.forget()
    waited.forget()
    before = stage_seconds(server)
    turns = [sent[1:][at : at + size.turn] for at in range(0, size.batches, size.turn)]
    interleaved({way: partial(run_turn, way) for way in works}, range(len(turns)))
    after = stage_seconds(server)

    number = size.tables * size.batches
    speed = {way: number / sum(times.seconds[way]) for way in works}
    show(
        f"{size.tables} tables x {size.batches} batches of {size.batch} rows, "
        f"{size.clients} clients",
        ("way", "batches/s", "p50 s", "p95 s", "ours / way", "claim"),
        [
            (
                way,
                speed[way],
                waited.median(way),
                waited.percentile(way, 95),
                "" if way == OURS else speed[OURS] / speed[way],
                "" if way == OURS else "> 1.00",
            )
            for way in works
        ],
    )
    stages = spent(before, after, "many_")
    show(
        "Seconds of one batch by stage, at once",
        ("stage", "mean s"),
        [(stage, seconds / number) for stage, seconds in stages.items()],
    )
    return all(
        customers.fingerprint(lake, ours_table) == customers.fingerprint(lake, other)
        for ours_table, other in list(zip(ours, theirs, strict=True))[:: max(1, size.tables // 5)]
    )


def _decoded(lake: Lake, made: Made, batch: Batch, *, history: bool) -> DataFrame:
    return lakes.changes(lake, made, batch, history=history, spark=lake.spark)


def merge_upserts(lake: Lake, made: Made, batch: Batch) -> None:
    with temp_view(_decoded(lake, made, batch, history=False)) as view:
        lake.spark.sql(statements.upsert(made.sql, view))


def merge_updates(lake: Lake, made: Made, batch: Batch) -> None:
    with temp_view(_decoded(lake, made, batch, history=False)) as view:
        lake.spark.sql(statements.update(made.sql, view))


def merge_history(lake: Lake, made: Made, batch: Batch) -> None:
    with temp_view(_decoded(lake, made, batch, history=True)) as view:
        lake.spark.sql(statements.merged(made.sql, view, batch.since))


def alone(lake: Lake, server: Server, folder: Path, size: Size) -> bool:
    """Send one batch at a time; return whether both ways ended in the same tables."""
    kinds: dict[str, tuple[Callable[..., Batch], Merge, Made]] = {
        "upsert": (
            batches.upserts,
            merge_upserts,
            customers.live(lake, "alone_upsert", size.alone_keys),
        ),
        "partial update": (
            batches.updates,
            merge_updates,
            customers.live(lake, "alone_update", size.alone_keys),
        ),
        "history": (
            batches.history,
            merge_history,
            customers.history(lake, "alone_history", size.alone_keys, 10),
        ),
    }
    sender, times = Sender(server.port), Times()
    stages: dict[str, dict[str, float]] = {}
    rows: list[tuple[object, ...]] = []
    same = True
    for kind, (make, merge, made) in kinds.items():
        other = customers.copied(lake, made, f"{made.name.table}_merged")
        sent = [
            make(folder, keys=made.keys, size=size.batch, ordinal=number)
            for number in range(size.warm_up + size.repeat)
        ]
        ways = {
            OURS: partial(timed_send, sender, times, made, sent, history=kind == "history"),
            MERGED: partial(timed_merge, lake, times, other, sent, merge=merge),
        }
        interleaved(ways, range(size.warm_up))
        times.forget()
        before = stage_seconds(server)
        interleaved(ways, range(size.warm_up, len(sent)))
        stages[kind] = spent(before, stage_seconds(server), made.name.table)
        mine, merged = times.median(OURS), times.median(MERGED)
        rows += [
            (f"{kind}: {OURS}", mine, times.spread(OURS), "", "<= 0.70 s"),
            (f"{kind}: {MERGED}", merged, times.spread(MERGED), mine / merged, ""),
        ]
        same &= customers.fingerprint(lake, made) == customers.fingerprint(lake, other)
    show(
        f"One batch of {size.batch} rows alone, tables of {size.alone_keys:,} keys",
        ("way", "median s", "min-max s", "ours / way", "claim"),
        rows,
    )
    names = list(dict.fromkeys(stage for found in stages.values() for stage in found))
    show(
        "Seconds of one batch by stage, alone",
        ("stage", *stages),
        [
            (name, *(found.get(name, 0.0) / size.repeat for found in stages.values()))
            for name in names
        ],
    )
    return same


def timed_send(
    sender: Sender, times: Times, made: Made, sent: Sequence[Batch], number: int, *, history: bool
) -> None:
    with times.of(OURS):
        sender.send(made, sent[number], history=history)


def timed_merge(
    lake: Lake, times: Times, made: Made, sent: Sequence[Batch], number: int, *, merge: Merge
) -> None:
    with times.of(MERGED):
        merge(lake, made, sent[number])


def main() -> int:
    flags: Any = lakes.options(__doc__, repeat=20).parse_args()
    size = Size(repeat=flags.repeat)
    if flags.quick:
        size = Size(tables=4, batches=2, turn=1, clients=2, alone_keys=1_000, repeat=2, warm_up=1)
    options = ServeOptions(port=0, metrics_port=0, max_workers=size.clients)
    with lakes.opened(flags) as (lake, folder), Server(lake, options) as server:
        same = [at_once(lake, server, folder, size), alone(lake, server, folder, size)]
    say(f"\nBoth ways ended in {'the same tables' if all(same) else 'DIFFERENT TABLES'}.")
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
