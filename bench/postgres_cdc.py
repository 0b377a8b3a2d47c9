"""Changes of a PostgreSQL table, from the server's log to the published history.

Claims, on two cores, for 1,000,000 changes of a table of ten columns:

1. The log is decoded and landed at 150,000 changes a second.
2. Changes are in the published history at 50,000 a second.

Beside it stand the time that the server alone needs to produce the same messages, which is the
limit, and a plain decoder in Python that reads them one by one.

    python bench/postgres_cdc.py [--quick] [--changes N]
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import psycopg

from chronolake.lake import Lake
from chronolake.source.postgres.connection import connected
from chronolake.source.postgres.pgoutput import Decoder
from chronolake.source.postgres.slot import Slot, peek, written_upto
from measuring import lakes, shop
from measuring.clock import say, show

ROOT: Final = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests/source")]

from plain_pgoutput import Reader  # noqa: E402
from postgresql import server  # noqa: E402

SLOT: Final = Slot("chronolake_shop", "chronolake_shop")
PEEK: Final = (
    "FROM pg_logical_slot_peek_binary_changes('chronolake_shop', NULL, NULL, "
    "'proto_version', '1', 'publication_names', 'chronolake_shop')"
)
#: Each transaction has so many rows.
ROWS: Final = 1_000


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


def alone(address: str) -> float:
    """The server produces the messages, and nobody reads them."""
    with psycopg.connect(address) as connection:
        begin = time.perf_counter()
        connection.execute(f"SELECT count(*), sum(length(data)) {PEEK}")
        return time.perf_counter() - begin


def plain(address: str) -> float:
    """The messages are read one by one."""
    with psycopg.connect(address) as connection, connection.cursor("c", binary=True) as cursor:
        begin = time.perf_counter()
        cursor.execute(f"SELECT data {PEEK}")
        cursor.itersize = 10_000
        found = sum(1 for _ in Reader().read(row[0] for row in cursor))
    if not found:
        raise RuntimeError("nothing was read")
    return time.perf_counter() - begin


def decoded(address: str) -> float:
    """Ours, without landing."""
    with connected(address) as connection:
        begin = time.perf_counter()
        decoder = Decoder()
        for batch in peek(connection, SLOT, upto=written_upto(connection)):
            decoder.decode(batch)
    return time.perf_counter() - begin


def measured(address: str, lake: Lake, changes: int) -> dict[str, float]:
    project = shop.project_of(lake.config.path, address)
    shop.create(address)
    shop.publish(address)
    shop.synced(lake, project)
    say("Warming up")
    changed(address, min(changes, 20_000))
    shop.synced(lake, project)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("TRUNCATE orders")
    shop.synced(lake, project)
    say(f"{changes:,} changes")
    changed(address, changes)
    found = {
        "the server alone": alone(address),
        "peek and decode": decoded(address),
        "peek and a plain decoder": plain(address),
    }
    found["to the raw lake"], found["to the published history"] = shop.synced(lake, project)
    return found


def main() -> int:
    parser = lakes.options(__doc__, repeat=1)
    parser.add_argument("--changes", type=int, help="row changes")
    flags: argparse.Namespace = parser.parse_args()
    changes = flags.changes or (20_000 if flags.quick else 1_000_000)
    with ExitStack() as stack:
        address = stack.enter_context(server(wal_level="logical", max_wal_size="4GB"))
        lake, _ = stack.enter_context(lakes.opened(flags))
        found = measured(address, lake, changes)
    limit = found["the server alone"]
    show(
        f"{changes:,} changes of a table of ten columns",
        ("way", "s", "changes a second", "a core", "against the limit"),
        [
            (way, seconds, int(changes / seconds), int(changes / seconds / 2), seconds / limit)
            for way, seconds in found.items()
        ],
    )
    for way, wanted in (("to the raw lake", 150_000), ("to the published history", 50_000)):
        rate = changes / found[way]
        verdict = "hold" if rate >= wanted else "MISSED"
        say(f"{way}: at least {wanted:,} a second: {verdict} ({rate:,.0f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
