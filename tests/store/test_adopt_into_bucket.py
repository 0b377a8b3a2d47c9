"""A lake moves from a folder into a bucket, and goes on there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chronolake.object_store import BucketPath
from support.datalakes import DataLake
from support.store.projects import CREDENTIALS, BucketProject, bucket_engine
from support.store.server import S3Server

_DAY = 86_400_000_000


def _row(key: int, at: int, name: str, **fields: Any) -> dict[str, Any]:
    reported = {"Id": f"{key:02}", "source__modified": at, "grax__idseq": "1"}
    return {**reported, "Name": name, **fields}


@pytest.fixture
def socket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with bucket_engine() as found:
        yield found


@pytest.mark.long
def test_a_lake_moves_into_a_bucket(
    tmp_path: Path, bucket: BucketPath, s3: S3Server, socket: str
) -> None:
    source = DataLake(tmp_path / "source")
    pipeline = {
        "mode": "history",
        "source": {"type": "data_lake_v2", "path": str(source.root), "org": "X"},
    }
    lake = tmp_path / "lake"
    project = BucketProject(tmp_path, str(lake), s3.port, {"crm": pipeline}, socket)
    source.write("Account", [_row(key, 0, "a") for key in range(9)])
    project.run("sync", "crm")
    source.write("Account", [_row(1, _DAY, "b"), _row(2, _DAY, "", grax__deleted=_DAY)])
    project.run("sync", "crm")
    statement = "SELECT Id, Name, _fivetran_active FROM crm.Account ORDER BY Id, _fivetran_start"
    before = project.query(statement)
    assert len(before) == 11

    tables = lake / "tables"
    for path in sorted(file for file in tables.rglob("*") if file.is_file()):
        name = path.relative_to(lake).as_posix()
        assert (bucket / f"lake/{name}").create(path.read_bytes())
    project.warehouse = f"{bucket}/lake"
    project.configure()
    tables.rename(tmp_path / "old tables")
    assert "adopt" in project.run("sync", "crm", code=1)

    shutil.copytree(lake, tmp_path / "backup")
    for point in ("adopt.table-written", "adopt.before-commit"):
        project.run("adopt", code=-9, failpoint=f"{point}=kill")
    *_, summary = map(json.loads, project.run("adopt", "--json").splitlines())
    assert summary["moved"] == {str(lake): f"{bucket}/lake"}
    assert project.query(statement) == before

    source.write("Account", [_row(1, 2 * _DAY, "c")])
    project.run("sync", "crm")
    assert [row["Name"] for row in project.query(statement) if row["Id"] == "01"] == ["a", "b", "c"]
    project.run("verify", "--all")
    project.run("maintain", "--compact-deletes")
    assert len(project.query(statement)) == 12

    # A catalog from an earlier time does not fit the tables of the bucket.
    for file in lake.glob("catalog.db*"):
        file.unlink()
    for file in (tmp_path / "backup").glob("catalog.db*"):
        shutil.copy(file, lake)
    reported = project.run("adopt", code=1)
    assert "copied at different times" in " ".join(reported.split())
