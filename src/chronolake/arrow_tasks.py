"""Rows that Spark's tasks read into Arrow: what follows in the same task costs no way to the JVM.

Between two Python functions of a plan, Spark takes every value out of Arrow and puts it back. Rows
that are read in Python, from a server or from files, and written in Python again, need not go that
way: the functions become one.
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
    """Rows that tasks read.

    Attributes:
        places: where the rows are, in `read`'s own terms; each partition is a task.
        read: gives the rows at some places; it goes to the executors.
        schema: the columns of the rows, as a Spark schema.
    """

    places: DataFrame
    read: Step
    schema: str

    def then(self, step: Step, schema: str) -> ArrowRows:
        """What a further step makes of the rows, in the same tasks."""
        return ArrowRows(self.places, partial(_after, self.read, step), schema)


def to_spark(rows: ArrowRows | DataFrame) -> DataFrame:
    """Rows as Spark has them."""
    if not isinstance(rows, ArrowRows):
        return rows
    return in_tasks(rows.places, rows.read, rows.schema)


def in_tasks(rows: DataFrame, step: Step, schema: str | StructType) -> DataFrame:
    """What a step makes of rows, whatever their columns are called.

    Args:
        rows: the rows.
        step: gets each partition's rows as they are; it goes to the executors.
        schema: the columns of what it makes.
    """
    names = rows.columns
    # `mapInArrow` looks its input up by name, and some names with backticks it does not find.
    numbered = rows.toDF(*(f"c{number}" for number in range(len(names))))
    return numbered.mapInArrow(partial(_after, partial(_named, names), step), schema)


def to_arrow(rows: ArrowRows | DataFrame) -> ArrowRows:
    """Rows as the tasks that read them have them."""
    return rows if isinstance(rows, ArrowRows) else ArrowRows(rows, iter, rows.schema.toDDL())


def _named(names: Sequence[str], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (batch.rename_columns(names) for batch in batches)


def _after(
    first: Step, second: Step, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    return second(first(batches))
