"""The servicer of the Partner SDK's ten calls, including the setup form and its tests."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import structlog

from chronolake import core
from chronolake.core.history_only import may_have_mode, opt_out
from chronolake.errors import ChronolakeError
from chronolake.protos import common_pb2, destination_sdk_pb2, destination_sdk_pb2_grpc
from chronolake.server import messages, migrate, write_batch
from chronolake.server.calls import Call, Calls, describe_failure, rpc_method, text_of
from chronolake.types import SYNCED, Column, ColumnType, Kind, Mode, TableName

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    import grpc

    from chronolake.lake import Lake
    from chronolake.server.metrics import Metrics


SCHEMA_PREFIX: Final = "schema_prefix"
PROBE_SCHEMA: Final = "chronolake_setup_test"
_PROBE_COLUMNS: Final = (
    Column("id", ColumnType(Kind.LONG), primary_key=True),
    Column(SYNCED, ColumnType(Kind.UTC_DATETIME)),
)


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of one customer.

    Attributes:
        schema_prefix: prefix of every schema's name, "" by default.
    """

    schema_prefix: str = ""

    @classmethod
    def of(cls, values: Mapping[str, str]) -> Configuration:
        """Read the values that are sent with every request.

        A missing or empty value means the default. Keys that are not in the form are ignored,
        because a saved form may be older or newer than this server.
        """
        # A protobuf map inserts a missing key on access with [], so its presence is checked first.
        prefix = values[SCHEMA_PREFIX] if SCHEMA_PREFIX in values else ""  # noqa: SIM401
        return cls(schema_prefix=prefix)


def configuration_form() -> common_pb2.ConfigurationFormResponse:
    """Return the setup form. It does not contain the lake, which the server's operator chooses."""
    return common_pb2.ConfigurationFormResponse(
        schema_selection_supported=True,
        table_selection_supported=True,
        fields=[
            common_pb2.FormField(
                name=SCHEMA_PREFIX,
                label="Schema prefix",
                required=False,
                description="Prefix of every schema name, to separate several connections in one "
                "lake.",
                text_field=common_pb2.PlainText,
                placeholder="team_a_",
            )
        ],
        tests=[
            common_pb2.ConfigurationTest(name=name, label=label)
            for name, (label, _) in TESTS.items()
        ],
    )


def _test_connection(lake: Lake) -> None:
    lake.tables()


def _test_write(lake: Lake) -> None:
    probe = TableName(PROBE_SCHEMA, f"probe_{secrets.token_hex(8)}")
    core.create(lake, probe, _PROBE_COLUMNS)
    lake.catalog.drop(probe, purge=True)


#: The tests by name: the label in the form, and a function that raises if the test fails.
TESTS: Final[dict[str, tuple[str, Callable[[Lake], None]]]] = {
    "connection": ("The lake's catalog can be read", _test_connection),
    "write": ("Tables can be created and removed", _test_write),
}


_log = structlog.get_logger(__name__)

_FORMATS: Final = {"csv": destination_sdk_pb2.CSV, "parquet": destination_sdk_pb2.PARQUET}


