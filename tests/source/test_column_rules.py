"""Values of columns with rules appear in no file, log or state of the lake."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
import structlog

from chronolake.errors import ConfigurationError
from support.processes import run_command, run_command_until_failpoint
from support.source.databases import Shop
from support.source.secrets import COLUMNS, KEY, RULES, TYPES, Secrets, hashed, stored_row


class People:
    """A table `people` with secrets, in a PostgreSQL database."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.secrets = Secrets()
        self.rows: dict[int, dict[str, Any]] = {}
        columns = ", ".join(f"{name} {TYPES[name.split('_')[1]]}" for name in COLUMNS)
        shop.run(f"CREATE TABLE people (id int PRIMARY KEY, name text, {columns})")

    def put(self, number: int, **values: Any) -> None:
        """Insert or replace a row with new secrets."""
        row = {"id": number, "name": f"n{number}", **self.secrets.row(), **values}
        self.rows[number] = row
        cells = ", ".join("NULL" if cell is None else repr(cell) for cell in row.values())
        updates = ", ".join(f"{name} = excluded.{name}" for name in row if name != "id")
        self.shop.run(
            f"INSERT INTO people ({', '.join(row)}) VALUES ({cells}) "
            f"ON CONFLICT (id) DO UPDATE SET {updates}"
        )

    def remove(self, number: int) -> None:
        self.shop.run(f"DELETE FROM people WHERE id = {number}")
        del self.rows[number]

    def stored(self) -> list[tuple[Any, ...]]:
        """Return the rows as the lake stores them."""
        return sorted(stored_row(row) for row in self.rows.values())

    def expect_stored(self) -> None:
        """Check the lake's active rows, and that no file contains a secret."""
        names = self.shop.table("people").column_names
        assert not [name for name in names if name.startswith("exclude_")]
        columns = [name for name in ("id", "name", *COLUMNS) if not name.startswith("exclude_")]
        assert self.shop.present("people", columns) == self.stored()
        assert self.secrets.found_in(self.shop.folder) == []


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    """Yield the events that are logged during the test."""
    with structlog.testing.capture_logs() as events:
        yield events


@pytest.fixture
def people(shop: Shop) -> People:
    shop.configure(rules=RULES)
    return People(shop)


def test_the_search_finds_values_that_are_stored(shop: Shop) -> None:
    stored = People(shop)
    stored.put(1)
    shop.prepare()
    shop.sync_or_fail()
    found = "\n".join(stored.secrets.found_in(shop.folder))
    for value in stored.secrets.values[::4]:
        assert repr(value) in found
    assert "data-" in found, "in landed files"
    assert ".avro" in found, "in manifests, which have bounds of columns"


def test_log_of_postgresql(people: People, logged: list[Any]) -> None:
    people.put(1)
    people.put(2, hash_text=None)
    people.shop.prepare()
    people.shop.sync_or_fail()
    people.expect_stored()
    people.put(1)
    people.put(3, hash_text="", hash_number=0)
    people.remove(2)
    people.shop.sync_or_fail()
    people.expect_stored()
    assert people.shop.agrees()
    people.shop.run("TRUNCATE people")
    people.rows.clear()
    people.put(4)
    people.shop.sync_or_fail()
    people.expect_stored()
    people.shop.sync_or_fail(full_refresh=True)
    people.expect_stored()
    assert not people.secrets.are_in(repr(logged))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["rows", "fingerprints"])
