"""Rows of a batch and of its table, brought together by key and folded in executors."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import StructField, StructType

from chronolake.arrowrows import in_tasks
from chronolake.table.runs import run_by_run
from chronolake.table.sql import col

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from chronolake.description import TableDescription

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
    """Bring the events of a key together, in order, and fold them.

    Args:
        spark: the session.
        events: the events, as a SQL query.
        key: columns that tell keys apart.
        order: columns that order a key's events.
        rows: about how many events there are.
        fold: gets whole keys, sorted by key and order, as one Arrow table; it runs in executors.
        description: the table whose columns `fold` gives back,
        others: and the columns it adds, as a Spark schema.
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
    return in_tasks(ordered, partial(run_by_run, key=tuple(key), fold=fold), schema)
