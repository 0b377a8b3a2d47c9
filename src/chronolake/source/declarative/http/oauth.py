"""OAuth: access tokens and their refresh.

Source: `specs/airbyte-declarative.md` (1.7). All threads share one token; the thread that finds it
expired fetches the next one while the others wait. A refresh token that is valid for one use is
saved before the access token that was returned with it is used. All processes that read the API
share the saved tokens: a process whose access token has expired first checks whether another
process has saved a newer one.
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass
from datetime import UTC
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import httpx
from dateutil import parser

from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.http.auth import Authentication, credential
from chronolake.source.declarative.http.request_builder import Injection, Request, encode
from chronolake.source.declarative.http.response import Response
from chronolake.source.declarative.http.transport import describe_failure, send_once
from chronolake.source.declarative.templating.templates import as_mapping, as_truth
from chronolake.source.records.lookup import MISSING, look_up

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from chronolake.source.declarative.http.transport import Network
    from chronolake.source.declarative.models.requests import OAuthAuthenticator
    from chronolake.source.protocol import TokenStore

_BY_ASSERTION: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_HOUR: Final = 3600.0
#: Seconds for which a token request is retried if the server fails.
_MAX_RETRY_SECONDS: Final = 300.0
_TOO_MANY_REQUESTS: Final = 429
_SERVER_ERROR: Final = 500
_MAX_DEPTH: Final = 5
_EPOCH_DIGITS: Final = 10
#: Error codes of a refused refresh (RFC 6749, 5.2); other texts may contain secrets.
_REFUSALS: Final = frozenset(
    {
        "invalid_request",
        "invalid_client",
        "invalid_grant",
        "unauthorized_client",
        "unsupported_grant_type",
        "invalid_scope",
    }
)


@dataclass(frozen=True)
class Tokens:
    """The tokens at one time.

    Attributes:
        expires: when the access token expires, in seconds since 1970.
    """

    access: str | None
    refresh: str | None
    expires: float

    def is_valid(self, now: float) -> bool:
        """Return whether requests can use the access token."""
        return bool(self.access) and now <= self.expires


class OAuthAuthentication(Authentication):
    """Authentication with one access token for all requests.

    Args:
        component: the manifest's component.
        config: for its templates.
        network: sends the requests for tokens.
        assertion: signs the assertion that replaces a refresh token, for `profile_assertion`.
        token_store: stores rotating tokens for all readers of the API; it is ignored once the
            config contains another token.
        name: the key of the stored tokens.

    Raises:
        ConfigurationError: settings that are needed to get a token are missing.
        LakeError: the stored tokens cannot be read.
    """

    def __init__(
        self,
        component: OAuthAuthenticator,
        config: Mapping[str, Any],
        network: Network,
        *,
        assertion: Callable[[], str] | None = None,
        token_store: TokenStore | None = None,
        name: str = "",
    ) -> None:
        self._component = component
        self._config = config
        self._network = network
        self._assertion = assertion
        self._token_store = token_store if component.refresh_token_updater is not None else None
        self._name = name
        self._context = {"config": config, "parameters": component.parameters}
        self._lock = threading.RLock()
        self._endpoint = self._text(component.token_refresh_endpoint)
        self._by_assertion = bool(component.use_profile_assertion) and as_truth(
            component.use_profile_assertion or False, self._context
        )
        self._tokens = self._configured_tokens()
        self._origin = _digest(self._tokens.refresh)
        if self._token_store is not None:
            self._adopt(self._token_store.load_token(name))
        self._check()

    def injection(self) -> Injection:
        """Return the access token in its header; fetch a new one first if it is missing or expired.

        Raises:
            SourceError: the server returns no token.
            ConfigurationError: a template fails.
        """
        with self._lock:
            if self._endpoint and not self._tokens.is_valid(self._network.now()):
                self._refresh()
            access = self._tokens.access
        return Injection(headers={"Authorization": f"Bearer {access}"}, place="the authenticator")

    def refresh(self, rejected: Injection) -> bool:
        """Fetch a token that replaces a rejected one, unless that has already happened.

        Raises:
            SourceError: the server returns no token.
        """
        if not self._endpoint:
            return False
        with self._lock:
            if rejected.headers.get("Authorization") == f"Bearer {self._tokens.access}":
                self._refresh(rejected=self._tokens.access)
        return True

    def _text(self, template: str | None) -> str:
        return credential(template, self._context)

    def _text_or(self, template: str | None, default: str) -> str:
        return self._text(template) or default

    def _check(self) -> None:
        component = self._component
        if not self._endpoint:
            if not self._tokens.access:
                raise ConfigurationError(
                    "OAuth has neither an access token nor an endpoint that returns one.",
                    hint="Set token_refresh_endpoint in the manifest's OAuthAuthenticator.",
                )
            return
        if self._by_assertion:
            if self._assertion is None:
                raise ConfigurationError(
                    "OAuth with an assertion needs a profile_assertion.",
                    hint="Set profile_assertion in the manifest's OAuthAuthenticator.",
                )
        elif component.refresh_token_updater is None:
            if component.client_id is None or component.client_secret is None:
                raise ConfigurationError(
                    "OAuth needs both a client_id and a client_secret.",
                    hint="Set both in the manifest's OAuthAuthenticator.",
                )
            if self._grant_type() == "refresh_token" and component.refresh_token is None:
                raise ConfigurationError(
                    "OAuth with the grant_type refresh_token needs a refresh_token.",
                    hint="Set it in the manifest's OAuthAuthenticator, or use another grant_type.",
                )

    def _configured_tokens(self) -> Tokens:
        """Return the tokens in the config."""
        updater = self._component.refresh_token_updater
        if updater is None:
            expires = self._text(self._component.token_expiry_date)
            return Tokens(
                access=self._text(self._component.access_token_value) or None,
                refresh=self._text(self._component.refresh_token) or None,
                expires=_parse_time(expires, ConfigurationError) if expires else 0.0,
            )
        expires = _config_text(self._config, updater.token_expiry_date_config_path)
        return Tokens(
            access=_config_text(self._config, updater.access_token_config_path) or None,
            refresh=_config_text(self._config, updater.refresh_token_config_path) or None,
            expires=_parse_time(expires, ConfigurationError) if expires else 0.0,
        )

    def _grant_type(self) -> str:
        if self._by_assertion:
            return _BY_ASSERTION
        return self._text_or(self._component.grant_type, "refresh_token")

    def _client(self, name: str, template: str | None) -> str:
        """Return a client's id or secret; rotating tokens prefer the config's `credentials`."""
        if self._component.refresh_token_updater is not None:
            configured = _config_text(self._config, ["credentials", name])
            if configured:
                return configured
        return self._text(template)

    def _arguments(self, headers: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a refresh request."""
        component = self._component
        grant_name = self._text_or(component.grant_type_name, "grant_type")
        if self._by_assertion and self._assertion is not None:
            return {grant_name: self._grant_type(), "assertion": self._assertion()}
        arguments: dict[str, Any] = {grant_name: self._grant_type()}
        if not any(name.lower() == "authorization" for name in headers):
            client_id = self._client("client_id", component.client_id)
            if not client_id:
                raise ConfigurationError(
                    "The OAuth client_id is empty.", hint="Set it in the configuration."
                )
            arguments[self._text_or(component.client_id_name, "client_id")] = client_id
            arguments[self._text_or(component.client_secret_name, "client_secret")] = self._client(
                "client_secret", component.client_secret
            )
        arguments[self._refresh_name()] = self._tokens.refresh
        if component.scopes:
            arguments["scopes"] = component.scopes
        return as_mapping(component.refresh_request_body or {}, self._context) | arguments

    def _refresh_name(self) -> str:
        updater = self._component.refresh_token_updater
        if updater is not None:
            return updater.refresh_token_name
        return self._text_or(self._component.refresh_token_name, "refresh_token")

    def _adopt(self, stored: Mapping[str, Any] | None) -> None:
        """Use the stored tokens if they originate from the token in the config."""
        if stored is not None and stored.get("origin") == self._origin:
            self._tokens = _tokens_from(stored)

    def _refresh(self, rejected: str | None = None) -> None:
        """Get a valid access token that differs from the rejected one."""
        if self._token_store is None:
            self._fetch_tokens()
        else:
            self._token_store.renew(self._name, partial(self._renew_stored, rejected))

    def _renew_stored(
        self, rejected: str | None, stored: Mapping[str, Any] | None
    ) -> Mapping[str, Any]:
        """Return the tokens to store: the known ones if they are still valid, or new ones."""
        self._adopt(stored)
        is_usable = self._tokens.is_valid(self._network.now()) and self._tokens.access != rejected
        if stored is not None and stored.get("origin") == self._origin and is_usable:
            return stored
        self._fetch_tokens()
        return {
            "origin": self._origin,
            "access_token": self._tokens.access,
            "refresh_token": self._tokens.refresh,
            "expires": self._tokens.expires,
        }

    def _fetch_tokens(self) -> None:
        """Fetch the next tokens."""
        headers = as_mapping(self._component.refresh_request_headers or {}, self._context)
        arguments = self._arguments(headers)
        if self._component.send_refresh_request_as_query_params and not self._by_assertion:
            request = Request("POST", self._endpoint, params=arguments, headers=headers)
        else:
            request = Request("POST", self._endpoint, data=arguments, headers=headers)
        value = self._send_with_retries(request, arguments.keys())
        access = _find_key(value, self._text_or(self._component.access_token_name, "access_token"))
        if not access:
            raise SourceError(
                "OAuth: the server's response contains no access token.",
                hint="Check the manifest's access_token_name.",
            )
        updater = self._component.refresh_token_updater
        refresh = _find_key(value, self._refresh_name()) if updater is not None else None
        self._tokens = Tokens(
            access=str(access),
            refresh=str(refresh) if refresh else self._tokens.refresh,
            expires=self._expiry(value),
        )

    def _expiry(self, value: Any) -> float:
        now = self._network.now()
        reported_expiry = _find_key(
            value, self._text_or(self._component.expires_in_name, "expires_in")
        )
        if reported_expiry is None:
            return self._tokens.expires if self._tokens.is_valid(now) else now + _HOUR
        if self._component.token_expiry_date_format:
            return _parse_time(str(reported_expiry), SourceError)
        try:
            return now + int(float(str(reported_expiry)))
        except (ValueError, OverflowError) as error:
            raise SourceError(
                "OAuth: the server does not return the access token's lifetime in seconds.",
                hint="If it returns a time, set token_expiry_date_format.",
            ) from error

    def _send_with_retries(self, request: Request, hidden: Sequence[str] | Any) -> Any:
        """Return the value of the server's response; retry if the server fails."""
        waited, attempt = 0.0, 0
        while True:
            attempt += 1
            outcome: Response | httpx.RequestError
            try:
                outcome = send_once(self._network, encode(request), attempt=attempt, hidden=hidden)
            except httpx.RequestError as error:
                outcome = error
            else:
                if outcome.ok:
                    return _parse_json(outcome)
                if outcome.status != _TOO_MANY_REQUESTS and outcome.status < _SERVER_ERROR:
                    raise _refused_error(outcome)
            seconds = float(2 ** (attempt - 1))
            if waited + seconds > _MAX_RETRY_SECONDS:
                raise _no_token_error(outcome, attempt)
            self._network.wait(seconds)
            waited += seconds


