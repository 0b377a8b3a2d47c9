"""Backoff: waiting times and limits of retries.

The header with the API's waiting time, such as `Retry-After`, is the one that the manifest names.

Source: `specs/airbyte-declarative.md` (2.9).
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.custom_classes import Calls
from chronolake.source.declarative.http.error_handler import Action
from chronolake.source.declarative.http.requests_conversion import to_requests_outcome
from chronolake.source.declarative.http.response import Response
from chronolake.source.declarative.models.base import CustomBackoffStrategy, CustomErrorHandler
from chronolake.source.declarative.models.requests import (
    CompositeErrorHandler,
    ConstantBackoffStrategy,
    ExponentialBackoffStrategy,
    WaitTimeFromHeader,
    WaitTimeFromResponse,
    WaitUntilTimeFromHeader,
)
from chronolake.source.declarative.templating.templates import as_text, evaluate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import httpx

    from chronolake.source.declarative.models.base import Number
    from chronolake.source.declarative.models.requests import BackoffStrategy, ErrorHandler

    #: A strategy's component, or the calls of a custom strategy class.
    Strategy = BackoffStrategy | Calls
    BuiltInStrategy = (
        ConstantBackoffStrategy
        | ExponentialBackoffStrategy
        | WaitTimeFromHeader
        | WaitTimeFromResponse
        | WaitUntilTimeFromHeader
    )

_DEFAULT_RETRIES: Final = 5
_MAX_SECONDS: Final = 600.0
#: Added to a strategy's wait, which is usually a whole number of seconds of the server's clock.
_MARGIN: Final = 1.0


def max_retries_of(handler: ErrorHandler | None, config: Mapping[str, Any]) -> int:
    """Return the number of retries; in a chain, the first handler defines it.

    Raises:
        ConfigurationError: `max_retries` is not an integer.
    """
    if isinstance(handler, CompositeErrorHandler):
        return max_retries_of(handler.error_handlers[0], config)
    if handler is None:
        return _DEFAULT_RETRIES
    value: Any = (
        handler.calls.value("max_retries")
        if isinstance(handler, CustomErrorHandler)
        else handler.max_retries
    )
    if value is None:
        return _DEFAULT_RETRIES
    if isinstance(value, str):
        context = {"config": config, "parameters": handler.parameters}
        value = evaluate(value, context, default=str(_DEFAULT_RETRIES))
    try:
        return max(int(value), 0)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            "max_retries of an error handler is not a whole number.", hint="Set a number, e.g. 5."
        ) from error


def strategies_of(handler: ErrorHandler | None) -> list[Strategy]:
    """Return a handler's backoff strategies; in a chain, those of all handlers."""
    if isinstance(handler, CompositeErrorHandler):
        return [strategy for member in handler.error_handlers for strategy in strategies_of(member)]
    if isinstance(handler, CustomErrorHandler):
        calls = handler.calls
        return [calls.of(member) for member in calls.value("backoff_strategies") or ()]
    return list((handler and handler.backoff_strategies) or ())


def strategy_wait(
    strategies: list[Strategy],
    outcome: Response | httpx.RequestError,
    config: Mapping[str, Any],
    *,
    attempt: int,
    now: float,
) -> float | None:
    """Return the seconds of the first strategy that returns a wait, or None.

    Args:
        strategies: in the order in which they are tried.
        outcome: the response, or the reason why it is missing.
        config: for templates.
        attempt: number of attempts made so far.
        now: the time in seconds since 1970.

    Raises:
        SourceError: the server demands a longer wait than a strategy allows.
        ConfigurationError: a strategy's template does not return a number.
    """
    for strategy in strategies:
        implementation = strategy.calls if isinstance(strategy, CustomBackoffStrategy) else strategy
        seconds = (
            _custom_wait(implementation, outcome, attempt)
            if isinstance(implementation, Calls)
            else _wait(implementation, outcome, config, attempt, now)
        )
        if seconds:
            return seconds
    return None


@dataclass
class _RetryCount:
    """The number of retries of one kind, and when the first and the last of them began."""

    began: float
    last: float
    tries: int = 0


@dataclass
class Retries:
    """The retries of one request.

    The reference implementation nests three retry loops: a strategy's waits are the innermost, then
    rate limits without a strategy, then everything else. Each loop has its own counter, which
    restarts when an outer loop retries. Rate limits without a strategy have no time limit.

    Args:
        allowed: number of retries allowed in each loop.
        now: returns the time in seconds.
    """

    allowed: int
    now: Callable[[], float]
    _counts: list[_RetryCount] = field(default_factory=list)

    def __post_init__(self) -> None:
        start = self.now()
        self._counts = [_RetryCount(start, start) for _ in range(3)]

    def wait(self, action: Action, requested: float | None) -> float | None:
        """Return the seconds to wait before the next retry, or None to give up.

        Args:
            action: the error handler's decision.
            requested: a strategy's wait in seconds, without the margin.
        """
        level = 2 if requested else 1 if action is Action.RATE_LIMITED else 0
        count = self._counts[level]
        count.tries += 1
        elapsed = count.last - count.began
        if count.tries > self.allowed or (level != 1 and elapsed >= _MAX_SECONDS):
            return None
        if requested:
            return max(requested + _MARGIN, 0)
        seconds = float(2 ** (count.tries - 1))
        return seconds if level else min(seconds, _MAX_SECONDS - elapsed)

    def record_retry(self, action: Action, requested: float | None) -> None:
        """Record that the wait is over and the next attempt begins."""
        level = 2 if requested else 1 if action is Action.RATE_LIMITED else 0
        start = self.now()
        self._counts[level].last = start
        self._counts[level + 1 :] = [_RetryCount(start, start) for _ in range(2 - level)]


