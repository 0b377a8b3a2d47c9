"""How far the tables of a pipeline are: shown without Spark, moved with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import orjson

from chronolake import inspect
from chronolake.errors import TableNotFoundError
from chronolake.inspect.catalog import look_up
from chronolake.landing import QUARANTINED_PROPERTY, Quarantine
from chronolake.pipeline.applied_files import MadeOf
from chronolake.pipeline.properties import (
    LEASE_PROPERTY,
    NAMES_PROPERTY,
    SIGHT_PROPERTY,
    WATERMARK_PROPERTY,
)
from chronolake.pipeline.streams import expect_filled_by, other_key
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
    """A stream's table as it is now.

    Attributes:
        stream: the stream.
        watermark: the file after which the next ones are applied, or None.
        mode: the table's mode, or None: there is no table yet.
        capture_method: what the table says that its stream can see.
        owner: `pipeline/stream` that fills the table, or None.
        quarantine: the files that the table is made without.
        key: the columns that identify a record in the table.
        columns: all of its columns.
        numbers: what tells columns apart that get other names, by their names in the table.
    """

    stream: Stream
    watermark: str | None = None
    mode: Mode | None = None
    capture_method: str | None = None
    owner: str | None = None
    quarantine: Quarantine = field(default_factory=Quarantine)
    key: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)


def positions(config: LakeConfig, streams: Iterable[Stream]) -> list[StreamOffset]:
    """How far the tables of streams are. No Spark is started.

    Raises:
        LakeError: the catalog does not answer.
    """
    there = set(inspect.names(config)) if _is_there(config) else set()
    return [
        _position(config, stream) if stream.table in there else StreamOffset(stream)
        for stream in streams
    ]


def _is_there(config: LakeConfig) -> bool:
    # A project whose pipelines have never run has no lake yet.
    return config.catalog.uri is not None or config.catalog_file.is_file()


def _position(config: LakeConfig, stream: Stream) -> StreamOffset:
    found = look_up(config, stream.table)
    reported = found.table.properties
    return StreamOffset(
        stream,
        reported.get(WATERMARK_PROPERTY),
        found.mode,
        reported.get(SIGHT_PROPERTY),
        reported.get(STREAM_PROPERTY),
        Quarantine.from_json(reported.get(QUARANTINED_PROPERTY)),
        found.key,
        tuple(column.name for column in found.columns),
        {
            name: int(number)
            for number, name in orjson.loads(reported.get(NAMES_PROPERTY) or "{}").items()
        },
    )


def expect_free(position: StreamOffset) -> None:
    """Refuse a table that is there and not filled by its stream.

    Raises:
        TableExistsError: it is filled by another one, or was made in another way.
    """
    if position.mode is not None:
        expect_filled_by(position.stream, position.owner)


def expect_described(config: LakeConfig, stream: Stream, described: DescribedStream) -> None:
    """Refuse columns that a stream's table cannot have, or another key than it has.

    Args:
        config: the lake.
        stream: the stream.
        described: what its source declares.

    Raises:
        ConfigurationError: a name is reserved, doubled or not there.
        SourceError: the table identifies a record by other columns.
    """
    names = [column.name for column in described.columns]
    stream.names.expect_known(names, place=stream.place)
    stream.names.expect_fit(names, place=stream.place)
    (position,) = positions(config, [stream])
    if position.mode is None or position.owner != stream.identity:
        return
    now = stream.names.now(names)
    called = {name: now.get(name, name) for name in names}
    numbers = described.numbers or {}
    by_number = {number: called[name] for name, number in numbers.items()}
    key = [called[column.name] for column in described.columns if column.primary_key]
    stored = []
    for name in position.key:
        other = by_number.get(position.numbers.get(name, 0), name)
        # The source has given the column another name, which the next run brings.
        is_renamed = name not in called.values() and other not in position.columns
        stored.append(other if is_renamed else name)
    if set(stored) != set(key):
        raise other_key(stream, key, stored)


def move(lake: Lake, stream: Stream, lease: Lease, watermark: str | None) -> None:
    """Say that a stream's table is at another file of its lake.

    Back is harmless: what is applied again changes nothing. What is skipped is not in the table
    until it is rebuilt.

    Args:
        lake: the lake.
        stream: the stream.
        lease: the right to run its pipeline.
        watermark: the last file that counts as applied, or None: nothing does.

    Raises:
        TableNotFoundError: the stream has no table yet.
        TableExistsError: the table is filled by something else.
        SourceError: there is no such file in the lake.
        LeaseLostError: another process runs the pipeline.
        CommitError: the position could not be published.
    """
    from chronolake.core.publish import publish  # noqa: PLC0415 - only this needs Spark

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

        def moved(current: IcebergTable) -> object:
            lease.guard(current)
            made = MadeOf.told_by(current).moved(watermark, files)
            builder = current.builder()
            if watermark is None:
                builder.removeProperties(current.catalog.set([WATERMARK_PROPERTY]))
            return builder.setProperties(current.catalog.map(made.properties))

        publish(table, moved, {LEASE_PROPERTY: str(lease.token)})
