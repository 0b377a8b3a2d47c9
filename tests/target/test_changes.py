"""Applying the difference of two snapshots to the older one gives the newer one."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from chronolake import core
from chronolake.lake import Lake
from chronolake.target import changes
from chronolake.types import Column, ColumnType, Kind, TableName
from support.target.targets import COLUMNS, delete, write

_COLUMNS = [column.name for column in COLUMNS]


def _rows(lake: Lake, name: TableName, snapshot: int | None, columns: list[str]) -> pa.Table:
    table = lake.catalog.load(name)
    with changes.all_rows(lake.spark, table, snapshot, columns) as rows:
        return [] if rows is None else [tuple(row) for row in rows.collect()]


def _difference(
    lake: Lake, name: TableName, since: int | None, until: int | None, columns: list[str]
) -> list[tuple[Any, ...]]:
    table = lake.catalog.load(name)
    with changes.changed_rows(
        lake.spark, table, since, until, columns=columns, identity=["id"]
    ) as rows:
        return [] if rows is None else [tuple(row) for row in rows.collect()]


def _apply(old: list[tuple[Any, ...]], difference: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    found = {row[0]: row for row in old}
    for operation, *row in difference:
        match operation:
            case changes.DELETE:
                del found[row[0]]
            case changes.UPDATE:
                assert found[row[0]] != tuple(row)
                found[row[0]] = tuple(row)
            case _:
                assert row[0] not in found
                found[row[0]] = tuple(row)
    return sorted(found.values())


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
def test_difference_leads_from_any_snapshot_to_any_other(lake: Lake, seed: int) -> None:
    source = random.Random(seed)
    name = TableName("differences", f"t{seed}")
    snapshots: list[int | None] = [None]
    columns = list(_COLUMNS)
    for step in range(8):
        keys = source.sample(range(40), source.randint(1, 20))
        match "write" if step == 0 else source.choice(["write", "write", "delete", "compact"]):
            case "write":
                write(lake, keys, f"step {step}", name)
            case "delete":
                delete(lake, keys, f"step {step}", name)
            case _:
                core.maintain(lake, name)
        snapshots.append(lake.catalog.load(name).snapshot_id)
    states = {snapshot: _rows(lake, name, snapshot, columns) for snapshot in snapshots}
    for _ in range(12):
        since, until = source.choices(snapshots, k=2)
        difference = _difference(lake, name, since, until, columns)
        assert _apply(states[since], difference) == sorted(states[until])


def test_old_rows_have_the_current_columns(lake: Lake) -> None:
    name = TableName("differences", "columns")
    write(lake, range(5), "first", name)
    since = lake.catalog.load(name).snapshot_id
    core.alter(lake, name, [*COLUMNS, Column("more", ColumnType(Kind.INT))], drop_columns=False)
    lake.sql("UPDATE differences.columns SET more = 1 WHERE id = 2")
    until = lake.catalog.load(name).snapshot_id
    found = _difference(lake, name, since, until, ["id", "more"])
    assert found == [(changes.UPDATE, 2, 1)]


def test_a_zero_that_gets_another_sign_differs(lake: Lake) -> None:
    states = [
        lake.spark.sql(f"SELECT * FROM VALUES {rows} AS t(id, many, few)")
        for rows in (
            "(1, 0D, 0F), (2, 0D, 0F), (3, 0D, 0F), (4, 1D, -1F), (5, NULL, 0F)",
            "(1, -0D, 0F), (2, 0D, -0F), (3, 0D, 0F), (4, 1D, -1F), (5, NULL, 0F)",
        )
    ]
    found = changes.compare(*states, ["id", "many", "few"], ["id"])
    assert found is not None
    assert sorted(str(tuple(row)) for row in found.collect()) == [
        "('U', 1, -0.0, 0.0)",
        "('U', 2, 0.0, -0.0)",
    ]
