"""The binary log has the values that the server prints, and that a copy of the table reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronolake.source.mysql.connection import connect
from chronolake.source.mysql.result_rows import read_rows
from chronolake.source.mysql.selection import TableSelection
from support.source.mysql_log import log_end, raw_cursor, read_log, rows_of, texts
from support.source.mysql_servers import FLAVORS, MysqlShop, server


@pytest.fixture(scope="module", params=FLAVORS)
def shop(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MysqlShop]:
    """Yield a project that syncs an empty database."""
    with server(request.param) as address:
        found = MysqlShop(tmp_path_factory.mktemp("shop"), address)
        found.prepare()
        yield found


def _integers() -> dict[str, tuple[str, list[str]]]:
    found = {}
    for kind, bits in (
        ("tinyint", 8),
        ("smallint", 16),
        ("mediumint", 24),
        ("int", 32),
        ("bigint", 64),
    ):
        found[kind] = kind, [str(-(2 ** (bits - 1))), str(2 ** (bits - 1) - 1), "0", "-1"]
        found[f"u{kind}"] = f"{kind} unsigned", ["0", str(2**bits - 1), "1", str(2 ** (bits - 1))]
    return found


def _decimals() -> dict[str, tuple[str, list[str]]]:
    found = {}
    for precision, scale in (
        *((1, 0), (1, 1), (9, 0), (10, 0), (18, 9), (19, 10), (38, 30), (65, 30), (65, 0)),
        *((5, 2), (30, 29)),
    ):
        whole, fraction = "9" * (precision - scale) or "0", "9" * scale
        greatest = f"{whole}.{fraction}" if scale else whole
        least = f"0.{'0' * (scale - 1)}1" if scale else "1"
        found[f"dec{precision}_{scale}"] = (
            f"decimal({precision},{scale})",
            [greatest, f"-{greatest}", "0", least, "-0.5"],
        )
    return found


def _times() -> dict[str, tuple[str, list[str]]]:
    found = {
        "da": (
            "date",
            ["'0000-00-00'", "'9999-12-31'", "'1000-01-01'", "'2020-00-15'", "'2024-02-29'"],
        ),
        "ye": ("year", ["1901", "2155", "0", "2026"]),
    }
    for digits in range(7):
        part = "." + "987654"[:digits] if digits else ""
        found[f"dt{digits}"] = (
            f"datetime({digits})",
            [
                "'0000-00-00 00:00:00'",
                f"'9999-12-31 23:59:59{part}'",
                "'1000-01-01 00:00:00.000001'",
                "'2021-00-00 10:11:12'",
            ],
        )
        found[f"ts{digits}"] = (
            f"timestamp({digits}) null",
            [
                "'0000-00-00 00:00:00'",
                f"'2038-01-19 03:14:07{part}'",
                "'1970-01-01 00:00:01'",
                f"'2026-06-30 12:13:14{part}'",
            ],
        )
        found[f"ti{digits}"] = (
            f"time({digits})",
            [
                *("'838:59:59'", "'-838:59:59'", f"'-00:00:00{part or '.0'}'"),
                *(f"'-01:02:03{part}'", f"'100:00:00{part}'", "'00:00:00.000001'"),
            ],
        )
    return found


_TEXTS: Final[dict[str, tuple[str, list[str]]]] = {
    "ch": ("char(10)", ["'abc  '", "'ä€😀'", "''"]),
    "vc": ("varchar(300)", ["'x'", "repeat('€',300)"]),
    "te": ("text", ["'t'", "repeat('z',3000)"]),
    "lt": ("longtext", ["'ü'"]),
    "tt": ("tinytext", ["'q'"]),
    "c255": ("char(255)", ["repeat('€',255)"]),
    "l1": ("varchar(20) character set latin1", ["'ä€'", "x'81'"]),
    "l2": ("varchar(20) character set latin2", ["'ł'"]),
    "cp": ("text character set cp1251", ["'Ж'"]),
    "sj": ("varchar(20) character set sjis", ["'日本ｱ'"]),
    "gb": ("varchar(20) character set gbk", ["'汉字'"]),
    "u2": ("varchar(20) character set ucs2", ["'a€'"]),
    "u16": ("varchar(20) character set utf16", ["'a😀'"]),
    "bi": ("binary(5)", ["x'0100000000'", "x'00'", "'ab'"]),
    "b255": ("binary(255)", ["'x'"]),
    "vb": ("varbinary(300)", ["x'00ff00'", "''"]),
    "bl": ("blob", ["x'00ff'"]),
    "lb": ("longblob", ["repeat(x'ff',70000)"]),
    "en": ("enum('a','b,c','ä')", ["'b,c'", "'ä'", "'nope'"]),
    "en300": ("enum(" + ",".join(f"'v{n}'" for n in range(300)) + ")", ["'v299'", "'v0'"]),
    "se": ("set('x','y','ä')", ["'x,ä'", "''", "'y'"]),
    "se64": ("set(" + ",".join(f"'s{n}'" for n in range(64)) + ")", ["'s0,s63'", "'s31,s32'"]),
}
_OTHERS: Final[dict[str, tuple[str, list[str]]]] = {
    "zf": ("int(8) unsigned zerofill", ["42", "0"]),
    "b1": ("bit(1)", ["b'1'", "b'0'"]),
    "b9": ("bit(9)", ["511", "256"]),
    "b64": ("bit(64)", [str(2**64 - 1), "0", "5"]),
    "fl": ("float", ["1.1", "-3.402823466e38", "1e-38", "16777217"]),
    "do": ("double", ["1.7976931348623157e308", "-2.2250738585072014e-308", "0.1"]),
    "pt": ("point", ["ST_GeomFromText('POINT(1 2)')"]),
    "gg": ("geometry", ["ST_GeomFromText('LINESTRING(0 0,1 1)')"]),
}


def _printed(name: str, kind: str) -> str:
    """Return an expression for a value as the server prints it."""
    base = kind.partition("(")[0]
    if base in {"binary", "varbinary", "blob", "longblob", "point", "geometry"}:
        return f"HEX(`{name}`)"
    if base == "bit" or "zerofill" in kind:
        return f"CAST(`{name}` AS UNSIGNED)"
    return f"CAST(`{name}` AS DOUBLE)" if kind == "float" else f"`{name}`"


@pytest.mark.sampled
def test_extremes_of_every_type(shop: MysqlShop) -> None:
    columns = {**_integers(), **_decimals(), **_times(), **_TEXTS, **_OTHERS}
    with raw_cursor(shop.dsn) as cursor:
        declared = ", ".join(f"`{name}` {kind}" for name, (kind, _) in columns.items())
        cursor.execute("DROP TABLE IF EXISTS t")
        cursor.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {declared}) ROW_FORMAT=DYNAMIC")
        begins = log_end(shop.dsn)
        for number in range(max(len(values) for _, values in columns.values())):
            cells = [
                values[number] if number < len(values) else "NULL" for _, values in columns.values()
            ]
            cursor.execute(f"INSERT INTO t VALUES ({number}, {', '.join(cells)})")
        cursor.execute("UPDATE t SET id = id + 1000")
        printed = ", ".join(_printed(name, kind) for name, (kind, _) in columns.items())
        expected = [
            dict(zip(("id", *columns), row, strict=True))
            for row in texts(cursor, f"SELECT id, {printed} FROM t ORDER BY id")
        ]
    changes, _ = read_log(shop.dsn, begins, table="t")
    last = {row["id"]: row for row in rows_of(changes).to_pylist()}
    copied = {row["id"]: row for row in _copied(shop).to_pylist()}
    for row in expected:
        assert _comparable(last[row["id"]]) == _comparable(row)
        assert _comparable(copied[row["id"]]) == _comparable(row)


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose approximate numbers are numbers: their texts may differ."""
    return {
        name: float(text) if name in {"fl", "do"} and text is not None else text
        for name, text in row.items()
    }


