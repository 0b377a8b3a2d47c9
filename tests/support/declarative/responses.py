"""Responses that tests make without a server."""

from __future__ import annotations

from typing import Any

import httpx
import orjson

from chronolake.source.declarative.http.response import Response


def answer(body: Any, headers: dict[str, str] | None = None) -> Response:
    """Return a response with these bytes, or with this value as JSON."""
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    return Response(200, httpx.Headers(headers or {}), content, "https://api.test/things", "GET")
