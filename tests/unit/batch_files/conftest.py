"""Decoding of single files, without Spark."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from chronolake.batch_files.decoder import ReadOptions, decode_file
from chronolake.batch_files.files import BatchFile, FileForm
from chronolake.change_set import Op
from support import batch_writer
from support.batch_columns import Columns, Decode, columns_of


@pytest.fixture
def decode(tmp_path: Path) -> Decode:
    """Return a function that writes a batch file and reads its change set as one Arrow table."""

    def run(
        content: bytes | str,
        kinds: Columns,
        *,
        op: Op = Op.REPLACE,
        form: str = "csv",
        compression: str = "off",
        key: bytes | None = None,
        required: Sequence[str] = (),
        block_size: int = 4 << 20,
        null: str = batch_writer.NULL,
        unmodified: str = batch_writer.UNMODIFIED,
        primary_key: Sequence[str] = (),
    ) -> pa.Table:
        plain = content.encode() if isinstance(content, str) else content
        path = batch_writer.write(tmp_path / "file", plain, compression=compression, key=key)
        reading = ReadOptions(
            FileForm(form, compression, key is not None, null, unmodified),  # type: ignore[arg-type]
            tuple(
                replace(column, primary_key=column.name in primary_key)
                for column in columns_of(kinds)
            ),
            {op: frozenset(required)},
            "sample.table",
            "batch-1",
            block_size,
        )
        batches = list(decode_file(BatchFile(str(path), op, key), 0, reading))
        return pa.Table.from_batches(batches) if batches else pa.table({})

    return run


@pytest.fixture
def key() -> bytes:
    return b"\x00" + os.urandom(30) + b"\x00"
