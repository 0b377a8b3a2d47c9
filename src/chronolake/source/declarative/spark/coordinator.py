"""Coordinator: serves the state that all readers of an API share from the driver to tasks.

All readers of an API share its rate limit and its tokens. Tasks of a cluster have no common memory,
so the driver counts the calls and holds the tokens, and tasks request both from it. Tasks report
each slice when it has been read, so that the slice counts at once and not only when its task ends.
"""

from __future__ import annotations

import hmac
import pickle
import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import grpc

from chronolake.errors import ChronolakeError
from chronolake.types import now_micros

if TYPE_CHECKING:
    from collections.abc import Collection

    from chronolake.source.declarative.http.api_session import ApiSession
    from chronolake.source.declarative.http.request_builder import Injection
    from chronolake.source.declarative.http.token_pool import QuotaReport, TokenGrant
    from chronolake.source.declarative.slice_files import SliceResult
    from chronolake.types import ColumnType

_SERVICE: Final = "chronolake.Coordinator"
_METHOD: Final = "Call"
_HEADER: Final = "chronolake-secret"
#: Records are not sent this way; a larger message is not from one of our tasks.
_MAX_BYTES: Final = 16 << 20
_OPTIONS: Final = (
    ("grpc.max_send_message_length", _MAX_BYTES),
    ("grpc.max_receive_message_length", _MAX_BYTES),
    # Connections to the driver must not use the proxy that is configured for the API.
    ("grpc.enable_http_proxy", 0),
)
#: Fetching a token may take as long as the API's slowest response.
_TIMEOUT_SECONDS: Final = 3600.0


@dataclass(frozen=True)
class Address:
    """The address of a coordinator.

    Attributes:
        target: host and port.
        secret: authenticates callers.
    """

    target: str
    secret: str


class Slices(Protocol):
    """The slices that tasks read, by number; thread-safe."""

    def unfinished(self, numbers: Collection[int]) -> set[int]:
        """Return the numbers of the slices that have no result yet."""

    def record_result(
        self, number: int, result: SliceResult | ChronolakeError, types: dict[str, ColumnType]
    ) -> bool:
        """Record a slice's result; return False if another attempt of its task already did."""


class Coordinator:
    """A server for the tasks of one run over a stream; it runs until the `with` block ends.

    Attributes:
        address: the address that tasks connect to.
    """

    def __init__(
        self,
        host: str,
        session: ApiSession,
        slices: Slices,
        *,
        callers: int,
        bind_address: str | None = None,
    ) -> None:
        """Bind a port.

        Args:
            host: the driver's host name, as executors resolve it.
            session: holds the budget and the tokens.
            slices: the slices to read.
            callers: number of concurrent callers.
            bind_address: the address to listen on, if it differs from `host`.
        """
        self._methods: dict[str, Any] = {
            "taken": session.calls.take_calls,
            "told": session.calls.update_calls,
            "injection": lambda identity: session.authenticator_of(identity).injection(),
            "refresh": lambda identity, rejected: session.authenticator_of(identity).refresh(
                rejected
            ),
            "turn": lambda identity, *which: session.quotas(identity).take_token(*which),
            "reported": lambda identity, *report: session.quotas(identity).apply_report(*report),
            "others": lambda identity, *which: session.quotas(identity).has_alternative(*which),
            "now": now_micros,
            "left": slices.unfinished,
            "read": slices.record_result,
        }
        self._server = grpc.server(
            ThreadPoolExecutor(callers, thread_name_prefix="coordinator"),
            options=[*_OPTIONS, ("grpc.so_reuseport", 0)],
        )
        method_handler = grpc.unary_unary_rpc_method_handler(self._handle_call)
        handler = grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: method_handler})
        self._server.add_generic_rpc_handlers((handler,))
        port = self._server.add_insecure_port(f"{bind_address or host}:0")
        self.address = Address(f"{host}:{port}", secrets.token_urlsafe(32))

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(grace=None).wait()

    def _handle_call(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        secret = dict(context.invocation_metadata()).get(_HEADER, "")
        if not hmac.compare_digest(str(secret), self.address.secret):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "not a task of this run")
        method, arguments = pickle.loads(request)  # noqa: S301 - only our own tasks know the secret
        try:
            return pickle.dumps((self._methods[method](*arguments), None))
        except ChronolakeError as failure:
            return pickle.dumps((None, failure))


class Driver:
    """A task's connection to the driver; thread-safe."""

    def __init__(self, address: Address) -> None:
        """Connect to a coordinator."""
        self._channel = grpc.insecure_channel(address.target, options=list(_OPTIONS))
        self._call = self._channel.unary_unary(
            f"/{_SERVICE}/{_METHOD}", request_serializer=bytes, response_deserializer=bytes
        )
        self._metadata = ((_HEADER, address.secret),)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def take_calls(self, policy: int, weight: int) -> float:
        """Take calls from the driver's counts; see `rate_limit.Calls`."""
        return float(self._call_driver("taken", policy, weight))

    def update_calls(self, policy: int, remaining: int | None, reset: float | None) -> None:
        """Report remaining calls and the reset time to the driver; see `rate_limit.Calls`."""
        if remaining is not None or reset is not None:
            self._call_driver("told", policy, remaining, reset)

    def injection(self, identity: str) -> Injection:
        """Return the credentials for an authenticator's next request."""
        credentials: Injection = self._call_driver("injection", identity)
        return credentials

    def refresh(self, identity: str, rejected: Injection) -> bool:
        """Replace rejected credentials; return False if that is impossible."""
        return bool(self._call_driver("refresh", identity, rejected))

    def take_token(self, identity: str, quota: str, waited_for: int | None) -> TokenGrant:
        """Take a call from one of an authenticator's tokens; see `token_pool.Quotas`."""
        grant: TokenGrant = self._call_driver("turn", identity, quota, waited_for)
        return grant

    def apply_report(self, identity: str, token: int, quota: str, report: QuotaReport) -> None:
        """Report a token's quota to the driver; see `token_pool.Quotas`."""
        self._call_driver("reported", identity, token, quota, report)

    def has_alternative(self, identity: str, token: int, quota: str) -> bool:
        """Return whether a token is exhausted and another one is not; see `token_pool.Quotas`."""
        return bool(self._call_driver("others", identity, token, quota))

    def now(self) -> int:
        """Return the driver's time, in microseconds since 1970."""
        return int(self._call_driver("now"))

    def unfinished(self, numbers: Collection[int]) -> set[int]:
        """Return the numbers of the slices that have no result yet; see `Slices`."""
        numbers_left: set[int] = self._call_driver("left", list(numbers))
        return numbers_left

    def report_result(
        self, number: int, result: SliceResult | ChronolakeError, types: dict[str, ColumnType]
    ) -> bool:
        """Report a slice's result to the driver; see `Slices.record_result`."""
        return bool(self._call_driver("read", number, result, types))

    def _call_driver(self, method: str, *arguments: Any) -> Any:
        """Call a method of the coordinator and return its result.

        Raises:
            ChronolakeError: the driver raised it.
            DriverLostError: the driver does not respond.
        """
        try:
            response = self._call(
                pickle.dumps((method, arguments)),
                metadata=self._metadata,
                timeout=_TIMEOUT_SECONDS,
                wait_for_ready=False,
            )
        except grpc.RpcError as failure:
            raise DriverLostError(f"The driver does not respond: {failure.code().name}.") from None
        value, error = pickle.loads(response)  # noqa: S301 - from the driver
        if error is not None:
            raise error
        return value


class DriverLostError(Exception):
    """The driver does not respond: the run that the task belongs to is over."""
