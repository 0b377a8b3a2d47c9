"""Changes that `ALTER TYPE` makes to existing rows are in the lake after the next run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
import structlog
from psycopg import sql

from chronolake.source.postgres.connection import connect
from chronolake.source.postgres.text_dependencies import KnownTypes, dependencies_of
from support.source.databases import Shop

_TYPES: Final = (
    "CREATE TYPE mood AS ENUM ('sad', 'so so', 'happy')",
    "CREATE DOMAIN temper AS mood",
    "CREATE TYPE moods AS RANGE (subtype = mood)",
    "CREATE TYPE pair AS (a int, b mood)",
    "CREATE DOMAIN couple AS pair",
    "CREATE TABLE other (i int PRIMARY KEY, t text)",
)
#: Columns whose texts depend on these types, and values.
_COLUMNS: Final = {
    "mood": "'{0}'",
    "temper": "'{0}'",
    "mood[]": "ARRAY['{0}', NULL]::mood[]",
    "temper[]": "ARRAY['{0}']::temper[]",
    "moods": "moods('{0}', 'happy')",
    "moods_multirange": "moods_multirange(moods('{0}', 'happy'))",
    "pair": "(1, '{0}')",
    "couple": "(1, '{0}')",
    "pair[]": "ARRAY[(1, '{0}')::pair]",
    "other": "(1, '{0}')",
    "other[]": "ARRAY[(1, '{0}')::other]",
    "regclass": "'other'",
    "regtype": "'mood'",
    "regproc": "'twice'",
    "regrole": "'clerk'",
    "regtype[]": "ARRAY['mood'::regtype]",
    "money": "12.5",
}
#: The same for types that cannot be in a key.
_NO_KEY: Final = {"aclitem": "makeaclitem('clerk'::regrole, 10, 'SELECT', false)"}
_LABELS: Final = ("sad", "so so", "happy")


def _create_types(shop: Shop, rows: int = 0) -> None:
    """Create the types and two tables: one has them in its key, the other does not."""
    shop.run(
        "DROP ROLE IF EXISTS clerk",
        "DROP ROLE IF EXISTS servant",
        "DROP SCHEMA IF EXISTS side CASCADE",
        "CREATE ROLE clerk",
        *_TYPES,
        "CREATE FUNCTION twice(int) RETURNS int LANGUAGE sql AS 'SELECT $1 * 2'",
    )
    all_columns = {**_COLUMNS, **_NO_KEY}
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(all_columns))
    key = ", ".join(f"c{number}" for number in range(len(_COLUMNS)))
    shop.run(
        f"CREATE TABLE by_id (id int PRIMARY KEY, state int, {columns})",
        f"CREATE TABLE by_key (id int, state int, {columns}, PRIMARY KEY (id, {key}))",
    )
    for number in range(rows):
        label = _LABELS[number % len(_LABELS)]
        values = ", ".join(value.format(label) for value in all_columns.values())
        for table in ("by_id", "by_key"):
            shop.run(f"INSERT INTO {table} VALUES ({number}, 0, {values})")


def _texts(shop: Shop, table: str) -> list[tuple[str | None, ...]]:
    """Return the rows as COPY writes them."""
    numbers = range(len(_COLUMNS) + len(_NO_KEY))
    names = sql.SQL(", ").join(sql.Identifier(f"c{number}") for number in numbers)
    query = sql.SQL("COPY (SELECT id, state, {} FROM public.{}) TO STDOUT").format(
        names, sql.Identifier(table)
    )
    with connect(shop.dsn) as connection, connection.cursor().copy(query) as copy:
        return sorted(copy.rows(), key=repr)


def _lake(shop: Shop, table: str) -> list[tuple[Any, ...]]:
    names = ["id", "state", *(f"c{number}" for number in range(len(_COLUMNS) + len(_NO_KEY)))]
    rows = shop.present(table, names)
    return sorted([(str(row[0]), str(row[1]), *row[2:]) for row in rows], key=repr)


#: Each entry changes texts of rows, or only appears to; they run one after the other.
_ALTERED: Final = (
    ["ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'"],
    ["ALTER TYPE pair ADD ATTRIBUTE c text"],
    [
        "ALTER TYPE mood RENAME VALUE 'blue' TO 'tmp'",
        "ALTER TYPE mood RENAME VALUE 'happy' TO 'blue'",
        "ALTER TYPE mood RENAME VALUE 'tmp' TO 'happy'",
    ],
    ["ALTER TYPE mood ADD VALUE 'great' BEFORE 'blue'"],
    ["ALTER TYPE pair RENAME ATTRIBUTE a TO z"],
    ["ALTER TYPE pair DROP ATTRIBUTE z"],
    ["ALTER TABLE other ADD COLUMN k int"],
    ["ALTER TABLE other DROP COLUMN t"],
    ["ALTER TYPE mood RENAME TO feeling"],
    ["CREATE SCHEMA side", "ALTER TYPE feeling SET SCHEMA side"],
    ["ALTER TABLE other RENAME TO another"],
    ["ALTER FUNCTION twice(int) RENAME TO doubled"],
    ["ALTER ROLE clerk RENAME TO servant"],
    ["ALTER DATABASE lake SET lc_monetary = 'C'"],
    ["ALTER TABLE {0} ALTER c0 TYPE text"],
    ["ALTER TABLE {0} ALTER c16 TYPE numeric(10,2)"],
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "steps"),
    [
        ("logical_replication", 2),
        pytest.param("logical_replication", len(_ALTERED), marks=pytest.mark.long),
        pytest.param("snapshot_diff", len(_ALTERED), marks=pytest.mark.long),
    ],
)
def test_rows_read_as_the_server_writes_them_after_every_alter_type(
    shop: Shop, method: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small tables have fingerprints, too.
    monkeypatch.setattr("chronolake.source.postgres.snapshot_diff.diff._LEAST_PAGES", 0)
    shop.configure(method=method)
    _create_types(shop, rows=3 * steps)
    shop.prepare()
    shop.sync_or_fail()
    for number, altered in enumerate(_ALTERED[:steps]):
        statements = (
            f"UPDATE {{0}} SET state = 1 WHERE id = {3 * number}",
            *altered,
            f"UPDATE {{0}} SET state = 2 WHERE id = {3 * number + 1}",
            f"DELETE FROM {{0}} WHERE id = {3 * number + 2}",
        )
        for statement in statements:
            tables = ("by_id", "by_key") if "{0}" in statement else ("",)
            shop.run(*(statement.format(table) for table in tables))
        shop.sync_or_fail()
        for table in ("by_id", "by_key"):
            assert _lake(shop, table) == _texts(shop, table), (altered, table)
    assert shop.agrees()
    before = {table: shop.table(table).num_rows for table in ("by_id", "by_key")}
    shop.sync_or_fail()
    assert {table: shop.table(table).num_rows for table in before} == before, "nothing differs"


@pytest.fixture
def feelings(shop: Shop) -> Iterator[tuple[Shop, list[Any]]]:
    """Yield a shop whose copied table has an enum, and the log events from then on."""
    shop.run(
        *_TYPES,
        "CREATE TABLE feelings (id int PRIMARY KEY, feels mood, felt mood[])",
        "INSERT INTO feelings VALUES (1, 'sad'), (2, 'happy')",
    )
    shop.prepare()
    shop.sync_or_fail()
    with structlog.testing.capture_logs() as logged:
        yield shop, logged


def _read_again(logged: list[Any]) -> list[str]:
    found = [event["reason"] for event in logged if event["event"] == "table_read_again"]
    logged.clear()
    return found


@pytest.mark.long
def test_added_enum_label_rereads_no_table(feelings: tuple[Shop, list[Any]]) -> None:
    shop, logged = feelings
    shop.run("ALTER TYPE mood ADD VALUE 'great'", "INSERT INTO feelings VALUES (3, 'great')")
    shop.sync_or_fail()
    assert _read_again(logged) == []
    # New labels in the log may have been renamed since.
    shop.run(
        "ALTER TYPE mood ADD VALUE 'meh'",
        "INSERT INTO feelings VALUES (4, 'meh')",
        "ALTER TYPE mood RENAME VALUE 'meh' TO 'bored'",
    )
    shop.sync_or_fail()
    assert _read_again(logged) == ["the table may have values that the log does not contain"]
    shop.run(
        "ALTER TYPE mood ADD VALUE 'odd'",
        "INSERT INTO feelings VALUES (5, NULL, '{odd}')",
        "ALTER TYPE mood RENAME VALUE 'odd' TO 'strange'",
    )
    shop.sync_or_fail()
    assert _read_again(logged) == ["the table may have values that the log does not contain"]
    # Renamed, and renamed back: rows written in between have a text that is not a current label.
    shop.run(
        "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
        "INSERT INTO feelings VALUES (6, 'blue')",
        "ALTER TYPE mood RENAME VALUE 'blue' TO 'sad'",
    )
    shop.sync_or_fail()
    assert _read_again(logged) == ["altered types: public.mood"]
    rows = shop.rows("SELECT id, feels::text, felt::text FROM feelings ORDER BY id")
    assert shop.present("feelings", ("id", "feels", "felt")) == rows
    shop.sync_or_fail()
    assert _read_again(logged) == []


def test_known_types_round_trip_through_json(shop: Shop) -> None:
    _create_types(shop)
    with connect(shop.dsn) as connection:
        ((oid,),) = shop.rows("SELECT 'by_id'::regclass::oid::bigint")
        now = dependencies_of(connection, [oid])[oid]
    names = {type_.name for type_ in now.types}
    of_system = {"regclass", "regtype", "regproc", "regrole", "money", "aclitem"}
    assert names == {"public.mood", "public.pair", "public.other", *of_system}
    known = now.known_types
    assert KnownTypes.from_json(known.as_json()) == known
    assert known.altered_types(now) == []
