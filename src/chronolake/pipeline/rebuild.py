"""A stream's table made anew of all that its lake holds."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chronolake.errors import SourceError, TableNotFoundError
from chronolake.iceberg import SCRATCH_SCHEMA
from chronolake.pipeline.filling import Filling, columns_for, expect_own, seen_of, write
from chronolake.pipeline.properties import WATERMARK_PROPERTY
from chronolake.rawlake import landing, united
from chronolake.session import CATALOG
from chronolake.table.aside import expect_replaceable, lasting_properties, take_place
from chronolake.table.rewrite import drop_abandoned, folder_in
from chronolake.table.sql import listed
from chronolake.table.staging import stage_name
from chronolake.types import SYNCED, TableName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake
    from chronolake.pipeline.lease import Lease
    from chronolake.pipeline.streams import Stream
    from chronolake.rawlake import DataFile


def rebuild(lake: Lake, stream: Stream, lease: Lease, *, upto: DataFile | None = None) -> int:
    """Make a stream's table anew from all of its files, and swap it in, in one step.

    Readers see the old table until then. A crash leaves it as it was.

    Args:
        lake: the lake.
        stream: the stream; its table exists.
        lease: the right to run its pipeline.
        upto: the last file to apply; by default the table's watermark.

    Returns:
        Number of rows of the table.

    Raises:
        SourceError: a file cannot be read, or there is none.
        LakeError: the table is in a REST catalog.
        LeaseLostError: another process runs the pipeline.
        CommitConflictError: another writer published meanwhile; the table is as it was.
    """
    expect_replaceable(lake, stream.table)
    drop_abandoned(lake)
    table = lake.catalog.load(stream.table)
    expect_own(table, stream)
    lease.guard(table)
    last = upto.mark if upto is not None else table.property_of(WATERMARK_PROPERTY)
    with _made_of_lake(Filling(lake, stream, lease), table, last) as (made, written):
        with lake.writing(stream.table):
            lease.guard(lake.catalog.load(stream.table))
            take_place(table, made)
        return written


@dataclass(frozen=True)
class Differences:
    """How a table differs from what its lake says.

    Attributes:
        rows: rows of the table.
        missing: rows that the lake has, up to the table's watermark, and the table has not.
        extra: rows that the table has, and the lake has not.
    """

    rows: int
    missing: int
    extra: int


def differences(lake: Lake, stream: Stream, lease: Lease) -> Differences:
    """Compare a stream's table with one that is made of its lake, by all that the lake tells.

    Raises:
        SourceError: a file cannot be read, or there is none.
        TableNotFoundError: the stream has no table yet.
    """
    drop_abandoned(lake)
    table = lake.catalog.find(stream.table)
    if table is None:
        raise TableNotFoundError(
            "The stream has no table yet.",
            table=str(stream.table),
            hint=f"Run `chronolake sync {stream.pipeline}` first.",
        )
    expect_own(table, stream)
    last = table.property_of(WATERMARK_PROPERTY)
    with _made_of_lake(Filling(lake, stream, lease), table, last) as (made, _):
        # When a row was synced is nothing that the lake knows.
        names = [field.name for field in table.fields if field.name != SYNCED]
        ours, theirs = (
            f"SELECT {listed(names)} FROM {CATALOG}.{name.sql}"
            for name in (stream.table, made.name)
        )
        (found,) = lake.spark.sql(
            f"SELECT (SELECT count(1) FROM ({ours})) AS rows, "
            f"(SELECT count(1) FROM ({theirs} EXCEPT ALL {ours})) AS missing, "
            f"(SELECT count(1) FROM ({ours} EXCEPT ALL {theirs})) AS extra"
        ).collect()
    return Differences(found["rows"], found["missing"], found["extra"])


@contextmanager
def _made_of_lake(
    filling: Filling, table: IcebergTable, last: str | None
) -> Iterator[tuple[IcebergTable, int]]:
    """A hidden table of all files up to one, and the number of its rows."""
    lake, stream = filling.lake, filling.stream
    every = stream.folder.files()
    place = next((number for number, file in enumerate(every) if file.mark == last), None)
    if place is None:
        raise SourceError(
            "The last file that the table has is not in the lake any more."
            if last
            else "Nothing was applied to the table yet.",
            table=str(stream.table),
            file=last,
            hint="Restore the lake's files: the table can only be made of what they hold.",
        )
    landed = landing(lake.spark, every[: place + 1])
    # Columns stay where they are in the table.
    seen = united({name: frozenset() for name in seen_of(table)}, landed.seen)
    hidden = TableName(SCRATCH_SCHEMA, stage_name())
    try:
        filling.create(
            hidden,
            columns_for(stream, seen),
            properties=lasting_properties(table),
            location=folder_in(table),
        )
        written = write(filling, hidden, landed, seen, counts=False)
        yield lake.catalog.load(hidden), written
    finally:
        # Its files are the table's by now, or orphans in its folder that maintenance removes.
        lake.catalog.drop(hidden, purge=False)
