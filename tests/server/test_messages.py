"""The server as a caller sees it: form, tests, sizes, health, reflection, texts, secrets."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import structlog
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from chronolake.lake import Lake
from chronolake.protos import common_pb2, destination_sdk_pb2
from chronolake.server import Server
from chronolake.server.service import PROBE_SCHEMA
from chronolake.types import TableName
from support.server.caller import SYNCED, Caller
from support.server.sent_files import SentFile

SERVICE = "fivetran_sdk.v2.DestinationConnector"
COLUMNS = ["id*:LONG", "v:STRING", SYNCED]


def form(caller: Caller) -> common_pb2.ConfigurationFormResponse:
    return caller.stub.ConfigurationForm(common_pb2.ConfigurationFormRequest())


def fields(
    listed: list[common_pb2.FormField],
) -> Iterator[common_pb2.FormField]:
    for form_field in listed:
        yield form_field
        yield from fields(list(form_field.conditional_fields.fields))


def row(id_: int, v: str) -> dict[str, str]:
    return {"id": str(id_), "v": v, "_fivetran_synced": "2024-01-01T00:00:00Z"}


def test_capabilities_ask_for_csv(caller: Caller) -> None:
    answer = caller.stub.Capabilities(destination_sdk_pb2.CapabilitiesRequest())
    assert answer.batch_file_format == destination_sdk_pb2.CSV


def test_the_form_is_the_same_each_time_and_names_each_field_once(caller: Caller) -> None:
    answer = form(caller)
    assert answer == form(caller)
    assert answer.schema_selection_supported
    assert answer.table_selection_supported
    assert answer.tests
    names = [field.name for field in fields(list(answer.fields))]
    assert len(names) == len(set(names))
    assert all(field.WhichOneof("type") for field in answer.fields)


def test_every_test_of_the_form_passes_and_leaves_nothing(caller: Caller, lake: Lake) -> None:
    for test in form(caller).tests:
        answer = caller.stub.Test(common_pb2.TestRequest(name=test.name))
        assert answer.WhichOneof("response") == "success", test.name
        assert answer.success
    assert not [name for name in lake.tables() if name.schema == PROBE_SCHEMA]


def test_an_unknown_test_fails_in_words(caller: Caller) -> None:
    answer = caller.stub.Test(common_pb2.TestRequest(name="no such test"))
    assert answer.WhichOneof("response") == "failure"
    assert form(caller).tests


@pytest.mark.parametrize("configuration", [{}, {"schema_prefix": ""}, {"unknown": "x"}])
def test_an_option_that_is_missing_or_empty_has_its_default(
    caller: Caller, configuration: dict[str, str]
) -> None:
    configured = replace(caller, configuration=configuration)
    assert configured.create("t", COLUMNS).success
    assert configured.write("t", COLUMNS, replace=[row(1, "x")]).success
    assert caller.rows("t", "v") == [("x",)]


def test_the_schema_prefix_keeps_connections_apart(caller: Caller) -> None:
    one = replace(caller, configuration={"schema_prefix": "one_"})
    two = replace(caller, configuration={"schema_prefix": "two_"})
    for sender in (one, two):
        assert sender.create("t", COLUMNS).success
    assert one.write("t", COLUMNS, replace=[row(1, "mine")]).success
    assert one.alter("t", [*COLUMNS, "w:INT"]).success
    assert caller.describe("t").not_found
    assert replace(caller, schema=f"one_{caller.schema}").rows("t", "v") == [("mine",)]
    assert two.truncate("t", 4_102_444_800_000).success
    assert replace(caller, schema=f"one_{caller.schema}").rows("t", "v") == [("mine",)]
    assert len(two.describe("t").table.columns) == 3


def test_messages_of_more_than_4_mb_pass_both_ways(caller: Caller) -> None:
    big = replace(caller, configuration={"note": "x" * 20_000_000})
    assert big.describe("nothing").not_found
    wide = ["id*:LONG", *(f"{'c' * 190}{number}:STRING" for number in range(2_000)), SYNCED]
    assert caller.create("wide", wide).success
    assert len(caller.describe("wide").table.columns) == 2_002


@pytest.mark.parametrize("letter", ["x", "ü", "🦆", "%", "\n"])
def test_a_long_failure_is_cut_and_the_connection_stays(caller: Caller, letter: str) -> None:
    assert caller.create("t", COLUMNS).success
    file = SentFile(str(caller.folder / (letter * 50_000)), bytes(32))
    with pytest.raises(grpc.RpcError) as caught:
        caller.stub.WriteBatch(caller.request("t", COLUMNS, replace=[file]))
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    details = caught.value.details()
    assert details.endswith("…")
    assert 500 < len(details.encode()) < 8_000
    assert caller.describe("t").table.columns


def test_the_health_service_reports_that_the_destination_serves(channel: grpc.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", SERVICE):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_describes_the_service(channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(channel)
    assert SERVICE in database.get_services()
    found = DescriptorPool(database).FindServiceByName(SERVICE)
    assert len(found.methods) == 10


def metrics(server: Server) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics") as answer:
        return answer.read().decode()


def test_metrics_count_batches_rows_bytes_seconds_and_failures_by_table(
    caller: Caller, server: Server
) -> None:
    assert caller.create("t", COLUMNS).success
    sent = caller.file("f", [row(1, "x"), row(2, "y")])
    assert caller.stub.WriteBatch(caller.request("t", COLUMNS, replace=[sent])).success
    assert caller.write("t", COLUMNS, update=[row(3, "z")], delete=[row(2, "y")]).success
    assert caller.create("t", COLUMNS).WhichOneof("response") == "task"
    assert caller.write("made up", COLUMNS).WhichOneof("response") == "task"
    assert caller.create("unmade", ["a*:DECIMAL(39,0)"]).WhichOneof("response") == "task"
    text = metrics(server)
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    table = f'table="{caller.schema}.t"'

    def value(name: str) -> float:
        return float(lines[name])

    assert value(f'chronolake_batches_total{{kind="batch",{table}}}') == 2
    assert value(f'chronolake_rows_total{{kind="replaced",{table}}}') == 2
    assert value(f'chronolake_rows_total{{kind="updated",{table}}}') == 1
    assert value(f'chronolake_rows_total{{kind="deleted",{table}}}') == 1
    assert value(f"chronolake_batch_bytes_total{{{table}}}") >= Path(sent.path).stat().st_size
    assert value(f"chronolake_batch_seconds_count{{{table}}}") == 2
    assert value(f'chronolake_stage_seconds_total{{stage="publish",{table}}}') > 0
    assert value(f'chronolake_failures_total{{error="TableExistsError",{table}}}') == 1
    assert value('chronolake_failures_total{error="TableNotFoundError",table=""}') >= 1
    assert value('chronolake_requests_in_progress{rpc="WriteBatch"}') == 0
    assert value('chronolake_requests_total{outcome="task",rpc="CreateTable"}') >= 1
    assert "made up" not in text
    assert "unmade" not in text


def test_an_unforeseen_failure_names_its_table_and_its_batch(
    caller: Caller, server: Server
) -> None:
    assert caller.create("t", COLUMNS).success
    assert caller.write("t", COLUMNS, replace=[row(1, "x")]).success
    # Files that somebody deleted from the lake's folder are an unexpected error.
    for task in caller.iceberg("t").scan().plan_files():
        Path(task.file.file_path.removeprefix("file:")).unlink()
    with (
        structlog.testing.capture_logs([structlog.contextvars.merge_contextvars]) as logged,
        pytest.raises(grpc.RpcError) as caught,
    ):
        caller.write("t", COLUMNS, update=[row(1, "y")])
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    (line,) = (line for line in logged if line["event"] == "call_failed")
    assert line["table"] == f"{caller.schema}.t"
    assert line["rpc"] == "WriteBatch"
    for named in (line["incident"], f"table '{line['table']}'", f"batch '{line['batch']}'"):
        assert named in caught.value.details()
    counted = f'chronolake_failures_total{{error="{line["error"]}",table="{line["table"]}"}} 1.0'
    assert counted in metrics(server)


def test_a_table_that_was_dropped_under_its_batch_is_logged_and_no_time_series(
    caller: Caller, server: Server, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert caller.create("t", COLUMNS).success
    held = caller.folder / "held"
    held.touch()
    monkeypatch.setenv("CHRONOLAKE_FAILPOINT", "write.planned=pause")
    monkeypatch.setenv("CHRONOLAKE_FAILPOINT_FILE", str(held))
    with (
        structlog.testing.capture_logs([structlog.contextvars.merge_contextvars]) as logged,
        ThreadPoolExecutor(1) as thread,
    ):
        running = thread.submit(caller.write, "t", COLUMNS, replace=[row(1, "x")])
        while not held.with_suffix(".reached").exists():
            time.sleep(0.02)
        lake.catalog.drop(TableName(caller.schema, "t"), purge=True)
        held.unlink()
        response = running.result()
    assert "The table was dropped or renamed" in response.task.message
    (line,) = (line for line in logged if line["event"] == "task")
    assert line["table"] == f"{caller.schema}.t"
    assert caller.schema not in metrics(server)
