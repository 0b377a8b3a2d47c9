"""What a source gives into the raw lake, before any table sees it.

A stream's position in its source is stored when the files that it stands for have landed, and only
then is the source told that it may forget. A run that dies in between brings the same once more,
which changes nothing: what landed twice counts once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from chronolake.failpoints import reach
from chronolake.rawlake import land

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chronolake.lake import Lake
    from chronolake.pipeline.lease import Lease
    from chronolake.pipeline.store import Store
    from chronolake.pipeline.streams import Stream
    from chronolake.source.offered import PulledSource

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Landed:
    """What one step brought: number of files, and their size in bytes."""

    files: int
    bytes: int


def land_new(
    lake: Lake, stream: Stream, source: PulledSource, lease: Lease, store: Store
) -> Iterator[Landed]:
    """Land what a source has by now that it did not have at the last checkpoint.

    Args:
        lake: the lake whose Spark does the work.
        stream: the stream.
        source: its source.
        lease: the right to run its pipeline.
        store: where its checkpoint is.

    Raises:
        LeaseLostError: another process runs the pipeline; nothing of the step has appeared, or it
            will be brought once more.
        BatchError: a version lacks its key, its time or its sequence.
        SchemaError: the source declares fields that a data lake cannot have.
        LakeError: the store does not answer.
        Exception: whatever the source raises. What landed before stays, with its checkpoint.
    """
    position = store.checkpoint(stream.pipeline, stream.name)
    if position is not None:
        # The last run may have died before it could say so.
        source.landed(stream.offered, position)
    for piece in source.bring(lake, stream.offered, position):
        files = land(piece.versions, piece.columns, stream.folder, guard=lease.expect_held)
        reach("land.done")
        store.put_checkpoint(stream.pipeline, stream.name, piece.position, token=lease.token)
        reach("land.checkpointed")
        source.landed(stream.offered, piece.position)
        step = Landed(len(files), sum(file.size for file in files))
        log.info(
            "versions_landed",
            pipeline=stream.pipeline,
            stream=stream.name,
            files=step.files,
            bytes=step.bytes,
            position=piece.position,
        )
        yield step
