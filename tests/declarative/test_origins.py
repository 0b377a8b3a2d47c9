"""Credentials stay with the servers that the manifest and the configuration name."""

from __future__ import annotations

import base64
import gzip
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from chronolake.config import DeclarativeSource
from chronolake.errors import ChronolakeError, SourceError
from chronolake.source.declarative.check import Result, read
from chronolake.source.declarative.connect import create_api
from chronolake.source.declarative.http.client import Sender
from chronolake.source.declarative.http.origins import (
    Origin,
    is_refused_name,
    origin_of,
    own_origins,
)
from chronolake.source.declarative.http.request_builder import Request
from chronolake.source.declarative.http.transport import Network, http_client
from chronolake.source.declarative.manifests.manifest import parse, to_mapped
from chronolake.source.declarative.models.requests import DefaultErrorHandler, HttpRequester
from chronolake.source.declarative.stream_slice import StreamSlice
from support.declarative.apis import Api, ReceivedRequest, Reply
from support.declarative.stream_reads import option, requester, retriever

SECRET = "s3cret-of-the-config"
TOKEN = "{{ config['secret'] }}"
HEADER = {"type": "RequestOption", "inject_into": "header", "field_name": "X-Key"}
_SPELLINGS = (
    SECRET,
    base64.b64encode(f"user:{SECRET}".encode()).decode(),
    base64.b64encode(f"{SECRET}:".encode()).decode(),
)


def _login(api: str) -> dict[str, Any]:
    return {
        "type": "SessionTokenAuthenticator",
        "login_requester": {**requester("/login"), "url_base": api, "http_method": "POST"},
        "session_token_path": ["token"],
        "expiration_duration": "PT1H",
        "request_authentication": {"type": "ApiKey", "inject_into": HEADER},
    }


def _oauth(api: str) -> dict[str, Any]:
    return {
        "type": "OAuthAuthenticator",
        "token_refresh_endpoint": f"{api}/token",
        "client_id": "us",
        "client_secret": TOKEN,
        "refresh_token": TOKEN,
    }


def _tokens(api: str) -> dict[str, Any]:
    return {
        "type": "RateLimitedMultipleTokenAuthenticator",
        "tokens": [TOKEN],
        "quota_status_source": {"type": "QuotaStatusSource", "url": f"{api}/quota"},
        "quotas": [
            {
                "type": "TokenQuota",
                "name": "all",
                "remaining_path": ["left"],
                "reset_path": ["reset"],
                "matchers": [],
            }
        ],
    }


def _key(**place: Any) -> Callable[[str], dict[str, Any]]:
    described = {"type": "ApiKeyAuthenticator", "api_token": TOKEN, "inject_into": place}
    return lambda _: {"authenticator": described}


#: Places of credentials, as parts of a requester.
PLACES: dict[str, Callable[[str], dict[str, Any]]] = {
    "bearer": lambda _: {"authenticator": {"type": "BearerAuthenticator", "api_token": TOKEN}},
    "basic": lambda _: {
        "authenticator": {"type": "BasicHttpAuthenticator", "username": TOKEN, "password": ""}
    },
    "key in a header": _key(**HEADER),
    "key in the query": _key(**option("key")),
    "key in a form": _key(type="RequestOption", inject_into="body_data", field_name="key"),
    "key in JSON": _key(type="RequestOption", inject_into="body_json", field_name="key"),
    "session": lambda api: {"authenticator": _login(api)},
    "OAuth": lambda api: {"authenticator": _oauth(api)},
    "tokens in turn": lambda api: {"authenticator": _tokens(api)},
    "request_headers": lambda _: {"request_headers": {"X-Api-Key": TOKEN}},
    "an accepted header": lambda _: {"request_headers": {"User-Agent": TOKEN}},
    "request_parameters": lambda _: {"request_parameters": {"token": TOKEN}},
    "request_body_json": lambda _: {"request_body_json": {"token": TOKEN}},
    "user in the URL": lambda api: {
        "url_base": api.replace("://", "://user:{{ config['secret'] }}@")
    },
    "cookie": lambda _: {},
    "key beside the link": lambda _: {
        "path": "{{ (next_page_token['next_page_token'] ~ '&k=' ~ config['secret'])"
        " if next_page_token else '/items' }}"
    },
}
#: Requests that cannot be sent to another server without their credentials.
_REFUSED = {
    ("request_body_json", "link"),
    ("request_body_json", "template"),
    ("key beside the link", "template"),
}
WAYS = ("link", "template", "redirect")


