"""Reads files with Spark: Parquet, Avro, CSV and JSON lines, also with gzip or Zstandard."""

from __future__ import annotations

import csv
import io
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import types as spark_types
from pyspark.sql.functions import broadcast, regexp_replace

from chronolake import exact_json
from chronolake.arrow_tasks import map_in_tasks
from chronolake.change_set import RESERVED
from chronolake.config import VERSIONED, FileFormat
from chronolake.errors import ConfigurationError, SourceError
from chronolake.frames import select
from chronolake.landing import as_type, literal_path, location_of, wider
from chronolake.landing.layout import open_file
from chronolake.object_store import BucketPath
from chronolake.parquet_footer import flaw_in
from chronolake.source.files.avro import OPTIONS as AVRO_OPTIONS
from chronolake.source.files.avro import add_row_numbers, expect_reader, schema_in
from chronolake.source.files.delta_versions import read_version
from chronolake.source.jdbc import cell_expression, columns_of
from chronolake.source.records.deletions import IS_SET, IS_UNSET
from chronolake.types import ColumnType, Kind, literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from chronolake.config import FileSettings, StorageConfig
    from chronolake.landing import Location
    from chronolake.source.files.file_list import SourceFile
    from chronolake.types import Column

_ENDINGS: Final = {
    ".parquet": FileFormat.PARQUET,
    ".avro": FileFormat.AVRO,
    ".csv": FileFormat.CSV,
    ".tsv": FileFormat.CSV,
    ".jsonl": FileFormat.JSON_LINES,
    ".ndjson": FileFormat.JSON_LINES,
    ".json": FileFormat.JSON_LINES,
}
#: Formats that contain the types of columns.
_TYPED: Final = {FileFormat.PARQUET, FileFormat.AVRO, *VERSIONED}
_COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd"}
#: Footers and headers that are read at the same time.
_THREADS: Final = 16
#: Bytes of a CSV file in which its header must end.
_HEADER_BYTES: Final = 2**20
_BLOCK_BYTES: Final = 2**22
_MOST_CHARACTERS: Final = 2**31 - 1

#: The file and row number (from 0) of a row, in `FileReader.read_places`.
FILE: Final = f"{RESERVED}source_file"
ROW: Final = f"{RESERVED}source_row"
#: The error for a text in a column with marks of deletion that may mean either.
UNCLEAR_MARK: Final = (
    "A text in {column} means neither that the record was deleted nor that it exists; write true "
    "or a time, or nothing"
)
_URI: Final = f"{RESERVED}uri"
_FILE_SCHEME: Final = "^file:/+"
#: The part of the class of Spark's errors about lines that are not JSON.
_MALFORMED: Final = "MALFORMED_RECORD"
_ONE_OBJECT: Final = (
    "Each line must be a complete JSON object. An array becomes such lines with `jq -c '.[]'`."
)


def format_of(path: str, settings: FileSettings, *, place: str) -> FileFormat:
    """Return the format of files: the configured one, or that of their ending.

    Args:
        path: the path of a file, or a template of paths.
        settings: the source's settings.
        place: the setting of the path, for the error.

    Raises:
        ConfigurationError: the path's ending is not that of a format.
    """
    if settings.format is not None:
        return settings.format
    found = _ENDINGS.get(_ending_of(path))
    if found is None:
        raise ConfigurationError(
            f"{place}: the format of the files is not known.",
            hint="Set `format` to parquet, avro, csv or jsonl.",
        )
    return found


def _ending_of(path: str) -> str:
    plain = Path(path)
    return (plain.with_suffix("") if plain.suffix in _COMPRESSIONS else plain).suffix.lower()


def _compression_of(path: str) -> str | None:
    return _COMPRESSIONS.get(Path(path).suffix.lower())


#: What to do about a file that may be incomplete.
_RENAME: Final = "Write files under another name, and rename them when they are complete."
_NOT_UTF8: Final = "it is not text in UTF-8"
_CONVERT: Final = (
    "Convert it to UTF-8, for example with `iconv -f latin1 -t utf-8`, or export it in UTF-8."
)
#: How files in UTF-16 and UTF-32 begin.
_OTHER_ENCODINGS: Final = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")
_UTF8_MARK: Final = b"\xef\xbb\xbf"


