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
from chronolake.source.declarative.field_paths import looked_up
from chronolake.source.declarative.http.auth import PLACE, Authentication, credential
from chronolake.source.declarative.http.rate_limit import Matcher
from chronolake.source.declarative.http.request_builder import Injection, Request, encoded
from chronolake.source.declarative.models.requests import DefaultErrorHandler, HttpResponseFilter
from chronolake.source.declarative.templating.templates import as_text
from chronolake.source.declarative.templating.times import seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from chronolake.source.declarative.http.request_builder import Encoded
    from chronolake.source.declarative.http.response import Answer
    from chronolake.source.declarative.http.transport import Network
    from chronolake.source.declarative.models.requests import (
        QuotaStatusSource,
        RateLimitedMultipleTokenAuthenticator,
        TokenQuota,
    )


#: A longer number is not a time in seconds since 1970.
_EPOCH_DIGITS: Final = 10
#: The last calls are spread over the time until the reset, with pauses of at most 10 seconds.
_LONGEST_PAUSE: Final = 10.0
_SHORTEST_PAUSE: Final = 0.1
_RESERVE: Final = 50
_FRACTION: Final = 0.1
#: The largest difference, in seconds, between the reset times that the quota endpoint and responses
#: report for the same window.
_SKEW: Final = 60.0


@dataclass(frozen=True)
class Turn:
    """The result of requesting a token.

    Attributes:
        token: the token's number; one of its calls is already counted. None: all tokens are
            exhausted.
        seconds: time to wait before the request is sent, or until the first token has calls again.
        asked: number of times that the quotas had been fetched from the API.
    """

    token: int | None
    seconds: float
    asked: int


@dataclass(frozen=True)
class Report:
    """The values that a response reports about a quota; None means not reported.

    Attributes:
        left: number of remaining calls.
        limit: number of calls in a whole window.
        reset: start of the next window, in seconds since 1970.
        refused: whether the response means that no calls remain.
    """

    left: int | None
    limit: int | None
    reset: float | None
    refused: bool


class Quotas(Protocol):
    """The remaining calls of tokens; tokens are identified by number, quotas by name."""

    def turn(self, quota: str, waited: int | None) -> Turn:
        """Take a call from a token that has calls left.

        Args:
            quota: the quota's name.
            waited: the `asked` of the previous turn, if that turn gave no token and the caller
                waited for it.
        """

    def reported(self, token: int, quota: str, report: Report) -> None:
        """Apply the quota that a response to a token's request reports."""

    def others(self, token: int, quota: str) -> bool:
        """Return whether a token is exhausted and another one is not."""


@dataclass
class Left:
    """The remaining calls of one token for one quota.

    Attributes:
        reset: when the quota is reset, in seconds since 1970.
    """

    calls: int
    limit: int
    reset: float


#: One token's quotas, by name; None: the API does not count its calls.
Counts = dict[str, Left] | None


