"""The public names of `import chronolake`, and their types for users."""

from __future__ import annotations

import importlib.resources
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pyarrow as pa
import pytest

import chronolake
from chronolake import inspect
from chronolake.pipeline.runs import Status, StreamRun
from chronolake.source import protocol

ROOT = Path(__file__).parents[2]


def test_the_exported_names_are_these() -> None:
    assert sorted(chronolake.__all__) == [
        "CHECKPOINT",
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
        "stream",
        "streams",
        "sync",
    ]


def test_the_names_for_reading_without_spark_are_these() -> None:
    assert sorted(inspect.__all__) == [
        "Change",
        "Ending",
        "Lineage",
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
        "ALL_STREAMS",
        "COMPARED",
        "COPY",
        "CaptureMethod",
        "CaughtUp",
        "ChangeBatch",
        "ChangeSource",
        "CheckResult",
        "CheckedSource",
        "ConfigurationError",
        "CopiesLanded",
        "CopyBatch",
        "CopyRejected",
        "DELETED_AT",
        "DatedCopy",
        "DescribedSource",
        "DescribedStream",
        "ExperimentalSource",
        "FOLLOWS",
        "Lag",
        "LaggingSource",
        "Landable",
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
        "SharedOffset",
        "Snapshot",
        "Source",
        "SourceError",
        "StateImportingSource",
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


def test_completion_lists_every_exported_name() -> None:
    program = "import chronolake; print(*sorted(set(chronolake.__all__) - set(dir(chronolake))))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


def test_a_result_prints_its_streams_in_a_line_each() -> None:
    streams = (
        StreamRun("1", "orders", "shop.orders", Status.SUCCEEDED, written=1200),
        StreamRun("1", "items", "shop.items", Status.FAILED, error="It failed."),
    )
    result = chronolake.RunResult("1", "shop", Status.PARTIAL, streams)

    assert repr(result).splitlines() == [
        "<RunResult shop: partial",
        "  shop.orders  succeeded, 1,200 rows written",
        "  shop.items  failed, 0 rows written: It failed.>",
    ]


def test_integers_within_objects_are_exact_in_pandas() -> None:
    """`diff` has keys and values in objects, which are null where the record did not exist."""
    great = 2**53 + 1
    rows = pa.table(
        {"old": [{"id": great}, None], "all": [[great, None], [None]], "n": [great, None]}
    )

    found = chronolake.LakeFrame.to_pandas(SimpleNamespace(to_arrow=lambda: rows))

    assert found["old"][0] == {"id": great}
    assert isinstance(found["old"][0]["id"], int)
    assert list(found["all"][0]) == [great, None]
    assert found["n"].dtype == "Int64"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        chronolake.nonsense  # noqa: B018


@pytest.mark.long
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
