"""Footers of Parquet files: their schemas, declarations, and column statistics.

Footers of many files are read and aggregated in Spark tasks: the driver gets one row for each
different schema and task.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from chronolake.errors import ObjectStoreError, SourceError
from chronolake.landing import field_types as lake_fields
from chronolake.landing.bad_file import BadFile, bad_file_error
from chronolake.landing.field_types import GUARANTEED, HOURLY_GUARANTEED, fields_of
from chronolake.landing.file_schema import (
    DECLARATION,
    Declaration,
    each_once_in,
    fields_declared,
    from_json,
    with_names,
)
from chronolake.landing.layout import HourlyFile, open_file
from chronolake.object_store import BucketPath
from chronolake.parquet_footer import flaw_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from chronolake.config import StorageConfig
    from chronolake.landing.control_records import Namings
    from chronolake.landing.field_types import Fields
    from chronolake.landing.layout import DataFile, ObjectFolder

_FILES_PER_TASK: Final = 50
#: Compressions and encodings that Spark does not support.
_UNSUPPORTED: Final = {
    "BROTLI": "compressed with Brotli",
    "LZO": "compressed with LZO",
    "BYTE_STREAM_SPLIT": "encoded as BYTE_STREAM_SPLIT",
}
_SCHEMA: Final = (
    "numbers array<int>, renamed int, schema binary, rows bigint, columns binary, "
    "problem string, is_lost boolean"
)


@dataclass(frozen=True)
class ColumnStatistics:
    """Statistics of a column in some files, from their footers only.

    Attributes:
        values: number of cells that are not null.
        bounds: the least and the greatest integer; None if there are no integers.
        has_text: whether some text is not empty.
        is_complete: whether every file has statistics; if not, there may be more values.
    """

    values: int = 0
    bounds: tuple[int, int] | None = None
    has_text: bool = False
    is_complete: bool = True

    def merge(self, other: ColumnStatistics) -> ColumnStatistics:
        """Return the statistics of these files and others together."""
        bounds = [
            bound
            for statistics in (self, other)
            if statistics.bounds
            for bound in statistics.bounds
        ]
        return ColumnStatistics(
            self.values + other.values,
            (min(bounds), max(bounds)) if bounds else None,
            self.has_text or other.has_text,
            self.is_complete and other.is_complete,
        )


@dataclass(frozen=True)
class Footers:
    """Footers of files with one schema.

    Attributes:
        fields: their fields by column, with current names.
        unread: other columns, which have no values and are not read.
        numbers: their numbers in the list that was read.
        rows: number of rows.
        columns: their statistics, by column.
        declaration: the declaration in files of our own; empty for files of other writers.
        each_once: the name under which they declare to contain each record at most once, or None.
        is_hourly: whether they are of a Data Lake v1.
    """

    fields: Fields
    numbers: tuple[int, ...]
    rows: int
    columns: dict[str, ColumnStatistics]
    declaration: Declaration = ()
    each_once: str | None = None
    unread: frozenset[str] = frozenset()
    is_hourly: bool = False


def read_footers(spark: SparkSession, files: Sequence[DataFile], namings: Namings) -> list[Footers]:
    """Read the footers of files that have rows or declare columns.

    Raises:
        BadFileError: files cannot be read, lack a guaranteed column, or have a column that cannot
            be read.
        SourceError: a file does not exist or may not be read.
    """
    found: dict[tuple[int, bytes], list[Any]] = {}
    bad: list[BadFile] = []
    before = [namings.before(file) for file in files]
    for row in _read_footers(spark, files, before):
        if row["problem"] is None:
            found.setdefault((row["renamed"], bytes(row["schema"])), []).append(row)
            continue
        file = files[row["numbers"][0]]
        if row["is_lost"]:
            raise SourceError(
                f"The file cannot be opened: {row['problem']}.",
                file=str(file.path),
                hint="Check that the file exists and is readable, and sync again.",
            )
        bad.append(BadFile(file.mark, row["problem"]))
    read = []
    for (renamed, text), rows in found.items():
        numbers = tuple(sorted(number for row in rows for number in row["numbers"]))
        schema = pa.ipc.read_schema(pa.py_buffer(text))
        columns: dict[str, ColumnStatistics] = {}
        for row in rows:
            for name, reported in orjson.loads(row["columns"]).items():
                known = ColumnStatistics(**reported)
                columns[name] = known.merge(columns.get(name, ColumnStatistics()))
        count = sum(row["rows"] for row in rows)
        first = files[numbers[0]]
        declaration = _declaration(schema, first)
        if not (count or declaration):
            continue
        is_hourly = isinstance(first, HourlyFile)
        if flaw := _flaw_in(schema, columns, count, is_hourly=is_hourly):
            column, reason = flaw
            bad += [BadFile(files[number].mark, reason, column) for number in numbers]
            continue
        names = namings.since(renamed, (field.column.name for field in declaration))
        fields = _fields(schema, declaration, names or dict(namings.of_others), first)
        declaration = with_names(declaration, names)
        once = _each_once(schema)
        unread = frozenset(schema.names) - fields.keys()
        read.append(Footers(fields, numbers, count, columns, declaration, once, unread, is_hourly))
    if bad:
        places = {file.mark: number for number, file in enumerate(files)}
        raise bad_file_error(files, sorted(bad, key=lambda file: places[file.mark]))
    return read


def _unreadable(words: str) -> str:
    return f"The file is not a readable Parquet file: {words.rstrip('.')}."


def _printable(text: str) -> str:
    """Return a message without the control characters that a corrupt file puts into it."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def _read_footers(
    spark: SparkSession, files: Sequence[DataFile], renamed: Sequence[int]
) -> list[Mapping[str, Any]]:
    """Return footers by schema, as rows of `_SCHEMA`."""
    listed = pa.table(
        {
            "number": pa.array(range(len(files)), pa.int32()),
            "renamed": pa.array(renamed, pa.int32()),
            "path": pa.array([str(file.path) for file in files], pa.string()),
        }
    )
    first = files[0].path if files else None
    summarize = partial(
        _summarize, storage=first.storage if isinstance(first, BucketPath) else None
    )
    if len(files) <= _FILES_PER_TASK:
        # Reading these files takes less time than starting a Spark job.
        reported: list[Mapping[str, Any]] = pa.Table.from_batches(
            summarize(listed.to_batches())
        ).to_pylist()
        return reported
    tasks = min(spark.sparkContext.defaultParallelism, len(files) // _FILES_PER_TASK)
    found = spark.createDataFrame(listed).repartition(tasks).mapInArrow(summarize, _SCHEMA)
    return [row.asDict() for row in found.collect()]


def _summarize(
    batches: Iterable[pa.RecordBatch], *, storage: StorageConfig | None
) -> Iterator[pa.RecordBatch]:
    """Aggregate footers by schema, in an executor."""
    by_schema: dict[
        tuple[int, bytes], tuple[list[int], list[int], dict[str, ColumnStatistics]]
    ] = {}
    problems: list[tuple[int, str, bool]] = []
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("number", "renamed", "path"))
        for number, renamed, path in zip(*columns, strict=True):
            try:
                location = Path(path) if storage is None else BucketPath(path, storage)
                with open_file(location) as file:
                    footer = pq.read_metadata(file)
                    schema = _schema_of(footer)
                    problem = _unsupported_in(file, footer)
                statistics = [] if problem else list(_statistics(footer))
            except UnicodeDecodeError:
                problems.append((number, _unreadable("a name in it is not UTF-8"), False))
                continue
            except ObjectStoreError as failure:
                problems.append((number, failure.message.rstrip("."), True))
                continue
            except (OSError, pa.ArrowException) as failure:
                is_lost = isinstance(failure, OSError) and failure.errno is not None
                words = _printable(str(failure).partition("\n")[0])
                problem = words if is_lost else _unreadable(words)
                problems.append((number, problem, is_lost))
                continue
            if problem is not None:
                problems.append((number, problem, False))
                continue
            key = renamed, schema.serialize().to_pybytes()
            numbers, rows, sums = by_schema.setdefault(key, ([], [], {}))
            numbers.append(number)
            rows.append(footer.num_rows)
            for name, known in statistics:
                sums[name] = known.merge(sums.get(name, ColumnStatistics()))
    reported: list[tuple[list[int], int, bytes | None, int, bytes | None, str | None, bool]] = [
        (numbers, renamed, schema_text, sum(rows), orjson.dumps(sums), None, False)
        for (renamed, schema_text), (numbers, rows, sums) in by_schema.items()
    ]
    reported += [([number], 0, None, 0, None, problem, lost) for number, problem, lost in problems]
    kinds = [pa.list_(pa.int32()), pa.int32(), pa.binary(), pa.int64(), pa.binary(), pa.string()]
    kinds.append(pa.bool_())
    found = zip(*reported, strict=True) if reported else [[]] * len(kinds)
    yield pa.RecordBatch.from_arrays(
        [pa.array(list(column), kind) for column, kind in zip(found, kinds, strict=True)],
        names=["numbers", "renamed", "schema", "rows", "columns", "problem", "is_lost"],
    )


