"""A caller of the destination: builds requests, sends files, and reads tables with PyIceberg."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import grpc
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import NullPool, create_engine

from chronolake.protos import common_pb2, destination_sdk_pb2
from chronolake.protos.destination_sdk_pb2_grpc import DestinationConnectorStub
from support.server.sent_files import NULL, UNMODIFIED, SentFile, csv_text, write_batch_file

SYNCED = "_fivetran_synced:UTC_DATETIME"
DELETED = "_fivetran_deleted:BOOLEAN"
START = "_fivetran_start*:UTC_DATETIME"
HISTORY = [SYNCED, START, "_fivetran_end:UTC_DATETIME", "_fivetran_active:BOOLEAN"]
_SIZED = re.compile(r"DECIMAL\((\d+),(\d+)\)")

Rows = Sequence[Mapping[str, str | None]]


def column(text: str) -> common_pb2.Column:
    """Return a column from `name:TYPE`; a star after the name makes it part of the key."""
    name, _, kind = text.rpartition(":")
    message = common_pb2.Column(name=name.removesuffix("*"), primary_key=name.endswith("*"))
    if sized := _SIZED.fullmatch(kind):
        message.params.decimal.precision, message.params.decimal.scale = map(int, sized.groups())
        kind = "DECIMAL"
    message.type = common_pb2.DataType.Value(kind)
    return message


def table(name: str, columns: Sequence[str]) -> common_pb2.Table:
    return common_pb2.Table(name=name, columns=[column(text) for text in columns])


def column_texts(columns: Sequence[common_pb2.Column]) -> list[str]:
    """Return columns as texts, the inverse of `column`."""
    texts = []
    for column in columns:
        kind = common_pb2.DataType.Name(column.type)
        if column.HasField("params"):
            kind += f"({column.params.decimal.precision},{column.params.decimal.scale})"
        texts.append(f"{column.name}{'*' if column.primary_key else ''}:{kind}")
    return texts


@dataclass
class Caller:
    channel: grpc.Channel
    lake: Path
    folder: Path
    schema: str = "tester"
    configuration: Mapping[str, str] = field(default_factory=dict)
    catalog_uri: str | None = None

    def __post_init__(self) -> None:
        self.stub = DestinationConnectorStub(self.channel)

    def create(self, name: str, columns: Sequence[str]) -> Any:
        return self.stub.CreateTable(
            destination_sdk_pb2.CreateTableRequest(
                configuration=self.configuration,
                schema_name=self.schema,
                table=table(name, columns),
            )
        )

    def alter(self, name: str, columns: Sequence[str], *, drop: bool = False) -> Any:
        return self.stub.AlterTable(
            destination_sdk_pb2.AlterTableRequest(
                configuration=self.configuration,
                schema_name=self.schema,
                table=table(name, columns),
                drop_columns=drop,
            )
        )

    def describe(self, name: str) -> Any:
        return self.stub.DescribeTable(
            destination_sdk_pb2.DescribeTableRequest(
                configuration=self.configuration, schema_name=self.schema, table_name=name
            )
        )

    def truncate(
        self,
        name: str,
        before: float | None,
        *,
        soft: str | None = None,
        synced: str = "_fivetran_synced",
    ) -> Any:
        """Call Truncate; `before` counts milliseconds since 1970."""
        request = destination_sdk_pb2.TruncateRequest(
            configuration=self.configuration,
            schema_name=self.schema,
            table_name=name,
            synced_column=synced,
        )
        if before is not None:
            # The library's own conversion supports only the years 1 to 9999.
            seconds, millis = divmod(int(before), 1_000)
            request.utc_delete_before.seconds = seconds
            request.utc_delete_before.nanos = millis * 1_000_000
        if soft is not None:
            request.soft.deleted_column = soft
        return self.stub.Truncate(request)

    def migrate(self, name: str, operation: str, **parts: Any) -> Any:
        """Request one operation of Migrate, by its name in the protocol, with its parts."""
        sdk = destination_sdk_pb2
        details = sdk.MigrationDetails(schema=self.schema, table=name)
        kind = parts.pop("column_type", None)
        if kind is not None:
            parts["column_type"] = common_pb2.DataType.Value(kind)
        if operation == "update_column_value":
            details.update_column_value.CopyFrom(sdk.UpdateColumnValueOperation(**parts))
        elif operation.isupper():
            details.table_sync_mode_migration.CopyFrom(
                sdk.TableSyncModeMigrationOperation(
                    type=sdk.TableSyncModeMigrationType.Value(operation), **parts
                )
            )
        elif operation == "drop_table":
            details.drop.drop_table = parts.get("drop_table", True)
        else:
            group = getattr(details, operation.partition("_")[0])
            getattr(group, operation).SetInParent()
            for part, value in parts.items():
                setattr(getattr(group, operation), part, value)
        return self.stub.Migrate(
            sdk.MigrateRequest(configuration=self.configuration, details=details)
        )

    def file(
        self,
        name: str,
        rows: Rows,
        *,
        columns: Sequence[str] | None = None,
        compression: Literal["off", "zstd", "gzip"] = "zstd",
        encrypted: bool = True,
    ) -> SentFile:
        """Return a file whose header is `columns`, or the first row's keys."""
        header = list(columns or rows[0])
        text = csv_text(header, [[row.get(name) for name in header] for row in rows])
        return write_batch_file(
            self.folder, name, text, compression=compression, encrypted=encrypted
        )

    def request(
        self,
        name: str,
        columns: Sequence[str],
        *,
        history: bool = False,
        earliest: Sequence[SentFile] = (),
        replace: Sequence[SentFile] = (),
        update: Sequence[SentFile] = (),
        delete: Sequence[SentFile] = (),
        compression: Literal["off", "zstd", "gzip"] = "zstd",
        encrypted: bool = True,
    ) -> Any:
        kind = (
            destination_sdk_pb2.WriteHistoryBatchRequest
            if history
            else destination_sdk_pb2.WriteBatchRequest
        )
        request = kind(
            configuration=self.configuration,
            schema_name=self.schema,
            table=table(name, columns),
            keys={
                file.path: file.key for file in [*earliest, *replace, *update, *delete] if encrypted
            },
            replace_files=[file.path for file in replace],
            update_files=[file.path for file in update],
            delete_files=[file.path for file in delete],
            file_params=destination_sdk_pb2.FileParams(
                compression=destination_sdk_pb2.Compression.Value(compression.upper()),
                encryption=destination_sdk_pb2.AES if encrypted else destination_sdk_pb2.NONE,
                null_string=NULL,
                unmodified_string=UNMODIFIED,
            ),
        )
        if history:
            request.earliest_start_files.extend(file.path for file in earliest)
        return request

    def write(
        self,
        name: str,
        columns: Sequence[str],
        *,
        replace: Rows = (),
        update: Rows = (),
        delete: Rows = (),
    ) -> Any:
        """Send rows as one file of each kind, in the schema's header order."""
        return self.stub.WriteBatch(
            self.request(
                name,
                columns,
                replace=[self.file("upsert", replace)] if replace else (),
                update=[self.file("update", update)] if update else (),
                delete=[self.file("delete", delete)] if delete else (),
            )
        )

    def rows(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        """Return the table's rows as PyIceberg reads them, sorted as text.

        All columns are read by default.
        """
        found = self.iceberg(name).scan().to_arrow()
        if columns:
            found = found.select(list(columns))
        rows = [tuple(row.values()) for row in found.to_pylist()]
        return sorted(rows, key=repr)

    def iceberg(self, name: str) -> Any:
        return catalog(self.lake, self.catalog_uri).load_table((self.schema, name))

    def snapshot(self, name: str) -> Any:
        current = self.iceberg(name).metadata.current_snapshot_id
        return current, self.iceberg(name).metadata_location


def catalog(lake: Path, uri: str | None = None) -> SqlCatalog:
    """Return PyIceberg's own view of a lake; of its SQLite file if there is no `uri`."""
    uri = (uri or f"sqlite:///{lake / 'catalog.db'}").replace("postgresql:", "postgresql+psycopg:")
    made = SqlCatalog("chronolake", uri=uri, warehouse=lake.as_uri())
    # Callers do not close a catalog, so it must keep no connection open.
    made.engine.dispose()
    made.engine = create_engine(uri, poolclass=NullPool)
    return made
