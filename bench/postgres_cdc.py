"""Changes of a PostgreSQL table, from the server's log to the published history.

Claims, on two cores, for 1,000,000 changes of a table of ten columns:

1. The log is decoded and landed at 150,000 changes a second.
2. Changes are in the published history at 50,000 a second.

Beside it stand the time that the server alone needs to produce the same messages, which is the
limit, and `psycopg2`'s streaming reader with a plain decoder in Python that reads them one by one
(left out where `make bench-tools` has not run).

    python bench/postgres_cdc.py [--quick] [--changes N] [--repeat N]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import psycopg

from chronolake.config import Project
from chronolake.lake import Lake
from chronolake.source.postgres.connection import connected
from chronolake.source.postgres.pgoutput import Decoder
from chronolake.source.postgres.slot import Slot, peek, written_upto
from measuring import lakes, shop
from measuring.clock import Times, say, show

ROOT: Final = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "examples")]

from postgresql import server  # noqa: E402

SLOT: Final = Slot("chronolake_shop", "chronolake_shop")
PEEK: Final = (
    "FROM pg_logical_slot_peek_binary_changes('chronolake_shop', NULL, NULL, "
    "'proto_version', '1', 'publication_names', 'chronolake_shop')"
)
#: What `psycopg2` is installed for (`make bench-tools`), and what runs there.
PYTHON: Final = ROOT / ".venv-bench/bin/python"
STREAMED: Final = ROOT / "bench/measuring/streamed.py"
#: Each transaction has so many rows.
ROWS: Final = 1_000

ALONE: Final = "the server alone"
DECODED: Final = "peek and decode"
PLAIN: Final = "psycopg2's stream, a plain decoder"
LANDED: Final = "to the raw lake"
PUBLISHED: Final = "to the published history"


def changed(address: str, changes: int) -> None:
    """Of ten changes, seven are updates, two inserts and one a delete."""
    with psycopg.connect(address, autocommit=True) as connection:
        keys = changes // 5
        shop.fill(address, 0, keys, step=ROWS)
        for turn in range(7):
            for begin in range(0, keys // 2, ROWS):
                upto = min(begin + ROWS, keys // 2)
                first = turn % 2 * (keys // 2)
                connection.execute(
                    "UPDATE orders SET visits = visits + 1, state = 'changed' "
                    f"WHERE id >= {first + begin} AND id < {first + upto}"
                )
        connection.execute(f"DELETE FROM orders WHERE id >= {keys // 2}")
        # What the server has to do about it is not what is measured.
        connection.execute("CHECKPOINT")


def alone(address: str) -> float:
    """The server produces the messages, and nobody reads them."""
    with psycopg.connect(address) as connection:
        begin = time.perf_counter()
        connection.execute(f"SELECT count(*), sum(length(data)) {PEEK}")
        return time.perf_counter() - begin


def plain(address: str, changes: int) -> float:
    """The messages are read one by one, as another library streams them."""
    told = subprocess.run(
        [str(PYTHON), str(STREAMED), str(ROOT / "tests/source"), SLOT.name, str(changes)],
        input=address,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(told.stdout)


def decoded(address: str) -> float:
    """Ours, without landing."""
    with connected(address) as connection:
        begin = time.perf_counter()
        decoder = Decoder()
        for batch in peek(connection, SLOT, upto=written_upto(connection)):
            decoder.decode(batch)
    return time.perf_counter() - begin


def measured(address: str, lake: Lake, project: Project, changes: int, rounds: int) -> Times:
    times = Times()
    for turn in range(rounds + 1):
        say(f"{changes:,} changes")
        changed(address, changes)
        if turn == 1:
            # The first turn compiles: it is nobody's cost.
            times.forget()
        times.add(ALONE, alone(address))
        times.add(DECODED, decoded(address))
        if PYTHON.exists():
            times.add(PLAIN, plain(address, changes))
        landed, published = shop.synced(lake, project)
        times.add(LANDED, landed)
        times.add(PUBLISHED, published)
        # The next turn begins without rows.
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("TRUNCATE orders")
        shop.synced(lake, project)
    return times


def main() -> int:
    parser = lakes.options(__doc__, repeat=3)
    parser.add_argument("--changes", type=int, help="row changes")
    flags: argparse.Namespace = parser.parse_args()
    changes = flags.changes or (20_000 if flags.quick else 1_000_000)
    with ExitStack() as stack:
        address = stack.enter_context(
            server(wal_level="logical", max_wal_size="4GB", autovacuum="off")
        )
        lake, _ = stack.enter_context(lakes.opened(flags))
        project = shop.project_of(lake.config.path, address)
        shop.create(address)
        shop.publish(address)
        shop.synced(lake, project)
        times = measured(address, lake, project, changes, flags.repeat)
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
            for way in (ALONE, PLAIN, DECODED, LANDED, PUBLISHED)
            if way in times.seconds
        ],
    )
    for way, wanted in ((LANDED, 150_000), (PUBLISHED, 50_000)):
        rate = changes / times.median(way)
        verdict = "holds" if rate >= wanted else "MISSED"
        say(f"{way}: at least {wanted:,} a second: {verdict} ({rate:,.0f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
