"""Requests, and the two ways of authenticating that hold requesters or other authenticators."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from chronolake.source.declarative.language.auth import (
    ApiKeyAuthenticator,
    BasicHttpAuthenticator,
    BearerAuthenticator,
    JwtAuthenticator,
    LegacySessionTokenAuthenticator,
    NoAuth,
    OAuthAuthenticator,
)
from chronolake.source.declarative.language.base import Component
from chronolake.source.declarative.language.custom import CustomAuthenticator
from chronolake.source.declarative.language.errorhandling import ErrorHandler
from chronolake.source.declarative.language.options import RequestBody, RequestOption, RequestPath
from chronolake.source.declarative.language.quotas import RateLimitedMultipleTokenAuthenticator
from chronolake.source.declarative.language.records import JsonDecoder, XmlDecoder

__all__ = [
    "Authenticator",
    "HttpRequester",
    "RequestOption",
    "RequestPath",
    "SelectiveAuthenticator",
    "SessionTokenAuthenticator",
    "SessionTokenRequestApiKeyAuthenticator",
    "SessionTokenRequestBearerAuthenticator",
]


class HttpRequester(Component):
    """A request, told by templates."""

    type: Literal["HttpRequester"]
    url_base: str | None = None
    url: str | None = None
    path: str | None = None
    http_method: Literal["GET", "POST"] = "GET"
    authenticator: Authenticator | None = None
    fetch_properties_from_endpoint: dict[str, Any] | None = None
    query_properties: dict[str, Any] | None = None
    request_parameters: dict[str, Any] | str | None = None
    request_headers: dict[str, Any] | str | None = None
    request_body_data: dict[str, Any] | str | None = None
    request_body_json: dict[str, Any] | str | None = None
    request_body: RequestBody | None = None
    error_handler: ErrorHandler | None = None
    use_cache: bool = False
    connect_timeout_in_seconds: float | None = Field(default=None, gt=0)
    read_timeout_in_seconds: float | None = Field(default=None, gt=0)
    use_tcp_keepalive: bool = False
    #: Whether the API has told where requests go; a manifest has no reason to set it.
    is_from_api: bool = False


class SessionTokenRequestApiKeyAuthenticator(Component):
    """The session's token goes where an API key would."""

    type: Literal["ApiKey"]
    inject_into: RequestOption
    api_token: str = "{{ session_token }}"  # noqa: S105 - a template


class SessionTokenRequestBearerAuthenticator(Component):
    """The session's token goes into `Authorization: Bearer …`."""

    type: Literal["Bearer"]


class SessionTokenAuthenticator(Component):
    """A login gives a token, which is good for a while."""

    type: Literal["SessionTokenAuthenticator"]
    login_requester: HttpRequester
    session_token_path: list[str]
    expiration_duration: str | None = None
    request_authentication: Annotated[
        SessionTokenRequestApiKeyAuthenticator | SessionTokenRequestBearerAuthenticator,
        Field(discriminator="type"),
    ]
    decoder: Annotated[JsonDecoder | XmlDecoder, Field(discriminator="type")] | None = None


class SelectiveAuthenticator(Component):
    """The config says which of several authenticators it is."""

    type: Literal["SelectiveAuthenticator"]
    authenticator_selection_path: list[str]
    authenticators: dict[str, Authenticator]


Authenticator = Annotated[
    NoAuth
    | ApiKeyAuthenticator
    | BearerAuthenticator
    | BasicHttpAuthenticator
    | OAuthAuthenticator
    | JwtAuthenticator
    | SessionTokenAuthenticator
    | LegacySessionTokenAuthenticator
    | RateLimitedMultipleTokenAuthenticator
    | SelectiveAuthenticator
    | CustomAuthenticator,
    Field(discriminator="type"),
]

HttpRequester.model_rebuild()
SessionTokenAuthenticator.model_rebuild()
SelectiveAuthenticator.model_rebuild()
