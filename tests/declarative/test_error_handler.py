"""Classification of responses, unexpected ones included, and the backoff that follows."""

from __future__ import annotations

from typing import Any

import httpx
import orjson
import pytest
from pydantic import TypeAdapter

from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.http.backoff import (
    Retries,
    max_retries_of,
    strategies_of,
    strategy_wait,
)
from chronolake.source.declarative.http.error_handler import Action, error_text, verdict_on
from chronolake.source.declarative.http.response import Response
from chronolake.source.declarative.models.requests import BackoffStrategy, ErrorHandler

LOST = httpx.ConnectError("refused")


def answer(status: int, body: Any = None, **headers: str) -> Response:
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Response(status, httpx.Headers(named), content, "https://u:p@a.example/x?key=s", "GET")


def handler(*filters: dict[str, Any], **fields: Any) -> ErrorHandler:
    whole = {
        "type": "DefaultErrorHandler",
        "response_filters": [
            {"type": "HttpResponseFilter", **response_filter} for response_filter in filters
        ],
        **fields,
    }
    return TypeAdapter(ErrorHandler).validate_python(whole)


def chain(*handlers: ErrorHandler) -> ErrorHandler:
    whole = {"type": "CompositeErrorHandler", "error_handlers": list(handlers)}
    return TypeAdapter(ErrorHandler).validate_python(whole)


def action(outcome: Response | httpx.RequestError, handler: ErrorHandler | None = None) -> str:
    return verdict_on(outcome, handler, {}).action.value


@pytest.mark.parametrize(
    ("statuses", "wanted"),
    [
        ([200, 201, 204], "SUCCESS"),
        ([300, 304, 400, 401, 403, 404, 405], "FAIL"),
        ([408, 500, 502, 503, 504], "RETRY"),
        ([429], "RATE_LIMITED"),
        ([402, 409, 410, 418, 422, 501, 599], "RETRY"),
    ],
)
def test_every_status_has_a_default_action(statuses: list[int], wanted: str) -> None:
    assert {action(answer(status)) for status in statuses} == {wanted}
    assert {action(answer(status), handler()) for status in statuses} == {wanted}


def test_missing_response_is_retried_regardless_of_filters() -> None:
    assert action(LOST) == "RETRY"
    assert action(LOST, handler({"predicate": "{{ True }}", "action": "IGNORE"})) == "RETRY"


def test_conditions_of_a_filter_are_alternatives() -> None:
    error_handler = handler(
        {
            "action": "IGNORE",
            "http_codes": [404],
            "predicate": "{{ response.get('code') == 7 }}",
            "error_message_contains": "no such",
        }
    )

    assert action(answer(404), error_handler) == "IGNORE"
    assert action(answer(400, {"code": 7}), error_handler) == "IGNORE"
    assert (
        action(answer(400, {"error": {"message": "there is no such thing"}}), error_handler)
        == "IGNORE"
    )
    assert action(answer(400, {"code": 8}), error_handler) == "FAIL"


def test_first_matching_filter_overrides_the_default_of_the_status() -> None:
    error_handler = handler(
        {"http_codes": [200], "action": "RETRY"}, {"http_codes": [200], "action": "FAIL"}
    )

    assert action(answer(200), error_handler) == "RETRY"


def test_filter_without_an_action_has_no_effect() -> None:
    assert action(answer(404), handler({"http_codes": [404]})) == "FAIL"


def test_predicates_see_headers_and_the_url_without_secrets() -> None:
    error_handler = handler(
        {"predicate": "{{ headers['X-Left'] == '0' }}", "action": "RATE_LIMITED"},
        {"predicate": "{{ request_url == 'https://a.example/x' }}", "action": "IGNORE"},
    )

    assert action(answer(200, x_left="0"), error_handler) == "RATE_LIMITED"
    assert action(answer(200), error_handler) == "IGNORE"


def test_body_that_is_not_json_is_an_empty_object_in_predicates() -> None:
    error_handler = handler({"predicate": "{{ 'code' in response }}", "action": "IGNORE"})

    assert action(answer(404, b"<html>code</html>"), error_handler) == "FAIL"


