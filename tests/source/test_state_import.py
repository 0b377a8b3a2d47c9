"""States of Airbyte, Singer and Meltano: the next sync continues where another program stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chronolake.pipeline.store import Store
from chronolake.source.protocol import ALL_STREAMS
from support.commands import run_words
from support.connectors import Shop, stream, tap_stream

_STREAMS = [
    stream("orders", cursor="at", at="time"),
    {**stream("users", cursor="at", at="time"), "namespace": "crm"},
    stream("items"),
]
_READ = """
    since = (state_of("orders") or {}).get("at", "2026-11-01")
    for day in ("2026-11-01", "2026-11-02", "2026-11-03"):
        if day > since:
            record("orders", id=int(day[-1]), note=day, at=f"{day}T10:00:00Z")
    stream_state("orders", {"at": "2026-11-03"})
"""
_STATE = {"at": "2026-11-02"}
_ORDERS = {"stream_descriptor": {"name": "orders"}, "stream_state": _STATE}
_CRM = {"stream_descriptor": {"name": "users", "namespace": "crm"}, "stream_state": _STATE}
_CAMEL = {"streamDescriptor": {"name": "orders", "namespace": None}, "streamState": _STATE}
_CAMEL_USERS = {"streamDescriptor": {"name": "users", "namespace": "crm"}, "streamState": _STATE}
_GLOBAL = {"shared_state": {"lsn": 5}, "stream_states": [_ORDERS]}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def _import(
    shop: Shop, capsys: pytest.CaptureFixture[str], tool: str, content: Any, *words: str
) -> tuple[int, str, str]:
    file = shop.folder / "state.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    where = ("--project", str(shop.folder))
    return run_words(capsys, "state", "import", "shop", str(file), "--from", tool, *where, *words)


def _stored(shop: Shop) -> dict[str, Any]:
    """Return the stored states by stream."""
    checkpoints = Store.open(shop.project.lake).checkpoints("shop")
    return {name: offset.get("state") for name, offset in checkpoints.items()}


@pytest.mark.parametrize(
    "content",
    [
        # What PyAirbyte stores, and a file for a connector's `--state`.
        [{"type": "STREAM", "stream": _ORDERS, "global_": None, "data": None}],
        {"type": "STREAM", "stream": _ORDERS},
        # Connection states in Airbyte's UI and API.
        [_CAMEL],
        {"stateType": "stream", "connectionId": "c", "streamState": [_CAMEL], "globalState": None},
        # The output of a connector, of which the last state of each stream counts.
        "\n".join(
            json.dumps(message)
            for message in (
                {"type": "LOG", "log": {"message": "hello"}},
                {
                    "type": "STATE",
                    "state": {"type": "STREAM", "stream": {**_ORDERS, "stream_state": {}}},
                },
                {"type": "STATE", "state": {"type": "STREAM", "stream": _ORDERS}},
            )
        ),
        # From before states had types.
        {"orders": _STATE},
        {"type": "LEGACY", "data": {"orders": _STATE}},
    ],
)
def test_states_of_airbyte_streams(
    shop: Shop, capsys: pytest.CaptureFixture[str], content: Any
) -> None:
    shop.airbyte(_STREAMS, _READ)
    code, reported, error = _import(shop, capsys, "airbyte", content, "--json")
    assert code == 0, error
    assert json.loads(reported) == {
        "pipeline": "shop",
        "stored": True,
        "shared": None,
        "streams": {"orders": _STATE},
        "without_state": ["crm.users", "items"],
    }
    assert _stored(shop) == {"orders": _STATE}


@pytest.mark.parametrize(
    ("content", "shared"),
    [
        ({"type": "GLOBAL", "global": _GLOBAL}, {"global": _GLOBAL}),
        ([{"type": "GLOBAL", "global_": _GLOBAL}], {"global": _GLOBAL}),
        (
            {
                "stateType": "global",
                "globalState": {"sharedState": {"lsn": 5}, "streamStates": [_CAMEL]},
            },
            {"global": _GLOBAL},
        ),
        ({"stateType": "legacy", "state": {"lsn": 5}}, {"data": {"lsn": 5}}),
    ],
)
def test_states_of_all_airbyte_streams(
    shop: Shop, capsys: pytest.CaptureFixture[str], content: Any, shared: Any
) -> None:
    shop.airbyte(_STREAMS, _READ)
    code, _, error = _import(shop, capsys, "airbyte", content)
    assert code == 0, error
    named = {"orders": None} if "global" in shared else {}
    assert _stored(shop) == {ALL_STREAMS: shared, **named}


def test_a_stream_with_a_namespace(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.airbyte(_STREAMS, _READ)
    assert (
        _import(shop, capsys, "airbyte", [_CAMEL_USERS, {"type": "STREAM", "stream": _CRM}])[0] == 0
    )
    assert _stored(shop) == {"crm.users": _STATE}


@pytest.mark.long
def test_a_sync_continues_after_a_state_of_airbyte(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.airbyte(_STREAMS[:1], _READ)
    code, reported, _ = _import(shop, capsys, "airbyte", [_CAMEL])
    assert code == 0
    assert "orders" in reported
    assert "2026-11-02" in reported
    shop.sync()
    assert shop.versions("id", "note") == [(3, "2026-11-03", True)]
    assert _stored(shop) == {"orders": {"at": "2026-11-03"}}

    code, _, error = _import(shop, capsys, "airbyte", [_CAMEL])
    assert code == 1
    assert "already has a state" in error
    assert "--replace" in error
    assert _stored(shop) == {"orders": {"at": "2026-11-03"}}
    earlier = {**_CAMEL, "streamState": {"at": "2026-11-01"}}
    assert _import(shop, capsys, "airbyte", [earlier], "--replace", "--dry-run")[0] == 0
    assert _stored(shop) == {"orders": {"at": "2026-11-03"}}
    assert _import(shop, capsys, "airbyte", [earlier], "--replace")[0] == 0
    shop.sync()
    expected = [(2, "2026-11-02", True), (3, "2026-11-03", True)]
    assert shop.versions("id", "note") == expected


def test_states_of_streams_replace_that_of_all(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.airbyte(_STREAMS, _READ)
    assert _import(shop, capsys, "airbyte", {"type": "GLOBAL", "global": _GLOBAL})[0] == 0
    assert _import(shop, capsys, "airbyte", [_CAMEL], "--replace")[0] == 0
    assert _stored(shop) == {"orders": _STATE, ALL_STREAMS: None}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([{**_CAMEL, "streamDescriptor": {"name": "ordrs"}}], "'ordrs', which the source does not"),
        ([{**_CAMEL, "streamDescriptor": {}}], "no descriptor with a name"),
        ([{**_CAMEL, "streamState": 5}], "The state of the stream orders is not an object"),
        ([{**_CAMEL_USERS, "streamState": None}], "does not contain a stream"),
        ([_CAMEL, {"type": "GLOBAL", "global": _GLOBAL}], "both a state of all streams and"),
        ({"type": "GLOBAL"}, "A global state has no `global`"),
        ({"stateType": "not_set"}, "It contains no state"),
        ([1], "An element of its list is not an object"),
        (5, "It is not a JSON object or list"),
        ({"type": "GLOBAL", "global": {"stream_states": [{"x": 1}]}}, "no descriptor with a name"),
        ('{"type": ', "neither JSON nor JSON lines"),
    ],
)
def test_other_contents_are_refused_and_change_nothing(
    shop: Shop, capsys: pytest.CaptureFixture[str], content: Any, reason: str
) -> None:
    shop.airbyte(_STREAMS, _READ)
    code, _, error = _import(shop, capsys, "airbyte", content)
    assert code == 1
    assert reason in " ".join(error.split())
    assert "What to do" in error
    assert _stored(shop) == {}


def test_a_source_of_another_type_is_refused(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.airbyte(_STREAMS, _READ)
    code, _, error = _import(shop, capsys, "singer", {"bookmarks": {"orders": {}}})
    assert code == 1
    reason = "is of the type airbyte, which cannot continue a state of singer"
    assert reason in " ".join(error.split())
    code, _, error = _import(shop, capsys, "fivetran", {})
    assert code == 2


_TAP = """
    bookmark = (state or {}).get("bookmarks", {}).get("orders", {})
    for day in ("2026-11-01", "2026-11-02", "2026-11-03"):
        if day > bookmark.get("at", "2026-11-01"):
            record("orders", bookmark.get("version"), id=int(day[-1]), note=day, at=day)
    emit(type="STATE", value={"bookmarks": {"orders": {**bookmark, "at": "2026-11-03"}}})
