"""Files of a data lake that cannot be read are named, whatever is wrong with them."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chronolake.errors import BadFileError
from chronolake.landing.control_records import Namings
from chronolake.landing.field_types import GUARANTEED
from chronolake.landing.footers import Footers, read_footers
from chronolake.landing.layout import DataFile
from chronolake.parquet_footer import StoredColumn, stored_columns

_COUNT = 3
_KEY, _MODIFIED, _SEQUENCE = GUARANTEED


def rows(count: int = _COUNT, **more: Any) -> pa.Table:
    texts = pa.array([str(number) for number in range(count)], pa.string())
    times = pa.array([0] * count, pa.timestamp("us", "UTC"))
    return pa.table({_KEY: texts, _MODIFIED: times, _SEQUENCE: texts, **more})


def footers(path: Path) -> list[Footers]:
    # Footers of a few files are read without Spark.
    spark: Any = None
    file = DataFile("05", path.stem.removeprefix("data-"), path, path.stat().st_size)
    return read_footers(spark, [file], Namings())


def columns_in(path: Path) -> list[StoredColumn]:
    with pa.OSFile(str(path)) as file:
        return stored_columns(file)


def refused(path: Path) -> str:
    with pytest.raises(BadFileError) as raised:
        footers(path)
    assert path.name in str(raised.value)
    return raised.value.message


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data-1.parquet"


def test_every_codec_is_found_as_it_was_written(path: Path) -> None:
    nested = pa.array([[{"a": 1, "b": [1.5]}]] * _COUNT)
    numbers = {"none": 0, "snappy": 1, "gzip": 2, "brotli": 4, "zstd": 6, "lz4": 7}
    for codec, number in numbers.items():
        table = rows(nested=nested, truth=pa.array([True] * _COUNT), half=pa.nulls(_COUNT))
        pq.write_table(table, path, compression=codec, row_group_size=2)
        columns = columns_in(path)
        assert len(columns) == 2 * 7
        assert {column.codec for column in columns} == {number}


def test_an_unknown_compression_is_named(path: Path) -> None:
    """PyArrow ends the process if it is asked for the compression."""
    pq.write_table(rows(), path)
    content = path.read_bytes()
    (length,) = struct.unpack("<I", content[-8:-4])
    known = columns_in(path)
    for place in range(len(content) - 8 - length, len(content) - 8):
        path.write_bytes(content[:place] + bytes([2 * 14]) + content[place + 1 :])
        try:
            found = columns_in(path)
        except IndexError:
            continue
        if len(found) == len(known) and found[0].codec == 14 and found[1:] == known[1:]:
            break
    program = (
        "import sys; sys.path.insert(0, 'tests'); from pathlib import Path;"
        f"from unit.test_footers import refused; print(refused(Path({str(path)!r})))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert "a column has an unknown compression (14)" in done.stdout, done.stderr


_DAMAGE = """
import sys
from pathlib import Path
sys.path.insert(0, "tests")
from chronolake.errors import BadFileError
from support.damaged_parquet import damage_footers
from unit.test_footers import footers, pa, pq, rows

path = Path(sys.argv[1])
pq.write_table(rows(X=pa.array([1, 2, None]), Y=pa.array([["a"], [], None])), path)
for damaged in damage_footers(path.read_bytes(), seed=7, number=800):
    path.write_bytes(damaged)
    try:
        footers(path)
    except BadFileError as refused:
        assert refused.message.isprintable()
"""


def test_a_damaged_footer_never_ends_the_process(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _DAMAGE, str(path)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


def test_a_name_that_is_not_text_is_a_flaw_of_the_file(path: Path) -> None:
    pq.write_table(rows(XYZW=pa.array([1, 2, 3])), path)
    path.write_bytes(path.read_bytes().replace(b"XYZW", b"\xff\xfe\xfd\xfc"))

    assert "a name in it is not UTF-8" in refused(path)


def test_two_columns_with_one_name_are_a_flaw_of_the_file(path: Path) -> None:
    table = rows(X=pa.array([1, 2, 3]))
    pq.write_table(table.append_column("X", table.column("X")), path)

    assert refused(path) == "The file has 2 columns with the name X."


@pytest.mark.parametrize("name", GUARANTEED)
def test_a_guaranteed_column_without_any_value_is_a_flaw_of_the_file(path: Path, name: str) -> None:
    def without(count: int) -> pa.Table:
        table = rows(count)
        return table.set_column(table.schema.get_field_index(name), name, pa.nulls(count))

    pq.write_table(without(_COUNT), path)
    assert refused(path) == f"The column {name} has no values, which every row must have."

    # A file without rows needs no values.
    pq.write_table(without(0), path)
    assert footers(path) == []
