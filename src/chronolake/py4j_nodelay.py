"""Sockets between Python and the JVM without delayed acknowledgements.

The JVM sends data in segments. By default, a socket holds a short last segment back until the
previous one is acknowledged (Nagle's algorithm), and Linux delays acknowledgements by 40 ms. So
py4j responses of more than 8 KiB arrive late, such as the columns of a wide table, or the sketch of
a table's writes in this month, which every batch reads. So do the first rows of every Python task.
Therefore Python acknowledges received data immediately.
"""

from __future__ import annotations

import io
import os
import socket
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JNetworkError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

#: Only on Linux; other systems do not delay acknowledgements that long.
_AT_ONCE: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)
_BUFFER: Final = 64 * 2**10


class _AcknowledgedReads(io.RawIOBase):
    """A socket's received data, acknowledged immediately."""

    def __init__(
        self, connection: socket.socket, received: io.BufferedReader, at_once: int
    ) -> None:
        super().__init__()
        self._connection = connection
        self._received = received
        self._at_once = at_once

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._received.fileno()

    def readinto(self, buffer: Any, /) -> int | None:
        # Linux resets the option by itself, so it is set for every read.
        self._connection.setsockopt(socket.IPPROTO_TCP, self._at_once, 1)
        return self._received.raw.readinto(buffer)

    def close(self) -> None:
        if not self.closed:
            self._received.close()
        super().close()


def acknowledge_reads(connection: socket.socket, received: io.BufferedReader) -> io.BufferedReader:
    """Return a stream of a socket's received data that acknowledges it immediately.

    Args:
        connection: the socket.
        received: its stream, with an empty buffer; it is closed together with the new one.

    Returns:
        The new stream, or `received` if the system does not delay acknowledgements.
    """
    if _AT_ONCE is None or connection.family not in {socket.AF_INET, socket.AF_INET6}:
        return received
    return io.BufferedReader(_AcknowledgedReads(connection, received, _AT_ONCE), _BUFFER)


def wrap_worker(serve: Callable[..., None]) -> Callable[..., None]:
    """Wrap Spark's main function of a Python worker to acknowledge the JVM's data immediately.

    Args:
        serve: the main function; its arguments are the streams to read and to write.
    """

    def serve_acknowledged(received: io.BufferedReader, sent: Any) -> None:
        with socket.socket(fileno=os.dup(received.fileno())) as connection:
            serve(acknowledge_reads(connection, received), sent)

    return serve_acknowledged


def acknowledge_at_once(session: SparkSession) -> None:
    """Receive the JVM's responses without delay, on existing and on new connections.

    Every Python thread has its own connection. With an unknown version of py4j, nothing changes.
    """
    client: Any = getattr(session._jvm, "_gateway_client", None)  # noqa: SLF001
    make = getattr(client, "_create_new_connection", None)
    if make is None or isinstance(make, _ConnectionFactory):
        return
    client._create_new_connection = _ConnectionFactory(make)  # noqa: SLF001
    for connection in client.deque:
        _acknowledge(connection)


class _ConnectionFactory:
    """py4j's connection factory; new connections acknowledge immediately."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __call__(self) -> Any:
        try:
            connection = self._make()
        except Py4JNetworkError:
            # After Ctrl-C, py4j closes the interrupted connection on both sides. Meanwhile the JVM
            # may close a new one too, and py4j retries everything except this.
            connection = self._make()
        _acknowledge(connection)
        return connection


def _acknowledge(connection: Any) -> None:
    if isinstance(connection.stream, io.BufferedReader):
        connection.stream = acknowledge_reads(connection.socket, connection.stream)
