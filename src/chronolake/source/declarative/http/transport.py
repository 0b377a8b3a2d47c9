"""HTTP transport: decompression and limits of response size.

Bodies as servers compress them, undone piece by piece so that none grows beyond bounds.

The network as a source uses it: where requests may go, how much an answer may hold.

Redirects are followed here and not by the client: each hop has to go where the source may go, and
what proves who sends a request stays with the origin it is meant for. So do cookies.
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
    expect_allowed,
    guarded,
    is_host_listed,
    is_origin_listed,
    origin_of,
    time_left,
)
from chronolake.source.declarative.http.request_builder import as_sent
from chronolake.source.declarative.http.response import MEMORY, Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from chronolake.source.declarative.http.request_builder import Encoded


#: What requests say they understand, in this order.
ACCEPTED: Final = "gzip, deflate"
_PIECE: Final = 1 << 20
#: Texts are seldom a hundred times as large as what they are packed in; so many bytes may be.
_RATIO: Final = 200
_SUSPICIOUS: Final = 64 << 20


class CodingError(Exception):
    """A body is not what its `Content-Encoding` says, or ends too early."""


class UnknownCodingError(CodingError):
    """A body is compressed in a way nobody asked for."""


class Decompression:
    """One body on its way.

    Args:
        coding: the answer's `Content-Encoding`, or nothing.
        limit: bytes after which no more are made.

    Raises:
        UnknownCodingError: the coding is neither gzip nor deflate nor none.
    """

    def __init__(self, coding: str | None, limit: int) -> None:
        name = (coding or "identity").strip().lower()
        if name not in {"identity", "", "gzip", "x-gzip", "deflate"}:
            raise UnknownCodingError(name)
        self._plain = name in {"identity", ""}
        self._gzip = name in {"gzip", "x-gzip"}
        self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16 if self._gzip else zlib.MAX_WBITS)
        self._limit = limit
        self._begun = False
        self.body = bytearray()

    @property
    def exceeded(self) -> bool:
        """Whether the body is larger than the limit."""
        return len(self.body) > self._limit

    def is_bomb(self, packed: int) -> bool:
        """Return whether the body is suspiciously large for so many bytes that have come."""
        size = len(self.body)
        return not self._plain and size > _SUSPICIOUS and size > _RATIO * packed

    def take(self, data: bytes) -> None:
        """Undoes one piece; stops where the limit is exceeded.

        Raises:
            CodingError: the piece is not compressed as announced.
        """
        if self._plain:
            self.body += data
            return
        if not (self._begun or self._gzip) and data and data[0] & 0x0F != zlib.DEFLATED:
            # "deflate" is zlib's form, which begins with its method; some leave the head out.
            self._stream = zlib.decompressobj(-zlib.MAX_WBITS)
        self._begun = self._begun or bool(data)
        try:
            while data and not self.exceeded:
                self.body += self._stream.decompress(data, _PIECE)
                data = self._stream.unconsumed_tail or self._next_member()
        except zlib.error as error:
            raise CodingError(str(error)) from error

    def drained(self) -> bytes:
        """What there is of the body; it is not kept any longer."""
        body, self.body = bytes(self.body), bytearray()
        return body

    def end(self) -> bytes:
        """The whole body, or what has come of it since it was drained.

        Raises:
            CodingError: it ends too early.
        """
        if self._begun and not self._plain:
            self.body += self._stream.flush()
            if not self._stream.eof:
                raise CodingError("the compressed body ends too early")
        return bytes(self.body)

    def _next_member(self) -> bytes:
        """What follows a gzip member, if it is one, too."""
        rest = self._stream.unused_data
        if not self._gzip or not rest.startswith(b"\x1f\x8b"):
            return b""
        self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
        return rest


_HIDDEN: Final = "****"
_LIMIT: Final = 512 << 20
#: So many bytes of an answer go into a file, where one is asked for.
_FILE_LIMIT: Final = 256 << 30
_HOPS: Final = 30
#: Nobody waits longer for a server than a day.
_LONGEST: Final = 86_400.0
_TO_GET: Final = frozenset({301, 302, 303})
_REDIRECTS: Final = _TO_GET | {307, 308}
#: The headers that another origin gets to see, too.
_PUBLIC: Final = frozenset({"accept", "accept-language", "content-type", "user-agent"})
TIMEOUT: Final = httpx.Timeout(300, connect=30)
#: Seconds that a whole answer may take, where nothing else is set.
RESPONSE_TIMEOUT: Final = 900.0


@dataclass(frozen=True)
class Exchange:
    """One request that was made, as a log shows it.

    Attributes:
        url: without secrets.
        status: of the answer, or None if there was none.
        attempt: 1 for a request's first.
        failure: why there was no answer.
    """

    method: str
    url: str
    status: int | None
    seconds: float
    attempt: int
    failure: str | None = None


class Cookies:
    """The cookies of each origin; any number of threads may use them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[Origin | None, httpx.Cookies] = {}

    def of(self, url: str) -> httpx.Cookies:
        """Return the cookies that servers of a URL's origin have set, and no others."""
        with self._lock:
            return self._of.setdefault(origin_of(url), httpx.Cookies())


