"""The rule that names ending in `_history` mean history mode, and its exceptions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from chronolake.config import LakeConfig, load_project
from chronolake.core.history_only import expect_mode, may_have_mode
from chronolake.errors import ConfigurationError, SchemaError
from chronolake.pipeline.streams import streams_of
from chronolake.types import Mode, TableName

_OTHERS = (Mode.LIVE, Mode.SOFT_DELETE)
#: Printable: YAML cannot contain other characters.
_NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1)


def config(**tables: dict[str, Any]) -> LakeConfig:
    return LakeConfig.model_validate({"path": Path("lake"), "tables": tables})


@pytest.mark.parametrize(
    ("table", "is_history_only"),
    [
        ("price_history", True),
        ("_history", True),
        ("history", False),
        ("price_history_old", False),
        # As for streams, the case of letters counts.
        ("PRICE_HISTORY", False),
    ],
)
def test_the_suffix_of_the_name_decides(table: str, *, is_history_only: bool) -> None:
    name = TableName("sales", table)
    assert may_have_mode(config(), name, Mode.HISTORY)
    assert [may_have_mode(config(), name, mode) for mode in _OTHERS] == [not is_history_only] * 2


def test_a_setting_overrides_the_name() -> None:
    settings = config(
        **{
            "sales.price_history": {"history_only": False},
            "`sales`.`prices`": {"history_only": True},
            "sales.cost_history": {"format_version": 2},
        }
    )
    assert not settings.is_history_only(TableName("sales", "price_history"))
    assert settings.is_history_only(TableName("other", "price_history"))
    assert settings.is_history_only(TableName("sales", "prices"))
    assert settings.is_history_only(TableName("sales", "cost_history"))


def test_one_table_may_be_written_in_two_ways() -> None:
    name = TableName("sales", "price_history")
    settings = config(
        **{"sales.price_history": {"format_version": 2}, "sales.`price_history`": {}},
    )
    assert settings.is_history_only(name)
    assert settings.format_version_of(name) == 2
    settings = config(
        **{
            "sales.price_history": {"format_version": 2},
            "sales.`price_history`": {"history_only": False},
        }
    )
    assert not settings.is_history_only(name)


@given(schema=_NAMES, prefix=_NAMES, mode=st.sampled_from(_OTHERS))
def test_the_hint_contains_the_setting_that_allows_every_mode(
    schema: str, prefix: str, mode: Mode
) -> None:
    name = TableName(schema, f"{prefix}_history")
    with pytest.raises(SchemaError, match=f"not in {mode} mode: its name ends in _history") as seen:
        expect_mode(config(), name, mode)
    assert seen.value.table == str(name)
    found = re.search(r"`lake\.tables: (\{.*\})` in chronolake\.yml", seen.value.hint or "")
    assert found is not None, seen.value.hint
    expect_mode(config(**yaml.safe_load(found[1])), name, mode)


def test_a_table_with_the_setting_is_refused_with_its_reason() -> None:
    settings = config(**{"sales.prices": {"history_only": True}})
    with pytest.raises(SchemaError, match="history_only is true"):
        expect_mode(settings, TableName("sales", "prices"), Mode.LIVE)
    expect_mode(settings, TableName("sales", "prices"), Mode.HISTORY)


@pytest.mark.parametrize(
    ("settings", "table", "fits"),
    [
        ("", "orders", True),
        ("", "orders_history", False),
        ("history_only: true", "orders", False),
        ("history_only: false", "orders_history", True),
    ],
)
def test_tables_of_pipelines_follow_the_same_rule(
    tmp_path: Path, settings: str, table: str, *, fits: bool
) -> None:
    (tmp_path / "chronolake.yml").write_text(
        f"lake: {{tables: {{'p.{table}': {{{settings}}}}}}}\n"
        "pipelines:\n  p:\n    mode: live\n"
        "    source: {type: files, path: 'exports/*.csv', stream: orders, key: [id]}\n"
        f"    streams: {{orders: {{table: {table}}}}}\n"
    )
    (tmp_path / "exports").mkdir()
    project = load_project(tmp_path / "chronolake.yml")
    if fits:
        assert [stream.mode for stream in streams_of(project, "p")] == [Mode.LIVE]
    else:
        with pytest.raises(ConfigurationError, match="can only be in history mode"):
            streams_of(project, "p")
