"""Rows of batch files, created from a scenario's operations.

For tables in history mode, the sender computes the start, end and active columns within one
request: for each key, upserts and updates are ordered by `op_time`. Each starts a version, which
ends 1 ms before the next one starts; the last one is active. A delete contains its time as the end,
and nothing about earlier versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from chronolake.errors import ScenarioError
from chronolake.tester import values
from chronolake.tester.scenario import Row, RowOperation, RowStep
from chronolake.tester.values import Value, parse_value
from chronolake.types import ACTIVE, DELETED, END, START, SYNCED, TMAX_TEXT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chronolake.tester.definition import TableDefinition
    from chronolake.tester.scenario import Scenario


class Marker(Enum):
    """A cell without text: NULL or, in update files, the stored value."""

    NULL = "null"
    UNMODIFIED = "unmodified"


Cell = str | Marker
#: One row of a batch file: a cell for each of the file's columns.
Record = Mapping[str, Cell]
Key = tuple[Value, ...]


class FileKind(StrEnum):
    """The four lists of files in a write request, named as in the files' names."""

    EARLIEST = "earliest"
    UPSERT = "upsert"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Event:
    """One row of an operation, with the sync time of the operation."""

    operation: RowOperation
    row: Row
    synced: str


@dataclass(frozen=True, slots=True)
class Changes:
    """The rows of one write request for one table.

    Attributes:
        definition: the columns of the request.
        records: the rows by the kind of file, in the order of the files; kinds without rows are
            absent.
    """

    table: str
    definition: TableDefinition
    records: Mapping[FileKind, tuple[Record, ...]]

    def of(self, kind: FileKind) -> tuple[Record, ...]:
        """Return the rows of one kind of file."""
        return self.records.get(kind, ())

    def columns(self, kind: FileKind) -> tuple[str, ...]:
        """Return the columns that all rows of this kind of file have."""
        records = self.of(kind)
        return tuple(records[0]) if records else ()


def key_of(cells: Mapping[str, Cell | None], definition: TableDefinition) -> Key:
    """Return the typed key of a row that `check_rows` has accepted, without `_fivetran_start`."""
    found: list[Value] = []
    for name in definition.key:
        column, cell = definition.column(name), cells[name]
        found.append(parse_value(cell, column) if column and isinstance(cell, str) else None)
    return tuple(found)


def check_rows(scenario: Scenario, definitions: Mapping[str, TableDefinition]) -> None:
    """Raise ScenarioError if a row does not fit its table.

    Tables without a definition are skipped.

    Raises:
        ScenarioError: an unknown column, a missing key or op_time, or a value that does not fit.
            The message contains the JSON path, and never the value.
    """
    for step in scenario.steps:
        if isinstance(step, RowStep):
            for table, rows in step.tables.items():
                definition = definitions.get(table)
                if definition is not None:
                    for row in rows:
                        _check_row(row, step.operation, definition, str(scenario.path))


def _check_row(row: Row, operation: RowOperation, definition: TableDefinition, file: str) -> None:
    for name, text in row.cells.items():
        column = definition.column(name)
        if column is None:
            raise ScenarioError(
                f"{row.place}.{name}: The table has no such column.",
                hint="Declare it in create_table, or in alter_table.",
                file=file,
            )
        if text is not None:
            try:
                parse_value(text, column)
            except ValueError as failure:
                raise ScenarioError(
                    f"{row.place}.{name}: The value does not fit {column.type_name}: {failure}.",
                    hint="Use another value, or declare the column with another type.",
                    file=file,
                ) from None
    for name in definition.key:
        if row.cells.get(name) is None:
            raise ScenarioError(
                f"{row.place}: The key column {name!r} is missing.",
                hint="Set each column of primary_key in every row.",
                file=file,
            )
    if definition.history and row.op_time is None:
        raise ScenarioError(
            f"{row.place}: A row of a history table must have an op_time.",
            hint="Add op_time to the row, such as 2024-02-29T10:15:30Z.",
            file=file,
        )
    if operation is RowOperation.SOFT_DELETE and not (
        definition.history or definition.soft_deletes
    ):
        raise ScenarioError(
            f"{row.place}: The table has no {DELETED!r} column.",
            hint="Use delete, or declare the column or history_mode.",
            file=file,
        )


def upsert_record(event: Event, definition: TableDefinition) -> dict[str, Cell]:
    """Return the given values, and NULL for columns without one."""
    record = _record_of_values(event, definition, Marker.NULL)
    if definition.soft_deletes:
        record[DELETED] = event.row.cells.get(DELETED) or "false"
    return record


def update_record(event: Event, definition: TableDefinition) -> dict[str, Cell]:
    """Return the given values, and unmodified for columns without one.

    An update reverts a soft delete.
    """
    record = _record_of_values(event, definition, Marker.UNMODIFIED)
    if definition.soft_deletes:
        record[DELETED] = event.row.cells.get(DELETED) or "false"
    return record


