"""The operational store: upgrades, many processes, and read-only readers."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import postgresql
import psycopg
import pytest

from chronolake import exact_json
from chronolake.config import LakeConfig, load
from chronolake.pipeline import run_history
from chronolake.pipeline.lease import hold_lease, holder
from chronolake.pipeline.runs import (
    Run,
    Stage,
    Status,
    StreamRun,
    VerificationResult,
    encode_states,
)
from chronolake.pipeline.store import Store

#: The tables as the version before the columns for the web UI created them.
_EARLIER = """
CREATE TABLE chronolake_checkpoints (pipeline VARCHAR NOT NULL, stream VARCHAR NOT NULL,
  position TEXT NOT NULL, stored VARCHAR NOT NULL, PRIMARY KEY (pipeline, stream));
CREATE TABLE chronolake_leases (pipeline VARCHAR NOT NULL, token BIGINT NOT NULL,
  holder VARCHAR NOT NULL, expires FLOAT NOT NULL, PRIMARY KEY (pipeline));
CREATE TABLE chronolake_remembered (pipeline VARCHAR NOT NULL, told TEXT NOT NULL,
  PRIMARY KEY (pipeline));
CREATE TABLE chronolake_runs (id VARCHAR NOT NULL, pipeline VARCHAR NOT NULL,
  began VARCHAR NOT NULL, ended VARCHAR, status VARCHAR NOT NULL, holder VARCHAR NOT NULL,
  PRIMARY KEY (id));
CREATE INDEX ix_chronolake_runs_pipeline ON chronolake_runs (pipeline);
CREATE TABLE chronolake_stream_runs (run VARCHAR NOT NULL, stream VARCHAR NOT NULL,
  table_name VARCHAR NOT NULL, status VARCHAR NOT NULL, files BIGINT NOT NULL,
  bytes BIGINT NOT NULL, rows BIGINT NOT NULL, written BIGINT NOT NULL, seconds FLOAT NOT NULL,
  position VARCHAR, error VARCHAR, PRIMARY KEY (run, stream));
INSERT INTO chronolake_checkpoints VALUES ('shop', 'orders', '{"lsn": 7}', 'then');
INSERT INTO chronolake_leases VALUES ('shop', 4, 'there:1:', 0);
INSERT INTO chronolake_remembered VALUES ('shop', '{"token": {"secret": "hush"}}');
INSERT INTO chronolake_runs VALUES ('r1', 'shop', '2026-01-01T00:00:00.000Z',
  '2026-01-01T00:01:00.000Z', 'partial', 'there:1:');
INSERT INTO chronolake_runs VALUES ('r2', 'shop', '2026-01-02T00:00:00.000Z', NULL, 'running',
  'there:1:');
INSERT INTO chronolake_stream_runs VALUES ('r1', 'items', 'shop.items', 'failed', 0, 0, 0, 0, 0.5,
  NULL, 'It is away. Wake it.');
INSERT INTO chronolake_stream_runs VALUES ('r1', 'orders', 'shop.orders', 'succeeded', 2, 100, 20,
  15, 3.5, 'batch=1/data-2.parquet', NULL);
