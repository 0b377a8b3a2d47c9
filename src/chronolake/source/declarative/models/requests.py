"""Models of requesters, authenticators, rate limits and error handlers.

- Request options are the places of values in a request; bodies have models of their own.
- Authenticators add credentials to requests. Some contain a requester (for a login) or other
  authenticators, or keep several tokens with a quota each.
- An API budget limits the rate of requests.
- Error handlers decide what a response means, and backoff strategies how long to wait before
  a retry.
"""

# ruff: noqa: S105 - names of fields, no secrets
from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from chronolake.source.declarative.models.base import (
    SEVERAL,
    Component,
    CustomAuthenticator,
    CustomBackoffStrategy,
    CustomErrorHandler,
    Number,
    Statuses,
)
from chronolake.source.declarative.models.records import JsonDecoder, XmlDecoder

#: The four places of a request that accept named values.
Place = Literal["request_parameter", "header", "body_data", "body_json"]


class RequestOption(Component):
    """A place in a request: `field_path` is a path in a JSON body, `field_name` is one key."""

    type: Literal["RequestOption"]
    inject_into: Place
    field_name: str | None = None
    field_path: list[str] | None = None

    @model_validator(mode="after")
    def _check_target(self) -> RequestOption:
        if not self.field_name and not self.field_path:
            raise ValueError("a RequestOption needs a field_name or a field_path")
        if self.field_name and self.field_path:
            raise ValueError("a RequestOption has a field_name or a field_path, not both")
        if self.field_path and self.inject_into != "body_json":
            raise ValueError(
                "a field_path is only possible in a JSON body (inject_into: body_json)"
            )
        return self


class RequestPath(Component):
    """An option that uses the value as the path, or the whole URL, of the next request."""

    type: Literal["RequestPath"]


class RequestBodyPlainText(Component):
    """A body that is sent unchanged."""

    type: Literal["RequestBodyPlainText"]
    value: str


class RequestBodyUrlEncodedForm(Component):
    """A URL-encoded form body."""

    type: Literal["RequestBodyUrlEncodedForm"]
    value: dict[str, Any]


class RequestBodyJsonObject(Component):
    """A JSON body."""

    type: Literal["RequestBodyJsonObject"]
    value: dict[str, Any]


class GraphQlQuery(BaseModel):
    """A GraphQL query and its additional keys, for example `variables`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    query: str


class RequestBodyGraphQL(Component):
    """A GraphQL query, sent as JSON."""

    type: Literal["RequestBodyGraphQL"]
    value: GraphQlQuery


RequestBody = Annotated[
    RequestBodyPlainText | RequestBodyUrlEncodedForm | RequestBodyJsonObject | RequestBodyGraphQL,
    Field(discriminator="type"),
]


class NoAuth(Component):
    """No authentication."""

    type: Literal["NoAuth"]


class ApiKeyAuthenticator(Component):
    """An authenticator that sends an API key in a header or in another place of the request."""

    type: Literal["ApiKeyAuthenticator"]
    api_token: str | None = None
    header: str | None = None
    inject_into: RequestOption | None = None

    @model_validator(mode="after")
    def _check_target_of_key(self) -> ApiKeyAuthenticator:
        if (self.header is None) == (self.inject_into is None):
            raise ValueError("an ApiKeyAuthenticator needs either inject_into or header")
        return self


class BearerAuthenticator(Component):
    """An authenticator that sends `Authorization: Bearer …`."""

    type: Literal["BearerAuthenticator"]
    api_token: str


class BasicHttpAuthenticator(Component):
    """An authenticator that sends `Authorization: Basic …`."""

    type: Literal["BasicHttpAuthenticator"]
    username: str
    password: str | None = ""


class LegacySessionTokenAuthenticator(Component):
    """An authenticator that sends a session token in a header.

    The configured token is used while the API accepts it. After that, a login creates a new one.
    """

    type: Literal["LegacySessionTokenAuthenticator"]
    header: str
    login_url: str
    session_token: str | None = None
    session_token_response_key: str
    username: str | None = None
    password: str | None = ""
    validate_session_url: str


class JwtHeaders(BaseModel):
    """The registered headers of a JWT."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kid: str | None = None
    typ: str | None = "JWT"
    cty: str | None = None


