"""Single records and slices of MySQL tables are read again, as of one place in the log."""

from __future__ import annotations

import pytest

from chronolake.pipeline.partial_reads import source_of_records
from chronolake.pipeline.runs import Status
from chronolake.pipeline.sync import sync
from support.source.mysql_fixtures import address, shop
from support.source.mysql_servers import MysqlShop

__all__ = ["address", "shop"]


def _read(
    shop: MysqlShop, *where: dict[str, str], is_slice: bool = False, stream: str = "shop.orders"
) -> str:
    """Read records, and return the error, if there is one."""
    source = source_of_records(shop.project, "shop", stream, where, is_slice=is_slice)
    result = sync(shop.lake, shop.project, "shop", only=[stream], source=source)
    (outcome,) = result.streams
    assert (result.status is Status.SUCCEEDED) == (outcome.error is None)
    return str(outcome.error or "")


def _run_unlogged(shop: MysqlShop, *statements: str) -> None:
    shop.run("SET SESSION sql_log_bin = 0", *statements)


def _agrees(shop: MysqlShop) -> bool:
    rows = shop.rows("SELECT id, region, n FROM orders ORDER BY id")
    return shop.present("orders", ["id", "region", "n"]) == rows


def _prepare_orders(shop: MysqlShop) -> None:
    shop.run(
        "CREATE TABLE orders (id INT PRIMARY KEY, region VARCHAR(9), n INT)",
        "INSERT INTO orders VALUES (1, 'EU', 1), (2, 'EU', 1), (3, 'US', 1), (4, 'EU', 1)",
    )
    shop.sync_or_fail()


@pytest.mark.long
def test_records_and_slices(shop: MysqlShop) -> None:
    _prepare_orders(shop)
    _run_unlogged(
        shop,
        "UPDATE orders SET n = 9 WHERE id IN (1, 3)",
        "DELETE FROM orders WHERE id = 2",
        "INSERT INTO orders VALUES (5, 'EU', 5), (6, 'US', 6)",
    )
    shop.run("UPDATE orders SET n = 7 WHERE id = 4")
    assert not _read(shop, {"id": "1"}, {"id": "2"}, {"id": "4"}, {"id": "99"})
    present = [(1, "EU", 9), (3, "US", 1), (4, "EU", 7)]
    assert shop.present("orders", ["id", "region", "n"]) == present
    states = shop.states("orders", ["id"], ["n"])
    assert states == {(1,): [(1,), (9,)], (2,): [(1,), None], (3,): [(1,)], (4,): [(1,), (7,)]}

    # The third record moves to the slice, and the first one out of it.
    _run_unlogged(
        shop,
        "UPDATE orders SET region = 'EU' WHERE id = 3",
        "UPDATE orders SET region = 'US' WHERE id = 1",
    )
    assert not _read(shop, {"region": "EU"}, is_slice=True)
    present = [(1, "US", 9), (3, "EU", 9), (4, "EU", 7), (5, "EU", 5)]
    assert shop.present("orders", ["id", "region", "n"]) == present
    before = shop.table("orders").num_rows
    assert not _read(shop, {"region": "EU", "n": "7"}, {"region": "CA"}, is_slice=True)
    assert shop.table("orders").num_rows == before
    shop.run("UPDATE orders SET n = 8 WHERE id = 4")
    shop.sync_or_fail()
    assert shop.states("orders", ["id"], ["n"])[(4,)] == [(1,), (7,), (8,)]
    assert "has no column regions" in _read(shop, {"regions": "EU"}, is_slice=True)
    assert "is not a value of the column n" in _read(shop, {"n": "1 OR 1"}, is_slice=True)


def _change_while_read(
    shop: MysqlShop, monkeypatch: pytest.MonkeyPatch, image: str, *moves: list[str]
) -> None:
    """Run the next statements before rows are read, and those after them when they were read."""
    waiting = iter(moves)

    def change(point: str) -> None:
        if point in {"copy.planned", "copy.staged"}:
            shop.run(f"SET SESSION binlog_row_image = '{image}'", *next(waiting, []))

    monkeypatch.setattr("chronolake.source.mysql.initial_copy.reach", change)


