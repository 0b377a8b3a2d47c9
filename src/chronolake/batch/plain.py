"""The plain content of a batch file, as a stream: decrypted, then decompressed, never on disk.

AES-256 in CBC mode with PKCS#7 padding; the first 16 bytes of a file are the initialisation vector
(`seeds/destination-connector.txt`, "Encryption"). Memory stays below a few MiB, plus the window of
a zstd frame (at most 128 MiB, zstd's own default limit).
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol, Self

import pyarrow as pa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from chronolake.batch.access import open_file
from chronolake.errors import DecompressionError, DecryptionError, FileAccessError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from chronolake.batch.files import BatchFile, FileForm

BLOCK: Final = 16
KEY_LENGTH: Final = 32
_STEP: Final = 1 << 20


class Plain(Protocol):
    """A stream of plain bytes: fewer than asked for come only at the end."""

    def read(self, size: int, /) -> bytes:
        """The next `size` bytes.

        Raises:
            BatchFileError: the content cannot be had.
        """
        ...


@contextmanager
def opened(file: BatchFile, form: FileForm) -> Iterator[Plain]:
    """The plain content of `file`.

    The end of an encrypted file is looked at first, so that a wrong key or a file cut short is
    found before anything is parsed.

    Raises:
        FileAccessError: the file cannot be opened or read.
        DecryptionError: no key, an impossible key, a wrong key, or a file cut short.
        DecompressionError: while reading: not one or more whole streams of the compression.
    """
    with open_file(file.path, file.root) as raw:
        source: _Ciphertext | _Clear = (
            _Ciphertext(raw, file) if form.encrypted else _Clear(raw, file)
        )
        if form.compression == "off":
            yield source
            return
        if source.length == 0:
            raise _not_compressed(file, form)
        with pa.CompressedInputStream(pa.PythonFile(source, mode="r"), form.compression) as inner:
            yield _Decompressed(inner, file, form)


def _unreadable(file: BatchFile, error: OSError) -> FileAccessError:
    return FileAccessError(
        f"The batch file cannot be read: {error.strerror or 'the device failed'}.",
        hint="Send the batch again once the file can be read.",
        file=file.path,
    )


def _fill(raw: BinaryIO, size: int, file: BatchFile) -> bytes:
    """Exactly `size` bytes, or all that are left."""
    parts: list[bytes] = []
    try:
        while size > 0 and (part := raw.read(size)):
            parts.append(part)
            size -= len(part)
    except OSError as error:
        raise _unreadable(file, error) from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


class _Source:
    """What PyArrow wants of a Python file."""

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


class _Clear(_Source):
    """A file that is not encrypted."""

    def __init__(self, raw: BinaryIO, file: BatchFile) -> None:
        self._raw = raw
        self._file = file
        self.length = _length(raw, file)

    def read(self, size: int = _STEP) -> bytes:
        return _fill(self._raw, size, self._file)


class _Ciphertext(_Source):
    """A file that is encrypted; `length` counts its plain bytes."""

    def __init__(self, raw: BinaryIO, file: BatchFile) -> None:
        self._raw = raw
        self._file = file
        key = _key(file)
        whole = _length(raw, file)
        if whole < 2 * BLOCK or whole % BLOCK:
            raise DecryptionError(
                f"The file has {whole} bytes, which cannot be an initialisation vector and whole "
                f"blocks of {BLOCK} bytes.",
                hint="It was cut short, or it is not encrypted.",
                file=file.path,
            )
        raw.seek(whole - 2 * BLOCK)
        tail = _fill(raw, 2 * BLOCK, file)
        self.length = whole - BLOCK - self._padding(key, tail)
        raw.seek(0)
        self._left = self.length
        self._ready = memoryview(b"")
        self._decryptor = Cipher(
            algorithms.AES(key), modes.CBC(_fill(raw, BLOCK, file))
        ).decryptor()

    def _padding(self, key: bytes, tail: bytes) -> int:
        """The length of the padding, from the last two blocks: in CBC mode they suffice."""
        last = Cipher(algorithms.AES(key), modes.CBC(tail[:BLOCK])).decryptor().update(tail[BLOCK:])
        count = last[-1]
        if not 1 <= count <= BLOCK or last[-count:] != bytes([count]) * count:
            raise DecryptionError(
                "The file does not decrypt with its key.",
                hint="The key belongs to another file, or the file was cut short or changed.",
                file=self._file.path,
            )
        return count

    def read(self, size: int = _STEP) -> bytes:
        if len(self._ready) >= size:
            taken, self._ready = self._ready[:size], self._ready[size:]
            return bytes(taken)
        parts: list[bytes | memoryview] = [self._ready]
        missing = size - len(self._ready)
        self._ready = memoryview(b"")
        while missing > 0 and self._left > 0:
            plain = memoryview(self._decrypted(max(missing, _STEP)))
            parts.append(plain[:missing])
            self._ready = plain[missing:]
            missing -= len(plain)
        return b"".join(parts)

    def _decrypted(self, size: int) -> memoryview:
        wanted = -(-size // BLOCK) * BLOCK
        sealed = _fill(self._raw, wanted, self._file)
        if not sealed or len(sealed) % BLOCK:
            raise DecryptionError(
                "The file became shorter while it was read.",
                hint="Leave a batch's files alone until the batch is answered.",
                file=self._file.path,
            )
        plain = memoryview(self._decryptor.update(sealed))[: self._left]
        self._left -= len(plain)
        return plain


def _key(file: BatchFile) -> bytes:
    if not file.key:
        raise DecryptionError(
            "The request has no key for the file.",
            hint="Keys are looked up by the path exactly as the file lists spell it.",
            file=file.path,
        )
    if len(file.key) != KEY_LENGTH:
        raise DecryptionError(
            f"The file's key has {len(file.key)} bytes; AES-256 takes {KEY_LENGTH}.",
            hint="Send the key as bytes, neither Base64 nor hexadecimal digits.",
            file=file.path,
        )
    return file.key


def _length(raw: BinaryIO, file: BatchFile) -> int:
    try:
        return os.fstat(raw.fileno()).st_size
    except OSError as error:
        raise _unreadable(file, error) from None


class _Decompressed:
    """A compressed stream; whole frames (members) one after the other, and nothing else."""

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
                # Not chained: the library's words may quote content.
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
        f"The content is not one whole {form.compression} stream.",
        hint=f"It was cut short or changed, it has another compression{key}.",
        file=file.path,
    )
