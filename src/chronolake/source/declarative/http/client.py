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
    max_retries_of,
    strategies_of,
    strategy_wait,
)
from chronolake.source.declarative.http.error_handler import Action, Verdict, verdict_on
from chronolake.source.declarative.http.origins import origin_of
from chronolake.source.declarative.http.request_builder import Injection, Request, encode
from chronolake.source.declarative.http.response import Response
from chronolake.source.declarative.http.transport import (
    TIMEOUT,
    Exchange,
    Network,
    describe_failure,
    public_headers,
    send_once,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from chronolake.source.declarative.http.rate_limit import Budget
    from chronolake.source.declarative.http.request_builder import EncodedRequest
    from chronolake.source.declarative.http.response import ResponseCache
    from chronolake.source.declarative.models.requests import ErrorHandler

__all__ = ["Authentication", "Exchange", "Network", "ReadDifferentlyError", "Response", "Sender"]

log = structlog.get_logger(__name__)

_OK: Final = 200
#: Shorter texts are not treated as secrets: they occur everywhere.
_MIN_SECRET_LENGTH: Final = 4
_READ_DIFFERENTLY: Final = frozenset(
    {Action.RESET_PAGINATION, Action.REDUCE_PAGE_SIZE, Action.SPLIT_REQUEST_WINDOW}
)
_HINTS: Final = {
    401: "Check the credentials.",
    403: "Check the credentials and their permissions.",
    404: "Check the names and paths in the configuration.",
    429: "Try again later, or with fewer concurrent requests.",
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
        cache: ResponseCache | None = None,
        timeout: httpx.Timeout = TIMEOUT,
    ) -> None:
        self._authentication = authentication or Authentication()
        self._network = mask_credentials(network, self._authentication.secrets)
        self._config = config
        self._identity = identity
        self._handler = error_handler
        self._retries = max_retries_of(error_handler, config)
        self._strategies = strategies_of(error_handler)
        self._budget = budget
        self._cache = cache
        self._timeout = timeout

    def send(self, request: Request, *, in_file: bool = False) -> Response | None:
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
            request = self._without_secrets(request)
            authentication, identity = Authentication(), ""
        if self._cache is None or request.method != "GET" or in_file:
            return self._send_with_retries(request, authentication, None, in_file=in_file)
        plain = encode(request)
        key = (identity, plain.url, tuple(sorted(plain.headers.items())), plain.body)
        response = self._send_with_retries(request, authentication, self._cache.get(key))
        if response is not None and response.status == _OK:
            self._cache.put(key, response)
        return response

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

    def _without_secrets(self, request: Request) -> Request:
        """Return the parts of a request that another server may receive.

        Raises:
            SourceError: the request cannot be sent without its secret parts.
        """
        subject = f"{request.method} {self._network.redact_path(request.url)}"
        origin = origin_of(request.url)
        hint = (
            f"If {origin} belongs to the API, add exactly this text to the source's allowed_hosts, "
            "so that it receives the credentials."
        )
        origins = request.origins or ()
        if any(trusted_origin.scheme == "https" for trusted_origin in origins):
            self._network.raise_if_downgraded(request.url)
        if request.json or request.data:
            raise SourceError(
                f"A response directs {subject} to another server, {origin}, which must not receive "
                "the request's body.",
                hint=hint,
            )
        if request.is_mixed or self._network.contains_secret(request.url):
            raise SourceError(
                f"A response directs {subject} to another server, {origin}, with values of the "
                "configuration in the URL.",
                hint=hint,
            )
        log.warning(
            "request_without_credentials",
            origin=str(origin),
            path=self._network.redact_path(request.url),
        )
        headers = public_headers(request.headers, self._network.mask)
        return replace(request, params={}, headers=headers, is_public=True)

    def _send_with_retries(
        self,
        request: Request,
        authentication: Authentication,
        cached: Response | None,
        *,
        in_file: bool = False,
    ) -> Response | None:
        retries = Retries(self._retries, self._network.now)
        has_refreshed = False
        attempt = 0
        while True:
            attempt += 1
            credentials = Injection()
            encoded_request: EncodedRequest | None = None
            outcome: Response | httpx.RequestError
            if cached is not None and attempt == 1:
                outcome = cached
            else:
                encoded_request, credentials = authentication.prepare(request)
                outcome = self._send_once(
                    encoded_request, attempt, authentication, credentials, in_file=in_file
                )
            verdict = verdict_on(outcome, self._handler, self._config)
            if verdict.action in {Action.SUCCESS, Action.IGNORE}:
                return _accepted_response(outcome, verdict)
            if isinstance(outcome, Response):
                outcome.close()
            error = self._error(request, outcome, verdict, attempt, credentials)
            if verdict.action is Action.FAIL or verdict.action in _READ_DIFFERENTLY:
                raise error
            if verdict.action is Action.REFRESH_TOKEN_THEN_RETRY:
                if has_refreshed:
                    raise error
                has_refreshed = authentication.refresh(credentials)
            rotation_wait = None
            if encoded_request is not None and verdict.action is Action.RATE_LIMITED:
                rotation_wait = authentication.retry_after(encoded_request, credentials)
            requested_wait = (
                self._strategy_wait(outcome, attempt) if rotation_wait is None else rotation_wait
            )
            seconds = retries.wait(verdict.action, requested_wait)
            if seconds is None:
                raise error
            self._network.wait(seconds)
            retries.record_retry(verdict.action, requested_wait)

    def _strategy_wait(self, outcome: Response | httpx.RequestError, attempt: int) -> float | None:
        return strategy_wait(
            self._strategies, outcome, self._config, attempt=attempt, now=self._network.now()
        )

    def _send_once(
        self,
        request: EncodedRequest,
        attempt: int,
        authentication: Authentication,
        credentials: Injection,
        *,
        in_file: bool,
    ) -> Response | httpx.RequestError:
        if self._budget is not None:
            self._budget.take(request, self._network.wait)
        try:
            response = send_once(
                self._network,
                request,
                attempt=attempt,
                hidden=credentials.params.keys(),
                secrets=frozenset(_secret_values(credentials)),
                timeout=self._timeout,
                in_file=in_file,
            )
        except httpx.RequestError as error:
            return error
        if self._budget is not None:
            self._budget.update(request, response)
        authentication.observe(request, credentials, response)
        return response

    def _error(
        self,
        request: Request,
        outcome: Response | httpx.RequestError,
        verdict: Verdict,
        attempt: int,
        credentials: Injection,
    ) -> SourceError:
        attempts = "one attempt" if attempt == 1 else f"{attempt} attempts"
        subject = f"{request.method} {self._network.redact_path(request.url)}"
        if isinstance(outcome, Response):
            text = f"{subject} returned status {outcome.status} after {attempts}."
            hint = _HINTS.get(outcome.status)
            if outcome.is_public:
                origin = origin_of(outcome.url)
                text = f"{text} It was sent to {origin} without credentials."
                hint = (
                    "A link or redirect leads to another server. If it belongs to the API, add "
                    f"{origin} to the source's allowed_hosts, so that it receives the credentials."
                )
        else:
            text = f"{subject} got no response in {attempts} ({describe_failure(outcome)})."
            hint = None
        if verdict.message and isinstance(outcome, Response):
            text = f"{text} {verdict.message}"
        text = _redact(self._network.mask(text), [credentials])
        hint = hint or "Try again later. If the error persists, check the configuration."
        if verdict.action in _READ_DIFFERENTLY:
            return ReadDifferentlyError(text, action=verdict.action, hint=hint)
        return SourceError(text, hint=hint)


def _accepted_response(outcome: Response | httpx.RequestError, verdict: Verdict) -> Response | None:
    """Return the response to read records from, or None for an ignored error."""
    if not isinstance(outcome, Response) or not outcome.ok:
        return None
    return replace(outcome, may_lack_records=verdict.is_handled)


def mask_credentials(network: Network, credentials: Sequence[Injection]) -> Network:
    """Return a network that also masks credentials which are not in the configuration."""
    if not credentials:
        return network
    return replace(network, mask=lambda text: network.mask(_redact(text, credentials)))


def _redact(text: str, credentials: Iterable[Injection]) -> str:
    """Return a text without credentials that were created or fetched for the request."""
    secrets = {secret for credential in credentials for secret in _secret_values(credential)}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "****")
    return text


def _secret_values(credentials: Injection) -> Iterator[str]:
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
        elif len(str(value)) >= _MIN_SECRET_LENGTH:
            yield str(value)
            yield from (part for part in str(value).split()[1:] if len(part) >= _MIN_SECRET_LENGTH)
