"""Columns of a table: rename, copy, fill.

Source: `specs/partner-sdk.md` 4.8. Every operation is one published step, and safe to send twice.
A value that fills a column is given as a function: from the column's type to an Arrow scalar of
that type, because the stored type decides what a text means.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from chronolake.description import describe_loaded
from chronolake.errors import SchemaError, UnknownColumnError
from chronolake.session import CATALOG
from chronolake.table.create import check_columns, column_properties
from chronolake.table.migration.literals import literal
from chronolake.table.publishing import expect_unmoved, publish, until_published
from chronolake.table.rewrite import (
    drop_abandoned,
    evolved_metadata,
    publish_columns,
    rewrite,
)
from chronolake.types import DELETED, HISTORY_COLUMNS, ROW_ID, SYNCED, Column, quoted

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
    """Give a column another name; its type, values and part in the key stay.

    Returns:
        False if only the new name exists: the column was renamed before.

    Raises:
        TableNotFoundError: there is no such table.
        UnknownColumnError: neither name exists.
        SchemaError: both names exist, or one is a system column's; nothing has changed.
        CommitError: the change could not be published.
    """

    def attempt(table: IcebergTable) -> bool:
        description = describe_loaded(table)
        for reserved in _SYSTEM & {column, new_name}:
            raise SchemaError(
                "System columns cannot be renamed, nor can a column take the name of one.",
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
                "The table has a column of the new name already.",
                table=str(name),
                column=new_name,
                hint="Choose another name, or drop that column first.",
            )
        columns = tuple(
            replace(stored, name=new_name) if stored.name == column else stored
            for stored in description.columns
        )
        check_columns(name, columns)

        def renamed(current: IcebergTable) -> Any:
            expect_unmoved(table, current)
            transaction = current.java.newTransaction()
            transaction.updateSchema().caseSensitive(True).renameColumn(column, new_name).commit()
            return current.catalog.builder_from(evolved_metadata(transaction))

        publish(table, renamed, column_properties(columns))
        return True

    return until_published(lake, name, attempt)


def copy_column(lake: Lake, name: TableName, column: str, new_name: str) -> None:
    """Make a column of another one's type and values; it is not part of the key.

    A column of the new name that has the same type gets the values anew: the request was sent
    before.

    Raises:
        TableNotFoundError: there is no such table.
        UnknownColumnError: the table has no such column.
        SchemaError: the new name cannot be had; nothing has changed.
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
                f"The table has a column of the new name already, and it is {_told(stored)}.",
                table=str(name),
                column=new_name,
                hint="Choose another name, or drop that column first.",
            )
        _fill(lake, table, description, wanted, quoted(column))

    drop_abandoned(lake)
    until_published(lake, name, attempt)


def set_column_value(lake: Lake, name: TableName, column: str, value_of: ValueOf) -> None:
    """Set a column to one value in every row.

    Raises:
        TableNotFoundError: there is no such table.
        UnknownColumnError: the table has no such column.
        SchemaError: the column is part of the key, or tells when a version was true.
        CommitError: the change could not be published.
        Exception: whatever `value_of` raises; nothing has changed.
    """

    def attempt(table: IcebergTable) -> None:
        description = describe_loaded(table)
        stored = description.by_name.get(column)
        if stored is None:
            raise _unknown(name, column)
        _expect_fillable(name, stored)
        _fill(lake, table, description, stored, literal(value_of(stored.type), stored.type))

    drop_abandoned(lake)
    until_published(lake, name, attempt)


def add_column_with_default(lake: Lake, name: TableName, column: Column, value_of: ValueOf) -> None:
    """Add a column that has a value in every row there is.

    A column that exists keeps its type and gets the value in every row: the request was sent
    before. Rows that come later bring their own values.

    Raises:
        TableNotFoundError: there is no such table.
        SchemaError: the table cannot have such a column; nothing has changed.
        CommitError: the change could not be published.
        Exception: whatever `value_of` raises; nothing has changed.
    """

    def attempt(table: IcebergTable) -> None:
        description = describe_loaded(table)
        stored = description.by_name.get(column.name, column)
        _expect_fillable(name, stored)
        _fill(lake, table, description, stored, literal(value_of(stored.type), stored.type))

    drop_abandoned(lake)
    until_published(lake, name, attempt)


def with_column(description: TableDescription, column: Column) -> tuple[Column, ...]:
    """A table's columns and one more, if it is not among them."""
    if column.name in description.by_name:
        return description.columns
    return (*description.columns, column)


def _fill(
    lake: Lake, table: IcebergTable, description: TableDescription, column: Column, value: str
) -> None:
    """Give every row a value, a SQL expression over its cells, in a column that may be new."""
    columns = with_column(description, column)
    check_columns(table.name, columns)
    if table.rows == 0:
        if columns != description.columns:
            publish_columns(table, columns)
        return
    cells = ", ".join(
        f"{value if each.name == column.name else quoted(each.name)} AS {quoted(each.name)}"
        for each in columns
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
            "One value in every row would take the rows' identity or times away.",
            table=str(name),
            column=column.name,
            hint="Name a column outside the key and the history columns.",
        )


def _unknown(name: TableName, column: str) -> UnknownColumnError:
    return UnknownColumnError(
        "The table does not have the column.",
        table=str(name),
        column=column,
        hint="DescribeTable tells the columns it has.",
    )


def _told(column: Column) -> str:
    return f"{column.type}{' and part of the key' if column.primary_key else ''}"
