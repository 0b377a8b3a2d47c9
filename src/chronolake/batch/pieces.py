"""What decoding a file yields: pieces, each some consecutive rows in the columns' final types."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chronolake.errors import MalformedFileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from chronolake.batch.files import BatchFile
    from chronolake.types import Column


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
