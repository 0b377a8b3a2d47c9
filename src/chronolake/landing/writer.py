"""Writes record versions to our own raw lake, where they land before tables are changed.

Spark's tasks write staged files, in parallel, and the driver writes a few rows itself;
`file_sequence` publishes them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from chronolake.arrow_tasks import are_here, to_arrow
from chronolake.errors import BatchError
from chronolake.failpoints import reach
from chronolake.landing import field_types as lake_fields
from chronolake.landing.encoding import DECLARING, count_incomplete, rows_of_file, texts_of
from chronolake.landing.file_schema import DECLARATION, declare_fields, to_json
from chronolake.landing.file_sequence import StagedFiles, make_durable, publish, staging
from chronolake.shared_storage import expect_written
from chronolake.types import Column, ColumnType, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame

    from chronolake.arrow_tasks import ArrowRows
    from chronolake.landing.file_sequence import Staged
    from chronolake.landing.layout import DataFile, ObjectFolder

#: Bytes of rows in memory that make a file. The file is smaller: at most 100 MiB, as in
#: `seeds/data-lake-v2.txt`.
FILE_BYTES: Final = 96 * 2**20
_RESULT: Final = "name string, rows bigint, incomplete bigint"


def land(
    versions: DataFrame | ArrowRows,
    columns: Sequence[Column],
    folder: ObjectFolder,
    *,
    guard: Callable[[], None],
    each_once: bool = False,
    has_new_columns: bool = False,
    texts: Mapping[str, str] | None = None,
    file_bytes: int = FILE_BYTES,
) -> list[DataFile]:
    """Append record versions to an object of a raw lake.

    The files are durable on return. After a crash, some of them may have been published: landing
    the same versions again is harmless.

    Args:
        versions: record versions (`chronolake.change_set`), without their locations in files. Each
            partition becomes one or more files.
        columns: the data columns with the types that the source declares, including the key.
        folder: the object.
        guard: called before files are published, while no other process can publish; raises if this
            process must no longer write to the lake.
        each_once: whether the source guarantees at most one version of each record.
        has_new_columns: whether to declare the columns even if there are no versions.
        texts: for some columns, the column of the versions with the texts of values that the
            declared type cannot contain, and that are null in the column itself. Files with such
            values declare the column as a text.
        file_bytes: bytes of rows in memory that make a file.

    Returns:
        The new files in the order of their names. Without versions: an empty list, or with new
        columns one file without rows.

    Raises:
        SchemaError: there is no key, or a field has the name of one of the lake's own columns.
        BatchError: a version lacks its key, its time or its sequence; nothing has landed.
        PipelineBusyError: another process is publishing files of the object, and does not finish.
        SourceError: the object is written by another program.
        LakeError: executors do not share the folder with the driver; nothing has landed.
        Exception: any error of `guard` or from computing `versions`; nothing has landed.
    """
    declaration = declare_fields(columns)
    with staging(folder, in_driver=are_here(versions)) as staged:
        write = partial(
            _write_partition,
            staged=staged,
            columns=tuple(columns),
            texts=texts or {},
            each_once=uuid4().hex if each_once else None,
            limit=file_bytes,
        )
        reported = to_arrow(versions).then(write, _RESULT).collect()
        lacking = sum(row["incomplete"] for row in reported)
        if lacking:
            key = ", ".join(column.name for column in columns if column.primary_key)
            raise BatchError(
                f"{lacking:,} versions lack their key, modification time or sequence.",
                table=folder.name,
                hint=f"Every version needs {key}, a modification time and a sequence.",
            )
        names = [row["name"] for row in reported]
        if isinstance(staged, StagedFiles):
            expect_written((staged.place / name for name in names), table=folder.name)
        if not names and has_new_columns:
            names = [write_staged(DECLARING.empty_table(), staged, to_json(declaration))]
        if not names:
            return []
        reach("land.staged")
        return publish(folder, staged, names, guard=guard)


def declare(
    columns: Sequence[Column], folder: ObjectFolder, *, guard: Callable[[], None]
) -> list[DataFile]:
    """Append a file without rows to an object of a raw lake, which declares its columns.

    Args:
        columns: the data columns with the types that the source declares, including the key.
        folder: the object.
        guard: like in `land`.

    Returns:
        The new file.

    Raises:
        SchemaError: there is no key, or a field has the name of one of the lake's own columns.
        PipelineBusyError: another process is publishing files of the object, and does not finish.
        SourceError: the object is written by another program.
    """
    with staging(folder, in_driver=True) as staged:
        name = write_staged(DECLARING.empty_table(), staged, to_json(declare_fields(columns)))
        reach("land.staged")
        return publish(folder, staged, [name], guard=guard)


# In an executor.


def _write_partition(
    versions: Iterable[pa.RecordBatch],
    *,
    staged: Staged,
    columns: tuple[Column, ...],
    texts: Mapping[str, str],
    each_once: str | None,
    limit: int,
) -> Iterator[pa.RecordBatch]:
    """Write a partition's versions to files, and yield their names."""
    pending: list[pa.RecordBatch] = []
    size = 0
    declaration = declare_fields(columns)
    footer = to_json(declaration, each_once=each_once)
    beyond: set[str] = set()
    for batch in versions:
        found = {name for name, text in texts.items() if batch[text].null_count < batch.num_rows}
        if found - beyond:
            if pending:
                yield _write_pending(pending, staged, footer)
                pending, size = [], 0
            beyond |= found
            declaration = declare_fields([_text_if(beyond, column) for column in columns])
            footer = to_json(declaration, each_once=each_once)
        rows = rows_of_file(_with_texts(batch, columns, texts, beyond), declaration)
        for piece in _pieces(rows, limit):
            if pending and size + piece.nbytes > limit:
                yield _write_pending(pending, staged, footer)
                pending, size = [], 0
            pending.append(piece)
            size += piece.nbytes
    if pending:
        yield _write_pending(pending, staged, footer)


