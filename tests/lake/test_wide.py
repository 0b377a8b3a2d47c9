"""Writes to wide tables: calls to the JVM do not grow with columns, and plans only linearly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from py4j.protocol import MEMORY_COMMAND_NAME
from pyspark.sql import DataFrame, SparkSession

from chronolake import core
from chronolake.change_set import (
    BITS_PER_WORD,
    DELETED_AT,
    FOLLOWS,
    LANDED_FILE,
    LANDED_ROW,
    MODIFIED,
    OMITTED,
    OP,
    PROVIDES_DATA,
    PURGED_AT,
    SEQ,
    SEQUENCE,
    UNMODIFIED,
    Op,
)
from chronolake.core.apply_versions import write_versions
from chronolake.core.pipeline_table import create_pipeline_table
from chronolake.iceberg import metadata_with_columns
from chronolake.lake import Lake
from chronolake.pipeline.key_changes import fill_omitted_values
from chronolake.query import run_query
from chronolake.session import CATALOG
from chronolake.types import (
    ACTIVE,
    END,
    START,
    SYNCED,
    TMAX_MICROS,
    Column,
    ColumnType,
    Kind,
    Mode,
    TableName,
)
from support.lake.pipelines import Pipeline

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
    """Count the calls to the JVM that some work makes, in all threads.

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


#: The widths that are compared. The calls of the first one, which may use something for the first
#: time in this process, do not count.
_WIDTHS: Final = (10, 100, 1_000)
#: A thread may ask Spark for its progress once more while a wider table is written.
_BY_CHANCE: Final = 20