def _each_once(schema: pa.Schema) -> str | None:
    text = (schema.metadata or {}).get(DECLARATION)
    return None if text is None else each_once_in(text)


def _schema_of(footer: pq.FileMetaData) -> pa.Schema:
    # Metadata of other tools does not affect the schema.
    reported = footer.metadata or {}
    kept = {DECLARATION: reported[DECLARATION]} if DECLARATION in reported else None
    schema = footer.schema.to_arrow_schema()
    if pa.timestamp("ns") in schema.types:
        columns = (footer.schema.column(number) for number in range(len(footer.schema)))
        int96 = {column.path for column in columns if column.physical_type == "INT96"}
        # Spark reads these as its own timestamps instead of numbers.
        schema = pa.schema(
            pa.field(field.name, pa.timestamp("us"))
            if field.type == pa.timestamp("ns") and field.name in int96
            else field
            for field in schema
        )
    return schema.with_metadata(kept)


def _unsupported_in(file: pa.NativeFile, footer: pq.FileMetaData) -> str | None:
    """Return the reason why Spark cannot read a file with a valid footer, or None."""
    if DECLARATION in (footer.metadata or {}):
        # Chronolake's own file.
        return None
    if flaw := flaw_in(file, footer):
        return _unreadable(flaw)
    for group in range(footer.num_row_groups):
        found = footer.row_group(group)
        for number in range(found.num_columns):
            column = found.column(number)
            how = {column.compression, *column.encodings} & _UNSUPPORTED.keys()
            for name in how:
                return (
                    f"The column {column.path_in_schema} is {_UNSUPPORTED[name]}, which Spark "
                    "cannot read."
                )
    return None


