"""Tables that Spark wrote are inspected with PyIceberg, and queried with SQL."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from chronolake import core, inspect
from chronolake.change_set import OP, SEQ, UNMODIFIED, Op
from chronolake.errors import QueryError, TableNotFoundError, UnknownColumnError, ValueRefusedError
from chronolake.lake import Lake
from chronolake.query import run_query
from chronolake.types import TMAX_TEXT, Column, ColumnType, Kind, TableName, quote
from support.lakes import lake_config

NAME = TableName("sch.e ma", "ta'ble \"🦆`")
KEY = 'Key. "`🦆'
COLUMNS = (
    Column(KEY, ColumnType(Kind.LONG), primary_key=True),
    Column("Name", ColumnType(Kind.STRING)),
    Column("_fivetran_synced", ColumnType(Kind.UTC_DATETIME)),
    Column("_fivetran_start", ColumnType(Kind.UTC_DATETIME), primary_key=True),
    Column("_fivetran_end", ColumnType(Kind.UTC_DATETIME)),
    Column("_fivetran_active", ColumnType(Kind.BOOLEAN)),
)
SQL_NAME = NAME.sql
#: The table's name as it is written on a command line.
NAMED = f"{quote(NAME.schema)}.{quote(NAME.table)}"


def changes(lake: Lake, rows: Sequence[tuple[Op, int, str | None, str]]) -> DataFrame:
    """Return a change set: operation, key, name, and start (or end, for a delete)."""
    fields = ", ".join(f"{quote(column.name)} string" for column in COLUMNS)
    texts = [
        (int(op), place, None, str(key), name, start, start, end, str(op is not Op.DELETE))
        for place, (op, key, name, start) in enumerate(rows)
        for end in [start if op is Op.DELETE else TMAX_TEXT]
    ]
    frame = lake.spark.createDataFrame(
        texts, f"{OP} int, {SEQ} bigint, {UNMODIFIED} array<bigint>, {fields}"
    )
    cast = [
        F.col(quote(column.name)).cast(column.type.sql).alias(column.name) for column in COLUMNS
    ]
    return frame.select(OP, SEQ, UNMODIFIED, *cast)


def write(lake: Lake, batch: str, *rows: tuple[Op, int, str | None, str]) -> None:
    core.write_history_batch(lake, NAME, changes(lake, rows), columns=COLUMNS, batch=batch)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Yield a lake with one table: 40 records, some of which were changed or deleted."""
    folder = tmp_path_factory.mktemp("looked-at")
    with Lake.open(folder, config=lake_config(folder)) as opened:
        core.create(opened, NAME, COLUMNS)
        first, second, third = (f"2024-01-0{day}T00:00:00Z" for day in (1, 2, 3))
        both = (Op.EARLIEST, Op.REPLACE)
        write(opened, "b1", *((op, key, f"n{key}", first) for op in both for key in range(40)))
        write(opened, "b2", *((op, key, f"m{key}", second) for op in both for key in range(9)))
        write(
            opened,
            "b3",
            *((op, key, None, third) for op in (Op.EARLIEST, Op.DELETE) for key in (3, 4)),
        )
        yield opened


def test_the_counts_from_metadata_are_those_that_spark_counts(lake: Lake) -> None:
    (found,) = inspect.tables(lake.config)

    frame = lake.table(NAME).df
    assert found.delete_files > 0
    assert found.rows == frame.count() == 49
    assert found.active == frame.where("_fivetran_active").count() == 38
    assert found.name == NAME
    assert found.key == (KEY,)
    assert found.columns == COLUMNS
    assert found.last_batch == "b3"
    assert found.published_at is not None


