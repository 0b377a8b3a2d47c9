"""Samples of data files: their columns, and which of them may be a key."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass
from itertools import combinations, islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from chronolake.errors import SourceError
from chronolake.parquet_footer import flaw_in
from chronolake.relocation.avro_file import encoded_records, read_bytes, read_long, schema_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

#: The formats of files, by ending.
FORMATS: Final = {
    ".parquet": "parquet",
    ".avro": "avro",
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd"}
#: The rows that are read of a file, at most.
MOST_ROWS: Final = 200_000
_HEADER_BYTES: Final = 2**16
_BLOCK_BYTES: Final = 2**20
_DELIMITERS: Final = ",;\t|"
#: Columns that may be parts of a key of several columns.
_MOST_PARTS: Final = 8
_LONG_TEXT: Final = 64
#: Words at the end of names of keys.
_KEY_NAMES: Final = re.compile(
    r"(^|_)(id|uuid|guid|key|code|number|no|nr|sku|isbn|iban)$|[a-z]I[dD]$"
)
_CHANGED: Final = re.compile(
    r"^(updated|modified|changed|last_?(updated|modified|changed))(_?(at|on|time|date|timestamp))?$",
    re.IGNORECASE,
)
_TYPES: Final = (
    ("LONG", pa.int64()),
    ("DOUBLE", pa.float64()),
    ("NAIVE_DATE", pa.date32()),
    ("UTC_DATETIME", pa.timestamp("us", tz="UTC")),
    ("NAIVE_DATETIME", pa.timestamp("us")),
)


_AVRO_TYPES: Final = {"int": pa.int64(), "long": pa.int64(), "string": pa.string()}
_LOGICAL_TYPES: Final = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
}


@dataclass(frozen=True)
class Sample:
    """Rows of a file.

    Attributes:
        columns: their columns, without nested ones.
        rows: how many they are.
        is_whole: whether they are all rows of the file.
        delimiter: the character between two values of a CSV file, or None.
    """

    columns: dict[str, pa.Array]
    rows: int
    is_whole: bool
    delimiter: str | None = None

    def keys(self, stream: str) -> list[str]:
        """Return the columns that are unique and never null, the most likely key first."""
        found = [name for name in self.columns if self.is_unique([name])]
        return sorted(found, key=lambda name: self._rank(name, stream))

    def is_unique(self, names: Sequence[str]) -> bool:
        """Return whether columns identify each row."""
        if not self.rows or not all(name in self.columns for name in names):
            return False
        columns = [self.columns[name] for name in names]
        if any(column.null_count or not _may_be_key(column.type) for column in columns):
            return False
        if len(columns) == 1:
            return len(pc.unique(columns[0])) == self.rows
        return _groups(self._table(names)) == self.rows

    def composite_keys(self, stream: str) -> Iterable[tuple[str, ...]]:
        """Yield pairs and triples of columns that identify each row, the most likely first."""
        parts = [
            name
            for name, column in self.columns.items()
            if not column.null_count
            and _may_be_key(column.type)
            and (_KEY_NAMES.search(name) or pa.types.is_date(column.type))
        ]
        parts = sorted(parts, key=lambda name: self._rank(name, stream))[:_MOST_PARTS]
        for size in (2, 3):
            yield from (names for names in combinations(parts, size) if self.is_unique(names))

    def share_in(self, other: Sample, key: Sequence[str]) -> float:
        """Return the share of the keys that another sample has as well."""
        if not self.rows or any(name not in other.columns for name in key):
            return 0.0
        ours, theirs = self._table(key), other._table(key)
        if ours.schema != theirs.schema:
            theirs = theirs.cast(ours.schema)
        both = ours.join(theirs, list(key), join_type="left semi")
        return float(both.num_rows / self.rows)

    def change_time(self) -> str | None:
        """Return the column with the time of a row's last change, by its name; or None."""
        return next((name for name in self.columns if _CHANGED.match(name)), None)

    def types(self) -> dict[str, str]:
        """Return the types that all texts of a CSV file have, for columns that are not texts."""
        found = {}
        for name, column in self.columns.items():
            kind = _type_of(column) if pa.types.is_string(column.type) else None
            if kind is not None:
                found[name] = kind
        return found

    def _table(self, names: Sequence[str]) -> pa.Table:
        return pa.table({name: self.columns[name] for name in names})

    def _rank(self, name: str, stream: str) -> tuple[int, int]:
        lower = name.lower()
        singular = stream.lower().removesuffix("s")
        column = self.columns[name]
        rank = 3
        if lower == "id":
            rank = 0
        elif lower in {f"{singular}_id", f"{singular}id", f"{stream.lower()}_id"}:
            rank = 1
        elif _KEY_NAMES.search(name):
            rank = 2
        elif pa.types.is_string(column.type) and _longest(column) > _LONG_TEXT:
            rank = 5
        elif pa.types.is_date(column.type):
            rank = 4
        return rank, list(self.columns).index(name)


