"""The HTTP server of `chronolake up`: `/healthz`, and `/metrics` for Prometheus."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast
from wsgiref.simple_server import WSGIRequestHandler, make_server

import orjson
import structlog
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from chronolake.errors import ChronolakeError, ConfigurationError
from chronolake.pipeline.run_history import behind_seconds, last_runs, totals
from chronolake.pipeline.streams import source_of
from chronolake.source.protocol import LaggingSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from wsgiref.types import StartResponse, WSGIEnvironment

    from prometheus_client.core import Metric

    from chronolake.config import Project
    from chronolake.pipeline.runs import StreamTotals
    from chronolake.source.protocol import Lag

log = structlog.get_logger(__name__)

#: Sources are asked for their lag at most once in this time.
_LAG_SECONDS: Final = 15.0
_STREAM: Final = ("pipeline", "stream")
#: Metrics of streams: the name without `_total`, the attribute of `StreamTotals`, and the help.
_COUNTERS: Final = (
    ("chronolake_stream_runs", "runs", "Ended runs of a stream."),
    ("chronolake_stream_failures", "failures", "Failed runs of a stream."),
    ("chronolake_stream_rows", "rows", "Rows of applied files, including duplicates."),
    ("chronolake_stream_rows_written", "written", "Rows of the table that were new or changed."),
    ("chronolake_stream_bytes", "bytes", "Bytes of applied files."),
    ("chronolake_stream_landed_rows", "landed_rows", "Rows that have landed."),
    ("chronolake_stream_landed_bytes", "landed_bytes", "Bytes of files that have landed."),
)


class LakeCollector(Collector):
    """Collector of the metrics of a project.

    Args:
        project: returns the current project.
        engine: returns the engine's state (`server.Engine`), or None.
    """

    def __init__(
        self, project: Callable[[], Project], engine: Callable[[], dict[str, Any] | None]
    ) -> None:
        self._project = project
        self._engine = engine
        self._lags: dict[str, Lag] = {}
        self._asked_at: float | None = None
        self._asking = threading.Lock()

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics; those that cannot be read are left out."""
        yield from self._of_engine()
        try:
            yield from self._of_streams()
        except Exception as failure:  # noqa: BLE001 - the other metrics must not depend on it
            log.warning("metrics_incomplete", reason=_reason(failure))
        yield from self._of_sources()

    def _of_engine(self) -> Iterator[Metric]:
        state = self._engine() or {}
        memory = GaugeMetricFamily("chronolake_java_memory_bytes", "Resident memory of Java.")
        memory.add_metric([], state.get("memory_bytes", 0))
        yield memory
        running = GaugeMetricFamily(
            "chronolake_task_running", "Whether a task of the engine runs.", labels=["task"]
        )
        for name, task in state.get("tasks", {}).items():
            running.add_metric([name], task["running"])
        yield running

    def _of_streams(self) -> Iterator[Metric]:
        config = self._project().lake
        streams = totals(config)
        for name, attribute, text in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=_STREAM)
            for stream in streams:
                counter.add_metric([stream.pipeline, stream.stream], getattr(stream, attribute))
            yield counter
        yield _stage_seconds(streams)
        yield _last_success(streams)
        lag = GaugeMetricFamily(
            "chronolake_stream_lag_seconds",
            "Time since the last successful run of a stream began.",
            labels=_STREAM,
        )
        for key, last in last_runs(config).items():
            behind = behind_seconds(last.fresh_as_of)
            if behind is not None:
                lag.add_metric(key, behind)
        yield lag

    def _of_sources(self) -> Iterator[Metric]:
        retained = GaugeMetricFamily(
            "chronolake_slot_retained_bytes",
            "Log that a server retains for the pipeline's replication slot.",
            labels=["pipeline"],
        )
        unread = GaugeMetricFamily(
            "chronolake_slot_unread_bytes",
            "Log of a server that the pipeline has not read yet.",
            labels=["pipeline"],
        )
        for pipeline, lag in self._current_lags().items():
            retained.add_metric([pipeline], lag.kept_bytes)
            unread.add_metric([pipeline], lag.behind_bytes)
        yield from (retained, unread)

    def _current_lags(self) -> dict[str, Lag]:
        if not self._asking.acquire(blocking=False):
            # Another request asks them. Requests must not queue up behind sources that do not
            # respond.
            return self._lags
        try:
            if self._asked_at is None or time.monotonic() - self._asked_at > _LAG_SECONDS:
                self._lags = dict(_lags_of(self._project()))
                self._asked_at = time.monotonic()
            return self._lags
        finally:
            self._asking.release()