_PLACES_AND_WAYS = [
    pair for pair in itertools.product(PLACES, WAYS) if pair != ("key beside the link", "redirect")
]


def _stream(api: str, place: str, way: str) -> dict[str, Any]:
    asks = {"url_base": api, **PLACES[place](api)}
    if way == "template":
        asks.setdefault(
            "path", "{{ next_page_token['next_page_token'] if next_page_token else '/items' }}"
        )
    strategy = {"type": "CursorPagination", "cursor_value": "{{ response['next'] }}"}
    paginator = {
        "type": "DefaultPaginator",
        "pagination_strategy": strategy | {"stop_condition": "{{ not response.get('next') }}"},
        "page_token_option": {"type": "RequestPath"} if way == "link" else None,
    }
    path = asks.pop("path", "/items")
    return {
        "type": "DeclarativeStream",
        "name": "items",
        "retriever": retriever(path, asks=asks, paginator=paginator),
    }


def _read(described: dict[str, Any], **network: Any) -> Result:
    manifest = parse(to_mapped({"streams": [described]}), Path("manifest.yaml"))
    with http_client(network.get("allowed_hosts")) as client:
        shared = Network(
            client,
            mask=lambda text: text.replace(SECRET, "****"),
            sleep=lambda _: None,
            **network,
        )
        api = create_api(manifest, {"secret": SECRET}, shared)
        return read(manifest.stream("items"), api, None)


def _serve(api: Api, other: str, way: str) -> None:
    """Serve an API whose second page is at another server."""
    cookie = {"Set-Cookie": f"session={SECRET}; Path=/"}
    there = f"{other}/items?page=2"
    if way == "redirect":
        api.on(
            "/items",
            Reply({"data": [{"id": 1}], "next": "2"}, headers=cookie),
            Reply(status=302, headers={"Location": there}),
        )
    else:
        api.on("/items", Reply({"data": [{"id": 1}], "next": there}, headers=cookie))
    api.on("/login", Reply({"token": SECRET}))
    api.on("/token", Reply({"access_token": SECRET, "expires_in": 3600}))
    api.on("/quota", Reply({"left": 100, "reset": int(time.time()) + 3600}))


def _holds_secret(asked: ReceivedRequest) -> bool:
    said = [*asked.headers.values(), asked.body.decode(), asked.path]
    said += [text for pair in asked.query for text in pair]
    return any(spelling in text for spelling in _SPELLINGS for text in said)


@pytest.mark.differs("where credentials go")
@pytest.mark.parametrize(("place", "way"), _PLACES_AND_WAYS)
def test_credentials_are_not_sent_to_another_origin(place: str, way: str) -> None:
    with Api({"/items": Reply({"data": [{"id": 2}]})}) as other, Api() as api:
        _serve(api, other.url, way)
        result = _read(_stream(api.url, place, way))

    assert place in {"cookie", "key beside the link"} or any(map(_holds_secret, api.requests))
    assert not any(_holds_secret(request) for request in other.requests)
    if (place, way) in _REFUSED:
        assert isinstance(result.failure, SourceError)
        assert "another" in result.failure.message
        assert SECRET not in str(result.failure)
        assert other.requests == []
    else:
        assert result.failure is None
        assert [record["id"] for record in result.records] == [1, 2]
        assert other.requests[0].params == {"page": "2"}


@pytest.mark.parametrize("way", WAYS[:2])
def test_listed_origin_receives_the_credentials(way: str) -> None:
    with Api({"/items": Reply({"data": [{"id": 2}]})}) as other, Api() as api:
        _serve(api, other.url, way)
        result = _read(_stream(api.url, "bearer", way), allowed_hosts=[api.url, other.url])

    assert result.failure is None
    assert _holds_secret(other.requests[0])


def test_listed_host_receives_requests_without_credentials() -> None:
    with Api({"/items": Reply({"data": [{"id": 2}]})}) as other, Api() as api:
        _serve(api, other.url, "link")
        result = _read(_stream(api.url, "bearer", "link"), allowed_hosts=["127.0.0.1"])

    assert result.failure is None
    assert not _holds_secret(other.requests[0])


def test_error_of_another_origin_contains_a_hint() -> None:
    with Api({"/items": Reply(status=401)}) as other, Api() as api:
        _serve(api, other.url, "link")
        failure = _read(_stream(api.url, "bearer", "link")).failure

    assert failure is not None
    assert f"It was sent to {other.url} without credentials" in failure.message
    assert failure.hint is not None
    assert "allowed_hosts" in failure.hint


