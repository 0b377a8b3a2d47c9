"""Execution and cancellation of calls, and their errors as tasks or gRPC statuses.

A task stops the sync and shows the customer what to change. A gRPC status stops it, too, but the
caller retries by itself: this is right for every failure that a customer cannot fix.
"""

from __future__ import annotations

import re
import threading
import time
import traceback
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeVar
from urllib.parse import quote
from uuid import uuid4

import grpc
import structlog
from py4j.protocol import Py4JError

from chronolake.cancellation import cancel_if, raise_if_cancelled
from chronolake.errors import (
    BatchError,
    BatchFileError,
    CallCancelledError,
    ChronolakeError,
    CommitUnknownError,
    ConfigurationError,
    LakeError,
    MissingRequirementError,
    OversizeError,
    RefusedPathError,
    SchemaError,
    StoppingError,
    TableExistsError,
    TableNotFoundError,
    ValueRefusedError,
)
from chronolake.iceberg import catalog_error
from chronolake.protos import common_pb2
from chronolake.server.write_batch import cancellable
from chronolake.session import is_java_running
from chronolake.storage import storage_error
from chronolake.types import TableName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from chronolake.lake import Lake
    from chronolake.server.metrics import Metrics


#: A status text is sent in an HTTP/2 header, percent-encoded. Callers reject headers of 8 to 10 KB
#: in total, and the call then fails without any text, so the text stays well below that.
STATUS_BYTES: Final = 6_000

_ACTIONABLE: Final = (
    ConfigurationError,
    MissingRequirementError,
    LakeError,
    TableNotFoundError,
    TableExistsError,
    SchemaError,
    BatchError,
)
_PACKAGE: Final = str(Path(__file__).parent.parent)
_URL_CREDENTIALS: Final = re.compile(r"(?<=://)[^/@\s]+@")


def is_actionable(error: ChronolakeError) -> bool:
    """Return whether a customer can fix the error, so that the response is a task.

    A batch file that cannot be read is written again when the caller retries. A value that does not
    fit its column, a row that is too long, or a forbidden folder do not change by themselves.
    """
    if isinstance(error, BatchFileError):
        return isinstance(error, ValueRefusedError | OversizeError | RefusedPathError)
    return isinstance(error, _ACTIONABLE)


def status_of(error: ChronolakeError) -> grpc.StatusCode:
    """Return the gRPC status of an error that is not a task; UNAVAILABLE if it is retryable."""
    return grpc.StatusCode.UNAVAILABLE if error.retryable else grpc.StatusCode.INTERNAL


def text_of(error: ChronolakeError) -> str:
    """Return the error's text without credentials in URLs."""
    return _URL_CREDENTIALS.sub("", str(error))


def status_text(text: str, limit: int = STATUS_BYTES) -> str:
    """Truncate a text between two characters to less than `limit` bytes as it is sent."""
    # Lone surrogates cannot be sent.
    text = text.encode(errors="replace").decode()
    used = 0
    for index, character in enumerate(text):
        used += len(_percent_encode(character))
        if used >= limit - len(_percent_encode("…")):
            return text[:index] + "…"
    return text


def _percent_encode(character: str) -> str:
    if " " <= character <= "~" and character != "%":
        return character
    return quote(character, safe="")


def describe_failure(failure: BaseException) -> dict[str, str]:
    """Return the loggable facts of an unexpected failure: types and code locations, never its text.

    The text of a Spark or Arrow failure may quote a cell value.

    Returns:
        `error`: the exception's type and Spark's error condition, `cause`: the types of its causes,
        `at`: the innermost frames in this package.
    """
    types = [_type_name(cause) for cause in _causes(failure)]
    frames = [
        f"{Path(frame.filename).relative_to(_PACKAGE)}:{frame.lineno}"
        for frame in traceback.extract_tb(failure.__traceback__)
        if frame.filename.startswith(_PACKAGE)
    ]
    facts = {"error": types[0], "cause": " < ".join(types[1:]), "at": " > ".join(frames[-6:])}
    return {name: text for name, text in facts.items() if text}


