"""The sockets between Python and the JVM, without the pause that TCP makes.

The JVM writes what it sends in pieces, and its sockets keep a short last piece back, as sockets do
by default, until the piece before it is acknowledged; Linux puts that off for 40 ms. py4j's answers
of more than 8 KiB arrive so late: the columns of a wide table, or the sketch of what was written to
a table this month, which every batch reads. So do the first rows of every task that is in Python.
Therefore Python acknowledges at once what it receives.
"""

from __future__ import annotations

import io
import os
import socket
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

#: Linux only; others put no acknowledgement off that long.
_AT_ONCE: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)
_BUFFER: Final = 64 * 2**10


class _Acknowledging(io.RawIOBase):
    """What a socket receives, acknowledged at once."""

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
        # Linux takes it back by itself: it is asked for with every piece.
        self._connection.setsockopt(socket.IPPROTO_TCP, self._at_once, 1)
        return self._received.raw.readinto(buffer)

    def close(self) -> None:
        if not self.closed:
            self._received.close()
        super().close()


def acknowledging(connection: socket.socket, received: io.BufferedReader) -> io.BufferedReader:
    """A stream of what a socket receives, that acknowledges it at once.

    Args:
        connection: the socket.
        received: its stream, of which nothing is in its buffer; closed with the new one.

    Returns:
        The new stream; the old one where there is no such pause.
    """
    if _AT_ONCE is None or connection.family not in {socket.AF_INET, socket.AF_INET6}:
        return received
    return io.BufferedReader(_Acknowledging(connection, received, _AT_ONCE), _BUFFER)


def in_worker(serve: Callable[..., None]) -> Callable[..., None]:
    """Spark's main function of a Python worker, that acknowledges at once what the JVM sends it.

    Args:
        serve: gets the stream that the worker reads, and the one that it writes.
    """

    def served(received: io.BufferedReader, sent: Any) -> None:
        with socket.socket(fileno=os.dup(received.fileno())) as connection:
            serve(acknowledging(connection, received), sent)

    return served


def acknowledge_at_once(session: SparkSession) -> None:
    """Take the JVM's answers without delay, on the connections there are and all that are made.

    Every Python thread has one of its own. With another py4j nothing changes.
    """
    client: Any = getattr(session._jvm, "_gateway_client", None)  # noqa: SLF001
    make = getattr(client, "_create_new_connection", None)
    if make is None or isinstance(make, _Making):
        return
    client._create_new_connection = _Making(make)  # noqa: SLF001
    for connection in client.deque:
        _improve(connection)


class _Making:
    """py4j's way to make a connection, and what is done to each afterwards."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __call__(self) -> Any:
        connection = self._make()
        _improve(connection)
        return connection


def _improve(connection: Any) -> None:
    if isinstance(connection.stream, io.BufferedReader):
        connection.stream = acknowledging(connection.socket, connection.stream)
