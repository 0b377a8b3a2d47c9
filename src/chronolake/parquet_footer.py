"""A check of Parquet footers before PyArrow reads the metadata of columns.

PyArrow ends the process if a column has a compression that PyArrow does not know (a newer one, or a
corrupt number), or does not match the schema. A footer is a Thrift structure in the compact
protocol, of which only some fields of each column are interpreted here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import starmap, zip_longest
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    import pyarrow.parquet as pq

#: The compressions and physical types of the Parquet format, by number.
_CODECS: Final = range(8)
_TYPES: Final = (
    *("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY"),
    "FIXED_LEN_BYTE_ARRAY",
)
#: The bytes after a footer: its length, and the format's name.
_TAIL: Final = 8
#: The fields from the footer to the metadata of columns: row groups, columns, metadata.
_COLUMNS: Final = (4, 1, 3)
#: The fields of a column's metadata, and those of its size statistics.
_TYPE, _CODEC, _SIZES = 1, 4, 16
_REPETITIONS, _DEFINITIONS = 2, 3
_STOP, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = 0, 7, 8, 9, 10, 11, 12, 13
_TRUTHS: Final = (1, 2)
#: The bytes of values with a fixed length.
_FIXED: Final = {3: 1, _DOUBLE: 8, _UUID: 16}
_LONG: Final = 15


@dataclass
class StoredColumn:
    """The metadata of a column in a row group; None where it is missing.

    Attributes:
        type: the number of the physical type.
        codec: the number of the compression.
        repetitions, definitions: the lengths of the histograms of levels.
    """

    type: int | None = None
    codec: int | None = None
    repetitions: int = 0
    definitions: int = 0


def flaw_in(file: pa.NativeFile, footer: pq.FileMetaData) -> str | None:
    """Return the reason why the metadata of a file's columns must not be read, or None.

    Args:
        file: the file, whose position changes.
        footer: the file's footer, whose columns have not been read yet.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        columns = stored_columns(file)
    except (IndexError, RecursionError):
        return "its footer ends too early"
    for column in columns:
        if column.codec not in _CODECS:
            return f"a column has an unknown compression ({column.codec})"
    schema = [footer.schema.column(number) for number in range(len(footer.schema))]
    pairs = zip_longest(columns, schema * footer.num_row_groups)
    return None if all(starmap(_fits, pairs)) else "its footer is corrupt"


def _fits(stored: StoredColumn | None, declared: pq.ColumnSchema | None) -> bool:
    """Return whether a column's metadata matches its schema."""
    if stored is None or declared is None:
        return False
    levels = (
        (stored.repetitions, declared.max_repetition_level),
        (stored.definitions, declared.max_definition_level),
    )
    return stored.type == _TYPES.index(declared.physical_type) and all(
        length in {0, highest + 1} for length, highest in levels
    )


def stored_columns(file: pa.NativeFile) -> list[StoredColumn]:
    """Return the columns of each row group of a file.

    Raises:
        IndexError, RecursionError: the footer is corrupt.
    """
    file.seek(-_TAIL, 2)
    (length,) = struct.unpack("<I", file.read(_TAIL)[:4])
    file.seek(-_TAIL - length, 2)
    return list(_Reader(file.read(length)).columns(_COLUMNS))


class _Reader:
    """A reader of one structure in Thrift's compact protocol."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def columns(self, path: tuple[int, ...]) -> Iterator[StoredColumn]:
        """Yield the columns at a path of fields, below structures and lists of them."""
        if not path:
            yield self._column()
            return
        for number, kind in self._fields():
            if number != path[0]:
                self._skip(kind)
            elif kind == _STRUCT:
                yield from self.columns(path[1:])
            else:
                count, _ = self._list()
                for _ in range(count):
                    yield from self.columns(path[1:])

    def _column(self) -> StoredColumn:
        found = StoredColumn()
        for number, kind in self._fields():
            if number == _TYPE:
                found.type = self._signed()
            elif number == _CODEC:
                found.codec = self._signed()
            elif number == _SIZES:
                for part, inner in self._fields():
                    if part == _REPETITIONS:
                        found.repetitions = self._skip_list()
                    elif part == _DEFINITIONS:
                        found.definitions = self._skip_list()
                    else:
                        self._skip(inner)
            else:
                self._skip(kind)
        return found

    def _fields(self) -> Iterator[tuple[int, int]]:
        number = 0
        while (byte := self._byte()) & _LONG != _STOP:
            number = number + (byte >> 4) if byte >> 4 else self._signed()
            yield number, byte & _LONG

    def _list(self) -> tuple[int, int]:
        """Return the number of a list's values, and their type."""
        byte = self._byte()
        count = byte >> 4
        return (self._unsigned() if count == _LONG else count), byte & _LONG

    def _skip(self, kind: int) -> None:
        if kind in _TRUTHS:
            return
        if kind in _FIXED:
            self._at += _FIXED[kind]
        elif kind == _BINARY:
            # Reading the length moves the position, too.
            length = self._unsigned()
            self._at += length
        elif kind in {_LIST, _SET}:
            self._skip_list()
        elif kind == _MAP:
            if count := self._unsigned():
                kinds = self._byte()
                for _ in range(count):
                    self._skip_value(kinds >> 4)
                    self._skip_value(kinds & _LONG)
        elif kind == _STRUCT:
            for _, inner in self._fields():
                self._skip(inner)
        else:
            self._unsigned()

    def _skip_list(self) -> int:
        """Skip a list, and return the number of its values."""
        count, kind = self._list()
        for _ in range(count):
            self._skip_value(kind)
        return count

    def _skip_value(self, kind: int) -> None:
        """Skip a value in a list or map, where a truth value takes a byte."""
        if kind in _TRUTHS:
            self._byte()
        else:
            self._skip(kind)

    def _byte(self) -> int:
        byte = self._data[self._at]
        self._at += 1
        return byte

    def _unsigned(self) -> int:
        value, shift = 0, 0
        while (byte := self._byte()) & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
        return value | byte << shift

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)
