"""Parquet batch files to typed columns.

Parquet needs random access, so an encrypted or compressed file is held in memory, up to a limit;
all other files are read in place. Rows are decoded a few thousand at a time, or fewer if they are
large. A dictionary of large values is expanded for a few rows at a time: a file of some kilobytes
may contain gigabytes of values.

Values have the types of `seeds/destination-connector.txt` ("Data types mapping"): times and dates
are texts. Native timestamps, dates and times of day are accepted as well. A text column is parsed
like CSV cells, whatever the type of the table's column, so that the null and unmodified markers can
be used in any column; only binary values must not be texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet as pq

from chronolake.batch_files.decoded_rows import (
    DecodedRows,
    cell_error,
    columns_present,
    marker_error,
    parse_cells,
)
from chronolake.batch_files.files import open_content, open_plain
from chronolake.change_set import Op
from chronolake.errors import MalformedFileError, OversizeError
from chronolake.parquet_footer import flaw_in
from chronolake.parsing.columns import clamp, direct_type, finalize, trim_clocks
from chronolake.types import LAST_MICROS, TMIN_MICROS, Kind

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from chronolake.batch_files.files import BatchFile, FileForm, Plain
    from chronolake.types import Column, ColumnType

#: The maximum of plain bytes of an encrypted or compressed Parquet file that are held in memory.
CONTENT_LIMIT: Final = 128 << 20
ROWS_AT_ONCE: Final = 16_384
#: The approximate maximum of bytes of rows that are decoded together.
BYTES_AT_ONCE: Final = 16 << 20
_STEP: Final = 1 << 20
#: Dictionaries with a longer value than this are expanded for fewer rows at a time.
_LARGE: Final = BYTES_AT_ONCE // ROWS_AT_ONCE
#: Bytes of each read of a file that is read in place, for each column.
_BUFFER: Final = 64 << 10

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
) -> Iterator[DecodedRows]:
    """Yield the file's rows.

    Args:
        form: its markers, and whether it can be read in place.
        columns: the wanted columns.
        required: names of the columns that it must have.
        tallies: counts of adjusted values by column name; filled while pieces are read.

    Raises:
        MalformedFileError: not a Parquet file, a missing column, or a column of another type.
        OversizeError: a file that must be held in memory is too large for that.
        ValueRefusedError: a value does not fit its column.
        BatchFileError: the content cannot be read.
    """
    file_reader = _ParquetFile(file, form, columns, required, tallies)
    if form.compression == "off" and not form.encrypted:
        with open_content(file) as raw, pa.PythonFile(raw, mode="r") as source:
            yield from file_reader.pieces(source)
    else:
        with open_plain(file, form) as plain, pa.BufferReader(_content(file, plain)) as source:
            yield from file_reader.pieces(source)


def _content(file: BatchFile, plain: Plain) -> bytearray:
    content = bytearray()
    while step := plain.read(_STEP):
        content += step
        if len(content) > CONTENT_LIMIT:
            raise OversizeError(
                f"The Parquet file has more than {CONTENT_LIMIT >> 20} MiB of plain content, the "
                "limit for a file in memory.",
                hint="Send smaller files, or Parquet files without an additional encryption and "
                "compression.",
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

    def pieces(self, source: pa.NativeFile) -> Iterator[DecodedRows]:
        parquet, schema = self._attempt(partial(_open, source))
        wanted = columns_present(schema.names, self.columns, self.required, self.file)
        names = [column.name for column in wanted.values()]
        octets = [name for name in names if _is_octets(schema.field(name).type)]
        for number in range(parquet.num_row_groups):
            group = _RowGroup(source, parquet.metadata, number, names)
            for batch in self._read_batches(self._attempt(partial(group.batches, octets))):
                for rows in _portions(batch):
                    yield self._piece(rows, wanted.values())

    def _read_batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while (batch := self._attempt(partial(next, batches, None))) is not None:
            yield batch

    def _piece(self, rows: pa.RecordBatch, columns: Iterable[Column]) -> DecodedRows:
        arrays: dict[str, pa.Array] = {}
        unmodified: dict[str, pa.Array] = {}
        for column in columns:
            array, mask = self._column(rows.column(column.name), column)
            arrays[column.name] = array
            if mask is not None:
                unmodified[column.name] = mask
        self._rows += rows.num_rows
        return DecodedRows(rows.num_rows, arrays, unmodified)

    def _attempt(self, action: Callable[[], Any]) -> Any:
        """Call the library; replace its errors, because their messages may quote values."""
        try:
            return action()
        except (pa.ArrowException, OSError, ValueError):
            pass
        raise MalformedFileError(
            "The file is not a readable Parquet file.",
            hint="The file was truncated or changed, or it has another format, compression or key.",
            file=self.file.path,
        )

    def _column(self, array: pa.Array, column: Column) -> tuple[pa.Array, pa.Array | None]:
        """Return a column in its final type, and a mask of its unmodified cells."""
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if _is_text(array.type):
            array = array.cast(pa.string())
            array, mask = self._split_markers(array, column, pa.string())
            return self._from_text(array, column), mask
        if column.type.kind is Kind.BINARY and _is_bytes(array.type):
            return self._split_markers(array.cast(pa.binary()), column, pa.binary())
        if pa.types.is_null(array.type):
            return pa.nulls(len(array), column.type.arrow), None
        tally = self.tallies[column.name]
        try:
            native = _convert_native(array, column.type, tally)
            fits = native is not None
            # Parquet's own numbers may be infinite or NaN.
            is_float = column.type.kind in (Kind.FLOAT, Kind.DOUBLE)
            final = native if is_float or not fits else finalize(native, column.type, tally)
        except pa.ArrowException:
            fits, final = True, None
        if final is not None:
            return final, None
        if fits:
            # The exact parser finds the cell that has to be refused.
            return self._from_text(array.cast(pa.string()), column), None
        raise MalformedFileError(
            f"The column has the Parquet type {array.type}, which cannot be stored as "
            f"{column.type}.",
            hint=f"Write it as {_WORDS.get(column.type.kind, 'text')}.",
            file=self.file.path,
            column=column.name,
        )

    def _split_markers(
        self, array: pa.Array, column: Column, kind: pa.DataType
    ) -> tuple[pa.Array, pa.Array | None]:
        """Return the cells without the markers, and a mask of the unmodified marker."""
        null, marker = (
            pa.scalar(text.encode(), pa.binary()).cast(kind)
            for text in (self.form.null_string, self.form.unmodified_string)
        )
        nothing = pa.scalar(None, kind)
        mask: pa.Array | None = None
        at = pc.index(array, marker).as_py() if self.form.unmodified_string else -1
        if at >= 0 and self.file.op is not Op.UPDATE:
            row = self._rows + at + 1
            raise marker_error(self.file, row, column, "outside an update file")
        if at >= 0:
            mask = pc.fill_null(pc.equal(array, marker), False)
            array = pc.if_else(mask, nothing, array)
        # Without a null marker, an empty text is a value: Parquet has its own nulls.
        if self.form.null_string and pc.index(array, null).as_py() >= 0:
            array = pc.if_else(pc.equal(array, null), nothing, array)
        return array, mask

    def _from_text(self, texts: pa.Array, column: Column) -> pa.Array:
        if column.type.kind is Kind.BINARY:
            if texts.null_count == len(texts):
                return pa.nulls(len(texts), pa.binary())
            first = pc.index(pc.is_valid(texts), True).as_py()
            reason = "it is text, but Parquet stores bytes as bytes"
            raise cell_error(
                self.file, self._rows + first + 1, column, reason, hint="Write it as bytes."
            )
        return parse_cells(texts, column, self.file, self._rows, self.tallies[column.name])


def _open(source: pa.NativeFile) -> tuple[pq.ParquetFile, pa.Schema]:
    """Return a file, and its schema.

    Raises:
        pa.ArrowException, OSError, ValueError: the footer is not valid.
    """
    file = pq.ParquetFile(source, pre_buffer=False)
    schema = file.schema_arrow
    if flaw := flaw_in(source, file.metadata):
        raise pa.ArrowInvalid(flaw)
    return file, schema


#: Units that cover times outside the range of microseconds.
_MICROS_OF: Final = {"s": 1_000_000, "ms": 1_000}


@dataclass(frozen=True, slots=True)
class _RowGroup:
    """One row group of a Parquet file.

    Attributes:
        source: the file.
        metadata: the file's footer.
        number: the group's position in the file.
        names: the wanted columns; if empty, all columns, to count the rows.
    """

    source: pa.NativeFile
    metadata: pq.FileMetaData
    number: int
    names: Sequence[str]

    def batches(self, octets: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches of limited size, without expanding large dictionaries.

        Args:
            octets: the columns that are byte arrays.
        """
        group = self.metadata.row_group(self.number)
        longest = self._longest(group, octets)
        kept = [name for name, size in longest.items() if size > _LARGE]
        reported = group.total_byte_size // max(1, group.num_rows)
        size = 1 + reported + sum(size for size in longest.values() if size <= _LARGE)
        rows = max(1, min(ROWS_AT_ONCE, BYTES_AT_ONCE // size))
        return self._read(self.names or None, rows, kept)

    def _longest(self, group: pq.RowGroupMetaData, octets: Sequence[str]) -> dict[str, int]:
        """Return the length of the longest value in each column's dictionary, or a small bound."""
        chunks = (group.column(place) for place in range(group.num_columns))
        sizes = {
            chunk.path_in_schema: chunk.total_uncompressed_size
            for chunk in chunks
            if chunk.has_dictionary_page
        }
        found = {name: sizes[name] for name in octets if name in sizes}
        unknown = [name for name, size in found.items() if size > _LARGE]
        if unknown:
            # Reading one row reads the whole dictionary.
            row = next(self._read(unknown, 1, unknown))
            for name in unknown:
                values = row.column(name)
                if pa.types.is_dictionary(values.type):
                    values = values.dictionary
                found[name] = pc.max(pc.binary_length(values)).as_py() or 0
        return found

    def _read(
        self, names: Sequence[str] | None, rows: int, kept: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        reader = pq.ParquetFile(
            self.source,
            metadata=self.metadata,
            pre_buffer=False,
            buffer_size=_BUFFER,
            read_dictionary=kept,
        )
        batches: Iterator[pa.RecordBatch] = reader.iter_batches(
            batch_size=rows, row_groups=[self.number], columns=names, use_threads=False
        )
        return batches


def _portions(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split rows, so that the dictionaries of their columns are small when expanded."""
    sizes = np.zeros(rows.num_rows, dtype=np.int64)
    for column in rows.columns:
        if pa.types.is_dictionary(column.type):
            lengths = pc.binary_length(column.dictionary).take(column.indices)
            sizes += pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False)
    ends = sizes.cumsum()
    begin = 0
    while begin < len(ends):
        limit = ends[begin] - sizes[begin] + BYTES_AT_ONCE
        end = max(begin + 1, int(np.searchsorted(ends, limit, side="right")))
        yield rows.slice(begin, end - begin)
        begin = end


def _is_octets(kind: pa.DataType) -> bool:
    """Return whether Parquet stores such a column as byte arrays, possibly in a dictionary."""
    return _is_text(kind) or kind in (pa.binary(), pa.large_binary(), pa.binary_view())


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.string_view())


def _is_bytes(kind: pa.DataType) -> bool:
    return kind in (pa.binary(), pa.large_binary(), pa.binary_view()) or isinstance(
        kind, pa.FixedSizeBinaryType
    )


def _micros(times: pa.Array, tally: Counter[str]) -> pa.Array:
    """Return timestamps as microseconds since 1970, with finer digits rounded towards the past."""
    unit = times.type.unit
    if unit == "ns":
        times = pc.floor_temporal(times, unit="microsecond")
    elif unit in _MICROS_OF:
        # As microseconds, they might exceed 64 bits.
        low, high = TMIN_MICROS // _MICROS_OF[unit], LAST_MICROS // _MICROS_OF[unit]
        times = clamp(times, pa.int64(), low, high, tally)
    return times.cast(pa.timestamp("us", tz=times.type.tz)).cast(pa.int64())


def _convert_native(  # noqa: PLR0911 - a table
    array: pa.Array, kind: ColumnType, tally: Counter[str]
) -> pa.Array | None:
    """Convert an array of a fitting Parquet type to the CSV parser's type, or return None.

    Raises:
        pa.ArrowException: a value is out of range.
    """
    of = array.type
    match kind.kind:
        case Kind.BOOLEAN if pa.types.is_boolean(of):
            return array
        case Kind.SHORT | Kind.INT | Kind.LONG if of in _INTEGERS[kind.kind]:
            return array.cast(direct_type(kind))
        case Kind.FLOAT if of == pa.float32():
            return array
        case Kind.DOUBLE if of in (pa.float32(), pa.float64()):
            return array.cast(pa.float64())
        case Kind.DECIMAL if pa.types.is_decimal(of):
            return array.cast(kind.arrow)
        case Kind.NAIVE_DATE if pa.types.is_date(of):
            return array.cast(pa.date32())
        case Kind.NAIVE_DATETIME | Kind.UTC_DATETIME if pa.types.is_timestamp(of):
            return _micros(array, tally).cast(kind.arrow)
        case Kind.NAIVE_TIME if pa.types.is_time(of):
            return trim_clocks(array.cast(pa.time64("us"), safe=False).cast(pa.string()))
        case _:
            return None
