"""A test API, and access to it with a configuration."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from chronolake.source.declarative.components.custom_auth import custom_authentication
from chronolake.source.declarative.http.api_session import ApiSession
from chronolake.source.declarative.http.request_builder import build_request
from chronolake.source.declarative.http.transport import Exchange, Network
from chronolake.source.declarative.models.requests import HttpRequester
from support.declarative.apis import Api, ReceivedRequest

NOW = 1_700_000_000.0
HIDDEN = "a-secret-nobody-may-see"


class Time:
    def __init__(self) -> None:
        self.now = NOW
        self.waits: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


class Kept:
    """A token store as JSON, as the operational store has it."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def load_token(self, name: str) -> Mapping[str, Any] | None:
        return json.loads(self.texts[name]) if name in self.texts else None

    def renew(
        self, name: str, change: Callable[[Mapping[str, Any] | None], Mapping[str, Any]]
    ) -> None:
        self.texts[name] = json.dumps(change(self.load_token(name)))


class Visit:
    """A reader of the API, with its own clock, which passes while it waits."""

    def __init__(self, api: Api, client: httpx.Client, config: Mapping[str, Any]) -> None:
        self.api = api
        self.time = Time()
        self.memory = Kept()
        self.log: list[Exchange] = []
        self.network = Network(
            client, sleep=self.time.sleep, now=lambda: self.time.now, log=self.log.append
        )
        self.config = config
        self.session = self.again()

    def again(self) -> ApiSession:
        """Return access as the next run has it."""
        return ApiSession(
            self.network, self.config, custom=custom_authentication, token_store=self.memory
        )

    def requester(self, authenticator: dict[str, Any], **fields: Any) -> HttpRequester:
        whole = {
            "type": "HttpRequester",
            "url_base": self.api.url,
            "path": "items",
            "authenticator": authenticator,
            **fields,
        }
        return HttpRequester.model_validate(whole)

    def asks(self, authenticator: dict[str, Any], **fields: Any) -> ReceivedRequest:
        requester = self.requester(authenticator, **fields)
        request = build_request(requester, self.config, stream_slice=None, next_page_token=None)
        self.session.sender(requester).send(request)
        return [request for request in self.api.requests if request.path == "/items"][-1]
