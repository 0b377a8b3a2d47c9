"""`chronolake tables`: the output, from a lake's metadata."""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from chronolake.config import LakeConfig, load
from chronolake.errors import LakeError
from chronolake.inspect import check, names, tables
from chronolake.types import Column, ColumnType, Kind, Mode, TableName
from support.commands import run_command
from support.inspect.layout import HISTORY, TMAX, Make

ORDERS = TableName("shop", "orders")


def test_a_lake_that_is_not_there_stays_not_there(config: LakeConfig) -> None:
    for look in (tables, names, check):
        with pytest.raises(LakeError, match="There is no lake"):
            look(config)
    assert not config.catalog_file.exists()


def test_a_catalog_without_tables_is_an_empty_lake(config: LakeConfig) -> None:
    with closing(sqlite3.connect(config.catalog_file)) as connection:
        connection.execute("CREATE TABLE other (a)")

    assert tables(config) == []


def test_a_file_that_is_not_a_catalog_is_reported_as_such(config: LakeConfig) -> None:
    config.catalog_file.write_bytes(b"no database, certainly" * 100)

    with pytest.raises(LakeError, match="cannot be read"):
        tables(config)


@pytest.mark.long
def test_tables_may_be_dropped_and_created_while_they_are_read(
    config: LakeConfig, make: Make
) -> None:
    make(ORDERS, ["id*:LONG"], [(1,)])
    make(TableName("shop", "stays"), ["id*:LONG"], [(1,)])
    with closing(sqlite3.connect(config.catalog_file)) as connection:
        (row,) = connection.execute("SELECT * FROM iceberg_tables WHERE table_name = 'orders'")
        (location,) = connection.execute(
            "SELECT metadata_location FROM iceberg_tables WHERE table_name = 'orders'"
        ).fetchone()
    metadata = Path(unquote(urlsplit(location).path))
    content = metadata.read_bytes()
    is_done = threading.Event()

    def drop_and_make() -> None:
        with closing(sqlite3.connect(config.catalog_file, timeout=30)) as connection:
            while not is_done.is_set():
                with connection:
                    connection.execute("DELETE FROM iceberg_tables WHERE table_name = 'orders'")
                metadata.unlink()
                metadata.write_bytes(content)
                places = ", ".join("?" for _ in row)
                with connection:
                    connection.execute(f"INSERT INTO iceberg_tables VALUES ({places})", row)

    other = threading.Thread(target=drop_and_make)
    other.start()
    try:
        for _ in range(200):
            found = {table.name.table for table in tables(config)}
            assert found in ({"stays"}, {"stays", "orders"})
    finally:
        is_done.set()
        other.join()


def test_a_history_table_is_summed_up(config: LakeConfig, make: Make) -> None:
    make(
        ORDERS,
        ["id*:LONG", "amount:DECIMAL(8;2)", *HISTORY],
        [
            (1, "1.00", "2024-01-01T00:00:00Z", "2024-01-01T23:59:59.999Z", False),
            (1, "2.00", "2024-01-02T00:00:00Z", TMAX, True),
        ],
        [(2, "3.00", "2024-01-02T00:00:00Z", TMAX, True)],
        published_at="2024-01-03T00:00:00Z",
        last_batch="b2",
    )

    (found,) = tables(config)

    assert (found.name, found.mode, found.key) == (ORDERS, Mode.HISTORY, ("id",))
    assert (found.rows, found.active) == (3, 2)
    assert (found.data_files, found.delete_files) == (3, 0)
    assert found.bytes > 0
    assert found.columns[1] == Column("amount", ColumnType(Kind.DECIMAL, 8, 2))
    assert (found.published_at, found.last_batch) == ("2024-01-03T00:00:00Z", "b2")
    assert json.loads(json.dumps(found.as_json()))["columns"][0] == {
        "name": "id",
        "type": "LONG",
        "primary_key": True,
    }


def test_tables_that_hold_nothing_yet_are_listed(config: LakeConfig, make: Make) -> None:
    make(TableName("a", "live"), ["id*:INT"])
    make(TableName("a", "soft"), ["id*:INT", "_fivetran_deleted:BOOLEAN"])
    make(TableName("a", "versions"), ["id*:INT", *HISTORY])

    found = {summary.name.table: (summary.mode, summary.rows) for summary in tables(config)}

    assert found == {
        "live": (Mode.LIVE, 0),
        "soft": (Mode.SOFT_DELETE, 0),
        "versions": (Mode.HISTORY, 0),
    }


