"""Changes of a table as record versions, still as texts.

An insert or an update is a version, a delete a mark. An update that changes the key is both: the
old key's record ends, and the new key's begins. Large values that an update has not touched are not
told, unless the whole old row is: a record that gets another key follows the mark of the old one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronolake.changes import (
    DELETED_AT,
    FOLLOWS,
    MODIFIED,
    OPERATED,
    SEQUENCE,
    TELLS,
    UNTOLD,
)
from chronolake.source.postgres.messages import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chronolake.source.postgres.pgoutput import Changes
    from chronolake.source.postgres.tuples import Bytes, Flags, Places

#: What record versions have besides their data, while the data are texts.
SYSTEM: Final = pa.schema(
    [
        (MODIFIED, pa.int64()),
        (SEQUENCE, pa.string()),
        (DELETED_AT, pa.int64()),
        (TELLS, pa.bool_()),
        (UNTOLD, pa.list_(pa.string())),
        (OPERATED, pa.string()),
        (FOLLOWS, pa.string()),
    ]
)
_WORDS: Final = {Kind.INSERT: "insert", Kind.UPDATE: "update", Kind.DELETE: "delete"}
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_LSN_DIGITS: Final = 16
_PLACE_DIGITS: Final = 12


def sequence_of(commit_lsn: int, place: int = 0) -> str:
    """What orders versions of one time: the place of their commit in the log, then their own."""
    return f"{commit_lsn:0{_LSN_DIGITS}x}{place:0{_PLACE_DIGITS}x}"


def sequences_of(commit_lsns: Places, places: Places) -> pa.Array:
    """`sequence_of` for many at once."""
    digits = np.hstack([_digits(commit_lsns, _LSN_DIGITS), _digits(places, _PLACE_DIGITS)])
    offsets = np.arange(len(digits) + 1, dtype=np.int32) * digits.shape[1]
    return pa.StringArray.from_buffers(len(digits), pa.py_buffer(offsets), pa.py_buffer(digits))


def _digits(numbers: Places, count: int) -> Bytes:
    """The hexadecimal digits of numbers, a row for each."""
    shifts = np.arange(count - 1, -1, -1, dtype=np.int64) * 4
    found: Bytes = _HEX[(numbers[:, np.newaxis] >> shifts) & 0xF]
    return found


def versions_of(
    changes: Changes, key: Sequence[str], *, times: Places, commits: Sequence[int], wanted: Flags
) -> tuple[pa.Table, bool]:
    """Record versions of changes.

    Args:
        changes: the changes.
        key: the names of the columns that identify a record.
        times: when each change's transaction counts as committed, in microseconds since 1970.
        commits: where the transactions of the batch are committed in the log.
        wanted: which changes.

    Returns:
        The relation's columns as texts, then those of `SYSTEM`: a row for each change, and a mark
        more for each that changed its key; in no order. And whether that is everything: the key of
        a deleted record, or the one that an update replaced, may not have been sent.
    """
    names = [column.name for column in changes.relation.columns]
    is_key = np.array([name in key for name in names], np.bool_)
    is_delete = changes.kinds == Kind.DELETE
    new = _filled(changes, is_key)
    moved = changes.has_old & ~is_delete & _differ(changes, new, is_key)
    tells = wanted & ~is_delete
    # Where a partition had another replica identity, the old row is not told by the key.
    is_nameless = wanted & is_delete & _lack(changes, is_key)
    ends = wanted & (is_delete | moved) & ~is_nameless
    lsns = np.array(commits, np.int64)[changes.transactions]
    # A key's old record ends before the new one's begins.
    ordinals = changes.ordinals * 2

    def system(rows: Flags, *, is_mark: bool) -> list[pa.Array]:
        at = pa.array(times[rows])
        count = int(rows.sum())
        sequences = sequences_of(lsns[rows], ordinals[rows] + (not is_mark))
        words = _words(changes.kinds[rows])
        untold = pa.nulls(count, pa.list_(pa.string()))
        follows = pa.nulls(count, pa.string())
        if not is_mark:
            untold = _untold(names, [unknown[rows] for _, unknown in new], count)
            is_first = pa.array(moved[rows] & untold.is_valid().to_numpy(zero_copy_only=False))
            marks = sequences_of(lsns[rows], ordinals[rows])
            follows = pc.if_else(is_first, marks, follows)
        deleted = at if is_mark else pa.nulls(count, pa.int64())
        tells = pa.array(np.full(count, not is_mark))
        return [at, sequences, deleted, tells, untold, words, follows]

    schema = pa.schema([*((name, pa.string()) for name in names), *SYSTEM])
    told = [texts.filter(pa.array(tells)) for texts, _ in new]
    marks = [
        cells.texts.filter(pa.array(ends)) if of_key else pa.nulls(int(ends.sum()), pa.string())
        for cells, of_key in zip(changes.old, is_key, strict=True)
    ]
    rows = pa.concat_tables(
        pa.Table.from_arrays([_small(column) for column in columns], schema=schema)
        for columns in (
            [*told, *system(tells, is_mark=False)],
            [*marks, *system(ends, is_mark=True)],
        )
    )
    return rows, not (is_nameless | wanted & _may_hide_key(changes, is_key)).any()


def _filled(changes: Changes, is_key: Flags) -> list[tuple[pa.Array, Flags]]:
    """The new rows' values, and where they are not known: what old rows tell is filled in."""
    found = []
    for new, old, of_key in zip(changes.new, changes.old, is_key, strict=True):
        # Of an old key, other columns are null.
        known = new.is_unchanged & (changes.has_old if of_key else changes.has_whole_old)
        texts = new.texts
        if known.any():
            texts = pc.if_else(pa.array(known), old.texts, texts)
        found.append((texts, new.is_unchanged & ~known))
    return found


