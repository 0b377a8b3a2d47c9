"""A shop's HTTP API with a month of data that changes, for `make demo-api`.

`python examples/http_api.py PORT_FILE` serves it on a free port of 127.0.0.1. Responses contain the
shop as it is at the API's time, which `POST /clock` moves.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

FIRST_DAY = datetime(2026, 1, 1, 8, tzinfo=UTC)
CITIES = ("Aarhus", "Bergen", "Cork", "Dresden")
#: The states of an order, and how many days after it was placed each begins.
LIVES = (
    (("placed", 0), ("paid", 1), ("shipped", 3)),
    (("placed", 0), ("cancelled", 2)),
    (("placed", 0), ("paid", 4), ("shipped", 5), ("returned", 12)),
)
PAGE = 5


def text_of(at: datetime) -> str:
    """Format a time as the API does."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def orders(now: datetime) -> Iterator[dict[str, Any]]:
    """Return the orders as they are at a time."""
    for number in range(40):
        placed = FIRST_DAY + timedelta(hours=19 * number)
        known = [
            (state, placed + timedelta(days=days, minutes=7 * number))
            for state, days in LIVES[number % len(LIVES)]
            if placed + timedelta(days=days, minutes=7 * number) <= now
        ]
        if known:
            state, changed = known[-1]
            yield {
                "id": 1001 + number,
                "customer_id": number % 7 + 1,
                "status": state,
                "total": round(20 + 13.5 * (number % 9), 2),
                "lines": [{"sku": f"P{number % 5}", "quantity": number % 3 + 1}],
                "updated_at": text_of(changed),
            }


def comments(order: int, now: datetime) -> Iterator[dict[str, Any]]:
    """Return the comments on an order up to a time."""
    for number in range(order % 3):
        said = FIRST_DAY + timedelta(hours=19 * (order - 1001), days=2 + 5 * number)
        if said <= now:
            words = ("When will it come?", "It has arrived.")[number]
            yield {"id": f"{order}-{number}", "text": words, "updated_at": text_of(said)}


def customers(now: datetime) -> Iterator[dict[str, Any]]:
    """Return the customers; some move in the middle of the month."""
    for number in range(1, 8):
        has_moved = number % 3 == 0 and now.day > 15
        city = CITIES[(number + has_moved) % len(CITIES)]
        yield {"id": number, "name": f"Customer {number}", "city": city}


class Shop(BaseHTTPRequestHandler):
    """The handler of the API's requests."""

    protocol_version = "HTTP/1.1"
    now = FIRST_DAY

    def do_GET(self) -> None:
        """Return the shop's records as they are at the API's time."""
        parts = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if self.headers.get("Authorization") != "Bearer demo-token":
            self.answer({"error": "who are you?"}, 401)
            return
        match parts.path.strip("/").split("/"):
            case ["orders"]:
                self.page(list(orders(Shop.now)), asked)
            case ["orders", order, "comments"]:
                self.page(list(comments(int(order), Shop.now)), asked)
            case ["customers"]:
                self.answer({"data": list(customers(Shop.now))})
            case _:
                self.answer({"error": "nothing here"}, 404)

    def do_POST(self) -> None:
        """Set the clock."""
        reported = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Shop.now = datetime.fromisoformat(reported["now"])
        self.answer({"now": text_of(Shop.now)})

    def page(self, rows: list[dict[str, Any]], asked: dict[str, str]) -> None:
        """Return rows that changed within the requested time, a page at a time."""
        since, until = asked.get("since", ""), asked.get("until", "9999")
        found = [row for row in rows if since <= row["updated_at"] <= until]
        begin = int(asked.get("cursor", 0))
        more = begin + PAGE < len(found)
        self.answer({"data": found[begin : begin + PAGE], "next": begin + PAGE if more else None})

    def answer(self, content: dict[str, Any], status: int = 200) -> None:
        """Send JSON."""
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *words: Any) -> None:  # noqa: A002
        """Log no requests: `chronolake read` shows them."""


def main() -> None:
    """Serve on a free port, and write its number to a file."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Shop)
    file = Path(sys.argv[1])
    file.with_suffix(".new").write_text(str(server.server_address[1]))
    file.with_suffix(".new").replace(file)
    server.serve_forever()


if __name__ == "__main__":
    main()