def _copied(shop: MysqlShop) -> pa.Table:
    """Return the rows of the table `t` as a copy of it reads them."""
    project = shop.project
    table = TableSelection(project, "shop", project.pipelines["shop"].source).table("shop.t")
    cells = ", ".join(column.copied for column in table.columns)
    names = [column.name for column in table.columns]
    with connect(shop.dsn) as connection:
        return pa.Table.from_batches(
            read_rows(connection, f"SELECT {cells} FROM shop.t", names),
            pa.schema([(name, pa.string()) for name in names]),
        )


_JSON: Final = [
    "CAST(1.5 AS JSON)",
    (
        "JSON_ARRAY(1,-1,65535,65536,-32769,4294967295,4294967296,18446744073709551615,"
        "-9223372036854775808)"
    ),
    (
        "JSON_OBJECT('d', DATE'2020-01-02', 't', TIME'-100:01:02.5', 'dt', "
        "TIMESTAMP'2020-01-02 03:04:05.123456', 'dec', CAST(12.50 AS DECIMAL(10,2)), 'neg', "
        "CAST(-0.00100 AS DECIMAL(30,5)), 'b', x'00ff', 'bit', b'101')"
    ),
    (
        "JSON_ARRAY(0e0,1e0,-1.5e0,1e14,1e15,1e16,1e20,1.7976931348623157e308,1e-5,1e-4,1e-6,0.1,"
        "123456789.125,1e-300,0.00001234,1234567890123456.7)"
    ),
    *("CAST('null' AS JSON)", "CAST('[]' AS JSON)", "CAST('{}' AS JSON)"),
    "JSON_QUOTE(REPEAT('x',70000))",
    "JSON_ARRAY(REPEAT('y',40000), JSON_OBJECT('z', REPEAT('w',40000)))",
    "JSON_OBJECT('aa', 1, 'b', TRUE, 'c', FALSE, 'ccc', NULL)",
    "CAST(CAST(5 AS UNSIGNED) AS JSON)",
]
_DOCUMENTS: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text('abcdefä"', max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
_BATCH: Final = 40


def _only_mysql(shop: MysqlShop) -> None:
    if shop.is_mariadb:
        pytest.skip("MariaDB stores JSON as text")


def test_documents_that_only_the_server_can_create(shop: MysqlShop) -> None:
    _only_mysql(shop)
    with raw_cursor(shop.dsn) as cursor:
        begins = _new_table(shop, cursor, "a JSON")
        for number, expression in enumerate(_JSON):
            cursor.execute(f"INSERT INTO t VALUES ({number}, {expression})")
        expected = dict(texts(cursor, "SELECT id, CAST(a AS CHAR) FROM t"))
    changes, _ = read_log(shop.dsn, begins, table="t")
    assert {row["id"]: row["a"] for row in rows_of(changes).to_pylist()} == expected


@pytest.mark.sampled
@settings(max_examples=12, deadline=None)
@given(st.lists(_DOCUMENTS, min_size=_BATCH, max_size=_BATCH))
def test_random_documents(shop: MysqlShop, documents: list[Any]) -> None:
    _only_mysql(shop)
    with raw_cursor(shop.dsn) as cursor:
        begins = _new_table(shop, cursor, "a JSON")
        cursor.executemany(
            "INSERT INTO t VALUES (%s, %s)",
            [(number, json.dumps(each)) for number, each in enumerate(documents)],
        )
        expected = dict(texts(cursor, "SELECT id, CAST(a AS CHAR) FROM t"))
    changes, _ = read_log(shop.dsn, begins, table="t")
    assert {row["id"]: row["a"] for row in rows_of(changes).to_pylist()} == expected


@st.composite
def _updates(draw: st.DrawFn) -> list[str]:
    """Return expressions that the server may log as partial updates of a document."""
    paths = st.sampled_from(["$.a", "$.b", "$.b[1]", "$.b[0].c", "$.d.e", '$."x y"', "$.b[7]"])
    values = st.sampled_from(
        ["1", "NULL", "'text'", "JSON_ARRAY(1, 2)", "JSON_OBJECT('c', 3)", "REPEAT('q', 300)"]
    )
    found = []
    for _ in range(draw(st.integers(1, 6))):
        function = draw(st.sampled_from(["SET", "REPLACE", "REMOVE"]))
        if function == "REMOVE":
            found.append(f"JSON_REMOVE(a, '{draw(paths)}')")
        else:
            found.append(f"JSON_{function}(a, '{draw(paths)}', {draw(values)})")
    return found


@pytest.mark.sampled
@settings(max_examples=25, deadline=None)
@given(_updates())
def test_partial_updates_of_documents(shop: MysqlShop, updates: list[str]) -> None:
    _only_mysql(shop)
    first = {"a": "x" * 200, "b": [1, {"c": 2}, None], "d": {"e": "f" * 100}, "x y": 0}
    with raw_cursor(shop.dsn) as cursor:
        cursor.execute("SET SESSION binlog_row_value_options = 'PARTIAL_JSON'")
        begins = _new_table(shop, cursor, "a JSON")
        cursor.execute("INSERT INTO t VALUES (1, %s)", (json.dumps(first),))
        expected = texts(cursor, "SELECT CAST(a AS CHAR) FROM t")
        for update in updates:
            cursor.execute(f"UPDATE t SET a = {update}")
            expected += texts(cursor, "SELECT CAST(a AS CHAR) FROM t")
    changes, _ = read_log(shop.dsn, begins, table="t")
    found = [text for (text,) in expected]
    # An update that changes nothing is not logged.
    distinct = [text for place, text in enumerate(found) if place == 0 or found[place - 1] != text]
    assert rows_of(changes)["a"].to_pylist() == distinct


_MOMENTS: Final = st.datetimes(datetime(1000, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999))
_ROWS: Final = st.lists(
    st.tuples(
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.integers(0, 2**64 - 1),
        st.none() | st.decimals(-(10**34), 10**34, places=30),
        st.none() | st.decimals(-(10**8), 10**8, places=3),
        st.none() | _MOMENTS.map(str),
        st.none() | st.datetimes(datetime(1970, 1, 2), datetime(2038, 1, 18)).map(str),
        st.none() | st.timedeltas(timedelta(hours=-838), timedelta(hours=838)),
        st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=90),
        st.none() | st.binary(max_size=300),
        st.none() | st.floats(allow_nan=False, allow_infinity=False),
    ),
    min_size=1,
    max_size=30,
)
_DECLARED: Final = (
    "a BIGINT, b BIGINT UNSIGNED, c DECIMAL(65,30), d DECIMAL(12,3), e DATETIME(4), "
    "f TIMESTAMP(6) NULL, g TIME(6), h VARCHAR(100), i BLOB, j DOUBLE"
)


