"""Data frames with many columns, created with a fixed number of calls to the JVM.

PySpark calls the JVM for every column of a selection, a grouping or a renaming, and more than once
for every column that a Python function gets. Here, columns are SQL expressions, and all of them are
sent as one text.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from chronolake.types import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def select(frame: DataFrame, expressions: Iterable[str]) -> DataFrame:
    """Return a frame's rows with the columns of SQL expressions, as `selectExpr` does."""
    texts = _to_array(frame.sparkSession, list(expressions))
    return _frame(frame._jdf.selectExpr(texts), frame.sparkSession)  # noqa: SLF001


def group(frame: DataFrame, names: Iterable[str], aggregates: Iterable[str]) -> DataFrame:
    """Return a row for each group, with some columns of the frame and SQL aggregates.

    Args:
        frame: the rows; they must not be persisted (`temp_view`).
        names: the columns whose values form a group.
        aggregates: SQL over the rows of a group.
    """
    key = ", ".join(map(quote, names))
    with temp_view(frame) as view:
        return frame.sparkSession.sql(
            f"SELECT {key}, {', '.join(aggregates)} FROM {view} GROUP BY {key}"
        )


@contextmanager
def temp_view(frame: DataFrame) -> Iterator[str]:
    """Yield a SQL name for a frame while the block runs. Every statement computes it again.

    Statements that Spark has analyzed do not need the name any more. If the frame itself is
    persisted, Spark drops its rows together with the name.
    """
    name = f"chronolake_{uuid4().hex}"
    frame.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        frame.sparkSession.catalog.dropTempView(name)


def rename(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return a frame with other names for its columns, by their order, as `toDF` does."""
    texts = _to_array(frame.sparkSession, names)
    return _frame(frame._jdf.toDF(texts), frame.sparkSession)  # noqa: SLF001


def map_in_arrow(
    frame: DataFrame,
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: str | StructType,
) -> DataFrame:
    """Return the rows that a function returns for each partition, as `mapInArrow` does.

    Args:
        frame: the function's input. Its columns are passed as `c0`, `c1`, …: Spark resolves their
            names again, and fails on some names with backticks.
        function: is serialized to the executors.
        schema: the columns of the result.
    """
    from pyspark.sql.functions import expr, pandas_udf  # noqa: PLC0415 - slow to import
    from pyspark.util import PythonEvalType  # noqa: PLC0415

    names = [f"c{number}" for number in range(len(frame.columns))]
    mapping = pandas_udf(
        function, returnType=schema, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    )
    # Spark passes whole rows. The function's arguments only keep it from dropping columns as
    # unused, and are never computed: one expression of all columns does what a column each does.
    called = mapping(expr(f"struct({', '.join(names)})"))
    numbered = rename(frame, names)
    mapped = numbered._jdf.mapInArrow(called._jc, False, None)  # noqa: SLF001
    return _frame(mapped, frame.sparkSession)


def _frame(java: Any, session: SparkSession) -> DataFrame:
    from pyspark.sql.classic.dataframe import DataFrame  # noqa: PLC0415 - slow to import

    return DataFrame(java, session)


def _to_array(session: SparkSession, texts: Sequence[str]) -> Any:
    """Return a Java array of texts."""
    # py4j makes a call for each item of an array or list.
    separator = uuid4().hex
    pattern: Any = getattr(session._jvm, "java.util.regex.Pattern")  # noqa: SLF001
    # A negative limit keeps empty texts at the end.
    return pattern.compile(separator).split(separator.join(texts), -1)