def test_snapshot_diff_of_postgresql(
    people: People, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == "fingerprints":
        monkeypatch.setattr("chronolake.source.postgres.snapshot_diff.diff._LEAST_PAGES", 0)
    people.shop.configure(method="snapshot_diff", rules=RULES)
    people.put(1)
    people.put(2)
    people.shop.sync_or_fail()
    people.expect_stored()
    people.put(1)
    people.put(3)
    people.remove(2)
    people.shop.sync_or_fail()
    people.expect_stored()
    assert bool(list(people.shop.folder.rglob("pages-*"))) is (kind == "fingerprints")
    # A change of a masked or excluded value is not a change.
    people.shop.run("UPDATE people SET exclude_text = 'x', null_text = 'y', masked_number = 7")
    versions = people.shop.table("people").num_rows
    people.shop.sync_or_fail()
    assert people.shop.table("people").num_rows == versions
    assert people.shop.agrees()


@pytest.mark.long
@pytest.mark.parametrize(
    "failpoint",
    [
        pytest.param("read.log-batch=kill:3", marks=pytest.mark.long),
        "land.staged=kill",
        pytest.param("land.done=kill", marks=pytest.mark.long),
        pytest.param("staged.appended=kill", marks=pytest.mark.long),
    ],
)
def test_a_killed_run_leaves_no_values(people: People, failpoint: str) -> None:
    people.put(1)
    people.shop.prepare()
    people.shop.sync_or_fail()
    # Larger than what the server decodes in memory, so that it is sent before its commit.
    secret = people.secrets.text()
    people.shop.run(
        "ALTER SYSTEM SET logical_decoding_work_mem = '64kB'",
        "SELECT pg_reload_conf()",
        "INSERT INTO people (id, exclude_text, hash_text, masked_text) "
        f"SELECT n, repeat('{secret}', 10), repeat('{secret}', 10), '{secret}' "
        "FROM generate_series(100, 60000) AS n",
    )
    words = ("sync", "shop", "--project", str(people.shop.folder))
    assert run_command_until_failpoint(*words, failpoint=failpoint)
    assert people.secrets.found_in(people.shop.folder) == []
    if failpoint.startswith("read.log"):
        assert list(people.shop.folder.rglob("*.messages")), "it was spooled"
    code, output = run_command(*words)
    assert code == 0, output
    assert not people.secrets.are_in(output)
    assert people.secrets.found_in(people.shop.folder) == []
    assert people.shop.table("people").num_rows == 1 + 59_901


@pytest.mark.long
def test_keys_are_hashed_equally_in_all_tables(shop: Shop) -> None:
    rules = f"columns: {{hash: [id, person, email], hash_key: '{KEY}'}}"
    shop.configure(rules=rules)
    shop.run(
        "CREATE TABLE people (id int PRIMARY KEY, email varchar(50))",
        "CREATE TABLE orders (nr int PRIMARY KEY, person numeric(10,2), email text)",
        "INSERT INTO people VALUES (5, 'a@example.com')",
        "INSERT INTO orders VALUES (1, 5, 'a@example.com'), (2, NULL, NULL)",
    )
    shop.prepare()
    shop.sync_or_fail()
    shop.run("UPDATE people SET id = 6", "UPDATE orders SET person = 6", "DELETE FROM people")
    shop.run("INSERT INTO people VALUES (7, 'b')")
    shop.sync_or_fail()
    assert shop.present("people", ["id", "email"]) == [(hashed("7"), hashed("b"))]
    assert {row["id"] for row in shop.table("people").to_pylist()} == {
        hashed(key) for key in ("5", "6", "7")
    }
    email = hashed("a@example.com")
    assert shop.present("orders", ["nr", "person", "email"]) == [
        (1, hashed("6"), email),
        (2, hashed("6"), None),
    ]
    assert shop.agrees()


@pytest.mark.long
def test_changed_rules_apply_to_existing_rows(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE people (id int PRIMARY KEY, a text, b text, c int)",
        "INSERT INTO people VALUES (1, 'a', 'b', 3)",
    )
    shop.prepare()
    shop.sync_or_fail()
    key = f"hash_key: '{KEY}'"
    shop.configure(rules=f"columns: {{hash: [a, c], mask: [b], {key}}}")
    shop.sync_or_fail()
    assert shop.present("people", ["id", "a", "b", "c"]) == [(1, hashed("a"), None, hashed("3"))]
    shop.configure(rules=f"columns: {{hash: [a], {key}}}")
    shop.sync_or_fail()
    assert shop.present("people", ["id", "a", "b", "c"]) == [(1, hashed("a"), "b", "3")]


@pytest.mark.parametrize("action", ["exclude", "mask"])
def test_key_columns_are_kept(shop: Shop, action: str) -> None:
    shop.run("CREATE TABLE people (id int PRIMARY KEY, name text)")
    shop.prepare()
    shop.configure(rules=f"columns: {{{action}: ['*D']}}")
    with pytest.raises(ConfigurationError, match=f"id cannot be in columns.{action}"):
        shop.sync()


def test_rows_without_key_are_told_apart_by_stored_columns(shop: Shop) -> None:
    secrets = Secrets()
    one, two = secrets.text(), secrets.text()
    shop.configure(rules=f"columns: {{exclude: [a], hash: [b], hash_key: '{KEY}'}}")
    shop.run(
        "CREATE TABLE notes (a text, b text)",
        f"INSERT INTO notes VALUES ('{one}', '{two}'), ('{two}', '{two}'), ('{one}', '{one}')",
    )
    shop.prepare()
    shop.sync_or_fail()
    found = [row[0] for row in shop.present("notes", ["b"])]
    assert found == sorted([hashed(two), hashed(two), hashed(one)])
    assert secrets.found_in(shop.folder) == []


@pytest.mark.long
def test_columns_are_cast(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE items (id int PRIMARY KEY, price text, day date, amount int, note text)",
        "INSERT INTO items VALUES (1, '1.50', '2026-01-02', 7, 'a'), (2, '', 'infinity', NULL, '')",
    )
    shop.prepare()
    types = "{'pr*': 'decimal(10, 2)', day: string, amount: LONG, id: long}"
    shop.configure(rules=f"columns: {{type: {types}}}")
    shop.sync_or_fail()
    shop.run("INSERT INTO items VALUES (3, '12', '2026-01-03', 8, '')")
    shop.sync_or_fail()
    assert shop.present("items", ["id", "price", "day", "amount"]) == [
        (1, Decimal("1.50"), "2026-01-02", 7),
        (2, None, "infinity", None),
        (3, Decimal("12.00"), "2026-01-03", 8),
    ]
    assert {str(shop.table("items").schema.field(name).type) for name in ("id", "amount")} == {
        "int64"
    }
    shop.run("INSERT INTO items VALUES (4, 'free', NULL, NULL, NULL)")
    error = shop.sync().streams[0].error or ""
    assert "A value of the column price, of the type STRING, does not fit DECIMAL(10,2)" in error
    assert "free" not in error
    shop.configure(rules=f"columns: {{type: {types}, on_cast_error: set-null}}")
    shop.sync_or_fail()
    assert (4, None) in shop.present("items", ["id", "price"])
    assert shop.agrees()


@pytest.mark.long
def test_a_publication_may_leave_out_excluded_columns(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE people (id int PRIMARY KEY, name text, secret text)",
        "INSERT INTO people VALUES (1, 'a', 'x')",
        "CREATE PUBLICATION chronolake_shop FOR TABLE people (id, name) "
        "WITH (publish_via_partition_root = true)",
        "SELECT pg_create_logical_replication_slot('chronolake_shop', 'pgoutput')",
    )
    assert "without secret" in (shop.sync().streams[0].error or "")
    shop.configure(rules="columns: {exclude: [secret]}")
    shop.sync_or_fail()
    shop.run("UPDATE people SET name = 'b', secret = 'y'", "INSERT INTO people VALUES (2, 'c')")
    shop.sync_or_fail()
    assert shop.present("people", ["id", "name"]) == [(1, "b"), (2, "c")]
    assert shop.agrees()