"""
_OPENING = """
import sys
from pathlib import Path
from chronolake.config import load
from chronolake.pipeline.store import Store
config = load(Path(sys.argv[1]), overrides={"catalog.uri": sys.argv[2]} if sys.argv[2] else {})
Store.open(config)
"""


def _earlier(folder: Path) -> LakeConfig:
    config = load(folder)
    with closing(sqlite3.connect(config.catalog_file)) as store:
        store.executescript(_EARLIER)
    return config


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with postgresql.server() as address:
        yield address


def _run(number: int, **more: object) -> Run:
    began = f"2026-02-{number:02}T00:00:00.000Z"
    given = {"ended": None, "status": Status.RUNNING, "holder": holder(), **more}
    return Run(f"run{number}", "shop", began, **given)  # type: ignore[arg-type]


def _expect_upgraded(config: LakeConfig) -> None:
    store = Store.open(config)
    assert store.checkpoints("shop") == {"orders": {"lsn": 7}}
    assert store.load_tokens("shop") == {"token": {"secret": "hush"}}
    assert [run.id for run in store.runs()] == ["r2", "r1"]
    items, orders = store.streams_of("r1")
    assert (items.error, items.hint) == ("It is away. Wake it.", None)
    assert (orders.files, orders.written, orders.landed_rows) == (2, 15, None)
    with hold_lease(store, "shop") as lease:
        assert lease.token == 5
        store.begin_run(_run(1))
        reported = StreamRun("run1", "orders", "shop.orders", Status.RUNNING, stage=Stage.LANDING)
        store.note(reported)
        assert store.streams_of("run1") == [reported]
    store.note_verified(
        VerificationResult("shop.orders", "2026-01-03T00:00:00.000Z", True, 20, False)
    )


def test_a_store_of_an_earlier_version_loses_nothing(tmp_path: Path) -> None:
    _expect_upgraded(_earlier(tmp_path))


def test_so_does_one_in_postgresql(tmp_path: Path, uri: str) -> None:
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute(_EARLIER.encode())
    config = load(tmp_path, overrides={"catalog.uri": uri})
    newest, oldest = run_history.summaries(config).runs
    assert (newest.run.status, newest.fraction) == (Status.DEAD, None)
    assert (oldest.sums.written, oldest.sums.landed_rows, oldest.fraction) == (15, None, 0.5)
    assert run_history.last_runs(config)["shop", "orders"].fresh_as_of == oldest.run.began
    assert len(run_history.runs(config).runs[1].streams) == 2
    _expect_upgraded(config)
    assert run_history.last_verifications(config)["shop.orders"].rows == 20


def test_looking_leaves_a_store_of_an_earlier_version_as_it_is(tmp_path: Path) -> None:
    config = _earlier(tmp_path)
    before = config.catalog_file.read_bytes()

    newest, oldest = run_history.runs(config).runs

    assert config.catalog_file.read_bytes() == before
    assert (newest.run.status, newest.seconds) == (Status.DEAD, None), "nobody holds its lease"
    assert newest.run.hint is not None
    assert (oldest.run.status, oldest.seconds) == (Status.PARTIAL, 60.0)
    items, orders = oldest.streams
    assert (items.record.error, items.changes) == ("It is away. Wake it.", ())
    assert orders.changes == (), "how far it was before was not noted"
    assert orders.fraction == 1.0
    assert oldest.sum("written") == 15
    assert oldest.sum("landed_rows") is None
    (pipeline,) = run_history.pipelines(config)
    assert (pipeline.name, pipeline.source) == ("shop", None)
    assert pipeline.last == run_history.summaries(config).runs[0]
    sums = run_history.summaries(config).runs[1].sums
    assert (sums.streams, sums.failed, sums.written, sums.landed_rows) == (2, 1, 15, None)
    assert (sums.failed_stream, sums.error) == ("items", "It is away. Wake it.")
    lately = run_history.last_runs(config)
    assert lately["shop", "orders"].fresh_as_of == "2026-01-01T00:00:00.000Z"
    assert lately["shop", "items"].fresh_as_of is None
    assert run_history.last_verifications(config) == {}
    assert "hush" not in repr((newest, oldest, pipeline, lately)), "tokens are nobody's business"


def test_a_lake_that_has_no_store_has_no_runs(tmp_path: Path) -> None:
    there = load(tmp_path / "nothing")
    only_tables = load(tmp_path)
    with closing(sqlite3.connect(only_tables.catalog_file)) as catalog:
        catalog.execute("CREATE TABLE iceberg_tables (catalog_name)")
    rest = load(tmp_path / "rest", overrides={"catalog.uri": "http://127.0.0.1:9/"})
    for config in (there, only_tables, rest):
        assert run_history.runs(config) == run_history.ObservedRuns((), None)
        assert run_history.run(config, "r1") is None
        assert run_history.pipelines(config) == []
        assert run_history.last_runs(config) == {}
        assert run_history.last_verifications(config) == {}
    assert not there.path.exists(), "nothing is made by looking"


def test_looking_waits_for_no_writer(tmp_path: Path) -> None:
    config = load(tmp_path)
    with closing(sqlite3.connect(config.catalog_file)) as catalog:
        # A lake does the same when it is opened.
        catalog.execute("PRAGMA journal_mode=WAL")
    store = Store.open(config)
    store.begin_run(_run(1))
    with store.transaction() as writing:
        writing.exec_driver_sql("UPDATE chronolake_runs SET status = 'failed'")
        began = time.monotonic()
        assert len(run_history.runs(config).runs) == 1
        assert time.monotonic() - began < 5, "and a writer would have been waited for 30 seconds"


@pytest.mark.sampled
@pytest.mark.parametrize("is_new", [True, False])
def test_processes_may_open_a_store_at_once(tmp_path: Path, is_new: bool) -> None:
    config = load(tmp_path) if is_new else _earlier(tmp_path)
    _open_at_once(config, "")
    assert len(Store.open(config).runs()) == (0 if is_new else 2)


@pytest.mark.sampled
@pytest.mark.parametrize("is_new", [True, False])
def test_so_may_they_in_postgresql(tmp_path: Path, uri: str, is_new: bool) -> None:
    name = f"lake_{is_new}".lower()
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    address = f"{uri.rpartition('/')[0]}/{name}"
    if not is_new:
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(_EARLIER.encode())
    config = load(tmp_path, overrides={"catalog.uri": address})
    _open_at_once(config, address)
    assert len(Store.open(config).runs()) == (0 if is_new else 2)
    assert len(run_history.runs(config).runs) == (0 if is_new else 2)


def _open_at_once(config: LakeConfig, uri: str) -> None:
    command = [sys.executable, "-c", _OPENING, str(config.path), uri]
    running = [
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ)
        for _ in range(4)
    ]
    reported = [process.communicate(timeout=120)[1] for process in running]
    assert [process.returncode for process in running] == [0] * 4, reported


def test_a_run_is_dead_when_its_lease_is_not_its_own(tmp_path: Path) -> None:
    config = load(tmp_path)
    store = Store.open(config)
    with hold_lease(store, "shop"):
        store.begin_run(_run(1))
        store.note(StreamRun("run1", "orders", "shop.orders", Status.RUNNING))
        assert [run.run.status for run in run_history.runs(config).runs] == [Status.RUNNING]
        assert run_history.runs(config, status=Status.DEAD).runs == ()
    (left,) = run_history.runs(config, status=Status.DEAD).runs
    assert left.streams[0].record.status is Status.DEAD
    assert run_history.runs(config, status=Status.RUNNING).runs == ()
    with hold_lease(store, "shop"):
        # A run of another holder, on an unreachable machine, under our lease.
        store.begin_run(_run(2, holder="elsewhere:17:"))
        newest, older = run_history.runs(config).runs
        assert newest.run.status is Status.DEAD
        assert (older.run.status, older.run.ended, older.seconds) == (Status.FAILED, None, None)
        assert (
            older.streams[0].record.hint == "The next run continues from the offsets of its tables."
        )


def test_a_process_that_is_gone_is_dead_before_its_lease_ends(tmp_path: Path) -> None:
    config = load(tmp_path)
    store = Store.open(config)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    who = f"{socket.gethostname()}:{gone.pid}:{holder().rpartition(':')[2]}"
    store.begin_run(_run(1, holder=who))
    with store.transaction() as connection:
        connection.exec_driver_sql(
            f"INSERT INTO chronolake_leases VALUES ('shop', 1, '{who}', {time.time() + 60})"
        )
    assert [run.run.status for run in run_history.runs(config).runs] == [Status.DEAD]


def test_checkpoints_keep_the_digits_of_their_numbers(tmp_path: Path) -> None:
    position = exact_json.loads(b'{"states": [{"partition": {"team": 18446744073709551617}}]}')
    config = load(tmp_path)
    store = Store.open(config)
    with hold_lease(store, "shop") as lease:
        store.put_checkpoint("shop", "notes", position, token=lease.token)
        store.begin_run(_run(1))
        done = StreamRun("run1", "notes", "shop.notes", Status.SUCCEEDED)
        store.note(replace(done, state_after=encode_states({}, position)[1]))
    assert store.checkpoints("shop") == {"notes": position}
    (run,) = run_history.runs(config).runs
    assert "18446744073709551617" in str(run.streams[0])


def test_runs_are_paged_and_filtered(tmp_path: Path) -> None:
    config = load(tmp_path)
    store = Store.open(config)
    for number in range(1, 8):
        store.begin_run(_run(number))
        store.end_run(f"run{number}", Status.PARTIAL if number % 2 else Status.SUCCEEDED)
    at = "2026-03-01T00:00:00.000Z"
    store.note_failed(Run("other", "crm", at, at, Status.FAILED, "", "no"))

    first = run_history.runs(config, limit=3)
    second = run_history.runs(config, limit=5, after=first.next)

    assert [run.run.id for run in first.runs] == ["other", "run7", "run6"]
    assert [run.run.id for run in second.runs] == ["run5", "run4", "run3", "run2", "run1"]
    assert second.next is None
    found = run_history.runs(config, pipeline="shop", status=Status.SUCCEEDED)
    assert [run.run.id for run in found.runs] == ["run6", "run4", "run2"]
    assert [pipeline.name for pipeline in run_history.pipelines(config)] == ["crm", "shop"]
    assert run_history.run(config, "other") == first.runs[0]
    second = run_history.summaries(config, limit=5, after=first.next)
    assert [run.run.id for run in second.runs] == ["run5", "run4", "run3", "run2", "run1"]


def test_how_fresh_a_stream_is_is_known_however_long_it_fails(tmp_path: Path) -> None:
    config = load(tmp_path)
    store = Store.open(config)
    for number in range(40):
        reported = f"2026-01-01T00:00:{number:02}.000Z"
        store.begin_run(Run(f"{number}", "shop", reported, reported, Status.PARTIAL, ""))
        good = StreamRun(f"{number}", "good", "s.good", Status.SUCCEEDED)
        status = Status.SUCCEEDED if number < 3 else Status.FAILED
        store.note(good, StreamRun(f"{number}", "bad", "s.bad", status, error="no"))
    found = run_history.last_runs(config)
    assert found["shop", "good"].fresh_as_of == "2026-01-01T00:00:39.000Z"
    assert found["shop", "bad"].fresh_as_of == "2026-01-01T00:00:02.000Z"
    assert found["shop", "bad"].last.run == "39"
    assert run_history.last_runs(config, "crm") == {}


def test_a_summary_agrees_with_its_streams(tmp_path: Path) -> None:
    config = load(tmp_path)
    store = Store.open(config)
    with hold_lease(store, "shop"):
        store.begin_run(_run(1))
        common = {"run": "run1", "status": Status.RUNNING}
        store.note(
            StreamRun(stream="a", table_name="s.a", stage=Stage.WAITING, **common),
            StreamRun(stream="b", table_name="s.b", stage=Stage.LANDING, rows_read=5, **common),
            StreamRun(
                stream="c",
                table_name="s.c",
                stage=Stage.APPLYING,
                bytes=30,
                bytes_left=10,
                **common,
            ),
            StreamRun("run1", "d", "s.d", Status.SUCCEEDED, rows_read=2, landed_rows=2),
        )
        (whole,) = run_history.runs(config).runs
        (summary,) = run_history.summaries(config).runs
        assert whole.fraction == summary.fraction == (0.75 + 1) / 4
        for name in ("rows_read", "landed_rows", "rows", "written"):
            assert whole.sum(name) == getattr(summary.sums, name)


def test_states_of_old_runs_are_forgotten(tmp_path: Path) -> None:
    config = load(tmp_path)
    store = Store.open(config)
    for number in range(103):
        reported = f"2026-01-01T00:00:00.{number:03}Z"
        run = Run(f"{number}", "shop", reported, reported, Status.SUCCEEDED, "")
        store.begin_run(run)
        store.note(
            StreamRun(
                run.id, "o", "s.o", Status.SUCCEEDED, state_before='{"n":1}', state_after='{"n":2}'
            )
        )
    found = run_history.runs(config, limit=200).runs
    assert [len(run.streams[0].changes) for run in found] == [1] * 100 + [0] * 3


def _stream(run: str, name: str, status: Status, **more: object) -> StreamRun:
    return replace(StreamRun(run, name, f"shop.{name}", status), **more)  # type: ignore[arg-type]


def test_sums_of_streams_survive_their_runs(tmp_path: Path) -> None:
    config = load(tmp_path)
    store = Store.open(config)
    for number in range(3):
        run = Run(f"r{number}", "shop", f"2026-01-0{number + 1}", None, Status.RUNNING, holder())
        store.begin_run(run)
        store.note(
            _stream(run.id, "a", Status.SUCCEEDED, rows=10, bytes=7, landing_seconds=0.5),
            _stream(run.id, "b", Status.FAILED, written=1, applying_seconds=2.0),
        )
        store.end_run(run.id, Status.PARTIAL)
    with store.transaction() as connection:
        connection.exec_driver_sql("DELETE FROM chronolake_stream_runs")

    first, second = sorted(run_history.totals(config), key=lambda sums: sums.stream)

    assert (first.runs, first.failures, first.rows, first.bytes) == (3, 0, 30, 21)
    assert (first.landing_seconds, first.applying_seconds) == (1.5, 0.0)
    assert first.succeeded is not None
    assert (second.runs, second.failures, second.written) == (3, 3, 3)
    assert (second.applying_seconds, second.succeeded) == (6.0, None)


def test_a_crashed_run_counts_once_when_the_next_one_begins(tmp_path: Path) -> None:
    config = load(tmp_path)
    store = Store.open(config)
    run = Run("r1", "shop", "2026-01-01", None, Status.RUNNING, "gone:1:")
    store.begin_run(run)
    # One stream was finished before the process was killed.
    store.note(
        _stream("r1", "a", Status.SUCCEEDED, rows=10),
        _stream("r1", "b", Status.RUNNING, stage=Stage.APPLYING, rows=4),
    )
    assert run_history.totals(config) == []

    for number in (2, 3):
        store.begin_run(replace(run, id=f"r{number}", began=f"2026-01-0{number}"))
        store.end_run(f"r{number}", Status.SUCCEEDED)

    first, second = sorted(run_history.totals(config), key=lambda sums: sums.stream)
    assert (first.runs, first.failures, first.rows) == (1, 0, 10)
    assert (second.runs, second.failures, second.rows) == (1, 1, 4)


def test_a_store_of_an_earlier_version_has_no_sums(tmp_path: Path) -> None:
    config = _earlier(tmp_path)

    assert run_history.totals(config) == []
    Store.open(config)
    assert run_history.totals(config) == []


def test_a_store_may_be_another_database_than_the_catalogs(tmp_path: Path) -> None:
    config = load(tmp_path, overrides={"store": "operations/store.db"})

    store = Store.open(config)

    assert store.checkpoints("shop") == {}
    names = {}
    for name in ("catalog.db", "operations/store.db"):
        with closing(sqlite3.connect(tmp_path / name)) as database:
            listed = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            names[name] = {row[0] for row in listed}
    assert names["catalog.db"] == {"chronolake_lake"}
    assert "chronolake_leases" in names["operations/store.db"]
