"""Batch files: location and format in a request, and their plain content as a stream.

Sources: `seeds/destination-connector.txt` ("Batch files", "WriteBatchRequest").

Files are opened only in the allowed folder. Their content is decrypted, then decompressed, and
never written to disk: AES-256 in CBC mode with PKCS#7 padding, where the first 16 bytes of a file
are the initialisation vector (`seeds/destination-connector.txt`, "Encryption"). Memory stays below
a few MiB, plus the window of a zstd frame (at most 128 MiB, zstd's own default limit).
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Literal, Protocol, Self, cast

import pyarrow as pa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from chronolake.errors import DecompressionError, DecryptionError, FileAccessError, RefusedPathError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from chronolake.change_set import Op
    from chronolake.object_store import BucketPath


@dataclass(frozen=True, slots=True)
class BatchFile:
    """One file of a request.

    Attributes:
        path: the path as in the request; errors contain it.
        op: the operation of the request's list with the file.
        key: the 32 bytes of the decryption key, or None. Never shown.
        root: real path of the folder in which the file must be when it is opened, or None.
        copy: the file's copy in a bucket, which tasks read, or None.
    """

    path: str
    op: Op
    key: bytes | None = field(default=None, repr=False)
    root: str | None = None
    copy: BucketPath | None = None


@dataclass(frozen=True, slots=True)
class FileForm:
    """The format of all files of a request.

    Attributes:
        format: `csv` or `parquet`.
        compression: `off`, `zstd` or `gzip`, applied before the encryption.
        encrypted: whether the file is encrypted with AES-256-CBC.
        null_string: the cell text for NULL, in every kind of file.
        unmodified_string: the cell text for "keep the stored value", in update files; empty if
            there is no such text.
    """

    format: Literal["csv", "parquet"]
    compression: Literal["off", "zstd", "gzip"]
    encrypted: bool
    null_string: str
    unmodified_string: str


# Linux opens a folder with O_PATH even if its entries may not be listed.
_FOLDER: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
# Without O_NONBLOCK, opening a named pipe waits for a writer indefinitely.
_FILE: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_LINK: Final = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)


def open_file(path: str, root: str | None) -> BinaryIO:
    """Open a batch file for reading, unbuffered.

    With a root, the real path is resolved first, without links and `..`; then every folder below
    the root is opened from its parent, following no link. A folder that is replaced by a link in
    between is refused, too.

    Args:
        path: the path as in the request.
        root: real path of the folder in which the file must be, or None for any folder.

    Raises:
        RefusedPathError: the file is outside the root, or is not a regular file.
        FileAccessError: the file does not exist, or cannot be opened.
    """
    try:
        number = os.open(path, _FILE) if root is None else _open_below(path, root)
    except (OSError, ValueError) as error:
        # Not chained: the operating system's message contains the path to which links lead.
        raise _unreadable(path, error) from None
    try:
        regular = stat.S_ISREG(os.fstat(number).st_mode)
    except OSError as error:
        os.close(number)
        raise _unreadable(path, error) from None
    if not regular:
        os.close(number)
        raise RefusedPathError(
            "The path of a batch file is not a regular file.",
            hint="Send the path of a regular file.",
            file=path,
        )
    return cast("BinaryIO", os.fdopen(number, "rb", buffering=0))


def open_content(file: BatchFile) -> BinaryIO:
    """Open the content of a batch file, or of its copy, for reading.

    Raises:
        FileAccessError: as for `open_file`.
        ObjectStoreError: the copy cannot be read.
    """
    if file.copy is not None:
        return file.copy.open_binary(_COPY_BYTES)
    return open_file(file.path, file.root)


def _open_below(path: str, root: str) -> int:
    # Not strict, so that callers cannot find out whether a file outside the root exists.
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(root) or real == Path(root):
        raise _outside(path)
    parts = real.relative_to(root).parts
    try:
        return _walk(root, parts)
    except OSError as error:
        if error.errno in _LINK:
            raise _outside(path) from None
        raise


def _walk(root: str, parts: Sequence[str]) -> int:
    folder = os.open(root, _FOLDER)
    try:
        for part in parts[:-1]:
            inner = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(parts[-1], _FILE | os.O_NOFOLLOW, dir_fd=folder)
    finally:
        os.close(folder)


def _outside(path: str) -> RefusedPathError:
    return RefusedPathError(
        "The file is outside the folder for batch files.",
        hint="Write batch files below the server's --files-root, or start the server with "
        "another one.",
        file=path,
    )


def _unreadable(path: str, error: Exception) -> FileAccessError:
    reason = getattr(error, "strerror", None) or "the path is not valid"
    return FileAccessError(
        f"The batch file cannot be read: {reason}.",
        hint="Keep batch files readable for the server until it has responded to the request.",
        file=path,
    )


BLOCK: Final = 16
KEY_LENGTH: Final = 32
_STEP: Final = 1 << 20
#: Bytes of a copy that one request reads.
_COPY_BYTES: Final = 8 << 20


class Plain(Protocol):
    """A stream of plain bytes, which returns fewer bytes than requested only at the end."""

    def read(self, size: int, /) -> bytes:
        """Return the next `size` bytes.

        Raises:
            BatchFileError: the content cannot be read.
        """
        ...


@contextmanager
def open_plain(file: BatchFile, form: FileForm) -> Iterator[Plain]:
    """Yield the plain content of `file`.

    The end of an encrypted file is read first, so that a wrong key or a truncated file is found
    before anything is parsed.

    Raises:
        FileAccessError: the file cannot be opened or read.
        DecryptionError: the key is missing, invalid or wrong, or the file is truncated.
        DecompressionError: while reading: the content is not one or more complete streams of the
            compression.
    """
    with open_content(file) as raw:
        source: _Ciphertext | _PlainSource = (
            _Ciphertext(raw, file) if form.encrypted else _PlainSource(raw, file)
        )
        if form.compression == "off":
            yield source
            return
        if source.length == 0:
            raise _not_compressed(file, form)
        with pa.CompressedInputStream(pa.PythonFile(source, mode="r"), form.compression) as inner:
            yield _Decompressed(inner, file, form)


def _read_failed(file: BatchFile, error: OSError) -> FileAccessError:
    return FileAccessError(
        f"The batch file cannot be read: {error.strerror or 'the device failed'}.",
        hint="Send the batch again when the file can be read.",
        file=file.path,
    )


def _read_exactly(raw: BinaryIO, size: int, file: BatchFile) -> bytes:
    """Return exactly `size` bytes, or all remaining ones."""
    parts: list[bytes] = []
    try:
        while size > 0 and (part := raw.read(size)):
            parts.append(part)
            size -= len(part)
    except OSError as error:
        raise _read_failed(file, error) from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


class _Source:
    """The methods that PyArrow requires of a Python file."""

    closed: bool = False

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _PlainSource(_Source):
    """A file without encryption."""

    def __init__(self, raw: BinaryIO, file: BatchFile) -> None:
        self._raw = raw
        self._file = file
        self.length = _length(raw, file)

    def read(self, size: int = _STEP) -> bytes:
        return _read_exactly(self._raw, size, self._file)


class _Ciphertext(_Source):
    """An encrypted file; `length` counts its plain bytes."""

    def __init__(self, raw: BinaryIO, file: BatchFile) -> None:
        self._raw = raw
        self._file = file
        key = _key(file)
        length = _length(raw, file)
        if length < 2 * BLOCK or length % BLOCK:
            raise DecryptionError(
                f"The file has {length} bytes, which is not an initialisation vector and complete "
                f"blocks of {BLOCK} bytes.",
                hint="The file was truncated, or it is not encrypted.",
                file=file.path,
            )
        raw.seek(length - 2 * BLOCK)
        tail = _read_exactly(raw, 2 * BLOCK, file)
        self.length = length - BLOCK - self._padding(key, tail)
        raw.seek(0)
        self._left = self.length
        self._ready = memoryview(b"")
        self._decryptor = Cipher(
            algorithms.AES(key), modes.CBC(_read_exactly(raw, BLOCK, file))
        ).decryptor()

    def _padding(self, key: bytes, tail: bytes) -> int:
        """Return the padding's length, from the last two blocks: in CBC mode they suffice."""
        last = Cipher(algorithms.AES(key), modes.CBC(tail[:BLOCK])).decryptor().update(tail[BLOCK:])
        count = last[-1]
        if not 1 <= count <= BLOCK or last[-count:] != bytes([count]) * count:
            raise DecryptionError(
                "The file cannot be decrypted with its key.",
                hint="The key belongs to another file, or the file was truncated or changed.",
                file=self._file.path,
            )
        return count

    def read(self, size: int = _STEP) -> bytes:
        if len(self._ready) >= size:
            part, self._ready = self._ready[:size], self._ready[size:]
            return bytes(part)
        parts: list[bytes | memoryview] = [self._ready]
        missing = size - len(self._ready)
        self._ready = memoryview(b"")
        while missing > 0 and self._left > 0:
            plain = memoryview(self._decrypt(max(missing, _STEP)))
            parts.append(plain[:missing])
            self._ready = plain[missing:]
            missing -= len(plain)
        return b"".join(parts)

    def _decrypt(self, size: int) -> memoryview:
        wanted = -(-size // BLOCK) * BLOCK
        sealed = _read_exactly(self._raw, wanted, self._file)
        if not sealed or len(sealed) % BLOCK:
            raise DecryptionError(
                "The file became shorter while it was read.",
                hint="Do not change a batch's files until the server has responded.",
                file=self._file.path,
            )
        plain = memoryview(self._decryptor.update(sealed))[: self._left]
        self._left -= len(plain)
        return plain


def _key(file: BatchFile) -> bytes:
    if not file.key:
        raise DecryptionError(
            "The request has no key for the file.",
            hint="Send the key under exactly the path that the file lists contain.",
            file=file.path,
        )
    if len(file.key) != KEY_LENGTH:
        raise DecryptionError(
            f"The file's key has {len(file.key)} bytes; AES-256 needs {KEY_LENGTH}.",
            hint="Send the key as bytes, not as Base64 or hexadecimal digits.",
            file=file.path,
        )
    return file.key


def _length(raw: BinaryIO, file: BatchFile) -> int:
    try:
        size = raw.seek(0, os.SEEK_END)
        raw.seek(0)
    except OSError as error:
        raise _read_failed(file, error) from None
    return size


class _Decompressed:
    """A compressed stream: whole frames (members), and nothing else."""

    def __init__(self, inner: pa.CompressedInputStream, file: BatchFile, form: FileForm) -> None:
        self._inner = inner
        self._file = file
        self._form = form

    def read(self, size: int) -> bytes:
        parts: list[bytes] = []
        broken = False
        while size > 0 and not broken:
            try:
                part = self._inner.read(size)
            except (pa.ArrowException, OSError):
                # Not chained: the library's message may quote content.
                broken = True
            else:
                if not part:
                    break
                parts.append(part)
                size -= len(part)
        if broken:
            raise _not_compressed(self._file, self._form)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _not_compressed(file: BatchFile, form: FileForm) -> DecompressionError:
    key = ", or the key is wrong" if form.encrypted else ""
    return DecompressionError(
        f"The content is not a complete {form.compression} stream.",
        hint=f"The file was truncated or changed, it has another compression{key}.",
        file=file.path,
    )
