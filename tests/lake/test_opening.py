"""Opening a lake from Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronolake.errors import ConfigurationError
from chronolake.lake import Lake


@pytest.mark.usefixtures("lake")
def test_a_lake_opens_with_a_file_of_settings(tmp_path: Path) -> None:
    file = tmp_path / "settings.yml"
    file.write_text("lake: {maintenance: {small_files: 7}}")
    for config in (file, str(file)):
        with Lake.open(tmp_path / "lake", config=config) as opened:
            assert opened.config.maintenance.small_files == 7
    with pytest.raises(ConfigurationError, match="missing"):
        Lake.open(tmp_path / "lake", config=tmp_path / "missing.yml")
