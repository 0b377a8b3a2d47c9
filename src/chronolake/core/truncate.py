"""Truncate: remove, or mark as deleted, the rows that were synced before a time.

Source: `seeds/destination-connector.txt` ("Truncate" and the FAQ): strictly before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chronolake.core.staging import Stopwatch, write_staged
from chronolake.errors import BatchError, UnknownColumnError
from chronolake.types import ACTIVE, LAST_MICROS, TMIN_MICROS, Kind, Mode, quote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chronolake.core.staging import StagedWrite
    from chronolake.description import TableDescription
    from chronolake.lake import Lake
    from chronolake.types import TableName


@dataclass(frozen=True)
class TruncateResult:
    """The outcome of a truncate: whether the table exists, and the number of affected rows."""

    exists: bool
    rows: int = 0


def truncate(
    lake: Lake,
    name: TableName,
    *,
    synced_column: str,
    before_micros: int | None,
    deleted_column: str | None = None,
) -> TruncateResult:
    """Remove the rows whose `synced_column` is strictly before an instant, or mark them deleted.

    Nothing happens if the table does not exist or no instant is given.

    Args:
        name: the table.
        synced_column: the column with the time of a row's sync; rows where it is null are kept.
        before_micros: the instant, in microseconds since 1970 (UTC).
        deleted_column: set this column to true instead of removing rows; nothing else changes.

    Raises:
        BatchError: a column name is empty, a column has the wrong type, or `deleted_column` is the
            column for active versions.
        UnknownColumnError: the table does not have the column.
        CommitError: the result could not be published.
    """
    description = lake.describe(name)
    if description is None:
        return TruncateResult(exists=False)
    _check(description, synced_column, Kind.UTC_DATETIME)
    if deleted_column is not None:
        _check(description, deleted_column, Kind.BOOLEAN)
        if description.mode is Mode.HISTORY and deleted_column == ACTIVE:
            raise BatchError(
                "The truncate request would make versions active that have ended.",
                table=str(name),
                column=ACTIVE,
                hint="Name the column that marks deleted rows.",
            )
    if before_micros is None:
        return TruncateResult(exists=True)
    rows = 0
    # An instant outside the range of times is before all rows or after all rows.
    instant = min(max(before_micros, TMIN_MICROS), LAST_MICROS + 1)
    condition = f"{quote(synced_column)} < timestamp_micros({instant}L)"
    if deleted_column is not None:
        condition += f" AND {quote(deleted_column)} IS DISTINCT FROM true"

    def write(attempt: StagedWrite) -> Mapping[str, str] | None:
        nonlocal rows
        counting = f"SELECT count(1) FROM {attempt.source} WHERE {condition}"
        found = attempt.spark.sql(counting).first()
        rows = found[0] if found else 0
        if not rows:
            return None
        if deleted_column is None:
            attempt.delete_where(condition)
        else:
            attempt.update_where(f"{quote(deleted_column)} = true", condition)
        return {}

    write_staged(lake, name, write, Stopwatch())
    return TruncateResult(exists=True, rows=rows)


def _check(description: TableDescription, column: str, kind: Kind) -> None:
    table = str(description.name)
    if not column:
        raise BatchError(
            "The truncate request does not name a column.",
            table=table,
            hint="Send the name of the column with the sync time, and for a soft truncate also "
            "the column that marks deleted rows.",
        )
    stored = description.by_name.get(column)
    if stored is None:
        raise UnknownColumnError(
            "The truncate request names a column that the table does not have.",
            table=table,
            column=column,
            hint="Add it with AlterTable first.",
        )
    if stored.type.kind is not kind:
        raise BatchError(
            f"The truncate request needs a column of type {kind}, but this column is "
            f"{stored.type}.",
            table=table,
            column=column,
            hint="Name another column, or change the type of this one with AlterTable.",
        )
