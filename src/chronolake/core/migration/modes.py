"""Mode changes of a table, with its data: live, soft-delete and history.

Source: `seeds/history-mode.txt` ("Switching modes", "Record history") and `specs/partner-sdk.md`
4.9. A switch is one published step: readers see the table in its old mode or in the new one. The
time of a row's last sync never changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from chronolake.core.history_only import expect_mode
from chronolake.core.publish import expect_as_planned, publish_with_retries
from chronolake.core.rewrite import drop_abandoned
from chronolake.core.sql import column_list
from chronolake.core.table_swap import publish_replacement
from chronolake.core.views import drop_current_view
from chronolake.description import describe_loaded
from chronolake.errors import SchemaError, UnknownColumnError
from chronolake.formatting import did_you_mean
from chronolake.session import CATALOG
from chronolake.types import (
    ACTIVE,
    DELETED,
    END,
    HISTORY_COLUMNS,
    HISTORY_SINCE_PROPERTY,
    ROW_ID,
    START,
    SYNCED,
    TMAX_MICROS,
    TMIN_MICROS,
    Column,
    ColumnType,
    Kind,
    Mode,
    quote,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import SparkSession

    from chronolake.description import TableDescription
    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake
    from chronolake.types import TableName


_BOOLEAN: Final = ColumnType(Kind.BOOLEAN)
_HISTORY: Final = (
    Column(START, ColumnType(Kind.UTC_DATETIME), primary_key=True),
    Column(END, ColumnType(Kind.UTC_DATETIME)),
    Column(ACTIVE, _BOOLEAN),
)
_NEWEST: Final = "newest"
_NO_MARKS: Final = frozenset({*HISTORY_COLUMNS, SYNCED, ROW_ID})


@dataclass(frozen=True)
class Conversion:
    """A table's content in another mode.

    Attributes:
        columns: its columns, in order.
        query: SQL that returns its rows, with these columns, from the current table.
        counts: SQL that returns one row: the number of rows before and afterwards.
        properties: table properties to set with it.
    """

    columns: tuple[Column, ...]
    query: str
    counts: str
    properties: dict[str, str] = field(default_factory=dict)


def convert_to(
    spark: SparkSession, description: TableDescription, mode: Mode, *, markers: Sequence[str]
) -> Conversion:
    """Return a table's content in another mode.

    Args:
        spark: reads the greatest `_fivetran_synced`, for history.
        description: the current table, in a mode other than `mode`.
        mode: the other mode.
        markers: the columns that mark deleted rows, as for `switch_mode`.

    Raises:
        SchemaError: the table cannot have this mode.
        UnknownColumnError: a marker is needed, and none of them exists.
    """
    if mode is Mode.HISTORY:
        return _to_history(spark, description, markers)
    if mode is Mode.SOFT_DELETE:
        return _to_soft_delete(description, markers or (DELETED,))
    return _to_live(description, markers or (DELETED,))


def _to_history(
    spark: SparkSession, description: TableDescription, markers: Sequence[str]
) -> Conversion:
    """Convert to history: rows are active from the greatest sync time; deleted rows end at Tmin."""
    if not description.primary_key:
        raise SchemaError(
            "The table has no primary key, so its records have no history.",
            table=str(description.name),
            hint="Give the table a key with AlterTable, or choose another table.",
        )
    for name in HISTORY_COLUMNS:
        if name in description.by_name:
            raise SchemaError(
                "The table already has a column with the name of a history column.",
                table=str(description.name),
                column=name,
                hint="Rename or drop the column first.",
            )
    source = _source(description)
    since = _greatest_synced(spark, description)
    deleted = _is_deleted(description, markers)
    kept = [column for column in description.columns if column.name != DELETED]
    query = (
        f"SELECT {column_list(column.name for column in kept)}, "
        f"timestamp_micros(IF({deleted}, {TMIN_MICROS}, {since})) AS {START}, "
        f"timestamp_micros(IF({deleted}, {TMIN_MICROS}, {TMAX_MICROS})) AS {END}, "
        f"NOT {deleted} AS {ACTIVE} FROM {source}"
    )
    counts = f"SELECT count(1), count(1) FROM {source}"
    properties = {HISTORY_SINCE_PROPERTY: str(since)}
    return Conversion((*kept, *_HISTORY), query, counts, properties)


def _to_soft_delete(description: TableDescription, markers: Sequence[str]) -> Conversion:
    """Convert to soft-delete: each record's newest version, deleted unless it is active."""
    source = _source(description)
    for marker in markers:
        if marker in description.by_name:
            _expect_mark(description, marker)
    if description.mode is Mode.LIVE:
        added = _missing_columns(description, dict.fromkeys([DELETED, *markers]))
        unmarked = (f"false AS {quote(column.name)}" for column in added)
        stored = column_list(column.name for column in description.columns)
        return Conversion(
            (*description.columns, *added),
            f"SELECT {', '.join([stored, *unmarked])} FROM {source}",
            f"SELECT count(1), count(1) FROM {source}",
        )
    if not description.record_key:
        raise SchemaError(
            "The table has no primary key, so a record's newest version cannot be found.",
            table=str(description.name),
            hint="Give it a key with AlterTable first.",
        )
    kept = _without_history(description)
    columns = (*kept, *_missing_columns(description, dict.fromkeys([DELETED, *markers])))
    # A version whose activity is null is deleted.
    is_deleted = f"NOT coalesce({_NEWEST}.{ACTIVE}, false)"
    marks = {DELETED: "false", **dict.fromkeys(markers, is_deleted)}
    cells = ", ".join(
        f"{marks.get(column.name, f'{_NEWEST}.{quote(column.name)}')} AS {quote(column.name)}"
        for column in columns
    )
    key = column_list(description.record_key)
    query = (
        f"SELECT {cells} FROM (SELECT max_by(struct(*), {START}) AS {_NEWEST} FROM {source} "
        f"WHERE {START} IS NOT NULL GROUP BY {key})"
    )
    counts = (
        f"SELECT sum(versions), count_if(dated > 0) FROM (SELECT count(1) AS versions, "
        f"count({START}) AS dated FROM {source} GROUP BY {key})"
    )
    return Conversion(columns, query, counts)


