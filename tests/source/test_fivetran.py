"""Projects of the Fivetran Connector SDK, run with the real package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chronolake.config import FivetranSource
from chronolake.errors import ConfigurationError, SourceError
from chronolake.pipeline.store import Store
from chronolake.pipeline.streams import source_of
from chronolake.source.connectors.environments import environment
from chronolake.source.protocol import ALL_STREAMS
from support.connectors import Shop
from support.datalakes import iceberg

#: They install a package.
pytestmark = pytest.mark.long

_TABLES: list[dict[str, Any]] = [
    {"table": "orders", "primary_key": ["id"], "columns": {"id": "INT", "note": "STRING"}}
]


@pytest.fixture(scope="module", autouse=True)
def _sdk() -> None:
    """Install the SDK once."""
    environment([FivetranSource(type="fivetran", path="connector").sdk])


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def _state(shop: Shop) -> Any:
    return Store.open(shop.project.lake).checkpoints("shop").get(ALL_STREAMS, {}).get("state")


def test_operations_change_the_tables_and_checkpoints_continue(shop: Shop) -> None:
    update = """
        step = state.get("step", 0)
        assert configuration == {"token": "hidden-word"}
        if step == 0:
            op.upsert("orders", {"id": 1, "note": "a", "total": decimal.Decimal("1.50")})
            op.upsert("orders", {"id": 2, "note": "b"})
            op.update("orders", {"id": 1, "note": "c"})
        if step == 1:
            op.delete("orders", {"id": 2})
            op.upsert("orders", {"id": 3, "note": "d", "at": datetime.date(2026, 1, 2)})
        if step == 2:
            op.truncate("orders")
            op.upsert("orders", {"id": 4, "note": "e"})
        op.checkpoint({"step": step + 1})
    """
    columns = {**_TABLES[0]["columns"], "total": {"type": "DECIMAL", "precision": 10, "scale": 2}}
    tables = [{**_TABLES[0], "columns": columns}]
    shop.fivetran(tables, update, config={"token": "hidden-word"})
    shop.sync()
    first = [(1, "a", False), (1, "c", True), (2, "b", True)]
    assert shop.versions("id", "note") == first
    assert {str(row["total"]) for row in shop.rows() if row["id"] == 1} == {"1.50"}
    shop.sync()
    second = [(1, "a", False), (1, "c", True), (2, "b", False), (3, "d", True)]
    assert shop.versions("id", "note") == second
    shop.sync()
    third = [(1, "a", False), (1, "c", False), (2, "b", False), (3, "d", False), (4, "e", True)]
    assert shop.versions("id", "note") == third
    assert _state(shop) == {"step": 3}
    shop.sync()
    assert shop.versions("id", "note") == third


def test_a_table_without_rows_does_not_begin_the_others_again(shop: Shop) -> None:
    update = """
        op.upsert("orders", {"id": state.get("n", 0)})
        op.checkpoint({"n": state.get("n", 0) + 1})
        if state.get("n", 0) == 1:
            raise OSError("cut")
    """
    shop.fivetran([*_TABLES, {"table": "refunds", "primary_key": ["id"]}], update)
    shop.sync()
    shop.fail("cut")
    shop.sync()
    assert shop.versions("id") == [(0, True), (1, True), (2, True)]
    # A new table needs all of its rows.
    shop.fivetran([*_TABLES, {"table": "notes", "primary_key": ["id"]}], update)
    shop.sync()
    assert _state(shop) == {"n": 1}


def test_a_project_for_an_earlier_sdk_is_a_generator(shop: Shop) -> None:
    update = """
        yield op.upsert(table="orders", data={"id": 1, "note": "a"})
        yield op.checkpoint(state={"n": 1})
    """
    shop.fivetran(_TABLES, update)
    (shop.folder / "connector" / "configuration.json").write_text('{"a": "b"}')
    shop.sync()
    shop.sync()
    assert shop.versions("id", "note") == [(1, "a", True)]


def test_what_is_before_an_error_is_kept(shop: Shop) -> None:
    update = """
        op.upsert("orders", {"id": 1, "note": "a"})
        op.checkpoint({"n": 1})
        op.upsert("orders", {"id": 2, "note": "b"})
        op.checkpoint({"n": 2})
        raise OSError("no answer to hidden-word")
    """
    shop.fivetran(_TABLES, update, config={"token": "hidden-word"})
    shop.fail("OSError", "•••")
    assert shop.versions("id") == [(1, True), (2, True)]
    assert _state(shop) == {"n": 2}


def test_an_undeclared_table_is_an_error(shop: Shop) -> None:
    shop.fivetran(_TABLES, 'op.upsert("items", {"id": 1})')
    shop.fail("items", "schema does not declare")


def test_an_operation_without_a_row_is_an_error(shop: Shop) -> None:
    shop.fivetran(_TABLES, 'op.upsert("orders", None)')
    shop.fail("connector.py wrote a message UPSERT", "`data` is null")
    shop.fivetran([{"primary_key": ["id"]}], "pass")
    with pytest.raises(SourceError, match="a table without a name"):
        source_of(shop.project, "shop").discover()


@pytest.mark.parametrize("operation", ["update", "delete"])
def test_a_table_without_a_key_has_no_updates_and_deletes(shop: Shop, operation: str) -> None:
    update = f"""
        op.upsert("orders", {{"id": 1, "note": "a"}})
        op.checkpoint({{"n": 1}})
        op.{operation}("orders", {{"id": 1}})
    """
    shop.fivetran([{"table": "orders"}], update)
    shop.fail(f"op.{operation}", "orders", "no key", "source.keys")
    assert shop.versions("note") == [("a", True)], "what was reported before is kept"


def test_tables_that_only_the_configuration_declares(shop: Shop) -> None:
    update = """
        op.upsert("items", {"id": 1, "n": 1})
        op.upsert("items", {"id": 1, "n": 2})
        op.upsert("notes", {"text": "a"})
    """
    shop.fivetran([], update)
    with pytest.raises(ConfigurationError, match="declares no tables"):
        source_of(shop.project, "shop").discover()
    shop.fivetran([], update, keys={"items": ["id"], "notes": []}, only=["items"])
    shop.sync()
    assert shop.versions("n", table="items") == [(1, False), (2, True)]


def test_values_have_the_declared_types(shop: Shop) -> None:
    types = {
        "id": "SHORT",
        "large": "LONG",
        "amount": {"type": "DECIMAL", "precision": 15, "scale": 2},
        "ratio": "FLOAT",
        "day": "NAIVE_DATE",
        "local": "NAIVE_DATETIME",
        "at": "UTC_DATETIME",
        "data": "BINARY",
        "page": "XML",
        "more": "JSON",
    }
    tables = [{"table": "orders", "primary_key": ["id"], "columns": types}]
    update = """
        from fivetran_connector_sdk import Logging as log
        log.info("begins")
        log.warning("goes on")
        row = {"large": 2**40, "day": "2026-01-02", "local": "2026-01-02T10:15:30", "ratio": 0.5,
               "at": "2026-01-02T10:15:30.123Z", "data": bytes([0, 255]), "page": "<a/>",
               "more": {"a": 1}}
        op.upsert("orders", {**row, "id": 1, "amount": "105.34"})
        op.upsert("orders", {**row, "id": 2, "amount": 105.3})
        op.upsert("orders", {**row, "id": 3, "amount": 105})
    """
    shop.fivetran(tables, update)
    shop.sync()
    found = {
        str(field.name): str(field.field_type)
        for field in iceberg(shop.project, "shop", "orders").schema().fields
    }
    assert {name: found[name] for name in types} == {
        "id": "int",
        "large": "long",
        "amount": "decimal(15, 2)",
        "ratio": "double",
        "day": "date",
        "local": "timestamp",
        "at": "timestamptz",
        "data": "binary",
        "page": "string",
        "more": "string",
    }
    rows = sorted(shop.rows(), key=lambda row: row["id"])
    assert [str(row["amount"]) for row in rows] == ["105.34", "105.30", "105.00"]
    assert rows[0]["data"] == b"\x00\xff"
    # What a type does not hold makes its column wider, and no value is lost.
    shop.fivetran(tables, 'op.upsert("orders", {"id": 4, "amount": "1.005"})')
    shop.sync()
    assert {row["amount"] for row in shop.rows()} == {"105.34", "105.30", "105.00", "1.005"}


def test_a_folder_without_a_connector_is_refused(shop: Shop) -> None:
    (shop.folder / "connector").mkdir()
    shop.configure({"type": "fivetran", "path": "connector"})
    with pytest.raises(ConfigurationError, match=r"has no connector\.py"):
        source_of(shop.project, "shop").discover()