def test_the_timeline_of_a_record_is_the_one_that_spark_wrote(lake: Lake) -> None:
    replaced, deleted = inspect.history(lake.config, NAME, {KEY: "3"}).versions

    assert (replaced.start, replaced.end) == ("2024-01-01T00:00:00Z", "2024-01-01T23:59:59.999Z")
    assert replaced.ending is inspect.Ending.REPLACED
    assert deleted.start == "2024-01-02T00:00:00Z"
    assert deleted.ending is inspect.Ending.DELETED
    assert deleted.changes == (inspect.Change("Name", "n3", "m3"),)
    assert [
        version.end for version in inspect.history(lake.config, NAME, {KEY: "20"}).versions
    ] == [TMAX_TEXT]
    assert inspect.history(lake.config, NAME, {KEY: "99"}).versions == ()


def test_a_table_s_past_is_a_frame(lake: Lake) -> None:
    versions = lake.table(NAME)
    assert versions.df.count() == 49
    assert [row["Name"] for row in versions.history(**{KEY: 3}).collect()] == ["n3", "m3"]
    names = {
        at: {row[KEY]: row["Name"] for row in versions.as_of(at).collect()}
        for at in ("2024-01-01T23:59:59.999Z", datetime(2024, 1, 2), date(2024, 1, 1), TMAX_TEXT)
    }
    assert names["2024-01-01T23:59:59.999Z"] == names[date(2024, 1, 1)]
    assert names[date(2024, 1, 1)] == {key: f"n{key}" for key in range(40)}
    assert names[datetime(2024, 1, 2)][3] == "m3"
    assert 3 not in names[TMAX_TEXT]
    assert versions.describe().columns == COLUMNS


def test_a_wrong_question_about_the_past_is_explained(lake: Lake) -> None:
    versions = lake.table(NAME)
    with pytest.raises(UnknownColumnError, match="not part of the record's key"):
        versions.history(Name="n3")
    with pytest.raises(ValueRefusedError, match=r"'abc' is not a valid bigint.*such as 42"):
        versions.history(**{KEY: "abc"})
    for other in (1.5, Decimal("1.9"), True, b"1", [1], datetime(2024, 1, 1)):
        with pytest.raises(ValueRefusedError, match="is not a valid bigint"):
            versions.history(**{KEY: other})
    assert versions.history(**{KEY: 3.0}).count() == versions.history(**{KEY: Decimal(3)}).count()
    with pytest.raises(UnknownColumnError):
        versions.history(self=1)
    with pytest.raises(TableNotFoundError, match=re.escape(f"Did you mean {NAME}?")):
        lake.table(TableName(NAME.schema, NAME.table.upper()))
    with pytest.raises(ValueRefusedError, match="'last week' is not a valid time"):
        versions.as_of("last week")
    with pytest.raises(ValueRefusedError, match="'12345' is not a valid time"):
        versions.as_of(12345)  # type: ignore[arg-type]


def test_a_table_without_a_key_has_no_invariants(lake: Lake) -> None:
    name = TableName("a", "keyless")
    core.create(lake, name, (Column("x", ColumnType(Kind.INT)),))
    try:
        report = core.verify(lake, name)
    finally:
        lake.catalog.drop(name, purge=True)
    assert (report.holds, report.rows, report.invariants) == (True, 0, ())


def test_maintenance_changes_no_count_and_no_timeline(lake: Lake) -> None:
    (before,) = inspect.tables(lake.config)
    versions = list(inspect.history(lake.config, NAME, {KEY: "4"}).versions)
    assert versions

    core.maintain(lake, NAME)

    (after,) = inspect.tables(lake.config)
    assert (after.rows, after.active) == (before.rows, before.active)
    assert list(inspect.history(lake.config, NAME, {KEY: "4"}).versions) == versions


def test_an_answer_has_the_rows_of_the_question(lake: Lake) -> None:
    question = f"SELECT {quote(KEY)} AS k, name, NAME FROM {SQL_NAME} WHERE _FIVETRAN_ACTIVE"

    answer = run_query(lake, f" {question} ORDER BY k DESC LIMIT 2;")

    assert answer.columns == ("k", "name", "NAME")
    assert list(answer.rows()) == [(39, "n39", "n39"), (38, "n38", "n38")]
    assert list(answer.rows(1)) == [(39, "n39", "n39")]


