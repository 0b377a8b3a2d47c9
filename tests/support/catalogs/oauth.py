"""OAuth2 in front of a REST catalog: clients get tokens, which end."""

from __future__ import annotations

import json
import threading
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
    """

    credential: str
    issued: int = 0
    refused: int = 0
    _valid: set[str] = field(default_factory=set)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def issue(self) -> str:
        """Return a new token."""
        token = uuid4().hex
        with self._guard:
            self._valid.add(token)
            self.issued += 1
        return token

    def revoke_all(self) -> None:
        """End all tokens."""
        with self._guard:
            self._valid.clear()

    def guard(self, request: str, headers: Mapping[str, str], body: bytes) -> Answer | None:
        """Answer requests for tokens, and refuse other requests without a valid token."""
        if _TOKENS in request:
            return self._answer(body)
        kind, _, token = (headers.get("Authorization") or "").partition(" ")
        with self._guard:
            if kind == "Bearer" and token in self._valid:
                return None
            self.refused += 1
        return refused_by_catalog(401, "NotAuthorizedException")

    def _answer(self, body: bytes) -> Answer:
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        given = f"{form.get('client_id')}:{form.get('client_secret')}"
        if form.get("grant_type") != "client_credentials" or given != self.credential:
            error = {"error": "invalid_client", "error_description": "unknown client"}
            return Answer(401, json.dumps(error).encode())
        token = {"access_token": self.issue(), "token_type": "bearer", "expires_in": 3600}
        return Answer(200, json.dumps(token).encode())
