"""The decoder of a batch file: Arrow record batches of the change set."""

from __future__ import annotations

from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field
from threading import Condition
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronolake.batch_files import csv_file, parquet_file
from chronolake.batch_files.csv_file import Block, CsvFile
from chronolake.batch_files.decoded_rows import expect_cells
from chronolake.batch_files.files import open_plain
from chronolake.change_set import BITS_PER_WORD, OP, ROWS_PER_FILE, SEQ, UNMODIFIED, Op
from chronolake.executor_errors import log_warning

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from chronolake.batch_files.decoded_rows import DecodedRows
    from chronolake.batch_files.files import BatchFile, FileForm
    from chronolake.types import Column

    Warn = Callable[[str, dict[str, Any]], None]

#: Maximum number of rows that are sent to the JVM at once.
ROWS_PER_BATCH: Final = 32_768
#: Maximum number of items that a stage makes ahead of the next stage.
_AHEAD: Final = 3
#: A stage also waits while these items and the one in use have more bytes than this.
_BYTES_AHEAD: Final = 32 << 20
#: Operations whose rows contain only a record and a time: their other cells are ignored.
_NAMING: Final = frozenset({Op.EARLIEST, Op.DELETE})
_WORDS: Final = pa.list_(pa.int64())

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Settings for reading the files of a request.

    Attributes:
        form: the files' format.
        columns: the change set's data columns, in order.
        required: by operation, the columns that its files must have.
        table: `schema.table`, for the log.
        batch: the batch's identity, for the log.
        block_size: approximate bytes of CSV that are parsed at once.
        times: by operation, the required columns in which no cell may be null.
        may_keep_times: whether update rows may leave these unmodified.
    """

    form: FileForm
    columns: tuple[Column, ...]
    required: Mapping[Op, frozenset[str]]
    table: str
    batch: str
    block_size: int = csv_file.BLOCK_SIZE
    times: Mapping[Op, frozenset[str]] = field(default_factory=dict)
    may_keep_times: bool = False


def decode_file(
    file: BatchFile, ordinal: int, options: ReadOptions, *, warn: Warn = log_warning
) -> Iterator[pa.RecordBatch]:
    """Yield the change set's rows of one file.

    Args:
        ordinal: its position among the request's files, from 0.
        options: the settings.
        warn: called with warnings, which contain counts only.

    Raises:
        BatchFileError: the file cannot be read; its place contains file, row and column.
    """
    tallies = {column.name: Counter[str]() for column in options.columns}
    times = options.times.get(file.op, frozenset())
    row = ordinal * ROWS_PER_FILE
    with closing(_pieces(file, options, tallies, warn)) as pieces:
        for piece in pieces:
            expect_cells(
                piece,
                options.columns,
                file,
                row - ordinal * ROWS_PER_FILE,
                times=times,
                may_keep_times=options.may_keep_times and file.op is Op.UPDATE,
            )
            rows = _rows(piece, file.op, row, options.columns)
            row += piece.rows
            for start in range(0, rows.num_rows, ROWS_PER_BATCH):
                yield rows.slice(start, ROWS_PER_BATCH)
            # Free the piece, which may be large, before the next one is made.
            del piece, rows
    place = {"table": options.table, "batch": options.batch, "file": file.path}
    for column, tally in tallies.items():
        if tally:
            warn("batch_file_values_adjusted", {**place, "column": column, **tally})


def _pieces(
    file: BatchFile, options: ReadOptions, tallies: dict[str, Counter[str]], warn: Warn
) -> Generator[DecodedRows, None, None]:
    required = options.required.get(file.op, frozenset())
    columns = options.columns
    if required and file.op in _NAMING:
        columns = tuple(column for column in columns if column.name in required)
    if options.form.format == "parquet":
        yield from parquet_file.pieces(
            file, options.form, columns=columns, required=required, tallies=tallies
        )
        return
    csv = CsvFile(file, options.form, columns, required, tallies)
    # Closed in this order, and never by the garbage collector: it may run in any thread, and
    # closing waits for the thread that works ahead.
    with (
        open_plain(file, options.form) as plain,
        closing(
            run_ahead(
                csv.scan_blocks(csv_file.blocks(plain.read, size=options.block_size)),
                weigh=_bytes_of_block,
            )
        ) as blocks,
        closing(run_ahead(csv.pieces(blocks), weigh=_bytes_of_piece)) as pieces,
    ):
        yield from pieces
    if not csv.has_header:
        place = {"table": options.table, "batch": options.batch, "file": file.path}
        warn("batch_file_without_header", place)


def _bytes_of_block(block: Block) -> int:
    return len(block.content)


def _bytes_of_piece(piece: DecodedRows) -> int:
    return sum(array.nbytes for array in piece.arrays.values())


def run_ahead(
    items: Iterable[T], *, weigh: Callable[[T], int] = lambda _: 0
) -> Generator[T, None, None]:
    """Yield the same items, while a thread makes the next ones.

    Closing this iterator waits for the current item and closes `items`.

    Args:
        items: the items, which the thread iterates.
        weigh: returns an item's bytes: for large items, fewer are made ahead.

    Raises:
        Exception: any error of `items`, after the items before it.
    """
    source = iter(items)
    changed = Condition()
    ready: deque[tuple[T, int]] = deque()
    ready_bytes, is_over, is_wanted = 0, False, True

    def produce() -> None:
        nonlocal ready_bytes, is_over
        try:
            for item in source:
                with changed:
                    ready.append((item, weight := weigh(item)))
                    ready_bytes += weight
                    changed.notify_all()
                    del item
                    changed.wait_for(has_room)
                    if not is_wanted:
                        return
        finally:
            with changed:
                is_over = True
                changed.notify_all()

    def has_room() -> bool:
        return not is_wanted or (len(ready) < _AHEAD and ready_bytes <= _BYTES_AHEAD)

    with ThreadPoolExecutor(1) as thread:
        producer = thread.submit(produce)
        try:
            while True:
                with changed:
                    changed.wait_for(lambda: ready or is_over)
                    if not ready:
                        break
                    item, weight = ready.popleft()
                    changed.notify_all()
                yield item
                del item
                with changed:
                    ready_bytes -= weight
                    changed.notify_all()
            producer.result()
        finally:
            # Wait, so that the source is idle when it is closed.
            with changed:
                is_wanted = False
                changed.notify_all()
            wait([producer])
            close = getattr(source, "close", None)
            if close is not None:
                close()


def _rows(piece: DecodedRows, op: Op, first: int, columns: Iterable[Column]) -> pa.RecordBatch:
    """Return a piece with the change set's own columns first; absent columns are null."""
    arrays: dict[str, pa.Array] = {
        OP: pa.array(np.full(piece.rows, int(op), dtype=np.int32)),
        SEQ: pa.array(np.arange(first, first + piece.rows, dtype=np.int64)),
        UNMODIFIED: _words(piece, [column.name for column in columns]),
    }
    data = [
        piece.arrays[column.name]
        if column.name in piece.arrays
        else pa.nulls(piece.rows, column.type.arrow)
        for column in columns
    ]
    return pa.RecordBatch.from_arrays(
        [*arrays.values(), *data], names=[*arrays, *(column.name for column in columns)]
    )


def _words(piece: DecodedRows, names: list[str]) -> pa.Array:
    """Return bit words of the unmodified cells; null for rows without unmodified cells."""
    words = -(-len(names) // BITS_PER_WORD)
    bits: dict[int, np.ndarray] = {}
    for index, name in enumerate(names):
        mask = piece.unmodified.get(name)
        if mask is None:
            continue
        flags = pc.fill_null(mask, False).to_numpy(zero_copy_only=False).astype(np.uint64)
        word = bits.setdefault(index // BITS_PER_WORD, np.zeros(piece.rows, dtype=np.uint64))
        word |= flags << np.uint64(index % BITS_PER_WORD)
    if not bits:
        return pa.nulls(piece.rows, _WORDS)
    matrix = np.zeros((piece.rows, words), dtype=np.uint64)
    for index, word in bits.items():
        matrix[:, index] = word
    some = matrix.any(axis=1)
    lengths = np.where(some, words, 0)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets),
        pa.array(matrix[some].reshape(-1).view(np.int64)),
        type=_WORDS,
        mask=pa.array(~some),
    )
