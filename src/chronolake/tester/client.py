"""The gRPC client of the destination under test, and the conversion of types to messages."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from chronolake.errors import ConfigurationError
from chronolake.protos import common_pb2 as common
from chronolake.protos import destination_sdk_pb2 as sdk
from chronolake.protos.destination_sdk_pb2_grpc import DestinationConnectorStub
from chronolake.tester import scenario as forms
from chronolake.tester.definition import ColumnSpec, TableDefinition
from chronolake.tester.files import NULL_STRING, UNMODIFIED_STRING, Compression
from chronolake.tester.rows import FileKind
from chronolake.types import Kind

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path
    from types import TracebackType

    from chronolake.tester.files import BatchFile, FileForm
    from chronolake.tester.scenario import Migration


_COMPRESSIONS: Final = {
    Compression.OFF: sdk.OFF,
    Compression.ZSTD: sdk.ZSTD,
    Compression.GZIP: sdk.GZIP,
}

Files = dict[FileKind, tuple["BatchFile", ...]]


def table_message(
    name: str, definition: TableDefinition, *, shuffler: random.Random | None = None
) -> common.Table:
    """Return a table with its columns, in their order or shuffled."""
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
    """Return the columns that a destination describes.

    Returns:
        The definition, and the names of columns with an UNSPECIFIED or unknown type, which the
        definition does not contain.
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
    """Convert milliseconds since the epoch to a message."""
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
    """Return a WriteBatch or, with history, a WriteHistoryBatch request for the files."""
    paths = {kind: [file.path for file in files.get(kind, ())] for kind in FileKind}
    all_files = [file for group in files.values() for file in group]
    params = sdk.FileParams(
        compression=_COMPRESSIONS[form.compression],
        encryption=sdk.AES if form.encrypted else sdk.NONE,
        null_string=NULL_STRING,
        unmodified_string=UNMODIFIED_STRING,
    )
    keys = {file.path: file.key for file in all_files if file.key is not None}
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


def migration_details(  # noqa: C901, PLR0912 - one case per form
    schema: str, migration: Migration
) -> sdk.MigrationDetails:
    """Return the details of a Migrate request for a migration.

    Raises:
        TypeError: the migration is executed by AlterTable.
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
            raise TypeError(f"{migration.operation} is executed with AlterTable")
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
    """Return the names of a form's fields, including conditional ones."""
    names: list[str] = []
    for field in fields:
        if field.WhichOneof("type") == "conditional_fields":
            names.extend(form_names(field.conditional_fields.fields))
        else:
            names.append(field.name)
    return names


