"""What a target contains: the published snapshot of each table, and how its columns change."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from chronolake.target.limits import TargetColumn
from chronolake.types import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chronolake.types import ColumnType

#: Column types that can be changed in place, because every value of the first is one of the second.
_WIDER: Final = frozenset(
    {(Kind.SHORT, Kind.INT), (Kind.SHORT, Kind.LONG), (Kind.INT, Kind.LONG)}
    | {(Kind.FLOAT, Kind.DOUBLE)}
)


@dataclass(frozen=True)
class Published:
    """The state of a target table, stored in the target.

    Attributes:
        table: the table in the lake, as `schema.table`.
        lake: the identity of its lake, if known.
        snapshot_id: the published snapshot; None if the table had none.
        columns: the columns of the target table.
        load_id: identifies the load that created the target table.
        has_rows: whether the target table has rows.
        physical: the database's identifier of the target table, which changes if it is made again.
        has_triggers: whether triggers record changes by others.
    """

    table: str
    lake: str | None
    snapshot_id: int | None
    columns: tuple[TargetColumn, ...]
    load_id: str
    has_rows: bool
    physical: str = ""
    has_triggers: bool = True

    def to_text(self) -> str:
        """Return the state as JSON."""
        columns = [column.as_json() for column in self.columns]
        return json.dumps({**vars(self), "columns": columns}, ensure_ascii=False)

    @classmethod
    def from_text(cls, text: str) -> Published:
        """Return the state of a text of `to_text`."""
        item: Mapping[str, Any] = json.loads(text)
        columns = tuple(TargetColumn.from_json(column) for column in item["columns"])
        return cls(**{**item, "columns": columns})


class ChangeKind(StrEnum):
    """How a column changes."""

    ADD = "add"
    DROP = "drop"
    RENAME = "rename"
    RETYPE = "retype"


@dataclass(frozen=True)
class ColumnChange:
    """A change of a target table's columns.

    Attributes:
        kind: the change.
        column: the column after it; a dropped column as it was.
        before: the previous name of a renamed column.
    """

    kind: ChangeKind
    column: TargetColumn
    before: str | None = None


def plan_column_changes(
    old: Sequence[TargetColumn], new: Sequence[TargetColumn]
) -> list[ColumnChange] | None:
    """Return the changes that lead from some columns to others.

    Returns:
        None if the table must be loaded again: its key has changed, or a type in a way that is not
        possible in place, or names were exchanged.
    """
    by_id = {column.field_id: column for column in old}
    kept = {column.field_id for column in new}
    old_key = [column for column in old if column.is_key]
    new_key = [column for column in new if column.is_key]
    if old_key != new_key:
        return None
    drops = [ColumnChange(ChangeKind.DROP, column) for column in old if column.field_id not in kept]
    names = {column.name for column in old}
    changes = list(drops)
    for column in new:
        before = by_id.get(column.field_id)
        if before is None:
            if column.name in names - {change.column.name for change in drops}:
                return None
            changes.append(ColumnChange(ChangeKind.ADD, column))
            continue
        if before.name != column.name:
            if column.name in names:
                return None
            changes.append(ColumnChange(ChangeKind.RENAME, column, before.name))
        if before.sql != column.sql or before.type != column.type:
            if not is_wider(before.type, column.type):
                return None
            if before.sql != column.sql:
                changes.append(ColumnChange(ChangeKind.RETYPE, column))
    return changes


def is_wider(old: ColumnType, new: ColumnType) -> bool:
    """Return whether every value of a type has the same text in another."""
    if old == new or (old.kind, new.kind) in _WIDER:
        return True
    if old.kind is new.kind is Kind.DECIMAL:
        return old.scale == new.scale and (old.precision or 0) <= (new.precision or 0)
    texts = {Kind.STRING, Kind.XML, Kind.NAIVE_TIME}
    return old.kind in texts and new.kind in texts
