"""Mutated files: a typed error or a table, never another exception, never a cell's text."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import structlog

from chronolake.batch_files.decoder import ReadOptions, decode_file
from chronolake.batch_files.files import BatchFile, FileForm
from chronolake.change_set import Op
from chronolake.errors import BatchFileError
from chronolake.types import Column, ColumnType, Kind
from support import batch_writer

KEY = bytes(range(32))
TEXTS = {
    Kind.BOOLEAN: ["true", "false"],
    Kind.SHORT: ["-32768", "17"],
    Kind.INT: ["2147483647", "0"],
    Kind.LONG: ["-9223372036854775808", "42"],
    Kind.DECIMAL: ["12345678901234567.12", "1E3", "0.005"],
    Kind.FLOAT: ["3.4028235E+38", "10.12"],
    Kind.DOUBLE: ["-2.2250738585072014E-308", "NaN"],
    Kind.NAIVE_DATE: ["9999-12-31", "0000-01-01"],
    Kind.NAIVE_DATETIME: ["2024-01-01T10:00:00.123456789", "2024-01-01T10:00:00"],
    Kind.UTC_DATETIME: ["9999-12-31T23:59:59.999Z", "2024-01-01T10:00:00Z"],
    Kind.BINARY: ["3q2+7w==", "[B@7d4991ad"],
    Kind.XML: ['<?xml version="1.0"?>\n<a/>'],
    Kind.STRING: ['a "quoted" text, with a comma', "größe 😀"],
    Kind.JSON: ['{"a": 1}'],
    Kind.NAIVE_TIME: ["10:15:30", "15:00"],
}
COLUMNS = tuple(Column(kind.value, ColumnType(kind)) for kind in Kind)
SPICE = [
    b'"',
    b",",
    b"\n",
    b"\r",
    b"\x00",
    b"\xff",
    b"-",
    b"9" * 40,
    b"E9",
    b"0x",
    b'""',
    b".",
    b"",
]


def sample(draw: random.Random) -> bytes:
    rows = [
        [draw.choice([*TEXTS[kind], None, batch_writer.UNMODIFIED]) for kind in Kind]
        for _ in range(draw.randint(0, 12))
    ]
    return batch_writer.csv_bytes([kind.value for kind in Kind], rows)


def mutated(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice([1, 1, 1, 2, 5])):
        place = draw.randrange(len(changed) + 1)
        match draw.randrange(5):
            case 0 if place < len(changed):
                changed[place] ^= 1 << draw.randrange(8)
            case 1:
                changed[place:place] = draw.choice(SPICE)
            case 2:
                del changed[place : place + draw.randint(1, 20)]
            case 3:
                del changed[place:]
            case _:
                other = draw.randrange(len(changed) + 1)
                changed[place : place + 5] = changed[other : other + draw.randint(1, 40)]
    return bytes(changed)


def attempt(path: Path, form: FileForm, key: bytes | None, block_size: int) -> None:
    options = ReadOptions(form, COLUMNS, {}, "sample.table", "batch-1", block_size)
    rows = 0
    failure: BatchFileError | None = None
    try:
        for batch in decode_file(BatchFile(str(path), Op.UPDATE, key), 0, options):
            batch.validate(full=True)
            rows += batch.num_rows
    except BatchFileError as error:
        failure = error
    if failure is not None:
        assert failure.file == str(path)
        assert failure.row is None or failure.row >= rows
        assert failure.__cause__ is None
        assert failure.__context__ is None
        said = str(failure)
        assert not any(text in said for texts in TEXTS.values() for text in texts if len(text) > 9)


def run(folder: Path, seeds: range) -> None:
    with structlog.testing.capture_logs():
        mutate(folder, seeds)


def mutate(folder: Path, seeds: range) -> None:
    path = folder / "f"
    for seed in seeds:
        draw = random.Random(seed)
        compression = draw.choice(["off", "off", "zstd", "gzip"])
        key = draw.choice([None, None, KEY])
        content = sample(draw)
        where = draw.choice(["text", "text", "compressed", "file"])
        if where == "text":
            content = mutated(content, draw)
        content = batch_writer.compress(content, compression)
        if where == "compressed":
            content = mutated(content, draw)
        if key:
            content = batch_writer.encrypt(content, key)
        if where == "file":
            content = mutated(content, draw)
        path.write_bytes(content)
        form = FileForm(
            "csv", compression, key is not None, batch_writer.NULL, batch_writer.UNMODIFIED
        )  # type: ignore[arg-type]
        try:
            attempt(path, form, key, draw.choice([10, 200, 1 << 20]))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_three_hundred_mutations(tmp_path: Path) -> None:
    run(tmp_path, range(300))


@pytest.mark.long
def test_ten_thousand_mutations(tmp_path: Path) -> None:
    run(tmp_path, range(300, 10_300))
