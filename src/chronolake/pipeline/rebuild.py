"""A stream's table made anew of all that its lake holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronolake.errors import SourceError
from chronolake.iceberg import SCRATCH_SCHEMA
from chronolake.pipeline.filling import Filling, columns_for, expect_own, write
from chronolake.pipeline.properties import WATERMARK_PROPERTY
from chronolake.rawlake import landing
from chronolake.table.aside import expect_replaceable, lasting_properties, take_place
from chronolake.table.rewrite import drop_abandoned, folder_in
from chronolake.table.staging import stage_name
from chronolake.types import TableName

if TYPE_CHECKING:
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
    hidden = TableName(SCRATCH_SCHEMA, stage_name())
    filling = Filling(lake, stream, lease)
    try:
        filling.create(
            hidden,
            columns_for(stream, landed.seen),
            properties=lasting_properties(table),
            location=folder_in(table),
        )
        written = write(filling, hidden, landed, landed.seen)
        with lake.writing(stream.table):
            lease.guard(lake.catalog.load(stream.table))
            take_place(table, lake.catalog.load(hidden))
    finally:
        # Its files are the table's by now, or orphans in its folder that maintenance removes.
        lake.catalog.drop(hidden, purge=False)
    return written