@pytest.mark.parametrize(
    "place",
    ["javascript:1", "mailto:a@b", "http:x", "file:///etc/passwd", "ftp://x", "//169.254.169.254"],
)
def test_redirect_to_an_invalid_url_fails_its_stream(place: str) -> None:
    with Api({"/items": Reply(status=302, headers={"Location": place})}) as api:
        failure = _read(_stream(api.url, "bearer", "redirect")).failure

    assert isinstance(failure, SourceError)
    assert "got no response" not in failure.message


def test_redirect_does_not_carry_the_query_with_the_api_key() -> None:
    def moved(asked: ReceivedRequest) -> Reply:
        return Reply(
            status=302, headers={"Location": f"{other.url}/items?key={asked.params['key']}"}
        )

    with Api({"/items": Reply({"data": []})}) as other, Api({"/items": moved}) as api:
        failure = _read(_stream(api.url, "key in the query", "redirect")).failure

    assert failure is not None
    assert "with credentials in its URL" in failure.message
    assert SECRET not in str(failure)
    assert other.requests == []


def test_cookies_are_sent_only_to_their_origin() -> None:
    with Api(
        {"/items": Reply({"data": [], "next": "?page=2"}, headers={"Set-Cookie": "a=b"})}
    ) as api:
        _read(_stream(api.url, "cookie", "link") | {}, response_timeout=5.0)
        assert api.requests[1].headers["cookie"] == "a=b"


def test_download_url_of_another_origin_receives_no_credentials() -> None:
    with Api({"/file": Reply({"id": 1})}) as other, Api() as api:
        api.on("/reports", Reply({"id": 7}))
        api.on(
            "/reports/7",
            Reply({"status": "ready", "urls": [f"{other.url}/file", f"{api.url}/file"]}),
        )
        api.on("/file", Reply({"id": 2}))
        asks = {"authenticator": {"type": "BearerAuthenticator", "api_token": TOKEN}}
        base = {"type": "HttpRequester", "url_base": api.url, **asks}
        result = _read(
            {
                "type": "DeclarativeStream",
                "name": "items",
                "retriever": {
                    "type": "AsyncRetriever",
                    "status_mapping": {
                        name: [name if name != "completed" else "ready"]
                        for name in ("running", "completed", "failed", "timeout")
                    },
                    "status_extractor": {"type": "DpathExtractor", "field_path": ["status"]},
                    "download_target_extractor": {"type": "DpathExtractor", "field_path": ["urls"]},
                    "creation_requester": {**base, "path": "/reports"},
                    "polling_requester": {**base, "path": "/reports/7"},
                    "download_requester": {**base, "url_base": "{{ download_target }}"},
                    "record_selector": {
                        "type": "RecordSelector",
                        "extractor": {"type": "DpathExtractor", "field_path": []},
                    },
                },
            }
        )

    assert result.failure is None
    assert len(result.records) == 2
    assert not _holds_secret(other.requests[0])
    assert _holds_secret(api.requests[-1])


def test_stream_url_from_the_api_receives_no_credentials() -> None:
    asks = {"authenticator": {"type": "BearerAuthenticator", "api_token": TOKEN}}
    template = _stream("http://unused.example", "bearer", "redirect")
    parts = {"name": "{{ components_values['name'] }}", "url": "{{ components_values['url'] }}"}
    with Api({"/items": Reply({"data": [{"id": 2}]})}) as other, Api() as api:
        api.on("/streams", Reply({"data": [{"name": "items", "url": other.url}]}))
        dynamic = {
            "type": "DynamicDeclarativeStream",
            "stream_template": template,
            "components_resolver": {
                "type": "HttpComponentsResolver",
                "retriever": retriever("/streams", asks={"url_base": api.url, **asks}),
                "components_mapping": [
                    {"type": "ComponentMappingDefinition", "field_path": path, "value": value}
                    for path, value in (
                        (["name"], parts["name"]),
                        (["retriever", "requester", "url_base"], parts["url"]),
                    )
                ],
            },
        }
        manifest = parse(to_mapped({"dynamic_streams": [dynamic]}), Path("manifest.yaml"))
        with http_client() as client:
            found = create_api(manifest, {"secret": SECRET}, Network(client))
            result = read(found.manifest.stream("items"), found, None)
            # A value from the API must not become a template either: it could send secrets.
            api.on("/streams", Reply({"data": [{"name": "x", "url": f"{other.url}/{TOKEN}/"}]}))
            with pytest.raises(SourceError, match="template"):
                create_api(manifest, {"secret": SECRET}, Network(client))

    assert [record["id"] for record in result.records] == [2]
    assert _holds_secret(api.requests[0])
    assert not _holds_secret(other.requests[0])


