"""Where the time of one piece of work goes, from Spark's own status store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from harness.clock import show

Span = tuple[int, int]  # milliseconds since 1970


@dataclass
class _Queries:
    """A `QueryExecutionListener`: the phases of every query of a session."""

    phases: dict[str, list[Span]] = field(default_factory=dict)

    def onSuccess(self, _name: str, query: Any, _nanos: int) -> None:  # noqa: N802 - Java's name
        found = query.tracker().phases()
        for name in ("analysis", "optimization", "planning"):
            if found.contains(name):
                phase = found.apply(name)
                self.phases.setdefault(name, []).append((phase.startTimeMs(), phase.endTimeMs()))

    def onFailure(self, _name: str, _query: Any, _error: Any) -> None:  # noqa: N802
        """Do nothing: failures are raised anyway."""

    class Java:
        """Py4J reads the implemented Java interfaces here."""

        implements = ("org.apache.spark.sql.util.QueryExecutionListener",)


@contextmanager
def profiled(spark: SparkSession, title: str) -> Iterator[None]:
    """Print Spark's work during the block: queries, jobs, and the time of neither."""
    ensure_callback_server_started(spark.sparkContext._gateway)  # noqa: SLF001
    listeners = spark._jsparkSession.listenerManager()  # noqa: SLF001
    queries = _Queries()
    listeners.register(queries)
    begin = _now()
    try:
        yield
        end = _now()
        time.sleep(1.0)  # events arrive a little later
    finally:
        listeners.unregister(queries)
    jobs = _jobs(spark, begin, end)
    executions = _executions(spark, begin, end)
    planning = [span for spans in queries.phases.values() for span in spans]
    busy = [(job.begin, job.end) for job in jobs]
    rows: list[tuple[object, ...]] = [
        (name, len(spans), _covered(spans) / 1000) for name, spans in queries.phases.items()
    ]
    in_jobs = _covered(busy)
    planned = _covered(planning + busy) - in_jobs
    in_queries = _covered(planning + busy + executions) - in_jobs - planned
    rows += [
        ("jobs run", len(jobs), in_jobs / 1000),
        ("planning, while no job runs", "", planned / 1000),
        ("rest of queries: commits, code, waiting", len(executions), in_queries / 1000),
        ("outside queries: Python, catalog", "", _outside(begin, end, planning, busy, executions)),
        ("all", "", (end - begin) / 1000),
    ]
    show(title, ("what", "number", "s"), rows)
    show(
        "its jobs",
        ("job", "tasks", "from s", "s"),
        [
            (job.name, job.tasks, (job.begin - begin) / 1000, (job.end - job.begin) / 1000)
            for job in jobs
        ],
    )


@dataclass(frozen=True)
class _Job:
    name: str
    tasks: int
    begin: int
    end: int


def _jobs(spark: SparkSession, begin: int, end: int) -> list[_Job]:
    found = spark.sparkContext._jsc.sc().statusStore().jobsList(None)  # noqa: SLF001
    jobs = []
    for place in range(found.size()):
        job = found.apply(place)
        if job.submissionTime().isEmpty() or job.completionTime().isEmpty():
            continue
        span = (job.submissionTime().get().getTime(), job.completionTime().get().getTime())
        if begin <= span[0] <= end:
            jobs.append(_Job(str(job.name())[:60], int(job.numTasks()), *span))
    return sorted(jobs, key=lambda job: job.begin)


def _executions(spark: SparkSession, begin: int, end: int) -> list[Span]:
    found = spark._jsparkSession.sharedState().statusStore().executionsList()  # noqa: SLF001
    spans = []
    for place in range(found.size()):
        query = found.apply(place)
        if not query.completionTime().isEmpty() and begin <= query.submissionTime() <= end:
            spans.append((query.submissionTime(), query.completionTime().get().getTime()))
    return spans


def _outside(begin: int, end: int, *spans: list[Span]) -> float:
    all_spans = [span for group in spans for span in group]
    inside = [(max(first, begin), min(last, end)) for first, last in all_spans]
    return max(0, end - begin - _covered(inside)) / 1000


def _covered(spans: list[Span]) -> int:
    """Return how many milliseconds are in at least one span."""
    total, reached = 0, 0
    for first, last in sorted(spans):
        total += max(0, last - max(first, reached))
        reached = max(reached, last)
    return total


def _now() -> int:
    return time.time_ns() // 1_000_000
