"""The JVM of an engine is replaced when it is outdated, however long that takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chronolake.config import LakeConfig, load
from chronolake.engine import java
from chronolake.engine.java import EngineJava, JavaKeeper
from chronolake.session import StartSettings


class _Keeper(JavaKeeper):
    """A keeper whose wanted settings are those of the configuration's master alone."""

    def _wanted(self, config: LakeConfig) -> tuple[StartSettings, str]:
        return StartSettings({"spark.master": config.spark.master}), "java"


@pytest.fixture
def config(tmp_path: Path) -> LakeConfig:
    return load(tmp_path)


def test_an_outdated_jvm_stays_due_until_it_is_replaced(config: LakeConfig) -> None:
    other = config.model_copy(
        update={"spark": config.spark.model_copy(update={"master": "local[7]"})}
    )
    current = config
    process = cast("Any", SimpleNamespace(poll=lambda: None, pid=0))
    keeper = _Keeper(lambda: current)
    keeper.java = EngineJava(keeper._wanted(config)[0], process, Path())

    assert not keeper.is_replacement_due()
    current = other
    # Its users need some time to end.
    assert keeper.is_replacement_due()
    assert keeper.is_replacement_due()

    keeper.java = replace(keeper.java, settings=keeper._wanted(other)[0])
    assert not keeper.is_replacement_due()
    assert not keeper.is_replacement_due()


def test_killed_commands_replace_the_jvm_sooner(config: LakeConfig) -> None:
    process = cast("Any", SimpleNamespace(poll=lambda: None, pid=0))
    keeper = _Keeper(lambda: config)
    keeper.java = EngineJava(keeper._wanted(config)[0], process, Path())

    for _ in range(60):
        keeper.note_command()
    assert not keeper.is_replacement_due()
    for _ in range(60):
        keeper.note_killed()
    assert keeper.is_replacement_due()


@pytest.mark.parametrize(("lived", "is_hopeless"), [(5.0, True), (3600.0, False)])
def test_deaths_count_only_if_they_follow_soon(
    config: LakeConfig, monkeypatch: pytest.MonkeyPatch, lived: float, is_hopeless: bool
) -> None:
    now = 0.0
    monkeypatch.setattr(java, "time", SimpleNamespace(monotonic=lambda: now))
    process = cast("Any", SimpleNamespace(poll=lambda: 1, wait=lambda _: 1, stdin=None, pid=0))

    def start(settings: StartSettings, _: str, *, is_private: bool) -> EngineJava:
        return EngineJava(settings, process, Path(f"no-folder-{is_private}"))

    monkeypatch.setattr(EngineJava, "start", start)
    keeper = _Keeper(lambda: config)

    for _ in range(6):
        keeper.replace()
        now += lived

    assert keeper.is_hopeless is is_hopeless
