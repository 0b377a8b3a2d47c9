"""Concurrent changes during a migration, and the remains of a crash."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from chronolake import core
from chronolake.core import migration, rewrite
from chronolake.core.staging import is_abandoned, stage_name
from chronolake.errors import SchemaError
from chronolake.lake import Lake
from chronolake.types import SCRATCH_SCHEMA, Column, ColumnType, Kind, Mode, TableName, quote

COLUMNS = (
    Column("id", ColumnType(Kind.LONG), primary_key=True),
    Column("k2", ColumnType(Kind.LONG)),
    Column("v", ColumnType(Kind.STRING)),
    Column("_fivetran_synced", ColumnType(Kind.UTC_DATETIME)),
)
_numbers = count()


@pytest.fixture
def name(lake: Lake) -> TableName:
    made = TableName("races", f"t{next(_numbers)}")
    core.create(lake, made, COLUMNS)
    lake.spark.sql(f"INSERT INTO {made.sql} VALUES (1, 1, 'x', timestamp'2024-01-01 00:00:00')")
    return made


def between(monkeypatch: pytest.MonkeyPatch, module: object, act: Callable[[], object]) -> None:
    """Call a function once, when the rows are written and not published yet."""
    done = []

    def reach(point: str) -> None:
        if point == "rewrite.before-commit" and not done:
            done.append(point)
            act()

    monkeypatch.setattr(module, "reach", reach)


@pytest.mark.parametrize("operation", ["fill", "switch"])
def test_a_new_key_and_a_new_type_are_not_undone(
    lake: Lake, name: TableName, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    changed = (
        COLUMNS[0],
        Column("k2", ColumnType(Kind.LONG), primary_key=True),
        Column("v", ColumnType(Kind.JSON)),
        COLUMNS[3],
    )
    from chronolake.core import table_swap  # noqa: PLC0415 - beside its patch

    module = rewrite if operation == "fill" else table_swap
    between(monkeypatch, module, lambda: core.alter(lake, name, changed, drop_columns=False))
    if operation == "fill":
        migration.set_column_value(lake, name, "v", lambda kind: pa.scalar("y", kind.arrow))
        assert lake.table(name).describe().columns == changed
    else:
        migration.switch_mode(lake, name, Mode.HISTORY)
        assert lake.table(name).describe().columns[:4] == changed


def test_rows_written_meanwhile_are_not_lost(
    lake: Lake, name: TableName, monkeypatch: pytest.MonkeyPatch
) -> None:
    from chronolake.core import table_swap  # noqa: PLC0415 - beside its patch

    more = f"INSERT INTO {name.sql} VALUES (2, 2, 'z', timestamp'2024-01-02 00:00:00')"
    between(monkeypatch, table_swap, lambda: lake.spark.sql(more))
    migration.switch_mode(lake, name, Mode.HISTORY)
    starts = lake.table(name).df.selectExpr("id", "CAST(_fivetran_start AS STRING)").collect()
    assert sorted(map(tuple, starts)) == [(1, "2024-01-02 00:00:00"), (2, "2024-01-02 00:00:00")]


def test_a_leftover_without_metadata_blocks_no_write(
    lake: Lake, name: TableName, monkeypatch: pytest.MonkeyPatch
) -> None:
    leftover = TableName(SCRATCH_SCHEMA, stage_name())
    lake.catalog.create(
        leftover, COLUMNS, location=rewrite.new_subfolder(lake.catalog.load(name)), properties={}
    )
    metadata = lake.catalog.load(leftover).metadata.metadataFileLocation()
    Path(str(metadata).removeprefix("file:")).unlink()
    monkeypatch.setattr(rewrite, "is_abandoned", lambda branch: branch == leftover.table)
    migration.copy_column(lake, name, "v", "w")
    assert leftover not in lake.catalog.tables_in(SCRATCH_SCHEMA)
    assert [row.w for row in lake.table(name).df.collect()] == ["x"]


@pytest.mark.sampled
@pytest.mark.parametrize(
    "odd",
    [
        "t",
        "chronolake-stage-",
        "chronolake-stage-x",
        "chronolake-stage-a-b-c-d-e",
        f"chronolake-stage-h-{9**30}-0a0a0a0a-{9**30}-0a0a0a0a",
    ],
)
def test_names_that_are_not_a_staged_writes_are_left_alone(
    lake: Lake, name: TableName, odd: str
) -> None:
    assert not is_abandoned(odd)
    # A table with such a name that an earlier version allowed, and a branch of another engine.
    foreign = TableName(SCRATCH_SCHEMA, odd)
    lake.catalog.create(foreign, COLUMNS, location=lake.new_location(), properties={})
    lake.spark.sql(f"ALTER TABLE {name.sql} CREATE BRANCH {quote(odd)}")
    migration.copy_column(lake, name, "v", "w")
    assert [row.w for row in lake.table(name).df.collect()] == ["x"]
    assert foreign in lake.catalog.tables_in(SCRATCH_SCHEMA)
    assert odd in lake.catalog.load(name).branches()
    lake.catalog.drop(foreign, purge=True)


def test_reserved_schemas_are_refused(lake: Lake, name: TableName) -> None:
    hidden = TableName("__Chronolake_Scratch", "t")
    for change in (
        lambda: core.create(lake, hidden, COLUMNS),
        lambda: migration.rename_table(lake, name, hidden),
        lambda: migration.copy_table(lake, name, hidden),
    ):
        with pytest.raises(SchemaError, match="reserved"):
            change()
    assert lake.describe(name) is not None


def test_a_switch_keeps_the_tables_own_properties(lake: Lake, name: TableName) -> None:
    lake.spark.sql(
        f"ALTER TABLE {name.sql} SET TBLPROPERTIES "
        "('write.parquet.compression-codec' = 'snappy', 'team' = 'sales')"
    )
    migration.switch_mode(lake, name, Mode.HISTORY)
    found = lake.catalog.load(name)
    assert found.property_of("write.parquet.compression-codec") == "snappy"
    assert found.property_of("team") == "sales"


@pytest.mark.parametrize("leaving", ["drop", "rename", "switch"])
def test_a_view_is_dropped_with_its_table(lake: Lake, name: TableName, leaving: str) -> None:
    migration.switch_mode(lake, name, Mode.HISTORY)
    view = core.create_current_view(lake, name)
    # A view that somebody else made stays.
    other = TableName(name.schema, f"{name.table}_other_current")
    lake.spark.sql(f"CREATE VIEW chronolake.{other.sql} AS SELECT 1 AS one")
    if leaving == "drop":
        migration.drop_table(lake, name)
    elif leaving == "rename":
        migration.rename_table(lake, name, TableName(name.schema, f"{name.table}_other"))
    else:
        migration.switch_mode(lake, name, Mode.LIVE)
    # Its name is free.
    core.create(lake, view, COLUMNS)
    assert lake.spark.sql(f"SELECT one FROM {other.sql}").count() == 1
