"""A pool of API tokens that counts the remaining quota of each token.

`CountedQuotas` is shared by all readers of an API and holds the counts. It fetches the quotas from
the API at first and when all tokens are exhausted; in between, it counts calls and learns from
response headers.

`TokenRotation` belongs to one reader: it finds the quota that a request counts against, waits, and
reports what responses contain.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.http.auth import PLACE, Authentication, credential
from chronolake.source.declarative.http.rate_limit import Matcher
from chronolake.source.declarative.http.request_builder import Injection, Request, encode
from chronolake.source.declarative.models.requests import DefaultErrorHandler, HttpResponseFilter
from chronolake.source.declarative.templating.templates import as_text
from chronolake.source.declarative.templating.times import seconds_of
from chronolake.source.records.lookup import look_up

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from chronolake.source.declarative.http.request_builder import EncodedRequest
    from chronolake.source.declarative.http.response import Response
    from chronolake.source.declarative.http.transport import Network
    from chronolake.source.declarative.models.requests import (
        QuotaStatusSource,
        RateLimitedMultipleTokenAuthenticator,
        TokenQuota,
    )


#: A longer number is not a time in seconds since 1970.
_EPOCH_DIGITS: Final = 10
#: The last calls are spread over the time until the reset, with pauses of at most 10 seconds.
_MAX_PAUSE: Final = 10.0
_MIN_PAUSE: Final = 0.1
_RESERVE: Final = 50
_FRACTION: Final = 0.1
#: The largest difference, in seconds, between the reset times that the quota endpoint and responses
#: report for the same window.
_SKEW: Final = 60.0


@dataclass(frozen=True)
class TokenGrant:
    """The result of requesting a token.

    Attributes:
        token: the token's number; one of its calls is already counted. None: all tokens are
            exhausted.
        seconds: time to wait before the request is sent, or until the first token has calls again.
        fetches: number of times that the quotas had been fetched from the API.
    """

    token: int | None
    seconds: float
    fetches: int


@dataclass(frozen=True)
class QuotaReport:
    """The values that a response reports about a quota; None means not reported.

    Attributes:
        left: number of remaining calls.
        limit: number of calls in a whole window.
        reset: start of the next window, in seconds since 1970.
        is_exhausted: whether the response means that no calls remain.
    """

    left: int | None
    limit: int | None
    reset: float | None
    is_exhausted: bool


class Quotas(Protocol):
    """The remaining calls of tokens; tokens are identified by number, quotas by name."""

    def take_token(self, quota: str, waited_for: int | None) -> TokenGrant:
        """Take a call from a token that has calls left.

        Args:
            quota: the quota's name.
            waited_for: the `fetches` of the previous result, if it had no token and the caller has
                waited for one.
        """

    def apply_report(self, token: int, quota: str, report: QuotaReport) -> None:
        """Apply the quota that a response to a token's request reports."""

    def has_alternative(self, token: int, quota: str) -> bool:
        """Return whether a token is exhausted and another one is not."""


@dataclass
class QuotaCount:
    """The remaining calls of one token for one quota.

    Attributes:
        reset: when the quota is reset, in seconds since 1970.
    """

    calls: int
    limit: int
    reset: float


#: One token's quotas, by name; None: the API does not count its calls.
Counts = dict[str, QuotaCount] | None


