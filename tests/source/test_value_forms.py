"""Arrays, composite values and money in other forms than their texts, and generated columns."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, Final

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from chronolake.source.postgres import catalog
from chronolake.source.postgres.connection import connect
from chronolake.source.postgres.value_forms import ColumnOptions, MoneyForm, values_of
from support.commands import run_words
from support.source.databases import Shop

_TYPES: Final = (
    "CREATE TYPE mood AS ENUM ('so so', 'NULL')",
    'CREATE TYPE pair AS (a int, "b ""c" text)',
    "CREATE TYPE box2 AS (p pair, ps pair[], j json, n numeric, f bool)",
    "CREATE DOMAIN ints AS int[]",
)
#: Values whose JSON the server has, too.
_VALUES: Final = {
    "int[]": ["'{}'", "'{1,NULL,-3}'", "'[0:2]={1,2,3}'", "'{{1,2},{3,4}}'"],
    "ints": ["'{1,2}'"],
    "bigint[]": ["'{9223372036854775807}'"],
    "float8[]": ["'{1e300,-0,1.5,NaN,Infinity}'"],
    "numeric[]": ["'{1.50,NaN,-0.000}'"],
    "bool[]": ["'{t,f,NULL}'"],
    "text[]": [r"""ARRAY['', 'NULL', NULL, 'a,b', '{', '"', E'\\', E'\n\t', 'é😀', ' x ', '}{']"""],
    "mood[]": ["'{so so,\"NULL\",NULL}'"],
    "box[]": ["'{(1,1),(0,0);(2,2),(0,0)}'"],
    "json[]": ["""ARRAY['{"a": [1, null]}', 'null', '"x"']::json[]"""],
    "uuid[]": ["ARRAY['00000000-0000-0000-0000-00000000000a'::uuid]"],
    "pair": ["(1, 'x')", "(NULL, NULL)", r"""(-1, E'a"b\\c,(d)\n')""", "(0, '')"],
    "pair[]": [r"""ARRAY[(1, 'x,"y"\z')::pair, NULL, (NULL, '')::pair]"""],
    "box2": [
        r"""((1, '"'), ARRAY[(2, E'\\')::pair], '{"k": "v"}', 1.10, true)""",
        "(NULL, '{}', NULL, 'NaN', NULL)",
    ],
}


def test_json_of_arrays_and_composites_is_the_server_s(address: str) -> None:
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(_VALUES))
    with psycopg.connect(address, autocommit=True) as server:
        server.execute("DROP SCHEMA IF EXISTS public CASCADE; CREATE SCHEMA public")
        for statement in (*_TYPES, f"CREATE TABLE every ({columns})"):
            server.execute(statement.encode())
        for number, (kind, values) in enumerate(_VALUES.items()):
            for value in values:
                # A row constructor needs the type's name.
                statement = f"INSERT INTO every (c{number}) VALUES (({value})::{kind})"
                server.execute(statement.encode())
    with connect(address) as connection:
        options = ColumnOptions(json_arrays=True, json_composites=True)
        (table,) = catalog.tables_in(connection, ["public"], options=options)
        assert len(table.columns) == len(_VALUES)
        for column, (kind, values) in zip(table.columns, _VALUES.items(), strict=True):
            assert column.form is not None
            # A value without JSON is not always null: a composite of nulls is one.
            query = sql.SQL(
                "COPY (SELECT {0}, to_jsonb({0}) FROM public.every WHERE to_jsonb({0}) IS NOT NULL)"
                " TO STDOUT"
            ).format(sql.Identifier(column.name))
            with connection.cursor().copy(query) as copy:
                rows = list(copy.rows())
            assert len(rows) == len(values)
            found = values_of(column.form, pa.array([row[0] for row in rows])).to_pylist()
            for (text, expected), reported in zip(rows, found, strict=True):
                assert _load_json(reported) == _load_json(expected), (kind, text)


def _load_json(text: str | None) -> Any:
    # Like the server, compare numbers with their digits.
    return json.loads(text or "null", parse_float=Decimal, parse_int=Decimal)


@pytest.mark.parametrize(
    ("texts", "scale", "expected"),
    [
        (
            ["$1,234.50", "-$92,233,720,368,547,758.08", None],
            2,
            ["1234.50", "-92233720368547758.08"],
        ),
        (["1.234,50 €", "-0,01 €"], 2, ["1234.50", "-0.01"]),
        (["￥1,234", "(￥5)"], 0, ["1234", "-5"]),
        (["\u22121 234,5 kr."], 1, ["-1234.5"]),
    ],
)
def test_money_is_a_decimal_in_every_locale(
    texts: list[str | None], scale: int, expected: list[str]
) -> None:
    found = values_of(MoneyForm(scale), pa.array(texts, pa.string())).to_pylist()
    assert [str(value) for value in found if value is not None] == expected


@pytest.mark.long
@pytest.mark.parametrize(
    "method", ["logical_replication", pytest.param("snapshot_diff", marks=pytest.mark.long)]
)
def test_values_have_the_configured_form(
    shop: Shop, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ((version,),) = shop.rows("SELECT current_setting('server_version_num')::int / 10000")
    shop.run(*_TYPES[:2])
    shop.run(
        "CREATE TABLE items (id int, tags text[], p pair, price money, "
        "total money GENERATED ALWAYS AS (price * 2) STORED, key int[], PRIMARY KEY (id, key))",
        "INSERT INTO items VALUES (1, '{a,NULL}', (1, 'x'), 1.5, DEFAULT, '{1}')",
    )
    shop.configure(method=method)
    shop.prepare()
    shop.sync_or_fail()
    assert shop.present("items", ("id", "tags", "p", "price", "key")) == [
        (1, "{a,NULL}", "(1,x)", "$1.50", "{1}")
    ]
    has_generated = version >= 18 or method == "snapshot_diff"
    generated = ", generated_columns: true"
    more = ", arrays: json, composites: json, money: decimal"
    shop.configure(method=method, more=more + generated)
    code, reported, _ = run_words(capsys, "check", "--project", str(shop.folder))
    if method == "logical_replication":
        assert code == 1
        assert "does not contain the generated columns of public.items" in reported
        code, reported, _ = run_words(capsys, "check", "--create", "--project", str(shop.folder))
        assert code == (0 if has_generated else 1)
    if not has_generated:
        shop.configure(method=method, more=more)
    shop.run(
        "INSERT INTO items VALUES (2, '{}', NULL, -2, DEFAULT, '{2}')",
        "UPDATE items SET price = 3 WHERE id = 1",
    )
    shop.sync_or_fail()
    names = ("id", "tags", "p", "price", "key", *(["total"] if has_generated else []))
    rows = [
        (1, '["a",null]', '{"a":1,"b \\"c":"x"}', "3.00", "{1}", Decimal("6.00")),
        (2, "[]", None, "-2.00", "{2}", Decimal("-4.00")),
    ]
    assert shop.present("items", names) == [row[: len(names)] for row in rows]
    shop.run("ALTER TYPE pair RENAME ATTRIBUTE a TO z")
    shop.sync_or_fail()
    assert shop.present("items", ("id", "p"))[0] == (1, '{"z":1,"b \\"c":"x"}')
    assert shop.agrees()
