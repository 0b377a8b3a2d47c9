"""Names that a MySQL server compares in another way than Python, or that a client has encoded."""

from __future__ import annotations

import pytest

from support.source.mysql_fixtures import address, shop
from support.source.mysql_servers import MysqlShop

__all__ = ["address", "shop"]


@pytest.mark.long
def test_statements_of_clients_with_another_character_set(shop: MysqlShop) -> None:
    shop.run(
        "CREATE TABLE `\u00fcn\u00ef` (id INT PRIMARY KEY)",
        "CREATE TABLE `gr\u00f6\u00dfe` (id INT PRIMARY KEY)",
        "INSERT INTO `\u00fcn\u00ef` VALUES (1), (2)",
        "INSERT INTO `gr\u00f6\u00dfe` VALUES (1)",
    )
    shop.sync_or_fail()
    connection = shop.connect(database="shop")
    connection.set_character_set("latin1")
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE `\u00fcn\u00ef`")
        cursor.execute("ALTER TABLE `gr\u00f6\u00dfe` ADD q INT NOT NULL DEFAULT 3")
    connection.close()
    shop.sync_or_fail()
    assert shop.present("\u00fcn\u00ef", ["id"]) == []
    assert shop.present("gr\u00f6\u00dfe", ["id", "q"]) == [(1, 3)]


@pytest.mark.long
def test_tables_whose_names_differ_in_case(shop: MysqlShop) -> None:
    shop.run(
        "CREATE TABLE Foo (id INT PRIMARY KEY, n INT)",
        "CREATE TABLE foo (id INT PRIMARY KEY, n INT)",
        "INSERT INTO Foo VALUES (1, 1)",
        "INSERT INTO foo VALUES (2, 2)",
    )
    shop.configure(rename="{tables: {shop.Foo: other}}")
    shop.sync_or_fail()
    assert shop.present("other", ["id", "n"]) == [(1, 1)]
    assert shop.present("foo", ["id", "n"]) == [(2, 2)]
    shop.run("TRUNCATE foo", "UPDATE Foo SET n = 3")
    shop.sync_or_fail()
    assert shop.present("other", ["id", "n"]) == [(1, 3)]
    assert shop.present("foo", ["id", "n"]) == []


@pytest.mark.long
def test_names_with_one_upper_case(shop: MysqlShop) -> None:
    shop.run(
        "CREATE TABLE `stra\u00dfe` (id INT PRIMARY KEY, ss INT, `\u00df` INT)",
        "CREATE TABLE strasse (id INT PRIMARY KEY)",
        "INSERT INTO `stra\u00dfe` VALUES (1, 2, 3), (2, 4, 5)",
    )
    shop.configure(more=", tables: ['shop.stra\u00dfe']")
    shop.sync_or_fail()
    shop.run(
        "TRUNCATE strasse",
        "ALTER TABLE `stra\u00dfe` DROP COLUMN ss",
        "ALTER TABLE `stra\u00dfe` ADD z INT",
        "UPDATE `stra\u00dfe` SET z = 6 WHERE id = 1",
    )
    shop.sync_or_fail()
    found = shop.present("stra\u00dfe", ["id", "\u00df", "z"])
    assert found == [(1, 3, 6), (2, 5, None)]
