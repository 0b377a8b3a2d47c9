"""How requests prove who sends them. What needs a requester of its own is in `requests`."""
# ruff: noqa: S105 - names of fields, no secrets

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from chronolake.source.declarative.language.base import Component
from chronolake.source.declarative.language.options import RequestOption


class NoAuth(Component):
    """The API asks for nothing."""

    type: Literal["NoAuth"]


class ApiKeyAuthenticator(Component):
    """A key, in the place the API wants it."""

    type: Literal["ApiKeyAuthenticator"]
    api_token: str | None = None
    header: str | None = None
    inject_into: RequestOption | None = None

    @model_validator(mode="after")
    def _goes_to_one_place(self) -> ApiKeyAuthenticator:
        if (self.header is None) == (self.inject_into is None):
            raise ValueError("an ApiKeyAuthenticator has either inject_into or header")
        return self


class BearerAuthenticator(Component):
    """`Authorization: Bearer …`."""

    type: Literal["BearerAuthenticator"]
    api_token: str


class BasicHttpAuthenticator(Component):
    """`Authorization: Basic …`."""

    type: Literal["BasicHttpAuthenticator"]
    username: str
    password: str | None = ""


class LegacySessionTokenAuthenticator(Component):
    """A session's token in a header: the given one while the API takes it, else a login's."""

    type: Literal["LegacySessionTokenAuthenticator"]
    header: str
    login_url: str
    session_token: str | None = None
    session_token_response_key: str
    username: str | None = None
    password: str | None = ""
    validate_session_url: str


class JwtHeaders(BaseModel):
    """The token's registered headers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kid: str | None = None
    typ: str | None = "JWT"
    cty: str | None = None


class JwtPayload(BaseModel):
    """The token's registered claims."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    iss: str | None = None
    sub: str | None = None
    aud: str | None = None


class JwtAuthenticator(Component):
    """A token that is signed here."""

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
    """Where the config keeps tokens that are good for one refresh only."""

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
    """An access token, and how to get the next one."""

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
