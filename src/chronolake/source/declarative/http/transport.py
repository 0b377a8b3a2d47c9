"""HTTP transport: address checks, redirects, cookies, decompression and response size limits.

Bodies are decompressed chunk by chunk, so that no body can exceed its limit in memory.

Redirects are followed here and not by the httpx client: each hop must lead to an allowed host, and
credentials and cookies are sent only to the origin that they belong to.
"""

from __future__ import annotations

import tempfile
import threading
import time
import zlib
from contextlib import closing
from dataclasses import dataclass, field, replace
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, unquote_plus, urljoin, urlsplit

import httpx

from chronolake.errors import ConfigurationError, SourceError
from chronolake.masking import may_show_password
from chronolake.source.declarative.http.origins import (
    DeadlineError,
    Origin,
    deadline,
    guard,
    is_host_listed,
    is_origin_listed,
    origin_of,
    raise_if_refused,
    time_left,
)
from chronolake.source.declarative.http.request_builder import encode_url
from chronolake.source.declarative.http.response import MEMORY, Response

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from chronolake.source.declarative.http.request_builder import EncodedRequest


#: Value of the `Accept-Encoding` header, in order of preference.
ACCEPTED: Final = "gzip, deflate"
_CHUNK: Final = 1 << 20
#: Text is rarely compressed by a factor of 100. A higher ratio than this one is suspicious.
_RATIO: Final = 200
_SUSPICIOUS: Final = 64 << 20


class CodingError(Exception):
    """A body does not match its `Content-Encoding`, or ends too early."""


class UnknownCodingError(CodingError):
    """A body has a `Content-Encoding` that was not requested."""


class Decompressor:
    """Incremental decompression of one response body.

    Args:
        coding: the response's `Content-Encoding`, or None.
        limit: bytes after which decompression stops.

    Raises:
        UnknownCodingError: the encoding is not gzip, deflate or identity.
    """

    def __init__(self, coding: str | None, limit: int) -> None:
        name = (coding or "identity").strip().lower()
        if name not in {"identity", "", "gzip", "x-gzip", "deflate"}:
            raise UnknownCodingError(name)
        self._plain = name in {"identity", ""}
        self._gzip = name in {"gzip", "x-gzip"}
        self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16 if self._gzip else zlib.MAX_WBITS)
        self._limit = limit
        self._has_begun = False
        self.body = bytearray()

    @property
    def exceeds_limit(self) -> bool:
        """Return True if the body is larger than the limit."""
        return len(self.body) > self._limit

    def is_bomb(self, packed: int) -> bool:
        """Return whether the body is suspiciously large for the number of bytes received."""
        size = len(self.body)
        return not self._plain and size > _SUSPICIOUS and size > _RATIO * packed

    def feed(self, data: bytes) -> None:
        """Decompress one chunk; stop where the limit is exceeded.

        Raises:
            CodingError: the chunk is not compressed as announced.
        """
        if self._plain:
            self.body += data
            return
        if not (self._has_begun or self._gzip) and data and data[0] & 0x0F != zlib.DEFLATED:
            # "deflate" means the zlib format, which begins with its method; some servers omit the
            # header.
            self._stream = zlib.decompressobj(-zlib.MAX_WBITS)
        self._has_begun = self._has_begun or bool(data)
        try:
            while data and not self.exceeds_limit:
                self.body += self._stream.decompress(data, _CHUNK)
                data = self._stream.unconsumed_tail or self._next_member()
        except zlib.error as error:
            raise CodingError(str(error)) from error

    def drain(self) -> bytes:
        """Return the bytes decompressed so far, and forget them."""
        body, self.body = bytes(self.body), bytearray()
        return body

    def finish(self) -> bytes:
        """Return the whole body, or the part since the last call of `drain`.

        Raises:
            CodingError: the body ends too early.
        """
        if self._has_begun and not self._plain:
            self.body += self._stream.flush()
            if not self._stream.eof:
                raise CodingError("the compressed body ends too early")
        return bytes(self.body)

    def _next_member(self) -> bytes:
        """Return the bytes after a gzip member if they begin another member, or no bytes."""
        rest = self._stream.unused_data
        if not self._gzip or not rest.startswith(b"\x1f\x8b"):
            return b""
        self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
        return rest


_HIDDEN: Final = "****"
_BODY_LIMIT: Final = 512 << 20
#: Largest size, in bytes, of a response that is written to a file.
_FILE_LIMIT: Final = 256 << 30
_MAX_REDIRECTS: Final = 30
#: The longest wait for a server, in seconds: a day.
_MAX_SECONDS: Final = 86_400.0
_CHANGED_TO_GET: Final = frozenset({301, 302, 303})
_REDIRECTS: Final = _CHANGED_TO_GET | {307, 308}
#: The headers that are also sent to other origins.
_PUBLIC_HEADERS: Final = frozenset({"accept", "accept-language", "content-type", "user-agent"})
TIMEOUT: Final = httpx.Timeout(300, connect=30)
#: Default limit, in seconds, for receiving a whole response.
RESPONSE_TIMEOUT: Final = 900.0


