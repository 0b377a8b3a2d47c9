"""A PostgreSQL database is synced: every committed change is a version."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
import structlog
from psycopg import sql

from chronolake.pipeline.store import Status
from chronolake.source.postgres.connection import connect
from chronolake.source.protocol import CaptureMethod
from chronolake.types import ACTIVE, DELETED
from support.commands import run_words
from support.source.databases import Shop


def test_every_committed_change_is_a_version(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE orders (id int PRIMARY KEY, state text, total numeric(10,2))",
        "INSERT INTO orders VALUES (1, 'new', 5), (2, 'new', NULL), (3, '', 7.5)",
    )
    shop.prepare()
    shop.sync_or_fail()
    shop.run(
        "UPDATE orders SET state = 'paid' WHERE id = 1",
        "UPDATE orders SET state = 'sent' WHERE id = 1",
        "BEGIN; UPDATE orders SET state = 'lost' WHERE id = 1; ROLLBACK",
        "DELETE FROM orders WHERE id = 2",
        "INSERT INTO orders VALUES (4, 'new', 1)",
        "UPDATE orders SET id = 5 WHERE id = 4",
        "BEGIN; INSERT INTO orders VALUES (6, 'x', 1); DELETE FROM orders WHERE id = 6; COMMIT",
    )
    shop.sync_or_fail()

    assert shop.versions("orders", ("id", "state")) == [
        (1, "new", False),
        (1, "paid", False),
        (1, "sent", True),
        (2, "new", False),
        (3, "", True),
        (4, "new", False),
        (5, "new", True),
        (6, "x", False),
    ]
    assert shop.agrees()


_LARGE = "repeat(md5(random()::text), 3000)"
_SWAPPED = (
    "UPDATE notes SET id = -3 WHERE id = 3",
    "UPDATE notes SET id = 3, size = 1 WHERE id = 1",
    "UPDATE notes SET id = 1 WHERE id = -3",
)


@pytest.mark.long
@pytest.mark.sampled
@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_large_values_that_are_not_sent_are_kept(shop: Shop, identity: str) -> None:
    shop.run(
        "CREATE TABLE notes (id int PRIMARY KEY, size int, body text)",
        "ALTER TABLE notes ALTER body SET STORAGE EXTERNAL",
        f"ALTER TABLE notes REPLICA IDENTITY {identity}",
        f"INSERT INTO notes VALUES (1, 0, {_LARGE}), (2, 0, {_LARGE})",
    )
    shop.prepare()
    shop.sync_or_fail()
    bodies = dict(shop.rows("SELECT id, body FROM notes"))
    shop.run(
        "UPDATE notes SET size = 1 WHERE id = 1",
        "UPDATE notes SET size = 2 WHERE id = 1",
        f"INSERT INTO notes VALUES (3, 0, {_LARGE})",
        "UPDATE notes SET size = 1 WHERE id = 3",
        "UPDATE notes SET id = 4 WHERE id = 2",
    )
    shop.sync_or_fail()
    shop.run("UPDATE notes SET size = 9 WHERE id = 4")
    shop.sync_or_fail()

    bodies |= dict(shop.rows("SELECT id, body FROM notes"))
    found = shop.versions("notes", ("id", "size", "body"))
    assert [row[:2] for row in found] == [
        (1, 0),
        (1, 1),
        (1, 2),
        (2, 0),
        (3, 0),
        (3, 1),
        (4, 0),
        (4, 9),
    ]
    assert all(row[2] == bodies[row[0]] for row in found)
    assert shop.agrees()


@pytest.mark.long
@pytest.mark.parametrize(
    "mode",
    ["history", *(pytest.param(m, marks=pytest.mark.long) for m in ("live", "soft-delete"))],
)
@pytest.mark.parametrize("failpoint", ["land.done", pytest.param("", marks=pytest.mark.long)])
def test_a_record_that_gets_another_key_keeps_large_values(
    shop: Shop, mode: str, failpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.configure(mode=mode)
    shop.run(
        "CREATE TABLE notes (shop text, id int, size int, body text, raw bytea, "
        "PRIMARY KEY (shop, id))",
        "ALTER TABLE notes ALTER body SET STORAGE EXTERNAL, ALTER raw SET STORAGE EXTERNAL",
        f"INSERT INTO notes SELECT 'a', n, 0, n || {_LARGE}, convert_to(n || {_LARGE}, 'UTF8') "
        "FROM generate_series(1, 3) n",
    )
    shop.prepare()
    shop.sync_or_fail()
    names = "shop, id, size, body, raw"
    seen = set(shop.rows(f"SELECT {names} FROM notes"))
    statements = [
        "UPDATE notes SET id = 11 WHERE id = 1",
        # Another record has this key now.
        f"INSERT INTO notes VALUES ('a', 1, 0, {_LARGE}, NULL)",
        "UPDATE notes SET id = 12, shop = 'b' WHERE id = 11",
        "UPDATE notes SET size = 5 WHERE id = 12",
        "UPDATE notes SET id = 13 WHERE id = 12",
        f"UPDATE notes SET body = {_LARGE} WHERE id = 2",
        "UPDATE notes SET id = 22 WHERE id = 2",
        f"BEGIN; {'; '.join(_SWAPPED)}; COMMIT",
        "UPDATE notes SET raw = NULL WHERE id = 22",
    ]
    for statement in statements:
        shop.run(statement)
        seen |= set(shop.rows(f"SELECT {names} FROM notes"))
    with structlog.testing.capture_logs() as logged:
        if failpoint:
            with monkeypatch.context() as patched:
                patched.setenv("CHRONOLAKE_FAILPOINT", f"{failpoint}=raise")
                assert shop.sync().status is Status.FAILED
        shop.sync_or_fail()
    assert not [event for event in logged if event["event"] == "table_read_again"]
    found = shop.table("notes").to_pylist()
    reported = [tuple(row[name] for name in names.split(", ")) for row in found]
    is_there = [row.get(ACTIVE, not row.get(DELETED)) for row in found]
    now = [row for row, is_so in zip(reported, is_there, strict=True) if is_so]
    assert sorted(now, key=repr) == sorted(shop.rows(f"SELECT {names} FROM notes"), key=repr)
    if mode == "history":
        # One version existed only within a transaction.
        within = [row for row in reported if row[1] == -3]
        assert len(within) == 1
        assert {row for row in reported if row[1] != -3} == seen
        assert (within[0][3], within[0][4]) in {row[3:] for row in seen if row[1] == 3}
    assert shop.agrees()


@pytest.mark.long
def test_a_truncate_ends_every_record(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE orders (id int PRIMARY KEY, state text)",
        "INSERT INTO orders VALUES (1, 'a'), (2, 'a')",
    )
    shop.prepare()
    shop.sync_or_fail()
    shop.run(
        "UPDATE orders SET state = 'b' WHERE id = 1",
        "BEGIN; INSERT INTO orders VALUES (3, 'gone'); TRUNCATE orders; "
        "INSERT INTO orders VALUES (1, 'c'); COMMIT",
        "INSERT INTO orders VALUES (4, 'd')",
    )
    shop.sync_or_fail()

    assert shop.versions("orders", ("id", "state")) == [
        (1, "a", False),
        (1, "b", False),
        (1, "c", True),
        (2, "a", False),
        (3, "gone", False),
        (4, "d", True),
    ]
    assert shop.agrees()


@pytest.mark.parametrize(
    "failpoints",
    [("land.file-published", "land.done"), pytest.param((), marks=pytest.mark.long)],
)
def test_columns_are_added_dropped_renamed_and_altered(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, failpoints: tuple[str, ...]
) -> None:
    shop.run(
        "CREATE TABLE orders (id int PRIMARY KEY, state text, amount int)",
        "INSERT INTO orders VALUES (1, 'a', 1), (2, 'a', 2)",
    )
    shop.prepare()
    shop.sync_or_fail()
    shop.run(
        "UPDATE orders SET state = 'b' WHERE id = 1",
        "ALTER TABLE orders RENAME state TO status",
        "UPDATE orders SET status = 'c' WHERE id = 1",
        "ALTER TABLE orders ADD COLUMN shop text DEFAULT 'main'",
        "INSERT INTO orders VALUES (3, 'a', 3)",
        "ALTER TABLE orders ALTER amount TYPE text USING 'EUR ' || amount",
        "UPDATE orders SET status = 'd' WHERE id = 1",
    )
    for failpoint in failpoints:
        with monkeypatch.context() as patched:
            patched.setenv("CHRONOLAKE_FAILPOINT", f"{failpoint}=raise")
            assert shop.sync().status is Status.FAILED
    shop.sync_or_fail()
    assert shop.agrees()
    shop.run("ALTER TABLE orders DROP COLUMN shop", "UPDATE orders SET status = 'e' WHERE id = 3")
    shop.sync_or_fail()

    names = ("id", "status", "amount", "shop")
    found = shop.versions("orders", names)
    assert [row[1] for row in found if row[0] == 1] == ["a", "b", "c", "d"]
    active = [row[:4] for row in found if row[-1]]
    assert active == [
        (1, "d", "EUR 1", "main"),
        (2, "a", "EUR 2", "main"),
        (3, "e", "EUR 3", None),
    ]
    assert (2, "a", "2", None, False) in found, "what was so before the columns changed"
    assert shop.agrees()


@pytest.mark.sampled
@pytest.mark.parametrize("method", ["logical_replication", "snapshot_diff"])
def test_tables_and_columns_exist_before_they_have_values(shop: Shop, method: str) -> None:
    shop.configure(method=method)
    shop.run("CREATE TABLE orders (id int PRIMARY KEY, total numeric(10,2))")
    shop.prepare()
    shop.sync_or_fail()
    assert shop.versions("orders", ("id", "total")) == []
    shop.run("INSERT INTO orders VALUES (1, 5)", "ALTER TABLE orders ADD note text")
    shop.sync_or_fail()
    shop.run("ALTER TABLE orders ADD paid boolean")
    shop.sync_or_fail()
    assert shop.versions("orders", ("id", "note", "paid")) == [(1, None, None, True)]

    files = sorted(shop.folder.rglob("data-*.parquet"))
    shop.sync_or_fail()
    assert sorted(shop.folder.rglob("data-*.parquet")) == files
    assert shop.agrees()


@pytest.mark.long
def test_added_tables_are_copied_later_and_do_not_stop_each_other(shop: Shop) -> None:
    shop.run(
        'CREATE TABLE "Odd/ name." ("Key" uuid PRIMARY KEY, "Va l" text[])',
        """INSERT INTO "Odd/ name." VALUES ('00000000-0000-0000-0000-000000000001', '{a,"b c"}')""",
        "CREATE TABLE log (line text)",
        "INSERT INTO log VALUES ('no key')",
    )
    shop.prepare()
    result = shop.sync()
    assert [stream.error for stream in result.streams] == [None, None]
    assert shop.versions("log", ("line",)) == [("no key", True)]

    shop.run(
        "ALTER TABLE log ADD COLUMN id serial PRIMARY KEY",
        "CREATE TABLE parts (id int, region text, PRIMARY KEY (id, region)) "
        "PARTITION BY LIST (region)",
        "CREATE TABLE parts_n PARTITION OF parts FOR VALUES IN ('n')",
        "CREATE TABLE parts_s PARTITION OF parts FOR VALUES IN ('s')",
        "INSERT INTO parts VALUES (1, 'n'), (2, 's')",
    )
    result = shop.sync()
    assert result.status is Status.PARTIAL
    (reported,) = [stream.error for stream in result.streams if stream.error]
    assert "The source's key is id, but the table's key is _fivetran_id" in reported
    shop.run(
        "DROP TABLE log",
        "UPDATE parts SET region = 's' WHERE id = 1",
        "TRUNCATE parts_n",
        "INSERT INTO parts VALUES (3, 'n')",
    )
    shop.sync_or_fail()
    assert shop.versions("parts", ("id", "region")) == [
        (1, "n", False),
        (1, "s", True),
        (2, "s", True),
        (3, "n", True),
    ]
    # The log does not contain these changes.
    shop.run(
        "TRUNCATE parts_s",
        "CREATE TABLE parts_w (id int, region text, PRIMARY KEY (id, region))",
        "INSERT INTO parts_w VALUES (9, 'w')",
        "ALTER TABLE parts ATTACH PARTITION parts_w FOR VALUES IN ('w')",
    )
    shop.sync_or_fail()
    present = [(3, "n"), (9, "w")]
    assert [row[:2] for row in shop.versions("parts", ("id", "region")) if row[-1]] == present
    before = shop.versions("parts", ("id", "region"))
    shop.sync_or_fail(full_refresh=True)
    assert shop.versions("parts", ("id", "region")) == before, "nothing differs"
    assert shop.agrees()


def test_values_missing_in_the_log_are_read_from_the_table(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE orders (id int PRIMARY KEY, state text, amount int)",
        "INSERT INTO orders VALUES (1, 'a', 1), (2, 'b', 2)",
    )
    shop.prepare()
    shop.sync_or_fail()
    # No change follows with which the log would describe the table.
    shop.run(
        "ALTER TABLE orders RENAME state TO status",
        "ALTER TABLE orders ADD COLUMN shop text DEFAULT 'main'",
    )
    shop.sync_or_fail()
    found = shop.versions("orders", ("id", "status", "amount", "shop"))
    assert found[1] == (1, "a", 1, "main", True)
    assert found[0] == (1, "a", 1, None, False)
    # Another table gets the name.
    shop.run(
        "CREATE TABLE orders_new (id int PRIMARY KEY, amount int, status text)",
        "INSERT INTO orders_new VALUES (2, 2, 'b'), (3, 3, 'c')",
        "DROP TABLE orders",
        "ALTER TABLE orders_new RENAME TO orders",
        "UPDATE orders SET status = 'd' WHERE id = 3",
    )
    shop.sync_or_fail()
    shop.run("UPDATE orders SET status = 'e' WHERE id = 3")
    shop.sync_or_fail()
    found = shop.versions("orders", ("id", "status", "amount", "shop"))
    # In a record that is otherwise unchanged, a dropped column keeps its value.
    assert [row[:4] for row in found if row[-1]] == [(2, "b", 2, "main"), (3, "e", 3, None)]
    assert (1, "a", 1, "main", False) in found
    assert shop.agrees()


@pytest.mark.long
def test_unpublished_changes_are_read_from_the_table(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE orders (id int PRIMARY KEY, state text)", "INSERT INTO orders VALUES (1, 'a')"
    )
    shop.run(
        "CREATE PUBLICATION chronolake_shop FOR TABLE orders "
        "WITH (publish_via_partition_root = true)",
        "SELECT pg_create_logical_replication_slot('chronolake_shop', 'pgoutput')",
    )
    shop.sync_or_fail()
    out, in_ = (
        f"ALTER PUBLICATION chronolake_shop {action} TABLE orders" for action in ("DROP", "ADD")
    )
    shop.run(out, "UPDATE orders SET state = 'b'", in_)
    shop.sync_or_fail()
    assert [row[1] for row in shop.versions("orders", ("id", "state"))] == ["a", "b"]
    shop.run(out)
    assert "not in the publication" in (shop.sync().streams[0].error or "")
    shop.run("UPDATE orders SET state = 'c'", in_)
    shop.sync_or_fail()
    assert [row[1] for row in shop.versions("orders", ("id", "state"))] == ["a", "b", "c"]
    shop.run("ALTER PUBLICATION chronolake_shop SET (publish = 'insert')")
    assert "all operations" in (shop.sync().streams[0].error or "")


@pytest.mark.long
def test_recreated_slot_is_detected(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE orders (id int PRIMARY KEY, state text)", "INSERT INTO orders VALUES (1)"
    )
    shop.prepare()
    shop.sync_or_fail()
    shop.run(
        "SELECT pg_drop_replication_slot('chronolake_shop')",
        "UPDATE orders SET state = 'unseen'",
        "SELECT pg_create_logical_replication_slot('chronolake_shop', 'pgoutput')",
    )
    result = shop.sync()
    assert "the changes in between are lost" in (result.streams[0].error or "")
    assert "chronolake resync shop" in (result.streams[0].hint or "")
    shop.sync_or_fail(full_refresh=True)
    shop.run("UPDATE orders SET state = 'seen'")
    shop.sync_or_fail()
    assert [row[1:] for row in shop.versions("orders", ("id", "state"))] == [
        (None, False),
        ("unseen", False),
        ("seen", True),
    ]


#: Columns and values: they are there before the first copy, and come through the log as well.
TYPES: dict[str, list[str]] = {
    "bool": ["true", "false"],
    "int2": ["-32768", "32767"],
    "int4": ["-2147483648", "2147483647"],
    "int8": ["-9223372036854775808", "9223372036854775807"],
    "oid": ["0", "4294967295"],
    "float4": ["'NaN'", "'-Infinity'", "1.17549e-38", "3.4028235e+38", "'-0'"],
    "float8": ["'NaN'", "'Infinity'", "4.9e-324", "1.7976931348623157e+308"],
    "numeric": ["'NaN'", "1e131071", "-0.00000000000000000000000000000000000000000000001"],
    "numeric(38,10)": ["9999999999999999999999999999.9999999999", "-0.0000000001"],
    "numeric(4,2)": ["'NaN'", "99.99"],
    "numeric(3,-2)": ["12345"],
    "numeric(2,5)": ["0.00012"],
    "numeric(40,2)": ["1e37"],
    "money": ["'-$92,233,720,368,547,758.08'"],
    "text": ["''", r"E'a,\"b\"\n\tc\\d'", "U&'\\00e9\\+01f600'", r"'\N'", "'NULL'"],
    "varchar(3)": ["'abc'"],
    "char(3)": ["'a'", "''", "'ab '"],
    '"char"': [r"'\377'"],
    "name": ["'n'"],
    "bytea": [r"'\x'", r"'\x00ff5c0a'"],
    "date": ["'0001-01-01'", "'9999-12-31'"],
    "date_beyond": ["'infinity'", "'4713-01-01 BC'", "'5874897-12-31'", "'2024-02-29'"],
    "timestamp": ["'0001-01-01 00:00:00'", "'9999-12-31 23:59:59.999999'"],
    "timestamp_beyond": ["'-infinity'", "'294276-12-31 23:59:59.999999'"],
    "timestamptz": ["'1883-01-01 00:00:00-04:56:02'", "'2024-07-01 12:00:00.000001+02'"],
    "timestamptz_beyond": ["'0044-03-15 12:00:00 BC+00'", "'2024-02-29 12:00:00.5+00'"],
    "time": ["'24:00:00'", "'00:00:00.000001'"],
    "timetz": ["'24:00:00-15:59:59'"],
    "interval": ["'1 year -2 mons 3 days -04:05:06.789'", "'0'"],
    "uuid": ["'00000000-0000-0000-0000-00000000000a'"],
    "json": ["""'{"a" : 1, "a" : null}'"""],
    "jsonb": ["""'{"a": 1e3}'""", "'null'"],
    "inet": ["'10.0.0.1'", "'::1/64'", "'::ffff:1.2.3.4'", "'10.0.0.0/8'"],
    "cidr": ["'10.0.0.0/8'"],
    "macaddr": ["'08:00:2b:01:02:03'"],
    "bit(3)": ["B'101'"],
    "varbit": ["B''"],
    "point": ["'(1.5,-0)'"],
    "box": ["'((0,0),(1,1))'"],
    "polygon": ["'((0,0),(1,1),(1,0))'"],
    "int4[]": ["'{}'", "'{1,NULL,3}'", "'[0:2]={1,2,3}'"],
    "text[]": ["""'{a,"b c",NULL,"NULL",""}'"""],
    "int4range": ["'[1,5)'", "'empty'"],
    "tstzrange": ["'[2024-01-01 00:00+00,)'"],
    "tsvector": ["'a:1 b:2'"],
    "pg_lsn": ["'16/B374D848'"],
    "mood": ["'so so'"],
    "positive": ["7"],
    "cents": ["1.50"],
    "pair": ["'(1,\"a b\")'"],
}


#: Types whose values Python has, too.
_PLAIN = {"bool", "int2", "int4", "int8", "oid", "float8", "numeric(38,10)", "bytea", "timestamp"}


@pytest.mark.long
def test_every_type_is_read_as_the_server_writes_it(shop: Shop) -> None:
    shop.run(
        "CREATE TYPE public.mood AS ENUM ('so so', 'fine')",
        "CREATE DOMAIN public.positive AS int CHECK (value > 0)",
        "CREATE DOMAIN public.amount AS numeric(10,2)",
        "CREATE DOMAIN public.cents AS public.amount",
        "CREATE TYPE public.pair AS (a int, b text)",
    )
    columns = ", ".join(
        f"c{number} {kind.removesuffix('_beyond')}" for number, kind in enumerate(TYPES)
    )
    shop.run(f"CREATE TABLE every (id int PRIMARY KEY, {columns})")
    most = max(map(len, TYPES.values()))

    def put(first: int) -> None:
        for row in range(most):
            values = ", ".join(
                values[row] if row < len(values) else "NULL" for values in TYPES.values()
            )
            shop.run(f"INSERT INTO every VALUES ({first + row}, {values})")

    put(0)
    shop.prepare()
    shop.sync_or_fail()
    put(100)
    shop.sync_or_fail()

    found = {row["id"]: row for row in shop.table("every").to_pylist()}
    assert len(found) == 2 * most
    cast = ", ".join(f"c{number}::text" for number in range(len(TYPES)))
    texts = {row[0]: row[1:] for row in _copied_rows(shop, f"SELECT id, {cast} FROM every")}
    plain = [f"c{n}" for n, kind in enumerate(TYPES) if kind in _PLAIN]
    native = {row[0]: row[1:] for row in shop.rows(f"SELECT id, {', '.join(plain)} FROM every")}
    schema = shop.table("every").schema
    for number, kind in enumerate(TYPES):
        name = f"c{number}"
        for row in range(most):
            copied, logged = found[row][name], found[100 + row][name]
            assert repr(copied) == repr(logged), (kind, row)
            text = texts[str(row)][number]
            if kind == "timestamptz_beyond" and text is not None and "BC" not in text:
                # All were written like this before a value arrived that makes the column a text
                # column.
                text = text.replace(" ", "T").replace("+00", "Z")
            if str(schema.field(name).type) in {"string", "large_string"}:
                assert copied == text, (kind, row)
            elif name in plain:
                assert repr(copied) == repr(native[row][plain.index(name)]), (kind, row)
            else:
                assert (copied is None) == (text is None), (kind, row)
    types = {kind: str(schema.field(f"c{n}").type) for n, kind in enumerate(TYPES)}
    assert types["int8"] == "int64"
    assert types["numeric(3,-2)"] == "decimal128(5, 0)"
    assert types["cents"] == "decimal128(10, 2)"
    assert types["positive"] == "int32"
    assert types["timestamptz"].startswith("timestamp[us, tz=")
    assert "string" in types["date_beyond"]
    assert "string" in types["numeric(4,2)"]
    assert shop.agrees()


def _copied_rows(shop: Shop, query: str) -> list[tuple[str | None, ...]]:
    """Return the rows that COPY writes."""
    with connect(shop.dsn) as connection, connection.cursor() as cursor:
        found = []
        statement = sql.SQL("COPY ({}) TO STDOUT").format(
            sql.SQL(query.replace("FROM ", "FROM public."))
        )
        with cursor.copy(statement) as copy:
            found = list(copy.rows())
    return found


@pytest.mark.long
def test_table_without_a_primary_key_is_replicated_by_a_unique_index(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE codes (name text, code text NOT NULL UNIQUE, body text)",
        "ALTER TABLE codes ALTER body SET STORAGE EXTERNAL",
        "INSERT INTO codes VALUES ('one', 'a', repeat('x', 9000)), ('two', 'b', 'b')",
        "CREATE TABLE parts (id int NOT NULL UNIQUE) PARTITION BY LIST (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1)",
        "ALTER TABLE parts REPLICA IDENTITY FULL",
        "INSERT INTO parts VALUES (1)",
    )
    shop.prepare()
    shop.sync_or_fail()
    whole = set(shop.present("codes", ("_fivetran_id", "code")))
    shop.run("ALTER TABLE codes REPLICA IDENTITY FULL")
    # The log would not contain the old rows of a partition: the table is still read as a whole.
    assert shop.capture_methods() == {
        "public.codes": CaptureMethod.EVERY_CHANGE,
        "public.parts": CaptureMethod.SNAPSHOT_DIFF,
    }
    shop.sync_or_fail()
    assert set(shop.present("codes", ("_fivetran_id", "code"))) == whole, "nothing differs"
    shop.run(
        "UPDATE codes SET name = 'three' WHERE code = 'a'",
        "UPDATE codes SET name = 'one' WHERE code = 'a'",
        "UPDATE codes SET code = 'c' WHERE code = 'b'",
        "ALTER TABLE codes RENAME code TO sign",
        "UPDATE codes SET sign = 'd' WHERE sign = 'a'",
        "DELETE FROM codes WHERE sign = 'c'",
        "INSERT INTO codes VALUES ('two', 'b', 'again')",
    )
    shop.sync_or_fail()
    assert shop.versions("codes", ("sign", "name")) == [
        ("a", "one", False),
        ("a", "three", False),
        ("a", "one", False),
        ("b", "two", False),
        ("b", "two", True),
        ("c", "two", False),
        ("d", "one", True),
    ]
    assert shop.present("codes", ("sign", "body")) == [("b", "again"), ("d", "x" * 9000)]
    ids = {sign: row_id for row_id, sign in shop.present("codes", ("_fivetran_id", "sign"))}
    assert (ids["b"], "b") in whole
    shop.run("TRUNCATE codes", "INSERT INTO codes VALUES ('new', 'b', NULL)")
    shop.sync_or_fail()
    assert shop.present("codes", ("_fivetran_id", "name")) == [(ids["b"], "new")]

    # Without the log, the sync continues with the same rows.
    shop.run("ALTER TABLE codes REPLICA IDENTITY DEFAULT", "INSERT INTO codes VALUES ('n', 'd')")
    shop.sync_or_fail()
    assert dict(shop.present("codes", ("sign", "_fivetran_id"))) == {
        sign: ids[sign] for sign in ("b", "d")
    }
    assert shop.agrees()


@pytest.mark.long
def test_changed_key_requires_another_table(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.run(
        "CREATE TABLE orders (id int PRIMARY KEY, code text NOT NULL)",
        "INSERT INTO orders VALUES (1, 'a'), (2, 'b')",
    )
    shop.prepare()
    shop.sync_or_fail()
    shop.run(
        "UPDATE orders SET code = 'c' WHERE id = 2",
        "ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (code)",
        "INSERT INTO orders VALUES (3, 'd')",
        "DELETE FROM orders WHERE code = 'a'",
    )
    before = shop.versions("orders", ("id", "code"))
    for _ in range(2):
        (stream,) = shop.sync().streams
        assert "The source's key is code, but the table's key is id" in (stream.error or "")
        assert shop.versions("orders", ("id", "code")) == before

    # `check` reports it before any run does.
    code, reported, _ = run_words(capsys, "check", "--project", str(shop.folder))
    assert code == 1
    assert "The source's key is code, but the table's key is id" in reported
    assert "rename.tables: {public.orders: " in reported
    # Do what the hint recommends.
    (folder,) = shop.project.lake.path.glob("raw/**/object=public.orders")
    assert str(folder) in (stream.hint or "")
    folder.rename(shop.folder / "away")
    shop.configure(rename="{tables: {public.orders: orders_by_code}}")
    code, reported, _ = run_words(capsys, "check", "--project", str(shop.folder))
    assert code == 0, reported
    shop.sync_or_fail()
    assert shop.versions("orders_by_code", ("code", "id")) == [("c", 2, True), ("d", 3, True)]
    assert shop.versions("orders", ("id", "code")) == before
    shop.run("DELETE FROM orders WHERE code = 'c'")
    shop.sync_or_fail()
    assert shop.versions("orders_by_code", ("code", "id")) == [("c", 2, False), ("d", 3, True)]
    assert shop.agrees()


@pytest.mark.long
def test_a_copy_reads_each_row_once(shop: Shop) -> None:
    columns = ("n numeric(10,2)", "at timestamp", "utc timestamptz", "on_day date")
    shop.run(
        f"CREATE TABLE items (id int PRIMARY KEY, {', '.join(columns)})",
        "INSERT INTO items SELECT n, n, now(), now(), now() FROM generate_series(1, 100) n",
    )
    shop.prepare()
    shop.sync_or_fail()
    query = "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'items'"
    assert shop.rows(query) == [(100,)]
    assert "decimal" in str(shop.table("items").schema.field("n").type)
    # The table is copied again, with values that a column of its type cannot hold.
    shop.run(
        "ALTER TABLE items ADD b numeric(4,2) DEFAULT 'NaN', ADD c date DEFAULT 'infinity', "
        "ADD d timestamptz DEFAULT '2024-01-01', ADD e date DEFAULT '2024-01-01'",
    )
    shop.sync_or_fail()
    assert shop.rows(query) == [(200,)]
    found = set(shop.present("items", ("b", "c", "e")))
    assert [(b, c, str(e)) for b, c, e in found] == [("NaN", "infinity", "2024-01-01")]
    before = shop.table("items").num_rows
    shop.run("VACUUM FULL items")
    shop.sync_or_fail()
    assert shop.table("items").num_rows == before, "nothing differs"
    assert shop.agrees()


@pytest.mark.long
@pytest.mark.parametrize("rows", [3, pytest.param(300_000, marks=pytest.mark.long)])
def test_columns_become_texts_where_some_row_needs_it(shop: Shop, rows: int) -> None:
    shop.run(
        "CREATE TABLE items (id int PRIMARY KEY, n numeric(10,2), at timestamp, on_day date)",
        f"INSERT INTO items SELECT n, CASE n WHEN {rows} THEN numeric 'NaN' ELSE n END, "
        f"CASE n WHEN {rows} THEN timestamp 'infinity' ELSE '2024-01-01 10:00:00.5' END, "
        f"date '2024-01-01' FROM generate_series(1, {rows}) n",
        # A key with such values, too.
        "CREATE TABLE days (on_day date PRIMARY KEY)",
        "INSERT INTO days VALUES ('-infinity'), ('2024-01-01')",
    )
    shop.prepare()
    shop.sync_or_fail()
    types = {name: str(shop.table("items").schema.field(name).type) for name in ("n", "on_day")}
    assert "string" in types["n"]
    assert "date" in types["on_day"]
    reported = set(shop.rows("SELECT id, n::text, at::text FROM items"))
    assert set(shop.present("items", ("id", "n", "at"))) == reported
    assert shop.present("days", ["on_day"]) == [("-infinity",), ("2024-01-01",)]
    shop.sync_or_fail(full_refresh=True)
    assert shop.table("items").num_rows == rows, "nothing differs"
    assert shop.table("days").num_rows == len(("-infinity", "2024-01-01"))
    assert shop.agrees()


@pytest.mark.long
def test_waiting_copy_reports_the_open_transaction(shop: Shop) -> None:
    shop.run("CREATE TABLE items (id int PRIMARY KEY)", "INSERT INTO items VALUES (1)")
    shop.prepare()
    with (
        psycopg.connect(shop.dsn, application_name="a long one") as open_one,
        ThreadPoolExecutor(1) as thread,
        structlog.testing.capture_logs() as logged,
    ):
        open_one.execute("INSERT INTO items VALUES (2)")
        running = thread.submit(shop.sync_or_fail)
        while not (reported := [line for line in logged if line["event"] == "snapshot_waits"]):
            assert not running.done(), running.result()
            time.sleep(0.1)
        assert reported[0]["application"] == "a long one"
        assert reported[0]["pid"] == open_one.info.backend_pid
        assert str(reported[0]["pid"]) in reported[0]["hint"]
        open_one.commit()
        running.result()
    assert shop.present("items", ["id"]) == [(1,), (2,)]


@pytest.mark.long
def test_a_table_may_have_as_many_columns_as_postgresql_allows(shop: Shop) -> None:
    names = [f"c{number}" for number in range(1_599)]
    cells = ", ".join(f"'{number:x}'" for number in range(1_599))
    shop.run(
        f"CREATE TABLE wide (id int PRIMARY KEY, {', '.join(f'{name} text' for name in names)})",
        f"INSERT INTO wide VALUES (1, {cells}), (2, {cells}), (3, {cells})",
    )
    shop.prepare()
    shop.sync_or_fail()
    shop.run("UPDATE wide SET c0 = 'a', c1598 = 'z' WHERE id = 1", "DELETE FROM wide WHERE id = 2")
    shop.sync_or_fail()
    assert shop.versions("wide", ("id", "c0", "c77", "c1598")) == [
        (1, "0", "4d", "63e", False),
        (1, "a", "4d", "z", True),
        (2, "0", "4d", "63e", False),
        (3, "0", "4d", "63e", True),
    ]