def _differ(changes: Changes, new: list[tuple[pa.Array, Flags]], is_key: Flags) -> Flags:
    """Where the old row has another key than the new one."""
    differ = np.zeros(changes.number, np.bool_)
    for (texts, _), old, of_key in zip(new, changes.old, is_key, strict=True):
        if of_key:
            unequal = pc.fill_null(pc.not_equal(texts, old.texts), False)
            differ |= unequal.to_numpy(zero_copy_only=False)
    return differ


def _lack(changes: Changes, is_key: Flags) -> Flags:
    """Where the old row lacks a column of the key, which is never null."""
    lack = np.zeros(changes.number, np.bool_)
    for old, of_key in zip(changes.old, is_key, strict=True):
        if of_key:
            lack |= old.texts.is_null().to_numpy(zero_copy_only=False)
    return lack


def _may_hide_key(changes: Changes, is_key: Flags) -> Flags:
    """Where an update may have changed the key without an old row that has it.

    So it is while the table's replica identity is another index, or nothing.
    """
    is_identity = np.array([one.is_identity for one in changes.relation.columns], np.bool_)
    if is_identity[is_key].all():
        return np.zeros(changes.number, np.bool_)
    found: Flags = (changes.kinds == Kind.UPDATE) & ~changes.has_whole_old
    return found


def _untold(names: Sequence[str], unknown: Sequence[Flags], count: int) -> pa.Array:
    """For each row the names of the columns that it does not tell, or null."""
    if not any(flags.any() for flags in unknown):
        return pa.nulls(count, pa.list_(pa.string()))
    flags = np.stack(unknown, axis=1)
    numbers = flags.sum(axis=1)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(numbers, out=offsets[1:])
    values = pa.array(names, pa.string()).take(pa.array(np.nonzero(flags)[1]))
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(numbers == 0))


def _words(kinds: Bytes) -> pa.Array:
    """What the log calls each change."""
    known = np.array(sorted(_WORDS), np.uint8)
    words = pa.array([_WORDS[kind] for kind in sorted(_WORDS)], pa.string())
    return words.take(pa.array(np.searchsorted(known, kinds)))


def _small(column: pa.Array) -> pa.Array:
    """Columns of one type, whatever the length of their texts in a batch."""
    return column.cast(pa.string()) if column.type == pa.large_string() else column
