"""A Spark data source whose partitions are groups of slices.

A task reads its slices with several concurrent requests, and writes their records to files that
wait to be landed. It returns the list of these files to Spark as Arrow batches, and not the
records: the records' types are known only after they have been read, and a slice counts only when
it is complete.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from chronolake.errors import ChronolakeError
from chronolake.source.declarative.api import Api
from chronolake.source.declarative.components.custom_auth import custom_authentication
from chronolake.source.declarative.http.api_session import ApiSession
from chronolake.source.declarative.http.transport import Network, http_client
from chronolake.source.declarative.manifests.capabilities import has_only_texts
from chronolake.source.declarative.slice_files import SliceFiles, hide, unexpected_error
from chronolake.source.declarative.spark.coordinator import Driver, DriverLostError
from chronolake.source.declarative.stream_reader import SliceReader
from chronolake.source.records.schema import Shape
from chronolake.types import now_micros

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from chronolake.source.declarative.manifests.manifest import Manifest
    from chronolake.source.declarative.models.requests import HTTPAPIBudget
    from chronolake.source.declarative.models.streams import DeclarativeStream, IncrementalSync
    from chronolake.source.declarative.slice_files import SliceResult
    from chronolake.source.declarative.spark.coordinator import Address
    from chronolake.source.declarative.stream_reader import Work
    from chronolake.source.records.identity import Identity
    from chronolake.source.records.schema import Nesting
    from chronolake.types import ColumnType

_NAME: Final = "chronolake_slices"
_SCHEMA: Final = "slice bigint, file string, rows bigint, bytes bigint"
_ARROW: Final = pa.schema(
    [("slice", pa.int64()), ("file", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64())]
)


@dataclass(frozen=True)
class JobSettings:
    """The values that all tasks of one job receive.

    Attributes:
        types: the types of the records' columns so far.
        driver: address of the coordinator, which holds shared state and receives results.
        requests: number of concurrent requests in one task.
    """

    types: Mapping[str, ColumnType]
    driver: Address = field(repr=False)
    requests: int


@dataclass(frozen=True)
class Assignment:
    """The values that a task needs to read slices of a stream.

    Attributes:
        schema: the schema of its records.
        dated_by: the cursor that contains records' modification times, if it is not the stream's
            own.
        manifest: the stream's manifest.
        config: the user's configuration, after the manifest's rules for it were applied.
        budget: limits the rate of calls, or None.
        may_lack_records: see `Api`, also for `may_repeat_tokens`.
        allowed_hosts: see `Network`, also for `response_timeout`, `memory_limit` and `mask`.
        mask: replaces the configuration's secrets in a text.
        identity: the records' key.
        declared: see `Shape`, also for `nesting`.
        folder: contains the files that wait to be landed.
    """

    stream: DeclarativeStream
    schema: Mapping[str, Any] = field(repr=False)
    dated_by: IncrementalSync | None
    manifest: Manifest = field(repr=False)
    config: Mapping[str, Any] = field(repr=False)
    budget: HTTPAPIBudget | None
    may_lack_records: frozenset[str]
    may_repeat_tokens: frozenset[str]
    allowed_hosts: Collection[str] | None
    response_timeout: float
    memory_limit: int
    mask: Callable[[str], str] = field(repr=False)
    identity: Identity
    declared: frozenset[str]
    nesting: Nesting | None
    folder: Path

    def read(
        self, settings: JobSettings, group: Sequence[tuple[int, Work]]
    ) -> Iterator[pa.RecordBatch]:
        """Read slices into files, in a task.

        Args:
            settings: the values that all tasks receive.
            group: the slices, with their numbers.

        Returns:
            The files of each slice that could be read: `slice` (its number), `file` (the path),
            `rows` and `bytes`.

        Raises:
            DriverLostError: the slices are no longer needed.
        """
        shape = Shape(
            dict(settings.types),
            self.declared,
            self.nesting,
            self.stream.name,
            has_only_texts(self.stream),
        )
        with ExitStack() as stack:
            driver = stack.enter_context(Driver(settings.driver))
            clock_offset = driver.now() - now_micros()
            # A message may contain a value.
            mask = hide if self.identity.rules else self.mask
            files = SliceFiles(self.folder, self.identity, shape, clock_offset)
            client = stack.enter_context(http_client(self.allowed_hosts))
            network = Network(
                client,
                allowed_hosts=self.allowed_hosts,
                mask=self.mask,
                response_timeout=self.response_timeout,
                memory_limit=self.memory_limit,
            )
            # A task that ends early does not wait for its requests.
            stack.callback(network.cancelled.set)
            session = ApiSession(
                network,
                self.config,
                custom=custom_authentication,
                budget=self.budget,
                shared=driver,
            )
            api = Api(
                self.manifest,
                self.config,
                session,
                may_lack_records=self.may_lack_records,
                may_repeat_tokens=self.may_repeat_tokens,
            )
            slices = SliceReader(self.stream, api, self.schema, dated_by=self.dated_by)
            pool = ThreadPoolExecutor(settings.requests, thread_name_prefix=self.stream.name)
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)
            # An earlier attempt of the task may have read some of the slices.
            unfinished = driver.unfinished([number for number, _ in group])
            futures = {
                pool.submit(files.read, slices.read(work)): number
                for number, work in group
                if number in unfinished
            }
            for future in as_completed(futures):
                number = futures[future]
                try:
                    result = future.result()
                except ChronolakeError as failure:
                    driver.report_result(number, failure, {})
                    continue
                except DriverLostError:
                    raise
                except Exception as failure:  # noqa: BLE001 - one slice must not stop the others
                    driver.report_result(number, unexpected_error(failure, mask), {})
                    continue
                if driver.report_result(number, result, shape.current_types()):
                    yield _batch_of_files(number, result)
                else:
                    for part in result.parts:
                        part.file.unlink(missing_ok=True)


def slice_source(
    assignment: Assignment, settings: JobSettings, groups: Sequence[Sequence[tuple[int, Work]]]
) -> type[DataSource]:
    """Return a new data source whose partitions are groups of slices.

    A new class is created for each use, instead of passing options to one that is found by name:
    the assignment contains secrets, and Spark shows options in plans.
    """

    class SliceSource(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return _NAME

        def schema(self) -> str:
            return _SCHEMA

        def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002 - the schema is fixed
            return _SliceSourceReader(assignment, settings, groups)

    return SliceSource


class _SliceSourceReader(DataSourceReader):  # type: ignore[misc]
    def __init__(
        self,
        assignment: Assignment,
        settings: JobSettings,
        groups: Sequence[Sequence[tuple[int, Work]]],
    ) -> None:
        self._assignment = assignment
        self._settings = settings
        self._groups = groups

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(len(self._groups))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._assignment.read(self._settings, self._groups[partition.value])


def _batch_of_files(number: int, result: SliceResult) -> pa.RecordBatch:
    rows = [
        {"slice": number, "file": str(part.file), "rows": part.rows, "bytes": part.bytes}
        for part in result.parts
    ]
    return pa.RecordBatch.from_pylist(rows, schema=_ARROW)