def _read_error(file: SourceFile, reason: str, *, hint: str = _RENAME) -> SourceError:
    return SourceError(f"The file cannot be read: {reason}.", file=str(file.path), hint=hint)


@dataclass
class FileReader:
    """Reads files of one format.

    Attributes:
        spark: the session.
        format: the files' format.
        settings: the source's settings.
        storage: how the object store is reached.
    """

    spark: SparkSession
    format: FileFormat
    settings: FileSettings
    storage: StorageConfig
    _schemas: dict[tuple[bytes, ...], spark_types.StructType] = field(default_factory=dict)
    _headers: dict[SourceFile, bytes | tuple[str, ...] | SourceError] = field(default_factory=dict)

    def inspect(self, files: Sequence[SourceFile]) -> None:
        """Read the footers or headers of files, several at a time; `read` reports errors."""
        if self.format in {FileFormat.JSON_LINES, *VERSIONED}:
            return
        readers: dict[FileFormat, Any] = {
            FileFormat.PARQUET: _footer_of,
            FileFormat.AVRO: _schema_of_avro,
        }
        read = readers.get(self.format, self._header_of)
        new = [file for file in files if file not in self._headers]
        with ThreadPoolExecutor(_THREADS) as pool:
            self._headers.update(zip(new, pool.map(partial(_or_error, read), new), strict=True))

    def read(
        self, files: Sequence[SourceFile], key: Sequence[str]
    ) -> tuple[DataFrame, list[Column]]:
        """Return the rows of files, and their columns; missing columns of a file are null.

        Args:
            files: at least one file.
            key: the columns that identify a row.

        Raises:
            SourceError: a file is not complete, or lacks a column of the key.
            Exception: any error of Spark.
        """
        self._expect_complete(files)
        match self.format:
            case FileFormat.PARQUET:
                rows = self._parquet(files)
            case FileFormat.AVRO:
                groups = self._groups(files)
                found = [typed_columns(self._avro(group), {}, key, group[0]) for group in groups]
                return found[0] if len(found) == 1 else union_frames(found, [()] * len(found))
            case FileFormat.CSV:
                rows = self._csv(files)
            case FileFormat.JSON_LINES:
                rows = self._json(files)
            case FileFormat.ICEBERG:
                (file,) = files
                rows = self._snapshot(file)
            case FileFormat.DELTA:
                rows = self._delta(files[0])
        types = self._configured_types
        return typed_columns(rows, types, key, files[0])

    def read_places(
        self, files: Sequence[SourceFile], key: Sequence[str]
    ) -> tuple[DataFrame, list[Column]]:
        """Return the rows of files of any columns with `FILE` and `ROW`, and their data columns.

        Args:
            files: at least one file.
            key: the columns that identify a row.

        Raises:
            SourceError: a file is not complete, or lacks a column of the key.
            Exception: any error of Spark.
        """
        self._expect_complete(files)
        types = self._configured_types
        frames = []
        for group in self._groups(files):
            rows = self._with_places(group)
            data, columns = typed_columns(rows, types, key, group[0], kept=(FILE, ROW))
            frames.append((data, columns))
        return union_frames(frames, kept=[(FILE, ROW)] * len(frames))

    def _expect_complete(self, files: Sequence[SourceFile]) -> None:
        """Raise the failure of the first file that is not complete."""
        self.inspect(files)
        for file in files:
            failure = self._headers.get(file)
            if isinstance(failure, SourceError):
                raise failure

    @property
    def _configured_types(self) -> dict[str, ColumnType]:
        return {} if self.format in _TYPED else self.settings.column_types()

    def _groups(self, files: Sequence[SourceFile]) -> list[list[SourceFile]]:
        """Return files that are read together: typed ones with the same schema."""
        groups: dict[Any, list[SourceFile]] = {}
        for file in files:
            kind = self._headers[file] if self.format in _TYPED else None
            groups.setdefault(kind, []).append(file)
        return [*groups.values()]

    def _uri_of(self, file: SourceFile) -> str:
        """Return a file's URI as Spark spells it, with one slash after the scheme of a file."""
        path = literal_path(file.path).replace("\\", "")
        jvm: Any = self.spark._jvm  # noqa: SLF001
        uri = str(jvm.org.apache.hadoop.fs.Path(path).toUri().toString())
        return re.sub(_FILE_SCHEME, "file:/", uri)

    def _with_places(self, files: Sequence[SourceFile]) -> DataFrame:
        match self.format:
            case FileFormat.PARQUET:
                rows = self._parquet(files)
                place = rows.metadataColumn("_metadata")
                found = rows.select(
                    "*", place["file_path"].alias(_URI), place["row_index"].alias(ROW)
                )
                return self._with_files(found, files)
            case FileFormat.AVRO:
                return self._with_files(add_row_numbers(self._avro(files), _URI, ROW), files)
            case FileFormat.CSV:
                return self._csv(files, has_places=True)
            case FileFormat.JSON_LINES:
                lines = self._in_tasks(
                    files,
                    partial(_read_lines, storage=self.storage),
                    f"value string, {FILE} string, {ROW} bigint",
                )
                with self._malformed_lines(files):
                    schema = _json_of(lines.select("value"), {"mode": "FAILFAST"}).schema
                options = "map('mode', 'FAILFAST')"
                parsed = f"from_json(value, {literal(schema.toDDL())}, {options})"
                names = [quote(field.name) for field in schema]
                found = lines.selectExpr(f"{parsed} AS {RESERVED}parsed", FILE, ROW)
                cells = [f"{RESERVED}parsed.{name} AS {name}" for name in names]
                return select(found, [*cells, FILE, ROW])
            case FileFormat.ICEBERG | FileFormat.DELTA:
                raise AssertionError

    def _with_files(self, rows: DataFrame, files: Sequence[SourceFile]) -> DataFrame:
        """Return rows with the file of their URI."""
        uris = [self._uri_of(file) for file in files]
        paths = pa.table({"uri": uris, FILE: [str(file.path) for file in files]})
        known = self.spark.createDataFrame(paths)
        same = regexp_replace(rows[_URI], _FILE_SCHEME, "file:/") == known["uri"]
        return rows.join(broadcast(known), same).drop(_URI, "uri")

    def _avro(self, files: Sequence[SourceFile]) -> DataFrame:
        """Return the rows of files with the same schema."""
        expect_reader(self.spark)
        reader = self._reader(files).format("avro").options(**AVRO_OPTIONS)
        rows: DataFrame = reader.load(list(_paths(files)))
        return rows

    def _snapshot(self, file: SourceFile) -> DataFrame:
        """Return the rows of a snapshot of an Iceberg table."""
        from chronolake.iceberg import read_snapshot  # noqa: PLC0415 - loads Spark

        path, settings = file.path, {}
        if isinstance(path, BucketPath):
            settings = path.storage.for_java(path.url)
        return read_snapshot(self.spark, str(path), settings, file.identity)

    def _delta(self, file: SourceFile) -> DataFrame:
        """Return the rows of a version of a Delta table."""
        found = read_version(file)
        schema = spark_types.StructType.fromJson(orjson.loads(found.schema))
        if not found.paths:
            return self.spark.createDataFrame([], schema)
        fields = [field for field in schema if field.name not in found.partition_columns]
        parts = [replace(file, path=path) for path in found.paths]
        reader = self._reader(parts).schema(spark_types.StructType(fields))
        rows: DataFrame = reader.parquet(*_paths(parts))
        if not found.partition_columns:
            return rows
        place = rows.metadataColumn("_metadata")["file_path"]
        placed = rows.select("*", regexp_replace(place, _FILE_SCHEME, "file:/").alias(_URI))
        uris = pa.array([self._uri_of(part) for part in parts], pa.string())
        known = self.spark.createDataFrame(found.values.append_column(_URI, uris))
        cells = [
            f"CAST({quote(field.name)} AS {field.dataType.simpleString()}) AS {quote(field.name)}"
            if field.name in found.partition_columns
            else quote(field.name)
            for field in schema
        ]
        return select(placed.join(broadcast(known), _URI), cells)

    def _parquet(self, files: Sequence[SourceFile]) -> DataFrame:
        footers = tuple(sorted({self._footer(file) for file in files}))
        schema = self._schemas.get(footers)
        if schema is None:
            # Spark reads a footer of each schema, once for all copies with these.
            firsts = {self._footer(file): file for file in files}.values()
            reader = self._reader(files).option("mergeSchema", str(len(footers) > 1).lower())
            found = reader.parquet(*(literal_path(file.path) for file in firsts))
            schema = self._schemas[footers] = found.schema
        return self._reader(files).schema(schema).parquet(*_paths(files))

    def _footer(self, file: SourceFile) -> bytes:
        found = self._headers[file]
        assert isinstance(found, bytes)  # noqa: S101 - of Parquet files
        return found

    def _reader(self, files: Sequence[SourceFile]) -> Any:
        # Without this option, the folders' names would become columns.
        reader = self.spark.read.option("recursiveFileLookup", "true")
        first = files[0].path
        if isinstance(first, BucketPath):
            from chronolake.iceberg import store_options  # noqa: PLC0415 - loads Spark

            settings = first.storage.for_java(first.url)
            reader = reader.options(**store_options(self.spark, first.url, settings))
        return reader

    def _csv(self, files: Sequence[SourceFile], *, has_places: bool = False) -> DataFrame:
        names: dict[str, None] = {}
        for file in files:
            names |= dict.fromkeys(self._headers[file])  # type: ignore[arg-type]
        read = partial(
            _read_csv,
            storage=self.storage,
            delimiter=self._delimiter(files[0]),
            names=tuple(names),
            has_places=has_places,
        )
        fields = [spark_types.StructField(name, spark_types.StringType()) for name in names]
        if has_places:
            fields.append(spark_types.StructField(FILE, spark_types.StringType()))
            fields.append(spark_types.StructField(ROW, spark_types.LongType()))
        return self._in_tasks(files, read, spark_types.StructType(fields))

    def _delimiter(self, file: SourceFile) -> str:
        default = "\t" if _ending_of(file.name) == ".tsv" else ","
        return self.settings.delimiter or default

    def _header_of(self, file: SourceFile) -> tuple[str, ...]:
        with _open(str(file.path), self.storage) as content:
            begin = content.read(_HEADER_BYTES)
        if begin.startswith(_OTHER_ENCODINGS):
            raise _read_error(file, _NOT_UTF8, hint=_CONVERT)
        text = begin.decode("utf-8-sig", errors="replace")
        header = next(
            csv.reader(io.StringIO(text, newline=""), delimiter=self._delimiter(file)), []
        )
        if not header:
            hint = "The first line must have the names of the columns. Move empty files elsewhere."
            raise _read_error(file, "it has no header", hint=hint)
        if len(set(header)) < len(header):
            twice = next(name for name in header if header.count(name) > 1)
            hint = "Give each column another name in the file's first line."
            raise _read_error(file, f"two columns have the name {twice!r}", hint=hint)
        return tuple(header)

    def _json(self, files: Sequence[SourceFile]) -> DataFrame:
        options = {"mode": "FAILFAST"}
        with self._malformed_lines(files):
            if not any(_compression_of(file.name) == "zstd" for file in files):
                return self._reader(files).options(**options).json(list(_paths(files)))
            # Spark's own reader needs a native library for Zstandard.
            lines = self._in_tasks(
                files,
                partial(_read_lines, storage=self.storage),
                f"value string, {FILE} string, {ROW} bigint",
            )
            return _json_of(lines.select("value"), options)

    @contextmanager
    def _malformed_lines(self, files: Sequence[SourceFile]) -> Iterator[None]:
        """Replace Spark's errors about lines, which may quote them, by errors with their places.

        Raises:
            SourceError: a line is not JSON.
        """
        try:
            yield
        except (Py4JError, PySparkException) as failure:
            if _MALFORMED not in str(failure):
                raise
            for file in files:
                if row := _malformed_row(str(file.path), self.storage):
                    raise _not_json_error(str(file.path), row) from None
            raise _read_error(files[0], "a line is not valid JSON", hint=_ONE_OBJECT) from None

    def _in_tasks(
        self,
        files: Sequence[SourceFile],
        read: Any,
        schema: str | spark_types.StructType,
    ) -> DataFrame:
        """Return the rows that tasks read, one for each file."""
        paths = pa.table({"file": [str(file.path) for file in files]})
        tasks = min(len(files), self.spark.sparkContext.defaultParallelism)
        found = self.spark.createDataFrame(paths).coalesce(1)
        return map_in_tasks(found if tasks == 1 else found.repartition(tasks), read, schema)


