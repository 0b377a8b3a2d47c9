"""Requests reach the API or fail with the reason, and no secret leaves in them."""

from __future__ import annotations

import gzip
import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.http.auth import Authentication
from chronolake.source.declarative.http.client import ReadDifferentlyError, Response, Sender
from chronolake.source.declarative.http.request_builder import Injection, Request
from chronolake.source.declarative.http.response import ResponseCache
from chronolake.source.declarative.http.transport import Exchange, Network, http_client
from chronolake.source.declarative.models.requests import ErrorHandler
from support.declarative.apis import Api, ReceivedRequest, Reply

SECRET = "s3cret-of-the-config"


class Desk:
    """A network whose waits are recorded, not slept."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.waits: list[float] = []
        self.log: list[Exchange] = []
        self.cancelled = threading.Event()

    def network(self, **fields: Any) -> Network:
        whole: dict[str, Any] = {
            "client": self.client,
            "mask": lambda text: text.replace(SECRET, "****"),
            "log": self.log.append,
            "sleep": self.waits.append,
            "cancelled": self.cancelled,
            **fields,
        }
        return Network(**whole)

    def sender(self, handler: dict[str, Any] | None = None, **fields: Any) -> Sender:
        network = fields.pop("network", None) or self.network()
        made = TypeAdapter(ErrorHandler).validate_python(handler) if handler else None
        return Sender(network, {}, error_handler=made, **fields)


class Key(Authentication):
    """Credentials in a header and a parameter; each refresh counts up."""

    def __init__(self) -> None:
        self.number = 1

    def injection(self) -> Injection:
        return Injection(
            params={"api_key": f"key-number-{self.number}"},
            headers={"Authorization": f"Bearer token-number-{self.number}"},
        )

    def refresh(self, spent: Injection) -> bool:
        self.number += 1
        return True


@pytest.fixture
def desk() -> Iterator[Desk]:
    with http_client() as client:
        yield Desk(client)


def filtered(**one: Any) -> dict[str, Any]:
    return {
        "type": "DefaultErrorHandler",
        "response_filters": [{"type": "HttpResponseFilter", **one}],
    }


def test_response_is_complete(desk: Desk) -> None:
    links = '<https://a.example/?page=2>; rel="next", <https://a.example/>; rel="first"'
    with Api({"/items": Reply([1, 2], headers={"Link": links, "X-Count": "2"})}) as api:
        answer = desk.sender().send(Request("GET", f"{api.url}/items", params={"a": "1"}))

    assert answer is not None
    assert answer.json() == [1, 2]
    assert answer.headers["x-count"] == "2"
    assert answer.links["next"]["url"] == "https://a.example/?page=2"
    assert answer.url == f"{api.url}/items?a=1"
    assert api.requests[0].params == {"a": "1"}


@pytest.mark.differs("the user agent")
def test_user_agent_is_sent(desk: Desk) -> None:
    with Api({"/items": Reply([])}) as api:
        desk.sender().send(Request("GET", f"{api.url}/items"))

    assert api.requests[0].headers["user-agent"] == "chronolake"


def test_failed_request_is_retried(desk: Desk) -> None:
    replies = [Reply(status=500), Reply(status=429), Reply(b"", status=418), Reply({"ok": 1})]
    with Api({"/items": replies}) as api:
        answer = desk.sender().send(Request("GET", f"{api.url}/items"))

    assert answer is not None
    assert answer.json() == {"ok": 1}
    assert desk.waits == [1, 1, 2]
    assert [(exchange.status, exchange.attempt) for exchange in desk.log] == [
        (500, 1),
        (429, 2),
        (418, 3),
        (200, 4),
    ]


def test_server_that_keeps_failing_ends_the_read(desk: Desk) -> None:
    with (
        Api({"/items": Reply({"password": "x"}, status=503)}) as api,
        pytest.raises(SourceError) as caught,
    ):
        desk.sender().send(Request("GET", f"{api.url}/items", params={"key": SECRET}))

    assert desk.waits == [1, 2, 4, 8, 16]
    assert len(api.requests) == 6
    text = str(caught.value)
    assert "GET /items returned status 503 after 6 attempts" in text
    assert SECRET not in text
    assert "password" not in text


def test_retry_after_is_honored_only_by_a_strategy_that_reads_it(desk: Desk) -> None:
    limited = Reply(status=429, headers={"Retry-After": "30"})
    reading = {
        "type": "DefaultErrorHandler",
        "backoff_strategies": [{"type": "WaitTimeFromHeader", "header": "Retry-After"}],
    }
    with Api({"/items": [limited, limited, Reply()]}) as api:
        desk.sender(reading).send(Request("GET", f"{api.url}/items"))
        api.on("/items", limited, Reply())
        desk.sender().send(Request("GET", f"{api.url}/items"))

    assert desk.waits == [31, 31, 1]


def test_interrupted_connection_is_retried(desk: Desk) -> None:
    whole = {"items": list(range(100))}
    with Api({"/items": [Reply(whole, cut=10), Reply(whole, cut=0), Reply(whole)]}) as api:
        answer = desk.sender().send(Request("GET", f"{api.url}/items"))

    assert answer is not None
    assert answer.json() == whole
    assert [exchange.status for exchange in desk.log] == [None, None, 200]
    assert desk.log[0].failure is not None


def test_unreachable_server_ends_the_read(desk: Desk) -> None:
    with Api() as api:
        url = f"{api.url}/items"
    with pytest.raises(SourceError, match="got no response in 2 attempts"):
        desk.sender({"type": "DefaultErrorHandler", "max_retries": 1}).send(Request("GET", url))


def test_request_to_a_slow_server_is_retried(desk: Desk) -> None:
    timeout = httpx.Timeout(0.1)
    with Api({"/items": [Reply(slow=0.5), Reply()]}) as api:
        assert desk.sender(timeout=timeout).send(Request("GET", f"{api.url}/items")) is not None

    assert desk.log[0].failure is not None
    assert "Timeout" in desk.log[0].failure


def test_ignored_error_has_no_response_and_an_ignored_200_has_one(desk: Desk) -> None:
    for wanted in ("IGNORE", "SUCCESS"):
        sender = desk.sender(filtered(http_codes=[404, 200], action=wanted))
        with Api({"/items": Reply([1])}) as api:
            assert sender.send(Request("GET", f"{api.url}/missing")) is None
            assert isinstance(sender.send(Request("GET", f"{api.url}/items")), Response)


@pytest.mark.parametrize("wanted", ["RESET_PAGINATION", "REDUCE_PAGE_SIZE", "SPLIT_REQUEST_WINDOW"])
def test_manifest_can_require_that_pages_are_read_differently(desk: Desk, wanted: str) -> None:
    sender = desk.sender(filtered(http_codes=[400], action=wanted))
    with (
        Api({"/items": Reply(status=400)}) as api,
        pytest.raises(ReadDifferentlyError) as caught,
    ):
        sender.send(Request("GET", f"{api.url}/items"))

    assert caught.value.action.value == wanted


def test_failure_contains_the_manifest_s_message_without_secrets(desk: Desk) -> None:
    sender = desk.sender(
        filtered(http_codes=[403], action="FAIL", error_message="refused: {{ response.echo }}"),
        authentication=Key(),
    )
    echo = Reply({"echo": f"{SECRET} key-number-1 token-number-1"}, status=403)
    with Api({f"/{SECRET}/items": echo}) as api, pytest.raises(SourceError) as caught:
        sender.send(Request("GET", f"{api.url}/{SECRET}/items"))

    text = str(caught.value)
    assert "GET /****/items returned status 403" in text
    assert "refused: **** **** ****" in text
    assert "Check the credentials" in text
    assert desk.log[0].url == f"{api.url}/****/items?api_key=****"


def test_credentials_in_a_key_of_the_request_are_refused(desk: Desk) -> None:
    request = Request("GET", "https://a.example/", params={"api_key": "mine"})

    with pytest.raises(ConfigurationError, match="'api_key'"):
        desk.sender(authentication=Key()).send(request)


def test_rejected_token_is_refreshed_once(desk: Desk) -> None:
    def guarded(asked: ReceivedRequest) -> Reply:
        good = asked.headers["authorization"] == "Bearer token-number-2"
        return Reply(status=200 if good else 401)

    handler = filtered(http_codes=[401], action="REFRESH_TOKEN_THEN_RETRY")
    with Api({"/items": guarded, "/never": Reply(status=401)}) as api:
        assert desk.sender(handler, authentication=Key()).send(Request("GET", f"{api.url}/items"))
        with pytest.raises(SourceError, match="after 2 attempts"):
            desk.sender(handler, authentication=Key()).send(Request("GET", f"{api.url}/never"))


def test_redirect_is_followed_with_credentials_on_the_same_host(desk: Desk) -> None:
    with Api({"/old": Reply(status=301, headers={"Location": "/new"}), "/new": Reply([1])}) as api:
        answer = desk.sender(authentication=Key()).send(Request("GET", f"{api.url}/old"))

    assert answer is not None
    assert answer.url == f"{api.url}/new"
    assert api.requests[1].headers["authorization"] == "Bearer token-number-1"


def test_redirect_to_another_host_carries_no_credentials(desk: Desk) -> None:
    with Api({"/there": Reply([1])}) as other:
        moved = Reply(status=302, headers={"Location": f"{other.url}/there"})
        with Api({"/items": moved}) as api:
            request = Request("GET", f"{api.url}/items", headers={"X-Key": SECRET, "Accept": "a/b"})
            assert desk.sender(authentication=Key()).send(request) is not None

    seen = other.requests[0]
    assert "authorization" not in seen.headers
    assert "x-key" not in seen.headers
    assert seen.params == {}
    assert seen.headers["accept"] == "a/b"


def test_body_is_not_sent_to_another_host(desk: Desk) -> None:
    with Api({"/there": Reply()}) as other:
        moved = Reply(status=307, headers={"Location": f"{other.url}/there"})
        with Api({"/items": moved}) as api, pytest.raises(SourceError, match="another host"):
            desk.sender().send(Request("POST", f"{api.url}/items", json={"password": SECRET}))

    assert other.requests == []


def test_redirected_post_becomes_a_get(desk: Desk) -> None:
    with Api({"/a": Reply(status=303, headers={"Location": "/b"}), "/b": Reply()}) as api:
        desk.sender().send(Request("POST", f"{api.url}/a", json={"x": 1}))

    assert [(request.method, request.body) for request in api.requests] == [
        ("POST", b'{"x": 1}'),
        ("GET", b""),
    ]


def test_redirects_in_a_circle_end(desk: Desk) -> None:
    once = {"type": "DefaultErrorHandler", "max_retries": 0}
    with (
        Api({"/a": Reply(status=302, headers={"Location": "/a"})}) as api,
        pytest.raises(SourceError, match="TooManyRedirects"),
    ):
        desk.sender(once).send(Request("GET", f"{api.url}/a"))

    assert len(api.requests) == 31


def test_only_allowed_hosts_receive_requests(desk: Desk) -> None:
    with Api({"/out": Reply(status=302, headers={"Location": "http://evil.example/"})}) as api:
        sender = desk.sender(network=desk.network(allowed_hosts={"127.0.0.1", "*.good.example"}))
        with pytest.raises(SourceError, match=r"evil\.example"):
            sender.send(Request("GET", f"{api.url}/out"))
        with pytest.raises(ConfigurationError, match=r"other\.example"):
            sender.send(Request("GET", "https://other.example/"))

    assert len(desk.log) == 1


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://a.example/", "items", "http://", "http://[a", ""]
)
def test_only_http_urls_are_requested(desk: Desk, url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"not valid|not an http"):
        desk.sender().send(Request("GET", url))
    with (
        Api({"/a": Reply(status=302, headers={"Location": "file:///etc/passwd"})}) as api,
        pytest.raises(SourceError, match=r"not an http|invalid URL"),
    ):
        desk.sender().send(Request("GET", f"{api.url}/a"))
    with (
        Api({"/a": Reply(status=302, headers={"Location": "http://[a"})}) as api,
        pytest.raises(SourceError, match=r"not an http|invalid URL"),
    ):
        desk.sender().send(Request("GET", f"{api.url}/a"))


def coded(body: bytes, coding: str) -> Reply:
    return Reply(body, headers={"Content-Encoding": coding})


def test_compressed_bodies_are_decompressed(desk: Desk) -> None:
    text = b'{"a": 1}' * 100_000
    raw = zlib.compressobj(wbits=-15)
    bodies = {
        "/gzip": coded(gzip.compress(text), "gzip"),
        "/members": coded(gzip.compress(text[:9]) + gzip.compress(text[9:]) + b"\0\0", "gzip"),
        "/zlib": coded(zlib.compress(text), "deflate"),
        "/raw": coded(raw.compress(text) + raw.flush(), "deflate"),
        "/plain": coded(text, "identity"),
    }
    with Api(bodies) as api:
        for path in bodies:
            answer = desk.sender().send(Request("GET", f"{api.url}{path}"))
            assert answer is not None
            assert answer.body == text


def test_broken_compression_is_retried(desk: Desk) -> None:
    whole = gzip.compress(b"x" * 1000)
    replies = [coded(whole[:-12], "gzip"), coded(b"no gzip", "gzip"), coded(whole, "gzip")]
    with Api({"/items": replies}) as api:
        assert desk.sender().send(Request("GET", f"{api.url}/items")) is not None

    assert len(api.requests) == 3


def test_compression_that_was_not_requested_is_refused(desk: Desk) -> None:
    with Api({"/items": coded(b"?", "br")}) as api, pytest.raises(SourceError, match="compression"):
        desk.sender().send(Request("GET", f"{api.url}/items"))


@pytest.mark.differs("the size of a response")
@pytest.mark.parametrize(
    "reply", [Reply(b"x" * 100_001), coded(gzip.compress(b"x" * 1_000_000), "gzip")]
)
def test_response_that_is_too_large_is_refused(desk: Desk, reply: Reply) -> None:
    with (
        Api({"/items": reply}) as api,
        pytest.raises(SourceError, match="larger than 100000 bytes"),
    ):
        desk.sender(network=desk.network(limit=100_000)).send(Request("GET", f"{api.url}/items"))


def test_wait_of_more_than_a_day_is_refused(desk: Desk) -> None:
    reading = {
        "type": "DefaultErrorHandler",
        "backoff_strategies": [{"type": "WaitTimeFromHeader", "header": "Retry-After"}],
    }
    with (
        Api({"/items": Reply(status=429, headers={"Retry-After": "1e300"})}) as api,
        pytest.raises(SourceError, match="requires a wait of"),
    ):
        desk.sender(reading).send(Request("GET", f"{api.url}/items"))


def test_cancelling_ends_a_wait(desk: Desk) -> None:
    slow = {
        "type": "DefaultErrorHandler",
        "backoff_strategies": [{"type": "ConstantBackoffStrategy", "backoff_time_in_seconds": 60}],
    }
    with Api({"/items": Reply(status=500)}) as api:
        timer = threading.Timer(0.2, desk.cancelled.set)
        timer.start()
        began = time.monotonic()
        with pytest.raises(SourceError, match="cancelled"):
            desk.sender(slow, network=desk.network(sleep=None)).send(
                Request("GET", f"{api.url}/items")
            )
        timer.join()

    assert time.monotonic() - began < 10
    assert len(api.requests) == 1


def test_responses_are_cached_for_equal_requests_of_one_identity(desk: Desk) -> None:
    cache = ResponseCache()
    with Api({"/items": Reply([1]), "/post": Reply([1])}) as api:
        for identity in ("one", "one", "other"):
            sender = desk.sender(cache=cache, identity=identity)
            assert sender.send(Request("GET", f"{api.url}/items", params={"page": 1})) is not None
            sender.send(Request("POST", f"{api.url}/post"))

    assert api.paths() == ["/items", "/post", "/post", "/items", "/post"]


def test_headers_may_contain_any_text(desk: Desk) -> None:
    with Api({"/items": Reply()}) as api:
        desk.sender().send(
            Request("GET", f"{api.url}/items", headers={"A": "é", "B": " x ", "C": 5, "D": ""})
        )

    seen = api.requests[0].headers
    assert (seen["a"], seen["b"], seen["c"], seen["d"]) == ("é", "x", "5", "")
