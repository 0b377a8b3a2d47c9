"""Error handler: the action to take on a response or on a failed request.

Source: `specs/airbyte-declarative.md` (2.9). A handler applies its filters first and then the
default for the status, so every handler returns an action for every response. This makes chains of
handlers surprising; the behavior is kept because manifests rely on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import httpx

from chronolake.errors import SourceError
from chronolake.source.declarative.http.requests_conversion import to_requests_outcome
from chronolake.source.declarative.http.response import Response
from chronolake.source.declarative.models.base import CustomErrorHandler
from chronolake.source.declarative.models.requests import CompositeErrorHandler
from chronolake.source.declarative.templating.templates import as_text, as_truth

if TYPE_CHECKING:
    from chronolake.source.declarative.models.requests import (
        DefaultErrorHandler,
        ErrorHandler,
        HttpResponseFilter,
    )


class Action(StrEnum):
    """The action to take on a response."""

    SUCCESS = "SUCCESS"
    FAIL = "FAIL"
    RETRY = "RETRY"
    IGNORE = "IGNORE"
    RATE_LIMITED = "RATE_LIMITED"
    RESET_PAGINATION = "RESET_PAGINATION"
    REFRESH_TOKEN_THEN_RETRY = "REFRESH_TOKEN_THEN_RETRY"  # noqa: S105 - an action, not a password
    REDUCE_PAGE_SIZE = "REDUCE_PAGE_SIZE"
    SPLIT_REQUEST_WINDOW = "SPLIT_REQUEST_WINDOW"


@dataclass(frozen=True)
class Verdict:
    """An action, with the text for an error message.

    Attributes:
        message: the manifest's message, or the one for the status.
        is_handled: whether a filter of the manifest has accepted the response by its content: the
            filter ignores it, or treats its content as a success.
    """

    action: Action
    message: str | None = None
    is_handled: bool = False


#: The default action for each status. Other errors are retried.
_BY_STATUS: Final[Mapping[int, Verdict]] = {
    400: Verdict(Action.FAIL, "The server rejected the request as invalid."),
    401: Verdict(Action.FAIL, "The server does not accept the credentials."),
    403: Verdict(Action.FAIL, "The credentials do not permit this request."),
    404: Verdict(Action.FAIL, "The server has no resource at this path."),
    405: Verdict(Action.FAIL, "The server does not allow this method for this path."),
    408: Verdict(Action.RETRY, "The server timed out while it waited for the request."),
    429: Verdict(Action.RATE_LIMITED, "The server received too many requests."),
    500: Verdict(Action.RETRY, "The server had an internal error."),
    502: Verdict(Action.RETRY, "The server's gateway received an invalid response."),
    503: Verdict(Action.RETRY, "The server is temporarily unavailable."),
    504: Verdict(Action.RETRY, "The server's gateway received no response in time."),
}
#: A chain of handlers ends at the first that returns one of these actions.
_FINAL: Final = frozenset(
    {
        Action.SUCCESS,
        Action.RETRY,
        Action.IGNORE,
        Action.RESET_PAGINATION,
        Action.REDUCE_PAGE_SIZE,
        Action.SPLIT_REQUEST_WINDOW,
    }
)
#: The keys under which APIs report errors; the first one with a value is used.
_MESSAGE_KEYS: Final = (
    "message",
    "messages",
    "error",
    "errors",
    "failures",
    "failure",
    "detail",
    "err",
    "error_message",
    "msg",
    "reason",
    "status_message",
)


def verdict_on(
    outcome: Response | httpx.RequestError, handler: ErrorHandler | None, config: Mapping[str, Any]
) -> Verdict:
    """Return the action to take on a response or on a failed request.

    Args:
        outcome: the response, or the reason why it is missing.
        handler: the manifest's error handler, or None for the defaults by status.
        config: for templates in error messages.

    Raises:
        ConfigurationError: a filter's template fails.
    """
    default = _default_verdict(outcome)
    if default.action is Action.SUCCESS:
        return _verdict_on_success(outcome, handler, config) or default
    if isinstance(handler, CompositeErrorHandler):
        verdict = default
        for member in handler.error_handlers:
            verdict = verdict_on(outcome, member, config)
            if verdict.action in _FINAL:
                break
        return verdict
    if isinstance(handler, CustomErrorHandler):
        return _custom_verdict(outcome, handler)
    return _verdict_of_filters(outcome, handler, config) or default


def _verdict_on_success(
    outcome: Response | httpx.RequestError, handler: ErrorHandler | None, config: Mapping[str, Any]
) -> Verdict | None:
    """Return the handlers' action for a response with a successful status, or None.

    Every handler's filters are applied even if the status is a success. An error in such a response
    would be read as a response without records.
    """
    if isinstance(handler, CompositeErrorHandler):
        last: Verdict | None = None
        for member in handler.error_handlers:
            last = _verdict_on_success(outcome, member, config) or last
            if last is not None and last.action in _FINAL:
                return last
        return last
    if isinstance(handler, CustomErrorHandler):
        verdict = _custom_verdict(outcome, handler)
        return None if verdict.action is Action.SUCCESS else verdict
    return _verdict_of_filters(outcome, handler, config)


def _verdict_of_filters(
    outcome: Response | httpx.RequestError,
    handler: DefaultErrorHandler | None,
    config: Mapping[str, Any],
) -> Verdict | None:
    """Return the action of the first matching filter, or None if no filter matches."""
    if not isinstance(outcome, Response):
        return None
    for response_filter in (handler and handler.response_filters) or ():
        if response_filter.action is None or not _matches(response_filter, outcome):
            continue
        action = Action(response_filter.action)
        is_handled = action is Action.IGNORE or (
            action is Action.SUCCESS and outcome.status not in (response_filter.http_codes or ())
        )
        return Verdict(action, _message(response_filter, outcome, config), is_handled=is_handled)
    return None


def error_text(response: Response) -> str | None:
    """Return the error text of a body: from the usual keys of JSON, or the whole body."""
    try:
        return _find_error_text(response.json())
    except ValueError:
        return response.body.decode(errors="replace")


def _custom_verdict(outcome: Response | httpx.RequestError, handler: CustomErrorHandler) -> Verdict:
    """Return the action of a custom error handler class."""
    resolution = handler.calls.call("interpret_response", to_requests_outcome(outcome))
    fields = (
        resolution
        if isinstance(resolution, Mapping)
        else vars(resolution)
        if hasattr(resolution, "__dict__")
        else {}
    )
    action = fields.get("response_action")
    name = getattr(action, "value", action)
    if name not in set(Action):
        raise SourceError(
            f"{handler.class_name}.interpret_response returned the response_action {name!r}.",
            hint=f"Return one of {', '.join(Action)}.",
        )
    message = fields.get("error_message")
    return Verdict(Action(name), None if message is None else str(message))


def _default_verdict(outcome: Response | httpx.RequestError) -> Verdict:
    if not isinstance(outcome, Response):
        return Verdict(Action.RETRY, "The server did not respond.")
    if outcome.status < httpx.codes.MULTIPLE_CHOICES:
        return Verdict(Action.SUCCESS)
    if outcome.ok:
        return Verdict(Action.FAIL, "The server redirects without a target.")
    return _BY_STATUS.get(outcome.status, Verdict(Action.RETRY))


def _matches(response_filter: HttpResponseFilter, response: Response) -> bool:
    if response.status in (response_filter.http_codes or ()):
        return True
    if response_filter.predicate:
        # The reference gives predicates no config: a template that refers to it finds no values.
        variables = {
            "config": None,
            "parameters": response_filter.parameters,
            **_template_variables(response),
        }
        if as_truth(response_filter.predicate, variables):
            return True
    text = response_filter.error_message_contains
    return text in (error_text(response) or "") if text else False


def _message(
    response_filter: HttpResponseFilter, response: Response, config: Mapping[str, Any]
) -> str | None:
    text = None
    if response_filter.error_message:
        variables = {
            "config": config,
            "parameters": response_filter.parameters,
            **_template_variables(response),
        }
        text = as_text(response_filter.error_message, variables)
    return text or _BY_STATUS.get(response.status, Verdict(Action.FAIL)).message


def _template_variables(response: Response) -> dict[str, Any]:
    """Return the variables for filters' templates; the URL without its query and credentials."""
    try:
        body = response.json()
    except ValueError:
        body = {}
    url = urlsplit(response.url)
    redacted = url._replace(netloc=url.netloc.rpartition("@")[2], query="", fragment="")
    return {"response": body, "headers": response.headers, "request_url": redacted.geturl()}


def _find_error_text(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        texts = [_find_error_text(item) for item in value]
        return ", ".join(text for text in texts if text is not None)
    if isinstance(value, dict):
        return _find_error_text(next((value[key] for key in _MESSAGE_KEYS if value.get(key)), None))
    return None
