"""A test API on a real port: it returns the configured replies and records the requests."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

import orjson

from chronolake import exact_json
from support.tls import Identity


@dataclass(frozen=True)
class ReceivedRequest:
    """A request as it arrived."""

    method: str
    path: str
    query: list[tuple[str, str]]
    headers: Mapping[str, str]
    body: bytes

    @property
    def params(self) -> dict[str, str]:
        return dict(self.query)

    @property
    def form(self) -> dict[str, str]:
        return dict(parse_qsl(self.body.decode(), keep_blank_values=True))

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


@dataclass(frozen=True)
class Reply:
    """A reply of the API: bytes are sent unchanged, anything else as JSON.

    `slow` waits before the reply; `cut` closes the connection after that many bytes of the body.
    """

    body: Any = field(default_factory=dict)
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    slow: float = 0.0
    cut: int | None = None

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else exact_json.dumps(self.body)


class _Server(ThreadingHTTPServer):
    # A connection that exceeds the backlog is retried only after a second.
    request_queue_size = 64


Answer = Reply | Callable[[ReceivedRequest], Reply]


class Api:
    """A server of paths on 127.0.0.1; the last reply of a path is repeated.

    With an identity, it is also a proxy: instead of connecting to an HTTPS server, it replies
    itself, with this certificate.
    """

    def __init__(
        self,
        paths: Mapping[str, Answer | Iterable[Answer]] | None = None,
        *,
        identity: Identity | None = None,
    ) -> None:
        self.identity = identity
        self._answers: dict[str, list[Answer]] = {}
        self._lock = threading.Lock()
        self.requests: list[ReceivedRequest] = []
        for path, answers in (paths or {}).items():
            self.on(
                path, *([answers] if isinstance(answers, Reply) or callable(answers) else answers)
            )
        self._server = _Server(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def on(self, path: str, *answers: Answer) -> None:
        self._answers[path] = list(answers)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def paths(self) -> list[str]:
        return [request.path for request in self.requests]

    def answer(self, asked: ReceivedRequest) -> Reply:
        with self._lock:
            self.requests.append(asked)
            answers = self._answers.get(asked.path)
            if not answers:
                return Reply({"error": "nothing here"}, status=404)
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return answer(asked) if callable(answer) else answer

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler_of(api: Api) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # With Nagle's algorithm, the body waits for the header's acknowledgment, which takes 40 ms.
        disable_nagle_algorithm = True

        def _answer(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            parts = urlsplit(self.path)
            asked = ReceivedRequest(
                method=self.command,
                path=parts.path,
                query=parse_qsl(parts.query, keep_blank_values=True),
                headers={name.lower(): text for name, text in self.headers.items()},
                body=self.rfile.read(size),
            )
            reply = api.answer(asked)
            time.sleep(reply.slow)
            content = reply.content
            try:
                self.send_response(reply.status)
                for name, text in reply.headers.items():
                    self.send_header(name, text)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content if reply.cut is None else content[: reply.cut])
                self.wfile.flush()
            except ConnectionError:
                self.close_connection = True  # The other side has had enough.
                return
            if reply.cut is not None:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

        do_GET = do_POST = _answer  # noqa: N815 - the names http.server looks for

        def do_CONNECT(self) -> None:
            assert api.identity is not None
            self.send_response(200)
            self.end_headers()
            self.wfile.flush()
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(api.identity.cert, api.identity.key)
            self.request = context.wrap_socket(self.request, server_side=True)
            # The requests that follow come through the encrypted connection.
            self.setup()
            self.close_connection = False

        def finish(self) -> None:
            super().finish()
            # The server closes only the connection that it has accepted, without its encryption.
            self.connection.close()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    return Handler
