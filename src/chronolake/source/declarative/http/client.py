"""HTTP client: sends requests with credentials, within the rate limit, and with retries."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import httpx
import structlog

from chronolake.errors import SourceError
from chronolake.source.declarative.http.auth import Authentication
from chronolake.source.declarative.http.backoff import (
    Retries,
    retries_of,
    strategic_wait,
    strategies_of,
)
from chronolake.source.declarative.http.error_handler import Action, Verdict, verdict_on
from chronolake.source.declarative.http.origins import origin_of
from chronolake.source.declarative.http.request_builder import Injection, Request, encoded
from chronolake.source.declarative.http.response import Answer
from chronolake.source.declarative.http.transport import (
    TIMEOUT,
    Exchange,
    Network,
    exchanged,
    public_headers,
    told,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from chronolake.source.declarative.http.rate_limit import Budget
    from chronolake.source.declarative.http.request_builder import Encoded
    from chronolake.source.declarative.http.response import AnswerCache
    from chronolake.source.declarative.models.requests import ErrorHandler

__all__ = ["Answer", "Authentication", "Exchange", "Network", "ReadDifferentlyError", "Sender"]

log = structlog.get_logger(__name__)

_OK: Final = 200
#: Shorter texts are not treated as secrets: they occur everywhere.
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
    """The manifest requires that pages are read differently.

    Attributes:
        action: RESET_PAGINATION, REDUCE_PAGE_SIZE or SPLIT_REQUEST_WINDOW.
    """

    def __init__(self, message: str, *, action: Action = Action.FAIL, **details: Any) -> None:
        super().__init__(message, **details)
        self.action = action


class Sender:
    """A client that sends the requests of one requester; thread-safe.

    Args:
        network: the settings that all requests of the source share.
        config: for templates in the error handler.
        authentication: puts credentials into requests; None: the API needs none.
        identity: identifies the credentials; requests with the same identity share cached
            responses.
        error_handler: the manifest's, or None.
        budget: limits the rate of calls, or None.
        cache: stores responses, or None.
        timeout: for connecting, and for reading or writing each chunk.

    Raises:
        ConfigurationError: the error handler's `max_retries` is not a number.
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
        self._authentication = authentication or Authentication()
        self._network = hiding(network, self._authentication.secrets)
        self._config = config
        self._identity = identity
        self._handler = error_handler
        self._retries = retries_of(error_handler, config)
        self._strategies = strategies_of(error_handler)
        self._budget = budget
        self._cache = cache
        self._timeout = timeout

    def send(self, request: Request, *, in_file: bool = False) -> Answer | None:
        """Send a request, and retry it as the error handler requires.

        Args:
            request: the request to send.
            in_file: whether to write the body of a successful response to a file, which the caller
                closes. Such a response is not cached, and error handlers do not see its body.

        Returns:
            The response, or None for an error that the error handler ignores.

        Raises:
            SourceError: the request failed.
            ReadDifferentlyError: the manifest requires that pages are read differently.
            ConfigurationError: the request cannot be built.
        """
        authentication, identity = self._authentication, self._identity
        if self._is_foreign(request):
            request = self._public(request)
            authentication, identity = Authentication(), ""
        if self._cache is None or request.method != "GET" or in_file:
            return self._sent(request, authentication, None, in_file=in_file)
        plain = encoded(request)
        key = (identity, plain.url, tuple(sorted(plain.headers.items())), plain.body)
        answer = self._sent(request, authentication, self._cache.kept(key))
        if answer is not None and answer.status == _OK:
            self._cache.keep(key, answer)
        return answer

    def wait(self, seconds: float) -> None:
        """Wait before a request is sent in another form.

        Raises:
            SourceError: the read is cancelled.
        """
        self._network.wait(seconds)

    def _is_foreign(self, request: Request) -> bool:
        """Return whether a response directs the request to a server that is not the API's own."""
        origin = origin_of(request.url)
        return (
            request.origins is not None
            and origin is not None
            and origin not in request.origins
            and not self._network.trusts(origin)
        )

    def _public(self, request: Request) -> Request:
        """Return the parts of a request that another server may receive.

        Raises:
            SourceError: the request cannot be sent without its secret parts.
        """
        where = f"{request.method} {self._network.path(request.url)}"
        origin = origin_of(request.url)
        hint = (
            f"If {origin} is the API's own, add exactly this text to the source's allowed_hosts: "
            "it gets the credentials then."
        )
        origins = request.origins or ()
        if any(one.scheme == "https" for one in origins):
            self._network.expect_no_downgrade(request.url)
        if request.json or request.data:
            raise SourceError(
                f"{where} is sent by an answer to another server, {origin}, which is not given the "
                "request's body.",
                hint=hint,
            )
        if request.is_mixed or self._network.holds_secret(request.url):
            raise SourceError(
                f"{where} is sent by an answer to another server, {origin}, and has values of the "
                "configuration in its URL.",
                hint=hint,
            )
        log.warning(
            "request_without_credentials", origin=str(origin), path=self._network.path(request.url)
        )
        headers = public_headers(request.headers, self._network.mask)
        return replace(request, params={}, headers=headers, is_public=True)

    def _sent(
        self,
        request: Request,
        authentication: Authentication,
        kept: Answer | None,
        *,
        in_file: bool = False,
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
                whole, credentials = authentication.prepare(request)
                outcome = self._outcome(
                    whole, attempt, authentication, credentials, in_file=in_file
                )
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
                renewed = authentication.refresh(credentials)
            other = None
            if whole is not None and verdict.action is Action.RATE_LIMITED:
                other = authentication.retry_after(whole, credentials)
            wanted = self._strategic_wait(outcome, attempt) if other is None else other
            seconds = retries.wait(verdict.action, wanted)
            if seconds is None:
                raise error
            self._network.wait(seconds)
            retries.again(verdict.action, wanted)

    def _strategic_wait(self, outcome: Answer | httpx.RequestError, attempt: int) -> float | None:
        return strategic_wait(
            self._strategies, outcome, self._config, attempt=attempt, now=self._network.now()
        )

    def _outcome(
        self,
        request: Encoded,
        attempt: int,
        authentication: Authentication,
        credentials: Injection,
        *,
        in_file: bool,
    ) -> Answer | httpx.RequestError:
        if self._budget is not None:
            self._budget.take(request, self._network.wait)
        try:
            answer = exchanged(
                self._network,
                request,
                attempt=attempt,
                hidden=credentials.params.keys(),
                secrets=frozenset(_secrets(credentials)),
                timeout=self._timeout,
                in_file=in_file,
            )
        except httpx.RequestError as error:
            return error
        if self._budget is not None:
            self._budget.learn(request, answer)
        authentication.observe(request, credentials, answer)
        return answer

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
            if outcome.is_public:
                origin = origin_of(outcome.url)
                text = f"{text} It went to {origin} without credentials."
                hint = (
                    "Another server was named by a link or redirect. If it is the API's own, add "
                    f"{origin} to the source's allowed_hosts: it gets the credentials then."
                )
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
    """Return the response to read records from, or None for an ignored error."""
    if not isinstance(outcome, Answer) or not outcome.ok:
        return None
    return replace(outcome, may_lack_records=verdict.is_handled)


def hiding(network: Network, credentials: Sequence[Injection]) -> Network:
    """Return a network that also masks credentials which are not in the configuration."""
    if not credentials:
        return network
    return replace(network, mask=lambda text: network.mask(_without(text, credentials)))


def _without(text: str, credentials: Iterable[Injection]) -> str:
    """Return a text without credentials that were created or fetched for the request."""
    secrets = {secret for each in credentials for secret in _secrets(each)}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "****")
    return text


def _secrets(credentials: Injection) -> Iterator[str]:
    """Yield the secret values of credentials, each also without a leading word like "Bearer"."""
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
