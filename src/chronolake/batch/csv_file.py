"""CSV batch files: blocks of records to typed columns.

Blocks are parsed straight to types by PyArrow where that is exact. A column whose cells PyArrow
refuses in some block is from then on read as text and converted by `columns`, which knows all
accepted forms and finds the cell to blame.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pa_csv

from chronolake.batch import records
from chronolake.batch.pieces import Piece, of_text, present, refused, refused_mark
from chronolake.changes import Op
from chronolake.errors import MalformedFileError, OversizeError
from chronolake.texts import cells
from chronolake.texts.columns import EMPTY_IS_VALUE, direct, settled
from chronolake.types import Kind

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Iterator, Sequence

    from chronolake.batch.files import BatchFile, FileForm
    from chronolake.types import Column

_BLAMED: Final = re.compile(r"In CSV column #(\d+):")
_RAGGED: Final = re.compile(r"CSV parse error: Row #(\d+): Expected \d+ columns, got (\d+)")
#: How often a block is parsed again with one more column as text, before all become text.
_PATIENCE: Final = 4
#: A block of more bytes is one of large records.
_LARGE: Final = 2 * records.BLOCK_SIZE
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
        flaw: where they leave the dialect, as `records.flaw` says; None: nowhere.
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
            blocks: the file's records as `records.blocks` cuts them, the header first.

        Raises:
            MalformedFileError: no header, or a missing column.
            BatchFileError: whatever taking a block raises.
        """
        for block in blocks:
            rows = block if self._names else self._begin(block)
            if rows:
                yield Block(
                    rows,
                    flaw=records.flaw(rows, width=len(self._names)),
                    marked=_may_hold(rows, self.form.unmodified_string),
                    hexadecimal=bool(self._integers) and records.has_hexadecimal(rows),
                )
            # It may be large, and the next one is made now.
            del block, rows

    def pieces(self, blocks: Iterator[Block]) -> Iterator[Piece]:
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
        except records.OverlongRecordError:
            overlong = True
        if overlong:
            raise OversizeError(
                f"The row is longer than {records.RECORD_LIMIT >> 20} MiB, the most that is held "
                "in memory.",
                hint="Leave its long values out at the source. Quotes that do not match look like "
                "this, too.",
                file=self.file.path,
                row=self._rows + 1,
            )

    def _begin(self, block: bytes) -> bytes:
        """Take the header off the first block."""
        length = records.header_end(block)
        names: list[str] = []
        if not block.startswith(_PARQUET) and records.flaw(block[:length], width=1) is None:
            try:
                names = records.names(block[:length])
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

    def _piece(self, block: Block) -> Piece:
        if block.flaw is not None:
            before, what = block.flaw
            hint = _MEND_EMPTY if what == records.EMPTY_LINE else _MEND_DIALECT
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

    def _typed(self, block: Block, nulls: list[str]) -> tuple[Piece, set[int]]:
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
        return Piece(grid.rows, arrays), texts

    def _unmodified(self, block: bytes, piece: Piece, texts: set[int]) -> dict[str, pa.Array]:
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

    def _expect_whole_time(self, block: Block, piece: Piece) -> None:
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

    def _unmarked(self, block: Block) -> Piece:
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
