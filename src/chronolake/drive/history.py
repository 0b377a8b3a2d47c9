"""History: the start, end and active columns that the sender computes within one request.

For each key the upserts and updates of the request are ordered by `op_time`. Each begins a version;
it ends 1 ms before the next one begins, and the last one is active. A delete carries its time as
the end, and nothing about the versions before it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from chronolake.drive import instants
from chronolake.drive.rows import (
    Cell,
    Changes,
    Event,
    FileKind,
    Key,
    Record,
    delete_record,
    frozen,
    key_of,
    update_record,
    upsert_record,
)
from chronolake.drive.scenario import RowOperation
from chronolake.errors import ScenarioError
from chronolake.types import ACTIVE, END, START, TMAX_TEXT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chronolake.drive.definition import TableDefinition

_BEGINNINGS: Final = frozenset({RowOperation.UPSERT, RowOperation.UPDATE})


def history_changes(table: str, definition: TableDefinition, events: Iterable[Event]) -> Changes:
    """The rows of a WriteHistoryBatch, grouped by key in each file.

    Args:
        table: the table's name.
        definition: the table's columns, the history columns among them.
        events: the rows in the order of the operations, each with an `op_time`.

    Raises:
        ScenarioError: two events of one key at one time, whose order nobody could tell.
    """
    by_key: dict[Key, list[Event]] = {}
    for event in events:
        by_key.setdefault(key_of(event.row.cells, definition), []).append(event)
    records: dict[FileKind, list[Record]] = {}
    for group in by_key.values():
        ordered = sorted(group, key=_time)
        for one, two in pairwise(ordered):
            if _time(one) == _time(two):
                raise ScenarioError(
                    f"{one.row.place} and {two.row.place} have the same key and op_time.",
                    hint="Give one of them another op_time.",
                )
        _group(ordered, definition, records)
    return Changes(table, definition, frozen(records))


def _time(event: Event) -> int:
    return instants.nanos(event.row.op_time or "")


def _group(
    events: list[Event], definition: TableDefinition, records: dict[FileKind, list[Record]]
) -> None:
    beginnings = [event for event in events if event.operation in _BEGINNINGS]
    ends: dict[int, str] = {
        id(event): instants.time_text(_time(following) - instants.NANOS_PER_MILLI)
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
