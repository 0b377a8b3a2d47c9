"""What `chronolake serve` can be told."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from chronolake.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_PORT: Final = 50052
LOOPBACK: Final = ("127.0.0.1", "::1")
#: Both directions; the guide's limit of 128 MB.
MESSAGE_BYTES: Final = 134_217_728


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How a destination listens and what it accepts.

    Attributes:
        port: TCP port; 0 takes any free one.
        hosts: addresses to listen on. The default is loopback, IPv4 and, where there is one, IPv6.
        allow_plaintext: listen on addresses other than loopback although there is no TLS.
        files_root: the folder that batch files must lie in, or None: anywhere.
        batch_format: what Capabilities answers, and what batch files are then taken to be.
        tls_cert: file of the server's certificate chain, PEM.
        tls_key: file of its private key, PEM.
        tls_client_ca: file of the authorities whose client certificates are accepted, PEM; clients
            without one are then refused.
        metrics_port: port of the Prometheus metrics on the first host, or None; 0 takes any.
        max_workers: calls that are worked on at once.
        grace: seconds that running calls have to finish when the server is told to stop.
    """

    port: int = DEFAULT_PORT
    hosts: tuple[str, ...] = LOOPBACK
    allow_plaintext: bool = False
    files_root: Path | None = None
    batch_format: Literal["csv", "parquet"] = "csv"
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    metrics_port: int | None = None
    max_workers: int = 8
    grace: float = 30.0

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            ConfigurationError: a number out of range, half of a TLS key pair, no host, or an open
                address without TLS and without `allow_plaintext`.
        """
        _in_range("--port", self.port, 0, 65_535)
        _in_range("--metrics-port", self.metrics_port or 0, 0, 65_535)
        _in_range("--max-workers", self.max_workers, 1, 1_000)
        _in_range("--grace", self.grace, 0, 86_400)
        if not self.hosts:
            raise ConfigurationError("There is no address to listen on.", hint="Give a --host.")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigurationError(
                "A certificate and its key belong together.",
                hint="Give both --tls-cert and --tls-key.",
            )
        if self.tls_client_ca is not None and not self.tls:
            raise ConfigurationError(
                "Client certificates can only be asked for over TLS.",
                hint="Give --tls-cert and --tls-key too.",
            )
        if not self.tls and not self.allow_plaintext:
            for host in self.hosts:
                if not is_loopback(host):
                    raise ConfigurationError(
                        f"{host} can be reached from other machines, and there is no TLS: "
                        "encryption keys and configuration would travel in the clear.",
                        hint="Give --tls-cert and --tls-key, or --allow-plaintext if the network "
                        "between caller and server is private.",
                    )

    @property
    def tls(self) -> bool:
        """Whether the server speaks TLS."""
        return self.tls_cert is not None

    @property
    def open_to_others(self) -> bool:
        """Whether another machine can reach the server."""
        return not all(is_loopback(host) for host in self.hosts)


def is_loopback(host: str) -> bool:
    """Whether every address that the host stands for is one of this machine's own.

    Raises:
        ConfigurationError: the host stands for no address.
    """
    # A scope such as %eth0 is not part of an address.
    hosts = (str(place[0]).partition("%")[0] for _, place in places_of(host, None))
    return all(ipaddress.ip_address(one).is_loopback for one in hosts)


def places_of(host: str, port: int | None) -> list[tuple[int, Any]]:
    """What a host stands for: the family of each address, and the address as `bind` wants it.

    Raises:
        ConfigurationError: the host stands for no address.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            f"{host!r} is no address, and not an address's name that is known here.",
            hint="Give --host an address of this machine, such as 127.0.0.1.",
        ) from error
    return [(family, place) for family, *_, place in found]


def _in_range(flag: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigurationError(f"{flag} is {value}, and must be {low} to {high}.")
