"""Schema evolution (ALTER TABLE): add, drop and retype columns, change keys, all or nothing.

Source: `seeds/destination-connector.txt` ("AlterTable") and `specs/partner-sdk.md` 4.4. A request
contains the complete set of wanted columns. A column that it leaves out is kept with its data (and
removed from the key) unless `drop_columns` is set.

Iceberg changes some types in place; the other changes need a rewrite of the table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from chronolake.arrow_tasks import map_in_tasks
from chronolake.change_set import RESERVED
from chronolake.core.create import check_columns
from chronolake.core.publish import publish_with_retries
from chronolake.core.rewrite import drop_abandoned, publish_columns, rewrite
from chronolake.core.sql import col
from chronolake.description import describe_loaded
from chronolake.errors import DuplicateKeyError, SchemaError, TypeChangeError
from chronolake.frames import select
from chronolake.parsing.columns import EMPTY_IS_VALUE, TEXT_KINDS, parse_fitting
from chronolake.session import CATALOG
from chronolake.types import END, START, Column, ColumnType, Kind, Mode, literal, mode_of, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from chronolake.description import TableDescription
    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake
    from chronolake.types import TableName


_WHOLE: Final = {Kind.SHORT, Kind.INT, Kind.LONG}
_FLOATING: Final = {Kind.FLOAT, Kind.DOUBLE}
_NUMBERS: Final = _WHOLE | _FLOATING | {Kind.DECIMAL, Kind.BOOLEAN}
_TIMES: Final = {Kind.NAIVE_DATE, Kind.NAIVE_DATETIME, Kind.UTC_DATETIME}
_SHORT_LIMITS: Final = (-(2**15), 2**15 - 1)
_INFINITE: Final = "CAST('Infinity' AS DOUBLE)"
_SECONDS: Final = literal("yyyy-MM-dd'T'HH:mm:ss")
_WIDENING: Final = {
    (Kind.SHORT, Kind.INT),
    (Kind.SHORT, Kind.LONG),
    (Kind.INT, Kind.LONG),
    (Kind.FLOAT, Kind.DOUBLE),
    (Kind.NAIVE_TIME, Kind.STRING),
}


def is_in_place(old: ColumnType, new: ColumnType) -> bool:
    """Return whether a column's type can change without rewriting its values."""
    if old.kind is Kind.DECIMAL and new.kind is Kind.DECIMAL:
        return old.scale == new.scale and (new.precision or 0) >= (old.precision or 0)
    if old.kind in TEXT_KINDS and new.kind in TEXT_KINDS:
        return True
    return (old.kind, new.kind) in _WIDENING


def is_parsed(old: ColumnType, new: ColumnType) -> bool:
    """Return whether values are converted to their new type by parsing texts (`parse_texts`)."""
    return old.kind in TEXT_KINDS and new.kind not in {*TEXT_KINDS, Kind.BINARY}


def convert(value: str, old: ColumnType, new: ColumnType) -> str:
    """Return SQL for a value in its new type, or null if it does not fit.

    Texts need `parse_texts` (`is_parsed`). Values are formatted as in batch files
    (`seeds/destination-connector.txt`, "Examples of data types"), except binary values, which are a
    text's UTF-8 bytes. Numbers are not converted to times, nor times to numbers, because they have
    no unit. Fractions are rounded: half up to a decimal with fewer digits, and to the nearest
    floating-point number, which must be finite. All other values fit if converting them back gives
    the same value.

    Args:
        value: the value as SQL.
        old: its type.
        new: its new type.
    """
    if new.kind is Kind.BINARY:
        return f"CAST({_as_text(value, old.kind)} AS BINARY)"
    if new.kind in TEXT_KINDS and old.kind is Kind.BINARY:
        text = f"CAST({value} AS STRING)"
        return f"CASE WHEN is_valid_utf8({text}) THEN {text} END"
    if new.kind in TEXT_KINDS:
        return _as_text(value, old.kind)
    if not any({old.kind, new.kind} <= alike for alike in (_NUMBERS, _TIMES)):
        return f"CAST(NULL AS {new.sql})"
    return _cast(value, old, new)


def is_lost(value: str, result: str, old: ColumnType, new: ColumnType) -> str:
    """Return a SQL condition: `convert` turned a value into null.

    An empty text counts as null if it is not a valid value of the new type, as in batch files.
    """
    is_value = f"{value} IS NOT NULL"
    if old.kind in TEXT_KINDS and new.kind not in EMPTY_IS_VALUE:
        is_value += f" AND {value} <> ''"
    return f"{is_value} AND {result} IS NULL"


