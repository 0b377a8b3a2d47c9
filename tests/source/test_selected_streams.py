"""A state that streams share, if `tables` selects only some of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from chronolake.pipeline.store import Store
from chronolake.source.protocol import ALL_STREAMS
from support.connectors import Shop, stream, tap_stream

_AIRBYTE = """
    run = state[0]["global"]["shared_state"]["run"] if state else 0
    assert [found["stream"]["name"] for found in catalog["streams"]] == ["orders"], catalog
    record("orders", id=run, note="a", at="2026-11-01T10:00:00Z")
    emit(type="STATE", state={"type": "GLOBAL", "global": {"shared_state": {"run": run + 1},
                                                           "stream_states": []}})
"""
_SINGER = """
    run = (state or {"run": 0})["run"]
    record("orders", id=run, note="a", at="2026-11-01T10:00:00Z")
    emit(type="STATE", value={"run": run + 1})
"""
_PYTHON = """
import chronolake

@chronolake.streams(orders={"key": "id", "capture": "polling"}, items={"key": "id"})
def both(state):
    run = state.get("run", 0)
    yield "items", {"id": run}
    yield "orders", {"id": run}
    state["run"] = run + 1
"""
_FIVETRAN = """
    run = state.get("run", 0)
    op.upsert("items", {"id": run})
    op.upsert("orders", {"id": run})
    op.checkpoint({"run": run + 1})
"""


def _shared(shop: Shop) -> Any:
    return Store.open(shop.project.lake).checkpoints("shop").get(ALL_STREAMS, {}).get("state")


def _configure(shop: Shop, kind: str) -> dict[str, Any]:
    """Write a source with the streams `orders` and `items`, and return its section."""
    match kind:
        case "airbyte":
            shop.airbyte([stream(name, cursor="at") for name in ("orders", "items")], _AIRBYTE)
        case "singer":
            shop.singer([tap_stream(name, cursor="at") for name in ("orders", "items")], _SINGER)
        case "fivetran":
            tables = [{"table": name, "primary_key": ["id"]} for name in ("orders", "items")]
            shop.fivetran(tables, _FIVETRAN)
            return {"type": kind, "path": "connector"}
        case _:
            sys.modules.pop("selected_functions", None)
            (shop.folder / "selected_functions.py").write_text(_PYTHON)
            return {"type": kind, "run": "selected_functions:both"}
    return {"type": kind, "command": [sys.executable, f"{kind}_connector.py"]}


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", ["airbyte", "singer", "python", pytest.param("fivetran", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("tables", [{"exclude": ["items"]}, {"include": ["ord*"]}])
def test_a_shared_state_is_stored_for_the_selected_streams(
    tmp_path: Path, kind: str, tables: dict[str, list[str]]
) -> None:
    shop = Shop(tmp_path)
    shop.configure(_configure(shop, kind), tables=tables)
    shop.sync()
    shop.sync()
    assert shop.versions("id") == [(0, True), (1, True)]
    expected = {"selected_functions:both": {"run": 2}} if kind == "python" else {"run": 2}
    found = _shared(shop)
    assert (found["global"]["shared_state"] if kind == "airbyte" else found) == expected
