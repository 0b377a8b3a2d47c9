"""Origins: servers that may receive credentials, hosts that are refused, and deadlines.

An origin is a scheme, a host and a port, as in browsers. Only the origins that the manifest and the
configuration name receive credentials. An API's responses choose the URL of the next page, of a
redirect or of a download, and must not choose who receives the credentials.

Connections to refused addresses are rejected, and every step has a deadline. A name's address is
checked when the connection is made, and the connection uses the checked address, so that the name
cannot resolve to another one in between.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import time
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import httpcore
import httpx

from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.templating.templates import as_text, variables_of

if TYPE_CHECKING:
    import ssl
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from httpcore._backends.base import SOCKET_OPTION

    from chronolake.source.declarative.models.requests import HttpRequester


Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_PORTS: Final = {"http": 80, "https": 443}
#: Placeholder for a part of a URL that a response may have chosen. No host contains it.
_UNKNOWN: Final = "\ue000"
_LABEL: Final = "[a-z0-9_-]+"
#: The number of domain parts that a manifest must name before a host in the domain is its own.
_MIN_PARTS: Final = 2
#: Addresses of metadata services that are not link-local.
_METADATA: Final = frozenset(
    map(
        ipaddress.ip_address,
        ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd00:ec2::23",
         "fd20:ce::254", "fd00:c1::a9fe:a9fe"),
    )
)  # fmt: skip
_METADATA_NAMES: Final = frozenset({"metadata", "metadata.google.internal", "metadata.goog"})
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_LOW_32: Final = 0xFFFFFFFF


class Origin(NamedTuple):
    """Scheme, host and port; two URLs have the same origin if all three are equal."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        is_default_port = _PORTS.get(self.scheme) == self.port
        return (
            f"{self.scheme}://{host}" if is_default_port else f"{self.scheme}://{host}:{self.port}"
        )


def origin_of(url: str) -> Origin | None:
    """Return the origin of a URL, or None if it is not a valid http or https URL."""
    # Parsed by the HTTP client's own parser: another parser could find another host.
    try:
        parts = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        return None
    if parts.scheme not in _PORTS or not parts.host:
        return None
    return Origin(parts.scheme, parts.host.lower(), parts.port or _PORTS[parts.scheme])


def is_host_listed(allowed: Collection[str], origin: Origin) -> bool:
    """Return whether `allowed_hosts` lists the origin, or its host by name or pattern."""
    return any(
        origin_of(entry) == origin
        if "://" in entry
        else fnmatchcase(origin.host.rstrip("."), entry.lower().rstrip("."))
        for entry in allowed
    )


def is_origin_listed(allowed: Collection[str], origin: Origin) -> bool:
    """Return whether `allowed_hosts` lists the origin itself, which then receives credentials."""
    return any("://" in entry and origin_of(entry) == origin for entry in allowed)


def is_listed_literally(allowed: Collection[str], host: str) -> bool:
    """Return whether `allowed_hosts` lists a host or address literally, not by a pattern."""
    name = host.lower().rstrip(".")
    for entry in allowed:
        origin = origin_of(entry) if "://" in entry else None
        if name == (entry.lower().rstrip(".") if origin is None else origin.host):
            return True
    return False


# --------------------------------------------------------------------------- refused addresses


def is_refused_name(host: str) -> bool:
    """Return whether a host is a metadata service's name, or an address that is refused."""
    if host.lower().rstrip(".") in _METADATA_NAMES:
        return True
    try:
        return is_refused_address(host)
    except ValueError:
        return False


def is_refused_address(text: str) -> bool:
    """Return whether an address is link-local or a metadata service's.

    IPv4 addresses that are embedded in IPv6 ones (mapped, 6to4, NAT64, Teredo) are checked, too.

    Raises:
        ValueError: the text is not an address.
    """
    return _is_refused(ipaddress.ip_address(text.partition("%")[0]))


def _is_refused(address: Address) -> bool:
    if address.is_link_local or address in _METADATA:
        return True
    return isinstance(address, ipaddress.IPv6Address) and any(
        map(_is_refused, _embedded_ipv4(address))
    )


def _embedded_ipv4(address: ipaddress.IPv6Address) -> list[Address]:
    candidates = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64 or int(address) <= _LOW_32:
        candidates.append(ipaddress.IPv4Address(int(address) & _LOW_32))
    return [candidate for candidate in candidates if candidate is not None]


# --------------------------------------------------------------------------- a requester's own


class _Unknown(str):
    """A value that a response may have chosen; whatever a template derives is unknown, too."""

    __slots__ = ()

    def __new__(cls) -> Self:
        return super().__new__(cls, _UNKNOWN)

    def __getattr__(self, name: str) -> _Unknown:
        if name.startswith("_"):
            raise AttributeError(name)
        return self

    def __getitem__(self, _: Any) -> _Unknown:
        return self

    def __call__(self, *_: Any, **__: Any) -> _Unknown:
        return self


def own_origins(
    requester: HttpRequester, context: Mapping[str, Any], url: str
) -> frozenset[Origin]:
    """Return the origins that a requester's credentials are meant for.

    They result from `url_base` (or `url`) and the configuration alone. If a part of the host has
    another source, as in `https://{{ stream_slice['region'] }}.example.com`, it is taken from the
    request's own URL, provided that the manifest names the domain around it.

    Args:
        requester: the component whose templates are evaluated.
        context: all variables of the request.
        url: the request's URL.
    """
    if requester.is_from_api:
        return frozenset()
    template = requester.url_base or requester.url or requester.path or ""
    known = {name: context[name] for name in ("config", "parameters") if name in context}
    others = context.keys() - known.keys()
    if variables_of(template) <= {"config", "parameters"}:
        origin = origin_of(_evaluate(template, known))
        return frozenset() if origin is None else frozenset({origin})
    unknown: tuple[Any, ...] = (_Unknown(), None, {})
    texts = [_evaluate(template, dict.fromkeys(others, value) | known) for value in unknown]
    origins = {_match_origin(text, url) for text in texts}
    return frozenset(origin for origin in origins if origin is not None)


