"""The cost of making an acknowledged batch survive a loss of power.

The same batches go to two lakes of one process, over gRPC, one at a time: one lake syncs what each
commit refers to (`lake.fsync`, the default), the other does not. Rounds alternate, after a warm-up.

Claim: a batch of 100 rows, and one of 20,000, takes less than 1.10 times as long with syncs. The
last column is the time in which a batch's commits wait for files; on a busy machine it is more
reliable than the ratio. The catalog's own commits, four in a batch, also wait for one sync each.

    python bench/durability.py [--quick] [--repeat N] [--folder DIR]

The folder's disk matters: a tmpfs syncs for nothing. The last table shows how long a sync of a
new file of 16 KiB takes there.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

from chronolake.config import load
from chronolake.iceberg.durability import fsync_wait_millis
from chronolake.lake import Lake
from chronolake.server import ServeOptions, Server
from harness import batches, customers, lakes
from harness.clock import Times, interleaved, say, show
from harness.customers import Made
from harness.sender import Sender

SYNCED: Final = "fsync: true"
UNSYNCED: Final = "fsync: false"
_KINDS: Final = {
    "upsert": batches.upserts,
    "partial update": batches.updates,
    "history": batches.history,
}


def contest(folder: Path, servers: dict[str, tuple[Lake, Server]], size: int, flags: Any) -> bool:
    """Send batches of `size` rows to both lakes; return whether both have the same rows."""
    times, rows, same = Times(), [], True
    keys = 1_000 if flags.quick else max(10_000, size)
    warm_up, repeat = (1, 2) if flags.quick else (15, flags.repeat)
    for kind, make in _KINDS.items():
        is_history = kind == "history"
        name = f"{kind.replace(' ', '_')}_{size}"
        tables: dict[str, Made] = {
            way: customers.history(lake, name, keys, 10)
            if is_history
            else customers.live(lake, name, keys)
            for way, (lake, _) in servers.items()
        }
        senders = {way: Sender(server.port) for way, (_, server) in servers.items()}
        sent = [
            make(folder, keys=keys, size=size, ordinal=number) for number in range(warm_up + repeat)
        ]

        def send(way: str, number: int) -> None:
            with times.of(way):
                senders[way].send(tables[way], sent[number], history=is_history)  # noqa: B023

        ways = {way: partial(send, way) for way in servers}
        interleaved(ways, range(warm_up))
        times.forget()
        lake = servers[SYNCED][0]
        waited = fsync_wait_millis(lake.spark)
        interleaved(ways, range(warm_up, warm_up + repeat))
        waited = fsync_wait_millis(lake.spark) - waited
        ours, theirs = times.median(SYNCED), times.median(UNSYNCED)
        rows += [
            (
                f"{kind}: {SYNCED}",
                ours,
                times.spread(SYNCED),
                ours / theirs,
                "< 1.10",
                waited / repeat / 1_000,
            ),
            (f"{kind}: {UNSYNCED}", theirs, times.spread(UNSYNCED), "", "", ""),
        ]
        times.forget()
        same &= len({customers.fingerprint(servers[way][0], tables[way]) for way in servers}) == 1
    show(
        f"One batch of {size:,} rows, tables of {keys:,} keys",
        ("way", "median s", "min-max s", "with / without", "claim", "waits s"),
        rows,
    )
    return same


def syncs(folder: Path) -> None:
    """Measure how long one sync takes on the disk."""
    seconds = []
    for number in range(50):
        file = folder / f"sync-{number}"
        file.write_bytes(os.urandom(2**14))
        began = time.perf_counter()
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
        seconds.append((time.perf_counter() - began) * 1_000)
    spread = f"{min(seconds):.2f}-{max(seconds):.2f}"
    show("fsync of a new file", ("median ms", "min-max ms"), [(statistics.median(seconds), spread)])


def main() -> int:
    flags = lakes.options(__doc__, repeat=30).parse_args()
    with lakes.opened(flags) as (lake, folder):
        place = folder.parent / "unsynced"
        config = load(place, overrides={"fsync": "false", "spark.conf": lake.config.spark.conf})
        options = ServeOptions(port=0, metrics_port=0)
        with (
            Lake.open(place, config=config) as other,
            Server(lake, options) as ours,
            Server(other, options) as theirs,
        ):
            servers = {SYNCED: (lake, ours), UNSYNCED: (other, theirs)}
            same = [contest(folder, servers, size, flags) for size in (100, 20_000)]
        syncs(folder)
    say(f"\nBoth lakes have {'the same rows' if all(same) else 'DIFFERENT ROWS'}.")
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
