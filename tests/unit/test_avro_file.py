"""Avro files are changed field by field, and every other byte stays as it was."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record as Partition
from pyiceberg.types import LongType, NestedField

from chronolake.relocation.avro_file import (
    Record,
    change_records,
    read_bytes,
    read_long,
    write_bytes,
    write_long,
)

_SYNC: Final = b"0123456789abcdef"
_SCHEMA: Final[dict[str, Any]] = {
    "type": "record",
    "name": "outer",
    "fields": [
        {"name": "path", "type": "string", "field-id": 1},
        {"name": "size", "type": ["null", "long"], "field-id": 2},
        {
            "name": "values",
            "type": {
                "type": "record",
                "name": "inner",
                "fields": [
                    {"name": "flag", "type": "boolean"},
                    {"name": "real", "type": "double"},
                    {"name": "single", "type": "float"},
                    {"name": "four", "type": {"type": "fixed", "name": "four", "size": 4}},
                    {"name": "again", "type": ["four", "null"]},
                    {"name": "when", "type": {"type": "long", "logicalType": "timestamp-micros"}},
                ],
            },
        },
        {"name": "list", "type": {"type": "array", "items": "int"}},
        {"name": "map", "type": {"type": "map", "values": "bytes"}},
        {"name": "last", "type": ["null", "string"], "field-id": 3},
    ],
}
#: The encoding of `values`, `list` (in a block with its size in bytes) and `map`.
_REST: Final = (
    b"\x01" + b"d" * 8 + b"ffff" + b"four" + b"\x00four" + write_long(-5)
    + write_long(-2) + write_long(2) + write_long(1) + write_long(-1) + write_long(0)
    + write_long(1) + write_bytes(b"key") + write_bytes(b"value") + write_long(0)
)  # fmt: skip


def encoded(path: str, size: int | None, last: str | None) -> bytes:
    return (
        write_bytes(path.encode())
        + (write_long(0) if size is None else write_long(1) + write_long(size))
        + _REST
        + (write_long(0) if last is None else write_long(1) + write_bytes(last.encode()))
    )


def avro(records: list[bytes], codec: str = "null") -> bytes:
    block = b"".join(records)
    if codec == "deflate":
        compressor = zlib.compressobj(wbits=-15)
        block = compressor.compress(block) + compressor.flush()
    elif codec == "zstandard":
        block = pa.compress(block, "zstd", asbytes=True)
    metadata = {"avro.schema": json.dumps(_SCHEMA), "avro.codec": codec, "own": "kept"}
    pairs = b"".join(write_bytes(k.encode()) + write_bytes(v.encode()) for k, v in metadata.items())
    head = b"Obj\x01" + write_long(len(metadata)) + pairs + write_long(0) + _SYNC
    return head + (write_long(len(records)) + write_bytes(block) + _SYNC if records else b"")


def records_in(content: bytes) -> list[tuple[str | None, int | None, str | None]]:
    found: list[tuple[str | None, int | None, str | None]] = []
    change_records(
        content,
        lambda record: found.append((record.text(1), record.number(2), record.text(3))),
    )
    return found


@pytest.mark.parametrize("codec", ["null", "deflate", "zstandard"])
def test_a_changed_field_leaves_all_others(codec: str) -> None:
    content = avro([encoded("a/b", 7, None), encoded("c", None, "d")], codec)

    def change(record: Record) -> None:
        record.set_text(1, f"/new/{record.text(1)}")
        record.set_number(2, 2**40)
        record.set_null(3)
        record.set_null(99)

    changed = change_records(content, change)
    assert records_in(changed) == [("/new/a/b", 2**40, None), ("/new/c", 2**40, None)]
    expected = avro([encoded("/new/a/b", 2**40, None), encoded("/new/c", 2**40, None)], "deflate")
    assert changed == expected


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=300))
def test_numbers_and_bytes_are_read_as_written(number: int, value: bytes) -> None:
    assert read_long(write_long(number), 0) == (number, len(write_long(number)))
    assert read_bytes(write_bytes(value) + b"x", 0) == (value, len(write_bytes(value)))


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-20],
        lambda content: content[:-1] + b"x",
        lambda content: content.replace(b"kept", b"ke"),
        lambda content: b"PAR1" + content,
        lambda content: content.replace(b"deflate", b"unknown"),
        lambda content: content.replace(b'"double"', b'"nouble"'),
    ],
)
def test_a_damaged_file_is_an_error(damage: Callable[[bytes], bytes]) -> None:
    content = avro([encoded("a", 1, "b")], "deflate")
    with pytest.raises((ValueError, LookupError, zlib.error)):
        change_records(damage(content), lambda _: None)


def _manifest(folder: Path, files: list[DataFile]) -> ManifestFile:
    schema = Schema(NestedField(1, "id", LongType(), required=False))
    output = PyArrowFileIO().new_output(str(folder / "m.avro"))
    with write_manifest(2, UNPARTITIONED_PARTITION_SPEC, schema, output, 17, "deflate") as writer:
        for file in files:
            writer.add_entry(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED, snapshot_id=17, data_file=file
                )
            )
    return writer.to_manifest_file()


def test_a_manifest_is_changed_as_pyiceberg_reads_it(tmp_path: Path) -> None:
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path="/old/x.parquet",
        file_format=FileFormat.PARQUET,
        partition=Partition(),
        record_count=3,
        file_size_in_bytes=100,
        column_sizes={1: 5},
        value_counts={1: 3},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds={2147483546: b"/old/a", 2147483545: b"12345678"},
        upper_bounds={2147483546: b"/old/b", 2147483545: b"12345678"},
        split_offsets=[4, 50],
        sort_order_id=None,
    )
    manifest = _manifest(tmp_path, [file, file])

    def change(record: Record) -> None:
        inner = record.record(2)
        inner.set_text(100, "/new/x.parquet")
        inner.set_number(104, 1234)
        inner.set_null(132)
        bounds = inner.bytes_by_number(125) or {}
        inner.set_bytes_by_number(125, {**bounds, 2147483546: b"/new/a"})
        record.set_record(2, inner)

    path = tmp_path / "m.avro"
    path.write_bytes(change_records(path.read_bytes(), change))
    entries = manifest.fetch_manifest_entry(PyArrowFileIO())
    assert len(entries) == 2
    for entry in entries:
        found = entry.data_file
        assert found.file_path == "/new/x.parquet"
        assert found.file_size_in_bytes == 1234
        assert found.split_offsets is None
        assert found.lower_bounds == {2147483546: b"/new/a", 2147483545: b"12345678"}
        assert found.upper_bounds == file.upper_bounds
        assert found.value_counts == {1: 3}
        assert entry.snapshot_id == 17