def parse_texts(rows: DataFrame, types: Mapping[str, ColumnType]) -> DataFrame:
    """Add text columns' values in other types, parsed as in batch files; null if they don't fit.

    Spark 4.0 has no function of Arrow arrays, so the whole rows pass through Python.

    Args:
        rows: any columns.
        types: the other type of each text column, by its name.

    Returns:
        The rows with an additional column for each of `types`, named by `_parsed_name`.
    """
    ddl = ", ".join(f"{quote(_parsed_name(name))} {kind.sql}" for name, kind in types.items())
    parsed = StructType.fromDDL(ddl)
    schema = StructType([*rows.schema.fields, *parsed.fields])
    return map_in_tasks(rows, partial(_parse_columns, dict(types)), schema)


def _parse_columns(
    types: Mapping[str, ColumnType], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        cells = dict(zip(batch.schema.names, batch.columns, strict=True))
        parsed = {
            _parsed_name(name): parse_fitting(cells[name], kind) for name, kind in types.items()
        }
        yield pa.RecordBatch.from_pydict({**cells, **parsed})


def _parsed_name(column: str) -> str:
    return f"{RESERVED}parsed_{column}"


def _cast(value: str, old: ColumnType, new: ColumnType) -> str:
    result = f"try_cast({value} AS {new.sql})"
    fits = []
    if new.kind is Kind.SHORT:
        least, greatest = _SHORT_LIMITS
        fits.append(f"{result} BETWEEN {least} AND {greatest}")
    if new.kind not in {*_FLOATING, Kind.DECIMAL} or old.kind in _WHOLE:
        # A value that differs when it is converted back has lost something: a fraction, a time of
        # day, or a number that became true.
        fits.append(f"try_cast({result} AS {old.sql}) <=> {value}")
    if new.kind in _FLOATING:
        if old.kind in _WHOLE:
            # 2**63 itself passes the round trip, because casting it back saturates at the maximum.
            fits.append(f"{result} < {float(2**63)}D")
        was_infinite = f"abs(try_cast({value} AS DOUBLE)) = {_INFINITE}"
        fits.append(f"(abs({result}) <> {_INFINITE} OR {was_infinite})")
    return f"CASE WHEN {' AND '.join(fits)} THEN {result} END" if fits else result


def _as_text(value: str, kind: Kind) -> str:
    match kind:
        case Kind.UTC_DATETIME:
            return f"concat({_iso(value)}, 'Z')"
        case Kind.NAIVE_DATETIME:
            return _iso(value)
        case _:
            return f"CAST({value} AS STRING)"


def _iso(value: str) -> str:
    """Return SQL for an ISO time without trailing zeros of its fraction, or an empty fraction."""
    seconds = f"date_format({value}, {_SECONDS})"
    return f"concat({seconds}, regexp_replace(date_format({value}, '.SSSSSS'), '[.]?0+$', ''))"


_SAME: Final = f"{RESERVED}same"
_NEXT: Final = f"{RESERVED}next"


@dataclass(frozen=True)
class AlterPlan:
    """The changes that a request makes to a table.

    Attributes:
        columns: the resulting columns, in table order.
        converted: columns whose stored values have to be rewritten, by name, as they were before.
        changes_key: whether rows may have duplicates of the new key.
    """

    columns: tuple[Column, ...]
    converted: dict[str, Column]
    changes_key: bool

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Return the resulting key."""
        return tuple(column.name for column in self.columns if column.primary_key)


def plan_alter(
    description: TableDescription, requested: Sequence[Column], *, drop_columns: bool
) -> AlterPlan | None:
    """Return the changes that a request makes to a table, or None if nothing changes.

    Raises:
        SchemaError: the wanted columns are not valid for a table, or would switch history mode.
    """
    check_columns(description.name, requested)
    by_name = {column.name: column for column in requested}
    columns = []
    for stored in description.columns:
        if stored.name in by_name:
            columns.append(by_name[stored.name])
        elif not drop_columns:
            columns.append(replace(stored, primary_key=False))
    columns += [column for column in requested if column.name not in description.by_name]
    if tuple(columns) == description.columns:
        return None
    check_columns(description.name, columns)
    after = mode_of(column.name for column in columns)
    if (after is Mode.HISTORY) != (description.mode is Mode.HISTORY):
        raise SchemaError(
            f"The requested columns would switch the table from {description.mode} to {after} "
            "mode.",
            table=str(description.name),
            hint="Switch the mode with a migration; AlterTable does not change it.",
        )
    before = description.by_name
    retyped = {
        column.name: before[column.name]
        for column in columns
        if column.name in before
        and not is_in_place(before[column.name].type, column.type)
        and before[column.name].type != column.type
    }
    old_key = set(description.record_key)
    new_key = {column.name for column in columns if column.primary_key}
    if after is Mode.HISTORY:
        new_key.discard(START)
    # Rows that are unique by a key are unique by a greater one; without a key nothing is known.
    is_greater = bool(old_key) and old_key <= new_key - retyped.keys()
    return AlterPlan(tuple(columns), retyped, bool(new_key) and not is_greater)


def alter(
    lake: Lake,
    name: TableName,
    columns: Sequence[Column],
    *,
    drop_columns: bool,
    guard: Callable[[IcebergTable], None] | None = None,
) -> bool:
    """Change a table to the wanted columns, types and key; all of it or nothing.

    Args:
        name: the table.
        columns: the wanted columns; the table keeps the order of those it has.
        drop_columns: whether columns that are not wanted are dropped (or kept with their data).
        guard: for pipeline tables: called with each state of the table that is to change; raises if
            the pipeline's process must no longer write to it. Without a guard, the table must not
            be a pipeline table.

    Returns:
        Whether anything changed.

    Raises:
        TableNotFoundError: the table does not exist.
        ConfigurationError: a pipeline fills the table, and there is no guard.
        SchemaError: the wanted columns are not valid for a table.
        TypeChangeError: stored values do not fit their new type.
        DuplicateKeyError: rows would have the same new key.
        CommitError: other writers published first too often.
        Exception: any error of `guard`; nothing has changed.
    """
    drop_abandoned(lake)

    def attempt(table: IcebergTable) -> bool:
        if guard is not None:
            guard(table)
        plan = plan_alter(describe_loaded(table), columns, drop_columns=drop_columns)
        if plan is None:
            return False
        _run(lake, table, plan)
        return True

    return publish_with_retries(lake, name, attempt, allow_pipeline_table=guard is not None)


def _run(lake: Lake, table: IcebergTable, plan: AlterPlan) -> None:
    stored = lake.spark.table(f"{CATALOG}.{table.name.sql}")
    rows = _with_new_types(stored, table, plan) if plan.converted else stored
    if plan.changes_key:
        _check_key(rows, table, plan)
    if plan.converted:
        rewrite(lake, table, columns=plan.columns, replaced=plan.converted, rows=rows)
    else:
        publish_columns(table, plan.columns)


def convert_columns(
    rows: DataFrame, before: Mapping[str, ColumnType], after: Mapping[str, ColumnType]
) -> tuple[DataFrame, dict[str, str]]:
    """Return rows, and SQL over them for some columns' values in their new types (`convert`).

    Args:
        rows: any columns.
        before: the types of the columns, by name.
        after: their new types.
    """
    parsed = {name: after[name] for name, old in before.items() if is_parsed(old, after[name])}
    if parsed:
        rows = parse_texts(rows, parsed)
    converted = {name: convert(quote(name), old, after[name]) for name, old in before.items()}
    return rows, converted | {name: quote(_parsed_name(name)) for name in parsed}


def _with_new_types(stored: DataFrame, table: IcebergTable, plan: AlterPlan) -> DataFrame:
    types = {column.name: column.type for column in plan.columns}
    old = set(stored.columns)
    before = {name: column.type for name, column in plan.converted.items()}
    stored, new = convert_columns(stored, before, types)
    lost = (
        f"count_if({is_lost(quote(name), value, plan.converted[name].type, types[name])}) AS c{n}"
        for n, (name, value) in enumerate(new.items())
    )
    (counts,) = select(stored, lost).collect()
    for column, count in zip(plan.converted.values(), counts, strict=True):
        if count:
            raise TypeChangeError(
                f"{count} stored {'value' if count == 1 else 'values'} of type {column.type} "
                f"{'does' if count == 1 else 'do'} not fit {types[column.name]}.",
                table=str(table.name),
                column=column.name,
                hint="Choose a type that can store them, or correct them at the source.",
            )
    cells = {name: new.get(name, quote(name)) for name in old}
    return select(
        stored,
        (
            f"CAST({cells.get(column.name, 'NULL')} AS {column.type.sql}) AS {quote(column.name)}"
            for column in plan.columns
        ),
    )


def _check_key(rows: DataFrame, table: IcebergTable, plan: AlterPlan) -> None:
    have = set(rows.columns)
    named = f"({', '.join(plan.primary_key)})"
    if mode_of(have) is Mode.HISTORY:
        what = f"Versions of one record would overlap with the key {named}."
        in_order = Window.partitionBy(
            *(col(name) for name in plan.primary_key if name in have and name != START)
        ).orderBy(START)
        following = rows.select(START, END, F.lead(START).over(in_order).alias(_NEXT))
        repeated = following.where(col(_NEXT) <= F.greatest(col(START), col(END)))
    else:
        what = f"Rows of the table would have the same key {named}."
        key = [col(name) for name in plan.primary_key if name in have]
        counted = rows.groupBy(*key).agg(F.count(F.lit(1)).alias(_SAME))
        repeated = counted.where(col(_SAME) > 1)
    if not repeated.isEmpty():
        raise DuplicateKeyError(
            what,
            table=str(table.name),
            hint="Choose a key that distinguishes them, or re-sync the table.",
        )