@pytest.mark.sampled
@settings(max_examples=20, deadline=None)
@given(_ROWS, st.sampled_from(["FULL", "MINIMAL", "NOBLOB"]), st.sampled_from([None, 200]))
def test_random_rows(
    shop: MysqlShop, rows: list[tuple[Any, ...]], image: str, batch_bytes: int | None
) -> None:
    with raw_cursor(shop.dsn) as cursor:
        cursor.execute("SET SESSION binlog_row_image = %s", (image,))
        begins = _new_table(shop, cursor, _DECLARED)
        places = ", ".join(["%s"] * 11)
        cursor.executemany(
            f"INSERT INTO t VALUES ({places})",
            [(number, *map(_as_parameter, row)) for number, row in enumerate(rows)],
        )
        printed = "id, a, b, c, d, e, f, g, h, HEX(i) AS i, j"
        expected = texts(cursor, f"SELECT {printed} FROM t ORDER BY id")
        cursor.execute("DELETE FROM t WHERE id >= 0")
    changes, _ = read_log(shop.dsn, begins, table="t", batch_bytes=batch_bytes)
    inserted = [change for change in changes if change.kinds[0] == ord("I")]
    found = sorted(rows_of(inserted).to_pylist(), key=lambda row: int(row["id"]))
    assert [_with_number(tuple(row.values())) for row in found] == list(map(_with_number, expected))
    assert sum(change.number for change in changes) == 2 * len(rows)


