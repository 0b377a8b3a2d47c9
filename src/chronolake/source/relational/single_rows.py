"""Reads of single rows, or of a slice of a table: what all databases refuse in the same words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronolake.errors import SourceError
from chronolake.source.protocol import StreamFailure

if TYPE_CHECKING:
    from collections.abc import Collection

    from chronolake.source.protocol import Where


def expect_columns(table: str, columns: Collection[str], where: Where) -> None:
    """Raise if the selection of rows names a column that a table does not have.

    Args:
        table: the table's name.
        columns: the names of its columns.
        where: which rows to read.

    Raises:
        SourceError: it does.
    """
    unknown = sorted({name for record in where for name in record} - {*columns})
    if unknown:
        raise SourceError(
            f"The table {table} has no column {unknown[0]}.",
            hint=f"Its columns are {', '.join(columns)}.",
        )


def not_followed_failure(stream: str) -> StreamFailure:
    """Return the failure of a stream whose log was not read up to now."""
    return StreamFailure(
        stream,
        SourceError(
            f"Single rows of the table {stream} cannot be read: its log is not read up to now.",
            hint="Run a sync or, if that is refused, a resync of the whole stream first.",
        ),
    )
