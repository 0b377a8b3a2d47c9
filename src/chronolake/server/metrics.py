"""Prometheus metrics of a server: requests, outcomes, and durations of stages."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client import start_http_server as _listen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chronolake.core import BatchResult

_SECONDS = (0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60, 300, 900, 3600)


class Metrics:
    """The metrics of one server, in their own registry.

    | name | labels |
    |---|---|
    | `chronolake_requests_total` | rpc, outcome: a member of the response, `error` or `cancelled` |
    | `chronolake_requests_in_progress` | rpc |
    | `chronolake_batches_total` | table, kind (batch, history) |
    | `chronolake_rows_total` | table, kind (replaced, updated, deleted, ignored) |
    | `chronolake_batch_bytes_total` | table; bytes of the files on disk |
    | `chronolake_batch_seconds` | table; a histogram |
    | `chronolake_stage_seconds_total` | table, stage |
    | `chronolake_failures_total` | table, error |

    `table` is empty if the request's table does not exist: arbitrary names from clients must not
    become time series.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        # The process's memory, threads and open files.
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "chronolake_requests", "Completed calls.", ["rpc", "outcome"], registry=self.registry
        )
        self._in_progress = Gauge(
            "chronolake_requests_in_progress",
            "Running calls.",
            ["rpc"],
            registry=self.registry,
        )
        self._batches = Counter(
            "chronolake_batches", "Published batches.", ["table", "kind"], registry=self.registry
        )
        self._rows = Counter(
            "chronolake_rows", "Rows of batches.", ["table", "kind"], registry=self.registry
        )
        self._bytes = Counter(
            "chronolake_batch_bytes", "Bytes of batch files.", ["table"], registry=self.registry
        )
        self._batch_seconds = Histogram(
            "chronolake_batch_seconds",
            "Time from request to publication.",
            ["table"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._stage_seconds = Counter(
            "chronolake_stage_seconds",
            "Time spent in each stage of a write.",
            ["table", "stage"],
            registry=self.registry,
        )
        self._failures = Counter(
            "chronolake_failures",
            "Calls that ended in a task or an error.",
            ["table", "error"],
            registry=self.registry,
        )

    @contextmanager
    def in_progress(self, rpc: str) -> Iterator[None]:
        """Count a call as running while the block runs."""
        with self._in_progress.labels(rpc).track_inprogress():
            yield

    def count_response(self, rpc: str, outcome: str) -> None:
        """Count a response; `outcome` is the member of the response, `error` or `cancelled`."""
        self._requests.labels(rpc, outcome).inc()

    def count_failure(self, table: str, error: str) -> None:
        """Count a call that ended in a task or an error of this type; `table` may be empty."""
        self._failures.labels(table, error).inc()

    def count_batch(
        self, table: str, result: BatchResult, *, history: bool, size: int, seconds: float
    ) -> None:
        """Count a published batch.

        Args:
            table: `schema.table`.
            result: the result of the batch.
            history: whether it was a history batch.
            size: bytes of its files.
            seconds: duration from the request to the response.
        """
        self._batches.labels(table, "history" if history else "batch").inc()
        for kind in ("replaced", "updated", "deleted", "ignored"):
            self._rows.labels(table, kind).inc(getattr(result, kind))
        self._bytes.labels(table).inc(size)
        self._batch_seconds.labels(table).observe(seconds)
        for stage, spent in result.seconds.items():
            self._stage_seconds.labels(table, stage).inc(spent)

    def listen(self, host: str, port: int) -> MetricsPort:
        """Serve the metrics over HTTP.

        Raises:
            OSError: the address cannot be bound.
        """
        return MetricsPort(self.registry, host, port)


class MetricsPort:
    """An HTTP server for the metrics; stop it with `close`."""

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        self._server, self._thread = _listen(port, addr=host, registry=registry)
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
