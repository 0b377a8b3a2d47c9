"""Landing is killed at every step, and done again: files are whole, and every version is there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
import pytest

from chronolake.failpoints import FAILPOINTS
from chronolake.rawlake import ObjectFolder

_ROWS: Final = 400
_PARTS: Final = 4
#: Lands some rows in as many files as there are partitions; the arguments are the lake's root, the
#: name of the versions, and the failpoint that is set once Spark runs.
_PROGRAM: Final = f"""
import os, sys
from pathlib import Path
from chronolake.lake import Lake
from chronolake.rawlake import ObjectFolder
from chronolake.rawlake.writing import land
from chronolake.types import Column, ColumnType, Kind
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
from lakes import lake_config

root, name, failpoint = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
lake = Lake.open(root / "lake", config=lake_config(root / "lake"))
rows = lake.spark.range(0, {_ROWS}, 1, {_PARTS}).selectExpr(
    "id", f"'{{name}}' AS name", "id AS __chronolake_modified", "'1' AS __chronolake_sequence",
    "CAST(NULL AS BIGINT) AS __chronolake_deleted_at",
    "CAST(NULL AS BIGINT) AS __chronolake_purged_at")
columns = [Column("id", ColumnType(Kind.LONG), True), Column("name", ColumnType(Kind.STRING))]
os.environ["CHRONOLAKE_FAILPOINT"] = failpoint
land(rows, columns, ObjectFolder(root / "raw", "shop", "orders"), guard=lambda: None)
"""


def _land(root: Path, name: str, failpoint: str = "") -> int:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(root), name, failpoint],
        env={**os.environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode in {0, -signal.SIGKILL}, done.stderr
    return done.returncode


def _found(folder: ObjectFolder) -> list[tuple[str, int]]:
    """What the files hold: name and number of every row, file by file."""
    return [
        (row["name"], int(row["Id"]))
        for file in folder.files()
        for row in pq.read_table(file.path, partitioning=None).to_pylist()
    ]


@pytest.mark.parametrize(
    ("failpoint", "appeared"),
    [
        ("land.file-published=kill:2", 2),
        pytest.param("land.staged=kill", 0, marks=pytest.mark.long),
        *(
            pytest.param(f"land.file-published=kill:{nth}", nth, marks=pytest.mark.long)
            for nth in (1, 3, _PARTS)
        ),
    ],
)
def test_landing_may_be_killed_at_every_step(tmp_path: Path, failpoint: str, appeared: int) -> None:
    folder = ObjectFolder(tmp_path / "raw", "shop", "orders")
    assert _land(tmp_path, "first") == 0
    before = [file.mark for file in folder.files()]
    assert len(before) == _PARTS

    assert _land(tmp_path, "second", failpoint) == -signal.SIGKILL

    # The first ones of the new files are there, after the old ones, and each of them is whole.
    marks = [file.mark for file in folder.files()]
    assert marks[:_PARTS] == before
    assert len(marks) == _PARTS + appeared
    part = _ROWS // _PARTS
    numbers = [number for name, number in _found(folder) if name == "second"]
    assert numbers == list(range(appeared * part))

    assert _land(tmp_path, "second") == 0
    assert [file.mark for file in folder.files()][: len(marks)] == marks
    found = _found(folder)
    assert set(found) == {(name, n) for name in ("first", "second") for n in range(_ROWS)}
    assert len(found) == 2 * _ROWS + appeared * part
    left = {path.name for path in folder.path.iterdir()}
    assert {name for name in left if not name.startswith("batch=")} == {"_lock", "_staging"}
    assert list((folder.path / "_staging").iterdir()) == []


def test_every_step_of_landing_is_tested() -> None:
    steps = {name for name in FAILPOINTS if name.startswith("land.")}
    assert steps == {"land.staged", "land.file-published"}