def _as_parameter(value: Any) -> Any:
    if not isinstance(value, timedelta):
        return value
    sign, micros = "-" if value < timedelta(0) else "", abs(value) // timedelta(microseconds=1)
    minutes, rest = divmod(micros, 60_000_000)
    return f"{sign}{minutes // 60}:{minutes % 60:02}:{rest / 1e6:09.6f}"


def _with_number(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return *row[:-1], None if row[-1] is None else float(row[-1])


def _new_table(shop: MysqlShop, cursor: Any, declared: str) -> Any:
    """Create the table `t`, and return the end of the log before its rows."""
    cursor.execute("DROP TABLE IF EXISTS t")
    cursor.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {declared})")
    return log_end(shop.dsn)


@pytest.mark.long
def test_a_year_has_a_sign_in_the_log(shop: MysqlShop) -> None:
    shop.run(
        "CREATE TABLE dated (id INT PRIMARY KEY, y YEAR, n INT, u INT UNSIGNED, b BOOL, "
        "big BIGINT UNSIGNED)"
    )
    shop.sync_or_fail()
    shop.run(f"INSERT INTO dated VALUES (1, 2020, -5, 4000000000, true, {2**64 - 1})")
    shop.sync_or_fail()
    (row,) = shop.present("dated", ["y", "n", "u", "b", "big"])
    assert [int(value) for value in row] == [2020, -5, 4_000_000_000, 1, 2**64 - 1]


