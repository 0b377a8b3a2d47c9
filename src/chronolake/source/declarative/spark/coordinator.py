"""What all that read an API at once share: the driver has it, and tasks ask for it.

An API's budget and the tokens that it gives are one for all who read it. Tasks of a cluster have no
memory in common, so the driver counts the calls and keeps the tokens, and they ask it. They tell
it of each slice that they have read, so that it counts at once, and not only when the task is over.
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

    from chronolake.source.declarative.http.api_session import Access
    from chronolake.source.declarative.http.request_builder import Injection
    from chronolake.source.declarative.http.token_pool import Report, Turn
    from chronolake.source.declarative.landing.file_writer import Read
    from chronolake.types import ColumnType

_SERVICE: Final = "chronolake.Coordinator"
_METHOD: Final = "Call"
_HEADER: Final = "chronolake-secret"
#: Records do not go this way: a message that is larger is from somebody else.
_MOST_BYTES: Final = 16 << 20
_OPTIONS: Final = (
    ("grpc.max_send_message_length", _MOST_BYTES),
    ("grpc.max_receive_message_length", _MOST_BYTES),
    # The driver is not reached through the proxy that the API may be reached by.
    ("grpc.enable_http_proxy", 0),
)
#: A token may take as long as the API's slowest answer.
_SECONDS: Final = 3600.0


@dataclass(frozen=True)
class Address:
    """Where a coordinator is.

    Attributes:
        target: its host and port.
        secret: who knows it may ask.
    """

    target: str
    secret: str


class Slices(Protocol):
    """The slices that tasks read, by their numbers; any number of threads may use it."""

    def left(self, numbers: Collection[int]) -> set[int]:
        """Those of which nothing has come yet."""

    def take(
        self, number: int, found: Read | ChronolakeError, types: dict[str, ColumnType]
    ) -> bool:
        """What came of a slice; False: another attempt of its task has told it already."""


class Coordinator:
    """Answers the tasks of one run over a stream, as long as the block lasts.

    Attributes:
        address: where tasks find it.
    """

    def __init__(
        self, host: str, access: Access, slices: Slices, *, callers: int, bound: str | None = None
    ) -> None:
        """Begin to listen.

        Args:
            host: the driver's name, as executors know it.
            access: has the budget and the tokens.
            slices: that are to be read.
            callers: how many ask at once.
            bound: the address to listen at, where it is another one.
        """
        self._methods: dict[str, Any] = {
            "taken": access.calls.taken,
            "told": access.calls.told,
            "injection": lambda identity: access.issued(identity).injection(),
            "refresh": lambda identity, spent: access.issued(identity).refresh(spent),
            "turn": lambda identity, *which: access.quotas(identity).turn(*which),
            "reported": lambda identity, *told: access.quotas(identity).reported(*told),
            "others": lambda identity, *which: access.quotas(identity).others(*which),
            "now": now_micros,
            "left": slices.left,
            "read": slices.take,
        }
        self._server = grpc.server(
            ThreadPoolExecutor(callers, thread_name_prefix="coordinator"),
            options=[*_OPTIONS, ("grpc.so_reuseport", 0)],
        )
        answer = grpc.unary_unary_rpc_method_handler(self._answer)
        handler = grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: answer})
        self._server.add_generic_rpc_handlers((handler,))
        port = self._server.add_insecure_port(f"{bound or host}:0")
        self.address = Address(f"{host}:{port}", secrets.token_urlsafe(32))

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(grace=None).wait()

    def _answer(self, asked: bytes, context: grpc.ServicerContext) -> bytes:
        reported = dict(context.invocation_metadata()).get(_HEADER, "")
        if not hmac.compare_digest(str(reported), self.address.secret):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "not a task of this run")
        method, arguments = pickle.loads(asked)  # noqa: S301 - only our own tasks know the secret
        try:
            return pickle.dumps((self._methods[method](*arguments), None))
        except ChronolakeError as failure:
            return pickle.dumps((None, failure))


class Driver:
    """The driver as a task sees it; any number of threads may use it."""

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

    def taken(self, policy: int, weight: int) -> float:
        """As `budget.Calls` has it."""
        return float(self._asked("taken", policy, weight))

    def told(self, policy: int, left: int | None, reset: float | None) -> None:
        """As `budget.Calls` has it."""
        if left is not None or reset is not None:
            self._asked("told", policy, left, reset)

    def injection(self, identity: str) -> Injection:
        """What proves who sends a request."""
        found: Injection = self._asked("injection", identity)
        return found

    def refresh(self, identity: str, spent: Injection) -> bool:
        """Gets others in place of credentials that were refused; False if there are no others."""
        return bool(self._asked("refresh", identity, spent))

    def turn(self, identity: str, quota: str, waited: int | None) -> Turn:
        """As `quotas.Quotas` has it, for an authenticator's tokens."""
        found: Turn = self._asked("turn", identity, quota, waited)
        return found

    def reported(self, identity: str, token: int, quota: str, report: Report) -> None:
        """As `quotas.Quotas` has it, for an authenticator's tokens."""
        self._asked("reported", identity, token, quota, report)

    def others(self, identity: str, token: int, quota: str) -> bool:
        """As `quotas.Quotas` has it, for an authenticator's tokens."""
        return bool(self._asked("others", identity, token, quota))

    def now(self) -> int:
        """The driver's time, in microseconds since 1970."""
        return int(self._asked("now"))

    def left(self, numbers: Collection[int]) -> set[int]:
        """As `Slices` has it."""
        found: set[int] = self._asked("left", list(numbers))
        return found

    def read(
        self, number: int, found: Read | ChronolakeError, types: dict[str, ColumnType]
    ) -> bool:
        """As `Slices.take` has it."""
        return bool(self._asked("read", number, found, types))

    def _asked(self, method: str, *arguments: Any) -> Any:
        """What the driver answers.

        Raises:
            ChronolakeError: what the driver raises.
            DriverLostError: it does not answer.
        """
        try:
            answer = self._call(
                pickle.dumps((method, arguments)),
                metadata=self._metadata,
                timeout=_SECONDS,
                wait_for_ready=False,
            )
        except grpc.RpcError as failure:
            raise DriverLostError(f"The driver does not answer: {failure.code().name}.") from None
        value, error = pickle.loads(answer)  # noqa: S301 - the driver's
        if error is not None:
            raise error
        return value


class DriverLostError(Exception):
    """The run that a task belongs to is over: nothing is to be told any more."""
