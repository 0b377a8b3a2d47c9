"""Differences between a snapshot of a source and its table, as record versions.

A record that is the same in the table does not land: its version stays current. A changed or new
record gets a version, and a missing one is deleted. All of these have the time of the snapshot, so
that earlier history stays unchanged.

This module also filters out record versions that a source returns again without a change. APIs
return the last record of the previous run again, and with a lookback window many; records without a
modification time are returned in every run. A version of such a record would repeat the table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.functions import expr

from chronolake.arrow_tasks import ArrowRows, are_here, schema_of, to_arrow, to_spark, types_in
from chronolake.change_set import DELETED_AT, MODIFIED, PROVIDES_DATA, PURGED_AT, RESERVED, SEQUENCE
from chronolake.core.batch_profile import ORDERED, bounds_of
from chronolake.core.row_hash import hash_of, hashed_columns
from chronolake.description import describe_loaded
from chronolake.frames import select
from chronolake.landing import as_type, wider
from chronolake.types import (
    HASH,
    PRESENT,
    Column,
    ColumnType,
    Kind,
    literal,
    quote,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame

    from chronolake.description import TableDescription
    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake
    from chronolake.source.protocol import Snapshot


_RECORD: Final = f"{RESERVED}record"
_NEW_VALUES: Final = f"{RESERVED}new_values"
_OLD_VALUES: Final = f"{RESERVED}old_values"
_IS_PRESENT: Final = f"{RESERVED}is_present"
_KEY: Final = f"{RESERVED}key_"
_RANK: Final = f"{RESERVED}rank"


@dataclass(frozen=True)
class Sides:
    """The columns of records and of their table, with types that can hold the values of both.

    Attributes:
        given: the records' columns.
        stored: the table's columns; a column that it lacks is null in it.
        known: the names of the columns that it has.
    """

    given: tuple[Column, ...]
    stored: tuple[Column, ...]
    known: frozenset[str]

    @classmethod
    def of(cls, columns: Sequence[Column], description: TableDescription) -> Self:
        """Return the columns of both sides.

        Args:
            columns: the records' columns.
            description: the table.
        """
        stored = (
            description.by_name.get(column.name, Column(column.name, column.type))
            for column in columns
        )
        return cls(tuple(columns), tuple(stored), frozenset(description.by_name))

    @cached_property
    def common(self) -> dict[str, ColumnType]:
        """Return the types that can hold the values of both sides, by column."""
        both = zip(self.given, self.stored, strict=True)
        return {column.name: wider(column.type, other.type) for column, other in both}

    @cached_property
    def by_name(self) -> dict[str, Column]:
        """Return the table's columns by name."""
        return {column.name: column for column in self.stored}

    @property
    def new_values(self) -> str:
        """Return all values of a record as one SQL value."""
        return _struct(as_type(column, self.common[column.name]) for column in self.given)

    @property
    def old_values(self) -> str:
        """Return all values of a row of the table as one SQL value."""
        return _struct(self._old_value(column) for column in self.stored)

    def _old_value(self, column: Column) -> str:
        kind = self.common[column.name]
        if column.name not in self.known:
            return f"CAST(NULL AS {kind.sql})"
        found = as_type(column, kind)
        source = next(given.type.kind for given in self.given if given.name == column.name)
        if kind.kind is Kind.STRING and source in {Kind.FLOAT, Kind.DOUBLE}:
            # Java and Arrow format some numbers differently.
            number = ColumnType(source).sql
            found = f"coalesce(CAST(try_cast({found} AS {number}) AS STRING), {found})"
        return found


