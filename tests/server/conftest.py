"""A real server on a real lake, in this process; one JVM for all tests."""

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
from support.server.caller import Caller

_numbers = itertools.count()


@pytest.fixture(scope="session")
def server(lake: Lake) -> Iterator[Server]:
    with Server(lake, ServeOptions(port=0, metrics_port=0, grace=5)) as running:
        yield running


@pytest.fixture(scope="session")
def channel(server: Server) -> Iterator[grpc.Channel]:
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