def typed_columns(
    rows: DataFrame,
    types: Mapping[str, ColumnType],
    key: Sequence[str],
    file: SourceFile,
    *,
    kept: Sequence[str] = (),
) -> tuple[DataFrame, list[Column]]:
    """Return rows with the types that columns have in a lake, and the columns.

    Args:
        rows: rows as Spark reads them.
        types: configured types by name; a value of another type raises when it is computed.
        key: the columns that identify a row.
        file: a file with the rows, for errors.
        kept: columns of the rows in addition to the data columns.

    Raises:
        SourceError: a column of the key is missing.
    """
    missing = [name for name in key if name not in rows.columns]
    if missing:
        raise SourceError(
            f"The file has no column {', '.join(missing)}, which is part of the key.",
            file=str(file.path),
            hint=f"Its columns are {', '.join(name for name in rows.columns if name not in kept)}.",
        )
    data = [field for field in rows.schema if field.name not in kept]
    columns = [
        replace(column, type=types.get(column.name, column.type))
        for column in columns_of(data, key, str(file.path))
    ]
    cells = [
        _cast(field.name, types[field.name]) if field.name in types else cell_expression(field)
        for field in data
    ]
    return select(rows, [*cells, *kept]), columns


def micros_of(column: Column, time_zone: str) -> str:
    """Return SQL for a time in microseconds since 1970; a text that is not a time raises.

    Args:
        column: the column.
        time_zone: that of times without an offset.
    """
    name, zone = quote(column.name), literal(time_zone)
    match column.type.kind:
        case Kind.UTC_DATETIME:
            return f"unix_micros({name})"
        case Kind.NAIVE_DATETIME | Kind.NAIVE_DATE:
            return f"unix_micros(to_utc_timestamp(CAST({name} AS TIMESTAMP), {zone}))"
        case _:
            text = f"CAST({name} AS STRING)"
            has_zone = f"rlike({text}, '(Z|UTC|:[0-9.]+ ?[+-][0-9]{{2}}:?[0-9]{{0,2}})$')"
            time = f"try_cast({text} AS TIMESTAMP)"
            local = f"IF({has_zone}, {time}, to_utc_timestamp({time}, {zone}))"
            error = literal(f"A value of the column {column.name} is not of the type TIMESTAMP.")
            is_bad = f"{text} <> '' AND {time} IS NULL"
            return f"IF({is_bad}, raise_error({error}), unix_micros({local}))"


