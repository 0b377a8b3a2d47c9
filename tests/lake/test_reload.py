"""Re-syncs of history tables: the worked tables of `seeds/history-mode.txt`, with their values."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from pyspark.sql import DataFrame

from chronolake import core
from chronolake.change_set import OP, SEQ, UNMODIFIED, Op
from chronolake.core import MissingRecords
from chronolake.errors import BatchError, UnknownColumnError
from chronolake.lake import Lake
from chronolake.types import Column, ColumnType, Kind, TableName

TMAX = "9999-12-31T23:59:59.999Z"
COLUMNS = (
    Column("ID", ColumnType(Kind.STRING), primary_key=True),
    Column("counter", ColumnType(Kind.LONG)),
    Column("_fivetran_synced", ColumnType(Kind.UTC_DATETIME)),
    Column("_fivetran_start", ColumnType(Kind.UTC_DATETIME), primary_key=True),
    Column("_fivetran_end", ColumnType(Kind.UTC_DATETIME)),
    Column("_fivetran_active", ColumnType(Kind.BOOLEAN)),
)
RESYNC = "2020-01-03T06:00:00Z"
_numbers = count()

Version = tuple[str, int | None, str, str, bool, str]


def micros(text: str) -> int:
    return (datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
        microseconds=1
    )


def version(key: str, counter: int | None, start: str, end: str, synced: str) -> Version:
    return key, counter, start, end, end == TMAX, synced


#: The rows of the document's table before its re-sync.
CLOSED = version(
    "a", 10, "2020-01-02T00:00:00Z", "2020-01-02T23:59:59.999Z", "2020-01-02T01:00:00Z"
)
ACTIVE = version("a", 30, "2020-01-03T00:00:00Z", TMAX, "2020-01-03T01:00:00Z")


@pytest.fixture
def name(lake: Lake) -> TableName:
    made = TableName("resync", f"t{next(_numbers)}")
    core.create(lake, made, COLUMNS)
    return made


def fill(lake: Lake, name: TableName, *versions: Version) -> None:
    rows = ", ".join(
        f"('{key}', {'NULL' if counter is None else counter}, timestamp_micros({micros(synced)}), "
        f"timestamp_micros({micros(start)}), timestamp_micros({micros(end)}), {active})"
        for key, counter, start, end, active, synced in versions
    )
    lake.spark.sql(f"INSERT INTO {name.sql} VALUES {rows}")


def held(lake: Lake, name: TableName) -> list[Version]:
    def text(column: str) -> str:
        return f"date_format({column}, \"yyyy-MM-dd'T'HH:mm:ss.SSSX\")"

    times = ("_fivetran_start", "_fivetran_end")
    start, end = (text(column) for column in times)
    found = lake.spark.sql(
        f"SELECT ID, counter, {start}, {end}, _fivetran_active, {text('_fivetran_synced')} "
        f"FROM {name.sql} ORDER BY ID, _fivetran_start"
    ).collect()
    return [tuple(cell(value) for value in row) for row in found]  # type: ignore[misc]


def cell(value: object) -> object:
    return value.replace(".000Z", "Z") if isinstance(value, str) else value


def source(lake: Lake, rows: Sequence[tuple[str, int | None, str]]) -> DataFrame:
    """Return the rows of a source that has a timestamp."""
    frame = lake.spark.createDataFrame(list(rows), "ID string, counter bigint, at string")
    return frame.selectExpr("ID", "counter", "CAST(at AS timestamp) AS _fivetran_start")


def timeless(lake: Lake, rows: Sequence[tuple[str, int | None]]) -> DataFrame:
    return lake.spark.createDataFrame(list(rows), "ID string, counter bigint")


def run(
    lake: Lake,
    name: TableName,
    rows: DataFrame,
    gone: MissingRecords = MissingRecords.STAY,
    *,
    at: str = RESYNC,
) -> None:
    for _ in range(2):
        # Sent again, the rows must make the same table.
        core.resync(lake, name, rows, at_micros=micros(at), batch="resync", gone=gone)
        assert core.verify(lake, name).holds


@pytest.mark.long
def test_the_tables_of_the_documents_mock_data(lake: Lake, name: TableName) -> None:
    """The document's mock data makes the document's tables.

    From "History mode example using mock data": the rows that the source returns, sync by sync.
    """
    begin, second, deleted = (f"2020-01-0{day}T00:00:00Z" for day in (1, 2, 3))
    synced = [f"2020-01-0{day}T01:00:00Z" for day in (1, 2)]
    run(lake, name, source(lake, [("a", 10, begin), ("b", 20, begin)]), at=synced[0])
    assert held(lake, name) == [
        version("a", 10, begin, TMAX, synced[0]),
        version("b", 20, begin, TMAX, synced[0]),
    ]
    rows = source(lake, [("a", 30, second), ("b", 20, begin), ("c", 40, second)])
    run(lake, name, rows, at=synced[1])
    of_a = [
        version("a", 10, begin, "2020-01-01T23:59:59.999Z", synced[0]),
        version("a", 30, second, TMAX, synced[1]),
    ]
    of_c = version("c", 40, second, TMAX, synced[1])
    assert held(lake, name) == [*of_a, version("b", 20, begin, TMAX, synced[1]), of_c]
    # The last sync contains only the delete.
    gone = lake.spark.sql(
        f"SELECT {int(Op.DELETE)} AS {OP}, 0L AS {SEQ}, CAST(NULL AS ARRAY<BIGINT>) AS "
        f"{UNMODIFIED}, 'b' AS ID, CAST(NULL AS BIGINT) AS counter, CAST(NULL AS TIMESTAMP) AS "
        f"_fivetran_synced, CAST(NULL AS TIMESTAMP) AS _fivetran_start, TIMESTAMP'{deleted}' AS "
        "_fivetran_end, false AS _fivetran_active"
    )
    core.write_history_batch(lake, name, gone, columns=COLUMNS, batch="b")
    assert held(lake, name) == [*of_a, version("b", 20, begin, deleted, synced[1]), of_c]


def test_a_re_sync_without_changes_only_refreshes_the_time_of_sync(
    lake: Lake, name: TableName
) -> None:
    fill(lake, name, CLOSED, ACTIVE)
    run(lake, name, source(lake, [("a", 30, "2020-01-03T00:00:00Z")]))
    assert held(lake, name) == [CLOSED, version("a", 30, "2020-01-03T00:00:00Z", TMAX, RESYNC)]


@pytest.mark.long
def test_a_re_sync_with_a_change_closes_the_version_before(lake: Lake, name: TableName) -> None:
    fill(lake, name, CLOSED, ACTIVE)
    run(lake, name, source(lake, [("a", 40, "2020-01-03T02:00:00Z")]))
    assert held(lake, name) == [
        CLOSED,
        version(
            "a", 30, "2020-01-03T00:00:00Z", "2020-01-03T01:59:59.999Z", "2020-01-03T01:00:00Z"
        ),
        version("a", 40, "2020-01-03T02:00:00Z", TMAX, RESYNC),
    ]


@pytest.mark.long
def test_an_earlier_start_removes_the_versions_after_it(lake: Lake, name: TableName) -> None:
    fill(lake, name, CLOSED, ACTIVE)
    synced = "2020-01-05T01:00:00Z"
    run(lake, name, source(lake, [("a", 10, "2020-01-01T00:00:00Z")]), at=synced)
    assert held(lake, name) == [version("a", 10, "2020-01-01T00:00:00Z", TMAX, synced)]


@pytest.mark.long
def test_an_earlier_start_leaves_the_versions_before_it(lake: Lake, name: TableName) -> None:
    before = version(
        "a", 5, "2020-01-01T00:00:00Z", "2020-01-01T11:59:59.999Z", "2020-01-01T01:00:00Z"
    )
    fill(lake, name, before, CLOSED, ACTIVE)
    run(lake, name, source(lake, [("a", 20, "2020-01-01T12:00:00Z")]))
    assert held(lake, name) == [before, version("a", 20, "2020-01-01T12:00:00Z", TMAX, RESYNC)]


@pytest.mark.long
def test_the_same_start_with_other_values_replaces_the_version(lake: Lake, name: TableName) -> None:
    fill(lake, name, CLOSED, ACTIVE)
    run(lake, name, source(lake, [("a", None, "2020-01-03T00:00:00Z")]))
    assert held(lake, name) == [CLOSED, version("a", None, "2020-01-03T00:00:00Z", TMAX, RESYNC)]


@pytest.mark.long
def test_without_a_timestamp_values_are_compared(lake: Lake, name: TableName) -> None:
    present = version("b", None, "2020-01-01T00:00:00Z", TMAX, "2020-01-01T00:00:00Z")
    deleted = version(
        "c", 1, "2020-01-01T00:00:00Z", "2020-01-02T00:00:00Z", "2020-01-01T00:00:00Z"
    )
    fill(lake, name, CLOSED, ACTIVE, present, deleted)
    run(lake, name, timeless(lake, [("a", 40), ("b", None), ("c", 1), ("d", 7)]))
    assert held(lake, name) == [
        CLOSED,
        version(
            "a", 30, "2020-01-03T00:00:00Z", "2020-01-03T05:59:59.999Z", "2020-01-03T01:00:00Z"
        ),
        version("a", 40, RESYNC, TMAX, RESYNC),
        version("b", None, "2020-01-01T00:00:00Z", TMAX, RESYNC),
        deleted,
        version("c", 1, RESYNC, TMAX, RESYNC),
        version("d", 7, RESYNC, TMAX, RESYNC),
    ]


@pytest.mark.long
@pytest.mark.parametrize("has_start", [True, False])
def test_a_column_that_the_source_lost_stays_in_versions_that_stay(
    lake: Lake, name: TableName, *, has_start: bool
) -> None:
    first = version("a", 1, "2020-01-01T00:00:00Z", "2020-01-01T23:59:59.999Z", RESYNC)
    fill(lake, name, first, version("a", 7, "2020-01-02T00:00:00Z", TMAX, RESYNC))
    rows = source(lake, [("a", 0, "2020-01-02T00:00:00Z")]).drop("counter")
    run(lake, name, rows if has_start else rows.drop("_fivetran_start"))
    assert held(lake, name) == [first, version("a", 7, "2020-01-02T00:00:00Z", TMAX, RESYNC)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("gone", "ended"),
    [
        (MissingRecords.STAY, TMAX),
        (MissingRecords.CLOSE, RESYNC),
        (MissingRecords.DEACTIVATE, "2020-01-03T05:59:59.999Z"),
    ],
)
def test_records_that_are_gone_end_as_the_caller_knows(
    lake: Lake, name: TableName, gone: MissingRecords, ended: str
) -> None:
    lost = version("b", 20, "2020-01-01T00:00:00Z", TMAX, "2020-01-01T00:00:00Z")
    fill(lake, name, CLOSED, ACTIVE, lost)
    run(lake, name, source(lake, [("a", 30, "2020-01-03T00:00:00Z")]), gone)
    assert held(lake, name) == [
        CLOSED,
        version("a", 30, "2020-01-03T00:00:00Z", TMAX, RESYNC),
        version("b", 20, "2020-01-01T00:00:00Z", ended, "2020-01-01T00:00:00Z"),
    ]


def test_a_re_sync_in_steps_closes_records_that_no_step_contains(
    lake: Lake, name: TableName
) -> None:
    stored = [
        version(key, 1, "2020-01-01T00:00:00Z", TMAX, "2020-01-01T00:00:00Z") for key in "abc"
    ]
    fill(lake, name, *stored)
    at = micros(RESYNC)
    core.resync(lake, name, timeless(lake, [("a", 1)]), at_micros=at, batch="r-1")
    assert [row[3] for row in held(lake, name)] == [TMAX] * 3
    core.resync(
        lake, name, timeless(lake, [("b", 2)]), at_micros=at, batch="r-2", gone=MissingRecords.CLOSE
    )
    ends = [(row[0], row[1], row[3]) for row in held(lake, name)]
    assert ends == [
        ("a", 1, TMAX),
        ("b", 1, "2020-01-03T05:59:59.999Z"),
        ("b", 2, TMAX),
        ("c", 1, RESYNC),
    ]


@pytest.mark.long
def test_a_source_without_rows_closes_everything_or_nothing(lake: Lake, name: TableName) -> None:
    fill(lake, name, CLOSED, ACTIVE)
    run(lake, name, timeless(lake, []))
    assert held(lake, name) == [CLOSED, ACTIVE]
    run(lake, name, timeless(lake, []), MissingRecords.CLOSE)
    assert [row[3:5] for row in held(lake, name)] == [(CLOSED[3], False), (RESYNC, False)]


@pytest.mark.long
def test_an_empty_table_takes_a_re_sync(lake: Lake, name: TableName) -> None:
    run(lake, name, timeless(lake, [("a", 1)]), MissingRecords.CLOSE)
    assert held(lake, name) == [version("a", 1, RESYNC, TMAX, RESYNC)]


def test_a_wrong_re_sync_is_refused_and_changes_nothing(lake: Lake, name: TableName) -> None:
    fill(lake, name, CLOSED, ACTIVE)
    at = micros(RESYNC)
    for rows, error, words in (
        (timeless(lake, [("a", 1), ("a", 2)]), BatchError, "1 records more than once"),
        (timeless(lake, []).drop("ID"), BatchError, "lacks a key column"),
        (timeless(lake, []).withColumnRenamed("counter", "{n}"), UnknownColumnError, "does not"),
    ):
        with pytest.raises(error, match=words):
            core.resync(lake, name, rows, at_micros=at, batch="r")
    assert held(lake, name) == [CLOSED, ACTIVE]
    live = TableName("resync", "live")
    core.create(lake, live, COLUMNS[:2])
    with pytest.raises(BatchError, match="live mode"):
        core.resync(lake, live, timeless(lake, []), at_micros=at, batch="r")


@pytest.mark.long
def test_a_source_of_other_types_changes_nothing_that_is_stored_the_same(
    lake: Lake, name: TableName
) -> None:
    typed = TableName(name.schema, f"{name.table}_typed")
    columns = (COLUMNS[0], Column("counter", ColumnType(Kind.FLOAT)), *COLUMNS[2:])
    core.create(lake, typed, columns)
    rows = lake.spark.sql("SELECT 'a' AS ID, 0.1D AS counter")
    for hour in range(3):
        at = micros(f"2020-01-0{hour + 1}T00:00:00Z")
        core.resync(lake, typed, rows, at_micros=at, batch="r")
    assert lake.table(typed).df.count() == 1