def test_message_is_from_the_manifest_or_the_status() -> None:
    error_handler = handler(
        {
            "http_codes": [403],
            "action": "FAIL",
            "error_message": "{{ config['name'] }} lacks {{ response.scope }}",
        },
        {"http_codes": [404], "action": "FAIL"},
    )

    first = verdict_on(answer(403, {"scope": "read"}), error_handler, {"name": "The key"})
    second = verdict_on(answer(404), error_handler, {})

    assert first.message == "The key lacks read"
    assert second.message == "The server has no resource at this path."


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"message": "a"}, "a"),
        ({"errors": [{"detail": "a"}, "b", {"other": 1}]}, "a, b"),
        ({"error": {"messages": ["x"]}}, "x"),
        ({"message": "", "reason": "r"}, "r"),
        ({"other": "a"}, None),
        (b"plain", "plain"),
    ],
)
def test_error_text_is_found_under_the_usual_keys(body: Any, text: str | None) -> None:
    assert error_text(answer(400, body)) == text


def test_chain_applies_each_handler_to_a_200() -> None:
    later = handler({"predicate": "{{ response.error }}", "action": "RETRY"})

    assert action(answer(200, {"error": True}), chain(handler(), later)) == "RETRY"
    assert action(answer(200, {"error": True}), chain(later, handler())) == "RETRY"
    assert action(answer(200, {"error": False}), chain(handler(), later)) == "SUCCESS"


def test_chain_keeps_a_failure_of_a_200_that_no_later_handler_changes() -> None:
    failing = handler({"predicate": "{{ response.error }}", "action": "FAIL"})
    allowing = handler({"http_codes": [200], "action": "SUCCESS"})

    assert action(answer(200, {"error": True}), chain(failing, handler())) == "FAIL"
    assert action(answer(200, {"error": True}), chain(chain(failing), handler())) == "FAIL"
    assert action(answer(200, {"error": True}), chain(failing, allowing)) == "SUCCESS"
    assert action(answer(200, {"error": True}), chain(allowing, failing)) == "SUCCESS"


def test_chain_retries_a_500_before_a_later_handler_ignores_it() -> None:
    assert (
        action(answer(500), chain(handler(), handler({"http_codes": [500], "action": "IGNORE"})))
        == "RETRY"
    )


def test_chain_undoes_a_first_handler_s_rate_limit_by_a_later_one_s_failure() -> None:
    limited = handler({"http_codes": [400], "action": "RATE_LIMITED"})

    assert action(answer(400), chain(limited, handler())) == "FAIL"
    assert action(answer(400), chain(handler(), limited)) == "RATE_LIMITED"
    assert action(answer(429), chain(handler(), handler())) == "RATE_LIMITED"


@pytest.mark.parametrize(
    "wanted", ["IGNORE", "RETRY", "RESET_PAGINATION", "REDUCE_PAGE_SIZE", "SPLIT_REQUEST_WINDOW"]
)
def test_chain_ends_at_a_final_action(wanted: str) -> None:
    first = handler({"http_codes": [400], "action": wanted})
    second = handler({"http_codes": [400], "action": "SUCCESS"})

    assert action(answer(400), chain(first, second)) == wanted


def test_retries_are_those_of_a_chain_s_first_handler() -> None:
    first = handler(max_retries="{{ config['tries'] }}")

    assert max_retries_of(None, {}) == 5
    assert max_retries_of(handler(max_retries=None), {}) == 5
    assert max_retries_of(chain(first, handler(max_retries=9)), {"tries": 2}) == 2
    with pytest.raises(ConfigurationError, match="max_retries"):
        max_retries_of(handler(max_retries="many"), {})


def strategies(*several: dict[str, Any]) -> list[BackoffStrategy]:
    return [TypeAdapter(BackoffStrategy).validate_python(strategy) for strategy in several]


def wait(
    strategy: dict[str, Any], outcome: Response | httpx.RequestError | None = None, attempt: int = 1
) -> float | None:
    return strategy_wait(
        strategies(strategy),
        outcome or answer(429),
        {"seconds": 7},
        attempt=attempt,
        now=1000.0,
    )


def test_constant_and_exponential_waits() -> None:
    constant = {"type": "ConstantBackoffStrategy", "backoff_time_in_seconds": 3}
    exponential = {"type": "ExponentialBackoffStrategy"}

    assert wait(constant) == 3
    assert wait(constant | {"backoff_time_in_seconds": "{{ config['seconds'] }}"}) == 7
    assert [wait(exponential, attempt=n) for n in (1, 2, 3)] == [10, 20, 40]
    assert [wait(exponential | {"factor": 1}, attempt=n) for n in (1, 2, 3)] == [2, 4, 8]
    assert 3 <= (wait(constant | {"jitter_range_in_seconds": 2}) or 0) <= 7