def marks_of(column: str, *, error: str) -> str:
    """Return SQL for whether a column marks a record as deleted (`records.deletions`).

    Args:
        column: the column.
        error: SQL that raises an error for a text that may mean either.
    """
    text = f"lower(trim(CAST({quote(column)} AS STRING)))"
    return (
        f"CASE WHEN {text} IS NULL OR rlike({text}, {literal(IS_UNSET)}) THEN false "
        f"WHEN rlike({text}, {literal(IS_SET)}) THEN true ELSE {error} END"
    )


def union_frames(
    frames: Sequence[tuple[DataFrame, Sequence[Column]]], kept: Sequence[Sequence[str]]
) -> tuple[DataFrame, list[Column]]:
    """Return the rows of frames together, with types that contain the values of all.

    Args:
        frames: rows with their data columns; a column that a frame lacks is null in it.
        kept: further SQL expressions for each frame.
    """
    columns: dict[str, Column] = {}
    for _, given in frames:
        for column in given:
            other = columns.get(column.name)
            kind = column.type if other is None else wider(other.type, column.type)
            columns[column.name] = replace(column, type=kind)
    rows = []
    for (frame, given), more in zip(frames, kept, strict=True):
        own = {column.name: column for column in given}
        cells = [
            f"{as_type(own[name], column.type)} AS {quote(name)}"
            if name in own
            else f"CAST(NULL AS {column.type.sql}) AS {quote(name)}"
            for name, column in columns.items()
        ]
        rows.append(select(frame, [*cells, *more]))
    return reduce(lambda some, more: some.unionAll(more), rows), list(columns.values())


