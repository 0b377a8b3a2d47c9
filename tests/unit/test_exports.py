"""The public names of `import chronolake`, and their types for users."""

from __future__ import annotations

import importlib.resources
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import chronolake
from chronolake import inspect
from chronolake.source import protocol

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


def test_the_names_for_reading_without_spark_are_these() -> None:
    assert sorted(inspect.__all__) == [
        "Change",
        "Ending",
        "MonthlyUsage",
        "TableSummary",
        "Timeline",
        "Version",
        "check",
        "history",
        "look_up",
        "missing",
        "names",
        "tables",
        "usage",
    ]


def test_the_names_for_authors_of_sources_are_these() -> None:
    assert sorted(protocol.__all__) == [
        "COMPARED",
        "CaptureMethod",
        "CaughtUp",
        "ChangeBatch",
        "ChangeSource",
        "CheckResult",
        "CheckedSource",
        "ConfigurationError",
        "DELETED_AT",
        "DescribedSource",
        "DescribedStream",
        "FOLLOWS",
        "Lag",
        "LaggingSource",
        "Level",
        "MODIFIED",
        "OMITTED",
        "OPERATED",
        "Offset",
        "PROVIDES_DATA",
        "PURGED_AT",
        "ReadProgress",
        "Reconciliation",
        "SEQUENCE",
        "Snapshot",
        "Source",
        "SourceError",
        "StreamCapabilities",
        "StreamDescriptor",
        "StreamFailure",
        "TokenHoldingSource",
        "TokenStore",
        "fingerprint_folder",
        "raw_folder",
        "spool_folder",
    ]
    assert callable(protocol.ChangeSource.read)
    assert callable(protocol.ChangeSource.acknowledge)


@pytest.mark.parametrize(
    "module", [chronolake, inspect, protocol], ids=lambda module: module.__name__
)
def test_every_exported_name_can_be_imported(module: ModuleType) -> None:
    for name in module.__all__:
        assert getattr(module, name) is not None


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
