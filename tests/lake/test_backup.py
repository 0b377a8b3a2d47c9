"""The commands of docs/operations.md back up a project and restore it in another folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chronolake.config import load_project
from chronolake.types import ACTIVE
from support.datalakes import DataLake, iceberg

_PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
_DAY = 86_400_000_000
_PROJECT = """\
pipelines:
  crm:
    source: {type: data_lake_v2, path: source, org: X}
    mode: history
"""


def _row(key: int, at: int, name: str, **fields: Any) -> dict[str, Any]:
    reported = {"Id": f"{key:02}", "source__modified": at, "grax__idseq": "1"}
    return {**reported, "Name": name, **fields}


def _run_block(name: str, folder: Path) -> str:
    """Run the commands of a block of the page as they are written."""
    found = re.search(rf"<!-- test: {name} -->\n```console\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    assert found is not None
    commands = [line.removeprefix("$ ") for line in found[1].splitlines()]
    assert all(line.startswith("$ ") for line in found[1].splitlines())
    done = subprocess.run(
        ["bash", "-euxc", "\n".join(commands)],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "CHRONOLAKE_SPARK_MASTER": "local[2]",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_a_backup_is_restored_in_another_folder(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "chronolake.yml").write_text(_PROJECT)
    source = DataLake(shop / "source")
    source.write("Account", [_row(key, 0, "a") for key in range(9)])
    source.write("Account", [_row(1, _DAY, "b"), _row(2, _DAY, "", grax__deleted=_DAY)])
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "chronolake", "sync", "crm", "--project", str(shop)],
            env={**os.environ, "CHRONOLAKE_SPARK_MASTER": "local[2]"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    _run_block("backup", tmp_path)
    shutil.rmtree(shop)
    out = _run_block("restore", tmp_path)

    assert "Would adopt 1 table, from" in out
    project = load_project(tmp_path / "restored" / "chronolake.yml")
    table = iceberg(project, "crm", "Account")
    assert table.location().startswith(f"file://{tmp_path}/restored/")
    rows = table.scan().to_arrow().to_pylist()
    assert sorted((row["Id"], row["Name"]) for row in rows if row[ACTIVE]) == [
        ("00", "a"),
        ("01", "b"),
        *((f"{key:02}", "a") for key in range(3, 9)),
    ]
