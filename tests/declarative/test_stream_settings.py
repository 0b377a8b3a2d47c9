"""Settings of single streams of an API in chronolake.yml, and how often a stream is due."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronolake.config import is_due, load_project
from chronolake.errors import ConfigurationError
from chronolake.pipeline.streams import Stream, streams_of
from support.declarative.stream_reads import retriever, stream

_DATED = {
    "type": "DatetimeBasedCursor",
    "cursor_field": "{{ config['by'] }}",
    "datetime_format": "%Y-%m-%d",
    "start_datetime": "2026-01-01",
}
_COUNTED = {"type": "IncrementingCountCursor", "cursor_field": "id"}
_ORDERS = stream("orders", primary_key="id", incremental_sync=_DATED)
_OF_ORDERS = {
    "type": "SubstreamPartitionRouter",
    "parent_stream_configs": [
        {
            "type": "ParentStreamConfig",
            "stream": _ORDERS,
            "parent_key": "id",
            "partition_field": "order",
        }
    ],
}
_STREAMS = [
    _ORDERS,
    stream(
        "lines",
        primary_key="id",
        incremental_sync=_DATED,
        retriever=retriever("/lines", partition_router=_OF_ORDERS),
    ),
    stream("inner", primary_key=[["owner", "id"]], incremental_sync=_DATED),
    stream("keyless", incremental_sync=_DATED),
    stream("counted", primary_key="id", incremental_sync=_COUNTED),
    stream("whole", primary_key="id"),
]


def offered(folder: Path, settings: str, more: str = "") -> dict[str, Stream]:
    """Return the streams of a pipeline with these settings of streams."""
    manifest = {
        "version": "6.48.0",
        "type": "DeclarativeSource",
        "check": {"type": "CheckStream", "stream_names": ["orders"]},
        "streams": _STREAMS,
    }
    (folder / "shop.yaml").write_text(json.dumps(manifest))
    file = folder / "chronolake.yml"
    file.write_text(
        "pipelines:\n  shop:\n    source: {type: declarative, manifest: shop.yaml, "
        f"config: {{api: http://localhost, by: changed}}}}\n    mode: live\n    {more}\n"
        f"    streams: {settings}\n"
    )
    return {stream.name: stream for stream in streams_of(load_project(file), "shop")}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ("{whole: {detect_deletes: weekly}}", "each run already reads and compares all records"),
        ("{keyless: {detect_deletes: 12h}}", "it has no primary key"),
        (
            "{orders: {detect_deletes: P7D, cursor_in_key: true}}",
            "its cursor is part of its key",
        ),
        ("{lines: {detect_deletes: weekly}}", "its parent orders is read incrementally"),
        ("{whole: {cursor_in_key: true}}", "it has no datetime cursor"),
        ("{counted: {cursor_in_key: true}}", "it has no datetime cursor"),
        ("{keyless: {cursor_in_key: true}}", "the whole record is its key"),
        ("{orders: {detect_deletes: sometimes}}", "write daily, weekly, monthly, never"),
        ("{orders: {detect_deletes: PT0S}}", "write daily, weekly, monthly, never"),
        ("{orders: {detect_deletes: 0h}}", "write daily, weekly, monthly, never"),
        ("{orders: {nested: rows}}", "'json' or 'columns'"),
    ],
)
def test_what_a_stream_cannot_do_is_refused(tmp_path: Path, settings: str, reason: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        offered(tmp_path, settings)
    assert reason in str(refused.value)
    name, _, reported = settings.strip("{}").partition(": {")
    assert f"streams.{name}.{reported.partition(':')[0].partition(',')[0]}" in str(refused.value)


def test_what_a_pipeline_wants_holds_for_the_streams_that_can_do_it(tmp_path: Path) -> None:
    assert len(offered(tmp_path, "{whole: {}}", "detect_deletes: weekly")) == len(_STREAMS)
    assert offered(tmp_path, "{whole: {detect_deletes: never}, orders: {detect_deletes: never}}")


def test_a_cursor_in_the_key_is_offered_as_part_of_it(tmp_path: Path) -> None:
    found = offered(tmp_path, "{orders: {cursor_in_key: true}, inner: {cursor_in_key: true}}")
    assert found["orders"].descriptor.key == ("id", "changed")
    assert found["inner"].descriptor.key == ("_fivetran_id", "changed")
    assert found["counted"].descriptor.key == ("id",)


@pytest.mark.parametrize(
    "setting", ["detect_deletes: weekly", "nested: columns", "streams: {a: {cursor_in_key: true}}"]
)
def test_other_sources_know_nothing_of_these_settings(tmp_path: Path, setting: str) -> None:
    file = tmp_path / "chronolake.yml"
    file.write_text(
        "pipelines:\n  crm:\n    source: {type: data_lake_v2, path: lake, org: X}\n"
        f"    {setting}\n"
    )
    with pytest.raises(ConfigurationError) as refused:
        load_project(file)
    assert "is only supported for sources of the type declarative" in str(refused.value)


def test_other_sources_than_complete_reads_do_not_become_empty(tmp_path: Path) -> None:
    file = tmp_path / "chronolake.yml"
    source = "{type: data_lake_v2, path: lake, org: X}"
    file.write_text(
        f"pipelines:\n  crm:\n    source: {source}\n"
        "    streams: {a: {may_become_empty: true}}\n"
    )
    with pytest.raises(ConfigurationError, match="type declarative, python, airbyte or singer"):
        load_project(file)


_NOW = datetime(2026, 3, 31, 2, 0, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("period", "last", "expected"),
    [
        (None, None, False),
        ("never", None, False),
        ("weekly", None, True),
        ("weekly", _NOW - timedelta(days=6), False),
        # At the same time of day, and a few seconds early.
        ("weekly", _NOW - timedelta(days=7) + timedelta(seconds=9), True),
        ("weekly", _NOW - timedelta(days=7) + timedelta(hours=2), False),
        ("monthly", datetime(2026, 2, 28, 3, tzinfo=UTC), True),
        ("monthly", datetime(2026, 3, 1, 3, tzinfo=UTC), False),
        ("12h", _NOW - timedelta(hours=12), True),
        ("12h", _NOW - timedelta(hours=11), False),
        ("PT30M", _NOW - timedelta(minutes=29), True),
        ("PT30M", _NOW - timedelta(minutes=28), False),
        ("P7990Y", _NOW, False),
    ],
)
def test_when_something_is_due(period: str | None, last: datetime | None, expected: bool) -> None:
    assert is_due(period, last, _NOW) is expected


@given(st.integers(1, 400), st.integers(0, 24 * 500))
def test_what_is_due_stays_due(days: int, hours: int) -> None:
    last = _NOW - timedelta(hours=hours)
    if is_due(f"{days}d", last, _NOW):
        assert hours >= 24 * days - 1
        assert is_due(f"{days}d", last, _NOW + timedelta(hours=1))
