"""CSV batch files: record boundaries, and blocks of records to typed columns.

The dialect: comma, LF or CRLF, quotes doubled within quotes, no escape character. A quote opens a
cell only at its very start, so a newline ends a record if and only if an even number of quotes
precedes it. A stream can therefore be cut into whole records by counting quotes, and `flaw` proves
for each block that the counting was right.

PyArrow parses blocks directly to types where that is exact. If PyArrow refuses a column's cells in
some block, the column is from then on read as text and converted by `chronolake.parsing.columns`,
which accepts all valid formats and finds the invalid cell.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pa_csv

from chronolake.batch_files.decoded_rows import (
    DecodedRows,
    cell_error,
    columns_present,
    marker_error,
    parse_cells,
)
from chronolake.change_set import Op
from chronolake.errors import MalformedFileError, OversizeError
from chronolake.parsing import cells
from chronolake.parsing.columns import EMPTY_IS_VALUE, direct_type, finalize
from chronolake.types import Kind

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from chronolake.batch_files.files import BatchFile, FileForm
    from chronolake.types import Column


BLOCK_SIZE: Final = 4 << 20
#: The longest record, in bytes, that is held in memory.
RECORD_LIMIT: Final = 64 << 20

#: The reason that `flaw` returns for a line without cells, which is invalid with several columns.
EMPTY_LINE: Final = "a line is empty"

_QUOTE: Final = 34
_COMMA: Final = 44
_CR: Final = 13
_LF: Final = 10


class OverlongRecordError(Exception):
    """A record longer than the limit; the caller knows the file and the row."""


def blocks(
    read: Callable[[int], bytes], *, size: int = BLOCK_SIZE, limit: int = RECORD_LIMIT
) -> Iterator[bytes]:
    """Cut a stream into blocks of whole records, about `size` bytes each.

    Only the last block may end without a newline.

    Raises:
        OverlongRecordError: one record is longer than `limit` bytes.
    """
    pending: list[bytes | memoryview] = []
    held = 0
    inside = False
    while chunk := read(size):
        quotes = _count(chunk, _QUOTE)
        cut = _last_end(chunk, quotes, inside=inside)
        if cut == 0:
            pending.append(chunk)
            held += len(chunk)
            inside ^= bool(quotes & 1)
            if held > limit:
                raise OverlongRecordError
            continue
        # Views, so that the parts of a block are copied only once. The block has no variable, so
        # that it is freed when the consumer releases it.
        pending.append(memoryview(chunk)[:cut])
        rest = chunk[cut:]
        # A cut is outside quotes, so only the quotes after it count.
        inside = bool(rest.count(b'"') & 1)
        yield _join(pending)
        pending, held = ([rest], len(rest)) if rest else ([], 0)
    if held:
        yield _join(pending)


def _join(parts: list[bytes | memoryview]) -> bytes:
    """Join the parts and clear the list."""
    whole = b"".join(parts)
    parts.clear()
    return whole


def _last_end(chunk: bytes, quotes: int, *, inside: bool) -> int:
    """Return the position after the last newline outside quotes, or 0."""
    end = len(chunk)
    before = quotes
    while (newline := chunk.rfind(b"\n", 0, end)) >= 0:
        before -= chunk.count(b'"', newline, end)
        if not (before & 1) ^ inside:
            return newline + 1
        # Within quotes: the record began before the quote that opened the cell.
        end = chunk.rfind(b'"', 0, newline)
        if end < 0:
            return 0
        before -= 1
    return 0


def header_end(block: bytes) -> int:
    """Return the length of a block's first record, including its line end."""
    end = 0
    while (newline := block.find(b"\n", end)) >= 0:
        end = newline + 1
        if not block.count(b'"', 0, newline) & 1:
            return end
    return len(block)


def header_names(header: bytes) -> list[str]:
    """Return the column names of a header record.

    Raises:
        UnicodeDecodeError: not UTF-8.
        csv.Error: the quotes do not match.
    """
    text = header.decode("utf-8-sig")
    read = csv.reader(io.StringIO(text, newline=""), strict=True)
    return next(read, None) or [""]


