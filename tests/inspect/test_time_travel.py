"""Time travel without Spark: equal to what Spark reads, and to an independent model."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812

from chronolake.core.create import create
from chronolake.errors import BatchError, ValueRefusedError
from chronolake.formatting import Cell, cells, instant
from chronolake.inspect.time_travel import (
    DifferencePage,
    RowsAt,
    differences,
    read_activity,
    rows_at,
)
from chronolake.instants import micros_of
from chronolake.lake import Lake
from chronolake.query import QueryResult
from chronolake.types import Column, Mode, TableName, quote
from support.inspect.layout import HISTORY, column
from support.inspect.versions import (
    ACTIVE,
    BEGIN,
    END,
    HOUR,
    START,
    SYNCED,
    TMAX,
    TMIN,
    ModelTable,
    draw_table,
)

_HIDDEN = {START, END, ACTIVE, SYNCED}


@dataclass(frozen=True)
class Made:
    """A table and its model."""

    name: TableName
    columns: tuple[Column, ...]
    model: ModelTable
    lake: Lake

    def cells(self, rows: list[dict[str, Any]]) -> list[dict[str, Cell]]:
        """Convert rows of the model to cells."""
        spelled = {
            column.name: cells(_array([row[column.name] for row in rows], column))
            for column in self.columns
        }
        return [
            {name: values[place] for name, values in spelled.items()} for place in range(len(rows))
        ]


def _array(values: list[Any], column: Column) -> pa.Array:
    kind = column.type.arrow
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        width = pa.int32() if pa.types.is_date(kind) else pa.int64()
        return pa.array(values, width).cast(kind)
    return pa.array(values, kind)


_ODD = ['a.b "q" `t`*:LONG', "k' ; DROP 🦆*:STRING", "v w:STRING", "v:DECIMAL(12;3)", "b:BINARY"]
_FLOATS = ["d*:DOUBLE", "v:FLOAT", "w:DOUBLE"]
_BYTES = ["n*:DECIMAL(38;10)", "b*:BINARY", "v:JSON"]
_TIMES = ["t*:UTC_DATETIME", "day*:NAIVE_DATE", "flag*:BOOLEAN", "f*:FLOAT", "v:NAIVE_DATETIME"]
_NAN = struct.unpack("d", struct.pack("Q", 0xFFF8_0000_0000_0123))[0]


def _odd(chance: random.Random) -> ModelTable:
    first, second, *_ = (column(text).name for text in _ODD)
    texts = ["", "x", "x'", '"; --', "é", "zz\n", "🦆", "%", None]
    keys = [{first: number, second: text} for number in (1, -5, 2**62, None) for text in texts]

    def value(chance: random.Random) -> dict[str, Any]:
        return {
            "v w": chance.choice(["<script>", "same", None]),
            "v": chance.choice([Decimal("1.000"), Decimal("-0.001"), None]),
            "b": chance.choice([b"\x00\xff", b"", None]),
        }

    return draw_table(chance, keys, value, epsilon=1_000, deletes_are_near=True)


def _floats(chance: random.Random) -> ModelTable:
    numbers = [0.0, -1.5, 1e300, -1e-300, float("inf"), float("-inf"), float("nan"), 0.1, None]

    def value(chance: random.Random) -> dict[str, Any]:
        return {
            "v": chance.choice([0.0, -0.0, float("nan"), _NAN, 1.5, None]),
            "w": chance.choice([0.0, -0.0, float("nan"), _NAN, float("inf")]),
        }

    return draw_table(chance, [{"d": number} for number in numbers], value, epsilon=1)


def _bytes(chance: random.Random) -> ModelTable:
    numbers = [Decimal("0E-10"), Decimal(-1), Decimal("9" * 28 + ".9999999999"), None]
    several = [b"", b"\x00", b"\x7f", b"\x80", b"\xff\xfe", None]
    keys = [{"n": number, "b": some} for number in numbers for some in several]
    texts = ['{"a": 1}', "{}"]
    return draw_table(chance, keys, lambda chance: {"v": chance.choice(texts)}, epsilon=1_000)


def _times(chance: random.Random) -> ModelTable:
    keys = [
        {"t": at, "day": day, "flag": flag, "f": number}
        for at in (TMIN, BEGIN + 1, TMAX)
        for day in (-719_162, 2_932_896)
        for flag in (False, True, None)
        for number in (-0.5, None)
    ]
    return draw_table(
        chance, keys, lambda chance: {"v": chance.choice([TMIN, BEGIN, None])}, epsilon=1_000
    )


_TABLES: dict[str, tuple[list[str], Callable[[random.Random], ModelTable]]] = {
    "odd": (_ODD, _odd),
    "floats": (_FLOATS, _floats),
    "bytes": (_BYTES, _bytes),
    "times": (_TIMES, _times),
}


@pytest.fixture(scope="session")
def pasts(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    """Make tables of several files, most with deletion vectors, one with a column added later."""
    folder = tmp_path_factory.mktemp("rows")
    return {
        name: _made(lake, folder / name, name, texts, model(random.Random(f"past {name}")))
        for name, (texts, model) in _TABLES.items()
    }


def _made(lake: Lake, folder: Path, table: str, texts: list[str], model: ModelTable) -> Made:
    name = TableName("past.of", table)
    columns = [column(text) for text in (*texts, f"{SYNCED}:UTC_DATETIME", *HISTORY)]
    create(lake, name, columns)
    full = f"chronolake.{name.sql}"
    lake.spark.sql(
        f"ALTER TABLE {full} SET TBLPROPERTIES ('chronolake.epsilon-micros' = '{model.epsilon}')"
    )
    parts = [model.rows[start::2] for start in range(2)]
    # Each file has rows that were deleted later, among them copies of rows that stay.
    for number, rows in enumerate(parts):
        gone = [{**row, SYNCED: -1} for row in rows[:5]]
        _append(lake, folder.with_name(f"{table}{number}.parquet"), full, columns, [*gone, *rows])
        lake.spark.sql(f"DELETE FROM {full} WHERE {SYNCED} < TIMESTAMP '1970-01-01T00:00:00Z'")
        if number == 0:
            lake.spark.sql(f"ALTER TABLE {full} ADD COLUMN young INT")
            columns = [*columns, column("young:INT")]
            for row in rows:
                row["young"] = None
            for row in parts[1]:
                row["young"] = row[START] % 7
    return Made(name, tuple(columns), model, lake)


def _append(
    lake: Lake, file: Path, table: str, columns: list[Column], rows: list[dict[str, Any]]
) -> None:
    arrays = [_array([row[column.name] for row in rows], column) for column in columns]
    pq.write_table(pa.table(arrays, [column.name for column in columns]), file)
    lake.spark.read.parquet(str(file)).coalesce(1).writeTo(table).append()


def _pages(made: Made, at: str | None, limit: int) -> Iterator[RowsAt]:
    page = rows_at(made.lake.config, made.name, at, limit=limit)
    yield page
    while page.next is not None:
        assert len(page.rows) == limit
        page = rows_at(made.lake.config, made.name, at, limit=limit, after=page.next)
        assert page.rows
        yield page


def _all(made: Made, at: int, limit: int = 7) -> list[dict[str, Cell]]:
    return [row for page in _pages(made, instant(at), limit) for row in page.rows]


def _all_differences(made: Made, before: int, after: int, limit: int) -> list[DifferencePage]:
    asked = (made.lake.config, made.name, instant(before), instant(after))
    pages = [differences(*asked, limit=limit)]
    while pages[-1].next is not None:
        assert len(pages[-1].records) == limit
        pages.append(differences(*asked, limit=limit, page=pages[-1].next))
    return pages


@pytest.mark.long
@pytest.mark.sampled
@pytest.mark.parametrize("table", _TABLES)
def test_rows_at_any_time_are_those_of_the_model_in_the_order_of_their_keys(
    pasts: dict[str, Made], table: str
) -> None:
    made, chance = pasts[table], random.Random(f"times {table}")

    for at in [TMIN, TMAX, *made.model.times(chance, 25)]:
        expected = made.cells(made.model.as_of(at))
        assert _all(made, at, limit=chance.choice([5, 11, 50])) == expected, instant(at)


@pytest.mark.sampled
@pytest.mark.parametrize("table", _TABLES)
def test_rows_at_a_time_are_those_that_spark_reads(pasts: dict[str, Made], table: str) -> None:
    made, chance = pasts[table], random.Random(f"spark {table}")

    for at in [TMIN, *made.model.times(chance, 4)]:
        frame = made.lake.table(made.name).as_of(instant(at))
        answer = QueryResult(tuple(frame.columns), frame)
        read = [dict(zip(frame.columns, row, strict=True)) for row in answer.rows()]
        assert _sorted(_all(made, at)) == _sorted(read), instant(at)


def _sorted(rows: list[dict[str, Cell]]) -> list[str]:
    # As text: that distinguishes NaN and both zeros, and compares nothing with null.
    return sorted(repr(sorted(row.items())) for row in rows)


@pytest.mark.sampled
@pytest.mark.parametrize("most", [4_000_000, 7])
@pytest.mark.parametrize("table", _TABLES)
def test_differences_are_those_of_the_model(
    pasts: dict[str, Made], table: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With more rows than this, the known versions are not held in memory at once.
    monkeypatch.setattr("chronolake.inspect.diff._MAX_ROWS", most)
    made, chance = pasts[table], random.Random(f"differences {table} {most}")

    compared = 0
    for before, after in pairwise(made.model.times(chance, 12)):
        first, second = sorted((before, after))
        expected = made.model.diff(first, second)
        pages = _all_differences(made, first, second, chance.choice([9, 50]))
        records = [record for page in pages for record in page.records]
        assert [record.change for record in records] == [change for change, _, _ in expected]
        for record, (_, old, new) in zip(records, expected, strict=True):
            assert record.old == _shown(made, old)
            assert record.new == _shown(made, new)
            some = record.new or record.old or {}
            assert repr(record.key) == repr({name: some[name] for name in made.model.key})
        for page in pages:
            counts = [page.inserted, page.changed, page.deleted]
            changes = [change for change, _, _ in expected]
            assert counts == [changes.count(kind) for kind in ("inserted", "changed", "deleted")]
        compared += len(expected)
    assert compared


def _shown(made: Made, row: dict[str, Any] | None) -> dict[str, Cell] | None:
    if row is None:
        return None
    (spelled,) = made.cells([row])
    return {name: cell for name, cell in spelled.items() if name not in _HIDDEN}


@pytest.mark.sampled
@pytest.mark.parametrize("table", _TABLES)
def test_differences_are_those_that_spark_finds(pasts: dict[str, Made], table: str) -> None:
    made, chance = pasts[table], random.Random(f"spark differences {table}")

    # First the times at which a record that came back has two versions.
    times = sorted(made.model.times(chance, 20), key=made.model.is_clear)
    for before, after in [sorted(pair) for pair in pairwise(times[:4])]:
        frame = made.lake.table(made.name).diff(instant(before), instant(after))
        shown = [column.name for column in made.columns if column.name not in _HIDDEN]
        flat = frame.select(
            *(F.col("key").getField(name) for name in made.model.key),
            "change",
            F.col("old").isNull(),
            *(F.col("old").getField(name) for name in shown),
            F.col("new").isNull(),
            *(F.col("new").getField(name) for name in shown),
        )
        read = [repr(list(row)) for row in QueryResult(tuple(flat.columns), flat).rows()]
        found = [
            repr(
                [
                    *record.key.values(),
                    record.change,
                    record.old is None,
                    *((record.old or dict.fromkeys(shown)).values()),
                    record.new is None,
                    *((record.new or dict.fromkeys(shown)).values()),
                ]
            )
            for page in _all_differences(made, before, after, 9)
            for record in page.records
        ]
        assert sorted(found) == sorted(read)


def test_the_columns_that_differ_are_named(pasts: dict[str, Made]) -> None:
    made = pasts["odd"]
    page = differences(made.lake.config, made.name, instant(BEGIN), instant(TMAX), limit=1_000)

    changed = [record for record in page.records if record.change == "changed"]
    assert changed
    for record in changed:
        assert record.old is not None
        assert record.new is not None
        differ = [name for name in record.old if record.old[name] != record.new[name]]
        assert list(record.columns) == differ
    assert all(not record.columns for record in page.records if record.change != "changed")


@pytest.mark.parametrize("table", _TABLES)
def test_a_life_counts_what_began_and_ended_in_each_bucket(
    pasts: dict[str, Made], table: str
) -> None:
    made = pasts[table]
    began = [row[START] for row in made.model.rows if row[START] != TMIN]
    ended = [
        row[END] + made.model.epsilon for row in made.model.rows if row[END] not in {TMIN, TMAX}
    ]

    for most in (1, 7, 120):
        found = read_activity(made.lake.config, made.name, buckets=most)
        assert found.mode is Mode.HISTORY
        assert (found.first_micros, found.last_micros) == (min(began), max([*began, *ended]))
        assert 1 <= len(found.buckets) <= most
        assert found.buckets[0].start_micros <= min(began)
        for bucket in found.buckets:
            span = range(bucket.start_micros, bucket.start_micros + found.width_micros)
            assert bucket.began == sum(moment in span for moment in began)
            assert bucket.ended == sum(moment in span for moment in ended)
        assert sum(bucket.began for bucket in found.buckets) == len(began)
        assert sum(bucket.ended for bucket in found.buckets) == len(ended)
        assert all(
            other.start_micros - bucket.start_micros == found.width_micros
            for bucket, other in pairwise(found.buckets)
        )


# ------------------------------------------------------------------- tables without history


@pytest.fixture(scope="session")
def soft(lake: Lake) -> tuple[TableName, list[tuple[int, list[dict[str, Cell]]]]]:
    """Make a table without history; return it and what Spark reads of it after each change."""
    name = TableName("past.of", "soft")
    texts = ["id*:INT", "name:STRING", f"{SYNCED}:UTC_DATETIME", "_fivetran_deleted:BOOLEAN"]
    create(lake, name, [column(text) for text in texts])
    full = f"chronolake.{name.sql}"
    row = "cast(id AS int), 'n', TIMESTAMP '2024-01-01T00:00:00Z', false"
    rewrite = f"system.rewrite_data_files('{name.sql}', options => map('rewrite-all', 'true'))"
    states = []
    for statement in (
        f"INSERT INTO {full} SELECT {row} FROM range(0, 20, 1, 1)",
        f"DELETE FROM {full} WHERE id % 5 = 1",
        f"UPDATE {full} SET name = 'other' WHERE id IN (2, 3)",
        f"ALTER TABLE {full} ADD COLUMN young DOUBLE",
        f"INSERT INTO {full} SELECT {row}, -0.0D FROM range(20, 25, 1, 1)",
        f"DELETE FROM {full} WHERE id % 5 = 2",
        f"CALL chronolake.{rewrite}",
        f"DELETE FROM {full} WHERE id = 24",
    ):
        lake.spark.sql(statement)
        frame = lake.spark.table(full).orderBy("id")
        rows = [
            {"young": None, **dict(zip(frame.columns, cells_of_row, strict=True))}
            for cells_of_row in QueryResult(tuple(frame.columns), frame).rows()
        ]
        log = lake.catalog.load(name).metadata.snapshotLog()
        states.append((int(log[log.size() - 1].timestampMillis()) * 1_000, rows))
    return name, states


def test_without_history_a_time_is_the_newest_snapshot_that_is_not_later(
    lake: Lake, soft: tuple[TableName, list[tuple[int, list[dict[str, Cell]]]]]
) -> None:
    name, states = soft
    made = Made(name, (), ModelTable(("id",), 1), lake)

    for (at, rows), following in zip(states, [*states[1:], None], strict=True):
        times = [at] if following is None else [at, max(at, following[0] - 1)]
        for time in times:
            pages = list(_pages(made, instant(time), 3))
            # A state with the same time as the next one was never the newest.
            if following is None or following[0] > time:
                assert [row for page in pages for row in page.rows] == rows
                assert {page.snapshot_at for page in pages} == {instant(at)}
    assert [row for page in _pages(made, None, 4) for row in page.rows] == states[-1][1]
    with pytest.raises(ValueRefusedError, match="no longer available"):
        rows_at(lake.config, name, instant(states[0][0] - 1))


def test_without_history_two_snapshots_are_compared(
    lake: Lake, soft: tuple[TableName, list[tuple[int, list[dict[str, Cell]]]]]
) -> None:
    name, states = soft
    made = Made(name, (), ModelTable(("id",), 1), lake)

    for number, (before, old_rows) in enumerate(states):
        for after, new_rows in states[number:]:
            old = {row["id"]: _without_synced(row) for row in old_rows}
            new = {row["id"]: _without_synced(row) for row in new_rows}
            pages = _all_differences(made, before, after, 4)
            found = {
                record.key["id"]: (record.old, record.new)
                for page in pages
                for record in page.records
            }
            differ = [
                key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)
            ]
            assert list(found) == differ
            assert found == {key: (old.get(key), new.get(key)) for key in differ}


def _without_synced(row: dict[str, Cell]) -> dict[str, Cell]:
    return {name: cell for name, cell in row.items() if name != SYNCED}


def test_without_history_a_life_is_that_of_the_snapshots(
    lake: Lake, soft: tuple[TableName, list[tuple[int, list[dict[str, Cell]]]]]
) -> None:
    name, states = soft

    found = read_activity(lake.config, name)

    assert found.mode is Mode.SOFT_DELETE
    assert (found.first_micros, found.last_micros) == (states[0][0], states[-1][0])
    assert sum(bucket.began for bucket in found.buckets) == 20 + 2 + 5
    # 1, 6, 11, 16; the two that were updated; 2, 7, 12, 17, 22; 24.
    assert sum(bucket.ended for bucket in found.buckets) == 4 + 2 + 5 + 1


def test_invalid_arguments_are_errors(lake: Lake, pasts: dict[str, Made]) -> None:
    made = pasts["odd"]
    for text in ("yesterday", "2024-02-30", "", "12:00", "2024-01-01T25:00:00Z", "20240-01-01"):
        with pytest.raises(ValueRefusedError, match="is not a valid time"):
            rows_at(lake.config, made.name, text)
    with pytest.raises(ValueRefusedError, match="is after"):
        differences(lake.config, made.name, "2024-01-02", "2024-01-01")
    page = rows_at(lake.config, made.name, instant(BEGIN + 5 * HOUR), limit=1)
    assert page.next is not None
    for other in ("floats", "bytes", "times"):
        with pytest.raises(ValueRefusedError, match="cursor"):
            rows_at(lake.config, pasts[other].name, "2024-01-02", after=page.next)
    keyless = TableName("past.of", "keyless")
    create(
        lake,
        keyless,
        [column(text) for text in ["v:INT", *HISTORY[1:], HISTORY[0].replace("*", "")]],
    )
    with pytest.raises(BatchError, match="no primary key"):
        differences(lake.config, keyless, "2024-01-01", "2024-01-02")
    assert rows_at(lake.config, keyless, None).rows == ()
    assert read_activity(lake.config, keyless).first_micros is None


def test_rows_without_a_key_are_paged_as_they_stand(lake: Lake) -> None:
    name = TableName("past.of", "nobody")
    create(lake, name, [column("v:INT"), column(f"{quote('w')}:STRING")])
    for number in range(3):
        lake.spark.sql(
            f"INSERT INTO chronolake.{name.sql} SELECT cast(id % 3 AS int), 'same' FROM range(10) "
            f"WHERE id <> {number}"
        )
    made = Made(name, (), ModelTable((), 1), lake)

    rows = [row for page in _pages(made, None, 4) for row in page.rows]

    assert len(rows) == 27
    assert sorted(row["v"] for row in rows) == sorted(
        value % 3 for number in range(3) for value in range(10) if value != number
    )


@pytest.mark.parametrize(
    "text",
    [
        "2024-05-02",
        "2024-05",
        "2024",
        "2024-5-2 7:05",
        "2024-05-02T07:00:00Z",
        "2024-05-02T07:00:00.5",
        "2024-05-02 07:00:00.123456789+05:30",
        "2024-05-02T07:00:00-08:00",
        "2024-05-02T07:00:00 UTC",
        " 2024-02-29 ",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59.999999Z",
    ],
)
def test_a_time_is_what_it_is_to_spark(pasts: dict[str, Made], text: str) -> None:
    made = pasts["odd"]

    spark = made.lake.spark
    (row,) = spark.sql(
        "SELECT unix_micros(CAST(:text AS TIMESTAMP))", args={"text": text}
    ).collect()
    assert micros_of(text) == row[0]


def test_a_table_that_another_engine_made_is_read_with_its_delete_files(lake: Lake) -> None:
    name = TableName("past.of", "foreign")
    full = f"chronolake.{name.sql}"
    lake.spark.sql(
        f"CREATE TABLE {full} USING iceberg PARTITIONED BY (p) TBLPROPERTIES ("
        "'format-version' = '2', 'write.delete.mode' = 'merge-on-read') AS "
        "SELECT id, id % 2 AS p, array(id) AS some, named_struct('x', id) AS one FROM range(20)"
    )
    lake.spark.sql(f"DELETE FROM {full} WHERE id IN (3, 4, 5)")
    lake.spark.sql(f"ALTER TABLE {full} RENAME COLUMN id TO `the.id`")
    made = Made(name, (), ModelTable((), 1), lake)

    rows = [row for page in _pages(made, None, 6) for row in page.rows]

    assert sorted(row["the.id"] for row in rows) == [*range(3), *range(6, 20)]
    assert {row["p"] == row["the.id"] % 2 for row in rows} == {True}
    assert {(row["some"], row["one"]) for row in rows} == {
        (f"[{number}]", str({"x": number})) for number in [*range(3), *range(6, 20)]
    }
