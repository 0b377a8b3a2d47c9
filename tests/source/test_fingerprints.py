"""Fingerprints tell which rows of a table have changed since it was read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import psycopg
import pyarrow as pa
import pytest
from databases import Shop
from hypothesis import given
from hypothesis import strategies as st
from test_database import TYPES

from chronolake.errors import SourceError
from chronolake.rawlake.layout import ObjectFolder
from chronolake.source.postgres import catalog
from chronolake.source.postgres.connection import connected
from chronolake.source.postgres.copying import held_table, rows_where
from chronolake.source.postgres.difference.fingerprints import (
    KEY,
    PART,
    PLACE,
    ROW,
    Fingerprinting,
    schema_of,
    share_of,
    to_stream,
)
from chronolake.source.postgres.difference.kept import FingerprintFolder, Fingerprints
from chronolake.source.postgres.difference.shares import Comparing, differing
from chronolake.source.postgres.snapshot import DatabaseSnapshot, exported_snapshot

#: Rows of this text fill a page by two: tables become large enough for fingerprints soon.
_WIDE: Final = "x" * 3_800
_NUMBERS: Final = "generate_series(1, 9000) n"
_BULK: Final = (
    "CREATE TABLE bulk (shop text, n int, state text, filler text, PRIMARY KEY (shop, n))",
    "ALTER TABLE bulk ALTER filler SET STORAGE PLAIN",
    f"INSERT INTO bulk SELECT 'é,\"\n' || n % 3, n, 'new', '{_WIDE}' FROM {_NUMBERS}",
)

_Rows = dict[int, tuple[str, int]]


@pytest.fixture
def bulk(shop: Shop) -> Shop:
    """A shop with a table that is large enough for fingerprints, and has been read."""
    shop.configure(method="snapshot_diff")
    shop.run(*_BULK)
    shop.synced()
    return shop


def _table(rows: _Rows, *, placed: bool = False) -> pa.Table:
    """Fingerprints: by the hash of each key its text, and the hash of its row."""
    keys = sorted(rows)
    columns = {KEY: pa.array(keys, pa.uint64()), ROW: pa.array([rows[k][1] for k in keys])}
    if placed:
        columns |= {PART: pa.array([0] * len(keys)), PLACE: pa.array(range(len(keys)))}
    columns["text0"] = pa.array([rows[key][0] for key in keys])
    wanted = [field for field in schema_of(["id"]) if field.name in columns]
    return pa.table(columns).cast(pa.schema(wanted))


_rows = st.dictionaries(
    st.integers(0, 2**64 - 1) | st.integers(0, 5),
    st.tuples(st.sampled_from("abc"), st.integers(-1, 1)),
    max_size=12,
)


@given(_rows, _rows)
def test_what_differs_is_what_a_plain_look_finds(now: _Rows, before: _Rows) -> None:
    changed, gone = differing(_table(now), _table(before))

    assert [sorted(now)[n] for n in changed] == sorted(
        key for key in now if key not in before or now[key][1] != before[key][1]
    )
    # Of two keys with one hash and other rows, one has come and the other one has gone.
    assert [sorted(before)[n] for n in gone] == sorted(
        key
        for key, (text, row) in before.items()
        if key not in now or (now[key][1] != row and now[key][0] != text)
    )


@given(_rows, st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]))
def test_fingerprints_can_be_read_in_another_number_of_shares(
    tmp_path_factory: pytest.TempPathFactory, rows: _Rows, written: int, read: int
) -> None:
    kept = Fingerprints(tmp_path_factory.mktemp("kept"), written)
    every = _table(rows)
    places = share_of(every[KEY].to_numpy(), written)
    for share in range(written):
        kept.write(share, every.filter(pa.array(places == share)))
    found = [kept.read(share, read) for share in range(read)]
    assert pa.concat_tables(found).equals(every)
    assert kept.rows == len(rows)
    assert kept.are_whole


def test_damaged_fingerprints_are_an_error(tmp_path: Path) -> None:
    kept = Fingerprints(tmp_path, 1)
    kept.write(0, _table({1: ("a", 1), 2: ("b", 2)}))
    (file,) = tmp_path.iterdir()
    data = bytearray(file.read_bytes())
    data[-30] ^= 1
    file.write_bytes(data)
    assert kept.are_all_there
    assert not kept.are_whole
    with pytest.raises(SourceError, match="damaged or gone"):
        kept.read(0, 1)
    file.unlink()
    with pytest.raises(SourceError, match="Run it again"):
        kept.read(0, 1)


@pytest.mark.parametrize("other", ["way", "server", "major", "table", "key", "columns"])
def test_fingerprints_that_were_made_otherwise_do_not_count(tmp_path: Path, other: str) -> None:
    says: dict[str, object] = {"way": 1, "server": 7, "major": 18, "table": 5, "key": ["id"]}
    says["columns"] = [[1, "id", 23, -1]]
    folder = FingerprintFolder(tmp_path / "made", ObjectFolder(tmp_path, "shop", "orders"))
    made = folder.begun(1)
    made.write(0, _table({1: ("a", 1)}))
    assert folder.recalled(made.name, says) is None, "they are not finished"
    folder.finish(made, says)
    assert folder.recalled(made.name, says) == made
    assert folder.recalled(made.name, {**says, other: 9}) is None


def test_rows_that_cannot_be_told_apart_are_noted_and_not_compared(tmp_path: Path) -> None:
    kept = Fingerprints(tmp_path, 1)
    comparing = Comparing("", DatabaseSnapshot("", 0, 0), ("t",), ("id",), ("id",), kept, None)
    one = to_stream(_table({7: ("a", 1)}, placed=True).cast(schema_of(["id"])))
    told = pa.RecordBatch.from_pydict(
        {"share": pa.array([0, 0], pa.int32()), "fingerprints": pa.array([one, one])}
    )
    assert list(comparing([told])) == []
    assert not kept.are_all_there


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
            _expect_told_apart(address, kind)


def _expect_told_apart(address: str, kind: str) -> None:
    with exported_snapshot(address) as snapshot, connected(address) as connection:
        (table,) = catalog.tables_in(connection, ["public"])
        with held_table(address, snapshot, table) as held:
            key, value = held.table.columns
            relations = tuple(part.relation for part in held.parts)
            making = Fingerprinting(address, snapshot, relations, (value,), (key,), 1)
            whole = {"relation": relations[0], "begin": 0, "finish": None, "last": 1}
            (made,) = making([pa.RecordBatch.from_pydict({"ranges": [[whole]]})])
            found = pa.ipc.open_stream(made["fingerprints"][0].as_py()).read_all()
            (read,) = rows_where(connection, relations[0], psycopg.sql.SQL("true"), ["id", "c"])
    texts = dict(zip(read["id"].to_pylist(), read["c"].to_pylist(), strict=True))
    hashes = dict(zip(found["text0"].to_pylist(), found[ROW].to_pylist(), strict=True))
    assert len(hashes) == len(texts)
    by_text: dict[str | None, set[int]] = {}
    for number, text in texts.items():
        by_text.setdefault(text, set()).add(hashes[number])
    assert all(len(same) == 1 for same in by_text.values()), kind
    assert len(set.union(*by_text.values())) == len(by_text), kind


def test_only_what_differs_is_read_and_landed(bulk: Shop) -> None:
    bulk.run(
        "UPDATE bulk SET state = 'paid' WHERE n % 1000 = 1",
        "DELETE FROM bulk WHERE n = 5000",
        "INSERT INTO bulk VALUES ('late', 1, 'new', NULL)",
        # As they were.
        "UPDATE bulk SET state = 'new' WHERE n % 1000 = 2",
    )
    result = bulk.sync()

    (run,) = result.streams
    assert (run.landed_rows, run.rows_read, run.written) == (9 + 1 + 1, 9_000, 9 + 9 + 1 + 1)
    states = bulk.told("bulk", ("shop", "n"), ("state",))
    changed = {
        key: [one and one[0] for one in told] for key, told in states.items() if told != [("new",)]
    }
    assert changed == {
        **{(f'é,"\n{n % 3}', n): ["new", "paid"] for n in range(1, 9_001, 1_000)},
        ('é,"\n2', 5_000): ["new", None],
    }
    assert states["late", 1] == [("new",)]
    assert bulk.agrees()
    # Nothing differs by now.
    (run,) = bulk.sync().streams
    assert (run.landed_rows, run.rows_read) == (0, 9_000)


def test_pages_may_be_left_without_a_row(bulk: Shop) -> None:
    bulk.run("DELETE FROM bulk")
    bulk.synced()
    assert bulk.present("bulk", ("n",)) == []
    bulk.run("INSERT INTO bulk VALUES ('late', 1, 'new', NULL)")
    bulk.synced()
    assert bulk.present("bulk", ("n",)) == [(1,)]
    assert bulk.agrees()


def _expect_right(shop: Shop) -> None:
    there = sorted(shop.rows("SELECT n, state FROM bulk"), key=repr)
    assert shop.present("bulk", ("n", "state")) == there
    assert shop.agrees()


@pytest.mark.long
def test_fingerprints_count_only_while_they_are_of_all_that_has_landed(
    bulk: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = bulk.project.lake.path / "raw" / "_fingerprints"
    # What landed before a run died is undone in the source: nothing tells of it any more.
    for anew, change, undone in (
        (False, "UPDATE bulk SET state = 'paid' WHERE n = 1", "UPDATE bulk SET state = 'new'"),
        (True, "UPDATE bulk SET state = 'paid' WHERE n = 2", "UPDATE bulk SET state = 'new'"),
        (False, "ALTER TABLE bulk ADD more int DEFAULT 1", "ALTER TABLE bulk DROP more"),
    ):
        bulk.run(change)
        with monkeypatch.context() as patched:
            patched.setenv("CHRONOLAKE_FAILPOINT", "land.done=raise")
            bulk.sync(anew=anew)
        bulk.run(undone)
        bulk.synced()
        _expect_right(bulk)
    # They are gone, or damaged.
    (told,) = folder.rglob("fingerprints.json")
    told.unlink()
    bulk.run("UPDATE bulk SET state = 'paid' WHERE n = 7")
    bulk.synced()
    (file, *_) = sorted(folder.rglob("share-*"))
    file.write_bytes(file.read_bytes()[:-1])
    bulk.run("UPDATE bulk SET state = 'sent' WHERE n = 7")
    bulk.synced()
    assert bulk.told("bulk", ("n",), ("state",))[7,][-2:] == [("paid",), ("sent",)]
    # What they are of has another name.
    bulk.synced()
    bulk.run("ALTER TABLE bulk RENAME state TO condition")
    bulk.synced()
    bulk.run("ALTER TABLE bulk RENAME condition TO state")
    bulk.synced()
    _expect_right(bulk)
    # What had landed is not there any more.
    shutil.rmtree(bulk.project.lake.path / "raw" / "parquet")
    bulk.configure(method="snapshot_diff", streams="{public.bulk: {table: fresh}}")
    bulk.synced()
    assert len(bulk.present("fresh", ("n",))) == 9_000
    # Whatever cannot be kept is told.
    shutil.rmtree(folder)
    folder.write_text("", encoding="utf-8")
    (failed,) = bulk.sync().streams
    assert failed.error is not None
    assert "cannot be kept" in failed.error
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
    bulk.synced()
    _expect_right(bulk)
    # Now the log has told of changes.
    bulk.configure(method="logical_replication")
    bulk.synced()
    bulk.run("UPDATE bulk SET state = 'sent' WHERE n = 2")
    bulk.synced()
    bulk.run("UPDATE bulk SET state = 'new' WHERE n = 2")
    bulk.configure(method="snapshot_diff")
    bulk.synced()
    _expect_right(bulk)
    assert bulk.told("bulk", ("n",), ("state",))[2,] == [("new",), ("sent",), ("new",)]


def test_a_resync_compares_all_rows_with_the_table(bulk: Shop) -> None:
    bulk.lake.spark.sql("UPDATE chronolake.shop.bulk SET _chronolake_hash = 7 WHERE n = 2")
    bulk.synced()
    assert not bulk.agrees(), "a table that somebody has changed is not looked at"
    bulk.synced(anew=True)
    assert bulk.agrees()


def test_keys_that_are_one_in_the_lake_are_compared_there(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chronolake.source.postgres.difference.look._LEAST_PAGES", 0)
    shop.configure(method="snapshot_diff")
    shop.run(
        "CREATE TABLE points (at float8 PRIMARY KEY, note text)",
        "INSERT INTO points VALUES (0, 'a'), ('NaN', 'b'), (1, 'c')",
    )
    shop.synced()
    shop.run("UPDATE points SET at = '-0' WHERE at = 0", "UPDATE points SET at = -at WHERE at > 1")
    shop.synced()
    shop.synced()
    assert sorted(note for (note,) in shop.present("points", ("note",))) == ["a", "b", "c"]
    assert shop.agrees()
