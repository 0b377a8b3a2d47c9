"""Descriptions of tables: declared columns, key and mode, stored beside the Iceberg schema."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from chronolake.iceberg import COLUMNS_PROPERTY, columns_from_json
from chronolake.types import (
    EPSILON_MICROS,
    EPSILON_PROPERTY,
    HISTORY_SINCE_PROPERTY,
    START,
    Column,
    ColumnType,
    Kind,
    Mode,
    TableName,
    mode_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chronolake.iceberg import Field, IcebergTable

_INFERRED = {
    "boolean": Kind.BOOLEAN,
    "int": Kind.INT,
    "long": Kind.LONG,
    "float": Kind.FLOAT,
    "double": Kind.DOUBLE,
    "date": Kind.NAIVE_DATE,
    "timestamp": Kind.NAIVE_DATETIME,
    "timestamptz": Kind.UTC_DATETIME,
    "binary": Kind.BINARY,
    "string": Kind.STRING,
}
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")


@dataclass(frozen=True)
class TableDescription:
    """The declared schema of a table.

    Attributes:
        name: schema and table.
        columns: the columns in table order, with their declared types.
        history_since: microseconds since 1970 from which a history table has history; None if it
            was a history table from the beginning, or is not a history table.
        epsilon: microseconds between a version's end and the start of the next.
    """

    name: TableName
    columns: tuple[Column, ...]
    history_since: int | None = None
    epsilon: int = EPSILON_MICROS

    @cached_property
    def mode(self) -> Mode:
        """Return the mode (live, soft-delete or history), which follows from the system columns."""
        return mode_of(column.name for column in self.columns)

    @cached_property
    def primary_key(self) -> tuple[str, ...]:
        """Return the names of all key columns; a history table's include `_fivetran_start`."""
        return tuple(column.name for column in self.columns if column.primary_key)

    @cached_property
    def record_key(self) -> tuple[str, ...]:
        """Return the columns that identify a record: the key without `_fivetran_start`."""
        if self.mode is Mode.HISTORY:
            return tuple(name for name in self.primary_key if name != START)
        return self.primary_key

    @cached_property
    def by_name(self) -> dict[str, Column]:
        """Return the columns by name."""
        return {column.name: column for column in self.columns}


def describe_loaded(table: IcebergTable) -> TableDescription:
    """Return the description of a loaded table.

    The type of a column that another engine added is inferred from its Iceberg type.
    """
    declared = _columns_by_name(table.property_of(COLUMNS_PROPERTY) or "[]")
    columns = [
        declared.get(field.name) or Column(field.name, _infer(field)) for field in table.fields
    ]
    since = table.property_of(HISTORY_SINCE_PROPERTY)
    epsilon = table.property_of(EPSILON_PROPERTY)
    return TableDescription(
        table.name,
        tuple(columns),
        history_since=int(since) if since else None,
        epsilon=int(epsilon) if epsilon else EPSILON_MICROS,
    )


def _columns_by_name(text: str) -> dict[str, Column]:
    columns: Iterable[Column] = columns_from_json(text)
    return {column.name: column for column in columns}


def _infer(field: Field) -> ColumnType:
    if decimal := _DECIMAL.fullmatch(field.type):
        return ColumnType(Kind.DECIMAL, int(decimal[1]), int(decimal[2]))
    return ColumnType(_INFERRED.get(field.type, Kind.STRING))
