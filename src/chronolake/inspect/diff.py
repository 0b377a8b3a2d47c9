"""Differences between two times of a table, record by record.

Rows are compared by fingerprints, so that whole rows need not be kept in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from secrets import token_bytes
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronolake.errors import BatchError, ValueRefusedError
from chronolake.formatting import Cell, cells, instant
from chronolake.inspect.as_of import (
    ending_after,
    epsilon_of,
    known_since,
    publication_at,
    started_by,
    valid_at,
)
from chronolake.inspect.catalog import CatalogTable, look_up
from chronolake.inspect.keyset import Order, decode_cursor, encode_cursor, to_comparable
from chronolake.inspect.scan import FILE, ROW, Place, StoredRows
from chronolake.instants import micros_or_now
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
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.uint64]
    from collections.abc import Iterator

    from pyiceberg.expressions import BooleanExpression

    from chronolake.config import LakeConfig
    from chronolake.inspect.keyset import Position


_NULL: Final = np.uint64(0x9E37_79B9_7F4A_7C15)
_FIRST: Final = np.uint64(0xBF58_476D_1CE4_E5B9)
_SECOND: Final = np.uint64(0x94D0_49BB_1331_11EB)


class Fingerprints:
    """Fingerprints of rows, comparable with each other only if their secret is the same.

    Two different rows have the same fingerprint with a probability of 2**-64. The writer of the
    rows cannot construct such rows without knowing the secret.

    Args:
        secret: 16 random bytes.
    """

    def __init__(self, secret: bytes) -> None:
        self._text_key = secret.hex()[:16]
        self._start = np.uint64(int.from_bytes(secret[:8]))
        self._factor = np.uint64(int.from_bytes(secret[8:]) | 1)

    def of(self, columns: Sequence[pa.ChunkedArray]) -> pa.Array:
        """Return a fingerprint for each row of some columns, in their order.

        Rows have equal fingerprints if all cells are equal. All NaN are equal, and so are both
        zeros.
        """
        count = len(columns[0]) if columns else 0
        marks = np.full(count, self._start, np.uint64)
        for column in columns:
            marks = _mix(marks * self._factor + self._hash_values(to_comparable(column)))
        return pa.array(marks)

    def _hash_values(self, values: pa.ChunkedArray) -> Numbers:
        is_null = np.asarray(values.is_null())
        kind = values.type
        if pa.types.is_integer(kind):
            numbers = np.asarray(pc.fill_null(values, 0)).astype(np.int64).view(np.uint64)
        else:
            numbers = self._hash_texts(values)
        numbers = _mix(numbers ^ self._start)
        return np.where(is_null, _NULL, numbers)

    def _hash_texts(self, values: pa.ChunkedArray) -> Numbers:
        from pandas.util import hash_array  # noqa: PLC0415 - slow to import

        kind = values.type
        if pa.types.is_decimal(kind):
            values = values.cast(pa.string())
        elif not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
            texts = [repr(value) for value in values.to_pylist()]
            values = pa.chunked_array([pa.array(texts, pa.string())])
        empty = b"" if pa.types.is_binary(values.type) else ""
        objects = np.asarray(pc.fill_null(values, empty).to_numpy(), object)
        return np.asarray(hash_array(objects, hash_key=self._text_key, categorize=False))


def _mix(numbers: Numbers) -> Numbers:
    """Apply a bijection in which each bit depends on all others."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _FIRST
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _SECOND
    return numbers ^ (numbers >> np.uint64(31))


INSERTED: Final = "inserted"
CHANGED: Final = "changed"
DELETED: Final = "deleted"

#: Up to this many rows are kept in memory at a time: about 60 bytes and the key of each.
_MAX_ROWS: Final = 4_000_000
_MAX_PARTS: Final = 1_024

#: Columns that are not compared.
_NOT_COMPARED: Final = {*HISTORY_COLUMNS, SYNCED, VERSION, HASH}


