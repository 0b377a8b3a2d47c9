"""A PostgreSQL server that executes every statement, and whose response can get lost."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_STARTUP = 196_608


class Lossy:
    """A proxy to a server that forwards every statement, and can lose the response to one."""

    def __init__(self, port: int) -> None:
        self._server = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._guard = threading.Lock()
        self._needle: bytes | None = None
        self._passes = 0
        self._then: Callable[[], None] = _nothing
        #: The number of lost responses.
        self.lost = 0

    def lose(self, statement: bytes, *, nth: int, then: Callable[[], None] | None = None) -> None:
        """Lose the response to the nth statement from now on that has this in its text.

        `then` is called when the server has executed it, and before anybody can know that.
        """
        with self._guard:
            self._needle, self._passes, self._then = statement, nth, then or _nothing

    def between(self) -> None:
        self._then()

    def is_due(self, statement: bytes) -> bool:
        with self._guard:
            if self._needle is None or self._needle not in statement:
                return False
            self._passes -= 1
            if self._passes:
                return False
            self._needle = None
            self.lost += 1
            return True

    def serve(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._server))
            _Link(client, server, self.is_due, self.between)

    def close(self) -> None:
        self._listening.close()


def _nothing() -> None:
    pass


class _Link:
    """One connection through the proxy."""

    def __init__(
        self,
        client: socket.socket,
        server: socket.socket,
        is_due: Callable[[bytes], bool],
        between: Callable[[], None],
    ) -> None:
        self._client, self._server = client, server
        self._is_due, self._between = is_due, between
        self._is_muted = False
        # Prepared statements are executed by name.
        self._prepared: dict[bytes, bytes] = {}
        for work in (self._ask, self._answer):
            threading.Thread(target=work, daemon=True).start()

    def _ask(self) -> None:
        with suppress(OSError):
            while True:
                (size, code) = struct.unpack("!II", head := self._read(8))
                self._server.sendall(head + self._read(size - 8))
                if code == _STARTUP:
                    break
            while True:
                head = self._read(5)
                kind, size = struct.unpack("!cI", head)
                body = self._read(size - 4)
                if self._executes(kind, body):
                    self._is_muted = True
                self._server.sendall(head + body)
        self._close()

    def _executes(self, kind: bytes, body: bytes) -> bool:
        match kind:
            case b"Q":
                return self._is_due(body)
            case b"P":
                name, statement, *_ = body.split(b"\0")
                self._prepared[name] = statement
            case b"B":
                _, name, *_ = body.split(b"\0")
                return self._is_due(self._prepared.get(name, b""))
        return False

    def _answer(self) -> None:
        with suppress(OSError):
            while data := self._server.recv(65_536):
                # The server has executed the statement when it is ready for the next one.
                if self._is_muted:
                    if data[-6:-1] == b"Z\0\0\0\5":
                        self._between()
                        break
                    continue
                self._client.sendall(data)
        self._close()

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            more = self._client.recv(size - len(found))
            if not more:
                raise ConnectionError
            found += more
        return found

    def _close(self) -> None:
        for peer in (self._client, self._server):
            with suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
            peer.close()


@contextmanager
def lossy(port: int) -> Iterator[Lossy]:
    """Run a proxy to the server at a port of this machine."""
    way = Lossy(port)
    thread = threading.Thread(target=way.serve, daemon=True)
    thread.start()
    try:
        yield way
    finally:
        way.close()
