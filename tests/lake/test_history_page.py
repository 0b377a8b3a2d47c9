"""The worked examples of `docs/history.md` match the tables."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from chronolake import core
from chronolake.change_set import OP, SEQ, UNMODIFIED, Op
from chronolake.lake import Lake
from chronolake.table_diff import compare
from chronolake.types import ACTIVE, END, START, Column, ColumnType, Kind, TableName
from support.commands import run_words

PAGE = Path(__file__).parents[2] / "docs" / "history.md"
NAME = TableName("shop", "counters")
COLUMNS = (
    Column("id", ColumnType(Kind.STRING), primary_key=True),
    Column("counter", ColumnType(Kind.LONG)),
    Column("_fivetran_synced", ColumnType(Kind.UTC_DATETIME)),
    Column(START, ColumnType(Kind.UTC_DATETIME), primary_key=True),
    Column(END, ColumnType(Kind.UTC_DATETIME)),
    Column(ACTIVE, ColumnType(Kind.BOOLEAN)),
)
TMAX = "9999-12-31T23:59:59.999Z"
_BLOCK = re.compile(r"^```(\w[^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
#: Results of the block above.
_TOLD = {"versions", "result", "text"}
_CHANGE = re.compile(r"(put|delete)\s+id=(\w+)(?:\s+counter=(\d+))?\s+at (\S+)")


def changes(lake: Lake, text: str) -> DataFrame:
    rows = []
    for place, line in enumerate(text.splitlines()):
        found = _CHANGE.fullmatch(line)
        assert found is not None, line
        what, key, counter, at = found.groups()
        time, until = f"TIMESTAMP'{at}'", f"TIMESTAMP'{at if what == 'delete' else TMAX}'"
        ops = [Op.DELETE] if what == "delete" else [Op.EARLIEST, Op.REPLACE]
        rows += [
            f"SELECT {int(op)} AS {OP}, {place}L AS {SEQ}, CAST(NULL AS ARRAY<BIGINT>) AS "
            f"{UNMODIFIED}, '{key}' AS id, CAST({counter or 'NULL'} AS BIGINT) AS counter, {time} "
            f"AS _fivetran_synced, {time} AS {START}, {until} AS {END}, {what == 'put'} AS {ACTIVE}"
            for op in ops
        ]
    frame = lake.spark.sql(" UNION ALL ".join(rows))
    # A version that is followed by another one in the same batch ends before that one.
    following = f"lead({START}) OVER (PARTITION BY id, {OP} ORDER BY {START})"
    ends = f"coalesce({following} - INTERVAL 1 MILLISECOND, {END})"
    return frame.selectExpr(
        *(name for name in frame.columns if name not in {END, ACTIVE}),
        f"IF({OP} = {int(Op.REPLACE)}, {ends}, {END}) AS {END}",
        f"IF({OP} = {int(Op.REPLACE)}, {following} IS NULL, {ACTIVE}) AS {ACTIVE}",
    )


def versions(lake: Lake) -> list[str]:
    found = lake.spark.sql(
        f"SELECT id, counter, unix_micros({START}), unix_micros({END}), {ACTIVE} FROM {NAME.sql} "
        f"ORDER BY id, {START}"
    ).collect()
    return [
        f"{key} | {counter} | {instant(start)} | {instant(end)} | {'active' if now else 'closed'}"
        for key, counter, start, end, now in found
    ]


def instant(micros: int) -> str:
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    text = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return "Tmax" if text == TMAX else text.replace(".000Z", "Z")


def lines(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]


def in_duckdb(lake: Lake, statement: str) -> list[list[str]]:
    rows: pa.Table = lake.table(NAME).df.toArrow()
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'; CREATE SCHEMA shop")
        database.register("rows_of_the_table", rows)
        database.execute("CREATE TABLE shop.counters AS SELECT * FROM rows_of_the_table")
        return [[str(cell) for cell in row] for row in database.execute(statement).fetchall()]


def in_spark(lake: Lake, statement: str) -> list[list[str]]:
    return [[str(cell) for cell in row] for row in lake.spark.sql(statement).collect()]


@pytest.mark.long
def test_the_page_shows_what_the_tables_contain(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    core.create(lake, NAME, COLUMNS)
    blocks = _BLOCK.findall(PAGE.read_text())
    run: Counter[str] = Counter()
    for place, (kind, text) in enumerate(blocks):
        what, *more = kind.split()
        following = blocks[place + 1][1] if place + 1 < len(blocks) else ""
        if what == "changes":
            core.write_history_batch(
                lake, NAME, changes(lake, text), columns=COLUMNS, batch=f"b{place}"
            )
            assert versions(lake) == following.splitlines(), text
        elif what == "sql":
            for engine in more:
                ask = {"spark": in_spark, "duckdb": in_duckdb}[engine]
                assert ask(lake, text) == lines(following), (engine, text)
        elif what == "differences":
            found = compare(lake.table(NAME), *more).records()
            reported = [
                [
                    str(difference.key["id"]),
                    difference.change,
                    "" if difference.old is None else str(difference.old["counter"]),
                    "" if difference.new is None else str(difference.new["counter"]),
                ]
                for difference in found
            ]
            assert reported == lines(text)
        elif what == "python":
            asked: DataFrame = eval(text, {"lake": lake})  # noqa: S307 - our own page
            reported = [
                [str(cell) for cell in row] for row in asked.select("id", "counter").collect()
            ]
            # The same query in SQL follows, and then its result.
            assert sorted(reported) == lines(blocks[place + 2][1])
        elif what == "console":
            for line in text.splitlines():
                words = shlex.split(line.removeprefix("$ chronolake "))
                words[words.index("./lake")] = str(lake.config.path)
                code, _, problem = run_words(capsys, *words)
                assert code == 0, problem
        else:
            assert what in _TOLD, f"a block of {what} is not run"
            continue
        run[what] += 1
    assert run == {"changes": 4, "sql": 5, "python": 1, "differences": 1, "console": 5}
    assert core.verify(lake, NAME).holds
    view = core.create_current_view(lake, NAME)
    assert in_spark(lake, f"SELECT id, counter FROM {view.sql} ORDER BY id") == [
        ["a", "30"],
        ["c", "40"],
    ]
