"""The log of a standby is read, and a pipeline continues with a promoted standby."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from postgresql import server, standby_cluster

from chronolake.errors import SourceError
from chronolake.pipeline.streams import source_of
from chronolake.source.postgres.slot import durable_lsn, parse_lsn
from chronolake.source.protocol import CheckedSource, CheckResult, Level
from support.source.databases import Shop

_ITEMS = "CREATE TABLE items (id int PRIMARY KEY, note text)"
_STANDBY = {"hot_standby_feedback": "on", "primary_slot_name": "standby", "wal_level": "logical"}


def _run(address: str, *statements: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def _findings(shop: Shop, *, create: bool = False) -> list[CheckResult]:
    source = source_of(shop.project, "shop")
    assert isinstance(source, CheckedSource)
    return list(source.check(create=create, positions={}))


def _problems(findings: list[CheckResult]) -> dict[str, str]:
    return {
        finding.what: f"{finding.message} {finding.fix}"
        for finding in findings
        if finding.level is Level.FAILED
    }


@contextmanager
def _logging_snapshots(primary: str) -> Iterator[None]:
    """Let a primary log which transactions are open, as one that is in use does by itself."""
    done = threading.Event()

    def log() -> None:
        while not done.wait(0.3):
            _run(primary, "SELECT pg_log_standby_snapshot()")

    thread = threading.Thread(target=log)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _await_replayed(primary: str, standby: str) -> None:
    with psycopg.connect(primary) as one, psycopg.connect(standby, autocommit=True) as other:
        (text,) = one.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone() or ("",)
        while durable_lsn(other) < parse_lsn(text):
            time.sleep(0.05)


@pytest.mark.long
@pytest.mark.parametrize("version", [18, pytest.param(16, marks=pytest.mark.long)])
def test_the_log_of_a_standby_is_read(version: int, tmp_path: Path) -> None:
    with server(version, wal_level="logical") as primary:
        _run(primary, _ITEMS, "SELECT pg_create_physical_replication_slot('standby')")
        with standby_cluster(primary, version, **_STANDBY) as standby:
            shop = Shop(tmp_path, standby.address)
            missing = _problems(_findings(shop))
            assert missing.keys() == {"publication chronolake_shop", "slot chronolake_shop"}
            statement = missing["publication chronolake_shop"]
            assert "On the primary: CREATE PUBLICATION" in statement
            _run(primary, statement.partition("On the primary: ")[2])
            _await_replayed(primary, standby.address)
            with _logging_snapshots(primary):
                assert _problems(_findings(shop, create=True)) == {}
                _run(primary, "INSERT INTO items VALUES (1, 'a'), (2, 'a')")
                _await_replayed(primary, standby.address)
                shop.sync_or_fail()
            _run(
                primary,
                "UPDATE items SET note = 'b' WHERE id = 1",
                "UPDATE items SET note = 'c' WHERE id = 1",
                "DELETE FROM items WHERE id = 2",
                "INSERT INTO items VALUES (3, 'a')",
            )
            _await_replayed(primary, standby.address)
            shop.sync_or_fail()
            assert shop.versions("items", ("id", "note")) == [
                (1, "a", False),
                (1, "b", False),
                (1, "c", True),
                (2, "a", False),
                (3, "a", True),
            ]
            assert shop.agrees()


def test_a_standby_that_may_lose_its_slot_is_warned_about(tmp_path: Path) -> None:
    with (
        server(wal_level="logical") as primary,
        standby_cluster(primary, wal_level="logical") as standby,
    ):
        shop = Shop(tmp_path, standby.address)
        warned = {finding.what for finding in _findings(shop) if finding.level is Level.WARNING}
        assert {"hot_standby_feedback", "primary_slot_name"} <= warned


def test_slot_creation_on_a_standby_reports_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chronolake.source.postgres.check._PATIENCE_SECONDS", 1)
    with server(wal_level="logical") as primary:
        _run(primary, _ITEMS, "SELECT pg_create_physical_replication_slot('standby')")
        with standby_cluster(primary, **_STANDBY) as standby:
            shop = Shop(tmp_path, standby.address)
            with pytest.raises(SourceError, match="waits until its primary logs") as failed:
                _findings(shop, create=True)
            assert "pg_log_standby_snapshot" in (failed.value.hint or "")


def test_check_create_enables_failover_of_a_slot(tmp_path: Path) -> None:
    with server(wal_level="logical") as primary:
        shop = Shop(tmp_path, primary)
        shop.run(_ITEMS)
        assert _problems(_findings(shop, create=True)) == {}
        shop.configure(more=", failover: true")
        assert "not a failover slot" in _problems(_findings(shop))["slot chronolake_shop"]
        found = _findings(shop, create=True)
        assert _problems(found) == {}
        assert shop.rows("SELECT failover FROM pg_replication_slots") == [(True,)]
        assert "synchronized_standby_slots" in {result.what for result in found}


@pytest.mark.long
def test_a_server_that_has_no_failover_slots_is_reported(tmp_path: Path) -> None:
    with server(16, wal_level="logical") as primary:
        shop = Shop(tmp_path, primary)
        shop.run(_ITEMS)
        shop.configure(more=", failover: true")
        assert "PostgreSQL 17" in _problems(_findings(shop, create=True))["slot chronolake_shop"]


def _await_copied(shop: Shop, standby: str) -> None:
    """Wait until a standby has a copy of the slot that outlives its primary."""
    query = "SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = %s"
    until = time.monotonic() + 120
    with psycopg.connect(standby, autocommit=True) as connection:
        while connection.execute(query, ("chronolake_shop",)).fetchone() != (True,):
            assert time.monotonic() < until, "no copy of the slot"
            # A copied slot begins at the standby's position, and the slot has to reach it.
            shop.sync_or_fail()
            time.sleep(0.5)


@pytest.mark.long
def test_a_pipeline_continues_with_the_promoted_standby(tmp_path: Path) -> None:
    with server(wal_level="logical", synchronized_standby_slots="standby") as primary:
        _run(primary, _ITEMS, "SELECT pg_create_physical_replication_slot('standby')")
        with standby_cluster(primary, sync_replication_slots="on", **_STANDBY) as standby:
            shop = Shop(tmp_path, primary)
            shop.configure(more=", failover: true")
            assert _problems(_findings(shop, create=True)) == {}
            shop.run("INSERT INTO items VALUES (1, 'a'), (2, 'a')")
            with _logging_snapshots(primary):
                shop.sync_or_fail()
                _await_copied(shop, standby.address)
            # Changes that the lake has not read, and that only the log has.
            shop.run(
                "UPDATE items SET note = 'b' WHERE id = 1",
                "UPDATE items SET note = 'c' WHERE id = 1",
                "DELETE FROM items WHERE id = 2",
            )
            _await_replayed(primary, standby.address)
            shop.dsn = standby.address
            shop.configure(more=", failover: true")
            wrong = _problems(_findings(shop))
            assert "this standby's copy" in wrong["slot chronolake_shop"]

            standby.promote()
            shop.run("UPDATE items SET note = 'd' WHERE id = 1")
            shop.sync_or_fail()
            assert shop.versions("items", ("id", "note")) == [
                (1, "a", False),
                (1, "b", False),
                (1, "c", False),
                (1, "d", True),
                (2, "a", False),
            ]
            assert shop.agrees()