@dataclass(frozen=True)
class Network:
    """What all requests of a source share.

    Attributes:
        client: that does not follow redirects by itself; see `http_client`.
        allowed_hosts: names that requests may go to (`*.example.com` means all below it), and
            origins, which get the credentials as well; or None.
        limit: bytes an answer may have, compressed and not.
        longest: seconds that a whole answer may take; one that goes into a file may take a day.
        mask: hides the configuration's secrets in a text.
        log: is told each request that was made.
        cancelled: ends waits, and the next request is not made.
        sleep: waits; None waits for `cancelled`.
        memory: bytes that the values of an answer may take.
        now: the time in seconds since 1970.
        cookies: that servers have set, by origin.
    """

    client: httpx.Client
    allowed_hosts: Collection[str] | None = None
    limit: int = _LIMIT
    mask: Callable[[str], str] = field(default=str, repr=False)
    log: Callable[[Exchange], None] | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)
    sleep: Callable[[float], None] | None = None
    now: Callable[[], float] = time.time
    longest: float = RESPONSE_TIMEOUT
    memory: int = MEMORY
    cookies: Cookies = field(default_factory=Cookies, repr=False)

    def wait(self, seconds: float) -> None:
        """Waits, at most until the reading is cancelled.

        Raises:
            SourceError: it is cancelled, or the wait would take longer than a day.
        """
        self.go_on()
        if seconds > _LONGEST:
            raise SourceError(
                f"The server is to be asked again only in {seconds:.0f} seconds.",
                hint="Read again later.",
            )
        if self.sleep is None:
            self.cancelled.wait(max(seconds, 0))
        else:
            self.sleep(max(seconds, 0))
        self.go_on()

    def go_on(self) -> None:
        """Does nothing.

        Raises:
            SourceError: the reading is cancelled.
        """
        if self.cancelled.is_set():
            raise SourceError("The reading was cancelled.")

    def trusts(self, origin: Origin) -> bool:
        """Return whether `allowed_hosts` names an origin, which then gets credentials."""
        return is_origin_listed(self.allowed_hosts or (), origin)

    def expect_no_downgrade(self, url: str) -> None:
        """Refuse to go on over http with what was asked for over https.

        Raises:
            SourceError: the URL has http, and `allowed_hosts` does not list its host.
        """
        origin = origin_of(url)
        if origin is None or origin.scheme != "http":
            return
        if not is_host_listed(self.allowed_hosts or (), origin):
            raise SourceError(
                f"An answer sends a request from https to {origin}, where anybody on the way "
                "could read and change it.",
                hint="Have the manifest write https in its links, or list the host in the "
                "source's allowed_hosts.",
            )

    def holds_secret(self, url: str, secrets: Collection[str] = ()) -> bool:
        """Return whether a secret of the configuration, or one of these, is in a URL."""
        return any(
            self.mask(text) != text or any(secret in text for secret in secrets)
            for text in (url, unquote(url), unquote_plus(url))
        )

    def shown(self, url: str, hidden: Collection[str] = ()) -> str:
        """A URL for people: without secrets, and without the values of some parameters."""
        if may_show_password(url):
            return f"{url.partition('://')[0]}://{_HIDDEN}"
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        query = "&".join(
            f"{name}={_HIDDEN if name in hidden else self.mask(value)}"
            for name, value in parse_qsl(parts.query, keep_blank_values=True)
        )
        shown = f"{parts.scheme}://{host}{self.mask(parts.path)}"
        return f"{shown}?{query}" if query else shown

    def path(self, url: str) -> str:
        """A URL's path for people: without secrets."""
        return self.mask(urlsplit(url).path or "/")