def _causes(failure: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = failure
    seen: set[int] = set()
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _type_name(failure: BaseException) -> str:
    name = type(failure).__name__
    condition = getattr(failure, "getCondition", None)
    try:
        reported = condition() if callable(condition) else None
    except Exception:  # noqa: BLE001 - querying the JVM about a failure may fail, too
        reported = None
    return f"{name}[{reported}]" if reported else name


#: Seconds between attempts to cancel the jobs of a cancelled call, until it has ended.
_CANCEL_SECONDS: Final = 0.5
#: Seconds that an unexpected failure waits for a possible end of the JVM.
_JAVA_SECONDS: Final = 0.5

_log = structlog.get_logger(__name__)


class _Response(Protocol):
    """A response message, of which exactly one member of `response` is set."""

    def WhichOneof(self, oneof_group: Any, /) -> Any: ...  # noqa: N802 - protobuf's name


_R = TypeVar("_R", bound=_Response)


@dataclass(eq=False)
class Call:
    """A running call.

    Attributes:
        batch: the call's identity, which its log lines contain.
        is_cancelled: returns whether the caller cancelled the call or disconnected, or the call's
            deadline has passed.
        table: the table of the call, once that is known.
    """

    batch: str
    is_cancelled: Callable[[], bool]
    table: TableName | None = None

    @property
    def place(self) -> dict[str, str]:
        """Return the batch and the table (if known), for errors and log lines."""
        named = {} if self.table is None else {"table": str(self.table)}
        return {**named, "batch": self.batch}


def rpc_method(
    as_task: Callable[[common_pb2.Task], _R],
) -> Callable[[Callable[[Any, Any, Call], _R]], Callable[[Any, Any, grpc.ServicerContext], _R]]:
    """Decorate a method of `Calls` that implements the RPC with the method's name.

    Args:
        as_task: returns the RPC's response for a failure that a customer can fix.

    Returns:
        A decorator from `(self, request, call) -> response` to gRPC's own signature. The method
        sets `call.table` as soon as it knows the table.
    """

    def decorate(
        work: Callable[[Any, Any, Call], _R],
    ) -> Callable[[Any, Any, grpc.ServicerContext], _R]:
        @wraps(work)
        def execute(calls: Calls, request: Any, context: grpc.ServicerContext) -> _R:
            return calls._execute(  # noqa: SLF001 - the decorator is a part of the class
                work.__name__, context, lambda call: work(calls, request, call), as_task
            )

        return execute

    return decorate


class Calls:
    """The running calls of a servicer.

    The response to a failure that a customer can fix is a task; any other failure ends in a gRPC
    status. Responses and logs never contain a key, a credential or a cell value.

    Args:
        lake: the lake of the tables.
        metrics: the counters of calls.
    """

    def __init__(self, lake: Lake, metrics: Metrics) -> None:
        self._lake = lake
        self._metrics = metrics
        self._state = threading.Condition()
        self._calls: set[Call] = set()
        self._unanswered: set[Call] = set()
        self._closed = False

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until every call has ended and gRPC has sent its response; False after `seconds`."""
        with self._state:
            return self._state.wait_for(lambda: not (self._calls or self._unanswered), seconds)

    def refuse(self) -> None:
        """Respond with UNAVAILABLE to every further call, and to each that fails from now on."""
        self._closed = True

    def cancel(self) -> tuple[Call, ...]:
        """Cancel the Spark jobs of every running call, and return those calls."""
        with self._state:
            running = tuple(self._calls)
        for call in running if is_java_running() else ():
            self._lake.spark.sparkContext.cancelJobsWithTag(call.batch)
        return running

    @contextmanager
    def _track(self, rpc: str, context: grpc.ServicerContext) -> Iterator[Call]:
        """Register a call as running, with an identity that its log lines contain."""
        # Random, and not derived from the request: a repeated identity would be treated as the same
        # attempt, and callers use file names more than once.
        call = Call(uuid4().hex[:16], lambda: not context.is_active())
        with self._state:
            self._calls.add(call)
            # A response is sent after its handler has returned; stopping gRPC then would discard
            # it.
            if context.add_callback(lambda: self._on_terminated(call)):
                self._unanswered.add(call)
        try:
            with (
                self._metrics.in_progress(rpc),
                structlog.contextvars.bound_contextvars(rpc=rpc, batch=call.batch),
            ):
                yield call
        finally:
            self._remove(self._calls, call)

    def _on_terminated(self, call: Call) -> None:
        """Record that gRPC has finished a call; cancel its jobs if its handler still runs."""
        self._remove(self._unanswered, call)
        with self._state:
            is_running = call in self._calls
        if is_running:
            # Not in this thread, which also serves every other call.
            name = f"cancel-{call.batch}"
            threading.Thread(target=self._cancel_jobs, args=(call,), name=name, daemon=True).start()

    def _cancel_jobs(self, call: Call) -> None:
        """Cancel the Spark jobs of a call until it has ended."""
        while is_java_running():
            with suppress(Py4JError):
                self._lake.spark.sparkContext.cancelJobsWithTag(call.batch)
            with self._state:
                # Spark cancels only the jobs that run at that time.
                if self._state.wait_for(lambda: call not in self._calls, _CANCEL_SECONDS):
                    return

    def _remove(self, calls: set[Call], call: Call) -> None:
        with self._state:
            calls.discard(call)
            self._state.notify_all()

    def _execute(
        self,
        rpc: str,
        context: grpc.ServicerContext,
        work: Callable[[Call], _R],
        as_task: Callable[[common_pb2.Task], _R],
    ) -> _R:
        """Run a call, and convert its errors to a response or a gRPC status."""
        with self._track(rpc, context) as call:
            if self._closed:
                return self._respond_with_error(rpc, context, call, _stopping_error(call), as_task)
            try:
                with cancellable(self._lake, call.batch), cancel_if(call.is_cancelled):
                    raise_if_cancelled()
                    response = work(call)
            except CallCancelledError as error:
                self._abort_cancelled(rpc, context, call, error)
            except ChronolakeError as error:
                # A task stays a task, and the outcome of a lost commit response stays unknown.
                error = storage_error(error) or error
                is_final = is_actionable(error) or isinstance(error, CommitUnknownError)
                if (self._closed or not is_java_running()) and not is_final:
                    error = _stopping_error(call)
                return self._respond_with_error(rpc, context, call, error, as_task)
            except Exception as failure:  # noqa: BLE001 - must not end the connection
                if call.is_cancelled():
                    # Spark raises an error of its own for a cancelled job.
                    self._abort_cancelled(rpc, context, call, failure)
                if self._closed or _is_java_ending():
                    return self._respond_with_error(
                        rpc, context, call, _stopping_error(call), as_task
                    )
                if stored := storage_error(failure) or catalog_error(failure):
                    return self._respond_with_error(rpc, context, call, stored, as_task)
                self._abort_unexpected(rpc, context, call, failure)
            self._metrics.count_response(rpc, str(response.WhichOneof("response")))
            return response

    def _respond_with_error(
        self,
        rpc: str,
        context: grpc.ServicerContext,
        call: Call,
        error: ChronolakeError,
        as_task: Callable[[common_pb2.Task], _R],
    ) -> _R:
        if error.table is None and call.table is not None:
            error.table = str(call.table)
        kind, text = type(error).__name__, text_of(error)
        place = {**call.place, **error.place}
        # Names of tables that do not exist must not become time series.
        self._metrics.count_failure(self._metrics_table(error), kind)
        if is_actionable(error):
            self._metrics.count_response(rpc, "task")
            _log.warning("task", error=kind, **place, reason=text)
            return as_task(common_pb2.Task(message=text))
        self._metrics.count_response(rpc, "error")
        _log.error("call_failed", error=kind, **place, reason=text)
        context.abort(status_of(error), status_text(text))
        raise AssertionError  # never reached: abort raises

    def _abort_cancelled(
        self, rpc: str, context: grpc.ServicerContext, call: Call, failure: Exception
    ) -> NoReturn:
        """End a call whose caller has disconnected."""
        self._metrics.count_response(rpc, "cancelled")
        _log.info("call_cancelled", **call.place, at=describe_failure(failure).get("at", ""))
        context.abort(
            grpc.StatusCode.CANCELLED, "The caller has disconnected; the table is unchanged."
        )
        raise AssertionError  # never reached: abort raises

    def _metrics_table(self, error: ChronolakeError) -> str:
        if error.table is None or isinstance(error, TableNotFoundError):
            return ""
        if isinstance(error, SchemaError):
            # The table may not exist, if the error prevented its creation.
            return self._name_if_existing(TableName.parse(error.table))
        return error.table

    def _abort_unexpected(
        self, rpc: str, context: grpc.ServicerContext, call: Call, failure: Exception
    ) -> NoReturn:
        incident = uuid4().hex[:12]
        facts = describe_failure(failure)
        self._metrics.count_response(rpc, "error")
        self._metrics.count_failure(self._name_if_existing(call.table), facts["error"])
        _log.error("call_failed", incident=incident, **call.place, **facts)
        where = ", ".join(f"{name} {value!r}" for name, value in call.place.items())
        context.abort(
            grpc.StatusCode.INTERNAL,
            status_text(
                f"Internal error {incident} ({facts['error']}; {where}). The server's log "
                "contains details. The call was applied completely or not at all."
            ),
        )

    def _name_if_existing(self, table: TableName | None) -> str:
        """Return the table's name for metrics; empty if the table does not exist."""
        try:
            found = None if table is None else self._lake.describe(table)
        except Exception:  # noqa: BLE001 - the cause of the failure may make this fail, too
            return ""
        return "" if found is None else str(table)


def _is_java_ending() -> bool:
    """Return whether the JVM ends: its connections close a moment before its process ends."""
    until = time.monotonic() + _JAVA_SECONDS
    while is_java_running() and time.monotonic() < until:
        time.sleep(_JAVA_SECONDS / 10)
    return not is_java_running()


def _stopping_error(call: Call) -> StoppingError:
    message = "The server is stopping and cancelled the call; the table is unchanged."
    if not is_java_running():
        message = (
            "The Java process has ended, so the server is stopping. The call was applied "
            "completely or not at all."
        )
    return StoppingError(
        message,
        hint="Send the request again.",
        table=None if call.table is None else str(call.table),
        batch=call.batch,
    )
