"""SQL text: quoting, literals, and statements over frames.

Statements over frames: one text instead of many small calls into the JVM.

A batch of a hundred rows costs as much as Spark's planning and the calls between Python and Java,
so the statements of a write are SQL texts. Identifiers are quoted by `chronolake.types.quoted`.

Values as SQL: exactly the value, whatever its type.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.classic.dataframe import DataFrame

from chronolake.change_set import RESERVED
from chronolake.types import Kind, literal, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import Column

    from chronolake.description import TableDescription
    from chronolake.types import ColumnType


#: More rows than these are not broadcast but shuffled together with the table.
_BROADCAST_ROWS: Final = 2_000_000
_SAMPLE_LENGTH: Final = 200

# Relations in a statement. A column of such a name would hide the relation's hidden columns.
TABLE: Final = f"{RESERVED}table"
KEYS: Final = f"{RESERVED}keys"
BATCH: Final = f"{RESERVED}batch"


@contextmanager
def viewed(frame: DataFrame) -> Iterator[str]:
    """A name in SQL for a frame while the block runs. It is computed by every statement."""
    name = f"chronolake_{uuid4().hex}"
    frame.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        frame.sparkSession.catalog.dropTempView(name)


@contextmanager
def kept(frame: DataFrame) -> Iterator[str]:
    """A name in SQL for a frame that is computed once and kept while the block runs.

    The rows stay in executors: in memory, and on disk where that is short. Spark lets go of them as
    soon as any view of the frame is dropped, so there is one view and it lives as long as they do.
    """
    frame.persist(StorageLevel.MEMORY_AND_DISK_DESER)
    try:
        with viewed(_without_plan(frame)) as name:
            yield name
    finally:
        frame.unpersist()


def _without_plan(frame: DataFrame) -> DataFrame:
    """The kept rows of a persisted frame, for statements that need not know what they came from.

    Spark would analyze and optimize the frame's plan again with each of them before it finds that
    the rows are kept: for a wide table, that takes longer than all else.
    """
    session = frame.sparkSession
    rows = frame._jdf.queryExecution().withCachedData()  # noqa: SLF001
    datasets = session._jvm.org.apache.spark.sql.classic.Dataset  # noqa: SLF001
    return DataFrame(datasets.ofRows(session._jsparkSession, rows), session)  # noqa: SLF001


def listed(names: Iterable[str], *, of: str = "") -> str:
    """Quoted names in a row, of one relation if it is given."""
    prefix = f"{of}." if of else ""
    return ", ".join(f"{prefix}{quoted(name)}" for name in names)


def any_of(conditions: Iterable[str]) -> str:
    """Return a SQL condition: one of many holds. None of them may be null.

    The expression is flat: it gets no deeper with their number.
    """
    found = ", ".join(conditions)
    return f"array_contains(array({found}), true)" if found else "false"


def cells(description: TableDescription, carried: Sequence[str], *, of: str) -> str:
    """Every column of a table out of a relation that has some of them; the rest is null."""
    have = set(carried)
    return ", ".join(
        f"{of}.{quoted(column.name)}"
        if column.name in have
        else f"CAST(NULL AS {column.type.sql}) AS {quoted(column.name)}"
        for column in description.columns
    )


def broadcast(relation: str, rows: int) -> str:
    """A hint to broadcast a relation of about so many rows, where that is sensible."""
    return f"/*+ BROADCAST({relation}) */" if rows <= _BROADCAST_ROWS else ""


def sample(key: Sequence[str], condition: str) -> str:
    """An aggregate: the key of some row that meets a condition as `column=value, …`, or null."""
    parts = ", ', ', ".join(
        f"{literal(f'{name}=')}, coalesce(CAST({quoted(name)} AS STRING), 'NULL')" for name in key
    )
    return f"min(CASE WHEN {condition} THEN substring(concat({parts}), 1, {_SAMPLE_LENGTH}) END)"


def same_row(file: str, position: str) -> list[str]:
    """SQL conditions: a row of `TABLE` stands where a row of `KEYS` says.

    Args:
        file: the column of `KEYS` that has the data file.
        position: the column of `KEYS` that has the place in it.
    """
    return [
        f"{TABLE}._pos = {KEYS}.{position}",
        # Equal, but not hashed: a file's name is long, and key and position leave little to tell.
        f"{TABLE}._file BETWEEN {KEYS}.{file} AND {KEYS}.{file}",
    ]


def numbered(key: Sequence[str]) -> str:
    """Key columns as `k0`, `k1`, …, so that their names clash with none."""
    return ", ".join(f"{quoted(name)} AS k{number}" for number, name in enumerate(key))


def col(name: str) -> Column:
    """The column of that very name, whatever characters it holds."""
    return F.col(quoted(name))


def typed_literal(value: pa.Scalar, kind: ColumnType) -> str:
    """A value as a SQL expression of its column's stored type.

    Args:
        value: of the type `kind.arrow`; it may be null.
        kind: the column's type.
    """
    if not value.is_valid:
        return f"CAST(NULL AS {kind.sql})"
    match kind.kind:
        case Kind.BINARY:
            text = f"X'{value.as_py().hex()}'"
        case Kind.STRING | Kind.JSON | Kind.XML | Kind.NAIVE_TIME:
            # A raw hexadecimal literal needs no escaping, whatever the text holds.
            text = f"X'{value.as_py().encode().hex()}'"
        case Kind.UTC_DATETIME | Kind.NAIVE_DATETIME:
            # The session's time zone is UTC: a time of no zone has the same digits.
            text = f"timestamp_micros({_number(value)})"
        case Kind.NAIVE_DATE:
            text = f"date_from_unix_date({_number(value)})"
        case Kind.FLOAT:
            text = f"'{value.cast(pa.string()).as_py()}'"
        case _:
            text = f"'{value.as_py()}'"
    return f"CAST({text} AS {kind.sql})"


def _number(value: pa.Scalar) -> int:
    """Microseconds or days since 1970; Python's own times do not reach both ends."""
    return int(value.value)
