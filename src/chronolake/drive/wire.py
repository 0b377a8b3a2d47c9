"""The driver's words as messages of the Partner SDK, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.timestamp_pb2 import Timestamp

from chronolake.drive import migration as forms
from chronolake.drive.definition import ColumnSpec, TableDefinition
from chronolake.drive.files import NULL_STRING, UNMODIFIED_STRING, Compression
from chronolake.drive.rows import FileKind
from chronolake.protos import common_pb2 as common
from chronolake.protos import destination_sdk_pb2 as sdk
from chronolake.types import Kind

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Mapping

    from chronolake.drive.files import BatchFile, FileForm
    from chronolake.drive.migration import Migration

_COMPRESSIONS: Final = {
    Compression.OFF: sdk.OFF,
    Compression.ZSTD: sdk.ZSTD,
    Compression.GZIP: sdk.GZIP,
}

Files = dict[FileKind, tuple["BatchFile", ...]]


def table_message(
    name: str, definition: TableDefinition, *, shuffler: random.Random | None = None
) -> common.Table:
    """A table with its columns, in their order or shuffled."""
    columns = list(definition.columns)
    if shuffler is not None:
        shuffler.shuffle(columns)
    table = common.Table(name=name)
    for column in columns:
        message = table.columns.add(
            name=column.name,
            type=_data_type(column.kind),
            primary_key=column.key,
        )
        if column.precision is not None:
            message.params.decimal.precision = column.precision
            message.params.decimal.scale = column.scale or 0
    return table


def table_definition(table: common.Table) -> tuple[TableDefinition, tuple[str, ...]]:
    """The columns that a destination describes.

    Returns:
        The definition, and the names of columns whose type is UNSPECIFIED or unknown, which the
        definition leaves out.
    """
    columns, unknown = [], []
    kinds = {_data_type(kind): kind for kind in Kind}
    for column in table.columns:
        kind = kinds.get(column.type)
        if kind is None:
            unknown.append(column.name)
            continue
        decimal = column.params.decimal if column.params.WhichOneof("params") == "decimal" else None
        known = kind is Kind.DECIMAL and decimal is not None
        columns.append(
            ColumnSpec(
                column.name,
                kind,
                decimal.precision if known and decimal else None,
                decimal.scale if known and decimal else None,
                key=column.primary_key,
            )
        )
    return TableDefinition(tuple(columns)), tuple(unknown)


def _data_type(kind: Kind) -> common.DataType:
    number: common.DataType = getattr(common, kind.value)
    return number


def timestamp(millis: int) -> Timestamp:
    """Milliseconds since the epoch as a message."""
    return Timestamp(seconds=millis // 1000, nanos=millis % 1000 * 1_000_000)


def write_request(
    *,
    schema: str,
    configuration: Mapping[str, str],
    table: common.Table,
    files: Files,
    form: FileForm,
    history: bool,
) -> sdk.WriteBatchRequest | sdk.WriteHistoryBatchRequest:
    """A WriteBatch or, with history, a WriteHistoryBatch for the files."""
    paths = {kind: [file.path for file in files.get(kind, ())] for kind in FileKind}
    every = [file for group in files.values() for file in group]
    params = sdk.FileParams(
        compression=_COMPRESSIONS[form.compression],
        encryption=sdk.AES if form.encrypted else sdk.NONE,
        null_string=NULL_STRING,
        unmodified_string=UNMODIFIED_STRING,
    )
    keys = {file.path: file.key for file in every if file.key is not None}
    if history:
        return sdk.WriteHistoryBatchRequest(
            configuration=configuration,
            schema_name=schema,
            table=table,
            keys=keys,
            earliest_start_files=paths[FileKind.EARLIEST],
            replace_files=paths[FileKind.UPSERT],
            update_files=paths[FileKind.UPDATE],
            delete_files=paths[FileKind.DELETE],
            file_params=params,
        )
    return sdk.WriteBatchRequest(
        configuration=configuration,
        schema_name=schema,
        table=table,
        keys=keys,
        replace_files=paths[FileKind.UPSERT],
        update_files=paths[FileKind.UPDATE],
        delete_files=paths[FileKind.DELETE],
        file_params=params,
    )


def migration_details(  # noqa: C901, PLR0912 - one case a form
    schema: str, migration: Migration
) -> sdk.MigrationDetails:
    """A migration as the details of a Migrate request.

    Raises:
        TypeError: the migration goes through AlterTable.
    """
    details = sdk.MigrationDetails(schema=schema, table=migration.tables[0])
    match migration:
        case forms.CopyColumn():
            details.copy.copy_column.from_column = migration.from_column
            details.copy.copy_column.to_column = migration.to_column
        case forms.CopyTable():
            details.copy.copy_table.from_table = migration.from_table
            details.copy.copy_table.to_table = migration.to_table
        case forms.CopyTableToHistoryMode():
            copy = details.copy.copy_table_to_history_mode
            copy.from_table, copy.to_table = migration.from_table, migration.to_table
            copy.soft_deleted_column = migration.deleted_column
        case forms.RenameColumn():
            details.rename.rename_column.from_column = migration.from_column
            details.rename.rename_column.to_column = migration.to_column
        case forms.RenameTable():
            details.rename.rename_table.from_table = migration.from_table
            details.rename.rename_table.to_table = migration.to_table
        case forms.DropTable():
            details.drop.drop_table = True
        case forms.DropColumnInHistoryMode():
            drop = details.drop.drop_column_in_history_mode
            drop.column = migration.column
            drop.operation_timestamp = migration.operation_timestamp
        case forms.UpdateColumnValue():
            details.update_column_value.column = migration.column
            details.update_column_value.value = migration.value
        case forms.SetColumnToNull():
            details.update_column_value.column = migration.column
            details.update_column_value.value = "NULL"
        case forms.AddColumnWithDefaultValue():
            add = details.add.add_column_with_default_value
            add.column, add.default_value = migration.column, migration.default_value
            add.column_type = _data_type(migration.data_type.type)
        case forms.AddColumnInHistoryMode():
            added = details.add.add_column_in_history_mode
            added.column, added.default_value = migration.column, migration.default_value
            added.column_type = _data_type(migration.data_type.type)
            added.operation_timestamp = migration.operation_timestamp
        case forms.SyncMode():
            _sync_mode(details.table_sync_mode_migration, migration)
        case _:
            raise TypeError(f"{migration.operation} goes through AlterTable")
    return details


def _sync_mode(message: sdk.TableSyncModeMigrationOperation, migration: forms.SyncMode) -> None:
    mode: sdk.TableSyncModeMigrationType = getattr(sdk, migration.mode)
    message.type = mode
    marker = getattr(migration, "deleted_column", None)
    if marker is not None:
        message.soft_deleted_column = marker
    if isinstance(migration, forms.MigrateHistoryToLive):
        message.keep_deleted_rows = migration.keep_inactive_rows


def form_names(fields: Iterable[common.FormField]) -> list[str]:
    """The names of a form's fields, those under conditions included."""
    names: list[str] = []
    for one in fields:
        if one.WhichOneof("type") == "conditional_fields":
            names.extend(form_names(one.conditional_fields.fields))
        else:
            names.append(one.name)
    return names
