"""An HTTP API that answers as fast as it can: pages of small records, made once.

`python bench/harness/pages.py PORT_FILE RECORDS_PER_PAGE PAGES DELAY_SECONDS`
"""

from __future__ import annotations

import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import orjson


def record(number: int) -> dict[str, object]:
    """Return a small record with seven fields."""
    return {
        "id": number,
        "name": f"Customer {number}",
        "email": f"customer{number}@example.com",
        "state": ("new", "active", "closed")[number % 3],
        "balance": number % 10_000 / 100,
        "vip": number % 50 == 0,
        "updated_at": f"2026-01-{number % 28 + 1:02d}T{number % 24:02d}:{number % 60:02d}:00Z",
    }


def main() -> None:
    file, per_page, pages, delay = Path(sys.argv[1]), *map(float, sys.argv[2:])
    size = int(per_page)
    bodies = [
        orjson.dumps({"data": [record(page * size + number) for number in range(size)]})
        for page in range(int(pages))
    ]
    parents = orjson.dumps({"data": [{"id": number} for number in range(int(pages))]})
    one = orjson.dumps({"data": [record(1)]})

    class Api(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if delay:
                time.sleep(delay)
            if parts.path == "/records":
                page = int(parse_qs(parts.query).get("page", ["0"])[0])
                body = bodies[page] if page < len(bodies) else b'{"data":[]}'
            else:
                body = parents if parts.path == "/parents" else one
            self.wfile.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
                + str(len(body)).encode()
                + b"\r\n\r\n"
                + body
            )

        def log_message(self, format: str, *words: object) -> None:  # noqa: A002
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        # A connection that exceeds the backlog is retried only after a second.
        request_queue_size = 64

    server = Server(("127.0.0.1", 0), Api)
    file.with_suffix(".new").write_text(str(server.server_address[1]))
    file.with_suffix(".new").replace(file)
    server.serve_forever()


if __name__ == "__main__":
    main()
