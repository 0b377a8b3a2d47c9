"""Merge: rows of a batch and of its table, grouped by key and folded in executors."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import StructField, StructType

from chronolake.arrow_tasks import map_in_tasks
from chronolake.core.key_groups import fold_by_run
from chronolake.core.sql import col

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from chronolake.description import TableDescription


@dataclass(frozen=True)
class BatchResult:
    """Counts of one applied batch.

    Attributes:
        batch: the batch's identity, as in the table's properties.
        replaced: rows in replace files.
        updated: rows in update files, ignored ones included.
        deleted: rows in delete files.
        ignored: update rows that no stored or earlier row could complete.
        ignored_key: the key of one ignored row as `column=value, …`, or None.
        contradicting: versions of a history batch that were written unchanged although their times
            contradict `_fivetran_active`.
        closed_at_start: active versions of a history table that were closed by a delete from before
            their start.
        seconds: seconds by stage: read, resolve, delete, append, publish.
    """

    batch: str
    replaced: int = 0
    updated: int = 0
    deleted: int = 0
    ignored: int = 0
    ignored_key: str | None = None
    contradicting: int = 0
    closed_at_start: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


_ROWS_PER_PARTITION: Final = 20_000


def fold_by_key(
    spark: SparkSession,
    events: str,
    *,
    key: Sequence[str],
    order: Sequence[str],
    rows: int,
    fold: Callable[[pa.Table], pa.Table],
    description: TableDescription,
    others: str,
) -> DataFrame:
    """Group events by key, in order, and fold them.

    Args:
        spark: the session.
        events: the events, as a SQL query.
        key: the columns that identify a key.
        order: columns that order a key's events.
        rows: approximate number of events.
        fold: gets complete keys, sorted by key and order, as one Arrow table; it runs in executors.
        description: the table whose columns `fold` returns.
        others: the columns that `fold` adds, as a Spark schema.
    """
    added = StructType.fromDDL(others)
    schema = StructType(
        [StructField(column.name, column.type.spark) for column in description.columns]
        + list(added.fields)
    )
    most = 2 * spark.sparkContext.defaultParallelism
    partitions = max(1, min(most, rows // _ROWS_PER_PARTITION))
    ordered = (
        spark.sql(events)
        .repartition(partitions, *map(col, key))
        .sortWithinPartitions(*map(col, (*key, *order)))
    )
    return map_in_tasks(ordered, partial(fold_by_run, key=tuple(key), fold=fold), schema)
