"""SQL text: quoting, literals, and statements over data frames.

The statements of a write are SQL texts instead of many small calls into the JVM: the cost of a
batch of a hundred rows is Spark's planning and the calls between Python and Java. Identifiers are
quoted by `chronolake.types.quote`. Literals keep the exact value of any type.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.classic.dataframe import DataFrame

from chronolake.change_set import RESERVED
from chronolake.frames import temp_view
from chronolake.types import Kind, literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import Column

    from chronolake.description import TableDescription
    from chronolake.types import ColumnType


#: Relations with more rows than this are not broadcast but shuffled together with the table.
_BROADCAST_ROWS: Final = 2_000_000
_SAMPLE_LENGTH: Final = 200

# Aliases of relations in a statement. A column with such a name would hide the relation's hidden
# columns.
TABLE: Final = f"{RESERVED}table"
KEYS: Final = f"{RESERVED}keys"
BATCH: Final = f"{RESERVED}batch"


@contextmanager
def cached_view(frame: DataFrame) -> Iterator[str]:
    """Yield a SQL name for a frame that is computed once and kept while the block runs.

    The rows stay in executors: in memory, and on disk if memory is short. Spark drops them as soon
    as any view of the frame is dropped, so there is one view with the same lifetime.
    """
    frame.persist(StorageLevel.MEMORY_AND_DISK_DESER)
    try:
        with temp_view(_without_plan(frame)) as name:
            yield name
    finally:
        frame.unpersist()


def _without_plan(frame: DataFrame) -> DataFrame:
    """Return the kept rows of a persisted frame, for statements that do not need its plan.

    Spark would analyze and optimize the frame's plan again for each statement before it finds that
    the rows are kept: for a wide table, this takes longer than everything else.
    """
    session = frame.sparkSession
    rows = frame._jdf.queryExecution().withCachedData()  # noqa: SLF001
    datasets = session._jvm.org.apache.spark.sql.classic.Dataset  # noqa: SLF001
    return DataFrame(datasets.ofRows(session._jsparkSession, rows), session)  # noqa: SLF001


def column_list(names: Iterable[str], *, of: str = "") -> str:
    """Return quoted names separated by commas, qualified by a relation if it is given."""
    prefix = f"{of}." if of else ""
    return ", ".join(f"{prefix}{quote(name)}" for name in names)


def any_of(conditions: Iterable[str]) -> str:
    """Return a SQL condition that is true if one of many is. None of them may be null.

    The expression is flat: its depth does not grow with their number.
    """
    found = ", ".join(conditions)
    return f"array_contains(array({found}), true)" if found else "false"


def cells(description: TableDescription, carried: Sequence[str], *, of: str) -> str:
    """Return all columns of a table, from a relation with some of them; the rest is null."""
    have = set(carried)
    return ", ".join(
        f"{of}.{quote(column.name)}"
        if column.name in have
        else f"CAST(NULL AS {column.type.sql}) AS {quote(column.name)}"
        for column in description.columns
    )


def broadcast(relation: str, rows: int) -> str:
    """Return a hint to broadcast a relation with about `rows` rows, or "" if it is too large."""
    return f"/*+ BROADCAST({relation}) */" if rows <= _BROADCAST_ROWS else ""


def sample(key: Sequence[str], condition: str) -> str:
    """Return an aggregate: the key of some matching row as `column=value, …`, or null."""
    parts = ", ', ', ".join(
        f"{literal(f'{name}=')}, coalesce(CAST({quote(name)} AS STRING), 'NULL')" for name in key
    )
    return f"min(CASE WHEN {condition} THEN substring(concat({parts}), 1, {_SAMPLE_LENGTH}) END)"


def same_row(file: str, position: str) -> list[str]:
    """Return SQL conditions: a row of `TABLE` has the file and position of a row of `KEYS`.

    Args:
        file: the column of `KEYS` with the data file.
        position: the column of `KEYS` with the position in it.
    """
    return [
        f"{TABLE}._pos = {KEYS}.{position}",
        # Equal, but not hashed: a file's name is long, and key and position are selective enough.
        f"{TABLE}._file BETWEEN {KEYS}.{file} AND {KEYS}.{file}",
    ]


def numbered_key(key: Sequence[str]) -> str:
    """Return key columns as `k0`, `k1`, …, so that their names cannot clash with others."""
    return ", ".join(f"{quote(name)} AS k{number}" for number, name in enumerate(key))


def col(name: str) -> Column:
    """Return the column with exactly this name, whatever characters it contains."""
    return F.col(quote(name))


def typed_literal(value: pa.Scalar, kind: ColumnType) -> str:
    """Return a value as a SQL expression of its column's stored type.

    `value` has the type `kind.arrow`, and may be null.
    """
    if not value.is_valid:
        return f"CAST(NULL AS {kind.sql})"
    match kind.kind:
        case Kind.BINARY:
            text = f"X'{value.as_py().hex()}'"
        case Kind.STRING | Kind.JSON | Kind.XML | Kind.NAIVE_TIME:
            # A raw hexadecimal literal needs no escaping, whatever the text contains.
            text = f"X'{value.as_py().encode().hex()}'"
        case Kind.UTC_DATETIME | Kind.NAIVE_DATETIME:
            # The session's time zone is UTC: a time without zone has the same digits.
            text = f"timestamp_micros({_number(value)})"
        case Kind.NAIVE_DATE:
            text = f"date_from_unix_date({_number(value)})"
        case Kind.FLOAT:
            text = f"'{value.cast(pa.string()).as_py()}'"
        case _:
            text = f"'{value.as_py()}'"
    return f"CAST({text} AS {kind.sql})"


def _number(value: pa.Scalar) -> int:
    """Return microseconds or days since 1970; Python's own times do not cover the whole range."""
    return int(value.value)
