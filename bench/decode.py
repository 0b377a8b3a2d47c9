"""Decoding of batch files: encrypted, compressed CSV to typed DataFrame columns.

Claims, on two cores:

1. Eight files (AES-256-CBC, zstd, CSV of nine columns of eight types) become typed DataFrame
   columns at 120 MB of CSV a second or more.
2. One file is decoded at 80 % or more of what PyArrow alone reaches with it: decrypt, decompress
   and `pyarrow.csv` straight to types, in plain Python, without Spark and without its checks.
3. The memory of the Python worker that decodes a file is flat from 10 MB to 1 GB of CSV, and below
   512 MiB.

Both sides are measured alternately in one run; the median counts. The sink is Spark's `noop`, so
every column of every row reaches the JVM. CPU seconds of all processes together are printed beside
the speed.

PyArrow is measured in two ways: step by step, and at its best, where it decompresses on one core
what it parses on the other. Columns that have been decoded before go through Spark, too: with
PyArrow's own work, they show how much of that best two cores could reach at all.

    python bench/decode.py [--quick]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import zstandard
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from pyarrow import csv as pa_csv
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from chronolake.batch_files import BatchFile, FileForm, read
from chronolake.batch_files.decoder import ReadOptions, decode_file
from chronolake.change_set import Op
from chronolake.types import TMAX_TEXT, Column, ColumnType, Kind

NULL = "null-m8yilkvPsNulehxl2G6pmSQ3G3WWdLP"
UNMODIFIED = "unmod-NcK9NIjPUutCsz4mjOQQztbnwnE1sY3"
FORM = FileForm("csv", "zstd", encrypted=True, null_string=NULL, unmodified_string=UNMODIFIED)
COLUMNS = (
    Column("id", ColumnType(Kind.LONG), primary_key=True),
    Column("name", ColumnType(Kind.STRING)),
    Column("amount", ColumnType(Kind.DECIMAL, 18, 2)),
    Column("ratio", ColumnType(Kind.DOUBLE)),
    Column("active", ColumnType(Kind.BOOLEAN)),
    Column("day", ColumnType(Kind.NAIVE_DATE)),
    Column("_fivetran_synced", ColumnType(Kind.UTC_DATETIME)),
    Column("_fivetran_end", ColumnType(Kind.UTC_DATETIME)),
    Column("note", ColumnType(Kind.STRING)),
)
NAMES = ["alpha", '"bravo delta"', "charlie", "x-ray", '"hello, world"', '"say ""hi"""', NULL]
ROWS_AT_ONCE = 20_000

EIGHT: Final = "eight files"
ONE: Final = "one file"
IN_TURN: Final = "PyArrow alone, step by step"
BEST: Final = "PyArrow alone, two steps at once"
CARRIED: Final = "one file, decoded before, through Spark"


