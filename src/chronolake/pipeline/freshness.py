"""Freshness of tables: their offset, waiting files, last run, capture method and verification.

Everything is read from the tables' properties, the operational store, and the folders of landed
files, without a connection to the source and without Spark.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from chronolake.errors import ObjectStoreError, SourceError
from chronolake.landing import files_up_to, folder_at, location_of
from chronolake.pipeline.applied_files import AppliedFiles
from chronolake.pipeline.properties import (
    CAPTURE_METHOD_PROPERTY,
    LAKE_PROPERTY,
)
from chronolake.pipeline.run_history import behind_seconds, last_runs, last_verifications
from chronolake.types import STREAM_PROPERTY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chronolake.config import LakeConfig, StorageConfig
    from chronolake.inspect.catalog import CatalogTable
    from chronolake.landing import ObjectFolder
    from chronolake.pipeline.run_history import LastRuns
    from chronolake.pipeline.runs import StreamRun, VerificationResult
    from chronolake.types import TableName


@dataclass(frozen=True)
class WaitingFiles:
    """Files that have landed but were not applied yet.

    Attributes:
        files: their number.
        bytes: their size.
        late: number of further files that runs skip, because they appeared among files that had
            been applied before. Counted only where the format allows such files (Data Lake v1).
        limits: what the files cannot guarantee (`ObjectFolder.limits`).
    """

    files: int
    bytes: int
    late: int = 0
    limits: tuple[str, ...] = ()


@dataclass(frozen=True)
class StreamProperties:
    """A table's properties about the stream that writes it, published with its rows.

    Attributes:
        name: the table.
        stream: `pipeline/stream`; None if no pipeline writes the table.
        capture_method: how the stream captures changes (`source.protocol.CaptureMethod`), or None.
        folder: the folder of the files that the table is built from, or None.
        applied: those of these files that were applied.
    """

    name: TableName
    stream: str | None = None
    capture_method: str | None = None
    folder: str | None = None
    applied: AppliedFiles = field(default_factory=AppliedFiles)

    @classmethod
    def of(cls, table: CatalogTable) -> Self:
        """Return the stream properties of a table."""
        properties = table.iceberg.properties
        names = (STREAM_PROPERTY, CAPTURE_METHOD_PROPERTY, LAKE_PROPERTY)
        stream, capture_method, folder = (properties.get(name) for name in names)
        applied = AppliedFiles.from_properties(properties.get)
        return cls(table.name, stream, capture_method, folder, applied)


@dataclass(frozen=True)
class Freshness:
    """The state of a table, except for its rows.

    Attributes:
        stream_properties: the table's properties about its stream.
        pipeline: the pipeline that writes it, or None.
        stream: the stream of that pipeline, or None.
        fresh_as_of: when the last successful run began: the table contains all source data as of
            that time. None if there was no such run or it is unknown.
        behind_seconds: age of that time in seconds, or None.
        waiting: landed files that were not applied; None if the folder cannot be read.
        last: the stream's last run, or None.
        verified: the last result of `chronolake verify`, or None.
    """

    stream_properties: StreamProperties
    pipeline: str | None = None
    stream: str | None = None
    fresh_as_of: str | None = None
    behind_seconds: float | None = None
    waiting: WaitingFiles | None = None
    last: StreamRun | None = None
    verified: VerificationResult | None = None


def freshness(
    config: LakeConfig, tables: Iterable[StreamProperties], *, with_waiting: bool = True
) -> dict[TableName, Freshness]:
    """Return the freshness of tables by name.

    Args:
        config: the lake.
        tables: properties of tables; they are valid until the tables are published again.
        with_waiting: whether to list folders of landed files, some for each table.

    Raises:
        LakeError: the operational store is not reachable.
    """
    # Names may contain slashes, so only the joined name identifies the stream.
    runs_by_stream = {"/".join(key): (key, last) for key, last in last_runs(config).items()}
    checked = last_verifications(config)
    return {
        table.name: _freshness(
            table,
            runs_by_stream,
            checked.get(str(table.name)),
            config.object_storage if with_waiting else None,
        )
        for table in tables
    }


def waiting_in(folder: ObjectFolder, applied: AppliedFiles) -> WaitingFiles:
    """Return the files in a folder that a table does not contain (`ObjectFolder.files`).

    Raises:
        SourceError: the folder cannot be read.
    """
    may_be_late = bool(folder.limits)
    files = folder.files(after=None if may_be_late else applied.watermark)
    late = max(0, -applied.count_missing(files)) if may_be_late else 0
    waiting = files[len(files_up_to(files, applied.watermark)) :]
    return WaitingFiles(len(waiting), sum(file.size for file in waiting), late, folder.limits)


def _freshness(
    table: StreamProperties,
    runs_by_stream: dict[str, tuple[tuple[str, str], LastRuns]],
    checked: VerificationResult | None,
    storage: StorageConfig | None,
) -> Freshness:
    if table.stream is None:
        return Freshness(table, verified=checked)
    pipeline, _, stream = table.stream.partition("/")
    (pipeline, stream), found = runs_by_stream.get(table.stream, ((pipeline, stream), None))
    fresh = None if found is None else found.fresh_as_of
    return Freshness(
        table,
        pipeline,
        stream,
        fresh,
        behind_seconds(fresh),
        None if storage is None else _waiting_files(table, storage),
        None if found is None else found.last,
        checked,
    )


def _waiting_files(table: StreamProperties, storage: StorageConfig) -> WaitingFiles | None:
    folder = None if table.folder is None else folder_at(location_of(table.folder, storage))
    if folder is None or not (folder.is_in_bucket or folder.local_path.is_dir()):
        return None
    try:
        return waiting_in(folder, table.applied)
    except (SourceError, ObjectStoreError):
        # It was just removed, or the reader has no permission.
        return None
