"""How often an API may be called."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from chronolake.source.declarative.language.base import Component


class HttpRequestRegexMatcher(Component):
    """Which requests a policy is about, and how much of the budget each takes."""

    type: Literal["HttpRequestRegexMatcher"] = "HttpRequestRegexMatcher"
    method: str | None = None
    url_base: str | None = None
    url_path_pattern: str | None = None
    params: dict[str, Any] | None = None
    headers: dict[str, Any] | None = None
    weight: int | str | None = None


class Rate(Component):
    """So many calls in an interval (ISO 8601)."""

    type: Literal["Rate"] = "Rate"
    limit: int | str
    interval: str


class FixedWindowCallRatePolicy(Component):
    """So many calls in each window of time, one window after the other."""

    type: Literal["FixedWindowCallRatePolicy"]
    period: str
    call_limit: int
    matchers: list[HttpRequestRegexMatcher]


class MovingWindowCallRatePolicy(Component):
    """So many calls in whatever interval ends now."""

    type: Literal["MovingWindowCallRatePolicy"]
    rates: list[Rate] = Field(min_length=1)
    matchers: list[HttpRequestRegexMatcher]


class UnlimitedCallRatePolicy(Component):
    """Requests that no other policy is to limit."""

    type: Literal["UnlimitedCallRatePolicy"]
    matchers: list[HttpRequestRegexMatcher]


Policy = Annotated[
    FixedWindowCallRatePolicy | MovingWindowCallRatePolicy | UnlimitedCallRatePolicy,
    Field(discriminator="type"),
]


class HTTPAPIBudget(Component):
    """Policies, of which the first that matches a request counts, and what the API tells of it."""

    type: Literal["HTTPAPIBudget"]
    policies: list[Policy]
    ratelimit_reset_header: str | None = "ratelimit-reset"
    ratelimit_remaining_header: str | None = "ratelimit-remaining"
    status_codes_for_ratelimit_hit: list[int] | None = Field(default_factory=lambda: [429])
