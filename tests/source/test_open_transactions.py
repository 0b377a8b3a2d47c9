"""An open transaction delays only the tables that cannot do without its end."""

from __future__ import annotations

from itertools import combinations

import psycopg
import pytest

from chronolake.errors import SourceError
from chronolake.pipeline.store import Status
from chronolake.source.postgres import catalog
from chronolake.source.postgres.check import Checkup
from chronolake.source.postgres.connection import connect
from chronolake.source.postgres.initial_copy import lock_table
from chronolake.source.postgres.slot import Slot, durable_lsn
from chronolake.source.postgres.snapshot import (
    export_snapshot,
    oldest_transaction,
    request_snapshot,
)
from support.source.databases import Shop

_SLOT = Slot("chronolake_shop", "chronolake_shop")


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE plain ADD COLUMN more int",
        "ALTER TABLE parted ADD COLUMN more int",
        "ALTER TABLE part_1 ADD CHECK (id < 10)",
        "TRUNCATE plain, parted",
        "DROP TABLE plain, parted",
        "ALTER TABLE parted DETACH PARTITION part_1",
        "ALTER PUBLICATION chronolake_shop DROP TABLE plain",
        "CREATE TABLE another (id int PRIMARY KEY)",
    ],
)
def test_catalog_queries_do_not_wait_for_locked_tables(
    shop: Shop, address: str, statement: str
) -> None:
    shop.run(
        "CREATE TABLE plain (id int PRIMARY KEY)",
        "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part_1 PARTITION OF parted FOR VALUES FROM (0) TO (100)",
        "CREATE PUBLICATION chronolake_shop FOR TABLE plain, parted "
        "WITH (publish_via_partition_root = true)",
        "SELECT pg_create_logical_replication_slot('chronolake_shop', 'pgoutput')",
    )
    with psycopg.connect(address) as other, connect(address) as connection:
        connection.execute("SET lock_timeout = '2s'")
        other.execute(statement.encode())
        tables = catalog.tables_in(connection, ["public"])
        assert [table.name for table in tables] == ["parted", "plain"]
        checkup = Checkup(address, connection, _SLOT, tables)
        assert not [result for result in checkup.check() if result.level == "failed"]
        assert catalog.published_tables(connection, "chronolake_shop").keys() == {
            table.oid for table in tables
        }
        assert durable_lsn(connection)