class CountedQuotas:
    """The remaining calls as counted in this process; thread-safe.

    Args:
        component: the manifest's component.
        fetch: fetches the quotas of all tokens from the API.
        now: returns the time in seconds since 1970.
    """

    def __init__(
        self,
        component: RateLimitedMultipleTokenAuthenticator,
        fetch: Callable[[], Sequence[Counts]],
        now: Callable[[], float],
    ) -> None:
        reserve, fraction = component.budget_min_reserve, component.budget_reserve_fraction
        self._reserve = _RESERVE if reserve is None else reserve
        self._fraction = _FRACTION if fraction is None else fraction
        self._fetch_all = fetch
        self._now = now
        self._counts: Sequence[Counts] = ()
        self._active = 0
        self._fetches = 0
        self._lock = threading.Lock()
        self._fetching = threading.Lock()

    def take_token(self, quota: str, waited_for: int | None) -> TokenGrant:
        """Take a call from a token that has calls left.

        Args:
            quota: the quota's name.
            waited_for: the `fetches` of the previous result, if it had no token and the caller has
                waited for one.

        Raises:
            SourceError: the API does not report the quotas.
        """
        if self._fetches == 0 or waited_for is not None:
            self._fetch(quota, waited_for)
        with self._lock:
            quota_counts = self._counts_of(quota)
            for step in range(len(quota_counts)):
                number = (self._active + step) % len(quota_counts)
                count = quota_counts[number]
                if count is None:
                    # These tokens have no counts, so they are used in turn.
                    self._active = (number + 1) % len(quota_counts)
                    return TokenGrant(number, 0, self._fetches)
                if count.calls > 0:
                    self._active = number
                    count.calls -= 1
                    return TokenGrant(number, self._pause(count, quota_counts), self._fetches)
            soonest = min(count.reset for count in quota_counts if count is not None)
            return TokenGrant(None, soonest - self._now(), self._fetches)

    def apply_report(self, token: int, quota: str, report: QuotaReport) -> None:
        """Apply the quota that a response to a token's request reports."""
        with self._lock:
            count = self._counts_of(quota)[token]
            if count is not None:
                _apply_report(count, report)

    def has_alternative(self, token: int, quota: str) -> bool:
        """Return whether a token is exhausted and another one is not."""
        with self._lock:
            quota_counts = self._counts_of(quota)
            used = quota_counts[token]
            return (
                used is not None
                and used.calls <= 0
                and any(count is not None and count.calls > 0 for count in quota_counts)
            )

    def _fetch(self, quota: str, waited_for: int | None) -> None:
        """Fetch the quotas, unless another thread has just done so, or a token has calls left."""
        with self._fetching:
            with self._lock:
                are_exhausted = all(
                    count is not None and count.calls <= 0 for count in self._counts_of(quota)
                )
            if self._fetches and not (waited_for == self._fetches and are_exhausted):
                return
            counts = self._fetch_all()
            with self._lock:
                self._counts = counts
                self._fetches += 1

    def _counts_of(self, quota: str) -> list[QuotaCount | None]:
        return [None if counts is None else counts[quota] for counts in self._counts]

    def _pause(self, chosen: QuotaCount, quota_counts: Sequence[QuotaCount | None]) -> float:
        """Return the seconds to wait before a call, so that the last calls last until the reset."""
        tracked = [count for count in quota_counts if count is not None]
        if len(tracked) < len(quota_counts) or any(
            count.calls > max(self._reserve, count.limit * self._fraction) for count in tracked
        ):
            return 0
        calls = sum(max(count.calls, 0) for count in tracked)
        if calls == 0:
            return 0
        pause = min((chosen.reset - self._now()) / calls, _MAX_PAUSE)
        return pause if pause >= _MIN_PAUSE else 0


class QuotaStatus:
    """A client of the API's endpoint for the quotas of its tokens.

    Args:
        component: the manifest's component.
        config: for its templates.
        senders: one function per token that sends a request with the token's credentials and the
            error handler of `handler_of`; it returns None for an ignored error.

    Raises:
        ConfigurationError: a template fails.
    """

    def __init__(
        self,
        component: RateLimitedMultipleTokenAuthenticator,
        config: Mapping[str, Any],
        senders: Sequence[Callable[[Request], Response | None]],
    ) -> None:
        source = component.quota_status_source
        context = {"config": config, "parameters": source.parameters}
        own = (component.header or "").lower()
        self._request = Request(
            source.http_method or "GET",
            as_text(source.url, context),
            headers={
                name: as_text(text, context)
                for name, text in (source.request_headers or {}).items()
                if name.lower() != own
            },
        )
        self._unavailable = source.unavailable_status_codes
        self._quotas = component.quotas
        self._senders = senders

    def fetch(self) -> list[Counts]:
        """Return the quotas of each token.

        Raises:
            SourceError: the API does not report them.
        """
        return [self._counts(send) for send in self._senders]

    def _counts(self, send: Callable[[Request], Response | None]) -> Counts:
        response = send(self._request)
        if response is None or response.status in self._unavailable:
            return None
        try:
            body = response.json()
        except ValueError:
            body = None
        return {quota.name: _parse_quota(quota, body) for quota in self._quotas}


