"""The SCD2 fold of a history batch: a pure function over sorted Arrow rows.

Source: `seeds/history-batch-files.txt`, interpreted as in `chronolake.core.history`. The rows of a
key are its *events*: stored versions, the batch's update, replace and delete rows, and the earliest
starts that it names. They are sorted by time. At equal times a stored version is first, then
updates, then replaces (the last of two rows with equal start wins), then deletes (which end the
version that starts at their time).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronolake.change_set import RESERVED
from chronolake.core.key_groups import NONE, Runs, Unmodified, flags, integers, take
from chronolake.types import ACTIVE, END, EPSILON_MICROS, START, SYNCED, TMAX_MICROS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from chronolake.core.key_groups import Flags, Indices

# Columns of events, in addition to the table's own.
KIND: Final = f"{RESERVED}kind"
TIME: Final = f"{RESERVED}time"
FILE: Final = f"{RESERVED}file"
POSITION: Final = f"{RESERVED}position"

# Columns of the result, in addition to the table's own.
REMOVED: Final = f"{RESERVED}removed"
ADDED: Final = f"{RESERVED}added"
BASELESS: Final = f"{RESERVED}baseless"
IGNORED: Final = f"{RESERVED}ignored"
EARLIEST: Final = f"{RESERVED}earliest"
COUNTED: Final = f"{RESERVED}counted"
CLOSED_AT_START: Final = f"{RESERVED}closed_at_start"

# Kinds of events, in their order at equal times.
STORED: Final = 0
UPDATE: Final = 1
REPLACE: Final = 2
DELETE: Final = 3
EARLIEST_START: Final = 4

_NEVER: Final = np.iinfo(np.int64).max
_UTC: Final = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class Layout:
    """The columns of events.

    Attributes:
        columns: the table's columns.
        carried: the columns that the batch contains, in the order of the unmodified bits.
        key: the columns that identify a record, without `_fivetran_start`.
        unmodified: columns that some update row leaves unmodified.
        epsilon: microseconds between a version's end and the start of the next.
    """

    columns: tuple[str, ...]
    carried: tuple[str, ...]
    key: tuple[str, ...]
    unmodified: frozenset[str]
    epsilon: int = EPSILON_MICROS


def resolve(events: pa.Table, layout: Layout) -> pa.Table:
    """Return the versions that are removed, are added, or cannot be completed.

    `events` are rows sorted by key, `TIME` (microseconds), `KIND` and position in the batch, with
    the table's columns, `UNMODIFIED`, and for stored versions `FILE` and `POSITION`. The time of a
    delete is its end; the time of every other event is its start.

    Returns:
        The table's columns, `FILE` and `POSITION`, and: `REMOVED`, the stored version is removed;
        `ADDED`, the version is written (both: it is rewritten); `BASELESS`, an update without an
        earlier version among the events; `IGNORED`, such an update that nothing else completes
        either; `EARLIEST`, the key's earliest start in microseconds (null for a key that the batch
        only deletes); `COUNTED`, the version is from the batch and did not exist before;
        `CLOSED_AT_START`, the version was active and is closed by a delete from before its start.
    """
    runs = Runs.of(events, layout.key)
    kind, time = integers(events.column(KIND)), integers(events.column(TIME))
    of_batch = (kind == UPDATE) | (kind == REPLACE)
    earliest = runs.least(np.where(of_batch | (kind == EARLIEST_START), time, _NEVER))
    counts = of_batch & ~_is_superseded(runs, of_batch, time)
    removed = (kind == STORED) & (time >= earliest)
    kept = (kind == STORED) & ~removed

    updates = counts & (kind == UPDATE)
    complete = kept | (counts & (kind == REPLACE))
    baseless = updates & (runs.last_before(complete) == NONE)
    other_base = _other_base(runs, time, removed, counts)
    has_other = baseless & (other_base != NONE)
    so_far = runs.count_so_far(has_other)
    # Only the first of a key's baseless updates needs another base: the others build on that one.
    completed = has_other & (so_far == 1)
    ignored = baseless & (so_far == 0)
    added = counts & ~ignored

    versions = kept | added
    # The latest possible end of a version from before the batch's first change.
    before = np.where(earliest == _NEVER, _NEVER, earliest - layout.epsilon)
    ends = _ends(events, runs, versions=versions, kept=kept, before=before, epsilon=layout.epsilon)
    chosen = np.flatnonzero(removed | added | ends.changed | baseless)
    sources = _Sources(
        runs=runs,
        layout=layout,
        bits=Unmodified(events, layout.carried),
        updates=updates,
        completed=completed,
        other_base=other_base,
        known=complete | added,
    )
    return pa.table(
        {
            **{name: take(events, name, sources[name][chosen]) for name in layout.columns},
            END: pa.array(ends.end[chosen]).cast(_UTC),
            ACTIVE: pa.array(ends.active[chosen]),
            FILE: take(events, FILE, chosen),
            POSITION: take(events, POSITION, chosen),
            REMOVED: pa.array((removed | ends.changed)[chosen]),
            ADDED: pa.array((added | ends.changed)[chosen]),
            BASELESS: pa.array(baseless[chosen]),
            IGNORED: pa.array(ignored[chosen]),
            EARLIEST: pa.array(earliest[chosen], mask=earliest[chosen] == _NEVER),
            COUNTED: pa.array((added & ~_is_same_as_stored(events, sources, time, added))[chosen]),
            CLOSED_AT_START: pa.array(ends.closed_at_start[chosen]),
        }
    )


def _is_same_as_stored(
    events: pa.Table, sources: _Sources, time: NDArray[np.int64], added: Flags
) -> Flags:
    """Return whether an added version replaces a stored one with the same cells.

    The times of a version and of its sync are not compared.
    """
    stored = integers(events.column(KIND)) == STORED
    before = sources.runs.last_before(stored)
    same: Flags = added & (before != NONE) & (time[before] == time)
    rows = np.flatnonzero(same)
    for name in sources.layout.columns:
        if not len(rows) or name in {*sources.layout.key, START, END, ACTIVE, SYNCED}:
            continue
        now, then = take(events, name, sources[name][rows]), take(events, name, before[rows])
        # Nulls are equal, and NaNs are equal.
        unknown = pc.is_null(now, nan_is_null=True), pc.is_null(then, nan_is_null=True)
        alike = pc.equal(pc.is_null(now), pc.is_null(then))
        equal = pc.or_(pc.fill_null(pc.equal(now, then), False), pc.and_(alike, pc.and_(*unknown)))
        same[rows] = equal.to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(same)
    return same


def _is_superseded(runs: Runs, of_batch: Flags, time: NDArray[np.int64]) -> Flags:
    """Return whether a later row of the batch has the same key and start."""
    following = runs.first_after(of_batch)
    superseded: Flags = of_batch & (following != NONE) & (time[following] == time)
    return superseded


def _other_base(runs: Runs, time: NDArray[np.int64], removed: Flags, counts: Flags) -> Indices:
    """Return the row that completes an update without an earlier version.

    This is the removed version with its own start, else the earliest later removed version whose
    start is in no row of the batch.
    """
    before = runs.last_before(removed)
    own = np.where((before != NONE) & (time[before] == time), before, NONE)
    following = runs.first_after(counts)
    replaced = (following != NONE) & (time[following] == time)
    later = runs.first_after(removed & ~replaced)
    return np.where(own != NONE, own, later)


@dataclass(frozen=True)
class _Ends:
    """The ends and activity of versions, and flags for stored versions that change."""

    end: NDArray[np.int64]
    active: Flags
    changed: Flags
    closed_at_start: Flags


def _ends(
    events: pa.Table,
    runs: Runs,
    *,
    versions: Flags,
    kept: Flags,
    before: NDArray[np.int64],
    epsilon: int,
) -> _Ends:
    kind, time = integers(events.column(KIND)), integers(events.column(TIME))
    old_end, old_active = integers(events.column(END)), flags(events.column(ACTIVE))
    # Senders with finer clocks may write the end of time with more digits.
    old_end = np.minimum(old_end, TMAX_MICROS)
    trimmed = kept & (before != _NEVER) & (old_active | (old_end > before))
    end = np.where(trimmed, before, old_end)
    # Every version that is valid at the time of a delete ends then. There is one at most, unless
    # the sender wrote versions that overlap.
    deleted = runs.first_after(kind == DELETE)
    closed = versions & (deleted != NONE) & (time[deleted] < end)
    end = np.where(closed, time[deleted], end)
    unmatched = _unmatched_deletes(runs, kind, time, versions, end + epsilon)
    # Only versions that were active before the batch: a version of the batch itself is a later
    # insert.
    at_start = kept & old_active & ~closed & (runs.last_before(unmatched) != NONE)
    end = np.where(at_start, np.minimum(end, time), end)
    active = old_active & ~trimmed & ~closed & ~at_start
    return _Ends(end, active, kept & ((end != old_end) | (active != old_active)), at_start)


def _unmatched_deletes(
    runs: Runs,
    kind: NDArray[np.int64],
    time: NDArray[np.int64],
    versions: Flags,
    ended: NDArray[np.int64],
) -> Flags:
    """Return the deletes at whose time no version was valid, and which therefore ended none.

    Only the first of several deletes between two versions counts; the others repeat it. The version
    before them may end at the first one, and a batch that is sent again must give the same result.

    Args:
        runs: the runs of events of one key.
        kind: the events' kinds.
        time: the events' times in microseconds.
        versions: the events that are versions of the result.
        ended: for versions, the first instant at which they are no longer valid.
    """
    deletes = kind == DELETE
    version, delete = runs.last_before(versions), runs.last_before(deletes)
    is_first = deletes & ((delete == NONE) | (delete < version))
    unmatched: Flags = is_first & (runs.greatest_so_far(np.where(versions, ended, -1)) <= time)
    return unmatched


@dataclass(frozen=True)
class _Sources:
    """The source of cells: for each column, the event from which each event takes its cell.

    Attributes:
        runs: the runs of events of one key.
        layout: the columns.
        bits: the cells that rows leave unmodified.
        updates: the update rows that count.
        completed: updates that take their cells from `other_base`.
        other_base: see `_other_base`.
        known: events from which later events may take cells.
    """

    runs: Runs
    layout: Layout
    bits: Unmodified
    updates: Flags
    completed: Flags
    other_base: Indices
    known: Flags

    def __getitem__(self, name: str) -> Indices:
        layout, itself = self.layout, np.arange(len(self.updates))
        is_carried = name in layout.carried
        if name in {*layout.key, START, END, ACTIVE} or (
            is_carried and name not in layout.unmodified
        ):
            return itself
        left = self.updates & self.bits[name] if is_carried else self.updates
        # A cell is known where its row contains it, or where the row's other base does.
        known_here = self.known & (~left | self.completed)
        source = np.where(left & self.completed, self.other_base, itself)
        nearest = self.runs.last_at_or_before(known_here)
        return np.where(left & (nearest != NONE), source[nearest], itself)
