"""Requests use a token that has calls left; no token makes more than its quota."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from chronolake.errors import ChronolakeError, ConfigurationError, SourceError
from chronolake.source.declarative.components.custom_auth import custom_authentication
from chronolake.source.declarative.http.api_session import ApiSession
from chronolake.source.declarative.http.request_builder import Request
from chronolake.source.declarative.http.token_pool import (
    CountedQuotas,
    QuotaCount,
    QuotaReport,
    TokenGrant,
)
from chronolake.source.declarative.http.transport import Network, http_client
from chronolake.source.declarative.models.requests import RateLimitedMultipleTokenAuthenticator
from chronolake.source.declarative.slice_files import SliceResult
from chronolake.source.declarative.spark.coordinator import Coordinator, Driver
from chronolake.types import ColumnType
from support.declarative.api_access import HIDDEN, NOW, Visit
from support.declarative.apis import Api, ReceivedRequest, Reply
from support.declarative.stream_reads import read_stream, stream

LATER = int(NOW) + 3600


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with http_client() as opened:
        yield opened


@pytest.fixture
def api() -> Iterator[Api]:
    with Api({"/items": Reply([])}) as opened:
        yield opened


def quota(name: str = "rest", **fields: Any) -> dict[str, Any]:
    return {
        "type": "TokenQuota",
        "name": name,
        "remaining_path": [name, "left"],
        "reset_path": [name, "reset"],
        "limit_path": [name, "limit"],
        **fields,
    }


def rotating(api: Api, *quotas: dict[str, Any], **fields: Any) -> dict[str, Any]:
    status = {"type": "QuotaStatusSource", "url": f"{api.url}/quotas", **fields.pop("status", {})}
    return {
        "type": "RateLimitedMultipleTokenAuthenticator",
        "tokens": "{{ config['tokens'] }}",
        "quota_status_source": status,
        "quotas": list(quotas) or [quota()],
        "budget_min_reserve": 0,
        "budget_reserve_fraction": 0,
        **fields,
    }


def quota_reply(left: int, reset: Any = LATER, limit: int = 100) -> Reply:
    return Reply({"rest": {"left": left, "reset": reset, "limit": limit}})


def by_token(**left: int) -> Callable[[ReceivedRequest], Reply]:
    return lambda asked: quota_reply(left[token_of(asked)])


def token_of(asked: ReceivedRequest) -> str:
    return asked.headers["authorization"].removeprefix("Bearer ")


def test_streams_share_the_calls_of_tokens(api: Api, client: httpx.Client) -> None:
    api.on("/quotas", by_token(one=2, two=9))
    visit = Visit(api, client, {"tokens": "one,two"})

    seen = [
        token_of(visit.asks({**rotating(api), "$parameters": {"name": name}}))
        for name in ("items", "parts", "items")
    ]

    assert seen == ["one", "one", "two"]
    assert api.paths().count("/quotas") == 2


def test_order_of_statuses_does_not_create_another_authenticator(
    api: Api, client: httpx.Client
) -> None:
    api.on("/quotas", quota_reply(9))
    visit = Visit(api, client, {"tokens": "one"})

    for codes in ([404, 412], [412, 404]):
        visit.asks(rotating(api, quota(exhaustion_status_codes=codes)))

    assert api.paths().count("/quotas") == 1


def test_quota_without_matchers_applies_to_unmatched_requests(
    api: Api, client: httpx.Client
) -> None:
    matcher = {"type": "HttpRequestRegexMatcher", "url_path_pattern": "^/items$"}
    quotas = [quota("rest"), quota("lists", matchers=[matcher]), quota("last")]
    spent, free = {"left": 0, "reset": LATER, "limit": 9}, {"left": 9, "reset": LATER, "limit": 9}
    of_tokens = {
        "one": {"rest": free, "lists": spent, "last": spent},
        "two": {"rest": spent, "lists": free, "last": spent},
    }
    api.on("/quotas", lambda asked: Reply(of_tokens[token_of(asked)]))
    api.on("/items/1", Reply({}))
    visit = Visit(api, client, {"tokens": "one,two"})
    sender = visit.session.sender(visit.requester(rotating(api, *quotas)))

    for path in ("items/1", "items"):
        sender.send(Request("GET", f"{api.url}/{path}"))

    assert [token_of(request) for request in api.requests[2:]] == ["one", "two"]


def test_no_token_makes_more_calls_than_it_has(api: Api) -> None:
    """The API refuses requests above the quota: then there would be more requests than expected."""
    left = Counter({"one": 20, "two": 30, "three": 0})
    asked_for = dict(left)
    lock = threading.Lock()

    def answer(asked: ReceivedRequest) -> Reply:
        with lock:
            left[token_of(asked)] -= 1
        return Reply(
            {"data": [{"id": asked.params["k"]}]}, status=200 if min(left.values()) >= 0 else 500
        )

    api.on("/quotas", by_token(**asked_for))
    api.on("/items", answer)
    values = [str(number) for number in range(50)]
    router = {
        "type": "ListPartitionRouter",
        "cursor_field": "k",
        "values": values,
        "request_option": {
            "type": "RequestOption",
            "inject_into": "request_parameter",
            "field_name": "k",
        },
    }
    described = stream()
    described["retriever"]["partition_router"] = router
    described["retriever"]["requester"]["authenticator"] = rotating(api)

    found = read_stream(described, api, config={"tokens": "one,two,three"})

    assert sorted(found.ids) == sorted(values)
    assert api.paths().count("/quotas") == 3
    assert left == {"one": 0, "two": 0, "three": 0}


def test_waiting_threads_fetch_the_quotas_once(api: Api, client: httpx.Client) -> None:
    api.on("/quotas", quota_reply(0, reset=int(NOW) + 60), quota_reply(40))
    visit = Visit(api, client, {"tokens": "one"})
    sender = visit.session.sender(visit.requester(rotating(api)))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: sender.send(Request("GET", f"{api.url}/items")), range(8)))

    assert api.paths().count("/quotas") == 2
    assert set(visit.time.waits) <= {60.0, 5.0}


def test_quotas_are_fetched_once_after_each_wait_for_exhausted_tokens(api: Api) -> None:
    component = RateLimitedMultipleTokenAuthenticator.model_validate(rotating(api))
    times = []

    def fetched() -> list[dict[str, QuotaCount] | None]:
        times.append(len(times) + 1)
        return [{"rest": QuotaCount(calls=0, limit=9, reset=NOW + 7)}]

    quotas = CountedQuotas(component, fetched, lambda: NOW)
    spent = [quotas.take_token("rest", waited) for waited in (None, None, 1, 1)]
    quotas.apply_report(
        0, "rest", QuotaReport(left=5, limit=None, reset=NOW + 8, is_exhausted=False)
    )

    assert spent == [
        TokenGrant(None, 7, 1),
        TokenGrant(None, 7, 1),
        TokenGrant(None, 7, 2),
        TokenGrant(None, 7, 2),
    ]
    assert quotas.take_token("rest", 2) == TokenGrant(0, 0, 2)
    assert times == [1, 2]


@pytest.mark.parametrize(
    ("headers", "status", "next_token"),
    [
        ({"X-Left": "0", "X-Reset": str(LATER)}, 200, "two"),
        ({"x-left": "5"}, 200, "one"),
        ({"X-Left": "-1"}, 200, "two"),
        ({"X-Left": "many", "X-Reset": "soon"}, 200, "one"),
        # After a window that ended more than a minute ago, only a refusal counts.
        ({"X-Left": "0", "X-Reset": str(LATER - 60)}, 200, "two"),
        ({"X-Left": "0", "X-Reset": str(LATER - 61)}, 200, "one"),
        ({"X-Left": "0", "X-Reset": str(LATER - 61)}, 403, "two"),
        ({}, 403, "two"),
        # The next window has as many calls as its limit, unless the response reports otherwise.
        ({"X-Reset": str(LATER + 1), "X-Limit": "7"}, 200, "one"),
        ({"X-Reset": str(LATER + 1), "X-Left": "0"}, 200, "two"),
        ({"X-Reset": "2099-01-01T00:00:00Z"}, 403, "two"),
    ],
)
def test_responses_report_the_remaining_calls(
    api: Api, client: httpx.Client, headers: dict[str, str], status: int, next_token: str
) -> None:
    heard = quota(
        remaining_header="X-Left",
        reset_header="X-Reset",
        limit_header="X-Limit",
        exhaustion_status_codes=[403],
    )
    api.on("/quotas", quota_reply(50))
    api.on("/items", Reply([], status=status, headers=headers), Reply([]))
    visit = Visit(api, client, {"tokens": "one,two"})
    sender = visit.session.sender(
        visit.requester(rotating(api, heard), error_handler=ignoring(403))
    )

    for _ in range(2):
        sender.send(Request("GET", f"{api.url}/items"))

    assert [token_of(request) for request in api.requests[2:]] == ["one", next_token]


def ignoring(*codes: int) -> dict[str, Any]:
    passed = {"type": "HttpResponseFilter", "action": "IGNORE", "http_codes": list(codes)}
    return {"type": "DefaultErrorHandler", "response_filters": [passed]}


def test_responses_never_add_calls_within_a_window(api: Api, client: httpx.Client) -> None:
    """A slow response's remaining quota may be out of date, and does not raise the count."""
    heard = quota(remaining_header="X-Left")
    api.on("/quotas", quota_reply(2))
    api.on("/items", Reply([], headers={"X-Left": "80"}))
    visit = Visit(api, client, {"tokens": "one,two"})

    seen = [token_of(visit.asks(rotating(api, heard))) for _ in range(3)]

    assert seen == ["one", "one", "two"]


