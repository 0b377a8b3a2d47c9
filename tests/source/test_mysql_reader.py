"""A history table of a MySQL server as of a time is what a snapshot reader saw at that time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pymysql
import pytest

from chronolake.types import START
from support.seeds import draw_seeds
from support.source.mysql_servers import FLAVORS, MysqlShop, server

#: Tables, and their columns.
_TABLES: Final = {
    "items": ("id", "name", "number", "body"),
    "stock": ("place", "id", "amount"),
}
#: What another session causes that holds a lock on the same record.
_DEADLOCK: Final = 1213
_TRANSACTIONS: Final = 60

Seen = dict[str, list[tuple[Any, ...]]]


@pytest.fixture(scope="module", params=FLAVORS)
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the address of a server."""
    with server(request.param) as found:
        yield found


@pytest.fixture
def shop(address: str, tmp_path: Path) -> MysqlShop:
    """Return a database with the tables of the random work, and the project that syncs it."""
    found = MysqlShop(tmp_path, address)
    found.prepare()
    found.run(
        "CREATE TABLE items (id INT PRIMARY KEY, name VARCHAR(20), number BIGINT, body LONGTEXT)",
        "CREATE TABLE stock (place VARCHAR(9) COLLATE utf8mb4_bin, id INT, amount BIGINT, "
        "PRIMARY KEY (place, id))",
        # Each transaction counts at its end. The lock on the row makes the count's order that of
        # the commits, and a reader that sees a count sees exactly the transactions until then.
        "CREATE TABLE clock (id INT PRIMARY KEY, tick BIGINT)",
        "INSERT INTO clock VALUES (1, 0)",
    )
    return found


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, *draw_seeds("reader", 2)])
def test_a_table_as_of_a_time_is_what_a_reader_saw_then(shop: MysqlShop, seed: int) -> None:
    _work(shop, random.Random(seed))
    shop.sync_or_fail()
    seen: dict[int, Seen] = {}
    with ThreadPoolExecutor(4) as workers:
        for turn in range(2):
            working = [
                workers.submit(_work, shop, random.Random(f"{seed} {turn} {number}"))
                for number in range(3)
            ]
            looking = workers.submit(_read_while_working, shop, working)
            # The log is read while others write.
            shop.sync_or_fail()
            for worker in working:
                worker.result()
            seen |= looking.result()
    shop.sync_or_fail()

    times = {row["tick"]: row[START] for row in shop.table("clock").to_pylist()}
    assert sorted(times) == list(range(min(times), max(times) + 1))
    assert len(seen) >= 4
    for tick in random.Random(seed).sample(sorted(seen), min(9, len(seen))):
        # A record is visible until the time of its deletion, inclusive: look between two commits.
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=times[tick] + 1)
        for table, names in _TABLES.items():
            found = shop.lake.table(f"shop.{table}").as_of(at).select(*names).toArrow()
            rows = [tuple(row.values()) for row in found.to_pylist()]
            assert sorted(rows, key=repr) == sorted(seen[tick][table], key=repr), (table, tick)


def _read_while_working(shop: MysqlShop, working: list[Future[None]]) -> dict[int, Seen]:
    """Return what a reader saw of all tables, by count."""
    found = {}
    connection = shop.connect(database="shop")
    try:
        with connection.cursor() as cursor:
            while True:
                is_last = all(worker.done() for worker in working)
                tick, rows = _read_all(cursor)
                found[tick] = rows
                if is_last:
                    return found
    finally:
        connection.close()


def _read_all(cursor: pymysql.cursors.Cursor) -> tuple[int, Seen]:
    cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    rows: Seen = {}
    for table, names in _TABLES.items():
        cursor.execute(f"SELECT {', '.join(names)} FROM {table}")
        rows[table] = list(cursor.fetchall())
    cursor.execute("SELECT tick FROM clock")
    ((tick,),) = cursor.fetchall()
    cursor.execute("COMMIT")
    return tick, rows


def _work(shop: MysqlShop, chance: random.Random) -> None:
    """Run random transactions; some are rolled back, also by a deadlock with another session."""
    connection = shop.connect(database="shop")
    try:
        with connection.cursor() as cursor:
            for _ in range(_TRANSACTIONS):
                cursor.execute("BEGIN")
                try:
                    _transact(cursor, chance)
                except pymysql.err.OperationalError as error:
                    if error.args[0] != _DEADLOCK:
                        raise
    finally:
        connection.close()


def _transact(cursor: pymysql.cursors.Cursor, chance: random.Random) -> None:
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        has_savepoint = chance.random() < 0.2
        if has_savepoint:
            cursor.execute("SAVEPOINT s")
        cursor.execute(_statement(chance))
        if has_savepoint and chance.random() < 0.5:
            cursor.execute("ROLLBACK TO SAVEPOINT s")
    cursor.execute("UPDATE clock SET tick = tick + 1")
    cursor.execute("ROLLBACK" if chance.random() < 0.1 else "COMMIT")


def _statement(chance: random.Random) -> str:
    number, place = chance.randrange(8), chance.choice("aAb")
    body = chance.choice(["NULL", "''", "'ä'", "REPEAT(SHA2(RAND(), 256), 200)"])
    name, amount = f"n{chance.randrange(9)}", chance.randrange(10**12)
    row = f"({number}, '{name}', {amount}, {body})"
    longer = "LEFT(CONCAT(name, 'x'), 20)"
    counted = "ON DUPLICATE KEY UPDATE amount = amount + 1"
    both = f"WHERE stock.id = items.id AND items.id = {number}"
    return chance.choice(
        [
            f"REPLACE INTO items VALUES {row}",
            f"INSERT INTO items VALUES {row} ON DUPLICATE KEY UPDATE body = {body}",
            f"INSERT IGNORE INTO items VALUES ({number}, NULL, NULL, {body})",
            f"UPDATE items SET number = number + 1, name = {longer} WHERE id >= {number}",
            f"UPDATE items SET body = {body} WHERE id = {number}",
            f"UPDATE IGNORE items SET id = {number} WHERE id = {chance.randrange(8)}",
            f"DELETE FROM items WHERE id = {number}",
            f"INSERT INTO stock VALUES ('{place}', {number}, {amount}) {counted}",
            f"UPDATE stock, items SET stock.amount = {amount}, items.number = {amount} {both}",
            f"DELETE FROM stock WHERE place = '{place}' AND id <= {number}",
        ]
    )