_IN_SLICE = "https://{{ stream_slice['r'] }}"


@pytest.mark.parametrize(
    ("base", "url", "own"),
    [
        ("https://{{ config['s'] }}.example.com/v1", "https://x.example.com/v1/a", "same"),
        ("https://{{ config['s'] }}.example.com/v1", "https://x.example.com:444/", "other"),
        ("https://{{ config['s'] }}.example.com/v1", "http://x.example.com/", "other"),
        (f"{_IN_SLICE}.example.com", "https://eu.example.com/", "same"),
        ("https://api-{{ stream_slice['r'] }}.example.com", "https://api-eu.example.com/", "same"),
        ("https://api-{{ stream_slice['r'] }}.example.com", "https://eu.example.com/", "other"),
        (f"{_IN_SLICE}.example.com", "https://evil.com/x.example.com", "other"),
        (f"{_IN_SLICE}.example.com", "https://a.b.example.com/", "other"),
        (f"{_IN_SLICE}.example.com", "https://evil.com/?.example.com", "other"),
        (f"{_IN_SLICE}.com", "https://evil.com/", "other"),
        (f"{_IN_SLICE}/", "https://evil.com/", "other"),
        ("https://a.example.com{{ stream_slice['r'] }}", "https://a.example.com.evil.com", "other"),
        ("https://a.example.com/{{ stream_partition['r'] }}", "https://a.example.com/1", "same"),
        ("{{ stream_slice['url'] }}", "https://evil.com/", "other"),
        ("{{ stream_slice.url or 'https://a.example.com' }}", "https://a.example.com", "same"),
        ("https://a.example.com", "https://a.example.com:443/x", "same"),
        ("https://a.example.com", "https://a.example.com@evil.com/", "other"),
        ("https://a.example.com", "https://A.EXAMPLE.com/", "same"),
    ],
)  # fmt: skip
def test_origin_of_a_requester_is_from_its_manifest(base: str, url: str, own: str) -> None:
    described = HttpRequester.model_validate({"type": "HttpRequester", "url_base": base})
    context = {"config": {"s": "x"}, "parameters": {}, "stream_slice": StreamSlice({"r": "eu"})}

    found = own_origins(described, context, url)

    assert (origin_of(url) in found) == (own == "same")


# --------------------------------------------------------------------------- refused servers


@contextmanager
def _resolving(monkeypatch: pytest.MonkeyPatch, **names: str) -> Iterator[None]:
    """Resolve these names, which the machine's resolver does not know."""
    resolve = socket.getaddrinfo

    def known(host: Any, *args: Any, **options: Any) -> Any:
        return resolve(names.get(str(host), host), *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", known)
        yield


_INTERNAL = [
    "169.254.169.254",
    "169.254.170.2",
    "[fe80::1]",
    "[::ffff:169.254.169.254]",
    "[64:ff9b::a9fe:a9fe]",
    "[2002:a9fe:a9fe::1]",
    "[fd00:ec2::254]",
    "100.100.100.200",
    "168.63.129.16",
    "metadata.google.internal",
    "metadata.google.internal.",
    "2852039166",
    "0xa9fea9fe",
    "0251.0376.0251.0376",
]


@pytest.mark.differs("where requests go")
@pytest.mark.parametrize("host", _INTERNAL)
def test_link_local_and_metadata_addresses_are_refused(host: str) -> None:
    began = time.monotonic()
    with (
        http_client() as client,
        pytest.raises(ChronolakeError, match=r"metadata|is not valid|Invalid URL"),
    ):
        Sender(Network(client), {}).send(Request("GET", f"http://{host}/latest/meta-data"))
    with (
        Api({"/a": Reply(status=302, headers={"Location": f"http://{host}/"})}) as api,
        http_client() as client,
        pytest.raises(ChronolakeError, match=r"metadata|is not valid|Invalid URL"),
    ):
        Sender(Network(client, sleep=lambda _: None), {}).send(Request("GET", f"{api.url}/a"))
    assert time.monotonic() - began < 20


def test_names_that_resolve_to_such_addresses_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        _resolving(monkeypatch, **{"innocent.example": "169.254.169.254"}),
        http_client(["*.example"]) as client,
    ):
        sender = Sender(Network(client, allowed_hosts=["*.example"]), {})
        with pytest.raises(SourceError, match=r"innocent\.example.*metadata"):
            sender.send(Request("GET", "http://innocent.example/"))