def keep_last_rows(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot with the last row of each record, without deleted records.

    Spark does it, unless the driver reads the rows.
    """
    if snapshot.order is None:
        return snapshot
    key = [column.name for column in snapshot.columns if column.primary_key]
    last = _LastRows(tuple(key), snapshot.order, snapshot.exists)
    if isinstance(snapshot.rows, ArrowRows) and are_here(snapshot.rows):
        found: ArrowRows | DataFrame = last.apply_here(snapshot.rows)
    else:
        found = last.apply_in_spark(to_spark(snapshot.rows))
    return replace(snapshot, rows=found, is_distinct=True, order=None, exists=None)


@dataclass(frozen=True)
class _LastRows:
    """A step that keeps the last row of each record; called with all of the rows.

    Attributes:
        key: the key columns.
        order: see `Snapshot`.
        exists: see `Snapshot`.
    """

    key: tuple[str, ...]
    order: str
    exists: str | None

    def apply_here(self, rows: ArrowRows) -> ArrowRows:
        """Return rows that the driver reads after this step."""
        types = types_in(rows.schema)
        kept = {name: kind for name, kind in types.items() if self._is_kept(name)}
        # If Spark reads them after all, one task does.
        one_task = replace(rows, places=lambda: rows.places().coalesce(1))
        return one_task.then(self, schema_of(kept))

    def apply_in_spark(self, rows: DataFrame) -> DataFrame:
        """Return rows after this step."""
        keys = ", ".join(map(quote, self.key))
        order = f"OVER (PARTITION BY {keys} ORDER BY {quote(self.order)} DESC)"
        exists = "" if self.exists is None else f" AND {quote(self.exists)}"
        ranked = rows.selectExpr("*", f"row_number() {order} AS {_RANK}")
        kept = (quote(name) for name in rows.columns if self._is_kept(name))
        return select(ranked.where(f"{_RANK} = 1{exists}"), kept)

    def _is_kept(self, name: str) -> bool:
        return name not in {self.order, self.exists}

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the last row of each record."""
        found = list(batches)
        if not found:
            return
        rows = pa.Table.from_batches(found)
        rows = rows.take(pc.sort_indices(rows[self.order]))
        numbers = pa.array(range(rows.num_rows), pa.int64())
        keys = pa.table({**{name: rows[name] for name in self.key}, _RANK: numbers})
        last = keys.group_by(list(self.key)).aggregate([(_RANK, "max")])
        rows = rows.take(last[f"{_RANK}_max"].sort())
        if self.exists is not None:
            rows = rows.filter(rows[self.exists])
        yield from rows.select(
            [name for name in rows.column_names if self._is_kept(name)]
        ).to_batches()


def diff_snapshot(
    lake: Lake, snapshot: Snapshot, table: IcebergTable | None
) -> tuple[DataFrame | ArrowRows, list[Column]]:
    """Return the difference between a snapshot and a table, as `landing.land` accepts it.

    Args:
        lake: the lake whose Spark session is used.
        snapshot: the snapshot of the source; if there is a table, with one row for each record.
        table: the table with all landed files applied; None if nothing has landed.

    Returns:
        Record versions, and their data columns: the snapshot's. A key has the table's type if that
            is
        wider than the source's. Columns with a text column (`Snapshot.texts`) keep it.
    """
    if table is None:
        return _versions_of_all(snapshot), list(snapshot.columns)

    at = (
        f"{snapshot.at_micros}L AS {MODIFIED}",
        f"{literal(snapshot.sequence)} AS {SEQUENCE}",
        f"CAST(NULL AS BIGINT) AS {PURGED_AT}",
    )
    exists = "true" if snapshot.present is None else quote(snapshot.present)
    description = describe_loaded(table)
    rows, columns = _as_stored(snapshot, description)
    hashed = _comparable_hashes(columns, table, description)
    sides = Sides.of(columns, description)
    common, by_name = sides.common, sides.by_name
    key = [column for column in columns if column.primary_key]
    keys = [f"{_KEY}{number}" for number in range(len(key))]

    if hashed is None:
        new_values, old_values = sides.new_values, sides.old_values
    else:
        new_values, old_values = hash_of(hashed, quote), quote(HASH)
    now = select(
        rows,
        [
            f"IF({exists}, {_struct(quote(column.name) for column in columns)}, NULL) AS {_RECORD}",
            f"IF({exists}, {new_values}, NULL) AS {_NEW_VALUES}",
            *(
                f"{as_type(column, common[column.name])} AS {name}"
                for column, name in zip(key, keys, strict=True)
            ),
            *snapshot.texts.values(),
        ],
    )
    before = (
        lake.spark.table(table.sql)
        .where(PRESENT[description.mode])
        .selectExpr(
            f"{old_values} AS {_OLD_VALUES}",
            f"true AS {_IS_PRESENT}",
            *(
                f"{as_type(by_name[column.name], common[column.name])} AS {name}"
                for column, name in zip(key, keys, strict=True)
            ),
        )
    )
    differs = (
        f"NOT ({_NEW_VALUES} <=> {_OLD_VALUES}) OR ({_RECORD} IS NULL) <> ({_IS_PRESENT} IS NULL)"
    )
    # The table lacks values that its type cannot hold.
    differs += "".join(f" OR {name} IS NOT NULL" for name in snapshot.texts.values())
    cells = [
        f"{_RECORD}.c{number} AS {quote(column.name)}" for number, column in enumerate(columns)
    ]
    for column, name in zip(key, keys, strict=True):
        number = columns.index(column)
        columns[number] = replace(column, type=common[column.name])
        cells[number] = f"{name} AS {quote(column.name)}"
    how = "full_outer" if snapshot.present is None else "left_outer"
    found = now.join(before, keys, how).where(differs)
    deletion = (
        f"IF({_RECORD} IS NULL, {snapshot.at_micros}L, NULL) AS {DELETED_AT}",
        f"{_RECORD} IS NOT NULL AS {PROVIDES_DATA}",
    )
    return select(found, [*cells, *at, *deletion, *snapshot.texts.values()]), columns


def _as_stored(snapshot: Snapshot, description: TableDescription) -> tuple[DataFrame, list[Column]]:
    """Return a snapshot's rows and columns, as strings where the table has strings."""
    columns = list(snapshot.columns)
    rows = to_spark(snapshot.rows)
    merged = {}
    for number, column in enumerate(columns):
        stored = description.by_name.get(column.name)
        if column.name in snapshot.texts and stored is not None and stored.type.kind is Kind.STRING:
            text = snapshot.texts[column.name]
            merged[column.name] = f"coalesce({text}, {as_type(column, stored.type)})"
            merged[text] = "CAST(NULL AS STRING)"
            columns[number] = replace(column, type=stored.type)
    if not merged:
        return rows, columns
    cells = (f"{merged.get(name, quote(name))} AS {quote(name)}" for name in rows.columns)
    return select(rows, cells), columns


def _comparable_hashes(
    columns: Sequence[Column], table: IcebergTable, description: TableDescription
) -> tuple[Column, ...] | None:
    """Return the columns whose hashes are comparable with the table's; None to compare values."""
    stored = hashed_columns(table, description)
    if stored is None:
        return None
    types = {column.name: column.type for column in columns}
    if any(types.get(column.name) != column.type for column in stored):
        return None
    # A column that the table lacks is null in it, and in its hashes.
    known = {column.name for column in stored}
    return (*stored, *(column for column in columns if column.name not in known))


def _versions_of_all(snapshot: Snapshot) -> ArrowRows:
    """Return versions of all records of a snapshot, because there is no table to compare with."""
    rows = to_arrow(snapshot.rows)
    begin = _BeginVersions(
        snapshot.at_micros, snapshot.sequence, snapshot.present, snapshot.order, snapshot.exists
    )
    types = types_in(rows.schema).items()
    kept = schema_of({name: kind for name, kind in types if name not in begin.dropped})
    names = f"{MODIFIED} bigint, {SEQUENCE} string, {DELETED_AT} bigint, {PURGED_AT} bigint"
    exists = "" if snapshot.exists is None else f", {PROVIDES_DATA} boolean"
    return rows.then(begin, f"{kept}, {names}{exists}")


@dataclass(frozen=True)
class _BeginVersions:
    """A step that makes versions of the records that exist; it is sent to executors.

    If a record occurs several times, the last of its versions wins when they are applied.

    Attributes:
        at: the time of the versions.
        sequence: where their sequences begin.
        present: see `Snapshot`.
        order: see `Snapshot`.
        exists: see `Snapshot`.
    """

    at: int
    sequence: str
    present: str | None
    order: str | None
    exists: str | None

    @property
    def dropped(self) -> set[str | None]:
        """Return the columns that versions do not have."""
        return {self.order, self.exists}

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield versions."""
        for batch in batches:
            rows = batch if self.present is None else batch.filter(batch[self.present])
            never = pa.nulls(rows.num_rows, pa.int64())
            at = pa.repeat(pa.scalar(self.at, pa.int64()), rows.num_rows)
            sequences = pa.repeat(self.sequence, rows.num_rows)
            facts = {MODIFIED: at, SEQUENCE: sequences, DELETED_AT: never, PURGED_AT: never}
            if self.order is not None:
                order = rows[self.order].cast(pa.string())
                facts[SEQUENCE] = pc.binary_join_element_wise(sequences, order, "")
            if self.exists is not None:
                facts[DELETED_AT] = pc.if_else(rows[self.exists], never, at)
                facts[PROVIDES_DATA] = rows[self.exists]
            rows = rows.select([name for name in rows.schema.names if name not in self.dropped])
            for name, values in facts.items():
                rows = rows.append_column(name, values)
            yield rows


def _struct(values: Iterable[str]) -> str:
    named = ", ".join(f"'c{number}', {value}" for number, value in enumerate(values))
    return f"named_struct({named})"


_STORED_KEY: Final = f"{RESERVED}stored_key_"
_BEFORE: Final = f"{RESERVED}before"
_IS_FIRST: Final = f"{RESERVED}is_first"
_IS_STORED: Final = f"{RESERVED}is_stored"
_FACTS: Final = (MODIFIED, SEQUENCE, DELETED_AT, PURGED_AT)


def drop_repeats(
    lake: Lake, versions: DataFrame, columns: Sequence[Column], table: IcebergTable | None
) -> DataFrame:
    """Return the record versions that differ from the version before them.

    The previous version is that of the same record in `versions`, ordered by time and sequence. The
    first one is compared with the table's current row.

    Args:
        lake: the lake whose Spark session is used.
        versions: record versions (`chronolake.change_set`), which provide all columns unless the
            record was deleted. They are computed more than once.
        columns: their data columns, including the key.
        table: the table with all landed files applied; None if it does not exist yet.
    """
    key = [column for column in columns if column.primary_key]
    description = None if table is None else describe_loaded(table)
    sides = None if description is None else Sides.of(columns, description)
    new_values = _struct_of(columns) if sides is None else sides.new_values
    facts: tuple[str, ...] = _FACTS
    exists = "true"
    if PROVIDES_DATA in versions.columns:
        facts, exists = (*_FACTS, PROVIDES_DATA), PROVIDES_DATA
        new_values = f"IF({PROVIDES_DATA}, {new_values}, NULL)"
    common = {column.name: column.type for column in columns} if sides is None else sides.common
    keys = [f"{_KEY}{number}" for number in range(len(key))]
    order = f"OVER (PARTITION BY {', '.join(keys)} ORDER BY {MODIFIED}, {SEQUENCE})"
    cells = [quote(column.name) for column in columns]
    given = select(
        versions,
        [
            *cells,
            *facts,
            f"{new_values} AS {_NEW_VALUES}",
            *(
                f"{as_type(column, common[column.name])} AS {name}"
                for column, name in zip(key, keys, strict=True)
            ),
        ],
    ).selectExpr(
        "*", f"lag({_NEW_VALUES}) {order} AS {_BEFORE}", f"row_number() {order} = 1 AS {_IS_FIRST}"
    )
    if table is None or description is None or sides is None:
        is_new = f"IF({_IS_FIRST}, {exists}, NOT {_NEW_VALUES} <=> {_BEFORE})"
        return select(given.where(is_new), [*cells, *facts])

    stored = [f"{_STORED_KEY}{number}" for number in range(len(key))]
    present = lake.spark.table(table.sql).where(PRESENT[description.mode])
    for condition in _bounds(versions, key, sides):
        present = present.where(condition)
    present = present.selectExpr(
        f"{sides.old_values} AS {_OLD_VALUES}",
        f"true AS {_IS_STORED}",
        *(
            f"{as_type(sides.by_name[column.name], common[column.name])} AS {name}"
            for column, name in zip(key, stored, strict=True)
        ),
    )
    same = " AND ".join(
        f"{name} = {stored_name}" for name, stored_name in zip(keys, stored, strict=True)
    )
    is_repeated = (
        f"IF({_IS_FIRST}, {exists} = coalesce({_IS_STORED}, false) "
        f"AND {_NEW_VALUES} <=> {_OLD_VALUES}, {_NEW_VALUES} <=> {_BEFORE})"
    )
    found = given.join(present, expr(same), "left").where(f"NOT {is_repeated}")
    return select(found, [*cells, *facts])


def _struct_of(columns: Sequence[Column]) -> str:
    named = (f"'c{number}', {quote(column.name)}" for number, column in enumerate(columns))
    return f"named_struct({', '.join(named)})"


def _bounds(versions: DataFrame, key: Sequence[Column], sides: Sides) -> list[str]:
    """Return SQL conditions on a table that skip files without these records."""
    ordered = [
        column
        for column in key
        if column.type.kind in ORDERED and sides.by_name[column.name].type == column.type
    ]
    if not ordered:
        return []
    found = [f"{which}({quote(column.name)})" for column in ordered for which in ("min", "max")]
    (row,) = versions.selectExpr(*found).collect()
    conditions = []
    for number, column in enumerate(ordered):
        least, greatest = row[2 * number], row[2 * number + 1]
        if least is None:
            return ["false"]
        first, last = bounds_of(column.type.kind, least, greatest)
        conditions.append(f"{quote(column.name)} BETWEEN {first} AND {last}")
    return conditions