def flaw(block: bytes, *, width: int) -> tuple[int, str] | None:
    """Find the first position at which a block of whole records violates the dialect.

    Args:
        block: whole records, without the header.
        width: the number of columns; with several columns, blank lines are invalid.

    Returns:
        The number of records before the flaw and its description, or None.
    """
    content = np.frombuffer(block, dtype=np.uint8)
    scan = _Scan(
        content,
        at_quotes=b'"' in block,
        at_returns=b"\r" in block,
        at_blanks=width > 1
        and (b"\r" in block or block.startswith(b"\n") or _has_pair(block, b"\n\n")),
    )
    if not (scan.at_quotes or scan.at_returns or scan.at_blanks):
        return None
    # In steps: if every byte is a quote, the positions take eight times as much memory.
    for begin in range(0, len(content), BLOCK_SIZE):
        found = scan.scan_range(begin, begin + BLOCK_SIZE)
        if found is not None:
            return _records_before(content, found[0]), found[1]
    if scan.open_quote is not None:
        return _records_before(content, scan.open_quote), "a quoted cell is not closed"
    return None


@dataclass
class _Scan:
    """A scan of a block's bytes, from start to end.

    Attributes:
        content: the block.
        at_quotes: whether it contains quotes.
        at_returns: whether it contains carriage returns.
        at_blanks: whether it may contain lines without cells.
        open_quote: the position of the quote that is currently open.
    """

    content: NDArray[np.uint8]
    at_quotes: bool
    at_returns: bool
    at_blanks: bool
    open_quote: int | None = None

    def scan_range(self, begin: int, end: int) -> tuple[int, str] | None:
        """Scan the bytes of a range; return the position of a flaw and its description."""
        part = self.content[begin:end]
        inside = self.open_quote is not None
        quotes = np.empty(0, dtype=np.intp)
        if self.at_quotes:
            quotes = np.flatnonzero(part == _QUOTE) + begin
            if len(quotes):
                opening, closing = quotes[inside::2], quotes[1 - inside :: 2]
                stray = self._find_stray_quote(opening, closing)
                if stray is not None:
                    return stray
                if (len(quotes) & 1) ^ inside:
                    self.open_quote = int(opening[-1]) if len(opening) else self.open_quote
                else:
                    self.open_quote = None
        if self.at_returns:
            returns = _outside(np.flatnonzero(part == _CR) + begin, quotes, inside=inside)
            lone = returns[self._bytes_beside(returns, 1) != _LF]
            if len(lone):
                what = "a carriage return outside quotes is not followed by a line feed"
                return int(lone[0]), what
        if self.at_blanks:
            ends = np.flatnonzero(part == _LF) + begin
            before = self._bytes_beside(ends, -1)
            blank = (before == _LF) | ((before == _CR) & (self._bytes_beside(ends, -2) == _LF))
            blank = _outside(ends[blank], quotes, inside=inside)
            if len(blank):
                return int(blank[0]), EMPTY_LINE
        return None

    def _find_stray_quote(
        self, opening: NDArray[np.intp], closing: NDArray[np.intp]
    ) -> tuple[int, str] | None:
        """Return the first position where quotes do not open, double or close as required."""
        before, after = self._bytes_beside(opening, -1), self._bytes_beside(closing, 1)
        # A quote next to a closing one doubles it.
        fits = (before == _COMMA) | (before == _LF) | (before == _QUOTE)
        ends = (after == _COMMA) | (after == _LF) | (after == _CR) | (after == _QUOTE)
        ends |= closing == len(self.content) - 1
        stray: list[tuple[int, str]] = []
        if not fits.all():
            place = int(opening[np.argmin(fits)])
            stray.append((place, "a cell that is not quoted contains a quote"))
        if not ends.all():
            stray.append((int(closing[np.argmin(ends)]), "text follows a closing quote"))
        return min(stray, default=None)

    def _bytes_beside(self, places: NDArray[np.intp], distance: int) -> NDArray[np.uint8]:
        """Return the bytes at a distance; a line feed before the start, 0 after the end."""
        beside = places + distance
        found = self.content[np.clip(beside, 0, len(self.content) - 1)]
        found[beside < 0] = _LF
        found[beside >= len(self.content)] = 0
        return found


def has_hexadecimal(block: bytes) -> bool:
    """Return whether a block contains `0x` or `0X`."""
    return _has_pair(block, b"0x") or (b"X" in block and _has_pair(block, b"0X"))


