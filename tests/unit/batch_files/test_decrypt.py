"""Decryption and decompression: the result is the original bytes, or an error."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path

import pytest
import zstandard

from chronolake.batch_files.files import BatchFile, FileForm, open_plain
from chronolake.change_set import Op
from chronolake.errors import (
    BatchFileError,
    DecompressionError,
    DecryptionError,
    FileAccessError,
    RefusedPathError,
)
from support import batch_writer


def form(compression: str = "off", *, encrypted: bool = True) -> FileForm:
    return FileForm("csv", compression, encrypted, "null", "unmodified")  # type: ignore[arg-type]


def content(path: Path, how: FileForm, key: bytes | None = None, *, step: int = 1 << 20) -> bytes:
    with open_plain(BatchFile(str(path), Op.REPLACE, key), how) as plain:
        return b"".join(iter(lambda: plain.read(step), b""))


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 31, 32, 33, (16 << 20) + 5])
@pytest.mark.parametrize("step", [7, 1 << 20])
def test_padding_is_removed_at_every_length(
    tmp_path: Path, key: bytes, size: int, step: int
) -> None:
    if size > 1000 and step < 1000:
        step = 100_003
    plain = random.Random(size).randbytes(size)
    path = batch_writer.write(tmp_path / "f", plain, compression="off", key=key)
    assert content(path, form(), key, step=step) == plain


@pytest.mark.parametrize("compression", ["zstd", "gzip"])
@pytest.mark.parametrize("encrypted", [True, False])
@pytest.mark.parametrize("step", [13, 1 << 20])
def test_compressed_content_round_trips(
    tmp_path: Path, key: bytes, compression: str, *, encrypted: bool, step: int
) -> None:
    plain = b"id,name\n" + b"1,sample\n" * 5000
    chosen = key if encrypted else None
    path = batch_writer.write(tmp_path / "f", plain, compression=compression, key=chosen)
    assert content(path, form(compression, encrypted=encrypted), chosen, step=step) == plain


def test_plain_text_that_ends_like_padding_is_kept(tmp_path: Path, key: bytes) -> None:
    plain = b"x" * 14 + b"\x02\x02"
    path = batch_writer.write(tmp_path / "f", plain, compression="off", key=key)
    assert content(path, form(), key) == plain


def test_several_frames_are_one_stream(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(
        batch_writer.compress(b"first ", "zstd") + batch_writer.compress(b"second", "zstd")
    )
    assert content(path, form("zstd", encrypted=False)) == b"first second"


@pytest.mark.parametrize("compression", ["zstd", "gzip"])
@pytest.mark.parametrize("tail", [b"\x00", b"\x00" * 16, b"and more", b"\x28\xb5\x2f"])
def test_bytes_after_the_stream_are_refused(tmp_path: Path, compression: str, tail: bytes) -> None:
    path = tmp_path / "f"
    path.write_bytes(batch_writer.compress(b"id\n1\n", compression) + tail)
    with pytest.raises(DecompressionError):
        content(path, form(compression, encrypted=False))


@pytest.mark.parametrize("compression", ["zstd", "gzip"])
def test_a_stream_cut_anywhere_is_refused(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "f"
    whole = batch_writer.compress(b"id,name\n" + os.urandom(60), compression)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DecompressionError):
            content(path, form(compression, encrypted=False))


def test_an_encrypted_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    key = bytes(range(32))
    whole = batch_writer.encrypt(batch_writer.compress(b"id\n" + b"12345\n" * 40, "zstd"), key)
    path = tmp_path / "f"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises((DecryptionError, DecompressionError)) as caught:
            content(path, form("zstd"), key)
        assert caught.value.file == str(path)
        if length % 16 or length < 32:
            assert isinstance(caught.value, DecryptionError)


def test_a_wrong_key_is_refused(tmp_path: Path) -> None:
    path = batch_writer.write(tmp_path / "f", b"id\n" * 99, key=bytes(32))
    found = []
    for number in range(200):
        wrong = random.Random(number).randbytes(32)
        with pytest.raises((DecryptionError, DecompressionError)) as caught:
            content(path, form("zstd"), wrong)
        found.append(type(caught.value))
        assert wrong.hex() not in str(caught.value)
    # One in 256 wrong keys produces something that looks like padding.
    assert found.count(DecryptionError) > 190


@pytest.mark.parametrize("wrong", [None, b"", b"short", bytes(31), bytes(33)])
def test_an_impossible_key_is_refused(tmp_path: Path, wrong: bytes | None) -> None:
    path = batch_writer.write(tmp_path / "f", b"id\n", key=bytes(32))
    with pytest.raises(DecryptionError) as caught:
        content(path, form("zstd"), wrong)
    assert caught.value.file == str(path)


@pytest.mark.parametrize(("written", "said"), [("gzip", "zstd"), ("zstd", "gzip"), ("off", "zstd")])
def test_a_wrong_compression_is_refused(tmp_path: Path, written: str, said: str) -> None:
    path = batch_writer.write(tmp_path / "f", b"id\n1\n", compression=written, key=bytes(32))
    with pytest.raises(DecompressionError, match="another compression, or the key"):
        content(path, form(said), bytes(32))


def test_a_frame_that_wants_a_huge_window_is_refused(tmp_path: Path) -> None:
    huge = zstandard.ZstdCompressionParameters.from_level(3, window_log=28, enable_ldm=True)
    path = tmp_path / "f"
    made = zstandard.ZstdCompressor(compression_params=huge).compressobj()
    path.write_bytes(made.compress(b"id\n" * 100) + made.flush())
    with pytest.raises(DecompressionError):
        content(path, form("zstd", encrypted=False))


def test_a_bomb_is_read_a_little_at_a_time(tmp_path: Path) -> None:
    made = zstandard.ZstdCompressor().compressobj()
    path = tmp_path / "f"
    with path.open("wb") as file:
        for _ in range(64):
            file.write(made.compress(bytes(1 << 20)))
        file.write(made.flush())
    assert path.stat().st_size < 20_000
    with open_plain(BatchFile(str(path), Op.REPLACE), form("zstd", encrypted=False)) as plain:
        assert plain.read(1000) == bytes(1000)


@pytest.mark.parametrize("name", ["missing", "", "nul\0byte"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name) if name else str(tmp_path)
    with (
        pytest.raises(FileAccessError) as caught,
        open_plain(BatchFile(path, Op.REPLACE), form(encrypted=False)),
    ):
        pass
    assert caught.value.file == path


def test_a_file_outside_the_root_is_refused_in_the_executor(tmp_path: Path) -> None:
    inside = tmp_path / "root"
    inside.mkdir()
    (tmp_path / "f").write_bytes(b"id\n")
    (inside / "link").symlink_to(tmp_path / "f")
    for path in (tmp_path / "f", inside / ".." / "f", inside / "link"):
        with (
            pytest.raises(RefusedPathError),
            open_plain(BatchFile(str(path), Op.REPLACE, None, str(inside)), form(encrypted=False)),
        ):
            pass


def test_flipped_bits_never_escape_as_another_error(tmp_path: Path, key: bytes) -> None:
    plain = b"id,name\n" + b"1,sample\n" * 50
    path = batch_writer.write(tmp_path / "f", plain, key=key)
    whole = path.read_bytes()
    draw = random.Random(11)
    for _ in range(200):
        place = draw.randrange(len(whole))
        flipped = bytearray(whole)
        flipped[place] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
        with contextlib.suppress(BatchFileError):
            content(path, form("zstd"), key)


def test_a_files_key_is_never_shown() -> None:
    secret = b"0123456789abcdef0123456789abcdef"
    assert "0123456789" not in repr(BatchFile("f", Op.REPLACE, secret))
