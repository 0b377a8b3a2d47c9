"""A proxy to an S3 server or catalog that all requests pass, and that can let some fail."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import unquote

_HOP: Final = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}
_KEY: Final = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)


@dataclass(frozen=True)
class Refuse:
    """The request does not reach the server, which seems to answer with an error."""

    status: int
    code: str


@dataclass(frozen=True)
class Answer:
    """A response that does not come from the server."""

    status: int
    content: bytes = b""
    kind: str = "application/json"


def refused_by_catalog(status: int, kind: str) -> Answer:
    """Return a refusal in the words of a REST catalog."""
    error = {"message": "as a test wants", "type": kind, "code": status}
    return Answer(status, json.dumps({"error": error}).encode())


@dataclass(frozen=True)
class CutUpload:
    """The connection ends when half of the request's body has reached the server."""


@dataclass(frozen=True)
class LoseResponse:
    """The server executes the request, but its response gets lost, at once or after a time."""

    seconds: float = 0.0


@dataclass(frozen=True)
class HideKeys:
    """A listing is stale: it lacks the keys that match."""

    keys: str


Fault = Refuse | Answer | CutUpload | LoseResponse | HideKeys


@dataclass
class _Rule:
    pattern: re.Pattern[str]
    fault: Fault
    left: int
    skipped: int


@dataclass
class FaultyProxy:
    """A proxy, on a port of this machine."""

    port: int = 0
    #: Every request as `METHOD /bucket/key?query`, without escapes.
    requests: list[str] = field(default_factory=list)
    #: The requests that failed.
    failed: list[str] = field(default_factory=list)
    latency_seconds: float = 0.0
    #: Answers requests (method and path, headers, body) in place of the server, unless it is None.
    guard: Callable[[str, Mapping[str, str], bytes], Answer | None] = lambda *_: None
    _rules: list[_Rule] = field(default_factory=list)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def fail(self, requests: str, fault: Fault, *, times: int = 1, after: int = 0) -> None:
        """Let requests fail that match a regular expression.

        Args:
            requests: is searched in `METHOD /bucket/key?query`.
            fault: what happens to them.
            times: how many of them fail.
            after: how many of them pass first.
        """
        with self._guard:
            self._rules.append(_Rule(re.compile(requests), fault, times, after))

    def heal(self) -> None:
        """Let no further request fail."""
        with self._guard:
            self._rules.clear()

    def fault_of(self, request: str) -> Fault | None:
        with self._guard:
            self.requests.append(request)
            for rule in self._rules:
                if rule.left and rule.pattern.search(request):
                    if rule.skipped:
                        rule.skipped -= 1
                        continue
                    rule.left -= 1
                    self.failed.append(request)
                    return rule.fault
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultyProxy
    server_port: int

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _handle(self) -> None:
        if self.proxy.latency_seconds:
            time.sleep(self.proxy.latency_seconds)
        fault = self.proxy.fault_of(f"{self.command} {unquote(self.path)}")
        length = int(self.headers.get("Content-Length") or 0)
        if isinstance(fault, CutUpload):
            self._cut(length)
            return
        body = self.rfile.read(length) if length else b""
        if isinstance(fault, Refuse):
            text = f"<Error><Code>{fault.code}</Code><Message>as a test wants</Message></Error>"
            self._answer(fault.status, {"Content-Type": "application/xml"}, text.encode())
            return
        answer = fault if isinstance(fault, Answer) else None
        if answer is None:
            answer = self.proxy.guard(f"{self.command} {self.path}", self.headers, body)
        if answer is not None:
            self._answer(answer.status, {"Content-Type": answer.kind}, answer.content)
            return
        status, headers, content = self._forward(body)
        if isinstance(fault, LoseResponse):
            time.sleep(fault.seconds)
            self._hang_up()
            return
        if isinstance(fault, HideKeys):
            hidden = re.compile(rb"<Key>[^<]*?(?:%s)[^<]*</Key>" % fault.keys.encode())
            content = _KEY.sub(lambda found: b"" if hidden.search(found[0]) else found[0], content)
        self._answer(status, headers, content)

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = HTTPConnection("127.0.0.1", self.server_port, timeout=60)
        try:
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                if name.lower() not in _HOP:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            # A server may answer before it has read everything.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.endheaders(body)
            response = connection.getresponse()
            content = response.read()
            return response.status, dict(response.getheaders()), content
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response_only(status)
        length = str(len(content))
        for name, value in headers.items():
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            if name.lower() not in _HOP:
                self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _cut(self, length: int) -> None:
        """Send half of an upload to the server, and end both connections."""
        with socket.create_connection(("127.0.0.1", self.server_port)) as server:
            head = f"{self.command} {self.path} HTTP/1.1\r\n{self.headers}".replace("\n", "\r\n")
            server.sendall(head.replace("\r\r", "\r").encode())
            server.sendall(self.rfile.read(length // 2))
        self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Clients hang up, too.
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing when a client has closed its connection."""


@contextmanager
def faulty_proxy(server_port: int) -> Iterator[FaultyProxy]:
    """Run a proxy to the server at a port of this machine."""
    proxy = FaultyProxy()
    handler = type("Handler", (_Handler,), {"proxy": proxy, "server_port": server_port})
    with _Server(("127.0.0.1", 0), handler) as server:
        proxy.port = server.server_port
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield proxy
        server.shutdown()