@dataclass(frozen=True)
class RecordDifference:
    """A record that differs between two times.

    Attributes:
        key: its key.
        change: `inserted`, `changed` or `deleted`.
        old: its values at the earlier time; None if it did not exist.
        new: its values at the later time; None if it did not exist.
        columns: the columns that differ, if the record existed at both times.
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
        before: the earlier time, as an ISO instant.
        after: the later time, as an ISO instant.
        records: the records of the page, ordered by key.
        next: the cursor of the next page, for `differences`; None on the last page.
        inserted: how many records exist only at the later time, on all pages.
        changed: how many records have other values, on all pages.
        deleted: how many records existed only at the earlier time, on all pages.
        columns: the table's columns.
        known_since: see `Life.known_since`.
    """

    name: TableName
    before: str
    after: str
    records: tuple[RecordDifference, ...]
    next: str | None
    inserted: int
    changed: int
    deleted: int
    columns: tuple[Column, ...]
    known_since: str | None


def differences(
    config: LakeConfig,
    name: TableName,
    before: str,
    after: str,
    *,
    page: str | None = None,
    limit: int = 50,
) -> DifferencePage:
    """Return a page of the records that differ between two times, as in `LakeTable.diff`.

    If `rows_at` returns two versions of a record at a time, because it was deleted and inserted
    again within epsilon, the later one is used.

    Records are compared by their values, without `_fivetran_synced`, `_chronolake_version` and the
    history columns. For tables without history, the snapshots that were current at the two times
    are compared. The keys and fingerprints of rows that differ are loaded into memory, up to some
    millions at a time. Whole rows are only loaded for the page.

    Args:
        config: the lake.
        name: the table.
        before: a time in ISO 8601, in UTC by default.
        after: a later time.
        page: `next` of the previous page; None: the first page.
        limit: the maximum number of records, at least one.

    Raises:
        LakeError: the lake does not exist, or cannot be read.
        TableNotFoundError: the table does not exist.
        BatchError: the table has no key.
        ValueRefusedError: a text is not a valid time, or the snapshot of that time is no longer
            retained; the first time is after the second; `page` is not a cursor of this table.
    """
    found = look_up(config, name)
    first, second = (micros_or_now(text, table=str(name)) for text in (before, after))
    if first > second:
        raise ValueRefusedError(
            f"{instant(first)} is after {instant(second)}.",
            table=str(name),
            hint="Pass the earlier time first.",
        )
    if not found.key:
        raise BatchError(
            "The table has no primary key, so its records cannot be identified.",
            table=str(name),
            hint="Add a primary key with AlterTable.",
        )
    by_name = {column.name: column for column in found.columns}
    order = Order(name, tuple(by_name[column] for column in found.key), by_place=False)
    limit = max(1, limit)
    begin = None if page is None else decode_cursor(order, page)
    old, new = _both_sides(found, first, second)
    builder = _PageBuilder(order, begin, limit)
    for rows in _DifferenceReader(found, order, (old, new)).read_parts():
        builder.add(rows)
    return DifferencePage(
        name=name,
        before=instant(first),
        after=instant(second),
        records=_records(found, old, new, builder.places),
        next=builder.next,
        inserted=builder.counts[INSERTED],
        changed=builder.counts[CHANGED],
        deleted=builder.counts[DELETED],
        columns=tuple(found.columns),
        known_since=known_since(found),
    )


