"""A record's timeline: its versions in order, what changed, and how each ended."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from chronolake.cells import Cell, cells, instant, typed
from chronolake.errors import UnknownColumnError, ValueRefusedError
from chronolake.look.catalog import LookedUp, look_up
from chronolake.look.moments import known_since
from chronolake.types import (
    ACTIVE,
    END,
    EPSILON_MICROS,
    EPSILON_PROPERTY,
    HASH,
    HISTORY_COLUMNS,
    START,
    SYNCED,
    VERSION,
    Kind,
    Mode,
    TableName,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression

    from chronolake.config import LakeConfig

_NOT_SHOWN = {*HISTORY_COLUMNS, SYNCED, VERSION, HASH}


class Ending(StrEnum):
    """How a version ended."""

    ACTIVE = "active"
    REPLACED = "replaced"
    DELETED = "deleted"


@dataclass(frozen=True)
class Change:
    """One column that differs from the version before."""

    column: str
    old: Cell
    new: Cell


@dataclass(frozen=True)
class Version:
    """One version of a record, or the only row of a table that keeps none.

    Attributes:
        start: ISO instant; None in a table without history.
        end: ISO instant; None in a table without history.
        ending: still active, replaced by the next version, or deleted.
        synced: when the sync that sent it started, or None.
        values: all columns except the history columns and `_fivetran_synced`, in table order.
        changes: what differs from the version before; empty for the first one.
    """

    start: str | None
    end: str | None
    ending: Ending
    synced: Cell
    values: dict[str, Cell]
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Timeline:
    """All versions of one record, by start.

    Attributes:
        table: the table.
        mode: its mode.
        key: the record's key, as it was asked for.
        versions: the versions; the only row of a table that keeps none.
        known_since: ISO instant of the switch to history mode: what was before is not known. None
            if the table always kept history, or keeps none.
    """

    table: TableName
    mode: Mode
    key: dict[str, str | None]
    versions: tuple[Version, ...]
    known_since: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The timeline as JSON's own types."""
        return {
            "table": str(self.table),
            "mode": self.mode.value,
            "key": self.key,
            "known_since": self.known_since,
            "versions": [
                {
                    "start": version.start,
                    "end": version.end,
                    "ending": version.ending.value,
                    "synced": version.synced,
                    "values": version.values,
                    "changes": [
                        {"column": change.column, "old": change.old, "new": change.new}
                        for change in version.changes
                    ],
                }
                for version in self.versions
            ],
        }


def history(
    config: LakeConfig,
    name: TableName,
    key: Mapping[str, str | None],
    *,
    most: int | None = None,
) -> Timeline:
    """The timeline of the record with a key.

    Only files and row groups whose statistics admit the key are read.

    Args:
        config: the lake.
        name: the table; one without history gives the record's current row.
        key: the value of every key column, as text: times in ISO 8601, binary values in base64;
            None for null.
        most: refuse a record that has more versions than that; None: there is no limit.

    Returns:
        The timeline, without versions if the table has no such record.

    Raises:
        LakeError: there is no lake, or it cannot be read.
        TableNotFoundError: there is no such table.
        UnknownColumnError: a column of `key` is no key column, or one is missing.
        ValueRefusedError: a text is no value of its column's type, or the record has more than
            `most` versions.
    """
    found = look_up(config, name)
    condition = _condition(found, key)
    if found.table.current_snapshot() is None:
        versions: tuple[Version, ...] = ()
    else:
        # One more than is wanted tells that there are too many.
        limit = None if most is None else most + 1
        rows = found.table.scan(row_filter=condition, limit=limit).to_arrow()
        if most is not None and rows.num_rows > most:
            raise ValueRefusedError(
                f"The record has more than {most:,} versions, too many to show all.",
                hint="Ask for those of some time in SQL, with `chronolake query`.",
                table=str(name),
            )
        versions = _versions(found, rows)
    return Timeline(name, found.mode, dict(key), versions, known_since(found))


