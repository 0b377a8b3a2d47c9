"""What statements in a binary log do to a table."""

from __future__ import annotations

import pytest

from chronolake.source.mysql.statements import Effect, Statement, TableEffect


def _effect(query: str, *, schema: str = "shop", table: str = "orders") -> TableEffect | None:
    return Statement.of(query, "shop").effect_on(schema, table)


@pytest.mark.parametrize(
    "query",
    [
        "ALTER TABLE lines ADD COLUMN note TEXT, ADD FOREIGN KEY (id) REFERENCES orders(id)",
        "ALTER TABLE lines RENAME COLUMN orders TO parts",
        "ALTER TABLE lines DROP COLUMN orders",
        "ALTER TABLE other.orders DROP COLUMN n",
        "ALTER TABLE `orders`.lines DROP COLUMN n",
        "TRUNCATE TABLE orders.lines",
        "TRUNCATE orders.lines",
        "TRUNCATE other.orders",
        "CREATE TABLE IF NOT EXISTS orders (id INT)",
        "CREATE TEMPORARY TABLE orders (id INT)",
        "DROP TEMPORARY TABLE IF EXISTS orders",
        "CREATE INDEX n ON orders (n)",
        "CREATE TABLE copied LIKE orders",
        "CREATE TABLE copied AS SELECT * FROM shop.orders",
        "DROP TABLE orders.lines",
        "CREATE VIEW recent AS SELECT * FROM orders",
        "ALTER DATABASE shop CHARACTER SET utf8mb4",
        "ALTER TABLE orders ADD INDEX (n), ENGINE = InnoDB",
        "ALTER TABLE orders ADD CONSTRAINT c FOREIGN KEY (n) REFERENCES lines (n)",
        "SET STATEMENT max_statement_time=5 FOR ALTER TABLE orders ADD INDEX (n)",
        "GRANT SELECT ON shop.orders TO reader",
        "INSERT INTO mysql.rds_heartbeat2(id, value) VALUES (1, 2) ON DUPLICATE KEY UPDATE id=2",
        "DELETE FROM `mysql`.`rds_sysinfo` WHERE name = 'innodb_txn_key'",
    ],
)
def test_statements_that_do_not_change_the_table(query: str) -> None:
    assert _effect(query) is None


@pytest.mark.parametrize(
    ("query", "effect"),
    [
        ("TRUNCATE orders", TableEffect(Effect.TRUNCATED)),
        ("TRUNCATE TABLE `shop`.`orders` WAIT 5", TableEffect(Effect.TRUNCATED)),
        (
            "SET STATEMENT lock_wait_timeout=5 FOR TRUNCATE TABLE orders",
            TableEffect(Effect.TRUNCATED),
        ),
        (
            "ALTER TABLE orders WAIT 3 ADD COLUMN note VARCHAR(20) COMMENT 'NOT, NULL' AFTER n",
            TableEffect(Effect.COLUMNS, added=("note",)),
        ),
        (
            "ALTER TABLE orders DROP COLUMN n, RENAME COLUMN a TO b",
            TableEffect(Effect.COLUMNS, renamed=(("a", "b"),), dropped=("n",)),
        ),
        (
            "ALTER TABLE orders ADD COLUMN t TIMESTAMP NULL DEFAULT NULL",
            TableEffect(Effect.COLUMNS, added=("t",)),
        ),
        (
            "ALTER TABLE orders ADD c ENUM('a', 'b') CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
            TableEffect(Effect.COLUMNS, added=("c",)),
        ),
        ("ALTER TABLE orders ALTER COLUMN n SET DEFAULT 9", TableEffect(Effect.DEFAULTS)),
    ],
)
def test_effects_that_are_followed(query: str, effect: TableEffect) -> None:
    assert _effect(query) == effect


@pytest.mark.parametrize(
    "query",
    [
        "ALTER TABLE orders ADD COLUMN k SERIAL",
        "ALTER TABLE orders ADD COLUMN t TIMESTAMP",
        "ALTER TABLE orders ADD COLUMN t TIMESTAMP DEFAULT NULL ON UPDATE CURRENT_TIMESTAMP",
        "ALTER TABLE orders ADD COLUMN n INT NOT NULL",
        "ALTER TABLE orders ADD COLUMN n INT DEFAULT 5",
        "ALTER TABLE orders ADD COLUMN n INT AS (id + 1)",
        "ALTER TABLE orders ADD COLUMN n INT DEFAULT (rand())",
        "ALTER TABLE orders ADD COLUMN n SOMETHING",
        "ALTER TABLE orders MODIFY n BIGINT",
        "ALTER TABLE orders DROP PRIMARY KEY",
        "ALTER TABLE orders DROP FOREIGN KEY f",
        "ALTER TABLE orders DROP CONSTRAINT f",
        "ALTER IGNORE TABLE orders ADD UNIQUE (n)",
        "ALTER TABLE orders ENGINE = BLACKHOLE",
        # Whether it is the same table depends on the server.
        "TRUNCATE ORDERS",
        "ALTER TABLE Orders DROP COLUMN n",
        "ALTER TABLE orders RENAME TO gone",
        "ALTER TABLE lines RENAME TO orders",
        "ALTER TABLE lines RENAME AS shop.orders",
        "ALTER TABLE parts EXCHANGE PARTITION p WITH TABLE orders",
        "RENAME TABLE orders TO gone, orders_new TO orders",
        "DROP TABLE IF EXISTS lines, orders",
        "DROP DATABASE shop",
        "CREATE OR REPLACE TABLE orders (id INT)",
        "CREATE TABLE `shop`.`orders` (id INT)",
        # Rows of other tables may be changed by views, triggers and foreign keys.
        "UPDATE a_view SET n = 1",
        "/* text */ insert into lines values (1)",
        "CALL something()",
        "SET STATEMENT max_statement_time=5 FOR DELETE FROM lines",
        "ANALYZE FORMAT=JSON UPDATE lines SET n = 1",
        "ANALYZE UPDATE lines SET n = 1",
    ],
)
def test_statements_after_which_the_table_is_read_again(query: str) -> None:
    assert _effect(query) == TableEffect(Effect.CHANGED)


def test_a_database_may_begin_with_a_digit() -> None:
    found = _effect("TRUNCATE TABLE 2020_a.old", schema="2020_a", table="old")
    assert found == TableEffect(Effect.TRUNCATED)
    assert _effect("ALTER TABLE 1e5.t DROP n", schema="1e5", table="t") is not None


def test_names_are_not_alike_because_they_have_one_upper_case() -> None:
    assert _effect("TRUNCATE strasse", table="stra\u00dfe") is None


def test_a_backslash_may_be_a_character() -> None:
    query = r"ALTER TABLE orders COMMENT 'x\', ADD COLUMN d INT DEFAULT 5 COMMENT 'y'"
    found = Statement.of(query, "shop", has_escapes=False).effect_on("shop", "orders")
    assert found == TableEffect(Effect.CHANGED)
    assert Statement.of(query, "shop").effect_on("shop", "orders") is None