def http_client(allowed_hosts: Collection[str] | None = None) -> httpx.Client:
    """A client for a `Network`; the caller closes it.

    Args:
        allowed_hosts: the same as the network's: addresses that it names are not refused.
    """
    client = httpx.Client(
        follow_redirects=False,
        timeout=TIMEOUT,
        limits=httpx.Limits(max_connections=100, max_keepalive_connections=20),
        headers={"User-Agent": "chronolake"},
        # It sorts cookies by domain: each origin's are kept by `Cookies`.
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
    )
    return guarded(client, allowed_hosts or ())


def exchanged(
    network: Network,
    request: Encoded,
    *,
    attempt: int = 1,
    hidden: Collection[str] = (),
    secrets: Collection[str] = (),
    timeout: httpx.Timeout = TIMEOUT,
    in_file: bool = False,
) -> Answer:
    """Makes a request, once, and follows where it is redirected to.

    Args:
        network: how and where to.
        request: with its credentials.
        attempt: for the log.
        hidden: parameters whose values are nobody's business.
        secrets: what is in the credentials; no redirect may lead it to another origin.
        timeout: for connecting, and for each piece that is read or written.
        in_file: the body of a good answer goes into a file, which the caller closes.

    Raises:
        httpx.RequestError: there was no answer, or not a whole one; the next attempt may get it.
        ConfigurationError: the URL is none, or goes where requests may not go.
        SourceError: a redirect goes where requests may not go, or an answer is too large or takes
            too long.
    """
    _check(network, request.url, ConfigurationError)
    for _ in range(_HOPS + 1):
        network.go_on()
        answer = _logged(network, request, attempt, hidden, timeout, in_file=in_file)
        location = answer.headers.get("Location")
        if answer.status not in _REDIRECTS or not location:
            return answer
        request = _redirected(network, request, answer.status, location, secrets)
    raise httpx.TooManyRedirects("too many redirects")


def _check(network: Network, url: str, refusal: type[ConfigurationError | SourceError]) -> None:
    """Raises unless requests may go to the URL."""
    # Neither the query, which may hold credentials, nor what no URL can be read from is shown.
    try:
        parsed = httpx.URL(url)
        shown = network.shown(url.partition("?")[0])
    except (httpx.InvalidURL, ValueError) as error:
        raise refusal(
            "The URL of a request is no URL.", hint="Give one that begins with https://."
        ) from error
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise refusal(
            f"{shown!r} is no URL of a web server.", hint="Give one that begins with https://."
        )
    origin = origin_of(url)
    allowed = network.allowed_hosts
    expect_allowed(parsed.host, allowed or ())
    if allowed is not None and (origin is None or not is_host_listed(allowed, origin)):
        raise refusal(
            f"Requests of this source may not go to the host {parsed.host!r}.",
            hint="Add the host to the allowed ones if that is where the data is.",
        )


def _redirected(
    network: Network, request: Encoded, status: int, location: str, secrets: Collection[str]
) -> Encoded:
    try:
        url = as_sent(urljoin(request.url, location))
    except ValueError as error:
        raise _to_no_url(network, request) from error
    _check(network, url, SourceError)
    followed = replace(request, url=url)
    if status in _TO_GET:
        followed = replace(
            followed, method="GET", body=None, headers=_without(followed.headers, "content-type")
        )
    here, there = origin_of(request.url), origin_of(url)
    if here is not None and here.scheme == "https":
        network.expect_no_downgrade(url)
    if here == there:
        return followed
    what = f"{request.method} {network.path(request.url)} is redirected to another host, {there},"
    hint = f"If {there} is the API's own, ask it directly: name it in the manifest's url_base."
    if followed.body is not None:
        raise SourceError(f"{what} which is not given the request's body.", hint=hint)
    if network.holds_secret(url, secrets):
        raise SourceError(f"{what} with credentials in its URL.", hint=hint)
    public = public_headers(followed.headers, network.mask)
    return replace(followed, headers=public, is_public=True)


def _to_no_url(network: Network, request: Encoded) -> SourceError:
    return SourceError(
        f"{request.method} {network.path(request.url)} is redirected to what is no URL.",
        hint="Ask the right URL directly.",
    )


def public_headers(headers: Mapping[str, Any], mask: Callable[[str], str]) -> dict[str, Any]:
    """Return the headers that another origin gets to see."""
    return {
        name: text
        for name, text in headers.items()
        if name.lower() in _PUBLIC and mask(str(text)) == str(text)
    }