class Destination(Calls, destination_sdk_pb2_grpc.DestinationConnectorServicer):  # type: ignore[misc]
    """The servicer of `fivetran_sdk.v2.DestinationConnector`.

    Args:
        lake: the lake of the tables.
        metrics: the counters of calls.
        writing: context manager for a table while a call may change its rows.
        batch_format: the response of Capabilities.
        files_root: real path of the folder that must contain batch files, or None.
    """

    def __init__(
        self,
        lake: Lake,
        *,
        metrics: Metrics,
        writing: Callable[[TableName], AbstractContextManager[None]],
        batch_format: Literal["csv", "parquet"] = "csv",
        files_root: str | None = None,
    ) -> None:
        super().__init__(lake, metrics)
        self._writing = writing
        self._format = batch_format
        self._root = files_root
        self._reported_modes: set[TableName] = set()

    def ConfigurationForm(  # noqa: N802 - the protocol's name
        self,
        request: common_pb2.ConfigurationFormRequest,  # noqa: ARG002 - gRPC passes it by position
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> common_pb2.ConfigurationFormResponse:
        """Return the fields of the configuration form, and the available tests."""
        self._metrics.count_response("ConfigurationForm", "success")
        return configuration_form()

    def Capabilities(  # noqa: N802
        self,
        request: destination_sdk_pb2.CapabilitiesRequest,  # noqa: ARG002
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> destination_sdk_pb2.CapabilitiesResponse:
        """Return the supported format of batch files."""
        self._metrics.count_response("Capabilities", "success")
        return destination_sdk_pb2.CapabilitiesResponse(batch_file_format=_FORMATS[self._format])

    @rpc_method(lambda task: common_pb2.TestResponse(failure=task.message))
    def Test(  # noqa: N802
        self,
        request: common_pb2.TestRequest,
        call: Call,  # noqa: ARG002 - a test does not have a table
    ) -> common_pb2.TestResponse:
        """Run a test of the form; a failure is a text in the response, not a gRPC status."""
        if request.name not in TESTS:
            return common_pb2.TestResponse(failure="This test does not exist.")
        try:
            TESTS[request.name][1](self._lake)
        except ChronolakeError as error:
            _log.warning("test_failed", test=request.name, reason=text_of(error))
            return common_pb2.TestResponse(failure=text_of(error))
        except Exception as failure:  # noqa: BLE001 - a test must report every failure
            _log.warning("test_failed", test=request.name, **describe_failure(failure))
            return common_pb2.TestResponse(failure="The lake cannot be used; see the server's log.")
        _log.info("test_passed", test=request.name)
        return common_pb2.TestResponse(success=True)

    @rpc_method(lambda task: destination_sdk_pb2.DescribeTableResponse(task=task))
    def DescribeTable(  # noqa: N802
        self, request: destination_sdk_pb2.DescribeTableRequest, call: Call
    ) -> destination_sdk_pb2.DescribeTableResponse:
        """Return the columns of a table, or that it was not found."""
        name = call.table = messages.table_name(
            request.schema_name, request.table_name, prefix=_prefix(request)
        )
        found = self._lake.describe(name)
        if found is None:
            return destination_sdk_pb2.DescribeTableResponse(not_found=True)
        return destination_sdk_pb2.DescribeTableResponse(
            table=messages.table_message(request.table_name, found.columns, found.primary_key)
        )

    @rpc_method(lambda task: destination_sdk_pb2.CreateTableResponse(task=task))
    def CreateTable(  # noqa: N802
        self, request: destination_sdk_pb2.CreateTableRequest, call: Call
    ) -> destination_sdk_pb2.CreateTableResponse:
        """Create a table, and its schema if missing; the response for an existing one is a task."""
        name = call.table = messages.table_name(
            request.schema_name, request.table.name, prefix=_prefix(request)
        )
        columns = messages.columns_of(request.table)
        core.create(self._lake, name, columns)
        _log.info("table_created", table=str(name), columns=len(columns))
        return destination_sdk_pb2.CreateTableResponse(success=True)

    @rpc_method(lambda task: destination_sdk_pb2.AlterTableResponse(task=task))
    def AlterTable(  # noqa: N802
        self, request: destination_sdk_pb2.AlterTableRequest, call: Call
    ) -> destination_sdk_pb2.AlterTableResponse:
        """Alter a table to the request's columns, atomically."""
        name = call.table = messages.table_name(
            request.schema_name, request.table.name, prefix=_prefix(request)
        )
        columns = messages.columns_of(request.table)
        with self._writing(name):
            changed = core.alter(self._lake, name, columns, drop_columns=request.drop_columns)
        _log.info("table_altered", table=str(name), changed=changed)
        return destination_sdk_pb2.AlterTableResponse(success=True)

    @rpc_method(lambda task: destination_sdk_pb2.TruncateResponse(task=task))
    def Truncate(  # noqa: N802
        self, request: destination_sdk_pb2.TruncateRequest, call: Call
    ) -> destination_sdk_pb2.TruncateResponse:
        """Remove or mark the rows before a time; a missing table is not an error."""
        prefix = _prefix(request)
        call.table = messages.table_name(request.schema_name, request.table_name, prefix=prefix)
        wanted = messages.truncate_of(request, prefix=prefix)
        with self._writing(wanted.name):
            result = core.truncate(
                self._lake,
                wanted.name,
                synced_column=wanted.synced_column,
                before_micros=wanted.before_micros,
                deleted_column=wanted.deleted_column,
            )
        _log.info(
            "table_truncated",
            table=str(wanted.name),
            exists=result.exists,
            rows=result.rows,
            soft=wanted.deleted_column is not None,
            without_time=wanted.before_micros is None,
        )
        return destination_sdk_pb2.TruncateResponse(success=True)

    @rpc_method(lambda task: destination_sdk_pb2.WriteBatchResponse(task=task))
    def WriteBatch(  # noqa: N802
        self, request: destination_sdk_pb2.WriteBatchRequest, call: Call
    ) -> destination_sdk_pb2.WriteBatchResponse:
        """Write the files of a batch to a table that keeps the newest state."""
        return self._write(request, call, history=False)

    @rpc_method(lambda task: destination_sdk_pb2.WriteBatchResponse(task=task))
    def WriteHistoryBatch(  # noqa: N802
        self, request: destination_sdk_pb2.WriteHistoryBatchRequest, call: Call
    ) -> destination_sdk_pb2.WriteBatchResponse:
        """Write the files of a batch to a table that keeps every version."""
        return self._write(request, call, history=True)

    @rpc_method(lambda task: destination_sdk_pb2.MigrateResponse(task=task))
    def Migrate(  # noqa: N802
        self, request: destination_sdk_pb2.MigrateRequest, call: Call
    ) -> destination_sdk_pb2.MigrateResponse:
        """Migrate a table, its mode or a column, in one commit or not at all."""
        migration = migrate.migration_of(request, prefix=_prefix(request))
        if migration is None:
            return destination_sdk_pb2.MigrateResponse(unsupported=True)
        call.table = migration.name
        with self._writing(migration.name):
            migration.run(self._lake)
        _log.info("table_migrated", table=str(migration.name), operation=migration.operation)
        return destination_sdk_pb2.MigrateResponse(success=True)

    def _write(
        self,
        request: destination_sdk_pb2.WriteBatchRequest
        | destination_sdk_pb2.WriteHistoryBatchRequest,
        call: Call,
        *,
        history: bool,
    ) -> destination_sdk_pb2.WriteBatchResponse:
        prefix = _prefix(request)
        call.table = messages.table_name(request.schema_name, request.table.name, prefix=prefix)
        write = messages.write_of(request, format=self._format, prefix=prefix, root=self._root)
        with self._writing(write.name):
            written = write_batch.run(self._lake, write, history=history, batch=call.batch)
        self._report_mode(write.name, written.mode)
        result = written.result
        if result is None:
            _log.info("batch_empty", table=str(write.name))
            return destination_sdk_pb2.WriteBatchResponse(success=True)
        _log.info(
            "batch_written",
            table=str(write.name),
            files=len(write.files),
            bytes=written.size,
            replaced=result.replaced,
            updated=result.updated,
            deleted=result.deleted,
            ignored=result.ignored,
            seconds=round(written.seconds, 3),
        )
        self._metrics.count_batch(
            str(write.name), result, history=history, size=written.size, seconds=written.seconds
        )
        return destination_sdk_pb2.WriteBatchResponse(success=True)

    def _report_mode(self, name: TableName, mode: Mode) -> None:
        """Log, once for each table, that it was created in a mode that it can no longer be given.

        Its writes are accepted: an upgrade must not stop a sync.
        """
        if may_have_mode(self._lake.config, name, mode) or name in self._reported_modes:
            return
        self._reported_modes.add(name)
        _log.warning(
            "not_in_history_mode",
            table=str(name),
            mode=mode.value,
            reason=f"switch it with `chronolake mode`, or {opt_out(name)}",
        )


def _prefix(request: Any) -> str:
    return Configuration.of(request.configuration).schema_prefix
