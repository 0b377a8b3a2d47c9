"""Fingerprints show which rows of a table have changed since it was read."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_database import TYPES

from chronolake.errors import SourceError
from chronolake.landing.layout import ObjectFolder
from chronolake.source.postgres import catalog
from chronolake.source.postgres.connection import connect
from chronolake.source.postgres.initial_copy import PageRange, lock_table, rows_where
from chronolake.source.postgres.snapshot import DatabaseSnapshot, export_snapshot
from chronolake.source.postgres.snapshot_diff.ctid_ranges import (
    EXISTS,
    PART,
    KeyComparison,
    find_differing_rows,
    match_by_key,
)
from chronolake.source.postgres.snapshot_diff.fingerprints import (
    PLACE,
    ROW,
    FingerprintFolder,
    FingerprintQuery,
    Fingerprints,
)
from support.source.databases import Shop

#: Two rows of this text fill a page: tables soon become large enough for fingerprints.
_WIDE: Final = "x" * 3_800
_NUMBERS: Final = "generate_series(1, 9000) n"
_BULK: Final = (
    "CREATE TABLE bulk (shop text, n int, state text, filler text, PRIMARY KEY (shop, n))",
    "ALTER TABLE bulk ALTER filler SET STORAGE PLAIN",
    f"INSERT INTO bulk SELECT 'é,\"\n' || n % 3, n, 'new', '{_WIDE}' FROM {_NUMBERS}",
)

#: Row hashes: by their places on some pages, and by the keys of a table.
_Rows = dict[int, int]
_KEYS: Final = ("key0", "key1")


@pytest.fixture
def bulk(shop: Shop) -> Shop:
    """Return a shop with a copied table that is large enough for fingerprints."""
    shop.configure(method="snapshot_diff")
    shop.run(*_BULK)
    shop.sync_or_fail()
    return shop


def _fingerprints_by_place(rows: _Rows) -> pa.Table:
    """Return the fingerprints of rows, by their places."""
    places = sorted(rows)
    columns = {PLACE: places, ROW: [rows[place] for place in places], "key0": places}
    return pa.table({name: pa.array(cells, pa.int64()) for name, cells in columns.items()})


_rows = st.dictionaries(st.integers(0, 12), st.integers(-1, 1), max_size=12)


@given(_rows, _rows)
def test_rows_that_differ_at_their_ctid_equal_a_plain_comparison(now: _Rows, before: _Rows) -> None:
    differs, has_gone = find_differing_rows(
        _fingerprints_by_place(now), _fingerprints_by_place(before)
    )

    assert [sorted(now)[n] for n in differs] == [
        place for place in sorted(now) if before.get(place) != now[place]
    ]
    assert [sorted(before)[n] for n in has_gone] == [
        place for place in sorted(before) if now.get(place) != before[place]
    ]


def _differing_rows(
    now: Mapping[tuple[int, str], int], before: Mapping[tuple[int, str], int]
) -> pa.Table:
    """Return the rows that differ by place: their keys and hashes."""
    sides = [*((*key, row, 0) for key, row in now.items())]
    sides += [(*key, row, None) for key, row in before.items()]
    numbers, texts, hashes, parts = zip(*sides, strict=True) if sides else ((),) * 4
    return pa.table(
        {
            PART: pa.array(parts, pa.int32()),
            PLACE: pa.array(range(len(sides)), pa.int64()),
            ROW: pa.array(hashes, pa.int64()),
            "key0": pa.array(numbers, pa.int64()),
            "key1": pa.array(texts, pa.string()),
        }
    )


_by_key = st.dictionaries(
    st.tuples(st.integers(-2, 2), st.sampled_from(["", "a", "é"])), st.integers(-1, 1), max_size=9
)


@given(_by_key, _by_key)
def test_differences_equal_a_plain_comparison(
    now: dict[tuple[int, str], int], before: dict[tuple[int, str], int]
) -> None:
    found = match_by_key(_differing_rows(now, before), _KEYS)

    keys = list(now)
    assert {keys[place] for place in found.changed[PLACE].to_pylist()} == {
        key for key in now if before.get(key) != now[key]
    }
    gone = [tuple(row[name] for name in _KEYS) for row in found.deleted_keys.to_pylist()]
    assert sorted(gone) == sorted(before.keys() - now.keys())
    assert found.are_distinguishable


def test_rows_with_equal_keys_are_indistinguishable() -> None:
    once = {(1, "a"): 5}
    twice = pa.concat_tables(
        [_differing_rows(once, {}), _differing_rows({(1, "a"): 6}, {(2, "b"): 1})]
    )
    assert not match_by_key(twice, _KEYS).are_distinguishable
    by_key = KeyComparison("", DatabaseSnapshot("", 0, 0), ("t",), ("id", "shop"), ("id", "shop"))
    (reported,) = by_key(twice.to_batches())
    assert reported[EXISTS].to_pylist() == [None]


def _store_fingerprints(folder: Path, *tables: pa.Table) -> Fingerprints:
    kept = Fingerprints(folder)
    for number, rows in enumerate(tables):
        with kept.create_file(7, number * 100, rows.schema) as file:
            half = rows.num_rows // 2
            file.write(rows.slice(0, half))
            file.write(rows.slice(half))
    return kept


def test_fingerprints_are_kept_by_their_pages(tmp_path: Path) -> None:
    first, second = _fingerprints_by_place({1: 1, 2: 5, 9: -7}), _fingerprints_by_place({})
    kept = _store_fingerprints(tmp_path, first, second)
    files = kept.files()
    assert files.keys() == {(7, 0), (7, 100)}
    assert kept.read(files[7, 0]).equals(first)
    assert kept.read(files[7, 100]).equals(second)
    assert (kept.rows, kept.are_undamaged) == (3, True)
    _store_fingerprints(tmp_path, first, second)
    assert kept.files() == files, "the same again is the same file"


def test_damaged_fingerprints_are_an_error(tmp_path: Path) -> None:
    kept = _store_fingerprints(tmp_path, _fingerprints_by_place({1: 1, 2: 2}))
    (file,) = tmp_path.iterdir()
    data = bytearray(file.read_bytes())
    data[-30] ^= 1
    file.write_bytes(data)
    assert not kept.are_undamaged
    with pytest.raises(SourceError, match="damaged or missing"):
        kept.read(file.name)
    file.unlink()
    with pytest.raises(SourceError, match="Run it again"):
        kept.read(file.name)


@pytest.mark.parametrize("other", ["way", "server", "major", "table", "key", "columns"])
def test_fingerprints_with_other_metadata_are_ignored(tmp_path: Path, other: str) -> None:
    says: dict[str, object] = {"way": 1, "server": 7, "major": 18, "table": 5, "key": ["id"]}
    says["columns"] = [[1, "id", 23, -1]]
    folder = FingerprintFolder(tmp_path / "made", ObjectFolder(tmp_path, "shop", "orders"))
    made = folder.create()
    _store_fingerprints(made.path, _fingerprints_by_place({1: 1}))
    assert folder.load(made.name, says) is None, "they are not finished"
    folder.finish(made, says)
    assert folder.load(made.name, says) == made
    assert folder.load(made.name, {**says, other: 9}) is None
    (file,) = made.path.glob("pages-*")
    file.unlink()
    assert folder.load(made.name, says) is None, "not all of them are there"


@pytest.mark.long
def test_values_that_read_differently_have_other_fingerprints(address: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        for statement in (
            "DROP TABLE IF EXISTS every",
            "DROP TYPE IF EXISTS mood, pair CASCADE",
            "DROP DOMAIN IF EXISTS positive, cents, amount",
            "CREATE TYPE mood AS ENUM ('so so', 'fine')",
            "CREATE DOMAIN positive AS int CHECK (value > 0)",
            "CREATE DOMAIN amount AS numeric(10,2)",
            "CREATE DOMAIN cents AS amount",
            "CREATE TYPE pair AS (a int, b text)",
        ):
            connection.execute(statement.encode())
        more = {
            "int8": ["1", "4294967296", "-1", "-4294967297"],
            "timestamp": ["'2024-01-01'", "timestamp '2024-01-01' + interval '4294.967295 s'"],
            "float8": ["0", "'-0'", "1", "'NaN'", "-'NaN'::float8"],
            "numeric": ["1.0", "1.00", "'NaN'", "0", "5", "-5", "'Infinity'"],
            "numeric(9,2)": ["5", "-5", "0", "500"],
            "bpchar": ["'a'", "'a '", "''"],
            "interval": ["'1 day'", "'24:00:00'"],
            "timetz": ["'12:00+00'", "'13:00+01'"],
            "jsonb": ["'{\"a\": 1.0}'", "'{\"a\": 1.00}'"],
            "json": ["'{}'", "'{ }'"],
            "name": ["'a'", "'b'"],
            "int4[]": ["'{1,NULL}'", "'{NULL,1}'"],
            "text": ["''", "'a'", "'A'", "'a '"],
        }
        kinds = [(kind.removesuffix("_beyond"), values) for kind, values in TYPES.items()]
        for kind, values in (*kinds, *more.items()):
            connection.execute("DROP TABLE IF EXISTS every")
            connection.execute(f"CREATE TABLE every (id int PRIMARY KEY, c {kind})".encode())
            for number, value in enumerate([*values, *values, "NULL"]):
                connection.execute(f"INSERT INTO every VALUES ({number}, {value})".encode())
            _expect_distinguishable(address, kind)


def _expect_distinguishable(address: str, kind: str) -> None:
    with export_snapshot(address) as snapshot, connect(address) as connection:
        (table,) = catalog.tables_in(connection, ["public"])
        with lock_table(address, snapshot, table) as held:
            key, value = held.table.columns
            (part,) = held.parts
            making = FingerprintQuery((value,), (key,))
            ((_, found),) = making.read(connection, PageRange(part, 0, None, 1))
            (read,) = rows_where(connection, part.relation, psycopg.sql.SQL("true"), ["id", "c"])
    texts = dict(zip(read["id"].to_pylist(), read["c"].to_pylist(), strict=True))
    numbers = map(str, found["key0"].to_pylist())
    hashes = dict(zip(numbers, found[ROW].to_pylist(), strict=True))
    assert len(hashes) == len(texts)
    by_text: dict[str | None, set[int]] = {}
    for number, text in texts.items():
        by_text.setdefault(text, set()).add(hashes[number])
    assert all(len(same) == 1 for same in by_text.values()), kind
    assert len(set.union(*by_text.values())) == len(by_text), kind


@pytest.mark.long
def test_only_what_differs_is_read_and_landed(bulk: Shop) -> None:
    bulk.run(
        "UPDATE bulk SET state = 'paid' WHERE n % 1000 = 1",
        "DELETE FROM bulk WHERE n = 5000",
        "INSERT INTO bulk VALUES ('late', 1, 'new', NULL)",
        # These rows get the values that they already have.
        "UPDATE bulk SET state = 'new' WHERE n % 1000 = 2",
    )
    result = bulk.sync()

    (run,) = result.streams
    assert (run.landed_rows, run.rows_read, run.written) == (9 + 1 + 1, 9_000, 9 + 9 + 1 + 1)
    states = bulk.states("bulk", ("shop", "n"), ("state",))
    changed = {
        key: [state and state[0] for state in reported]
        for key, reported in states.items()
        if reported != [("new",)]
    }
    assert changed == {
        **{(f'é,"\n{n % 3}', n): ["new", "paid"] for n in range(1, 9_001, 1_000)},
        ('é,"\n2', 5_000): ["new", None],
    }
    assert states["late", 1] == [("new",)]
    assert bulk.agrees()
    # Nothing differs any more.
    (run,) = bulk.sync().streams
    assert (run.landed_rows, run.rows_read) == (0, 9_000)


@pytest.mark.long
def test_pages_may_be_left_without_a_row(bulk: Shop) -> None:
    bulk.run("DELETE FROM bulk")
    bulk.sync_or_fail()
    assert bulk.present("bulk", ("n",)) == []
    bulk.run("INSERT INTO bulk VALUES ('late', 1, 'new', NULL)")
    bulk.sync_or_fail()
    assert bulk.present("bulk", ("n",)) == [(1,)]
    assert bulk.agrees()


@pytest.fixture
def ranges(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """Return a shop whose tables are compared by fingerprints of a few pages each."""
    monkeypatch.setattr("chronolake.source.postgres.snapshot_diff.diff._LEAST_PAGES", 0)
    monkeypatch.setattr("chronolake.source.postgres.initial_copy._RANGE_PAGES", 3)
    shop.configure(method="snapshot_diff")
    return shop


def _count_landed_rows(shop: Shop) -> int | None:
    """Run a sync and return the number of rows of the table that it lands."""
    (run,) = (stream for stream in shop.sync().streams if stream.stream == "public.bulk")
    assert run.error is None
    return run.landed_rows


@pytest.mark.long
def test_moved_rows_are_unchanged(ranges: Shop) -> None:
    ranges.run(
        "CREATE TABLE bulk (n bigint, day date, state text, PRIMARY KEY (n, day))",
        "INSERT INTO bulk SELECT -n, date '2024-01-01' + n, 'new' FROM generate_series(1, 3000) n",
    )
    ranges.sync_or_fail()
    # Half of the pages are removed; the others are rewritten in another order.
    ranges.run("DELETE FROM bulk WHERE n % 2 = 0", "CLUSTER bulk USING bulk_pkey")
    assert _count_landed_rows(ranges) == 1_500
    ranges.run("UPDATE bulk SET state = 'paid' WHERE n = -7", "VACUUM FULL bulk")
    assert _count_landed_rows(ranges) == 1
    # The table grows by new ranges, and free space is used again.
    ranges.run(
        "DELETE FROM bulk WHERE n < -2900",
        "VACUUM bulk",
        "INSERT INTO bulk SELECT n, date '2024-01-01', 'late' FROM generate_series(1, 4000) n",
    )
    assert _count_landed_rows(ranges) == 4_000 + 50
    ranges.run("TRUNCATE bulk")
    assert _count_landed_rows(ranges) == 4_000 + 1_450
    assert _count_landed_rows(ranges) == 0
    ranges.run("INSERT INTO bulk VALUES (1, '2024-01-01', 'again')")
    assert _count_landed_rows(ranges) == 1
    assert ranges.states("bulk", ("n",), ("state",))[-7,] == [("new",), ("paid",), None]
    assert ranges.states("bulk", ("n",), ("state",))[1,] == [("late",), None, ("again",)]
    assert ranges.agrees()


@pytest.mark.long
def test_partitions_can_be_attached_and_detached(ranges: Shop) -> None:
    ranges.run(
        "CREATE TABLE bulk (n int, state text, PRIMARY KEY (n)) PARTITION BY RANGE (n)",
        "CREATE TABLE low PARTITION OF bulk FOR VALUES FROM (0) TO (1000)",
        "INSERT INTO bulk SELECT n, 'new' FROM generate_series(0, 999) n",
    )
    ranges.sync_or_fail()
    ranges.run(
        "CREATE TABLE high (LIKE bulk INCLUDING ALL)",
        "INSERT INTO high SELECT n, 'new' FROM generate_series(1000, 1999) n",
        "ALTER TABLE bulk ATTACH PARTITION high FOR VALUES FROM (1000) TO (2000)",
    )
    assert _count_landed_rows(ranges) == 1_000
    ranges.run("ALTER TABLE low RENAME TO lowest", "UPDATE bulk SET state = 'paid' WHERE n = 5")
    assert _count_landed_rows(ranges) == 1
    # One row moves from one partition to the other, and becomes equal to an earlier row there.
    ranges.run("DELETE FROM bulk WHERE n IN (5, 1500)", "UPDATE bulk SET n = 1500 WHERE n = 6")
    assert _count_landed_rows(ranges) == 2
    ranges.run("ALTER TABLE bulk DETACH PARTITION lowest")
    assert _count_landed_rows(ranges) == 998
    assert len(ranges.present("bulk", ("n",))) == 1_000
    assert ranges.agrees()


def test_partition_attached_during_a_read_is_detected(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE bulk (n int PRIMARY KEY) PARTITION BY RANGE (n)",
        "CREATE TABLE low PARTITION OF bulk FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE high (n int PRIMARY KEY)",
        "CREATE TABLE plain (n int PRIMARY KEY)",
    )
    with connect(shop.dsn) as connection:
        plain, bulk = (
            next(table for table in catalog.tables_in(connection, ["public"]) if table.name == name)
            for name in ("plain", "bulk")
        )
    with export_snapshot(shop.dsn) as snapshot:
        for table in (plain, bulk):
            with lock_table(shop.dsn, snapshot, table) as held:
                assert not held.has_new_parts
        shop.run("ALTER TABLE bulk ATTACH PARTITION high FOR VALUES FROM (10) TO (20)")
        with lock_table(shop.dsn, snapshot, bulk) as held:
            assert held.has_new_parts


def _expect_right(shop: Shop) -> None:
    there = sorted(shop.rows("SELECT n, state FROM bulk"), key=repr)
    assert shop.present("bulk", ("n", "state")) == there
    assert shop.agrees()


@pytest.mark.long
def test_fingerprints_are_valid_only_for_the_last_landed_file(
    bulk: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = bulk.project.lake.path / "raw" / "_fingerprints"
    # The change that landed before the run died is undone in the source, where nothing shows it any
    # more.
    for full_refresh, change, undone in (
        (False, "UPDATE bulk SET state = 'paid' WHERE n = 1", "UPDATE bulk SET state = 'new'"),
        (True, "UPDATE bulk SET state = 'paid' WHERE n = 2", "UPDATE bulk SET state = 'new'"),
        (False, "ALTER TABLE bulk ADD more int DEFAULT 1", "ALTER TABLE bulk DROP more"),
    ):
        bulk.run(change)
        with monkeypatch.context() as patched:
            patched.setenv("CHRONOLAKE_FAILPOINT", "land.done=raise")
            bulk.sync(full_refresh=full_refresh)
        bulk.run(undone)
        bulk.sync_or_fail()
        _expect_right(bulk)
    # The fingerprints are missing, or damaged.
    (reported,) = folder.rglob("fingerprints.json")
    reported.unlink()
    bulk.run("UPDATE bulk SET state = 'paid' WHERE n = 7")
    bulk.sync_or_fail()
    (file, *_) = sorted(folder.rglob("pages-*"))
    file.write_bytes(file.read_bytes()[:-1])
    bulk.run("UPDATE bulk SET state = 'sent' WHERE n = 7")
    bulk.sync_or_fail()
    assert bulk.states("bulk", ("n",), ("state",))[7,][-2:] == [("paid",), ("sent",)]
    # Their column has another name.
    bulk.sync_or_fail()
    bulk.run("ALTER TABLE bulk RENAME state TO condition")
    bulk.sync_or_fail()
    bulk.run("ALTER TABLE bulk RENAME condition TO state")
    bulk.sync_or_fail()
    _expect_right(bulk)
    # The landed rows are no longer there.
    shutil.rmtree(bulk.project.lake.path / "raw" / "parquet")
    bulk.configure(method="snapshot_diff", streams="{public.bulk: {table: fresh}}")
    bulk.sync_or_fail()
    assert len(bulk.present("fresh", ("n",))) == 9_000
    # A failure to store fingerprints is reported.
    shutil.rmtree(folder)
    folder.write_text("", encoding="utf-8")
    (failed,) = bulk.sync().streams
    assert failed.error is not None
    assert "cannot be stored" in failed.error
    assert "run it again" in str(failed.hint)


@pytest.mark.long
def test_fingerprints_do_not_outlive_a_while_with_the_log(
    bulk: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    bulk.run("UPDATE bulk SET state = 'paid' WHERE n = 1")
    bulk.prepare()
    bulk.configure(method="logical_replication")
    with monkeypatch.context() as patched:
        patched.setenv("CHRONOLAKE_FAILPOINT", "land.done=raise")
        bulk.sync()
    bulk.run("UPDATE bulk SET state = 'new'")
    bulk.configure(method="snapshot_diff")
    bulk.sync_or_fail()
    _expect_right(bulk)
    # Changes have now been read from the log.
    bulk.configure(method="logical_replication")
    bulk.sync_or_fail()
    bulk.run("UPDATE bulk SET state = 'sent' WHERE n = 2")
    bulk.sync_or_fail()
    bulk.run("UPDATE bulk SET state = 'new' WHERE n = 2")
    bulk.configure(method="snapshot_diff")
    bulk.sync_or_fail()
    _expect_right(bulk)
    assert bulk.states("bulk", ("n",), ("state",))[2,] == [("new",), ("sent",), ("new",)]


@pytest.mark.long
def test_a_resync_compares_all_rows_with_the_table(bulk: Shop) -> None:
    bulk.lake.spark.sql("UPDATE chronolake.shop.bulk SET _chronolake_hash = 7 WHERE n = 2")
    bulk.sync_or_fail()
    assert not bulk.agrees(), "a table that somebody has changed is not looked at"
    bulk.sync_or_fail(full_refresh=True)
    assert bulk.agrees()


def test_keys_that_are_equal_in_the_lake_are_compared_there(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chronolake.source.postgres.snapshot_diff.diff._LEAST_PAGES", 0)
    shop.configure(method="snapshot_diff")
    shop.run(
        "CREATE TABLE points (at float8 PRIMARY KEY, note text)",
        "INSERT INTO points VALUES (0, 'a'), ('NaN', 'b'), (1, 'c')",
    )
    shop.sync_or_fail()
    shop.run("UPDATE points SET at = '-0' WHERE at = 0", "UPDATE points SET at = -at WHERE at > 1")
    shop.sync_or_fail()
    shop.sync_or_fail()
    assert sorted(note for (note,) in shop.present("points", ("note",))) == ["a", "b", "c"]
    assert shop.agrees()
