"""A server that was restored, or a promoted standby, is not mistaken for the one that was read."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgresql import Cluster, cluster, standby_cluster

from chronolake.pipeline.lease import hold_lease
from chronolake.pipeline.runs import Status
from chronolake.pipeline.store import Store
from chronolake.source.postgres.connection import connect
from chronolake.source.postgres.slot import Evidence, bytes_before, durable_lsn, emit_evidence
from support.seeds import draw_seeds
from support.source.databases import Shop

_MANY_BYTES = 200_000


@pytest.fixture(params=[18, pytest.param(16, marks=pytest.mark.long)])
def version(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture
def place(version: int) -> Iterator[Cluster]:
    with cluster(version, wal_level="logical", autovacuum="off") as found:
        yield found


@pytest.fixture
def shop(place: Cluster, tmp_path: Path) -> Shop:
    there = Shop(tmp_path, place.address)
    there.run(
        "CREATE TABLE orders (id int PRIMARY KEY, state text)",
        "INSERT INTO orders VALUES (1, 'a'), (2, 'a'), (3, 'a')",
    )
    there.prepare()
    return there


def _statement(chance: random.Random) -> str:
    number, state = chance.randrange(9), chance.randrange(9)
    insert = f"INSERT INTO orders VALUES ({number}, 'i') ON CONFLICT (id)"
    return chance.choice(
        [
            f"UPDATE orders SET state = '{state}' WHERE id = 2",
            f"{insert} DO UPDATE SET state = '{state}'",
            f"DELETE FROM orders WHERE id = {number}",
            "SELECT pg_logical_emit_message(true, 'app', 'x')",
        ]
    )


def _log_is_written(shop: Shop, upto: int = _MANY_BYTES) -> None:
    """Write enough log that the server is beyond every position that it had before."""
    shop.run(f"SELECT pg_logical_emit_message(false, 'test', repeat('x', {upto}))", "CHECKPOINT")


def _save(place: Cluster) -> str:
    place.stop()
    try:
        return place.save()
    finally:
        place.start()


def _restore(place: Cluster, name: str, how: str = "fast") -> None:
    place.stop(how)
    place.restore(name)
    place.start()


def _is_same(shop: Shop) -> bool:
    there = sorted(shop.rows("SELECT id, state FROM orders"), key=repr)
    return shop.present("orders", ("id", "state")) == there


def _fails_and_resync_repairs(shop: Shop) -> None:
    before = shop.versions("orders", ("id", "state"))
    for _ in range(2):
        result = shop.sync()
        (stream,) = result.streams
        assert result.status is Status.FAILED
        assert "log is not the one that public.orders was read from" in (stream.error or "")
        assert "chronolake resync shop --stream public.orders" in (stream.hint or "")
        assert shop.versions("orders", ("id", "state")) == before

    shop.sync_or_fail(full_refresh=True)
    assert _is_same(shop)
    shop.run("UPDATE orders SET state = state || '!'")
    shop.sync_or_fail()
    assert _is_same(shop)
    assert shop.agrees()


@pytest.mark.long
@pytest.mark.sampled
@pytest.mark.parametrize("is_copied_after", [False, True], ids=["change", "first copy"])
def test_a_database_restored_from_its_files_is_noticed(
    shop: Shop, place: Cluster, *, is_copied_after: bool
) -> None:
    if not is_copied_after:
        shop.sync_or_fail()
    saved = _save(place)
    shop.run("UPDATE orders SET state = 'gone' WHERE id = 1", "INSERT INTO orders VALUES (4, 'x')")
    shop.sync_or_fail()
    _restore(place, saved, "immediate")
    # The second of these has the size of the row that was read, and is at or near its position.
    shop.run("UPDATE orders SET state = 'seen' WHERE id = 2", "INSERT INTO orders VALUES (5, 'x')")
    _log_is_written(shop)

    _fails_and_resync_repairs(shop)


@pytest.mark.long
def test_restored_server_with_all_read_changes_continues(shop: Shop, place: Cluster) -> None:
    shop.sync_or_fail()
    shop.run("UPDATE orders SET state = 'b' WHERE id = 1")
    shop.sync_or_fail()
    saved = _save(place)
    # It was not read, and never will be.
    shop.run("UPDATE orders SET state = 'gone'")
    _restore(place, saved)
    shop.run("UPDATE orders SET state = 'c' WHERE id = 1")
    shop.sync_or_fail()

    states = [row[1:] for row in shop.versions("orders", ("id", "state")) if row[0] == 1]
    assert states == [("a", False), ("b", False), ("c", True)]
    assert _is_same(shop)


@pytest.mark.long
def test_a_standby_that_lagged_when_it_was_promoted_is_noticed(
    shop: Shop, place: Cluster, version: int
) -> None:
    shop.sync_or_fail()
    with standby_cluster(place.address, version, wal_level="logical") as other:
        at = shop.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
        shop.dsn, primary = other.address, shop.dsn
        while not shop.rows(f"SELECT pg_last_wal_replay_lsn() >= '{at}'")[0][0]:
            time.sleep(0.05)
        # From now on it lags.
        other.stop()
        shop.dsn = primary
        shop.run("UPDATE orders SET state = 'gone'", "DELETE FROM orders WHERE id = 3")
        shop.sync_or_fail()
        place.stop()
        other.start()
        other.promote()
        shop.dsn = other.address
        shop.configure()
        if version < 17 or not shop.rows("SELECT FROM pg_replication_slots"):
            shop.run("SELECT pg_create_logical_replication_slot('chronolake_shop', 'pgoutput')")
        shop.run("UPDATE orders SET state = 'seen' WHERE id = 2")
        _log_is_written(shop)

        _fails_and_resync_repairs(shop)


@pytest.mark.long
def test_log_of_other_tables_is_not_retained_forever(shop: Shop, place: Cluster) -> None:
    shop.sync_or_fail()
    saved = _save(place)
    _log_is_written(shop)
    shop.sync_or_fail()
    shop.sync_or_fail()
    (behind,) = shop.rows(
        "SELECT pg_current_wal_lsn() - confirmed_flush_lsn FROM pg_replication_slots"
    )[0]
    assert behind < _MANY_BYTES // 2
    # An idle server is not written to.
    place.stop()
    place.start()
    before = shop.rows("SELECT pg_current_wal_lsn()")
    shop.sync_or_fail()
    assert shop.rows("SELECT pg_current_wal_lsn()") == before

    _restore(place, saved)
    shop.run("UPDATE orders SET state = 'seen'")
    _log_is_written(shop, 2 * _MANY_BYTES)
    _fails_and_resync_repairs(shop)


@pytest.mark.long
def test_offset_of_an_earlier_version_gets_evidence(shop: Shop, place: Cluster) -> None:
    shop.sync_or_fail()
    store = Store.open(shop.project.lake)
    ((name, position),) = store.checkpoints("shop").items()
    del position["evidence"]
    with hold_lease(store, "shop", above=10**6) as lease:
        store.put_checkpoint("shop", name, position, token=lease.token)
    saved = _save(place)
    shop.sync_or_fail()
    _restore(place, saved)
    shop.run("UPDATE orders SET state = 'seen'")
    _log_is_written(shop)

    _fails_and_resync_repairs(shop)


@pytest.mark.long
def test_evidence_is_only_written_where_that_is_allowed(place: Cluster, version: int) -> None:
    with connect(place.address) as database, standby_cluster(place.address, version) as other:
        database.execute("CREATE ROLE plain LOGIN PASSWORD 'plain'")
        dsn = f"postgresql://plain:plain@{place.address.partition('@')[2]}"
        database.execute("ALTER ROLE plain SET default_transaction_read_only = on")
        with connect(dsn) as plain:
            found = emit_evidence(plain)
            assert found is not None
            assert found.lsn < found.until <= durable_lsn(database)
        with connect(other.address) as behind:
            assert emit_evidence(behind) is None
        for arguments in ("boolean, text, text, boolean", "boolean, text, text"):
            if database.execute(
                "SELECT to_regprocedure(%s)", (f"pg_logical_emit_message({arguments})",)
            ).fetchone() != (None,):
                database.execute(
                    f"REVOKE EXECUTE ON FUNCTION pg_logical_emit_message({arguments}) FROM PUBLIC"
                )
        with connect(dsn) as plain:
            assert emit_evidence(plain) is None


def _reads_without_messages(shop: Shop) -> None:
    """Let the pipeline read as a role that can't write messages to the log."""
    shop.run(
        "CREATE ROLE reader LOGIN REPLICATION PASSWORD 'reader'",
        "GRANT USAGE ON SCHEMA public TO reader",
        "GRANT SELECT ON orders TO reader",
        "DO $$ DECLARE one text; BEGIN FOR one IN SELECT oid::regprocedure FROM pg_proc "
        "WHERE proname = 'pg_logical_emit_message' LOOP "
        "EXECUTE 'REVOKE EXECUTE ON FUNCTION ' || one || ' FROM PUBLIC'; END LOOP; END $$",
    )
    shop.dsn, owner = f"postgresql://reader:reader@{shop.dsn.partition('@')[2]}", shop.dsn
    shop.configure()
    shop.dsn = owner