def _paths(files: Iterable[SourceFile]) -> Iterator[str]:
    return (literal_path(file.path) for file in files)


def _cast(name: str, kind: ColumnType) -> str:
    cast = f"try_cast({quote(name)} AS {kind.sql})"
    if kind.kind is Kind.STRING:
        return f"CAST({quote(name)} AS STRING) AS {quote(name)}"
    error = literal(f"A value of the column {name} is not of the type {kind}.")
    is_bad = f"{quote(name)} IS NOT NULL AND {cast} IS NULL"
    return f"IF({is_bad}, raise_error({error}), {cast}) AS {quote(name)}"


def _or_error(read: Any, file: SourceFile) -> Any:
    try:
        return read(file)
    except SourceError as failure:
        return failure
    except (OSError, pa.ArrowException, EOFError) as failure:
        reason = getattr(failure, "strerror", None) or "it is damaged, or not complete"
        return _read_error(file, reason)


def _footer_of(file: SourceFile) -> bytes:
    """Return the schema of a Parquet file as bytes, after a check of the file's footer."""
    with open_file(file.path) as content:
        footer = pq.read_metadata(content)
        flaw = flaw_in(content, footer)
        if flaw is not None:
            raise _read_error(file, flaw)
        return bytes(footer.schema.to_arrow_schema().remove_metadata().serialize())


