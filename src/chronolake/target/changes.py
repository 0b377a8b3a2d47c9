"""Rows of a table's snapshot, and the rows that differ between two of its snapshots.

Only data files are read that one of the snapshots does not have, or has with other deleted rows;
each is read as it is in its snapshot. Rows that are equal in both cancel out, so that a compaction
has no changes. The snapshots need not be related: a table may have been rolled back.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import uuid4

from pyspark.sql import functions as F  # noqa: N812

from chronolake.types import quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from chronolake.iceberg import IcebergTable

#: The column with the kind of a change, and its values.
OPERATION: Final = "__chronolake_operation"
INSERT: Final = "I"
UPDATE: Final = "U"
DELETE: Final = "D"

_OLD: Final = "__chronolake_old"
_NEW: Final = "__chronolake_new"

#: Iceberg's number of a row, and the version of its format that has it.
_ROW_ID: Final = "_row_id"
_NUMBERED_ROWS: Final = 3
#: The largest number of rows whose numbers each task gets.
_BROADCAST_ROWS: Final = 2_000_000

_FLOATS: Final = {"float", "double"}

#: Java's scan tasks by the data file and its delete files.
_Tasks: TypeAlias = "dict[tuple[str, frozenset[tuple[str, str]]], Any]"


def has_snapshot(table: IcebergTable, snapshot_id: int) -> bool:
    """Return whether a snapshot is in the table's metadata, which is unique for its id."""
    return table.metadata.snapshot(snapshot_id) is not None


@contextmanager
def all_rows(
    spark: SparkSession, table: IcebergTable, snapshot_id: int | None, columns: Sequence[str]
) -> Iterator[DataFrame | None]:
    """Yield the rows of a snapshot, with the table's current columns; None if it has no files."""
    tasks = list(_plan(table, snapshot_id).values())
    with _staged(spark, table, tasks, columns) as rows:
        yield rows


@contextmanager
def changed_rows(
    spark: SparkSession,
    table: IcebergTable,
    since: int | None,
    until: int | None,
    *,
    columns: Sequence[str],
    identity: Sequence[str],
) -> Iterator[DataFrame | None]:
    """Yield the rows that differ between two snapshots, with `OPERATION` as the first column.

    Args:
        spark: the session.
        table: the table's state; both snapshots are read with its columns, by their ids.
        since: the snapshot before; None for a table without rows.
        until: the snapshot after.
        columns: the columns to read.
        identity: the columns that identify a row.

    Yields:
        None if all files are equal.
    """
    before, after = _plan(table, since), _plan(table, until)
    removed = {file: task for file, task in before.items() if file not in after}
    added = {file: task for file, task in after.items() if file not in before}
    shared = _shared_files(table, removed, added)
    with ExitStack() as stack:

        def rows_of(tasks: _Tasks, names: Sequence[str], *, is_shared: bool) -> DataFrame | None:
            chosen = [task for file, task in tasks.items() if (file[0] in shared) == is_shared]
            return stack.enter_context(_staged(spark, table, chosen, names))

        old = rows_of(removed, columns, is_shared=False)
        new = rows_of(added, columns, is_shared=False)
        names = [*columns, _ROW_ID]
        kept_old = rows_of(removed, names, is_shared=True)
        kept_new = rows_of(added, names, is_shared=True)
        if kept_old is not None and kept_new is not None:
            old = _union(old, _only_in(stack, kept_old, kept_new))
            new = _union(new, _only_in(stack, kept_new, kept_old))
        yield compare(old, new, columns, identity)


def _shared_files(table: IcebergTable, removed: _Tasks, added: _Tasks) -> set[str]:
    """Return the data files of both sides, of which only the deleted rows differ.

    They are recognized if Iceberg numbers their rows, in version 3 of its format.
    """
    paths = {path for path, _ in removed} & {path for path, _ in added}
    if table.format_version < _NUMBERED_ROWS:
        return set()
    return {
        path
        for (path, _), task in added.items()
        if path in paths and task.file().firstRowId() is not None
    }


