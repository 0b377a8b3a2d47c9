"""The expected contents of tables, computed in plain Python.

The rules are those of the guides, as `specs/partner-sdk.md` interprets them (4.4 to 4.7). This
module knows nothing of files, gRPC or engines. `migration_run` has the effects of schema
migrations.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from chronolake.tester.definition import ColumnSpec, TableDefinition
from chronolake.tester.rows import Changes, FileKind, Key, Marker, Record
from chronolake.tester.values import Value, cast, cast_is_exact, parse_value, to_json
from chronolake.types import ACTIVE, END, START, SYNCED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

EPSILON_MICROS: Final = 1000

StoredRow = dict[str, Value]


class ModelRefusal(Exception):  # noqa: N818 - an expected outcome, not an error
    """The guides require the destination to reject this request and to keep the table unchanged."""


@dataclass(slots=True)
class ModelTable:
    """A table with its expected contents.

    Attributes:
        definition: all stored columns, including retained ones, with the key.
        sent: names of the columns that batches contain; other columns are retained but no longer
            synced.
        rows: the rows, in any order.
        rows_known: False for a table that existed before the run.
        inexact: columns whose values the guides do not define; they are not compared.
        ignored: the number of updates without a row to update.
    """

    name: str
    definition: TableDefinition
    sent: tuple[str, ...] = ()
    rows: list[StoredRow] = field(default_factory=list)
    rows_known: bool = True
    inexact: set[str] = field(default_factory=set)
    ignored: int = 0

    @property
    def request(self) -> TableDefinition:
        """Return the columns that a write request lists."""
        return TableDefinition(tuple(c for c in self.definition.columns if c.name in self.sent))

    def key(self, row: StoredRow) -> Key:
        """Return the row's key, without `_fivetran_start`."""
        return tuple(row.get(name) for name in self.definition.key)

    def copy(self, name: str) -> ModelTable:
        """Return an independent copy of the table under another name."""
        return replace(
            self, name=name, rows=[dict(row) for row in self.rows], inexact=set(self.inexact)
        )

    def by_key(self) -> dict[Key, list[StoredRow]]:
        """Return the rows by key."""
        found: dict[Key, list[StoredRow]] = {}
        for row in self.rows:
            found.setdefault(self.key(row), []).append(row)
        return found