def _schema_of_avro(file: SourceFile) -> bytes:
    """Return the schema of an Avro file as JSON, after a check of the file's end."""
    found = schema_in(file.path)
    if isinstance(found, str):
        raise _read_error(file, found)
    return found


def _json_of(lines: DataFrame, options: Mapping[str, str]) -> DataFrame:
    """Return the objects in rows with one text each."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame  # noqa: PLC0415

    session = lines.sparkSession
    texts = getattr(lines._jdf, "as")(  # noqa: SLF001
        session._jvm.org.apache.spark.sql.Encoders.STRING()  # noqa: SLF001
    )
    reader = session._jsparkSession.read()  # noqa: SLF001
    for name, value in options.items():
        reader = reader.option(name, value)
    return ClassicFrame(reader.json(texts), session)


# ------------------------------------------------------------------ in an executor


def _open(location: str, storage: StorageConfig) -> pa.NativeFile:
    """Open a file for one pass over its decompressed content."""
    found: Location = location_of(location, storage)
    content = open_file(found)
    compression = _compression_of(location)
    return content if compression is None else pa.CompressedInputStream(content, compression)


def _read_csv(
    batches: Iterable[pa.RecordBatch],
    *,
    storage: StorageConfig,
    delimiter: str,
    names: tuple[str, ...],
    has_places: bool,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of CSV files as texts; an empty cell without quotes is null."""
    schema = pa.schema([(name, pa.string()) for name in names])
    for batch in batches:
        for location in batch.column(0).to_pylist():
            try:
                with _open(location, storage) as content:
                    text = _CsvText(content)
                    rows = _rows_of_csv(text, delimiter, schema)
                    yield from _add_places(rows, location) if has_places else rows
                if text.quotes % 2 and _ends_in_quotes(location, storage, delimiter):
                    raise _cut_error(location)
            except (pa.ArrowException, OSError, EOFError) as failure:
                raise _damage_error(location, failure) from None


