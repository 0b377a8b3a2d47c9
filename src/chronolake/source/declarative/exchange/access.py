"""Access to an API: the senders of its requests, which share credentials, budget and answers."""

from __future__ import annotations

import hashlib
import json
import threading
from typing import TYPE_CHECKING, Any

import httpx

from chronolake.source.declarative.exchange.authenticating import (
    JwtAuthentication,
    fixed_authentication,
    selected,
)
from chronolake.source.declarative.exchange.budget import Budget
from chronolake.source.declarative.exchange.caching import AnswerCache
from chronolake.source.declarative.exchange.network import TIMEOUT
from chronolake.source.declarative.exchange.oauth import OAuthAuthentication
from chronolake.source.declarative.exchange.sending import Sender
from chronolake.source.declarative.exchange.sessions import (
    LegacySessionAuthentication,
    SessionAuthentication,
)
from chronolake.source.declarative.language.auth import (
    JwtAuthenticator,
    LegacySessionTokenAuthenticator,
    OAuthAuthenticator,
)
from chronolake.source.declarative.language.errorhandling import (
    DefaultErrorHandler,
    HttpResponseFilter,
)
from chronolake.source.declarative.language.requests import (
    SelectiveAuthenticator,
    SessionTokenAuthenticator,
)
from chronolake.source.declarative.templating.templates import as_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chronolake.source.declarative.exchange.network import Network
    from chronolake.source.declarative.exchange.oauth import Remember
    from chronolake.source.declarative.exchange.sending import Authentication
    from chronolake.source.declarative.language.budget import HTTPAPIBudget
    from chronolake.source.declarative.language.requests import Authenticator, HttpRequester

#: A session that the API no longer takes is no error: a login gives another.
_EXPIRED_SESSION = DefaultErrorHandler(
    type="DefaultErrorHandler",
    response_filters=[
        HttpResponseFilter(type="HttpResponseFilter", action="IGNORE", http_codes=frozenset({401}))
    ],
)


class Access:
    """One connection's access to an API; any number of threads may use it.

    Streams whose authenticators are the same share one, and with it the token it has.

    Args:
        network: where requests go.
        config: the connection's configuration.
        budget: the manifest's `api_budget`, or None.
        remember: keeps what the next run is to recall: rotating tokens, a secret.
        recalled: what `remember` was given last.

    Raises:
        ConfigurationError: the budget is none.
    """

    def __init__(
        self,
        network: Network,
        config: Mapping[str, Any],
        *,
        budget: HTTPAPIBudget | None = None,
        remember: Remember | None = None,
        recalled: Mapping[str, Any] | None = None,
    ) -> None:
        self._network = network
        self._config = config
        self._budget = Budget(budget, config, network.now) if budget is not None else None
        self._remember = remember
        self._remembered = dict(recalled or {})
        self._cache = AnswerCache()
        self._lock = threading.RLock()
        self._authentications: dict[str, Authentication] = {}

    @property
    def network(self) -> Network:
        """Where requests go."""
        return self._network

    @property
    def cancelled(self) -> threading.Event:
        """Ends all waits; no request is made from then on."""
        return self._network.cancelled

    def forget_answers(self) -> None:
        """Ask for everything anew from now on: what was asked for before may have changed."""
        self._cache.forget()

    def sender(self, requester: HttpRequester, *, cached: bool | None = None) -> Sender:
        """What sends a requester's requests.

        Args:
            requester: whose authenticator, error handler and timeouts count.
            cached: whether answers are kept; None leaves it to the requester's `use_cache`.

        Raises:
            ConfigurationError: the authenticator or the error handler is wrong.
        """
        authentication, identity = None, ""
        if requester.authenticator is not None:
            url = as_text(
                requester.url or requester.url_base or "",
                {"config": self._config, "parameters": requester.parameters},
            )
            authentication, identity = self._authentication(requester.authenticator, url)
        keep = requester.use_cache if cached is None else cached
        return Sender(
            self._network,
            self._config,
            authentication=authentication,
            identity=identity,
            error_handler=requester.error_handler,
            budget=self._budget,
            cache=self._cache if keep else None,
            timeout=httpx.Timeout(
                requester.read_timeout_in_seconds or TIMEOUT.read,
                connect=requester.connect_timeout_in_seconds or TIMEOUT.connect,
            ),
        )

    def _authentication(self, component: Authenticator, api_url: str) -> tuple[Authentication, str]:
        if isinstance(component, SelectiveAuthenticator):
            return self._authentication(selected(component, self._config), api_url)
        identity = _identity(component, api_url)
        with self._lock:
            if identity not in self._authentications:
                self._authentications[identity] = self._made(component, api_url, identity)
            return self._authentications[identity], identity

    def _made(self, component: Authenticator, api_url: str, identity: str) -> Authentication:
        if isinstance(component, OAuthAuthenticator):
            assertion = component.profile_assertion
            return OAuthAuthentication(
                component,
                self._config,
                self._network,
                assertion=(
                    JwtAuthentication(assertion, self._config, self._network).token
                    if assertion is not None
                    else None
                ),
                remember=lambda tokens: self._keep(identity, tokens),
                recalled=self._remembered.get(identity),
            )
        if isinstance(component, JwtAuthenticator):
            return JwtAuthentication(component, self._config, self._network)
        if isinstance(component, SessionTokenAuthenticator):
            sender = self.sender(component.login_requester)
            return SessionAuthentication(component, self._config, sender, self._network)
        if isinstance(component, LegacySessionTokenAuthenticator):
            sender = Sender(self._network, self._config, error_handler=_EXPIRED_SESSION)
            return LegacySessionAuthentication(
                component, self._config, api_url, sender, self._network
            )
        if isinstance(component, SelectiveAuthenticator):
            return self._authentication(component, api_url)[0]
        return fixed_authentication(component, self._config)

    def _keep(self, identity: str, tokens: Mapping[str, Any]) -> None:
        with self._lock:
            self._remembered[identity] = dict(tokens)
            if self._remember is not None:
                self._remember(dict(self._remembered))


def _identity(component: Authenticator, api_url: str) -> str:
    """What tells authenticators apart.

    `$parameters` differ from stream to stream, and count only where a template asks for them.
    """
    whole = component.model_dump(mode="json")
    plain = _without_parameters(whole)
    if "parameters" not in json.dumps(plain):
        whole = plain
    legacy = isinstance(component, LegacySessionTokenAuthenticator)
    text = json.dumps([whole, api_url if legacy else ""], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _without_parameters(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_parameters(one) for key, one in value.items() if key != "parameters"}
    if isinstance(value, list):
        return [_without_parameters(one) for one in value]
    return value
