"""The process of a server: it opens a lake, listens, and stops without leaving partial batches."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final, Self

import structlog

from chronolake.errors import ChronolakeError, ConfigurationError
from chronolake.garbage_collection import settle
from chronolake.lake import Lake
from chronolake.server import listener, logs
from chronolake.server.calls import describe_failure, text_of
from chronolake.server.maintenance import BackgroundMaintenance
from chronolake.server.metrics import Metrics, MetricsPort
from chronolake.server.service import Destination
from chronolake.session import is_java_running
from chronolake.storage import storage_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path
    from types import FrameType, TracebackType
    from typing import TextIO

    from chronolake.config import LakeConfig
    from chronolake.server.calls import Call
    from chronolake.server.listener import ServeOptions
    from chronolake.types import TableName

_log = structlog.get_logger(__name__)

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
# Seconds that cancelled Spark jobs may take to end, and between attempts to cancel them.
_CANCEL_SECONDS: Final = 10.0
_CANCEL_STEP: Final = 0.5
# A call that waits for a worker when the last one ends is not counted for a moment.
_SETTLE_SECONDS: Final = 0.2
#: Seconds between the main thread's checks for a signal that another thread received.
_POLL_SECONDS: Final = 0.2
_NOT_STARTED: Final = 1
_WITHOUT_JAVA: Final = 1


class Server:
    """A destination that listens as soon as it is created; it can be a context manager.

    Attributes:
        port: the TCP port, also if the options asked for any.
        metrics_port: the port of the metrics, or None.
    """

    def __init__(self, lake: Lake, options: ServeOptions) -> None:
        """Start listening.

        Args:
            lake: an open lake; it stays open when the server stops.
            options: the server's options.

        Raises:
            ConfigurationError: an address cannot be bound, or a file of the options is missing.
        """
        self._options = options
        self._lake = lake
        root = _resolve_folder(options.files_root)
        metrics = Metrics()
        self._maintenance: BackgroundMaintenance | None = None
        self._destination = Destination(
            lake,
            metrics=metrics,
            writing=self._writing,
            batch_format=options.batch_format,
            files_root=root,
        )
        self._health = listener.Health()
        self._grpc = listener.create_server(
            self._destination, self._health, workers=options.max_workers
        )
        self._metrics: MetricsPort | None = None
        try:
            self.port = listener.listen(self._grpc, options)
            if options.metrics_port is not None:
                self._metrics = _start_metrics(metrics, options.hosts[0], options.metrics_port)
        except BaseException:
            self._grpc.stop(None)
            self._health.close()
            raise
        self.metrics_port = self._metrics.port if self._metrics else None
        if lake.config.maintenance.automatic:
            self._maintenance = BackgroundMaintenance(lake)
        self._grpc.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> bool:
        """Reject new calls, let running ones finish, and cancel those that take too long.

        The response to a cancelled batch is UNAVAILABLE, and its table is unchanged, because a
        batch is published atomically. The same applies to a call that waited for a worker until
        then. Only a call that ignores the cancellation ends without a response.

        Returns:
            True if every call ended; False if one ignored even the cancellation.
        """
        grace = self._options.grace
        self._health.enter_graceful_shutdown()
        deadline = time.monotonic() + grace
        # This rejects new calls and returns immediately; it ends running calls after that time.
        ended = self._grpc.stop(grace + 2 * _CANCEL_SECONDS)
        if self._maintenance:
            self._maintenance.close()
        is_idle = self._wait_until_idle(deadline, ended)
        self._destination.refuse()
        if not is_idle:
            self._cancel(ended)
        # Streams, such as a client's Watch of the health service, would run forever.
        self._grpc.stop(0).wait()
        self._health.close()
        if self._metrics:
            self._metrics.close()
        return self._destination.wait_until_idle(0)

    def _wait_until_idle(self, deadline: float, ended: threading.Event) -> bool:
        """Wait until every call has its response; False if some are running at the deadline.

        Args:
            deadline: on the monotonic clock.
            ended: set by gRPC when no calls are left, including streams.
        """
        if not self._destination.wait_until_idle(max(0.0, deadline - time.monotonic())):
            return False
        ended.wait(_SETTLE_SECONDS)
        return self._destination.wait_until_idle(max(0.0, deadline - time.monotonic()))

    def _writing(self, name: TableName) -> AbstractContextManager[None]:
        return self._maintenance.writing(name) if self._maintenance else nullcontext()

    def _cancel(self, ended: threading.Event) -> None:
        deadline = time.monotonic() + _CANCEL_SECONDS
        logged: set[Call] = set()
        while time.monotonic() < deadline:
            # Repeated, because the batch's next job may start just after the cancellation.
            for call in self._destination.cancel():
                if call not in logged:
                    logged.add(call)
                    _log.warning("batch_cancelled", **call.place, reason="the server is stopping")
            if self._wait_until_idle(time.monotonic() + _CANCEL_STEP, ended):
                return


def _resolve_folder(folder: Path | None) -> str | None:
    if folder is None:
        return None
    try:
        real = folder.resolve(strict=True)
    except OSError as error:
        raise ConfigurationError(
            f"The files root {str(folder)!r} cannot be used: {error.strerror}.",
            hint="Create the folder, or choose another one with --files-root.",
        ) from error
    if not real.is_dir():
        raise ConfigurationError(
            f"The files root {str(folder)!r} is not a folder.",
            hint="Set --files-root to a folder.",
        )
    return str(real)


def _start_metrics(metrics: Metrics, host: str, port: int) -> MetricsPort:
    try:
        return metrics.listen(host, port)
    except OSError as error:
        raise ConfigurationError(
            f"The server cannot listen on port {port} of {host} for metrics: {error.strerror}.",
            hint="Choose another port with --metrics-port.",
        ) from error


def serve(
    config: LakeConfig,
    options: ServeOptions,
    output: TextIO | None = None,
    *,
    beside: Sequence[Callable[[Lake, threading.Event], None]] = (),
) -> int:
    """Serve a lake until SIGTERM or SIGINT; call it once, in a process's main thread.

    From then on, standard output contains only the log.

    Args:
        config: the lake.
        options: the server's options.
        output: where the log is written; None for standard output.
        beside: functions that run in threads beside the server until their event is set.

    Returns:
        The exit code of the process: 0, or 1 if the server cannot start or the JVM has ended.
    """
    logs.configure(output or logs.reserve_standard_output())
    is_stopping = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_stopping
        is_stopping = True

    # Before the lake, which takes seconds to open, and after it, because Spark sets its own
    # handlers.
    _set_signal_handlers(stop)
    try:
        # Invalid options are reported immediately, and not after Spark has started.
        _resolve_folder(options.files_root)
        listener.check_options(options)
        lake = Lake.open(config.path, config=config)
        lake.containment.expect_writable()
        _set_signal_handlers(stop)
        server = Server(lake, options)
        settle()
    except Exception as failure:  # noqa: BLE001 - its text may contain a secret
        known = failure if isinstance(failure, ChronolakeError) else None
        error = storage_error(failure) or known
        if error is None:
            _log.error("not_started", **describe_failure(failure))
        else:
            _log.error("not_started", error=type(error).__name__, reason=text_of(error))
        return _NOT_STARTED
    _log_start(config, options, server)
    ends = threading.Event()
    threads = [threading.Thread(target=run, args=(lake, ends), daemon=True) for run in beside]
    for thread in threads:
        thread.start()
    while not is_stopping and is_java_running():
        # A signal may arrive in any thread, but its handler runs in this one, even while this
        # thread holds a lock that the handler would wait for. So no lock is used.
        time.sleep(_POLL_SECONDS)
    code = 0
    if not is_stopping:
        code = _WITHOUT_JAVA
        _log.error(
            "java_ended",
            reason="The Java process, which does all work, has ended. Check standard error for the "
            "cause, and the system's log for a lack of memory. Start the server again: no batch "
            "was applied partially.",
        )
    _log.info("stopping", grace=options.grace)
    ends.set()
    is_clean = server.stop()
    deadline = time.monotonic() + options.grace
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    lake.close()
    _log.info("stopped")
    if not is_clean:
        # A thread hangs in a call to the JVM that does not return. Its changes are not published,
        # and the interpreter would wait for it forever.
        sys.stdout.flush()
        os._exit(code)
    return code


def _set_signal_handlers(stop: signal.Handlers | object) -> None:
    for number in _STOP_SIGNALS:
        signal.signal(number, stop)  # type: ignore[arg-type]


def _log_start(config: LakeConfig, options: ServeOptions, server: Server) -> None:
    if options.is_open_to_others and not options.tls:
        _log.warning("plaintext_listening", hosts=list(options.hosts))
    if options.is_open_to_others and options.files_root is None:
        _log.warning("no_files_root", reason="requests may name any file this process can read")
    _log.info(
        "listening",
        hosts=list(options.hosts),
        port=server.port,
        metrics_port=server.metrics_port,
        tls=options.tls,
        batch_format=options.batch_format,
        lake=str(config.path),
    )