class JwtPayload(BaseModel):
    """The registered claims of a JWT."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    iss: str | None = None
    sub: str | None = None
    aud: str | None = None


class JwtAuthenticator(Component):
    """An authenticator that signs a JWT."""

    type: Literal["JwtAuthenticator"]
    secret_key: str
    base64_encode_secret_key: bool | str | None = False
    algorithm: Literal[
        "HS256",
        "HS384",
        "HS512",
        "ES256",
        "ES256K",
        "ES384",
        "ES512",
        "RS256",
        "RS384",
        "RS512",
        "PS256",
        "PS384",
        "PS512",
        "EdDSA",
    ]
    token_duration: int | None = 1200
    header_prefix: str | None = None
    jwt_headers: JwtHeaders | None = Field(default_factory=JwtHeaders)
    additional_jwt_headers: dict[str, Any] | None = None
    jwt_payload: JwtPayload | None = Field(default_factory=JwtPayload)
    additional_jwt_payload: dict[str, Any] | None = None
    passphrase: str | None = None
    request_option: RequestOption | None = None


class RefreshTokenUpdater(BaseModel):
    """Paths of the configuration that store single-use refresh tokens."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    refresh_token_name: str = "refresh_token"
    access_token_config_path: list[str] = Field(
        default_factory=lambda: ["credentials", "access_token"]
    )
    refresh_token_config_path: list[str] = Field(
        default_factory=lambda: ["credentials", "refresh_token"]
    )
    token_expiry_date_config_path: list[str] = Field(
        default_factory=lambda: ["credentials", "token_expiry_date"]
    )
    refresh_token_error_status_codes: list[int] = Field(default_factory=list)
    refresh_token_error_key: str = ""
    refresh_token_error_values: list[str] = Field(default_factory=list)


class OAuthAuthenticator(Component):
    """An OAuth access token, and the request that refreshes it."""

    type: Literal["OAuthAuthenticator"]
    client_id_name: str | None = "client_id"
    client_id: str | None = None
    client_secret_name: str | None = "client_secret"
    client_secret: str | None = None
    refresh_token_name: str | None = "refresh_token"
    refresh_token: str | None = None
    token_refresh_endpoint: str | None = None
    access_token_name: str | None = "access_token"
    access_token_value: str | None = None
    expires_in_name: str | None = "expires_in"
    grant_type_name: str | None = "grant_type"
    grant_type: str | None = "refresh_token"
    refresh_request_body: dict[str, Any] | None = None
    refresh_request_headers: dict[str, Any] | None = None
    send_refresh_request_as_query_params: bool | None = False
    scopes: list[str] | None = None
    token_expiry_date: str | None = None
    token_expiry_date_format: str | None = None
    refresh_token_error_status_codes: list[int] | None = None
    refresh_token_error_key: str | None = None
    refresh_token_error_values: list[str] | None = None
    refresh_token_updater: RefreshTokenUpdater | None = None
    profile_assertion: JwtAuthenticator | None = None
    use_profile_assertion: bool | str | None = False


class HttpRequestRegexMatcher(Component):
    """A pattern of the requests that a policy or quota applies to, and their weight."""

    type: Literal["HttpRequestRegexMatcher"] = "HttpRequestRegexMatcher"
    method: str | None = None
    url_base: str | None = None
    url_path_pattern: str | None = None
    params: dict[str, Any] | None = None
    headers: dict[str, Any] | None = None
    weight: int | str | None = None


class Rate(Component):
    """Up to `limit` calls in an interval (ISO 8601 duration)."""

    type: Literal["Rate"] = "Rate"
    limit: int | str
    interval: str


class FixedWindowCallRatePolicy(Component):
    """Up to `call_limit` calls in each of consecutive windows of time."""

    type: Literal["FixedWindowCallRatePolicy"]
    period: str
    call_limit: int
    matchers: list[HttpRequestRegexMatcher]


class MovingWindowCallRatePolicy(Component):
    """A moving window: each rate's `limit` applies to any interval that ends now."""

    type: Literal["MovingWindowCallRatePolicy"]
    rates: list[Rate] = Field(min_length=1)
    matchers: list[HttpRequestRegexMatcher]


class UnlimitedCallRatePolicy(Component):
    """A policy for requests that no other policy limits."""

    type: Literal["UnlimitedCallRatePolicy"]
    matchers: list[HttpRequestRegexMatcher]


Policy = Annotated[
    FixedWindowCallRatePolicy | MovingWindowCallRatePolicy | UnlimitedCallRatePolicy,
    Field(discriminator="type"),
]


class HTTPAPIBudget(Component):
    """Rate limit policies and the response headers of the API's own limits.

    The first policy that matches a request applies.
    """

    type: Literal["HTTPAPIBudget"]
    policies: list[Policy]
    ratelimit_reset_header: str | None = "ratelimit-reset"
    ratelimit_remaining_header: str | None = "ratelimit-remaining"
    status_codes_for_ratelimit_hit: list[int] | None = Field(default_factory=lambda: [429])


class TokenQuota(Component):
    """A quota of calls: the paths of its remaining calls and reset time, and what it applies to."""

    type: Literal["TokenQuota"]
    name: str
    remaining_path: list[str] = Field(min_length=1)
    reset_path: list[str] = Field(min_length=1)
    limit_path: list[str] | None = None
    matchers: Annotated[tuple[HttpRequestRegexMatcher, ...], SEVERAL] = ()
    remaining_header: str | None = None
    reset_header: str | None = None
    limit_header: str | None = None
    exhaustion_status_codes: Annotated[Statuses, SEVERAL] = frozenset()


