"""Full refresh (re-sync) of a history table: the source's rows are compared with its versions.

Source: `seeds/history-mode.txt` ("Re-syncs in history mode"). The past is kept:

- An unchanged row (same start and values; same values if the source has no timestamp) keeps its
  version and gets a new `_fivetran_synced`.
- The same start with other values replaces that version.
- A later start is a new version, and closes the previous one.
- An earlier start than stored ones removes the versions that start after it, and no others.
- Records that no longer exist in the source are kept active or closed, as the caller requests.

A re-sync may have several steps, each published separately. All its rows get the re-sync's time as
`_fivetran_synced`: after the last step, active rows with an older time no longer exist in the
source.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from chronolake.change_set import OP, RESERVED, SEQ, UNMODIFIED, Op
from chronolake.core import usage
from chronolake.core.batch_profile import IS_REPLACE, profile_changes
from chronolake.core.history import stage
from chronolake.core.merge import BatchResult
from chronolake.core.publish import expect_as_planned
from chronolake.core.sql import TABLE, cached_view, column_list
from chronolake.core.staging import (
    BATCH_PROPERTY,
    StagedWrite,
    Stopwatch,
    expect_unaltered,
    write_staged,
)
from chronolake.errors import BatchError, TableNotFoundError, UnknownColumnError
from chronolake.formatting import format_count
from chronolake.frames import temp_view
from chronolake.session import CATALOG
from chronolake.types import (
    ACTIVE,
    END,
    START,
    SYNCED,
    TMAX_MICROS,
    Mode,
    quote,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from chronolake.description import TableDescription
    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake
    from chronolake.types import TableName

_SOURCE: Final = f"{RESERVED}resync"


class MissingRecords(StrEnum):
    """The treatment of active records that are missing from the re-sync."""

    #: The source cannot report whether they are deleted: they stay active.
    STAY = "stay"
    #: The re-sync is complete: they ended at its start.
    CLOSE = "close"
    #: Every active row was marked inactive before the re-sync: they ended 1 ms before its start.
    DEACTIVATE = "deactivate"


def resync(
    lake: Lake,
    name: TableName,
    rows: DataFrame,
    *,
    at_micros: int,
    batch: str,
    gone: MissingRecords = MissingRecords.STAY,
    planned_on: IcebergTable | None = None,
) -> BatchResult:
    """Update a history table to the source's current rows, in one published step.

    Args:
        name: a table in history mode.
        rows: the source's rows, made in the session `lake.spark`; columns of the table by name,
            including the key. At most one row for a key. `_fivetran_start`, if present, is the time
            since which a row has its values; without it, a row that differs from the stored one
            starts at the re-sync's start.
        at_micros: the start of the re-sync, in microseconds since 1970 (UTC). Rows of the re-sync
            get it as their `_fivetran_synced`.
        batch: the identity of this step, for logs and the table's properties.
        gone: the treatment of active records that are missing from all steps of this re-sync. Only
            for its last step; for the others, `MissingRecords.STAY`.
        planned_on: the state of the table before the source was read. If the table has changed
            since, the rows may be older than its versions, and nothing is written. None: they are
            not, because the caller is the only writer.

    Raises:
        TableNotFoundError: the table does not exist.
        BatchError: the table is not in history mode, a key column is missing, or the table has no
            `_fivetran_synced` to find missing records.
        UnknownColumnError: the table does not have the column.
        CommitError: the result could not be published, or the table has changed since `planned_on`.
        Exception: any error from computing `rows`; nothing has changed.
    """
    description = _described(lake, name)
    _check(description, rows, gone)
    columns = description.columns
    watch = Stopwatch()
    result = BatchResult(batch)

    def write(attempt: StagedWrite) -> Mapping[str, str]:
        nonlocal result
        expect_as_planned(planned_on, attempt.table)
        expect_unaltered(attempt, description)
        changes = _changes(attempt.spark, attempt.source, rows, description, at_micros)
        written = None
        with profile_changes(
            changes, description, description.record_key, columns, watch, is_history=True
        ) as profile:
            if not profile.is_empty:
                _expect_one_row_a_key(attempt.spark, profile.view, description)
                written = stage(attempt, profile, description, watch).written
            result = BatchResult(batch, replaced=profile.replaced, seconds=watch.seconds)
        if gone is not MissingRecords.STAY and not attempt.is_empty:
            ended = at_micros - (description.epsilon if gone is MissingRecords.DEACTIVATE else 0)
            attempt.update_where(
                f"{END} = greatest({START}, timestamp_micros({ended})), {ACTIVE} = false",
                _is_missing(at_micros),
            )
        return {BATCH_PROPERTY: batch, **usage.monthly_properties(attempt.table, written)}

    write_staged(lake, name, write, watch)
    return result


@dataclass(frozen=True)
class ResyncPlan:
    """The effects of a re-sync.

    Attributes:
        table: the history table.
        at_micros: the start of the re-sync, in microseconds since 1970 (UTC).
        gone: the treatment of active records that are missing from the re-sync.
        records: the rows of the re-sync.
        unchanged: active versions that only get a new `_fivetran_synced`.
        added: versions with a start that no version of their record has.
        closed: active versions that end because a later one begins.
        shortened: versions that had ended, and end earlier because a later one begins.
        replaced: versions whose values are replaced, or that are active again, with their start.
        removed: versions that are deleted, because they start later than their record's row.
        ended: active versions of missing records, which end.
    """

    table: TableName
    at_micros: int
    gone: MissingRecords
    records: int
    unchanged: int
    added: int
    closed: int
    shortened: int
    replaced: int
    removed: int
    ended: int

    @property
    def loses(self) -> str | None:
        """Return what readers of the table no longer see, as a text; None if nothing is lost."""
        lost = [
            format_count(number, f"{kind} version")
            for number, kind in (
                (self.removed, "later"),
                (self.replaced, "replaced"),
                (self.shortened, "shortened"),
            )
            if number
        ]
        if self.ended:
            lost.append(format_count(self.ended, "active record"))
        return ", ".join(lost) or None


def plan_resync(
    lake: Lake,
    name: TableName,
    rows: DataFrame,
    *,
    at_micros: int,
    gone: MissingRecords = MissingRecords.STAY,
) -> ResyncPlan:
    """Return the effects of `resync` without applying them; Spark counts the versions.

    Args:
        name, rows, at_micros, gone: as for `resync`.

    Raises:
        TableNotFoundError, BatchError, UnknownColumnError: as for `resync`.
        Exception: any error from computing `rows`.
    """
    description = _described(lake, name)
    _check(description, rows, gone)
    spark, stored = lake.spark, f"{CATALOG}.{name.sql}"
    key = description.record_key
    others = [
        column.name
        for column in description.columns
        if column.name not in {START, END, ACTIVE, SYNCED, *key}
    ]
    with cached_view(_changes(spark, stored, rows, description, at_micros)) as changes:
        _expect_one_row_a_key(spark, changes, description)
        same_key = " AND ".join(
            f"{TABLE}.{quote(name)} <=> {_SOURCE}.{quote(name)}" for name in key
        )
        is_same = " AND ".join(
            [
                f"{TABLE}.{ACTIVE}",
                *(f"{TABLE}.{quote(name)} <=> {_SOURCE}.{quote(name)}" for name in others),
            ]
        )
        incoming = f"(SELECT * FROM {changes} WHERE {IS_REPLACE}) AS {_SOURCE}"
        of_key = ", ".join(f"{_SOURCE}.{quote(name)}" for name in key)
        (counted,) = spark.sql(
            "SELECT count(1), count_if(same), count_if(same IS NULL), sum(closed), "
            "sum(shortened), count_if(NOT same), sum(removed) FROM (SELECT "
            f"bool_or(IF({TABLE}.{START} = {_SOURCE}.{START}, coalesce({is_same}, false), NULL)) "
            f"AS same, count_if({TABLE}.{ACTIVE} AND {TABLE}.{START} < {_SOURCE}.{START}) AS "
            f"closed, count_if(NOT {TABLE}.{ACTIVE} AND {TABLE}.{START} < {_SOURCE}.{START} AND "
            f"{TABLE}.{END} >= {_SOURCE}.{START}) AS shortened, "
            f"count_if({TABLE}.{START} > {_SOURCE}.{START}) AS removed "
            f"FROM {incoming} LEFT JOIN {stored} AS {TABLE} ON {same_key} GROUP BY {of_key})"
        ).collect()
        ended = 0
        if gone is not MissingRecords.STAY:
            (missing,) = spark.sql(
                f"SELECT count(1) FROM {stored} AS {TABLE} LEFT ANTI JOIN {incoming} ON {same_key} "
                f"WHERE {_is_missing(at_micros)}"
            ).collect()
            ended = missing[0]
    records, unchanged, added, closed, shortened, replaced, removed = (
        number or 0 for number in counted
    )
    return ResyncPlan(
        table=name,
        at_micros=at_micros,
        gone=gone,
        records=records,
        unchanged=unchanged,
        added=added,
        closed=closed,
        shortened=shortened,
        replaced=replaced,
        removed=removed,
        ended=ended,
    )


def _described(lake: Lake, name: TableName) -> TableDescription:
    description = lake.describe(name)
    if description is None:
        raise TableNotFoundError(
            "The table does not exist.", table=str(name), hint="Create it before the re-sync."
        )
    return description


def _is_missing(at: int) -> str:
    """Return SQL: whether an active version was not in any step of the re-sync."""
    return f"{ACTIVE} AND ({SYNCED} IS NULL OR {SYNCED} < timestamp_micros({at}))"


def _check(description: TableDescription, rows: DataFrame, gone: MissingRecords) -> None:
    table = str(description.name)
    if description.mode is not Mode.HISTORY:
        raise BatchError(
            f"The table is in {description.mode} mode.",
            table=table,
            hint="Only history tables are re-synced this way. Replace the rows of other tables "
            "with a batch.",
        )
    if not description.record_key:
        raise BatchError(
            "The table has no primary key, so its records cannot be identified.",
            table=table,
            hint="Give it a key with AlterTable.",
        )
    if gone is not MissingRecords.STAY and SYNCED not in description.by_name:
        raise BatchError(
            f"The table has no {SYNCED}, so missing records cannot be found.",
            table=table,
            hint=f"Add the column, or keep all records active ({MissingRecords.STAY}).",
        )
    given = rows.columns
    for column in given:
        if column not in description.by_name:
            raise UnknownColumnError(
                "The re-sync has a column that the table does not have.",
                table=table,
                column=column,
                hint="Add it with AlterTable before the re-sync.",
            )
    for column in description.record_key:
        if column not in given:
            raise BatchError(
                "The re-sync lacks a key column.",
                table=table,
                column=column,
                hint="Send every key column.",
            )


def _changes(
    spark: SparkSession, source: str, rows: DataFrame, description: TableDescription, at: int
) -> DataFrame:
    """Return the re-sync as a change set: every row replaces versions that start with it or later.

    It has all columns of the table: columns that the source no longer has keep their values in an
    unchanged version.

    Args:
        source: the stored versions, as SQL.
        at: the start of the re-sync, in microseconds since 1970.
    """
    # Spark is asked once, because it sends the whole schema each time.
    given = set(rows.columns)
    has_start = START in given
    same_version = "true" if has_start else _is_same(description, rows)
    # A changed row starts at the re-sync's start, but never before its last known change.
    changed = f"greatest(timestamp_micros({at}), {TABLE}.{START})"
    system = {
        START: f"{_SOURCE}.{START}"
        if has_start
        else f"IF({same_version}, {TABLE}.{START}, {changed})",
        END: f"timestamp_micros({TMAX_MICROS})",
        ACTIVE: "true",
        SYNCED: f"timestamp_micros({at})",
    }

    def cell(name: str) -> str:
        if name in system:
            return system[name]
        if name in given:
            return f"{_SOURCE}.{quote(name)}"
        return f"IF({same_version}, {TABLE}.{quote(name)}, NULL)"

    cells = ", ".join(
        f"CAST({cell(column.name)} AS {column.type.sql}) AS {quote(column.name)}"
        for column in description.columns
    )
    same_key = " AND ".join(
        f"{TABLE}.{quote(name)} <=> {_SOURCE}.{quote(name)}" for name in description.record_key
    )
    stored = f"{TABLE}.{START} = {_SOURCE}.{START}" if has_start else f"{TABLE}.{ACTIVE}"
    kinds = f"array({int(Op.EARLIEST)}, {int(Op.REPLACE)})"
    # The view is needed only until Spark has analyzed the statement.
    with temp_view(rows) as view:
        return spark.sql(
            f"SELECT explode({kinds}) AS {OP}, 0L AS {SEQ}, CAST(NULL AS ARRAY<BIGINT>) AS "
            f"{UNMODIFIED}, {cells} FROM {view} AS {_SOURCE} "
            f"LEFT JOIN {source} AS {TABLE} ON {stored} AND {same_key}"
        )


def _expect_one_row_a_key(spark: SparkSession, changes: str, description: TableDescription) -> None:
    key = column_list(description.record_key)
    (found,) = spark.sql(
        f"SELECT count(1) FROM (SELECT {key} FROM {changes} "
        f"WHERE {IS_REPLACE} GROUP BY {key} HAVING count(1) > 1)"
    ).collect()
    if found[0]:
        raise BatchError(
            # No sample in the message: a key may be a name or an address.
            f"The re-sync contains {found[0]} records more than once.",
            table=str(description.name),
            hint="Send each record's current state once.",
        )


def _is_same(description: TableDescription, rows: DataFrame) -> str:
    """Return SQL: whether a row equals the record's active version."""
    compared = [
        name for name in rows.columns if name not in {END, ACTIVE, SYNCED, *description.record_key}
    ]
    # Compared as it would be stored: a source's double differs from a stored float.
    same = [
        f"{TABLE}.{quote(name)} <=> "
        f"CAST({_SOURCE}.{quote(name)} AS {description.by_name[name].type.sql})"
        for name in compared
    ]
    return f"coalesce({' AND '.join([f'{TABLE}.{ACTIVE}', *same])}, false)"