def _to_live(description: TableDescription, markers: Sequence[str]) -> Conversion:
    """Convert to live: the rows that are not deleted."""
    source = _source(description)
    if description.mode is Mode.HISTORY:
        stored = _without_history(description)
        stays = f"{ACTIVE}"
    else:
        stored = list(description.columns)
        stays = f"NOT {_is_deleted(description, markers)}"
    # A history table may have the column, too; with it, the result would be in soft-delete mode.
    columns = [column for column in stored if column.name != DELETED]
    query = f"SELECT {column_list(column.name for column in columns)} FROM {source} WHERE {stays}"
    return Conversion(tuple(columns), query, f"SELECT count(1), count_if({stays}) FROM {source}")


def _source(description: TableDescription) -> str:
    return f"{CATALOG}.{description.name.sql}"


def _without_history(description: TableDescription) -> list[Column]:
    return [column for column in description.columns if column.name not in HISTORY_COLUMNS]


def _missing_columns(
    description: TableDescription, names: Sequence[str] | dict[str, None]
) -> list[Column]:
    return [Column(name, _BOOLEAN) for name in names if name not in description.by_name]


def _is_deleted(description: TableDescription, markers: Sequence[str]) -> str:
    """Return SQL: whether any of the existing markers is true; null means not deleted.

    A table without `_fivetran_deleted` has no deleted rows. Missing markers are ignored if another
    one exists; if none does, the names are probably wrong, and deletions would be lost.
    """
    existing = [name for name in dict.fromkeys(markers) if name in description.by_name]
    named = [name for name in markers if name != DELETED]
    for marker in existing or named:
        _expect_mark(description, marker)
    marks = [f"coalesce({quote(name)}, false)" for name in existing]
    return f"({' OR '.join(marks)})" if marks else "false"


def missing_mark(table: TableName, marker: str, columns: Iterable[str]) -> UnknownColumnError:
    """Return the error for a column that is to mark deleted rows and does not exist."""
    return UnknownColumnError(
        "The table does not have this column to mark deleted rows.",
        table=str(table),
        column=marker,
        hint=did_you_mean(marker, columns, "Name a BOOLEAN column of the table, or no marker."),
    )


def _expect_mark(description: TableDescription, marker: str) -> None:
    stored = description.by_name.get(marker)
    if stored is None:
        raise missing_mark(description.name, marker, description.by_name)
    if marker in _NO_MARKS or stored.type.kind is not Kind.BOOLEAN or stored.primary_key:
        raise SchemaError(
            f"The column cannot mark deleted rows: it is {stored.type}"
            f"{' and part of the key' if stored.primary_key else ''}"
            f"{', a system column' if marker in _NO_MARKS else ''}.",
            table=str(description.name),
            column=marker,
            hint="Name a BOOLEAN column that is neither part of the key nor another system column.",
        )