def test_waits_from_headers() -> None:
    reported = {"type": "WaitTimeFromHeader", "header": "Retry-After"}
    until = {"type": "WaitUntilTimeFromHeader", "header": "X-Reset"}

    assert wait(reported, answer(429, retry_after="12.5")) == 12.5
    assert wait(reported, answer(429, retry_after="soon")) is None
    assert wait(reported | {"regex": r"\d+"}, answer(429, retry_after="12s")) == 12
    assert wait(reported, LOST) is None
    assert wait(until, answer(429, x_reset="1030")) == 30
    assert wait(until, answer(429, x_reset="900")) is None
    assert wait(until | {"min_wait": 5}, answer(429, x_reset="1002")) == 5
    assert wait(until | {"min_wait": 5}, answer(429)) == 5
    assert wait(until | {"min_wait": "5"}, LOST) == 5


def test_wait_from_the_body() -> None:
    reported = {
        "type": "WaitTimeFromResponse",
        "wait_time_in_seconds": "{{ response.retry.after }}",
    }

    assert wait(reported, answer(429, {"retry": {"after": 4}})) == 4
    assert wait(reported, answer(429, {"retry": {"after": -4}})) is None
    assert wait(reported, answer(429, {"other": 1})) is None


@pytest.mark.parametrize("limit", [10, "{{ 5 + 5 }}"])
def test_wait_as_long_as_the_limit_ends_the_read(limit: Any) -> None:
    reported = {
        "type": "WaitTimeFromHeader",
        "header": "Retry-After",
        "max_waiting_time_in_seconds": limit,
    }

    assert wait(reported, answer(429, retry_after="9")) == 9
    with pytest.raises(SourceError, match="longer than the source may wait"):
        wait(reported, answer(429, retry_after="10"))


def test_first_strategy_that_returns_a_wait_applies() -> None:
    several = strategies(
        {"type": "WaitTimeFromHeader", "header": "Retry-After"},
        {"type": "ConstantBackoffStrategy", "backoff_time_in_seconds": 3},
    )

    assert strategy_wait(several, answer(429), {}, attempt=1, now=0) == 3
    assert strategy_wait(several, answer(429, retry_after="8"), {}, attempt=1, now=0) == 8


def test_strategies_of_a_chain_are_combined() -> None:
    slow = {"type": "ConstantBackoffStrategy", "backoff_time_in_seconds": 9}
    both = chain(handler(), handler(backoff_strategies=[slow]))

    assert [strategy.type for strategy in strategies_of(both)] == ["ConstantBackoffStrategy"]


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def waits(*kinds: tuple[Action, float | None], allowed: int = 5) -> list[float | None]:
    clock = Clock()
    retries = Retries(allowed, clock)
    made = []
    for kind, wanted in kinds:
        seconds = retries.wait(kind, wanted)
        made.append(seconds)
        if seconds is None:
            break
        clock.time += seconds
        retries.record_retry(kind, wanted)
    return made


def test_default_waits_double_from_one_second_on() -> None:
    for kind in (Action.RETRY, Action.RATE_LIMITED):
        assert waits(*[(kind, None)] * 9) == [1, 2, 4, 8, 16, None]


def test_strategy_s_wait_is_extended_by_a_second() -> None:
    assert waits(*[(Action.RETRY, 3.0)] * 3, allowed=2) == [4, 4, None]


def test_retries_end_after_ten_minutes_except_for_rate_limits() -> None:
    assert waits(*[(Action.RETRY, 299.0)] * 9, allowed=9) == [300, 300, None]
    plain = waits(*[(Action.RETRY, None)] * 20, allowed=20)
    assert sum(wait for wait in plain if wait) == 600
    assert plain[-1] is None
    limited = waits(*[(Action.RATE_LIMITED, None)] * 11, allowed=20)
    assert sum(wait for wait in limited if wait) > 600


def test_retry_loops_are_nested() -> None:
    retry, limited, reported = (
        (Action.RETRY, None),
        (Action.RATE_LIMITED, None),
        (Action.RETRY, 1.0),
    )

    assert waits(limited, limited, retry, limited, allowed=2) == [1, 2, 1, 1]
    assert waits(reported, reported, limited, reported, reported, reported, allowed=2) == [
        2,
        2,
        1,
        2,
        2,
        None,
    ]
    assert waits(retry, reported, retry, limited, retry, allowed=2) == [1, 2, 2, 1, None]
