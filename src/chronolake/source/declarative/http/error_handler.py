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
from chronolake.source.declarative.http.requests_conversion import outcome_of
from chronolake.source.declarative.http.response import Answer
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
    400: Verdict(Action.FAIL, "The server calls the request a bad one."),
    401: Verdict(Action.FAIL, "The server does not accept the credentials."),
    403: Verdict(Action.FAIL, "The credentials do not allow it."),
    404: Verdict(Action.FAIL, "The server has nothing there."),
    405: Verdict(Action.FAIL, "The server does not allow this method there."),
    408: Verdict(Action.RETRY, "The server waited too long for the request."),
    429: Verdict(Action.RATE_LIMITED, "The server is asked too often."),
    500: Verdict(Action.RETRY, "The server failed."),
    502: Verdict(Action.RETRY, "The server's gateway got no proper answer."),
    503: Verdict(Action.RETRY, "The server cannot answer now."),
    504: Verdict(Action.RETRY, "The server's gateway got no answer in time."),
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
    outcome: Answer | httpx.RequestError, handler: ErrorHandler | None, config: Mapping[str, Any]
) -> Verdict:
    """Return the action to take on a response or on a failed request.

    Args:
        outcome: the response, or the reason why it is missing.
        handler: the manifest's error handler, or None for the defaults by status.
        config: for templates in error messages.

    Raises:
        ConfigurationError: a filter's template fails.
    """
    by_itself = _by_itself(outcome)
    if by_itself.action is Action.SUCCESS:
        return _objection(outcome, handler, config) or by_itself
    if isinstance(handler, CompositeErrorHandler):
        verdict = by_itself
        for one in handler.error_handlers:
            verdict = verdict_on(outcome, one, config)
            if verdict.action in _FINAL:
                break
        return verdict
    if isinstance(handler, CustomErrorHandler):
        return _own(outcome, handler)
    return _filtered(outcome, handler, config) or by_itself


def _objection(
    outcome: Answer | httpx.RequestError, handler: ErrorHandler | None, config: Mapping[str, Any]
) -> Verdict | None:
    """Return the handlers' action for a response with a successful status, or None.

    Every handler's filters are applied even if the status is a success. An error in such a response
    would be read as a response without records.
    """
    if isinstance(handler, CompositeErrorHandler):
        last: Verdict | None = None
        for one in handler.error_handlers:
            last = _objection(outcome, one, config) or last
            if last is not None and last.action in _FINAL:
                return last
        return last
    if isinstance(handler, CustomErrorHandler):
        verdict = _own(outcome, handler)
        return None if verdict.action is Action.SUCCESS else verdict
    return _filtered(outcome, handler, config)


def _filtered(
    outcome: Answer | httpx.RequestError,
    handler: DefaultErrorHandler | None,
    config: Mapping[str, Any],
) -> Verdict | None:
    """Return the action of the first matching filter, or None if no filter matches."""
    if not isinstance(outcome, Answer):
        return None
    for wanted in (handler and handler.response_filters) or ():
        if wanted.action is None or not _fits(wanted, outcome):
            continue
        action = Action(wanted.action)
        is_handled = action is Action.IGNORE or (
            action is Action.SUCCESS and outcome.status not in (wanted.http_codes or ())
        )
        return Verdict(action, _message(wanted, outcome, config), is_handled=is_handled)
    return None


def error_text(answer: Answer) -> str | None:
    """Return the error text of a body: from the usual keys of JSON, or the whole body."""
    try:
        return _error_text(answer.json())
    except ValueError:
        return answer.body.decode(errors="replace")


def _own(outcome: Answer | httpx.RequestError, handler: CustomErrorHandler) -> Verdict:
    """Return the action of a custom error handler class."""
    found = handler.calls.call("interpret_response", outcome_of(outcome))
    reported = (
        found if isinstance(found, Mapping) else vars(found) if hasattr(found, "__dict__") else {}
    )
    action = reported.get("response_action")
    name = getattr(action, "value", action)
    if name not in set(Action):
        raise SourceError(
            f"{handler.class_name}.interpret_response gives no response_action, but {name!r}.",
            hint=f"It is one of {', '.join(Action)}.",
        )
    message = reported.get("error_message")
    return Verdict(Action(name), None if message is None else str(message))


def _by_itself(outcome: Answer | httpx.RequestError) -> Verdict:
    if not isinstance(outcome, Answer):
        return Verdict(Action.RETRY, "The server gave no answer.")
    if outcome.status < httpx.codes.MULTIPLE_CHOICES:
        return Verdict(Action.SUCCESS)
    if outcome.ok:
        return Verdict(Action.FAIL, "The server redirects, and does not say where to.")
    return _BY_STATUS.get(outcome.status, Verdict(Action.RETRY))


def _fits(one: HttpResponseFilter, answer: Answer) -> bool:
    if answer.status in (one.http_codes or ()):
        return True
    if one.predicate:
        # The reference gives predicates no config: a template that refers to it finds no values.
        seen = {"config": None, "parameters": one.parameters, **_seen(answer)}
        if as_truth(one.predicate, seen):
            return True
    wanted = one.error_message_contains
    return wanted in (error_text(answer) or "") if wanted else False


def _message(one: HttpResponseFilter, answer: Answer, config: Mapping[str, Any]) -> str | None:
    text = None
    if one.error_message:
        seen = {"config": config, "parameters": one.parameters, **_seen(answer)}
        text = as_text(one.error_message, seen)
    return text or _BY_STATUS.get(answer.status, Verdict(Action.FAIL)).message


def _seen(answer: Answer) -> dict[str, Any]:
    """Return the variables for filters' templates; the URL without its query and credentials."""
    try:
        response = answer.json()
    except ValueError:
        response = {}
    url = urlsplit(answer.url)
    bare = url._replace(netloc=url.netloc.rpartition("@")[2], query="", fragment="")
    return {"response": response, "headers": answer.headers, "request_url": bare.geturl()}


def _error_text(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        texts = [_error_text(one) for one in value]
        return ", ".join(text for text in texts if text is not None)
    if isinstance(value, dict):
        return _error_text(next((value[key] for key in _MESSAGE_KEYS if value.get(key)), None))
    return None
