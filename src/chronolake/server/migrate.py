"""Migrate: each operation of the protocol as one change of the lake.

Source: `specs/partner-sdk.md` 4.8 and 4.9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import pyarrow as pa

from chronolake.core import migration
from chronolake.errors import SchemaError, ValueRefusedError
from chronolake.instants import micros_of
from chronolake.parsing import value_of
from chronolake.protos import destination_sdk_pb2 as sdk
from chronolake.server import messages
from chronolake.types import DELETED, LAST_MICROS, TMIN_MICROS, Mode, TableName, stored_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

    from chronolake.lake import Lake
    from chronolake.types import ColumnType

    Run = Callable[[Lake], object]

#: Text that means SQL's NULL when a column is updated; as a default value it is literal text.
_NULL: Final = "NULL"


@dataclass(frozen=True, slots=True)
class Migration:
    """The request of Migrate.

    Attributes:
        operation: the operation's name in the protocol.
        name: the table that changes, or is copied.
        run: runs the operation atomically.
    """

    operation: str
    name: TableName
    run: Run


def migration_of(request: sdk.MigrateRequest, *, prefix: str = "") -> Migration | None:
    """Convert a MigrateRequest; return None if its operation is not supported.

    Args:
        request: the message.
        prefix: prefix of the schema name.

    Raises:
        SchemaError: a name is empty, or a type is not supported.
        ValueRefusedError: the operation's time is invalid.
    """
    operation, entity = _operation(request.details)
    if operation not in _OPERATIONS:
        return None
    schema = request.details.schema
    table = getattr(entity, "from_table", request.details.table)
    name = messages.table_name(schema, table, prefix=prefix)
    try:
        return Migration(operation, name, _OPERATIONS[operation](name, entity))
    except (SchemaError, ValueRefusedError) as error:
        raise type(error)(
            error.message, hint=error.hint, table=error.table or str(name), column=error.column
        ) from error


def _operation(details: sdk.MigrationDetails) -> tuple[str, Message]:
    """Return an operation's name in the protocol, and the message with its parameters."""
    kind = details.WhichOneof("operation")
    if kind is None:
        return "", details
    body = cast("Message", getattr(details, kind))
    if kind == "update_column_value":
        return kind, body
    if isinstance(body, sdk.TableSyncModeMigrationOperation):
        known = sdk.TableSyncModeMigrationType.values()
        return (
            sdk.TableSyncModeMigrationType.Name(body.type) if body.type in known else "",
            body,
        )
    entity = body.WhichOneof("entity")
    if entity is None:
        return "", body
    part = getattr(body, entity)
    # A table is dropped if this boolean is present, whatever its value.
    return entity, details if isinstance(part, bool) else part


def _drop_table(name: TableName, _: sdk.MigrationDetails) -> Run:
    return lambda lake: migration.drop_table(lake, name)


def _rename_table(name: TableName, entity: sdk.RenameTable) -> Run:
    new_name = _in_same_schema(name, entity.to_table)
    return lambda lake: migration.rename_table(lake, name, new_name)


def _copy_table(name: TableName, entity: sdk.CopyTable) -> Run:
    new_name = _in_same_schema(name, entity.to_table)
    return lambda lake: migration.copy_table(lake, name, new_name)


def _copy_table_to_history_mode(name: TableName, entity: sdk.CopyTableToHistoryMode) -> Run:
    new_name = _in_same_schema(name, entity.to_table)
    sent = stored_name(entity.soft_deleted_column)
    return lambda lake: migration.copy_table_to_history(
        lake, name, new_name, markers=_markers(lake, name, sent)
    )


def _rename_column(name: TableName, entity: sdk.RenameColumn) -> Run:
    column, new_name = _column(entity.from_column), _column(entity.to_column)
    return lambda lake: migration.rename_column(lake, name, column, new_name)


def _copy_column(name: TableName, entity: sdk.CopyColumn) -> Run:
    column, new_name = _column(entity.from_column), _column(entity.to_column)
    return lambda lake: migration.copy_column(lake, name, column, new_name)


def _instant(text: str) -> int:
    micros = micros_of(text)
    if not TMIN_MICROS <= micros <= LAST_MICROS:
        raise ValueRefusedError(
            "The time is outside the years 1 to 9999.", hint="Use the format 2024-05-02T00:00:00Z."
        )
    return micros


