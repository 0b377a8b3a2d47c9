"""Statements that define tables: what the log does not contain is read from the table again."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from support.source.mysql_fixtures import shop
from support.source.mysql_servers import MysqlShop, server

__all__ = ["shop"]

#: Statements, and whether they leave values that are not in the log.
_ALTERED = [
    (["ALTER TABLE items ADD COLUMN note TEXT"], False),
    (["ALTER TABLE items RENAME COLUMN state TO status"], False),
    (["ALTER TABLE items DROP COLUMN code"], False),
    (["ALTER TABLE items ADD paid BOOL", "UPDATE items SET paid = TRUE WHERE id = 2"], False),
    (["ALTER TABLE items ADD later INT", "ALTER TABLE items ALTER later SET DEFAULT 5"], False),
    (["CREATE INDEX by_note ON items (note(5))", "ALTER TABLE items DROP INDEX by_note"], False),
    (["ALTER TABLE items ADD COLUMN a INT, ADD b INT DEFAULT 1"], True),
    (["ALTER TABLE items ADD c INT DEFAULT 7", "UPDATE items SET c = 8 WHERE id = 1"], True),
    (["ALTER TABLE items ADD d INT NOT NULL"], True),
    (["ALTER TABLE items MODIFY later VARCHAR(9)"], True),
    (["UPDATE items SET note = 'n'", "ALTER TABLE items DROP note"], False),
    (["ALTER TABLE items ADD COLUMN note TEXT"], False),
    (["ALTER TABLE items DROP note, RENAME COLUMN b TO note"], False),
    (["ALTER TABLE items DROP note", "ALTER TABLE items ADD note INT"], False),
    (["ALTER TABLE items RENAME COLUMN a TO a2, RENAME COLUMN c TO a"], False),
    (["ALTER TABLE items CHANGE a a3 INT FIRST"], True),
    (["ALTER TABLE items CONVERT TO CHARACTER SET latin1"], True),
    (["ALTER TABLE items ENGINE = InnoDB, COMMENT 'x', ALGORITHM = COPY"], False),
    (
        ["DELETE FROM items WHERE id = 1", "INSERT INTO items (id, total, d) VALUES (1, 9, 0)"],
        False,
    ),
]


@pytest.fixture(scope="module", params=["mysql", pytest.param("mariadb", marks=pytest.mark.long)])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the address of a server."""
    with server(request.param) as found:
        yield found


def _read_again(logged: list[Any]) -> set[str]:
    found = {event["stream"] for event in logged if event["event"] == "table_read_again"}
    logged.clear()
    return found


def _agrees(shop: MysqlShop) -> bool:
    """Return whether the active versions are the rows of the table."""
    reported = shop.rows(
        "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'shop' AND "
        "TABLE_NAME = 'items' ORDER BY 1"
    )
    names = [name for (name,) in reported]
    rows = shop.rows(f"SELECT {', '.join(names)} FROM items")
    return [tuple(map(str, row)) for row in shop.present("items", names)] == [
        tuple(map(str, row)) for row in sorted(rows, key=repr)
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    "cases",
    [
        pytest.param([0, 1, 4, 6, 10, 11, 13], id="some"),
        pytest.param(list(range(len(_ALTERED))), id="all", marks=pytest.mark.long),
    ],
)
def test_columns_are_read_from_the_table_only_where_the_log_lacks_values(
    shop: MysqlShop, cases: list[int]
) -> None:
    shop.run(
        "CREATE TABLE items (id INT PRIMARY KEY, state TEXT, code VARCHAR(10), total INT NOT NULL)",
        "INSERT INTO items VALUES (1, 'new', 'x', 1), (2, 'new', 'y', 2), (3, NULL, 'z', 3)",
    )
    shop.sync_or_fail()
    with structlog.testing.capture_logs() as logged:
        for statements, is_read in (_ALTERED[number] for number in cases):
            shop.run(*statements)
            shop.sync_or_fail()
            assert _read_again(logged) == ({"shop.items"} if is_read else set()), statements
            assert _agrees(shop), statements
        shop.sync_or_fail()
        assert _read_again(logged) == set()
    assert shop.agrees()


def test_labels_are_those_of_the_time_of_a_change(shop: MysqlShop) -> None:
    shop.run(
        "CREATE TABLE items (id INT PRIMARY KEY, e ENUM('a','b'), s SET('x','y'))",
        "INSERT INTO items VALUES (1, 'a', 'x'), (2, 'b', 'x,y')",
    )
    shop.sync_or_fail()
    shop.run(
        "UPDATE items SET e = 'b' WHERE id = 1",
        "ALTER TABLE items MODIFY e ENUM('c','b','a'), MODIFY s SET('y','z','x')",
        "UPDATE items SET e = 'c', s = 'z,y' WHERE id = 1",
        "UPDATE items SET e = 'a' WHERE id = 2",
    )
    shop.sync_or_fail()
    states = shop.states("items", ["id"], ["e", "s"])
    assert states[(1,)] == [("a", "x"), ("b", "x"), ("c", "y,z")]
    assert states[(2,)][0] == ("b", "x,y")
    assert states[(2,)][-1] == ("a", "y,x")
    assert _agrees(shop)