def _custom_wait(
    strategy: Calls, outcome: Response | httpx.RequestError, attempt: int
) -> float | None:
    """Return the wait of a custom strategy class, in seconds."""
    return _finite_number(
        strategy.call(
            "backoff_time",
            response_or_exception=to_requests_outcome(outcome),
            attempt_count=attempt,
        )
    )


def _wait(
    strategy: BuiltInStrategy,
    outcome: Response | httpx.RequestError,
    config: Mapping[str, Any],
    attempt: int,
    now: float,
) -> float | None:
    context = {"config": config, "parameters": strategy.parameters}
    if isinstance(strategy, ConstantBackoffStrategy):
        return _add_jitter(
            _number(strategy.backoff_time_in_seconds, context), strategy.jitter_range_in_seconds
        )
    if isinstance(strategy, ExponentialBackoffStrategy):
        factor = _number(strategy.factor or 5, context)
        return _add_jitter(factor * 2**attempt, strategy.jitter_range_in_seconds)
    if isinstance(strategy, WaitTimeFromHeader):
        seconds = _header_number(strategy, outcome, context)
        return (
            _check_wait(seconds, strategy.max_waiting_time_in_seconds, context) if seconds else None
        )
    if isinstance(strategy, WaitTimeFromResponse):
        seconds = _seconds_in_response(strategy, outcome, context)
        return (
            _check_wait(seconds, strategy.max_waiting_time_in_seconds, context) if seconds else None
        )
    return _wait_until(strategy, outcome, context, now)


def _wait_until(
    strategy: WaitUntilTimeFromHeader,
    outcome: Response | httpx.RequestError,
    context: Mapping[str, Any],
    now: float,
) -> float | None:
    until = _header_number(strategy, outcome, context)
    minimum = _number(strategy.min_wait, context) if strategy.min_wait is not None else None
    seconds = until - now if until else None
    if minimum:
        seconds = minimum if seconds is None else max(seconds, minimum)
    if seconds is None or seconds < 0:
        return None
    return _check_wait(seconds, strategy.max_waiting_time_in_seconds, context)


def _add_jitter(seconds: float, jitter: float | None) -> float:
    if jitter is None:
        return seconds
    return random.uniform(seconds, seconds + 2 * jitter)  # noqa: S311 - only spreads requests


def _header_number(
    strategy: WaitTimeFromHeader | WaitUntilTimeFromHeader,
    outcome: Response | httpx.RequestError,
    context: Mapping[str, Any],
) -> float | None:
    if not isinstance(outcome, Response):
        return None
    text = outcome.headers.get(as_text(strategy.header, context)) or ""
    if strategy.regex:
        pattern = as_text(strategy.regex, context)
        try:
            match = re.match(pattern, text)
        except re.error as error:
            raise ConfigurationError(
                f"{pattern!r} of a {strategy.type} is not a valid regular expression.",
                hint="Correct the strategy's regex.",
            ) from error
        text = match.group() if match else text
    return _finite_number(text)


def _seconds_in_response(
    strategy: WaitTimeFromResponse,
    outcome: Response | httpx.RequestError,
    context: Mapping[str, Any],
) -> float | None:
    body: Any = {}
    headers: Mapping[str, str] = {}
    if isinstance(outcome, Response):
        headers = outcome.headers
        try:
            body = outcome.json()
        except ValueError:
            body = {}
    variables = {**context, "response": body, "headers": headers}
    try:
        seconds = _finite_number(evaluate(strategy.wait_time_in_seconds, variables))
    except ConfigurationError:
        # The response has another shape than the template expects; another strategy may apply.
        return None
    return seconds if seconds and seconds > 0 else None


def _finite_number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _number(value: Number, context: Mapping[str, Any]) -> float:
    number = _finite_number(as_text(value, context) if isinstance(value, str) else value)
    if number is None:
        raise ConfigurationError(
            f"{value!r} of a backoff strategy is not a number.", hint="Set a number of seconds."
        )
    return number


def _check_wait(seconds: float, maximum: Number | None, context: Mapping[str, Any]) -> float:
    if maximum is not None and seconds >= _number(maximum, context):
        raise SourceError(
            f"The server requires a wait of {seconds:.0f} seconds, which is longer than the source "
            "may wait.",
            hint="Try again later, or allow longer waits (max_waiting_time_in_seconds).",
        )
    return seconds