def _evaluate(template: str, variables: Mapping[str, Any]) -> str:
    try:
        return as_text(template, variables)
    except ConfigurationError:
        return ""


def _match_origin(text: str, url: str) -> Origin | None:
    """Return a text's origin, with unknown parts taken from a URL, or None if they do not match."""
    if _UNKNOWN not in re.split(r"[/?#]", text.partition("://")[2], maxsplit=1)[0]:
        return None if text.startswith(_UNKNOWN) else origin_of(text)
    actual, pattern = origin_of(url), origin_of(text.replace(_UNKNOWN, "unknown-part"))
    host = text.partition("://")[2].partition("/")[0].partition(":")[0].lower()
    suffix = host.rpartition(_UNKNOWN)[2]
    # The text after the unknown part must be a whole domain, such as ".example.com".
    parts = suffix.split(".")
    if actual is None or pattern is None or parts[0] or len(parts) <= _MIN_PARTS:
        return None
    host_pattern = _LABEL.join(map(re.escape, host.split(_UNKNOWN)))
    is_same = (actual.scheme, actual.port) == (pattern.scheme, pattern.port)
    return actual if is_same and re.fullmatch(host_pattern, actual.host) else None


_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)
_NO_TIMEOUT: Final = None


class DeadlineError(Exception):
    """A response did not end before its deadline."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Set a deadline for all network operations of this thread within the block.

    Raises:
        DeadlineError: in the block, when an operation is still running after `seconds`.
    """
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def time_left(timeout: float | None) -> float | None:
    """Return the seconds that a step may take: its timeout, or the time until the deadline.

    Raises:
        DeadlineError: the deadline has passed.
    """
    end = _deadline.get()
    if end is None:
        return timeout
    remaining = end - time.monotonic()
    if remaining <= 0:
        raise DeadlineError
    return remaining if timeout is None else min(timeout, remaining)


def guard(client: httpx.Client, allowed: Collection[str]) -> httpx.Client:
    """Return the client with connections that follow the rules of this module.

    Args:
        client: it has sent no request yet.
        allowed: `allowed_hosts`; hosts that it lists literally are not refused.
    """
    # httpx does not accept a network backend, and passing a transport would turn off proxies.
    transports = [(client._transport, False)]  # noqa: SLF001
    transports += [(mount, True) for mount in client._mounts.values() if mount is not None]  # noqa: SLF001
    for transport, is_proxy in transports:
        pool = transport._pool  # type: ignore[attr-defined]  # noqa: SLF001
        inner = pool._network_backend  # noqa: SLF001
        pool._network_backend = _Backend(inner, None if is_proxy else allowed)  # noqa: SLF001
    return client


class _Backend(httpcore.NetworkBackend):
    """A network backend that checks addresses before it connects.

    Args:
        inner: makes the connections.
        allowed: hosts and addresses that are not refused. None: no checks, because connections go
            to a proxy, which is named by the environment and resolves names itself.
    """

    def __init__(self, inner: httpcore.NetworkBackend, allowed: Collection[str] | None) -> None:
        self._inner = inner
        self._allowed = allowed

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = _NO_TIMEOUT,
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        problem: Exception | None = None
        for address in self._addresses(host, port):
            try:
                stream = self._inner.connect_tcp(
                    address, port, time_left(timeout), local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as failure:
                time_left(timeout)
                problem = failure
            else:
                return _Stream(stream)
        raise problem or httpcore.ConnectError("the host name has no address")

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)

    def _addresses(self, host: str, port: int) -> list[str]:
        if self._allowed is None:
            return [host]
        try:
            results = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as failure:
            raise httpcore.ConnectError(str(failure)) from failure
        addresses = list(dict.fromkeys(str(result[4][0]) for result in results))
        for address in addresses:
            if is_refused_address(address) and not (
                is_listed_literally(self._allowed, host)
                or is_listed_literally(self._allowed, address)
            ):
                raise refused_host_error(host)
        return addresses


class _Stream(httpcore.NetworkStream):
    """A connection whose steps all end by the deadline."""

    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = _NO_TIMEOUT) -> bytes:
        try:
            return self._inner.read(max_bytes, time_left(timeout))
        except httpcore.ReadTimeout:
            time_left(timeout)
            raise

    def write(self, buffer: bytes, timeout: float | None = _NO_TIMEOUT) -> None:
        try:
            self._inner.write(buffer, time_left(timeout))
        except httpcore.WriteTimeout:
            time_left(timeout)
            raise

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = _NO_TIMEOUT,
    ) -> httpcore.NetworkStream:
        try:
            return _Stream(self._inner.start_tls(ssl_context, server_hostname, time_left(timeout)))
        except httpcore.ConnectTimeout:
            time_left(timeout)
            raise

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def refused_host_error(host: str) -> SourceError:
    """Return the error for a host that is link-local or a metadata service."""
    return SourceError(
        f"Requests to {host!r} are refused, because it is a link-local address or a cloud metadata "
        "service.",
        hint="If the data is there, add the host to the source's allowed_hosts.",
    )


def raise_if_refused(host: str, allowed: Collection[str]) -> None:
    """Raise if a host's name is link-local or a metadata service.

    Raises:
        SourceError: it is, and `allowed_hosts` does not list it literally.
    """
    if is_refused_name(host) and not is_listed_literally(allowed, host):
        raise refused_host_error(host)