@pytest.mark.long
def test_numbers_of_a_key_are_those_of_the_log(
    shop: MysqlShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run(
        "CREATE TABLE numbers (a DOUBLE, b FLOAT, n INT, PRIMARY KEY (a, b))",
        "CREATE TABLE fixed (a DOUBLE(10,3) NOT NULL UNIQUE, n INT)",
        "INSERT INTO numbers VALUES (1e20, 1.1, 1), (0.1, 3e-10, 2), (-0.5, 16777216, 3)",
        "INSERT INTO fixed VALUES (1.5, 1), (2, 2)",
    )

    def change(point: str) -> None:
        if point == "copy.staged":
            shop.run("UPDATE numbers SET n = n + 10", "UPDATE fixed SET n = n + 10")

    with monkeypatch.context() as patched:
        patched.setattr("chronolake.source.mysql.initial_copy.reach", change)
        shop.sync_or_fail()
    shop.run("UPDATE numbers SET n = n + 1", "UPDATE fixed SET n = n + 1 WHERE a = 2")
    shop.sync_or_fail()
    for table in ("numbers", "fixed"):
        there = sorted(shop.rows(f"SELECT n FROM {table}"))
        assert sorted(shop.present(table, ["n"])) == there


@pytest.mark.long
def test_defaults_of_minimal_rows_are_the_texts_of_the_server(shop: MysqlShop) -> None:
    shop.run(
        "CREATE TABLE given (id INT PRIMARY KEY, a TIME DEFAULT '08:30:00', "
        "b TIME DEFAULT '-10:00:00', c TIME(3) DEFAULT '12:00:00', d TIME DEFAULT '100:00:00', "
        "e DOUBLE DEFAULT 1e20, f DATETIME(3) DEFAULT '2026-01-01 00:00:00', g YEAR DEFAULT 2020, "
        "h BIT(9) DEFAULT b'101', i VARBINARY(4) DEFAULT 'x', j DECIMAL(9,3) DEFAULT 1.5)",
        "INSERT INTO given (id) VALUES (1)",
    )
    shop.sync_or_fail()
    shop.run("SET SESSION binlog_row_image = 'MINIMAL'", "INSERT INTO given (id) VALUES (2)")
    shop.sync_or_fail()
    (copied, logged) = shop.present("given", ["id", *"abcdefghij"])
    assert copied[1:] == logged[1:]
