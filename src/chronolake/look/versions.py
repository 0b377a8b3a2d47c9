"""A record's versions: kept as Arrow has them, and made into Python's values a few at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Final, overload

import numpy as np
import pyarrow as pa

from chronolake.cells import Cell, cells, instant
from chronolake.types import ACTIVE, END, HASH, HISTORY_COLUMNS, START, SYNCED, VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_NOT_SHOWN: Final = {*HISTORY_COLUMNS, SYNCED, VERSION, HASH}
#: So many values are made at once where all versions are gone through.
_CELLS_AT_ONCE: Final = 50_000


class Ending(StrEnum):
    """How a version ended."""

    ACTIVE = "active"
    REPLACED = "replaced"
    DELETED = "deleted"


@dataclass(frozen=True)
class Change:
    """One column that differs from the version before."""

    column: str
    old: Cell
    new: Cell


@dataclass(frozen=True)
class Version:
    """One version of a record, or the only row of a table that keeps none.

    Attributes:
        start: ISO instant; None in a table without history.
        end: ISO instant; None in a table without history.
        ending: still active, replaced by the next version, or deleted.
        synced: when the sync that sent it started, or None.
        values: all columns except the history columns and `_fivetran_synced`, in table order.
        changes: what differs from the version before; empty for the first one.
    """

    start: str | None
    end: str | None
    ending: Ending
    synced: Cell
    values: dict[str, Cell]
    changes: tuple[Change, ...]


class StoredVersions(Sequence[Version]):
    """The versions of one record of a table in history mode, by start.

    Args:
        rows: the versions, with the table's columns, in any order; one at least.
        epsilon: microseconds between a version's end and the start of the next.
    """

    def __init__(self, rows: pa.Table, epsilon: int) -> None:
        self._rows = rows.sort_by([(START, "ascending"), (END, "ascending")]).combine_chunks()
        self._shown = [name for name in rows.column_names if name not in _NOT_SHOWN]
        self._starts = _micros(self._rows[START])
        self._ends = _micros(self._rows[END])
        self._endings = self._ended(epsilon)
        #: By column: which versions say something else than the one before.
        self._differs = {name: _differing(self._rows[name]) for name in self._shown}

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def __iter__(self) -> Iterator[Version]:
        at_once = max(1, _CELLS_AT_ONCE // max(1, len(self._shown)))
        for first in range(0, len(self), at_once):
            yield from self._made(first, min(first + at_once, len(self)))

    @overload
    def __getitem__(self, place: int) -> Version: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Version]: ...
    def __getitem__(self, place: int | slice) -> Version | Sequence[Version]:
        if isinstance(place, slice):
            wanted = range(*place.indices(len(self)))
            if wanted and wanted.step == 1:
                return self._made(wanted.start, wanted.stop)
            return [self[one] for one in wanted]
        first = place + len(self) if place < 0 else place
        if not 0 <= first < len(self):
            raise IndexError(place)
        return self._made(first, first + 1)[0]

    def outline(self) -> tuple[Version, ...]:
        """The versions without their values; a change tells its column only."""
        changes: list[list[Change]] = [[] for _ in range(len(self))]
        for name, differs in self._differs.items():
            change = Change(name, None, None)
            for place in np.flatnonzero(differs):
                changes[place].append(change)
        return tuple(
            Version(*self._life(place), None, {}, tuple(some)) for place, some in enumerate(changes)
        )

    def _made(self, first: int, last: int) -> list[Version]:
        """The versions from one place to another."""
        begin = max(0, first - 1)  # What was before tells what changed.
        rows = self._rows.slice(begin, last - begin)
        values = {name: cells(rows[name]) for name in self._shown}
        synced = cells(rows[SYNCED]) if SYNCED in rows.column_names else [None] * rows.num_rows
        made = []
        for place in range(first, last):
            here = place - begin
            made.append(
                Version(
                    *self._life(place),
                    synced[here],
                    {name: column[here] for name, column in values.items()},
                    tuple(
                        Change(name, values[name][here - 1], values[name][here])
                        for name in self._shown
                        if self._differs[name][place]
                    ),
                )
            )
        return made

    def _life(self, place: int) -> tuple[str | None, str | None, Ending]:
        return (
            _instant(self._starts[place]),
            _instant(self._ends[place]),
            self._endings[place],
        )

    def _ended(self, epsilon: int) -> list[Ending]:
        active = self._rows[ACTIVE].to_pylist()
        following = [*self._starts[1:], None]
        return [
            _ending(*known, epsilon) for known in zip(active, self._ends, following, strict=True)
        ]


def as_they_are(rows: pa.Table) -> tuple[Version, ...]:
    """The rows of a record of a table without history."""
    columns = {name: cells(rows[name]) for name in rows.column_names}
    synced = columns.get(SYNCED, [None] * rows.num_rows)
    shown = {name: column for name, column in columns.items() if name not in _NOT_SHOWN}
    return tuple(
        Version(
            None,
            None,
            Ending.ACTIVE,
            synced[place],
            {name: column[place] for name, column in shown.items()},
            (),
        )
        for place in range(rows.num_rows)
    )


def _micros(values: pa.ChunkedArray) -> list[int | None]:
    micros: list[int | None] = values.cast(pa.int64()).to_pylist()
    return micros


def _differing(values: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Which values differ from the one before, as a person sees them."""
    shown = cells(values)
    differs = np.zeros(len(shown), np.bool_)
    for place, (old, new) in enumerate(pairwise(shown), start=1):
        differs[place] = old != new or type(old) is not type(new)
    return differs


def _instant(micros: int | None) -> str | None:
    return None if micros is None else instant(micros)


def _ending(
    active: bool | None,  # noqa: FBT001
    end: int | None,
    following: int | None,
    epsilon: int,
) -> Ending:
    if active:
        return Ending.ACTIVE
    if following is not None and end is not None and following - end <= epsilon:
        return Ending.REPLACED
    return Ending.DELETED
