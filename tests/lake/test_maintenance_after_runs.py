"""A run maintains the files of tables that pipelines fill, when they need it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import structlog
from pyiceberg.table import Table

from chronolake.pipeline.lease import hold_lease
from chronolake.pipeline.rebuild import differences
from chronolake.pipeline.store import Status, Store
from chronolake.pipeline.streams import streams_of
from chronolake.pipeline.sync import EventKind
from support.datalakes import iceberg
from support.lake.pipelines import Pipeline

HIDDEN = "chronolake-hidden"
SMALL_FILES = 4
RUNS = 9
DAY = 86_400_000_000


def _row(key: int, at: int, name: str, **fields: Any) -> dict[str, Any]:
    reported = {"Id": f"{key:02}", "source__modified": at, "grax__idseq": "1"}
    return {**reported, "Name": name, **fields}


@pytest.fixture
def _threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHRONOLAKE_MAINTENANCE_SMALL_FILES", str(SMALL_FILES))


def _files(table: Table, branch: str) -> int:
    snapshot = table.metadata.refs[branch].snapshot_id
    return len(list(table.scan(snapshot_id=snapshot).plan_files()))


@pytest.mark.long
@pytest.mark.usefixtures("_threshold")
@pytest.mark.parametrize("mode", ["live", "history"])
def test_a_run_puts_a_table_in_order(tmp_path: Path, mode: str) -> None:
    pipeline = Pipeline(tmp_path, f"    mode: {mode}\n")
    most = {"main": 0, HIDDEN: 0}
    maintained = 0
    for run in range(RUNS):
        written = [_row(run, run * DAY, f"of {run}")]
        if run:
            # The record of the previous run is deleted: a live table keeps a tombstone for it.
            written.append(_row(run - 1, run * DAY, "gone", grax__deleted=run * DAY))
        pipeline.source.write("Account", written)
        kinds: list[EventKind] = []
        result = pipeline.sync(watch=lambda event, kinds=kinds: kinds.append(event.kind))
        assert result.status is Status.SUCCEEDED
        assert kinds[-1] is EventKind.RUN_ENDED
        maintained += EventKind.MAINTAINING in kinds
        table = iceberg(pipeline.project, "crm", "Account")
        most = {branch: max(most[branch], _files(table, branch)) for branch in most}

    assert 0 < maintained < RUNS
    assert 1 < most["main"] <= SMALL_FILES + 2
    assert most[HIDDEN] <= SMALL_FILES + 2
    if mode == "live":
        assert most[HIDDEN] > 1, "each run left a file of hidden rows"
        assert [row["Name"] for row in pipeline.rows()] == [f"of {RUNS - 1}"]
    else:
        assert sum(active for *_, active in pipeline.versions()) == 1
    (stream,) = streams_of(pipeline.project, "crm")
    with hold_lease(Store.open(pipeline.project.lake), "crm") as lease:
        assert differences(pipeline.lake, stream, lease).count == 0

    # A deleted record's late version stays invisible: compacted tombstones are still known.
    pipeline.source.write("Account", [_row(0, DAY // 2, "late")])
    pipeline.done()
    if mode == "live":
        assert [row["Name"] for row in pipeline.rows()] == [f"of {RUNS - 1}"]


@pytest.mark.long
@pytest.mark.usefixtures("_threshold")
def test_a_run_does_not_fail_by_it(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    for run in range(SMALL_FILES):
        pipeline.source.write("Account", [_row(run, run * DAY, "a")])
        pipeline.done()
    table = iceberg(pipeline.project, "crm", "Account")
    first = next(task.file.file_path for task in table.scan("Id == '00'").plan_files())
    Path(first.removeprefix("file:")).unlink()
    pipeline.source.write("Account", [_row(90, 0, "b")])
    with structlog.testing.capture_logs() as logged:
        pipeline.done()
    (reported,) = [line for line in logged if line["event"] == "not_maintained"]
    assert reported["table"] == "crm.Account"
    assert Path(first).name in reported["reason"]


@pytest.mark.long
@pytest.mark.usefixtures("_threshold")
def test_it_can_be_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHRONOLAKE_MAINTENANCE_AUTOMATIC", "false")
    pipeline = Pipeline(tmp_path)
    for run in range(SMALL_FILES + 1):
        pipeline.source.write("Account", [_row(run, run * DAY, "a")])
        pipeline.done()
    table = iceberg(pipeline.project, "crm", "Account")
    assert _files(table, "main") == SMALL_FILES + 1
