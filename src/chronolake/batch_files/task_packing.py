"""Distribution of a request's files over Spark's tasks, as one lazy DataFrame."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from chronolake.batch_files.decoder import ReadOptions, decode_file
from chronolake.batch_files.files import open_file
from chronolake.change_set import OP, SEQ, UNMODIFIED, Op
from chronolake.errors import BatchFileError
from chronolake.executor_errors import seal, warning_sender

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from chronolake.batch_files.files import BatchFile, FileForm
    from chronolake.executor_files import ExecutorFiles
    from chronolake.object_store import BucketPath
    from chronolake.types import Column

#: Bytes of batch files from which on a task is worth its cost.
BYTES_PER_TASK: Final = 256 << 10
#: More tasks than cores, so that one long file does not leave the others idle.
TASKS_PER_CORE: Final = 3

Numbered = tuple[int, "BatchFile"]


def read(
    spark: SparkSession,
    files: Sequence[BatchFile],
    columns: Sequence[Column],
    form: FileForm,
    *,
    required: Mapping[Op, frozenset[str]],
    table: str,
    batch: str,
    times: Mapping[Op, frozenset[str]] | None = None,
    may_keep_times: bool = False,
) -> DataFrame:
    """Return the change set of a request's files (see `chronolake.change_set`), lazily.

    The files are read in executors, in parallel, each time the DataFrame is used. Keys are part of
    the task's closure, and never of a plan or log. A column that a file does not have is null.
    Columns of a file that are not in `columns` are ignored.

    Args:
        spark: session with time zone UTC and case-sensitive names.
        files: the request's files; they are numbered by operation, and within one in this order.
        columns: the change set's data columns, in order.
        form: the format of all files.
        required: by operation, the names of the columns that each of its files must have.
        table: `schema.table`, for errors and the log.
        batch: identity of the batch, for errors and the log.
        times: by operation, the required columns in which no cell may be null.
        may_keep_times: whether update rows may leave these unmodified.

    Raises:
        FileAccessError: a file does not exist. Other errors of files are raised when the DataFrame
            is used, inside the Spark failure that `error_of` reads.
    """
    from pyspark.sql.types import (  # noqa: PLC0415 - readers without a JVM need not load it
        ArrayType,
        IntegerType,
        LongType,
        StructField,
        StructType,
    )

    schema: StructType = StructType(
        [
            StructField(OP, IntegerType(), nullable=False),
            StructField(SEQ, LongType(), nullable=False),
            StructField(UNMODIFIED, ArrayType(LongType())),
            *(StructField(column.name, column.type.spark) for column in columns),
        ]
    )
    if not files:
        return spark.createDataFrame([], schema)
    # A stable sort: changes are numbered earliest, replace, update, delete.
    numbered = list(enumerate(sorted(files, key=lambda file: file.op)))
    sizes = [size_of(file, table, batch) for _, file in numbered]
    tasks = pack_tasks(numbered, sizes, cores=spark.sparkContext.defaultParallelism)
    options = ReadOptions(
        form,
        tuple(columns),
        dict(required),
        table,
        batch,
        times=dict(times or {}),
        may_keep_times=may_keep_times,
    )
    warn = warning_sender(spark.sparkContext)

    def decode(chosen: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for ids in chosen:
            for task in ids.column(0).to_pylist():
                yield from _decode_task(tasks[task], options, warn)

    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(decode, schema)


def pack_tasks(
    files: Sequence[Numbered], sizes: Sequence[int], *, cores: int
) -> tuple[tuple[Numbered, ...], ...]:
    """Distribute files over tasks: few for small requests, of similar size for large ones.

    Args:
        files: numbered files.
        sizes: their bytes, in the same order.
        cores: the number of tasks that can run at the same time.
    """
    wanted = -(-sum(sizes) // BYTES_PER_TASK)
    count = max(1, min(len(files), cores * TASKS_PER_CORE, wanted))
    tasks: list[list[Numbered]] = [[] for _ in range(count)]
    loads = [0] * count
    for size, numbered in sorted(zip(sizes, files, strict=True), key=lambda pair: -pair[0]):
        lightest = loads.index(min(loads))
        tasks[lightest].append(numbered)
        loads[lightest] += size
    return tuple(tuple(task) for task in tasks)


def size_of(file: BatchFile, table: str, batch: str) -> int:
    """Return the bytes of a batch file on disk.

    Raises:
        FileAccessError: the file does not exist, or must not be read; with table and batch.
    """
    try:
        with open_file(file.path, file.root) as raw:
            return os.fstat(raw.fileno()).st_size
    except BatchFileError as error:
        raise _with_place(error, table, batch) from None


@contextmanager
def copy_for_tasks(
    files: Sequence[BatchFile], copies: ExecutorFiles, table: str, batch: str
) -> Iterator[tuple[BatchFile, ...]]:
    """Yield the files of a request as tasks read them: copies, if they do not see the driver's.

    Encrypted files stay encrypted. The copies are removed when the block ends.

    Raises:
        FileAccessError: a file does not exist, or must not be read; with table and batch.
        ObjectStoreError: a file cannot be copied to the bucket.
    """
    if copies.are_shared:
        yield tuple(files)
        return
    made: list[BucketPath] = []
    try:
        for file in files:
            try:
                with open_file(file.path, file.root) as content:
                    made.append(copies.copy(content))
            except BatchFileError as error:
                raise _with_place(error, table, batch) from None
        yield tuple(replace(file, copy=copy) for file, copy in zip(files, made, strict=True))
    finally:
        copies.discard(made)


def _with_place(error: BatchFileError, table: str, batch: str) -> BatchFileError:
    return type(error)(
        error.message,
        hint=error.hint,
        table=table,
        batch=batch,
        file=error.file,
        row=error.row,
        column=error.column,
    )


def _decode_task(
    files: Sequence[Numbered], options: ReadOptions, warn: Callable[[str, dict[str, Any]], None]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task's files; raise errors as texts that `error_of` reads."""
    failed: BatchFileError | None = None
    for ordinal, file in files:
        try:
            yield from decode_file(file, ordinal, options, warn=warn)
        except BatchFileError as error:
            failed = _with_place(error, options.table, options.batch)
        if failed is not None:
            # Outside the handler: the message of a chained exception could quote a cell.
            raise seal(failed)
