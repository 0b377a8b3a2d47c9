"""Fused Arrow tasks: Python functions of one Spark task pass Arrow batches on directly.

Between two Python functions of a plan, Spark converts every value from Arrow to the JVM and back.
Rows that Python reads from a server or from files, and that Python writes again, do not need that
conversion: the functions are composed into one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    Step: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class ArrowRows:
    """Rows that Spark tasks read as Arrow batches.

    Attributes:
        places: where the rows are located, in the terms of `read`; each partition is a task.
        read: reads the rows at some places; it is serialized to the executors.
        schema: the columns of the rows, as a Spark schema (DDL).
    """

    places: DataFrame
    read: Step
    schema: str

    def then(self, step: Step, schema: str) -> ArrowRows:
        """Return the rows after a further step, which runs in the same tasks."""
        return ArrowRows(self.places, partial(_run_both, self.read, step), schema)


def to_spark(rows: ArrowRows | DataFrame) -> DataFrame:
    """Return the rows as a Spark DataFrame."""
    if not isinstance(rows, ArrowRows):
        return rows
    return map_in_tasks(rows.places, rows.read, rows.schema)


def map_in_tasks(rows: DataFrame, step: Step, schema: str | StructType) -> DataFrame:
    """Return the result of a step over the rows; column names may contain any characters.

    Args:
        rows: the step's input.
        step: reads each partition's rows with their own column names; it is serialized to the
            executors.
        schema: the columns of the result.
    """
    names = rows.columns
    # `mapInArrow` resolves its input columns by name and fails on some names with backticks.
    numbered = rows.toDF(*(f"c{number}" for number in range(len(names))))
    return numbered.mapInArrow(partial(_run_both, partial(_rename_columns, names), step), schema)


def to_arrow(rows: ArrowRows | DataFrame) -> ArrowRows:
    """Return the rows as Arrow batches of the tasks that read them."""
    return rows if isinstance(rows, ArrowRows) else ArrowRows(rows, iter, rows.schema.toDDL())


def _rename_columns(
    names: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    return (batch.rename_columns(names) for batch in batches)


def _run_both(
    first: Step, second: Step, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    return second(first(batches))