class Model:
    """The tables of one schema with their expected contents."""

    def __init__(self) -> None:
        """Start without tables."""
        self.tables: dict[str, ModelTable] = {}

    def create(self, name: str, definition: TableDefinition) -> None:
        """Apply CreateTable.

        Raises:
            ModelRefusal: the table exists.
        """
        if name in self.tables:
            raise ModelRefusal(f"the table {name!r} exists")
        self.tables[name] = ModelTable(name, definition, definition.names)

    def adopt(self, name: str, definition: TableDefinition) -> None:
        """Add a table that existed before the run; its rows are unknown."""
        self.tables[name] = ModelTable(name, definition, definition.names, rows_known=False)

    def alter(self, name: str, definition: TableDefinition, *, drop_columns: bool = False) -> None:
        """Apply AlterTable: add, change and, if allowed, drop columns; keep the data.

        A column that is neither wanted nor dropped keeps its data and is removed from the key.

        Raises:
            ModelRefusal: the table does not exist, stored values do not fit a new type, or rows
                would have the same key.
        """
        table = self.table(name)
        kept: list[ColumnSpec] = []
        inexact = set(table.inexact)
        rows: list[StoredRow] = [{} for _ in table.rows]
        for column in table.definition.columns:
            target = definition.column(column.name)
            if target is None and drop_columns:
                inexact.discard(column.name)
                continue
            target = target or replace(column, key=False)
            kept.append(target)
            if not cast_is_exact(column, target):
                inexact.add(column.name)
            _cast_column(table.rows, rows, column, target)
        for column in definition.columns:
            if table.definition.column(column.name) is None:
                kept.append(column)
                if column.key and rows:
                    inexact.add(column.name)  # the guides do not define the value of old rows
                for new in rows:
                    new[column.name] = None
        changed = replace(
            table, definition=TableDefinition(tuple(kept)), sent=definition.names, rows=rows
        )
        _raise_if_duplicates(changed)
        changed.inexact = inexact
        self.tables[name] = changed

    def truncate(self, name: str, *, before_micros: int, deleted_column: str | None = None) -> int:
        """Apply Truncate to rows synced strictly before the time; a missing table is not an error.

        Args:
            name: the name of the table.
            before_micros: microseconds since the epoch.
            deleted_column: the marker to set instead of removing the rows.

        Returns:
            The number of matching rows.
        """
        table = self.tables.get(name)
        if table is None:
            return 0
        found: list[StoredRow] = []
        rest: list[StoredRow] = []
        for row in table.rows:
            synced = row.get(SYNCED)
            old = isinstance(synced, int) and synced < before_micros
            (found if old else rest).append(row)
        if deleted_column is None:
            table.rows = rest
        else:
            for row in found:
                row[deleted_column] = True
        return len(found)

    def write(self, changes: Changes) -> None:
        """Apply WriteBatch: replace files, then update files, then delete files."""
        table = self.table(changes.table)
        rows = table.by_key()
        for values in _typed_rows(changes, FileKind.UPSERT):
            found = rows.setdefault(table.key(values), [])
            if found:
                # Columns that are no longer synced keep their value.
                for row in found:
                    row.update(values)
            else:
                found.append({**dict.fromkeys(table.definition.names), **values})
        for values in _typed_rows(changes, FileKind.UPDATE):
            found = rows.get(table.key(values), [])
            table.ignored += not found
            for row in found:
                row.update(values)
        for values in _typed_rows(changes, FileKind.DELETE):
            rows.pop(table.key(values), None)
        table.rows = [row for group in rows.values() for row in group]

    def write_history(self, changes: Changes) -> None:
        """Apply WriteHistoryBatch with the algorithm of `specs/partner-sdk.md`, 4.7.3."""
        table = self.table(changes.table)
        rows = table.by_key()
        was_active = {
            key: {_micros(row, START) for row in group if row[ACTIVE]}
            for key, group in rows.items()
        }
        earliest: dict[Key, int] = {}
        incoming: dict[Key, dict[int, tuple[StoredRow, bool]]] = {}
        for kind in (FileKind.EARLIEST, FileKind.UPDATE, FileKind.UPSERT):
            for values in _typed_rows(changes, kind):
                key, start = table.key(values), _micros(values, START)
                earliest[key] = min(start, earliest.get(key, start))
                if kind is not FileKind.EARLIEST:
                    # Updates first, then replaces: the last row with the same start wins.
                    incoming.setdefault(key, {})[start] = (values, kind is FileKind.UPSERT)
        for key, begin in earliest.items():
            rows[key] = _merge_versions(table, rows.get(key, []), begin, incoming.get(key, {}))
        deletes: dict[Key, set[int]] = {}
        for values in _typed_rows(changes, FileKind.DELETE):
            deletes.setdefault(table.key(values), set()).add(_micros(values, END))
        for key, times in deletes.items():
            since = earliest.get(key)
            stored = {s for s in was_active.get(key, ()) if since is None or s < since}
            _apply_deletes(rows.get(key, []), times, stored)
        table.rows = [row for group in rows.values() for row in group]

    def table(self, name: str) -> ModelTable:
        """Return the table with this name.

        Raises:
            ModelRefusal: the table does not exist.
        """
        try:
            return self.tables[name]
        except KeyError:
            raise ModelRefusal(f"the table {name!r} does not exist") from None

    def settle_decimals(self, name: str, description: TableDefinition) -> None:
        """Adopt the precision that a destination chose for columns without a declared one."""
        table = self.table(name)
        for column in table.definition.columns:
            actual = description.column(column.name)
            if column.precision is None and actual is not None and actual.precision is not None:
                settled = replace(column, precision=actual.precision, scale=actual.scale)
                table.definition = table.definition.with_column(settled)
                for row in table.rows:
                    row[column.name] = cast(row[column.name], column, settled)

    def dump(self) -> dict[str, Any]:
        """Return the tables as JSON: columns, key and rows, which are ordered by key and start."""
        return {name: _table_json(table) for name, table in sorted(self.tables.items())}


def _table_json(table: ModelTable) -> dict[str, Any]:
    columns = table.definition.columns
    order = [*table.definition.key, *([START] if table.definition.history else [])]
    ordered = sorted(
        table.rows, key=lambda row: [(row[name] is not None, row[name]) for name in order]
    )
    rows = [{c.name: to_json(row[c.name], c.kind) for c in columns} for row in ordered]
    return {
        "columns": {column.name: column.type_name for column in columns},
        "primary_key": [column.name for column in columns if column.key],
        "retained": [name for name in table.definition.names if name not in table.sent],
        "inexact": sorted(table.inexact),
        "rows_known": table.rows_known,
        "rows": rows,
    }


