"""Small batches into tables in a bucket, against one MERGE: requests and seconds.

A real S3 server (versitygw) is behind a proxy that counts requests and lets each one wait 20 ms.

Claim: a batch of 100 rows takes at most as long as one MERGE with two more requests that wait for
each other.

    python bench/object_store.py [--quick] [--repeat N]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

from chronolake.lake import Lake
from harness import lakes, ways
from harness.clock import Times, say, show

ROOT: Final = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from support.store.faulty_proxy import FaultyProxy, faulty_proxy  # noqa: E402
from support.store.server import ACCESS_KEY, SECRET_KEY, s3_server  # noqa: E402

_LATENCY_SECONDS: Final = 0.02
_KEYS: Final = 10_000
_ROWS: Final = 100
_MOST_MORE: Final = 2
_METHODS: Final = ("GET", "HEAD", "PUT", "POST", "DELETE")


def measured(lake: Lake, folder: Path, proxy: FaultyProxy, flags: Any) -> bool:
    rows, holds = [], True
    warm_up, repeat = (2, 2) if flags.quick else (15, flags.repeat)
    for contest in ways.contests(lake, folder, keys=_KEYS, size=_ROWS):
        times = Times()
        requests: dict[str, list[Counter[str]]] = {way.name: [] for way in contest.ways}
        for number in range(warm_up + repeat):
            batch = contest.make(number)
            proxy.latency_seconds = _LATENCY_SECONDS if number >= warm_up else 0
            for way in contest.ways:
                proxy.requests.clear()
                with times.of(way.name):
                    way.write(batch)
                requests[way.name].append(
                    Counter(request.partition(" ")[0] for request in proxy.requests)
                )
            proxy.latency_seconds = 0
            if number == warm_up - 1:
                times.forget()
        for name, counted in requests.items():
            measured_ones = counted[warm_up:]
            each = [statistics.median(one[method] for one in measured_ones) for method in _METHODS]
            total = statistics.median(one.total() for one in measured_ones)
            ratio = times.median(name) / times.median(ways.MERGE)
            rows.append((f"{contest.kind}: {name}", times.median(name), ratio, total, *each))
        most = times.median(ways.MERGE) + _MOST_MORE * _LATENCY_SECONDS
        holds &= times.median(ways.OURS) <= most
        same = ways.are_same(lake, contest)
        say(f"{contest.kind}: the tables at the end are {'the same' if same else 'NOT THE SAME'}")
    show(
        f"One batch of {_ROWS} rows into {_KEYS:,} records, {_LATENCY_SECONDS * 1_000:.0f} ms a "
        "request",
        ("way", "s", "of MERGE", "requests", *_METHODS),
        rows,
    )
    say(f"As fast as MERGE and {_MOST_MORE} requests: {'holds' if holds else 'DOES NOT HOLD'}")
    return holds


def main() -> int:
    flags = lakes.options(__doc__, repeat=8).parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="chronolake-bench-s3-") as folder,
        s3_server(Path(folder)) as server,
    ):
        if server is None:
            say("versitygw is built by Go, which is not installed")
            return 1
        with faulty_proxy(server.port) as proxy:
            storage = {
                "endpoint": f"http://127.0.0.1:{proxy.port}",
                "access_key": ACCESS_KEY,
                "secret_key": SECRET_KEY,
            }
            settings = {"warehouse": f"{server.bucket()}/lake", "storage": storage}
            with lakes.opened(flags, settings=settings) as (lake, sent):
                measured(lake, sent, proxy, flags)
    return 0


if __name__ == "__main__":
    sys.exit(main())