class CountedQuotas:
    """The remaining calls as counted in this process; thread-safe.

    Args:
        component: the manifest's component.
        fetched: fetches the quotas of all tokens from the API.
        now: returns the time in seconds since 1970.
    """

    def __init__(
        self,
        component: RateLimitedMultipleTokenAuthenticator,
        fetched: Callable[[], Sequence[Counts]],
        now: Callable[[], float],
    ) -> None:
        least, fraction = component.budget_min_reserve, component.budget_reserve_fraction
        self._least = _RESERVE if least is None else least
        self._fraction = _FRACTION if fraction is None else fraction
        self._fetched = fetched
        self._now = now
        self._counts: Sequence[Counts] = ()
        self._active = 0
        self._asked = 0
        self._lock = threading.Lock()
        self._asking = threading.Lock()

    def turn(self, quota: str, waited: int | None) -> Turn:
        """Take a call from a token that has calls left.

        Args:
            quota: the quota's name.
            waited: the `asked` of the previous turn, if that turn gave no token and the caller
                waited for it.

        Raises:
            SourceError: the API does not report the quotas.
        """
        if self._asked == 0 or waited is not None:
            self._ask(quota, waited)
        with self._lock:
            of_all = self._of_all(quota)
            for step in range(len(of_all)):
                number = (self._active + step) % len(of_all)
                one = of_all[number]
                if one is None:
                    # These tokens have no counts, so they are used in turn.
                    self._active = (number + 1) % len(of_all)
                    return Turn(number, 0, self._asked)
                if one.calls > 0:
                    self._active = number
                    one.calls -= 1
                    return Turn(number, self._pause(one, of_all), self._asked)
            soonest = min(one.reset for one in of_all if one is not None)
            return Turn(None, soonest - self._now(), self._asked)

    def reported(self, token: int, quota: str, report: Report) -> None:
        """Apply the quota that a response to a token's request reports."""
        with self._lock:
            found = self._of_all(quota)[token]
            if found is not None:
                _learn(found, report)

    def others(self, token: int, quota: str) -> bool:
        """Return whether a token is exhausted and another one is not."""
        with self._lock:
            of_all = self._of_all(quota)
            sender = of_all[token]
            return (
                sender is not None
                and sender.calls <= 0
                and any(one is not None and one.calls > 0 for one in of_all)
            )

    def _ask(self, quota: str, waited: int | None) -> None:
        """Fetch the quotas, unless another thread has just done so, or a token has calls left."""
        with self._asking:
            with self._lock:
                spent = all(one is not None and one.calls <= 0 for one in self._of_all(quota))
            if self._asked and not (waited == self._asked and spent):
                return
            counts = self._fetched()
            with self._lock:
                self._counts = counts
                self._asked += 1

    def _of_all(self, quota: str) -> list[Left | None]:
        return [None if counts is None else counts[quota] for counts in self._counts]

    def _pause(self, one: Left, of_all: Sequence[Left | None]) -> float:
        """Return the seconds to wait before a call, so that the last calls last until the reset."""
        tracked = [each for each in of_all if each is not None]
        if len(tracked) < len(of_all) or any(
            each.calls > max(self._least, each.limit * self._fraction) for each in tracked
        ):
            return 0
        calls = sum(max(each.calls, 0) for each in tracked)
        if calls == 0:
            return 0
        pause = min((one.reset - self._now()) / calls, _LONGEST_PAUSE)
        return pause if pause >= _SHORTEST_PAUSE else 0