def _may_be_key(kind: pa.DataType) -> bool:
    types = pa.types
    is_text = types.is_string(kind) or types.is_large_string(kind)
    is_decimal = types.is_decimal(kind) and kind.scale == 0
    return bool(is_text or is_decimal or types.is_integer(kind) or types.is_date(kind))


def _longest(column: pa.Array) -> int:
    return int(pc.max(pc.utf8_length(column)).as_py() or 0)


def _groups(table: pa.Table) -> int:
    return int(table.group_by(table.column_names).aggregate([]).num_rows)


def _type_of(column: pa.Array) -> str | None:
    if column.null_count == len(column):
        return None
    for name, kind in _TYPES:
        try:
            column.cast(kind)
        except pa.ArrowInvalid:
            continue
        if name == "LONG" and pc.any(pc.match_substring_regex(column, r"^[+-]?0\d")).as_py():
            # 007 is not 7.
            return None
        return name
    return None


def ending_of(name: str) -> tuple[str | None, str | None]:
    """Return the format and the compression of a file by its name; None if they are not known."""
    lower = name.lower()
    compression = next((kind for end, kind in COMPRESSIONS.items() if lower.endswith(end)), None)
    inner = lower.rpartition(".")[0] if compression else lower
    found = next((kind for end, kind in FORMATS.items() if inner.endswith(end)), None)
    return found, compression


def read_sample(file: Path) -> Sample:
    """Read the first rows of a file.

    Raises:
        SourceError: it cannot be read, or is not of the format of its ending.
    """
    kind, compression = ending_of(file.name)
    try:
        if kind == "parquet":
            return _parquet(file)
        if kind == "avro":
            return _avro(file)
        with pa.input_stream(str(file), compression=compression) as content:
            return _json(content, file) if kind == "jsonl" else _csv(content, file, compression)
    except (pa.ArrowInvalid, OSError, ValueError, LookupError, zlib.error) as failure:
        raise SourceError(
            f"The file cannot be read: {failure}",
            file=str(file),
            hint="Move it elsewhere, or correct it. A file's ending must be that of its format.",
        ) from failure


def _parquet(file: Path) -> Sample:
    with pa.OSFile(str(file)) as opened:
        flaw = flaw_in(opened, pq.read_metadata(opened))
    if flaw is not None:
        raise pa.ArrowInvalid(flaw)
    content = pq.ParquetFile(file)
    plain = [field.name for field in content.schema_arrow if not pa.types.is_nested(field.type)]
    batches, rows = [], 0
    for batch in content.iter_batches(columns=plain):
        batches.append(batch)
        rows += batch.num_rows
        if rows >= MOST_ROWS:
            break
    schema = batches[0].schema if batches else pa.schema([])
    table = pa.Table.from_batches(batches, schema).slice(0, MOST_ROWS)
    return _sample_of(table, is_whole=table.num_rows == content.metadata.num_rows)


@dataclass(frozen=True)
class _AvroField:
    """How the values of a field are read.

    Attributes:
        type: the type of its column.
        null: the index of null in an optional field's union, or None.
    """

    type: pa.DataType
    null: int | None

    def value(self, data: bytes) -> Any:
        """Return a value."""
        place = 0
        if self.null is not None:
            branch, place = read_long(data, 0)
            if branch == self.null:
                return None
        if pa.types.is_string(self.type):
            return read_bytes(data, place)[0].decode()
        return read_long(data, place)[0]