def _update_column_value(name: TableName, entity: sdk.UpdateColumnValueOperation) -> Run:
    column = _column(entity.column)
    value = _null if entity.value == _NULL else _Text(entity.value, column)
    return lambda lake: migration.set_column_value(lake, name, column, value)


def _add_column_with_default_value(name: TableName, entity: sdk.AddColumnWithDefaultValue) -> Run:
    column = messages.column_of(_column(entity.column), entity.column_type)
    value = _Text(entity.default_value, column.name)
    return lambda lake: migration.add_column_with_default(lake, name, column, value)


def _add_column_in_history_mode(name: TableName, entity: sdk.AddColumnInHistoryMode) -> Run:
    column = messages.column_of(_column(entity.column), entity.column_type)
    value = _Text(entity.default_value, column.name)
    at = _instant(entity.operation_timestamp)
    return lambda lake: migration.add_column_in_history(lake, name, column, value, at_micros=at)


def _drop_column_in_history_mode(name: TableName, entity: sdk.DropColumnInHistoryMode) -> Run:
    column = _column(entity.column)
    at = _instant(entity.operation_timestamp)
    return lambda lake: migration.drop_column_in_history(lake, name, column, at_micros=at)


def _soft_delete_to_history(name: TableName, entity: sdk.TableSyncModeMigrationOperation) -> Run:
    sent = stored_name(entity.soft_deleted_column)
    return lambda lake: migration.switch_mode(
        lake, name, Mode.HISTORY, markers=_markers(lake, name, sent)
    )


def _history_to_soft_delete(name: TableName, entity: sdk.TableSyncModeMigrationOperation) -> Run:
    # Deleted records are kept as marked rows, whatever `keep_deleted_rows` is, which is for live
    # tables.
    marker = stored_name(entity.soft_deleted_column) or DELETED
    return lambda lake: migration.switch_mode(lake, name, Mode.SOFT_DELETE, markers=(marker,))


# The modes of live tables were documented for some months and then withdrawn: they are unsupported.
_OPERATIONS: Final[dict[str, Callable[[TableName, Message], Run]]] = cast(
    "dict[str, Callable[[TableName, Message], Run]]",
    {
        "drop_table": _drop_table,
        "drop_column_in_history_mode": _drop_column_in_history_mode,
        "copy_table": _copy_table,
        "copy_column": _copy_column,
        "copy_table_to_history_mode": _copy_table_to_history_mode,
        "rename_table": _rename_table,
        "rename_column": _rename_column,
        "add_column_in_history_mode": _add_column_in_history_mode,
        "add_column_with_default_value": _add_column_with_default_value,
        "update_column_value": _update_column_value,
        "SOFT_DELETE_TO_HISTORY": _soft_delete_to_history,
        "HISTORY_TO_SOFT_DELETE": _history_to_soft_delete,
    },
)


def _markers(lake: Lake, name: TableName, sent: str) -> tuple[str, ...]:
    """Return the existing columns that mark deleted rows: the sent one, and configured ones."""
    description = lake.describe(name)
    known = {} if description is None else description.by_name
    return tuple(
        column for column in (sent, *lake.config.deleted_columns_of(name)) if column in known
    )


def _in_same_schema(name: TableName, table: str) -> TableName:
    """Return a table of the same schema."""
    if not table:
        raise SchemaError("The name of the new table is empty.", hint="Send the name of a table.")
    return TableName(name.schema, table)


def _column(sent: str) -> str:
    if not sent:
        raise SchemaError("A column's name is empty.", hint="Send the name of a column.")
    return stored_name(sent)


@dataclass(frozen=True, slots=True)
class _Text:
    """A value in a message's text, whose type is that of its column."""

    text: str
    column: str

    def __call__(self, kind: ColumnType) -> pa.Scalar:
        try:
            return value_of(self.text, kind)
        except ValueRefusedError as error:
            raise ValueRefusedError(error.message, hint=error.hint, column=self.column) from None


def _null(kind: ColumnType) -> pa.Scalar:
    return pa.scalar(None, kind.arrow)