@dataclass(frozen=True)
class Exchange:
    """One request that was sent, as it appears in a log.

    Attributes:
        url: the URL without secrets.
        status: status code of the response, or None without a response.
        attempt: number of the attempt, from 1.
        failure: the reason for a missing response.
    """

    method: str
    url: str
    status: int | None
    seconds: float
    attempt: int
    failure: str | None = None


class Cookies:
    """Cookies by origin; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_origin: dict[Origin | None, httpx.Cookies] = {}

    def for_url(self, url: str) -> httpx.Cookies:
        """Return the cookies that were set by servers of a URL's origin."""
        with self._lock:
            return self._by_origin.setdefault(origin_of(url), httpx.Cookies())


@dataclass(frozen=True)
class Network:
    """The settings and state that all requests of a source share.

    Attributes:
        client: an HTTP client that does not follow redirects; see `http_client`.
        allowed_hosts: hosts that requests may be sent to (`*.example.com` means all subdomains),
            and origins, which also receive the credentials; None allows all hosts.
        limit: largest size of a response in bytes, both compressed and decompressed.
        response_timeout: seconds that a whole response may take; a response that is written to a
            file may take a day.
        mask: replaces the configuration's secrets in a text.
        log: called with each request that was sent.
        cancelled: when set, ends waits and prevents further requests.
        sleep: waits for a number of seconds; None waits on `cancelled`.
        memory_limit: largest size in bytes of a response's parsed values.
        now: returns the time in seconds since 1970.
        cookies: the cookies that servers have set, by origin.
    """

    client: httpx.Client
    allowed_hosts: Collection[str] | None = None
    limit: int = _BODY_LIMIT
    mask: Callable[[str], str] = field(default=str, repr=False)
    log: Callable[[Exchange], None] | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)
    sleep: Callable[[float], None] | None = None
    now: Callable[[], float] = time.time
    response_timeout: float = RESPONSE_TIMEOUT
    memory_limit: int = MEMORY
    cookies: Cookies = field(default_factory=Cookies, repr=False)

    def wait(self, seconds: float) -> None:
        """Wait, at most until the read is cancelled.

        Raises:
            SourceError: the read is cancelled, or the wait would be longer than a day.
        """
        self.raise_if_cancelled()
        if seconds > _MAX_SECONDS:
            raise SourceError(
                f"The server requires a wait of {seconds:.0f} seconds before the next request.",
                hint="Try again later.",
            )
        if self.sleep is None:
            self.cancelled.wait(max(seconds, 0))
        else:
            self.sleep(max(seconds, 0))
        self.raise_if_cancelled()

    def raise_if_cancelled(self) -> None:
        """Raise if the read is cancelled.

        Raises:
            SourceError: the read is cancelled.
        """
        if self.cancelled.is_set():
            raise SourceError("The read was cancelled.")

    def trusts(self, origin: Origin) -> bool:
        """Return whether `allowed_hosts` lists an origin, which therefore receives credentials."""
        return is_origin_listed(self.allowed_hosts or (), origin)

    def raise_if_downgraded(self, url: str) -> None:
        """Raise if a request that began with https would continue with http.

        Raises:
            SourceError: the URL's scheme is http, and `allowed_hosts` does not list its host.
        """
        origin = origin_of(url)
        if origin is None or origin.scheme != "http":
            return
        if not is_host_listed(self.allowed_hosts or (), origin):
            raise SourceError(
                f"A response directs a request from https to {origin}, where it could be read and "
                "changed in transit.",
                hint="Make the manifest use https for these links, or add the host to the "
                "source's allowed_hosts.",
            )

    def contains_secret(self, url: str, secrets: Collection[str] = ()) -> bool:
        """Return whether a URL contains one of these secrets or a secret of the configuration."""
        return any(
            self.mask(text) != text or any(secret in text for secret in secrets)
            for text in (url, unquote(url), unquote_plus(url))
        )

    def redact_url(self, url: str, hidden: Collection[str] = ()) -> str:
        """Return a URL for messages, without secrets and the values of hidden parameters."""
        if may_show_password(url):
            return f"{url.partition('://')[0]}://{_HIDDEN}"
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        query = "&".join(
            f"{name}={_HIDDEN if name in hidden else self.mask(value)}"
            for name, value in parse_qsl(parts.query, keep_blank_values=True)
        )
        redacted = f"{parts.scheme}://{host}{self.mask(parts.path)}"
        return f"{redacted}?{query}" if query else redacted

    def redact_path(self, url: str) -> str:
        """Return a URL's path for messages, without secrets."""
        return self.mask(urlsplit(url).path or "/")