def _statistics(footer: pq.FileMetaData) -> Iterator[tuple[str, ColumnStatistics]]:
    for group in range(footer.num_row_groups):
        found = footer.row_group(group)
        for number in range(found.num_columns):
            column = found.column(number)
            yield column.path_in_schema, _to_statistics(column.statistics, found.num_rows)


def _to_statistics(statistics: pq.Statistics | None, rows: int) -> ColumnStatistics:
    if statistics is None or not statistics.has_null_count:
        return ColumnStatistics(is_complete=False)
    values = rows - statistics.null_count
    if not values or not statistics.has_min_max:
        return ColumnStatistics(values, is_complete=not values)
    try:
        least, greatest = statistics.min, statistics.max
    except UnicodeDecodeError:
        # A text that was truncated within a character is not empty.
        return ColumnStatistics(values, has_text=True)
    except (OverflowError, ValueError):
        # A date or time outside Python's range; only the existence of values matters.
        return ColumnStatistics(values)
    is_integer = isinstance(greatest, int) and not isinstance(greatest, bool)
    return ColumnStatistics(
        values,
        bounds=(least, greatest) if is_integer else None,
        has_text=isinstance(greatest, str) and bool(greatest),
    )


def _declaration(schema: pa.Schema, file: DataFile) -> Declaration:
    reported = (schema.metadata or {}).get(DECLARATION)
    return () if reported is None else from_json(reported, file=str(file.path))


