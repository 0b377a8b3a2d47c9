"""What a pipeline reads: a source says which streams it has, and what can be known of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chronolake.limits import StreamTraits
    from chronolake.rawlake import ObjectFolder


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
    """

    traits: StreamTraits
    sight: Sight
    epsilon_micros: int
    folder: ObjectFolder


class Source(Protocol):
    """A place that a pipeline brings streams from."""

    def offered(self) -> Sequence[OfferedStream]:
        """The streams that the configuration wants of it.

        Raises:
            ConfigurationError: one that is wanted is not there.
            SourceError: the source cannot be read.
        """
        ...
