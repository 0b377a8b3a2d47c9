"""No more requests are made than the API allows, whatever the number of threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.http.client import Sender
from chronolake.source.declarative.http.rate_limit import Budget, CountedCalls
from chronolake.source.declarative.http.request_builder import EncodedRequest, Request
from chronolake.source.declarative.http.response import Response
from chronolake.source.declarative.http.transport import Network, http_client
from chronolake.source.declarative.models.requests import HTTPAPIBudget
from support.declarative.apis import Api, Reply


class Clock:
    """A clock whose time passes only during waits."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.lock = threading.Lock()

    def __call__(self) -> float:
        return self.time

    def wait(self, seconds: float) -> None:
        assert seconds > 0
        with self.lock:
            self.time += seconds


def matcher(**fields: Any) -> dict[str, Any]:
    return {"type": "HttpRequestRegexMatcher", **fields}


def fixed(limit: int, period: str = "PT1M", *matchers: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "FixedWindowCallRatePolicy",
        "period": period,
        "call_limit": limit,
        "matchers": list(matchers),
    }


def moving(*rates: tuple[int | str, str], matchers: Any = ()) -> dict[str, Any]:
    return {
        "type": "MovingWindowCallRatePolicy",
        "rates": [{"type": "Rate", "limit": limit, "interval": rate} for limit, rate in rates],
        "matchers": list(matchers),
    }


def budget(clock: Clock, *policies: dict[str, Any], **fields: Any) -> Budget:
    whole = {"type": "HTTPAPIBudget", "policies": list(policies), **fields}
    component = HTTPAPIBudget.model_validate(whole)
    config = {"limit": 3}
    return Budget(component, config, CountedCalls(component.policies, config, clock))


def asked(
    url: str = "https://a.example/items", method: str = "GET", **headers: str
) -> EncodedRequest:
    return EncodedRequest(method, url, headers, None)


def answer(status: int = 200, **headers: str) -> Response:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Response(status, httpx.Headers(named), b"", "u", "GET")


def starts(
    clock: Clock, made: Budget, count: int, request: EncodedRequest | None = None
) -> list[float]:
    """Return when each of several requests may begin, in seconds after the first."""
    began = clock.time
    times = []
    for _ in range(count):
        made.take(request or asked(), clock.wait)
        times.append(clock.time - began)
    return times


@pytest.mark.differs("fixed windows of a budget")
def test_fixed_window_begins_with_the_first_request() -> None:
    clock = Clock()

    assert starts(clock, budget(clock, fixed(2)), 5) == [0, 0, 60, 60, 120]


def test_reported_reset_and_remaining_calls_are_applied() -> None:
    clock = Clock()
    made = budget(clock, fixed(10))
    made.take(asked(), clock.wait)
    made.update(asked(), answer(ratelimit_remaining="1", ratelimit_reset=str(int(clock.time) + 7)))

    assert starts(clock, made, 3) == [0, 7, 7]


def test_reported_calls_above_the_limit_are_ignored() -> None:
    clock = Clock()
    made = budget(clock, fixed(2))
    made.take(asked(), clock.wait)
    made.update(asked(), answer(ratelimit_remaining="1000"))

    assert starts(clock, made, 2) == [0, 60]


def test_hit_status_means_no_calls_remain() -> None:
    clock = Clock()
    made = budget(clock, fixed(10), status_codes_for_ratelimit_hit=[403])
    made.take(asked(), clock.wait)
    made.update(asked(), answer(429))
    assert starts(clock, made, 1) == [0]
    made.update(asked(), answer(403))

    assert starts(clock, made, 1) == [60]


def test_rate_limit_headers_have_the_manifest_s_names() -> None:
    clock = Clock()
    made = budget(
        clock, fixed(10), ratelimit_remaining_header="X-Left", ratelimit_reset_header="X-Reset"
    )
    made.take(asked(), clock.wait)
    made.update(asked(), answer(x_left="0", x_reset="no number"))

    assert starts(clock, made, 1) == [60]