def test_the_ends_of_every_type_have_a_text(lake: Lake) -> None:
    question = """SELECT timestamp '9999-12-31T23:59:59.999Z', timestamp '0001-01-01T00:00:00Z',
        timestamp_ntz '0001-01-01T00:00:00', date '0001-01-01', date '9999-12-31',
        9223372036854775807, cast(1 AS decimal(38, 37)), X'00ff', cast(0.1 AS float),
        double('NaN'), double('-Infinity'), array(1, 2), named_struct('a', 1),
        interval 1 day, null, '', true"""

    (row,) = run_query(lake, question).rows()

    assert row == (
        TMAX_TEXT, "0001-01-01T00:00:00Z", "0001-01-01T00:00:00", "0001-01-01", "9999-12-31",
        2**63 - 1, "1." + "0" * 37, "AP8=", 0.1, "NaN", "-Infinity", "[1,2]", '{"a":1}',
        "INTERVAL '1' DAY", None, "", True,
    )  # fmt: skip


@pytest.mark.parametrize(
    "statement",
    [
        "SHOW NAMESPACES",
        f"SHOW TABLES IN {quote(NAME.schema)}",
        f"DESCRIBE TABLE {SQL_NAME}",
        f"SELECT * FROM {SQL_NAME}.snapshots",
        f"FROM {SQL_NAME} |> SELECT Name",
        "WITH a AS (SELECT 1 x) SELECT * FROM a WHERE x IN (SELECT 1)",
        "VALUES (1), (2)",
        f"TABLE {SQL_NAME}",
        "SHOW FUNCTIONS",
        "SHOW CATALOGS",
        "SHOW CURRENT NAMESPACE",
        "DESCRIBE FUNCTION abs",
        "DESCRIBE QUERY SELECT 1",
    ],
)
def test_what_only_reads_is_answered(lake: Lake, statement: str) -> None:
    assert list(run_query(lake, statement).rows(1))


def test_times_within_other_values_have_all_their_digits(lake: Lake) -> None:
    at = "timestamp'2024-01-02 00:00:00.000500'"
    naive = "timestamp_ntz'2024-01-02 00:00:00.000500'"
    (row,) = run_query(lake, f"SELECT array({at}), struct({at} AS at), array({naive})").rows()
    assert row == (
        '["2024-01-02T00:00:00.000500Z"]',
        '{"at":"2024-01-02T00:00:00.000500Z"}',
        '["2024-01-02T00:00:00.000500"]',
    )


@pytest.mark.parametrize(
    "statement",
    [
        f"INSERT INTO {SQL_NAME} SELECT * FROM {SQL_NAME}",
        f"WITH a AS (SELECT 1) INSERT INTO {SQL_NAME} SELECT * FROM a",
        f"FROM {SQL_NAME} INSERT INTO {SQL_NAME} SELECT * INSERT INTO {SQL_NAME} SELECT *",
        f"DELETE FROM {SQL_NAME}",
        f"UPDATE {SQL_NAME} SET Name = 'x'",
        f"MERGE INTO {SQL_NAME} t USING {SQL_NAME} s ON t.Name = s.Name WHEN MATCHED THEN DELETE",
        f"TRUNCATE TABLE {SQL_NAME}",
        f"DROP TABLE {SQL_NAME}",
        f"ALTER TABLE {SQL_NAME} ADD COLUMN x int",
        f"ALTER TABLE {SQL_NAME} CREATE BRANCH b",
        "CALL chronolake.system.expire_snapshots('a.b')",
        "CREATE TABLE a.b AS SELECT 1",
        "CREATE TEMPORARY VIEW v AS SELECT 1",
        f"BEGIN DROP TABLE {SQL_NAME}; END",
        "EXECUTE IMMEDIATE 'DROP TABLE a.b'",
        f"CACHE TABLE {SQL_NAME}",
        "SET a = b",
        "ADD JAR 'x.jar'",
    ],
)
def test_what_would_do_something_is_refused(lake: Lake, statement: str) -> None:
    with pytest.raises(QueryError, match="Only SELECT, SHOW and DESCRIBE are allowed"):
        run_query(lake, statement)


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("SELEC 1", "PARSE_SYNTAX_ERROR"),
        (f"SELECT 1; DROP TABLE {SQL_NAME}", "PARSE_SYNTAX_ERROR"),
        ("", "PARSE_EMPTY_STATEMENT"),
        ("SELECT * FROM a.missing", "TABLE_OR_VIEW_NOT_FOUND"),
        (f"SELECT missing FROM {SQL_NAME}", "UNRESOLVED_COLUMN"),
    ],
)
def test_a_question_that_spark_does_not_understand_is_explained(
    lake: Lake, question: str, words: str
) -> None:
    with pytest.raises(QueryError, match=words) as refused:
        run_query(lake, question)

    assert "\n" not in refused.value.message


