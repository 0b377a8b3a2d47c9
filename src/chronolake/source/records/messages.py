"""What a source of single records reports while it is read, in the order of its reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pyarrow as pa

    from chronolake.errors import ChronolakeError
    from chronolake.types import ColumnType


@dataclass(frozen=True)
class Records:
    """Records of a stream.

    Attributes:
        stream: the stream's name.
        rows: the records: their fields by name, with values as JSON has them, or as Arrow columns.
        omit_others: whether fields that a record does not contain keep their stored values.
    """

    stream: str
    rows: Sequence[dict[str, Any]] | pa.RecordBatch
    omit_others: bool = False


@dataclass(frozen=True)
class Deletions:
    """Records that no longer exist.

    Attributes:
        stream: the stream's name.
        keys: the fields of their keys.
    """

    stream: str
    keys: Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Emptied:
    """All records of a stream were deleted; the ones that follow are new."""

    stream: str


@dataclass(frozen=True)
class Restarted:
    """All records of a stream follow, until it is complete: others were deleted."""

    stream: str


@dataclass(frozen=True)
class Declared:
    """The types of a stream's fields as the source declares them.

    Attributes:
        stream: the stream's name.
        types: the types, by field.
        fields: all fields that the source has from now on; None: those declared before, and these.
    """

    stream: str
    types: Mapping[str, ColumnType]
    fields: frozenset[str] | None = None


@dataclass(frozen=True)
class Progress:
    """A state from which reading can continue after all records before it.

    Attributes:
        state: a value that JSON can represent.
        stream: the stream whose state it is; None if streams share it.
        sharing: the streams that share it; None: all.
        part: its name, if only some streams share it. Then the state that all streams share is a
            mapping with the states of all parts.
    """

    state: Any
    stream: str | None = None
    sharing: Collection[str] | None = None
    part: str | None = None

    def covers(self, stream: str) -> bool:
        """Return whether a shared state is that of a stream, too."""
        return self.sharing is None or stream in self.sharing


@dataclass(frozen=True)
class Complete:
    """The end of a stream: all of its records were read."""

    stream: str


@dataclass(frozen=True)
class Failure:
    """The failure of one stream. Other streams continue."""

    stream: str
    error: ChronolakeError


Message: TypeAlias = (
    Records | Deletions | Emptied | Restarted | Declared | Progress | Complete | Failure
)