def _avro(file: Path) -> Sample:
    content = file.read_bytes()
    fields = {field["name"]: _avro_field(field["type"]) for field in schema_of(content)["fields"]}
    columns: dict[str, list[Any]] = {name: [] for name in fields}
    records = list(islice(encoded_records(content), MOST_ROWS + 1))
    for record in records[:MOST_ROWS]:
        for (name, field), data in zip(fields.items(), record, strict=True):
            if field is not None:
                columns[name].append(field.value(data))
    arrays = {
        name: pa.array(columns[name], field.type)
        for name, field in fields.items()
        if field is not None
    }
    return Sample(arrays, len(records[:MOST_ROWS]), len(records) <= MOST_ROWS)


def _avro_field(schema: Any) -> _AvroField | None:
    """Return how a field's values are read; None for those that cannot be keys or times."""
    null = None
    if isinstance(schema, list):
        others = [branch for branch in schema if branch != "null"]
        if len(others) != 1 or len(schema) > 2:  # noqa: PLR2004 - null and a type
            return None
        null = schema.index("null") if "null" in schema else None
        schema = others[0]
    kind, logical = schema, ""
    if isinstance(schema, dict):
        kind, logical = schema["type"], str(schema.get("logicalType"))
    if kind not in _AVRO_TYPES:
        return None
    return _AvroField(_LOGICAL_TYPES.get(logical, _AVRO_TYPES[kind]), null)


def _sample_of(table: pa.Table, *, is_whole: bool, delimiter: str | None = None) -> Sample:
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    return Sample(columns, table.num_rows, is_whole, delimiter)


def _csv(content: pa.NativeFile, file: Path, compression: str | None) -> Sample:
    with pa.input_stream(str(file), compression=compression) as begin:
        line = begin.read(_HEADER_BYTES).split(b"\n")[0].decode("utf-8-sig")
    delimiter = max(_DELIMITERS, key=lambda char: (line.count(char), char == ","))
    parse = pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    names = (
        pa_csv.open_csv(pa.BufferReader(f"{line}\n".encode()), parse_options=parse).schema.names
        if line.strip()
        else []
    )
    if not names:
        return Sample({}, 0, is_whole=True, delimiter=delimiter)
    options = pa_csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    reader = pa_csv.open_csv(content, parse_options=parse, convert_options=options)
    batches, rows, is_whole = [], 0, True
    for batch in reader:
        batches.append(batch)
        rows += batch.num_rows
        if rows >= MOST_ROWS:
            is_whole = False
            break
    table = pa.Table.from_batches(batches, reader.schema).slice(0, MOST_ROWS)
    return _sample_of(table, is_whole=is_whole, delimiter=delimiter)


def _json(content: pa.NativeFile, file: Path) -> Sample:
    lines = list(islice(_lines_of(content), MOST_ROWS + 1))
    records = []
    for line in lines[:MOST_ROWS]:
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise SourceError(
                "The file has a line that is not a JSON object.",
                file=str(file),
                hint="Write one JSON object on each line.",
            )
        records.append(record)
    names = dict.fromkeys(name for record in records for name in record)
    columns = {name: _texts([record.get(name) for record in records]) for name in names}
    return Sample(
        {name: column for name, column in columns.items() if column is not None},
        len(records),
        len(lines) <= MOST_ROWS,
    )


def _lines_of(content: pa.NativeFile) -> Iterator[bytes]:
    rest = b""
    while block := content.read(_BLOCK_BYTES):
        *lines, rest = (rest + block).split(b"\n")
        yield from lines
    yield rest


def _texts(values: list[Any]) -> pa.Array | None:
    """Return values of a JSON field as a column; None for nested ones and fractions."""
    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {int}:
        try:
            return pa.array(values, pa.int64())
        except (pa.ArrowInvalid, OverflowError):
            return None
    return pa.array(values, pa.string()) if kinds == {str} else None