def _text_if(beyond: set[str], column: Column) -> Column:
    return replace(column, type=ColumnType(Kind.STRING)) if column.name in beyond else column


def _with_texts(
    batch: pa.RecordBatch, columns: Iterable[Column], texts: Mapping[str, str], beyond: set[str]
) -> pa.RecordBatch:
    """Return versions with texts in place of the values of some columns."""
    for column in columns:
        if column.name in beyond:
            place = batch.schema.get_field_index(column.name)
            spelled = texts_of(batch.column(place).cast(column.type.arrow), column.type.kind)
            whole = pc.coalesce(batch[texts[column.name]], spelled)
            batch = batch.set_column(place, column.name, whole)
    return batch


def _pieces(batch: pa.RecordBatch, limit: int) -> Iterator[pa.RecordBatch]:
    """Split a batch into parts of up to `limit` bytes, or of one row."""
    if batch.nbytes > limit and batch.num_rows > 1:
        half = batch.num_rows // 2
        yield from _pieces(batch.slice(0, half), limit)
        yield from _pieces(batch.slice(half), limit)
    elif batch.num_rows:
        yield batch


def write_staged(rows: pa.Table, staged: Staged, declaration: bytes) -> str:
    """Write rows of a raw lake to a new staged file; return its name."""
    if isinstance(staged, StagedFiles):
        path = staged.new_path()
        write_file(rows, path, declaration)
        return path.name
    return staged.write(encode_file(rows, declaration))


def write_file(rows: pa.Table, path: Path, declaration: bytes) -> None:
    """Write a file of a raw lake durably.

    Args:
        rows: rows with the columns of such a file.
        path: the file's path.
        declaration: the declaration of its columns (`file_schema.to_json`).
    """
    _write_parquet(rows, path, {DECLARATION: declaration})
    make_durable(path)


def encode_file(
    rows: pa.Table, declaration: bytes, *, metadata: Mapping[bytes, bytes] | None = None
) -> bytes:
    """Return the content of a file of a raw lake.

    Args:
        rows: rows with the columns of such a file.
        declaration: the declaration of its columns; empty for a file that declares none.
        metadata: further metadata of the file.
    """
    content = pa.BufferOutputStream()
    declared = {DECLARATION: declaration} if declaration else {}
    _write_parquet(rows, content, {**declared, **(metadata or {})})
    return bytes(content.getvalue())


def _write_parquet(
    rows: pa.Table, where: Path | pa.NativeFile, metadata: Mapping[bytes, bytes]
) -> None:
    # Only fields with values are written.
    empty = [
        name
        for name in rows.column_names
        if name not in lake_fields.GUARANTEED and rows[name].null_count == rows.num_rows
    ]
    rows = rows.drop_columns(empty)
    # An Arrow schema would be redundant to Parquet's own.
    with pq.ParquetWriter(where, rows.schema, compression="zstd", store_schema=False) as file:
        file.write_table(rows)
        file.add_key_value_metadata(metadata)


def _write_pending(
    batches: Sequence[pa.RecordBatch], staged: Staged, declaration: bytes
) -> pa.RecordBatch:
    rows = pa.Table.from_batches(batches)
    name = write_staged(rows, staged, declaration)
    return pa.RecordBatch.from_pydict(
        {"name": [name], "rows": [rows.num_rows], "incomplete": [count_incomplete(rows)]}
    )
