"""How often an API may be called: one budget for all that read it.

Source: `specs/airbyte-declarative.md` (2.9). The first policy with a matcher for a request counts;
what no policy matches is not limited.
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

    from chronolake.source.declarative.http.request_builder import Encoded
    from chronolake.source.declarative.http.response import Answer
    from chronolake.source.declarative.models.requests import (
        HTTPAPIBudget,
        HttpRequestRegexMatcher,
        Policy,
    )

_RESET: Final = "ratelimit-reset"
_REMAINING: Final = "ratelimit-remaining"
_HIT: Final = (429,)
_WHERE: Final = "the api_budget"


class _Window(Protocol):
    """What one policy knows of the calls so far."""

    def taken(self, weight: int, now: float) -> float:
        """Takes calls and returns 0, or takes none and returns the seconds until there are some."""

    def told(self, left: int | None, reset: float | None, now: float) -> None:
        """Learns how many calls the API says are left, and when it starts counting anew."""


class Calls(Protocol):
    """The calls to an API so far, by the number of the policy that counts them."""

    def taken(self, policy: int, weight: int) -> float:
        """Takes calls and returns 0, or takes none and returns the seconds until there are some."""

    def told(self, policy: int, left: int | None, reset: float | None) -> None:
        """Learns how many calls the API says are left, and when it starts counting anew."""


class CountedCalls:
    """The calls that are made from this process; any number of threads may use it.

    Args:
        policies: of the budget, as the manifest has them.
        config: for templates in them.
        now: the time in seconds since 1970.

    Raises:
        ConfigurationError: a limit or an interval is none.
    """

    def __init__(
        self, policies: Iterable[Policy], config: Mapping[str, Any], now: Callable[[], float]
    ) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._windows = [_window(policy, config) for policy in policies]

    def taken(self, policy: int, weight: int) -> float:
        """Takes calls and returns 0, or takes none and returns the seconds until there are some.

        Raises:
            ConfigurationError: a request weighs more than the whole budget.
        """
        with self._lock:
            return self._windows[policy].taken(weight, self._now())

    def told(self, policy: int, left: int | None, reset: float | None) -> None:
        """Learns how many calls the API says are left, and when it starts counting anew."""
        with self._lock:
            self._windows[policy].told(left, reset, self._now())


class Budget:
    """An API's budget; any number of threads may use it.

    Args:
        component: as the manifest has it.
        config: for templates in it.
        calls: counts them.

    Raises:
        ConfigurationError: a weight or a pattern is none.
    """

    def __init__(self, component: HTTPAPIBudget, config: Mapping[str, Any], calls: Calls) -> None:
        self._calls = calls
        self._matchers = [
            [Matcher.of(matcher, config, _WHERE) for matcher in policy.matchers]
            for policy in component.policies
        ]
        self._reset_header = component.ratelimit_reset_header or _RESET
        self._remaining_header = component.ratelimit_remaining_header or _REMAINING
        self._hit = component.status_codes_for_ratelimit_hit or _HIT

    def take(self, request: Encoded, wait: Callable[[float], None]) -> None:
        """Returns when the request may be made, and counts it.

        Args:
            request: with its credentials, which matchers may be about.
            wait: waits for some seconds.

        Raises:
            ConfigurationError: the request weighs more than the whole budget.
        """
        policy, weight = self._matching(request)
        if policy is None:
            return
        while (seconds := self._calls.taken(policy, weight)) > 0:
            wait(seconds)

    def learn(self, request: Encoded, answer: Answer) -> None:
        """Takes over what an answer tells of the budget."""
        policy, _ = self._matching(request)
        if policy is None:
            return
        left = _whole(answer.headers.get(self._remaining_header))
        if left is None and answer.status in self._hit:
            left = 0
        self._calls.told(policy, left, _whole(answer.headers.get(self._reset_header)))

    def _matching(self, request: Encoded) -> tuple[int | None, int]:
        """The number of the policy that counts a request, and how much it counts."""
        for policy, matchers in enumerate(self._matchers):
            if not matchers:
                return policy, 1
            for matcher in matchers:
                if matcher.fits(request):
                    return policy, matcher.weight
        return None, 1


@dataclass(frozen=True)
class Matcher:
    """Which requests something is about.

    Attributes:
        weight: how many calls each of them counts as.
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
        """A matcher as the manifest has it.

        Args:
            component: the manifest's.
            config: for templates in it.
            where: it stands, for the error.

        Raises:
            ConfigurationError: a weight or a pattern is none.
        """
        pattern = component.url_path_pattern
        try:
            path = re.compile(pattern) if pattern else None
        except re.error as error:
            raise ConfigurationError(
                f"{pattern!r} of {where} is no regular expression.",
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

    def fits(self, request: Encoded) -> bool:
        """Whether it is about a request."""
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
    def taken(self, weight: int, now: float) -> float:  # noqa: ARG002 - of no interest here
        return 0

    def told(self, left: int | None, reset: float | None, now: float) -> None:
        pass


@dataclass
class _Fixed:
    """Windows one after the other; the first begins with the first call."""

    limit: int
    period: float
    calls: int = 0
    reset: float | None = None

    def taken(self, weight: int, now: float) -> float:
        _check_weight(weight, self.limit)
        reset = self._move(now)
        if self.calls + weight > self.limit:
            return reset - now
        self.calls += weight
        return 0

    def told(self, left: int | None, reset: float | None, now: float) -> None:
        self._move(now)
        if left is not None and left < self.limit - self.calls:
            self.calls = self.limit - left
        if reset is not None:
            self.reset = reset

    def _move(self, now: float) -> float:
        if self.reset is None:
            self.reset = now + self.period
        elif now >= self.reset:
            self.reset += self.period * ((now - self.reset) // self.period + 1)
            self.calls = 0
        return self.reset


@dataclass
class _Moving:
    """Calls of the time that any of the rates still looks at."""

    rates: list[tuple[int, float]]
    calls: deque[tuple[float, int]] = field(default_factory=deque)

    def taken(self, weight: int, now: float) -> float:
        _check_weight(weight, min(limit for limit, _ in self.rates))
        longest = max(interval for _, interval in self.rates)
        while self.calls and self.calls[0][0] <= now - longest:
            self.calls.popleft()
        seconds = max(
            self._until_free(limit, interval, weight, now) for limit, interval in self.rates
        )
        if seconds <= 0:
            self.calls.append((now, weight))
        return seconds

    def told(self, left: int | None, reset: float | None, now: float) -> None:
        # When it starts anew says nothing about a window that moves.
        if left != 0 or reset is not None:
            return
        free = min(limit - self._used(interval, now) for limit, interval in self.rates)
        if free > 0:
            self.calls.append((now, free))

    def _used(self, interval: float, now: float) -> int:
        return sum(weight for at, weight in self.calls if at > now - interval)

    def _until_free(self, limit: int, interval: float, weight: int, now: float) -> float:
        too_many = self._used(interval, now) + weight - limit
        for at, taken in self.calls:
            if too_many <= 0:
                break
            if at > now - interval:
                too_many -= taken
                if too_many <= 0:
                    return at + interval - now
        return 0


def _window(policy: Policy, config: Mapping[str, Any]) -> _Window:
    if isinstance(policy, FixedWindowCallRatePolicy):
        return _Fixed(_count(policy.call_limit, config, _WHERE), seconds_of(policy.period, _WHERE))
    if isinstance(policy, MovingWindowCallRatePolicy):
        return _Moving(
            [
                (_count(rate.limit, config, _WHERE), seconds_of(rate.interval, _WHERE))
                for rate in policy.rates
            ]
        )
    return _Unlimited()


def _check_weight(weight: int, limit: int) -> None:
    if weight > limit:
        raise ConfigurationError(
            f"A request weighs {weight}, and the api_budget allows {limit} at most.",
            hint="Lower the matcher's weight or raise the limit.",
        )


def _count(value: int | str, config: Mapping[str, Any], where: str) -> int:
    count = _whole(as_text(str(value), {"config": config, "parameters": {}}))
    if count is None or count < 1:
        raise ConfigurationError(
            f"{value!r} of {where} is no number of calls.",
            hint="Give a whole number from 1 on.",
        )
    return count


def _whole(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
