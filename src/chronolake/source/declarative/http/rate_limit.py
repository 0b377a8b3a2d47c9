"""Rate limits: the call budget of an API, shared by all of its readers.

Source: `specs/airbyte-declarative.md` (2.9). The first policy with a matcher for a request applies;
requests that no policy matches are not limited.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import parse_qsl, urlsplit

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.models.requests import (
    FixedWindowCallRatePolicy,
    MovingWindowCallRatePolicy,
)
from chronolake.source.declarative.templating.templates import as_text
from chronolake.source.declarative.templating.times import seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from chronolake.source.declarative.http.request_builder import EncodedRequest
    from chronolake.source.declarative.http.response import Response
    from chronolake.source.declarative.models.requests import (
        HTTPAPIBudget,
        HttpRequestRegexMatcher,
        Policy,
    )

_RESET_HEADER: Final = "ratelimit-reset"
_REMAINING_HEADER: Final = "ratelimit-remaining"
_HIT_STATUSES: Final = (429,)
_WHERE: Final = "the api_budget"


class _Window(Protocol):
    """The calls that one policy has counted."""

    def take(self, weight: int, now: float) -> float:
        """Take calls and return 0, or return the seconds until enough calls are available."""

    def update(self, remaining: int | None, reset: float | None, now: float) -> None:
        """Apply the remaining calls and the reset time that the API reports."""


class Calls(Protocol):
    """The calls to an API so far, by the number of the policy that counts them."""

    def take_calls(self, policy: int, weight: int) -> float:
        """Take calls and return 0, or return the seconds until enough calls are available."""

    def update_calls(self, policy: int, remaining: int | None, reset: float | None) -> None:
        """Apply the remaining calls and the reset time that the API reports."""


class CountedCalls:
    """The calls made by this process; thread-safe.

    Args:
        policies: the budget's policies in the manifest.
        config: for their templates.
        now: returns the time in seconds since 1970.

    Raises:
        ConfigurationError: a limit or an interval is invalid.
    """

    def __init__(
        self, policies: Iterable[Policy], config: Mapping[str, Any], now: Callable[[], float]
    ) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._windows = [_window(policy, config) for policy in policies]

    def take_calls(self, policy: int, weight: int) -> float:
        """Take calls and return 0, or return the seconds until enough calls are available.

        Raises:
            ConfigurationError: a request's weight exceeds the whole budget.
        """
        with self._lock:
            return self._windows[policy].take(weight, self._now())

    def update_calls(self, policy: int, remaining: int | None, reset: float | None) -> None:
        """Apply the remaining calls and the reset time that the API reports."""
        with self._lock:
            self._windows[policy].update(remaining, reset, self._now())


class Budget:
    """An API's call budget; thread-safe.

    Args:
        component: the manifest's component.
        config: for its templates.
        calls: counts the calls.

    Raises:
        ConfigurationError: a weight or a pattern is invalid.
    """

    def __init__(self, component: HTTPAPIBudget, config: Mapping[str, Any], calls: Calls) -> None:
        self._calls = calls
        self._matchers = [
            [Matcher.of(matcher, config, _WHERE) for matcher in policy.matchers]
            for policy in component.policies
        ]
        self._reset_header = component.ratelimit_reset_header or _RESET_HEADER
        self._remaining_header = component.ratelimit_remaining_header or _REMAINING_HEADER
        self._hit_statuses = component.status_codes_for_ratelimit_hit or _HIT_STATUSES

    def take(self, request: EncodedRequest, wait: Callable[[float], None]) -> None:
        """Wait until a request may be sent, and count it.

        Args:
            request: with its credentials, which matchers may refer to.
            wait: waits for a number of seconds.

        Raises:
            ConfigurationError: the request's weight exceeds the whole budget.
        """
        policy, weight = self._match(request)
        if policy is None:
            return
        while (seconds := self._calls.take_calls(policy, weight)) > 0:
            wait(seconds)

    def update(self, request: EncodedRequest, response: Response) -> None:
        """Apply what a response reports about the budget."""
        policy, _ = self._match(request)
        if policy is None:
            return
        remaining = _as_integer(response.headers.get(self._remaining_header))
        if remaining is None and response.status in self._hit_statuses:
            remaining = 0
        self._calls.update_calls(
            policy, remaining, _as_integer(response.headers.get(self._reset_header))
        )

    def _match(self, request: EncodedRequest) -> tuple[int | None, int]:
        """Return the number of the policy that counts a request, and the request's weight."""
        for policy, matchers in enumerate(self._matchers):
            if not matchers:
                return policy, 1
            for matcher in matchers:
                if matcher.matches(request):
                    return policy, matcher.weight
        return None, 1