@pytest.mark.long
def test_partitions_and_statements_without_row_events(shop: MysqlShop) -> None:
    shop.run(
        "CREATE TABLE items (id INT PRIMARY KEY, n INT) PARTITION BY RANGE (id) "
        "(PARTITION p1 VALUES LESS THAN (10), PARTITION p2 VALUES LESS THAN (20))",
        "INSERT INTO items VALUES (1, 1), (11, 11), (12, 12)",
    )
    shop.sync_or_fail()
    shop.run(
        "ALTER TABLE items TRUNCATE PARTITION p1",
        "ALTER TABLE items ADD PARTITION (PARTITION p3 VALUES LESS THAN (30))",
        "INSERT INTO items VALUES (21, 21)",
    )
    shop.sync_or_fail()
    assert shop.present("items", ["id", "n"]) == [(11, 11), (12, 12), (21, 21)]
    shop.run(
        "CREATE TABLE other (id INT PRIMARY KEY, n INT)",
        "INSERT INTO other VALUES (22, 22)",
        "ALTER TABLE items EXCHANGE PARTITION p3 WITH TABLE other",
        "ALTER TABLE items DROP PARTITION p2",
    )
    shop.sync_or_fail()
    assert shop.present("items", ["id", "n"]) == [(22, 22)]
    # The log of the statement has no rows.
    shop.run("SET SESSION binlog_format = 'STATEMENT'", "UPDATE items SET n = n + 1")
    shop.sync_or_fail()
    assert shop.states("items", ["id"], ["n"])[(22,)] == [(22,), (23,)]
    assert shop.agrees()


@pytest.mark.long
def test_invisible_and_generated_columns(shop: MysqlShop) -> None:
    shop.run(
        "CREATE TABLE items (id INT PRIMARY KEY, a INT, v INT AS (a + 1) VIRTUAL, "
        "s INT AS (a + 2) STORED, h INT DEFAULT 5 INVISIBLE)",
        "INSERT INTO items (id, a) VALUES (1, 10)",
    )
    shop.sync_or_fail()
    shop.run("UPDATE items SET a = 11, h = 6", "INSERT INTO items (id, a) VALUES (2, 20)")
    shop.sync_or_fail()
    assert shop.states("items", ["id"], ["a", "h"]) == {
        (1,): [(10, 5), (11, 6)],
        (2,): [(20, 5)],
    }
    assert {"v", "s"}.isdisjoint(shop.table("items").column_names)
    shop.configure(more=", generated_columns: true")
    shop.sync_or_fail(full_refresh=True)
    shop.run("UPDATE items SET a = 30 WHERE id = 1")
    shop.sync_or_fail()
    assert shop.present("items", ["id", "v", "s"]) == [(1, 31, 32), (2, 21, 22)]


def test_keys_that_the_server_compares_without_case_and_spaces(shop: MysqlShop) -> None:
    shop.run(
        "CREATE TABLE items (code VARCHAR(9) COLLATE utf8mb4_general_ci PRIMARY KEY, n INT)",
        "INSERT INTO items VALUES ('a', 1), ('B', 2), ('ç', 3), ('D ', 4)",
    )
    shop.sync_or_fail()
    shop.run(
        "UPDATE items SET n = 10 WHERE code = 'A'",
        "UPDATE items SET code = 'b' WHERE code = 'B'",
        "DELETE FROM items WHERE code = 'C'",
        "UPDATE items SET n = 40 WHERE code = 'd'",
    )
    shop.sync_or_fail()
    assert shop.states("items", ["code"], ["n"]) == {
        ("a",): [(1,), (10,)],
        ("B",): [(2,), None],
        ("b",): [(2,)],
        ("ç",): [(3,), None],
        ("D ",): [(4,), (40,)],
    }


@pytest.mark.long
@pytest.mark.skipif(
    shutil.which("pt-online-schema-change") is None, reason="percona-toolkit is not installed"
)
def test_pt_online_schema_change(shop: MysqlShop) -> None:
    shop.run(
        "CREATE TABLE items (id INT PRIMARY KEY, n INT)",
        "INSERT INTO items VALUES (1, 1), (2, 2)",
    )
    shop.sync_or_fail()
    shop.run("UPDATE items SET n = 3 WHERE id = 2")
    host, port = shop.address.rpartition("@")[2].split(":")
    done = subprocess.run(
        [
            *("pt-online-schema-change", "--execute", "--no-version-check", "--charset=utf8mb4"),
            "--recursion-method=none",
            "--alter=ADD COLUMN m INT NOT NULL DEFAULT 7",
            f"h={host},P={port},u=root,D=shop,t=items",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if "caching_sha2_password" in done.stderr:
        pytest.skip("the tool's client is too old for this server")
    assert done.returncode == 0, done.stdout + done.stderr
    shop.run("UPDATE items SET m = 8 WHERE id = 1")
    shop.sync_or_fail()
    assert shop.present("items", ["id", "n", "m"]) == [(1, 1, 8), (2, 3, 7)]
    assert shop.states("items", ["id"], ["n"])[(2,)][:2] == [(2,), (3,)]


@pytest.mark.long
def test_a_table_that_is_exchanged_for_a_copy_of_it(shop: MysqlShop) -> None:
    shop.run(
        "CREATE TABLE items (id INT PRIMARY KEY, n INT)", "INSERT INTO items VALUES (1, 1), (2, 2)"
    )
    shop.sync_or_fail()
    # What gh-ost does: it fills the new table from the log, and exchanges them in one statement.
    shop.run(
        "CREATE TABLE _items_gho LIKE items",
        "ALTER TABLE _items_gho ADD COLUMN m VARCHAR(9) DEFAULT 'x'",
        "INSERT INTO _items_gho (id, n) SELECT id, n FROM items",
        "UPDATE items SET n = 5 WHERE id = 1",
        "REPLACE INTO _items_gho (id, n) VALUES (1, 5)",
        "RENAME TABLE items TO _items_del, _items_gho TO items",
        "DROP TABLE _items_del",
        "DELETE FROM items WHERE id = 2",
    )
    shop.sync_or_fail()
    assert shop.present("items", ["id", "n", "m"]) == [(1, 5, "x")]
    assert shop.states("items", ["id"], ["n"])[(2,)][-1] is None
    assert shop.agrees()