def _logged(
    network: Network,
    request: Encoded,
    attempt: int,
    hidden: Collection[str],
    timeout: httpx.Timeout,
    *,
    in_file: bool,
) -> Answer:
    began = time.monotonic()
    status, failure = None, None
    try:
        answer = _answered(network, request, timeout, in_file=in_file)
        status = answer.status
    except httpx.RequestError as error:
        failure = network.mask(told(error))
        raise
    finally:
        if network.log is not None:
            network.log(
                Exchange(
                    method=request.method,
                    url=network.shown(request.url, hidden),
                    status=status,
                    seconds=time.monotonic() - began,
                    attempt=attempt,
                    failure=failure,
                )
            )
    return answer


def told(error: httpx.RequestError) -> str:
    """What a failure is, without what was sent."""
    # A protocol error of our side quotes the header it is about.
    if isinstance(error, httpx.LocalProtocolError) or not str(error):
        return type(error).__name__
    return f"{type(error).__name__}: {error}"


def _answered(
    network: Network, request: Encoded, timeout: httpx.Timeout, *, in_file: bool
) -> Answer:
    headers = _without(request.headers, "accept-encoding") | {"Accept-Encoding": ACCEPTED}
    longest = max(_LONGEST if in_file else network.longest, timeout.read or 0)
    try:
        with deadline(longest):
            return _streamed(network, request, headers, timeout, in_file=in_file)
    except httpx.InvalidURL as error:
        # The request's own URL has been checked: httpx reads where a redirect leads.
        raise _to_no_url(network, request) from error
    except DeadlineError as error:
        raise SourceError(
            f"The answer to {request.method} {network.path(request.url)} did not end within "
            f"{longest:.0f} seconds.",
            hint="Ask for smaller pages, or set the source's response_timeout.",
        ) from error


def _streamed(
    network: Network,
    request: Encoded,
    headers: Mapping[str, str],
    timeout: httpx.Timeout,
    *,
    in_file: bool,
) -> Answer:
    sent = network.client.build_request(
        request.method,
        request.url,
        headers=[(name.encode("ascii"), _field(text)) for name, text in headers.items()],
        content=request.body,
        timeout=timeout,
    )
    cookies = network.cookies.of(request.url)
    cookies.set_cookie_header(sent)
    with closing(network.client.send(sent, stream=True)) as response:
        cookies.extract_cookies(response)
        file = tempfile.TemporaryFile() if in_file and response.is_success else None  # noqa: SIM115
        try:
            body = _whole_body(network, request, response, file)
        except BaseException:
            if file is not None:
                file.close()
            raise
        return Answer(
            status=response.status_code,
            headers=response.headers,
            body=body,
            url=request.url,
            method=request.method,
            file=file,
            is_public=request.is_public,
            memory=network.memory,
        )


def _whole_body(
    network: Network, request: Encoded, response: httpx.Response, file: IO[bytes] | None
) -> bytes:
    """The body as far as it is not in the file."""
    limit = network.limit if file is None else _FILE_LIMIT
    size = 0
    try:
        unpacked = Decompression(response.headers.get("Content-Encoding"), limit)
        for piece in response.iter_raw():
            unpacked.take(piece)
            if file is not None:
                size += file.write(unpacked.drained())
            if unpacked.exceeded or max(size, response.num_bytes_downloaded) > limit:
                raise SourceError(
                    f"{request.method} {network.path(request.url)} is answered with more than "
                    f"{limit} bytes.",
                    hint="Ask for smaller pages.",
                )
            if unpacked.is_bomb(response.num_bytes_downloaded):
                raise SourceError(
                    f"{request.method} {network.path(request.url)} is answered with what is "
                    "hundreds of times as large once it is unpacked.",
                    hint="Look at what the API answers, and ask for smaller pages.",
                )
            network.go_on()
            time_left(None)
        if file is None:
            return unpacked.end()
        file.write(unpacked.end())
        file.flush()
    except OSError as error:
        raise SourceError(
            f"An answer cannot be kept in a file: {error.strerror}.",
            hint="Make room where temporary files are, or name another folder in TMPDIR.",
        ) from error
    except UnknownCodingError as error:
        raise SourceError(
            f"{request.method} {network.path(request.url)} is answered with a compression that was "
            "not asked for.",
            hint="Read from a server that sends gzip or nothing of the kind.",
        ) from error
    except CodingError as error:
        raise httpx.DecodingError(str(error)) from error
    return b""


def _without(headers: Mapping[str, str], name: str) -> dict[str, str]:
    return {key: text for key, text in headers.items() if key.lower() != name}


def _field(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()
