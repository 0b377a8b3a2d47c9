"""What a table that is pulled consists of, as far as its versions are concerned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chronolake.changes import MODIFIED
from chronolake.table import untold
from chronolake.types import ACTIVE, DELETED, END, HASH, START, SYNCED, VERSION, Mode

if TYPE_CHECKING:
    from chronolake.table.untold import UntoldColumn
    from chronolake.types import Column


@dataclass(frozen=True)
class Layout:
    """A table that is pulled, as far as its versions are concerned.

    Attributes:
        key: the columns that identify a record.
        data: the columns that landed rows have, the key among them.
        mode: the table's mode.
        epsilon: microseconds between a version's end and the start of the next.
        erased: the data columns that a purge empties in the versions that it ends.
        untold: the data columns of which some row of the table, or a landed one, said nothing.
        has_marks: whether there may be marks among the rows.
        hashed: the data columns that a row's hash is made of, in their order; None: it has none.
    """

    key: tuple[str, ...]
    data: tuple[str, ...]
    mode: Mode
    epsilon: int
    erased: tuple[str, ...] = ()
    untold: tuple[str, ...] = ()
    has_marks: bool = True
    hashed: tuple[Column, ...] | None = None

    @property
    def untold_columns(self) -> tuple[UntoldColumn, ...]:
        """The columns of `untold`, with what succession keeps of each."""
        return untold.numbered(self.untold)

    @property
    def system(self) -> tuple[str, ...]:
        """The columns that the table has besides."""
        by_mode = {
            Mode.HISTORY: (START, END, ACTIVE),
            Mode.SOFT_DELETE: (DELETED,),
            Mode.LIVE: (),
        }
        return (*by_mode[self.mode], SYNCED, VERSION, *((HASH,) if self.hashed else ()))

    @property
    def counted(self) -> tuple[str, ...]:
        """The columns that tell apart what counts as a row that was written."""
        return (*self.key, MODIFIED) if self.mode is Mode.HISTORY else self.key

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of the table, in its order."""
        return (*self.data, *self.system)
