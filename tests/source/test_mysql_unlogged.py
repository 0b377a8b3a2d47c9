"""What the binary log leaves out, undoes, or has in another form: nothing is lost or wrong."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from chronolake.types import START
from support.source.mysql_fixtures import address, shop
from support.source.mysql_servers import MysqlShop

__all__ = ["address", "shop"]


def _agrees(shop: MysqlShop, table: str, columns: str) -> bool:
    rows = sorted(shop.rows(f"SELECT {columns} FROM {table}"), key=repr)
    return shop.present(table, columns.split(", ")) == rows


def test_foreign_keys_change_rows(shop: MysqlShop) -> None:
    shop.run(
        "CREATE TABLE parents (id INT PRIMARY KEY, n INT)",
        "CREATE TABLE children (id INT PRIMARY KEY, parent INT, FOREIGN KEY (parent) "
        "REFERENCES parents (id) ON DELETE CASCADE ON UPDATE CASCADE)",
        "CREATE TABLE grandchildren (id INT PRIMARY KEY, child INT, FOREIGN KEY (child) "
        "REFERENCES children (id) ON DELETE SET NULL)",
        "INSERT INTO parents VALUES (1, 1), (2, 2), (3, 3)",
        "INSERT INTO children VALUES (10, 1), (20, 2), (30, 3)",
        "INSERT INTO grandchildren VALUES (100, 10), (200, 20), (300, 30)",
    )
    shop.configure(more=", tables: [shop.children, shop.grandchildren]")
    shop.sync_or_fail()
    shop.run("DELETE FROM parents WHERE id = 1", "UPDATE parents SET n = 5 WHERE id = 2")
    shop.sync_or_fail()
    assert shop.present("children", ["id", "parent"]) == [(20, 2), (30, 3)]
    assert shop.present("grandchildren", ["id", "child"]) == [(100, None), (200, 20), (300, 30)]
    shop.run("UPDATE parents SET id = 4 WHERE id = 2")
    shop.sync_or_fail()
    assert shop.present("children", ["id", "parent"]) == [(20, 4), (30, 3)]
    states = shop.states("grandchildren", ["id"], ["child"])
    assert states == {(100,): [(10,), (None,)], (200,): [(20,)], (300,): [(30,)]}


@pytest.mark.long
def test_foreign_keys_lead_through_other_databases(shop: MysqlShop) -> None:
    shop.administer(
        "DROP DATABASE IF EXISTS other",
        "CREATE DATABASE other",
        "CREATE TABLE other.roots (id INT PRIMARY KEY)",
        "CREATE TABLE other.parents (id INT PRIMARY KEY, root INT, "
        "FOREIGN KEY (root) REFERENCES other.roots (id) ON DELETE CASCADE)",
        "CREATE TABLE shop.children (id INT PRIMARY KEY, parent INT, "
        "FOREIGN KEY (parent) REFERENCES other.parents (id) ON DELETE CASCADE)",
        "INSERT INTO other.roots VALUES (1), (2)",
        "INSERT INTO other.parents VALUES (10, 1), (20, 2)",
        "INSERT INTO shop.children VALUES (100, 10), (200, 20)",
    )
    shop.sync_or_fail()
    shop.administer("DELETE FROM other.roots WHERE id = 1")
    shop.sync_or_fail()
    assert shop.present("children", ["id", "parent"]) == [(200, 20)]
    shop.administer("DROP TABLE shop.children", "DROP DATABASE other")


@pytest.mark.long
def test_rolled_back_changes_do_not_land(shop: MysqlShop) -> None:
    if not shop.is_mariadb:
        pytest.skip("MySQL with GTIDs refuses such transactions")
    shop.run(
        "CREATE TABLE items (id INT PRIMARY KEY, n INT)",
        "CREATE TABLE notes (id INT PRIMARY KEY) ENGINE = MyISAM",
        "INSERT INTO items VALUES (1, 1), (2, 2)",
    )
    shop.sync_or_fail()
    shop.run(
        "INSERT INTO items VALUES (3, 3)",
        "BEGIN",
        "UPDATE items SET n = 100",
        "INSERT INTO notes VALUES (1)",
        "INSERT INTO items VALUES (4, 4)",
        "ROLLBACK",
        "BEGIN",
        "UPDATE items SET n = 10 WHERE id = 1",
        "SAVEPOINT one",
        "UPDATE items SET n = 11",
        "INSERT INTO notes VALUES (2)",
        "ROLLBACK TO SAVEPOINT one",
        "UPDATE items SET n = 20 WHERE id = 2",
        "COMMIT",
        "BEGIN",
        "DELETE FROM items",
        "CREATE TEMPORARY TABLE t (id INT)",
        "ROLLBACK",
    )
    shop.sync_or_fail()
    states = shop.states("items", ["id"], ["n"])
    assert states == {(1,): [(1,), (10,)], (2,): [(2,), (20,)], (3,): [(3,)]}
    assert shop.present("notes", ["id"]) == [(1,), (2,)]


@pytest.mark.long
def test_defaults_that_have_changed(shop: MysqlShop) -> None:
    shop.run("CREATE TABLE items (id INT PRIMARY KEY, n INT DEFAULT 5)")
    shop.sync_or_fail()
    shop.run(
        "SET SESSION binlog_row_image = 'MINIMAL'",
        "INSERT INTO items (id) VALUES (1)",
        "ALTER TABLE items ALTER COLUMN n SET DEFAULT 9",
        "INSERT INTO items (id) VALUES (2)",
    )
    shop.sync_or_fail()
    assert shop.present("items", ["id", "n"]) == [(1, 5), (2, 9)]


@pytest.mark.long
def test_statements_change_rows_of_any_table(shop: MysqlShop) -> None:
    shop.run(
        "CREATE TABLE items (id INT PRIMARY KEY, n INT)",
        "CREATE TABLE audit (id INT PRIMARY KEY AUTO_INCREMENT, n INT)",
        "INSERT INTO items VALUES (1, 1)",
        "CREATE VIEW some AS SELECT * FROM items",
        "CREATE TRIGGER t AFTER UPDATE ON items FOR EACH ROW INSERT INTO audit (n) VALUES (NEW.n)",
    )
    shop.configure(more=", tables: [shop.items, shop.audit]")
    shop.sync_or_fail()
    shop.run("SET SESSION binlog_format = 'STATEMENT'", "UPDATE some SET n = 2")
    shop.sync_or_fail()
    assert _agrees(shop, "items", "id, n")
    assert _agrees(shop, "audit", "id, n")


@pytest.mark.long
def test_sessions_with_another_time(shop: MysqlShop) -> None:
    shop.run("CREATE TABLE items (id INT PRIMARY KEY, n INT)", "INSERT INTO items VALUES (1, 1)")
    shop.sync_or_fail()
    shop.run("SET SESSION timestamp = 2000000000", "UPDATE items SET n = 2")
    shop.run("UPDATE items SET n = 3")
    shop.sync_or_fail()
    shop.run("UPDATE items SET n = 4")
    shop.sync_or_fail()
    assert shop.states("items", ["id"], ["n"]) == {(1,): [(1,), (2,), (3,), (4,)]}
    latest = max(shop.table("items")[START].to_pylist())
    assert latest < (datetime.now(UTC).timestamp() + 60) * 1_000_000


@pytest.mark.long
def test_logs_without_names_of_columns(shop: MysqlShop) -> None:
    shop.run("CREATE TABLE items (id INT PRIMARY KEY, n INT)", "CREATE TABLE t (a INT PRIMARY KEY)")
    shop.sync_or_fail()
    shop.administer("SET GLOBAL binlog_row_metadata = 'MINIMAL'")
    try:
        shop.run("FLUSH TABLES", "INSERT INTO items VALUES (1, 1), (2, 2)")
    finally:
        shop.administer("SET GLOBAL binlog_row_metadata = 'FULL'")
    shop.run("FLUSH TABLES", "INSERT INTO t VALUES (1)", "DELETE FROM items WHERE id = 2")
    shop.sync_or_fail()
    assert shop.present("items", ["id", "n"]) == [(1, 1)]
    assert shop.present("t", ["a"]) == [(1,)]


@pytest.mark.long
def test_types_and_tables_that_only_mariadb_has(shop: MysqlShop) -> None:
    if not shop.is_mariadb:
        pytest.skip("MySQL has no such types")
    uuid = "123e4567-e89b-12d3-a456-426655440000"
    shop.run(
        "CREATE TABLE ids (id UUID PRIMARY KEY, a INET6, n INT)",
        "CREATE TABLE kept (id INT PRIMARY KEY, n INT) WITH SYSTEM VERSIONING",
        "CREATE TABLE packed (id INT PRIMARY KEY, t VARCHAR(200) COMPRESSED)",
        "CREATE TABLE items (id INT PRIMARY KEY, n INT)",
        f"INSERT INTO ids VALUES ('{uuid}', '::1', 1)",
        "INSERT INTO kept VALUES (1, 1), (2, 2)",
        "INSERT INTO packed VALUES (1, REPEAT('a', 150))",
    )
    shop.sync_or_fail()
    shop.run(
        "UPDATE ids SET n = 2, a = '::2'",
        "UPDATE kept SET n = 5 WHERE id = 1",
        "DELETE FROM kept WHERE id = 2",
        "UPDATE packed SET t = REPEAT('b', 150)",
        "INSERT INTO items VALUES (1, 1)",
    )
    shop.sync_or_fail()
    assert shop.states("ids", ["id"], ["a", "n"]) == {(uuid,): [("::1", 1), ("::2", 2)]}
    assert shop.states("kept", ["id"], ["n"]) == {(1,): [(1,), (5,)], (2,): [(2,), None]}
    assert shop.states("packed", ["id"], ["t"]) == {(1,): [("a" * 150,), ("b" * 150,)]}
    assert shop.present("items", ["id", "n"]) == [(1, 1)]


@pytest.mark.long
def test_tables_that_are_created_from_others(shop: MysqlShop) -> None:
    shop.run(
        "CREATE TABLE items (id INT PRIMARY KEY, n INT)",
        "INSERT INTO items VALUES (1, 1)",
        "CREATE TABLE found (PRIMARY KEY (id)) AS SELECT * FROM items",
        "CREATE TABLE codes (code VARCHAR(9) NOT NULL)",
    )
    if not shop.is_mariadb:
        shop.run("CREATE UNIQUE INDEX f ON codes ((LOWER(code)))")
    shop.configure(more=", tables: [shop.items, shop.found, shop.codes]")
    shop.sync_or_fail()
    shop.run(
        "INSERT INTO codes VALUES ('A')",
        "DROP TABLE found",
        "CREATE TABLE found (PRIMARY KEY (id)) AS SELECT id + 1 AS id, n FROM items",
        "INSERT INTO items VALUES (7, 7)",
    )
    shop.sync_or_fail()
    assert shop.present("found", ["id", "n"]) == [(2, 1)]
    assert shop.present("items", ["id", "n"]) == [(1, 1), (7, 7)]
    assert shop.present("codes", ["code"]) == [("A",)]


@pytest.mark.long
def test_columns_with_defaults_that_are_computed(shop: MysqlShop) -> None:
    shop.run(
        "CREATE TABLE items (id INT PRIMARY KEY, n INT DEFAULT (1 + 1), "
        "at TIMESTAMP DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, "
        "twice INT GENERATED ALWAYS AS (n * 2) STORED)",
        "INSERT INTO items (id) VALUES (1)",
    )
    shop.sync_or_fail()
    assert shop.table("items").column_names[:3] == ["id", "n", "at"]
    assert "twice" not in shop.table("items").column_names
    shop.run("UPDATE items SET n = 5, at = '2001-02-03 04:05:06'")
    shop.sync_or_fail()
    ((key, n, at),) = shop.present("items", ["id", "n", "at"])
    assert (key, n, at) == (1, 5, datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC))


@pytest.mark.long
@pytest.mark.parametrize(
    "statement",
    ["ALTER TABLE parts DROP FOREIGN KEY of_order", "RENAME TABLE orders TO orders_old"],
)
def test_foreign_keys_that_are_gone_when_the_log_is_read(shop: MysqlShop, statement: str) -> None:
    shop.run(
        "CREATE TABLE orders (id INT PRIMARY KEY) ENGINE = InnoDB",
        "CREATE TABLE parts (id INT PRIMARY KEY, order_id INT, CONSTRAINT of_order FOREIGN KEY "
        "(order_id) REFERENCES orders (id) ON DELETE CASCADE) ENGINE = InnoDB",
        "INSERT INTO orders VALUES (1), (2)",
        "INSERT INTO parts VALUES (1, 1), (2, 2)",
    )
    shop.configure(more=", tables: [shop.parts]")
    shop.sync_or_fail()
    shop.run("DELETE FROM orders WHERE id = 1", statement)
    shop.sync_or_fail()
    assert shop.present("parts", ["id"]) == [(2,)]


@pytest.mark.long
def test_a_unique_index_removes_rows(shop: MysqlShop) -> None:
    if not shop.is_mariadb:
        pytest.skip("MySQL has no ALTER IGNORE TABLE")
    shop.run(
        "CREATE TABLE items (id INT PRIMARY KEY, n INT)", "INSERT INTO items VALUES (1, 1), (2, 1)"
    )
    shop.sync_or_fail()
    shop.run("ALTER IGNORE TABLE items ADD UNIQUE (n)")
    shop.sync_or_fail()
    assert shop.present("items", ["id"]) == sorted(shop.rows("SELECT id FROM items"))
    assert len(shop.present("items", ["id"])) == 1


@pytest.mark.long
def test_a_default_that_changes_while_the_log_is_read(
    shop: MysqlShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run("CREATE TABLE items (id INT PRIMARY KEY, d INT DEFAULT 5)")
    shop.sync_or_fail()
    shop.run("SET SESSION binlog_row_image = 'MINIMAL'", "INSERT INTO items (id) VALUES (1)")
    changes = iter(["ALTER TABLE items ALTER d SET DEFAULT 6"])

    def change(point: str) -> None:
        if point == "read.log-batch" and (statement := next(changes, None)):
            shop.run(statement)

    with monkeypatch.context() as patched:
        patched.setattr("chronolake.source.mysql.log_reader.reach", change)
        shop.sync_or_fail()
    # The value is not known until the table is read again, in the same run.
    assert shop.states("items", ["id"], ["d"]) == {(1,): [(None,), (5,)]}
