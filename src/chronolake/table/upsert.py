"""Batches into live and soft-delete tables: replace, update, delete.

Source: `seeds/destination-connector.txt` ("WriteBatchRequest"). Per key, replace rows come first,
then update rows, then delete rows, each in the order of the request; so

* a replace row is the whole row (columns that the batch does not carry keep their stored value);
* an update row changes the cells that are not marked unmodified, and needs a row to change: one
  without a stored or replaced row of its key is ignored;
* a delete row removes the row.

A soft delete is an update row like any other: it sets the delete marker.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812

from chronolake.changes import OP, SEQ, UNMODIFIED, Op
from chronolake.errors import TableNotFoundError
from chronolake.failpoints import reach
from chronolake.table import fold
from chronolake.table.events import fold_by_key, sample_of, typed
from chronolake.table.fold import IGNORED
from chronolake.table.incoming import Incoming, col, incoming, same, small
from chronolake.table.result import BatchResult
from chronolake.table.staging import (
    BATCH_PROPERTY,
    StagedWrite,
    Stopwatch,
    expect_unaltered,
    staged,
)
from chronolake.table.timeline import Layout
from chronolake.types import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from chronolake.description import TableDescription
    from chronolake.lake import Lake
    from chronolake.types import Column, TableName

_KINDS: Final = {Op.REPLACE: fold.REPLACE, Op.UPDATE: fold.UPDATE, Op.DELETE: fold.DELETE}


def write_batch(
    lake: Lake, name: TableName, changes: DataFrame, *, columns: Sequence[Column], batch: str
) -> BatchResult:
    """Apply a batch to a live or soft-delete table, all of it or nothing.

    Rows are told apart by the whole primary key, so that a history table can be seeded this way
    too. Sending the same batch again gives the same table.

    Args:
        lake: the lake.
        name: the table.
        changes: the batch's change set (`chronolake.changes`).
        columns: the change set's data columns.
        batch: the batch's identity, for logs and the table's properties.

    Raises:
        TableNotFoundError: there is no such table.
        BatchError: the batch cannot be applied to this table, or a file cannot be read.
        CommitError: the result could not be published.
    """
    description = lake.describe(name)
    if description is None:
        raise TableNotFoundError(
            "The table does not exist.", table=str(name), hint="Create it before writing to it."
        )
    watch = Stopwatch()
    ignored: tuple[int, str | None] = (0, None)
    with incoming(changes, description, description.primary_key, columns, watch) as batch_rows:

        def write(attempt: StagedWrite) -> Mapping[str, str]:
            nonlocal ignored
            expect_unaltered(attempt, description)
            ignored = _stage(attempt, batch_rows, description, watch)
            return {BATCH_PROPERTY: batch}

        if not batch_rows.is_empty:
            staged(lake, name, write, watch)
    return BatchResult(
        batch=batch,
        replaced=batch_rows.replaced,
        updated=batch_rows.updated,
        deleted=batch_rows.deleted,
        ignored=ignored[0],
        ignored_key=ignored[1],
        seconds=watch.seconds,
    )


def _stage(
    write: StagedWrite, batch: Incoming, description: TableDescription, watch: Stopwatch
) -> tuple[int, str | None]:
    """Stage a batch; gives the number of ignored update rows, and the key of one."""
    key = description.primary_key
    retained = [column.name for column in description.columns if column.name not in batch.names]
    ignored: tuple[int, str | None] = (0, None)
    with ExitStack() as until_published:
        final: DataFrame | None = None
        if batch.updated or batch.repeated or (retained and batch.replaced):
            with watch.stage("resolve"):
                needed = (Op.UPDATE, Op.REPLACE) if retained else (Op.UPDATE,)
                stored = None if write.is_empty else _stored(write.rows(), batch, key, needed)
                final = fold_batch(batch, stored, description).persist(StorageLevel.MEMORY_AND_DISK)
                until_published.callback(final.unpersist)
                ignored = _count_ignored(final, key)
            final = final.where(col(IGNORED) == 0).drop(IGNORED)
        elif batch.replaced:
            final = batch.rows.where(col(OP) == int(Op.REPLACE))
        reach("write.planned")
        if not write.is_empty:
            _delete(write, batch, key)
        if final is not None:
            write.append(final.select(*typed(final, description)))
    return ignored


def _stored(
    table: DataFrame, batch: Incoming, key: Sequence[str], needed: Sequence[Op]
) -> DataFrame:
    """The table's rows that update rows (or retained columns) build on."""
    keys = batch.rows.where(col(OP).isin([int(op) for op in needed])).select(*map(col, key))
    for condition in batch.within_bounds():
        table = table.where(condition)
    return table.join(small(keys.distinct(), batch.keys), same(table, keys, key), "left_semi")


def fold_batch(
    batch: Incoming, stored: DataFrame | None, description: TableDescription
) -> DataFrame:
    """The rows that a batch leaves, one per key; keys that it deletes are absent.

    Args:
        batch: the batch.
        stored: the table's rows that update rows build on, or None if there are none.
        description: the table.

    Returns:
        The columns that `chronolake.table.fold.final_rows` gives.
    """
    kind = F.create_map(*(F.lit(int(part)) for pair in _KINDS.items() for part in pair))[col(OP)]
    events = batch.rows.select(
        kind.alias(fold.KIND), SEQ, UNMODIFIED, *typed(batch.rows, description)
    )
    if stored is not None:
        events = events.unionByName(
            stored.select(
                F.lit(fold.STORED).alias(fold.KIND),
                F.lit(0).cast("bigint").alias(SEQ),
                F.lit(None).cast("array<bigint>").alias(UNMODIFIED),
                *typed(stored, description),
            )
        )
    layout = Layout(
        columns=tuple(column.name for column in description.columns),
        carried=batch.names,
        key=description.primary_key,
        unmodified=batch.unmodified,
    )
    return fold_by_key(
        events,
        key=layout.key,
        order=(fold.KIND, SEQ),
        rows=batch.rows_count,
        fold=lambda rows: fold.final_rows(rows, layout),
        description=description,
        others=f"{IGNORED} bigint",
    )


def _count_ignored(folded: DataFrame, key: Sequence[str]) -> tuple[int, str | None]:
    found = folded.agg(
        F.coalesce(F.sum(col(IGNORED)), F.lit(0)).alias("count"),
        sample_of(key, col(IGNORED) > 0).alias("key"),
    ).first()
    return (found["count"], found["key"]) if found else (0, None)


def _delete(write: StagedWrite, batch: Incoming, key: Sequence[str]) -> None:
    """Remove every stored row whose key is in the batch: only key columns are read."""
    keys = batch.rows.select(*(col(name).alias(f"k{number}") for number, name in enumerate(key)))
    matches = [f"t.{quoted(name)} <=> s.k{number}" for number, name in enumerate(key)]
    write.delete(small(keys, batch.keys), " AND ".join(matches + batch.within_bounds("t.")))
