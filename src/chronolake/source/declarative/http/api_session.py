"""API session: HTTP clients that share credentials, rate limits and cached responses."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import httpx

from chronolake.errors import SourceError
from chronolake.source.declarative.http.auth import (
    Authentication,
    FixedAuthentication,
    JwtAuthentication,
    fixed_authentication,
    select_authenticator,
)
from chronolake.source.declarative.http.client import Sender, mask_credentials
from chronolake.source.declarative.http.oauth import OAuthAuthentication
from chronolake.source.declarative.http.rate_limit import Budget, Calls, CountedCalls
from chronolake.source.declarative.http.response import ResponseCache
from chronolake.source.declarative.http.session_token import (
    LegacySessionAuthentication,
    SessionAuthentication,
)
from chronolake.source.declarative.http.token_pool import (
    CountedQuotas,
    QuotaReport,
    QuotaStatus,
    TokenGrant,
    TokenRotation,
    credentials_of,
    handler_of,
)
from chronolake.source.declarative.http.transport import TIMEOUT
from chronolake.source.declarative.models.base import CustomAuthenticator
from chronolake.source.declarative.models.requests import (
    DefaultErrorHandler,
    HttpResponseFilter,
    JwtAuthenticator,
    LegacySessionTokenAuthenticator,
    OAuthAuthenticator,
    RateLimitedMultipleTokenAuthenticator,
    SelectiveAuthenticator,
    SessionTokenAuthenticator,
)
from chronolake.source.declarative.templating.templates import as_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chronolake.source.declarative.http.request_builder import Injection
    from chronolake.source.declarative.http.token_pool import Quotas
    from chronolake.source.declarative.http.transport import Network
    from chronolake.source.declarative.models.requests import (
        Authenticator,
        HTTPAPIBudget,
        HttpRequester,
    )
    from chronolake.source.protocol import TokenStore

#: A rejected session is not an error: the next login creates another.
_EXPIRED_SESSION = DefaultErrorHandler(
    type="DefaultErrorHandler",
    response_filters=[
        HttpResponseFilter(type="HttpResponseFilter", action="IGNORE", http_codes=frozenset({401}))
    ],
)


#: Authenticators that request tokens, which all concurrent readers of an API share.
_TOKEN_AUTHENTICATORS: Final = (
    OAuthAuthenticator,
    SessionTokenAuthenticator,
    LegacySessionTokenAuthenticator,
)


class CustomAuthentication(Protocol):
    """A factory for authenticators that are custom classes of the connector."""

    def __call__(
        self, component: CustomAuthenticator, session: ApiSession, config: Mapping[str, Any], /
    ) -> Authentication:
        """Return the authenticator."""


class SharedState(Calls, Protocol):
    """State shared by all concurrent readers of an API, in several processes."""

    def injection(self, identity: str) -> Injection:
        """Return the credentials for an authenticator's next request."""

    def refresh(self, identity: str, rejected: Injection) -> bool:
        """Replace rejected credentials; return False if that is impossible."""

    def take_token(self, identity: str, quota: str, waited_for: int | None) -> TokenGrant:
        """Take a call from one of an authenticator's tokens; see `token_pool.Quotas.take_token`."""

    def apply_report(self, identity: str, token: int, quota: str, report: QuotaReport) -> None:
        """Apply the quota that a response reports for one of an authenticator's tokens."""

    def has_alternative(self, identity: str, token: int, quota: str) -> bool:
        """Return whether one of an authenticator's tokens is exhausted and another one is not."""


@dataclass(frozen=True)
class _SharedAuthentication(Authentication):
    shared: SharedState
    identity: str

    def injection(self) -> Injection:
        return self.shared.injection(self.identity)

    def refresh(self, rejected: Injection) -> bool:
        return self.shared.refresh(self.identity, rejected)


@dataclass(frozen=True)
class _SharedQuotas:
    shared: SharedState
    identity: str

    def take_token(self, quota: str, waited_for: int | None) -> TokenGrant:
        return self.shared.take_token(self.identity, quota, waited_for)

    def apply_report(self, token: int, quota: str, report: QuotaReport) -> None:
        self.shared.apply_report(self.identity, token, quota, report)

    def has_alternative(self, token: int, quota: str) -> bool:
        return self.shared.has_alternative(self.identity, token, quota)


