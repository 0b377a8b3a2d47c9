"""A switch to history mode honors every column that marks deleted rows."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronolake import core
from chronolake.core import migration
from chronolake.errors import UnknownColumnError
from chronolake.lake import Lake
from chronolake.types import DELETED, SYNCED, Column, ColumnType, Kind, Mode, TableName
from support.commands import run_command, run_words
from support.datalakes import iceberg_in

_BOOLEAN = ColumnType(Kind.BOOLEAN)
_MARKERS = (DELETED, "is_removed", "is_archived")
_numbers = count()

Row = tuple[bool | None, ...]


def fill(lake: Lake, columns: list[str], rows: list[Row]) -> TableName:
    """Create a table with these markers; the key of a row is its place."""
    name = TableName("marked", f"t{next(_numbers)}")
    stored = (
        Column("id", ColumnType(Kind.LONG), primary_key=True),
        Column(SYNCED, ColumnType(Kind.UTC_DATETIME)),
        *(Column(column, _BOOLEAN) for column in columns),
    )
    core.create(lake, name, stored)
    if rows:
        values = ", ".join(
            f"({key}, timestamp_micros(1704067200000000)"
            + "".join(f", CAST({'NULL' if mark is None else mark} AS BOOLEAN)" for mark in row)
            + ")"
            for key, row in enumerate(rows)
        )
        lake.spark.sql(f"INSERT INTO {name.sql} VALUES {values}")
    return name


def active(lake: Lake, name: TableName) -> tuple[dict[int, bool], set[str]]:
    """Return which records are active, and the columns."""
    found: pa.Table = iceberg_in(lake.config, name.schema, name.table).scan().to_arrow()
    pairs = zip(found["id"].to_pylist(), found["_fivetran_active"].to_pylist(), strict=True)
    return dict(pairs), set(found.column_names)


@pytest.mark.long
@settings(max_examples=20)
@given(data=st.data())
def test_a_row_is_deleted_if_any_existing_marker_is_true(lake: Lake, data: st.DataObject) -> None:
    columns = data.draw(st.lists(st.sampled_from(_MARKERS), unique=True))
    rows = data.draw(
        st.lists(st.tuples(*[st.sampled_from([None, False, True])] * len(columns)), max_size=5)
    )
    markers = data.draw(st.lists(st.sampled_from(_MARKERS), unique=True))
    name = fill(lake, columns, rows)
    honored = [marker for marker in markers if marker in columns]
    if not honored and any(marker != DELETED for marker in markers):
        with pytest.raises(UnknownColumnError):
            core.switch_mode(lake, name, Mode.HISTORY, markers=markers)
        return
    core.switch_mode(lake, name, Mode.HISTORY, markers=markers)
    expected = {
        key: not any(dict(zip(columns, row, strict=True))[marker] for marker in honored)
        for key, row in enumerate(rows)
    }
    found, kept = active(lake, name)
    assert found == expected
    assert kept.isdisjoint({DELETED})
    assert kept >= set(columns) - {DELETED}
    assert core.verify(lake, name).holds


@pytest.mark.long
def test_the_option_can_be_repeated(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[Row] = [(False, True), (True, None), (None, False), (None, None)]
    name = fill(lake, [DELETED, "is_removed"], rows)
    words = ("mode", str(name), "history", "--marker", DELETED, "--marker", "is_removed")
    code, reported, problem = run_command(lake.config.path, capsys, *words, "--json")
    assert code == 0, problem
    assert json.loads(reported)["loses"] is None
    assert active(lake, name)[0] == {0: False, 1: False, 2: True, 3: True}


@pytest.mark.parametrize(
    "listed", [["is_removed", "is_archived"], [DELETED, "is_removed", "is_archived"]]
)
def test_configured_columns_are_the_default(
    lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str], listed: list[str]
) -> None:
    name = fill(lake, [DELETED, "is_removed"], [(False, True), (True, None), (None, False)])
    # `_fivetran_deleted` is always a marker, as in migrations over gRPC.
    tables = {str(name): {"deleted_columns": listed}}
    project = tmp_path / "project"
    project.mkdir()
    written = {"lake": {"path": str(lake.config.path), "tables": tables}}
    (project / "chronolake.yml").write_text(json.dumps(written))
    words = ("mode", str(name), "history", "--project", str(project))
    code, _, problem = run_words(capsys, *words)
    assert code == 0, problem
    assert active(lake, name)[0] == {0: False, 1: False, 2: True}


@pytest.mark.long
def test_a_switch_to_live_removes_rows_with_any_marker(lake: Lake) -> None:
    name = fill(lake, [DELETED, "is_removed"], [(False, True), (True, None), (None, False)])
    migration.switch_mode(lake, name, Mode.LIVE, markers=[DELETED, "is_removed"])
    found = iceberg_in(lake.config, name.schema, name.table).scan().to_arrow()
    assert found["id"].to_pylist() == [2]


def test_a_history_table_with_a_marker_becomes_a_live_table(lake: Lake) -> None:
    name = fill(lake, [DELETED], [(False,), (True,)])
    migration.switch_mode(lake, name, Mode.HISTORY)
    column = Column(DELETED, _BOOLEAN)
    migration.add_column_with_default(lake, name, column, lambda kind: pa.scalar(False, kind.arrow))
    plan = migration.plan_switch(lake, name, Mode.LIVE)
    assert DELETED in plan.dropped
    assert migration.switch_mode(lake, name, Mode.LIVE)
    found = iceberg_in(lake.config, name.schema, name.table).scan().to_arrow()
    assert found.column_names == ["id", SYNCED]
    assert not migration.switch_mode(lake, name, Mode.LIVE)
