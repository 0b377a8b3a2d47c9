"""The network as a source uses it: where requests may go, how much an answer may hold.

Redirects are followed here and not by the client: each hop has to go where the source may go, and
what proves who sends a request stays with the host it is meant for.
"""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import IO, TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urljoin, urlsplit

import httpx

from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.exchange.answers import Answer
from chronolake.source.declarative.exchange.contentcoding import (
    ACCEPTED,
    CodingError,
    Decompression,
    UnknownCodingError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from chronolake.source.declarative.exchange.requesting import Encoded

_HIDDEN: Final = "****"
_LIMIT: Final = 512 << 20
#: So many bytes of an answer go into a file, where one is asked for.
_FILE_LIMIT: Final = 256 << 30
_HOPS: Final = 30
#: Nobody waits longer for a server than a day.
_LONGEST: Final = 86_400.0
_TO_GET: Final = frozenset({301, 302, 303})
_REDIRECTS: Final = _TO_GET | {307, 308}
#: The headers that another host gets to see, too.
_PUBLIC: Final = frozenset({"accept", "accept-language", "content-type", "user-agent"})
TIMEOUT: Final = httpx.Timeout(300, connect=30)


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


@dataclass(frozen=True)
class Network:
    """What all requests of a source share.

    Attributes:
        client: that does not follow redirects by itself; see `http_client`.
        allowed_hosts: names that requests may go to (`*.example.com` means all below it), or None.
        limit: bytes an answer may have, compressed and not.
        mask: hides the configuration's secrets in a text.
        log: is told each request that was made.
        cancelled: ends waits, and the next request is not made.
        sleep: waits; None waits for `cancelled`.
        now: the time in seconds since 1970.
    """

    client: httpx.Client
    allowed_hosts: Collection[str] | None = None
    limit: int = _LIMIT
    mask: Callable[[str], str] = field(default=str, repr=False)
    log: Callable[[Exchange], None] | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)
    sleep: Callable[[float], None] | None = None
    now: Callable[[], float] = time.time

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

    def shown(self, url: str, hidden: Collection[str] = ()) -> str:
        """A URL for people: without secrets, and without the values of some parameters."""
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


def http_client() -> httpx.Client:
    """A client for a `Network`; the caller closes it."""
    return httpx.Client(
        follow_redirects=False,
        timeout=TIMEOUT,
        limits=httpx.Limits(max_connections=100, max_keepalive_connections=20),
        headers={"User-Agent": "chronolake"},
    )


def exchanged(
    network: Network,
    request: Encoded,
    *,
    attempt: int = 1,
    hidden: Collection[str] = (),
    timeout: httpx.Timeout = TIMEOUT,
    in_file: bool = False,
) -> Answer:
    """Makes a request, once, and follows where it is redirected to.

    Args:
        network: how and where to.
        request: with its credentials.
        attempt: for the log.
        hidden: parameters whose values are nobody's business.
        timeout: for connecting, and for each piece that is read or written.
        in_file: the body of a good answer goes into a file, which the caller closes.

    Raises:
        httpx.RequestError: there was no answer, or not a whole one; the next attempt may get it.
        ConfigurationError: the URL is none, or goes where requests may not go.
        SourceError: a redirect goes where requests may not go, or an answer is too large.
    """
    _check(network, request.url, ConfigurationError)
    for _ in range(_HOPS + 1):
        network.go_on()
        answer = _logged(network, request, attempt, hidden, timeout, in_file=in_file)
        location = answer.headers.get("Location")
        if answer.status not in _REDIRECTS or not location:
            return answer
        request = _redirected(network, request, answer.status, location)
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
    allowed = network.allowed_hosts
    if allowed is not None and not any(
        fnmatchcase(parsed.host, pattern.lower()) for pattern in allowed
    ):
        raise refusal(
            f"Requests of this source may not go to the host {parsed.host!r}.",
            hint="Add the host to the allowed ones if that is where the data is.",
        )


def _redirected(network: Network, request: Encoded, status: int, location: str) -> Encoded:
    try:
        url = urljoin(request.url, location)
    except ValueError as error:
        raise SourceError(
            f"{request.method} {network.path(request.url)} is redirected to what is no URL.",
            hint="Ask the right URL directly.",
        ) from error
    _check(network, url, SourceError)
    followed = replace(request, url=url)
    if status in _TO_GET:
        followed = replace(
            followed, method="GET", body=None, headers=_without(followed.headers, "content-type")
        )
    if _stays(httpx.URL(request.url), httpx.URL(url)):
        return followed
    if followed.body is not None:
        raise SourceError(
            f"{request.method} {network.path(request.url)} is redirected to another host, which is "
            "not given the request's body.",
            hint="Ask that host directly if its answer is wanted.",
        )
    public = {name: text for name, text in followed.headers.items() if name.lower() in _PUBLIC}
    return replace(followed, headers=public)


def _stays(here: httpx.URL, there: httpx.URL) -> bool:
    """Whether a redirect stays with its host; http may become https there."""
    if here.host != there.host:
        return False
    ports = {"http": 80, "https": 443}
    ours, theirs = here.port or ports[here.scheme], there.port or ports[there.scheme]
    if here.scheme == there.scheme:
        return ours == theirs
    return (here.scheme, ours, theirs) == ("http", ports["http"], ports["https"])


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
    with network.client.stream(
        request.method,
        request.url,
        headers=[(name.encode("ascii"), _field(text)) for name, text in headers.items()],
        content=request.body,
        timeout=timeout,
    ) as response:
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
            network.go_on()
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
