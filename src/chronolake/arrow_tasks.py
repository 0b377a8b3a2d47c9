"""Fused Arrow tasks: Python functions of one Spark task pass Arrow batches on directly.

Between two Python functions of a plan, Spark converts every value from Arrow to the JVM and back.
Rows that Python reads from a server or from files, and that Python writes again, do not need that
conversion: the functions are composed into one. A few rows do not even need a task: Spark and its
Python workers would start for seconds.
"""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from chronolake.errors import ChronolakeError, LakeError
from chronolake.frames import map_in_arrow
from chronolake.types import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    Step: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


#: Up to this size, the driver reads rows itself, in less time than Spark needs to start a task.
FEW_BYTES: Final = 2**20
#: A field of a schema: its name, perhaps quoted, and its type.
_FIELD: Final = re.compile(r"(`(?:[^`]|``)*`|\S+?)\s*[:\s]\s*(.+)", re.DOTALL)


@dataclass(frozen=True)
class ArrowRows:
    """Rows that Spark tasks, or the driver if they are few, read as Arrow batches.

    Attributes:
        places: returns where the rows are located, in the terms of `read`; each partition is a
            task.
        read: reads the rows at some places; it is serialized to the executors.
        schema: the columns of the rows, as a Spark schema (DDL).
        here: the same places, if the driver can read the rows and they have at most `FEW_BYTES`;
            None otherwise.
    """

    places: Callable[[], DataFrame]
    read: Step
    schema: str
    here: pa.Table | None = None

    def then(self, step: Step, schema: str) -> ArrowRows:
        """Return the rows after a further step, which runs in the same tasks."""
        return replace(self, read=partial(_run_both, self.read, step), schema=schema)

    def collect(self) -> list[dict[str, Any]]:
        """Return the rows, as dictionaries; a step before must have left only a few.

        Raises:
            LakeError: a step failed for a reason other than the data's or the disk's. The error
                does not contain values.
            Exception: any other error of the steps.
        """
        if self.here is None:
            return [row.asDict() for row in to_spark(self).collect()]
        try:
            return [row for batch in self.read(self.here.to_batches()) for row in batch.to_pylist()]
        except (ChronolakeError, OSError, MemoryError):
            raise
        except Exception as failure:  # noqa: BLE001 - any message may contain a value
            place = traceback.extract_tb(failure.__traceback__)[-1]
            raise LakeError(
                f"Rows could not be landed: {type(failure).__name__} in "
                f"{Path(place.filename).name}, line {place.lineno}.",
                hint="Please report it: the values of this source are not read as they should be.",
            ) from None


def rows_at(
    places: pa.Table,
    read: Step,
    schema: str,
    *,
    size: int,
    is_local: bool,
    publish: Callable[[str], str],
    spark: Callable[[], SparkSession],
) -> ArrowRows:
    """Return the rows at places that the driver knows, for the driver or for evenly loaded tasks.

    Args:
        places: where the rows are located, in the terms of `read`: files, in the column `file`,
            and what else it needs.
        read: reads the rows at some places.
        schema: the columns of the rows, as a Spark schema (DDL).
        size: the size of all rows, in bytes.
        is_local: whether the driver has the files: only then may it read instead.
        publish: returns the location at which tasks find a file.
        spark: returns the session; it is called if tasks read the rows.
    """

    def distribute() -> DataFrame:
        import pyarrow as pa  # noqa: PLC0415 - slow to import

        session = spark()
        tasks = max(1, min(places.num_rows, session.sparkContext.defaultParallelism))
        found = {file: publish(file) for file in places["file"].unique().to_pylist()}
        files = pa.array([found[file] for file in places["file"].to_pylist()], pa.string())
        shared = places.set_column(places.schema.get_field_index("file"), "file", files)
        return session.createDataFrame(shared).coalesce(1).repartition(tasks)

    return ArrowRows(distribute, read, schema, places if size <= FEW_BYTES and is_local else None)


def types_in(schema: str) -> dict[str, str]:
    """Return the types of a schema (DDL) by column; Spark parses it only in a session."""
    found: dict[str, str] = {}
    field, depth, is_quoted = "", 0, False
    for letter in f"{schema},":
        is_quoted ^= letter == "`"
        depth += 0 if is_quoted else (letter in "<(") - (letter in ">)")
        if letter != "," or depth or is_quoted:
            field += letter
        elif field.strip():
            name, kind = _FIELD.fullmatch(field.strip()).groups()  # type: ignore[union-attr]
            found[name[1:-1].replace("``", "`") if name[0] == "`" else name] = kind
            field = ""
    return found


def schema_of(types: Mapping[str, str]) -> str:
    """Return a schema (DDL) for the types of columns."""
    return ", ".join(f"{quote(name)} {kind}" for name, kind in types.items())


def are_here(rows: ArrowRows | DataFrame) -> bool:
    """Return whether the driver reads the rows, without Spark."""
    return isinstance(rows, ArrowRows) and rows.here is not None


def to_spark(rows: ArrowRows | DataFrame) -> DataFrame:
    """Return the rows as a Spark DataFrame."""
    if not isinstance(rows, ArrowRows):
        return rows
    return map_in_tasks(rows.places(), rows.read, rows.schema)


def map_in_tasks(rows: DataFrame, step: Step, schema: str | StructType) -> DataFrame:
    """Return the result of a step over the rows; column names may contain any characters.

    Args:
        rows: the step's input.
        step: reads each partition's rows with their own column names; it is serialized to the
            executors.
        schema: the columns of the result.
    """
    return map_in_arrow(
        rows, partial(_run_both, partial(_rename_columns, rows.columns), step), schema
    )


def to_arrow(rows: ArrowRows | DataFrame) -> ArrowRows:
    """Return the rows as Arrow batches of the tasks that read them."""
    if isinstance(rows, ArrowRows):
        return rows
    return ArrowRows(lambda: rows, iter, rows.schema.toDDL())


def _rename_columns(
    names: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    return (batch.rename_columns(names) for batch in batches)


def _run_both(
    first: Step, second: Step, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    return second(first(batches))
