"""Conversion between the protocol's messages and the values of the packages below.

Only this module and the servicer use protobuf. A request is converted to a frozen dataclass, or
rejected with a typed error that describes the problem. Columns whose names Iceberg reserves have
other names in the lake (`chronolake.types.stored_name`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, cast

from chronolake.batch_files import BatchFile, FileForm
from chronolake.change_set import Op, expect_unreserved
from chronolake.errors import BatchError, SchemaError, UnsupportedTypeError
from chronolake.protos import common_pb2, destination_sdk_pb2
from chronolake.types import (
    LAST_MICROS,
    START,
    TMIN_MICROS,
    Column,
    ColumnType,
    Kind,
    Mode,
    TableName,
    mode_of,
    sent_name,
    stored_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Literal

    from google.protobuf.timestamp_pb2 import Timestamp

_KINDS: Final[dict[int, Kind]] = {
    int(number): Kind(name)
    for name, number in common_pb2.DataType.items()
    if name in Kind.__members__
}
_DATA_TYPES: Final[dict[Kind, common_pb2.DataType]] = {
    kind: cast("common_pb2.DataType", common_pb2.DataType.Value(kind.name)) for kind in Kind
}
_COMPRESSIONS: Final[dict[int, Literal["off", "zstd", "gzip"]]] = {
    destination_sdk_pb2.OFF: "off",
    destination_sdk_pb2.ZSTD: "zstd",
    destination_sdk_pb2.GZIP: "gzip",
}
_NANOS: Final = 1_000_000_000
_FILE_LISTS: Final = {
    "earliest_start_files": Op.EARLIEST,
    "replace_files": Op.REPLACE,
    "update_files": Op.UPDATE,
    "delete_files": Op.DELETE,
}


@dataclass(frozen=True, slots=True)
class Write:
    """The request of WriteBatch and WriteHistoryBatch.

    Attributes:
        columns: the columns of the files, with the types and keys in the request.
        files: the batch files, in the order earliest, replace, update, delete.
        form: the format, compression and encryption of all files.
    """

    name: TableName
    columns: tuple[Column, ...]
    files: tuple[BatchFile, ...]
    form: FileForm


@dataclass(frozen=True, slots=True)
class Truncate:
    """The request of Truncate.

    Attributes:
        synced_column: the column whose time is compared.
        before_micros: rows with an earlier time are removed, microseconds since 1970 UTC; None to
            remove no rows.
        deleted_column: the column to set to true instead of removing rows, or None.
    """

    name: TableName
    synced_column: str
    before_micros: int | None
    deleted_column: str | None


def table_name(schema: str, table: str, *, prefix: str = "") -> TableName:
    """Return the table of a request.

    Args:
        schema: the request's schema name.
        table: the request's table name.
        prefix: prefix of the schema name.

    Raises:
        SchemaError: one of the names is empty, or the schema is reserved.
    """
    if not schema:
        raise SchemaError("The schema name is empty.", hint="Send the name of a schema.")
    if not table:
        raise SchemaError("The table name is empty.", hint="Send the name of a table.")
    name = TableName(prefix + schema, table)
    expect_unreserved(name)
    return name


def columns_of(message: common_pb2.Table) -> tuple[Column, ...]:
    """Return the columns of a request's table, in its order; they are not validated as a schema.

    The key of a history table includes `_fivetran_start`, even if the request does not: callers
    differ, and the key must identify versions.

    Raises:
        UnsupportedTypeError: a type is unspecified, unknown or invalid.
    """
    columns = tuple(_column_of(column) for column in message.columns)
    is_history = mode_of(column.name for column in columns) is Mode.HISTORY
    if not is_history or not any(column.primary_key for column in columns):
        return columns
    return tuple(
        replace(column, primary_key=True) if column.name == START else column for column in columns
    )


def column_of(name: str, data_type: int) -> Column:
    """Return the column of a migration, which has only a name (as it is stored) and a type.

    Raises:
        UnsupportedTypeError: the type is unspecified or unknown.
    """
    return Column(name, ColumnType(_kind_of(data_type, name)))


def _kind_of(data_type: int, column: str) -> Kind:
    kind = _KINDS.get(data_type)
    if kind is None:
        raise UnsupportedTypeError(
            f"The column's type (number {data_type}) is not supported.",
            hint="Use one of " + ", ".join(Kind) + ".",
            column=column,
        )
    return kind


def _column_of(message: common_pb2.Column) -> Column:
    kind = _kind_of(message.type, message.name)
    # Other types may have a decimal's parameters by mistake, and strings a length as a hint.
    has_parameters = kind is Kind.DECIMAL and message.params.WhichOneof("params") == "decimal"
    try:
        type_ = (
            ColumnType(kind, message.params.decimal.precision, message.params.decimal.scale)
            if has_parameters
            else ColumnType(kind)
        )
    except UnsupportedTypeError as error:
        raise UnsupportedTypeError(error.message, hint=error.hint, column=message.name) from error
    return Column(stored_name(message.name), type_, primary_key=message.primary_key)


def table_message(name: str, columns: Iterable[Column], key: Iterable[str]) -> common_pb2.Table:
    """Return a table for DescribeTable: every column with its type and whether it is in the key."""
    keys = frozenset(key)
    table = common_pb2.Table(name=name)
    for column in columns:
        message = table.columns.add(
            name=sent_name(column.name),
            type=_DATA_TYPES[column.type.kind],
            primary_key=column.name in keys,
        )
        if column.type.kind is Kind.DECIMAL:
            message.params.decimal.precision = column.type.precision or 0
            message.params.decimal.scale = column.type.scale or 0
    return table


def micros_of(time: Timestamp, name: TableName) -> int:
    """Return a protobuf time in microseconds since 1970 UTC; finer digits are truncated.

    Raises:
        BatchError: the time is outside the years 1 to 9999, the range of protobuf. Such a time is a
            mistake, and all rows may be before it.
    """
    micros = time.seconds * 1_000_000 + time.nanos // 1_000
    if not (TMIN_MICROS <= micros <= LAST_MICROS and 0 <= time.nanos < _NANOS):
        raise BatchError(
            f"The request's time has {time.seconds} seconds and {time.nanos} nanoseconds, which is "
            "not a valid time in the years 1 to 9999.",
            hint="Send seconds since 1970, and fewer than 1,000,000,000 nanoseconds.",
            table=str(name),
        )
    return micros


def truncate_of(request: destination_sdk_pb2.TruncateRequest, *, prefix: str = "") -> Truncate:
    """Convert a TruncateRequest.

    Raises:
        SchemaError: the name of the schema, the table, or one of the columns is empty.
        BatchError: the time is invalid.
    """
    name = table_name(request.schema_name, request.table_name, prefix=prefix)
    if not request.synced_column:
        raise SchemaError(
            "The request does not name a synced column.",
            hint="Set synced_column to the column that contains the time of the sync.",
            table=str(name),
        )
    soft = request.HasField("soft")
    if soft and not request.soft.deleted_column:
        # As a hard truncate, this would remove rows that should only be marked.
        raise SchemaError(
            "The soft truncate does not name a column to set.",
            hint="Set deleted_column to the column that marks deleted rows.",
            table=str(name),
        )
    return Truncate(
        name=name,
        synced_column=stored_name(request.synced_column),
        # Zero is a valid time, so the field's presence is checked.
        before_micros=(
            micros_of(request.utc_delete_before, name)
            if request.HasField("utc_delete_before")
            else None
        ),
        deleted_column=stored_name(request.soft.deleted_column) if soft else None,
    )


def write_of(
    request: destination_sdk_pb2.WriteBatchRequest | destination_sdk_pb2.WriteHistoryBatchRequest,
    *,
    format: Literal["csv", "parquet"],  # noqa: A002
    prefix: str = "",
    root: str | None = None,
) -> Write:
    """Convert a write request of either kind.

    Args:
        request: the message.
        format: the response of Capabilities; a request does not contain the format of its files.
        prefix: prefix of the schema name.
        root: real path of the folder that must contain the files, or None.

    Raises:
        SchemaError: a name is empty, or a type is not supported.
        BatchError: the compression or encryption of the files is unknown.
    """
    name = table_name(request.schema_name, request.table.name, prefix=prefix)
    form = _form_of(request.file_params, format, name)
    files = [
        BatchFile(path, op, _key_of(request.keys, path) if form.encrypted else None, root)
        for field, op in _FILE_LISTS.items()
        for path in _paths(request, field)
    ]
    return Write(name=name, columns=columns_of(request.table), files=tuple(files), form=form)


def _paths(
    request: destination_sdk_pb2.WriteBatchRequest | destination_sdk_pb2.WriteHistoryBatchRequest,
    field: str,
) -> Sequence[str]:
    paths: Sequence[str] = getattr(request, field, ())
    return paths


def _key_of(keys: Mapping[str, bytes], path: str) -> bytes | None:
    # The map's key is the path exactly as in the list, never the base name.
    return keys[path] if path in keys else None  # noqa: SIM401 - a protobuf map's get() adds nothing


def _form_of(
    params: destination_sdk_pb2.FileParams, format_: Literal["csv", "parquet"], name: TableName
) -> FileForm:
    compression = _COMPRESSIONS.get(params.compression)
    if compression is None:
        raise BatchError(
            f"The files' compression (number {params.compression}) is not supported.",
            hint="Compress the files with zstd or gzip, or not at all.",
            table=str(name),
        )
    if params.encryption not in (destination_sdk_pb2.NONE, destination_sdk_pb2.AES):
        raise BatchError(
            f"The files' encryption (number {params.encryption}) is not supported.",
            hint="Encrypt the files with AES, or not at all.",
            table=str(name),
        )
    return FileForm(
        format=format_,
        compression=compression,
        encrypted=params.encryption == destination_sdk_pb2.AES,
        null_string=params.null_string,
        unmodified_string=params.unmodified_string,
    )
