"""Publications with row filters: tables contain exactly the rows that the filter accepts."""

from __future__ import annotations

import random
from typing import Any, Final

import pytest

from chronolake.types import ACTIVE
from support.commands import run_words
from support.source.databases import Shop

_LARGE: Final = "(SELECT string_agg(md5(n::text || {0}), '') FROM generate_series(1, 200) n)"
_COLUMNS: Final = ["id", "region", "size", "big"]


def _publish(shop: Shop, what: str) -> None:
    shop.run(
        f"CREATE PUBLICATION chronolake_shop FOR TABLE {what} "
        "WITH (publish_via_partition_root = true)",
        "SELECT pg_create_logical_replication_slot('chronolake_shop', 'pgoutput')",
    )


def _expected(shop: Shop, condition: str) -> list[tuple[Any, ...]]:
    rows = shop.rows(f"SELECT {', '.join(_COLUMNS)} FROM items WHERE {condition}")
    return sorted(rows, key=repr)


def _change(shop: Shop, chance: random.Random, number: int) -> list[int]:
    """Change one row; return the keys that it had and has."""
    key, region = chance.randrange(40), chance.choice(["eu", "us", None])
    text = "NULL" if region is None else f"'{region}'"
    match chance.randrange(6):
        case 0:
            shop.run(f"DELETE FROM items WHERE id = {key}")
        case 1:
            shop.run(f"UPDATE items SET region = {text} WHERE id = {key}")
        case 2:
            other = chance.randrange(40)
            free = f"NOT EXISTS (SELECT FROM items WHERE id = {other})"
            shop.run(f"UPDATE items SET id = {other} WHERE id = {key} AND {free}")
            return [key, other]
        case _:
            shop.run(
                f"INSERT INTO items VALUES ({key}, {text}, {number}, "
                f"{_LARGE.format(number) if chance.random() < 0.5 else 'NULL'}) "
                "ON CONFLICT (id) DO UPDATE SET region = excluded.region, size = excluded.size"
            )
    return [key]


def _state(shop: Shop, key: int, condition: str) -> tuple[Any, ...] | None:
    found = shop.rows(
        f"SELECT {', '.join(_COLUMNS[1:])} FROM items WHERE id = {key} AND ({condition})"
    )
    return found[0] if found else None


@pytest.mark.long
@pytest.mark.parametrize(
    ("identity", "condition"),
    [
        ("FULL", "region = 'eu' AND size > 9"),
        # Without complete old rows, PostgreSQL only accepts the columns of the key.
        ("DEFAULT", "id < 20"),
    ],
)
def test_rows_move_into_the_filter_and_out_of_it(shop: Shop, identity: str, condition: str) -> None:
    chance = random.Random(condition)
    shop.run(
        "CREATE TABLE items (id int PRIMARY KEY, region text, size int, big text)",
        f"ALTER TABLE items REPLICA IDENTITY {identity}",
    )
    for number in range(20):
        _change(shop, chance, number)
    _publish(shop, f"items WHERE ({condition})")
    shop.sync_or_fail()
    assert shop.present("items", _COLUMNS) == _expected(shop, condition)
    states = {
        key: [state] for key in range(40) if (state := _state(shop, key, condition)) is not None
    }
    for number in range(20, 140):
        for key in _change(shop, chance, number):
            state = _state(shop, key, condition)
            known = states.setdefault(key, [])
            if (known or [None])[-1] != state:
                known.append(state)
        if number % 40 == 39:
            shop.sync_or_fail()
            assert shop.present("items", _COLUMNS) == _expected(shop, condition)
    shop.sync_or_fail()
    assert shop.present("items", _COLUMNS) == _expected(shop, condition)
    if identity == "FULL":
        found = shop.states("items", ["id"], _COLUMNS[1:])
        assert {key[0]: _distinct(known) for key, known in found.items()} == {
            key: known for key, known in states.items() if known
        }
    before = shop.table("items").num_rows
    shop.sync_or_fail(full_refresh=True)
    assert shop.table("items").num_rows == before, "the same filter applies to complete reads"
    assert shop.agrees()


def _distinct(states: list[Any]) -> list[Any]:
    """Return states without those that equal the one before: updates may change nothing."""
    return [state for n, state in enumerate(states) if n == 0 or state != states[n - 1]]