@dataclass(frozen=True)
class Matcher:
    """A matcher of requests.

    Attributes:
        weight: number of calls that each matching request counts as.
    """

    method: str | None
    base: str | None
    path: re.Pattern[str] | None
    params: Mapping[str, str]
    headers: Mapping[str, str]
    weight: int

    @classmethod
    def of(
        cls, component: HttpRequestRegexMatcher, config: Mapping[str, Any], where: str
    ) -> Matcher:
        """Return the matcher for a component of the manifest.

        Args:
            component: the manifest's component.
            config: for its templates.
            where: the matcher's place in the manifest, for error messages.

        Raises:
            ConfigurationError: a weight or a pattern is invalid.
        """
        pattern = component.url_path_pattern
        try:
            path = re.compile(pattern) if pattern else None
        except re.error as error:
            raise ConfigurationError(
                f"{pattern!r} of {where} is not a valid regular expression.",
                hint="Correct the matcher's url_path_pattern.",
            ) from error
        return cls(
            method=component.method.upper() if component.method else None,
            base=component.url_base.rstrip("/") if component.url_base else None,
            path=path,
            params={str(name): str(value) for name, value in (component.params or {}).items()},
            headers={
                str(name).lower(): str(value) for name, value in (component.headers or {}).items()
            },
            weight=1 if component.weight is None else _count(component.weight, config, where),
        )

    def matches(self, request: EncodedRequest) -> bool:
        """Return whether the matcher matches a request."""
        url = urlsplit(request.url)
        headers = {name.lower(): text for name, text in request.headers.items()}
        return (
            self.method in {None, request.method}
            and self.base in {None, f"{url.scheme}://{url.netloc}"}
            and (self.path is None or self.path.search(url.path.rstrip("/")) is not None)
            and self.params.items() <= dict(parse_qsl(url.query)).items()
            and self.headers.items() <= headers.items()
        )


class _Unlimited:
    def take(self, weight: int, now: float) -> float:  # noqa: ARG002 - there is no limit
        return 0

    def update(self, remaining: int | None, reset: float | None, now: float) -> None:
        pass


@dataclass
class _FixedWindow:
    """Consecutive windows of equal length; the first begins with the first call."""

    limit: int
    period: float
    calls: int = 0
    reset: float | None = None

    def take(self, weight: int, now: float) -> float:
        _check_weight(weight, self.limit)
        reset = self._advance(now)
        if self.calls + weight > self.limit:
            return reset - now
        self.calls += weight
        return 0

    def update(self, remaining: int | None, reset: float | None, now: float) -> None:
        self._advance(now)
        if remaining is not None and remaining < self.limit - self.calls:
            self.calls = self.limit - remaining
        if reset is not None:
            self.reset = reset

    def _advance(self, now: float) -> float:
        if self.reset is None:
            self.reset = now + self.period
        elif now >= self.reset:
            self.reset += self.period * ((now - self.reset) // self.period + 1)
            self.calls = 0
        return self.reset


@dataclass
class _MovingWindow:
    """A sliding window; it keeps the calls within the longest interval of its rates."""

    rates: list[tuple[int, float]]
    calls: deque[tuple[float, int]] = field(default_factory=deque)

    def take(self, weight: int, now: float) -> float:
        _check_weight(weight, min(limit for limit, _ in self.rates))
        longest = max(interval for _, interval in self.rates)
        while self.calls and self.calls[0][0] <= now - longest:
            self.calls.popleft()
        seconds = max(
            self._seconds_until_free(limit, interval, weight, now) for limit, interval in self.rates
        )
        if seconds <= 0:
            self.calls.append((now, weight))
        return seconds

    def update(self, remaining: int | None, reset: float | None, now: float) -> None:
        # A reset time has no meaning for a sliding window.
        if remaining != 0 or reset is not None:
            return
        free = min(limit - self._calls_within(interval, now) for limit, interval in self.rates)
        if free > 0:
            self.calls.append((now, free))

    def _calls_within(self, interval: float, now: float) -> int:
        return sum(weight for at, weight in self.calls if at > now - interval)

    def _seconds_until_free(self, limit: int, interval: float, weight: int, now: float) -> float:
        too_many = self._calls_within(interval, now) + weight - limit
        for at, weight_of_call in self.calls:
            if too_many <= 0:
                break
            if at > now - interval:
                too_many -= weight_of_call
                if too_many <= 0:
                    return at + interval - now
        return 0


def _window(policy: Policy, config: Mapping[str, Any]) -> _Window:
    if isinstance(policy, FixedWindowCallRatePolicy):
        return _FixedWindow(
            _count(policy.call_limit, config, _WHERE), seconds_of(policy.period, _WHERE)
        )
    if isinstance(policy, MovingWindowCallRatePolicy):
        return _MovingWindow(
            [
                (_count(rate.limit, config, _WHERE), seconds_of(rate.interval, _WHERE))
                for rate in policy.rates
            ]
        )
    return _Unlimited()


def _check_weight(weight: int, limit: int) -> None:
    if weight > limit:
        raise ConfigurationError(
            f"A request has weight {weight}, but the api_budget allows at most {limit}.",
            hint="Lower the matcher's weight or raise the limit.",
        )


def _count(value: int | str, config: Mapping[str, Any], where: str) -> int:
    count = _as_integer(as_text(str(value), {"config": config, "parameters": {}}))
    if count is None or count < 1:
        raise ConfigurationError(
            f"{value!r} of {where} is not a valid number of calls.",
            hint="Set a whole number of at least 1.",
        )
    return count


def _as_integer(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