def test_last_calls_are_spread_over_the_rest_of_the_window(api: Api, client: httpx.Client) -> None:
    api.on("/quotas", quota_reply(3, reset=int(NOW) + 12))
    visit = Visit(api, client, {"tokens": "one,two"})
    spread = rotating(api, budget_min_reserve=2)

    for _ in range(3):
        visit.asks(spread)

    # One token always has more than its reserve.
    assert visit.time.waits == []
    visit.session = visit.again()
    api.on("/quotas", quota_reply(2, reset=int(NOW) + 12))
    for _ in range(4):
        visit.asks(spread)
    assert visit.time.waits == [4.0, 4.0, 4.0]


def test_wait_ends_when_the_read_is_cancelled(api: Api, client: httpx.Client) -> None:
    api.on("/quotas", quota_reply(0))
    visit = Visit(api, client, {"tokens": "one"})

    def cancelling(seconds: float) -> None:
        assert seconds == 3600
        visit.network.cancelled.set()

    network = Network(client, sleep=cancelling, now=lambda: NOW, cancelled=visit.network.cancelled)
    visit.session = ApiSession(network, visit.config, custom=custom_authentication)

    with pytest.raises(SourceError, match="cancelled"):
        visit.asks(rotating(api))
    assert "/items" not in api.paths()


