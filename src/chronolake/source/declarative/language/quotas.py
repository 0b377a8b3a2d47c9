"""Several tokens, each of which an API allows so many calls."""
# ruff: noqa: S105 - names of fields, no secrets

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from chronolake.source.declarative.language.base import SEVERAL, Component, Statuses
from chronolake.source.declarative.language.budget import HttpRequestRegexMatcher


class TokenQuota(Component):
    """Calls that are counted together: where the API says how many are left, and for what."""

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
    """The endpoint that tells a token's quotas."""

    type: Literal["QuotaStatusSource"]
    url: str
    http_method: Literal["GET", "POST"] | None = "GET"
    request_headers: dict[str, str] | None = None
    unavailable_status_codes: Annotated[Statuses, SEVERAL] = frozenset()


class RateLimitedMultipleTokenAuthenticator(Component):
    """Tokens of which any will do; each request goes by one that has calls left."""

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
