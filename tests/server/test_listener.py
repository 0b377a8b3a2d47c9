"""The address and port of the server: loopback, TLS, client certificates, one server for a port."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from chronolake.errors import ConfigurationError
from chronolake.lake import Lake
from chronolake.protos import common_pb2, destination_sdk_pb2
from chronolake.protos.destination_sdk_pb2_grpc import DestinationConnectorStub
from chronolake.server import ServeOptions, Server
from support.lakes import lake_config
from support.server.caller import SYNCED, Caller
from support.tls import Identity

ASKED = destination_sdk_pb2.CapabilitiesRequest()


def capabilities(channel: grpc.Channel) -> destination_sdk_pb2.CapabilitiesResponse:
    with channel:
        return DestinationConnectorStub(channel).Capabilities(ASKED, timeout=30)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_loopback_is_listened_on_in_both_kinds_of_address(server: Server) -> None:
    hosts = ["127.0.0.1", *(["[::1]"] if has_ipv6() else [])]
    for host in hosts:
        assert capabilities(grpc.insecure_channel(f"{host}:{server.port}")) is not None


@pytest.mark.parametrize("hosts", [("0.0.0.0", "::"), ("::", "0.0.0.0")])
@pytest.mark.parametrize("picks_port", [True, False])
def test_all_addresses_are_listened_on_as_in_a_container(
    lake: Lake, hosts: tuple[str, ...], *, picks_port: bool
) -> None:
    port = 0
    if not picks_port:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    with Server(lake, ServeOptions(port=port, hosts=hosts, allow_plaintext=True)) as server:
        for host in ["127.0.0.1", *(["[::1]"] if has_ipv6() else [])]:
            assert capabilities(grpc.insecure_channel(f"{host}:{server.port}")) is not None


def test_capabilities_return_the_configured_batch_format(lake: Lake) -> None:
    with Server(lake, ServeOptions(port=0, batch_format="parquet")) as server:
        answer = capabilities(grpc.insecure_channel(f"127.0.0.1:{server.port}"))
    assert answer.batch_file_format == destination_sdk_pb2.PARQUET


def test_health_is_reported_while_every_worker_is_busy(
    lake: Lake, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = tmp_path / "held"
    held.touch()
    monkeypatch.setenv("CHRONOLAKE_FAILPOINT", "publish.before-commit=pause")
    monkeypatch.setenv("CHRONOLAKE_FAILPOINT_FILE", str(held))
    columns = ["id*:LONG", SYNCED]
    row = {"id": "1", "_fivetran_synced": "2024-01-01T00:00:00Z"}
    with (
        Server(lake, ServeOptions(port=0, max_workers=1, grace=30)) as busy,
        grpc.insecure_channel(f"127.0.0.1:{busy.port}") as channel,
        ThreadPoolExecutor(1) as thread,
    ):
        caller = Caller(channel, lake.config.path, tmp_path, "busy")
        assert caller.create("t", columns).success
        running = thread.submit(caller.write, "t", columns, replace=[row])
        while not held.with_suffix(".reached").exists():
            time.sleep(0.02)
        asked = health_pb2.HealthCheckRequest()
        serving = health_pb2.HealthCheckResponse.SERVING
        stub = health_pb2_grpc.HealthStub(channel)
        assert stub.Check(asked, timeout=30).status == serving
        assert next(stub.Watch(asked, timeout=30)).status == serving
        held.unlink()
        assert running.result().success
    # A server that ended closed nothing that others need.
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        assert health_pb2_grpc.HealthStub(channel).Check(asked, timeout=30).status == serving


def test_every_call_is_answered_when_the_server_stops_also_those_that_wait_for_a_worker(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = tmp_path / "held"
    held.touch()
    columns = ["id*:LONG", SYNCED]
    row = {"id": "1", "_fivetran_synced": "2024-01-01T00:00:00Z"}
    busy = Server(lake, ServeOptions(port=0, max_workers=1, grace=0))
    with (
        grpc.insecure_channel(f"127.0.0.1:{busy.port}") as channel,
        ThreadPoolExecutor(2) as threads,
        structlog.testing.capture_logs() as logged,
    ):
        caller = Caller(channel, lake.config.path, tmp_path, "stopped")
        assert caller.create("t", columns).success
        monkeypatch.setenv("CHRONOLAKE_FAILPOINT", "publish.before-commit=pause")
        monkeypatch.setenv("CHRONOLAKE_FAILPOINT_FILE", str(held))
        running = threads.submit(caller.write, "t", columns, replace=[row])
        while not held.with_suffix(".reached").exists():
            time.sleep(0.02)
        asked = destination_sdk_pb2.DescribeTableRequest(schema_name="stopped", table_name="t")
        waiting = [caller.stub.DescribeTable.future(asked) for _ in range(20)]
        time.sleep(0.5)
        stopped = threads.submit(busy.stop)
        while not any(line["event"] == "batch_cancelled" for line in logged):
            time.sleep(0.02)
        # The last job that could have been cancelled is done, so the batch is finished.
        held.unlink()
        assert running.result().success
        for call in waiting:
            assert call.code() is grpc.StatusCode.UNAVAILABLE
            assert call.details().startswith("The server is stopping and cancelled the call;")
        assert stopped.result()
    assert caller.rows("t", "id") == [(1,)]


def test_a_port_belongs_to_one_server(lake: Lake, server: Server) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Server(lake, ServeOptions(port=server.port))
    assert str(server.port) in caught.value.message
    with pytest.raises(ConfigurationError, match="metrics"):
        Server(lake, ServeOptions(port=0, metrics_port=server.metrics_port))
    assert capabilities(grpc.insecure_channel(f"127.0.0.1:{server.port}")) is not None


def test_tls_is_spoken_with_the_given_certificate_and_nothing_else(
    lake: Lake, tmp_path: Path
) -> None:
    authority = Identity(tmp_path, "authority")
    own = Identity(tmp_path, "server", authority)
    options = ServeOptions(port=0, tls_cert=own.cert, tls_key=own.key, grace=1)
    with Server(lake, options) as server:
        address = f"127.0.0.1:{server.port}"
        trusted = grpc.ssl_channel_credentials(authority.cert.read_bytes())
        assert capabilities(grpc.secure_channel(address, trusted)) is not None
        stranger = grpc.ssl_channel_credentials(Identity(tmp_path, "other").cert.read_bytes())
        for channel in (grpc.secure_channel(address, stranger), grpc.insecure_channel(address)):
            with pytest.raises(grpc.RpcError) as caught:
                capabilities(channel)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_clients_without_a_known_certificate_are_refused_if_one_is_required(
    lake: Lake, tmp_path: Path
) -> None:
    authority, others = Identity(tmp_path, "authority"), Identity(tmp_path, "others")
    own = Identity(tmp_path, "server", authority)
    options = ServeOptions(
        port=0, tls_cert=own.cert, tls_key=own.key, tls_client_ca=authority.cert, grace=1
    )

    def channel(client: Identity | None) -> grpc.Channel:
        pair = (client.key.read_bytes(), client.cert.read_bytes()) if client else (None, None)
        return grpc.secure_channel(
            address, grpc.ssl_channel_credentials(authority.cert.read_bytes(), *pair)
        )

    with Server(lake, options) as server:
        address = f"127.0.0.1:{server.port}"
        assert capabilities(channel(Identity(tmp_path, "client", authority))) is not None
        for client in (None, Identity(tmp_path, "stranger", others)):
            with pytest.raises(grpc.RpcError):
                capabilities(channel(client))


def test_a_tls_file_that_is_missing_or_no_certificate_is_refused(
    lake: Lake, tmp_path: Path
) -> None:
    own = Identity(tmp_path, "server")
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    for cert, key in (
        (tmp_path / "nowhere", own.key),
        (own.cert, tmp_path / "nowhere"),
        (nonsense, own.key),
        (own.cert, nonsense),
        (own.cert, Identity(tmp_path, "other").key),
    ):
        with pytest.raises(ConfigurationError, match=r"cannot be (read|used together)"):
            Server(lake, ServeOptions(port=0, tls_cert=cert, tls_key=key))


def test_a_lake_that_cannot_be_used_fails_its_tests_in_words(tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    with Lake.open(folder, config=lake_config(folder)) as broken:
        (folder / "tables").rmdir()
        (folder / "tables").write_text("in the way of the tables")
        with (
            Server(broken, ServeOptions(port=0, grace=1)) as server,
            grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel,
        ):
            stub = DestinationConnectorStub(channel)
            answer = stub.Test(common_pb2.TestRequest(name="connection"))
            assert answer.success
            answer = stub.Test(common_pb2.TestRequest(name="write"))
            assert answer.WhichOneof("response") == "failure"
            for file in folder.glob("catalog.db*"):
                file.write_bytes(b"no database any more" * 500)
            answer = stub.Test(common_pb2.TestRequest(name="connection"))
            assert answer.WhichOneof("response") == "failure"
            assert answer.failure
            # The table is not "not found", because that is unknown. The server continues to run.
            request = destination_sdk_pb2.DescribeTableRequest(schema_name="s", table_name="t")
            assert stub.DescribeTable(request).WhichOneof("response") == "task"
            assert stub.Capabilities(ASKED) is not None