def http_client(allowed_hosts: Collection[str] | None = None) -> httpx.Client:
    """Return a client for a `Network`; the caller closes it.

    Args:
        allowed_hosts: the same value as the network's; the addresses that it lists are allowed.
    """
    client = httpx.Client(
        follow_redirects=False,
        timeout=TIMEOUT,
        limits=httpx.Limits(max_connections=100, max_keepalive_connections=20),
        headers={"User-Agent": "chronolake"},
        # httpx keeps cookies by domain; `Cookies` keeps them by origin.
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
    )
    return guard(client, allowed_hosts or ())


def send_once(
    network: Network,
    request: EncodedRequest,
    *,
    attempt: int = 1,
    hidden: Collection[str] = (),
    secrets: Collection[str] = (),
    timeout: httpx.Timeout = TIMEOUT,
    in_file: bool = False,
) -> Response:
    """Send a request once, and follow its redirects.

    Args:
        network: the shared settings and state.
        request: the request, with its credentials.
        attempt: number of the attempt, for the log.
        hidden: parameters whose values are masked in the log.
        secrets: the credentials' values; a redirect that would send one to another origin is
            refused.
        timeout: for connecting, and for reading or writing each chunk.
        in_file: whether to write the body of a successful response to a file, which the caller
            closes.

    Raises:
        httpx.RequestError: the response is missing or incomplete; a retry may succeed.
        ConfigurationError: the URL is invalid, or its host is not allowed.
        SourceError: a redirect leads to a host that is not allowed, or a response is too large or
            takes too long.
    """
    _check_url(network, request.url, ConfigurationError)
    for _ in range(_MAX_REDIRECTS + 1):
        network.raise_if_cancelled()
        response = _send_and_log(network, request, attempt, hidden, timeout, in_file=in_file)
        location = response.headers.get("Location")
        if response.status not in _REDIRECTS or not location:
            return response
        request = _follow_redirect(network, request, response.status, location, secrets)
    raise httpx.TooManyRedirects("too many redirects")


def _check_url(
    network: Network, url: str, error_type: type[ConfigurationError | SourceError]
) -> None:
    """Raise unless the URL is valid and its host is allowed."""
    # Messages contain neither the query, which may hold credentials, nor text that cannot be
    # parsed.
    try:
        parsed = httpx.URL(url)
        redacted = network.redact_url(url.partition("?")[0])
    except (httpx.InvalidURL, ValueError) as error:
        raise error_type(
            "The URL of a request is not valid.", hint="Use a URL that begins with https://."
        ) from error
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise error_type(
            f"{redacted!r} is not an http or https URL.",
            hint="Use a URL that begins with https://.",
        )
    origin = origin_of(url)
    allowed = network.allowed_hosts
    raise_if_refused(parsed.host, allowed or ())
    if allowed is not None and (origin is None or not is_host_listed(allowed, origin)):
        raise error_type(
            f"The source's allowed_hosts does not include the host {parsed.host!r}.",
            hint="If the data is there, add the host to allowed_hosts.",
        )


def _follow_redirect(
    network: Network, request: EncodedRequest, status: int, location: str, secrets: Collection[str]
) -> EncodedRequest:
    try:
        url = encode_url(urljoin(request.url, location))
    except ValueError as error:
        raise _invalid_redirect(network, request) from error
    _check_url(network, url, SourceError)
    redirected = replace(request, url=url)
    if status in _CHANGED_TO_GET:
        redirected = replace(
            redirected,
            method="GET",
            body=None,
            headers=_without_header(redirected.headers, "content-type"),
        )
    source, target = origin_of(request.url), origin_of(url)
    if source is not None and source.scheme == "https":
        network.raise_if_downgraded(url)
    if source == target:
        return redirected
    path = network.redact_path(request.url)
    subject = f"{request.method} {path} is redirected to another host, {target},"
    hint = f"If {target} belongs to the API, set it as the manifest's url_base."
    if redirected.body is not None:
        raise SourceError(f"{subject} which must not receive the request's body.", hint=hint)
    if network.contains_secret(url, secrets):
        raise SourceError(f"{subject} with credentials in its URL.", hint=hint)
    public = public_headers(redirected.headers, network.mask)
    return replace(redirected, headers=public, is_public=True)


def _invalid_redirect(network: Network, request: EncodedRequest) -> SourceError:
    return SourceError(
        f"{request.method} {network.redact_path(request.url)} is redirected to an invalid URL.",
        hint="Set the correct URL in the manifest.",
    )


def public_headers(headers: Mapping[str, Any], mask: Callable[[str], str]) -> dict[str, Any]:
    """Return the headers that may also be sent to other origins."""
    return {
        name: text
        for name, text in headers.items()
        if name.lower() in _PUBLIC_HEADERS and mask(str(text)) == str(text)
    }


