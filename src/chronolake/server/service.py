"""The ten calls of the Partner SDK, answered from a lake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import structlog

from chronolake import table
from chronolake.errors import ChronolakeError
from chronolake.protos import common_pb2, destination_sdk_pb2, destination_sdk_pb2_grpc
from chronolake.server import migrating, wire, writing
from chronolake.server.calls import Call, Calls
from chronolake.server.configuration import TESTS, Configuration, form
from chronolake.server.outcomes import text_of, unexpected

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import grpc

    from chronolake.lake import Lake
    from chronolake.server.metrics import Metrics
    from chronolake.types import TableName

_log = structlog.get_logger(__name__)

_FORMATS: Final = {"csv": destination_sdk_pb2.CSV, "parquet": destination_sdk_pb2.PARQUET}


class Destination(Calls, destination_sdk_pb2_grpc.DestinationConnectorServicer):  # type: ignore[misc]
    """The servicer of `fivetran_sdk.v2.DestinationConnector`.

    Args:
        lake: where the tables are.
        metrics: where calls are counted.
        writing: entered for a table while a call may change its rows.
        batch_format: what Capabilities answers.
        files_root: real path of the folder that batch files must lie in, or None.
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

    def ConfigurationForm(  # noqa: N802 - the protocol's name
        self,
        request: common_pb2.ConfigurationFormRequest,  # noqa: ARG002 - gRPC gives it by place
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> common_pb2.ConfigurationFormResponse:
        """What the customer may choose, and which tests there are."""
        self._metrics.answered("ConfigurationForm", "success")
        return form()

    def Capabilities(  # noqa: N802
        self,
        request: destination_sdk_pb2.CapabilitiesRequest,  # noqa: ARG002
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> destination_sdk_pb2.CapabilitiesResponse:
        """The one form of batch file that is read."""
        self._metrics.answered("Capabilities", "success")
        return destination_sdk_pb2.CapabilitiesResponse(batch_file_format=_FORMATS[self._format])

    def Test(  # noqa: N802
        self, request: common_pb2.TestRequest, context: grpc.ServicerContext
    ) -> common_pb2.TestResponse:
        """Run one test of the form; whatever fails is told as a text, not as a status."""

        def work(_call: Call) -> common_pb2.TestResponse:
            if request.name not in TESTS:
                return common_pb2.TestResponse(failure="There is no such test.")
            try:
                TESTS[request.name][1](self._lake)
            except ChronolakeError as error:
                _log.warning("test_failed", test=request.name, reason=text_of(error))
                return common_pb2.TestResponse(failure=text_of(error))
            except Exception as failure:  # noqa: BLE001 - a test exists to find out
                _log.warning("test_failed", test=request.name, **unexpected(failure))
                return common_pb2.TestResponse(
                    failure="The lake cannot be used; the server's log says more."
                )
            _log.info("test_passed", test=request.name)
            return common_pb2.TestResponse(success=True)

        return self._answer(
            "Test", context, work, lambda task: common_pb2.TestResponse(failure=task.message)
        )

    def DescribeTable(  # noqa: N802
        self,
        request: destination_sdk_pb2.DescribeTableRequest,
        context: grpc.ServicerContext,
    ) -> destination_sdk_pb2.DescribeTableResponse:
        """Every column of a table, or that there is none."""
        answer = destination_sdk_pb2.DescribeTableResponse

        def work(call: Call) -> destination_sdk_pb2.DescribeTableResponse:
            name = call.table = wire.table_name(
                request.schema_name,
                request.table_name,
                prefix=Configuration.of(request.configuration).schema_prefix,
            )
            found = self._lake.describe(name)
            if found is None:
                return answer(not_found=True)
            return answer(
                table=wire.table_message(request.table_name, found.columns, found.primary_key)
            )

        return self._answer("DescribeTable", context, work, lambda task: answer(task=task))

    def CreateTable(  # noqa: N802
        self,
        request: destination_sdk_pb2.CreateTableRequest,
        context: grpc.ServicerContext,
    ) -> destination_sdk_pb2.CreateTableResponse:
        """Make a table, and its schema where that is missing; a table that exists is a task."""
        answer = destination_sdk_pb2.CreateTableResponse

        def work(call: Call) -> destination_sdk_pb2.CreateTableResponse:
            name = call.table = wire.table_name(
                request.schema_name,
                request.table.name,
                prefix=Configuration.of(request.configuration).schema_prefix,
            )
            columns = wire.columns_of(request.table)
            table.create(self._lake, name, columns)
            _log.info("table_created", table=str(name), columns=len(columns))
            return answer(success=True)

        return self._answer("CreateTable", context, work, lambda task: answer(task=task))

    def AlterTable(  # noqa: N802
        self,
        request: destination_sdk_pb2.AlterTableRequest,
        context: grpc.ServicerContext,
    ) -> destination_sdk_pb2.AlterTableResponse:
        """Bring a table to the request's columns, in one step or not at all."""
        answer = destination_sdk_pb2.AlterTableResponse

        def work(call: Call) -> destination_sdk_pb2.AlterTableResponse:
            name = call.table = wire.table_name(
                request.schema_name,
                request.table.name,
                prefix=Configuration.of(request.configuration).schema_prefix,
            )
            columns = wire.columns_of(request.table)
            with self._writing(name):
                changed = table.alter(self._lake, name, columns, drop_columns=request.drop_columns)
            _log.info("table_altered", table=str(name), changed=changed)
            return answer(success=True)

        return self._answer("AlterTable", context, work, lambda task: answer(task=task))

    def Truncate(  # noqa: N802
        self,
        request: destination_sdk_pb2.TruncateRequest,
        context: grpc.ServicerContext,
    ) -> destination_sdk_pb2.TruncateResponse:
        """Remove or mark the rows from before a time; a table that is not there is no failure."""
        answer = destination_sdk_pb2.TruncateResponse

        def work(call: Call) -> destination_sdk_pb2.TruncateResponse:
            prefix = Configuration.of(request.configuration).schema_prefix
            call.table = wire.table_name(request.schema_name, request.table_name, prefix=prefix)
            wanted = wire.truncate_of(request, prefix=prefix)
            with self._writing(wanted.name):
                result = table.truncate(
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
            return answer(success=True)

        return self._answer("Truncate", context, work, lambda task: answer(task=task))

    def WriteBatch(  # noqa: N802
        self,
        request: destination_sdk_pb2.WriteBatchRequest,
        context: grpc.ServicerContext,
    ) -> destination_sdk_pb2.WriteBatchResponse:
        """Load the files of a batch into a table that keeps the newest state."""
        return self._write("WriteBatch", request, context)

    def WriteHistoryBatch(  # noqa: N802
        self,
        request: destination_sdk_pb2.WriteHistoryBatchRequest,
        context: grpc.ServicerContext,
    ) -> destination_sdk_pb2.WriteBatchResponse:
        """Load the files of a batch into a table that keeps every version."""
        return self._write("WriteHistoryBatch", request, context)

    def Migrate(  # noqa: N802
        self,
        request: destination_sdk_pb2.MigrateRequest,
        context: grpc.ServicerContext,
    ) -> destination_sdk_pb2.MigrateResponse:
        """Change a whole table, its mode or a column at once, in one step or not at all."""
        answer = destination_sdk_pb2.MigrateResponse

        def work(call: Call) -> destination_sdk_pb2.MigrateResponse:
            migration = migrating.migration_of(
                request, prefix=Configuration.of(request.configuration).schema_prefix
            )
            if migration is None:
                return answer(unsupported=True)
            call.table = migration.name
            with self._writing(migration.name):
                migration.run(self._lake)
            _log.info("table_migrated", table=str(migration.name), operation=migration.operation)
            return answer(success=True)

        return self._answer("Migrate", context, work, lambda task: answer(task=task))

    def _write(
        self,
        rpc: str,
        request: destination_sdk_pb2.WriteBatchRequest
        | destination_sdk_pb2.WriteHistoryBatchRequest,
        context: grpc.ServicerContext,
    ) -> destination_sdk_pb2.WriteBatchResponse:
        answer = destination_sdk_pb2.WriteBatchResponse
        history = rpc == "WriteHistoryBatch"

        def work(call: Call) -> destination_sdk_pb2.WriteBatchResponse:
            prefix = Configuration.of(request.configuration).schema_prefix
            call.table = wire.table_name(request.schema_name, request.table.name, prefix=prefix)
            write = wire.write_of(request, format=self._format, prefix=prefix, root=self._root)
            with self._writing(write.name):
                written = writing.run(self._lake, write, history=history, batch=call.batch)
            if written.result is None:
                _log.info("batch_empty", table=str(write.name))
                return answer(success=True)
            result = written.result
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
            self._metrics.published(
                str(write.name),
                result,
                history=history,
                size=written.size,
                seconds=written.seconds,
            )
            return answer(success=True)

        return self._answer(rpc, context, work, lambda task: answer(task=task))
