"""The streams of a run are applied at the same time, and are interrupted together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import chronolake
from chronolake import env
from chronolake.config import Project
from chronolake.lake import Lake
from chronolake.pipeline.events import Event, EventKind
from chronolake.pipeline.sync import sync
from support.commands import run_words
from support.datalakes import DataLake, iceberg, project

_OBJECTS = tuple(f"Object{number}" for number in range(6))


@pytest.fixture
def source(tmp_path: Path) -> DataLake:
    return DataLake(tmp_path / "source")


@pytest.fixture
def crm(tmp_path: Path, source: DataLake) -> Project:
    for name in _OBJECTS:
        source.write(name, [{"Id": "1", "source__modified": 1, "grax__idseq": "1", "Name": name}])
    return project(tmp_path, "  crm:\n    source: {type: data_lake_v2, path: source, org: X}\n")


def _names(crm: Project) -> dict[str, list[str]]:
    """Return the names in each table, read by PyIceberg."""
    return {
        name: iceberg(crm, "crm", name).scan().to_arrow()["Name"].to_pylist() for name in _OBJECTS
    }


def test_a_bad_stream_does_not_affect_those_applied_at_the_same_time(crm: Project) -> None:
    (bad,) = (crm.file.parent / "source").rglob(f"*{_OBJECTS[2]}*/**/*.parquet")
    content = bad.read_bytes()
    bad.write_bytes(content[:-1])

    result = chronolake.sync("crm", project=crm.file.parent)
    bad.write_bytes(content)
    again = chronolake.sync("crm", project=crm.file.parent)

    assert [stream.stream for stream in result.streams] == list(_OBJECTS)
    assert [stream.status for stream in result.streams].index("failed") == 2
    assert result.status == "partial"
    assert again.status == "succeeded"
    assert _names(crm) == {name: [name] for name in _OBJECTS}


@pytest.mark.long
def test_a_table_that_cannot_be_read_does_not_stop_the_others(
    crm: Project, source: DataLake
) -> None:
    chronolake.sync("crm", project=crm.file.parent)
    for name in _OBJECTS:
        source.write(name, [{"Id": "1", "source__modified": 2, "grax__idseq": "2", "Name": "new"}])
    metadata = Path(iceberg(crm, "crm", _OBJECTS[2]).metadata_location.removeprefix("file:"))
    content = metadata.read_bytes()
    metadata.write_bytes(content[:100])

    result = chronolake.sync("crm", project=crm.file.parent)
    metadata.write_bytes(content)
    again = chronolake.sync("crm", project=crm.file.parent)

    assert [s.stream for s in result.streams if s.status == "failed"] == [_OBJECTS[2]]
    assert result.status == "partial"
    assert again.status == "succeeded"
    assert {name: set(names) for name, names in _names(crm).items()} == {
        name: {name, "new"} for name in _OBJECTS
    }


@pytest.mark.long
def test_a_table_dropped_while_files_are_applied_gets_all_rows_again(crm: Project) -> None:
    chronolake.sync("crm", project=crm.file.parent)
    source = DataLake(crm.file.parent / "source", files=len(_OBJECTS))
    for name in _OBJECTS:
        source.write(name, [{"Id": "2", "source__modified": 2, "grax__idseq": "2", "Name": "new"}])

    def drop(event: Event) -> None:
        stream = event.stream
        if event.kind is EventKind.APPLYING and stream and stream.stream == _OBJECTS[2]:
            iceberg(crm, "crm", _OBJECTS[2]).catalog.drop_table(("crm", _OBJECTS[2]))

    with Lake.prepare(crm.lake) as lake:
        result = sync(lake, crm, "crm", watch=drop)
    again = chronolake.sync("crm", project=crm.file.parent)

    assert [stream.status for stream in result.streams].index("failed") == 2
    assert again.status == "succeeded"
    assert {name: sorted(names) for name, names in _names(crm).items()} == {
        name: [name, "new"] for name in _OBJECTS
    }


@pytest.mark.long
def test_an_interruption_ends_all_streams_that_are_applied(
    crm: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    with _paused(crm.file.parent, "publish.before-commit") as (running, events):
        # The second one begins although the first one waits before its commit.
        applying = [next(e for e in events if e["event"] == "applying") for _ in range(2)]
        running.send_signal(signal.SIGINT)
    code, reported, _ = run_words(capsys, "runs", "--json", "--project", str(crm.file.parent))
    (run,) = json.loads(reported)
    again = chronolake.sync("crm", project=crm.file.parent)

    assert len({event["table"] for event in applying}) == 2
    assert running.returncode == 130
    assert code == 0
    assert (run["status"], run["error"]) == ("failed", "The run was interrupted.")
    assert {stream["error"] for stream in run["streams"]} == {run["error"]}
    assert again.status == "succeeded"
    assert _names(crm) == {name: [name] for name in _OBJECTS}


@contextmanager
def _paused(
    folder: Path, failpoint: str
) -> Iterator[tuple[subprocess.Popen[str], Iterator[dict[str, Any]]]]:
    """Run a sync whose streams wait at a failpoint until the block ends; yield its events, too."""
    pause = folder / "pause"
    pause.touch()
    running = subprocess.Popen(
        [sys.executable, "-m", "chronolake", "sync", "--json", "--project", str(folder)],
        env={**os.environ, env.FAILPOINT: f"{failpoint}=pause", env.FAILPOINT_FILE: str(pause)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert running.stdout is not None
        yield running, map(json.loads, running.stdout)
        pause.unlink()
        running.communicate(timeout=120)
    finally:
        running.kill()
        running.wait()
