"""Landing is killed at every step and repeated: files are whole, and every version is there."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
import pytest

from chronolake.failpoints import FAILPOINTS
from chronolake.landing import ObjectFolder
from support.processes import run_program, run_until_failpoint

_ROWS: Final = 400
_PARTS: Final = 4
#: A program that lands rows in one file for each partition; its arguments are the lake's root and
#: the name of the versions.
_PROGRAM: Final = f"""
import sys
from pathlib import Path
from chronolake.lake import Lake
from chronolake.landing import ObjectFolder
from chronolake.landing.writer import land
from chronolake.types import Column, ColumnType, Kind
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
from support.lakes import lake_config

root, name = Path(sys.argv[1]), sys.argv[2]
lake = Lake.open(root / "lake", config=lake_config(root / "lake"))
rows = lake.spark.range(0, {_ROWS}, 1, {_PARTS}).selectExpr(
    "id", f"'{{name}}' AS name", "id AS __chronolake_modified", "'1' AS __chronolake_sequence",
    "CAST(NULL AS BIGINT) AS __chronolake_deleted_at",
    "CAST(NULL AS BIGINT) AS __chronolake_purged_at")
columns = [Column("id", ColumnType(Kind.LONG), True), Column("name", ColumnType(Kind.STRING))]
land(rows, columns, ObjectFolder(root / "raw", "shop", "orders"), guard=lambda: None)
"""


def _found(folder: ObjectFolder) -> list[tuple[str, int]]:
    """Return the content of the files: name and number of every row, file by file."""
    return [
        (row["name"], int(row["Id"]))
        for file in folder.files()
        for row in pq.read_table(file.path, partitioning=None).to_pylist()
    ]


@pytest.mark.parametrize(
    ("failpoint", "appeared"),
    [
        pytest.param("land.file-published=kill:2", 2, marks=pytest.mark.long),
        pytest.param("land.staged=kill", 0, marks=pytest.mark.long),
        *(
            pytest.param(f"land.file-published=kill:{nth}", nth, marks=pytest.mark.long)
            for nth in (1, 3, _PARTS)
        ),
    ],
)
def test_landing_may_be_killed_at_every_step(tmp_path: Path, failpoint: str, appeared: int) -> None:
    folder = ObjectFolder(tmp_path / "raw", "shop", "orders")
    assert run_program(_PROGRAM, str(tmp_path), "first")[0] == 0
    before = [file.mark for file in folder.files()]
    assert len(before) == _PARTS

    assert run_until_failpoint(_PROGRAM, str(tmp_path), "second", failpoint=failpoint)

    # The first of the new files are there, after the old ones, and each of them is whole.
    marks = [file.mark for file in folder.files()]
    assert marks[:_PARTS] == before
    assert len(marks) == _PARTS + appeared
    part = _ROWS // _PARTS
    numbers = [number for name, number in _found(folder) if name == "second"]
    assert numbers == list(range(appeared * part))

    assert run_program(_PROGRAM, str(tmp_path), "second")[0] == 0
    assert [file.mark for file in folder.files()][: len(marks)] == marks
    found = _found(folder)
    assert set(found) == {(name, n) for name in ("first", "second") for n in range(_ROWS)}
    assert len(found) == 2 * _ROWS + appeared * part
    left = {path.name for path in folder.path.iterdir()}
    assert {name for name in left if not name.startswith("batch=")} == {"_lock", "_staging"}
    assert list((folder.path / "_staging").iterdir()) == []


def test_every_step_of_landing_is_tested() -> None:
    steps = {name for name in FAILPOINTS if name.startswith("land.")}
    # The others are tested in `tests/lake/test_pulling.py`, `tests/lake/test_own_lake.py` and
    # `tests/crash/test_copies_crash.py`.
    of_a_run = {"land.done", "land.checkpointed", "land.file-replaced", "land.step-done"}
    assert steps == {"land.staged", "land.file-published", *of_a_run}
