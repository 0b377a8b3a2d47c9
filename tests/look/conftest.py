"""Lakes made by PyIceberg alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from layout import Make, maker

from chronolake.config import LakeConfig, load


@pytest.fixture
def config(tmp_path: Path) -> LakeConfig:
    (tmp_path / "lake").mkdir()
    return load(tmp_path / "lake")


@pytest.fixture
def make(config: LakeConfig) -> Make:
    """Make a table: its name, its columns as texts, and appends of rows."""

    return maker(config)
