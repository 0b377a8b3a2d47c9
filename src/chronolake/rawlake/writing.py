"""Record versions into our own raw lake: what is pulled lands there before a table sees it.

Spark's tasks write the files, in parallel and out of sight; `naming` lets them appear.
"""

from __future__ import annotations

from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from chronolake.changes import (
    DELETED_AT,
    MODIFIED,
    OPERATED,
    PURGED_AT,
    SEQUENCE,
    TELLS,
    UNTOLD,
)
from chronolake.errors import BatchError
from chronolake.failpoints import reach
from chronolake.rawlake import fields as lake_fields
from chronolake.rawlake.declared import (
    DECLARATION,
    IS_MARK,
    OPERATION,
    UNMODIFIED,
    declared,
    to_json,
)
from chronolake.rawlake.naming import make_durable, publish, staging
from chronolake.types import Kind, literal, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame

    from chronolake.rawlake.declared import Declaration
    from chronolake.rawlake.layout import DataFile, ObjectFolder
    from chronolake.types import Column

#: Rows of so many bytes in memory make a file, which is smaller: at most 100 MiB, as
#: `seeds/data-lake-v2.txt` has it.
FILE_BYTES: Final = 96 * 2**20
_TOLD: Final = "name string, rows bigint, incomplete bigint"


def land(
    versions: DataFrame,
    columns: Sequence[Column],
    folder: ObjectFolder,
    *,
    guard: Callable[[], None],
    file_bytes: int = FILE_BYTES,
) -> list[DataFile]:
    """Append record versions to an object of a raw lake.

    When this returns, the files would survive a loss of power. After a crash, some of them may be
    there: landing the same versions again does no harm.

    Args:
        versions: record versions (`chronolake.changes`), without where they stand in files. Each
            partition makes a file or more.
        columns: the data columns with the types that the source declares, the key among them.
        folder: the object.
        guard: called before files appear, when nobody else can let files appear; raises if this
            process must not write to the lake any more.
        file_bytes: how many bytes of rows make a file.

    Returns:
        The new files in the order of their names; none if there are no versions.

    Raises:
        SchemaError: there is no key, or a field has a name of the lake's own columns.
        BatchError: a version lacks its key, its time or its sequence; nothing has been landed.
        PipelineBusyError: another process publishes files of the object, and does not finish.
        SourceError: the object is written by something else.
        Exception: what `guard` or computing `versions` raises; nothing has been landed then.
    """
    declaration = declared(columns)
    rows = versions.selectExpr(*_chosen(declaration, versions.columns))
    with staging(folder) as place:
        write = partial(
            _written, folder=str(place), declaration=to_json(declaration), limit=file_bytes
        )
        told = rows.mapInArrow(write, _TOLD).collect()
        incomplete = sum(row["incomplete"] for row in told)
        if incomplete:
            key = ", ".join(column.name for column in columns if column.primary_key)
            raise BatchError(
                f"{incomplete:,} versions lack their key, their time or their sequence.",
                table=folder.name,
                hint=f"Every version needs {key}, a modification time and a sequence.",
            )
        if not told:
            return []
        make_durable(place)
        reach("land.staged")
        return publish(folder, [place / row["name"] for row in told], guard=guard)


def _chosen(declaration: Declaration, given: Sequence[str]) -> Iterator[str]:
    """The columns of a file as SQL over record versions."""
    key = [one.column for one in declaration if one.column.primary_key]
    yield f"{identifier(key)} AS {lake_fields.ID}"
    yield f"timestamp_micros({MODIFIED}) AS {lake_fields.MODIFIED}"
    yield f"{SEQUENCE} AS {lake_fields.SEQUENCE}"
    deleted, tells = DELETED_AT, f"{PURGED_AT} IS NULL"
    if TELLS in given:
        is_deletion = f"NOT {TELLS} AND {PURGED_AT} IS NULL"
        yield f"IF({is_deletion}, true, NULL) AS {IS_MARK}"
        # A deletion has one time.
        deleted = f"IF({is_deletion}, {MODIFIED}, {DELETED_AT})"
        tells = f"({TELLS} AND {PURGED_AT} IS NULL)"
    yield f"timestamp_micros({deleted}) AS {lake_fields.DELETED}"
    yield f"timestamp_micros({PURGED_AT}) AS {lake_fields.PURGED}"
    if UNTOLD in given:
        fields = ", ".join(
            literal(one.column.name) for one in declaration if not one.column.primary_key
        )
        left_out = f"array_intersect({UNTOLD}, array({fields}))"
        yield f"IF(size({left_out}) > 0, to_json({left_out}), NULL) AS {UNMODIFIED}"
    if OPERATED in given:
        yield f"{OPERATED} AS {OPERATION}"
    for one in declaration:
        if one.text == lake_fields.ID:
            continue
        # A mark says nothing but whose it is.
        is_told = "true" if one.column.primary_key else tells
        yield f"IF({is_told}, {spelled(one.column)}, NULL) AS {quoted(one.text)}"
        if one.typed is not None:
            yield f"IF({is_told}, {_typed(one.column)}, NULL) AS {quoted(one.typed)}"


