"""A table's rows and columns as they are in another mode.

Source: `seeds/history-mode.txt` ("Switching modes") and `specs/partner-sdk.md` 4.9. The time of a
row's last sync never changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from chronolake.errors import SchemaError, UnknownColumnError
from chronolake.session import CATALOG
from chronolake.table.sql import listed
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
    quoted,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from chronolake.description import TableDescription

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
    """A table in another mode.

    Attributes:
        columns: its columns, in order.
        query: SQL that gives its rows, with these columns, out of the table as it is.
        counts: SQL that gives one row: the number of rows before and afterwards.
        properties: table properties that go with it.
    """

    columns: tuple[Column, ...]
    query: str
    counts: str
    properties: dict[str, str] = field(default_factory=dict)


def converted_to(
    spark: SparkSession, description: TableDescription, mode: Mode, *, marker: str | None
) -> Conversion:
    """A table as it is in another mode.

    Args:
        spark: looks up the greatest `_fivetran_synced`, for history.
        description: the table as it is, in a mode other than `mode`.
        mode: the other mode.
        marker: the column that marks deleted rows in soft-delete mode.

    Raises:
        SchemaError: the table cannot be in that mode.
        UnknownColumnError: the table has no such marker, and needs it.
    """
    if mode is Mode.HISTORY:
        return _to_history(spark, description, marker)
    if mode is Mode.SOFT_DELETE:
        return _to_soft_delete(description, marker or DELETED)
    return _to_live(description, marker or DELETED)


def _to_history(
    spark: SparkSession, description: TableDescription, marker: str | None
) -> Conversion:
    """Unmarked rows are active from the table's greatest time of sync; marked ones end at Tmin."""
    if not description.primary_key:
        raise SchemaError(
            "The table has no primary key, so its records have no history.",
            table=str(description.name),
            hint="History needs a key: send AlterTable with one, or choose another table.",
        )
    for name in HISTORY_COLUMNS:
        if name in description.by_name:
            raise SchemaError(
                "The table has a column in the place of a history column.",
                table=str(description.name),
                column=name,
                hint="Rename or drop the column first.",
            )
    source = _source(description)
    since = _greatest_synced(spark, description)
    deleted = "false"
    # A table without `_fivetran_deleted` has no deleted rows; any other marker was meant.
    if marker is not None and (marker != DELETED or marker in description.by_name):
        _expect_mark(description, marker)
        # A row that is not known to be deleted is not deleted.
        deleted = f"coalesce({quoted(marker)}, false)"
    kept = [column for column in description.columns if column.name != DELETED]
    query = (
        f"SELECT {listed(column.name for column in kept)}, "
        f"timestamp_micros(IF({deleted}, {TMIN_MICROS}, {since})) AS {START}, "
        f"timestamp_micros(IF({deleted}, {TMIN_MICROS}, {TMAX_MICROS})) AS {END}, "
        f"NOT {deleted} AS {ACTIVE} FROM {source}"
    )
    counts = f"SELECT count(1), count(1) FROM {source}"
    properties = {HISTORY_SINCE_PROPERTY: str(since)}
    return Conversion((*kept, *_HISTORY), query, counts, properties)


def _to_soft_delete(description: TableDescription, marker: str) -> Conversion:
    """Each record's newest version, marked as deleted unless it is active."""
    source = _source(description)
    if description.mode is Mode.LIVE:
        if marker in description.by_name:
            _expect_mark(description, marker)
        added = _missing(description, dict.fromkeys([DELETED, marker]))
        unmarked = (f"false AS {quoted(column.name)}" for column in added)
        stored = listed(column.name for column in description.columns)
        return Conversion(
            (*description.columns, *added),
            f"SELECT {', '.join([stored, *unmarked])} FROM {source}",
            f"SELECT count(1), count(1) FROM {source}",
        )
    if not description.record_key:
        raise SchemaError(
            "The table has no primary key, so nothing tells which version is a record's newest.",
            table=str(description.name),
            hint="Give it a key with AlterTable first.",
        )
    if marker in description.by_name:
        _expect_mark(description, marker)
    kept = _without_history(description)
    columns = (*kept, *_missing(description, dict.fromkeys([DELETED, marker])))
    # What is not known to be active is deleted.
    marks = {DELETED: "false", marker: f"NOT coalesce({_NEWEST}.{ACTIVE}, false)"}
    cells = ", ".join(
        f"{marks.get(column.name, f'{_NEWEST}.{quoted(column.name)}')} AS {quoted(column.name)}"
        for column in columns
    )
    key = listed(description.record_key)
    query = (
        f"SELECT {cells} FROM (SELECT max_by(struct(*), {START}) AS {_NEWEST} FROM {source} "
        f"WHERE {START} IS NOT NULL GROUP BY {key})"
    )
    counts = (
        f"SELECT sum(versions), count_if(dated > 0) FROM (SELECT count(1) AS versions, "
        f"count({START}) AS dated FROM {source} GROUP BY {key})"
    )
    return Conversion(columns, query, counts)


def _to_live(description: TableDescription, marker: str) -> Conversion:
    """The rows that are not deleted."""
    source = _source(description)
    if description.mode is Mode.HISTORY:
        columns = _without_history(description)
        stays = f"{ACTIVE}"
    else:
        _expect_mark(description, marker)
        columns = [column for column in description.columns if column.name != DELETED]
        stays = f"NOT coalesce({quoted(marker)}, false)"
    query = f"SELECT {listed(column.name for column in columns)} FROM {source} WHERE {stays}"
    return Conversion(tuple(columns), query, f"SELECT count(1), count_if({stays}) FROM {source}")


def _source(description: TableDescription) -> str:
    return f"{CATALOG}.{description.name.sql}"


def _without_history(description: TableDescription) -> list[Column]:
    return [column for column in description.columns if column.name not in HISTORY_COLUMNS]


def _missing(description: TableDescription, names: Sequence[str] | dict[str, None]) -> list[Column]:
    return [Column(name, _BOOLEAN) for name in names if name not in description.by_name]


def _expect_mark(description: TableDescription, marker: str) -> None:
    stored = description.by_name.get(marker)
    if stored is None:
        raise UnknownColumnError(
            "The table has no such column to mark deleted rows.",
            table=str(description.name),
            column=marker,
            hint="Name a BOOLEAN column of the table, or no marker.",
        )
    if marker in _NO_MARKS or stored.type.kind is not Kind.BOOLEAN or stored.primary_key:
        raise SchemaError(
            f"The column cannot mark deleted rows: it is {stored.type}"
            f"{' and part of the key' if stored.primary_key else ''}"
            f"{', a system column' if marker in _NO_MARKS else ''}.",
            table=str(description.name),
            column=marker,
            hint="Name a BOOLEAN column outside the key that is no other system column.",
        )


def _greatest_synced(spark: SparkSession, description: TableDescription) -> int:
    """Microseconds of the newest sync in the table; of now, if no row tells."""
    synced = description.by_name.get(SYNCED)
    if synced is not None and synced.type.kind is Kind.UTC_DATETIME:
        (found,) = spark.sql(
            f"SELECT unix_micros(max({SYNCED})) FROM {_source(description)}"
        ).collect()
        if found[0] is not None:
            return int(found[0])
    now = datetime.now(UTC)
    return int(now.timestamp()) * 1_000_000 + now.microsecond // 1_000 * 1_000
