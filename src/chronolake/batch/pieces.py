"""What decoding a file yields: pieces, each some consecutive rows in the columns' final types."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from chronolake.errors import MalformedFileError, ValueRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from chronolake.batch.files import BatchFile
    from chronolake.types import Column

_MEND: Final = "Give the column a wider type with AlterTable, or mend the value at the source."
_MEND_MARK: Final = "Send the value: only update files leave cells unmodified, and never a key's."


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows of one file.

    Attributes:
        rows: how many.
        arrays: by column name, in the column's Arrow type; a column that the file lacks is absent.
        unmodified: by column name, true where the cell keeps the stored value; absent: nowhere.
    """

    rows: int
    arrays: dict[str, pa.Array]
    unmodified: dict[str, pa.Array] = field(default_factory=dict)


def present(
    names: Sequence[str],
    columns: Sequence[Column],
    required: Iterable[str],
    file: BatchFile,
) -> dict[int, Column]:
    """The wanted columns that a file has, by their place among the file's columns.

    Raises:
        MalformedFileError: a name stands twice, or a required column is absent.
    """
    places: dict[str, int] = {}
    for place, name in enumerate(names):
        if name in places:
            raise MalformedFileError(
                "The file has two columns of the same name.", file=file.path, column=name
            )
        places[name] = place
    absent = sorted(set(required) - set(places))
    if absent:
        more = f" It lacks {len(absent)} of them." if len(absent) > 1 else ""
        raise MalformedFileError(
            f"The file lacks a column that a file of its kind must have.{more}",
            file=file.path,
            column=absent[0],
        )
    return {places[column.name]: column for column in columns if column.name in places}


def refused(
    file: BatchFile, row: int, column: Column, reason: str, *, hint: str = _MEND
) -> ValueRefusedError:
    """The error for a cell that does not fit its column.

    Args:
        file: where it stands.
        row: its row in the file, from 1.
        column: its column.
        reason: why, without the value.
        hint: what to do.
    """
    return ValueRefusedError(
        f"A cell does not fit its column of type {column.type}: {reason}.",
        hint=hint,
        file=file.path,
        row=row,
        column=column.name,
    )


def refused_mark(file: BatchFile, row: int, column: Column, where: str) -> ValueRefusedError:
    """The error for an unmodified marker in a place where it has no meaning."""
    reason = f"it is the unmodified marker, {where}"
    return refused(file, row, column, reason, hint=_MEND_MARK)


def expect_whole_keys(piece: Piece, columns: Iterable[Column], file: BatchFile, rows: int) -> None:
    """Refuse unmodified cells of key columns: without its key, a row names no record.

    Args:
        piece: some rows of a file.
        columns: the columns.
        file: which file.
        rows: how many rows it has before them.

    Raises:
        ValueRefusedError: there is one.
    """
    for column in columns:
        mask = piece.unmodified.get(column.name) if column.primary_key else None
        at = -1 if mask is None else pc.index(mask, True).as_py()
        if at >= 0:
            raise refused_mark(file, rows + at + 1, column, "in a key")
