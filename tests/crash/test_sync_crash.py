"""A sync is killed at every step and run again: nothing is lost, and nothing is duplicated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyiceberg.exceptions import NoSuchTableError

from chronolake.failpoints import FAILPOINTS
from chronolake.types import ACTIVE, END, START
from support import pipeline_model
from support.datalakes import DataLake, file_row, iceberg, project
from support.pipeline_model import LandedRow
from support.processes import COMMAND, KILLED, run_command

_T: Final = 1_767_225_600_000_000
_SECOND: Final = 1_000_000
_REBUILDING: Final = ("rewrite.written", "rewrite.before-commit", "rewrite.after-commit")
_IN_PLACE: Final = tuple(
    name
    for name in FAILPOINTS
    if not name.startswith(
        ("create.", "rewrite.", "land.", "read.", "adopt.", "copy.", "target.", "switch.")
    )
)
_FIRST: Final = [
    LandedRow("a", _T, "1", (1, 0), fields={"Name": "a1"}),
    LandedRow("a", _T + 5 * _SECOND, "2", (1, 1), fields={"Name": "a2"}),
    LandedRow("b", _T, "1", (1, 2), fields={"Name": "b1"}),
    LandedRow("c", _T, "1", (1, 3), fields={"Name": "c1"}),
    LandedRow("c", _T, "2", (1, 4), purged=_T + 9 * _SECOND),
]
_SECOND_FILE: Final = [
    # Late, deleted, back again, purged, closed by an earlier purge.
    LandedRow("a", _T + 2 * _SECOND, "3", (2, 0), fields={"Name": "late"}),
    LandedRow("b", _T, "2", (2, 1), deleted=_T + 3 * _SECOND, fields={"Name": "b1"}),
    LandedRow("b", _T + 8 * _SECOND, "3", (2, 2), fields={"Name": "back"}),
    LandedRow("c", _T + 4 * _SECOND, "3", (2, 3), fields={"Name": "closed"}),
    LandedRow("d", _T, "1", (2, 4), purged=_T + _SECOND),
]


class Synced:
    """A project whose syncs run in processes of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = DataLake(folder / "source")
        source = "  crm:\n    source: {type: data_lake_v2, path: source, org: X}\n"
        self.project = project(folder, source)

    def write(self, rows: list[LandedRow], **more: Any) -> None:
        self.source.write("Account", [file_row(row, **row.fields, **more) for row in rows])

    def run(self, *words: str, failpoint: str = "") -> int:
        code, self.output = run_command(*words, "--project", str(self.folder), failpoint=failpoint)
        return code

    def versions(self) -> list[tuple[Any, ...]] | None:
        try:
            found = iceberg(self.project, "crm", "Account").scan().to_arrow()
        except NoSuchTableError:
            return None
        for column in (START, END):
            place = found.column_names.index(column)
            found = found.set_column(place, column, found[column].cast(pa.int64()))
        names = ("Id", START, END, ACTIVE, "Name")
        return sorted(tuple(row[name] for name in names) for row in found.to_pylist())


def _model(*parts: list[LandedRow]) -> list[tuple[Any, ...]]:
    rows = [row for part in parts for row in part]
    return sorted(
        (version.key, version.start, version.end, version.active, version.fields.get("Name"))
        for version in pipeline_model.versions(rows, 1_000)
    )


def _killed(synced: Synced, point: str, *words: str) -> None:
    code = synced.run(*words, failpoint=f"{point}=kill")
    assert code == KILLED, f"{point}: {synced.output}"


@pytest.mark.parametrize(
    "point",
    [
        name if name == "staged.appended" else pytest.param(name, marks=pytest.mark.long)
        for name in _IN_PLACE
    ],
)
def test_a_sync_may_be_killed_at_every_step(tmp_path: Path, point: str) -> None:
    synced = Synced(tmp_path)
    synced.write(_FIRST)
    assert synced.run("sync", "crm") == 0, synced.output
    synced.write(_SECOND_FILE)

    _killed(synced, point, "sync", "crm")

    done = point == "publish.after-commit"
    old, new = _model(_FIRST), _model(_FIRST, _SECOND_FILE)
    assert synced.versions() == (new if done else old)
    assert synced.run("sync", "crm") == 0, synced.output
    assert synced.versions() == new
    table = iceberg(synced.project, "crm", "Account")
    assert set(table.metadata.refs) == {"main", "chronolake-hidden"}


