"""Avro files: their schema without Spark, and the numbers of their rows with it.

Source: the specification of Apache Avro 1.11, "Object Container Files". Avro's reader takes a file
that ends within a block for a complete one, so the end of each file is checked here.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final

import orjson
import pyarrow as pa
from pyspark.sql import types as spark_types

from chronolake.arrow_tasks import map_in_tasks
from chronolake.change_set import RESERVED
from chronolake.errors import MissingRequirementError, SourceError
from chronolake.jars import avro_reader
from chronolake.landing.layout import open_file
from chronolake.relocation.avro_file import read_long
from chronolake.spark_requirements import has_class

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from chronolake.landing import Location

#: Times before 1900 are as they are stored: other writers than Spark have the same calendar.
OPTIONS: Final = {"datetimeRebaseMode": "CORRECTED"}

_MAGIC: Final = b"Obj\x01"
_SCHEMA: Final = b"avro.schema"
_SYNC_BYTES: Final = 16
#: Bytes of a file in which its header must end.
_HEADER_BYTES: Final = 2**22
_CLASS: Final = "org.apache.spark.sql.avro.AvroFileFormat"

#: The part of a file that a row is from: the file's URI, the first byte, and the length.
_PART: Final = tuple(f"{RESERVED}part_{name}" for name in ("uri", "start", "length"))


def expect_reader(spark: SparkSession) -> None:
    """Raise if an application's own session cannot read Avro files.

    Raises:
        MissingRequirementError: Spark's jar for Avro is not on the class path.
    """
    if not has_class(spark, _CLASS):
        raise MissingRequirementError(
            "The Spark session cannot read Avro files.",
            hint=f"Add {avro_reader(spark.version).coordinates} to spark.jars.packages.",
        )


def schema_in(location: Location) -> bytes | str:
    """Return the schema of a file as JSON, or why the file is not a complete Avro file."""
    with open_file(location) as content:
        data: bytes = content.read(_HEADER_BYTES)
        if data[: len(_MAGIC)] != _MAGIC:
            return "it is not an Avro file"
        try:
            schema, sync = _header_in(data)
        except (IndexError, ValueError):
            return "its header is damaged"
        content.seek(content.size() - _SYNC_BYTES, os.SEEK_SET)
        if content.read(_SYNC_BYTES) != sync:
            return "it is not complete"
    return schema


def _header_in(data: bytes) -> tuple[bytes, bytes]:
    """Return the schema and the sync marker in the begin of a file."""
    position = len(_MAGIC)
    schema = None
    while True:
        count, position = read_long(data, position)
        if not count:
            break
        if count < 0:
            _, position = read_long(data, position)
        for _ in range(abs(count)):
            size, position = read_long(data, position)
            name, position = data[position : position + size], position + size
            size, position = read_long(data, position)
            if name == _SCHEMA:
                schema = orjson.dumps(orjson.loads(data[position : position + size]))
            position += size
    sync = data[position : position + _SYNC_BYTES]
    if schema is None or len(sync) < _SYNC_BYTES:
        raise ValueError
    return schema, sync


def add_row_numbers(rows: DataFrame, uri: str, row: str) -> DataFrame:
    """Return the rows of Avro files with the URI of their file, and their number in it from 0.

    Each task reads parts of files. A first pass counts the rows of all parts.

    Args:
        rows: the rows as Spark reads them.
        uri: the name of the column with the URI.
        row: the name of the column with the number.
    """
    place = rows.metadataColumn("_metadata")
    parts = [
        place[name].alias(own)
        for name, own in zip(
            ("file_path", "file_block_start", "file_block_length"), _PART, strict=True
        )
    ]
    firsts: dict[tuple[str, int, int], int] = {}
    file, total = None, 0
    for found in sorted(rows.select(*parts).groupBy(*_PART).count().collect()):
        if found[0] != file:
            file, total = found[0], 0
        firsts[found[0], found[1], found[2]] = total
        total += found[3]
    fields = [
        *rows.schema.fields,
        spark_types.StructField(uri, spark_types.StringType()),
        spark_types.StructField(row, spark_types.LongType()),
    ]
    step = partial(_number_rows, names=(*rows.columns, uri, row), firsts=firsts)
    return map_in_tasks(rows.select("*", *parts), step, spark_types.StructType(fields))


def _number_rows(
    batches: Iterable[pa.RecordBatch],
    *,
    names: Sequence[str],
    firsts: Mapping[tuple[str, int, int], int],
) -> Iterator[pa.RecordBatch]:
    """Yield rows with their file and number; the rows of a part come one after the other.

    Raises:
        SourceError: the files were not split as they were when their rows were counted.
    """
    part, number = None, 0
    for batch in batches:
        numbers = []
        for key in zip(*(batch[name].to_pylist() for name in _PART), strict=True):
            if key != part:
                if key not in firsts:
                    raise SourceError(
                        "The number of the cluster's cores has changed while files were read.",
                        hint="Run the sync again.",
                    )
                part, number = key, firsts[key]
            numbers.append(number)
            number += 1
        arrays = batch.columns[: -len(_PART)]
        places = [batch[_PART[0]], pa.array(numbers, pa.int64())]
        yield pa.RecordBatch.from_arrays([*arrays, *places], names=[*names])