def _send_and_log(
    network: Network,
    request: EncodedRequest,
    attempt: int,
    hidden: Collection[str],
    timeout: httpx.Timeout,
    *,
    in_file: bool,
) -> Response:
    started = time.monotonic()
    status, failure = None, None
    try:
        response = _send_within_deadline(network, request, timeout, in_file=in_file)
        status = response.status
    except httpx.RequestError as error:
        failure = network.mask(describe_failure(error))
        raise
    finally:
        if network.log is not None:
            network.log(
                Exchange(
                    method=request.method,
                    url=network.redact_url(request.url, hidden),
                    status=status,
                    seconds=time.monotonic() - started,
                    attempt=attempt,
                    failure=failure,
                )
            )
    return response


def describe_failure(error: httpx.RequestError) -> str:
    """Return a failure's text without any part of the request."""
    # A local protocol error quotes the header that caused it.
    if isinstance(error, httpx.LocalProtocolError) or not str(error):
        return type(error).__name__
    return f"{type(error).__name__}: {error}"


def _send_within_deadline(
    network: Network, request: EncodedRequest, timeout: httpx.Timeout, *, in_file: bool
) -> Response:
    headers = _without_header(request.headers, "accept-encoding") | {"Accept-Encoding": ACCEPTED}
    seconds = max(_MAX_SECONDS if in_file else network.response_timeout, timeout.read or 0)
    try:
        with deadline(seconds):
            return _send(network, request, headers, timeout, in_file=in_file)
    except httpx.InvalidURL as error:
        # The request's own URL is already checked; httpx also parses the redirect's target.
        raise _invalid_redirect(network, request) from error
    except DeadlineError as error:
        raise SourceError(
            f"The response to {request.method} {network.redact_path(request.url)} was not complete "
            f"within {seconds:.0f} seconds.",
            hint="Request smaller pages, or raise the source's response_timeout.",
        ) from error


def _send(
    network: Network,
    request: EncodedRequest,
    headers: Mapping[str, str],
    timeout: httpx.Timeout,
    *,
    in_file: bool,
) -> Response:
    sent = network.client.build_request(
        request.method,
        request.url,
        headers=[(name.encode("ascii"), _encode_header(text)) for name, text in headers.items()],
        content=request.body,
        timeout=timeout,
    )
    cookies = network.cookies.for_url(request.url)
    cookies.set_cookie_header(sent)
    with closing(network.client.send(sent, stream=True)) as received:
        cookies.extract_cookies(received)
        file = tempfile.TemporaryFile() if in_file and received.is_success else None  # noqa: SIM115
        try:
            body = _read_body(network, request, received, file)
        except BaseException:
            if file is not None:
                file.close()
            raise
        return Response(
            status=received.status_code,
            headers=received.headers,
            body=body,
            url=request.url,
            method=request.method,
            file=file,
            is_public=request.is_public,
            memory_limit=network.memory_limit,
        )


def _read_body(
    network: Network, request: EncodedRequest, received: httpx.Response, file: IO[bytes] | None
) -> bytes:
    """Return the body, or an empty body if it was written to the file."""
    subject = f"{request.method} {network.redact_path(request.url)}"
    limit = network.limit if file is None else _FILE_LIMIT
    size = 0
    try:
        decompressor = Decompressor(received.headers.get("Content-Encoding"), limit)
        for chunk in received.iter_raw():
            decompressor.feed(chunk)
            if file is not None:
                size += file.write(decompressor.drain())
            if decompressor.exceeds_limit or max(size, received.num_bytes_downloaded) > limit:
                raise SourceError(
                    f"The response to {subject} is larger than {limit} bytes.",
                    hint="Request smaller pages.",
                )
            if decompressor.is_bomb(received.num_bytes_downloaded):
                raise SourceError(
                    f"The response to {subject} is hundreds of times larger after decompression.",
                    hint="Check what the API returns, and request smaller pages.",
                )
            network.raise_if_cancelled()
            time_left(None)
        if file is None:
            return decompressor.finish()
        file.write(decompressor.finish())
        file.flush()
    except OSError as error:
        raise SourceError(
            f"A response cannot be written to a temporary file: {error.strerror}.",
            hint="Free space in the folder for temporary files, or set another folder in TMPDIR.",
        ) from error
    except UnknownCodingError as error:
        raise SourceError(
            f"The response to {subject} uses a compression that was not requested.",
            hint="Configure the server to send gzip, deflate or uncompressed responses.",
        ) from error
    except CodingError as error:
        raise httpx.DecodingError(str(error)) from error
    return b""


def _without_header(headers: Mapping[str, str], name: str) -> dict[str, str]:
    return {key: text for key, text in headers.items() if key.lower() != name}


def _encode_header(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()
