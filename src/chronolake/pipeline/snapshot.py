"""What differs between what a source has at one time and its table, as record versions.

Of a record that is as the table has it nothing lands: its version goes on. One that has changed, or
is new, gets a version; one that is gone is deleted. All of it has the time of the snapshot, so that
what was known before stays what it was.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from chronolake.changes import DELETED_AT, MODIFIED, PURGED_AT, RESERVED, SEQUENCE, TELLS
from chronolake.description import describe_loaded
from chronolake.rawlake import spelled, wider
from chronolake.session import CATALOG
from chronolake.types import ACTIVE, DELETED, Column, ColumnType, Kind, Mode, literal, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame

    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake
    from chronolake.source.offered import Snapshot

_NOW: Final = f"{RESERVED}now"
_NOW_COMPARED: Final = f"{RESERVED}now_compared"
_BEFORE: Final = f"{RESERVED}before"
_KEY: Final = f"{RESERVED}key_"

#: The rows of a table that say what is so now.
_PRESENT: Final = {
    Mode.HISTORY: ACTIVE,
    Mode.SOFT_DELETE: f"NOT coalesce({DELETED}, false)",
    Mode.LIVE: "true",
}


def versions_of(
    lake: Lake, snapshot: Snapshot, table: IcebergTable | None
) -> tuple[DataFrame, list[Column]]:
    """The difference between a snapshot and a table, as `rawlake.land` takes it.

    Args:
        lake: the lake whose Spark does the work.
        snapshot: what the source has.
        table: what all files that have landed make; None: nothing has.

    Returns:
        Record versions, and their data columns: the snapshot's. A key that was stored in a wider
        type than the source has by now is told in that one.
    """
    at = (
        f"{snapshot.at_micros}L AS {MODIFIED}",
        f"{literal(snapshot.sequence)} AS {SEQUENCE}",
        f"CAST(NULL AS BIGINT) AS {PURGED_AT}",
    )
    columns = list(snapshot.columns)
    is_there = "true" if snapshot.present is None else quoted(snapshot.present)
    if table is None:
        names = (quoted(column.name) for column in columns)
        told = f"CAST(NULL AS BIGINT) AS {DELETED_AT}", f"true AS {TELLS}"
        return snapshot.rows.where(is_there).selectExpr(*names, *at, *told), columns

    description = describe_loaded(table)
    # What the table has no column for is null in it.
    stored = [
        description.by_name.get(column.name, Column(column.name, column.type)) for column in columns
    ]
    common = {
        column.name: wider(column.type, other.type)
        for column, other in zip(columns, stored, strict=True)
    }
    key = [column for column in columns if column.primary_key]
    keys = [f"{_KEY}{number}" for number in range(len(key))]
    now = snapshot.rows.selectExpr(
        f"IF({is_there}, {_struct(quoted(column.name) for column in columns)}, NULL) AS {_NOW}",
        f"IF({is_there}, {_struct(_as(column, common[column.name]) for column in columns)}, NULL) "
        f"AS {_NOW_COMPARED}",
        *(f"{_as(one, common[one.name])} AS {name}" for one, name in zip(key, keys, strict=True)),
    )
    by_name = {column.name: column for column in stored}

    def was(column: Column) -> str:
        kind = common[column.name]
        if column.name not in description.by_name:
            return f"CAST(NULL AS {kind.sql})"
        return _as(column, kind)

    before = (
        lake.spark.table(f"{CATALOG}.{table.name.sql}")
        .where(_PRESENT[description.mode])
        .selectExpr(
            f"{_struct(was(column) for column in stored)} AS {_BEFORE}",
            *(
                f"{_as(by_name[one.name], common[one.name])} AS {name}"
                for one, name in zip(key, keys, strict=True)
            ),
        )
    )
    differs = f"NOT ({_NOW_COMPARED} <=> {_BEFORE})"
    cells = [f"{_NOW}.c{number} AS {quoted(one.name)}" for number, one in enumerate(columns)]
    for one, name in zip(key, keys, strict=True):
        number = columns.index(one)
        columns[number] = replace(one, type=common[one.name])
        cells[number] = f"{name} AS {quoted(one.name)}"
    how = "full_outer" if snapshot.present is None else "left_outer"
    found = now.join(before, keys, how).where(differs)
    gone = (
        f"IF({_NOW} IS NULL, {snapshot.at_micros}L, NULL) AS {DELETED_AT}",
        f"{_NOW} IS NOT NULL AS {TELLS}",
    )
    return found.selectExpr(*cells, *at, *gone), columns


def _struct(values: Iterable[str]) -> str:
    named = ", ".join(f"'c{number}', {value}" for number, value in enumerate(values))
    return f"named_struct({named})"


def _as(column: Column, kind: ColumnType) -> str:
    """A column's value in a type that holds all of its values, as SQL."""
    if column.type == kind:
        return quoted(column.name)
    if kind.kind is Kind.STRING:
        return spelled(column)
    return f"CAST({quoted(column.name)} AS {kind.sql})"
