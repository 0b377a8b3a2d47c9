"""The identity of a row on the server, in its log and in each partition."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import psycopg
import pytest

from chronolake.errors import SourceError
from chronolake.pipeline.streams import source_of
from chronolake.source.postgres import catalog
from chronolake.source.postgres.connection import connect, translate_errors
from chronolake.source.postgres.initial_copy import lock_table
from chronolake.source.postgres.snapshot import connect_to_snapshot, export_snapshot
from chronolake.source.protocol import CheckResult, Level
from support.source.databases import Shop


def _findings(shop: Shop, *, create: bool = False) -> dict[str, list[CheckResult]]:
    found: dict[str, list[CheckResult]] = {}
    for result in source_of(shop.project, "shop").check(create=create):
        found.setdefault(result.what, []).append(result)
    return found


def _fix(shop: Shop, stream: str) -> str:
    (result,) = _findings(shop)[stream]
    assert result.level is not Level.OK
    return result.fix or ""


@pytest.mark.long
def test_published_tables_can_still_be_updated(shop: Shop) -> None:
    generated = "g int GENERATED ALWAYS AS (b * 2) STORED"
    shop.run(
        f"CREATE TABLE whole (id int PRIMARY KEY, b int, {generated})",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        f"CREATE TABLE keyed (id int, b int, {generated}, PRIMARY KEY (id, g))",
        f"CREATE TABLE plain (id int PRIMARY KEY, b int, {generated})",
        f"CREATE TABLE parted (id int PRIMARY KEY, b int, {generated}) PARTITION BY RANGE (id)",
        "CREATE TABLE whole_part PARTITION OF parted FOR VALUES FROM (0) TO (9)",
        "ALTER TABLE whole_part REPLICA IDENTITY FULL",
        "CREATE TABLE mute (id int PRIMARY KEY, b int) PARTITION BY RANGE (id)",
        "CREATE TABLE mute_part PARTITION OF mute FOR VALUES FROM (0) TO (9)",
        "ALTER TABLE mute_part REPLICA IDENTITY NOTHING",
    )
    tables = ("whole", "keyed", "plain", "parted", "mute")
    for table in tables:
        shop.run(f"INSERT INTO {table} (id, b) VALUES (1, 1), (2, 2)")
    found = _findings(shop, create=True)
    for table in tables:
        shop.run(f"UPDATE {table} SET b = 3 WHERE id = 1", f"DELETE FROM {table} WHERE id = 2")
    with connect(shop.dsn) as connection:
        is_refused = connection.info.server_version >= 180_000
    assert found["public.plain"][0].level is Level.OK
    assert found["public.mute"][0].level is not Level.OK
    assert _fix(shop, "public.mute") == "ALTER TABLE public.mute_part REPLICA IDENTITY DEFAULT;"
    if is_refused:
        for table, part in (("whole", "whole"), ("parted", "whole_part")):
            mend = f"ALTER TABLE public.{part} REPLICA IDENTITY DEFAULT;"
            assert _fix(shop, f"public.{table}") == mend
            shop.run(mend)
    shop.run("ALTER TABLE mute_part REPLICA IDENTITY DEFAULT")
    found = _findings(shop, create=True)
    assert all(
        found[f"public.{table}"][0].level is Level.OK for table in ("whole", "parted", "mute")
    )
    # A column of its key is not read: the whole row identifies it.
    assert "no primary key" in found["public.keyed"][0].message
    shop.sync_or_fail()
    for table in tables:
        shop.run(f"UPDATE {table} SET b = 4 WHERE id = 1")
    shop.sync_or_fail()
    for table in tables:
        assert [row[:2] for row in shop.versions(table, ("id", "b"))] == [(1, 3), (1, 4)], table


@pytest.mark.long
def test_partition_with_another_replica_identity_is_rejected(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE orders (id int PRIMARY KEY, u int NOT NULL) PARTITION BY RANGE (id)",
        "CREATE TABLE first PARTITION OF orders FOR VALUES FROM (0) TO (100)",
        "CREATE UNIQUE INDEX by_u ON first (u)",
        "INSERT INTO orders SELECT n, -n FROM generate_series(1, 9) n",
    )
    shop.prepare()
    shop.sync_or_fail()
    shop.run("ALTER TABLE first REPLICA IDENTITY USING INDEX by_u")
    shop.run("UPDATE orders SET id = 60 WHERE id = 3", "DELETE FROM orders WHERE id = 4")
    mend = "ALTER TABLE public.first REPLICA IDENTITY DEFAULT;"
    assert _fix(shop, "public.orders") == mend
    (failed,) = shop.sync().streams
    assert "the replica identity of public.first is u" in str(failed.error)
    assert failed.hint == mend
    shop.run(mend)
    # Changes in between were not in the log: the table is copied again.
    shop.sync_or_fail()
    shop.run("UPDATE orders SET u = 0 WHERE id = 60")
    shop.sync_or_fail()
    there = shop.rows("SELECT id, u FROM orders")
    assert shop.present("orders", ("id", "u")) == sorted(there, key=repr)
    assert shop.agrees()


@pytest.mark.long
@pytest.mark.parametrize(
    "method", ["snapshot_diff", pytest.param("logical_replication", marks=pytest.mark.long)]
)
def test_rows_are_identified_by_the_whole_key(shop: Shop, method: str) -> None:
    shop.run(
        "CREATE TABLE pairs (a int, b int, g int GENERATED ALWAYS AS (b * 2) STORED, "
        "PRIMARY KEY (a, g))",
        "INSERT INTO pairs VALUES (1, 1), (1, 2), (2, 1)",
        "CREATE TABLE loose (id int NOT NULL) PARTITION BY RANGE (id)",
        "CREATE TABLE loose_part PARTITION OF loose FOR VALUES FROM (0) TO (9)",
        # It is not a key of the partition's rows yet.
        "ALTER TABLE ONLY loose ADD PRIMARY KEY (id)",
        "INSERT INTO loose VALUES (1), (1), (2)",
    )
    shop.configure(method=method)
    _findings(shop, create=True)
    shop.sync_or_fail()
    shop.run("UPDATE pairs SET b = 3 WHERE b = 2", "DELETE FROM loose WHERE id = 2")
    shop.sync_or_fail()
    assert shop.present("pairs", ("a", "b")) == [(1, 1), (1, 3), (2, 1)]
    assert shop.present("loose", ("id",)) == [(1,), (1,)]


def test_a_slot_of_another_database_is_left_alone(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY)", "CREATE DATABASE other")
    other = shop.dsn.rpartition("/")[0] + "/other"
    make = "SELECT pg_create_logical_replication_slot('chronolake_shop', 'pgoutput')"
    with psycopg.connect(other, autocommit=True) as connection:
        connection.execute(make)
    try:
        (found,) = _findings(shop)["slot chronolake_shop"]
        assert "belongs to another database" in found.message
        assert "drop" not in str(found.fix)
        assert "`slot: …`" in str(found.fix)
        shop.configure(method="snapshot_diff")
        assert "slot chronolake_shop" not in _findings(shop)
    finally:
        with psycopg.connect(other, autocommit=True) as connection:
            connection.execute("SELECT pg_drop_replication_slot('chronolake_shop')")
        shop.run("DROP DATABASE other")


def test_fix_for_an_unreadable_partition_works(shop: Shop) -> None:
    shop.run(
        "DROP ROLE IF EXISTS reader",
        "CREATE ROLE reader LOGIN PASSWORD 'of-the-reader'",
        "CREATE TABLE orders (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE first PARTITION OF orders FOR VALUES FROM (0) TO (100)",
        "CREATE SCHEMA IF NOT EXISTS apart",
        "CREATE TABLE apart.second PARTITION OF orders FOR VALUES FROM (100) TO (200)",
        "GRANT USAGE ON SCHEMA public TO reader",
        "GRANT SELECT ON orders TO reader",
        "INSERT INTO orders VALUES (1), (100)",
    )
    owner = shop.dsn
    shop.dsn = f"postgresql://reader:of-the-reader@{owner.partition('@')[2]}"
    shop.configure(method="snapshot_diff")
    mend = _fix(shop, "public.orders")
    assert mend == (
        'GRANT USAGE ON SCHEMA apart TO "reader"; '
        'GRANT SELECT ON public.first, apart.second TO "reader";'
    )
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(mend.encode())
    assert _findings(shop)["public.orders"][0].level is Level.OK
    shop.sync_or_fail()
    assert shop.present("orders", ("id",)) == [(1,), (100,)]
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute("DROP OWNED BY reader")
        connection.execute("DROP SCHEMA apart CASCADE")


def test_concurrent_statement_does_not_wait_forever(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chronolake.source.postgres.snapshot._LOCK_SECONDS", 1)
    shop.run("CREATE TABLE orders (id int PRIMARY KEY)")
    with connect(shop.dsn) as connection:
        (table,) = catalog.tables_in(connection, ["public"])
    changing = threading.Thread(target=shop.run, args=("ALTER TABLE orders ADD more int",))
    with ExitStack() as until_read:
        snapshot = until_read.enter_context(export_snapshot(shop.dsn))
        until_read.enter_context(lock_table(shop.dsn, snapshot, table))
        changing.start()
        waits = (
            "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'ALTER%'"
        )
        while not shop.rows(waits):
            time.sleep(0.05)
        with (
            pytest.raises(SourceError, match="Another statement") as refused,
            connect_to_snapshot(shop.dsn, snapshot) as reading,
            translate_errors(),
        ):
            reading.execute("SELECT FROM public.orders")
        assert "the statement can continue now" in str(refused.value.hint)
    changing.join(timeout=30)
    assert not changing.is_alive()
    assert shop.rows("SELECT more FROM orders") == []


@pytest.mark.parametrize("is_large", [True, False])
@pytest.mark.long
def test_a_clock_set_back_after_a_crash_does_not_change_the_order(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, *, is_large: bool
) -> None:
    if is_large:
        monkeypatch.setattr("chronolake.source.postgres.snapshot_diff.diff._LEAST_PAGES", 0)
    shop.configure(method="snapshot_diff")
    shop.run(
        "CREATE TABLE orders (id int PRIMARY KEY, state text)",
        "INSERT INTO orders VALUES (1, 'a'), (2, 'a'), (3, 'a')",
    )
    shop.sync_or_fail()
    shop.run("UPDATE orders SET state = 'b' WHERE id = 1", "DELETE FROM orders WHERE id = 3")
    with monkeypatch.context() as patched:
        patched.setenv("CHRONOLAKE_FAILPOINT", "land.done=raise")
        shop.sync()
    shop.run("UPDATE orders SET state = 'c' WHERE id = 1", "INSERT INTO orders VALUES (3, 'd')")
    hour = 3_600_000_000
    with monkeypatch.context() as patched:
        patched.setattr(
            "chronolake.source.postgres.snapshot._server_micros",
            lambda _: time.time_ns() // 1_000 - hour,
        )
        shop.sync_or_fail()
    shop.run("DELETE FROM orders WHERE id = 2")
    shop.sync_or_fail()
    assert shop.states("orders", ("id",), ("state",)) == {
        (1,): [("a",), ("b",), ("c",)],
        (2,): [("a",), None],
        # The record was deleted for the microsecond between the two times.
        (3,): [("a",), ("d",)],
    }
    assert shop.agrees()


def test_names_with_backticks_are_read_and_compared(shop: Shop) -> None:
    shop.configure(method="snapshot_diff")
    shop.run(
        'CREATE TABLE odd ("k`" int PRIMARY KEY, "b`q" text, "``" int)',
        "INSERT INTO odd VALUES (1, 'a', 1), (2, 'a', 2)",
    )
    shop.sync_or_fail()
    shop.run('UPDATE odd SET "b`q" = \'b\' WHERE "k`" = 1', 'DELETE FROM odd WHERE "k`" = 2')
    shop.sync_or_fail()
    assert shop.states("odd", ("k`",), ("b`q", "``")) == {
        (1,): [("a", 1), ("b", 1)],
        (2,): [("a", 2), None],
    }


def test_tables_without_a_log_are_compared(shop: Shop) -> None:
    shop.run("CREATE UNLOGGED TABLE visits (id int PRIMARY KEY)", "INSERT INTO visits VALUES (1)")
    assert shop.capture_methods() == {}
    shop.configure(method="snapshot_diff")
    shop.sync_or_fail()
    shop.run("INSERT INTO visits VALUES (2)", "ALTER TABLE visits SET LOGGED")
    shop.sync_or_fail()
    assert shop.present("visits", ("id",)) == [(1,), (2,)]


@pytest.mark.long
@pytest.mark.parametrize(
    "method", ["snapshot_diff", pytest.param("logical_replication", marks=pytest.mark.long)]
)
def test_run_gives_way_to_a_concurrent_statement(shop: Shop, method: str) -> None:
    shop.run(
        "CREATE TABLE bulk (id int PRIMARY KEY, filler text)",
        "ALTER TABLE bulk ALTER filler SET STORAGE PLAIN",
        # Large enough for fingerprints.
        "INSERT INTO bulk SELECT n, repeat('x', 3800) FROM generate_series(1, 9000) n",
    )
    shop.prepare()
    shop.configure(method=method)
    held = (
        "SELECT 1 FROM pg_locks JOIN pg_stat_activity USING (pid) "
        "WHERE relation = 'bulk'::regclass AND application_name = 'chronolake' "
        "AND mode = 'AccessShareLock' AND granted"
    )

    def change() -> None:
        with psycopg.connect(shop.dsn, autocommit=True) as connection:
            while not connection.execute(held.encode()).fetchone():
                time.sleep(0.005)
            connection.execute("ALTER TABLE bulk ADD more int")

    changing = threading.Thread(target=change)
    changing.start()
    result = shop.sync()
    changing.join(timeout=60)
    assert not changing.is_alive()
    # The change may have come after all tasks had begun.
    for failed in (stream for stream in result.streams if stream.error):
        assert "Another statement was about to alter the table" in str(failed.error)
        assert "Run it again" in str(failed.error)
    shop.sync_or_fail()
    assert len(shop.present("bulk", ("id", "more"))) == 9_000
    assert shop.agrees()


@pytest.mark.long
def test_a_damaged_file_of_the_raw_lake_stops_its_own_table_only(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY)", "CREATE TABLE others (id int PRIMARY KEY)")
    shop.run("INSERT INTO orders VALUES (1)", "INSERT INTO others VALUES (1)")
    shop.configure(method="snapshot_diff")
    shop.sync_or_fail()
    (file,) = (shop.project.lake.path / "raw" / "parquet").rglob("*public.orders/**/data-*.parquet")
    whole = file.read_bytes()
    file.write_bytes(whole[:-8])
    shop.run("INSERT INTO orders VALUES (2)", "INSERT INTO others VALUES (2)")
    result = shop.sync(full_refresh=True)
    (failed,) = (stream for stream in result.streams if stream.error)
    assert failed.stream == "public.orders"
    assert str(file) in str(failed.error)
    assert "Restore the file" in str(failed.hint)
    assert shop.present("others", ("id",)) == [(1,), (2,)]
    file.write_bytes(whole)
    shop.sync_or_fail(full_refresh=True)
    assert shop.present("orders", ("id",)) == [(1,), (2,)]
