"""The example source of `docs/source-protocol.md` behaves as the page describes."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import change_log_source
import pytest
from change_log_source import ChangeLogSource, create
from structlog.testing import capture_logs

from chronolake.config import load_project
from chronolake.lake import Lake
from chronolake.pipeline.store import Status, Store, StreamRun
from chronolake.pipeline.sync import sync
from chronolake.source.protocol import ChangeSource, Source
from chronolake.types import ACTIVE, END, START
from support.datalakes import iceberg, project

_PIPELINE = "  crm:\n    source: {type: data_lake_v2, path: none, org: none}\n"


class Crm:
    """The database of the example, and the pipeline `crm` that reads it."""

    def __init__(self, folder: Path) -> None:
        self.database = folder / "customers.db"
        create(self.database)
        self.project = project(folder, _PIPELINE)
        self.source = ChangeLogSource(self.project, "crm", self.database)
        self.lake = Lake.open(self.project.lake.path, config=self.project.lake)

    def run(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.database)) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    def sync(self, *, full_refresh: bool = False) -> StreamRun:
        (stream,) = sync(
            self.lake, self.project, "crm", source=self.source, full_refresh=full_refresh
        ).streams
        return stream

    def log_length(self) -> int:
        with closing(sqlite3.connect(self.database)) as connection:
            (number,) = connection.execute("SELECT count(*) FROM changes").fetchone()
        return int(number)

    def versions(self) -> list[tuple[Any, ...]]:
        """Return key, name, city and activity of all versions, by key and start."""
        rows = iceberg(self.project, "crm", "customers").scan().to_arrow().to_pylist()
        rows.sort(key=lambda row: (row["id"], row[START]))
        for before, after in pairwise(rows):
            if before["id"] == after["id"]:
                assert before[END] < after[START], "versions of a record do not overlap"
        return [(row["id"], row["name"], row["city"], row[ACTIVE]) for row in rows]


@pytest.fixture
def crm(tmp_path: Path) -> Crm:
    return Crm(tmp_path)


def test_the_example_implements_the_protocol(crm: Crm) -> None:
    source: Source = crm.source
    assert isinstance(source, ChangeSource)
    (stream,) = source.discover()
    assert stream.is_ours


def test_a_source_without_streams_is_a_warning(crm: Crm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChangeLogSource, "discover", lambda _: [])
    with capture_logs() as logged:
        result = sync(crm.lake, crm.project, "crm", source=crm.source)
    assert (result.status, result.streams) == (Status.SUCCEEDED, ())
    assert "pipeline_without_streams" in {event["event"] for event in logged}


@pytest.mark.long
def test_the_example_survives_a_crash_between_landing_and_checkpoint(
    crm: Crm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_log_source, "BATCH_ROWS", 2)
    assert crm.sync().error is None
    first = [(1, "Ada", "London", True), (2, "Grace", "New York", True)]
    assert crm.versions() == [*first, (3, "Edsger", "Rotterdam", True)]
    assert crm.log_length() == 0, "changes before the snapshot were acknowledged"

    crm.run(
        "UPDATE customers SET city = 'Nuenen' WHERE id = 3",
        "UPDATE customers SET city = 'Austin' WHERE id = 3",
        "DELETE FROM customers WHERE id = 2",
        "UPDATE customers SET id = 4 WHERE id = 1",
    )
    with monkeypatch.context() as patched:
        patched.setenv("CHRONOLAKE_FAILPOINT", "land.done=raise")
        assert crm.sync().error is not None
    assert crm.log_length() == 5, "nothing was acknowledged"
    assert crm.sync().error is None
    after = [
        (1, "Ada", "London", False),
        (2, "Grace", "New York", False),
        (3, "Edsger", "Rotterdam", False),
        (3, "Edsger", "Nuenen", False),
        (3, "Edsger", "Austin", True),
        (4, "Ada", "London", True),
    ]
    assert crm.versions() == after
    assert crm.log_length() == 0
    offset = Store.open(crm.project.lake).checkpoints("crm")["customers"]
    assert json.loads(json.dumps(offset)) == offset
    assert offset["number"] == 8

    assert crm.sync().error is None
    assert crm.versions() == after


def test_a_full_refresh_of_the_example_reads_pending_changes_first(crm: Crm) -> None:
    assert crm.sync().error is None
    crm.run(
        "UPDATE customers SET city = 'Paris' WHERE id = 1",
        "UPDATE customers SET city = 'Rome' WHERE id = 1",
        # The log does not contain this change.
        "DROP TRIGGER updated",
        "UPDATE customers SET city = 'Boston' WHERE id = 2",
    )
    assert crm.sync(full_refresh=True).error is None
    assert crm.versions() == [
        (1, "Ada", "London", False),
        (1, "Ada", "Paris", False),
        (1, "Ada", "Rome", True),
        (2, "Grace", "New York", False),
        (2, "Grace", "Boston", True),
        (3, "Edsger", "Rotterdam", True),
    ]


def test_an_unreadable_database_fails_its_stream_with_a_hint(crm: Crm, tmp_path: Path) -> None:
    crm.source = replace(crm.source, database=tmp_path / "missing.db")
    stream = crm.sync()
    assert "missing.db cannot be read" in str(stream.error)
    assert "Check the path" in str(stream.hint)


def test_the_program_of_the_example_runs(
    crm: Crm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load_project(tmp_path / "chronolake.yml").pipelines.keys() == {"crm"}
    assert change_log_source.main("create", tmp_path / "other.db") == 0
    assert change_log_source.main("sync", crm.database, tmp_path) == 0
    assert "customers" in capsys.readouterr().out
    assert len(crm.versions()) == 3