@pytest.mark.parametrize(
    "point",
    [
        name if name == "staged.appended" else pytest.param(name, marks=pytest.mark.long)
        for name in ("create.committed", *_IN_PLACE)
        if name != "staged.deleted"
    ],
)
def test_the_first_sync_may_be_killed_at_every_step(tmp_path: Path, point: str) -> None:
    synced = Synced(tmp_path)
    synced.write(_FIRST)

    _killed(synced, point, "sync", "crm")

    must = {"publish.after-commit": [_model(_FIRST)]}.get(point, [None, []])
    assert synced.versions() in must
    assert synced.run("sync", "crm") == 0, synced.output
    assert synced.versions() == _model(_FIRST)


@pytest.mark.long
@pytest.mark.parametrize("point", [*_REBUILDING[1:], "staged.appended", "publish.before-commit"])
def test_a_rebuild_may_be_killed_at_every_step(tmp_path: Path, point: str) -> None:
    synced = Synced(tmp_path)
    synced.write(_FIRST)
    synced.write(_SECOND_FILE)
    assert synced.run("sync", "crm") == 0, synced.output
    whole = _model(_FIRST, _SECOND_FILE)
    before = iceberg(synced.project, "crm", "Account").metadata.current_snapshot_id

    _killed(synced, point, "rebuild", "crm.Account")

    assert synced.versions() == whole
    now = iceberg(synced.project, "crm", "Account").metadata.current_snapshot_id
    assert (now != before) == (point == "rewrite.after-commit")
    assert synced.run("rebuild", "crm.Account") == 0, synced.output
    assert synced.versions() == whole
    assert iceberg(synced.project, "crm", "Account").metadata.current_snapshot_id != before
    late = [LandedRow("a", _T + 3 * _SECOND, "9", (3, 0), fields={"Name": "after"})]
    synced.write(late)
    assert synced.run("sync", "crm") == 0, synced.output
    assert synced.versions() == _model(_FIRST, _SECOND_FILE, late)


@pytest.mark.long
def test_a_paused_process_that_wakes_cannot_write(tmp_path: Path) -> None:
    """A paused process whose lease has passed to another one cannot publish its staged write."""
    synced = Synced(tmp_path)
    synced.write(_FIRST)
    assert synced.run("sync", "crm") == 0, synced.output
    synced.write(_SECOND_FILE)
    paused = tmp_path / "paused"
    paused.touch()
    sleeper = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "sync", "crm", "--project", str(tmp_path)],
        env={
            **os.environ,
            "CHRONOLAKE_FAILPOINT": "publish.before-commit=pause",
            "CHRONOLAKE_FAILPOINT_FILE": str(paused),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        while not paused.with_suffix(".reached").exists():
            assert sleeper.poll() is None
        # A process that is stopped completely does not renew its lease.
        os.kill(sleeper.pid, signal.SIGSTOP)
        while synced.run("sync", "crm") != 0:
            assert "is run by" in synced.output
        assert synced.versions() == _model(_FIRST, _SECOND_FILE)
        before = iceberg(synced.project, "crm", "Account").metadata.current_snapshot_id
        paused.unlink()
        os.kill(sleeper.pid, signal.SIGCONT)
        reported, _ = sleeper.communicate(timeout=120)
    finally:
        if sleeper.poll() is None:
            sleeper.kill()

    assert sleeper.returncode == 1, reported
    assert "Another process has taken over the pipeline crm" in reported
    after = iceberg(synced.project, "crm", "Account").metadata
    assert after.current_snapshot_id == before
    assert synced.versions() == _model(_FIRST, _SECOND_FILE)