@pytest.mark.parametrize("entry", ["innocent.example", "http://innocent.example"])
def test_literally_listed_hosts_are_not_refused(
    monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    connected = []

    def connect(address: Any, *_: Any, **__: Any) -> Any:
        connected.append(address[0])
        raise OSError("nobody there")

    monkeypatch.setattr(socket, "create_connection", connect)
    with (
        _resolving(monkeypatch, **{"innocent.example": "169.254.169.254"}),
        http_client([entry]) as client,
    ):
        handler = DefaultErrorHandler(type="DefaultErrorHandler", max_retries=0)
        sender = Sender(Network(client, allowed_hosts=[entry]), {}, error_handler=handler)
        with pytest.raises(SourceError, match="nobody there"):
            sender.send(Request("GET", "http://innocent.example/"))
    # The connection uses the address that was checked.
    assert connected == ["169.254.169.254"]


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "::1", "8.8.8.8", "fd12::1"])
def test_other_addresses_are_not_refused(address: str) -> None:
    assert not is_refused_name(address)


def test_https_requests_do_not_continue_with_http() -> None:
    with http_client() as client:
        origins = frozenset({Origin("https", "a.example", 443)})
        request = Request("GET", "http://a.example/", origins=origins)
        with pytest.raises(SourceError, match="from https"):
            Sender(Network(client), {}).send(request)
        network = Network(client, allowed_hosts=["a.example"])
        network.raise_if_downgraded("http://a.example/")
        with pytest.raises(SourceError, match="from https"):
            network.raise_if_downgraded("http://b.example/")


@pytest.mark.parametrize(
    ("entry", "is_good"),
    [
        ("api.example.com", True),
        ("*.example.com", True),
        ("https://api.example.com", True),
        ("http://127.0.0.1:8080", True),
        ("https://[::1]:8080", True),
        ("https://*.example.com", False),
        ("https://api.example.com/v1", False),
        ("https://user@api.example.com", False),
        ("ftp://api.example.com", False),
        ("api.example.com/v1", False),
    ],
)
def test_allowed_hosts_are_hosts_or_origins(entry: str, is_good: bool) -> None:
    described = {"type": "declarative", "manifest": "a.yaml", "allowed_hosts": [entry]}
    if is_good:
        assert DeclarativeSource.model_validate(described).allowed_hosts == [entry]
    else:
        with pytest.raises(ValidationError, match="is not a valid host"):
            DeclarativeSource.model_validate(described)


# --------------------------------------------------------------------------- deadlines


@contextmanager
def _dripping(head: bytes, drop: bytes) -> Iterator[str]:
    """Run a server that sends some bytes at once, and then a few each tenth of a second."""
    stopped = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(head)
                while not stopped.wait(0.1):
                    try:
                        connection.sendall(drop)
                    except OSError:
                        return

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}/items"
        finally:
            stopped.set()
            thread.join()


_BODY = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n"


@pytest.mark.parametrize(
    ("head", "drop"),
    [
        (b"HTTP/1.1 200 OK\r\nX-Long: ", b"x"),
        (_BODY + b"\r\n", b"x"),
        (_BODY + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"")[:10], b"\0\0\0\xff\xff"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
    ids=["head", "body", "compressed", "chunks", "interim answers"],
)
@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.differs("the duration of a response")
def test_response_that_arrives_too_slowly_ends_the_request(
    head: bytes, drop: bytes, *, in_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chronolake.source.declarative.http.transport._MAX_SECONDS", 0.5)
    timeout = httpx.Timeout(0.4)
    with _dripping(head, drop) as url, http_client() as client:
        began = time.monotonic()
        with pytest.raises(SourceError, match="was not complete within"):
            Sender(Network(client, response_timeout=0.5), {}, timeout=timeout).send(
                Request("GET", url), in_file=in_file
            )
        assert time.monotonic() - began < 10


def test_deadline_does_not_affect_the_next_request() -> None:
    with Api({"/a": Reply([1])}) as api, http_client() as client:
        sender = Sender(Network(client, response_timeout=5.0), {})
        for _ in range(2):
            assert sender.send(Request("GET", f"{api.url}/a")) is not None
