"""Taps of the Singer specification: each kind of message, and each kind of misbehavior."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from chronolake.arrow_tasks import FEW_BYTES
from chronolake.errors import ConfigurationError, SourceError
from chronolake.pipeline.store import Store
from chronolake.pipeline.streams import source_of
from chronolake.source.protocol import ALL_STREAMS
from chronolake.types import START
from support.commands import run_words
from support.connectors import Shop, tap_stream

_FULL = [tap_stream("orders")]
_POLLED = [tap_stream("orders", cursor="at")]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def _state(shop: Shop) -> Any:
    return Store.open(shop.project.lake).checkpoints("shop").get(ALL_STREAMS, {}).get("state")


def test_a_full_table_is_compared_with_the_table(shop: Shop) -> None:
    read = """
        emit(type="SCHEMA", stream="orders", key_properties=["id"],
             schema={{"properties": {{"id": {{"type": "integer"}}, "note": {{"type": "string"}}}}}})
        emit(type="ACTIVATE_VERSION", stream="orders", version={version})
        for key, note in {rows}:
            record("orders", {version}, id=key, note=note)
        emit(type="ACTIVATE_VERSION", stream="orders", version={version})
        emit(type="STATE", value={{"done": {version}}})
    """
    shop.singer(_FULL, read.format(version=1, rows=[(1, "a"), (2, "b")]))
    shop.sync()
    shop.singer(_FULL, read.format(version=2, rows=[(1, "c"), (3, "d")]))
    shop.sync()
    after = [(1, "a", False), (1, "c", True), (2, "b", False), (3, "d", True)]
    assert shop.versions("id", "note") == after
    assert _state(shop) == {"done": 2}


def test_an_incremental_stream_continues_after_its_state(shop: Shop) -> None:
    read = """
        (stream,) = catalog["streams"]
        (own,) = [entry["metadata"] for entry in stream["metadata"] if not entry["breadcrumb"]]
        assert own["selected"] and own["replication-method"] == "INCREMENTAL", own
        assert own["replication-key"] == "at", own
        day = (state or {"bookmarks": 0})["bookmarks"] + 1
        record("orders", id=1, note=f"day {day}", at=f"2026-11-0{day}T10:00:00Z")
        emit(type="STATE", value={"bookmarks": day})
    """
    shop.singer(_POLLED, read)
    for _ in range(3):
        shop.sync()
    assert shop.versions("note") == [("day 1", False), ("day 2", False), ("day 3", True)]
    assert sorted(row[START].day for row in shop.rows()) == [1, 2, 3]


@pytest.mark.long
def test_a_new_version_of_a_stream_deletes_what_it_lacks(shop: Shop) -> None:
    read = """
        emit(type="ACTIVATE_VERSION", stream="orders", version={version})
        for key in {keys}:
            record("orders", {version}, id=key, note="a", at="2026-11-01T10:00:00Z")
        {then}
        emit(type="STATE", value={{}})
    """
    shop.singer(_POLLED, read.format(version=1, keys=[1, 2], then=""))
    shop.sync()
    shop.singer(_POLLED, read.format(version=1, keys=[3], then=""))
    shop.sync()
    assert shop.versions("id") == [(1, True), (2, True), (3, True)]
    shop.singer(_POLLED, read.format(version=2, keys=[2], then="sys.exit(1)"))
    shop.fail("exit code 1")
    assert shop.versions("id") == [(1, True), (2, True), (3, True)], "it is not complete"
    shop.singer(_POLLED, read.format(version=2, keys=[2, 4], then=""))
    shop.sync()
    assert shop.versions("id") == [(1, False), (2, True), (3, False), (4, True)]
    shop.singer(_POLLED, read.format(version=2, keys=[5], then=""))
    shop.sync()
    assert [key for key, active in shop.versions("id") if active] == [2, 4, 5]


@pytest.mark.long
def test_reading_all_again_deletes_what_is_missing(shop: Shop) -> None:
    read = """
        assert state == {state}, state
        for key, note, day in {rows}:
            record("orders", id=key, note=note, at=f"2026-11-0{{day}}T10:00:00Z")
        emit(type="STATE", value={{"n": 1}})
        sys.exit({code})
    """
    first = [(1, "a", 1), (2, "a", 1), (3, "a", 1)]
    shop.singer(_POLLED, read.format(state=None, rows=first, code=0))
    shop.sync()
    shop.singer(
        _POLLED, read.format(state=None, rows=[(1, "a", 1), (3, "b", 2), (4, "c", 2)], code=0)
    )
    shop.sync(full_refresh=True)
    after = [(1, "a", True), (2, "a", False), (3, "a", False), (3, "b", True), (4, "c", True)]
    assert shop.versions("id", "note") == after
    assert {row[START].day for row in shop.rows() if row["note"] in {"b", "c"}} == {2}
    assert _state(shop) == {"n": 1}
    shop.singer(_POLLED, read.format(state={"n": 1}, rows=[(4, "d", 3)], code=0))
    shop.sync()
    assert shop.versions("id", "note")[-2:] == [(4, "c", False), (4, "d", True)]
    # An empty read, and one that was cut off, delete nothing.
    shop.singer(_POLLED, read.format(state=None, rows=[], code=0))
    shop.run(full_refresh=True)
    shop.singer(_POLLED, read.format(state=None, rows=[(1, "a", 1)], code=1))
    assert shop.run(full_refresh=True).streams[0].error is not None
    assert [row[0] for row in shop.versions("id") if row[1]] == [1, 3, 4]


@pytest.mark.sampled
@pytest.mark.parametrize("few_bytes", [FEW_BYTES, 0])
def test_a_delete_after_a_new_version_deletes(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, few_bytes: int
) -> None:
    monkeypatch.setattr("chronolake.arrow_tasks.FEW_BYTES", few_bytes)
    log = [tap_stream("orders", method="LOG_BASED")]
    first = """
        record("orders", 1, id=1, note="a")
        record("orders", 1, id=2, note="a")
        emit(type="STATE", value={"n": 1})
    """
    shop.singer(log, first)
    shop.sync()
    second = """
        for key in (1, 2, 3):
            record("orders", 2, id=key, note="a")
        emit(type="ACTIVATE_VERSION", stream="orders", version=2)
        record("orders", 2, id=1, note="b")
        for key in (2, 3):
            record("orders", 2, id=key, note="a", _sdc_deleted_at="2026-11-02T00:00:00Z")
        record("orders", 2, id=3, note="c")
        emit(type="STATE", value={"n": 2})
    """
    shop.singer(log, second)
    shop.sync()
    after = [(1, "a", False), (1, "b", True), (2, "a", False), (3, "c", True)]
    assert shop.versions("id", "note") == after


@pytest.mark.long
def test_records_that_a_log_reports_as_deleted_are_deleted(shop: Shop) -> None:
    read = """
        if state is None:
            for note in ("a", "b", "a"):
                record("orders", id=1, note=note)
            record("orders", id=1, note="a", _sdc_deleted_at="2026-11-01T10:00:00Z")
        emit(type="STATE", value={"lsn": 1})
    """
    shop.singer([tap_stream("orders", method="LOG_BASED")], read)
    shop.sync()
    shop.sync()
    assert shop.versions("note") == [("a", False), ("b", False), ("a", False)]


def test_only_configured_streams_are_selected(shop: Shop) -> None:
    offered = [tap_stream("orders"), tap_stream("items")]
    read = """
        chosen = {stream["stream"]: stream["metadata"][0]["metadata"]["selected"]
                  for stream in catalog["streams"]}
        assert chosen == {"orders": True, "items": False}, chosen
        record("orders", id=1, note="a")
        record("items", id=1, note="a")
    """
    shop.singer(offered, read, only=["orders"], keys={"orders": ["note"]})
    shop.sync()
    assert shop.versions("note", key="note") == [("a", True)]
    shop.singer(offered, read, only=["order"])
    with pytest.raises(ConfigurationError, match="no stream 'order'"):
        source_of(shop.project, "shop").discover()


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("then", "words"),
    [
        ("sys.exit(7)", ["exit code 7"]),
        ("os.kill(os.getpid(), signal.SIGKILL)", ["SIGKILL"]),
        ('raw(b\'{"type": "RECORD", \\n\')', ["not complete JSON"]),
        ('raw(b\'{"type": "REC\'); sys.exit(3)', ["exit code 3"]),
        ("record('orders', note='without a key')", ["no id"]),
        ("record('orders', note='no key'); emit(type='STATE', value={'n': 2})", ["no id"]),
        ("emit(type='BATCH', stream='orders')", ["BATCH", "batch_config"]),
        (
            "emit(type='SCHEMA', stream='orders', schema={}, key_properties=['note'])",
            ["the key note", "catalog has id"],
        ),
        ("time.sleep(1000)", ["reported nothing for 2 seconds"]),
        ("emit(type='RECORD', stream='orders')", ["RECORD without `record`", "line 3"]),
        ("emit(type='RECORD', stream='orders', record=None)", ["`record` is null"]),
        ("emit(type='RECORD', record={})", ["RECORD without `stream`"]),
        ("emit(type='STATE', value=None)", ["`value` is null, and not an object"]),
        ("emit(type='SCHEMA', stream='orders')", ["SCHEMA without `schema`"]),
    ],
)
def test_what_was_read_before_an_error_is_kept(shop: Shop, then: str, words: list[str]) -> None:
    read = """
        record("orders", id=1, note="a", at="2026-11-01T10:00:00Z")
        emit(type="STATE", value={"n": 1})
    """
    shop.singer(_POLLED, f"{read}\n        {then}", silent_seconds=2)
    shop.fail(*words)
    assert shop.versions("id") == [(1, True)]
    assert _state(shop) == {"n": 1}, "a state counts only if no record before it is lost"


def test_a_tap_that_cannot_discover_is_refused(shop: Shop) -> None:
    shop.configure({"type": "singer", "command": [sys.executable, "-c", "print('no catalog')"]})
    with pytest.raises(SourceError, match="did not report its streams"):
        source_of(shop.project, "shop").discover()


@pytest.mark.sampled
@pytest.mark.parametrize(
    "columns",
    [
        {"exclude": ["nite"]},
        {"mask": {"nite": "x"}},
        {"hash": ["nite"], "hash_key": "0123456789abcdef"},
        {"rename": {"nite": "text"}},
        {"type": {"nite": "STRING"}},
    ],
)
def test_a_column_that_the_catalog_lacks_is_reported(
    shop: Shop, columns: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    shop.singer(_POLLED, "pass")
    source = {"type": "singer", "command": [sys.executable, "singer_connector.py"]}
    shop.configure(source, streams={"orders": {"columns": columns}})
    code, reported, _ = run_words(capsys, "check", "--project", str(shop.folder))
    assert code == 0, "records may have columns that the catalog lacks"
    assert "warning" in reported
    assert "the stream has no column 'nite'" in " ".join(reported.split())
    shop.configure(source, streams={"orders": {"columns": {"exclude": ["note"]}}})
    _, reported, _ = run_words(capsys, "check", "--project", str(shop.folder))
    assert "warning" not in reported


@pytest.mark.long
def test_messages_may_name_a_stream_by_its_id(shop: Shop) -> None:
    offered = [{**tap_stream("orders"), "tap_stream_id": "public-orders"}]
    shop.singer(offered, 'record("public-orders", id=1, note="a")')
    shop.sync()
    assert shop.versions("note") == [("a", True)]
    shop.singer(offered, 'record("items", id=1, note="b")')
    shop.fail("'items'", "not in its catalog")
    shop.singer([*offered, {**tap_stream("orders"), "tap_stream_id": "other-orders"}], "pass")
    with pytest.raises(SourceError, match="several streams with the name 'orders'"):
        source_of(shop.project, "shop").discover()


@pytest.mark.long
def test_cursors_of_different_forms_date_their_records(shop: Shop) -> None:
    """A value that is not a time does not take the times of other records."""
    read = """
        times = ["2026-01-01T00:00:00.123456789Z", "2026-01-02T00:00:00+02:00", None, "",
                 "2026-01-03 00:00:00", "2026-01-04", "20260105T000000Z"]
        for number, at in enumerate(times):
            record("orders", id=number, at=at)
    """
    shop.singer(_POLLED, read)
    shop.sync()
    rows = shop.rows("orders")
    begins = {row["id"]: row[START] for row in rows}
    assert begins[0] == datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
    assert begins[1] == datetime(2026, 1, 1, 22, tzinfo=UTC)
    assert begins[4] == datetime(2026, 1, 3, tzinfo=UTC)
    assert begins[6] == datetime(2026, 1, 5, tzinfo=UTC)
    # Records without a time begin when they were read, and days are not times.
    assert all(begins[key] > datetime(2026, 2, 1, tzinfo=UTC) for key in (2, 3, 5))


def test_numbers_that_json_does_not_have_are_not_null_as_texts(shop: Shop) -> None:
    shop.singer(
        _FULL,
        """
        for number, size in enumerate([float("nan"), float("-inf"), "a", 1.5]):
            record("orders", id=number, size=size)
        """,
    )
    shop.sync()
    assert shop.versions("size") == [
        ("NaN", True),
        ("-Infinity", True),
        ("a", True),
        ("1.5", True),
    ]