def _has_pair(block: bytes, pair: bytes) -> bool:
    """Return `pair in block` ten times as fast, by comparing two bytes as one number."""
    number = int.from_bytes(pair, "little")
    return any(
        (np.frombuffer(block, "<u2", (len(block) - first) // 2, first) == number).any()
        for first in (0, 1)
        if len(block) - first >= len(pair)
    )


def _count(content: bytes, value: int) -> int:
    # Four times as fast as bytes.count for frequent values.
    return int(np.count_nonzero(np.frombuffer(content, dtype=np.uint8) == value))


def _outside(
    places: NDArray[np.intp], quotes: NDArray[np.intp], *, inside: bool
) -> NDArray[np.intp]:
    """Return the positions outside quotes; `inside` is whether the range begins within quotes."""
    if not len(quotes):
        return places[:0] if inside else places
    outside: NDArray[np.intp] = places[np.searchsorted(quotes, places) % 2 == inside]
    return outside


def _records_before(content: NDArray[np.uint8], place: int) -> int:
    count, inside = 0, False
    for begin in range(0, place, BLOCK_SIZE):
        part = content[begin : min(begin + BLOCK_SIZE, place)]
        quotes = np.flatnonzero(part == _QUOTE)
        count += len(_outside(np.flatnonzero(part == _LF), quotes, inside=inside))
        inside ^= bool(len(quotes) & 1)
    return count


_BLAMED: Final = re.compile(r"In CSV column #(\d+):")
_RAGGED: Final = re.compile(r"CSV parse error: Row #(\d+): Expected \d+ columns, got (\d+)")
#: Number of times a block is parsed again with one more column as text, before all become text.
_PATIENCE: Final = 4
#: A block of more bytes contains large records.
_LARGE: Final = 2 * BLOCK_SIZE
_INTEGERS: Final = frozenset({Kind.SHORT, Kind.INT, Kind.LONG})
_TIMES: Final = frozenset({Kind.NAIVE_DATETIME, Kind.UTC_DATETIME})
_PARQUET: Final = b"PAR1"
_MEND_DIALECT: Final = (
    "Put quotes around a cell that contains a comma, a quote or a line break, and double each "
    "quote in it; a backslash is not an escape character."
)
_MEND_EMPTY: Final = (
    "Do not write empty lines: write a row of NULLs as null markers with commas between them."
)


@dataclass(frozen=True, slots=True)
class Block:
    """Whole records without the header, with the results of a scan before parsing.

    Attributes:
        content: the records.
        flaw: the first violation of the dialect, as returned by `flaw`; None if there is no flaw.
        marked: whether the records may contain the unmodified marker.
        hexadecimal: whether the records contain `0x` or `0X`, and a column is of an integer type.
    """

    content: bytes
    flaw: tuple[int, str] | None
    marked: bool
    hexadecimal: bool


@dataclass(frozen=True, slots=True)
class _Grid:
    """A parsed block: its number of rows, and an array for each wanted position of a column."""

    rows: int
    arrays: dict[int, pa.Array]


@dataclass
class CsvFile:
    """One CSV file while it is decoded.

    Attributes:
        form: its format and markers.
        columns: the wanted columns.
        required: names of the columns that it must have.
        tallies: counts of adjusted values by column name; filled while pieces are read.
    """

    file: BatchFile
    form: FileForm
    columns: Sequence[Column]
    required: frozenset[str]
    tallies: dict[str, Counter[str]]
    _names: list[str] = field(default_factory=list)
    _wanted: dict[int, Column] = field(default_factory=dict)
    _integers: set[int] = field(default_factory=set)
    _as_text: set[int] = field(default_factory=set)
    _rows: int = 0

    @property
    def has_header(self) -> bool:
        """Return whether a header was read: false for an empty file."""
        return bool(self._names)

    def scan_blocks(self, blocks: Iterable[bytes]) -> Iterator[Block]:
        """Yield the file's records with a scan of their bytes; nothing for an empty file.

        It does not depend on `pieces`, so that one thread may scan the next block while another
        parses this one.

        Args:
            blocks: the file's records as cut by `blocks`, the header first.

        Raises:
            MalformedFileError: the header or a required column is missing.
            BatchFileError: any error from reading a block.
        """
        for block in blocks:
            rows = block if self._names else self._begin(block)
            if rows:
                yield Block(
                    rows,
                    flaw=flaw(rows, width=len(self._names)),
                    marked=_may_hold(rows, self.form.unmodified_string),
                    hexadecimal=bool(self._integers) and has_hexadecimal(rows),
                )
            # Free the block, which may be large, before the next one is made.
            del block, rows

    def pieces(self, blocks: Iterator[Block]) -> Iterator[DecodedRows]:
        """Yield the file's rows; nothing for an empty file.

        Args:
            blocks: the blocks from `scan_blocks`.

        Raises:
            MalformedFileError: a violation of the dialect, a missing column, or a row of another
                width.
            OversizeError: a row is too long.
            ValueRefusedError: a cell does not fit its column.
            BatchFileError: any error from reading a block.
        """
        overlong = False
        try:
            for block in blocks:
                piece = self._piece(block)
                del block
                yield piece
                del piece
        except OverlongRecordError:
            overlong = True
        if overlong:
            raise OversizeError(
                f"The row is longer than {RECORD_LIMIT >> 20} MiB, the limit for a row in memory.",
                hint="Omit its long values at the source. Unmatched quotes can also cause this "
                "error.",
                file=self.file.path,
                row=self._rows + 1,
            )

    def _begin(self, block: bytes) -> bytes:
        """Remove the header from the first block."""
        length = header_end(block)
        names: list[str] = []
        if not block.startswith(_PARQUET) and flaw(block[:length], width=1) is None:
            try:
                names = header_names(block[:length])
            except (UnicodeDecodeError, csv.Error):
                names = []
        if not names:
            hidden = self.form.encrypted or self.form.compression != "off"
            otherwise = ", or it has another compression or key" if hidden else ""
            raise MalformedFileError(
                "The first line is not a header of column names.",
                hint="Write the names in UTF-8 and end the line with a line feed. The file may "
                f"not be a CSV file{otherwise}.",
                file=self.file.path,
                row=0,
            )
        self._names = names
        self._wanted = columns_present(names, self.columns, self.required, self.file)
        self._integers = {
            place for place, column in self._wanted.items() if column.type.kind in _INTEGERS
        }
        self._as_text = {
            place for place, column in self._wanted.items() if direct_type(column.type) is None
        }
        return block[length:]

    def _piece(self, block: Block) -> DecodedRows:
        if block.flaw is not None:
            before, what = block.flaw
            hint = _MEND_EMPTY if what == EMPTY_LINE else _MEND_DIALECT
            raise self._malformed_error(before, f"The row is not valid CSV: {what}.", hint=hint)
        if not block.marked:
            piece, _ = self._parse_typed(block, [self.form.null_string])
        elif self.file.op is Op.UPDATE:
            both = [self.form.null_string, self.form.unmodified_string]
            piece, texts = self._parse_typed(block, both)
            piece = replace(piece, unmodified=self._unmodified(block.content, piece, texts))
        else:
            piece = self._unmarked(block)
        if not block.content.endswith((b"\n", b"\r", b'"')):
            self._expect_whole_time(block, piece)
        self._rows += piece.rows
        return piece

    def _parse_typed(self, block: Block, nulls: list[str]) -> tuple[DecodedRows, set[int]]:
        """Parse a block; cells that equal one of `nulls` are null.

        Returns:
            The rows, and the positions of the columns that were read as text.
        """
        texts = set(self._as_text)
        if block.hexadecimal:
            # PyArrow would accept hexadecimal integers.
            texts |= self._integers
        grid = self._parse_columns(block.content, texts, nulls)
        arrays: dict[str, pa.Array] = {}
        again: list[int] = []
        for place, column in self._wanted.items():
            array = grid.arrays[place]
            if place in texts:
                arrays[column.name] = self._from_text(array, column)
            elif (final := finalize(array, column.type, self.tallies[column.name])) is not None:
                arrays[column.name] = final
            else:
                again.append(place)
        if again:
            reread = self._parse_texts(block.content, again, nulls)
            for place in again:
                column = self._wanted[place]
                arrays[column.name] = self._from_text(reread[place], column)
        return DecodedRows(grid.rows, arrays), texts

    def _unmodified(self, block: bytes, piece: DecodedRows, texts: set[int]) -> dict[str, pa.Array]:
        """Return masks of a piece's unmodified cells, for the columns that have null cells."""
        doubtful = {
            place: piece.arrays[column.name]
            for place, column in self._wanted.items()
            if piece.arrays[column.name].null_count
        }
        known: dict[int, pa.Array] = {}
        if self.form.null_string and not _may_hold(block, self.form.null_string):
            # Every null is an unmodified cell, unless an empty text became NULL.
            known = {
                place: array
                for place, array in doubtful.items()
                if place not in texts or self._wanted[place].type.kind in EMPTY_IS_VALUE
            }
        masks = {self._wanted[place].name: pc.is_null(array) for place, array in known.items()}
        unknown = [place for place in doubtful if place not in known]
        if unknown:
            texts_of = self._parse_texts(block, unknown, [])
            marker = pa.scalar(self.form.unmodified_string.encode(), pa.binary())
            for place in unknown:
                masks[self._wanted[place].name] = pc.equal(texts_of[place], marker)
        return masks

    def _expect_whole_time(self, block: Block, piece: DecodedRows) -> None:
        """Refuse a time without seconds at the very end of the file: it may be truncated.

        In a file without compression and encryption, only the cell itself shows that.
        """
        last = len(self._names) - 1
        column = self._wanted.get(last)
        if column is None or column.type.kind not in _TIMES:
            return
        cell = self._parse_texts(block.content, [last], [])[last][-1]
        if cells.lacks_seconds((cell.as_py() or b"").decode(errors="replace")):
            raise cell_error(
                self.file,
                self._rows + piece.rows,
                column,
                "it has no seconds and is at the end of the file, so it may be truncated",
                hint="End the last line of a file with a line feed.",
            )

    def _unmarked(self, block: Block) -> DecodedRows:
        """Parse a block that contains the unmodified marker where it is not allowed."""
        texts = self._parse_texts(block.content, self._wanted, [])
        marker = pa.scalar(self.form.unmodified_string.encode(), pa.binary())
        for place, column in self._wanted.items():
            at = pc.index(texts[place], marker).as_py()
            if at >= 0:
                row = self._rows + at + 1
                raise marker_error(self.file, row, column, "outside an update file")
        return self._parse_typed(block, [self.form.null_string])[0]

    def _from_text(self, texts: pa.Array, column: Column) -> pa.Array:
        return parse_cells(texts, column, self.file, self._rows, self.tallies[column.name])

    def _parse_columns(self, block: bytes, texts: set[int], nulls: list[str]) -> _Grid:
        """Parse a block's columns; those in `texts`, or refused by PyArrow, as bytes."""
        attempts = 0
        while True:
            types = {
                place: pa.binary() if place in texts else direct_type(column.type)
                for place, column in self._wanted.items()
            }
            found = self._parse_grid(block, types, nulls)
            if isinstance(found, _Grid):
                return found
            attempts += 1
            hard = {found} if attempts < _PATIENCE else set(self._wanted)
            self._as_text |= hard
            texts |= hard

    def _parse_texts(
        self, block: bytes, places: Iterable[int], nulls: list[str]
    ) -> dict[int, pa.Array]:
        """Return columns of a block as bytes, which accept any cell."""
        found = self._parse_grid(block, dict.fromkeys(places, pa.binary()), nulls)
        if isinstance(found, _Grid):
            return found.arrays
        raise self._malformed_error(0, "The rows from this one on are not valid CSV.")

    def _parse_grid(
        self, block: bytes, types: dict[int, pa.DataType], nulls: list[str]
    ) -> _Grid | int:
        """Parse a block with PyArrow.

        Returns:
            The columns, or the position of a column whose type refuses a cell.

        Raises:
            MalformedFileError: a row has another width.
        """
        # One column is needed to count the rows.
        wanted = types or {0: pa.binary()}
        try:
            table = pa_csv.read_csv(
                pa.BufferReader(block),
                read_options=pa_csv.ReadOptions(
                    use_threads=False,
                    block_size=len(block),
                    column_names=[str(place) for place in range(len(self._names))],
                ),
                parse_options=pa_csv.ParseOptions(ignore_empty_lines=False),
                convert_options=pa_csv.ConvertOptions(
                    column_types={str(place): kind for place, kind in wanted.items()},
                    include_columns=[str(place) for place in wanted],
                    null_values=nulls,
                    strings_can_be_null=bool(nulls),
                    quoted_strings_can_be_null=True,
                    true_values=["true"],
                    false_values=["false"],
                ),
            )
        except pa.ArrowInvalid as error:
            # The message quotes the cell or the row: only its numbers are used.
            message = str(error)
        else:
            if len(block) > _LARGE:
                # Arrow's memory pool keeps the parser's memory for the next block unless it is
                # released.
                pa.default_memory_pool().release_unused()
            arrays = {
                place: column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
                for place, column in zip(wanted, table.columns, strict=True)
            }
            return _Grid(table.num_rows, arrays)
        if blamed := _BLAMED.match(message):
            return int(blamed[1])
        if ragged := _RAGGED.match(message):
            number, width = int(ragged[1]), ragged[2]
            raise self._malformed_error(
                number - 1,
                f"The row has {width} cells; the header has {len(self._names)}.",
                hint="Write a cell for each column in every row, and put quotes around a cell "
                "that contains a comma.",
            )
        raise self._malformed_error(0, "The rows from this one on are not valid CSV.")

    def _malformed_error(
        self, rows_before: int, message: str, *, hint: str = _MEND_DIALECT
    ) -> MalformedFileError:
        return MalformedFileError(
            message, hint=hint, file=self.file.path, row=self._rows + rows_before + 1
        )


def _may_hold(block: bytes, marker: str) -> bool:
    """Return whether a block may contain a marker; quotes of the marker may be doubled."""
    plain = marker.encode()
    doubled = plain.replace(b'"', b'""')
    return bool(marker) and (plain in block or (doubled != plain and doubled in block))