class Sealed:
    """A file that is compressed and encrypted while it is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.key = os.urandom(32)
        vector = os.urandom(16)
        self._file = path.open("wb")
        self._file.write(vector)
        self._packer = zstandard.ZstdCompressor(level=3).compressobj()
        self._sealer = Cipher(algorithms.AES(self.key), modes.CBC(vector)).encryptor()
        self._rest = b""

    def write(self, plain: bytes) -> None:
        self._seal(self._packer.compress(plain))

    def _seal(self, packed: bytes) -> None:
        self._rest += packed
        whole = len(self._rest) // 16 * 16
        self._file.write(self._sealer.update(self._rest[:whole]))
        self._rest = self._rest[whole:]

    def close(self) -> BatchFile:
        self._seal(self._packer.flush())
        count = 16 - len(self._rest)
        self._file.write(self._sealer.update(self._rest + bytes([count]) * count))
        self._file.close()
        return BatchFile(str(self.path), Op.REPLACE, self.key)


def generate(path: Path, size: int, seed: int) -> tuple[BatchFile, int]:
    """Write a file of about `size` bytes of CSV; return it and the exact number of bytes."""
    draw = np.random.default_rng(seed)
    sealed = Sealed(path)
    header = (",".join(column.name for column in COLUMNS) + "\n").encode()
    sealed.write(header)
    written, first = len(header), 0
    while written < size:
        cents = draw.integers(0, 10**9, ROWS_AT_ONCE)
        ratio = draw.random(ROWS_AT_ONCE)
        small = draw.integers(0, 10**6, ROWS_AT_ONCE)
        lines = [
            f"{first + i},{NAMES[small[i] % len(NAMES)]},{cents[i] / 100:.2f},{ratio[i]:.12g},"
            f"{'true' if small[i] & 1 else 'false'},2024-03-{small[i] % 28 + 1:02d},"
            f"2025-11-21T14:59:{i % 60:02d}.{small[i] % 1000:03d}Z,{TMAX_TEXT},"
            f'"note number {small[i]} for a row"\n'
            for i in range(ROWS_AT_ONCE)
        ]
        chunk = "".join(lines).encode()
        sealed.write(chunk)
        written += len(chunk)
        first += ROWS_AT_ONCE
    return sealed.close(), written


def in_turn(file: BatchFile) -> int:
    """Run PyArrow alone: decrypt, decompress, parse, in sequence; return the number of rows."""
    plain = zstandard.ZstdDecompressor().decompressobj().decompress(_packed(file))
    return int(pa_csv.read_csv(pa.BufferReader(plain), **_typed()).num_rows)


def at_its_best(file: BatchFile) -> int:
    """Run PyArrow alone, which decompresses while it parses; return the number of rows."""
    plain = pa.CompressedInputStream(pa.BufferReader(_packed(file)), "zstd")
    options = _typed() | {"read_options": pa_csv.ReadOptions(block_size=4 << 20)}
    return sum(batch.num_rows for batch in pa_csv.open_csv(plain, **options))


def _packed(file: BatchFile) -> bytes:
    sealed = Path(file.path).read_bytes()
    opener = Cipher(algorithms.AES(file.key or b""), modes.CBC(sealed[:16])).decryptor()
    packed = opener.update(memoryview(sealed)[16:]) + opener.finalize()
    return packed[: -packed[-1]]


def _typed() -> dict[str, Any]:
    return {
        "parse_options": pa_csv.ParseOptions(newlines_in_values=True),
        "convert_options": pa_csv.ConvertOptions(
            column_types={column.name: column.type.arrow for column in COLUMNS},
            null_values=[NULL],
            strings_can_be_null=True,
        ),
    }


def through_spark(spark: SparkSession, files: list[BatchFile]) -> None:
    frame = read(spark, files, COLUMNS, FORM, required={}, table="bench.t", batch="bench")
    frame.write.format("noop").mode("overwrite").save()


def carried(spark: SparkSession, path: Path, schema: pa.Schema) -> None:
    """Send decoded columns through Spark: the cost that no decoder in Python can save."""

    def batches(nothing: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Spark does not reuse a worker that leaves some of its input unread.
        deque(nothing, maxlen=0)
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
            yield from (file.get_batch(index) for index in range(file.num_record_batches))

    frame = spark.range(0, 1, 1, 1).mapInArrow(batches, from_arrow_schema(schema))
    frame.write.format("noop").mode("overwrite").save()


def kept_decoded(file: BatchFile, path: Path) -> pa.Schema:
    """Decode a file without Spark, into an Arrow file; return its schema."""
    rows = decode_file(
        file, 0, ReadOptions(FORM, COLUMNS, required={}, table="bench.t", batch="bench")
    )
    first = next(rows)
    with pa.ipc.new_file(path, first.schema) as sink:
        for batch in chain([first], rows):
            sink.write(batch)
    return first.schema


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Return wall-clock seconds, and CPU seconds of this process and all below it."""
    used, started = _processor_seconds(), time.perf_counter()
    action()
    return time.perf_counter() - started, _processor_seconds() - used


