"""Session tokens: a login returns a token, which authenticates later requests.

Source: `specs/airbyte-declarative.md` (1.7).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.field_paths import get_only_value
from chronolake.source.declarative.http.auth import PLACE, Authentication, credential
from chronolake.source.declarative.http.decoders import decode
from chronolake.source.declarative.http.request_builder import Injection, Request, build_request
from chronolake.source.declarative.models.records import JsonDecoder
from chronolake.source.declarative.models.requests import SessionTokenRequestBearerAuthenticator
from chronolake.source.declarative.templating.times import seconds_of
from chronolake.source.records.lookup import MISSING, look_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chronolake.source.declarative.http.client import Sender
    from chronolake.source.declarative.http.response import Response
    from chronolake.source.declarative.http.transport import Network
    from chronolake.source.declarative.models.records import Decoder
    from chronolake.source.declarative.models.requests import (
        LegacySessionTokenAuthenticator,
        SessionTokenAuthenticator,
    )

_DURATION_NAME: Final = "a session's expiration_duration"
#: Seconds until the next login if no lifetime of the token is configured: a day.
_DAY: Final = 86_400.0


@dataclass
class SessionAuthentication(Authentication):
    """Authentication with the token of a login; without a lifetime, each request logs in.

    Attributes:
        sender: sends the login request.
        network: provides the time.
    """

    component: SessionTokenAuthenticator
    config: Mapping[str, Any]
    sender: Sender
    network: Network
    _token: str | None = None
    _expires: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def injection(self) -> Injection:
        """Return the token as credentials; log in first if the token is missing or expired.

        Raises:
            SourceError: the login fails, or its response contains no token.
            ConfigurationError: the login request cannot be built from the manifest.
        """
        token = self._current_token()
        settings = self.component.request_authentication
        credentials = Injection(place=PLACE)
        if isinstance(settings, SessionTokenRequestBearerAuthenticator):
            credentials.headers["Authorization"] = f"Bearer {token}"
            return credentials
        context = {
            "config": self.config,
            "parameters": self.component.parameters,
            "session_token": token,
        }
        credentials.put(settings.inject_into, credential(settings.api_token, context), self.config)
        return credentials

    def refresh(self, rejected: Injection) -> bool:  # noqa: ARG002 - a login replaces it
        """Mark the token as expired, so that the next request logs in again."""
        with self._lock:
            self._expires = 0.0
        return True

    def _current_token(self) -> str:
        with self._lock:
            now = self.network.now()
            if self._token is None or now >= self._expires:
                self._token = self._log_in()
                lifetime = self.component.expiration_duration
                self._expires = now + (seconds_of(lifetime, _DURATION_NAME) if lifetime else 0.0)
            return self._token

    def _log_in(self) -> str:
        request = build_request(
            self.component.login_requester, self.config, stream_slice=None, next_page_token=None
        )
        response = self.sender.send(request)
        decoder = self.component.decoder or JsonDecoder(type="JsonDecoder")
        value = _first_value(decoder, response)
        token = get_only_value(value, self.component.session_token_path)
        if token is MISSING or token is None:
            path = ".".join(self.component.session_token_path)
            raise SourceError(
                f"The login's response contains no token at {path}.",
                hint="Check the credentials and the manifest's session_token_path.",
            )
        return str(token)


@dataclass
class LegacySessionAuthentication(Authentication):
    """Authentication with the config's session token, or with a login's if the API rejects it.

    Attributes:
        api_url: the URL that the login's path is appended to.
    """

    component: LegacySessionTokenAuthenticator
    config: Mapping[str, Any]
    api_url: str
    sender: Sender
    network: Network
    _token: str | None = None
    _expires: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def injection(self) -> Injection:
        """Return credentials with the token in its header.

        Raises:
            SourceError: neither the token nor the login is accepted.
            ConfigurationError: the config contains neither a valid token nor a user and password.
        """
        with self._lock:
            now = self.network.now()
            if self._token is None or now >= self._expires:
                self._token = self._configured_token() or self._log_in()
                self._expires = now + _DAY
        return Injection(headers={self._text(self.component.header): self._token}, place=PLACE)

    def refresh(self, rejected: Injection) -> bool:  # noqa: ARG002 - a login replaces it
        """Mark the token as expired, so that the next request logs in again."""
        with self._lock:
            self._expires = 0.0
        return True

    def _text(self, template: str | None) -> str:
        return credential(
            template, {"config": self.config, "parameters": self.component.parameters}
        )

    def _configured_token(self) -> str | None:
        token = self._text(self.component.session_token)
        if not token:
            return None
        url = f"{self.api_url}{self._text(self.component.validate_session_url)}"
        header = self._text(self.component.header)
        response = self.sender.send(Request("GET", url, headers={header: token}))
        return token if response is not None else None

    def _log_in(self) -> str:
        user, password = self._text(self.component.username), self._text(self.component.password)
        if not (user and password):
            raise ConfigurationError(
                "The API does not accept the session token, and no user and password are set.",
                hint="Set a valid session token, or a user and a password.",
            )
        url = f"{self.api_url}{self._text(self.component.login_url)}"
        response = self.sender.send(
            Request("POST", url, json={"username": user, "password": password})
        )
        key = self._text(self.component.session_token_response_key)
        token = look_up(_first_value(JsonDecoder(type="JsonDecoder"), response), (key,))
        if token is MISSING or token is None:
            raise SourceError(
                f"The login's response contains no {key!r}.", hint="Check the credentials."
            )
        return str(token)


def _first_value(decoder: Decoder, response: Response | None) -> Any:
    """Return the first value of a login's response, or None if it is empty."""
    return next(iter(decode(decoder, response)), None) if response is not None else None
