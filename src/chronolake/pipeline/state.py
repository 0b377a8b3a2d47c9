"""Offsets of a pipeline's tables: reported without Spark, moved with Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import orjson

from chronolake import inspect
from chronolake.errors import TableNotFoundError
from chronolake.inspect.catalog import look_up
from chronolake.landing import Quarantine
from chronolake.pipeline.applied_files import AppliedFiles
from chronolake.pipeline.properties import (
    CAPTURE_METHOD_PROPERTY,
    LEASE_PROPERTY,
    NAMES_PROPERTY,
    WATERMARK_PROPERTY,
)
from chronolake.pipeline.streams import expect_filled_by, key_error
from chronolake.types import STREAM_PROPERTY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from chronolake.config import LakeConfig
    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake
    from chronolake.pipeline.lease import Lease
    from chronolake.pipeline.streams import Stream
    from chronolake.source.protocol import DescribedStream
    from chronolake.types import Mode


@dataclass(frozen=True)
class StreamOffset:
    """The current state of a stream's table.

    Attributes:
        mode: the table's mode; None if the table does not exist yet.
        capture_method: the table's property of how its stream captures changes.
        owner: the `pipeline/stream` that writes the table, or None.
        key: the columns that identify a record in the table.
        columns: all of its columns.
        numbers: numbers that identify renamed columns, by their names in the table.
        applied: the files that the table was built from.
    """

    stream: Stream
    mode: Mode | None = None
    capture_method: str | None = None
    owner: str | None = None
    key: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)
    applied: AppliedFiles = field(default_factory=AppliedFiles)

    @property
    def watermark(self) -> str | None:
        """Return the file after which the next ones are applied, or None."""
        return self.applied.watermark

    @property
    def quarantine(self) -> Quarantine:
        """Return the files that were left out of the table."""
        return self.applied.quarantine or Quarantine()


def table_offsets(config: LakeConfig, streams: Iterable[Stream]) -> list[StreamOffset]:
    """Return the offsets of streams' tables, without Spark.

    Raises:
        LakeError: the catalog is not reachable.
    """
    existing = set(inspect.names(config)) if _lake_exists(config) else set()
    return [
        _read_offset(config, stream) if stream.table in existing else StreamOffset(stream)
        for stream in streams
    ]


def _lake_exists(config: LakeConfig) -> bool:
    # A project whose pipelines have never run does not have a lake yet.
    return config.catalog.uri is not None or config.catalog_file.is_file()


def _read_offset(config: LakeConfig, stream: Stream) -> StreamOffset:
    found = look_up(config, stream.table)
    properties = found.iceberg.properties
    return StreamOffset(
        stream,
        found.mode,
        properties.get(CAPTURE_METHOD_PROPERTY),
        properties.get(STREAM_PROPERTY),
        found.key,
        tuple(column.name for column in found.columns),
        {
            name: int(number)
            for number, name in orjson.loads(properties.get(NAMES_PROPERTY) or "{}").items()
        },
        AppliedFiles.from_properties(properties.get),
    )


def expect_free(position: StreamOffset) -> None:
    """Raise if a table exists and another stream, or none, writes it.

    Raises:
        TableExistsError: another stream writes it, or it was not created by a pipeline.
    """
    if position.mode is not None:
        expect_filled_by(position.stream, position.owner)


def expect_known(stream: Stream, described_stream: DescribedStream) -> None:
    """Raise if a setting of a stream names a column that its source does not declare.

    Raises:
        ConfigurationError: it does.
    """
    known = [column.name for column in described_stream.columns]
    stream.rules.expect_known([*known, *described_stream.excluded], place=stream.place)
    names = [column.name for column in stream.rules.columns(described_stream.columns)]
    stream.names.expect_known(names, place=stream.place)
    stream.types.expect_known(known, place=stream.place)
    if stream.tracked is not None:
        stream.tracked.expect_known(names, place=stream.place)


def expect_described(config: LakeConfig, stream: Stream, described_stream: DescribedStream) -> None:
    """Raise if columns are invalid for a stream's table, or if the table has another key.

    Args:
        config: the lake.
        described_stream: the columns that its source declares.

    Raises:
        ConfigurationError: a name is reserved, duplicate or missing, or a column of the key is
            excluded or masked.
        SourceError: the table identifies records by other columns.
    """
    expect_known(stream, described_stream)
    key = [column.name for column in described_stream.columns if column.primary_key]
    stream.rules.expect_stored(key, place=stream.place)
    columns = stream.rules.columns(described_stream.columns)
    names = [column.name for column in columns]
    stream.names.expect_fit(names, place=stream.place)
    (position,) = table_offsets(config, [stream])
    if position.mode is None or position.owner != stream.identity:
        return
    now = stream.names.lake_names(names)
    lake_names = {name: now.get(name, name) for name in names}
    numbers = described_stream.numbers or {}
    by_number = {number: lake_names[name] for name, number in numbers.items()}
    key = [lake_names[name] for name in key]
    stored = []
    for name in position.key:
        other = by_number.get(position.numbers.get(name, 0), name)
        # The source has renamed the column; the next run renames it in the table.
        is_renamed = name not in lake_names.values() and other not in position.columns
        stored.append(other if is_renamed else name)
    if set(stored) != set(key):
        raise key_error(stream, key, stored)


def move_watermark(lake: Lake, stream: Stream, lease: Lease, watermark: str | None) -> None:
    """Move the watermark of a stream's table to another file of its lake.

    Moving it back is harmless: applying files again changes nothing. Skipped files are missing in
    the table until it is rebuilt.

    Args:
        lease: the lease of its pipeline.
        watermark: the last file that counts as applied, or None.

    Raises:
        TableNotFoundError: the stream does not have a table yet.
        TableExistsError: the table has another owner.
        SourceError: the lake does not have this file.
        LeaseLostError: another process runs the pipeline.
        CommitError: the watermark could not be published.
    """
    from chronolake.core.publish import publish  # noqa: PLC0415 - only this function needs Spark

    if watermark is not None:
        stream.folder.expect(watermark)
    files = stream.folder.files()
    with lake.writing(stream.table):
        table = lake.catalog.find(stream.table)
        if table is None:
            raise TableNotFoundError(
                "The stream has no table yet.",
                table=str(stream.table),
                hint=f"Run `chronolake sync {stream.pipeline}` first.",
            )
        expect_filled_by(stream, table.property_of(STREAM_PROPERTY))

        def set_watermark(current: IcebergTable) -> object:
            lease.guard(current)
            made = AppliedFiles.of(current).move_watermark(watermark, files)
            builder = current.builder()
            if watermark is None:
                builder.removeProperties(current.catalog.set([WATERMARK_PROPERTY]))
            return builder.setProperties(current.catalog.map(made.properties))

        publish(table, set_watermark, {LEASE_PROPERTY: str(lease.token)})
