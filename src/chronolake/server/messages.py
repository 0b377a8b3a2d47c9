"""The protocol's messages as the plain values that the rooms below know, and back.

Nothing of protobuf goes further than this module and the servicer. A request becomes a frozen
dataclass here or is refused with a typed error that says what is wrong with it. Columns whose names
Iceberg keeps for itself have other names in the lake (`chronolake.types.stored_name`).
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
    """What WriteBatch and WriteHistoryBatch ask for.

    Attributes:
        name: the table.
        columns: the columns that the files carry, with the types and keys the request claims.
        files: the batch files, in the order earliest, replace, update, delete.
        form: what was done to all of the files.
    """

    name: TableName
    columns: tuple[Column, ...]
    files: tuple[BatchFile, ...]
    form: FileForm


@dataclass(frozen=True, slots=True)
class Truncate:
    """What Truncate asks for.

    Attributes:
        name: the table.
        synced_column: the column whose time decides.
        before_micros: rows with an earlier time go, microseconds since 1970 UTC; None: no row goes.
        deleted_column: the column to set to true instead of removing rows, or None.
    """

    name: TableName
    synced_column: str
    before_micros: int | None
    deleted_column: str | None


def table_name(schema: str, table: str, *, prefix: str = "") -> TableName:
    """The table that a request is about.

    Args:
        schema: the request's schema name.
        table: the request's table name.
        prefix: text put before the schema name.

    Raises:
        SchemaError: one of the names is empty, or the schema is reserved.
    """
    if not schema:
        raise SchemaError("The schema name is empty.", hint="Name a schema.")
    if not table:
        raise SchemaError("The table name is empty.", hint="Name a table.")
    name = TableName(prefix + schema, table)
    expect_unreserved(name)
    return name


def columns_of(message: common_pb2.Table) -> tuple[Column, ...]:
    """The columns of a request's table, in its order; whether they make a table is not looked at.

    A history table with a key has its `_fivetran_start` in it, whether the caller says so or not:
    callers differ, and the key has to tell versions apart.

    Raises:
        UnsupportedTypeError: a type that is unspecified, unknown or impossible.
    """
    columns = tuple(_column_of(column) for column in message.columns)
    is_history = mode_of(column.name for column in columns) is Mode.HISTORY
    if not is_history or not any(column.primary_key for column in columns):
        return columns
    return tuple(
        replace(column, primary_key=True) if column.name == START else column for column in columns
    )


def column_of(name: str, data_type: int) -> Column:
    """A column that a migration describes by a name (as it is stored) and a type alone.

    Raises:
        UnsupportedTypeError: a type that is unspecified or unknown.
    """
    return Column(name, ColumnType(_kind_of(data_type, name)))


def _kind_of(data_type: int, column: str) -> Kind:
    kind = _KINDS.get(data_type)
    if kind is None:
        raise UnsupportedTypeError(
            f"The column has no type that is known here (number {data_type}).",
            hint="Declare one of " + ", ".join(Kind) + ".",
            column=column,
        )
    return kind


def _column_of(message: common_pb2.Column) -> Column:
    kind = _kind_of(message.type, message.name)
    # Other types may carry a decimal's parameters by mistake, and texts a length that is a hint.
    sized = kind is Kind.DECIMAL and message.params.WhichOneof("params") == "decimal"
    try:
        type_ = (
            ColumnType(kind, message.params.decimal.precision, message.params.decimal.scale)
            if sized
            else ColumnType(kind)
        )
    except UnsupportedTypeError as error:
        raise UnsupportedTypeError(error.message, hint=error.hint, column=message.name) from error
    return Column(stored_name(message.name), type_, primary_key=message.primary_key)


def table_message(name: str, columns: Iterable[Column], key: Iterable[str]) -> common_pb2.Table:
    """A table as DescribeTable answers it: every column with its type and its part in the key."""
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
    """A protobuf time in microseconds since 1970 UTC; finer digits are cut off.

    Raises:
        BatchError: it is none of the years 1 to 9999, which are all that protobuf knows. Nobody
            means such a time, and all rows may be before it.
    """
    micros = time.seconds * 1_000_000 + time.nanos // 1_000
    if not (TMIN_MICROS <= micros <= LAST_MICROS and 0 <= time.nanos < _NANOS):
        raise BatchError(
            f"The request's time has {time.seconds} seconds and {time.nanos} nanoseconds, which is "
            "no time of the years 1 to 9999.",
            hint="Send seconds since 1970, and less than a second of nanoseconds.",
            table=str(name),
        )
    return micros


def truncate_of(request: destination_sdk_pb2.TruncateRequest, *, prefix: str = "") -> Truncate:
    """A TruncateRequest as a value.

    Raises:
        SchemaError: an empty name of the schema, the table, or one of the columns.
        BatchError: a time that is none.
    """
    name = table_name(request.schema_name, request.table_name, prefix=prefix)
    if not request.synced_column:
        raise SchemaError(
            "The request names no synced column.",
            hint="Name the column that holds the time of the sync.",
            table=str(name),
        )
    soft = request.HasField("soft")
    if soft and not request.soft.deleted_column:
        # Reading this as a hard truncate would remove rows that were only to be marked.
        raise SchemaError(
            "The request is a soft truncate and names no column to set.",
            hint="Name the column that marks deleted rows.",
            table=str(name),
        )
    return Truncate(
        name=name,
        synced_column=stored_name(request.synced_column),
        # Presence counts: zero is a time like any other.
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
    """A write request of either kind as a value.

    Args:
        request: the message.
        format: what Capabilities answered; a request does not say what its files are.
        prefix: text put before the schema name.
        root: real path of the folder that the files must lie in, or None.

    Raises:
        SchemaError: an empty name, or a type that cannot be kept.
        BatchError: the files are compressed or encrypted in a way that is not known here.
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
    # The key stands under the path exactly as the list spells it, never under the base name.
    return keys[path] if path in keys else None  # noqa: SIM401 - a protobuf map's get() adds nothing


def _form_of(
    params: destination_sdk_pb2.FileParams, format_: Literal["csv", "parquet"], name: TableName
) -> FileForm:
    compression = _COMPRESSIONS.get(params.compression)
    if compression is None:
        raise BatchError(
            f"The files' compression (number {params.compression}) is not known here.",
            hint="Send files that are compressed with zstd or gzip, or not at all.",
            table=str(name),
        )
    if params.encryption not in (destination_sdk_pb2.NONE, destination_sdk_pb2.AES):
        raise BatchError(
            f"The files' encryption (number {params.encryption}) is not known here.",
            hint="Send files that are encrypted with AES, or not at all.",
            table=str(name),
        )
    return FileForm(
        format=format_,
        compression=compression,
        encrypted=params.encryption == destination_sdk_pb2.AES,
        null_string=params.null_string,
        unmodified_string=params.unmodified_string,
    )