"""
_EARLIER = {"bookmarks": {"orders": {"at": "2026-11-01"}}}
_BOOKMARKS = {"bookmarks": {"orders": {"at": "2026-11-02", "version": 7}}}


@pytest.mark.parametrize(
    "content",
    [
        _BOOKMARKS,
        {"singer_state": _BOOKMARKS},
        {"type": "STATE", "value": _BOOKMARKS},
        {
            "completed": {"singer_state": _EARLIER},
            "partial": {"singer_state": _BOOKMARKS},
        },
        # What a target has written: the last line counts.
        f"{json.dumps(_EARLIER)}\n{json.dumps(_BOOKMARKS)}\n",
    ],
)
def test_states_of_taps(shop: Shop, capsys: pytest.CaptureFixture[str], content: Any) -> None:
    shop.singer([tap_stream("orders", cursor="at"), tap_stream("items")], _TAP)
    code, reported, error = _import(shop, capsys, "singer", content, "--json")
    assert code == 0, error
    assert json.loads(reported)["without_state"] == ["items"]
    assert _stored(shop) == {ALL_STREAMS: _BOOKMARKS, "orders": {"version": 7}}


def test_a_sync_continues_after_a_state_of_a_tap(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.singer([tap_stream("orders", cursor="at")], _TAP)
    assert _import(shop, capsys, "singer", _BOOKMARKS)[0] == 0
    shop.sync()
    assert shop.versions("id", "note") == [(3, "2026-11-03", True)]
    assert _stored(shop)[ALL_STREAMS]["bookmarks"]["orders"]["at"] == "2026-11-03"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"bookmarks": {"ordrs": {}}}, "'ordrs', which the source does not have"),
        ({"bookmarks": []}, "It contains no bookmarks"),
        ({"project_5": "2026"}, "'project_5', which the source does not have"),
        ({}, "It contains no bookmarks"),
        ({"completed": 5}, "A state of Meltano is not an object"),
        ([], "It is not a JSON object"),
    ],
)
def test_other_states_of_taps_are_refused(
    shop: Shop, capsys: pytest.CaptureFixture[str], content: Any, reason: str
) -> None:
    shop.singer([tap_stream("orders", cursor="at")], _TAP)
    code, _, error = _import(shop, capsys, "singer", content)
    assert code == 1
    assert reason in " ".join(error.split())
    assert _stored(shop) == {}
