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
from chronolake.source.declarative.http.api_session import Access
from chronolake.source.declarative.http.transport import Network, http_client
from chronolake.source.declarative.landing.file_writer import SliceFiles, unforeseen
from chronolake.source.declarative.landing.record_schema import Shape, has_texts_only
from chronolake.source.declarative.spark.coordinator import Driver, DriverLostError
from chronolake.source.declarative.stream_reader import SliceReader
from chronolake.types import now_micros

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from chronolake.source.declarative.landing.file_writer import Read
    from chronolake.source.declarative.landing.record_schema import Identity, Nesting
    from chronolake.source.declarative.manifests.manifest import Manifest
    from chronolake.source.declarative.models.requests import HTTPAPIBudget
    from chronolake.source.declarative.models.streams import DeclarativeStream, IncrementalSync
    from chronolake.source.declarative.spark.coordinator import Address
    from chronolake.source.declarative.stream_reader import Work
    from chronolake.types import ColumnType

_NAME: Final = "chronolake_slices"
_SCHEMA: Final = "slice bigint, file string, rows bigint, bytes bigint"
_ARROW: Final = pa.schema(
    [("slice", pa.int64()), ("file", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64())]
)


@dataclass(frozen=True)
class Share:
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
        stream: the stream.
        schema: the schema of its records.
        dated_by: the cursor that contains records' modification times, if it is not the stream's
            own.
        manifest: the stream's manifest.
        config: the user's configuration, after the manifest's rules for it were applied.
        budget: limits the rate of calls, or None.
        may_lack_records: see `Api`, also for `may_repeat_tokens`.
        allowed_hosts: see `Network`, also for `longest`, `memory` and `mask`.
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
    longest: float
    memory: int
    mask: Callable[[str], str] = field(repr=False)
    identity: Identity
    declared: frozenset[str]
    nesting: Nesting | None
    folder: Path

    def read(self, share: Share, group: Sequence[tuple[int, Work]]) -> Iterator[pa.RecordBatch]:
        """Read slices into files, in a task.

        Args:
            share: the values that all tasks receive.
            group: the slices, with their numbers.

        Returns:
            The files of each slice that could be read: `slice` (its number), `file` (the path),
            `rows` and `bytes`.

        Raises:
            DriverLostError: the slices are no longer needed.
        """
        shape = Shape(
            dict(share.types),
            self.declared,
            self.nesting,
            self.stream.name,
            has_texts_only(self.stream),
        )
        with ExitStack() as stack:
            driver = stack.enter_context(Driver(share.driver))
            ahead = driver.now() - now_micros()
            files = SliceFiles(self.folder, self.identity, shape, ahead)
            client = stack.enter_context(http_client(self.allowed_hosts))
            network = Network(
                client,
                allowed_hosts=self.allowed_hosts,
                mask=self.mask,
                longest=self.longest,
                memory=self.memory,
            )
            # A task that ends early does not wait for its requests.
            stack.callback(network.cancelled.set)
            access = Access(
                network,
                self.config,
                custom=custom_authentication,
                budget=self.budget,
                shared=driver,
            )
            api = Api(
                self.manifest,
                self.config,
                access,
                may_lack_records=self.may_lack_records,
                may_repeat_tokens=self.may_repeat_tokens,
            )
            slices = SliceReader(self.stream, api, self.schema, dated_by=self.dated_by)
            pool = ThreadPoolExecutor(share.requests, thread_name_prefix=self.stream.name)
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)
            # An earlier attempt of the task may have read some of the slices.
            left = driver.left([number for number, _ in group])
            reading = {
                pool.submit(files.read, slices.read(work)): number
                for number, work in group
                if number in left
            }
            for one in as_completed(reading):
                number = reading[one]
                try:
                    found = one.result()
                except ChronolakeError as failure:
                    driver.read(number, failure, {})
                    continue
                except DriverLostError:
                    raise
                except Exception as failure:  # noqa: BLE001 - one slice must not stop the others
                    driver.read(number, unforeseen(failure, self.mask), {})
                    continue
                if driver.read(number, found, shape.known()):
                    yield _told(number, found)
                else:
                    for part in found.parts:
                        part.file.unlink(missing_ok=True)


def slice_source(
    assignment: Assignment, share: Share, groups: Sequence[Sequence[tuple[int, Work]]]
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
            return _SliceSourceReader(assignment, share, groups)

    return SliceSource


class _SliceSourceReader(DataSourceReader):  # type: ignore[misc]
    def __init__(
        self, assignment: Assignment, share: Share, groups: Sequence[Sequence[tuple[int, Work]]]
    ) -> None:
        self._assignment = assignment
        self._share = share
        self._groups = groups

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(len(self._groups))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._assignment.read(self._share, self._groups[partition.value])


def _told(number: int, found: Read) -> pa.RecordBatch:
    rows = [
        {"slice": number, "file": str(part.file), "rows": part.rows, "bytes": part.bytes}
        for part in found.parts
    ]
    return pa.RecordBatch.from_pylist(rows, schema=_ARROW)