MESSAGE_LIMIT: Final = 128 * 1024 * 1024
#: The value of `Answer.member` if the destination does not implement the call.
UNIMPLEMENTED: Final = grpc.StatusCode.UNIMPLEMENTED.name
_TRY_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.2
_REPORT_SECONDS: Final = 5.0
#: OpenSSL errors that are permanent, unlike those of a server that is still starting.
_PERMANENT_ERRORS: Final = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER")
_OPTIONS: Final = (
    # A server that is starting is found as soon as it listens.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_send_message_length", MESSAGE_LIMIT),
    ("grpc.max_receive_message_length", MESSAGE_LIMIT),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one call.

    Attributes:
        rpc: the call.
        message: the response, or None if the call failed.
        member: the member of the response's oneof that is set; "unset" if none is set, "" if the
            response has no oneof, the name of the gRPC status if the call failed.
        text: the text of a warning, a task, a failure or a gRPC status.
        seconds: the duration.
    """

    rpc: str
    message: Any
    member: str
    text: str
    seconds: float

    @property
    def is_refused(self) -> bool:
        """Return whether the result ends a sync: a task, or a gRPC error."""
        return self.message is None or self.member == "task"


def _is_permanent(reason: str) -> bool:
    return any(word in reason for word in _PERMANENT_ERRORS)


def _connection_hint(reason: str) -> str:
    """Return a hint for a connection error."""
    if "Connection refused" in reason:
        return "Check that the destination is running and listens on this port."
    if "DNS" in reason or "resolve" in reason:
        return "Check the host name in --target."
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return "Set --ca-cert to the authority that signed the server's certificate."
    if "WRONG_VERSION_NUMBER" in reason:
        return "The server does not use TLS: remove --tls and --ca-cert."
    if "HTTP/2" in reason:
        return "Check --target: the server at this port does not use gRPC."
    return "Check --target, and --tls if the destination requires TLS."


class Destination:
    """A connection to a destination; a context manager."""

    def __init__(
        self,
        target: str,
        *,
        timeout: float,
        tls: bool = False,
        ca_certificate: Path | None = None,
    ) -> None:
        """Prepare the connection, which the first call opens.

        Args:
            target: `host:port`.
            timeout: maximum seconds for one call.
            tls: whether to use TLS.
            ca_certificate: PEM file with trusted authorities; implies `tls`. None uses gRPC's
                default ones.

        Raises:
            ConfigurationError: the certificate cannot be read.
        """
        self._timeout = timeout
        if tls or ca_certificate is not None:
            try:
                roots = ca_certificate.read_bytes() if ca_certificate is not None else None
            except OSError as failure:
                raise ConfigurationError(
                    f"The certificate cannot be read: {failure.strerror}.", file=str(ca_certificate)
                ) from failure
            credentials = grpc.ssl_channel_credentials(root_certificates=roots)
            self._channel = grpc.secure_channel(target, credentials, options=_OPTIONS)
        else:
            self._channel = grpc.insecure_channel(target, options=_OPTIONS)
        self._stub = DestinationConnectorStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._channel.close()

    def wait_until_reachable(
        self, seconds: float, on_wait: Callable[[float, str], None]
    ) -> str | None:
        """Wait until the destination responds, including while it is starting.

        Args:
            seconds: maximum seconds to wait.
            on_wait: called every few seconds with the seconds since the first try and the reason of
                the last failure.

        Returns:
            None if it responds, even with an error; else the reason of the last failure with a
            hint.
        """
        begin = time.monotonic()
        reported_at = begin
        while True:
            reason = self._probe(min(_TRY_SECONDS, max(begin + seconds - time.monotonic(), 0.1)))
            now = time.monotonic()
            if reason is None:
                return None
            if _is_permanent(reason) or now - begin >= seconds:
                return f"{reason} (gave up after {now - begin:.0f} s). {_connection_hint(reason)}"
            if now - reported_at >= _REPORT_SECONDS:
                on_wait(now - begin, reason)
                reported_at = now
            time.sleep(min(_PAUSE_SECONDS, seconds))

    def _probe(self, seconds: float) -> str | None:
        """Make one call; return why there was no response, or None if there was one."""
        try:
            self._stub.ConfigurationForm(common.ConfigurationFormRequest(), timeout=seconds)
        except grpc.RpcError as failure:
            if failure.code() is grpc.StatusCode.UNAVAILABLE:
                # gRPC appends the error of the operating system.
                return (failure.details() or "unavailable").rpartition("last error: ")[2]
            if failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return "no response to ConfigurationForm"
        return None

    def call(self, rpc: str, request: Any) -> Answer:
        """Make one call; a gRPC error is returned like any other result."""
        begin = time.monotonic()
        try:
            message = getattr(self._stub, rpc)(request, timeout=self._timeout)
        except grpc.RpcError as failure:
            status, text = failure.code().name, failure.details() or ""
            return Answer(rpc, None, status, text, time.monotonic() - begin)
        seconds = time.monotonic() - begin
        if not message.DESCRIPTOR.oneofs_by_name:
            return Answer(rpc, message, "", "", seconds)
        member = message.WhichOneof("response") or "unset"
        body: Any = getattr(message, member) if member != "unset" else ""
        if member in {"warning", "task"}:
            text = body.message
        elif member == "failure":
            text = body
        else:
            # `success: false` is valid in a message, but is not a success.
            text = "false" if body is False else ""
        return Answer(rpc, message, member, text, seconds)