def test_locked_table_fails_alone(
    shop: Shop, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chronolake.source.postgres.initial_copy._LOCK_SECONDS", 1)
    shop.run("CREATE TABLE items (id int PRIMARY KEY)")
    with psycopg.connect(address) as other, connect(address) as connection:
        (table,) = catalog.tables_in(connection, ["public"])
        other.execute("ALTER TABLE items ADD COLUMN more int")
        with export_snapshot(address) as snapshot:
            with (
                pytest.raises(SourceError, match=r"public\.items could not be locked") as failed,
                lock_table(address, snapshot, table),
            ):
                pass
            assert str(table.oid) in (failed.value.hint or "")


def test_slot_creation_reports_the_blocking_transaction(
    shop: Shop, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chronolake.source.postgres.check._PATIENCE_SECONDS", 1)
    shop.run("CREATE TABLE items (id int PRIMARY KEY)")
    with psycopg.connect(address) as other, connect(address) as connection:
        other.execute("INSERT INTO items VALUES (1)")
        checkup = Checkup(address, connection, _SLOT, catalog.tables_in(connection, ["public"]))
        with pytest.raises(SourceError, match="blocked a statement for 1 s") as failed:
            checkup.create()
        assert f"process {other.info.backend_pid}" in failed.value.message
        other.commit()
        assert len(checkup.create()) == 1, "the publication was there already"
        assert [
            result.level for result in checkup.check() if result.what == "slot chronolake_shop"
        ] == ["ok"]


def test_prepared_transaction_is_reported_with_a_fix(shop: Shop, address: str) -> None:
    shop.run("CREATE TABLE items (id int PRIMARY KEY)")
    shop.run("BEGIN; INSERT INTO items VALUES (1); PREPARE TRANSACTION 'o''clock'")
    with psycopg.connect(address) as other:
        other.execute("INSERT INTO items VALUES (2)")
        oldest = oldest_transaction(address)
    assert "o'clock" in oldest.reason
    assert "ROLLBACK PREPARED 'o''clock' in" in oldest.hint
    shop.run("ROLLBACK PREPARED 'o''clock'")
    assert "PREPARED" not in oldest_transaction(address).hint


def test_cancelled_snapshot_leaves_nothing_on_the_server(shop: Shop, address: str) -> None:
    shop.run("CREATE TABLE items (id int PRIMARY KEY)")
    with psycopg.connect(address) as other:
        other.execute("INSERT INTO items VALUES (1)")
        with request_snapshot(address) as request:
            assert request.wait(0.5) is None
            assert request.seconds >= 0.5
            request.cancel()
            assert request.wait(30) is None
        assert shop.rows("SELECT count(*) FROM pg_replication_slots") == [(0,)]
        other.commit()
    with request_snapshot(address) as request:
        assert request.wait(30) is not None


def test_published_tables_equal_the_servers_view(shop: Shop, address: str) -> None:
    shop.run(
        "DROP SCHEMA IF EXISTS extra CASCADE",
        "CREATE SCHEMA extra",
        "CREATE TABLE plain (id int PRIMARY KEY, note text, gone int)",
        "ALTER TABLE plain DROP COLUMN gone",
        'CREATE TABLE extra."odd name" (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) '
        "STORED)",
        "CREATE TABLE parted (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)",
        "CREATE TABLE part_1 PARTITION OF parted FOR VALUES FROM (0) TO (100) "
        "PARTITION BY RANGE (id)",
        "CREATE TABLE part_11 PARTITION OF part_1 FOR VALUES FROM (0) TO (10)",
        "CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY)",
    )
    objects = [
        "TABLE plain",
        "TABLE plain (id)",
        "TABLE plain WHERE (id > 1)",
        "TABLE parted",
        'TABLE extra."odd name"',
        "TABLES IN SCHEMA extra",
        "TABLES IN SCHEMA public",
    ]
    listed = ["ALL TABLES", *objects, *(", ".join(two) for two in combinations(objects, 2))]
    tried = 0
    with connect(address) as connection:
        connection.execute("SET search_path = public")
        oids = dict(
            connection.execute(
                "SELECT c.oid::bigint, relname FROM pg_class c JOIN pg_namespace n "
                "ON n.oid = relnamespace WHERE nspname IN ('public', 'extra') "
                "AND relkind IN ('r', 'p') AND NOT relispartition AND relpersistence = 'p'"
            ).fetchall()
        )
        for what in listed:
            connection.execute("DROP PUBLICATION IF EXISTS chronolake_shop")
            try:
                connection.execute(
                    f"CREATE PUBLICATION chronolake_shop FOR {what} "
                    "WITH (publish_via_partition_root = true)".encode()
                )
            except psycopg.Error:
                # The server allows no column lists together with schemas, and no table twice.
                continue
            tried += 1
            reported = connection.execute(
                "SELECT tablename::text, attnames::text[], rowfilter "
                "FROM pg_publication_tables WHERE pubname = 'chronolake_shop'"
            ).fetchall()
            found = catalog.published_tables(connection, "chronolake_shop")
            mine = {
                oids[oid]: (table.columns - {"twice"}, table.row_filter)
                for oid, table in found.items()
                if oid in oids
            }
            assert mine == {
                name: (frozenset(columns) - {"twice"}, row_filter)
                for name, columns, row_filter in reported
            }, what
    assert tried > 15


_LARGE = "repeat(md5(random()::text), 3000)"


@pytest.mark.long
def test_tables_waiting_for_a_snapshot_do_not_delay_others(shop: Shop) -> None:
    again = {
        "moved": "UPDATE moved SET id = 2",
        "rewritten": "VACUUM FULL rewritten",
        "added": "ALTER TABLE added ADD COLUMN more int DEFAULT random() * 9 + 1",
        "retyped": "ALTER TABLE retyped ALTER note TYPE varchar USING note || '!'",
        "emptied": "TRUNCATE emptied_1",
        "labelled": "ALTER TYPE mood RENAME VALUE 'a' TO 'b'",
        "composed": "ALTER TYPE pair ADD ATTRIBUTE more int",
        "unpublished": "ALTER PUBLICATION chronolake_shop DROP TABLE unpublished",
    }
    types = {"labelled": "mood", "composed": "pair"}
    shop.run(
        "CREATE TYPE mood AS ENUM ('a')",
        "CREATE TYPE pair AS (one text)",
        *(
            f"CREATE TABLE {name} (id int PRIMARY KEY, note {types.get(name, 'text')})"
            for name in ("calm", *again)
            if name != "emptied"
        ),
        "CREATE TABLE emptied (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)",
        "CREATE TABLE emptied_1 PARTITION OF emptied FOR VALUES FROM (0) TO (10)",
        "ALTER TABLE moved ALTER note SET STORAGE EXTERNAL",
        *(
            f"INSERT INTO {name} VALUES (1, {'row(1)' if name == 'composed' else repr('a')})"
            for name in ("calm", *again)
        ),
        f"UPDATE moved SET note = {_LARGE}",
        f"CREATE PUBLICATION chronolake_shop FOR TABLE calm, {', '.join(again)} "
        "WITH (publish_via_partition_root = true)",
        "SELECT pg_create_logical_replication_slot('chronolake_shop', 'pgoutput')",
    )
    shop.sync_or_fail()
    shop.configure(more=", snapshot_timeout: 3")
    shop.run(
        *again.values(),
        "ALTER PUBLICATION chronolake_shop ADD TABLE unpublished",
        "CREATE TABLE new (id int PRIMARY KEY, note text)",
        "ALTER PUBLICATION chronolake_shop ADD TABLE new",
        "INSERT INTO new VALUES (1, 'a')",
        "UPDATE calm SET note = 'b'",
    )
    with psycopg.connect(shop.dsn) as open_one:
        open_one.execute("INSERT INTO calm VALUES (2, 'late')")
        result = shop.sync()
        assert result.status is Status.PARTIAL
        failed = {
            stream.stream: f"{stream.error} {stream.hint}"
            for stream in result.streams
            if stream.error
        }
        # When a key changes, the values that the log leaves out are taken from the old key's
        # record.
        waiting = [name for name in ("new", *again) if name != "moved"]
        assert failed.keys() == {f"public.{name}" for name in waiting}
        for words in failed.values():
            assert "within 3 s" in words
            assert f"pg_terminate_backend({open_one.info.backend_pid})" in words
        assert shop.present("calm", ("id", "note")) == [(1, "b")]
        assert shop.present("moved", ("id", "note")) == shop.rows("SELECT id, note FROM moved")
        open_one.commit()

    shop.sync_or_fail()
    assert shop.present("calm", ("id", "note")) == [(1, "b"), (2, "late")]
    for name in ("new", *again):
        assert shop.present(name, ("id", "note")) == sorted(
            shop.rows(f"SELECT id, note::text FROM {name}")
        )
    assert shop.agrees()
