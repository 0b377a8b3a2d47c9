"""Time travel: a table's rows at a time, page by page, ordered by key.

`read_activity` returns a table's activity, and `differences` what differs between two times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chronolake.formatting import Cell, cells, instant
from chronolake.inspect.activity import Activity, Bucket, read_activity
from chronolake.inspect.as_of import epsilon_of, known_since, publication_at, publications, valid_at
from chronolake.inspect.catalog import CatalogTable, look_up
from chronolake.inspect.diff import DifferencePage, RecordDifference, differences
from chronolake.inspect.keyset import (
    FirstRows,
    Order,
    at_least,
    at_most,
    decode_cursor,
    encode_cursor,
)
from chronolake.inspect.scan import FILE, ROW, Place, StoredRows
from chronolake.instants import micros_or_now
from chronolake.types import START, Column, Mode, TableName

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression

    from chronolake.config import LakeConfig
    from chronolake.inspect.keyset import Position

__all__ = [
    "Activity",
    "Bucket",
    "DifferencePage",
    "RecordDifference",
    "RowsAt",
    "differences",
    "read_activity",
    "rows_at",
]


@dataclass(frozen=True)
class RowsAt:
    """A page of the rows that a table had at a time.

    Attributes:
        mode: its mode.
        at: the time, as an ISO instant.
        columns: the table's present columns, in table order.
        key: the columns that identify records, and by which rows are ordered.
        rows: the page's rows, with all columns by name.
        next: the cursor of the next page, for `rows_at`; None on the last page.
        snapshot_at: for tables without history, the publish time of the snapshot that was read.
            None in history mode, and for a table without any write.
        known_since: see `Life.known_since`.
    """

    name: TableName
    mode: Mode
    at: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    rows: tuple[dict[str, Cell], ...]
    next: str | None
    snapshot_at: str | None
    known_since: str | None = None


def rows_at(
    config: LakeConfig,
    name: TableName,
    at: str | None,
    *,
    after: str | None = None,
    limit: int = 50,
) -> RowsAt:
    """Return a page of the rows that a table had at a time.

    For a history table these are the versions with start <= time < end + epsilon, as in
    `LakeTable.as_of`; for other tables, the rows of the newest snapshot that had been published at
    that time. Rows without a key are paged as they are stored.

    Args:
        config: the lake.
        name: the table.
        at: a time in ISO 8601, in UTC by default; None: now.
        after: `next` of the previous page; None: the first page.
        limit: the maximum number of rows, at least one.

    Raises:
        LakeError: the lake does not exist, or cannot be read.
        TableNotFoundError: the table does not exist.
        ValueRefusedError: `at` is not a valid time, or the snapshot of that time is no longer
            retained; `after` is not a cursor of this table.
    """
    found = look_up(config, name)
    micros = micros_or_now(at, table=str(name))
    order, limit = _order(found), max(1, limit)
    start = None if after is None else decode_cursor(order, after)
    snapshot_at = None
    if found.mode is Mode.HISTORY:
        stored, condition = StoredRows(found), valid_at(micros, epsilon_of(found))
    else:
        published = publications(found)
        snapshot = published[-1] if at is None and published else publication_at(found, micros)
        stored = StoredRows(found, snapshot.snapshot_id if snapshot else None)
        condition = None
        snapshot_at = instant(snapshot.at_micros) if snapshot else None
    keys = _read_first_keys(found, stored, condition, start, limit)
    rows = () if keys is None else to_records(stored.rows(_places(keys.slice(0, limit))))
    is_more = keys is not None and keys.num_rows > limit
    return RowsAt(
        name=name,
        mode=found.mode,
        at=instant(micros),
        columns=found.columns,
        key=found.key,
        rows=rows,
        next=encode_cursor(order, order.position(keys, limit - 1))
        if keys is not None and is_more
        else None,
        snapshot_at=snapshot_at,
        known_since=known_since(found),
    )


def _order_columns(table: CatalogTable) -> tuple[Column, ...]:
    """Return the key columns, and in history mode the start: two versions may be true at once."""
    by_name = {column.name: column for column in table.columns}
    names = (*table.key, START) if table.mode is Mode.HISTORY else table.key
    return tuple(by_name[name] for name in names)


def _order(table: CatalogTable) -> Order:
    # A row's place changes when maintenance rewrites its file: a key does not.
    return Order(table.name, _order_columns(table), by_place=not table.key)


def _read_first_keys(
    table: CatalogTable,
    stored: StoredRows,
    condition: BooleanExpression | None,
    after: Position | None,
    limit: int,
) -> pa.Table | None:
    """Return the sorted keys of the page's rows and of one more; None if there are no rows."""
    from pyiceberg.expressions import AlwaysTrue, And  # noqa: PLC0415 - slow to import

    by, order = _order_columns(table), _order(table)
    names = [column.name for column in by]
    first_rows = FirstRows(order, limit + 1)
    wanted: BooleanExpression = AlwaysTrue() if condition is None else condition
    if after is not None and by and (begin := at_least(by[0], after[0])) is not None:
        wanted = And(wanted, begin)

    def narrow() -> BooleanExpression | None:
        if not (by and first_rows.is_full and first_rows.keys is not None):
            return None
        return at_most(by[0], first_rows.keys[0][-1].as_py())

    for rows in stored.batches(names, wanted, narrow=narrow):
        keys = order.of(rows)
        for place in (FILE, ROW):
            if place not in keys.column_names:
                keys = keys.append_column(place, rows[place])
        if after is not None:
            keys = keys.filter(_as_mask(order, keys, after))
        if keys.num_rows:
            first_rows.add(keys)
    return first_rows.keys


def _as_mask(order: Order, keys: pa.Table, after: Position) -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415 - with the scan that needs it

    return pa.array(order.are_after(keys, after))


def _places(keys: pa.Table) -> list[Place]:
    return [
        Place(file, row)
        for file, row in zip(keys[FILE].to_pylist(), keys[ROW].to_pylist(), strict=True)
    ]


def to_records(rows: pa.Table) -> tuple[dict[str, Cell], ...]:
    """Return rows as cells by column."""
    columns = [(name, cells(rows[place])) for place, name in enumerate(rows.column_names)]
    return tuple(
        {name: values[number] for name, values in columns} for number in range(rows.num_rows)
    )
