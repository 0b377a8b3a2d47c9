"""Projects of the Fivetran Connector SDK, run with the real package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chronolake.config import FivetranSource
from chronolake.errors import ConfigurationError
from chronolake.pipeline.store import Store
from chronolake.pipeline.streams import source_of
from chronolake.source.connectors.environments import environment
from chronolake.source.protocol import ALL_STREAMS
from support.connectors import Shop

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


def test_a_folder_without_a_connector_is_refused(shop: Shop) -> None:
    (shop.folder / "connector").mkdir()
    shop.configure({"type": "fivetran", "path": "connector"})
    with pytest.raises(ConfigurationError, match=r"has no connector\.py"):
        source_of(shop.project, "shop").discover()