def identifier(key: Sequence[Column]) -> str:
    """One text for each key: of several columns a JSON array, so that no two keys have the same.

    Args:
        key: the key's columns with their declared types, in any order.

    Returns:
        SQL over these columns; null where one of them is.
    """
    if len(key) == 1:
        return spelled(key[0])
    is_whole = " AND ".join(f"{quoted(column.name)} IS NOT NULL" for column in key)
    # A source may bring its columns in another order one day.
    key = sorted(key, key=lambda column: column.name)
    return f"IF({is_whole}, to_json(array({', '.join(map(spelled, key))})), NULL)"


def spelled(column: Column) -> str:
    """SQL: the text that stands for a column's value in files of our own."""
    name = quoted(column.name)
    match column.type.kind:
        case Kind.BINARY:
            return f"base64({name})"
        case Kind.UTC_DATETIME:
            return f"concat(replace(CAST({name} AS STRING), ' ', 'T'), 'Z')"
        case _:
            return f"CAST({name} AS STRING)"


def _typed(column: Column) -> str:
    name = quoted(column.name)
    match column.type.kind:
        case Kind.SHORT | Kind.INT:
            return f"CAST({name} AS BIGINT)"
        case Kind.FLOAT:
            return f"CAST({name} AS DOUBLE)"
        case _:
            return name


# ------------------------------------------------------------------ in an executor


def _written(
    batches: Iterable[pa.RecordBatch], *, folder: str, declaration: bytes, limit: int
) -> Iterator[pa.RecordBatch]:
    """Write a partition's rows to files, and tell their names."""
    pending: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        for piece in _pieces(batch, limit):
            if pending and size + piece.nbytes > limit:
                yield _file(pending, folder, declaration)
                pending, size = [], 0
            pending.append(piece)
            size += piece.nbytes
    if pending:
        yield _file(pending, folder, declaration)


def _pieces(batch: pa.RecordBatch, limit: int) -> Iterator[pa.RecordBatch]:
    """A batch in parts of at most so many bytes, or of one row."""
    if batch.nbytes > limit and batch.num_rows > 1:
        half = batch.num_rows // 2
        yield from _pieces(batch.slice(0, half), limit)
        yield from _pieces(batch.slice(half), limit)
    elif batch.num_rows:
        yield batch


def write_file(rows: pa.Table, path: Path, declaration: bytes) -> None:
    """Write a file of a raw lake, so that it would survive a loss of power.

    Args:
        rows: with the columns of such a file.
        path: where.
        declaration: what the file says of its columns (`declared.to_json`).
    """
    # Only fields with values are written.
    empty = [
        name
        for name in rows.column_names
        if name not in lake_fields.GUARANTEED and rows[name].null_count == rows.num_rows
    ]
    rows = rows.drop_columns(empty)
    # An Arrow schema beside Parquet's own would say the same twice.
    with pq.ParquetWriter(path, rows.schema, compression="zstd", store_schema=False) as file:
        file.write_table(rows)
        file.add_key_value_metadata({DECLARATION: declaration})
    make_durable(path)


def _file(batches: Sequence[pa.RecordBatch], folder: str, declaration: bytes) -> pa.RecordBatch:
    rows = pa.Table.from_batches(batches)
    lacking = [pc.is_null(rows[name]) for name in lake_fields.GUARANTEED]
    incomplete = pc.sum(reduce(pc.or_, lacking)).as_py()
    path = Path(folder) / f"{uuid4().hex}.parquet"
    write_file(rows, path, declaration)
    return pa.RecordBatch.from_pydict(
        {"name": [path.name], "rows": [rows.num_rows], "incomplete": [incomplete]}
    )
