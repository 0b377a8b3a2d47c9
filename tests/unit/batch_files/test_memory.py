"""The memory of a process that decodes a batch file is bounded, whatever the file contains."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

_LIMIT_MIB: Final = 512
_MIB: Final = 1 << 20

#: Decodes a file as a Spark task does, and prints the process's peak memory in MiB.
_DECODED: Final = """
import sys
from pathlib import Path

from chronolake.batch_files import BatchFile, FileForm
from chronolake.batch_files.decoder import ReadOptions, decode_file
from chronolake.change_set import Op
from chronolake.types import Column, ColumnType, Kind

path, form, kind = sys.argv[1:]
columns = (Column("id", ColumnType(Kind.LONG), True), Column("v", ColumnType(Kind(kind))))
form = FileForm(
    format=form, compression="off", encrypted=False, null_string="nil", unmodified_string="same"
)
reading = ReadOptions(form, columns, {}, "t", "b")
rows = sum(batch.num_rows for batch in decode_file(BatchFile(path, Op.REPLACE), 0, reading))
status = Path("/proc/self/status").read_text().splitlines()
(peak,) = (line.split()[1] for line in status if line.startswith("VmHWM"))
print(rows, int(peak) // 1024)
"""


def _csv(path: Path, cell: bytes, rows: int) -> None:
    with path.open("wb") as file:
        file.write(b"id,v\n")
        for number in range(rows):
            file.write(b"%d,%b\n" % (number, cell))


def _parquet(path: Path, value: str, rows: int, *, alike: bool) -> None:
    schema = pa.schema({"id": pa.int64(), "v": pa.string()})
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=alike) as writer:
        numbers = pa.array(range(rows), pa.int64())
        if alike:
            values = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), [value])
            writer.write_table(pa.table([numbers, values.cast(pa.string())], schema=schema))
            return
        for begin in range(0, rows, 500):
            part = numbers[begin : begin + 500]
            table = pa.table([part, [f"{number}{value}" for number in part.to_pylist()]], schema)
            writer.write_table(table)


FILES: Final[dict[str, tuple[str, str, int, Callable[[Path], None]]]] = {
    "texts of 24 MiB": ("csv", "STRING", 20, lambda path: _csv(path, b"ab" * 12 * _MIB, 20)),
    "texts of 60 MiB": ("csv", "STRING", 8, lambda path: _csv(path, b"ab" * 30 * _MIB, 8)),
    "quoted texts of 60 MiB": (
        "csv",
        "STRING",
        8,
        lambda path: _csv(path, b'"' + b'a""' * 20 * _MIB + b'"', 8),
    ),
    "Base64 of 60 MiB": ("csv", "BINARY", 8, lambda path: _csv(path, b"abcd" * 15 * _MIB, 8)),
    "rows of 60 kB": (
        "parquet",
        "STRING",
        8_000,
        lambda path: _parquet(path, "x" * 60_000, 8_000, alike=False),
    ),
    "one text of 60 kB many times": (
        "parquet",
        "STRING",
        16_000,
        lambda path: _parquet(path, "x" * 60_000, 16_000, alike=True),
    ),
}


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="/proc reports how much memory a process had")
@pytest.mark.parametrize("name", list(FILES))
def test_a_task_needs_less_than_512_mib_whatever_the_cells(tmp_path: Path, name: str) -> None:
    form, kind, rows, write = FILES[name]
    path = tmp_path / "file"
    write(path)
    done = subprocess.run(
        [sys.executable, "-c", _DECODED, str(path), form, kind],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found, peak = map(int, done.stdout.split())
    assert found == rows
    assert peak < _LIMIT_MIB, peak