def handler_of(source: QuotaStatusSource) -> DefaultErrorHandler | None:
    """Return the quota endpoint's error handler; some errors mean that calls are not counted."""
    if not source.unavailable_status_codes:
        return None
    ignored = HttpResponseFilter(
        type="HttpResponseFilter", action="IGNORE", http_codes=source.unavailable_status_codes
    )
    return DefaultErrorHandler(type="DefaultErrorHandler", response_filters=[ignored])


def as_integer(value: Any) -> int | None:
    """Return a value as an integer, or None if it is not one."""
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def parse_time(value: Any) -> float | None:
    """Return a time, given in seconds since 1970 or as ISO 8601, or None if it is invalid."""
    text = str(value).strip()
    if text.isdecimal():
        return float(text) if len(text) <= _EPOCH_DIGITS else None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _parse_quota(quota: TokenQuota, body: Any) -> QuotaCount:
    """Return one quota from a response of the quota endpoint.

    Raises:
        SourceError: a value is missing.
    """
    calls = as_integer(look_up(body, quota.remaining_path))
    if calls is None:
        raise _missing_value(quota, "number of calls", quota.remaining_path)
    reset = parse_time(look_up(body, quota.reset_path))
    if reset is None:
        raise _missing_value(quota, "time", quota.reset_path)
    if quota.limit_path is None:
        return QuotaCount(calls, calls, reset)
    limit = as_integer(look_up(body, quota.limit_path))
    if limit is None:
        raise _missing_value(quota, "number of calls", quota.limit_path)
    return QuotaCount(calls, limit, reset)


def _missing_value(quota: TokenQuota, expected: str, path: Sequence[str]) -> SourceError:
    return SourceError(
        f"The status of the quota {quota.name!r} has no valid {expected} at {'.'.join(path)}.",
        hint="Correct the paths in the manifest's quotas.",
    )


def _apply_report(known: QuotaCount, report: QuotaReport) -> None:
    left = 0 if report.left is None and report.is_exhausted else report.left
    reset = report.reset
    # A late response may describe a window that is already over.
    if report.limit is not None and report.limit > 0 and (reset is None or reset >= known.reset):
        known.limit = report.limit
    if reset is not None and reset > known.reset:
        known.reset = reset
        known.calls = known.limit if left is None else left
    elif left is not None and (
        reset is None or reset >= known.reset - _SKEW or (left <= 0 and report.is_exhausted)
    ):
        # Other requests may be in flight that the server has not counted yet.
        known.calls = min(known.calls, left)


_WHERE: Final = "an authenticator's quotas"
#: Seconds until another token is tried, instead of waiting for the exhausted one.
_ROTATION: Final = 0.1
#: A server's clock may be late, so the next query waits at least this many seconds.
_MIN_WAIT: Final = 5.0


def credentials_of(
    component: RateLimitedMultipleTokenAuthenticator, config: Mapping[str, Any]
) -> list[Injection]:
    """Return the credentials of each token, in the order of the tokens.

    Raises:
        ConfigurationError: the configuration contains no tokens, or a template fails.
    """
    context = {"config": config, "parameters": component.parameters}
    if isinstance(component.tokens, str):
        texts = credential(component.tokens, context).split(component.token_delimiter or ",")
    else:
        texts = [credential(template, context) for template in component.tokens]
    tokens = list(dict.fromkeys(text.strip() for text in texts if text.strip()))
    if not tokens:
        raise ConfigurationError(
            "The configuration has no tokens for the authenticator.", hint="Set at least one."
        )
    header = component.header or "Authorization"
    scheme = component.auth_method or "Bearer"
    return [Injection(headers={header: f"{scheme} {token}"}, place=PLACE) for token in tokens]


