"""Column migrations: rename, copy, fill, and add or drop at a time in history.

Source: `specs/partner-sdk.md` 4.8. Every operation is one published step and idempotent. The value
that fills a column is passed as a function from the column's type to an Arrow scalar of that type,
because the stored type decides how a text is parsed.

Adding or dropping a column of a history table at a time creates new versions and closes old ones
(4.8.1 and 4.8.2). Several operations at the same time T create one version: rows that start at T
are changed in place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from chronolake.change_set import RESERVED
from chronolake.core.create import check_columns, column_properties
from chronolake.core.publish import expect_unmoved, publish, publish_with_retries
from chronolake.core.rewrite import drop_abandoned, evolved_metadata, publish_columns, rewrite
from chronolake.core.sql import typed_literal
from chronolake.description import describe_loaded
from chronolake.errors import SchemaError, UnknownColumnError
from chronolake.session import CATALOG
from chronolake.types import (
    ACTIVE,
    DELETED,
    END,
    HISTORY_COLUMNS,
    ROW_ID,
    START,
    SYNCED,
    TMAX_MICROS,
    Column,
    Mode,
    quote,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from chronolake.description import TableDescription
    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake
    from chronolake.types import ColumnType, TableName

    ValueOf = Callable[[ColumnType], pa.Scalar]


_SYSTEM: Final = frozenset({SYNCED, DELETED, ROW_ID, *HISTORY_COLUMNS})


def rename_column(lake: Lake, name: TableName, column: str, new_name: str) -> bool:
    """Rename a column; its type, values and role in the key do not change.

    Returns:
        False if only the new name exists: the column was renamed before.

    Raises:
        TableNotFoundError: the table does not exist.
        UnknownColumnError: neither name exists.
        SchemaError: both names exist, or one is a system column's; nothing has changed.
        CommitError: the change could not be published.
    """

    def attempt(table: IcebergTable) -> bool:
        description = describe_loaded(table)
        for reserved in _SYSTEM & {column, new_name}:
            raise SchemaError(
                "System columns cannot be renamed, and a column cannot get the name of a system "
                "column.",
                table=str(name),
                column=reserved,
                hint="Switch the table's mode with a migration.",
            )
        if column not in description.by_name:
            if new_name in description.by_name:
                return False
            raise _unknown(name, column)
        if new_name in description.by_name:
            raise SchemaError(
                "The table already has a column with the new name.",
                table=str(name),
                column=new_name,
                hint="Choose another name, or drop that column first.",
            )
        columns = tuple(
            replace(stored, name=new_name) if stored.name == column else stored
            for stored in description.columns
        )
        check_columns(name, columns)

        def rename(current: IcebergTable) -> Any:
            expect_unmoved(table, current)
            transaction = current.java.newTransaction()
            transaction.updateSchema().caseSensitive(True).renameColumn(column, new_name).commit()
            return current.catalog.builder_from(evolved_metadata(transaction))

        publish(table, rename, column_properties(columns))
        return True

    return publish_with_retries(lake, name, attempt)


def copy_column(lake: Lake, name: TableName, column: str, new_name: str) -> None:
    """Create a column with the type and values of another one; it is not part of the key.

    An existing column with the new name and the same type gets the values again: the request was
    sent before.

    Raises:
        TableNotFoundError: the table does not exist.
        UnknownColumnError: the column does not exist.
        SchemaError: the new name cannot be used; nothing has changed.
        CommitError: the change could not be published.
    """

    def attempt(table: IcebergTable) -> None:
        description = describe_loaded(table)
        source = description.by_name.get(column)
        if source is None:
            raise _unknown(name, column)
        if new_name in _SYSTEM:
            raise SchemaError(
                "A column cannot be copied to the name of a system column.",
                table=str(name),
                column=new_name,
                hint="Choose another name.",
            )
        wanted = Column(new_name, source.type)
        stored = description.by_name.get(new_name)
        if stored is not None and stored != wanted:
            raise SchemaError(
                "The table already has a column with the new name, of type "
                f"{_type_and_role(stored)}.",
                table=str(name),
                column=new_name,
                hint="Choose another name, or drop that column first.",
            )
        _fill(lake, table, description, wanted, quote(column))

    drop_abandoned(lake)
    publish_with_retries(lake, name, attempt)


def set_column_value(lake: Lake, name: TableName, column: str, value_of: ValueOf) -> None:
    """Set a column to one value in every row.

    Raises:
        TableNotFoundError: the table does not exist.
        UnknownColumnError: the column does not exist.
        SchemaError: the column is part of the key, or a history column.
        CommitError: the change could not be published.
        Exception: any error of `value_of`; nothing has changed.
    """

    def attempt(table: IcebergTable) -> None:
        description = describe_loaded(table)
        stored = description.by_name.get(column)
        if stored is None:
            raise _unknown(name, column)
        _expect_fillable(name, stored)
        _fill(lake, table, description, stored, typed_literal(value_of(stored.type), stored.type))

    drop_abandoned(lake)
    publish_with_retries(lake, name, attempt)


def add_column_with_default(lake: Lake, name: TableName, column: Column, value_of: ValueOf) -> None:
    """Add a column with a value in every existing row.

    An existing column keeps its type and gets the value in every row: the request was sent before.
    Rows that are written later have their own values.

    Raises:
        TableNotFoundError: the table does not exist.
        SchemaError: the column is not valid for the table; nothing has changed.
        CommitError: the change could not be published.
        Exception: any error of `value_of`; nothing has changed.
    """

    def attempt(table: IcebergTable) -> None:
        description = describe_loaded(table)
        stored = description.by_name.get(column.name, column)
        _expect_fillable(name, stored)
        _fill(lake, table, description, stored, typed_literal(value_of(stored.type), stored.type))

    drop_abandoned(lake)
    publish_with_retries(lake, name, attempt)


def with_column(description: TableDescription, column: Column) -> tuple[Column, ...]:
    """Return a table's columns, with another one added if it does not exist."""
    if column.name in description.by_name:
        return description.columns
    return (*description.columns, column)


