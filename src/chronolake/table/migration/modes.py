"""Switching a table's mode, with its data: live, soft-delete and history.

Source: `seeds/history-mode.txt` ("Switching modes", "Record history"). A switch is one published
step: a reader sees the table in its old mode or in the new one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chronolake.description import describe_loaded
from chronolake.errors import CommitError
from chronolake.table.aside import publish_over
from chronolake.table.migration.conversion import converted_to
from chronolake.table.publishing import until_published
from chronolake.table.rewrite import drop_abandoned
from chronolake.table.views import drop_current_view
from chronolake.types import DELETED, Mode

if TYPE_CHECKING:
    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake
    from chronolake.types import TableName


@dataclass(frozen=True)
class SwitchPlan:
    """What a switch of mode changes.

    Attributes:
        table: which table.
        before, after: its modes.
        added, dropped: names of the columns that come and go.
        rows_before, rows_after: number of rows (of a history table: versions).
        marker: the column that tells which rows are deleted, or None.
    """

    table: TableName
    before: Mode
    after: Mode
    added: tuple[str, ...]
    dropped: tuple[str, ...]
    rows_before: int
    rows_after: int
    marker: str | None = None

    @property
    def rows_lost(self) -> int:
        """Number of rows that the table has no longer afterwards."""
        return self.rows_before - self.rows_after

    @property
    def forgets(self) -> str | None:
        """What the table no longer tells afterwards, in words; None if nothing is lost."""
        match self.before, self.after:
            case Mode.HISTORY, Mode.SOFT_DELETE:
                return "all versions but the newest of each record, and when each of them was true"
            case Mode.HISTORY, Mode.LIVE:
                return (
                    "all versions but the active ones, every deleted record, and when each version "
                    "was true"
                )
            case Mode.SOFT_DELETE, Mode.LIVE:
                return "the records that are marked as deleted"
            case _, Mode.HISTORY if DELETED in self.dropped and self.marker != DELETED:
                return f"what {DELETED} tells: only {self.marker or 'no column'} counts as a mark"
            case _:
                return None


def plan_switch(
    lake: Lake, name: TableName, mode: Mode, *, marker: str | None = DELETED
) -> SwitchPlan:
    """What `switch_mode` would do, without doing it; one Spark query counts the rows.

    Raises:
        TableNotFoundError: there is no such table.
        SchemaError: the table cannot be in that mode.
    """
    description = lake.describe(name)
    if description is None:
        raise lake.missing(name)
    if description.mode is mode:
        rows = lake.table(name).df.count()
        return SwitchPlan(name, mode, mode, (), (), rows, rows)
    conversion = converted_to(lake.spark, description, mode, marker=marker)
    (counted,) = lake.spark.sql(conversion.counts).collect()
    before = [column.name for column in description.columns]
    after = [column.name for column in conversion.columns]
    return SwitchPlan(
        table=name,
        before=description.mode,
        after=mode,
        added=tuple(name for name in after if name not in before),
        dropped=tuple(name for name in before if name not in after),
        rows_before=counted[0] or 0,
        rows_after=counted[1] or 0,
        marker=marker,
    )


def switch_mode(
    lake: Lake,
    name: TableName,
    mode: Mode,
    *,
    marker: str | None = DELETED,
    unless_moved_from: int | None = None,
) -> bool:
    """Switch a table's mode and keep its data, in one published step.

    To history: rows whose marker is true become versions that started and ended at Tmin; all others
    are active from the table's greatest `_fivetran_synced` on (from now on, if no row has one).
    `_fivetran_deleted` goes; a marker of another name stays. From history: to soft-delete, each
    record's newest version stays, marked unless it is active; to live, the active versions stay.
    From soft-delete to live, marked rows go.

    Args:
        lake: the lake.
        name: the table.
        mode: the mode afterwards.
        marker: the column that marks deleted rows in soft-delete mode. To history, None means that
            no row is deleted, as in a table without `_fivetran_deleted`. To soft-delete, a marker
            that is missing is made, beside `_fivetran_deleted`, which is then false everywhere.
        unless_moved_from: switch only the rows of this snapshot, if it is given.

    Returns:
        Whether the table was in another mode before.

    Raises:
        TableNotFoundError: there is no such table.
        SchemaError: the table cannot be in that mode: it has no key, or a column in the way.
        UnknownColumnError: the table has no such marker, and needs it.
        ConfigurationError: a pipeline fills the table.
        CommitError: the result could not be published, or the table has another snapshot.
    """
    drop_abandoned(lake)

    def attempt(table: IcebergTable) -> bool:
        description = describe_loaded(table)
        if description.mode is mode:
            if mode is not Mode.HISTORY:
                # A crash may have come before this.
                drop_current_view(lake, name)
            return False
        if unless_moved_from is not None and table.snapshot_id != unless_moved_from:
            raise CommitError(
                "The table was written to meanwhile.",
                table=str(name),
                hint="Do it again, when nobody else writes.",
            )
        conversion = converted_to(lake.spark, description, mode, marker=marker)
        publish_over(lake, table, conversion.columns, conversion.query, conversion.properties)
        if description.mode is Mode.HISTORY:
            drop_current_view(lake, name)
        return True

    return until_published(lake, name, attempt)