def test_a_table_of_another_engine_has_inferred_columns(config: LakeConfig, make: Make) -> None:
    texts = ["a:LONG", "b:DECIMAL(9;3)", "c:UTC_DATETIME", "d:NAIVE_DATETIME", "e:STRING"]
    make(ORDERS, texts, declared=False)

    (found,) = tables(config)

    kinds = [str(column.type) for column in found.columns]
    assert kinds == ["LONG", "DECIMAL(9,3)", "UTC_DATETIME", "NAIVE_DATETIME", "STRING"]
    assert found.key == ()


def test_a_damaged_property_names_the_table(config: LakeConfig, make: Make) -> None:
    make(ORDERS, ["id*:INT"], declared=False, columns='[{"name": "id"}]')

    with pytest.raises(LakeError) as refused:
        tables(config)

    assert refused.value.table == "shop.orders"


def test_missing_metadata_names_the_table(config: LakeConfig, make: Make) -> None:
    table = make(ORDERS, ["id*:INT"])
    (config.path / "tables").rename(config.path / "moved")

    with pytest.raises(LakeError, match="metadata cannot be read") as refused:
        tables(config)

    assert refused.value.table == "shop.orders"
    assert refused.value.file == table.metadata_location


def test_the_error_of_an_unreachable_postgresql_catalog_has_no_password(config: LakeConfig) -> None:
    closed = load(
        config.path, overrides={"catalog.uri": "postgresql://me:hunter2@127.0.0.1:9/lake"}
    )

    with pytest.raises(LakeError) as refused:
        tables(closed)

    assert "postgresql://127.0.0.1:9/lake" in str(refused.value)
    assert "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        (ORDERS, "shop.orders"),
        (TableName("my shop", "my-orders`s"), "my shop.my-orders`s"),
        (TableName("a.b", "orders"), "`a.b`.orders"),
        (TableName("a", "b.c`d"), "a.`b.c``d`"),
        (TableName("`a`", " b"), "```a```.` b`"),
        (TableName("[red]", "a:bug:"), "[red].a:bug:"),
    ],
)
def test_a_name_is_printed_as_a_command_takes_it(
    config: LakeConfig,
    make: Make,
    capsys: pytest.CaptureFixture[str],
    name: TableName,
    printed: str,
) -> None:
    make(name, ["id*:INT"], [(1,)])

    _, listed, _ = run_command(config.path, capsys, "tables")
    assert printed in listed
    (reported,) = json.loads(run_command(config.path, capsys, "tables", "--json")[1])
    assert reported["table"] == printed
    code, shown, _ = run_command(config.path, capsys, "history", printed, "--key", "id=1")
    assert code == 0
    assert printed in shown
    code, _, failed = run_command(config.path, capsys, "history", printed, "--key", "no=1")
    assert code == 1
    assert f"table {printed}" in failed


def test_a_missing_name_is_reported_as_it_was_given(
    config: LakeConfig, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    make(ORDERS, ["id*:INT"])

    _, _, failed = run_command(config.path, capsys, "history", "`a.b`.c", "--key", "id=1", "--json")

    assert json.loads(failed)["table"] == "`a.b`.c"


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("shop.order", "Did you mean shop.orders? "),
        ("Shop.Orders", "Did you mean shop.orders? "),
        ("shop.v2.x", None),
        ("`shop.v2`.item", "Did you mean `shop.v2`.items? "),
        ("elsewhere.zebras", ""),
    ],
)
def test_a_table_that_is_not_there_names_the_nearest(
    config: LakeConfig,
    make: Make,
    capsys: pytest.CaptureFixture[str],
    asked: str,
    near: str | None,
) -> None:
    make(ORDERS, ["id*:INT"])
    make(TableName("shop.v2", "items"), ["id*:INT"])

    code, _, failed = run_command(config.path, capsys, "history", asked, "--key", "id=1", "--json")

    reported = json.loads(failed)
    if near is None:
        assert (code, reported["error"]) == (2, "ConfigurationError")
        assert "in backticks" in reported["message"]
        return
    assert (
        reported["hint"] == f"{near}`chronolake tables` lists the tables; names are case-sensitive."
    )
