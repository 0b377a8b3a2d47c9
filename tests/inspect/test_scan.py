"""Scans of stored rows: files that statistics exclude are not read, damage is reported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import AlwaysTrue, EqualTo
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, LongType, StringType

from chronolake.config import LakeConfig
from chronolake.errors import LakeError
from chronolake.inspect.catalog import look_up
from chronolake.inspect.scan import FILE, ROW, Place, StoredRows
from chronolake.inspect.time_travel import differences, read_activity, rows_at
from chronolake.types import TableName
from support.inspect.layout import HISTORY, TMAX, Make, arrow, column

ORDERS = TableName("shop", "orders")
DAYS = [f"2024-01-{day:02}T00:00:00Z" for day in range(1, 31)]


def _files(table: Table) -> list[Path]:
    return [Path(task.file.file_path.removeprefix("file://")) for task in table.scan().plan_files()]


def test_files_of_other_times_and_keys_are_not_opened(config: LakeConfig, make: Make) -> None:
    table = make(
        ORDERS,
        ["id*:INT", *HISTORY],
        *([(day, DAYS[day], DAYS[day + 1], False)] for day in range(9)),
    )
    for file in _files(table):
        if pq.read_table(file)["id"][0].as_py() != 4:
            file.unlink()

    page = rows_at(config, ORDERS, "2024-01-05T12:00:00Z")

    assert [row["id"] for row in page.rows] == [4]
    with pytest.raises(LakeError, match="cannot be read") as refused:
        rows_at(config, ORDERS, "2024-01-04T12:00:00Z")
    assert refused.value.table == "shop.orders"


def test_row_groups_of_other_keys_are_not_read(config: LakeConfig, make: Make) -> None:
    rows = [(number, DAYS[0], TMAX, True) for number in range(1_000)]
    table = make(ORDERS, ["id*:INT", *HISTORY])
    with table.transaction() as changed:
        changed.set_properties({"write.parquet.row-group-limit": "100"})
    table.append(arrow([column(text) for text in ("id*:INT", *HISTORY)], rows))
    (file,) = _files(table)
    metadata = pq.ParquetFile(file).metadata
    assert metadata.num_row_groups == 10
    first = rows_at(config, ORDERS, "2024-02-01", limit=150)
    # From the fourth row group on, the file is damaged.
    begin = metadata.row_group(3).column(0).dictionary_page_offset or 0
    end = metadata.row_group(9).column(0).file_offset or file.stat().st_size - 8_000
    content = bytearray(file.read_bytes())
    assert 0 < begin < end
    content[begin : begin + 400] = b"\xff" * 400
    file.write_bytes(bytes(content))

    # Its keys are greater than those that the page already has.
    assert rows_at(config, ORDERS, "2024-02-01", limit=150) == first
    with pytest.raises(LakeError, match="cannot be read"):
        rows_at(config, ORDERS, "2024-02-01", limit=500)


def test_columns_that_were_renamed_and_widened_are_read_by_what_they_are(
    config: LakeConfig, make: Make
) -> None:
    table = make(ORDERS, ["id:INT", "f:FLOAT", "gone:STRING"], [(1, 1.5, "x")], declared=False)
    with table.update_schema() as update:
        update.update_column("id", LongType())
        update.update_column("f", DoubleType())
        update.rename_column("f", "id of old")
        update.delete_column("gone")
    with table.update_schema() as update:
        update.add_column("gone", StringType())
    table.append(
        pa.table({"id": pa.array([2**40]), "id of old": pa.array([0.1]), "gone": pa.array(["new"])})
    )

    rows = sorted(rows_at(config, ORDERS, None).rows, key=lambda row: str(row["id"]))

    assert rows == [
        {"id": 1, "id of old": 1.5, "gone": None},
        {"id": 2**40, "id of old": 0.1, "gone": "new"},
    ]


def test_whole_rows_are_read_in_the_order_of_the_given_positions(
    config: LakeConfig, make: Make
) -> None:
    make(ORDERS, ["id*:INT", "v:STRING"], *([(n, str(n)), (n + 10, str(n))] for n in range(4)))
    stored = StoredRows(look_up(config, ORDERS))
    found = pa.concat_tables(list(stored.batches(["id"], AlwaysTrue())))
    places = {row["id"]: Place(row[FILE], row[ROW]) for row in found.to_pylist()}

    rows = stored.rows([places[13], places[0], places[13], places[2]])

    assert rows.to_pylist() == [
        {"id": 13, "v": "3"},
        {"id": 0, "v": "0"},
        {"id": 13, "v": "3"},
        {"id": 2, "v": "2"},
    ]
    assert stored.rows([]).num_rows == 0
    assert stored.rows([]).column_names == ["id", "v"]


def test_a_table_without_rows_has_empty_results(config: LakeConfig, make: Make) -> None:
    make(ORDERS, ["id*:INT"])
    stored = StoredRows(look_up(config, ORDERS))

    assert list(stored.batches(["id"], EqualTo("id", 1))) == []
    page = rows_at(config, ORDERS, "2024-01-01")
    assert (page.rows, page.next, page.snapshot_at) == ((), None, None)
    both = differences(config, ORDERS, "2024-01-01", "2024-01-02")
    assert (both.records, both.inserted, both.changed, both.deleted) == ((), 0, 0, 0)
    found = read_activity(config, ORDERS)
    assert (found.first_micros, found.last_micros, found.buckets) == (None, None, ())


def test_an_old_snapshot_knows_only_its_files(config: LakeConfig, make: Make) -> None:
    table = make(ORDERS, ["id*:INT"], [(1,)], [(2,)])
    first = table.metadata.snapshots[0].snapshot_id
    found = look_up(config, ORDERS)

    def ids(stored: StoredRows, **only: StoredRows) -> Iterator[int]:
        for rows in stored.batches(["id"], AlwaysTrue(), **only):
            yield from rows["id"].to_pylist()

    old, new = StoredRows(found, first), StoredRows(found)
    assert list(ids(old)) == [1]
    assert sorted(ids(new)) == [1, 2]
    assert list(ids(new, excluding=old)) == [2]
    assert list(ids(old, excluding=new)) == []


def test_nothing_here_needs_spark() -> None:
    ask = (
        "import importlib, pkgutil, sys; from chronolake import inspect; "
        "modules = pkgutil.iter_modules(inspect.__path__, 'chronolake.inspect.'); "
        "assert len([importlib.import_module(module.name) for module in modules]) > 5; "
        "print([name for name in ('pyspark', 'py4j') if name in sys.modules])"
    )

    reported = subprocess.run(
        [sys.executable, "-c", ask], capture_output=True, text=True, check=True
    )

    assert reported.stdout.strip() == "[]"
