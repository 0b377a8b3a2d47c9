"""CSV batch files: record boundaries, and blocks of records to typed columns.

Where CSV records begin and end, and whether they keep the dialect.

The dialect: comma, LF or CRLF, quotes doubled within quotes, no escape character. A quote opens a
cell only at its very start, so a newline ends a record exactly when an even number of quotes stands
before it. That makes cutting a stream into whole records a matter of counting, and `flaw` proves
for each block that the counting was right.

CSV batch files: blocks of records to typed columns.

Blocks are parsed straight to types by PyArrow where that is exact. A column whose cells PyArrow
refuses in some block is from then on read as text and converted by `columns`, which knows all
accepted forms and finds the cell to blame.
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

from chronolake.batch_files.decoded_rows import DecodedRows, of_text, present, refused, refused_mark
from chronolake.change_set import Op
from chronolake.errors import MalformedFileError, OversizeError
from chronolake.parsing import cells
from chronolake.parsing.columns import EMPTY_IS_VALUE, direct, settled
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

#: What `flaw` says of a line without a cell, which a record of several columns cannot be.
EMPTY_LINE: Final = "a line is empty"

_QUOTE: Final = 34
_COMMA: Final = 44
_CR: Final = 13
_LF: Final = 10


class OverlongRecordError(Exception):
    """A record longer than the limit; the caller knows in which file and row."""


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
        # Views, so that what makes up a block is copied once; and no name for it, so that it goes
        # when who asked for it has done with it.
        pending.append(memoryview(chunk)[:cut])
        rest = chunk[cut:]
        # A cut is outside quotes, so only the quotes after it count.
        inside = bool(rest.count(b'"') & 1)
        yield _joined(pending)
        pending, held = ([rest], len(rest)) if rest else ([], 0)
    if held:
        yield _joined(pending)


def _joined(parts: list[bytes | memoryview]) -> bytes:
    """The parts as one; the list is empty afterwards."""
    whole = b"".join(parts)
    parts.clear()
    return whole


def _last_end(chunk: bytes, quotes: int, *, inside: bool) -> int:
    """The place after the last newline outside quotes, or 0."""
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
    """The length of the first record of a block, its line end included."""
    end = 0
    while (newline := block.find(b"\n", end)) >= 0:
        end = newline + 1
        if not block.count(b'"', 0, newline) & 1:
            return end
    return len(block)


def header_names(header: bytes) -> list[str]:
    """The column names of a header record.

    Raises:
        UnicodeDecodeError: not UTF-8.
        csv.Error: the quotes do not match.
    """
    text = header.decode("utf-8-sig")
    read = csv.reader(io.StringIO(text, newline=""), strict=True)
    return next(read, None) or [""]


def flaw(block: bytes, *, width: int) -> tuple[int, str] | None:
    """Where a block of whole records leaves the dialect.

    Args:
        block: whole records, without the header.
        width: the number of columns; a record of several columns is no blank line.

    Returns:
        The number of records before the flaw and what is wrong, or None.
    """
    content = np.frombuffer(block, dtype=np.uint8)
    look = _Look(
        content,
        at_quotes=b'"' in block,
        at_returns=b"\r" in block,
        at_blanks=width > 1
        and (b"\r" in block or block.startswith(b"\n") or _has_pair(block, b"\n\n")),
    )
    if not (look.at_quotes or look.at_returns or look.at_blanks):
        return None
    # In steps: where every byte is a quote, their places take eight times as much memory.
    for begin in range(0, len(content), BLOCK_SIZE):
        found = look.further(begin, begin + BLOCK_SIZE)
        if found is not None:
            return _records_before(content, found[0]), found[1]
    if look.opened is not None:
        return _records_before(content, look.opened), "a quoted cell is not closed"
    return None


@dataclass
class _Look:
    """A look at the bytes of a block, from its begin to its end.

    Attributes:
        content: the block.
        at_quotes: whether it has any.
        at_returns: whether it has carriage returns.
        at_blanks: whether it may have lines without a cell.
        opened: the place of the quote that is open by now.
    """

    content: NDArray[np.uint8]
    at_quotes: bool
    at_returns: bool
    at_blanks: bool
    opened: int | None = None

    def further(self, begin: int, end: int) -> tuple[int, str] | None:
        """Look at the bytes from one place to another; gives the place of a flaw, and its words."""
        part = self.content[begin:end]
        inside = self.opened is not None
        quotes = np.empty(0, dtype=np.intp)
        if self.at_quotes:
            quotes = np.flatnonzero(part == _QUOTE) + begin
            if len(quotes):
                opening, closing = quotes[inside::2], quotes[1 - inside :: 2]
                stray = self._stray(opening, closing)
                if stray is not None:
                    return stray
                if (len(quotes) & 1) ^ inside:
                    self.opened = int(opening[-1]) if len(opening) else self.opened
                else:
                    self.opened = None
        if self.at_returns:
            returns = _outside(np.flatnonzero(part == _CR) + begin, quotes, inside=inside)
            lone = returns[self._beside(returns, 1) != _LF]
            if len(lone):
                return int(lone[0]), "a carriage return stands outside quotes without a line feed"
        if self.at_blanks:
            ends = np.flatnonzero(part == _LF) + begin
            before = self._beside(ends, -1)
            blank = (before == _LF) | ((before == _CR) & (self._beside(ends, -2) == _LF))
            blank = _outside(ends[blank], quotes, inside=inside)
            if len(blank):
                return int(blank[0]), EMPTY_LINE
        return None

    def _stray(
        self, opening: NDArray[np.intp], closing: NDArray[np.intp]
    ) -> tuple[int, str] | None:
        """The first place where the quotes do not open, double or close as they must."""
        before, after = self._beside(opening, -1), self._beside(closing, 1)
        # A quote beside a closing one doubles it.
        fits = (before == _COMMA) | (before == _LF) | (before == _QUOTE)
        ends = (after == _COMMA) | (after == _LF) | (after == _CR) | (after == _QUOTE)
        ends |= closing == len(self.content) - 1
        stray: list[tuple[int, str]] = []
        if not fits.all():
            place = int(opening[np.argmin(fits)])
            stray.append((place, "a quote stands within a cell that is not quoted"))
        if not ends.all():
            stray.append((int(closing[np.argmin(ends)]), "text follows a closing quote"))
        return min(stray, default=None)

    def _beside(self, places: NDArray[np.intp], distance: int) -> NDArray[np.uint8]:
        """The bytes so far after some places; a line feed before the first, none after the last."""
        beside = places + distance
        found = self.content[np.clip(beside, 0, len(self.content) - 1)]
        found[beside < 0] = _LF
        found[beside >= len(self.content)] = 0
        return found


def has_hexadecimal(block: bytes) -> bool:
    """Whether `0x` or `0X` stands anywhere in a block."""
    return _has_pair(block, b"0x") or (b"X" in block and _has_pair(block, b"0X"))


def _has_pair(block: bytes, pair: bytes) -> bool:
    """`pair in block`, ten times as fast: two bytes are compared at once, as one number."""
    number = int.from_bytes(pair, "little")
    return any(
        (np.frombuffer(block, "<u2", (len(block) - first) // 2, first) == number).any()
        for first in (0, 1)
        if len(block) - first >= len(pair)
    )


def _count(content: bytes, value: int) -> int:
    # Four times as fast as bytes.count where there are many.
    return int(np.count_nonzero(np.frombuffer(content, dtype=np.uint8) == value))


def _outside(
    places: NDArray[np.intp], quotes: NDArray[np.intp], *, inside: bool
) -> NDArray[np.intp]:
    """The places outside quotes; `inside` says whether the first of them are within some."""
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
#: How often a block is parsed again with one more column as text, before all become text.
_PATIENCE: Final = 4
#: A block of more bytes is one of large records.
_LARGE: Final = 2 * BLOCK_SIZE
_INTEGERS: Final = frozenset({Kind.SHORT, Kind.INT, Kind.LONG})
_TIMES: Final = frozenset({Kind.NAIVE_DATETIME, Kind.UTC_DATETIME})
_PARQUET: Final = b"PAR1"
_MEND_DIALECT: Final = (
    "Put quotes around a cell that holds a comma, a quote or a line break, and double each quote "
    "in it; a backslash escapes nothing."
)
_MEND_EMPTY: Final = (
    "Write no line without a cell: a row of NULLs has its null markers and the commas between."
)


@dataclass(frozen=True, slots=True)
class Block:
    """Whole records without the header, and what their bytes tell before they are parsed.

    Attributes:
        content: the records.
        flaw: where they leave the dialect, as `flaw` says; None: nowhere.
        marked: whether the unmodified marker stands anywhere.
        hexadecimal: whether `0x` or `0X` stands anywhere, and a column holds whole numbers.
    """

    content: bytes
    flaw: tuple[int, str] | None
    marked: bool
    hexadecimal: bool


@dataclass(frozen=True, slots=True)
class _Grid:
    """A parsed block: its height, and one array for each wanted place among the file's columns."""

    rows: int
    arrays: dict[int, pa.Array]