class ApiSession:
    """One connection's session with an API; thread-safe.

    Streams with equal authenticators share one instance and its token.

    Args:
        network: sends requests.
        config: the connection's configuration.
        custom: creates authenticators that are custom classes of the connector.
        budget: the manifest's `api_budget`, or None.
        token_store: stores values for the next run, such as rotating tokens; its content is secret.
        shared: holds the call counts and tokens, if other processes read the API, too.

    Attributes:
        calls: counts the calls made so far.

    Raises:
        ConfigurationError: the budget is invalid.
    """

    def __init__(
        self,
        network: Network,
        config: Mapping[str, Any],
        *,
        custom: CustomAuthentication,
        budget: HTTPAPIBudget | None = None,
        token_store: TokenStore | None = None,
        shared: SharedState | None = None,
    ) -> None:
        self._network = network
        self._config = config
        self._custom = custom
        self._shared = shared
        policies = () if budget is None else budget.policies
        self.calls: Calls = shared or CountedCalls(policies, config, network.now)
        self._budget = None if budget is None else Budget(budget, config, self.calls)
        self._token_store = token_store
        self._cache = ResponseCache()
        self._lock = threading.RLock()
        self._authentications: dict[str, Authentication] = {}

    @property
    def network(self) -> Network:
        """Return the network that sends requests."""
        return self._network

    @property
    def cancelled(self) -> threading.Event:
        """Return the event that ends all waits and prevents further requests."""
        return self._network.cancelled

    def clear_cache(self) -> None:
        """Clear the response cache: earlier responses may be outdated."""
        self._cache.clear()

    def sender(self, requester: HttpRequester, *, cached: bool | None = None) -> Sender:
        """Return the client that sends a requester's requests.

        Args:
            requester: defines the authenticator, error handler and timeouts.
            cached: whether responses are cached; None: according to the requester's `use_cache`.

        Raises:
            ConfigurationError: the authenticator or the error handler is invalid.
        """
        authentication, identity = None, ""
        if requester.authenticator is not None:
            authentication, identity = self._find_or_create(
                requester.authenticator, self._login_url(requester)
            )
        is_cached = requester.use_cache if cached is None else cached
        return Sender(
            self._network,
            self._config,
            authentication=authentication,
            identity=identity,
            error_handler=requester.error_handler,
            budget=self._budget,
            cache=self._cache if is_cached else None,
            timeout=httpx.Timeout(
                requester.read_timeout_in_seconds or TIMEOUT.read,
                connect=requester.connect_timeout_in_seconds or TIMEOUT.connect,
            ),
        )

    def _login_url(self, requester: HttpRequester) -> str:
        """Return the URL that a login's path is appended to; other authenticators ignore it."""
        login_authenticators = (LegacySessionTokenAuthenticator, SelectiveAuthenticator)
        if not isinstance(requester.authenticator, login_authenticators):
            return ""
        context = {"config": self._config, "parameters": requester.parameters}
        return as_text(requester.url or requester.url_base or "", context)

    def authenticator_of(self, identity: str) -> Authentication:
        """Return the authenticator of an existing client, by its identity.

        Raises:
            SourceError: no client has such an authenticator.
        """
        with self._lock:
            authentication = self._authentications.get(identity)
        if authentication is None:
            raise SourceError("A task requested credentials that the stream does not have.")
        return authentication

    def quotas(self, identity: str) -> Quotas:
        """Return the remaining calls of the tokens of an existing client's authenticator.

        Raises:
            SourceError: no client has such an authenticator.
        """
        authentication = self.authenticator_of(identity)
        if not isinstance(authentication, TokenRotation):
            raise SourceError("A task requested the quotas of an authenticator that has none.")
        return authentication.quotas

    def authentication(self, component: Authenticator, api_url: str) -> Authentication:
        """Return the authenticator for requests to a URL; raise the same errors as `sender`."""
        return self._find_or_create(component, api_url)[0]

    def _find_or_create(self, component: Authenticator, api_url: str) -> tuple[Authentication, str]:
        if isinstance(component, SelectiveAuthenticator):
            return self._find_or_create(select_authenticator(component, self._config), api_url)
        identity = _identity(component, api_url)
        with self._lock:
            if identity not in self._authentications:
                self._authentications[identity] = (
                    _SharedAuthentication(self._shared, identity)
                    if self._shared is not None and isinstance(component, _TOKEN_AUTHENTICATORS)
                    else self._create(component, api_url, identity)
                )
            return self._authentications[identity], identity

    def _create(self, component: Authenticator, api_url: str, identity: str) -> Authentication:  # noqa: PLR0911 - one for each
        if isinstance(component, CustomAuthenticator):
            return self._custom(component, self, self._config)
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
                token_store=self._token_store,
                name=identity,
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
        if isinstance(component, RateLimitedMultipleTokenAuthenticator):
            return self._create_rotation(component, identity)
        if isinstance(component, SelectiveAuthenticator):
            return self._find_or_create(component, api_url)[0]
        return fixed_authentication(component, self._config)

    def _create_rotation(
        self, component: RateLimitedMultipleTokenAuthenticator, identity: str
    ) -> TokenRotation:
        credentials = credentials_of(component, self._config)
        return TokenRotation(
            component,
            self._config,
            self._network,
            credentials,
            _SharedQuotas(self._shared, identity)
            if self._shared is not None
            else self._count_quotas(component, credentials),
        )

    def _count_quotas(
        self, component: RateLimitedMultipleTokenAuthenticator, credentials: Sequence[Injection]
    ) -> CountedQuotas:
        handler = handler_of(component.quota_status_source)
        network = mask_credentials(self._network, credentials)
        senders = [
            Sender(
                network,
                self._config,
                authentication=FixedAuthentication(token),
                error_handler=handler,
            )
            for token in credentials
        ]
        status = QuotaStatus(component, self._config, [sender.send for sender in senders])
        return CountedQuotas(component, status.fetch, self._network.now)


def _identity(component: Authenticator, api_url: str) -> str:
    """Return a hash that identifies an authenticator.

    `$parameters` differ between streams and count only if a template refers to them.
    """
    described = component.model_dump(mode="json")
    without_parameters = _without_parameters(described)
    is_custom = isinstance(component, CustomAuthenticator)
    if not is_custom and "parameters" not in json.dumps(without_parameters):
        described = without_parameters
    is_legacy = isinstance(component, LegacySessionTokenAuthenticator)
    text = json.dumps([described, api_url if is_legacy else ""], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _without_parameters(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_parameters(item) for key, item in value.items() if key != "parameters"
        }
    if isinstance(value, list):
        return [_without_parameters(item) for item in value]
    return value
