"""Pending tables: nobody else sees the changes of a write, and one commit publishes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyiceberg.table import StaticTable, Table

from chronolake import core
from chronolake.core.staging import StagedWrite, Stopwatch, stage_name, write_staged
from chronolake.iceberg import HIDDEN, MAIN, IcebergTable, PendingTable
from chronolake.iceberg.pending import table_cache
from chronolake.lake import Lake
from chronolake.location import plain
from chronolake.types import Column, ColumnType, Kind, TableName

_COLUMNS = (
    Column("id", ColumnType(Kind.LONG), primary_key=True),
    Column("v", ColumnType(Kind.STRING)),
    Column("_fivetran_synced", ColumnType(Kind.UTC_DATETIME)),
)


@pytest.fixture
def name(lake: Lake) -> TableName:
    name = TableName("pending", f"t{uuid4().hex[:8]}")
    core.create(lake, name, _COLUMNS)
    return name


@pytest.fixture
def filled(lake: Lake, name: TableName) -> TableName:
    write_staged(lake, name, _append(0, 100), Stopwatch())
    return name


def _append(since: int, until: int, *, text: str = "a") -> Any:
    def write(attempt: StagedWrite) -> Mapping[str, str]:
        attempt.append(_rows(since, until, text=text))
        return {}

    return write


def _rows(since: int, until: int, *, text: str) -> str:
    return (
        f"SELECT id, '{text}' AS v, current_timestamp() AS _fivetran_synced "
        f"FROM range({since}, {until})"
    )


def _stored(lake: Lake, name: TableName) -> Table:
    return StaticTable.from_metadata(plain(lake.catalog.load(name).metadata_file))


def _metadata_files(lake: Lake, name: TableName) -> set[Path]:
    folder = Path(plain(lake.catalog.load(name).location)) / "metadata"
    return set(folder.glob("*.metadata.json"))


@pytest.fixture
def began(lake: Lake, filled: TableName) -> Iterator[PendingTable]:
    pending = PendingTable(lake.catalog.load(filled), lake.spark)
    yield pending
    pending.close()


def test_all_statements_of_a_write_are_one_commit(lake: Lake, filled: TableName) -> None:
    before = _metadata_files(lake, filled)

    def write(attempt: StagedWrite) -> Mapping[str, str]:
        attempt.delete_where("id < 10")
        attempt.update_where("v = 'b'", "id = 50")
        attempt.append(_rows(0, 5, text="c"))
        return {"chronolake.watermark": "w"}

    write_staged(lake, filled, write, Stopwatch())

    assert len(_metadata_files(lake, filled) - before) == 1
    table = _stored(lake, filled)
    assert table.properties["chronolake.watermark"] == "w"
    assert [ref.snapshot_id for ref in table.refs().values()] == [
        table.metadata.current_snapshot_id
    ]
    # The snapshots between are ancestors, but were never the table's state.
    assert len(table.snapshots()) == 5
    assert len(table.history()) == 2
    rows = table.scan(selected_fields=("id", "v")).to_arrow().to_pylist()
    expected = dict.fromkeys(range(10, 100), "a") | {50: "b"} | dict.fromkeys(range(5), "c")
    assert len(rows) == len(expected)
    assert {row["id"]: row["v"] for row in rows} == expected


def test_others_see_nothing_before_the_publish(
    lake: Lake, filled: TableName, began: PendingTable
) -> None:
    before = _metadata_files(lake, filled)
    lake.spark.sql(f"DELETE FROM {began.after(MAIN)} WHERE id < 60")
    counting = "SELECT count(*) AS rows FROM {}".format

    assert lake.spark.sql(counting(began.after(MAIN))).first() == (40,)
    assert lake.spark.sql(counting(began.before(MAIN))).first() == (100,)
    assert lake.spark.sql(counting(filled.sql)).first() == (100,)
    assert _metadata_files(lake, filled) == before


def test_the_rows_before_are_those_with_which_the_write_began(
    lake: Lake, filled: TableName, began: PendingTable
) -> None:
    lake.spark.sql(f"DELETE FROM {filled.sql} WHERE id < 30")
    counting = f"SELECT count(*) AS rows FROM {began.before(MAIN)}"

    assert lake.spark.sql(counting).first() == (100,)
    assert lake.spark.sql(f"SELECT count(*) FROM {filled.sql}").first() == (70,)


def test_a_closed_pending_table_is_forgotten(lake: Lake, filled: TableName) -> None:
    pending = PendingTable(lake.catalog.load(filled), lake.spark)
    lake.spark.sql(f"DELETE FROM {pending.after(MAIN)} WHERE id < 60")
    pending.before(MAIN)
    assert table_cache(lake.spark).estimatedSize() == 2

    pending.close()

    assert table_cache(lake.spark).estimatedSize() == 0


def test_a_failed_write_changes_nothing(lake: Lake, filled: TableName) -> None:
    before = _metadata_files(lake, filled)

    def write(attempt: StagedWrite) -> Mapping[str, str]:
        attempt.delete_where("id < 10")
        attempt.append(
            "SELECT 1L AS id, raise_error('broken') AS v, current_timestamp() AS _fivetran_synced"
        )
        return {}

    with pytest.raises(Exception, match="broken"):
        write_staged(lake, filled, write, Stopwatch())

    assert _metadata_files(lake, filled) == before
    assert len(_stored(lake, filled).scan().to_arrow()) == 100


def test_a_write_that_met_another_one_is_staged_again(lake: Lake, filled: TableName) -> None:
    seen = []

    def write(attempt: StagedWrite) -> Mapping[str, str]:
        seen.append(attempt.table.snapshot_id)
        attempt.delete_where("id < 10")
        if len(seen) == 1:
            lake.spark.sql(f"INSERT INTO {filled.sql} {_rows(5, 6, text='meanwhile')}")
        attempt.append(_rows(1000, 1001, text="new"))
        return {}

    write_staged(lake, filled, write, Stopwatch())

    assert len(set(seen)) == 2
    ids = _stored(lake, filled).scan().to_arrow()["id"].to_pylist()
    assert sorted(ids) == [*range(10, 100), 1000]


def test_the_first_rows_of_a_table_have_a_parent(lake: Lake, name: TableName) -> None:
    assert lake.catalog.load(name).is_unwritten

    write_staged(lake, name, _append(0, 1), Stopwatch())

    assert not lake.catalog.load(name).is_unwritten


def test_branches_of_earlier_versions_are_removed(lake: Lake, filled: TableName) -> None:
    prefix, host, pid, token, since, end = stage_name().rsplit("-", 5)
    left = "-".join([prefix, host, pid, "0" * len(token), since, end])
    lake.spark.sql(f"ALTER TABLE {filled.sql} CREATE BRANCH `{left}`")
    lake.spark.sql(f"ALTER TABLE {filled.sql} CREATE BRANCH audit")

    write_staged(lake, filled, _append(200, 201), Stopwatch())

    assert set(_stored(lake, filled).refs()) == {MAIN, "audit"}


def test_a_branch_is_changed_beside_main(lake: Lake, filled: TableName) -> None:
    lake.spark.sql(f"ALTER TABLE {filled.sql} CREATE BRANCH `{HIDDEN}`")
    before = _metadata_files(lake, filled)

    def write(attempt: StagedWrite) -> Mapping[str, str]:
        attempt.hidden.delete_where("id >= 1")
        attempt.append(_rows(500, 501, text="x"))
        attempt.hidden.append(_rows(7, 9, text="h"))
        attempt.delete_where("id = 1")
        return {}

    write_staged(lake, filled, write, Stopwatch())

    assert len(_metadata_files(lake, filled) - before) == 1
    table = _stored(lake, filled)
    (hidden,) = (ref.snapshot_id for name, ref in table.refs().items() if name == HIDDEN)
    ids = [
        sorted(table.scan(snapshot_id=head).to_arrow()["id"].to_pylist()) for head in (None, hidden)
    ]
    assert ids == [[0, *range(2, 100), 500], [0, 7, 8]]


def test_state_without_changes_is_the_table(lake: Lake, filled: TableName) -> None:
    table: IcebergTable = lake.catalog.load(filled)
    pending = PendingTable(table, lake.spark)
    assert pending.state is table
    pending.close()