def _config_text(config: Mapping[str, Any], path: Sequence[str]) -> str:
    value = look_up(dict(config), path)
    return "" if value is MISSING or value is None else str(value)


def _tokens_from(stored: Mapping[str, Any]) -> Tokens:
    return Tokens(
        access=stored.get("access_token"),
        refresh=stored.get("refresh_token"),
        expires=float(stored.get("expires") or 0.0),
    )


def _digest(token: str | None) -> str:
    """Return a hash that identifies a token of the config without revealing it."""
    return hashlib.sha256((token or "").encode()).hexdigest()


def _parse_time(text: str, error_type: type[ConfigurationError | SourceError]) -> float:
    """Return seconds since 1970, from such a number or from a date."""
    if text.isdigit() and len(text) <= _EPOCH_DIGITS:
        return float(text)
    try:
        time = parser.parse(text)
    except (ValueError, OverflowError) as error:
        raise error_type(
            "OAuth: the time at which the access token expires is not valid.",
            hint="Use a date and time in ISO 8601, or seconds since 1970.",
        ) from error
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return time.timestamp()


def _find_key(value: Any, key: str, depth: int = 0) -> Any:
    """Return the first value of a key at any depth of a response."""
    if depth > _MAX_DEPTH:
        return None
    if isinstance(value, dict):
        if key in value:
            return value[key]
        inner = list(value.values())
    elif isinstance(value, list):
        inner = value
    else:
        return None
    values = (_find_key(item, key, depth + 1) for item in inner)
    return next((item for item in values if item is not None), None)


def _parse_json(response: Response) -> Any:
    try:
        return response.json()
    except ValueError as error:
        raise SourceError(
            "OAuth: the server's response is not valid JSON.",
            hint="Check the manifest's token_refresh_endpoint.",
        ) from error


def _refused_error(response: Response) -> SourceError:
    try:
        code = look_up(response.json(), ("error",))
    except ValueError:
        code = None
    reported_code = f", {code}" if isinstance(code, str) and code in _REFUSALS else ""
    return SourceError(
        "OAuth: the server refused to issue an access token "
        f"(status {response.status}{reported_code}).",
        hint="Sign in again, and put the new credentials into the configuration.",
    )


def _no_token_error(outcome: Response | httpx.RequestError, attempts: int) -> SourceError:
    reason = (
        f"status {outcome.status}" if isinstance(outcome, Response) else describe_failure(outcome)
    )
    return SourceError(
        f"OAuth: the server returned no access token in {attempts} attempts ({reason}).",
        hint="Try again later.",
    )
