"""Columns of a history table that appear or go at a time: new versions, and old ones closed.

Source: `specs/partner-sdk.md` 4.8.1 and 4.8.2. Several operations at the same time T make one
version: rows that start at T are changed in place. One published step, and safe to send twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chronolake.changes import RESERVED
from chronolake.description import describe_loaded
from chronolake.errors import SchemaError
from chronolake.session import CATALOG
from chronolake.table.create import check_columns
from chronolake.table.migration.columns import with_column
from chronolake.table.migration.literals import literal
from chronolake.table.publishing import until_published
from chronolake.table.rewrite import drop_abandoned, publish_columns, rewrite
from chronolake.types import (
    ACTIVE,
    END,
    HISTORY_COLUMNS,
    START,
    TMAX_MICROS,
    Column,
    Mode,
    quoted,
)

if TYPE_CHECKING:
    from chronolake.description import TableDescription
    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake
    from chronolake.table.migration.columns import ValueOf
    from chronolake.types import TableName

_IS_NEW = f"{RESERVED}is_new"


def add_column_in_history(
    lake: Lake, name: TableName, column: Column, value_of: ValueOf, *, at_micros: int
) -> None:
    """Add a column that active records have from a time on: each gets a new version then.

    Versions from before have null in the column; those that start at the time get the value. A
    table without rows only gets the column. Sent again, it changes nothing.

    Args:
        lake: the lake.
        name: a history table.
        column: the new column.
        value_of: its value, by the column's type.
        at_micros: the time, in microseconds since 1970 (UTC).

    Raises:
        TableNotFoundError: there is no such table.
        SchemaError: the table is not in history mode, cannot have such a column, or has an active
            version from later than the time; nothing has changed.
        CommitError: the change could not be published.
        Exception: whatever `value_of` raises; nothing has changed.
    """

    def attempt(table: IcebergTable) -> None:
        description = _history_of(table)
        stored = description.by_name.get(column.name, column)
        _expect_changeable(name, stored)
        value = literal(value_of(stored.type), stored.type)
        change = _Change(stored, value, at_micros, "true", description.epsilon)
        _apply(lake, table, description, change)

    drop_abandoned(lake)
    until_published(lake, name, attempt)


def drop_column_in_history(lake: Lake, name: TableName, column: str, *, at_micros: int) -> None:
    """Empty a column from a time on: active records that have a value in it get a new version.

    The column stays, with the values that it had before. A column that the table lacks is no
    failure. Sent again, it changes nothing.

    Args:
        lake: the lake.
        name: a history table.
        column: the column.
        at_micros: the time, in microseconds since 1970 (UTC).

    Raises:
        TableNotFoundError: there is no such table.
        SchemaError: the table is not in history mode, the column is part of the key or tells when a
            version was true, or an active version is from later than the time; nothing has changed.
        CommitError: the change could not be published.
    """

    def attempt(table: IcebergTable) -> None:
        description = _history_of(table)
        stored = description.by_name.get(column)
        if stored is None:
            return
        _expect_changeable(name, stored)
        change = _Change(
            stored,
            f"CAST(NULL AS {stored.type.sql})",
            at_micros,
            gets_version=f"{quoted(column)} IS NOT NULL",
            epsilon=description.epsilon,
        )
        _apply(lake, table, description, change)

    drop_abandoned(lake)
    until_published(lake, name, attempt)


@dataclass(frozen=True)
class _Change:
    """A column's value from a time on.

    Attributes:
        column: which one; it may be new.
        value: SQL of its stored type.
        at: microseconds since 1970.
        gets_version: SQL: whether an active record needs a new version for it.
        epsilon: microseconds between a version's end and the start of the next.
    """

    column: Column
    value: str
    at: int
    gets_version: str
    epsilon: int

    @property
    def instant(self) -> str:
        return f"timestamp_micros({self.at})"

    @property
    def splits(self) -> str:
        """SQL: whether a version is closed and a new one begins."""
        # What is not known to be active does not split.
        return f"coalesce({ACTIVE} AND {START} < {self.instant} AND {self.gets_version}, false)"


def _history_of(table: IcebergTable) -> TableDescription:
    description = describe_loaded(table)
    if description.mode is not Mode.HISTORY:
        raise SchemaError(
            f"The table is in {description.mode} mode and has no versions.",
            table=str(table.name),
            hint="Use the operation for tables without history, or switch the mode first.",
        )
    return description


def _expect_changeable(name: TableName, column: Column) -> None:
    if column.primary_key or column.name in HISTORY_COLUMNS:
        raise SchemaError(
            "The column is part of the key, or tells when a version was true.",
            table=str(name),
            column=column.name,
            hint="Name another column.",
        )


def _apply(lake: Lake, table: IcebergTable, description: TableDescription, change: _Change) -> None:
    columns = with_column(description, change.column)
    check_columns(table.name, columns)
    is_new = len(columns) > len(description.columns)
    source = f"{CATALOG}.{table.name.sql}"
    at = f"{START} = {change.instant}"
    (found,) = lake.spark.sql(
        f"SELECT count_if({ACTIVE} AND {START} > {change.instant}), "
        f"count_if({ACTIVE} AND ({at} OR ({START} < {change.instant} AND {change.gets_version}))), "
        f"count_if({at} AND NOT coalesce({ACTIVE}, false)) "
        f"FROM {source} WHERE {ACTIVE} OR {at}"
    ).collect()
    later, active, closed = found
    if later:
        raise SchemaError(
            f"{later} records have an active version from later than the operation's time.",
            table=str(table.name),
            column=change.column.name,
            hint="Send the operation with a time that is not before the newest version's start.",
        )
    if not active and not closed:
        if is_new:
            publish_columns(table, columns)
        return
    rewrite(
        lake,
        table,
        columns=columns,
        replaced={},
        rows=lake.spark.sql(_rows(source, columns, change, is_new=is_new, only_active=not closed)),
        # Closed versions are looked at again only where one starts at that very time.
        only_active=not closed,
    )


def _rows(
    source: str,
    columns: tuple[Column, ...],
    change: _Change,
    *,
    is_new: bool,
    only_active: bool,
) -> str:
    """SQL of the versions afterwards: one that splits gives two, the closed and the new."""
    name = change.column.name
    before = f"CAST(NULL AS {change.column.type.sql})" if is_new else quoted(name)
    splits = change.splits
    cells = {
        name: f"IF({_IS_NEW}, {change.value}, {before})",
        START: f"IF({_IS_NEW}, {change.instant}, {START})",
        END: (
            f"CASE WHEN NOT {splits} THEN {END} WHEN {_IS_NEW} THEN "
            f"timestamp_micros({TMAX_MICROS}) ELSE "
            f"timestamp_micros({change.at - change.epsilon}) END"
        ),
        ACTIVE: f"IF({splits}, {_IS_NEW}, {ACTIVE})",
    }
    listing = ", ".join(
        f"{cells.get(column.name, quoted(column.name))} AS {quoted(column.name)}"
        for column in columns
    )
    return (
        f"SELECT {listing} FROM {source} LATERAL VIEW explode(IF({splits}, array(true, false), "
        f"array({START} <=> {change.instant}))) AS {_IS_NEW}"
        f"{f' WHERE {ACTIVE}' if only_active else ''}"
    )
