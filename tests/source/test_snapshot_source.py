"""Without its log, a PostgreSQL database is synced by the differences between two runs."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from postgresql import server, standby

from chronolake.failpoints import FAILPOINTS
from chronolake.types import END, START
from support.commands import run_words
from support.datalakes import iceberg
from support.processes import run_command_until_failpoint
from support.source import workload
from support.source.databases import Shop

_POINTS = [
    name for name in FAILPOINTS if name.startswith(("land.", "sync.", "publish.", "staged."))
]

#: A control record lands only if there are changes other than rows, and only copies land in steps.
_NOT_REACHED: Final = {"land.file-replaced", "land.step-done"}

Seen = dict[tuple[Any, ...], list["State"]]


@dataclass(frozen=True)
class State:
    """The state of a record: its plain columns, and the row as text; None if it did not exist."""

    plain: tuple[Any, ...] | None
    text: str | None


_GONE = State(None, None)


@pytest.fixture(scope="module", params=[18, pytest.param(16, marks=pytest.mark.long)])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the address of a server whose log cannot be replicated."""
    with server(version=request.param, wal_level="minimal", max_wal_senders="0") as found:
        yield found


@pytest.fixture(params=["rows", pytest.param("fingerprints", marks=pytest.mark.long)])
def compared(request: pytest.FixtureRequest, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """Return a shop whose tables are compared: by all of their rows, or by fingerprints."""
    if request.param == "fingerprints":
        # Use fingerprints for small tables, too.
        monkeypatch.setattr("chronolake.source.postgres.snapshot_diff.diff._LEAST_PAGES", 0)
        monkeypatch.setattr("chronolake.source.postgres.initial_copy._RANGE_PAGES", 2)
    shop.configure(method="snapshot_diff")
    return shop


def _note_states(shop: Shop, seen: dict[str, Seen]) -> None:
    """Note the current state of each record of all tables if it differs from the last one."""
    for table, key in workload.TABLES.items():
        names = workload.plain_columns(shop.dsn, table)
        rows = shop.rows(f"SELECT {', '.join([*key, *names])}, {table}::text FROM {table}")
        now = {row[: len(key)]: State(row[len(key) : -1], row[-1]) for row in rows}
        known = seen.setdefault(table, {})
        for record in known.keys() | now.keys():
            states = known.setdefault(record, [])
            state = now.get(record, _GONE)
            if states[-1:] != [state] and (states or state != _GONE):
                states.append(state)


def _plain_states(seen: Seen) -> dict[tuple[Any, ...], list[Any]]:
    return {record: [state.plain for state in states] for record, states in seen.items()}


@pytest.mark.long
@pytest.mark.parametrize(
    ("compared", "syncs"),
    [
        ("fingerprints", 2),
        pytest.param("fingerprints", 6, marks=pytest.mark.long),
        pytest.param("rows", 6, marks=pytest.mark.long),
    ],
    indirect=["compared"],
)
def test_history_is_what_was_seen(compared: Shop, syncs: int) -> None:
    workload.set_up(compared.dsn)
    chance = random.Random(1)
    seen: dict[str, Seen] = {}
    for _ in range(syncs):
        workload.work(compared.dsn, chance, 40)
        _note_states(compared, seen)
        compared.sync_or_fail()

    for table, key in workload.TABLES.items():
        names = workload.plain_columns(compared.dsn, table)
        assert compared.states(table, key, names) == _plain_states(seen[table]), table
    assert compared.agrees()
    # Some records were created and deleted between two syncs.
    assert any(workload.states(compared.dsn, table).keys() - seen[table].keys() for table in seen)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 6))
