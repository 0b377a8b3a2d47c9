"""Responses are cached within bounds."""

from __future__ import annotations

import httpx
import pytest

from chronolake.source.declarative.http.response import Answer, AnswerCache


@pytest.mark.differs("cached responses")
def test_only_so_much_is_kept() -> None:
    cache = AnswerCache(limit=100)
    answer = Answer(200, httpx.Headers(), b"x" * 40, "u", "GET")
    for key in ("a", "b", "a", "c"):
        if cache.kept(key) is None:
            cache.keep(key, answer)

    assert cache.kept("b") is None
    assert cache.kept("a") is cache.kept("c") is answer
    cache.keep("large", Answer(200, httpx.Headers(), b"x" * 101, "u", "GET"))
    assert cache.kept("large") is None