def _fill(
    lake: Lake, table: IcebergTable, description: TableDescription, column: Column, value: str
) -> None:
    """Set a column, which may be new, to a SQL expression over the row's cells in every row."""
    columns = with_column(description, column)
    check_columns(table.name, columns)
    if table.rows == 0:
        if columns != description.columns:
            publish_columns(table, columns)
        return
    cells = ", ".join(
        f"{value if stored.name == column.name else quote(stored.name)} AS {quote(stored.name)}"
        for stored in columns
    )
    rewrite(
        lake,
        table,
        columns=columns,
        replaced={},
        rows=lake.spark.sql(f"SELECT {cells} FROM {CATALOG}.{table.name.sql}"),
    )


def _expect_fillable(name: TableName, column: Column) -> None:
    if column.primary_key or column.name in HISTORY_COLUMNS:
        raise SchemaError(
            "A key column or history column cannot be set to the same value in every row.",
            table=str(name),
            column=column.name,
            hint="Name a column outside the key and the history columns.",
        )


def _unknown(name: TableName, column: str) -> UnknownColumnError:
    return UnknownColumnError(
        "The table does not have the column.",
        table=str(name),
        column=column,
        hint="DescribeTable returns the table's columns.",
    )


def _type_and_role(column: Column) -> str:
    return f"{column.type}{' and part of the key' if column.primary_key else ''}"


_IS_NEW = f"{RESERVED}is_new"


def add_column_in_history(
    lake: Lake, name: TableName, column: Column, value_of: ValueOf, *, at_micros: int
) -> None:
    """Add a column that active records have from a time on: each gets a new version then.

    Versions from before have null in the column; versions that start at the time get the value. An
    empty table only gets the column. Sending the request again changes nothing.

    Args:
        name: a history table.
        column: the new column.
        value_of: returns the value for the column's type.
        at_micros: the time, in microseconds since 1970 (UTC).

    Raises:
        TableNotFoundError: the table does not exist.
        SchemaError: the table is not in history mode, the column is not valid for it, or an active
            version starts after the time; nothing has changed.
        CommitError: the change could not be published.
        Exception: any error of `value_of`; nothing has changed.
    """

    def attempt(table: IcebergTable) -> None:
        description = _history_of(table)
        stored = description.by_name.get(column.name, column)
        _expect_changeable(name, stored)
        value = typed_literal(value_of(stored.type), stored.type)
        change = _Change(stored, value, at_micros, "true", description.epsilon)
        _apply(lake, table, description, change)

    drop_abandoned(lake)
    publish_with_retries(lake, name, attempt)


def drop_column_in_history(lake: Lake, name: TableName, column: str, *, at_micros: int) -> None:
    """Empty a column from a time on: active records that have a value in it get a new version.

    The column is kept, with its earlier values. A missing column is not an error. Sending the
    request again changes nothing.

    Args:
        name: a history table.
        at_micros: the time, in microseconds since 1970 (UTC).

    Raises:
        TableNotFoundError: the table does not exist.
        SchemaError: the table is not in history mode, the column is part of the key or a history
            column, or an active version starts after the time; nothing has changed.
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
            gets_version=f"{quote(column)} IS NOT NULL",
            epsilon=description.epsilon,
        )
        _apply(lake, table, description, change)

    drop_abandoned(lake)
    publish_with_retries(lake, name, attempt)


@dataclass(frozen=True)
class _Change:
    """A column's value from a time on.

    Attributes:
        column: the column; it may be new.
        value: SQL of its stored type.
        at: the time, in microseconds since 1970.
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
        """Return SQL: whether a version is closed and a new one begins."""
        # A version whose activity is null is not split.
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
            "Key columns and history columns cannot be changed.",
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
            f"{later} records have an active version that starts after the operation's time.",
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
        # Closed versions are rewritten only if one starts at exactly this time.
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
    """Return SQL for the resulting versions: a split version becomes a closed and a new one."""
    name = change.column.name
    before = f"CAST(NULL AS {change.column.type.sql})" if is_new else quote(name)
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
        f"{cells.get(column.name, quote(column.name))} AS {quote(column.name)}"
        for column in columns
    )
    return (
        f"SELECT {listing} FROM {source} LATERAL VIEW explode(IF({splits}, array(true, false), "
        f"array({START} <=> {change.instant}))) AS {_IS_NEW}"
        f"{f' WHERE {ACTIVE}' if only_active else ''}"
    )
