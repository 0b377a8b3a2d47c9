"""Requests on their way: with credentials, within the budget, and again if need be."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import httpx

from chronolake.errors import SourceError
from chronolake.source.declarative.components.authenticating import ComponentAuthentication
from chronolake.source.declarative.exchange.answers import Answer
from chronolake.source.declarative.exchange.injection import Injection
from chronolake.source.declarative.exchange.network import (
    TIMEOUT,
    Exchange,
    Network,
    exchanged,
    told,
)
from chronolake.source.declarative.exchange.requesting import Request, encoded
from chronolake.source.declarative.exchange.rotation import TokenRotation
from chronolake.source.declarative.exchange.verdicts import Action, Verdict, verdict_on
from chronolake.source.declarative.exchange.waiting import (
    Retries,
    retries_of,
    strategic_wait,
    strategies_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from chronolake.source.declarative.exchange.budget import Budget
    from chronolake.source.declarative.exchange.caching import AnswerCache
    from chronolake.source.declarative.exchange.requesting import Encoded
    from chronolake.source.declarative.language.errorhandling import ErrorHandler

__all__ = ["Answer", "Authentication", "Exchange", "Network", "ReadDifferentlyError", "Sender"]

_OK: Final = 200
#: Seconds after which another token is tried, in place of waiting for the one that is spent.
_ROTATION: Final = 0.1
#: Shorter texts are found everywhere.
_SECRET: Final = 4
_READ_DIFFERENTLY: Final = frozenset(
    {Action.RESET_PAGINATION, Action.REDUCE_PAGE_SIZE, Action.SPLIT_REQUEST_WINDOW}
)
_HINTS: Final = {
    401: "Check the credentials.",
    403: "Check the credentials, and what they allow.",
    404: "Check what the configuration names.",
    429: "Read again later, or with fewer requests at a time.",
}


class ReadDifferentlyError(SourceError):
    """The manifest wants the pages read in another way.

    Attributes:
        action: RESET_PAGINATION, REDUCE_PAGE_SIZE or SPLIT_REQUEST_WINDOW.
    """

    def __init__(self, message: str, *, action: Action = Action.FAIL, **details: Any) -> None:
        super().__init__(message, **details)
        self.action = action


class Authentication(Protocol):
    """Proves who sends a request."""

    def injection(self) -> Injection:
        """What goes into the next request; may ask the API for it."""

    def renewed(self, spent: Injection) -> bool:
        """Gets others in place of credentials that were refused; False if there are no others."""


class NoAuthentication:
    """An API that asks for nothing."""

    def injection(self) -> Injection:
        """Nothing."""
        return Injection()

    def renewed(self, spent: Injection) -> bool:  # noqa: ARG002 - there are none
        """There are no others."""
        return False


class Sender:
    """Sends the requests of one requester; any number of threads may use it.

    Args:
        network: what the requests of the source share.
        config: for templates in the error handler.
        authentication: proves who sends them.
        identity: whose credentials these are; requests of the same identity share cached answers.
        error_handler: the manifest's, or None.
        budget: how often the API may be called, or None.
        cache: keeps answers, or None.
        timeout: for connecting, and for each piece that is read or written.

    Raises:
        ConfigurationError: the error handler's `max_retries` gives no number.
    """

    def __init__(
        self,
        network: Network,
        config: Mapping[str, Any],
        *,
        authentication: Authentication | None = None,
        identity: str = "",
        error_handler: ErrorHandler | None = None,
        budget: Budget | None = None,
        cache: AnswerCache | None = None,
        timeout: httpx.Timeout = TIMEOUT,
    ) -> None:
        self._network = (
            hiding(network, authentication.credentials)
            if isinstance(authentication, TokenRotation)
            else network
        )
        self._config = config
        self._authentication = authentication or NoAuthentication()
        self._identity = identity
        self._handler = error_handler
        self._retries = retries_of(error_handler, config)
        self._strategies = strategies_of(error_handler)
        self._budget = budget
        self._cache = cache
        self._timeout = timeout

    def send(self, request: Request, *, in_file: bool = False) -> Answer | None:
        """Sends a request, as often as the error handler wants.

        Args:
            request: what is asked for.
            in_file: the body of a good answer goes into a file, which the caller closes; no answer
                is cached then, and error handlers do not see what is in it.

        Returns:
            The answer, or None if there is an error that the error handler ignores.

        Raises:
            SourceError: there is no answer to read from.
            ReadDifferentlyError: the manifest wants the pages read in another way.
            ConfigurationError: the request cannot be made.
        """
        if self._cache is None or request.method != "GET" or in_file:
            return self._sent(request, None, in_file=in_file)
        plain = encoded(request)
        key = (self._identity, plain.url, tuple(sorted(plain.headers.items())), plain.body)
        answer = self._sent(request, self._cache.kept(key))
        if answer is not None and answer.status == _OK:
            self._cache.keep(key, answer)
        return answer

    def wait(self, seconds: float) -> None:
        """Waits before something is asked for in another way.

        Raises:
            SourceError: the reading is cancelled.
        """
        self._network.wait(seconds)

    def _sent(
        self, request: Request, kept: Answer | None, *, in_file: bool = False
    ) -> Answer | None:
        retries = Retries(self._retries, self._network.now)
        renewed = False
        attempt = 0
        while True:
            attempt += 1
            credentials = Injection()
            whole: Encoded | None = None
            outcome: Answer | httpx.RequestError
            if kept is not None and attempt == 1:
                outcome = kept
            else:
                credentials = self._credentials(request)
                whole = encoded(request.with_injection(credentials))
                if isinstance(self._authentication, ComponentAuthentication):
                    whole, credentials = self._authentication.signed(whole, credentials)
                outcome = self._outcome(whole, attempt, credentials, in_file=in_file)
            verdict = verdict_on(outcome, self._handler, self._config)
            if verdict.action in {Action.SUCCESS, Action.IGNORE}:
                return _accepted(outcome, verdict)
            if isinstance(outcome, Answer):
                outcome.close()
            error = self._error(request, outcome, verdict, attempt, credentials)
            if verdict.action is Action.FAIL or verdict.action in _READ_DIFFERENTLY:
                raise error
            if verdict.action is Action.REFRESH_TOKEN_THEN_RETRY:
                if renewed:
                    raise error
                renewed = self._authentication.renewed(credentials)
            wanted = self._wanted_wait(verdict, whole, credentials, outcome, attempt)
            seconds = retries.wait(verdict.action, wanted)
            if seconds is None:
                raise error
            self._network.wait(seconds)
            retries.again(verdict.action, wanted)

    def _outcome(
        self, request: Encoded, attempt: int, credentials: Injection, *, in_file: bool
    ) -> Answer | httpx.RequestError:
        if self._budget is not None:
            self._budget.take(request, self._network.wait)
        try:
            answer = exchanged(
                self._network,
                request,
                attempt=attempt,
                hidden=credentials.params.keys(),
                timeout=self._timeout,
                in_file=in_file,
            )
        except httpx.RequestError as error:
            return error
        if self._budget is not None:
            self._budget.learn(request, answer)
        if isinstance(self._authentication, TokenRotation):
            self._authentication.learn(request, credentials, answer)
        return answer

    def _credentials(self, request: Request) -> Injection:
        if isinstance(self._authentication, TokenRotation):
            return self._authentication.injection_for(encoded(request))
        return self._authentication.injection()

    def _wanted_wait(
        self,
        verdict: Verdict,
        request: Encoded | None,
        credentials: Injection,
        outcome: Answer | httpx.RequestError,
        attempt: int,
    ) -> float | None:
        """The seconds to wait that something has an opinion of, or None."""
        if (
            verdict.action is Action.RATE_LIMITED
            and request is not None
            and isinstance(self._authentication, TokenRotation)
            and self._authentication.can_go_otherwise(request, credentials)
        ):
            return _ROTATION
        return strategic_wait(
            self._strategies, outcome, self._config, attempt=attempt, now=self._network.now()
        )

    def _error(
        self,
        request: Request,
        outcome: Answer | httpx.RequestError,
        verdict: Verdict,
        attempt: int,
        credentials: Injection,
    ) -> SourceError:
        times = "one attempt" if attempt == 1 else f"{attempt} attempts"
        what = f"{request.method} {self._network.path(request.url)}"
        if isinstance(outcome, Answer):
            text = f"{what} is answered with status {outcome.status} after {times}."
            hint = _HINTS.get(outcome.status)
        else:
            text = f"{what} got no answer in {times} ({told(outcome)})."
            hint = None
        if verdict.message and isinstance(outcome, Answer):
            text = f"{text} {verdict.message}"
        text = _without(self._network.mask(text), [credentials])
        hint = hint or "Read again later, and check the configuration if it stays so."
        if verdict.action in _READ_DIFFERENTLY:
            return ReadDifferentlyError(text, action=verdict.action, hint=hint)
        return SourceError(text, hint=hint)


def _accepted(outcome: Answer | httpx.RequestError, verdict: Verdict) -> Answer | None:
    """Return the answer to read records from; None: there is an error that is ignored."""
    if not isinstance(outcome, Answer) or not outcome.ok:
        return None
    return replace(outcome, may_lack_records=verdict.is_handled)


def hiding(network: Network, credentials: Sequence[Injection]) -> Network:
    """A network whose messages hide credentials that the configuration has not as they are."""
    return replace(network, mask=lambda text: network.mask(_without(text, credentials)))


def _without(text: str, credentials: Iterable[Injection]) -> str:
    """A text without credentials that were made for the request, or fetched."""
    secrets = {secret for each in credentials for secret in _secrets(each)}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "****")
    return text


def _secrets(credentials: Injection) -> Iterator[str]:
    """What is secret of credentials: their values, and those without a word like "Bearer"."""
    values: list[Any] = [
        credentials.params,
        credentials.headers,
        credentials.body_data,
        credentials.body_json,
    ]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            values.extend(value.values())
        elif len(str(value)) >= _SECRET:
            yield str(value)
            yield from (part for part in str(value).split()[1:] if len(part) >= _SECRET)
