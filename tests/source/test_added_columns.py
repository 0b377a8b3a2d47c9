"""A changed column makes the table be copied again only where its log is not enough."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from support.source.databases import Shop

#: Statements, and whether they leave values that are not in the log.
_ALTERED = [
    (["ALTER TABLE {0} ADD COLUMN note text"], False),
    (["ALTER TABLE {0} RENAME COLUMN state TO status"], False),
    (["ALTER TABLE {0} ALTER COLUMN code TYPE varchar(20)"], False),
    (["ALTER TABLE {0} ALTER COLUMN code TYPE text"], False),
    (["ALTER TABLE {0} ALTER COLUMN total TYPE numeric(12,2)"], False),
    (["ALTER TABLE {0} DROP COLUMN code"], False),
    (["ALTER TABLE {0} ADD COLUMN paid bool", "UPDATE {0} SET paid = true WHERE id = 2"], False),
    (["ALTER TABLE {0} ADD COLUMN later int", "ALTER TABLE {0} ALTER later SET DEFAULT 5"], False),
    (["ALTER TABLE {0} ADD COLUMN a int", "ALTER TABLE {0} ADD b int DEFAULT 1"], True),
    (["ALTER TABLE {0} ADD c int DEFAULT 7", "UPDATE {0} SET c = 8 WHERE id = 1"], True),
    (["ALTER TABLE {0} ADD COLUMN d int DEFAULT (random() * 10)"], True),
    (["ALTER TABLE {0} ALTER doubled DROP EXPRESSION"], True),
    (["ALTER TABLE {0} ALTER later TYPE text USING later || '!'"], True),
    (["ALTER TABLE {0} ALTER at TYPE timestamptz"], True),
]


def _read_again(logged: list[Any]) -> set[str]:
    found = {event["stream"] for event in logged if event["event"] == "table_read_again"}
    logged.clear()
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    "cases",
    [
        pytest.param([0, 1, 3, 5, 6, 8, 9], id="some"),
        pytest.param(list(range(len(_ALTERED))), id="all", marks=pytest.mark.long),
    ],
)
def test_columns_are_read_from_the_table_only_where_the_log_lacks_values(
    shop: Shop, cases: list[int]
) -> None:
    columns = (
        "id int PRIMARY KEY, state text, code varchar(10), total numeric(10,2), at timestamp, "
        "doubled int GENERATED ALWAYS AS (id * 2) STORED"
    )
    tables = ("orders", "parts")
    shop.run(
        f"CREATE TABLE orders ({columns})",
        f"CREATE TABLE parts ({columns}) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (2)",
        "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (2) TO (9)",
    )
    for table in tables:
        shop.run(
            f"INSERT INTO {table} SELECT n, 'new', 'x', 1.5, now() FROM generate_series(1,3) n"
        )
    shop.prepare()
    shop.sync_or_fail()
    with structlog.testing.capture_logs() as logged:
        for statements, is_read in (_ALTERED[number] for number in cases):
            shop.run(*(statement.format(table) for table in tables for statement in statements))
            shop.sync_or_fail()
            assert _read_again(logged) == ({"public.orders", "public.parts"} if is_read else set())
            for table in tables:
                reported = shop.rows(
                    "SELECT column_name::text FROM information_schema.columns "
                    f"WHERE table_name = '{table}' AND is_generated = 'NEVER' ORDER BY 1"
                )
                names = [name for (name,) in reported if name != "at"]
                rows = shop.rows(f"SELECT {', '.join(names)} FROM {table}")
                assert shop.present(table, names) == sorted(rows, key=repr), statements
        shop.sync_or_fail()
        assert _read_again(logged) == set()
    assert shop.agrees()
