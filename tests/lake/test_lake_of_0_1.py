"""A lake of version 0.1 opens, syncs and verifies: later renames do not affect stored names.

The lake is packed in `tests/fixtures/lake-0.1`. Iceberg's metadata has absolute paths, so it is
unpacked where it was made; a lock keeps parallel test processes apart.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chronolake.config import Project, load_project
from chronolake.core import verify
from chronolake.lake import Lake
from chronolake.pipeline.store import Status
from chronolake.pipeline.sync import sync
from support.datalakes import DataLake, iceberg

FIXTURE = Path(__file__).parents[1] / "fixtures" / "lake-0.1"
HOME = Path("/tmp/chronolake-lake-0.1")  # noqa: S108 - recorded in the lake's metadata
EXPECTED = json.loads((FIXTURE / "expected.json").read_text())
_DAY = 86_400_000_000
_BEGIN = 1_767_225_600_000_000


def rows(project: Project, name: str) -> list[str]:
    schema, _, table = name.partition(".")
    found = iceberg(project, schema, table).scan().to_arrow().to_pylist()
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in found)


@pytest.fixture
def project() -> Iterator[Project]:
    with HOME.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(HOME, ignore_errors=True)
        HOME.mkdir(mode=0o700)
        with tarfile.open(FIXTURE / "lake.tar.xz") as packed:
            packed.extractall(HOME, filter="data")
        yield load_project(HOME / "chronolake.yml")
        shutil.rmtree(HOME, ignore_errors=True)


def test_a_lake_of_version_0_1_opens_syncs_and_verifies(project: Project) -> None:
    with Lake.open(project.lake.path, config=project.lake) as lake:
        assert sorted(map(str, lake.tables())) == sorted(EXPECTED)
        assert {name: rows(project, name) for name in EXPECTED} == EXPECTED
        # Nothing is new and nothing changes, so state and applied files are understood.
        assert sync(lake, project, "crm").status is Status.SUCCEEDED
        assert {name: rows(project, name) for name in EXPECTED} == EXPECTED
        source = DataLake(HOME / "source", files=100)
        source.write(
            "Account",
            [
                {
                    "Id": f"Account{number}",
                    "source__modified": _BEGIN + 9 * _DAY,
                    "grax__idseq": f"Account{number}-9",
                    "City": "Added",
                }
                for number in (1, 20)
            ],
        )
        assert sync(lake, project, "crm").status is Status.SUCCEEDED
        changed = {name for name in EXPECTED if rows(project, name) != EXPECTED[name]}
        assert changed == {"crm.accounts"}
        for name in lake.tables():
            assert verify(lake, name).holds, name