@dataclass
class CsvFile:
    """One CSV file while it is decoded.

    Attributes:
        file: which one.
        form: its markers.
        columns: the wanted columns.
        required: names of the columns that it must have.
        tallies: by column name, what was adjusted; filled while pieces are taken.
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
    def begun(self) -> bool:
        """Whether a header was seen: false for a file without a byte."""
        return bool(self._names)

    def surveyed(self, blocks: Iterable[bytes]) -> Iterator[Block]:
        """The file's records, looked at byte by byte; nothing for a file without a byte.

        It depends on nothing that `pieces` does, so that one thread may survey the next block while
        another parses this one.

        Args:
            blocks: the file's records as `blocks` cuts them, the header first.

        Raises:
            MalformedFileError: no header, or a missing column.
            BatchFileError: whatever taking a block raises.
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
            # It may be large, and the next one is made now.
            del block, rows

    def pieces(self, blocks: Iterator[Block]) -> Iterator[DecodedRows]:
        """The file's rows; nothing for a file without a byte.

        Args:
            blocks: what `surveyed` gives.

        Raises:
            MalformedFileError: not the dialect, a missing column, a row of another width.
            OversizeError: a row that is too long.
            ValueRefusedError: a cell that does not fit its column.
            BatchFileError: whatever taking a block raises.
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
                f"The row is longer than {RECORD_LIMIT >> 20} MiB, the most that is held "
                "in memory.",
                hint="Leave its long values out at the source. Quotes that do not match look like "
                "this, too.",
                file=self.file.path,
                row=self._rows + 1,
            )

    def _begin(self, block: bytes) -> bytes:
        """Take the header off the first block."""
        length = header_end(block)
        names: list[str] = []
        if not block.startswith(_PARQUET) and flaw(block[:length], width=1) is None:
            try:
                names = header_names(block[:length])
            except (UnicodeDecodeError, csv.Error):
                names = []
        if not names:
            hidden = self.form.encrypted or self.form.compression != "off"
            otherwise = ", or the compression or the key is another one" if hidden else ""
            raise MalformedFileError(
                "The first line is not a header of column names.",
                hint="Write the names in UTF-8 and end the line with a line feed; perhaps it is no "
                f"CSV file at all{otherwise}.",
                file=self.file.path,
                row=0,
            )
        self._names = names
        self._wanted = present(names, self.columns, self.required, self.file)
        self._integers = {
            place for place, column in self._wanted.items() if column.type.kind in _INTEGERS
        }
        self._as_text = {
            place for place, column in self._wanted.items() if direct(column.type) is None
        }
        return block[length:]

    def _piece(self, block: Block) -> DecodedRows:
        if block.flaw is not None:
            before, what = block.flaw
            hint = _MEND_EMPTY if what == EMPTY_LINE else _MEND_DIALECT
            raise self._malformed(before, f"The row is not well-formed CSV: {what}.", hint=hint)
        if not block.marked:
            piece, _ = self._typed(block, [self.form.null_string])
        elif self.file.op is Op.UPDATE:
            both = [self.form.null_string, self.form.unmodified_string]
            piece, texts = self._typed(block, both)
            piece = replace(piece, unmodified=self._unmodified(block.content, piece, texts))
        else:
            piece = self._unmarked(block)
        if not block.content.endswith((b"\n", b"\r", b'"')):
            self._expect_whole_time(block, piece)
        self._rows += piece.rows
        return piece

    def _typed(self, block: Block, nulls: list[str]) -> tuple[DecodedRows, set[int]]:
        """Parse a block; cells that equal one of `nulls` are null.

        Returns:
            The rows, and the places of the columns that were read as text.
        """
        texts = set(self._as_text)
        if block.hexadecimal:
            # PyArrow would take hexadecimal integers.
            texts |= self._integers
        grid = self._parsed(block.content, texts, nulls)
        arrays: dict[str, pa.Array] = {}
        again: list[int] = []
        for place, column in self._wanted.items():
            array = grid.arrays[place]
            if place in texts:
                arrays[column.name] = self._from_text(array, column)
            elif (final := settled(array, column.type, self.tallies[column.name])) is not None:
                arrays[column.name] = final
            else:
                again.append(place)
        if again:
            reread = self._texts(block.content, again, nulls)
            for place in again:
                column = self._wanted[place]
                arrays[column.name] = self._from_text(reread[place], column)
        return DecodedRows(grid.rows, arrays), texts

    def _unmodified(self, block: bytes, piece: DecodedRows, texts: set[int]) -> dict[str, pa.Array]:
        """Which of a piece's null cells are unmodified, for the columns that have null cells."""
        doubtful = {
            place: piece.arrays[column.name]
            for place, column in self._wanted.items()
            if piece.arrays[column.name].null_count
        }
        known: dict[int, pa.Array] = {}
        if self.form.null_string and not _may_hold(block, self.form.null_string):
            # Then every null is an unmodified cell, unless an empty text became NULL.
            known = {
                place: array
                for place, array in doubtful.items()
                if place not in texts or self._wanted[place].type.kind in EMPTY_IS_VALUE
            }
        masks = {self._wanted[place].name: pc.is_null(array) for place, array in known.items()}
        unknown = [place for place in doubtful if place not in known]
        if unknown:
            texts_of = self._texts(block, unknown, [])
            marker = pa.scalar(self.form.unmodified_string.encode(), pa.binary())
            for place in unknown:
                masks[self._wanted[place].name] = pc.equal(texts_of[place], marker)
        return masks

    def _expect_whole_time(self, block: Block, piece: DecodedRows) -> None:
        """Refuse a time without seconds as the file's very last characters: it may be cut short.

        Where nothing is compressed or encrypted, only the cell itself can tell.
        """
        column = self._wanted.get(len(self._names) - 1)
        if column is None or column.type.kind not in _TIMES:
            return
        cell = self._texts(block.content, [len(self._names) - 1], [])[len(self._names) - 1][-1]
        if cells.lacks_seconds((cell.as_py() or b"").decode(errors="replace")):
            raise refused(
                self.file,
                self._rows + piece.rows,
                column,
                "it has no seconds, and the file ends with it: it may be cut short",
                hint="End the last line of a file with a line feed.",
            )

    def _unmarked(self, block: Block) -> DecodedRows:
        """Parse a block that holds the unmodified marker where it has no meaning."""
        texts = self._texts(block.content, self._wanted, [])
        marker = pa.scalar(self.form.unmodified_string.encode(), pa.binary())
        for place, column in self._wanted.items():
            at = pc.index(texts[place], marker).as_py()
            if at >= 0:
                row = self._rows + at + 1
                raise refused_mark(self.file, row, column, "outside an update file")
        return self._typed(block, [self.form.null_string])[0]

    def _from_text(self, texts: pa.Array, column: Column) -> pa.Array:
        return of_text(texts, column, self.file, self._rows, self.tallies[column.name])

    def _parsed(self, block: bytes, texts: set[int], nulls: list[str]) -> _Grid:
        """The block's columns; those in `texts` as bytes, more added as PyArrow refuses them."""
        attempts = 0
        while True:
            types = {
                place: pa.binary() if place in texts else direct(column.type)
                for place, column in self._wanted.items()
            }
            found = self._grid(block, types, nulls)
            if isinstance(found, _Grid):
                return found
            attempts += 1
            hard = {found} if attempts < _PATIENCE else set(self._wanted)
            self._as_text |= hard
            texts |= hard

    def _texts(self, block: bytes, places: Iterable[int], nulls: list[str]) -> dict[int, pa.Array]:
        """Columns of a block as bytes, which no cell can refuse."""
        found = self._grid(block, dict.fromkeys(places, pa.binary()), nulls)
        if isinstance(found, _Grid):
            return found.arrays
        raise self._malformed(0, "The rows from this one on are not CSV.")

    def _grid(self, block: bytes, types: dict[int, pa.DataType], nulls: list[str]) -> _Grid | int:
        """Parse a block with PyArrow.

        Returns:
            The columns, or the place of one whose type refuses a cell.

        Raises:
            MalformedFileError: a row of another width.
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
            # The words quote the cell or the row: only the numbers leave this place.
            said = str(error)
        else:
            if len(block) > _LARGE:
                # What the parser needed stays with Arrow, for the next block, unless it is told.
                pa.default_memory_pool().release_unused()
            arrays = {
                place: column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
                for place, column in zip(wanted, table.columns, strict=True)
            }
            return _Grid(table.num_rows, arrays)
        if blamed := _BLAMED.match(said):
            return int(blamed[1])
        if ragged := _RAGGED.match(said):
            number, width = int(ragged[1]), ragged[2]
            raise self._malformed(
                number - 1,
                f"The row has {width} cells; the header has {len(self._names)}.",
                hint="Every row needs a cell for each column; put quotes around a comma in a cell.",
            )
        raise self._malformed(0, "The rows from this one on are not CSV.")

    def _malformed(
        self, rows_before: int, message: str, *, hint: str = _MEND_DIALECT
    ) -> MalformedFileError:
        return MalformedFileError(
            message, hint=hint, file=self.file.path, row=self._rows + rows_before + 1
        )


def _may_hold(block: bytes, marker: str) -> bool:
    """Whether a marker stands anywhere in a block; within quotes, its own are doubled."""
    plain = marker.encode()
    doubled = plain.replace(b'"', b'""')
    return bool(marker) and (plain in block or (doubled != plain and doubled in block))
