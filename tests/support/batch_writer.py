"""Batch files made without the code under test: quoting, compression and encryption by hand."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import zstandard
from cryptography.hazmat.primitives import padding
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

NULL = "null-m8yilkvPsNulehxl2G6pmSQ3G3WWdLP"
UNMODIFIED = "unmod-NcK9NIjPUutCsz4mjOQQztbnwnE1sY3"


def quote(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def cell(text: str | None) -> str:
    """Return a CSV cell, quoted as by the Java writer.

    A cell is quoted if it is long or contains a character that sorts before the minus sign.
    """
    if text is None:
        return NULL
    if len(text) > 24 or any(character < "-" for character in text):
        return quote(text)
    return text


def csv_bytes(
    header: Sequence[str],
    rows: Iterable[Sequence[str | None]],
    *,
    end: str = "\n",
    last_end: bool = True,
) -> bytes:
    lines = [",".join(map(cell, header)), *(",".join(map(cell, row)) for row in rows)]
    return (end.join(lines) + (end if last_end else "")).encode()


def compress(plain: bytes, compression: str) -> bytes:
    if compression == "zstd":
        return zstandard.ZstdCompressor(write_content_size=False).compress(plain)
    return gzip.compress(plain) if compression == "gzip" else plain


def encrypt(plain: bytes, key: bytes) -> bytes:
    vector = os.urandom(16)
    padder = padding.PKCS7(128).padder()
    padded = padder.update(plain) + padder.finalize()
    sealer = Cipher(algorithms.AES(key), modes.CBC(vector)).encryptor()
    return vector + sealer.update(padded) + sealer.finalize()


def write(path: Path, plain: bytes, *, compression: str = "zstd", key: bytes | None = None) -> Path:
    content = compress(plain, compression)
    path.write_bytes(encrypt(content, key) if key else content)
    return path
