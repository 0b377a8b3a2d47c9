"""Options and sockets of the gRPC server: addresses, TLS, message sizes, and standard services."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from chronolake.errors import ConfigurationError
from chronolake.protos import destination_sdk_pb2, destination_sdk_pb2_grpc

if TYPE_CHECKING:
    from pathlib import Path

    from chronolake.server.service import Destination


DEFAULT_PORT: Final = 50052
LOOPBACK: Final = ("127.0.0.1", "::1")
#: In both directions; the SDK guide's limit of 128 MB.
MESSAGE_BYTES: Final = 134_217_728


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of a destination.

    Attributes:
        port: TCP port; 0 for any free one.
        hosts: addresses to listen on. The default is loopback: IPv4 and, if available, IPv6.
        allow_plaintext: whether to listen on other addresses than loopback without TLS.
        files_root: the folder that must contain batch files; None to allow any.
        batch_format: the response of Capabilities, and the format of all batch files.
        tls_cert: file of the server's certificate chain, PEM.
        tls_key: file of its private key, PEM.
        tls_client_ca: file of the authorities whose client certificates are accepted, PEM; clients
            without one are rejected.
        metrics_port: port of the Prometheus metrics on the first host, or None; 0 for any free one.
        max_workers: maximum number of concurrent calls.
        grace: seconds that running calls have to finish when the server stops.
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
        """Raise if the options are invalid.

        Raises:
            ConfigurationError: a number is out of range, a certificate or key is missing, there is
                no host, or an address is open to other machines without TLS and without
                `allow_plaintext`.
        """
        _check_range("--port", self.port, 0, 65_535)
        _check_range("--metrics-port", self.metrics_port or 0, 0, 65_535)
        _check_range("--max-workers", self.max_workers, 1, 1_000)
        _check_range("--grace", self.grace, 0, 86_400)
        if not self.hosts:
            raise ConfigurationError("No address to listen on is configured.", hint="Set --host.")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigurationError(
                "TLS requires both a certificate and its private key.",
                hint="Set both --tls-cert and --tls-key.",
            )
        if self.tls_client_ca is not None and not self.tls:
            raise ConfigurationError(
                "Client certificates require TLS.",
                hint="Set --tls-cert and --tls-key, too.",
            )
        if not self.tls and not self.allow_plaintext:
            for host in self.hosts:
                if not is_loopback(host):
                    raise ConfigurationError(
                        f"{host} can be reached from other machines, and TLS is off: encryption "
                        "keys and configuration would be sent unencrypted.",
                        hint="Set --tls-cert and --tls-key, or --allow-plaintext if the network "
                        "between caller and server is private.",
                    )

    @property
    def tls(self) -> bool:
        """Return whether the server uses TLS."""
        return self.tls_cert is not None

    @property
    def is_open_to_others(self) -> bool:
        """Return whether other machines can reach the server."""
        return not all(is_loopback(host) for host in self.hosts)


def is_loopback(host: str) -> bool:
    """Return whether every address of a host is one of this machine's loopback addresses.

    Raises:
        ConfigurationError: the host does not have an address.
    """
    # A scope such as %eth0 is not part of an address.
    hosts = (str(address[0]).partition("%")[0] for _, address in resolve(host, None))
    return all(ipaddress.ip_address(text).is_loopback for text in hosts)


def resolve(host: str, port: int | None) -> list[tuple[int, Any]]:
    """Return the addresses of a host: their families, and the addresses in the form for `bind`.

    Raises:
        ConfigurationError: the host does not have an address.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            f"{host!r} is not a valid address, or its name cannot be resolved.",
            hint="Set --host to an address of this machine, such as 127.0.0.1.",
        ) from error
    return [(family, address) for family, *_, address in found]


def _check_range(flag: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigurationError(f"{flag} is {value}, but must be from {low} to {high}.")


_log = structlog.get_logger(__name__)

SERVICE: Final = destination_sdk_pb2.DESCRIPTOR.services_by_name["DestinationConnector"].full_name
_OPTIONS: Final = (
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    # Without this, a second server on the same port would silently receive half of the calls.
    ("grpc.so_reuseport", 0),
)
_MAX_PORT_ATTEMPTS: Final = 20
#: All addresses of the machine.
_WILDCARDS: Final = ("0.0.0.0", "::")  # noqa: S104 - users who choose them must allow it, too


class Health(health.HealthServicer):
    """The health service on its own thread, so that it responds while every worker is busy."""

    def __init__(self) -> None:
        super().__init__(experimental_non_blocking=True)
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="health")
        # gRPC runs a handler on the pool that is an attribute of its function. The functions of a
        # class are shared by every server of the process, so each server gets its own functions.
        own: Any = self
        own.Check = self._on_own_thread(super().Check)
        own.Watch = self._on_own_thread(super().Watch)
        own.Watch.experimental_non_blocking = True
        self.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)

    def _on_own_thread(self, method: Any) -> Any:
        def handler(*arguments: Any, **named: Any) -> Any:
            return method(*arguments, **named)

        handler.experimental_thread_pool = self._threads  # type: ignore[attr-defined]
        return handler

    def close(self) -> None:
        """Shut the thread down."""
        self._threads.shutdown(wait=False)


