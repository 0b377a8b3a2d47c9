"""The binary log of real servers: values, statements and transactions become record versions."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import pytest

from chronolake.types import ACTIVE
from support.source.mysql_fixtures import address, shop
from support.source.mysql_servers import MysqlShop

__all__ = ["address", "shop"]


def test_changes_become_versions(shop: MysqlShop) -> None:
    shop.run(
        "CREATE TABLE items (id BIGINT UNSIGNED PRIMARY KEY, name VARCHAR(20), price DECIMAL(5,2))",
        "INSERT INTO items VALUES (1, 'a', 1.5), (2, 'b', 2), (18446744073709551615, 'c', NULL)",
    )
    shop.sync_or_fail()
    shop.run(
        "UPDATE items SET price = price + 1 WHERE id < 3",
        "UPDATE items SET name = 'x' WHERE id = 1",
        "DELETE FROM items WHERE id = 2",
        "UPDATE items SET id = 3 WHERE name = 'c'",
        "INSERT INTO items VALUES (2, 'again', 0)",
    )
    shop.sync_or_fail()
    states = shop.states("items", ["id"], ["name", "price"])
    assert {int(key): found for (key,), found in states.items()} == {
        1: [("a", Decimal("1.50")), ("a", Decimal("2.50")), ("x", Decimal("2.50"))],
        2: [("b", Decimal(2)), ("b", Decimal(3)), None, ("again", Decimal(0))],
        3: [("c", None)],
        18446744073709551615: [("c", None), None],
    }
    assert shop.agrees()


@pytest.mark.long
def test_xa_transactions_count_when_they_are_committed(shop: MysqlShop) -> None:
    shop.run("CREATE TABLE items (id INT PRIMARY KEY, n INT)", "INSERT INTO items VALUES (1, 0)")
    shop.sync_or_fail()
    _prepare(shop, "one", "UPDATE items SET n = 1 WHERE id = 1")
    _prepare(shop, "two", "INSERT INTO items VALUES (2, 2)")
    _prepare(shop, "three", "INSERT INTO items VALUES (3, 3)")
    shop.run("INSERT INTO items VALUES (4, 4)")
    shop.sync_or_fail()
    assert shop.present("items", ["id", "n"]) == [(1, 0), (4, 4)]
    shop.run("XA COMMIT 'one'", "XA ROLLBACK 'two'")
    shop.sync_or_fail()
    assert shop.present("items", ["id", "n"]) == [(1, 1), (4, 4)]
    shop.run("XA COMMIT 'three'")
    connection = shop.connect(database="shop")
    with connection.cursor() as cursor:
        cursor.execute("XA START 'four'")
        cursor.execute("DELETE FROM items WHERE id = 4")
        cursor.execute("XA END 'four'")
        cursor.execute("XA COMMIT 'four' ONE PHASE")
    connection.close()
    shop.sync_or_fail()
    assert shop.present("items", ["id", "n"]) == [(1, 1), (3, 3)]
    assert shop.states("items", ["id"], ["n"])[(4,)] == [(4,), None]


def _prepare(shop: MysqlShop, xid: str, statement: str) -> None:
    connection = shop.connect(database="shop")
    with connection.cursor() as cursor:
        cursor.execute(f"XA START '{xid}'")
        cursor.execute(statement)
        cursor.execute(f"XA END '{xid}'")
        cursor.execute(f"XA PREPARE '{xid}'")
    connection.close()


@pytest.mark.long
def test_tables_are_altered(shop: MysqlShop) -> None:
    shop.run(
        "CREATE TABLE items (id INT PRIMARY KEY, a INT, b VARCHAR(10))",
        "INSERT INTO items VALUES (1, 1, 'x'), (2, 2, 'y')",
    )
    shop.sync_or_fail()
    shop.run(
        "ALTER TABLE items ADD COLUMN c INT",
        "UPDATE items SET c = 3 WHERE id = 1",
        "ALTER TABLE items RENAME COLUMN b TO named",
        "UPDATE items SET named = 'z' WHERE id = 1",
        "ALTER TABLE items DROP COLUMN a",
        "UPDATE items SET c = 4 WHERE id = 1",
        "ALTER TABLE items ADD COLUMN d INT NOT NULL DEFAULT 7",
    )
    shop.sync_or_fail()
    assert shop.present("items", ["id", "named", "c", "d"]) == [(1, "z", 4, 7), (2, "y", None, 7)]
    shop.run("TRUNCATE TABLE items", "INSERT INTO items VALUES (3, 'n', 1, 1)")
    shop.sync_or_fail()
    assert shop.present("items", ["id", "named", "c", "d"]) == [(3, "n", 1, 1)]
    shop.run(
        "CREATE TABLE other LIKE items",
        "INSERT INTO other VALUES (9, 'o', 9, 9)",
        "RENAME TABLE items TO old, other TO items",
        "UPDATE items SET c = 10",
    )
    shop.sync_or_fail()
    assert shop.present("items", ["id", "named", "c", "d"]) == [(9, "o", 10, 9)]
    assert shop.agrees()


@pytest.mark.sampled
@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_values_that_the_log_omits_are_carried_over(shop: MysqlShop, image: str) -> None:
    shop.run(
        "CREATE TABLE items "
        "(id INT PRIMARY KEY, a INT DEFAULT 5, b TEXT, c VARCHAR(9) DEFAULT 'q')",
        "INSERT INTO items (id, b) VALUES (1, 'one'), (2, 'two')",
    )
    shop.sync_or_fail()
    shop.run(
        f"SET SESSION binlog_row_image = '{image}'",
        "UPDATE items SET a = 6 WHERE id = 1",
        "INSERT INTO items (id) VALUES (3)",
        "UPDATE items SET id = 4 WHERE id = 2",
        "UPDATE items SET b = 'x' WHERE id = 3",
    )
    shop.sync_or_fail()
    names = ["a", "b", "c"]
    assert shop.states("items", ["id"], names) == {
        (1,): [(5, "one", "q"), (6, "one", "q")],
        (2,): [(5, "two", "q"), None],
        (3,): [(5, None, "q"), (5, "x", "q")],
        (4,): [(5, "two", "q")],
    }


@pytest.mark.long
def test_tables_without_a_key(shop: MysqlShop) -> None:
    shop.run(
        "CREATE TABLE events (a INT, b VARCHAR(5))",
        "INSERT INTO events VALUES (1, 'x'), (1, 'x'), (NULL, NULL)",
        "CREATE TABLE coded (code VARCHAR(9) NOT NULL, n INT, UNIQUE (code))",
        "INSERT INTO coded VALUES ('a', 1)",
    )
    shop.sync_or_fail()
    shop.run("DELETE FROM events WHERE a = 1 LIMIT 1", "UPDATE coded SET n = 2")
    shop.sync_or_fail()
    assert shop.present("events", ["a", "b"]) == [(1, "x"), (None, None)]
    assert shop.states("coded", ["code"], ["n"]) == {("a",): [(1,), (2,)]}


@pytest.mark.long
def test_a_copy_has_the_changes_that_were_made_while_it_was_read(
    shop: MysqlShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run(
        "CREATE TABLE items (id INT PRIMARY KEY, n INT, t TEXT)",
        *(f"INSERT INTO items VALUES ({n}, {n}, 'x')" for n in range(50)),
    )
    monkeypatch.setattr("chronolake.source.mysql.key_ranges.ROWS", 7)
    changes = iter(
        [
            "UPDATE items SET n = 100 WHERE id < 5",
            "DELETE FROM items WHERE id = 10",
            "INSERT INTO items VALUES (99, 1, 'new')",
            "UPDATE items SET id = 200 WHERE id = 20",
        ]
    )

    def change(point: str) -> None:
        if point in {"copy.planned", "copy.staged"}:
            for _ in range(2):
                shop.run(next(changes))

    monkeypatch.setattr("chronolake.source.mysql.initial_copy.reach", change)
    shop.sync_or_fail()
    there = sorted(shop.rows("SELECT id, n, t FROM items"), key=repr)
    assert shop.present("items", ["id", "n", "t"]) == there
    shop.run("UPDATE items SET n = 0 WHERE id = 99")
    shop.sync_or_fail()
    assert shop.states("items", ["id"], ["n"])[(99,)] == [(1,), (0,)]


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 3, 4))])
def test_history_is_what_triggers_saw(shop: MysqlShop, seed: int) -> None:
    chance = random.Random(seed)
    columns = ["a", "b", "c", "d"]
    shop.run(
        "CREATE TABLE items (k1 INT, k2 VARCHAR(8) COLLATE utf8mb4_bin, a BIGINT UNSIGNED, "
        "b DECIMAL(12,3), c VARCHAR(300) CHARACTER SET latin1, d DATETIME(6), "
        "PRIMARY KEY (k1, k2))",
        "CREATE TABLE audit (n INT AUTO_INCREMENT PRIMARY KEY, gone TEXT, k1 INT, k2 VARCHAR(8), "
        "a BIGINT UNSIGNED, b DECIMAL(12,3), c VARCHAR(300) CHARACTER SET latin1, d DATETIME(6))",
        "CREATE TRIGGER i AFTER INSERT ON items FOR EACH ROW INSERT INTO audit VALUES "
        "(NULL, NULL, NEW.k1, NEW.k2, NEW.a, NEW.b, NEW.c, NEW.d)",
        "CREATE TRIGGER u AFTER UPDATE ON items FOR EACH ROW INSERT INTO audit VALUES "
        "(NULL, IF(OLD.k1 <> NEW.k1 OR OLD.k2 <> NEW.k2, JSON_ARRAY(OLD.k1, OLD.k2), NULL), "
        "NEW.k1, NEW.k2, NEW.a, NEW.b, NEW.c, NEW.d)",
        "CREATE TRIGGER d AFTER DELETE ON items FOR EACH ROW INSERT INTO audit VALUES "
        "(NULL, JSON_ARRAY(OLD.k1, OLD.k2), NULL, NULL, NULL, NULL, NULL, NULL)",
        "CREATE TABLE notes (n INT) ENGINE = MyISAM",
    )
    shop.configure(more=", tables: [shop.items]")
    shop.sync_or_fail()
    for _ in range(4):
        _work(shop, chance, 40)
        shop.sync_or_fail()
    expected: dict[tuple[Any, ...], list[Any]] = {}
    for gone, k1, k2, *values in shop.rows("SELECT gone, k1, k2, a, b, c, d FROM audit ORDER BY n"):
        if gone is not None:
            _note(expected, tuple(json.loads(gone)), None)
        if k1 is not None:
            _note(expected, (k1, k2), tuple(values))
    there = sorted(shop.rows("SELECT k1, k2, a, b, c, d FROM items"), key=repr)
    assert shop.present("items", ["k1", "k2", *columns]) == [
        tuple(Decimal(cell) if n == 2 and cell is not None else cell for n, cell in enumerate(row))
        for row in there
    ]
    # An ended record that nothing follows ends with None, as the table has it.
    found = shop.states("items", ["k1", "k2"], columns)
    assert found.keys() == expected.keys()
    for key, states in expected.items():
        assert found[key] == states, key
    assert shop.agrees()


def _note(states: dict[tuple[Any, ...], list[Any]], key: tuple[Any, ...], state: Any) -> None:
    found = states.setdefault(key, [])
    if not found or found[-1] != state:
        found.append(state)


def _work(shop: MysqlShop, chance: random.Random, transactions: int) -> None:
    """Run random transactions, each of which changes a record at most once.

    What is rolled back stays in the log if a table that is not transactional was changed, too.
    MySQL refuses such transactions if it uses GTIDs.
    """
    is_mixed = shop.is_mariadb
    connection = shop.connect(database="shop")
    cursor = connection.cursor()
    for _ in range(transactions):
        cursor.execute("BEGIN")
        savepoints = 0
        for k1 in chance.sample(range(12), chance.randrange(1, 4)):
            place = f"k1 = {k1}"
            kind = chance.random()
            if kind < 0.45:
                cursor.execute(
                    "INSERT INTO items VALUES (%s, %s, %s, %s, %s, %s) ON DUPLICATE KEY UPDATE "
                    "a = VALUES(a), b = VALUES(b), c = VALUES(c), d = VALUES(d)",
                    _row(chance, k1),
                )
            elif kind < 0.75:
                cursor.execute(
                    f"UPDATE items SET a = %s, c = %s WHERE {place}",
                    (chance.randrange(2**64), _text(chance)),
                )
            elif kind < 0.85:
                # To a number that no record ever had.
                moved = chance.randrange(1000, 10**9)
                cursor.execute(f"UPDATE items SET k1 = {moved} WHERE {place} ORDER BY k2 LIMIT 1")
            else:
                cursor.execute(f"DELETE FROM items WHERE {place}")
            if is_mixed and chance.random() < 0.3:
                cursor.execute("INSERT INTO notes VALUES (1)")
            if chance.random() < 0.2:
                savepoints += 1
                cursor.execute(f"SAVEPOINT s{savepoints}")
            elif savepoints and chance.random() < 0.5:
                cursor.execute(f"ROLLBACK TO SAVEPOINT s{chance.randint(1, savepoints)}")
                savepoints = 0
        cursor.execute("ROLLBACK" if chance.random() < 0.2 else "COMMIT")
    cursor.close()
    connection.close()


def _row(chance: random.Random, k1: int) -> tuple[Any, ...]:
    return (
        k1,
        chance.choice("aAb"),
        chance.choice([None, chance.randrange(2**64)]),
        chance.choice([None, f"{chance.randrange(-(10**12), 10**12)}e-3"]),
        _text(chance),
        chance.choice(
            [None, f"2026-01-0{chance.randrange(1, 9)} 00:00:00.{chance.randrange(10**6):06}"]
        ),
    )


def _text(chance: random.Random) -> str | None:
    return chance.choice([None, "", "ä€", "x" * 299, "\x81", str(chance.random())])


@pytest.mark.long
def test_a_restored_server_is_noticed(address: str, shop: MysqlShop) -> None:
    shop.run("CREATE TABLE items (id INT PRIMARY KEY)", "INSERT INTO items VALUES (1)")
    shop.sync_or_fail()
    connection = shop.connect()
    with connection.cursor() as cursor:
        cursor.execute("RESET MASTER" if shop.is_mariadb else "RESET BINARY LOGS AND GTIDS")
    connection.close()
    shop.run("INSERT INTO items VALUES (2)")
    (stream,) = shop.sync().streams
    assert "not in" in (stream.error or "") or "has not committed" in (stream.error or "")
    assert shop.present("items", ["id"]) == [(1,)]
    shop.sync_or_fail(full_refresh=True)
    assert shop.present("items", ["id"]) == [(1,), (2,)]
    shop.run("DELETE FROM items WHERE id = 1")
    shop.sync_or_fail()
    assert [row["id"] for row in shop.table("items").to_pylist() if row[ACTIVE]] == [2]