@pytest.mark.long
def test_a_large_value_of_a_row_that_moves_into_the_filter(shop: Shop) -> None:
    """The log does not contain it, so that the table is read again in the same run."""
    shop.run(
        "CREATE TABLE items (id int PRIMARY KEY, region text, size int, big text)",
        f"INSERT INTO items VALUES (1, 'a', 1, {_LARGE.format(1)})",
        f"INSERT INTO items VALUES (50, 'b', 1, {_LARGE.format(2)})",
    )
    _publish(shop, "items WHERE (id < 20)")
    shop.sync_or_fail()
    shop.run("DELETE FROM items WHERE id = 1", "UPDATE items SET id = 1")
    shop.sync_or_fail()
    assert shop.present("items", _COLUMNS) == _expected(shop, "id < 20")
    large = {row["big"] for row in shop.table("items").to_pylist() if row["region"] == "b"}
    assert len(large - {None}) == 1, "no version has the value of the earlier record"


@pytest.mark.long
def test_a_changed_filter(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.run(
        "CREATE TABLE items (id int PRIMARY KEY, region text, size int, big text)",
        "INSERT INTO items SELECT n, 'a', n, NULL FROM generate_series(1, 20) n",
    )
    _publish(shop, "items WHERE (id < 10)")
    shop.sync_or_fail()
    shop.run("INSERT INTO items VALUES (0, 'b', 0, NULL), (30, 'b', 0, NULL)")
    shop.run("ALTER PUBLICATION chronolake_shop SET TABLE items WHERE (id >= 5)")
    shop.run("INSERT INTO items VALUES (-1, 'c', 0, NULL), (31, 'c', 0, NULL)")
    shop.sync_or_fail()
    assert shop.present("items", _COLUMNS) == _expected(shop, "id >= 5")
    code, output, _ = run_words(capsys, "check", "--project", str(shop.folder))
    assert code == 0
    assert "contains the rows of public.items WHERE (id >= 5)" in " ".join(output.split())
    stream = ("--stream", "public.items", "--key", "id=2", "--key", "id=7")
    code, *_ = run_words(capsys, "resync", "shop", *stream, "--project", str(shop.folder))
    assert code == 0
    assert shop.present("items", _COLUMNS) == _expected(shop, "id >= 5")
    shop.run("ALTER PUBLICATION chronolake_shop SET TABLE items")
    shop.sync_or_fail()
    assert shop.present("items", _COLUMNS) == _expected(shop, "true")
    assert shop.agrees()


@pytest.mark.long
def test_partitions_and_a_column_list(shop: Shop) -> None:
    shop.configure(rules="columns: {exclude: [secret]}")
    shop.run(
        "CREATE TABLE items (id int PRIMARY KEY, region text, size int, big text, secret text) "
        "PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF items FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE high (secret text, big text, id int NOT NULL, size int, region text)",
        "ALTER TABLE items ATTACH PARTITION high FOR VALUES FROM (10) TO (100)",
        "INSERT INTO items SELECT n, 'a', n, NULL, 'x' FROM generate_series(1, 19) n",
    )
    _publish(shop, "items (id, region, size, big) WHERE (id % 2 = 0)")
    shop.sync_or_fail()
    assert shop.present("items", _COLUMNS) == _expected(shop, "id % 2 = 0")
    shop.run(
        "UPDATE items SET id = 20 WHERE id = 3",
        "UPDATE items SET id = 21 WHERE id = 4",
        "UPDATE items SET region = 'b' WHERE id IN (6, 7, 16, 17)",
        "DELETE FROM items WHERE id IN (8, 9)",
    )
    shop.sync_or_fail()
    assert shop.present("items", _COLUMNS) == _expected(shop, "id % 2 = 0")
    assert "secret" not in shop.table("items").column_names
    assert shop.agrees()


@pytest.mark.long
def test_a_table_without_a_key(shop: Shop) -> None:
    """Its rows cannot be identified in the log, and it is read completely in each run."""
    shop.run(
        "CREATE TABLE items (id int, region text, size int, big text)",
        "INSERT INTO items SELECT n, 'a', n, NULL FROM generate_series(1, 20) n",
    )
    _publish(shop, "items WHERE (id < 10)")
    shop.sync_or_fail()
    assert shop.present("items", _COLUMNS) == _expected(shop, "id < 10")
    shop.run("INSERT INTO items VALUES (0, 'b', 0, NULL), (30, 'b', 0, NULL)")
    shop.sync_or_fail()
    assert shop.present("items", _COLUMNS) == _expected(shop, "id < 10")
    assert all(row[ACTIVE] for row in shop.table("items").to_pylist())