def _rows_of_csv(content: _CsvText, delimiter: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    rows = pa_csv.open_csv(
        pa.PythonFile(content, mode="r"),
        read_options=pa_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
        parse_options=pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(
            column_types=schema,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            include_columns=schema.names,
            include_missing_columns=True,
        ),
    )
    yield from rows


def _add_places(batches: Iterable[pa.RecordBatch], location: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with `FILE` and `ROW`."""
    number = 0
    for batch in batches:
        rows = pa.array(range(number, number + batch.num_rows), pa.int64())
        number += batch.num_rows
        files = pa.repeat(location, batch.num_rows)
        yield batch.append_column(FILE, files).append_column(ROW, rows)


def _ends_in_quotes(location: str, storage: StorageConfig, delimiter: str) -> bool:
    """Return whether a file ends within quotes, or has text after the end of a quoted value.

    PyArrow reads everything until the end of such a file as one value.
    """
    # Values have no limit: without the second quote, the rest of the file is one.
    csv.field_size_limit(_MOST_CHARACTERS)
    with _open(location, storage) as content:
        text = io.TextIOWrapper(content, "utf-8", "replace", newline="")
        try:
            for _ in csv.reader(text, delimiter=delimiter, strict=True):
                pass
        except csv.Error:
            return True
    return False


def _cut_error(location: str) -> SourceError:
    return SourceError(
        "The file cannot be read: it ends within a quoted value.", file=location, hint=_RENAME
    )


class _CsvText(io.RawIOBase):
    """The content of a CSV file, whose last line has an end.

    In a last line without one, PyArrow reads an empty cell after a quoted one as an empty text.

    Attributes:
        quotes: the number of double quotes so far. In a complete file it is even, unless values
            without quotes contain some.
    """

    def __init__(self, content: pa.NativeFile) -> None:
        super().__init__()
        self._content = content
        self._last = b"\n"
        self.quotes = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        found: bytes = self._content.read(None if size < 0 else size)
        if not found and self._last != b"\n":
            found = b"\n"
        self._last = found[-1:] or self._last
        self.quotes += found.count(b'"')
        return found


def _read_lines(
    batches: Iterable[pa.RecordBatch], *, storage: StorageConfig
) -> Iterator[pa.RecordBatch]:
    """Yield the lines of text files."""
    for batch in batches:
        for location in batch.column(0).to_pylist():
            try:
                with _open(location, storage) as content:
                    yield from _add_places(_objects_of(content, location), location)
            except (pa.ArrowException, OSError, EOFError) as failure:
                raise _damage_error(location, failure) from None


def _objects_of(content: pa.NativeFile, location: str) -> Iterator[pa.RecordBatch]:
    """Yield lines that begin as JSON objects do; Spark's errors about others would quote them.

    Raises:
        SourceError: a line is something else.
    """
    number = 0
    for lines in _lines_of(content):
        for count, line in enumerate(lines, 1):
            if not line.lstrip().startswith(b"{"):
                raise _not_json_error(location, number + count)
        number += len(lines)
        yield pa.RecordBatch.from_pydict({"value": pa.array(lines, pa.binary()).cast(pa.string())})


def _lines_of(content: pa.NativeFile) -> Iterator[list[bytes]]:
    """Yield the lines of a text that are not empty, in groups."""
    rest = b""
    is_first = True
    while block := content.read(_BLOCK_BYTES):
        block = block.removeprefix(_UTF8_MARK) if is_first else block
        is_first = False
        *lines, rest = (rest + block).split(b"\n")
        yield [line for line in lines if line.strip()]
    yield [rest] if rest.strip() else []


def _malformed_row(location: str, storage: StorageConfig) -> int | None:
    """Return the number of the first line of a file that is not a JSON object, or None."""
    number = 0
    with _open(location, storage) as content:
        for lines in _lines_of(content):
            for line in lines:
                number += 1
                try:
                    is_object = isinstance(exact_json.loads(line), dict)
                except (ValueError, RecursionError):
                    is_object = False
                if not is_object:
                    return number
    return None


def _not_json_error(location: str, row: int) -> SourceError:
    return SourceError(
        f"The file cannot be read: its row {row:,} is not a JSON object.",
        file=location,
        hint=_ONE_OBJECT,
    )


def _damage_error(location: str, failure: Exception) -> SourceError:
    # PyArrow reports texts in another encoding like this; its messages may quote values.
    if "UTF8" in str(failure):
        reason, hint = _NOT_UTF8, _CONVERT
    else:
        reason = getattr(failure, "strerror", None) or "it is damaged, or not complete"
        hint = _RENAME
    return SourceError(f"The file cannot be read: {reason}.", file=location, hint=hint)
