"""Rows of a batch and of its table, brought together by key and folded in executors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructField, StructType, _parse_datatype_string

from chronolake.table.incoming import col
from chronolake.table.runs import run_by_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

    from chronolake.description import TableDescription

_ROWS_PER_PARTITION: Final = 50_000
_SAMPLE_LENGTH: Final = 200


def typed(rows: DataFrame, description: TableDescription) -> list[Expression]:
    """Every column of a table out of `rows`; null where they lack it."""
    have = set(rows.columns)
    return [
        col(column.name)
        if column.name in have
        else F.lit(None).cast(column.type.sql).alias(column.name)
        for column in description.columns
    ]


def fold_by_key(
    events: DataFrame,
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
        events: the events.
        key: columns that tell keys apart.
        order: columns that order a key's events.
        rows: about how many events there are.
        fold: gets whole keys, sorted by key and order, as one Arrow table; it runs in executors.
        description: the table whose columns `fold` gives back,
        others: and the columns it adds, as a Spark schema.
    """
    added = _parse_datatype_string(others)
    schema = StructType(
        [StructField(column.name, column.type.spark) for column in description.columns]
        + list(added.fields)
    )
    names = tuple(key)

    def folded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run_by_run(batches, names, fold)

    most = int(events.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    partitions = max(1, min(most, rows // _ROWS_PER_PARTITION))
    together = events.repartition(partitions, *map(col, key))
    return together.sortWithinPartitions(*map(col, (*key, *order))).mapInArrow(folded, schema)


def sample_of(key: Sequence[str], which: Expression) -> Expression:
    """An aggregate: the key of some row of `which` as `column=value, …`, or null."""
    parts = [
        F.concat(F.lit(f"{name}="), F.coalesce(col(name).cast("string"), F.lit("NULL")))
        for name in key
    ]
    text = F.substring(F.concat_ws(", ", *parts), 1, _SAMPLE_LENGTH)
    return F.min(F.when(which, text))
