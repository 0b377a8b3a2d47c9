"""Socket streams that acknowledge received data at once."""

from __future__ import annotations

import io
import os
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JNetworkError

from chronolake.py4j_nodelay import (
    _AcknowledgedReads,
    _ConnectionFactory,
    acknowledge_reads,
    wrap_worker,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chronolake.lake import Lake

#: More than any buffer between the two ends.
SENT = bytes(range(256)) * 8_192


@pytest.fixture
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        here = socket.create_connection(listening.getsockname())
        there, _ = listening.accept()
    with here, there:
        yield here, there


def sending(there: socket.socket) -> threading.Thread:
    """Send in pieces of which the last one is short, and then close."""

    def send() -> None:
        for begin in range(0, len(SENT), 8_191):
            there.sendall(SENT[begin : begin + 8_191])
        there.close()

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_all_arrives_in_order(connected: tuple[socket.socket, socket.socket]) -> None:
    here, there = connected
    received = acknowledge_reads(here, here.makefile("rb"))
    thread = sending(there)
    assert received.read(10) == SENT[:10]
    assert received.readline() == SENT[10:11]
    assert received.read() == SENT[11:]
    assert received.fileno() == here.fileno()
    thread.join()
    received.close()
    assert received.closed


def test_a_worker_reads_what_the_jvm_sends(
    connected: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    here, there = connected
    thread = sending(there)
    found = []
    with (tmp_path / "sent").open("wb") as sent, os.fdopen(os.dup(here.fileno()), "rb") as received:
        wrap_worker(lambda stream, to: found.extend([stream.read(), to is sent]))(received, sent)
    thread.join()
    assert found == [SENT, True]


def test_other_sockets_stay_what_they_are() -> None:
    here, there = socket.socketpair()
    with here, there, here.makefile("rb") as received:
        assert isinstance(received, io.BufferedReader)
        assert acknowledge_reads(here, received) is received


def test_every_connection_to_the_jvm_acknowledges_at_once(lake: Lake) -> None:
    with ThreadPoolExecutor(2) as threads:
        [*threads.map(lambda _: lake.spark._jvm.java.lang.System.nanoTime(), range(4))]
        streams = [connection.stream for connection in lake.spark._jvm._gateway_client.deque]
    assert streams
    assert all(isinstance(stream.raw, _AcknowledgedReads) for stream in streams)


def test_a_new_connection_that_the_jvm_closes_is_made_again(lake: Lake) -> None:
    client = lake.spark._jvm._gateway_client
    make = client._create_new_connection._make
    attempts = iter([Py4JNetworkError("closed")])

    def close_first() -> Any:
        for failure in attempts:
            raise failure
        return make()

    connection = _ConnectionFactory(close_first)()

    assert isinstance(connection.stream.raw, _AcknowledgedReads)
    connection.close()


def test_workers_acknowledge_at_once(lake: Lake) -> None:
    def serving(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            names = [sys.modules["pyspark.daemon"].worker_main.__module__] * batch.num_rows
            yield pa.RecordBatch.from_pydict({"name": names})

    found = lake.spark.range(1).mapInArrow(serving, "name string").collect()
    assert [row["name"] for row in found] == ["chronolake.py4j_nodelay"]


@pytest.mark.parametrize("length", [10, 9_000, 1_000_000])
def test_long_answers_of_the_jvm_arrive_whole_in_every_thread(lake: Lake, length: int) -> None:
    java = lake.spark._jvm.java.util.HashMap()
    text = "".join(chr(1 + place % 0xFF) for place in range(length))
    java.put("text", text)
    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(java.get, ["text"] * 4)] == [text] * 4
    assert java.get("text") == text
