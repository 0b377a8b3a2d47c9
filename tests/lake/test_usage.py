"""Monthly active rows are counted as batches are published, each row once a month."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count

import pytest
from pyspark.sql import DataFrame

from chronolake import core, inspect
from chronolake.change_set import OP, SEQ, UNMODIFIED, Op
from chronolake.core import migration
from chronolake.core.usage import monthly_properties
from chronolake.lake import Lake
from chronolake.types import ACTIVE, END, START, Column, ColumnType, Kind, Mode, TableName
from support.commands import run_command

LIVE = (
    Column("id", ColumnType(Kind.LONG), primary_key=True),
    Column("part", ColumnType(Kind.STRING), primary_key=True),
    Column("v", ColumnType(Kind.STRING)),
    Column("_fivetran_synced", ColumnType(Kind.UTC_DATETIME)),
)
HISTORY = (
    *LIVE,
    Column(START, ColumnType(Kind.UTC_DATETIME), primary_key=True),
    Column(END, ColumnType(Kind.UTC_DATETIME)),
    Column(ACTIVE, ColumnType(Kind.BOOLEAN)),
)
_numbers = count()

Change = tuple[Op, int, str | None, str | None, int]


@pytest.fixture
def name() -> TableName:
    return TableName("usage", f"t{next(_numbers)}")


def changes(lake: Lake, rows: Sequence[Change], *, history: bool) -> DataFrame:
    """Return rows of operation, both parts of the key, value, and hour of the start (or end)."""

    def text(value: str | None) -> str:
        return "CAST(NULL AS STRING)" if value is None else f"'{value}'"

    def times(op: Op, hour: int) -> str:
        at = f"TIMESTAMP'2024-01-01 {hour:02}:00:00'"
        end = at if op is Op.DELETE else "TIMESTAMP'9999-12-31 23:59:59.999'"
        return f", {at} AS {START}, {end} AS {END}, {op is not Op.DELETE} AS {ACTIVE}"

    nothing = f"CAST(NULL AS ARRAY<BIGINT>) AS {UNMODIFIED}"
    selects = [
        f"SELECT {int(op)} AS {OP}, {place}L AS {SEQ}, {nothing}, {key}L AS id, "
        f"{text(part)} AS part, {text(value)} AS v, current_timestamp() AS _fivetran_synced"
        f"{times(op, hour) if history else ''}"
        for place, (op, key, part, value, hour) in enumerate(rows)
    ]
    return lake.spark.sql(" UNION ALL ".join(selects))


def rows_of(lake: Lake, name: TableName) -> int | None:
    month = datetime.now(UTC).strftime("%Y-%m")
    found = {usage.table: usage for usage in inspect.usage(lake.config, month)}
    assert name not in found or found[name].is_exact
    return found[name].rows if name in found else None


def send(lake: Lake, name: TableName, *rows: Change, history: bool = False) -> int | None:
    write = core.write_history_batch if history else core.write_batch
    columns = HISTORY if history else LIVE
    write(lake, name, changes(lake, rows, history=history), columns=columns, batch="b")
    return rows_of(lake, name)


@pytest.mark.long
def test_each_key_counts_once_however_often_it_is_written(lake: Lake, name: TableName) -> None:
    core.create(lake, name, LIVE)
    assert rows_of(lake, name) is None
    put, change, gone = Op.REPLACE, Op.UPDATE, Op.DELETE
    assert send(lake, name, (put, 1, "a", "x", 0), (put, 2, "a", "x", 0)) == 2
    assert send(lake, name, (put, 1, "a", "y", 0)) == 2
    # A null in the key is a value like any other, and differs from one in another column.
    assert send(lake, name, (put, 1, None, "x", 0), (put, 0, "a", "x", 0)) == 4
    assert send(lake, name, (change, 2, "a", "z", 0), (put, 3, "a", "x", 0)) == 5
    # An update of a missing record, and a removal, write nothing.
    assert send(lake, name, (change, 99, "a", "z", 0), (gone, 1, "a", None, 0)) == 5


@pytest.mark.long
def test_versions_count_and_closing_or_repeating_them_does_not(lake: Lake, name: TableName) -> None:
    core.create(lake, name, HISTORY)
    first, put, gone = Op.EARLIEST, Op.REPLACE, Op.DELETE
    changes = [(first, 1, "a", None, 1), (put, 1, "a", "x", 1)]
    assert send(lake, name, *changes, history=True) == 1
    assert send(lake, name, (first, 1, "a", None, 2), (put, 1, "a", "y", 2), history=True) == 2
    assert send(lake, name, (gone, 1, "a", None, 3), history=True) == 2
    # A version that is written again counts only if its values differ.
    name_2 = TableName(name.schema, f"{name.table}_later")
    core.create(lake, name_2, HISTORY)
    send(lake, name_2, *changes, history=True)
    month = datetime.now(UTC).strftime("%Y-%m")
    lake.spark.sql(f"ALTER TABLE {name_2.sql} UNSET TBLPROPERTIES ('chronolake.usage.{month}')")
    assert send(lake, name_2, *changes, history=True) is None
    assert send(lake, name_2, changes[0], (put, 1, "a", "other", 1), history=True) == 1


def test_usage_outlives_a_switch_of_mode(lake: Lake, name: TableName) -> None:
    core.create(lake, name, LIVE)
    assert send(lake, name, (Op.REPLACE, 1, "a", "x", 0)) == 1
    migration.switch_mode(lake, name, Mode.HISTORY)
    assert rows_of(lake, name) == 1


def test_a_month_that_is_over_keeps_its_number_only(lake: Lake, name: TableName) -> None:
    core.create(lake, name, LIVE)
    october, november = (datetime(2025, month, 3, tzinfo=UTC) for month in (10, 11))

    def sketch(first: int, last: int) -> bytes:
        found = lake.spark.sql(
            f"SELECT theta_sketch_agg(xxhash64(id), 12) FROM range({first}, {last})"
        ).first()
        assert found is not None
        return bytes(found[0])

    def publish(first: int, last: int, now: datetime) -> dict[str, dict[str, object]]:
        changed = monthly_properties(lake.catalog.load(name), sketch(first, last), now=now)
        texts = ", ".join(f"'{key}' = '{value}'" for key, value in changed.items())
        lake.spark.sql(f"ALTER TABLE {name.sql} SET TBLPROPERTIES ({texts})")
        return {key: json.loads(value) for key, value in changed.items()}

    publish(0, 3_000, october)
    (reported,) = publish(2_000, 4_000, october).values()
    assert (reported["rows"], reported["exact"]) == (4_000, True)
    reported = publish(0, 100_000, november)
    assert reported["chronolake.usage.2025-10"] == {"rows": 4_000, "exact": True}
    assert not reported["chronolake.usage.2025-11"]["exact"]
    assert reported["chronolake.usage.2025-11"]["rows"] == pytest.approx(100_000, rel=0.05)
    assert [(usage.rows, usage.is_exact) for usage in inspect.usage(lake.config, "2025-10")] == [
        (4_000, True)
    ]
    # For a clock that is behind, the month is already closed.
    assert monthly_properties(lake.catalog.load(name), sketch(0, 9_000), now=october) == {}


def test_the_command_prints_every_table_and_the_total(
    lake: Lake, name: TableName, capsys: pytest.CaptureFixture[str]
) -> None:
    core.create(lake, name, LIVE)
    send(lake, name, (Op.REPLACE, 1, "a", "x", 0))

    def told_by(*words: str) -> tuple[int, str]:
        code, reported, _ = run_command(lake.config.path, capsys, "usage", *words)
        return code, reported

    code, reported = told_by("--json")
    found = json.loads(reported)
    assert code == 0
    assert {
        "table": str(name),
        "mode": "live",
        "month": found["month"],
        "rows": 1,
        "exact": True,
    } in (found["tables"])
    assert found["rows"] == sum(table["rows"] for table in found["tables"])
    assert str(name) in told_by()[1]
    assert "No table was written" in told_by("--month", "1999-12")[1]
    assert told_by("--month", "2026-13")[0] == 2
