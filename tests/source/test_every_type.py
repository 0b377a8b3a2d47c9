"""Values of every type that the server has are the same in a copy, in the log and on the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import psycopg
import pyarrow as pa
import pytest
import structlog
from psycopg import sql

from chronolake.types import ACTIVE
from support.source.databases import Shop

#: Two values of each base type, range and multirange, as SQL. A type that is not here fails the
#: test: no type of a new version of PostgreSQL is forgotten.
_VALUES: Final = {
    "aclitem": ("makeaclitem(10, 10, 'SELECT', false)", "makeaclitem(0, 10, 'UPDATE', true)"),
    "bit": ("B'1'", "B'101'"),
    "bool": ("true", "false"),
    "box": ("'(1,1),(0,0)'", "'(2.5,-1),(0,-3)'"),
    "bpchar": ("'a  '", "'é\"\\'"),
    "bytea": (r"'\x00ff5c'", "''"),
    "char": ("'a'", r"'\377'"),
    "cid": ("'7'", "'4294967295'"),
    "cidr": ("'10.1.0.0/16'", "'2001:db8::/32'"),
    "circle": ("'<(1,2),3>'", "'<(0,0),1e300>'"),
    "date": ("'2024-02-29'", "'0001-01-01'"),
    "datemultirange": ("'{[2024-01-01,2024-02-01),[2025-01-01,)}'", "'{}'"),
    "daterange": ("'[2024-01-01,2024-02-01)'", "'empty'"),
    "float4": ("'1.1'", "'-3.4028235e38'"),
    "float8": ("'0.1'", "'2.2250738585072014e-308'"),
    "inet": ("'10.0.0.1'", "'192.168.1.5/24'"),
    "int2": ("-32768", "32767"),
    "int2vector": ("'1 2 3'", "''"),
    "int4": ("-2147483648", "2147483647"),
    "int4multirange": ("'{[1,3),[5,9)}'", "'{}'"),
    "int4range": ("'[1,5]'", "'empty'"),
    "int8": ("-9223372036854775808", "9223372036854775807"),
    "int8multirange": ("'{[1,3),[5,9)}'", "'{(,)}'"),
    "int8range": ("'[1,9223372036854775807)'", "'(,)'"),
    "interval": ("'1 year 2 mons -3 days 04:05:06.000007'", "'-178000000 years'"),
    "json": ("""'{"b": 1.50, "a": [null, "é"], "b": 12345678901234567890123}'""", "'null'"),
    "jsonb": ("""'{"b": 1.50, "a": [null, "é"], "c": 12345678901234567890.123}'""", "'[]'"),
    "jsonpath": ("'$.a[*] ? (@ > 1)'", "'strict $'"),
    "line": ("'{1,2,3}'", "'{0,-1,0.5}'"),
    "lseg": ("'[(1,2),(3,4)]'", "'[(0,0),(0,0)]'"),
    "macaddr": ("'08:00:2b:01:02:03'", "'ff:ff:ff:ff:ff:ff'"),
    "macaddr8": ("'08:00:2b:01:02:03:04:05'", "'ff:ff:ff:ff:ff:ff:ff:ff'"),
    "money": ("'1234.5'", "'-92233720368547758.08'"),
    "name": ("'a b\"c'", "''"),
    "numeric": ("'-0.00012345678901234567890123456789'", "'1e130'"),
    "nummultirange": ("'{[1.50,2.5),(7,)}'", "'{}'"),
    "numrange": ("'(0.10,12345678901234567890.5]'", "'empty'"),
    "oid": ("0", "4294967295"),
    "oidvector": ("'1 2 4294967295'", "''"),
    "path": ("'[(1,2),(3,4)]'", "'((0,0),(1,1),(2,0))'"),
    "pg_lsn": ("'16/B374D848'", "'0/0'"),
    "pg_snapshot": ("'10:20:10,14,15'", "'1:1:'"),
    "point": ("'(1.5,-0)'", "'(1e300,2)'"),
    "polygon": ("'((0,0),(1,1),(2,0))'", "'((5,5))'"),
    "refcursor": ("'a b'", "''"),
    "regclass": ("'pg_class'", "'pg_catalog.pg_type'"),
    "regcollation": ("""'"C"'""", """'"POSIX"'"""),
    "regconfig": ("'english'", "'simple'"),
    "regdatabase": ("'postgres'", "'template1'"),
    "regdictionary": ("'simple'", "'english_stem'"),
    "regnamespace": ("'pg_catalog'", "'public'"),
    "regoper": ("'||/'", "'|/'"),
    "regoperator": ("'+(integer,integer)'", "'-(NONE,bigint)'"),
    "regproc": ("'now'", "'pg_sleep'"),
    "regprocedure": ("'abs(integer)'", "'lower(text)'"),
    "regrole": ("10", "'pg_monitor'"),
    "regtype": ("'int4'", "'text[]'"),
    "text": ("'a,\"b\"\\n{}'", "''"),
    "tid": ("'(0,1)'", "'(4294967295,65535)'"),
    "time": ("'23:59:59.999999'", "'00:00'"),
    "timestamp": ("'2024-02-29 12:34:56.123456'", "'0001-01-01 00:00'"),
    "timestamptz": ("'2024-02-29 12:34:56.1+07'", "'9999-12-31 23:59:59.999999+00'"),
    "timetz": ("'12:34:56.7+05:30'", "'24:00:00-15:59'"),
    "tsmultirange": ("""'{["2024-01-01 00:00","2024-01-02 00:00"]}'""", "'{}'"),
    "tsquery": ("""'fat & (rat | !cat:*A)'""", "''"),
    "tsrange": ("""'["2024-01-01 00:00","2024-01-02 00:00:00.5")'""", "'empty'"),
    "tstzmultirange": ("""'{["2024-01-01 00:00+07","2024-01-02 00:00+00"]}'""", "'{}'"),
    "tstzrange": ("""'["2024-01-01 00:00+07",infinity)'""", "'empty'"),
    "tsvector": ("""'a:1A fat:2,4B ''q t'':3'""", "''"),
    "txid_snapshot": ("'10:20:10,14,15'", "'1:1:'"),
    "uuid": ("'00000000-0000-0000-0000-00000000000a'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"),
    "varbit": ("B'10110'", "B''"),
    "varchar": ("'a,\"b\" '", "''"),
    "xid": ("'7'", "'4294967295'"),
    "xid8": ("'7'", "'18446744073709551615'"),
    "xml": ("'<a b=\"1\">é</a>'", "'x'"),
}
#: Types that accept no values, and of which only the server's own catalogs have some.
_OF_CATALOGS: Final = {
    "gtsvector",
    "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary",
    "pg_dependencies",
    "pg_mcv_list",
    "pg_ndistinct",
    "pg_node_tree",
}
#: Types with a length or precision, and two values of each.
_WITH_MODIFIER: Final = {
    "numeric(10,2)": ("12345678.90", "-0.01"),
    "numeric(38,10)": ("'1234567890123456789012345678.0123456789'", "-1"),
    "numeric(39,1)": ("'12345678901234567890123456789012345678.9'", "0"),
    "numeric(3,-2)": ("12345", "-99900"),
    "numeric(2,5)": ("0.00012", "0.00099"),
    "varchar(3)": ("'é\"'", "' a '"),
    "char(5)": ("'a'", "'é b'"),
    "bit(3)": ("B'101'", "B'000'"),
    "varbit(4)": ("B'10'", "B''"),
    "time(0)": ("'12:34:56'", "'00:00'"),
    "timestamp(3)": ("'2024-02-29 12:34:56.123'", "'2024-02-29'"),
    "timestamptz(0)": ("'2024-02-29 12:34:56+07'", "'2024-02-29'"),
    "interval day to second(2)": ("'3 4:05:06.78'", "'0'"),
}
_OWN_TYPES: Final = (
    "CREATE TYPE mood AS ENUM ('so so', 'NULL')",
    'CREATE TYPE pair AS (a int, "b c" text)',
    "CREATE TYPE span AS RANGE (subtype = float8)",
)
_OF_OWN: Final = {
    "mood": ("'so so'", "'NULL'"),
    "pair": ("ROW(1, 'x,\"y\"')", "ROW(NULL, '')"),
    "span": ("'[1.5,2)'", "'empty'"),
    "span_multirange": ("'{[1.5,2),(3,)}'", "'{}'"),
}
#: Every type of the server and of the schema public, except row types of tables, pseudo types, and
#: arrays of domains. Without a modifier, `format_type` would return char(1) for bpchar.
_TYPES: Final = """
SELECT t.typname::text, pg_catalog.format_type(t.oid, -1), t.typtype::text,
       coalesce(e.typname::text, b.typname::text), coalesce(e.typdelim::text, ''),
       pg_catalog.format_type(e.oid, -1)