def test_waits_are_bounded_together(api: Api, client: httpx.Client) -> None:
    api.on("/quotas", lambda _: quota_reply(0, reset=int(visit.time.now) + 40))
    visit = Visit(api, client, {"tokens": "one"})

    with pytest.raises(SourceError, match=r"All tokens are exhausted \(quota 'rest'\)"):
        visit.asks(rotating(api, max_wait_time="PT1M30S"))

    assert visit.time.waits == [40.0, 40.0]


@pytest.mark.parametrize(
    ("config", "fields", "message"),
    [
        ({"tokens": " , "}, {}, "no tokens"),
        ({"tokens": "one"}, {"max_wait_time": "a while"}, "max_wait_time"),
        (
            {"tokens": "one"},
            {"quotas": [quota(matchers=[{"url_path_pattern": "("}])]},
            "an authenticator's quotas is not a valid regular expression",
        ),
    ],
)
def test_invalid_authenticator_is_refused(
    api: Api, client: httpx.Client, config: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Visit(api, client, config).asks(rotating(api, **fields))
    assert api.requests == []


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (Reply({"rest": {"left": 1, "reset": LATER}}), r"number of calls at rest\.limit"),
        (Reply({"rest": {"left": None, "reset": LATER, "limit": 1}}), r"calls at rest\.left"),
        (quota_reply(1, reset="soon"), r"has no valid time at rest\.reset"),
        (quota_reply(1, reset=LATER * 1000), r"has no valid time at rest\.reset"),
        (Reply(b"<html>"), "has no valid"),
        (Reply(status=401), "GET /quotas returned status 401"),
    ],
)
def test_incomplete_quota_status_ends_the_read(
    api: Api, client: httpx.Client, status: Reply, message: str
) -> None:
    api.on("/quotas", status)

    with pytest.raises(SourceError, match=message) as caught:
        Visit(api, client, {"tokens": HIDDEN}).asks(rotating(api))

    assert HIDDEN not in str(caught.value)
    assert "/items" not in api.paths()