def test_failed_runs_land_no_invented_changes(
    compared: Shop, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    workload.set_up(compared.dsn)
    chance = random.Random(seed)
    seen: dict[str, Seen] = {}
    for _ in range(4):
        workload.work(compared.dsn, chance, 40)
        _note_states(compared, seen)
        with monkeypatch.context() as patched:
            patched.setenv("CHRONOLAKE_FAILPOINT", f"{chance.choice(_POINTS)}=raise")
            compared.sync()
    compared.sync_or_fail()

    for table, key in workload.TABLES.items():
        names = workload.plain_columns(compared.dsn, table)
        there = sorted(compared.rows(f"SELECT {', '.join(names)} FROM {table}"), key=repr)
        assert compared.present(table, names) == there
        for record, states in compared.states(table, key, names).items():
            # A run that failed early has seen nothing.
            assert _is_part(states, _plain_states(seen[table])[record]), record
    assert compared.agrees()


@pytest.mark.long
def test_snapshot_diff_can_be_killed_at_every_step(shop: Shop) -> None:
    shop.configure(method="snapshot_diff")
    # Large enough for fingerprints, in the process that is killed, too.
    shop.run(
        "CREATE TABLE bulk (id int PRIMARY KEY, state int, filler text)",
        "ALTER TABLE bulk ALTER filler SET STORAGE PLAIN",
        "INSERT INTO bulk SELECT n, 0, repeat('x', 3800) FROM generate_series(1, 9000) n",
    )
    shop.sync_or_fail()
    chance = random.Random(5)
    words = ("sync", "shop", "--project", str(shop.folder))
    filler = "x" * 3800
    # The states and fillers of each row; None while it was deleted.
    seen: dict[int, list[tuple[int, str | None] | None]] = {
        number: [(0, filler)] for number in range(1, 9_001)
    }
    points = [name for name in _POINTS if name not in _NOT_REACHED]
    for point in points:
        for number in chance.sample(range(1, 100), 20):
            # A value that changes back must not be mistaken for one that never changed.
            state = chance.choice([None, 0, 1])
            shop.run(
                f"DELETE FROM bulk WHERE id = {number}"
                if state is None
                else f"INSERT INTO bulk VALUES ({number}, {state}) "
                "ON CONFLICT (id) DO UPDATE SET state = excluded.state"
            )
            before = seen[number][-1]
            # A row that is added again has no filler.
            seen[number].append(None if state is None else (state, before and before[1]))
        assert run_command_until_failpoint(*words, failpoint=f"{point}=kill"), point
    shop.sync_or_fail()

    there = sorted(shop.rows("SELECT id, state FROM bulk"), key=repr)
    assert shop.present("bulk", ("id", "state")) == there
    for (number,), states in shop.states("bulk", ("id",), ("state", "filler")).items():
        assert _is_part(states, seen[number]), number
        assert all(version != other for version, other in itertools.pairwise(states)), number
    assert shop.agrees()


def _is_part(some: Sequence[Any], whole: Sequence[Any]) -> bool:
    left = iter(whole)
    return all(item in left for item in some)


@pytest.mark.long
def test_columns_and_tables_are_added_and_dropped(compared: Shop) -> None:
    compared.run(
        "CREATE TABLE orders (id int PRIMARY KEY, state text, amount int)",
        "INSERT INTO orders VALUES (1, 'a', 1), (2, 'b', 2)",
    )
    compared.sync_or_fail()
    compared.run(
        "ALTER TABLE orders RENAME state TO status",
        "ALTER TABLE orders ADD COLUMN shop text DEFAULT 'main'",
        "ALTER TABLE orders ALTER amount TYPE bigint",
        "DELETE FROM orders WHERE id = 2",
        "CREATE TABLE customers (id int PRIMARY KEY)",
        "INSERT INTO customers VALUES (7)",
    )
    compared.sync_or_fail()
    assert compared.versions("orders", ("id", "status", "amount", "shop")) == [
        (1, "a", 1, None, False),
        (1, "a", 1, "main", True),
        (2, "b", 2, None, False),
    ]
    assert compared.versions("customers", ("id",)) == [(7, True)]
    before = compared.table("orders").sort_by([("id", "ascending"), (START, "ascending")])
    compared.sync_or_fail()
    compared.sync_or_fail(full_refresh=True)
    after = compared.table("orders").sort_by([("id", "ascending"), (START, "ascending")])
    assert after.equals(before), "nothing differs"
    assert compared.agrees()


def _rows(shop: Shop, table: str, column: str) -> list[tuple[Any, int]]:
    """Return the values of a column in the active rows of a table, with their counts."""
    return sorted(Counter(row[0] for row in shop.present(table, (column,))).items())


@pytest.mark.long
def test_tables_without_a_primary_key(compared: Shop) -> None:
    compared.run(
        "CREATE TABLE log (line text, n int)",
        "INSERT INTO log VALUES ('a', 1), ('a', 1), ('a', 1), ('b', NULL)",
        "CREATE TABLE codes (code text NOT NULL, name text)",
        "CREATE UNIQUE INDEX ON codes (code)",
        # Neither index identifies every row.
        "CREATE UNIQUE INDEX ON log (n) WHERE n > 1",
        "CREATE UNIQUE INDEX ON log (lower(line || n)) WHERE false",
        "INSERT INTO codes VALUES ('x', 'one'), ('y', 'two')",
    )
    compared.sync_or_fail()
    assert _rows(compared, "log", "line") == [("a", 3), ("b", 1)]
    before = set(compared.present("log", ("_fivetran_id",)))
    compared.run(
        "ALTER TABLE log RENAME line TO words",
        "ALTER TABLE log ADD COLUMN more text",
        "DELETE FROM log WHERE ctid = (SELECT min(ctid) FROM log WHERE words = 'a')",
        "INSERT INTO log VALUES ('b', NULL), ('c', 2)",
        "UPDATE codes SET name = 'three' WHERE code = 'x'",
        "DELETE FROM codes WHERE code = 'y'",
    )
    compared.sync_or_fail()
    assert _rows(compared, "log", "words") == [("a", 2), ("b", 2), ("c", 1)]
    assert len(before & set(compared.present("log", ("_fivetran_id",)))) == 3
    assert compared.versions("codes", ("code", "name")) == [
        ("x", "one", False),
        ("x", "three", True),
        ("y", "two", False),
    ]
    (key,) = {
        row[0] for row in compared.versions("codes", ("_fivetran_id", "code")) if row[1] == "x"
    }
    compared.run("INSERT INTO codes VALUES ('y', 'again')")
    compared.sync_or_fail()
    assert sorted(compared.present("codes", ("code", "name"))) == [("x", "three"), ("y", "again")]
    assert (key,) in compared.present("codes", ("_fivetran_id",))
    assert compared.agrees()


@pytest.mark.long
@pytest.mark.parametrize("compared", ["rows"], indirect=True)
def test_rows_are_compared_by_stored_hashes(compared: Shop) -> None:
    compared.run(
        "CREATE TABLE orders (id int PRIMARY KEY, state text, size int)",
        "INSERT INTO orders SELECT n, 'a', n FROM generate_series(1, 4) n",
    )
    compared.sync_or_fail()
    hashes = compared.table("orders")["_chronolake_hash"].to_pylist()
    assert len(set(hashes)) == 4
    assert None not in hashes
    # A new column changes nothing where it is null.
    compared.run("ALTER TABLE orders ADD note text", "UPDATE orders SET note = 'x' WHERE id = 1")
    compared.sync_or_fail()
    assert _states(compared) == {1: 2, 2: 1, 3: 1, 4: 1}
    # The hashes decide: a wrong hash makes its row a changed one.
    name = iceberg(compared.project, "shop", "orders").name()
    compared.lake.spark.sql(
        f"UPDATE chronolake.{'.'.join(name)} SET _chronolake_hash = 7 WHERE id = 2"
    )
    assert not compared.agrees()
    compared.sync_or_fail()
    compared.sync_or_fail()
    assert compared.agrees()
    assert _states(compared) == {1: 2, 2: 2, 3: 1, 4: 1}
    # The columns from which the hashes were made no longer exist, so values are compared.
    compared.run("ALTER TABLE orders DROP size", "UPDATE orders SET state = 'b' WHERE id = 3")
    compared.sync_or_fail()
    compared.run("ALTER TABLE orders ALTER note TYPE varchar(9)")
    compared.sync_or_fail()
    compared.run("UPDATE orders SET state = 'b' WHERE id = 4")
    compared.sync_or_fail()
    assert _states(compared) == {1: 2, 2: 2, 3: 2, 4: 2}
    assert compared.agrees()


def _states(shop: Shop) -> Counter[int]:
    """Return the number of versions of every order."""
    return Counter(row[0] for row in shop.versions("orders", ("id",)))


@pytest.mark.long
def test_numbers_stored_as_texts_are_unchanged(compared: Shop) -> None:
    compared.run(
        "CREATE TABLE orders (id int PRIMARY KEY, size numeric)",
        "INSERT INTO orders VALUES (1, 6.0167e20), (2, 1e-5), (3, 100), (4, NULL)",
        # It has no partition to read.
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    )
    compared.sync_or_fail()
    compared.run("ALTER TABLE orders ALTER size TYPE double precision")
    compared.sync_or_fail()
    compared.run("UPDATE orders SET size = 6.0168e20 WHERE id = 1")
    compared.sync_or_fail()
    compared.sync_or_fail()
    assert _states(compared) == {1: 2, 2: 1, 3: 1, 4: 1}
    compared.run("CREATE TABLE part PARTITION OF parts DEFAULT", "INSERT INTO parts VALUES (1)")
    compared.sync_or_fail()
    assert compared.present("parts", ("id",)) == [(1,)]
    assert compared.agrees()


@pytest.mark.long
@pytest.mark.sampled
@pytest.mark.parametrize("mode", ["live", "soft-delete"])
def test_tables_without_history(compared: Shop, mode: str) -> None:
    compared.configure(method="snapshot_diff", mode=mode)
    compared.run(
        "CREATE TABLE orders (id int PRIMARY KEY, state text)",
        "INSERT INTO orders VALUES (1, 'a'), (2, 'b')",
    )
    compared.sync_or_fail()
    compared.run("DELETE FROM orders WHERE id = 1", "UPDATE orders SET state = 'c'")
    compared.sync_or_fail()
    rows = compared.table("orders").to_pylist()
    present = [row for row in rows if not row.get("_fivetran_deleted")]
    assert [(row["id"], row["state"]) for row in present] == [(2, "c")]
    assert len(rows) == (1 if mode == "live" else 2)


def test_check_requires_only_permission_to_read(
    compared: Shop, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    compared.run(
        "CREATE TABLE orders (id int PRIMARY KEY)", "CREATE ROLE reader LOGIN PASSWORD 'read'"
    )
    plain = psycopg.conninfo.make_conninfo(compared.dsn, user="reader", password="read")
    reading = Shop(tmp_path / "reader", plain)
    reading.configure(method="snapshot_diff")
    words = ("check", "--json", "--project", str(reading.folder))
    code, reported, _ = run_words(capsys, *words)
    assert code == 1
    (problem,) = [load for load in json.loads(reported) if not load["ok"]]
    assert problem["what"] == "pipelines.shop: public.orders"
    for statement in problem["hint"].rstrip(";").split(";"):
        compared.run(statement)
    code, reported, _ = run_words(capsys, *words)
    assert code == 0, reported
    reading.sync_or_fail()
    compared.run("DROP OWNED BY reader", "DROP ROLE reader")


@pytest.mark.long
def test_a_pipeline_changes_its_method(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with server(version=18, wal_level="logical") as address:
        shop = Shop(tmp_path, address)
        shop.run(
            "CREATE TABLE orders (id int PRIMARY KEY, state text)",
            "INSERT INTO orders VALUES (1, 'a')",
            "CREATE TABLE log (line text)",
            "INSERT INTO log VALUES ('same'), ('same')",
        )
        shop.run(
            "CREATE PUBLICATION chronolake_shop FOR TABLE orders "
            "WITH (publish_via_partition_root = true)",
            "SELECT pg_create_logical_replication_slot('chronolake_shop', 'pgoutput')",
        )
        shop.sync_or_fail()
        shop.run("UPDATE orders SET state = 'b'")
        shop.sync_or_fail()
        shop.configure(method="snapshot_diff")
        shop.run("UPDATE orders SET state = 'c'", "UPDATE orders SET state = 'd'")
        shop.sync_or_fail()
        _, reported, _ = run_words(capsys, "check", "--json", "--project", str(tmp_path))
        hints = {load["hint"] for load in json.loads(reported) if load["level"] == "warning"}
        assert hints == {
            "SELECT pg_drop_replication_slot('chronolake_shop');",
            'ALTER TABLE "public"."log" ADD PRIMARY KEY (…);',
        }
        shop.configure()
        shop.run("UPDATE orders SET state = 'e'", "UPDATE orders SET state = 'f'")
        shop.sync_or_fail()
        shop.run(
            "UPDATE orders SET state = 'g'",
            "UPDATE orders SET state = 'h'",
            "DELETE FROM log WHERE ctid = (SELECT min(ctid) FROM log)",
        )
        shop.sync_or_fail()

        states = [row[1] for row in shop.versions("orders", ("id", "state"))]
        # States that existed only between two runs were not seen.
        assert states == ["a", "b", "d", "f", "g", "h"]
        assert _rows(shop, "log", "line") == [("same", 1)]
        # Tables that are not in the log do not hold the slot back.
        assert shop.rows(
            "SELECT pg_current_wal_lsn() - confirmed_flush_lsn < 10000 FROM pg_replication_slots"
        ) == [(True,)]
        table = shop.table("orders").sort_by(START)
        assert table[START][1:].to_pylist() == [end + 1 for end in table[END][:-1].to_pylist()]
        assert shop.agrees()


@pytest.mark.long
@pytest.mark.parametrize("version", [18, pytest.param(16, marks=pytest.mark.long)])
def test_a_standby_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], version: int
) -> None:
    with server(version=version) as primary:
        there = Shop(tmp_path / "primary", primary)
        there.run(
            "CREATE TABLE items (id int PRIMARY KEY, name text)",
            "CREATE TABLE loose (name text)",
            "INSERT INTO items VALUES (1, 'a'), (2, 'b')",
            "INSERT INTO loose VALUES ('x'), ('x')",
        )
        with standby(primary, version=version) as address:
            shop = Shop(tmp_path / "standby", address)
            shop.configure(method="snapshot_diff")
            shop.sync_or_fail()
            there.run("UPDATE items SET name = 'c' WHERE id = 2", "DELETE FROM items WHERE id = 1")
            (lsn,) = there.rows("SELECT pg_current_wal_lsn()::text")[0]
            while not shop.rows(f"SELECT pg_last_wal_replay_lsn() >= '{lsn}'")[0][0]:
                time.sleep(0.05)
            shop.sync_or_fail()
            assert shop.versions("items", ["id", "name"]) == [
                (1, "a", False),
                (2, "b", False),
                (2, "c", True),
            ]
            assert shop.present("loose", ["name"]) == [("x",), ("x",)]
            shop.configure()
            code, reported, _ = run_words(capsys, "check", "--json", "--project", str(shop.folder))
            assert code == 1
            # The log of a standby can be read, but a publication is created on its primary.
            assert "On the primary: CREATE PUBLICATION" in reported
