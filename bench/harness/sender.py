"""A client of a server: sends batches over gRPC, and reads the server's own timings."""

from __future__ import annotations

import urllib.request
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import grpc
from prometheus_client.parser import text_string_to_metric_families

from chronolake.change_set import Op
from chronolake.protos import common_pb2, destination_sdk_pb2
from chronolake.protos.destination_sdk_pb2_grpc import DestinationConnectorStub
from chronolake.server import Server
from chronolake.types import Column, Kind
from harness.batches import FORM, Batch
from harness.customers import HISTORY, LIVE, SCHEMA, Made

#: Seconds by table and stage.
Stages = dict[tuple[str, str], float]


class Sender:
    """A client with its own channel."""

    def __init__(self, port: int) -> None:
        self._stub = DestinationConnectorStub(grpc.insecure_channel(f"127.0.0.1:{port}"))

    def send(self, made: Made, batch: Batch, *, history: bool) -> None:
        """Send a batch and wait for the response.

        Raises:
            RuntimeError: the server reported anything but success.
        """
        reported: dict[str, Any] = {
            "schema_name": SCHEMA,
            "table": _message(made.name.table, HISTORY if history else LIVE),
            "keys": {file.path: file.key for file in batch.files},
            "replace_files": batch.paths(Op.REPLACE),
            "update_files": batch.paths(Op.UPDATE),
            "delete_files": batch.paths(Op.DELETE),
            "file_params": destination_sdk_pb2.FileParams(
                compression=destination_sdk_pb2.ZSTD,
                encryption=destination_sdk_pb2.AES,
                null_string=FORM.null_string,
                unmodified_string=FORM.unmodified_string,
            ),
        }
        if history:
            earliest = batch.paths(Op.EARLIEST)
            answer = self._stub.WriteHistoryBatch(
                destination_sdk_pb2.WriteHistoryBatchRequest(
                    **reported, earliest_start_files=earliest
                )
            )
        else:
            answer = self._stub.WriteBatch(destination_sdk_pb2.WriteBatchRequest(**reported))
        if not answer.success:
            raise RuntimeError(f"The server answered: {answer}")


def _message(name: str, columns: Sequence[Column]) -> common_pb2.Table:
    message = common_pb2.Table(name=name)
    for column in columns:
        added = message.columns.add(name=column.name, primary_key=column.primary_key)
        added.type = getattr(common_pb2, column.type.kind.value)
        if column.type.kind is Kind.DECIMAL:
            added.params.decimal.precision = column.type.precision or 0
            added.params.decimal.scale = column.type.scale or 0
    return message


def stage_seconds(server: Server) -> Stages:
    """Return the server's own seconds by table and stage."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics") as answer:
        text = answer.read().decode()
    return {
        (sample.labels["table"], sample.labels["stage"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "chronolake_stage_seconds_total"
    }


def spent(before: Stages, after: Stages, table: str) -> dict[str, float]:
    """Return seconds by stage between two readings, of tables whose names have this prefix."""
    found: defaultdict[str, float] = defaultdict(float)
    for (name, stage), seconds in after.items():
        if name.startswith(f"{SCHEMA}.{table}"):
            found[stage] += seconds - before.get((name, stage), 0.0)
    return found