def _flaw_in(
    schema: pa.Schema, columns: Mapping[str, ColumnStatistics], rows: int, *, is_hourly: bool
) -> tuple[str, str] | None:
    """Return a column, and the reason why files with it cannot be read; None if they can."""
    present = Counter(schema.names)
    for name, count in present.items():
        if count > 1:
            return name, f"The file has {count} columns with the name {name}."
    for name in HOURLY_GUARANTEED if is_hourly else GUARANTEED:
        if name not in present:
            return name, f"The file lacks the column {name}, which every data lake file must have."
        field = schema.field(name)
        is_readable = _is_readable(field, is_hourly=is_hourly)
        if rows and not is_readable and _is_void(field, columns):
            return name, f"The column {name} has no values, which every row must have."
    for field in schema:
        if not (_is_readable(field, is_hourly=is_hourly) or _is_void(field, columns)):
            return field.name, f"Columns of the Parquet type {field.type} are not supported."
    return None


def _is_readable(field: pa.Field, *, is_hourly: bool) -> bool:
    # The document does not define the types of a Data Lake v1: times may be texts.
    is_wanted = (
        is_hourly or pa.types.is_timestamp(field.type) or not lake_fields.is_time(field.name)
    )
    return is_wanted and lake_fields.physical(field.type).ddl is not None


def _is_void(field: pa.Field, columns: Mapping[str, ColumnStatistics]) -> bool:
    """Return whether a column has no values, so that it may have any type."""
    known = columns.get(field.name, ColumnStatistics(is_complete=False))
    return pa.types.is_null(field.type) or (known.is_complete and not known.values)


def _fields(
    schema: pa.Schema,
    declaration: Declaration,
    names: Mapping[str, str],
    file: DataFile,
) -> Fields:
    is_hourly = isinstance(file, HourlyFile)
    physical = {
        field.name: lake_fields.physical(field.type)
        for field in schema
        if _is_readable(field, is_hourly=is_hourly)
    }
    if not declaration:
        return _rename_fields(fields_of(physical, has_typed=not is_hourly), names, file)
    return fields_declared(declaration, physical, names)


def _rename_fields(fields: Fields, names: Mapping[str, str], file: DataFile) -> Fields:
    """Rename the fields of a file from another writer.

    Raises:
        SourceError: another field already has one of the names.
    """
    now = {
        field.name: names[field.name]
        for field in fields.values()
        if field.name in names and lake_fields.is_field(field.name)
    }
    present = {field.name for field in fields.values()} - now.keys()
    for name, other in now.items():
        if other in present or list(now.values()).count(other) > 1:
            raise SourceError(
                f"The field {name} cannot be renamed to {other}: another field has this name.",
                file=str(file.path),
                column=name,
                hint="Give one of them another name: `rename` in chronolake.yml.",
            )
    return {
        column: replace(field, name=now.get(field.name, field.name))
        for column, field in fields.items()
    }


def landed_micros(folder: ObjectFolder) -> int:
    """Return the latest modification time in the last file that has rows.

    Returns:
        Microseconds since 1970; 0 if there is no such file.

    Raises:
        SourceError: the folder, or that file, cannot be read.
    """
    for file in reversed(folder.files()):
        try:
            with open_file(file.path) as content:
                times = pq.read_table(content, columns=[lake_fields.MODIFIED]).column(0)
        except (OSError, pa.ArrowException) as failure:
            raise SourceError(
                _unreadable(str(failure)),
                file=str(file.path),
                hint="Restore the file, or remove it if none of its rows were applied.",
            ) from failure
        found = pc.max(times)
        if found.is_valid:
            return int(found.cast(pa.timestamp("us")).cast(pa.int64()).as_py())
    return 0


def rows_in(files: Iterable[DataFile]) -> int:
    """Return the number of rows in files."""
    rows = 0
    for file in files:
        with open_file(file.path) as content:
            rows += pq.read_metadata(content).num_rows
    return rows
