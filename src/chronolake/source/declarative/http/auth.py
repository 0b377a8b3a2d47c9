"""Authenticators: the base class, and those whose credentials are in the configuration.

Source: `specs/airbyte-declarative.md` (1.7). A credential from a template is sent unchanged: a key
or password that looks like a number remains text.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import jwt
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.field_paths import get_only_value
from chronolake.source.declarative.http.request_builder import Injection, encode
from chronolake.source.declarative.http.response import loads
from chronolake.source.declarative.models.requests import (
    ApiKeyAuthenticator,
    BasicHttpAuthenticator,
    BearerAuthenticator,
    JwtHeaders,
    JwtPayload,
    NoAuth,
    RequestOption,
)
from chronolake.source.declarative.templating.templates import as_mapping, as_truth, evaluate
from chronolake.source.records.lookup import MISSING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chronolake.source.declarative.http.request_builder import EncodedRequest, Request
    from chronolake.source.declarative.http.response import Response
    from chronolake.source.declarative.http.transport import Network
    from chronolake.source.declarative.models.requests import (
        Authenticator,
        JwtAuthenticator,
        SelectiveAuthenticator,
    )
    from chronolake.source.declarative.templating.templates import Context

#: The component named in error messages about credentials in a request.
PLACE: Final = "the authenticator"
_JWT_HEADERS: Final = frozenset({"kid", "alg", "typ", "cty"})
_JWT_CLAIMS: Final = frozenset({"iss", "sub", "aud", "iat", "exp", "nbf"})


def credential(template: str | None, context: Context) -> str:
    """Return a template's value as text, without conversion to other types."""
    if not template:
        return ""
    return str(evaluate(template, context, default=template, kinds=(str,)))


class Authentication:
    """An authenticator: puts credentials into requests and learns from responses, as `httpx.Auth`.

    This is the HTTP client's only interface to authenticators. Instances are thread-safe. The base
    class is the authenticator of an API that needs no credentials.
    """

    @property
    def secrets(self) -> Sequence[Injection]:
        """Return the credentials that no message may contain, even before their first use."""
        return ()

    def injection(self) -> Injection:
        """Return the credentials for an unknown request."""
        return Injection()

    def prepare(self, request: Request) -> tuple[EncodedRequest, Injection]:
        """Return a request as it is sent, and the credentials that were put into it.

        Raises:
            ConfigurationError: the request cannot be encoded, or a template fails.
            SourceError: no credentials are available.
        """
        credentials = self.injection()
        return encode(request.with_injection(credentials)), credentials

    def observe(self, request: EncodedRequest, credentials: Injection, response: Response) -> None:
        """Learn from the response to a request that was sent with these credentials."""

    def refresh(self, rejected: Injection) -> bool:  # noqa: ARG002 - has no others
        """Replace rejected credentials; return False if that is impossible."""
        return False

    def retry_after(self, request: EncodedRequest, credentials: Injection) -> float | None:  # noqa: ARG002
        """Return the seconds until a rate-limited request can be sent with other credentials.

        None: the request waits as long as the API demands.
        """
        return None


@dataclass(frozen=True)
class FixedAuthentication(Authentication):
    """Credentials that never change."""

    credentials: Injection

    def injection(self) -> Injection:
        """Return the credentials."""
        return self.credentials


def fixed_authentication(
    component: NoAuth | ApiKeyAuthenticator | BearerAuthenticator | BasicHttpAuthenticator,
    config: Mapping[str, Any],
) -> FixedAuthentication:
    """Return the credentials that the config contains.

    Raises:
        ConfigurationError: a template fails.
    """
    context = {"config": config, "parameters": component.parameters}
    credentials = Injection(place=PLACE)
    if isinstance(component, BearerAuthenticator):
        credentials.headers["Authorization"] = f"Bearer {credential(component.api_token, context)}"
    elif isinstance(component, BasicHttpAuthenticator):
        user = credential(component.username, context)
        pair = f"{user}:{credential(component.password, context)}"
        credentials.headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    elif isinstance(component, ApiKeyAuthenticator):
        option = component.inject_into
        if option is None and component.header:
            option = _header(component.header, component.parameters)
        if option is not None:
            credentials.put(option, credential(component.api_token, context), config)
    return FixedAuthentication(credentials)


