"""Slices as a data source of Spark: each of its partitions is a group of them.

A task reads its slices with several requests in flight, and writes their records to files where
they wait to be landed. What it gives to Spark are those files, as Arrow batches: which types
records have is only known when they have been read, and a slice counts only when all of it is
there.
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
    from chronolake.source.declarative.models.cursors import IncrementalSync
    from chronolake.source.declarative.models.requests import HTTPAPIBudget
    from chronolake.source.declarative.models.streams import DeclarativeStream
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
    """What all tasks of one job get alike.

    Attributes:
        types: the types of the records' columns so far.
        driver: where to ask for what all tasks share, and to tell what has been read.
        requests: how many are in flight in one task.
    """

    types: Mapping[str, ColumnType]
    driver: Address = field(repr=False)
    requests: int


@dataclass(frozen=True)
class Assignment:
    """What a task has to know to read slices of a stream.

    Attributes:
        stream: the stream.
        schema: of its records.
        dated_by: the cursor that tells when records were changed, where it is not the stream's own.
        manifest: the stream's.
        config: what the user has set, as the manifest's rules make it.
        budget: how often the API may be called, or None.
        may_lack_records: as of `Api`; so is `may_repeat_tokens`.
        allowed_hosts: as of `Network`; so are `longest`, `memory` and `mask`.
        mask: hides the configuration's secrets in a text.
        identity: what tells the records apart.
        declared: as of `Shape`; so is `nesting`.
        folder: where the records wait to be landed.
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
            share: what the task may do, and whom it tells.
            group: the slices, with the numbers that the driver knows them by.

        Returns:
            For each slice that could be read its files: `slice` (its number), `file` (the path),
            `rows` and `bytes`.

        Raises:
            DriverLostError: nobody wants them any more.
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
            # Whoever leaves early waits for no request.
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
            # Of a task that died another attempt may have read some already.
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
                except Exception as failure:  # noqa: BLE001 - the other slices must not suffer
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
    """A data source whose partitions are groups of slices.

    It is made anew for each use and not found by its name: what tasks need to know holds secrets,
    which Spark would show among the options of a plan.
    """

    class SliceSource(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return _NAME

        def schema(self) -> str:
            return _SCHEMA

        def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002 - there is one
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
