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
    from pathlib import Path
    from types import TracebackType

MESSAGE_LIMIT: Final = 128 * 1024 * 1024
_NOBODY: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_OPTIONS: Final = (
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

    def reachable(self, seconds: float) -> bool:
        """Whether somebody answers within this time; waits for a server that is still starting."""
        request = common.ConfigurationFormRequest()
        try:
            self._stub.ConfigurationForm(request, timeout=seconds, wait_for_ready=True)
        except grpc.RpcError as failure:
            return failure.code() not in _NOBODY
        return True

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