class TokenRotation(Authentication):
    """An authenticator that gives each request a token that has calls left.

    Args:
        component: the manifest's component.
        config: for its templates.
        network: waits, and provides the time.
        credentials: one for each token.
        quotas: the tokens' remaining calls.

    Attributes:
        credentials: one for each token; no message may contain them.
        quotas: the tokens' remaining calls.

    Raises:
        ConfigurationError: a matcher or the longest wait is invalid.
    """

    def __init__(
        self,
        component: RateLimitedMultipleTokenAuthenticator,
        config: Mapping[str, Any],
        network: Network,
        credentials: Sequence[Injection],
        quotas: Quotas,
    ) -> None:
        self.credentials = credentials
        self.quotas = quotas
        self._network = network
        context = {"config": config, "parameters": component.parameters}
        max_wait = as_text(component.max_wait_time or "PT2H", context)
        self._max_wait = seconds_of(max_wait, "max_wait_time", none=True)
        self._matchers = [
            (quota, [Matcher.of(matcher, config, _WHERE) for matcher in quota.matchers])
            for quota in component.quotas
        ]
        self._default = next(
            (quota for quota, matchers in self._matchers if not matchers), component.quotas[0]
        )

    def injection(self) -> Injection:
        """Return a token for an unknown request; raise the same errors as `prepare`."""
        return self._take_token(self._default.name)

    @property
    def secrets(self) -> Sequence[Injection]:
        """Return the credentials of all tokens."""
        return self.credentials

    def prepare(self, request: Request) -> tuple[EncodedRequest, Injection]:
        """Return a request with a token that has calls left for it; wait until there is one.

        Raises:
            SourceError: all tokens stay exhausted for longer than the manifest's `max_wait_time`,
                the API does not report the quotas, or the read is cancelled.
        """
        credentials = self._take_token(self._quota(encode(request)).name)
        return encode(request.with_injection(credentials)), credentials

    def observe(self, request: EncodedRequest, credentials: Injection, response: Response) -> None:
        """Record what a response reports about the quota that its request counts against."""
        quota = self._quota(request)
        report = QuotaReport(
            left=as_integer(_header(response, quota.remaining_header)),
            limit=as_integer(_header(response, quota.limit_header)),
            reset=parse_time(_header(response, quota.reset_header)),
            is_exhausted=response.status in quota.exhaustion_status_codes,
        )
        if report != QuotaReport(left=None, limit=None, reset=None, is_exhausted=False):
            self.quotas.apply_report(self.credentials.index(credentials), quota.name, report)

    def retry_after(self, request: EncodedRequest, credentials: Injection) -> float | None:
        """Return a short wait if the request's token is exhausted and another one is not."""
        token = self.credentials.index(credentials)
        return _ROTATION if self.quotas.has_alternative(token, self._quota(request).name) else None

    def _quota(self, request: EncodedRequest) -> TokenQuota:
        for quota, matchers in self._matchers:
            if any(matcher.matches(request) for matcher in matchers):
                return quota
        return self._default

    def _take_token(self, quota: str) -> Injection:
        deadline, waited_for = None, None
        while True:
            grant = self.quotas.take_token(quota, waited_for)
            if grant.token is not None:
                if grant.seconds > 0:
                    self._network.wait(grant.seconds)
                return self.credentials[grant.token]
            now = self._network.now()
            deadline = now + self._max_wait if deadline is None else deadline
            if grant.seconds >= deadline - now or deadline <= now:
                raise SourceError(
                    f"All tokens are exhausted (quota {quota!r}). The first one has calls again in "
                    f"{max(grant.seconds, 0):.0f} seconds or later.",
                    hint="Try again later, add tokens, or raise max_wait_time.",
                )
            self._network.wait(min(max(grant.seconds, _MIN_WAIT), deadline - now))
            waited_for = grant.fetches


def _header(response: Response, name: str | None) -> str | None:
    return response.headers.get(name) if name else None
