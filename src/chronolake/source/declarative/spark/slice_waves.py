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
from chronolake.source.declarative.spark.data_source import Assignment, Share, slice_source

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from chronolake.source.declarative.api import Api
    from chronolake.source.declarative.http.api_session import Access
    from chronolake.source.declarative.landing.file_writer import Read, SliceFiles
    from chronolake.source.declarative.landing.record_schema import Shape
    from chronolake.source.declarative.models.streams import DeclarativeStream
    from chronolake.source.declarative.stream_reader import StreamReader, Work
    from chronolake.types import ColumnType

log = structlog.get_logger(__name__)

#: A data source is found by its name, and all sessions of the process share the names.
_registering = threading.Lock()
_HOST: Final = "spark.driver.host"
_BOUND: Final = "spark.driver.bindAddress"
_LOOPBACK: Final = "127.0.0.1"


def cluster_for(
    spark: SparkSession,
    api: Api,
    reader: StreamReader,
    files: SliceFiles,
    requests: int,
) -> Cluster | None:
    """Return the cluster that can read a stream's slices, or None if only the driver can.

    Args:
        spark: the session.
        api: the API to read from.
        reader: the stream.
        files: writes the records' files.
        requests: most concurrent requests in all tasks together.
    """
    stream = reader.stream
    if not can_be_spread(stream, api):
        return None
    network = api.access.network
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
        longest=network.longest,
        memory=network.memory,
        mask=network.mask,
        identity=files.identity,
        declared=files.shape.declared,
        nesting=files.shape.nesting,
        folder=files.folder,
    )
    return Cluster(spark, api.access, assignment, files.shape, requests)


def can_be_spread(stream: DeclarativeStream, api: Api) -> bool:
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
        spark: the session.
        access: the driver's API session.
        assignment: the values that the tasks need.
        shape: the records' columns, which tasks may widen.
        requests: most concurrent requests in all tasks together.
    """

    spark: SparkSession
    access: Access
    assignment: Assignment
    shape: Shape
    requests: int

    def read(self, works: Sequence[Work]) -> Iterator[tuple[Work, Read | ChronolakeError]]:
        """Read slices; yield each slice with its result as soon as it has been read.

        Raises:
            SourceError: the cluster could not read all of them, for a reason other than the API.
        """
        context = self.spark.sparkContext
        tasks = max(1, min(context.defaultParallelism, self.requests, len(works)))
        wave = _Wave(list(works), self.shape)
        # One more, so that a task can report while all others wait for a token.
        callers = self.requests + 1
        host = bound = _LOOPBACK
        if not context.master.startswith("local"):
            host = context.getConf().get(_HOST) or host
            bound = context.getConf().get(_BOUND) or host
        with Coordinator(host, self.access, wave, callers=callers, bound=bound) as coordinator:
            each = max(1, self.requests // tasks)
            share = Share(self.shape.known(), coordinator.address, each)
            numbered = list(enumerate(works))
            groups = [numbered[number::tasks] for number in range(tasks)]
            rows = self._registered(share, groups)
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

    def _registered(self, share: Share, groups: Sequence[Sequence[tuple[int, Work]]]) -> DataFrame:
        source = slice_source(self.assignment, share, groups)
        with _registering:
            self.spark.dataSource.register(source)
            return self.spark.read.format(source.name()).load()


class _Wave:
    """The slices that one job reads."""

    def __init__(self, works: list[Work], shape: Shape) -> None:
        self._works = works
        self._shape = shape
        self._lock = threading.Lock()
        self._open = set(range(len(works)))
        self._came: SimpleQueue[tuple[int, Read | ChronolakeError] | Exception | None] = (
            SimpleQueue()
        )

    def left(self, numbers: Collection[int]) -> set[int]:
        """Return the numbers of the slices that have no result yet."""
        with self._lock:
            return self._open.intersection(numbers)

    def take(
        self, number: int, found: Read | ChronolakeError, types: dict[str, ColumnType]
    ) -> bool:
        """Record a slice's result; return False if another attempt of its task already did."""
        with self._lock:
            if number not in self._open:
                return False
            self._open.remove(number)
        self._shape.widen(types)
        self._came.put((number, found))
        return True

    def run(self, rows: DataFrame, tag: str) -> None:
        """Run the job, in its own thread."""
        try:
            rows.sparkSession.sparkContext.addJobTag(tag)
            rows.write.format("noop").mode("overwrite").save()
        except Exception as failure:  # noqa: BLE001 - `results` raises it
            self._came.put(failure)
        else:
            self._came.put(None)

    def results(self) -> Iterator[tuple[Work, Read | ChronolakeError]]:
        """Yield each slice with its result, until the job is over."""
        while (came := self._came.get()) is not None:
            if isinstance(came, Exception):
                raise SourceError(
                    f"Spark's tasks have not read all slices: {type(came).__name__}.",
                    hint="Spark's log says why; what has been read stays.",
                ) from came
            number, found = came
            yield self._works[number], found
        if self._open:
            raise SourceError(
                f"Spark's tasks have ended, and told nothing of {len(self._open)} slices.",
                hint="Run it again; what has been read stays.",
            )
