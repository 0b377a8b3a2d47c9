"""What a lake does, in every place and with every catalog.

Each test runs for {folder, S3} x {SQLite, PostgreSQL, REST}. Commands run as a user runs them, and
tables are read by PyIceberg through the same catalog. What they must contain follows from models in
plain Python: `support.matrix.records` for pipelines, `support.oracle` for the destination.

- sync from PostgreSQL (its log, and complete reads), JDBC, an HTTP API, Data Lake v2:
  `test_changes_of_a_source_become_history`
- serve: `test_a_destination_writes_history_and_live_tables`
- modes: `test_modes_are_switched`, for the destination also in the test of serve
- rebuild: `test_a_table_is_rebuilt`, `test_a_dropped_table_is_created_again`
- crash at every step: `test_a_sync_may_be_killed_at_every_step`, and for rebuilds and mode switches
  `test_a_replacement_may_be_killed_at_every_step`
- maintain: `test_maintenance_removes_files_and_keeps_rows`

SQL Server is not part of it: no server of it runs in tests (`tests/source/test_sqlserver.py`
simulates its answers). Failures of stores and catalogs are in `tests/store` and `tests/catalogs`, a
cluster without a shared folder is in `tests/store/test_cluster_without_disk.py`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import grpc
import pytest
from pyiceberg.table import Table

from chronolake.failpoints import FAILPOINTS
from support.matrix.projects import StoredProject
from support.matrix.sources import PostgresRecords, RecordSource
from support.oracle import START
from support.processes import KILLED
from support.server.caller import Caller
from support.server.sent_rows import SentTable, plain_rows
from support.server.small_batches import (
    FIRST_HISTORY,
    FIRST_LIVE,
    HISTORY,
    HOUR,
    LIVE,
    T,
    history_batch,
    live_batch,
)

pytestmark = pytest.mark.long

#: Days after which no setting keeps a file that nothing references.
_DAYS: Final = 100

with_log = pytest.mark.parametrize("source", ["replication"], indirect=True)


def test_changes_of_a_source_become_history(there: StoredProject, source: RecordSource) -> None:
    source.put({1: "Ann", 2: "Bob", 3: "Carl"})
    there.sync()
    there.expect()
    source.put({1: "Anna", 4: "Dora"})
    source.delete(2)
    there.sync()
    there.expect()
    source.put({2: "Bob is back"})
    source.delete(3)
    there.sync()
    there.expect()
    there.run("verify", there.table_name, "--against-lake")


@with_log
def test_modes_are_switched(there: StoredProject, source: RecordSource) -> None:
    source.put({1: "Ann", 2: "Bob", 3: "Carl"})
    there.sync()
    source.put({1: "Anna"})
    source.delete(2)
    for number, mode in enumerate(("live", "soft-delete", "history", "soft-delete", "live")):
        there.set_mode(mode)
        source.put({3: f"Carl {number}", 10 + number: mode})
        there.sync()
        assert there.table_mode() == mode
        there.expect()
    source.delete(3)
    there.set_mode("history")
    there.sync()
    assert there.table_mode() == "history"
    there.expect()
    there.run("verify", there.table_name, "--against-lake")


@with_log
def test_a_table_is_rebuilt(there: StoredProject, source: PostgresRecords) -> None:
    source.put({1: "Ann", 2: "Bob"})
    there.sync()
    source.put({1: "Anna"})
    source.delete(2)
    there.sync()
    before = there.snapshot()

    there.run("rebuild", there.table_name)

    there.expect()
    assert there.snapshot() != before
    # A type that does not widen in place.
    source.execute("ALTER TABLE orders ALTER COLUMN id TYPE NUMERIC(20, 0)")
    source.put({1: "Anne", 3: "Carl"})
    there.sync()
    there.expect()
    there.run("resync", "shop")
    there.expect()
    there.run("verify", there.table_name, "--against-lake")


@with_log
def test_a_dropped_table_is_created_again(there: StoredProject, source: RecordSource) -> None:
    source.put({1: "Ann", 2: "Bob"})
    there.sync()
    source.put({1: "Anna"})
    source.delete(2)
    there.sync()
    there.drop_table()

    there.sync()

    there.expect()


@with_log
def test_commands_read_a_lake(there: StoredProject, source: RecordSource, catalog: str) -> None:
    source.put({1: "Ann", 2: "Bob"})
    there.sync()
    source.put({1: "Anna"})
    there.sync()
    table = there.table_name

    assert table in [found["table"] for found in there.json("tables")]
    timeline = there.run("history", table, "--key", "id=1")
    assert "Ann" in timeline
    assert "Anna" in timeline
    statement = f"SELECT id, name FROM {table} WHERE _fivetran_active ORDER BY id"
    assert there.query(statement) == [{"id": 1, "name": "Anna"}, {"id": 2, "name": "Bob"}]
    assert "shop" in there.run("status")
    assert "shop" in there.run("runs")
    there.run("usage")
    assert "id=1" in there.run("diff", table, "--from", "2020-01-01", "--to", "2100-01-01")
    there.run("verify", table)
    # Runs and leases are in the catalog's database, or in a file of the lake.
    folder = there.project.lake.path
    assert (folder / "catalog.db").exists() == (catalog == "sqlite")
    assert (folder / "store.db").exists() == (catalog == "rest")


@with_log
def test_maintenance_removes_files_and_keeps_rows(
    there: StoredProject, source: RecordSource
) -> None:
    for number in range(6):
        source.put({key: f"{key} {number}" for key in range(number, 9)})
        there.sync()
    source.delete(8)
    there.sync()
    before = there.data_files()
    orphan = there.local_folder() / "data" / "orphan.parquet"
    orphan.write_bytes(b"left by a write that was killed")
    long_ago = time.time() - _DAYS * 86_400
    os.utime(orphan, (long_ago, long_ago))

    there.run("maintain", there.table_name)

    there.expect()
    assert there.data_files() < before
    assert not orphan.exists()
    source.put({1: "after"})
    there.sync()
    there.expect()
    there.run("verify", there.table_name, "--against-lake")


#: The failpoints of a small sync from a server's log.
_SYNC: Final = [
    name
    for name in FAILPOINTS
    if name.startswith(("read.log", "land.", "sync.", "write.", "staged.", "publish."))
    and name != "land.file-replaced"
]
#: The failpoints of rebuilds and mode switches.
_REPLACE: Final = (
    "staged.appended",
    "publish.before-commit",
    "publish.after-commit",
    "rewrite.before-commit",
    "rewrite.after-commit",
)


@with_log
def test_a_sync_may_be_killed_at_every_step(there: StoredProject, source: RecordSource) -> None:
    reached = set()
    source.put({1: "Ann", 2: "Bob"})
    there.run("sync", "shop", failpoint="create.committed=kill", code=KILLED)
    there.sync()
    there.expect()
    for number, point in enumerate(_SYNC):
        before = source.records.copy()
        source.put({1: point, 2: f"late {point}", 10 + number: "new"})
        source.delete(2)
        if number:
            source.delete(9 + number)
        if there.is_killed("sync", "shop", at=point):
            reached.add(point)
        rows = there.table_rows()
        key, name = source.key, source.name
        assert not before.differences(rows, key, name) or not source.records.differences(
            rows, key, name
        ), point
        there.sync()
        found = source.records.differences(there.table_rows(), key, name)
        assert not found, f"{point}: {found}"
    there.run("verify", there.table_name, "--against-lake")
    missed = sorted(set(_SYNC) - reached)
    assert not missed


@with_log
@pytest.mark.parametrize("change", ["rebuild", "live"])
def test_a_replacement_may_be_killed_at_every_step(
    there: StoredProject, source: RecordSource, change: str
) -> None:
    reached = set()
    source.put({1: "Ann", 2: "Bob"})
    there.sync()
    source.put({1: "Anna"})
    source.delete(2)
    there.sync()
    for point in _REPLACE:
        words = ("rebuild", there.table_name) if change == "rebuild" else ("sync", "shop")
        if change == "live":
            there.set_mode("live")
        if there.is_killed(*words, at=point):
            reached.add(point)
        there.expect()
        there.run(*words)
        there.expect()
        if change == "live":
            assert there.table_mode() == "live"
            there.set_mode("history")
            there.sync()
            there.expect()
    there.run("verify", there.table_name, "--against-lake")
    missed = sorted(set(_REPLACE) - reached)
    assert not missed


@dataclass
class _Caller(Caller):
    """A caller that reads tables through the catalog of a project."""

    there: StoredProject | None = None

    def iceberg(self, name: str) -> Table:
        assert self.there is not None
        return self.there.table(self.schema, name)


@pytest.fixture
def port(there: StoredProject) -> Iterator[int]:
    with there.serving() as found:
        yield found


def test_a_destination_writes_history_and_live_tables(there: StoredProject, port: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        caller = _Caller(channel, there.folder, there.folder / "files", there.schema, there=there)
        for name, columns, batches in (
            ("live", LIVE, (FIRST_LIVE, live_batch())),
            ("history", HISTORY, (FIRST_HISTORY, history_batch())),
        ):
            sent = SentTable(caller, name, columns).create()
            model = sent.oracle()
            for batch in batches:
                sent.send(sent.request(batch))
                # A batch that is sent twice counts once.
                sent.send(sent.request(batch))
                model.write(**batch.rows)
                assert not sent.differences(model)
            before = (T + HOUR) / 1000
            assert caller.truncate(name, before).success
            model.truncate("_fivetran_synced", T + HOUR)
            assert not sent.differences(model)
            wider = [*columns, "more:STRING"]
            assert caller.alter(name, wider).success
            found = {field.name for field in caller.iceberg(name).schema().fields}
            assert "more" in found
        assert caller.migrate(
            "live", "SOFT_DELETE_TO_HISTORY", soft_deleted_column="_fivetran_deleted"
        ).success
        rows = plain_rows(caller.iceberg("live").scan().to_arrow())
        assert all(START in row for row in rows)