def test_a_failure_while_computing_is_explained(lake: Lake) -> None:
    with pytest.raises(QueryError, match="DIVIDE_BY_ZERO") as refused:
        list(run_query(lake, f"SELECT 1 / ({quote(KEY)} - {quote(KEY)}) FROM {SQL_NAME}").rows())
    assert "try_divide" in refused.value.hint


#: More digits than a float has.
EXACT = 9_007_199_254_740_993
#: The output of Python for an import, with `PYTHONPROFILEIMPORTTIME`.
_PYSPARK = "pyspark\n"


def _told(lake: Lake, *words: str) -> str:
    return _ran(lake, *words).stdout


def _ran(lake: Lake, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the installed program in its own process, while the lake is open here."""
    return subprocess.run(
        [
            Path(sys.executable).with_name("chronolake"),
            *words,
            "--lake",
            lake.config.path,
            "--json",
        ],
        env={**os.environ, "CHRONOLAKE_SPARK_MASTER": "local[1]", **environment},
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_commands_answer_in_json_and_looking_needs_no_spark(lake: Lake) -> None:
    """The commands print JSON, and those that only read need no Spark.

    They do not even import it, because they would then not answer at once
    (`bench/read_commands.py`).
    """
    both = f"named_struct('exact', {EXACT}L, 'all', array(max(name), NULL)) AS both"
    question = f"SELECT count(*) AS n, max(name) AS last, {both} FROM {SQL_NAME}"
    asked = _ran(lake, "query", question, PYTHONPROFILEIMPORTTIME="1")
    assert [json.loads(line) for line in asked.stdout.splitlines()] == [
        {"n": 49, "last": "n9", "both": {"exact": EXACT, "all": ["n9", None]}}
    ]
    assert _PYSPARK in asked.stderr
    looked = _ran(lake, "history", NAMED, "--key", f"{KEY}=3", PYTHONPROFILEIMPORTTIME="1")
    assert json.loads(looked.stdout)["versions"][1]["changes"]
    assert _PYSPARK not in looked.stderr
    listed = _ran(lake, "tables", PYTHONPROFILEIMPORTTIME="1")
    assert {table["table"] for table in json.loads(listed.stdout)} >= {str(NAME)}
    assert _PYSPARK not in listed.stderr


@pytest.mark.long
def test_commands_that_look_after_tables_answer_in_json(lake: Lake) -> None:
    (report,) = json.loads(_told(lake, "verify", "--all"))
    assert report["holds"]
    assert report["rows"] == 49
    lines = _told(lake, "maintain", NAMED, "--dry-run").splitlines()
    (plan,) = [json.loads(line) for line in lines]
    assert plan["table"] == str(NAME)
    assert (plan["needed"], plan["compact"], plan["reason"]) == (False, False, "in order")
    (done,) = [json.loads(line) for line in _told(lake, "maintain", NAMED).splitlines()]
    assert (done["needed"], done["compact"], done["reason"]) == (False, True, "in order")