def create_server(destination: Destination, health_service: Health, *, workers: int) -> grpc.Server:
    """Return a server with the destination, health and reflection; it does not listen yet."""
    server = grpc.server(
        ThreadPoolExecutor(workers, thread_name_prefix="call"), options=list(_OPTIONS)
    )
    destination_sdk_pb2_grpc.add_DestinationConnectorServicer_to_server(destination, server)
    health_pb2_grpc.add_HealthServicer_to_server(health_service, server)
    reflection.enable_server_reflection(
        (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server
    )
    return server


def listen(server: grpc.Server, options: ServeOptions) -> int:
    """Bind every address of the options to one port.

    Returns:
        The port.

    Raises:
        ConfigurationError: an address cannot be bound, or the TLS files are invalid.
    """
    credentials = _credentials(options)
    hosts = options.hosts
    if hosts == LOOPBACK and not _has_ipv6_loopback():
        hosts = (LOOPBACK[0],)
        _log.info("no_ipv6_loopback")
    port = options.port or _free_port(hosts)
    if set(_WILDCARDS) <= set(hosts):
        # gRPC listens on both for either of them: a second one would find the port in use.
        hosts = tuple(host for host in hosts if host != _WILDCARDS[0])
    for host in hosts:
        address = _address(host, port)
        try:
            bound = (
                server.add_secure_port(address, credentials)
                if credentials
                else server.add_insecure_port(address)
            )
        except RuntimeError as error:
            raise _bind_error(address) from error
        if bound == 0:
            raise _bind_error(address)
    return port


def check_options(options: ServeOptions) -> None:
    """Check whether `listen` can succeed, without listening.

    Raises:
        ConfigurationError: as for `listen`.
    """
    _credentials(options)
    for host in options.hosts:
        if options.hosts != LOOPBACK or host != LOOPBACK[1]:
            # Port 0 is any free port, and shows whether the address belongs to this machine.
            _raise_if_unavailable(host, options.port)


def _raise_if_unavailable(host: str, port: int) -> None:
    family, to = resolve(host, port)[0]
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # As in gRPC: sockets of a server that has ended do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(to)
    except OSError as error:
        raise _bind_error(_address(host, port)) from error


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bind_error(address: str) -> ConfigurationError:
    return ConfigurationError(
        f"The server cannot listen on {address}.",
        hint="The port may be in use, or the address may not belong to this machine: choose others "
        "with --port and --host. With TLS, check the certificate and its key.",
    )


def _has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind((LOOPBACK[1], 0))
    except OSError:
        return False
    return True


def _free_port(hosts: tuple[str, ...]) -> int:
    """Return a port that is free on every host; gRPC would choose a different one for each."""
    for _ in range(_MAX_PORT_ATTEMPTS):
        port = 0
        probes: list[socket.socket] = []
        try:
            for host in hosts:
                family, to = resolve(host, port)[0]
                probe = socket.socket(family, socket.SOCK_STREAM)
                probes.append(probe)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(to)
                port = int(probe.getsockname()[1])
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
        return port
    raise ConfigurationError(f"No port is free on {' and '.join(hosts)}.")


def _credentials(options: ServeOptions) -> grpc.ServerCredentials | None:
    if options.tls_cert is None or options.tls_key is None:
        return None
    authorities = _read_pem(options.tls_client_ca) if options.tls_client_ca else None
    _raise_if_mismatched(options.tls_cert, options.tls_key)
    return grpc.ssl_server_credentials(
        [(_read_pem(options.tls_key), _read_pem(options.tls_cert))],
        root_certificates=authorities,
        require_client_auth=authorities is not None,
    )


def _raise_if_mismatched(certificate: Path, key: Path) -> None:
    try:
        # Without a password, an encrypted key would cause a prompt on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except OSError as error:
        raise ConfigurationError(
            f"The certificate {str(certificate)!r} and the key {str(key)!r} cannot be used "
            f"together: {error.strerror or type(error).__name__}.",
            hint="Use a certificate chain and its private key, both PEM, without a password.",
        ) from error


def _read_pem(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{str(path)!r} cannot be read: {error.strerror}.",
            hint="Set --tls-cert, --tls-key and --tls-client-ca to PEM files.",
        ) from error
