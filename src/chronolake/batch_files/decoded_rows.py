"""Decoded rows: consecutive rows of a file in the columns' final types, and checks of cells."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from chronolake.change_set import Op
from chronolake.errors import MalformedFileError, ValueRefusedError
from chronolake.formatting import EXAMPLES
from chronolake.parsing.columns import EMPTY_IS_VALUE, CellRefusedError, parse_texts
from chronolake.types import START

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Collection, Iterable, Sequence

    from chronolake.batch_files.files import BatchFile
    from chronolake.types import Column

_WIDEN: Final = "Give the column a wider type with AlterTable, or correct the value at the source."
_MEND_TEXT: Final = "Write text in UTF-8. Use a column of type BINARY for other content."
_MEND_TIME: Final = (
    "Send the start, the end and the active flag with every version, the end with a delete, and "
    "the start with an earliest start."
)
_MEND_KEY: Final = (
    "Write the key's value. Use the null marker for NULL; an empty text is a value only in text "
    "columns."
)
_MEND_MARK: Final = (
    "Send the value. The marker is allowed only in update files, and never in key or time columns."
)


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Consecutive rows of one file.

    Attributes:
        rows: number of rows.
        arrays: by column name, in the column's Arrow type; columns that the file lacks are absent.
        unmodified: by column name, true where the cell keeps the stored value; absent if no cell
            does.
    """

    rows: int
    arrays: dict[str, pa.Array]
    unmodified: dict[str, pa.Array] = field(default_factory=dict)


def columns_present(
    names: Sequence[str],
    columns: Sequence[Column],
    required: Iterable[str],
    file: BatchFile,
) -> dict[int, Column]:
    """Return the wanted columns that a file has, by their position among the file's columns.

    Raises:
        MalformedFileError: a name occurs twice, or a required column is absent.
    """
    places: dict[str, int] = {}
    for place, name in enumerate(names):
        if name in places:
            raise MalformedFileError(
                "The file has two columns with the same name.",
                hint="Write each column once.",
                file=file.path,
                column=name,
            )
        places[name] = place
    absent = sorted(set(required) - set(places))
    if absent:
        more = f" {len(absent)} columns are missing." if len(absent) > 1 else ""
        needed = "every column of the request"
        if file.op in {Op.EARLIEST, Op.DELETE}:
            needed = ", ".join(sorted(required))
        raise MalformedFileError(
            f"The file lacks a required column.{more}",
            hint=f"Write {needed}; names are case-sensitive.",
            file=file.path,
            column=absent[0],
        )
    return {places[column.name]: column for column in columns if column.name in places}


def cell_error(
    file: BatchFile, row: int, column: Column, reason: str, *, hint: str
) -> ValueRefusedError:
    """Return the error for a cell that does not fit its column.

    Args:
        file: the cell's file.
        row: the cell's row in the file, from 1.
        column: the cell's column.
        reason: the reason, without the value.
        hint: what the user can do.
    """
    return ValueRefusedError(
        f"A cell does not fit its column of type {column.type}: {reason}.",
        hint=hint,
        file=file.path,
        row=row,
        column=column.name,
    )


def parse_cells(
    texts: pa.Array, column: Column, file: BatchFile, rows: int, tally: Counter[str]
) -> pa.Array:
    """Convert texts of cells to an array of their column's Arrow type.

    Args:
        texts: like in `parsing.columns.parse_texts`. An empty text is NULL unless the column
            contains texts or bytes, and is refused in a key: as NULL, it would merge several
            records into one.
        rows: number of the file's rows before these.
        tally: counts adjusted values.

    Raises:
        ValueRefusedError: for the first cell that does not fit.
    """
    if column.primary_key and column.name != START and column.type.kind not in EMPTY_IS_VALUE:
        at = pc.index(texts, pa.scalar(b"", pa.binary()).cast(texts.type)).as_py()
        if at >= 0:
            reason = "it is empty, and the column is part of the key"
            raise cell_error(file, rows + at + 1, column, reason, hint=_MEND_KEY)
    cell: CellRefusedError
    try:
        return parse_texts(texts, column.type, tally)
    except CellRefusedError as error:
        cell = error
    raise _error_of_cell(file, rows, column, cell)


def _error_of_cell(
    file: BatchFile, rows: int, column: Column, cell: CellRefusedError
) -> ValueRefusedError:
    example = EXAMPLES.get(column.type.kind)
    hint = _MEND_TEXT
    if cell.is_too_great:
        hint = _WIDEN
    elif example is not None:
        hint = (
            f"Write it like {example}. If the column has other values, change its type to STRING "
            "with AlterTable."
        )
    return cell_error(file, rows + cell.index + 1, column, cell.reason, hint=hint)


def marker_error(file: BatchFile, row: int, column: Column, where: str) -> ValueRefusedError:
    """Return the error for an unmodified marker where it is not allowed."""
    reason = f"it is the unmodified marker, {where}"
    return cell_error(file, row, column, reason, hint=_MEND_MARK)


def expect_cells(
    piece: DecodedRows,
    columns: Iterable[Column],
    file: BatchFile,
    rows: int,
    *,
    times: Collection[str],
    may_keep_times: bool,
) -> None:
    """Refuse rows without a known record or time, which cannot be applied.

    Args:
        piece: some rows of a file.
        columns: the columns; cells of key columns may be null, but not unmodified.
        rows: number of the file's rows before these.
        times: names of columns in which no cell may be null.
        may_keep_times: whether these may be unmodified, if they are not part of the key.

    Raises:
        ValueRefusedError: there is such a row.
    """
    for column in columns:
        name = column.name
        is_time = name in times
        unmodified = piece.unmodified.get(name)
        if unmodified is not None and (column.primary_key or (is_time and not may_keep_times)):
            at = pc.index(unmodified, True).as_py()
            if at >= 0:
                where = "in a key" if column.primary_key else "in a version's time"
                raise marker_error(file, rows + at + 1, column, where)
        if is_time and piece.arrays[name].null_count:
            is_null = pc.is_null(piece.arrays[name])
            if unmodified is not None:
                # An unmodified cell is null here, but keeps a stored value.
                is_null = pc.and_not(is_null, pc.fill_null(unmodified, False))
            at = pc.index(is_null, True).as_py()
            if at >= 0:
                raise cell_error(file, rows + at + 1, column, "it is null", hint=_MEND_TIME)
