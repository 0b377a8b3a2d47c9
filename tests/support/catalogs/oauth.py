"""OAuth2 in front of a REST catalog: clients get tokens, which end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs
from uuid import uuid4

from support.store.faulty_proxy import Answer, refused_by_catalog

_TOKENS = "/v1/oauth/tokens"


@dataclass
class OAuth:
    """An authorization server; `guard` is that of a proxy.

    Attributes:
        credential: the id and secret of the only client.
        issued: the number of tokens that were issued.
        refused: the number of requests that were refused.
        seconds: for how long a token is valid.
    """

    credential: str
    issued: int = 0
    refused: int = 0
    seconds: int = 3600
    #: When tokens end.
    _valid: dict[str, float] = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def issue(self) -> str:
        """Return a new token."""
        token = uuid4().hex
        with self._guard:
            self._valid[token] = time.monotonic() + self.seconds
            self.issued += 1
        return token

    def tokens(self) -> set[str]:
        """Return the tokens that are valid."""
        with self._guard:
            return {token for token, end in self._valid.items() if end > time.monotonic()}

    def revoke_all(self) -> None:
        """End all tokens."""
        with self._guard:
            self._valid.clear()

    def guard(self, request: str, headers: Mapping[str, str], body: bytes) -> Answer | None:
        """Answer requests for tokens, and refuse other requests without a valid token."""
        if _TOKENS in request:
            return self._answer(body)
        kind, _, token = (headers.get("Authorization") or "").partition(" ")
        if kind == "Bearer" and token in self.tokens():
            return None
        with self._guard:
            self.refused += 1
        return refused_by_catalog(401, "NotAuthorizedException")

    def _answer(self, body: bytes) -> Answer:
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        given = f"{form.get('client_id')}:{form.get('client_secret')}"
        if form.get("grant_type") != "client_credentials" or given != self.credential:
            error = {"error": "invalid_client", "error_description": "unknown client"}
            return Answer(401, json.dumps(error).encode())
        token = {
            "access_token": self.issue(),
            "token_type": "bearer",
            "expires_in": self.seconds,
        }
        return Answer(200, json.dumps(token).encode())
