"""Responses are cached within bounds."""

from __future__ import annotations

import httpx
import pytest

from chronolake.source.declarative.http.response import Response, ResponseCache


@pytest.mark.differs("cached responses")
def test_cache_size_is_bounded() -> None:
    cache = ResponseCache(limit=100)
    answer = Response(200, httpx.Headers(), b"x" * 40, "u", "GET")
    for key in ("a", "b", "a", "c"):
        if cache.get(key) is None:
            cache.put(key, answer)

    assert cache.get("b") is None
    assert cache.get("a") is cache.get("c") is answer
    cache.put("large", Response(200, httpx.Headers(), b"x" * 101, "u", "GET"))
    assert cache.get("large") is None