def select_authenticator(
    component: SelectiveAuthenticator, config: Mapping[str, Any]
) -> Authenticator:
    """Return the authenticator that the config selects.

    Raises:
        ConfigurationError: the config does not select one of the authenticators.
    """
    path = component.authenticator_selection_path
    choice = get_only_value(config, path) if path else MISSING
    selected = component.authenticators.get(str(choice)) if choice is not MISSING else None
    if selected is None:
        raise ConfigurationError(
            f"{'.'.join(path)} of the configuration does not select an authenticator.",
            hint=f"Set it to one of: {', '.join(component.authenticators)}.",
        )
    return selected


class JwtAuthentication(Authentication):
    """An authenticator that signs a JWT for each request.

    Args:
        component: the manifest's component.
        config: for its templates.
        network: provides the time.
    """

    def __init__(
        self, component: JwtAuthenticator, config: Mapping[str, Any], network: Network
    ) -> None:
        self._component = component
        self._config = config
        self._network = network
        self._context = {
            "config": config,
            "parameters": component.parameters,
            "json_loads": loads,
        }

    def injection(self) -> Injection:
        """Return credentials with a token signed now.

        Raises:
            ConfigurationError: the key does not match the algorithm, or a template fails.
        """
        parameters = self._component.parameters
        option = self._component.request_option or _header("Authorization", parameters)
        credentials = Injection(place=PLACE)
        credentials.put(option, self.token(), self._config)
        return credentials

    def token(self) -> str:
        """Return a token signed now, with its prefix.

        Raises:
            ConfigurationError: the key does not match the algorithm, or a template fails.
        """
        try:
            token = jwt.encode(
                payload=self._claims(),
                key=self._key(),
                algorithm=self._component.algorithm,
                headers=self._headers(),
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            # The library's message may quote the key.
            raise ConfigurationError(
                f"Signing a token with {self._component.algorithm} and the configured key failed "
                f"({type(error).__name__}).",
                hint="Check the key, its passphrase and the algorithm.",
            ) from None
        prefix = credential(self._component.header_prefix, self._context)
        return f"{prefix} {token}" if prefix else token

    def _headers(self) -> dict[str, Any]:
        headers = as_mapping(self._component.additional_jwt_headers or {}, self._context)
        _check_reserved(headers, _JWT_HEADERS, "additional_jwt_headers")
        settings = self._component.jwt_headers or JwtHeaders()
        for name, template in (("kid", settings.kid), ("typ", settings.typ), ("cty", settings.cty)):
            if template:
                headers[name] = credential(template, self._context)
        return headers

    def _claims(self) -> dict[str, Any]:
        claims = as_mapping(self._component.additional_jwt_payload or {}, self._context)
        _check_reserved(claims, _JWT_CLAIMS, "additional_jwt_payload")
        settings = self._component.jwt_payload or JwtPayload()
        for name, template in (("iss", settings.iss), ("sub", settings.sub)):
            if template:
                claims[name] = credential(template, self._context)
        if settings.aud:
            claims["aud"] = evaluate(
                settings.aud, self._context, default=settings.aud, kinds=(str, list)
            )
        now = int(self._network.now())
        return claims | {"iat": now, "nbf": now, "exp": now + (self._component.token_duration or 0)}

    def _key(self) -> Any:
        key = credential(self._component.secret_key, self._context)
        passphrase = credential(self._component.passphrase, self._context)
        if passphrase:
            return load_pem_private_key(key.encode(), password=passphrase.encode())
        is_encoded = self._component.base64_encode_secret_key
        if is_encoded and as_truth(is_encoded, self._context):
            return base64.b64encode(key.encode()).decode()
        return key


def _header(name: str, parameters: Mapping[str, Any]) -> RequestOption:
    return RequestOption.model_validate(
        {
            "type": "RequestOption",
            "inject_into": "header",
            "field_name": name,
            "$parameters": dict(parameters),
        }
    )


def _check_reserved(values: Mapping[str, Any], reserved: frozenset[str], where: str) -> None:
    reserved_names = sorted(reserved & values.keys())
    if reserved_names:
        raise ConfigurationError(
            f"{where} must not set {', '.join(reserved_names)}.",
            hint="Use jwt_headers, jwt_payload or token_duration instead.",
        )
