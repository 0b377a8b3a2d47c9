"""Batch files: rows written as CSV or Parquet, compressed and encrypted.

The CSV equals that of the vendor's tester byte for byte, except for the order of the columns, which
is shuffled for each file. There is no documented way to mark an unmodified value in a typed Parquet
column. Such a column is therefore written as text in that file. NULL is always a Parquet null.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import secrets
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CBC
from cryptography.hazmat.primitives.padding import PKCS7

from chronolake.tester.rows import Cell, FileKind, Marker, Record
from chronolake.tester.values import parse_value
from chronolake.types import END, Kind

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from chronolake.tester.definition import ColumnSpec
    from chronolake.tester.rows import Changes

#: The markers of the vendor's tester; a destination must read them from the request.
NULL_STRING: Final = "null-m8yilkvPsNulehxl2G6pmSQ3G3WWdLP"
UNMODIFIED_STRING: Final = "unmod-NcK9NIjPUutCsz4mjOQQztbnwnE1sY3"

_BLOCK: Final = 16
_KEY: Final = 32
_WINDOW_LOG: Final = 19  # 512 KiB, as in the vendor's files
_UNQUOTED_LENGTH: Final = 24
_SAFE_FROM: Final = "-"  # Jackson quotes a value that contains any character before this one
_NAME_BYTES: Final = 120
_TYPED_IN_PARQUET: Final = frozenset(
    {
        Kind.BOOLEAN,
        Kind.SHORT,
        Kind.INT,
        Kind.LONG,
        Kind.FLOAT,
        Kind.DOUBLE,
        Kind.DECIMAL,
        Kind.BINARY,
    }
)


class FileFormat(StrEnum):
    """The format of the batch files."""

    CSV = "csv"
    PARQUET = "parquet"


class Compression(StrEnum):
    """The compression of the batch files."""

    OFF = "none"
    ZSTD = "zstd"
    GZIP = "gzip"


@dataclass(frozen=True, slots=True)
class FileForm:
    """The format, compression and encryption of batch files."""

    format: FileFormat = FileFormat.CSV
    compression: Compression = Compression.ZSTD
    encrypted: bool = True

    @property
    def suffix(self) -> str:
        """Return the suffix of the files' names, for example `.csv.zstd.aes`."""
        compressed = "" if self.compression is Compression.OFF else f".{self.compression}"
        return f".{self.format}{compressed}{'.aes' if self.encrypted else ''}"


@dataclass(frozen=True, slots=True)
class BatchFile:
    """A batch file on disk.

    Attributes:
        path: absolute path, as in the request.
        key: the 32 bytes that decrypt it, or None.
        rows: the number of rows.
        size: the length in bytes.
    """

    path: str
    key: bytes | None = field(repr=False)
    rows: int
    size: int


class BatchFolder:
    """A writer of the batch files of one run, which can also remove them."""

    def __init__(
        self,
        folder: Path,
        *,
        form: FileForm,
        shuffler: random.Random,
        split: int = 1,
        minimal_deletes: bool = False,
    ) -> None:
        """Create a writer for an existing folder.

        Args:
            folder: the folder for the files.
            form: format, compression and encryption.
            shuffler: determines the order of each file's columns.
            split: the number of files for the rows of one kind; fewer if there are fewer rows.
            minimal_deletes: reduce delete files to the key and, with history, `_fivetran_end`.
        """
        self.folder = folder.resolve()
        self.form = form
        self._shuffler = shuffler
        self._split = split
        self._minimal = minimal_deletes
        self._written: list[Path] = []

    def write(self, changes: Changes, scenario: str) -> dict[FileKind, tuple[BatchFile, ...]]:
        """Write the files of one request; the scenario's name becomes a part of their names.

        Returns:
            The files by kind; kinds without rows are absent.

        Raises:
            OSError: the folder is not writable.
        """
        files: dict[FileKind, tuple[BatchFile, ...]] = {}
        for kind, records in changes.records.items():
            columns = self._columns(changes, kind)
            parts = _split_records(records, self._split)
            files[kind] = tuple(
                self._write_file(
                    self._path(changes.table, scenario, kind, ordinal if len(parts) > 1 else 0),
                    part,
                    columns,
                )
                for ordinal, part in enumerate(parts, 1)
            )
        return files

    def remove(self) -> None:
        """Remove the written files, and no others."""
        for path in self._written:
            path.unlink(missing_ok=True)
        self._written.clear()

    def _columns(self, changes: Changes, kind: FileKind) -> list[ColumnSpec]:
        names = set(changes.columns(kind))
        if kind is FileKind.DELETE and self._minimal:
            names = {*changes.definition.key} | (
                names & {END} if changes.definition.history else set()
            )
        return [column for column in changes.definition.columns if column.name in names]

    def _path(self, table: str, scenario: str, kind: FileKind, ordinal: int) -> Path:
        stem = f"{_file_name(table)}_{_file_name(scenario)}"
        part = f"_{ordinal}" if ordinal else ""
        used, repeat = set(self._written), 1
        while True:
            # If operations are not merged, one scenario may write to the same table more than once.
            again = f"_{repeat}" if repeat > 1 else ""
            path = self.folder / f"{stem}{again}_{kind}{part}{self.form.suffix}"
            if path not in used:
                return path
            repeat += 1

    def _write_file(
        self, path: Path, records: Sequence[Record], columns: Sequence[ColumnSpec]
    ) -> BatchFile:
        order = list(columns)
        self._shuffler.shuffle(order)
        parquet = self.form.format is FileFormat.PARQUET
        content = (parquet_bytes if parquet else csv_bytes)(records, order)
        content = compress(content, self.form.compression)
        key = None
        if self.form.encrypted:
            key = secrets.token_bytes(_KEY)
            content = encrypt(content, key)
        path.write_bytes(content)
        self._written.append(path)
        return BatchFile(str(path), key, len(records), len(content))


