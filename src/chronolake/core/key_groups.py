"""Groups of rows with equal keys in sorted rows, and vectorized operations on them.

Everything here is pure and vectorized (Arrow and NumPy). It runs in Spark's Python workers on rows
that Spark has partitioned by key and sorted. It imports neither Spark nor the rest of the core.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronolake.change_set import BITS_PER_WORD, UNMODIFIED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    Indices = NDArray[np.int64]
    Flags = NDArray[np.bool_]

#: The index for "no such row".
NONE: Final = -1
_ROWS_PER_BATCH: Final = 10_000


@dataclass(frozen=True)
class Runs:
    """The runs of equal keys in sorted rows.

    Attributes:
        first: for every row, the index of the first row of its run.
        last: for every row, the index of the last row of its run.
        starts: the first rows, one per run.
    """

    first: Indices
    last: Indices
    starts: Indices

    @classmethod
    def of(cls, rows: pa.Table, key: Sequence[str]) -> Runs:
        """Return the runs of rows sorted by `key`; null equals null, and NaN equals NaN."""
        count = rows.num_rows
        begins = np.ones(count, dtype=bool)
        begins[1:] = ~_same_as_before(rows, key)
        starts = np.flatnonzero(begins)
        number = np.cumsum(begins) - 1
        ends = np.append(starts[1:], count) - 1
        return cls(starts[number], ends[number], starts)

    def last_at_or_before(self, which: Flags) -> Indices:
        """Return for every row the nearest row of `which` in its run, up to the row itself."""
        index = np.arange(len(which))
        found = np.maximum.accumulate(np.where(which, index, NONE)) if len(which) else index
        return np.where(found >= self.first, found, NONE)

    def last_before(self, which: Flags) -> Indices:
        """Return for every row the nearest earlier row of `which` in its run."""
        index = np.arange(len(which))
        found = np.full(len(which), NONE, dtype=np.int64)
        if len(which):
            found[1:] = np.maximum.accumulate(np.where(which, index, NONE))[:-1]
        return np.where(found >= self.first, found, NONE)

    def first_after(self, which: Flags) -> Indices:
        """Return for every row the nearest later row of `which` in its run."""
        count = len(which)
        index = np.arange(count)
        found = np.full(count, count, dtype=np.int64)
        if count:
            nearest = np.minimum.accumulate(np.where(which, index, count)[::-1])[::-1]
            found[:-1] = nearest[1:]
        return np.where(found <= self.last, found, NONE)

    def least(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return for every row the least value of its run."""
        if not len(values):
            return values
        per_run = np.minimum.reduceat(values, self.starts)
        return np.repeat(per_run, np.diff(np.append(self.starts, len(values))))

    def greatest_so_far(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return for every row the greatest value of its run, up to the row itself."""
        greatest, step = values.copy(), 1
        longest = int((self.last - self.first).max(initial=0))
        # Each round doubles the number of rows that are considered.
        while step <= longest:
            is_within = np.arange(step, len(values)) - step >= self.first[step:]
            earlier = np.where(is_within, greatest[:-step], greatest[step:])
            greatest[step:] = np.maximum(greatest[step:], earlier)
            step *= 2
        return greatest

    def count_so_far(self, which: Flags) -> NDArray[np.int64]:
        """Return for every row the number of rows of `which` in its run, up to the row itself."""
        total = np.cumsum(which)
        before_run = np.where(self.first > 0, total[self.first - 1], 0)
        return total - before_run


def _same_as_before(rows: pa.Table, key: Sequence[str]) -> Flags:
    same = np.ones(max(rows.num_rows - 1, 0), dtype=bool)
    for name in key:
        column = _single_chunk(rows.column(name))
        here, before = column.slice(1), column.slice(0, max(len(column) - 1, 0))
        equal = pc.fill_null(pc.equal(here, before), False)
        equal = pc.or_(equal, pc.and_(pc.is_null(here), pc.is_null(before)))
        if pa.types.is_floating(column.type):
            both = pc.and_(pc.is_nan(here), pc.is_nan(before))
            equal = pc.or_(equal, pc.fill_null(both, False))
        same &= flags(equal)
    return same


def _single_chunk(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return (
        column.chunk(0)
        if column.num_chunks == 1
        else pa.concat_arrays(column.chunks or [pa.array([], column.type)])
    )


def flags(column: pa.ChunkedArray | pa.Array) -> Flags:
    """Return a boolean column as a NumPy array; null becomes false."""
    filled: Flags = _single_chunk(pc.fill_null(column, False)).to_numpy(zero_copy_only=False)
    return filled.astype(bool, copy=False)


def integers(column: pa.ChunkedArray | pa.Array, missing: int = 0) -> NDArray[np.int64]:
    """Return a column of integers or timestamps as a NumPy array, timestamps in microseconds."""
    whole = _single_chunk(column)
    if pa.types.is_timestamp(whole.type):
        whole = whole.cast(pa.int64())
    values: NDArray[np.int64] = pc.fill_null(whole.cast(pa.int64()), missing).to_numpy(
        zero_copy_only=False
    )
    return values


class Unmodified:
    """The cells of a change set's rows that are left unmodified."""

    def __init__(self, rows: pa.Table, names: Sequence[str]) -> None:
        self._place = {name: number for number, name in enumerate(names)}
        words = -(-len(names) // BITS_PER_WORD)
        self._bits = np.zeros((rows.num_rows, words), dtype=np.int64)
        column = _single_chunk(rows.column(UNMODIFIED))
        marked = np.flatnonzero(flags(pc.greater(pc.list_value_length(column), 0)))
        if len(marked):
            values = integers(pc.list_flatten(column.take(pa.array(marked))))
            self._bits[marked] = values.reshape(len(marked), words)

    def __getitem__(self, name: str) -> Flags:
        """Return for every row whether it leaves a data column's cell unmodified."""
        word, bit = divmod(self._place[name], BITS_PER_WORD)
        chosen: Flags = (self._bits[:, word] >> bit) & 1 == 1
        return chosen


def fold_by_run(
    batches: Iterable[pa.RecordBatch],
    key: Sequence[str],
    fold: Callable[[pa.Table], pa.Table],
) -> Iterator[pa.RecordBatch]:
    """Fold sorted rows that arrive in batches, without splitting a run of equal keys.

    Memory holds one batch, and the rows of the key with which the batch ends.
    """
    pending: list[pa.RecordBatch] = []
    for batch in batches:
        if not batch.num_rows:
            continue
        pending.append(batch)
        rows = pa.Table.from_batches(pending)
        starts = Runs.of(rows, key).starts
        cut = int(starts[-1])
        if cut == 0:
            continue
        yield from _pieces(fold(rows.slice(0, cut)))
        pending = rows.slice(cut).combine_chunks().to_batches()
    if pending:
        yield from _pieces(fold(pa.Table.from_batches(pending)))


def _pieces(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    yield from rows.combine_chunks().to_batches(max_chunksize=_ROWS_PER_BATCH)


def take(rows: pa.Table, name: str, indices: Indices) -> Any:
    """Return a column's cells at some rows; null where the index is `NONE`."""
    column = _single_chunk(rows.column(name))
    if (indices == NONE).any():
        return column.take(pa.array(indices, mask=indices == NONE))
    return column.take(pa.array(indices))
