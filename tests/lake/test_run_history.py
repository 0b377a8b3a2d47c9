"""The web UI's view of runs: another process reads them, while they run and afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from test_pulling import Shop, _changes

from chronolake.config import sources_of_project
from chronolake.inspect.catalog import look_up_all
from chronolake.pipeline import run_history
from chronolake.pipeline.events import Event, EventKind
from chronolake.pipeline.freshness import Freshness, StreamProperties, WaitingFiles, freshness
from chronolake.pipeline.runs import Stage, Status
from support.commands import run_words
from support.datalakes import project
from support.declarative.apis import Api, ReceivedRequest
from support.lake.changelog import STREAM
from support.lake.pipelines import Pipeline
from support.processes import run_command_until_failpoint
from support.source.apishop import ApiShop

_T = 1_767_225_600_000_000
#: A program that reads the newest run of a lake, and prints which modules it imported.
_LOOKING = """
import json, sys
from pathlib import Path
from chronolake.config import load
from chronolake.pipeline.run_history import runs
run = runs(load(Path(sys.argv[1]))).runs[0]
heavy = ("pyspark", "chronolake.lake", "chronolake.core", "chronolake.session")
print(json.dumps({
    "status": run.run.status, "fraction": run.fraction, "seconds": run.seconds,
    "streams": {one.record.stream: {**vars(one.record), "fraction": one.fraction}
                for one in run.streams},
    "heavy": [name for name in heavy if name in sys.modules],
}))
"""


def _row(key: int, at: int) -> dict[str, Any]:
    return {"Id": f"{key}", "source__modified": _T + at, "grax__idseq": "1", "Name": f"n{at}"}


def _looked(folder: Path) -> dict[str, Any]:
    """Return another process's view of a lake's newest run."""
    command = [sys.executable, "-c", _LOOKING, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found: dict[str, Any] = json.loads(done.stdout)
    assert found.pop("heavy") == []
    return found


def _tables(pipeline: Pipeline) -> dict[str, Freshness]:
    config = pipeline.project.lake
    found = freshness(config, map(StreamProperties.of, look_up_all(config)))
    return {str(name): fresh for name, fresh in found.items()}


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """Return a pipeline that has run once: each test runs it again, in any order of the tests."""
    found = Pipeline(tmp_path_factory.mktemp("observed"))
    for stream in ("Account", "Contact"):
        found.source.write(stream, [_row(key, 0) for key in range(10)])
    found.done()
    return found


@pytest.mark.long
def test_another_process_sees_how_far_a_sync_is(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    for number in range(4):
        pipeline.source.write("Account", [_row(key, number) for key in range(100)])
    pipeline.source.write("Contact", [_row(key, 0) for key in range(10)])
    seen: list[dict[str, Any]] = []

    def look(event: Event) -> None:
        if event.kind is EventKind.PUBLISHED and event.stream and event.stream.stream == "Account":
            # An event right after another one is recorded within a second.
            time.sleep(1.5)
            seen.append(_looked(pipeline.project.lake.path))

    result = pipeline.sync(watch=look, step_bytes=1)

    assert result.status is Status.SUCCEEDED
    assert len(seen) == 4
    assert {run["status"] for run in seen} == {"running"}
    accounts = [run["streams"]["Account"] for run in seen]
    assert [account["files_left"] for account in accounts] == [3, 2, 1, 0]
    assert [account["rows"] for account in accounts] == [100, 200, 300, 400]
    assert [account["stage"] for account in accounts] == ["applying"] * 4
    parts = [account["fraction"] for account in accounts]
    assert 0 < parts[0] < parts[1] < parts[2] < parts[3] == 1
    # Contact is applied at the same time.
    for run in seen:
        fractions = [stream["fraction"] or 0 for stream in run["streams"].values()]
        assert run["fraction"] == sum(fractions) / 2


def test_what_became_of_a_run_is_kept(pipeline: Pipeline) -> None:
    config = pipeline.project.lake
    before = run_history.runs(config).runs[0]
    pipeline.source.write("Account", [_row(key, 7) for key in range(100, 150)])
    (waiting,) = (
        table.waiting for table in _tables(pipeline).values() if table.stream == "Account"
    )
    assert waiting is not None
    assert waiting == WaitingFiles(1, waiting.bytes)
    assert waiting.bytes > 0

    pipeline.done()

    found = run_history.runs(config).runs[0]
    assert found == run_history.run(config, found.run.id)
    account, contact = found.streams
    assert (account.record.rows_read, account.record.landed_rows, account.record.written) == (
        50,
        None,
        50,
    )
    (change,) = account.changes
    assert (change.path, change.before) == ("applied", before.streams[0].record.position)
    assert change.after == account.record.position
    assert contact.changes == ()
    assert (account.fraction, found.fraction) == (1, 1)
    assert found.seconds is not None
    assert 0 < found.seconds < 300
    assert (found.sum("written"), found.sum("landed_rows")) == (50, None)
    table = _tables(pipeline)["crm.Account"]
    assert (table.pipeline, table.stream, table.stream_properties.capture_method) == (
        "crm",
        "Account",
        "observed-changes",
    )
    assert (table.fresh_as_of, table.waiting) == (found.run.began, WaitingFiles(0, 0))
    assert table.behind_seconds is not None
    assert 0 <= table.behind_seconds < 300
    (known,) = run_history.pipelines(config, sources_of_project(pipeline.project.file))
    assert (known.name, known.source, known.last) == (
        "crm",
        "data_lake_v2",
        run_history.summaries(config).runs[0],
    )


def test_a_stream_that_fails_has_a_hint(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    config = pipeline.project.lake
    fresh = _tables(pipeline)["crm.Contact"].fresh_as_of
    broken = pipeline.source.write("Contact", [_row(1, 9)])
    broken.write_bytes(b"PAR1 is not enough")

    failed = pipeline.sync()

    assert failed.status is Status.PARTIAL
    (contact,) = [
        stream for stream in run_history.runs(config).runs[0].streams if stream.record.error
    ]
    assert str(broken) in (contact.record.error or "")
    assert contact.record.hint
    assert contact.record.hint not in (contact.record.error or "")
    table = _tables(pipeline)["crm.Contact"]
    assert (table.fresh_as_of, table.waiting) == (fresh, WaitingFiles(1, broken.stat().st_size))
    assert table.last is not None
    assert table.last.hint == contact.record.hint
    code, reported, _ = run_words(
        capsys, "runs", "--json", "--limit", "1", "--project", str(pipeline.folder)
    )
    (run,) = json.loads(reported)
    streams = {stream_run["stream"]: stream_run for stream_run in run["streams"]}
    assert (code, streams["Contact"]["hint"]) == (0, contact.record.hint)
    assert streams["Account"]["before"] == streams["Account"]["after"]
    broken.unlink()


def test_a_run_that_could_not_begin_is_kept_with_its_reason(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    root = pipeline.source.root / "parquet"
    root.rename(root.with_name("away"))
    code, _, reported = run_words(capsys, "sync", "--project", str(pipeline.folder))
    root.with_name("away").rename(root)

    assert code == 1
    found = run_history.runs(pipeline.project.lake).runs[0]
    assert (found.run.status, found.streams) == (Status.FAILED, ())
    assert "does not contain parquet/v2/org=X" in (found.run.error or "")
    assert found.run.hint == "Check `path` and `org` of the source in chronolake.yml."
    _, reported, _ = run_words(capsys, "runs", "--project", str(pipeline.folder))
    assert "does not contain parquet/v2/org=X" in " ".join(reported.split())


def test_an_interrupted_run_is_reported_as_interrupted(pipeline: Pipeline) -> None:
    pipeline.source.write("Account", [_row(1, 11)])

    def interrupt(event: Event) -> None:
        if event.kind is EventKind.PUBLISHED:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pipeline.sync("Account", watch=interrupt)

    found = run_history.runs(pipeline.project.lake).runs[0]
    (account,) = found.streams
    assert (found.run.status, account.record.status) == (Status.FAILED, Status.FAILED)
    assert found.run.error == account.record.error == "The run was interrupted."
    assert found.run.hint == "The next run continues from the offsets of its tables."
    assert account.record.rows == 1, "what is published stays"


def test_when_a_table_was_verified_is_known(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _tables(pipeline)["crm.Contact"].verified is None
    words = ("verify", "--all", "--lake", str(pipeline.project.lake.path))
    assert run_words(capsys, *words)[0] == 0
    found = _tables(pipeline)["crm.Contact"].verified
    assert found is not None
    assert (found.holds, found.rows, found.against_lake, found.broken) == (True, 10, False, None)


@pytest.mark.long
def test_landed_counts_and_state_of_a_stream_are_recorded(tmp_path: Path) -> None:
    there = Shop(tmp_path)
    there.log.append(list(_changes(1, 100)))
    there.sync()
    first = run_history.runs(there.project.lake).runs[0]
    there.log.append(list(_changes(2, 30, begin=100)))
    there.sync()
    second = run_history.runs(there.project.lake).runs[0]

    (one,), (two,) = first.streams, second.streams
    assert (one.record.rows_read, one.record.landed_rows, one.record.rows) == (100, 100, 100)
    assert [change.path for change in one.changes] == ["source.number", "applied"]
    assert two.record.landed_rows == two.record.rows_read == 30
    assert two.record.landed_files
    assert two.record.landed_bytes
    assert two.states[0]["source"] == {"number": 100}
    moved = two.changes[0]
    assert (moved.path, moved.before, moved.after) == ("source.number", 100, 130)

    def fail(_: int) -> None:
        raise OSError("the connection was lost")

    there.log.append(list(_changes(3, 10, begin=130)))
    there.log.before = fail
    assert there.sync().status is Status.FAILED
    (three,) = run_history.runs(there.project.lake).runs[0].streams
    assert (three.record.error, three.changes) == ("OSError: the connection was lost", ())
    assert three.record.stream == STREAM


@pytest.mark.long
def test_what_an_api_has_given_is_seen_while_it_is_read(tmp_path: Path) -> None:
    with Api() as api:
        shop = ApiShop(tmp_path, api)
        shop.configure("notes: {}", "live: {}", end="2026-03-01T00:00:00Z")
        shop.put(1)
        for team in range(40):
            shop.note(team, {"id": team, "updated_at": "2026-02-01T12:00:00Z"})
        seen: list[tuple[str, int | None]] = []
        others: set[str] = set()

        def slowly(asked: ReceivedRequest) -> bool:
            time.sleep(0.8)
            (run,) = run_history.runs(shop.project.lake).runs
            streams = {stream.record.stream: stream.record for stream in run.streams}
            if asked.path != "/orders":
                seen.append((streams["notes"].stage or "", streams["notes"].rows_read))
                others.add(streams["live"].stage or "")
            return False

        shop.is_closed = slowly
        shop.sync_or_fail()

    (run,) = run_history.runs(shop.project.lake).runs
    streams = {stream.record.stream: stream for stream in run.streams}
    stream, live = streams["notes"], streams["live"]
    assert others == {Stage.WAITING}, "its turn comes after that of the other one"
    assert live.record.rows_read == live.record.written == 1
    assert stream.record.rows_read == stream.record.landed_rows == 40
    assert {stage for stage, _ in seen} <= {Stage.WAITING, Stage.LANDING}
    assert seen[-1][0] == Stage.LANDING, "a stage is recorded within a second"
    read: Sequence[int] = [rows for _, rows in seen if rows is not None]
    assert any(0 < rows < 40 for rows in read)
    assert read == sorted(read)
    assert stream.record.state_before is None
    assert "2026-02" in (stream.record.state_after or "") or stream.changes


def test_a_run_that_was_killed_is_dead(tmp_path: Path) -> None:
    found = project(tmp_path, "  crm:\n    source: {type: data_lake_v2, path: source, org: X}\n")
    there = Pipeline(tmp_path)
    there.source.write("Account", [_row(1, 1)])
    words = ("sync", "--project", str(tmp_path))

    assert run_command_until_failpoint(*words, failpoint="sync.surveyed=kill")

    (dead,) = run_history.runs(found.lake).runs
    assert (dead.run.status, dead.seconds) == (Status.DEAD, None)
    assert dead.run.hint == "The next run continues from the offsets of its tables."
    assert [stream.record.status for stream in dead.streams] == [Status.DEAD]
    assert run_history.last_runs(found.lake)["crm", "Account"].last.status is Status.DEAD
    there.done()
    newest, older = run_history.runs(found.lake).runs
    assert (newest.run.status, older.run.status) == (Status.SUCCEEDED, Status.FAILED)
    assert older.streams[0].record.hint == "The next run continues from the offsets of its tables."
