"""A real server on a real lake, in this process or in `up`; one lake for all tests."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from chronolake.lake import Lake
from chronolake.server import ServeOptions, Server
from chronolake.server.listener import MESSAGE_BYTES
from support.crash.server_process import configure, serve, uses_up
from support.server.caller import Caller

_numbers = itertools.count()


@pytest.fixture(scope="session")
def server(lake: Lake) -> Iterator[Server]:
    with Server(lake, ServeOptions(port=0, metrics_port=0, grace=5)) as running:
        yield running


@pytest.fixture(scope="session")
def channel(
    lake: Lake, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[grpc.Channel]:
    if uses_up():
        configure(lake.config.path)
        with serve(lake.config.path, tmp_path_factory.mktemp("up")) as served:
            yield served.channel
        return
    server: Server = request.getfixturevalue("server")
    with grpc.insecure_channel(
        f"127.0.0.1:{server.port}",
        options=[
            ("grpc.max_send_message_length", MESSAGE_BYTES),
            ("grpc.max_receive_message_length", MESSAGE_BYTES),
        ],
    ) as opened:
        yield opened


@pytest.fixture
def caller(
    lake: Lake, channel: grpc.Channel, tmp_path: Path, request: pytest.FixtureRequest
) -> Caller:
    """Return a caller with its own schema."""
    schema = re.sub(r"\W", "_", request.node.name)[:40] + f"_{next(_numbers)}"
    return Caller(channel, lake.config.path, tmp_path, schema)
