"""Connections to servers: none to addresses that are refused, and none that takes for ever.

What a name resolves to is looked at where the connection is made, and the connection goes to the
address that was looked at: a name cannot resolve to another one in between.
"""

from __future__ import annotations

import socket
import time
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import httpcore

from chronolake.errors import SourceError
from chronolake.source.declarative.exchange.origins import (
    is_named,
    is_refused_address,
    is_refused_name,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Collection, Iterable, Iterator

    import httpx
    from httpcore._backends.base import SOCKET_OPTION

_ends: ContextVar[float | None] = ContextVar("ends", default=None)
_NO_TIMEOUT: Final = None


class DeadlineError(Exception):
    """An answer took longer than it may take as a whole."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Let everything that this thread does with connections within the block end in time.

    Raises:
        DeadlineError: in the block, where something is still going on after so many seconds.
    """
    token = _ends.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _ends.reset(token)


def time_left(timeout: float | None) -> float | None:
    """Return the seconds that a step may take: its own timeout, or what the deadline leaves.

    Raises:
        DeadlineError: there is no time left.
    """
    ends = _ends.get()
    if ends is None:
        return timeout
    left = ends - time.monotonic()
    if left <= 0:
        raise DeadlineError
    return left if timeout is None else min(timeout, left)


def guarded(client: httpx.Client, allowed: Collection[str]) -> httpx.Client:
    """Return a client whose connections keep to the rules of this module.

    Args:
        client: it has made no request yet.
        allowed: `allowed_hosts`: what it names in full is not refused.
    """
    # httpx takes no network backend; giving it a transport would turn off proxies.
    transports = [(client._transport, False)]  # noqa: SLF001
    transports += [(one, True) for one in client._mounts.values() if one is not None]  # noqa: SLF001
    for transport, is_proxy in transports:
        pool = transport._pool  # type: ignore[attr-defined]  # noqa: SLF001
        inner = pool._network_backend  # noqa: SLF001
        pool._network_backend = _Backend(inner, None if is_proxy else allowed)  # noqa: SLF001
    return client


class _Backend(httpcore.NetworkBackend):
    """Makes connections.

    Args:
        inner: makes them.
        allowed: names and addresses that are not refused; None: nothing is, as they go to a proxy,
            which the environment names, and which resolves names itself.
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
        raise problem or httpcore.ConnectError("the name has no address")

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)

    def _addresses(self, host: str, port: int) -> list[str]:
        if self._allowed is None:
            return [host]
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as failure:
            raise httpcore.ConnectError(str(failure)) from failure
        addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
        for address in addresses:
            if is_refused_address(address) and not (
                is_named(self._allowed, host) or is_named(self._allowed, address)
            ):
                raise refused_host(host)
        return addresses


class _Stream(httpcore.NetworkStream):
    """A connection of which each step ends by the deadline."""

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


def refused_host(host: str) -> SourceError:
    """Return the error for a host that is link-local or a metadata service."""
    return SourceError(
        f"Requests may not go to {host!r}, which is a link-local address or a machine's metadata "
        "service.",
        hint="If that is where the data is, name it in the source's allowed_hosts.",
    )


def expect_allowed(host: str, allowed: Collection[str]) -> None:
    """Refuse a host that by its name is link-local or a metadata service.

    Raises:
        SourceError: it is, and `allowed_hosts` does not name it in full.
    """
    if is_refused_name(host) and not is_named(allowed, host):
        raise refused_host(host)
