"""What `import chronolake` gives, and that it is typed for its users."""

from __future__ import annotations

import importlib.resources
import subprocess
import sys
from pathlib import Path

import pytest

import chronolake

ROOT = Path(__file__).parents[2]


def test_the_exported_names_are_these() -> None:
    assert sorted(chronolake.__all__) == [
        "ChronolakeError",
        "Column",
        "ColumnType",
        "HistoryWarning",
        "Kind",
        "Lake",
        "LakeFrame",
        "LakeTable",
        "Mode",
        "RunResult",
        "TableName",
        "__version__",
        "sync",
    ]


def test_every_exported_name_can_be_imported() -> None:
    for name in chronolake.__all__:
        assert getattr(chronolake, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        chronolake.nonsense  # noqa: B018


def test_a_users_program_type_checks() -> None:
    assert (importlib.resources.files("chronolake") / "py.typed").is_file()
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "tests/typing/user_code.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
