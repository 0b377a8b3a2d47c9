"""Tables and columns in the lake have the source's names, or those in the configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chronolake.errors import ConfigurationError
from chronolake.pipeline.column_names import ColumnNames
from chronolake.pipeline.store import Status
from chronolake.types import ACTIVE, METADATA_COLUMNS, START
from support.commands import run_words
from support.declarative.apis import Api
from support.source.apishop import ApiShop
from support.source.databases import Shop


def _failed(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    """Return the errors that `check` reports, with their hints."""
    _, reported, _ = run_words(capsys, "check", "--json", "--project", str(folder))
    found: list[dict[str, Any]] = json.loads(reported)
    return {
        result["what"]: (result["message"], result["hint"]) for result in found if not result["ok"]
    }


@pytest.mark.long
@pytest.mark.parametrize(
    "method", ["logical_replication", pytest.param("snapshot_diff", marks=pytest.mark.long)]
)
def test_columns_get_names_that_tables_can_have(
    shop: Shop, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.configure(method=method)
    shop.run(
        'CREATE TABLE orders (id int PRIMARY KEY, "_fivetran_start" text, "_pos" int, state text, '
        "total numeric(10,2))",
        'ALTER TABLE orders ALTER "_fivetran_start" SET STORAGE EXTERNAL',
        "INSERT INTO orders SELECT n, repeat(n::text, 9000), n, 'new', 1 "
        "FROM generate_series(1, 3) n",
        "CREATE TABLE items (id int PRIMARY KEY)",
        'CREATE TABLE nokey ("_fivetran_id" text)',
    )
    shop.prepare()
    failed = _failed(shop.folder, capsys)
    message, hint = failed["pipelines.shop: public.orders"]
    assert "The source column _fivetran_start cannot be stored" in message
    assert "streams.public.orders.rename: {_fivetran_start: source_fivetran_start}" in hint
    assert "ADD PRIMARY KEY (_fivetran_id)" in failed["pipelines.shop: public.nokey"][1]
    streams = {stream.stream: stream for stream in shop.sync().streams}
    assert message in (streams["public.orders"].error or "")
    assert streams["public.items"].status is Status.SUCCEEDED
    assert not list((shop.folder / "lake").rglob("object=public.orders/**/*.parquet"))

    shop.run("DROP TABLE nokey")
    names = "{_fivetran_start: began, id: order_id}"
    shop.configure(
        method=method,
        streams=f"{{public.orders: {{rename: {names}}}}}",
        rename="{tables: {public.orders: purchases}, columns: {_pos: place, id: item_id}}",
    )
    assert _failed(shop.folder, capsys) == {}
    shop.sync_or_fail()
    shop.run(
        "UPDATE orders SET state = 'paid' WHERE id = 1",
        "UPDATE orders SET id = 4 WHERE id = 2",
        "DELETE FROM orders WHERE id = 3",
        "UPDATE orders SET total = 'NaN' WHERE id = 4",
        "ALTER TABLE orders ADD COLUMN more int DEFAULT 7",
        "INSERT INTO items VALUES (1)",
    )
    shop.sync_or_fail()
    rows = shop.rows('SELECT id, "_fivetran_start", "_pos", state, total::text, more FROM orders')
    columns = ("order_id", "began", "place", "state", "total", "more")
    assert shop.present("purchases", columns) == sorted(rows, key=repr)
    assert shop.present("items", ["item_id"]) == [(1,)]
    assert shop.agrees()

    # A name may be exchanged for another one in the lake, too.
    names = "{_fivetran_start: began, id: order_id, state: status}"
    shop.configure(
        method=method,
        streams=f"{{public.orders: {{rename: {names}}}}}",
        rename="{tables: {public.orders: purchases}, columns: {_pos: place, id: item_id}}",
    )
    shop.run("UPDATE orders SET state = 'sent' WHERE id = 1")
    shop.sync_or_fail()
    states = [row[1] for row in shop.versions("purchases", ("order_id", "status")) if row[0] == 1]
    assert states[0] == "new"
    assert states[-1] == "sent"
    assert shop.agrees()

    shop.configure(method=method, streams="{public.orders: {rename: {nope: x}}}")
    assert "no column 'nope'" in failed_words(_failed(shop.folder, capsys))


def failed_words(failed: dict[str, tuple[str, str]]) -> str:
    """Return all errors as one text."""
    return " ".join(message for message, _ in failed.values())


def test_tables_with_equal_names_are_renamed(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.run("CREATE SCHEMA IF NOT EXISTS a", "CREATE SCHEMA IF NOT EXISTS a_b")
    shop.run(
        "DROP TABLE IF EXISTS a.b_c, a_b.c",
        "CREATE TABLE a.b_c (id int PRIMARY KEY)",
        "CREATE TABLE a_b.c (id int PRIMARY KEY)",
        "INSERT INTO a.b_c VALUES (1)",
        "INSERT INTO a_b.c VALUES (2)",
    )
    shop.prepare()
    shop.configure(more=", schemas: [a, a_b]")
    ((message, hint),) = set(_failed(shop.folder, capsys).values())
    assert "a.b_c and a_b.c of shop have the same table" in message
    assert "pipelines.shop.rename.tables: {a.b_c: " in hint
    shop.configure(more=", schemas: [a, a_b]", rename="{tables: {a.b_c: second}}")
    assert _failed(shop.folder, capsys) == {}
    shop.sync_or_fail()
    assert shop.present("a_b_c", ["id"]) == [(2,)]
    assert shop.present("second", ["id"]) == [(1,)]
    shop.configure(more=", schemas: [a, a_b]", rename="{tables: {a.b_d: second, a.b_c: x}}")
    assert "rename.tables.a.b_d: the source has no such stream" in failed_words(
        _failed(shop.folder, capsys)
    )


@pytest.mark.long
def test_fields_of_an_api_get_other_names(tmp_path: Path) -> None:
    with Api() as api:
        shop = ApiShop(tmp_path, api)
        shop.configure("orders: {rename: {state: status, updated_at: at}}", "live: {mode: live}")
        shop.put(1, "02-01", state="new")
        shop.sync_or_fail()
        shop.put(1, "02-02", state="paid")
        shop.sync_or_fail()
        assert shop.rows("orders", "id", "status", ACTIVE) == [(1, "new", False), (1, "paid", True)]
        # The cursor field is a column beside the start of the versions.
        assert [at == start for at, start in shop.rows("orders", "at", START)] == [True, True]
        assert shop.rows("live", "id", "state") == [(1, "paid")]


@pytest.mark.parametrize("name", [START, *sorted(METADATA_COLUMNS), "__chronolake_x", ""])
def test_invalid_table_names_are_rejected(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be stored"):
        ColumnNames().expect_fit(["id", name], place="streams.s")
    ColumnNames(((name, "other"),)).expect_fit(["id", name], place="streams.s")
    with pytest.raises(ConfigurationError, match="would both be named id"):
        ColumnNames(((name, "id"),)).expect_fit(["id", name], place="streams.s")


def test_the_names_of_a_stream_come_before_those_of_its_pipeline() -> None:
    names = ColumnNames((("a", "x"), ("b", "y")), (("a", "z"), ("c", "c")))
    assert names.lake_names(["a", "b", "c", "d"]) == {"a": "z", "b": "y"}
