"""Batch files as a caller writes them, made without any of the code under test."""

from __future__ import annotations

import gzip
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import zstandard
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7

NULL = "null-m8yilkvPsNulehxl2G6pmSQ3G3WWdLP"
UNMODIFIED = "unmod-NcK9NIjPUutCsz4mjOQQztbnwnE1sY3"


@dataclass(frozen=True)
class SentFile:
    path: str
    key: bytes


def csv_text(header: list[str], rows: list[list[str | None]]) -> str:
    """Return rows as CSV: None is the null marker; other cells are quoted as by the producer."""
    return "".join(",".join(_cell(cell) for cell in line) + "\n" for line in [header, *rows])


def _cell(cell: str | None) -> str:
    if cell is None:
        return NULL
    if len(cell) > 24 or any(character < "-" for character in cell):
        return '"' + cell.replace('"', '""') + '"'
    return cell


def write_batch_file(
    folder: Path,
    name: str,
    content: str | bytes,
    *,
    compression: Literal["off", "zstd", "gzip"] = "zstd",
    encrypted: bool = True,
) -> SentFile:
    """Compress, then encrypt, then write a file; its name gets a random part."""
    data = content.encode() if isinstance(content, str) else content
    suffix = ".csv"
    if compression == "zstd":
        # Streamed, so that the frame does not contain the length of its content.
        packer = zstandard.ZstdCompressor(write_content_size=False).compressobj()
        data, suffix = packer.compress(data) + packer.flush(), suffix + ".zstd"
    elif compression == "gzip":
        data, suffix = gzip.compress(data), suffix + ".gz"
    key = secrets.token_bytes(32)
    if encrypted:
        vector = os.urandom(16)
        padder = PKCS7(128).padder()
        sealer = Cipher(algorithms.AES(key), modes.CBC(vector)).encryptor()
        padded = padder.update(data) + padder.finalize()
        data, suffix = vector + sealer.update(padded) + sealer.finalize(), suffix + ".aes"
    path = folder / f"{name}_{secrets.token_hex(4)}{suffix}"
    path.write_bytes(data)
    return SentFile(str(path), key)