def delete_record(event: Event, definition: TableDefinition) -> dict[str, Cell]:
    """Return the key and the sync time, and NULL for all other columns."""
    return _record_of_key(event, definition, Marker.NULL)


def soft_delete_record(event: Event, definition: TableDefinition) -> dict[str, Cell]:
    """Return the key, the sync time and a true delete marker; other columns are unmodified."""
    record = _record_of_key(event, definition, Marker.UNMODIFIED)
    record[DELETED] = "true"
    return record


def _record_of_values(event: Event, definition: TableDefinition, rest: Marker) -> dict[str, Cell]:
    record: dict[str, Cell] = {}
    for name in definition.names:
        if name in event.row.cells:
            text = event.row.cells[name]
            record[name] = Marker.NULL if text is None else text
        else:
            record[name] = event.synced if name == SYNCED else rest
    return record


def _record_of_key(event: Event, definition: TableDefinition, rest: Marker) -> dict[str, Cell]:
    record: dict[str, Cell] = dict.fromkeys(definition.names, rest)
    for name in definition.key:
        record[name] = event.row.cells[name] or ""
    record[SYNCED] = event.synced
    return record


def plain_changes(table: str, definition: TableDefinition, events: Iterable[Event]) -> Changes:
    """Return the rows of a WriteBatch, by kind of file, each in the order of the operations."""
    records: dict[FileKind, list[Record]] = {}
    for event in events:
        match event.operation:
            case RowOperation.UPSERT:
                kind, record = FileKind.UPSERT, upsert_record(event, definition)
            case RowOperation.UPDATE:
                kind, record = FileKind.UPDATE, update_record(event, definition)
            case RowOperation.SOFT_DELETE:
                kind, record = FileKind.UPDATE, soft_delete_record(event, definition)
            case RowOperation.DELETE:
                kind, record = FileKind.DELETE, delete_record(event, definition)
        records.setdefault(kind, []).append(record)
    return Changes(table, definition, freeze_records(records))


def freeze_records(
    records: Mapping[FileKind, Sequence[Record]],
) -> dict[FileKind, tuple[Record, ...]]:
    """Return the lists as tuples in the order of the request's lists, without empty ones."""
    return {kind: tuple(records[kind]) for kind in FileKind if records.get(kind)}


_BEGINNINGS: Final = frozenset({RowOperation.UPSERT, RowOperation.UPDATE})


def history_changes(table: str, definition: TableDefinition, events: Iterable[Event]) -> Changes:
    """Return the rows of a WriteHistoryBatch, grouped by key in each file.

    Args:
        table: the table's name.
        definition: the table's columns, including the history columns.
        events: the rows in the order of the operations, each with an `op_time`.

    Raises:
        ScenarioError: two events of one key have the same time, so that their order is undefined.
    """
    by_key: dict[Key, list[Event]] = {}
    for event in events:
        by_key.setdefault(key_of(event.row.cells, definition), []).append(event)
    records: dict[FileKind, list[Record]] = {}
    for group in by_key.values():
        ordered = sorted(group, key=_time)
        for first, second in pairwise(ordered):
            if _time(first) == _time(second):
                raise ScenarioError(
                    f"{first.row.place} and {second.row.place} have the same key and op_time.",
                    hint="Set another op_time in one of them.",
                )
        _add_versions(ordered, definition, records)
    return Changes(table, definition, freeze_records(records))


def _time(event: Event) -> int:
    return values.nanos(event.row.op_time or "")


def _add_versions(
    events: list[Event], definition: TableDefinition, records: dict[FileKind, list[Record]]
) -> None:
    beginnings = [event for event in events if event.operation in _BEGINNINGS]
    ends: dict[int, str] = {
        id(event): values.time_text(_time(following) - values.NANOS_PER_MILLI)
        for event, following in pairwise(beginnings)
    }
    if beginnings:
        earliest: dict[str, Cell] = {
            name: beginnings[0].row.cells[name] or "" for name in definition.key
        }
        earliest[START] = beginnings[0].row.op_time or ""
        records.setdefault(FileKind.EARLIEST, []).append(earliest)
    for event in events:
        if event.operation not in _BEGINNINGS:
            record = delete_record(event, definition)
            record[END], record[ACTIVE] = event.row.op_time or "", "false"
            records.setdefault(FileKind.DELETE, []).append(record)
            continue
        upsert = event.operation is RowOperation.UPSERT
        record = (upsert_record if upsert else update_record)(event, definition)
        record[START] = event.row.op_time or ""
        record[END] = ends.get(id(event), TMAX_TEXT)
        record[ACTIVE] = "true" if id(event) not in ends else "false"
        kind = FileKind.UPSERT if upsert else FileKind.UPDATE
        records.setdefault(kind, []).append(record)
