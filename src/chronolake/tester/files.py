"""Batch files: rows written as CSV or Parquet, compressed, encrypted.

The CSV is what the vendor's tester writes, byte for byte but for the order of the columns, which is
shuffled for every file. Parquet has no documented way to mark an unmodified value in a typed
column; here such a column is written as text in that file, and a NULL is a real null everywhere.
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
from chronolake.tester.values import parsed
from chronolake.types import END, Kind

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from chronolake.tester.definition import ColumnSpec
    from chronolake.tester.rows import Changes

#: The markers that the vendor's tester uses; a destination must take them from the request.
NULL_STRING: Final = "null-m8yilkvPsNulehxl2G6pmSQ3G3WWdLP"
UNMODIFIED_STRING: Final = "unmod-NcK9NIjPUutCsz4mjOQQztbnwnE1sY3"

_BLOCK: Final = 16
_KEY: Final = 32
_WINDOW_LOG: Final = 19  # 512 KiB, as in the vendor's files
_UNQUOTED_LENGTH: Final = 24
_SAFE_FROM: Final = "-"  # Jackson quotes a value that holds any character before this one
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
    """What the batch files hold."""

    CSV = "csv"
    PARQUET = "parquet"


class Compression(StrEnum):
    """How the batch files are compressed."""

    OFF = "none"
    ZSTD = "zstd"
    GZIP = "gzip"


@dataclass(frozen=True, slots=True)
class FileForm:
    """How batch files are written."""

    format: FileFormat = FileFormat.CSV
    compression: Compression = Compression.ZSTD
    encrypted: bool = True

    @property
    def suffix(self) -> str:
        """The end of the files' names: `.csv.zstd.aes`."""
        compressed = "" if self.compression is Compression.OFF else f".{self.compression}"
        return f".{self.format}{compressed}{'.aes' if self.encrypted else ''}"


@dataclass(frozen=True, slots=True)
class BatchFile:
    """A batch file on disk.

    Attributes:
        path: absolute path, as the request names it.
        key: the 32 bytes that decrypt it, or None.
        rows: how many rows it holds.
        size: its length in bytes.
    """

    path: str
    key: bytes | None = field(repr=False)
    rows: int
    size: int


class BatchFolder:
    """Writes the batch files of one run into a folder, and can take them away again."""

    def __init__(
        self,
        folder: Path,
        *,
        form: FileForm,
        shuffler: random.Random,
        split: int = 1,
        minimal_deletes: bool = False,
    ) -> None:
        """Begin with an existing folder.

        Args:
            folder: where the files go.
            form: how they are written.
            shuffler: decides about the order of each file's columns.
            split: into how many files the rows of a kind are spread, as far as there are rows.
            minimal_deletes: reduce delete files to the key and, with history, `_fivetran_end`.
        """
        self.folder = folder.resolve()
        self.form = form
        self._shuffler = shuffler
        self._split = split
        self._minimal = minimal_deletes
        self._written: list[Path] = []

    def write(self, changes: Changes, scenario: str) -> dict[FileKind, tuple[BatchFile, ...]]:
        """Write the files of one request.

        Args:
            changes: the rows.
            scenario: name of the scenario, part of the files' names.

        Returns:
            The files by kind; kinds without rows are absent.

        Raises:
            OSError: the folder cannot be written to.
        """
        files: dict[FileKind, tuple[BatchFile, ...]] = {}
        for kind, records in changes.records.items():
            columns = self._columns(changes, kind)
            parts = _spread(records, self._split)
            files[kind] = tuple(
                self._file(
                    self._path(changes.table, scenario, kind, ordinal if len(parts) > 1 else 0),
                    part,
                    columns,
                )
                for ordinal, part in enumerate(parts, 1)
            )
        return files

    def remove(self) -> None:
        """Take away every file that was written, and nothing else."""
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
        taken, repeat = set(self._written), 1
        while True:
            # Without merging, one scenario may write to the same table more than once.
            again = f"_{repeat}" if repeat > 1 else ""
            path = self.folder / f"{stem}{again}_{kind}{part}{self.form.suffix}"
            if path not in taken:
                return path
            repeat += 1

    def _file(
        self, path: Path, records: Sequence[Record], columns: Sequence[ColumnSpec]
    ) -> BatchFile:
        order = list(columns)
        self._shuffler.shuffle(order)
        parquet = self.form.format is FileFormat.PARQUET
        content = (parquet_bytes if parquet else csv_bytes)(records, order)
        content = compressed(content, self.form.compression)
        key = None
        if self.form.encrypted:
            key = secrets.token_bytes(_KEY)
            content = encrypted(content, key)
        path.write_bytes(content)
        self._written.append(path)
        return BatchFile(str(path), key, len(records), len(content))


def _spread(records: Sequence[Record], parts: int) -> list[Sequence[Record]]:
    size = -(-len(records) // parts)
    return [records[at : at + size] for at in range(0, len(records), size)]


def _file_name(name: str) -> str:
    plain = name.replace("/", "_").replace("\0", "_")
    if len(plain.encode()) <= _NAME_BYTES:
        return plain
    short = plain.encode()[: _NAME_BYTES // 2].decode(errors="ignore")
    return f"{short}-{hashlib.sha256(plain.encode()).hexdigest()[:16]}"


def csv_bytes(records: Iterable[Record], columns: Sequence[ColumnSpec]) -> bytes:
    """Rows as CSV with a header, UTF-8, one LF after each line."""
    lines = [",".join(quoted(column.name) for column in columns)]
    lines.extend(
        ",".join(_csv_cell(record[column.name]) for column in columns) for record in records
    )
    return ("\n".join(lines) + "\n").encode()


def quoted(text: str) -> str:
    """A text as the vendor's CSV writer puts it: in quotes only where it might need them."""
    if len(text) <= _UNQUOTED_LENGTH and all(letter >= _SAFE_FROM for letter in text):
        return text
    return '"' + text.replace('"', '""') + '"'


def _csv_cell(cell: Cell) -> str:
    match cell:
        case Marker.NULL:
            return NULL_STRING  # never in quotes, though it is long
        case Marker.UNMODIFIED:
            return quoted(UNMODIFIED_STRING)
        case text:
            return quoted(text)


def parquet_bytes(records: Sequence[Record], columns: Sequence[ColumnSpec]) -> bytes:
    """Rows as one Parquet file, with the types that the vendor's guide maps to.

    Times and dates are strings, BINARY is raw bytes. A column with unmodified cells is a string
    column with the marker and the CSV texts; of BINARY it is bytes, the marker among them.
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
            return text if as_text else parsed(text, column)


def compressed(content: bytes, compression: Compression) -> bytes:
    """The content compressed; the zstd frame tells neither its content's size nor a checksum."""
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


def encrypted(content: bytes, key: bytes) -> bytes:
    """A random IV of 16 bytes, then AES-256-CBC with PKCS#7 padding.

    Args:
        content: what to encrypt.
        key: 32 bytes.
    """
    vector = secrets.token_bytes(_BLOCK)
    padder = PKCS7(_BLOCK * 8).padder()
    encryptor = Cipher(AES256(key), CBC(vector)).encryptor()
    padded = padder.update(content) + padder.finalize()
    return vector + encryptor.update(padded) + encryptor.finalize()
