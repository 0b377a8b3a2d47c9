"""Waves of a run's slices, each read by the tasks of one Spark job."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import structlog
from pyspark import InheritableThread

from chronolake.errors import ChronolakeError, SourceError
from chronolake.source.declarative.components.instances import has_components
from chronolake.source.declarative.models.streams import AsyncRetriever, SubstreamPartitionRouter
from chronolake.source.declarative.spark.coordinator import Coordinator
from chronolake.source.declarative.spark.data_source import Assignment, JobSettings, slice_source

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from pyspark.sql import DataFrame

    from chronolake.lake import Lake
    from chronolake.source.declarative.api import Api
    from chronolake.source.declarative.http.api_session import ApiSession
    from chronolake.source.declarative.models.streams import DeclarativeStream
    from chronolake.source.declarative.slice_files import SliceFiles, SliceResult
    from chronolake.source.declarative.stream_reader import StreamReader, Work
    from chronolake.source.records.schema import Shape
    from chronolake.types import ColumnType

log = structlog.get_logger(__name__)

#: A data source is found by its name, and all sessions of the process share the names.
_registration_lock = threading.Lock()
_HOST: Final = "spark.driver.host"
_BIND_ADDRESS: Final = "spark.driver.bindAddress"
_LOOPBACK: Final = "127.0.0.1"


def cluster_for(
    lake: Lake,
    api: Api,
    reader: StreamReader,
    files: SliceFiles,
    requests: int,
) -> Cluster | None:
    """Return the cluster that can read a stream's slices, or None if only the driver can.

    Args:
        lake: the lake whose Spark session runs the tasks; it starts with the first of them.
        api: the API to read from.
        reader: the stream.
        files: writes the records' files.
        requests: most concurrent requests in all tasks together.
    """
    stream = reader.stream
    # Tasks write records to files, which the driver reads.
    if not (lake.executor_files.are_shared and can_run_on_executors(stream, api)):
        return None
    network = api.session.network
    assignment = Assignment(
        stream=stream,
        schema=reader.schema,
        dated_by=reader.dated_by,
        manifest=api.manifest,
        config=api.config,
        budget=api.budget,
        may_lack_records=api.may_lack_records,
        may_repeat_tokens=api.may_repeat_tokens,
        allowed_hosts=network.allowed_hosts,
        response_timeout=network.response_timeout,
        memory_limit=network.memory_limit,
        mask=network.mask,
        identity=files.identity,
        declared=files.shape.declared,
        nesting=files.shape.nesting,
        folder=files.folder,
    )
    return Cluster(lake, api.session, assignment, files.shape, requests)


def can_run_on_executors(stream: DeclarativeStream, api: Api) -> bool:
    """Return whether tasks can read a stream's slices independently.

    They cannot in four cases. Async jobs are created by the driver, which counts the jobs that are
    running. If other streams use this one for their partitions, its responses are cached in the
    driver's memory. Pages inside parent records need no requests. Instances of the connector's own
    classes stay in the process that created them.
    """
    return not (
        has_components(stream)
        or isinstance(stream.retriever, AsyncRetriever)
        or stream.name in api.asked_again
        or any(
            isinstance(router, SubstreamPartitionRouter)
            and any(parent.lazy_read_pointer for parent in router.parent_stream_configs)
            for router in stream.retriever.partition_router
        )
    )


@dataclass(frozen=True)
class Cluster:
    """Spark tasks that read slices of a stream.

    Attributes:
        lake: the lake whose Spark session runs the tasks.
        session: the driver's API session.
        assignment: the values that the tasks need.
        shape: the records' columns, which tasks may widen.
        requests: most concurrent requests in all tasks together.
    """

    lake: Lake
    session: ApiSession
    assignment: Assignment
    shape: Shape
    requests: int

    def read(self, works: Sequence[Work]) -> Iterator[tuple[Work, SliceResult | ChronolakeError]]:
        """Read slices; yield each slice with its result as soon as it has been read.

        Raises:
            SourceError: the cluster could not read all of them, for a reason other than the API.
        """
        self.lake.containment.expect_shared(self.lake.spark, str(self.lake.config.path))
        context = self.lake.spark.sparkContext
        tasks = max(1, min(context.defaultParallelism, self.requests, len(works)))
        wave = _Wave(list(works), self.shape)
        # One more, so that a task can report while all others wait for a token.
        callers = self.requests + 1
        host = bind_address = _LOOPBACK
        if not context.master.startswith("local"):
            host = context.getConf().get(_HOST) or host
            bind_address = context.getConf().get(_BIND_ADDRESS) or host
        with Coordinator(
            host, self.session, wave, callers=callers, bind_address=bind_address
        ) as coordinator:
            requests_per_task = max(1, self.requests // tasks)
            settings = JobSettings(
                self.shape.current_types(), coordinator.address, requests_per_task
            )
            numbered = list(enumerate(works))
            groups = [numbered[number::tasks] for number in range(tasks)]
            rows = self._register(settings, groups)
            tag = f"chronolake-{uuid4().hex}"
            job = InheritableThread(target=wave.run, args=(rows, tag), daemon=True)
            log.info(
                "slices_spread", stream=self.assignment.stream.name, slices=len(works), tasks=tasks
            )
            job.start()
            try:
                yield from wave.results()
            finally:
                if job.is_alive():
                    context.cancelJobsWithTag(tag)
                job.join()

    def _register(
        self, settings: JobSettings, groups: Sequence[Sequence[tuple[int, Work]]]
    ) -> DataFrame:
        source = slice_source(self.assignment, settings, groups)
        with _registration_lock:
            self.lake.spark.dataSource.register(source)
            return self.lake.spark.read.format(source.name()).load()


class _Wave:
    """The slices that one job reads."""

    def __init__(self, works: list[Work], shape: Shape) -> None:
        self._works = works
        self._shape = shape
        self._lock = threading.Lock()
        self._unfinished = set(range(len(works)))
        self._results: SimpleQueue[tuple[int, SliceResult | ChronolakeError] | Exception | None] = (
            SimpleQueue()
        )

    def unfinished(self, numbers: Collection[int]) -> set[int]:
        """Return the numbers of the slices that have no result yet."""
        with self._lock:
            return self._unfinished.intersection(numbers)

    def record_result(
        self, number: int, result: SliceResult | ChronolakeError, types: dict[str, ColumnType]
    ) -> bool:
        """Record a slice's result; return False if another attempt of its task already did."""
        with self._lock:
            if number not in self._unfinished:
                return False
            self._unfinished.remove(number)
        self._shape.widen(types)
        self._results.put((number, result))
        return True

    def run(self, rows: DataFrame, tag: str) -> None:
        """Run the job, in its own thread."""
        try:
            rows.sparkSession.sparkContext.addJobTag(tag)
            rows.write.format("noop").mode("overwrite").save()
        except Exception as failure:  # noqa: BLE001 - `results` raises it
            self._results.put(failure)
        else:
            self._results.put(None)

    def results(self) -> Iterator[tuple[Work, SliceResult | ChronolakeError]]:
        """Yield each slice with its result, until the job is over."""
        while (item := self._results.get()) is not None:
            if isinstance(item, Exception):
                raise SourceError(
                    f"Spark's tasks failed before all slices were read: {type(item).__name__}.",
                    hint="See Spark's log for the cause. Slices that were read are kept.",
                ) from item
            number, found = item
            yield self._works[number], found
        if self._unfinished:
            raise SourceError(
                f"Spark's tasks ended without results for {len(self._unfinished)} slices.",
                hint="Run it again. Slices that were read are kept.",
            )