def _greatest_synced(spark: SparkSession, description: TableDescription) -> int:
    """Return the newest sync in the table in microseconds; the current time if no row has one."""
    synced = description.by_name.get(SYNCED)
    if synced is not None and synced.type.kind is Kind.UTC_DATETIME:
        (found,) = spark.sql(
            f"SELECT unix_micros(max({SYNCED})) FROM {_source(description)}"
        ).collect()
        if found[0] is not None:
            return int(found[0])
    now = datetime.now(UTC)
    return int(now.timestamp()) * 1_000_000 + now.microsecond // 1_000 * 1_000


@dataclass(frozen=True)
class SwitchPlan:
    """The effects of a mode switch.

    Attributes:
        before, after: its modes.
        added, dropped: names of the columns that are added and dropped.
        rows_before, rows_after: number of rows (of a history table: versions).
        markers: the columns that mark deleted rows.
    """

    table: TableName
    before: Mode
    after: Mode
    added: tuple[str, ...]
    dropped: tuple[str, ...]
    rows_before: int
    rows_after: int
    markers: tuple[str, ...] = ()

    @property
    def rows_lost(self) -> int:
        """Return the number of rows that are removed."""
        return self.rows_before - self.rows_after

    @property
    def forgets(self) -> str | None:
        """Return the information that is lost, as a text; None if nothing is lost."""
        match self.before, self.after:
            case Mode.HISTORY, Mode.SOFT_DELETE:
                return (
                    "all versions except the newest of each record, and the times at which "
                    "versions were valid"
                )
            case Mode.HISTORY, Mode.LIVE:
                return (
                    "all versions except the active ones, every deleted record, and the times at "
                    "which versions were valid"
                )
            case Mode.SOFT_DELETE, Mode.LIVE:
                return "the records that are marked as deleted"
            case _, Mode.HISTORY if DELETED in self.dropped and DELETED not in self.markers:
                markers = " and ".join(self.markers) or "no column"
                verb = "mark" if len(self.markers) > 1 else "marks"
                return f"the values of {DELETED}: only {markers} {verb} deleted rows"
            case _:
                return None


def plan_switch(
    lake: Lake, name: TableName, mode: Mode, *, markers: Sequence[str] = (DELETED,)
) -> SwitchPlan:
    """Return the effects of `switch_mode` without applying them; one Spark query counts the rows.

    Raises:
        TableNotFoundError: the table does not exist.
        SchemaError: the table cannot have this mode.
    """
    description = lake.describe(name)
    if description is None:
        raise lake.missing(name)
    if description.mode is mode:
        rows = lake.table(name).df.count()
        return SwitchPlan(name, mode, mode, (), (), rows, rows)
    expect_mode(lake.config, name, mode)
    conversion = convert_to(lake.spark, description, mode, markers=markers)
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
        markers=tuple(markers),
    )


def switch_mode(
    lake: Lake,
    name: TableName,
    mode: Mode,
    *,
    markers: Sequence[str] = (DELETED,),
    planned_on: IcebergTable | None = None,
) -> bool:
    """Switch a table's mode and keep its data, in one published step.

    To history: rows with a true marker become versions that started and ended at Tmin; all others
    are active since the table's greatest `_fivetran_synced` (since the current time, if no row has
    one). `_fivetran_deleted` is dropped; a marker with another name is kept. From history to
    soft-delete, each record's newest version is kept, marked as deleted unless it is active; to
    live, the active versions are kept. From soft-delete to live, marked rows are removed.

    Args:
        name: the table.
        mode: the new mode.
        markers: the columns that mark deleted rows in soft-delete mode; a row is deleted if any
            existing one is true. To history, none means that no row is deleted, as in a table
            without `_fivetran_deleted`. To soft-delete, missing markers are created in addition to
            `_fivetran_deleted`, which is false everywhere if it is not one of them.
        planned_on: switch only if the table is still in this state; None: in any.

    Returns:
        Whether the table had another mode before.

    Raises:
        TableNotFoundError: the table does not exist.
        SchemaError: the table cannot have this mode: it has no key or a conflicting column, or it
            can only be in history mode.
        UnknownColumnError: a marker is needed, and none of them exists.
        ConfigurationError: a pipeline fills the table.
        CommitError: the result could not be published, or the table has changed since `planned_on`.
    """
    drop_abandoned(lake)

    def attempt(table: IcebergTable) -> bool:
        description = describe_loaded(table)
        if description.mode is mode:
            if mode is not Mode.HISTORY:
                # An earlier switch may have crashed before this.
                drop_current_view(lake, name)
            return False
        expect_as_planned(planned_on, table)
        conversion = convert_to(lake.spark, description, mode, markers=markers)
        publish_replacement(
            lake, table, conversion.columns, conversion.query, conversion.properties
        )
        if description.mode is Mode.HISTORY:
            drop_current_view(lake, name)
        return True

    return publish_with_retries(lake, name, attempt)
