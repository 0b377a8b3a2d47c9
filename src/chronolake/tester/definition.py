"""Table definitions: the columns that a scenario declares, and the system columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from chronolake.types import (
    ACTIVE,
    DELETED,
    END,
    HISTORY_COLUMNS,
    ROW_ID,
    START,
    SYNCED,
    ColumnType,
    Kind,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


class VendorVersion(StrEnum):
    """The version of the vendor's tester to imitate; versions differ in `_fivetran_deleted`.

    2.25 adds the column only to tables that the same scenario file soft-deletes from or
    soft-truncates, 2.26 to every table that is not in history mode.
    """

    V2_25 = "2.25"
    V2_26 = "2.26"


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """A column as it is declared in requests.

    `precision` and `scale` are None for all types except DECIMAL, and for a DECIMAL that is
    declared without parameters. The destination then chooses them, and DescribeTable returns them.
    """

    name: str
    kind: Kind
    precision: int | None = None
    scale: int | None = None
    key: bool = False

    @property
    def type(self) -> ColumnType:
        """Return the logical type; a DECIMAL without parameters gets the default ones.

        Raises:
            UnsupportedTypeError: the precision or scale is not supported by tables.
        """
        return ColumnType(self.kind, self.precision, self.scale)

    @property
    def type_name(self) -> str:
        """Return the type as the report prints it: `DECIMAL(38,10)`, `DECIMAL`, `INT`."""
        if self.kind is Kind.DECIMAL and self.precision is not None:
            return f"DECIMAL({self.precision},{self.scale})"
        return str(self.kind)


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """The columns of a table, in the order in which CreateTable and AlterTable list them."""

    columns: tuple[ColumnSpec, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the columns' names, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def key(self) -> tuple[str, ...]:
        """Return the key that identifies a record: the primary key without `_fivetran_start`."""
        return tuple(c.name for c in self.columns if c.key and c.name != START)

    @property
    def history(self) -> bool:
        """Return whether the table is in history mode."""
        return set(HISTORY_COLUMNS) <= set(self.names)

    @property
    def soft_deletes(self) -> bool:
        """Return whether the table has the `_fivetran_deleted` column."""
        return DELETED in self.names

    def column(self, name: str) -> ColumnSpec | None:
        """Return the column with this name, or None."""
        return next((column for column in self.columns if column.name == name), None)

    def with_column(self, column: ColumnSpec) -> TableDefinition:
        """Return the columns with this one appended, or replacing the one with its name."""
        if self.column(column.name) is None:
            return TableDefinition((*self.columns, column))
        return TableDefinition(tuple(column if c.name == column.name else c for c in self.columns))

    def without_columns(self, names: Iterable[str]) -> TableDefinition:
        """Return the columns without the named ones."""
        removed = set(names)
        return TableDefinition(tuple(c for c in self.columns if c.name not in removed))

    def with_renamed_column(self, old: str, new: str) -> TableDefinition:
        """Return the columns with one renamed."""
        return TableDefinition(
            tuple(replace(c, name=new) if c.name == old else c for c in self.columns)
        )


DELETED_COLUMN = ColumnSpec(DELETED, Kind.BOOLEAN)
_SYNCED_COLUMN = ColumnSpec(SYNCED, Kind.UTC_DATETIME)
_ROW_ID_COLUMN = ColumnSpec(ROW_ID, Kind.STRING, key=True)
HISTORY_SPECS = (
    ColumnSpec(START, Kind.UTC_DATETIME, key=True),
    ColumnSpec(END, Kind.UTC_DATETIME),
    ColumnSpec(ACTIVE, Kind.BOOLEAN),
)


def with_system_columns(
    declared: Iterable[ColumnSpec],
    *,
    history: bool,
    soft_deleted: bool,
    version: VendorVersion,
) -> TableDefinition:
    """Return the declared columns followed by the system columns that the tester adds.

    Args:
        declared: the columns of the scenario with key flags; without a key, `_fivetran_id` is
            added.
        history: whether the table is in history mode.
        soft_deleted: whether this scenario file soft-deletes from or soft-truncates the table.
        version: the tester's version, which determines the rule for `_fivetran_deleted`.
    """
    columns = list(declared)
    existing = {column.name for column in columns}
    wanted = [_SYNCED_COLUMN]
    if not any(column.key for column in columns):
        wanted.append(_ROW_ID_COLUMN)
    if history:
        wanted.extend(HISTORY_SPECS)
    elif soft_deleted or version is VendorVersion.V2_26:
        wanted.append(DELETED_COLUMN)
    columns.extend(column for column in wanted if column.name not in existing)
    return TableDefinition(tuple(columns))