def _stage_seconds(streams: Iterable[StreamTotals]) -> Metric:
    counter = CounterMetricFamily(
        "chronolake_stream_stage_seconds",
        "Time spent in each stage of a stream's runs.",
        labels=[*_STREAM, "stage"],
    )
    for stream in streams:
        key = [stream.pipeline, stream.stream]
        counter.add_metric([*key, "landing"], stream.landing_seconds)
        counter.add_metric([*key, "applying"], stream.applying_seconds)
    return counter


def _last_success(streams: Iterable[StreamTotals]) -> Metric:
    gauge = GaugeMetricFamily(
        "chronolake_stream_last_success_timestamp_seconds",
        "End of the last successful run of a stream, in seconds since 1970.",
        labels=_STREAM,
    )
    for stream in streams:
        if stream.succeeded is not None:
            at = datetime.fromisoformat(stream.succeeded).astimezone(UTC).timestamp()
            gauge.add_metric([stream.pipeline, stream.stream], at)
    return gauge


def _lags_of(project: Project) -> Iterator[tuple[str, Lag]]:
    """Yield the lag of each source that can have one and can be reached."""
    for pipeline in project.pipelines:
        try:
            source = source_of(project, pipeline)
            if isinstance(source, LaggingSource):
                yield pipeline, source.lag()
        except Exception as failure:  # noqa: BLE001 - the other pipelines must not depend on it
            log.warning("lag_not_known", pipeline=pipeline, reason=_reason(failure))


def _reason(failure: Exception) -> str:
    """Return the message of an error of ours; of others the type, as they may contain values."""
    return failure.message if isinstance(failure, ChronolakeError) else type(failure).__name__


def serve(
    address: tuple[str, int],
    project: Callable[[], Project],
    engine: Callable[[], dict[str, Any] | None],
) -> None:
    """Serve `/healthz` and `/metrics` until SIGTERM.

    Args:
        address: host and port.
        project: returns the current project.
        engine: returns the engine's state; None if it does not respond.

    Raises:
        ConfigurationError: the address is not available.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(LakeCollector(project, engine))
    metrics = make_wsgi_app(registry)

    def respond(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = environment.get("PATH_INFO")
        if path == "/metrics":
            return cast("Iterable[bytes]", metrics(environment, start))
        if path != "/healthz":
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [b"not found\n"]
        state = engine()
        status = HTTPStatus.OK if is_healthy(state) else HTTPStatus.SERVICE_UNAVAILABLE
        start(f"{status.value} {status.phrase}", [("Content-Type", "application/json")])
        return [orjson.dumps(state or {}, option=orjson.OPT_APPEND_NEWLINE)]

    host, port = address
    try:
        server = make_server(host, port, respond, ThreadingWSGIServer, _SilentHandler)
    except OSError as failure:
        raise ConfigurationError(
            f"`up` cannot listen on port {port} of {host}: {failure.strerror}.",
            hint="Set `up.health` in chronolake.yml to another address, or to off.",
        ) from failure
    log.info("health_listening", host=host, port=server.server_port)
    server.serve_forever()


def is_healthy(state: dict[str, Any] | None) -> bool:
    """Return whether an engine with this state has Java and all of its tasks running."""
    if state is None or state["java_pid"] is None:
        return False
    return all(task["running"] for task in state["tasks"].values())


class _SilentHandler(WSGIRequestHandler):
    """A handler that does not log every request."""

    def log_message(self, *_arguments: object) -> None:
        """Log nothing."""