def test_no_message_contains_a_token(api: Api, client: httpx.Client) -> None:
    """Each token is hidden in the API's messages, whichever of them the request used."""
    other = "another-that-nobody-may-see"
    api.on("/quotas", quota_reply(50))
    api.on("/items", Reply({"said": f"neither {HIDDEN} nor {other}"}, status=400))
    link = {"Location": f"/items?a={other}"}
    api.on("/moved", Reply(status=302, headers=link))
    says = {
        "type": "HttpResponseFilter",
        "action": "FAIL",
        "http_codes": [400],
        "error_message": "It says {{ response.said }}.",
    }
    handler = {"type": "DefaultErrorHandler", "response_filters": [says]}

    visit = Visit(api, client, {"tokens": f"{HIDDEN},{other}"})
    requester = visit.requester(rotating(api), error_handler=handler)

    with pytest.raises(SourceError, match=r"It says neither \*+ nor \*+") as caught:
        visit.session.sender(requester).send(Request("GET", f"{api.url}/moved"))

    assert HIDDEN not in str(caught.value)
    assert other not in str(caught.value)
    assert visit.log[-1].url == f"{api.url}/items?a=****"


class NoSlices:
    """A run without slices left to read."""

    def unfinished(self, numbers: Collection[int]) -> set[int]:
        del numbers
        return set()

    def record_result(
        self, number: int, found: SliceResult | ChronolakeError, types: dict[str, ColumnType]
    ) -> bool:
        del number, found, types
        return False


def test_tasks_share_the_calls_that_the_driver_counts(api: Api, client: httpx.Client) -> None:
    heard = quota(remaining_header="X-Left")
    api.on("/quotas", by_token(one=3, two=9))
    api.on("/items", Reply([]), Reply([], headers={"X-Left": "0"}), Reply([]))
    visit = Visit(api, client, {"tokens": "one,two"})
    visit.asks(rotating(api, heard))

    with (
        Coordinator("127.0.0.1", visit.session, NoSlices(), callers=2) as coordinator,
        Driver(coordinator.address) as first,
        Driver(coordinator.address) as second,
    ):
        for driver in (first, second):
            visit.session = ApiSession(
                visit.network, visit.config, custom=custom_authentication, shared=driver
            )
            visit.asks(rotating(api, heard))

    seen = [token_of(request) for request in api.requests if request.path == "/items"]
    assert seen == ["one", "one", "two"]
    assert api.paths().count("/quotas") == 2


def test_tasks_wait_by_themselves(api: Api, client: httpx.Client) -> None:
    """The driver, which answers all tasks, is not blocked."""
    api.on("/quotas", quota_reply(0, reset=int(NOW) + 60), quota_reply(9))
    driving, task = (Visit(api, client, {"tokens": "one"}) for _ in range(2))
    driving.session.sender(driving.requester(rotating(api)))

    with (
        Coordinator("127.0.0.1", driving.session, NoSlices(), callers=1) as coordinator,
        Driver(coordinator.address) as driver,
    ):
        task.session = ApiSession(
            task.network, task.config, custom=custom_authentication, shared=driver
        )
        task.asks(rotating(api))

    assert (driving.time.waits, task.time.waits) == ([], [60.0])
    assert api.paths() == ["/quotas", "/quotas", "/items"]
