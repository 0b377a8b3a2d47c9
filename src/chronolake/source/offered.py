"""What a pipeline reads: a source says which streams it has, and what can be known of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from chronolake.rawlake import ObjectFolder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame

    from chronolake.config import Project
    from chronolake.lake import Lake
    from chronolake.limits import StreamTraits
    from chronolake.types import Column

#: How far a stream has come in its source, in the source's own terms: what JSON can hold.
Position = Mapping[str, Any]


class Sight(StrEnum):
    """What a stream can see of the changes in its source."""

    #: Every change, from a log.
    EVERY_CHANGE = "every-change"
    #: The state at each look: what changed back and forth between two looks is not seen.
    OBSERVED_CHANGES = "observed-changes"
    #: What differs between two complete reads.
    SNAPSHOT_DIFF = "snapshot-diff"


@dataclass(frozen=True)
class OfferedStream:
    """A stream as its source declares it.

    Attributes:
        traits: its name, and what decides about its modes.
        sight: what it can see.
        epsilon_micros: microseconds between versions of a record: as fine as the source's times.
        folder: where its record versions are, or land.
        is_ours: whether they land there by ourselves, so that the files are ours to change.
    """

    traits: StreamTraits
    sight: Sight
    epsilon_micros: int
    folder: ObjectFolder
    is_ours: bool = False


class Source(Protocol):
    """A place that a pipeline brings streams from."""

    def offered(self) -> Sequence[OfferedStream]:
        """The streams that the configuration wants of it.

        Raises:
            ConfigurationError: one that is wanted is not there.
            SourceError: the source cannot be read.
        """
        ...


@dataclass(frozen=True)
class Piece:
    """What a source brings at once.

    Attributes:
        versions: record versions (`chronolake.changes`), as `rawlake.land` takes them. What is
            brought twice is the same in key, time, sequence and values.
        columns: the stream's data columns as the source declares them, the key among them.
        position: how far the stream is with these.
    """

    versions: DataFrame
    columns: Sequence[Column]
    position: Position


@runtime_checkable
class PulledSource(Source, Protocol):
    """A source that keeps no lake of its own: what it brings lands in the pipeline's raw lake."""

    def bring(
        self, lake: Lake, stream: OfferedStream, position: Position | None
    ) -> Iterator[Piece]:
        """Bring what a stream has by now, piece by piece.

        Args:
            lake: the lake whose Spark does the work.
            stream: one of those that it offers.
            position: what the last piece that landed said; None: nothing has landed yet.
        """
        ...

    def landed(self, stream: OfferedStream, position: Position) -> None:
        """Be told, perhaps again, that all up to a position is durable and may be forgotten."""
        ...


def raw_folder(project: Project, pipeline: str, stream: str) -> ObjectFolder:
    """Where what is pulled for a stream lands: in the folder `raw` of the project's lake."""
    return ObjectFolder(project.lake.path / "raw", pipeline, stream)