@dataclass(frozen=True)
class _Side:
    """The rows at one of two times, without most of those that exist at both."""

    stored: StoredRows
    condition: BooleanExpression
    excluding: StoredRows | None = None

    def batches(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        return self.stored.batches(columns, self.condition, excluding=self.excluding)


def _both_sides(table: CatalogTable, first: int, second: int) -> tuple[_Side, _Side]:
    from pyiceberg.expressions import AlwaysTrue, And, Not, Or  # noqa: PLC0415 - slow to import

    if table.mode is Mode.HISTORY:
        # Versions that are true at both times do not differ. But a version is true for epsilon
        # after its end, and if its record was inserted again meanwhile, two versions are true: the
        # later one counts. So versions that end before the second time or began just before the
        # first one are compared.
        stored, epsilon = StoredRows(table), epsilon_of(table)
        near = Or(Not(ending_after(second)), Not(started_by(first - epsilon)))
        return (
            _Side(stored, And(valid_at(first, epsilon), near)),
            _Side(stored, And(valid_at(second, epsilon), near)),
        )
    snapshots = [publication_at(table, micros) for micros in (first, second)]
    old, new = (
        StoredRows(table, snapshot.snapshot_id if snapshot else None) for snapshot in snapshots
    )
    # Files of both snapshots contain the same rows: only files that differ are read.
    return _Side(old, AlwaysTrue(), excluding=new), _Side(new, AlwaysTrue(), excluding=old)


class _DifferenceReader:
    """Keys and fingerprints of the rows that may differ, one part of the keys at a time.

    There is one part unless there are more rows than fit into memory. The number of parts is then
    doubled until they fit, and all rows are read once for each part.
    """

    def __init__(self, table: CatalogTable, order: Order, sides: tuple[_Side, _Side]) -> None:
        self._table = table
        self._order = order
        self._sides = sides
        self._marks = Fingerprints(token_bytes(16))
        self._compared = [
            column.name for column in table.columns if column.name not in _NOT_COMPARED
        ]
        self._parts = 1

    def read_parts(self) -> Iterator[pa.Table]:
        """Return rows ordered by key, side and start; the rows of a record are all in one part."""
        part = 0
        while part < self._parts:
            rows = self._read_part(part)
            keys = [(name, "ascending", "at_start") for name in (*self._order.names, "side", "at")]
            yield rows.take(pc.sort_indices(rows, sort_keys=keys)).combine_chunks()
            part += 1

    def _read_part(self, part: int) -> pa.Table:
        kinds = [*self._order.comparable_types, *[pa.int64()] * 4, pa.uint64()]
        names = [*self._order.names, "side", "at", FILE, ROW, "mark"]
        schema = pa.schema(zip(names, kinds, strict=True))
        kept = schema.empty_table()
        is_history = self._table.mode is Mode.HISTORY
        columns = [*self._compared, *([START] if is_history else [])]
        for side, rows_of_side in enumerate(self._sides):
            for rows in rows_of_side.batches(columns):
                known = pa.table(
                    [
                        *self._order.of(rows).columns,
                        pa.array(np.full(rows.num_rows, side)),
                        to_comparable(rows[START]) if is_history else rows[ROW],
                        rows[FILE],
                        rows[ROW],
                        self._marks.of([rows[name] for name in self._compared]),
                    ],
                    schema=schema,
                )
                kept = pa.concat_tables([kept, self._filter_part(known, part)])
                while part == 0 and kept.num_rows > _MAX_ROWS and self._parts < _MAX_PARTS:
                    self._parts *= 2
                    kept = self._filter_part(kept, part)
        return kept

    def _filter_part(self, rows: pa.Table, part: int) -> pa.Table:
        if self._parts == 1:
            return rows
        marks = self._marks.of([rows[name] for name in self._order.names])
        return rows.filter(pa.array(np.asarray(marks) % np.uint64(self._parts) == part))


class _PageBuilder:
    """Counts of all records that differ, and the first of them from a page's begin on."""

    def __init__(self, order: Order, begin: Position | None, limit: int) -> None:
        self.counts = dict.fromkeys((INSERTED, CHANGED, DELETED), 0)
        self._order = order
        self._begin = begin
        self._limit = limit
        self._first: pa.Table | None = None

    def add(self, rows: pa.Table) -> None:
        """Compare further records, each with all of its rows."""
        old, new = self._last_rows(rows)
        marks = np.asarray(rows["mark"])
        is_both = (old >= 0) & (new >= 0)
        differs = ~is_both if not len(marks) else ~(is_both & (marks[old] == marks[new]))
        old, new = old[differs], new[differs]
        inserted, deleted = int((old < 0).sum()), int((new < 0).sum())
        self.counts[INSERTED] += inserted
        self.counts[DELETED] += deleted
        self.counts[CHANGED] += len(old) - inserted - deleted
        keys = rows.select(self._order.names).take(pa.array(np.where(old < 0, new, old)))
        selected = np.arange(len(old))
        if self._begin is not None:
            selected = selected[self._order.are_after(keys, self._begin)]
        selected = selected[: self._limit + 1]
        first = keys.take(pa.array(selected))
        for name, places in (("old", old[selected]), ("new", new[selected])):
            there = pa.array(places, mask=places < 0)
            for place in (FILE, ROW):
                first = first.append_column(f"{name}{place}", rows[place].take(there))
        if self._first is not None:
            first = pa.concat_tables([self._first, first])
        self._first = first.take(self._order.indices(first)[: self._limit + 1])

    def _last_rows(self, rows: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the index of each record's last row on either side, or -1."""
        if not rows.num_rows:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        is_same = np.ones(rows.num_rows - 1, np.bool_)
        for name in self._order.names:
            here, there = rows[name][1:], rows[name][:-1]
            are_null = pc.and_(here.is_null(), there.is_null())
            equal = pc.fill_null(pc.equal(here, there), False)
            is_same &= np.asarray(pc.or_(equal, are_null))
        record = np.concatenate([[0], np.cumsum(~is_same)])
        found = []
        for side in (0, 1):
            last = np.full(record[-1] + 1, -1, np.int64)
            places = np.flatnonzero(np.asarray(rows["side"]) == side)
            last[record[places]] = places
            found.append(last)
        return found[0], found[1]

    @property
    def next(self) -> str | None:
        """Return the cursor of the next page, or None."""
        if self._first is None or self._first.num_rows <= self._limit:
            return None
        return encode_cursor(self._order, self._order.position(self._first, self._limit - 1))

    @property
    def places(self) -> list[tuple[Place | None, Place | None]]:
        """Return the places of the page's records at the earlier and the later time."""
        if self._first is None:
            return []
        first = self._first.slice(0, self._limit)
        columns = [first[f"{side}{place}"] for side in ("old", "new") for place in (FILE, ROW)]
        return [
            (
                None if row[0] is None else Place(row[0], row[1]),
                None if row[2] is None else Place(row[2], row[3]),
            )
            for row in zip(*(column.to_pylist() for column in columns), strict=True)
        ]


def _records(
    table: CatalogTable,
    old: _Side,
    new: _Side,
    places: Sequence[tuple[Place | None, Place | None]],
) -> tuple[RecordDifference, ...]:
    before = iter(_read_rows(table, old, [place for place, _ in places if place is not None]))
    after = iter(_read_rows(table, new, [place for _, place in places if place is not None]))
    records = []
    for old_place, new_place in places:
        old_row = None if old_place is None else next(before)
        new_row = None if new_place is None else next(after)
        if old_row is None:
            records.append(RecordDifference(_key(table, new_row), INSERTED, None, new_row, ()))
        elif new_row is None:
            records.append(RecordDifference(_key(table, old_row), DELETED, old_row, None, ()))
        else:
            differ = tuple(name for name in old_row if not _is_same(old_row[name], new_row[name]))
            records.append(
                RecordDifference(_key(table, new_row), CHANGED, old_row, new_row, differ)
            )
    return tuple(records)


def _read_rows(table: CatalogTable, side: _Side, places: Sequence[Place]) -> list[dict[str, Cell]]:
    """Return whole rows, without the columns that are not compared."""
    rows = side.stored.rows(places)
    columns: list[tuple[Column, list[Cell]]] = [
        (column, cells(rows[place]))
        for place, column in enumerate(table.columns)
        if column.name not in _NOT_COMPARED
    ]
    return [
        {column.name: values[number] for column, values in columns} for number in range(len(places))
    ]


def _key(table: CatalogTable, row: dict[str, Cell] | None) -> dict[str, Cell]:
    # Both zeros are the same key.
    return {
        name: 0.0 if isinstance(value, float) and value == 0 else value
        for name, value in (row or {}).items()
        if name in table.key
    }


def _is_same(old: Cell, new: Cell) -> bool:
    return old == new and type(old) is type(new)
