"""The programmed API on loopback: HTTP/1.1, a thread for each connection."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import jwt

from support.compat.api import Api, Request

#: Headers that describe the client, not the request.
TRANSPORT = {"host", "connection", "user-agent", "accept-encoding", "content-length", "accept"}
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def opened_token(value: str) -> str:
    """Return a JWT's claims, with times relative to its issue; any other text unchanged."""
    scheme, _, token = value.rpartition(" ")
    if token.count(".") != 2 or not token.startswith("ey"):
        return value
    claims = jwt.decode(token, options={"verify_signature": False})
    issued = claims.get("iat", 0)
    for name in ("iat", "exp", "nbf"):
        if name in claims:
            claims[name] -= issued
    opened = {"header": jwt.get_unverified_header(token), "claims": claims}
    return f"{scheme} {json.dumps(opened, sort_keys=True)}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _serve(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(size) if size else b""
        answer = self.server.api.answer(self._request(raw))
        if answer.slow:
            time.sleep(answer.slow)
        if answer.cut == "before":
            self._hang_up()
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        length = len(answer.body) + (100 if answer.cut else 0)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(answer.body)
        if answer.cut:
            self.wfile.flush()
            self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _request(self, raw: bytes) -> Request:
        parts = urlsplit(self.path)
        headers = []
        for name, value in self.headers.items():
            lower = name.lower()
            if lower not in TRANSPORT or (lower == "accept" and value != "*/*"):
                shown = opened_token(value) if lower != "content-type" else value.split(";")[0]
                headers.append((lower, shown))
        kind = (self.headers.get("Content-Type") or "").split(";")[0]
        body: Any = None
        if raw and kind == "application/json":
            body = json.loads(raw)
        elif raw and kind == "application/x-www-form-urlencoded":
            body = [list(pair) for pair in sorted(parse_qsl(raw.decode(), keep_blank_values=True))]
        elif raw:
            body = raw.decode(errors="replace")
        return Request(
            method=self.command,
            path=parts.path,
            query=tuple(sorted(parse_qsl(parts.query, keep_blank_values=True))),
            headers=tuple(sorted(headers)),
            body=body,
        )

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass


for _method in METHODS:
    setattr(_Handler, f"do_{_method}", _Handler._serve)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64
    api: Api

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that closed the connection: that is not an error of the API."""


@contextmanager
def serve() -> Iterator[Server]:
    """Run an empty API on loopback; it ends with the block."""
    server = _Server(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield Server(server)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Server:
    """The running server, programmed again for each read."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self.address = f"http://127.0.0.1:{server.server_address[1]}"

    def program(self, routes: list[dict[str, Any]]) -> Api:
        self._server.api = Api(routes, self.address)
        return self._server.api
