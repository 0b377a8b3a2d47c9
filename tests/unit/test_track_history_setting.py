"""Tracked columns: which columns a setting selects, and which settings are refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from chronolake.config import PipelineConfig
from chronolake.errors import ConfigurationError
from chronolake.pipeline.tracked_columns import TrackedColumns

_SOURCE = {"type": "data_lake_v2", "path": "x", "org": "X"}


def _tracked(
    setting: Any, own: Any = None, names: dict[str, str] | None = None
) -> TrackedColumns | None:
    """Return the tracked columns of the stream `s`, with settings of the pipeline and its own."""
    config: dict[str, Any] = {"source": _SOURCE, "track_history": setting, "streams": {"s": {}}}
    if own is not None:
        config["streams"]["s"]["track_history"] = own
    return TrackedColumns.of(
        PipelineConfig.model_validate(config), "s", tuple((names or {}).items())
    )


_COLUMNS = ["id", "status", "last_seen", "source__modified", "Score"]


@pytest.mark.parametrize(
    ("setting", "own", "expected"),
    [
        ({"only": ["status"]}, None, ["status"]),
        ({"only": ["STATUS", "s?ore"]}, None, ["status", "Score"]),
        ({"only": ["*"]}, None, ["id", "status", "last_seen", "Score"]),
        ({"except": ["last_*"]}, None, ["id", "status", "Score"]),
        ({"except": ["last_*"]}, {"only": ["id"]}, ["id"]),
        ("all", {"except": ["status", "score"]}, ["id", "last_seen"]),
    ],
)
def test_columns_are_selected_by_names_and_patterns(
    setting: Any, own: Any, expected: list[str]
) -> None:
    tracked = _tracked(setting, own)
    assert tracked is not None
    assert list(tracked.select(_COLUMNS)) == expected


def test_all_changes_start_a_version_by_default() -> None:
    assert _tracked("all") is None
    assert _tracked({"only": ["status"]}, "all") is None


def test_names_are_those_of_the_source() -> None:
    tracked = _tracked({"only": ["status"]}, names={"status": "state", "mode": "status"})
    assert tracked is not None
    assert tracked.select(["state", "status", "mode"]) == ("state",)
    same = _tracked({"only": ["status"]})
    assert same is not None
    assert tracked.to_json() != same.to_json(), "renamed columns make the table be rebuilt"


@pytest.mark.parametrize(
    "setting", [{}, {"only": []}, {"only": ["a"], "except": ["b"]}, {"only": [""]}, "none"]
)
def test_invalid_settings_are_refused(setting: Any) -> None:
    with pytest.raises(ValidationError):
        _tracked(setting)


def test_a_name_of_a_stream_must_exist() -> None:
    columns = ["id", "status"]
    for setting, own in [({"only": ["state"]}, None), ("all", {"only": ["st*", "STATUS"]})]:
        tracked = _tracked(setting, own)
        assert tracked is not None
        tracked.expect_known(columns, place="pipelines.p.streams.s")
    tracked = _tracked("all", {"except": ["state"]})
    assert tracked is not None
    with pytest.raises(ConfigurationError, match="except: the stream has no column 'state'"):
        tracked.expect_known(columns, place="pipelines.p.streams.s")