def _only_in(stack: ExitStack, rows: DataFrame, others: DataFrame) -> DataFrame | None:
    """Return the rows of shared files that the other side does not have, by their numbers.

    The numbers are compared first: they are small, and few rows remain.
    """
    numbers = rows.select(_ROW_ID).join(others.select(_ROW_ID), _ROW_ID, "left_anti").persist()
    stack.callback(numbers.unpersist)
    count = numbers.count()
    if count == 0:
        return None
    if count <= _BROADCAST_ROWS:
        numbers = F.broadcast(numbers)
    return rows.join(numbers, _ROW_ID, "left_semi").drop(_ROW_ID)


def _union(first: DataFrame | None, second: DataFrame | None) -> DataFrame | None:
    if first is None or second is None:
        return second if first is None else first
    return first.union(second)


def compare(
    old: DataFrame | None,
    new: DataFrame | None,
    columns: Sequence[str],
    identity: Sequence[str],
) -> DataFrame | None:
    """Return the rows that differ, with `OPERATION` as the first column; nothing is computed."""
    if old is None and new is None:
        return None
    names = [quote(name) for name in columns]
    if old is None or new is None:
        rows = new if old is None else old
        assert rows is not None  # noqa: S101 - one of them is not None
        kind = INSERT if old is None else DELETE
        return rows.select(F.lit(kind).alias(OPERATION), *names)
    keys = [f"__chronolake_key{number}" for number in range(len(identity))]
    sides = [
        rows.select(
            *(F.col(quote(name)).alias(key) for name, key in zip(identity, keys, strict=True)),
            F.struct(*names).alias(side),
        )
        for rows, side in ((old, _OLD), (new, _NEW))
    ]
    joined = sides[0].join(sides[1], keys, "full_outer")
    differs = ~F.col(_OLD).eqNullSafe(F.col(_NEW))
    for name in (field.name for field in old.schema if field.dataType.typeName() in _FLOATS):
        differs = differs | _have_other_signs(name)
    kind = F.when(F.col(_OLD).isNull(), INSERT).when(F.col(_NEW).isNull(), DELETE).otherwise(UPDATE)
    row = F.coalesce(F.col(_NEW), F.col(_OLD))
    return joined.where(differs).select(
        kind.alias(OPERATION), *(row.getField(name).alias(name) for name in columns)
    )


def _have_other_signs(name: str) -> Column:
    """Return whether a column has been 0 and is -0, or the reverse, which are equal in SQL."""
    before, now = (F.col(side).getField(name) for side in (_OLD, _NEW))
    texts = before.cast("string") != now.cast("string")
    return F.coalesce((before == 0) & (now == 0) & texts, F.lit(False))


def _plan(table: IcebergTable, snapshot_id: int | None) -> _Tasks:
    """Return the tasks that read a snapshot."""
    if snapshot_id is None:
        return {}
    lists = table.catalog.jvm.org.apache.iceberg.relocated.com.google.common.collect.Lists
    scan = table.java.newScan().useSnapshot(snapshot_id).planFiles()
    try:
        planned = lists.newArrayList(scan)
    finally:
        scan.close()
    tasks: _Tasks = {}
    for number in range(planned.size()):
        task = planned.get(number)
        deletes = task.deletes()
        # One file contains the deletion vectors of many data files.
        of_file = frozenset(
            (str(file.location()), str(file.contentOffset()))
            for file in (deletes.get(place) for place in range(deletes.size()))
        )
        tasks[str(task.file().location()), of_file] = task
    return tasks


@contextmanager
def _staged(
    spark: SparkSession, table: IcebergTable, tasks: Sequence[Any], columns: Sequence[str]
) -> Iterator[DataFrame | None]:
    """Yield the rows of scan tasks, which Iceberg finds by a name as it does in compactions."""
    if not tasks:
        yield None
        return
    jvm = table.catalog.jvm
    listed = jvm.java.util.ArrayList()
    for task in tasks:
        listed.add(task)
    name = uuid4().hex
    cache = jvm.org.apache.iceberg.spark.SparkTableCache.get()
    manager = jvm.org.apache.iceberg.spark.ScanTaskSetManager.get()
    cache.add(name, table.java)
    manager.stageTasks(table.java, name, listed)
    try:
        rows = spark.read.format("iceberg").option("scan-task-set-id", name).load(name)
        yield rows.select(*(quote(column) for column in columns))
    finally:
        manager.removeTasks(table.java, name)
        cache.remove(name)
