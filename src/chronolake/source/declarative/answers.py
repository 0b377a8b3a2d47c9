"""What a server answers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import httpx
import orjson


@dataclass(frozen=True)
class Answer:
    """A whole answer.

    Attributes:
        headers: case does not matter in their names.
        body: after what `Content-Encoding` says has been undone.
        url: where it came from in the end, after redirects.
    """

    status: int
    headers: httpx.Headers
    body: bytes
    url: str
    method: str

    @property
    def ok(self) -> bool:
        """Whether the status tells of no error."""
        return self.status < httpx.codes.BAD_REQUEST

    def json(self) -> Any:
        """The body's value.

        Raises:
            ValueError: the body is no JSON.
        """
        return orjson.loads(self.body)

    @cached_property
    def links(self) -> dict[str, dict[str, str]]:
        """The `Link` header's links by their `rel`, or by their URL where there is none."""
        response = httpx.Response(self.status, headers=self._only_links())
        return {key: dict(link) for key, link in response.links.items() if key is not None}

    def _only_links(self) -> dict[str, str]:
        return {"Link": self.headers["Link"]} if "Link" in self.headers else {}