class QuotaStatus:
    """A client of the API's endpoint for the quotas of its tokens.

    Args:
        component: the manifest's component.
        config: for its templates.
        sends: one function per token that sends a request with the token's credentials and the
            error handler of `handler_of`; it returns None for an ignored error.

    Raises:
        ConfigurationError: a template fails.
    """

    def __init__(
        self,
        component: RateLimitedMultipleTokenAuthenticator,
        config: Mapping[str, Any],
        sends: Sequence[Callable[[Request], Answer | None]],
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
        self._sends = sends

    def fetched(self) -> list[Counts]:
        """Return the quotas of each token.

        Raises:
            SourceError: the API does not report them.
        """
        return [self._counts(send) for send in self._sends]

    def _counts(self, send: Callable[[Request], Answer | None]) -> Counts:
        answer = send(self._request)
        if answer is None or answer.status in self._unavailable:
            return None
        try:
            body = answer.json()
        except ValueError:
            body = None
        return {quota.name: _left(quota, body) for quota in self._quotas}


def handler_of(source: QuotaStatusSource) -> DefaultErrorHandler | None:
    """Return the quota endpoint's error handler; some errors mean that calls are not counted."""
    if not source.unavailable_status_codes:
        return None
    passed_over = HttpResponseFilter(
        type="HttpResponseFilter", action="IGNORE", http_codes=source.unavailable_status_codes
    )
    return DefaultErrorHandler(type="DefaultErrorHandler", response_filters=[passed_over])


def whole(value: Any) -> int | None:
    """Return a value as an integer, or None if it is not one."""
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def moment(value: Any) -> float | None:
    """Return a time, given in seconds since 1970 or as ISO 8601, or None if it is invalid."""
    text = str(value).strip()
    if text.isdecimal():
        return float(text) if len(text) <= _EPOCH_DIGITS else None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _left(quota: TokenQuota, body: Any) -> Left:
    """Return one quota from a response of the quota endpoint.

    Raises:
        SourceError: a value is missing.
    """
    calls = whole(looked_up(body, quota.remaining_path))
    if calls is None:
        raise _omitted(quota, "a number of calls", quota.remaining_path)
    reset = moment(looked_up(body, quota.reset_path))
    if reset is None:
        raise _omitted(quota, "a time", quota.reset_path)
    if quota.limit_path is None:
        return Left(calls, calls, reset)
    limit = whole(looked_up(body, quota.limit_path))
    if limit is None:
        raise _omitted(quota, "a number of calls", quota.limit_path)
    return Left(calls, limit, reset)


def _omitted(quota: TokenQuota, what: str, path: Sequence[str]) -> SourceError:
    return SourceError(
        f"The status of the quota {quota.name!r} does not tell {what} at {'.'.join(path)}.",
        hint="Correct the paths in the manifest's quotas.",
    )


def _learn(known: Left, told: Report) -> None:
    left = 0 if told.left is None and told.refused else told.left
    reset = told.reset
    # A late response may describe a window that is already over.
    if told.limit is not None and told.limit > 0 and (reset is None or reset >= known.reset):
        known.limit = told.limit
    if reset is not None and reset > known.reset:
        known.reset = reset
        known.calls = known.limit if left is None else left
    elif left is not None and (
        reset is None or reset >= known.reset - _SKEW or (left <= 0 and told.refused)
    ):
        # Other requests may be in flight that the server has not counted yet.
        known.calls = min(known.calls, left)


_WHERE: Final = "an authenticator's quotas"
#: Seconds until another token is tried, instead of waiting for the exhausted one.
_ROTATION: Final = 0.1
#: A server's clock may be late, so the next query waits at least this many seconds.
_LEAST_WAIT: Final = 5.0


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
            "The configuration has no tokens for the authenticator.", hint="Give one at least."
        )
    header = component.header or "Authorization"
    word = component.auth_method or "Bearer"
    return [Injection(headers={header: f"{word} {token}"}, place=PLACE) for token in tokens]


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
        longest = as_text(component.max_wait_time or "PT2H", context)
        self._longest = seconds_of(longest, "max_wait_time", none=True)
        self._matchers = [
            (quota, [Matcher.of(matcher, config, _WHERE) for matcher in quota.matchers])
            for quota in component.quotas
        ]
        self._default = next(
            (quota for quota, matchers in self._matchers if not matchers), component.quotas[0]
        )

    def injection(self) -> Injection:
        """Return a token for an unknown request; raise the same errors as `prepare`."""
        return self._turn(self._default.name)

    @property
    def secrets(self) -> Sequence[Injection]:
        """Return the credentials of all tokens."""
        return self.credentials

    def prepare(self, request: Request) -> tuple[Encoded, Injection]:
        """Return a request with a token that has calls left for it; wait until there is one.

        Raises:
            SourceError: all tokens stay exhausted for longer than the manifest's `max_wait_time`,
                the API does not report the quotas, or the read is cancelled.
        """
        credentials = self._turn(self._quota(encoded(request)).name)
        return encoded(request.with_injection(credentials)), credentials

    def observe(self, request: Encoded, credentials: Injection, answer: Answer) -> None:
        """Record what a response reports about the quota that its request counts against."""
        quota = self._quota(request)
        report = Report(
            left=whole(_header(answer, quota.remaining_header)),
            limit=whole(_header(answer, quota.limit_header)),
            reset=moment(_header(answer, quota.reset_header)),
            refused=answer.status in quota.exhaustion_status_codes,
        )
        if report != Report(left=None, limit=None, reset=None, refused=False):
            self.quotas.reported(self.credentials.index(credentials), quota.name, report)

    def retry_after(self, request: Encoded, credentials: Injection) -> float | None:
        """Return a short wait if the request's token is exhausted and another one is not."""
        token = self.credentials.index(credentials)
        return _ROTATION if self.quotas.others(token, self._quota(request).name) else None

    def _quota(self, request: Encoded) -> TokenQuota:
        for quota, matchers in self._matchers:
            if any(matcher.fits(request) for matcher in matchers):
                return quota
        return self._default

    def _turn(self, quota: str) -> Injection:
        deadline, waited = None, None
        while True:
            turn = self.quotas.turn(quota, waited)
            if turn.token is not None:
                if turn.seconds > 0:
                    self._network.wait(turn.seconds)
                return self.credentials[turn.token]
            now = self._network.now()
            deadline = now + self._longest if deadline is None else deadline
            if turn.seconds >= deadline - now or deadline <= now:
                raise SourceError(
                    f"All tokens are spent (quota {quota!r}), the first for at least "
                    f"{max(turn.seconds, 0):.0f} seconds more.",
                    hint="Read again later, with more tokens, or with a longer max_wait_time.",
                )
            self._network.wait(min(max(turn.seconds, _LEAST_WAIT), deadline - now))
            waited = turn.asked


def _header(answer: Answer, name: str | None) -> str | None:
    return answer.headers.get(name) if name else None