FROM pg_catalog.pg_type t
LEFT JOIN pg_catalog.pg_type e ON e.typarray = t.oid
LEFT JOIN pg_catalog.pg_type b ON b.oid = t.typbasetype
LEFT JOIN pg_catalog.pg_class c ON c.oid = t.typrelid
WHERE t.typnamespace IN ('pg_catalog'::regnamespace, 'public'::regnamespace)
  AND t.typtype <> 'p' AND coalesce(c.relkind, 'c') = 'c'
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_type r JOIN pg_catalog.pg_class k ON k.oid = r.typrelid
                  WHERE r.typarray = t.oid AND k.relkind <> 'c')
  AND coalesce(e.typtype, '') <> 'd' AND coalesce(e.typtype, '') <> 'p'
ORDER BY t.typname
"""


@dataclass(frozen=True)
class _Type:
    """A type, and two values of it as SQL.

    Attributes:
        name: its name in SQL.
        values: expressions; null for types that accept no values.
        is_plain: whether it is neither an array nor a domain.
    """

    name: str
    values: tuple[str, str]
    is_plain: bool


def _types(shop: Shop) -> list[_Type]:
    """Return all types that a column can have, after creating a domain over each base type."""
    shop.run(*_OWN_TYPES)
    for name, sql_name, kind, *_ in shop.rows(_TYPES):
        if kind == "b" and not name.startswith("_"):
            shop.run(f'CREATE DOMAIN "of_{name}" AS {sql_name}')
    without = {*_OF_CATALOGS, *(() if _has_xml(shop) else ("xml",))}
    known = {**_VALUES, **_OF_OWN, **dict.fromkeys(without, ("NULL", "NULL"))}
    rows = shop.rows(_TYPES)
    needed = {name if part is None else part for name, _, _, part, *_ in rows}
    assert needed <= known.keys(), "add values of these types to _VALUES"
    found = [_Type(name, values, is_plain=True) for name, values in _WITH_MODIFIER.items()]
    for name, sql_name, _, part, delimiter, element in rows:
        first, second = known[name if part is None else part]
        if element is not None:
            texts = [_quoted(f"({value})::{element}") for value in (first, second)]
            filled = f"'{{' || concat_ws('{delimiter}', {', '.join(texts)}, 'NULL') || '}}'"
            first, second = filled, "'{}'"
        found.append(_Type(sql_name, (first, second), is_plain=part is None))
    return found


def _has_xml(shop: Shop) -> bool:
    """Return whether the server was built with libxml."""
    try:
        shop.rows("SELECT '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        return False
    return True


def _quoted(value: str) -> str:
    """Return an expression for a value's text as an element of an array's text."""
    return rf"""'"' || replace(replace(({value})::text, '\', '\\'), '"', '\"') || '"'"""


def _row(types: Sequence[_Type], which: int) -> str:
    return ", ".join(f"({type_.values[which]})::{type_.name}" for type_ in types)


def _expect_server_s(shop: Shop, name: str, types: Sequence[_Type]) -> None:
    """Compare the active versions with the server's rows, value by value."""
    table = shop.table(name)
    table = table.filter(table[ACTIVE]).sort_by("id")
    names = [f"c{number}" for number in range(len(types))]
    columns = sql.SQL(", ").join(
        sql.SQL("{}::text" if _is_text(table.schema.field(name).type) else "{}").format(
            sql.Identifier(name)
        )
        for name in names
    )
    query = sql.SQL("SELECT id, {} FROM {} ORDER BY id").format(columns, sql.Identifier(name))
    with psycopg.connect(shop.dsn, options="-c timezone=UTC") as connection:
        rows = connection.execute(query).fetchall()
    assert table["id"].to_pylist() == [row[0] for row in rows]
    for number, type_ in enumerate(types):
        column = table[names[number]]
        expected = [_as_stored(row[1 + number], column.type) for row in rows]
        assert column.to_pylist() == expected, type_.name


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _as_stored(value: Any, kind: pa.DataType) -> Any:
    return float(np.float32(value)) if value is not None and pa.types.is_float32(kind) else value


@pytest.mark.long
def test_every_type_is_the_same_in_a_copy_and_in_the_log(shop: Shop) -> None:
    types = _types(shop)
    columns = ", ".join(f"c{number} {type_.name}" for number, type_ in enumerate(types))
    sets = "({}) = ROW({})".format(
        ", ".join(f"c{number}" for number in range(len(types))), _row(types, 1)
    )
    shop.run(
        f"CREATE TABLE every (id int PRIMARY KEY, {columns})",
        f"INSERT INTO every VALUES (1, {_row(types, 0)}), (2, {_row(types, 1)})",
        "INSERT INTO every VALUES (3), (4)",
    )
    shop.prepare()
    shop.sync_or_fail()
    _expect_server_s(shop, "every", types)

    shop.run(
        f"UPDATE every SET {sets} WHERE id IN (1, 3)",
        "DELETE FROM every WHERE id = 4",
        f"INSERT INTO every VALUES (5, {_row(types, 0)})",
        "INSERT INTO every VALUES (6)",
    )
    with structlog.testing.capture_logs() as logged:
        shop.sync_or_fail()
    assert not [event for event in logged if event["event"] == "table_read_again"]
    _expect_server_s(shop, "every", types)
    assert len(shop.versions("every", ("id",))) == 8


@pytest.mark.long
def test_every_type_is_the_same_key_in_a_copy_and_in_the_log(shop: Shop) -> None:
    types = [type_ for type_ in _types(shop) if type_.is_plain and _can_be_key(shop, type_)]
    assert len(types) > len(_VALUES) // 2
    # An index has up to 32 columns.
    tables = {f"keys{begin}": types[begin : begin + 30] for begin in range(0, len(types), 30)}
    for name, part in tables.items():
        columns = ", ".join(f"c{number} {type_.name}" for number, type_ in enumerate(part))
        key = ", ".join(f"c{number}" for number in range(len(part)))
        shop.run(
            f"CREATE TABLE {name} (id int, {columns}, PRIMARY KEY ({key}))",
            f"INSERT INTO {name} VALUES (1, {_row(part, 0)}), (2, {_row(part, 1)})",
        )
    shop.prepare()
    shop.sync_or_fail()
    for name, part in tables.items():
        _expect_server_s(shop, name, part)
        shop.run(
            f"UPDATE {name} SET id = 3 WHERE id = 1",
            f"DELETE FROM {name} WHERE id = 2",
            f"INSERT INTO {name} VALUES (4, {_row(part[:1], 0)}, {_row(part[1:], 1)})",
            f"UPDATE {name} SET id = 5, c0 = ({part[0].values[1]})::{part[0].name} WHERE id = 4",
        )
    with structlog.testing.capture_logs() as logged:
        shop.sync_or_fail()
    assert not [event for event in logged if event["event"] == "table_read_again"]
    for name, part in tables.items():
        _expect_server_s(shop, name, part)
        # The record that was deleted is the one that got its key afterwards.
        found = shop.versions(name, ("id",))
        assert sorted(found) == [(1, False), (2, False), (3, True), (4, False), (5, True)]


def _can_be_key(shop: Shop, type_: _Type) -> bool:
    """Return whether values of a type exist, and the server lets them be a key."""
    if type_.values[0] == "NULL":
        return False
    try:
        shop.run(f"CREATE TABLE probe (k {type_.name} PRIMARY KEY)", "DROP TABLE probe")
    except psycopg.Error:
        return False
    return True