def _condition(found: LookedUp, key: Mapping[str, str | None]) -> BooleanExpression:
    from pyiceberg.expressions import AlwaysTrue, And  # noqa: PLC0415 - slow to import

    table = str(found.name)
    by_name = {column.name: column for column in found.columns}
    # A table that another engine made has no declared key: any columns may be asked for.
    wanted = found.key or tuple(key)
    for column in key:
        if column not in by_name:
            raise UnknownColumnError(
                "The table has no such column.",
                hint=f"Its key is {_listed(wanted)}.",
                table=table,
                column=column,
            )
        if column not in wanted:
            raise UnknownColumnError(
                "The column is not part of the table's key.",
                hint=f"The key is {_listed(wanted)}; for other questions use `chronolake query`.",
                table=table,
                column=column,
            )
    if missing := [column for column in wanted if column not in key] or (["id"] if not key else []):
        raise UnknownColumnError(
            f"The key is not complete: {_listed(missing)} is missing.",
            hint="Give --key COLUMN=VALUE once for each key column.",
            table=table,
        )
    condition: BooleanExpression = AlwaysTrue()
    for column, text in key.items():
        condition = And(condition, equal_to(found, column, text))
    return condition


def equal_to(found: LookedUp, column: str, text: str | None) -> BooleanExpression:
    """Rows in which a column has the value that a text stands for; None is null.

    Raises:
        ValueRefusedError: the text is no value of the column's type.
    """
    from pyiceberg.expressions import EqualTo, IsNaN, IsNull  # noqa: PLC0415 - slow to import
    from pyiceberg.expressions.literals import (  # noqa: PLC0415 - slow to import
        FloatLiteral,
        LongLiteral,
        literal,
    )

    if text is None:
        return IsNull(column)
    by_name = {one.name: one for one in found.columns}
    value = typed(by_name[column], text, table=str(found.name))
    if isinstance(value, float) and math.isnan(value):
        return IsNaN(column)
    if isinstance(value, int) and not isinstance(value, bool):
        # Whole numbers, times in microseconds and days since 1970 are all of this kind.
        return EqualTo(column, LongLiteral(value))
    if isinstance(value, float) and by_name[column].type.kind is Kind.FLOAT:
        # As one of eight bytes, infinity would be beyond what the column can hold.
        return EqualTo(column, FloatLiteral(value))
    return EqualTo(column, literal(value))


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(columns)


def _versions(found: LookedUp, rows: pa.Table) -> tuple[Version, ...]:
    import pyarrow as pa  # noqa: PLC0415 - with the scan that needs it

    if found.mode is not Mode.HISTORY:
        return tuple(
            Version(None, None, Ending.ACTIVE, synced, values, ()) for synced, values in _rows(rows)
        )
    rows = rows.sort_by([(START, "ascending"), (END, "ascending")])
    starts = rows[START].cast(pa.int64()).to_pylist()
    ends = rows[END].cast(pa.int64()).to_pylist()
    active = rows[ACTIVE].to_pylist()
    epsilon = int(found.table.properties.get(EPSILON_PROPERTY, EPSILON_MICROS))
    versions: list[Version] = []
    before: dict[str, Cell] | None = None
    for place, (synced, values) in enumerate(_rows(rows)):
        following = starts[place + 1] if place + 1 < len(starts) else None
        versions.append(
            Version(
                start=_instant(starts[place]),
                end=_instant(ends[place]),
                ending=_ending(active[place], ends[place], following, epsilon),
                synced=synced,
                values=values,
                changes=() if before is None else _changes(before, values),
            )
        )
        before = values
    return tuple(versions)


def _rows(rows: pa.Table) -> list[tuple[Cell, dict[str, Cell]]]:
    """Each row's `_fivetran_synced`, and its other columns that are not about time."""
    columns = {name: cells(rows[place]) for place, name in enumerate(rows.column_names)}
    synced = columns.get(SYNCED, [None] * rows.num_rows)
    shown = {name: column for name, column in columns.items() if name not in _NOT_SHOWN}
    return [
        (synced[place], {name: column[place] for name, column in shown.items()})
        for place in range(rows.num_rows)
    ]


def _instant(micros: int | None) -> str | None:
    return None if micros is None else instant(micros)


def _ending(
    active: bool | None,  # noqa: FBT001
    end: int | None,
    following: int | None,
    epsilon: int,
) -> Ending:
    if active:
        return Ending.ACTIVE
    if following is not None and end is not None and following - end <= epsilon:
        return Ending.REPLACED
    return Ending.DELETED


def _changes(before: dict[str, Cell], after: dict[str, Cell]) -> tuple[Change, ...]:
    return tuple(
        Change(column, before[column], new)
        for column, new in after.items()
        if before[column] != new or type(before[column]) is not type(new)
    )