class _Steps:
    """Counts the calls of named steps, at each width."""

    def __init__(self, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
        self._lake = lake
        self._monkeypatch = monkeypatch
        self._calls: dict[str, list[int]] = {}

    def count(self, step: str, work: Callable[[], object]) -> None:
        found = _calls(self._lake, self._monkeypatch, work)
        self._calls.setdefault(step, []).append(found)

    def expect_none_for_each_column(self) -> None:
        more = {step: calls for step, calls in self._calls.items() if self._grows(calls)}
        assert more == {}

    @staticmethod
    def _grows(calls: list[int]) -> bool:
        _, narrow, wide = calls
        return wide - narrow > _BY_CHANCE


def _name() -> TableName:
    return TableName("wide", f"t{next(_numbers)}")


@pytest.mark.long
def test_creating_and_altering_cost_no_call_for_each_column(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = _Steps(lake, monkeypatch)
    for width in _WIDTHS:
        name, wanted = _name(), _columns(2 * width)
        half = wanted[: width + 2]
        steps.count("create", lambda n=name, c=half: core.create(lake, n, c))
        for step, columns in {"add": wanted, "drop": half}.items():
            steps.count(step, lambda n=name, c=columns: core.alter(lake, n, c, drop_columns=True))
            found = lake.describe(name)
            assert found is not None
            assert list(found.columns) == columns
            fields = lake.catalog.load(name).fields
            assert [field.name for field in fields] == [column.name for column in columns]
            assert [field.field_id for field in fields] == list(range(1, len(columns) + 1))
        steps.count("mode", lambda n=name: core.switch_mode(lake, n, Mode.HISTORY))
    steps.expect_none_for_each_column()


def test_a_catalog_gets_the_changes_that_iceberg_makes_itself(lake: Lake) -> None:
    """A REST catalog is sent these changes, and not the new metadata."""
    name, dropped = _name(), "write.metadata.metrics.column.c.`2\"'"
    core.create(lake, name, _columns(20))
    table = lake.catalog.load(name)
    table.commit(table.builder().setProperties(lake.catalog.map({dropped: "none"})).build())
    table = table.reload()
    wanted = [_retyped(column, Kind.INT, Kind.LONG) for column in _columns(21)]
    del wanted[4]
    ours = metadata_with_columns(lake.catalog, table.metadata, wanted, ())

    transaction = table.java.newTransaction()
    update = transaction.updateSchema().caseSensitive(True).deleteColumn("c.`2\"'")
    update.unionByNameWith(lake.catalog.schema([wanted[-1]]))
    long = lake.catalog.schema([Column("long", ColumnType(Kind.LONG))]).findType("long")
    for stored, column in zip(_columns(20)[5:], wanted[4:], strict=False):
        if stored.type != column.type:
            update.updateColumn(column.name, long)
    update.commit()
    theirs = transaction.table().operations().current()

    assert lake.catalog.fields(ours.schema()) == lake.catalog.fields(theirs.schema())
    assert dict(ours.properties()) == dict(theirs.properties())
    assert dropped not in dict(ours.properties())
    assert ours.lastColumnId() == theirs.lastColumnId()
    kinds = [[str(change.getClass()) for change in each.changes()] for each in (ours, theirs)]
    assert kinds[0] == kinds[1]


@pytest.mark.long
def test_changing_types_costs_no_call_for_each_column(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = _Steps(lake, monkeypatch)
    for width in _WIDTHS:
        name = _name()
        typed = _columns(width)
        widened = [_retyped(column, Kind.INT, Kind.LONG) for column in typed]
        texts = [*typed[:2], *(Column(c.name, ColumnType(Kind.STRING)) for c in typed[2:])]
        core.create(lake, name, typed)
        cells = ["explode(array(1L, 2L))", *["NULL"] * (width + 1)]
        lake.spark.sql(f"INSERT INTO {CATALOG}.{name.sql} SELECT {', '.join(cells)}")
        for step, columns in {"widen": widened, "to texts": texts, "from texts": typed}.items():
            steps.count(step, lambda n=name, c=columns: core.alter(lake, n, c, drop_columns=False))
            found = lake.describe(name)
            assert found is not None
            assert list(found.columns) == columns
            assert lake.table(name).df.select("id").count() == 2
    steps.expect_none_for_each_column()


def _retyped(column: Column, old: Kind, new: Kind) -> Column:
    return replace(column, type=ColumnType(new)) if column.type.kind is old else column


@pytest.mark.long
@pytest.mark.parametrize("mode", [Mode.LIVE, Mode.HISTORY])
def test_a_batch_costs_no_call_for_each_column(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    """A batch replaces a row, updates one partly, and deletes one."""
    steps = _Steps(lake, monkeypatch)
    write = core.write_history_batch if mode is Mode.HISTORY else core.write_batch
    for width in _WIDTHS:
        name, columns = _name(), _text_columns(width)
        if mode is Mode.HISTORY:
            columns += _HISTORY
        core.create(lake, name, columns)
        for number in (1, 2):
            apply = partial(write, lake, name, _changes(lake, columns, number), columns=columns)
            steps.count(f"batch {number}", partial(apply, batch=str(number)))
        rows = lake.table(name).current().selectExpr("id", "c0", f"c{width - 1}").collect()
        assert sorted(map(tuple, rows)) == [("1", "2", "2"), ("2", "2", "1")]
        query = f"SELECT * FROM {name.sql} ORDER BY id"
        steps.count("query", lambda text=query: list(run_query(lake, text).rows()))
    steps.expect_none_for_each_column()


_HISTORY: Final = [
    Column(START, ColumnType(Kind.UTC_DATETIME), primary_key=True),
    Column(END, ColumnType(Kind.UTC_DATETIME)),
    Column(ACTIVE, ColumnType(Kind.BOOLEAN)),
]


def _text_columns(width: int) -> list[Column]:
    texts = (Column(f"c{place}", ColumnType(Kind.STRING)) for place in range(width))
    return [Column("id", ColumnType(Kind.STRING), primary_key=True), *texts]


def _changes(lake: Lake, columns: list[Column], number: int) -> DataFrame:
    """Return three replaced rows, or a replaced row, an updated row and a deleted row.

    The updated row leaves the last text column unmodified.
    """
    at = pa.array([number * 1_000_000] * 3, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    never = pa.array([TMAX_MICROS] * 3, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    known: dict[str, Any] = {"id": ["1", "2", "3"], START: at, ACTIVE: [True] * 3}
    known[END] = never if number == 1 else pa.chunked_array([never[:2], at[2:]])
    texts = [column.name for column in columns if column.name.startswith("c")]
    word, bit = divmod([column.name for column in columns].index(texts[-1]), BITS_PER_WORD)
    ops = [Op.REPLACE] * 3 if number == 1 else [Op.REPLACE, Op.UPDATE, Op.DELETE]
    bits = None if number == 1 else [0] * word + [1 << bit if bit < 63 else -(1 << 63)]
    rows = {
        OP: pa.array(map(int, ops), pa.int32()),
        SEQ: pa.array([0, 1, 2], pa.int64()),
        UNMODIFIED: pa.array([None, bits, None], pa.list_(pa.int64())),
        **{column.name: known.get(column.name, [str(number)] * 3) for column in columns},
    }
    return lake.spark.createDataFrame(pa.table(rows))


@pytest.mark.long
def test_a_sync_costs_no_call_for_each_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(tmp_path)
    steps = _Steps(pipeline.lake, monkeypatch)
    for width in _WIDTHS:
        stream = f"Wide{width}"
        for number in (1, 2):
            row = {
                "Id": "1",
                "source__modified": number * 1_000_000,
                "grax__idseq": str(number),
                **{f"c{place}": f"{number}" for place in range(width)},
            }
            pipeline.source.write(stream, [row])
            steps.count(f"sync {number}", lambda s=stream: pipeline.done(s))
        versions = pipeline.versions("c0", f"c{width - 1}", name=stream)
        assert [version[-2:] for version in versions] == [("1", "1"), ("2", "2")]
    steps.expect_none_for_each_column()


@pytest.mark.long
def test_key_changes_cost_no_call_for_each_column(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record gets two other keys in one batch, whose log omits all of its values."""
    steps = _Steps(lake, monkeypatch)
    # Spark takes long for the aggregates of more columns.
    for width in (10, 50, 200):
        name, columns = _name(), _text_columns(width)
        key = replace(columns[0], name="Id")
        columns = [key, *columns[1:]]
        create_pipeline_table(lake, name, columns, mode=Mode.HISTORY, epsilon_micros=1)
        write_versions(
            lake, name, _versions(lake, width, 1), synced_micros=1, batch="1", properties={}
        )
        table = lake.catalog.load(name)
        rows = _key_changes(lake, width)
        found: list[tuple[Any, ...]] = []

        def fill(rows: DataFrame = rows, columns: list[Column] = columns) -> None:
            filled, _ = fill_omitted_values(lake, rows, columns, table)  # noqa: B023
            wanted = filled.where(PROVIDES_DATA).selectExpr("Id", "c0", f"c{len(columns) - 2}")
            found.extend(map(tuple, wanted.collect()))  # noqa: B023

        steps.count("key changes", fill)
        last = f"1 a {width - 1}"
        assert sorted(found) == [("3", "1 a 0", last), ("4", "1 a 0", last)]
    steps.expect_none_for_each_column()


def _key_changes(lake: Lake, width: int) -> DataFrame:
    """Return versions in which the record 1 becomes 3, and then 4."""
    texts = [f"c{place}" for place in range(width)]
    rows = {
        "Id": ["1", "3", "3", "4"],
        **{text: pa.nulls(4, pa.string()) for text in texts},
        MODIFIED: pa.array([2, 2, 3, 3], pa.int64()),
        SEQUENCE: ["21", "22", "31", "32"],
        DELETED_AT: pa.array([2, None, 3, None], pa.int64()),
        PURGED_AT: pa.nulls(4, pa.int64()),
        PROVIDES_DATA: [False, True, False, True],
        OMITTED: pa.array([None, texts, None, texts], pa.list_(pa.string())),
        FOLLOWS: [None, "21", None, "31"],
    }
    return lake.spark.createDataFrame(pa.table(rows))


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


@pytest.mark.long
@pytest.mark.sampled
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
