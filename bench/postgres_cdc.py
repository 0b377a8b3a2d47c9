"""Changes of a PostgreSQL table, from the server's log to the published history.

Claims, on two cores, for 1,000,000 changes of a table of ten columns:

1. The log is decoded and landed at 150,000 changes a second.
2. Changes are in the published history at 50,000 a second.
3. The log is streamed at least as fast as it was when the server made all of it first
   (`pg_logical_slot_peek_binary_changes`): decoded, landed and published.

Two other times are printed for comparison: the time that the server alone needs to produce the same
messages, which is the limit; and `psycopg2`'s streaming reader with a plain decoder in Python that
reads them one by one (left out where `make bench-tools` has not run). With `--rows`, transactions
have another size.

    python bench/postgres_cdc.py [--quick] [--changes N] [--rows N] [--repeat N]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import psycopg

from chronolake.config import PostgresSource, Project
from chronolake.lake import Lake
from chronolake.source.postgres.connection import connect
from chronolake.source.postgres.pgoutput import Decoder
from chronolake.source.postgres.replication_stream import open_stream
from chronolake.source.postgres.slot import Slot, durable_lsn
from harness import lakes, shop
from harness.clock import Times, say, show
from harness.slot_peek import Peeked, PeekedDatabase

ROOT: Final = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "examples")]

from postgresql import server  # noqa: E402

SLOT: Final = Slot("chronolake_shop", "chronolake_shop")
PEEK: Final = (
    "FROM pg_logical_slot_peek_binary_changes('chronolake_shop', NULL, NULL, "
    "'proto_version', '1', 'publication_names', 'chronolake_shop')"
)
#: The interpreter that has `psycopg2` (`make bench-tools`), and the program that it runs.
PYTHON: Final = ROOT / ".venv-bench/bin/python"
STREAMED: Final = ROOT / "bench/harness/psycopg2_stream.py"

ALONE: Final = "the server alone"
DECODED: Final = "streamed and decoded"
PEEKED: Final = "peeked and decoded (before)"
PLAIN: Final = "psycopg2's stream, a plain decoder"
LANDED: Final = "to the raw lake"
LANDED_PEEKED: Final = "to the raw lake, peeked (before)"
PUBLISHED: Final = "to the published history"
PUBLISHED_PEEKED: Final = "to the published history, peeked (before)"
#: Pairs of a way and the one that it is compared with.
PAIRS: Final = (
    (DECODED, PEEKED),
    (LANDED, LANDED_PEEKED),
    (PUBLISHED, PUBLISHED_PEEKED),
)


def changed(address: str, changes: int, rows: int) -> None:
    """Change rows: of ten changes, seven are updates, two inserts and one a delete."""
    with psycopg.connect(address, autocommit=True) as connection:
        keys = changes // 5
        shop.fill(address, 0, keys, step=rows)
        for turn in range(7):
            for begin in range(0, keys // 2, rows):
                upto = min(begin + rows, keys // 2)
                first = turn % 2 * (keys // 2)
                connection.execute(
                    "UPDATE orders SET visits = visits + 1, state = 'changed' "
                    f"WHERE id >= {first + begin} AND id < {first + upto}"
                )
        connection.execute(f"DELETE FROM orders WHERE id >= {keys // 2}")
        # The server's own work on the changes is not measured.
        connection.execute("CHECKPOINT")


def alone(address: str) -> float:
    """Let the server produce the messages without a reader; return the seconds."""
    with psycopg.connect(address) as connection:
        begin = time.perf_counter()
        connection.execute(f"SELECT count(*), sum(length(data)) {PEEK}")
        return time.perf_counter() - begin


def plain(address: str, changes: int) -> float:
    """Read the messages one by one, as another library streams them; return the seconds."""
    reported = subprocess.run(
        [str(PYTHON), str(STREAMED), str(ROOT / "tests"), SLOT.name, str(changes)],
        input=address,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(reported.stdout)


def decoded(address: str) -> float:
    """Stream and decode the log by ours, without landing; return the seconds."""
    with connect(address) as connection, TemporaryDirectory() as folder:
        upto = durable_lsn(connection)
        begin = time.perf_counter()
        decoder = Decoder()
        with open_stream(address, SLOT, upto=upto, folder=Path(folder)) as stream:
            for batch in stream.batches():
                decoder.decode(batch)
        return time.perf_counter() - begin


def peeked(address: str) -> float:
    """Decode messages that the server makes in full first, without landing; return the seconds."""
    with connect(address) as connection:
        begin = time.perf_counter()
        decoder = Decoder()
        for batch in Peeked(connection, SLOT, durable_lsn(connection)).batches():
            decoder.decode(batch)
        return time.perf_counter() - begin


def measured(address: str, lake: Lake, project: Project, flags: argparse.Namespace) -> Times:
    times = Times()
    config = project.pipelines["shop"].source
    assert isinstance(config, PostgresSource)
    before = PeekedDatabase(project, "shop", config)
    for turn in range(flags.repeat + 1):
        say(f"{flags.changes:,} changes")
        if turn == 1:
            # The first turn compiles: it is not counted.
            times.forget()
        # Each way is the first in every other turn.
        ways = [(None, LANDED, PUBLISHED), (before, LANDED_PEEKED, PUBLISHED_PEEKED)]
        for source, *names in ways[:: -1 if turn % 2 else 1]:
            changed(address, flags.changes, flags.rows)
            if source is None:
                times.add(ALONE, alone(address))
                times.add(DECODED, decoded(address))
                times.add(PEEKED, peeked(address))
                if PYTHON.exists():
                    times.add(PLAIN, plain(address, flags.changes))
            for name, seconds in zip(names, shop.synced(lake, project, source=source), strict=True):
                times.add(name, seconds)
            # The next turn begins with an empty table.
            with psycopg.connect(address, autocommit=True) as connection:
                connection.execute("TRUNCATE orders")
            shop.synced(lake, project)
        for way, other in PAIRS:
            ratio = times.seconds[other][-1] / times.seconds[way][-1]
            say(f"  {way}: {times.seconds[way][-1]:.1f} s, {ratio:.2f} times as fast as before")
    return times


def main() -> int:
    parser = lakes.options(__doc__, repeat=3)
    parser.add_argument("--changes", type=int, help="row changes")
    parser.add_argument("--rows", type=int, default=1_000, help="rows of a transaction")
    flags: argparse.Namespace = parser.parse_args()
    flags.changes = changes = flags.changes or (20_000 if flags.quick else 1_000_000)
    with ExitStack() as stack:
        address = stack.enter_context(
            server(wal_level="logical", max_wal_size="4GB", autovacuum="off")
        )
        lake, _ = stack.enter_context(lakes.opened(flags))
        project = shop.project_of(lake.config.path, address)
        shop.create(address)
        shop.publish(address)
        shop.synced(lake, project)
        times = measured(address, lake, project, flags)
    limit = times.median(ALONE)
    show(
        f"{changes:,} changes of a table of ten columns",
        ("way", "s", "range", "changes a second", "a core", "against the limit"),
        [
            (
                way,
                times.median(way),
                times.spread(way),
                int(changes / times.median(way)),
                int(changes / times.median(way) / 2),
                times.median(way) / limit,
            )
            for way in (ALONE, PLAIN, *(way for pair in PAIRS for way in pair))
            if way in times.seconds
        ],
    )
    for way, wanted in ((LANDED, 150_000), (PUBLISHED, 50_000)):
        rate = changes / times.median(way)
        verdict = "holds" if rate >= wanted else "MISSED"
        say(f"{way}: at least {wanted:,} a second: {verdict} ({rate:,.0f})")
    for way, other in PAIRS:
        ratio = times.median(other) / times.median(way)
        say(f"{way}: {ratio:.2f} times as fast as before")
    return 0


if __name__ == "__main__":
    sys.exit(main())