def test_moving_windows_hold_at_every_moment() -> None:
    clock = Clock()

    assert starts(clock, budget(clock, moving((2, "PT1S"), (3, "PT10S"))), 7) == [
        0,
        0,
        1,
        10,
        10,
        11,
        20,
    ]
    assert starts(clock, budget(clock, moving(("{{ config['limit'] }}", "PT1S"))), 4)[-1] == 1


def test_moving_window_is_full_after_a_hit() -> None:
    clock = Clock()
    made = budget(clock, moving((5, "PT10S")))
    made.take(asked(), clock.wait)
    made.update(asked(), answer(429))

    assert starts(clock, made, 1) == [10]


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 20)), min_size=1, max_size=3),
    st.lists(st.integers(0, 9), max_size=30),
)
def test_no_interval_has_more_requests_than_its_rate(
    rates: list[tuple[int, int]], pauses: list[int]
) -> None:
    clock = Clock()
    made = budget(clock, moving(*[(limit, f"PT{seconds}S") for limit, seconds in rates]))
    times = []
    for pause in pauses:
        clock.time += pause
        made.take(asked(), clock.wait)
        times.append(clock.time)

    for limit, seconds in rates:
        for at in times:
            assert sum(at - seconds < other <= at for other in times) <= limit


def test_first_matching_policy_applies() -> None:
    clock = Clock()
    free = {
        "type": "UnlimitedCallRatePolicy",
        "matchers": [matcher(headers={"X-Sandbox": "yes"})],
    }
    made = budget(clock, free, fixed(1, "PT1M", matcher(url_path_pattern="^/items$")))

    assert starts(clock, made, 3, asked(**{"x-sandbox": "yes"})) == [0, 0, 0]
    assert starts(clock, made, 3, asked("https://a.example/other")) == [0, 0, 0]
    assert starts(clock, made, 2, asked("https://a.example/items/?x=1")) == [0, 60]


@pytest.mark.parametrize(
    ("fields", "request_", "fits"),
    [
        ({"method": "post"}, asked(method="POST"), True),
        ({"method": "post"}, asked(), False),
        ({"url_base": "https://a.example/"}, asked(), True),
        ({"url_base": "https://b.example"}, asked(), False),
        ({"params": {"a": 1}}, asked("https://a.example/?a=1&b=2"), True),
        ({"params": {"a": 1}}, asked("https://a.example/?a=2"), False),
        ({"url_path_pattern": "tem"}, asked(), True),
    ],
)
def test_matchers(fields: dict[str, Any], request_: EncodedRequest, *, fits: bool) -> None:
    clock = Clock()
    made = budget(clock, fixed(1, "PT1M", matcher(**fields)))

    assert (starts(clock, made, 2, request_) == [0, 60]) is fits


def test_requests_have_weights() -> None:
    clock = Clock()
    made = budget(clock, fixed(4, "PT1M", matcher(weight="{{ config['limit'] }}")))
    assert starts(clock, made, 2) == [0, 60]

    heavy = budget(clock, fixed(2, "PT1M", matcher(weight=3)))
    with pytest.raises(ConfigurationError, match="has weight 3"):
        heavy.take(asked(), clock.wait)


@pytest.mark.parametrize(
    "policy",
    [
        fixed(0),
        fixed(1, "a minute"),
        fixed(1, "PT0S"),
        moving(("many", "PT1S")),
        fixed(1, "PT1M", matcher(url_path_pattern="(")),
        fixed(1, "PT1M", matcher(weight=0)),
    ],
)
def test_invalid_budget_is_refused(policy: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="api_budget"):
        budget(Clock(), policy)


def test_threads_and_senders_share_the_budget() -> None:
    clock = Clock()
    made = budget(clock, fixed(5))
    with http_client() as client, Api({"/items": Reply()}) as api:
        network = Network(client, sleep=clock.wait, now=clock)
        senders = [Sender(network, {}, budget=made) for _ in range(4)]

        def ask(number: int) -> float:
            senders[number % 4].send(Request("GET", f"{api.url}/items"))
            return clock.time

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(ask, range(20)))

    assert len(api.requests) == 20
    assert clock.time >= 1000 + 3 * 60
