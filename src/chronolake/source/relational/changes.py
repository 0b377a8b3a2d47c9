"""Changes of rows in the log of a database, as Arrow columns of texts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence


Bytes: TypeAlias = NDArray[np.uint8]
Places: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]


class Operation(IntEnum):
    """What was done to a row."""

    INSERT = ord("I")
    UPDATE = ord("U")
    DELETE = ord("D")


class RelationColumn(Protocol):
    """A column of a table as the log describes it."""

    @property
    def name(self) -> str:
        """Return its name."""
        ...

    @property
    def is_identity(self) -> bool:
        """Return whether old rows contain it at least: it belongs to the key in the log."""
        ...

    def as_text(self) -> Self:
        """Return the column with texts instead of its values."""
        ...


class Relation(Protocol):
    """A table's description that applies to the changes after it."""

    @property
    def columns(self) -> Sequence[RelationColumn]:
        """Return its columns, in the order of the values in rows."""
        ...


@dataclass(frozen=True)
class Cells:
    """One column of some rows.

    Attributes:
        texts: the values; null if the value is null or was not sent.
        is_unchanged: flags of values that were not sent.
        is_invalid: flags of values that are invalid in the encoding in which they were sent, and
            therefore null here; None if all are valid.
    """

    texts: pa.Array
    is_unchanged: Flags
    is_invalid: Flags | None = None

    @classmethod
    def nulls(cls, rows: int) -> Cells:
        """Return cells for rows that do not exist."""
        return cls(pa.nulls(rows, pa.string()), np.zeros(rows, np.bool_))

    def scatter(self, where: Flags) -> Cells:
        """Return these rows at the flagged positions, and nulls at the others."""
        numbers = np.cumsum(where) - 1
        texts = self.texts.take(pa.array(numbers, mask=~where))
        is_unchanged = np.zeros(len(where), np.bool_)
        is_unchanged[where] = self.is_unchanged
        is_invalid = None
        if self.is_invalid is not None:
            is_invalid = np.zeros(len(where), np.bool_)
            is_invalid[where] = self.is_invalid
        return Cells(texts, is_unchanged, is_invalid)


class RowChanges(Protocol):
    """Changes of rows of one relation, in the order in which they were made."""

    @property
    def relation(self) -> Relation:
        """Return the relation's description at that time."""
        ...

    @property
    def kinds(self) -> Bytes:
        """Return the `Operation` of each change."""
        ...

    @property
    def transactions(self) -> Places:
        """Return the indexes of their transactions in the batch."""
        ...

    @property
    def ordinals(self) -> Places:
        """Return their positions in their transactions; they increase, with gaps."""
        ...

    @property
    def new(self) -> tuple[Cells, ...]:
        """Return the columns of the new rows; all null in deletes."""
        ...

    @property
    def old(self) -> tuple[Cells, ...]:
        """Return the columns of the old rows; all null where the old row was not sent."""
        ...

    @property
    def has_old(self) -> Flags:
        """Return flags of changes with an old row: its key, or all of it."""
        ...

    @property
    def has_full_old(self) -> Flags:
        """Return flags of changes with the complete old row."""
        ...

    @property
    def number(self) -> int:
        """Return the number of changes."""
        ...