@pytest.mark.long
def test_records_change_while_they_are_read(
    shop: MysqlShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    _prepare_orders(shop)
    _change_while_read(
        shop,
        monkeypatch,
        "FULL",
        ["UPDATE orders SET n = 20 WHERE id = 2", "UPDATE orders SET region = 'CA' WHERE id = 4"],
        ["DELETE FROM orders WHERE id = 1", "INSERT INTO orders VALUES (8, 'EU', 8)"],
        ["UPDATE orders SET n = 21 WHERE id = 2"],
        ["UPDATE orders SET n = 30 WHERE id = 3"],
    )
    assert not _read(shop, {"region": "EU"}, is_slice=True)
    assert _agrees(shop)
    assert not _read(shop, {"id": "2"})
    assert _agrees(shop)
    shop.sync_or_fail()
    assert _agrees(shop)
    states = shop.states("orders", ["id"], ["n"])
    assert states[(1,)] == [(1,), None]
    assert states[(2,)] == [(1,), (20,), (21,)]
    assert states[(3,)] == [(1,), (30,)]


@pytest.mark.long
def test_log_that_lacks_values_of_rows_is_an_error(
    shop: MysqlShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    _prepare_orders(shop)
    moves = ["UPDATE orders SET region = 'CA' WHERE id = 4"], ["UPDATE orders SET n = 3"]
    _change_while_read(shop, monkeypatch, "MINIMAL", *moves)
    failure = _read(shop, {"region": "EU"}, is_slice=True)
    assert "log does not contain all of their values" in " ".join(failure.split())
    assert not _read(shop, {"region": "EU"}, is_slice=True)
    assert _agrees(shop)


@pytest.mark.long
@pytest.mark.sampled
@pytest.mark.parametrize(
    ("declared", "value", "text"),
    [
        ("BIGINT UNSIGNED", "18446744073709551615", "18446744073709551615"),
        ("BIGINT", "-9007199254740993", "-9007199254740993"),
        ("DECIMAL(30,10)", "12345678901234567890.0000000001", "12345678901234567890.0000000001"),
        ("VARCHAR(20) COLLATE utf8mb4_bin", "'it''s \\\\ ü'", "it's \\ ü"),
        ("DATE", "'2026-02-03'", "2026-02-03"),
        ("DATETIME(3)", "'2026-02-03 04:05:06.700'", "2026-02-03 04:05:06.700"),
        ("BIT(1)", "b'1'", "true"),
        ("VARBINARY(9)", "x'00ff'", "00FF"),
        ("ENUM('one', 'two')", "'two'", "two"),
    ],
)
def test_values_of_every_type_select_records(
    shop: MysqlShop, declared: str, value: str, text: str
) -> None:
    shop.run(
        f"CREATE TABLE orders (id INT PRIMARY KEY, part {declared}, n INT)",
        f"INSERT INTO orders VALUES (1, {value}, 1), (2, NULL, 1)",
    )
    shop.sync_or_fail()
    _run_unlogged(shop, "UPDATE orders SET n = 2")
    assert not _read(shop, {"part": text}, is_slice=True)
    assert shop.present("orders", ["id", "n"]) == [(1, 2), (2, 1)]


@pytest.mark.long
def test_columns_keep_their_numbers(shop: MysqlShop) -> None:
    shop.run(
        "CREATE TABLE orders (id INT PRIMARY KEY, old INT, n INT, t TEXT)",
        "INSERT INTO orders VALUES (1, 1, 1, 'a'), (2, 2, 2, 'b')",
    )
    shop.sync_or_fail()
    shop.run("ALTER TABLE orders DROP COLUMN old, ADD COLUMN m INT")
    shop.sync_or_fail()
    _run_unlogged(shop, "UPDATE orders SET n = 9, m = 8 WHERE id = 1")
    assert not _read(shop, {"id": "1"})
    assert shop.present("orders", ["id", "n", "t", "m"]) == [(1, 9, "a", 8), (2, 2, "b", None)]
    shop.run("UPDATE orders SET m = 7 WHERE id = 2")
    shop.sync_or_fail()
    assert shop.present("orders", ["id", "n", "t", "m"]) == [(1, 9, "a", 8), (2, 2, "b", 7)]
    assert shop.agrees()
