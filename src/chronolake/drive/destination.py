"""The destination under test, as a gRPC client sees it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import grpc

from chronolake.errors import ConfigurationError
from chronolake.protos import common_pb2 as common
from chronolake.protos.destination_sdk_pb2_grpc import DestinationConnectorStub

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

MESSAGE_LIMIT: Final = 128 * 1024 * 1024
#: The member of an answer to a call that the destination does not have.
UNIMPLEMENTED: Final = grpc.StatusCode.UNIMPLEMENTED.name
_TRY_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.2
_SHOWN_SECONDS: Final = 5.0
#: Reasons that do not pass when a server has started, as OpenSSL names them.
_FINAL: Final = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER")
_OPTIONS: Final = (
    # A server that is starting is to be found as soon as it listens.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_send_message_length", MESSAGE_LIMIT),
    ("grpc.max_receive_message_length", MESSAGE_LIMIT),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back from one call.

    Attributes:
        rpc: the call.
        message: the response, or None if the call failed.
        member: which member of the response's oneof is set; "unset" if none is, "" where the
            response has no oneof, the gRPC status' name if the call failed.
        text: the text of a warning, a task, a failure or a gRPC status.
        seconds: how long it took.
    """

    rpc: str
    message: Any
    member: str
    text: str
    seconds: float

    @property
    def refused(self) -> bool:
        """Whether it ends a sync: a task, or an error of gRPC itself."""
        return self.message is None or self.member == "task"


def _is_final(reason: str) -> bool:
    return any(word in reason for word in _FINAL)


def _to_check(reason: str) -> str:
    """Return what to check, by what the system said."""
    if "Connection refused" in reason:
        return "Check that the destination is running and listens on this port."
    if "DNS" in reason or "resolve" in reason:
        return "Check the host name in --target."
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return "Name the authority that signed the server's certificate with --ca-cert."
    if "WRONG_VERSION_NUMBER" in reason:
        return "The server does not speak TLS: leave out --tls and --ca-cert."
    return "Check --target, and --tls if the destination wants TLS."


class Destination:
    """A connection to a destination; a context manager."""

    def __init__(
        self,
        target: str,
        *,
        timeout: float,
        tls: bool = False,
        ca_certificate: Path | None = None,
    ) -> None:
        """Prepare the connection; the first call makes it.

        Args:
            target: `host:port`.
            timeout: seconds that one call may take.
            tls: whether to use TLS.
            ca_certificate: PEM file with the authorities to trust; implies `tls`. None trusts the
                ones that gRPC knows.

        Raises:
            ConfigurationError: the certificate cannot be read.
        """
        self._timeout = timeout
        if tls or ca_certificate is not None:
            try:
                roots = ca_certificate.read_bytes() if ca_certificate is not None else None
            except OSError as failure:
                raise ConfigurationError(
                    f"The certificate cannot be read: {failure.strerror}.", file=str(ca_certificate)
                ) from failure
            credentials = grpc.ssl_channel_credentials(root_certificates=roots)
            self._channel = grpc.secure_channel(target, credentials, options=_OPTIONS)
        else:
            self._channel = grpc.insecure_channel(target, options=_OPTIONS)
        self._stub = DestinationConnectorStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._channel.close()

    def reach(self, seconds: float, waiting: Callable[[float, str], None]) -> str | None:
        """Wait until the destination answers, also while it is still starting.

        Args:
            seconds: how long to wait.
            waiting: called every few seconds with the time since the first try, in seconds, and
                the reason why the last one failed.

        Returns:
            None if it answers, be it with an error; else why the last try failed, in a sentence
            that says what to check.
        """
        begin = time.monotonic()
        shown = begin
        while True:
            reason = self._try(min(_TRY_SECONDS, max(begin + seconds - time.monotonic(), 0.1)))
            now = time.monotonic()
            if reason is None:
                return None
            if _is_final(reason) or now - begin >= seconds:
                return f"{reason} (gave up after {now - begin:.0f} s). {_to_check(reason)}"
            if now - shown >= _SHOWN_SECONDS:
                waiting(now - begin, reason)
                shown = now
            time.sleep(min(_PAUSE_SECONDS, seconds))

    def _try(self, seconds: float) -> str | None:
        """Make one call; return why nobody answered, or None if somebody did."""
        try:
            self._stub.ConfigurationForm(common.ConfigurationFormRequest(), timeout=seconds)
        except grpc.RpcError as failure:
            if failure.code() is grpc.StatusCode.UNAVAILABLE:
                # gRPC puts what the system said last.
                return (failure.details() or "unavailable").rpartition("last error: ")[2]
            if failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return "no answer to ConfigurationForm"
        return None

    def call(self, rpc: str, request: Any) -> Answer:
        """Make one call; a gRPC error is an answer like any other."""
        begin = time.monotonic()
        try:
            message = getattr(self._stub, rpc)(request, timeout=self._timeout)
        except grpc.RpcError as failure:
            status, text = failure.code().name, failure.details() or ""
            return Answer(rpc, None, status, text, time.monotonic() - begin)
        seconds = time.monotonic() - begin
        if not message.DESCRIPTOR.oneofs_by_name:
            return Answer(rpc, message, "", "", seconds)
        member = message.WhichOneof("response") or "unset"
        body: Any = getattr(message, member) if member != "unset" else ""
        if member in {"warning", "task"}:
            text = body.message
        elif member == "failure":
            text = body
        else:
            # `success: false` is legal on the wire and means nothing good.
            text = "false" if body is False else ""
        return Answer(rpc, message, member, text, seconds)