def _micros(row: StoredRow, name: str) -> int:
    value = row[name]
    if not isinstance(value, int):
        raise TypeError(f"{name} must contain a time")
    return value


def _typed_rows(changes: Changes, kind: FileKind) -> Iterator[StoredRow]:
    """Yield the rows of one kind as typed values, without columns whose cell is unmodified."""
    names = set(changes.columns(kind))
    columns = [column for column in changes.definition.columns if column.name in names]
    for record in changes.of(kind):
        yield _values(record, columns)


def _values(record: Record, columns: Iterable[ColumnSpec]) -> StoredRow:
    values: StoredRow = {}
    for column in columns:
        cell = record[column.name]
        if cell is Marker.NULL:
            values[column.name] = None
        elif isinstance(cell, str):
            values[column.name] = parse_value(cell, column)
    return values


def _merge_versions(
    table: ModelTable,
    stored: list[StoredRow],
    begin: int,
    incoming: dict[int, tuple[StoredRow, bool]],
) -> list[StoredRow]:
    """Return the versions of one key after earliest, replace and update rows."""
    kept = [row for row in stored if _micros(row, START) < begin]
    removed = {_micros(row, START): row for row in stored if _micros(row, START) >= begin}
    for row in kept:
        if row[ACTIVE] or _micros(row, END) > begin - EPSILON_MICROS:
            row[ACTIVE], row[END] = False, begin - EPSILON_MICROS
    versions = {_micros(row, START): row for row in kept}
    later = sorted(start for start in removed if start not in incoming)
    for start, (values, is_complete) in sorted(incoming.items()):
        before = max((known for known in versions if known < start), default=None)
        after = next((known for known in later if known > start), None)
        base: StoredRow | None
        if is_complete:
            base = dict.fromkeys(table.definition.names)
        elif before is not None:
            base = versions[before]
        elif start in removed:
            base = removed[start]
        else:
            base = removed[after] if after is not None else None
        if base is None:
            table.ignored += 1
        else:
            versions[start] = {**base, **values}
    return list(versions.values())


def _apply_deletes(versions: list[StoredRow], times: set[int], was_active: set[int]) -> None:
    """End the versions of one key that its deletes apply to.

    Args:
        versions: the key's versions.
        times: the times of its deletes.
        was_active: the starts of stored versions that were active before the request.
    """
    by_start = {_micros(row, START): row for row in versions}
    ended = {start: _micros(row, END) for start, row in by_start.items()}
    firsts: dict[int | None, int] = {}
    for at in sorted(times):
        firsts.setdefault(max((start for start in by_start if start <= at), default=None), at)
    unmatched: list[int] = []
    for start, at in firsts.items():
        if start is None or ended[start] + EPSILON_MICROS <= at:
            unmatched.append(at)
        elif ended[start] > at:
            by_start[start][END], by_start[start][ACTIVE] = at, False
            was_active = was_active - {start}
    # A delete at a time without a valid version applies to the active version: it ends at its
    # start.
    for start in was_active:
        if any(at < start for at in unmatched):
            row = by_start[start]
            row[END], row[ACTIVE] = min(_micros(row, END), start), False


def _cast_column(
    old_rows: list[StoredRow], new_rows: list[StoredRow], column: ColumnSpec, target: ColumnSpec
) -> None:
    for old, new in zip(old_rows, new_rows, strict=True):
        try:
            new[column.name] = cast(old[column.name], column, target)
        except ValueError as failure:
            raise ModelRefusal(
                f"stored values of {column.name!r} do not fit {target.type_name}: {failure}"
            ) from None


def _raise_if_duplicates(table: ModelTable) -> None:
    if table.definition.history:
        _raise_if_overlapping(table)
        return
    names = table.definition.key
    keys = [tuple(row[name] for name in names) for row in table.rows]
    if names and len(set(keys)) < len(keys):
        raise ModelRefusal("rows would share a key")


def _raise_if_overlapping(table: ModelTable) -> None:
    if not table.definition.key:
        return
    for versions in table.by_key().values():
        ordered = sorted(versions, key=lambda row: _micros(row, START))
        for row, following in pairwise(ordered):
            if _micros(following, START) <= max(_micros(row, START), _micros(row, END)):
                raise ModelRefusal("versions of one record would overlap")
