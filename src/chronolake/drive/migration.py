"""The schema migrations that a scenario may ask for, each as the form in which it is written."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from chronolake.drive import instants
from chronolake.drive.definition import ColumnSpec
from chronolake.drive.values import cell_text
from chronolake.errors import UnsupportedTypeError
from chronolake.types import Kind

Name = Annotated[str, Field(min_length=1)]


class TypeForm(BaseModel):
    """A column's type: a bare name of a type, or an object with `type`, `precision`, `scale`."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: Kind
    precision: Annotated[int, Field(strict=True)] | None = None
    scale: Annotated[int, Field(strict=True)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _possible(self) -> TypeForm:
        if self.type is Kind.DECIMAL and self.precision is not None:
            try:
                _ = self.column("").type
            except UnsupportedTypeError as failure:
                raise ValueError(failure.message) from None
        return self

    def column(self, name: str, *, key: bool = False) -> ColumnSpec:
        """A column of this type."""
        if self.type is not Kind.DECIMAL or self.precision is None:
            return ColumnSpec(name, self.type, key=key)
        return ColumnSpec(name, self.type, self.precision, self.scale or 0, key=key)


def _time(text: Any) -> Any:
    if isinstance(text, str):
        instants.nanos(text)
    return text


Time = Annotated[str, BeforeValidator(_time)]
#: Numbers and booleans may stand where the wire wants a text.
Text = Annotated[str, BeforeValidator(cell_text)]


class Migration(BaseModel):
    """One schema migration.

    Attributes:
        operation: the key it has in a scenario.
        place: where it stands, as a JSON path.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    operation: ClassVar[str]

    place: str = Field(default="$", exclude=True)

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables it is about: the one it starts from first."""
        names = [getattr(self, name, None) for name in ("table", "from_table", "to_table")]
        return tuple(name for name in names if name)


class _OnTable(Migration):
    table: Name


class _OnColumn(_OnTable):
    column: Name


class _Typed(_OnColumn):
    data_type: TypeForm

    @property
    def spec(self) -> ColumnSpec:
        """The column that it adds or changes, as declared."""
        return self.data_type.column(self.column)


class _BetweenColumns(_OnTable):
    from_column: Name
    to_column: Name


class _BetweenTables(Migration):
    from_table: Name
    to_table: Name


class AddColumn(_Typed):
    """AlterTable with one more column."""

    operation = "add_column"


class ChangeColumnDataType(_Typed):
    """AlterTable with another type for one column."""

    operation = "change_column_data_type"


class DropColumn(_OnColumn):
    """AlterTable without the column, `drop_columns` true."""

    operation = "drop_column"


class CopyColumn(_BetweenColumns):
    """Migrate `copy.copy_column`."""

    operation = "copy_column"


class UpdateColumnValue(_OnColumn):
    """Migrate `update_column_value`: every row gets the value; `NULL` means NULL."""

    operation = "update_column_value"
    value: Text


class SetColumnToNull(_OnColumn):
    """Migrate `update_column_value` with the text `NULL`."""

    operation = "set_column_to_null"


class AddColumnWithDefaultValue(_Typed):
    """Migrate `add.add_column_with_default_value`."""

    operation = "add_column_with_default_value"
    default_value: Text


class CopyTable(_BetweenTables):
    """Migrate `copy.copy_table`."""

    operation = "copy_table"


class RenameColumn(_BetweenColumns):
    """Migrate `rename.rename_column`."""

    operation = "rename_column"


class RenameTable(_BetweenTables):
    """Migrate `rename.rename_table`."""

    operation = "rename_table"


class DropTable(_OnTable):
    """Migrate `drop.drop_table`."""

    operation = "drop_table"


class AddColumnInHistoryMode(_Typed):
    """Migrate `add.add_column_in_history_mode`."""

    operation = "add_column_in_history_mode"
    default_value: Text
    operation_timestamp: Time


class DropColumnInHistoryMode(_OnColumn):
    """Migrate `drop.drop_column_in_history_mode`: the column stays, its active values end."""

    operation = "drop_column_in_history_mode"
    operation_timestamp: Time


class CopyTableToHistoryMode(_BetweenTables):
    """Migrate `copy.copy_table_to_history_mode`."""

    operation = "copy_table_to_history_mode"
    deleted_column: str = ""


class SyncMode(_OnTable):
    """Migrate `table_sync_mode_migration`.

    Attributes:
        mode: name of the `TableSyncModeMigrationType`.
        withdrawn: whether destinations are told not to implement it (the four live ones).
    """

    mode: ClassVar[str]
    withdrawn: ClassVar[bool] = False


class MigrateSoftDeleteToHistory(SyncMode):
    """A soft-delete table begins to keep its history."""

    operation = "migrate_soft_delete_to_history"
    mode = "SOFT_DELETE_TO_HISTORY"
    deleted_column: str | None = None


class MigrateHistoryToSoftDelete(SyncMode):
    """A history table keeps only the newest version of each record."""

    operation = "migrate_history_to_soft_delete"
    mode = "HISTORY_TO_SOFT_DELETE"
    deleted_column: str | None = None


class MigrateHistoryToLive(SyncMode):
    """Withdrawn: a history table loses its history columns."""

    operation = "migrate_history_to_live"
    mode = "HISTORY_TO_LIVE"
    withdrawn = True
    keep_inactive_rows: bool = False


class MigrateSoftDeleteToLive(SyncMode):
    """Withdrawn: a soft-delete table loses its deleted rows."""

    operation = "migrate_soft_delete_to_live"
    mode = "SOFT_DELETE_TO_LIVE"
    withdrawn = True
    deleted_column: str | None = None


class MigrateLiveToSoftDelete(SyncMode):
    """Withdrawn: a live table gets a delete marker."""

    operation = "migrate_live_to_soft_delete"
    mode = "LIVE_TO_SOFT_DELETE"
    withdrawn = True
    deleted_column: str | None = None


class MigrateLiveToHistory(SyncMode):
    """Withdrawn: a live table begins to keep its history."""

    operation = "migrate_live_to_history"
    mode = "LIVE_TO_HISTORY"
    withdrawn = True


#: Every migration by its key in a scenario.
MIGRATIONS: Final[dict[str, type[Migration]]] = {
    form.operation: form
    for form in (
        AddColumn,
        ChangeColumnDataType,
        DropColumn,
        CopyColumn,
        UpdateColumnValue,
        SetColumnToNull,
        AddColumnWithDefaultValue,
        CopyTable,
        RenameColumn,
        RenameTable,
        DropTable,
        AddColumnInHistoryMode,
        DropColumnInHistoryMode,
        CopyTableToHistoryMode,
        MigrateSoftDeleteToHistory,
        MigrateHistoryToSoftDelete,
        MigrateHistoryToLive,
        MigrateSoftDeleteToLive,
        MigrateLiveToSoftDelete,
        MigrateLiveToHistory,
    )
}