def _split_records(records: Sequence[Record], parts: int) -> list[Sequence[Record]]:
    size = -(-len(records) // parts)
    return [records[at : at + size] for at in range(0, len(records), size)]


def _file_name(name: str) -> str:
    plain = name.replace("/", "_").replace("\0", "_")
    if len(plain.encode()) <= _NAME_BYTES:
        return plain
    short = plain.encode()[: _NAME_BYTES // 2].decode(errors="ignore")
    return f"{short}-{hashlib.sha256(plain.encode()).hexdigest()[:16]}"


def csv_bytes(records: Iterable[Record], columns: Sequence[ColumnSpec]) -> bytes:
    """Return rows as CSV with a header, in UTF-8, with LF after each line."""
    lines = [",".join(quote(column.name) for column in columns)]
    lines.extend(
        ",".join(_csv_cell(record[column.name]) for column in columns) for record in records
    )
    return ("\n".join(lines) + "\n").encode()


def quote(text: str) -> str:
    """Return a text as the vendor's CSV writer does: in quotes only if it might need them."""
    if len(text) <= _UNQUOTED_LENGTH and all(letter >= _SAFE_FROM for letter in text):
        return text
    return '"' + text.replace('"', '""') + '"'


def _csv_cell(cell: Cell) -> str:
    match cell:
        case Marker.NULL:
            return NULL_STRING  # never in quotes, although it is long
        case Marker.UNMODIFIED:
            return quote(UNMODIFIED_STRING)
        case text:
            return quote(text)


def parquet_bytes(records: Sequence[Record], columns: Sequence[ColumnSpec]) -> bytes:
    """Return rows as one Parquet file, with the types that the vendor's guide specifies.

    Times and dates are strings, BINARY is raw bytes. A column with unmodified cells is a string
    column with the marker and the CSV texts; a BINARY column with unmodified cells contains bytes,
    including the marker.
    """
    arrays, fields = [], []
    for column in columns:
        cells = [record[column.name] for record in records]
        as_text = column.kind not in _TYPED_IN_PARQUET or (
            Marker.UNMODIFIED in cells and column.kind is not Kind.BINARY
        )
        kind = pa.string() if as_text else column.type.arrow
        arrays.append(pa.array([_parquet_cell(cell, column, as_text) for cell in cells], kind))
        fields.append(pa.field(column.name, kind))
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), sink)
    return sink.getvalue()


def _parquet_cell(cell: Cell, column: ColumnSpec, as_text: bool) -> object:  # noqa: FBT001
    match cell:
        case Marker.NULL:
            return None
        case Marker.UNMODIFIED:
            return UNMODIFIED_STRING if as_text else UNMODIFIED_STRING.encode()
        case text:
            return text if as_text else parse_value(text, column)


def compress(content: bytes, compression: Compression) -> bytes:
    """Return compressed content; the zstd frame contains neither a content size nor a checksum."""
    match compression:
        case Compression.OFF:
            return content
        case Compression.GZIP:
            return gzip.compress(content, mtime=0)
        case Compression.ZSTD:
            parameters = zstandard.ZstdCompressionParameters.from_level(
                3, window_log=_WINDOW_LOG, write_content_size=False, write_checksum=False
            )
            stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
            return stream.compress(content) + stream.flush()


def encrypt(content: bytes, key: bytes) -> bytes:
    """Return a random IV of 16 bytes and the content in AES-256-CBC with PKCS#7 padding.

    `key` has 32 bytes.
    """
    vector = secrets.token_bytes(_BLOCK)
    padder = PKCS7(_BLOCK * 8).padder()
    encryptor = Cipher(AES256(key), CBC(vector)).encryptor()
    padded = padder.update(content) + padder.finalize()
    return vector + encryptor.update(padded) + encryptor.finalize()
