"""Whether a few rows that a source returns again change nothing, without Spark.

An API with an inclusive cursor returns its last records in every run, and a stream without a cursor
all of them. Mostly they equal the table's rows, and then Java need not start. Whatever is not
certain here is decided by Spark (`snapshot_diff`), with the same meaning of equality.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from chronolake.arrow_tasks import ArrowRows
from chronolake.change_set import PROVIDES_DATA
from chronolake.errors import ChronolakeError
from chronolake.inspect.catalog import look_up
from chronolake.inspect.scan import StoredRows
from chronolake.types import ACTIVE, DELETED, Kind, Mode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.expressions import BooleanExpression
    from pyspark.sql import DataFrame

    from chronolake.config import LakeConfig
    from chronolake.inspect.catalog import CatalogTable
    from chronolake.types import Column, TableName

#: Larger tables are compared by Spark: it reads them with all cores of a cluster.
_MOST_BYTES: Final = 64 * 2**20
#: The most keys that are looked up by their values; of more, all rows of the table are read.
_MOST_KEYS: Final = 1_000
#: Types of keys that files can be searched for, and whose equality is that of their values.
_KEYS: Final = frozenset({Kind.STRING, Kind.SHORT, Kind.INT, Kind.LONG})
_ROW: Final = "chronolake row"
_OTHER: Final = "chronolake other row"


def change_nothing(
    config: LakeConfig,
    name: TableName,
    rows: ArrowRows | DataFrame,
    columns: Sequence[Column],
    *,
    is_complete: bool,
) -> bool:
    """Return whether all rows certainly equal the present rows of their keys.

    Args:
        config: the lake.
        name: the table, with all landed files applied.
        rows: record versions or records, with their data columns and others.
        columns: the data columns, including the key. Other columns of the table do not matter.
        is_complete: whether present rows of other keys would be deleted. Then there must be none.
    """
    if not isinstance(rows, ArrowRows) or rows.here is None:
        return False
    try:
        table = look_up(config, name)
        if not _is_comparable(table, columns):
            return False
        batches = list(rows.read(rows.here.to_batches()))
        if not batches:
            return False
        given = pa.Table.from_batches(batches)
        if PROVIDES_DATA in given.column_names and not pc.all(given[PROVIDES_DATA]).as_py():
            return False
        stored = _present_rows(table, given, columns, is_complete=is_complete)
        return stored is not None and _are_equal(given, stored, columns, is_complete=is_complete)
    except (ChronolakeError, pa.ArrowException):
        # Spark reads what this cannot read, or reports why it is unreadable.
        return False


def _is_comparable(table: CatalogTable, columns: Sequence[Column]) -> bool:
    declared = {column.name: column.type for column in table.columns}
    key = [column for column in columns if column.primary_key]
    return (
        bool(key)
        and {column.name for column in key} == set(table.key)
        and all(column.type.kind in _KEYS for column in key)
        and all(declared.get(column.name) == column.type for column in columns)
    )


def _present_rows(
    table: CatalogTable, given: pa.Table, columns: Sequence[Column], *, is_complete: bool
) -> pa.Table | None:
    """Return the present rows that may have the given keys; None if that is too much to read."""
    stored = StoredRows(table)
    condition = _condition(table, given, columns, is_complete=is_complete)
    tasks = stored.plan(condition)
    if sum(task.file.file_size_in_bytes for task in tasks) > _MOST_BYTES:
        return None
    names = [column.name for column in columns]
    is_soft = table.mode is Mode.SOFT_DELETE
    found = []
    size = 0
    columns_read = [*names, DELETED] if is_soft else names
    for batch in stored.batches(columns_read, condition, tasks=tasks):
        # Also true where it is null.
        kept = (
            batch.filter(pc.not_equal(batch[DELETED], True).fill_null(True)) if is_soft else batch
        )
        found.append(kept.select(names))
        size += kept.nbytes
        if size > _MOST_BYTES:
            return None
    return pa.concat_tables(found) if found else None


def _condition(
    table: CatalogTable, given: pa.Table, columns: Sequence[Column], *, is_complete: bool
) -> BooleanExpression:
    from pyiceberg.expressions import AlwaysTrue, And, EqualTo, In  # noqa: PLC0415 - slow to import

    condition: BooleanExpression = AlwaysTrue()
    if table.mode is Mode.HISTORY:
        condition = EqualTo(ACTIVE, True)
    first = next(column.name for column in columns if column.primary_key)
    keys = given[first].unique().drop_null()
    if is_complete or len(keys) > _MOST_KEYS:
        return condition
    return And(condition, In(first, keys.to_pylist()))


def _are_equal(
    given: pa.Table, stored: pa.Table, columns: Sequence[Column], *, is_complete: bool
) -> bool:
    key = [column.name for column in columns if column.primary_key]
    types = {name: stored.schema.field(name).type for name in key}
    left = pa.table(
        {**{name: given[name].cast(types[name]) for name in key}, _ROW: _row_numbers(given)}
    )
    right = pa.table({**{name: stored[name] for name in key}, _OTHER: _row_numbers(stored)})
    pairs = left.join(right, keys=key, join_type="inner")
    if pairs.num_rows != given.num_rows:
        # A record is new, or a key is null.
        return False
    if is_complete and len(pairs[_OTHER].unique()) != stored.num_rows:
        return False
    ours, theirs = given.take(pairs[_ROW]), stored.take(pairs[_OTHER])
    return all(_has_equal_cells(ours[column.name], theirs[column.name]) for column in columns)


def _row_numbers(rows: pa.Table) -> pa.Array:
    return pa.array(range(rows.num_rows), pa.int64())


def _has_equal_cells(ours: pa.ChunkedArray, theirs: pa.ChunkedArray) -> bool:
    converted = ours.cast(theirs.type)
    # Neither NaN nor null equals itself here.
    same = pc.equal(converted, theirs).fill_null(False)
    both_null = pc.and_(converted.is_null(), theirs.is_null())
    return bool(pc.all(pc.or_(same, both_null), min_count=0).as_py())
