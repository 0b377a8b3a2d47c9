"""What differs between two times of a table, record by record."""

from __future__ import annotations

from dataclasses import dataclass
from secrets import token_bytes
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronolake.cells import Cell, cells, instant
from chronolake.errors import BatchError, ValueRefusedError
from chronolake.look.catalog import LookedUp, look_up
from chronolake.look.fingerprints import Fingerprints
from chronolake.look.moments import asked_or_now, current_at, epsilon_of, since, until
from chronolake.look.order import Order, comparable, cursor, position_of
from chronolake.look.stored import FILE, ROW, Place, StoredRows
from chronolake.types import (
    HASH,
    HISTORY_COLUMNS,
    START,
    SYNCED,
    VERSION,
    Column,
    Mode,
    TableName,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from pyiceberg.expressions import BooleanExpression

    from chronolake.config import LakeConfig

INSERTED: Final = "inserted"
CHANGED: Final = "changed"
DELETED: Final = "deleted"

#: What counts not as a difference.
_NOT_COMPARED: Final = {*HISTORY_COLUMNS, SYNCED, VERSION, HASH}


@dataclass(frozen=True)
class RecordDifference:
    """A record that differs between two times.

    Attributes:
        key: its key.
        change: `inserted`, `changed` or `deleted`.
        old: what it said at the earlier time; None if there was no such record.
        new: what it said at the later time; None if there was none.
        columns: those that differ, of a record that there was at both times.
    """

    key: dict[str, Cell]
    change: str
    old: dict[str, Cell] | None
    new: dict[str, Cell] | None
    columns: tuple[str, ...]


@dataclass(frozen=True)
class DifferencePage:
    """A page of the records that differ between two times.

    Attributes:
        name: the table.
        before: the earlier time, as an ISO instant.
        after: the later one.
        records: those of the page, by key.
        next: where the next page begins, as `differences` takes it; None: there is none.
        inserted: how many records there are at the later time only, on all pages.
        changed: how many say something else, on all pages.
        deleted: how many there were at the earlier time only, on all pages.
    """

    name: TableName
    before: str
    after: str
    records: tuple[RecordDifference, ...]
    next: str | None
    inserted: int
    changed: int
    deleted: int


def differences(
    config: LakeConfig,
    name: TableName,
    before: str,
    after: str,
    *,
    page: str | None = None,
    limit: int = 50,
) -> DifferencePage:
    """A page of the records that differ between two times, as `LakeTable.diff` gives them.

    Records count as different by their values: `_fivetran_synced`, `_chronolake_version` and the
    history columns do not. Of tables without history, the snapshots that were current at the two
    times are compared. Keys and fingerprints of all rows that differ come into memory, some tens of
    bytes each; whole rows only of the page.

    Args:
        config: the lake.
        name: the table.
        before: a time in ISO 8601, in UTC unless it says otherwise.
        after: a later one.
        page: `next` of the page before; None: the first page.
        limit: at most so many records.

    Raises:
        LakeError: there is no lake, or it cannot be read.
        TableNotFoundError: there is no such table.
        BatchError: the table has no key.
        ValueRefusedError: a text is no time, or one whose snapshot is no longer kept; the first
            time is after the second; `page` is no cursor of this table.
    """
    found = look_up(config, name)
    first, second = (asked_or_now(text, table=str(name)) for text in (before, after))
    if first > second:
        raise ValueRefusedError(
            f"{instant(first)} is after {instant(second)}.",
            table=str(name),
            hint="Give the earlier time first.",
        )
    if not found.key:
        raise BatchError(
            "The table has no primary key, so its records cannot be told apart.",
            table=str(name),
            hint="Give it a key with AlterTable.",
        )
    by_name = {column.name: column for column in found.columns}
    order = Order(tuple(by_name[name].type.arrow for name in found.key), by_place=False)
    begin = None if page is None else position_of(order, page, table=str(name))
    old, new = _sides(found, first, second)
    compared = _Compared(found, order, old, new)
    counts = compared.counts()
    keys, places = compared.page(begin, limit)
    return DifferencePage(
        name=name,
        before=instant(first),
        after=instant(second),
        records=_records(found, old, new, places[:limit]),
        next=cursor(order.position(keys, limit - 1)) if len(places) > limit else None,
        inserted=counts[INSERTED],
        changed=counts[CHANGED],
        deleted=counts[DELETED],
    )


@dataclass(frozen=True)
class _Side:
    """The rows that there were at one of two times only."""

    stored: StoredRows
    condition: BooleanExpression
    only_here: StoredRows | None = None

    def batches(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        return self.stored.batches(columns, self.condition, only_here=self.only_here)


def _sides(found: LookedUp, first: int, second: int) -> tuple[_Side, _Side]:
    from pyiceberg.expressions import AlwaysTrue, And, Not  # noqa: PLC0415 - slow to import

    if found.mode is Mode.HISTORY:
        # What was true at both times is no difference. One that was true at the first time began
        # before the second, too: it is not true then if it has ended.
        stored, epsilon = StoredRows(found), epsilon_of(found)
        ended, began = Not(until(second - epsilon)), Not(since(first))
        return (
            _Side(stored, And(since(first), And(until(first - epsilon), ended))),
            _Side(stored, And(since(second), And(until(second - epsilon), began))),
        )
    snapshots = [current_at(found, micros) for micros in (first, second)]
    old, new = (StoredRows(found, one.snapshot_id if one else None) for one in snapshots)
    # Files that both snapshots have hold the same rows: only what differs is read.
    return _Side(old, AlwaysTrue(), only_here=new), _Side(new, AlwaysTrue(), only_here=old)


class _Compared:
    """All records that differ, by key: what is known of them without their values."""

    def __init__(self, found: LookedUp, order: Order, old: _Side, new: _Side) -> None:
        self._order = order
        fingerprints = Fingerprints(token_bytes(16))
        rows = [_known(found, order, side, fingerprints) for side in (old, new)]
        sides = np.repeat([0, 1], [one.num_rows for one in rows])
        self._rows = pa.concat_tables(rows).append_column("side", pa.array(sides))
        indices = pc.sort_indices(
            self._rows,
            sort_keys=[(name, "ascending", "at_start") for name in (*order.names, "side", "start")],
        )
        self._rows = self._rows.take(indices).combine_chunks()
        # The last row of a side speaks for it, should there be several.
        self._old, self._new = self._last_of_each()
        marks = np.asarray(self._rows["fingerprint"])
        is_both = (self._old >= 0) & (self._new >= 0)
        differs = ~(is_both & (marks[self._old] == marks[self._new]))
        self._old, self._new = self._old[differs], self._new[differs]

    def _last_of_each(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of each record its row of either side, or -1."""
        count = self._rows.num_rows
        if not count:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        is_same = np.ones(count - 1, np.bool_)
        for name in self._order.names:
            column = self._rows[name]
            here, there = column[1:], column[:-1]
            are_null = pc.and_(here.is_null(), there.is_null())
            equal = pc.fill_null(pc.equal(here, there), False)
            is_same &= np.asarray(pc.or_(equal, are_null))
        record = np.concatenate([[0], np.cumsum(~is_same)])
        found = []
        for side in (0, 1):
            rows = np.full(record[-1] + 1, -1, np.int64)
            places = np.flatnonzero(np.asarray(self._rows["side"]) == side)
            rows[record[places]] = places
            found.append(rows)
        return found[0], found[1]

    def counts(self) -> dict[str, int]:
        """How many records there are of each change."""
        inserted, deleted = int((self._old < 0).sum()), int((self._new < 0).sum())
        changed = len(self._old) - inserted - deleted
        return {INSERTED: inserted, CHANGED: changed, DELETED: deleted}

    def page(
        self, begin: tuple[Any, ...] | None, limit: int
    ) -> tuple[pa.Table, list[tuple[Place | None, Place | None]]]:
        """The keys of a page's records and of one more, and where their rows stand."""
        either = np.where(self._old < 0, self._new, self._old)
        keys = self._rows.select(self._order.names).take(pa.array(either))
        wanted = np.arange(len(either))
        if begin is not None:
            wanted = wanted[self._order.are_after(keys, begin)]
        wanted = wanted[: limit + 1]
        places = [
            (self._place(self._old[number]), self._place(self._new[number])) for number in wanted
        ]
        return keys.take(pa.array(wanted)), places

    def _place(self, row: int) -> Place | None:
        if row < 0:
            return None
        return Place(self._rows[FILE][int(row)].as_py(), self._rows[ROW][int(row)].as_py())


def _known(found: LookedUp, order: Order, side: _Side, fingerprints: Fingerprints) -> pa.Table:
    """A side's rows: their keys, starts, places, and a fingerprint of what they say."""
    compared = [column.name for column in found.columns if column.name not in _NOT_COMPARED]
    is_history = found.mode is Mode.HISTORY
    kinds = [*order.comparable_kinds, pa.int64(), pa.int64(), pa.int64(), pa.uint64()]
    names = [*order.names, "start", FILE, ROW, "fingerprint"]
    made = [pa.schema(zip(names, kinds, strict=True)).empty_table()]
    for rows in side.batches([*compared, *([START] if is_history else [])]):
        start = comparable(rows[START]) if is_history else rows[ROW]
        marks = fingerprints.of([rows[name] for name in compared])
        keys = [comparable(rows[name]) for name in found.key]
        made.append(pa.table([*keys, start, rows[FILE], rows[ROW], marks], names))
    return pa.concat_tables(made)


def _records(
    found: LookedUp,
    old: _Side,
    new: _Side,
    places: Sequence[tuple[Place | None, Place | None]],
) -> tuple[RecordDifference, ...]:
    before = iter(_whole(found, old, [one for one, _ in places if one is not None]))
    after = iter(_whole(found, new, [one for _, one in places if one is not None]))
    records = []
    for one, other in places:
        was = None if one is None else next(before)
        now = None if other is None else next(after)
        if was is None:
            records.append(RecordDifference(_key(found, now), INSERTED, None, now, ()))
        elif now is None:
            records.append(RecordDifference(_key(found, was), DELETED, was, None, ()))
        else:
            differ = tuple(name for name in was if not _is_same(was[name], now[name]))
            records.append(RecordDifference(_key(found, now), CHANGED, was, now, differ))
    return tuple(records)


def _whole(found: LookedUp, side: _Side, places: Sequence[Place]) -> list[dict[str, Cell]]:
    """Whole rows, without what counts not as a difference."""
    rows = side.stored.rows(places)
    columns: list[tuple[Column, list[Cell]]] = [
        (column, cells(rows[place]))
        for place, column in enumerate(found.columns)
        if column.name not in _NOT_COMPARED
    ]
    return [
        {column.name: values[number] for column, values in columns} for number in range(len(places))
    ]


def _key(found: LookedUp, row: dict[str, Cell] | None) -> dict[str, Cell]:
    # Both zeros are one key.
    return {
        name: 0.0 if isinstance(value, float) and value == 0 else value
        for name, value in (row or {}).items()
        if name in found.key
    }


def _is_same(old: Cell, new: Cell) -> bool:
    return old == new and type(old) is type(new)