def _evidence(shop: Shop) -> Evidence:
    (position,) = Store.open(shop.project.lake).checkpoints("shop").values()
    return Evidence.from_json(position["evidence"])


@pytest.mark.long
def test_bytes_of_the_log_are_evidence_where_no_message_can_be_written(
    shop: Shop, place: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chronolake.source.postgres.database._KEPT_BYTES", _MANY_BYTES // 2)
    _reads_without_messages(shop)
    shop.sync_or_fail()
    assert _evidence(shop).is_bytes, "of the copy"
    saved = _save(place)
    _log_is_written(shop)
    shop.sync_or_fail()
    assert _evidence(shop).is_bytes
    (behind,) = shop.rows(
        "SELECT pg_current_wal_lsn() - confirmed_flush_lsn FROM pg_replication_slots"
    )[0]
    assert behind < _MANY_BYTES // 2
    shop.run("UPDATE orders SET state = 'b' WHERE id = 1")
    shop.sync_or_fail()
    assert not _evidence(shop).is_bytes
    _log_is_written(shop)
    shop.sync_or_fail()
    assert _is_same(shop)

    _restore(place, saved)
    # From here on, only the log differs.
    _log_is_written(shop, 3 * _MANY_BYTES)
    shop.run("UPDATE orders SET state = 'seen' WHERE id = 2")
    _fails_and_resync_repairs(shop)


def test_standbys_have_the_same_log_bytes(place: Cluster, version: int) -> None:
    def written(address: str) -> int:
        with connect(address) as connection:
            connection.execute("SELECT pg_logical_emit_message(true, 'test', repeat('x', 90000))")
            return durable_lsn(connection)

    with standby_cluster(place.address, version, wal_level="logical") as other:
        upto = written(place.address)
        early = bytes_before(place.address, upto)
        assert early is not None
        with connect(other.address) as behind:
            while durable_lsn(behind) < upto:
                time.sleep(0.05)
            assert early.is_on_server(other.address)
        other.stop()
        late = bytes_before(place.address, written(place.address))
        assert late is not None
        assert late.is_on_server(place.address)
        place.stop()
        other.start()
        other.promote()
        assert written(other.address) + written(other.address) > 2 * late.lsn
        assert early.is_on_server(other.address)
        assert not late.is_on_server(other.address)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, *draw_seeds("other log", 6)])
def test_a_sync_that_succeeds_has_what_the_server_has(
    shop: Shop, place: Cluster, seed: int
) -> None:
    """A run reads everything or fails, whatever is saved and restored in between."""
    chance = random.Random(seed)
    if chance.choice([True, False]):
        _reads_without_messages(shop)
    saved = [_save(place)]
    shop.sync_or_fail()
    for number in range(6):
        for _ in range(chance.choice([0, 1, 3])):
            shop.run(_statement(chance))
        step = chance.choice(["save", "restore", "restore", "write", "sync"])
        if step == "save":
            saved.append(_save(place))
        elif step == "restore":
            _restore(place, chance.choice(saved), chance.choice(["fast", "immediate"]))
        elif step == "write":
            _log_is_written(shop, chance.choice([1_000, _MANY_BYTES]))
        if shop.sync().status is not Status.SUCCEEDED:
            _log_is_written(shop, chance.choice([1, _MANY_BYTES]))
            if shop.sync().status is not Status.SUCCEEDED:
                shop.sync_or_fail(full_refresh=True)
        assert _is_same(shop), number
    assert shop.agrees()
