"""Changes missing in the log are found, although the setup is unchanged when a run looks again."""

from __future__ import annotations

from typing import Any, Final

import pytest
import structlog

from support.source.databases import Shop

_PUBLISHED: Final = "insert, update, delete, truncate"
_TABLES: Final = ("parts", "nested", "moved", "keyed", "split")
#: Each hides the changes of some tables, which are then published as before. The statements between
#: two of them run while it holds.
_HIDING: Final = {
    "a partition is detached and attached": (
        ["parts"],
        "ALTER TABLE parts DETACH PARTITION part",
        ["UPDATE part SET v = 'hidden' WHERE id = 1", "DELETE FROM part WHERE id = 2"],
        "ALTER TABLE parts ATTACH PARTITION part FOR VALUES FROM (0) TO (100)",
    ),
    "a partition of a partition is": (
        ["nested"],
        "ALTER TABLE branch DETACH PARTITION leaf",
        ["UPDATE leaf SET v = 'hidden' WHERE id = 1", "DELETE FROM leaf WHERE id = 2"],
        "ALTER TABLE branch ATTACH PARTITION leaf FOR VALUES FROM (0) TO (50)",
    ),
    "the table is in another schema": (
        ["moved"],
        "ALTER TABLE moved SET SCHEMA side",
        ["UPDATE side.moved SET v = 'hidden' WHERE id = 1", "DELETE FROM side.moved WHERE id = 2"],
        "ALTER TABLE side.moved SET SCHEMA public",
    ),
    "the replica identity is another index": (
        ["keyed"],
        "ALTER TABLE keyed REPLICA IDENTITY USING INDEX keyed_k",
        ["UPDATE keyed SET id = id + 10, v = 'hidden' WHERE id < 3"],
        "ALTER TABLE keyed REPLICA IDENTITY DEFAULT",
    ),
    "the replica identity of a partition is another index": (
        ["split"],
        (
            "CREATE UNIQUE INDEX split_k ON split_part (k); "
            "ALTER TABLE split_part REPLICA IDENTITY USING INDEX split_k"
        ),
        ["UPDATE split SET id = id + 10, v = 'hidden' WHERE id < 3"],
        "ALTER TABLE split_part REPLICA IDENTITY DEFAULT; DROP INDEX split_k",
    ),
    "only inserts are published": (
        list(_TABLES),
        "ALTER PUBLICATION chronolake_shop SET (publish = 'insert')",
        ["UPDATE parts SET v = 'more' WHERE id = 1", "DELETE FROM keyed WHERE id = 3"],
        f"ALTER PUBLICATION chronolake_shop SET (publish = '{_PUBLISHED}')",
    ),
    "partitions are published by themselves": (
        list(_TABLES),
        "ALTER PUBLICATION chronolake_shop SET (publish_via_partition_root = false)",
        ["UPDATE parts SET v = 'again' WHERE id = 1", "DELETE FROM nested WHERE id = 3"],
        "ALTER PUBLICATION chronolake_shop SET (publish_via_partition_root = true)",
    ),
    "the schema is not published": (
        list(_TABLES),
        "ALTER PUBLICATION chronolake_shop DROP TABLES IN SCHEMA public",
        ["UPDATE moved SET v = 'once more'", "DELETE FROM parts WHERE id = 3"],
        "ALTER PUBLICATION chronolake_shop ADD TABLES IN SCHEMA public",
    ),
}
_OF_ALL: Final = [words for words, (tables, *_) in _HIDING.items() if len(tables) > 1]
#: Statements that do not change what the log contains for these tables.
_HARMLESS: Final = (
    "CREATE TABLE side.other (id int PRIMARY KEY)",
    "ALTER PUBLICATION chronolake_shop ADD TABLE side.other",
    "CREATE INDEX ON moved (v)",
    "ANALYZE",
    "GRANT SELECT ON moved TO PUBLIC",
    "ALTER TABLE parts RENAME TO bits",
    "ALTER TABLE bits RENAME TO parts",
    "ALTER TABLE moved ADD COLUMN w int",
)


@pytest.fixture
def published(shop: Shop) -> Shop:
    """Return a shop with copied tables that are published because they are in a schema."""
    shop.run(
        "DROP SCHEMA IF EXISTS side CASCADE",
        "CREATE SCHEMA side",
        "CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE nested (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE branch PARTITION OF nested FOR VALUES FROM (0) TO (100) "
        "PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF branch FOR VALUES FROM (0) TO (50)",
        "CREATE TABLE moved (id int PRIMARY KEY, v text)",
        "CREATE TABLE keyed (id int PRIMARY KEY, k int NOT NULL DEFAULT 1, v text)",
        "CREATE UNIQUE INDEX keyed_k ON keyed (k)",
        "CREATE TABLE split (id int PRIMARY KEY, k int NOT NULL, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE split_part PARTITION OF split FOR VALUES FROM (0) TO (100)",
        "INSERT INTO split SELECT g, g * 10, 'first' FROM generate_series(1, 4) g",
        "INSERT INTO keyed SELECT g, g * 10, 'first' FROM generate_series(1, 4) g",
        *(
            f"INSERT INTO {table} SELECT g, 'first' FROM generate_series(1, 4) g"
            for table in ("parts", "nested", "moved")
        ),
        "CREATE PUBLICATION chronolake_shop FOR TABLES IN SCHEMA public "
        "WITH (publish_via_partition_root = true)",
        "SELECT pg_create_logical_replication_slot('chronolake_shop', 'pgoutput')",
    )
    shop.sync_or_fail()
    return shop


def _read_again(logged: list[Any]) -> list[str]:
    return sorted(event["stream"] for event in logged if event["event"] == "table_read_again")


def _expect_equal(shop: Shop, words: str) -> None:
    for table in _TABLES:
        rows = sorted(shop.rows(f"SELECT id, v FROM {table}"), key=repr)
        assert shop.present(table, ("id", "v")) == rows, (words, table)


@pytest.mark.long
def test_changes_that_were_hidden_are_read_from_the_table(published: Shop) -> None:
    for words in _HIDING.keys() - set(_OF_ALL):
        _, hide, hidden, show = _HIDING[words]
        published.run(hide, *hidden, show)
    with structlog.testing.capture_logs() as logged:
        published.sync_or_fail()
    assert _read_again(logged) == sorted(f"public.{table}" for table in _TABLES)
    _expect_equal(published, "tables")

    published.run(*_HARMLESS)
    with structlog.testing.capture_logs() as logged:
        published.sync_or_fail()
    assert _read_again(logged) == []


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [_OF_ALL[0], *(pytest.param(words, marks=pytest.mark.long) for words in _OF_ALL[1:])],
)
def test_a_publication_that_was_altered_for_a_while_hides_nothing(
    published: Shop, words: str
) -> None:
    tables, hide, hidden, show = _HIDING[words]
    # In one transaction, nobody sees that the publication was different.
    published.run("; ".join(["BEGIN", hide, *hidden, show, "COMMIT"]))
    with structlog.testing.capture_logs() as logged:
        published.sync_or_fail()
    assert _read_again(logged) == sorted(f"public.{table}" for table in tables)
    _expect_equal(published, words)
