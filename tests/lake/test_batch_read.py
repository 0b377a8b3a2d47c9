"""Batch files are read through Spark: the result of `read`, and the errors that it raises."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import structlog
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from chronolake.batch_files import BatchFile, FileForm, error_of, read
from chronolake.batch_files.task_packing import pack_tasks
from chronolake.change_set import OP, ROWS_PER_FILE, SEQ, UNMODIFIED, Op
from chronolake.errors import (
    DecryptionError,
    FileAccessError,
    MalformedFileError,
    ValueRefusedError,
)
from chronolake.lake import Lake
from chronolake.types import Column, ColumnType, Kind
from support import batch_writer

FORM = FileForm(
    "csv",
    "zstd",
    encrypted=True,
    null_string=batch_writer.NULL,
    unmodified_string=batch_writer.UNMODIFIED,
)
COLUMNS = (
    Column("id", ColumnType(Kind.LONG), primary_key=True),
    Column("name", ColumnType(Kind.STRING)),
    Column("amount", ColumnType(Kind.DECIMAL, 18, 2)),
    Column("at", ColumnType(Kind.UTC_DATETIME)),
    Column("local", ColumnType(Kind.NAIVE_DATETIME)),
    Column("day", ColumnType(Kind.NAIVE_DATE)),
    Column("tiny", ColumnType(Kind.SHORT)),
    Column("raw", ColumnType(Kind.BINARY)),
    Column("ratio", ColumnType(Kind.FLOAT)),
    Column("yes", ColumnType(Kind.BOOLEAN)),
    Column("clock", ColumnType(Kind.NAIVE_TIME)),
)
HEADER = [column.name for column in COLUMNS]
ROW = [
    "1",
    'a "b", c\n',
    "12.5",
    "9999-12-31T23:59:59.999Z",
    "0000-01-01T00:00:00",
    "2024-02-29",
    "-32768",
    "AP8=",
    "10.12",
    "true",
    "15:00",
]


@pytest.fixture
def spark(lake: Lake) -> SparkSession:
    return lake.spark


def sealed(folder: Path, name: str, op: Op, rows: list[list[str | None]]) -> BatchFile:
    key = os.urandom(32)
    path = batch_writer.write(folder / name, batch_writer.csv_bytes(HEADER, rows), key=key)
    return BatchFile(str(path), op, key)


def changes(spark: SparkSession, files: list[BatchFile], form: FileForm = FORM):
    return read(spark, files, COLUMNS, form, required={}, table="sample.t", batch="batch-1")


def test_files_of_all_kinds_are_one_change_set(spark: SparkSession, tmp_path: Path) -> None:
    nothing: list[str | None] = [None] * (len(HEADER) - 1)
    kept: list[str | None] = [batch_writer.UNMODIFIED] * (len(HEADER) - 1)
    files = [
        sealed(tmp_path, "a delete", Op.DELETE, [["7", *nothing]]),
        sealed(tmp_path, "größe 'quoted' \"漢字\" 😀", Op.UPDATE, [["2", *kept], ["3", *nothing]]),
        sealed(tmp_path, "first", Op.REPLACE, [list(ROW)]),
        sealed(tmp_path, "second", Op.REPLACE, [list(ROW), list(ROW)]),
        sealed(tmp_path, "empty", Op.EARLIEST, []),
    ]
    frame = changes(spark, files)
    assert frame.columns == [OP, SEQ, UNMODIFIED, *HEADER]
    assert [field.dataType for field in frame.schema.fields[3:]] == [c.type.spark for c in COLUMNS]
    found = {
        (row[0], row[1]): (row[2], row[3])
        for row in frame.select(OP, SEQ, UNMODIFIED, "id").collect()
    }
    every_but_the_first = 2 ** len(HEADER) - 2
    assert found == {
        (Op.REPLACE, ROWS_PER_FILE): (None, 1),
        (Op.REPLACE, 2 * ROWS_PER_FILE): (None, 1),
        (Op.REPLACE, 2 * ROWS_PER_FILE + 1): (None, 1),
        (Op.UPDATE, 3 * ROWS_PER_FILE): ([every_but_the_first], 2),
        (Op.UPDATE, 3 * ROWS_PER_FILE + 1): (None, 3),
        (Op.DELETE, 4 * ROWS_PER_FILE): (None, 7),
    }


def test_values_reach_the_jvm_exactly(spark: SparkSession, tmp_path: Path) -> None:
    frame = changes(spark, [sealed(tmp_path, "f", Op.REPLACE, [list(ROW)])])
    # As text: Python's own datetime overflows at both ends.
    row = frame.selectExpr(
        *(f"hex(`{name}`)" if name == "raw" else f"cast(`{name}` as string)" for name in HEADER)
    ).collect()[0]
    assert list(row) == [
        "1",
        'a "b", c\n',
        "12.50",
        "9999-12-31 23:59:59.999",
        "0001-01-01 00:00:00",
        "2024-02-29",
        "-32768",
        "00FF",
        "10.12",
        "true",
        "15:00:00",
    ]


def test_many_files_are_read_in_few_tasks(spark: SparkSession, tmp_path: Path) -> None:
    files = [
        sealed(tmp_path, f"f{number}", Op.REPLACE, [[str(number), *ROW[1:]]])
        for number in range(200)
    ]
    frame = changes(spark, files)
    assert frame.rdd.getNumPartitions() == 1
    assert sorted(row.id for row in frame.select("id").collect()) == list(range(200))


def test_large_files_are_spread_evenly() -> None:
    files = [(number, BatchFile(str(number), Op.REPLACE)) for number in range(9)]
    sizes = [90 << 20, *([10 << 20] * 8)]
    tasks = pack_tasks(files, sizes, cores=2)
    assert sorted(number for task in tasks for number, _ in task) == list(range(9))
    assert len(tasks) == 6
    assert [number for number, _ in tasks[0]] == [0]
    assert max(len(task) for task in tasks) == 2


def test_no_files_are_an_empty_change_set(spark: SparkSession) -> None:
    frame = changes(spark, [])
    assert frame.columns == [OP, SEQ, UNMODIFIED, *HEADER]
    assert frame.count() == 0


def test_keys_stand_in_no_plan(spark: SparkSession, tmp_path: Path) -> None:
    file = sealed(tmp_path, "f", Op.REPLACE, [list(ROW)])
    assert file.key is not None
    frame = changes(spark, [file])
    plan = frame._jdf.queryExecution().toString()
    assert "MapInArrow" in plan
    assert file.key.hex() not in plan.lower()
    assert repr(file.key)[2:-1] not in plan


def test_a_missing_file_is_reported_at_once(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(FileAccessError) as caught:
        changes(spark, [BatchFile(str(tmp_path / "gone"), Op.REPLACE, bytes(32))])
    assert caught.value.place == {
        "table": "sample.t",
        "batch": "batch-1",
        "file": str(tmp_path / "gone"),
    }


@pytest.mark.parametrize(
    ("spoil", "kind", "row", "column"),
    [
        ("key", DecryptionError, None, None),
        ("cell", ValueRefusedError, 2, "amount"),
        ("column", MalformedFileError, None, "extra"),
    ],
)
def test_an_error_in_an_executor_keeps_its_type(
    spark: SparkSession,
    tmp_path: Path,
    spoil: str,
    kind: type[Exception],
    row: int | None,
    column: str | None,
) -> None:
    bad = list(ROW)
    bad[2] = "topsecret" if spoil == "cell" else bad[2]
    good = sealed(tmp_path, "good", Op.REPLACE, [list(ROW)])
    file = sealed(tmp_path, "spoiled 'file' ${x} é", Op.REPLACE, [list(ROW), bad])
    if spoil == "key":
        assert good.key is not None
        file = BatchFile(file.path, file.op, good.key)
    required = {Op.REPLACE: frozenset({"id", "extra"} if spoil == "column" else {"id"})}
    files = [file] if spoil == "column" else [good, file]
    frame = read(spark, files, COLUMNS, FORM, required=required, table="s.t", batch="b-9")
    with pytest.raises(PySparkException) as caught:
        frame.write.format("noop").mode("overwrite").save()
    found = error_of(caught.value)
    assert type(found) is kind
    place = {"table": "s.t", "batch": "b-9", "file": file.path, "row": row, "column": column}
    assert found.place == {name: value for name, value in place.items() if value is not None}
    assert "topsecret" not in str(caught.value)


def test_warnings_of_executors_are_logged_by_the_driver(
    spark: SparkSession, tmp_path: Path
) -> None:
    odd = [*ROW[:7], "[B@7d4991ad", *ROW[8:]]
    empty = batch_writer.write(tmp_path / "empty", b"", key=bytes(32))
    files = [
        sealed(tmp_path, "odd", Op.REPLACE, [odd, odd]),
        BatchFile(str(empty), Op.DELETE, bytes(32)),
    ]
    with structlog.testing.capture_logs() as logs:
        assert changes(spark, files).count() == 2
    place = {"log_level": "warning", "table": "sample.t", "batch": "batch-1"}
    odd_place = {**place, "event": "batch_file_values_adjusted", "file": files[0].path}
    assert sorted(logs, key=lambda log: str(log.get("column"))) == [
        {**place, "event": "batch_file_without_header", "file": str(empty)},
        {**odd_place, "column": "local", "moved_into_years_1_to_9999": 2},
        {**odd_place, "column": "raw", "not_base64_kept_as_text": 2},
    ]


def test_another_failure_holds_no_typed_error(spark: SparkSession) -> None:
    with pytest.raises(PySparkException) as caught:
        spark.sql("SELECT raise_error('no batch file')").collect()
    assert error_of(caught.value) is None


@pytest.mark.long
def test_executors_on_other_processes_need_nothing_of_the_driver(tmp_path: Path) -> None:
    file = sealed(tmp_path, "f", Op.REPLACE, [["1", *ROW[1:]], ["2", *ROW[1:]]])
    assert file.key is not None
    program = f"""
        from pyspark.sql import SparkSession
        from chronolake.batch_files import BatchFile, FileForm, error_of, read
        from chronolake.change_set import Op
        from chronolake.types import Column, ColumnType, Kind
        spark = (
            SparkSession.builder.master("local-cluster[2,1,1024]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.session.timeZone", "UTC")
            .getOrCreate()
        )
        form = FileForm("csv", "zstd", True, {batch_writer.NULL!r}, {batch_writer.UNMODIFIED!r})
        def frame(key):
            file = BatchFile({file.path!r}, Op.REPLACE, key)
            return read(spark, [file], [Column("id", ColumnType(Kind.LONG))], form,
                        required={{}}, table="s.t", batch="b")
        print("ids", sorted(row.id for row in frame(bytes.fromhex({file.key.hex()!r})).collect()))
        try:
            frame(bytes(32)).collect()
        except Exception as error:
            print("error", type(error_of(error)).__name__)
        spark.stop()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "ids [1, 2]" in done.stdout, done.stderr[-3000:]
    assert "error DecryptionError" in done.stdout