class QuotaStatusSource(Component):
    """The endpoint that returns the quotas of a token."""

    type: Literal["QuotaStatusSource"]
    url: str
    http_method: Literal["GET", "POST"] | None = "GET"
    request_headers: dict[str, str] | None = None
    unavailable_status_codes: Annotated[Statuses, SEVERAL] = frozenset()


class RateLimitedMultipleTokenAuthenticator(Component):
    """An authenticator with a pool of tokens: each request uses a token with calls left."""

    type: Literal["RateLimitedMultipleTokenAuthenticator"]
    tokens: str | list[str]
    token_delimiter: str | None = ","
    auth_method: str | None = "Bearer"
    header: str | None = "Authorization"
    quota_status_source: QuotaStatusSource
    quotas: list[TokenQuota] = Field(min_length=1)
    max_wait_time: str | None = "PT2H"
    budget_reserve_fraction: float | None = 0.1
    budget_min_reserve: int | None = 50


class ConstantBackoffStrategy(Component):
    """A backoff with a constant wait."""

    type: Literal["ConstantBackoffStrategy"]
    backoff_time_in_seconds: Number
    jitter_range_in_seconds: float | None = Field(default=None, ge=0)


class ExponentialBackoffStrategy(Component):
    """A backoff with a wait that doubles on each attempt."""

    type: Literal["ExponentialBackoffStrategy"]
    factor: Number | None = 5
    jitter_range_in_seconds: float | None = Field(default=None, ge=0)


class WaitTimeFromHeader(Component):
    """A backoff that reads the seconds to wait from a response header."""

    type: Literal["WaitTimeFromHeader"]
    header: str
    regex: str | None = None
    max_waiting_time_in_seconds: Number | None = None


class WaitUntilTimeFromHeader(Component):
    """A backoff that reads the time to wait until (Unix seconds) from a response header."""

    type: Literal["WaitUntilTimeFromHeader"]
    header: str
    min_wait: Number | None = None
    regex: str | None = None
    max_waiting_time_in_seconds: Number | None = None


class WaitTimeFromResponse(Component):
    """A backoff that renders the seconds to wait from the response with a template."""

    type: Literal["WaitTimeFromResponse"]
    wait_time_in_seconds: str
    max_waiting_time_in_seconds: Number | None = None


BackoffStrategy = Annotated[
    ConstantBackoffStrategy
    | ExponentialBackoffStrategy
    | WaitTimeFromHeader
    | WaitUntilTimeFromHeader
    | WaitTimeFromResponse
    | CustomBackoffStrategy,
    Field(discriminator="type"),
]

ActionName = Literal[
    "SUCCESS",
    "FAIL",
    "RETRY",
    "IGNORE",
    "RESET_PAGINATION",
    "RATE_LIMITED",
    "REFRESH_TOKEN_THEN_RETRY",
    "REDUCE_PAGE_SIZE",
    "SPLIT_REQUEST_WINDOW",
]


class HttpResponseFilter(Component):
    """A filter of responses (any of three conditions) and the action for them."""

    type: Literal["HttpResponseFilter"]
    action: ActionName | None = None
    failure_type: Literal["system_error", "config_error", "transient_error"] | None = None
    http_codes: Statuses | None = None
    error_message_contains: str | None = None
    predicate: str | None = None
    error_message: str | None = None


class DefaultErrorHandler(Component):
    """An error handler that applies filters, then the default meaning of each status code."""

    type: Literal["DefaultErrorHandler"]
    response_filters: list[HttpResponseFilter] | None = None
    max_retries: int | str | None = 5
    backoff_strategies: list[BackoffStrategy] | None = None


class CompositeErrorHandler(Component):
    """An error handler that asks a list of handlers in order."""

    type: Literal["CompositeErrorHandler"]
    error_handlers: list[ErrorHandler] = Field(min_length=1)


ErrorHandler = Annotated[
    DefaultErrorHandler | CompositeErrorHandler | CustomErrorHandler, Field(discriminator="type")
]
CompositeErrorHandler.model_rebuild()


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
    """A request that is described by templates."""

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
    #: Whether an API response supplied the URL. Manifests have no reason to set this.
    is_from_api: bool = False


class SessionTokenRequestApiKeyAuthenticator(Component):
    """Settings to send the session token as an API key."""

    type: Literal["ApiKey"]
    inject_into: RequestOption
    api_token: str = "{{ session_token }}"


class SessionTokenRequestBearerAuthenticator(Component):
    """Settings to send the session token in `Authorization: Bearer …`."""

    type: Literal["Bearer"]


class SessionTokenAuthenticator(Component):
    """An authenticator that logs in and uses the returned token until it expires."""

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
    """An authenticator that the configuration selects from several."""

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
