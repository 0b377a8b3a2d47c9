"""Sessions of Spark Connect are refused, because they have no JVM in the process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chronolake import Lake
from chronolake.errors import LakeError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SPARK_REMOTE", "sc://spark.internal:15002"),
        ("SPARK_CONNECT_MODE_ENABLED", "1"),
        ("SPARK_API_MODE", "Connect"),
    ],
)
def test_a_variable_that_selects_spark_connect_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(LakeError, match=f"{name} selects Spark Connect") as refused:
        Lake.open(tmp_path)
    assert refused.value.hint == f"Unset {name}, or set it for other programs only."


def test_a_session_of_spark_connect_is_refused(tmp_path: Path) -> None:
    # Connect's own session needs packages that are not installed; it has none of Java's objects.
    session = cast("Any", SimpleNamespace(version="4.1.0"))
    with pytest.raises(LakeError, match="is one of Spark Connect"):
        Lake.open(tmp_path, spark=session)
