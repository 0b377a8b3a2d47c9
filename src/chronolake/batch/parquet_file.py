"""Parquet batch files to typed columns.

Parquet needs random access, so an encrypted or compressed file is held in memory, up to a limit;
a file that is neither is read in place. Rows are decoded a few thousand at a time.

Values have the types of `seeds/destination-connector.txt` ("Data types mapping"): times and dates
come as text. Real timestamps, dates and times of day are taken as well. A column of text is read
like CSV cells, whatever its kind, so that the null and unmodified markers can stand in any column;
only bytes are never written as text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet as pq

from chronolake.batch.access import open_file
from chronolake.batch.pieces import Piece, present, refused, refused_mark
from chronolake.batch.plain import opened
from chronolake.changes import Op
from chronolake.errors import MalformedFileError
from chronolake.texts.columns import CellRefusedError, direct, settled, spelled, typed
from chronolake.types import Kind

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator, Sequence

    from chronolake.batch.files import BatchFile, FileForm
    from chronolake.batch.plain import Plain
    from chronolake.types import Column, ColumnType

#: The most plain bytes of an encrypted or compressed Parquet file that are held in memory.
CONTENT_LIMIT: Final = 128 << 20
ROWS_AT_ONCE: Final = 16_384
_STEP: Final = 1 << 20

_INTEGERS: Final = {
    Kind.SHORT: {pa.int8(), pa.int16(), pa.int32()},
    Kind.INT: {pa.int8(), pa.int16(), pa.int32()},
    Kind.LONG: {pa.int8(), pa.int16(), pa.int32(), pa.int64()},
}
_WORDS: Final = {
    Kind.BOOLEAN: "a boolean",
    Kind.SHORT: "INT32",
    Kind.INT: "INT32",
    Kind.LONG: "INT64",
    Kind.FLOAT: "float",
    Kind.DOUBLE: "double",
    Kind.DECIMAL: "a decimal",
    Kind.NAIVE_DATE: "text or a date",
    Kind.NAIVE_DATETIME: "text or a timestamp",
    Kind.UTC_DATETIME: "text or a timestamp",
    Kind.NAIVE_TIME: "text or a time of day",
    Kind.BINARY: "bytes",
}


def pieces(
    file: BatchFile,
    form: FileForm,
    *,
    columns: Sequence[Column],
    required: frozenset[str],
    tallies: dict[str, Counter[str]],
) -> Iterator[Piece]:
    """The file's rows.

    Args:
        file: which one.
        form: its markers, and whether it can be read in place.
        columns: the wanted columns.
        required: names of the columns that it must have.
        tallies: by column name, what was adjusted; filled while pieces are taken.

    Raises:
        MalformedFileError: no Parquet, a missing column, a column of another type.
        ValueRefusedError: a value that does not fit its column.
        BatchFileError: the content cannot be had.
    """
    reading = _ParquetFile(file, form, columns, required, tallies)
    if form.compression == "off" and not form.encrypted:
        with open_file(file.path, file.root) as raw, pa.PythonFile(raw, mode="r") as source:
            yield from reading.pieces(source)
    else:
        with opened(file, form) as plain, pa.BufferReader(_content(file, plain)) as source:
            yield from reading.pieces(source)


def _content(file: BatchFile, plain: Plain) -> bytearray:
    content = bytearray()
    while step := plain.read(_STEP):
        content += step
        if len(content) > CONTENT_LIMIT:
            raise MalformedFileError(
                f"The Parquet file has more than {CONTENT_LIMIT >> 20} MiB of plain content, the "
                "most that is held in memory.",
                hint="Send smaller files, or Parquet files without encryption and compression "
                "around them.",
                file=file.path,
            )
    return content


@dataclass
class _ParquetFile:
    """One Parquet file while it is decoded."""

    file: BatchFile
    form: FileForm
    columns: Sequence[Column]
    required: frozenset[str]
    tallies: dict[str, Counter[str]]
    _rows: int = 0

    def pieces(self, source: pa.NativeFile) -> Iterator[Piece]:
        reader = self._attempt(lambda: pq.ParquetFile(source, pre_buffer=False))
        wanted = present(reader.schema_arrow.names, self.columns, self.required, self.file)
        batches = self._attempt(
            lambda: reader.iter_batches(
                batch_size=ROWS_AT_ONCE,
                columns=[column.name for column in wanted.values()] or None,
                use_threads=False,
            )
        )
        while (batch := self._attempt(lambda: next(batches, None))) is not None:
            arrays: dict[str, pa.Array] = {}
            unmodified: dict[str, pa.Array] = {}
            for column in wanted.values():
                array, mask = self._column(batch.column(column.name), column)
                arrays[column.name] = array
                if mask is not None:
                    unmodified[column.name] = mask
            yield Piece(batch.num_rows, arrays, unmodified)
            self._rows += batch.num_rows

    def _attempt(self, action: Callable[[], Any]) -> Any:
        """What the library makes of the content; its own words may quote values and stay here."""
        try:
            return action()
        except (pa.ArrowException, OSError, ValueError):
            pass
        raise MalformedFileError(
            "The file is not a readable Parquet file.",
            hint="It was cut short or changed, or it has another format, compression or key.",
            file=self.file.path,
        )

    def _column(self, array: pa.Array, column: Column) -> tuple[pa.Array, pa.Array | None]:
        """A column in its final type, and which of its cells are unmodified."""
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if _is_text(array.type):
            array = array.cast(pa.string())
            array, mask = self._unmarked(array, column, pa.string())
            return self._from_text(array, column), mask
        if column.type.kind is Kind.BINARY and _is_bytes(array.type):
            return self._unmarked(array.cast(pa.binary()), column, pa.binary())
        if pa.types.is_null(array.type):
            return pa.nulls(len(array), column.type.arrow), None
        tally = self.tallies[column.name]
        try:
            native = _native(array, column.type)
            fits = native is not None
            # Parquet's own numbers may be infinite, or none at all.
            is_float = column.type.kind in (Kind.FLOAT, Kind.DOUBLE)
            final = native if is_float or not fits else settled(native, column.type, tally)
        except pa.ArrowException:
            fits, final = True, None
        if final is not None:
            return final, None
        if fits:
            # The careful way finds the cell that has to be refused.
            return self._from_text(array.cast(pa.string()), column), None
        raise MalformedFileError(
            f"The column has the Parquet type {array.type}, which is no {column.type}.",
            hint=f"Write it as {_WORDS.get(column.type.kind, 'text')}.",
            file=self.file.path,
            column=column.name,
        )

    def _unmarked(
        self, array: pa.Array, column: Column, kind: pa.DataType
    ) -> tuple[pa.Array, pa.Array | None]:
        """The cells without the markers, and where the unmodified marker stood."""
        null, marker = (
            pa.scalar(text.encode(), pa.binary()).cast(kind)
            for text in (self.form.null_string, self.form.unmodified_string)
        )
        nothing = pa.scalar(None, kind)
        mask: pa.Array | None = None
        at = pc.index(array, marker).as_py() if self.form.unmodified_string else -1
        if at >= 0 and self.file.op is not Op.UPDATE:
            row = self._rows + at + 1
            raise refused_mark(self.file, row, column, "outside an update file")
        if at >= 0:
            mask = pc.fill_null(pc.equal(array, marker), False)
            array = pc.if_else(mask, nothing, array)
        # Without a marker an empty text is a value: Parquet has nulls of its own.
        if self.form.null_string and pc.index(array, null).as_py() >= 0:
            array = pc.if_else(pc.equal(array, null), nothing, array)
        return array, mask

    def _from_text(self, texts: pa.Array, column: Column) -> pa.Array:
        if column.type.kind is Kind.BINARY:
            if texts.null_count == len(texts):
                return pa.nulls(len(texts), pa.binary())
            first = pc.index(pc.is_valid(texts), True).as_py()
            reason = "it is text; Parquet carries bytes as bytes"
            raise refused(self.file, self._rows + first + 1, column, reason)
        cell: CellRefusedError
        try:
            return typed(texts, column.type, self.tallies[column.name])
        except CellRefusedError as error:
            cell = error
        raise refused(self.file, self._rows + cell.index + 1, column, cell.reason)


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.string_view())


def _is_bytes(kind: pa.DataType) -> bool:
    return kind in (pa.binary(), pa.large_binary(), pa.binary_view()) or isinstance(
        kind, pa.FixedSizeBinaryType
    )


def _native(array: pa.Array, kind: ColumnType) -> pa.Array | None:  # noqa: PLR0911 - a table
    """An array of a fitting Parquet type, as the CSV reader would have parsed it, or None.

    Raises:
        pa.ArrowException: a value is out of range.
    """
    of = array.type
    match kind.kind:
        case Kind.BOOLEAN if pa.types.is_boolean(of):
            return array
        case Kind.SHORT | Kind.INT | Kind.LONG if of in _INTEGERS[kind.kind]:
            return array.cast(direct(kind))
        case Kind.FLOAT if of == pa.float32():
            return array
        case Kind.DOUBLE if of in (pa.float32(), pa.float64()):
            return array.cast(pa.float64())
        case Kind.DECIMAL if pa.types.is_decimal(of):
            return array.cast(kind.arrow)
        case Kind.NAIVE_DATE if pa.types.is_date(of):
            return array.cast(pa.date32())
        case Kind.NAIVE_DATETIME | Kind.UTC_DATETIME if pa.types.is_timestamp(of):
            if of.unit == "ns":
                array = pc.floor_temporal(array, unit="microsecond")
            times = array.cast(pa.timestamp("us", tz=of.tz))
            return times.cast(pa.int64()).cast(kind.arrow)
        case Kind.NAIVE_TIME if pa.types.is_time(of):
            return spelled(array.cast(pa.time64("us"), safe=False).cast(pa.string()))
        case _:
            return None