def _processor_seconds() -> float:
    ticks = 0
    for process in {os.getpid(), *_descendants(os.getpid())}:
        try:
            stat = Path(f"/proc/{process}/stat").read_text()
        except OSError:
            continue
        ticks += sum(int(field) for field in stat.rpartition(")")[2].split()[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


class WorkerMemory:
    """The peak resident memory of any Python worker below this process, sampled.

    Workers are reused, so a smaller file is measured before a larger one.
    """

    def __init__(self) -> None:
        self.peak = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(0.02):
            for process in _descendants(os.getpid()):
                self.peak = max(self.peak, _worker_memory(process))


def _descendants(root: int) -> set[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = {root}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {root}


def _worker_memory(process: int) -> int:
    """Return the resident bytes of a PySpark worker; 0 for anything else."""
    try:
        command = Path(f"/proc/{process}/cmdline").read_bytes()
        if (
            b"chronolake.spark_worker_daemon" not in command
            or b"java" in command.partition(b"\0")[0]
        ):
            return 0
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.caseSensitive", "true")
        .config("spark.driver.memory", "2g")
        .config("spark.python.daemon.module", "chronolake.spark_worker_daemon")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def speed(spark: SparkSession, folder: Path, size: int, runs: int) -> None:
    made = [generate(folder / f"speed {number}", size, number) for number in range(8)]
    files, sizes = [file for file, _ in made], [written for _, written in made]
    big, whole = generate(folder / "one", size * 8, 99)
    plain = folder / "decoded"
    schema = kept_decoded(big, plain)
    for _ in range(5):  # JVM warm-up: a server that has run for a minute has compiled all
        through_spark(spark, files)
        through_spark(spark, [big])
        in_turn(big)
        at_its_best(big)
        carried(spark, plain, schema)
    ways: dict[str, tuple[int, Callable[[], object]]] = {
        EIGHT: (sum(sizes), lambda: through_spark(spark, files)),
        ONE: (whole, lambda: through_spark(spark, [big])),
        IN_TURN: (whole, lambda: in_turn(big)),
        BEST: (whole, lambda: at_its_best(big)),
        CARRIED: (whole, lambda: carried(spark, plain, schema)),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(runs):
        for name, (amount, way) in ways.items():
            found[name].append(_rates(amount, timed(way)))
    print(f"{'what':<44}{'MB of CSV a second':>20}{'CPU s for 100 MB':>20}{'claim':>10}")
    for name, rates in found.items():
        speeds, seconds = zip(*rates, strict=True)
        claim = ">= 120" if name == EIGHT else ""
        print(
            f"{name:<44}{statistics.median(speeds):>20.0f}"
            f"{statistics.median(seconds):>20.2f}{claim:>10}"
        )

    def ratio(name: str) -> float:
        both = zip(found[ONE], found[name], strict=True)
        return statistics.median(ours[0] / theirs[0] for ours, theirs in both)

    for name in (IN_TURN, BEST):
        print(f"{f'{ONE} / {name}':<64}{ratio(name):>20.2f}{'>= 0.80':>10}")
    # Both cores are busy all the time with PyArrow's and Spark's work, without our checks.
    limit = statistics.median(
        200 / (best[1] + rows[1]) / best[0]
        for best, rows in zip(found[BEST], found[CARRIED], strict=True)
    )
    print(f"{'the most that two cores could reach of that':<64}{limit:>20.2f}")


def _rates(size: int, seconds: tuple[float, float]) -> tuple[float, float]:
    """Return MB a second by the clock, and CPU seconds for 100 MB."""
    return size / seconds[0] / 1e6, seconds[1] / size * 1e8


def memory(spark: SparkSession, folder: Path, sizes: list[int]) -> None:
    print(f"\n{'CSV in one file, MB':<36}{'peak of a worker, MiB':>22}{'claim':>28}")
    for size in sizes:
        file, written = generate(folder / "memory", size, size % 1000)
        with WorkerMemory() as seen:
            through_spark(spark, [file])
        print(f"{written / 1e6:<36.0f}{seen.peak / 2**20:>22.0f}{'< 512':>28}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--quick", action="store_true", help="small files, few runs")
    quick = options.parse_args().quick
    spark = session()
    with tempfile.TemporaryDirectory() as folder:
        speed(spark, Path(folder), 5_000_000 if quick else 50_000_000, 3 if quick else 5)
        sizes = [10_000_000, 50_000_000] if quick else [10_000_000, 100_000_000, 1_000_000_000]
        memory(spark, Path(folder), sizes)
    spark.stop()


if __name__ == "__main__":
    main()
