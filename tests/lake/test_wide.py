"""Writes to wide tables: calls to the JVM do not grow with columns, and plans only linearly."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import MEMORY_COMMAND_NAME
from pyspark.sql import DataFrame, SparkSession

from chronolake import core
from chronolake.change_set import (
    DELETED_AT,
    LANDED_FILE,
    LANDED_ROW,
    MODIFIED,
    OMITTED,
    PROVIDES_DATA,
    PURGED_AT,
    SEQUENCE,
)
from chronolake.core.apply_versions import write_versions
from chronolake.core.pipeline_table import create_pipeline_table
from chronolake.lake import Lake
from chronolake.types import SYNCED, Column, ColumnType, Kind, Mode, TableName

_numbers = count()
_KINDS = [kind for kind in Kind if kind is not Kind.DECIMAL]


def _columns(width: int) -> list[Column]:
    """Return a key, and columns of all types in turns; names may contain path characters."""
    types = [ColumnType(Kind.DECIMAL, 38, 10), ColumnType(Kind.DECIMAL, 9, 2)]
    types += [ColumnType(kind) for kind in _KINDS]
    return [
        Column("id", ColumnType(Kind.LONG), primary_key=True),
        Column(SYNCED, ColumnType(Kind.UTC_DATETIME)),
        *(Column(f"c.`{place}\"'", types[place % len(types)]) for place in range(width)),
    ]


def _calls(lake: Lake, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> int:
    """Count the calls to the JVM that some work makes.

    Calls that free objects that Python has dropped are not counted, because they happen whenever
    the garbage collector runs.
    """
    client = lake.spark.sparkContext._gateway._gateway_client
    send, calls = client.send_command, count()

    def counted(command: str, *given: Any, **named: Any) -> Any:
        if not command.startswith(MEMORY_COMMAND_NAME):
            next(calls)
        return send(command, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(client, "send_command", counted)
        work()
    return next(calls)


def test_creating_and_altering_cost_no_call_for_each_column(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    created, altered = [], []
    for width in (10, 400):
        name, wanted = TableName("wide", f"t{next(_numbers)}"), _columns(2 * width)
        half = wanted[: width + 2]
        created.append(_calls(lake, monkeypatch, lambda n=name, c=half: core.create(lake, n, c)))
        altered.append(
            _calls(
                lake,
                monkeypatch,
                lambda n=name, c=wanted: core.alter(lake, n, c, drop_columns=False),
            )
        )
        found = lake.describe(name)
        assert found is not None
        assert list(found.columns) == wanted
        fields = lake.catalog.load(name).fields
        assert [field.name for field in fields] == [column.name for column in wanted]
        assert [field.field_id for field in fields] == list(range(1, len(wanted) + 1))
    assert created[1] - created[0] < 100
    assert altered[1] - altered[0] < 100


def test_a_wide_table_is_read_in_small_batches(lake: Lake) -> None:
    def values_at_once(width: int) -> int:
        name = TableName("wide", f"t{next(_numbers)}")
        core.create(lake, name, _columns(10))
        core.alter(lake, name, _columns(width), drop_columns=False)
        table = lake.catalog.load(name)
        rows = table.property_of("read.parquet.vectorization.batch-size")
        return int(rows or 5_000) * len(table.fields)

    assert values_at_once(90) == 5_000 * 92
    assert max(values_at_once(width) for width in (99, 100, 300, 1_600)) <= 500_000


def _versions(lake: Lake, width: int, number: int) -> DataFrame:
    """Return two records with text columns, each in its own version."""
    rows = {
        "Id": ["1", "2"],
        **{f"c{place}": [f"{number} a {place}", f"{number} b"] for place in range(width)},
        MODIFIED: pa.array([number, number], pa.int64()),
        SEQUENCE: [f"{number:x}"] * 2,
        DELETED_AT: pa.array([None, None], pa.int64()),
        PURGED_AT: pa.array([None, None], pa.int64()),
        PROVIDES_DATA: [True, True],
        OMITTED: pa.array([None, None], pa.list_(pa.string())),
        LANDED_FILE: [f"data-{number:x}.parquet"] * 2,
        LANDED_ROW: [0, 1],
    }
    return lake.spark.createDataFrame(pa.table(rows))


def _attributes(plan: Any) -> int:
    """Count the columns of all nodes of a plan."""
    if plan.getClass().getSimpleName() == "CommandResult":
        plan = plan.commandLogicalPlan()
    children = plan.children()
    below = sum(_attributes(children.apply(place)) for place in range(children.size()))
    return below + int(plan.output().size())


@pytest.mark.parametrize("mode", [Mode.HISTORY, Mode.LIVE])
def test_plans_of_a_change_hold_few_columns_for_each_of_the_table(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    found, run = [], SparkSession.sql

    def counted(session: SparkSession, text: str) -> DataFrame:
        frame = run(session, text)
        found[-1] += _attributes(frame._jdf.queryExecution().analyzed())
        return frame

    widths = (10, 60)
    for width in widths:
        name = TableName("wide", f"t{next(_numbers)}")
        texts = [Column(f"c{place}", ColumnType(Kind.STRING)) for place in range(width)]
        key = Column("Id", ColumnType(Kind.STRING), primary_key=True)
        create_pipeline_table(lake, name, [key, *texts], mode=mode, epsilon_micros=1)
        found.append(0)
        for number in (1, 2):
            # Rows that are written first do not count.
            found[-1] = 0
            with monkeypatch.context() as patched:
                patched.setattr(SparkSession, "sql", counted)
                result = write_versions(
                    lake,
                    name,
                    _versions(lake, width, number),
                    synced_micros=number,
                    batch=str(number),
                    properties={},
                )
            assert result.written == 2 * (number if mode is Mode.HISTORY else 1)
    per_column = (found[1] - found[0]) / (widths[1] - widths[0])
    assert per_column <= 40
