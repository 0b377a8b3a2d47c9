"""Fingerprints of rows computed by the server, and their store.

With fingerprints, rows need not be sent to be compared. A row's fingerprint is a 64-bit hash of
everything that COPY would send of the row. The server's own hash functions are used. They may
differ between major versions, so fingerprints are only compared with those of an earlier snapshot
of the same table (`ctid_ranges`), and never with anything in the lake.

The fingerprints of the last snapshot are stored in a folder next to the landed files, with a file
for each range of pages. They are valid only if the stream's checkpoint names them, and if the last
landed file is the same as when they were completed. Changes that landed later, by any process or
before a crash, are not included in them.
"""

from __future__ import annotations

import shutil
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import numpy as np
import orjson
import pyarrow as pa
from psycopg import sql

from chronolake.errors import SourceError
from chronolake.source.postgres.connection import translate_errors
from chronolake.source.postgres.initial_copy import locate_invalid_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import psycopg

    from chronolake.landing import ObjectFolder
    from chronolake.source.postgres.columns import SourceColumn
    from chronolake.source.postgres.initial_copy import PageRange
    from chronolake.source.relational.changes import Places


#: A row's place in its part (ctid): the page number and the offset in the page.
PLACE: Final = "place"
#: The hash of all values of the row.
ROW: Final = "row"

#: Types whose hash functions cover a value exactly: bool, bytea, int2, int4, text, oid, varchar,
#: date and uuid.
_PLAIN: Final = frozenset({16, 17, 21, 23, 25, 26, 1043, 1082, 2950})
#: Hash functions of other types cover only a part of a value (int8 and times: 32 bits), or are the
#: same for equal values (1.0 and 1.00, 0 and -0). For these types, the bytes that the server would
#: send are hashed.
_SEND_FUNCTIONS: Final = {
    20: "int8send({})",
    700: "float4send(CASE WHEN {0} = 'NaN' THEN 'NaN' ELSE {0} END)",
    701: "float8send(CASE WHEN {0} = 'NaN' THEN 'NaN' ELSE {0} END)",
    1042: "bpcharsend({})",
    1083: "time_send({})",
    1114: "timestamp_send({})",
    1184: "timestamptz_send({})",
    1700: "numeric_send({})",
}
_COLLATED: Final = frozenset({25, 1043})
#: Integers of a key are sent as binary numbers: the send function, and the numpy type.
_INTEGERS: Final = {20: ("int8send", ">i8"), 21: ("int2send", ">i2"), 23: ("int4send", ">i4")}
#: Without a seed, the hash of null is 0, and that of a number may be what it starts with.
_SEED: Final = 0x2545F4914F6CDD1D
#: Up to this many pages are requested at once: with the smallest rows, about 230,000 rows.
_STEP_PAGES: Final = 1_024
_OFFSET_BITS: Final = 16


def key_name(number: int) -> str:
    """Return the fingerprint column for a key column, by the column's number."""
    return f"key{number}"


def schema_of(key: Sequence[SourceColumn]) -> pa.Schema:
    """Return the columns of fingerprints: `PLACE`, `ROW`, and the key's, integers or texts.

    Args:
        key: the columns that identify rows.
    """
    return pa.schema(
        [
            (PLACE, pa.int64()),
            (ROW, pa.int64()),
            *((key_name(number), _key_type(column)) for number, column in enumerate(key)),
        ]
    )


def _key_type(column: SourceColumn) -> pa.DataType:
    return pa.int64() if column.type_oid in _INTEGERS else pa.string()


def first_place(page: int) -> int:
    """Return the least place of a page. Places of earlier pages are less."""
    return page << _OFFSET_BITS


@dataclass(frozen=True)
class FingerprintQuery:
    """A query for fingerprints of a table's rows; it is sent to executors.

    Attributes:
        columns: the table's columns.
        key: the columns that identify its rows.
        seed: the seed of the hashes; None for the usual one.
    """

    columns: tuple[SourceColumn, ...]
    key: tuple[SourceColumn, ...]
    seed: int | None = None

    def read(
        self, connection: psycopg.Connection, pages: PageRange
    ) -> Iterator[tuple[int, pa.Table]]:
        """Return the fingerprints of the rows in a page range, in the order of their ctids.

        Args:
            connection: a connection to the database, in a snapshot.
            pages: the page range.

        Returns:
            Tables of `schema_of`, each with the page before which it ends: rows of later pages are
            in later tables. The last table's page is after all existing pages.

        Raises:
            SourceError: the server does not respond, or a key is not valid text.
        """
        for begin, finish in _split_range(pages):
            table = self._read_range(connection, pages.part.relation, begin, finish)
            yield (2**32 if finish is None else finish), table

    def _read_range(
        self, connection: psycopg.Connection, relation: str, begin: int, finish: int | None
    ) -> pa.Table:
        where = _page_condition(begin, finish)
        with (
            locate_invalid_text(connection, relation, where, [column.name for column in self.key]),
            translate_errors(),
        ):
            cursor = connection.execute(self._statement(relation, where), binary=True)
            row: tuple[Any, ...] = cursor.fetchone() or (0,)
        schema = schema_of(self.key)
        if not row[0]:
            return schema.empty_table()
        rows, places, hashes, *keys = row
        cells = [_parse_ctids(places), np.frombuffer(hashes, ">i8").astype(np.int64)]
        columns = [*map(pa.array, cells), *map(_parse_keys, self.key, keys)]
        if any(len(values) != rows for values in columns):
            raise SourceError(
                "The server did not return a fingerprint for every row.",
                hint="Run it again. If the error persists, read the tables with `type: jdbc`.",
            )
        table = pa.Table.from_arrays(columns, schema=schema)
        is_ordered = bool((np.diff(cells[0]) > 0).all())
        return table if is_ordered else table.take(pa.array(np.argsort(cells[0])))

    def _statement(self, relation: str, where: sql.Composable) -> sql.Composed:
        expressions = [
            sql.SQL("count(*)"),
            _concatenate(sql.SQL("tidsend(ctid)")),
            _concatenate(_hash(self.columns, _SEED if self.seed is None else self.seed)),
            *map(_key_bytes, self.key),
        ]
        return sql.SQL("SELECT {} FROM ONLY {} WHERE {}").format(
            sql.SQL(", ").join(expressions), sql.SQL(relation), where
        )


def _page_condition(begin: int, finish: int | None) -> sql.Composed:
    """Return a condition for the rows of some pages; without a finish, of all later pages."""
    until = sql.SQL("") if finish is None else sql.SQL(" AND ctid < '({},0)'").format(finish)
    return sql.SQL("ctid >= '({},0)'{}").format(begin, until)


def _split_range(pages: PageRange) -> Iterator[tuple[int, int | None]]:
    """Split a page range into smaller ones; the last one of an open range is open."""
    for step in range(pages.begin, max(pages.last, pages.begin + 1), _STEP_PAGES):
        end = step + _STEP_PAGES
        yield step, pages.finish if end >= pages.last else end


def _concatenate(value: sql.Composable, between: str = "") -> sql.Composed:
    return sql.SQL("string_agg({}, {}::bytea)").format(value, sql.Literal(between))


def _key_bytes(column: SourceColumn) -> sql.Composed:
    """Return SQL for the concatenated bytes of all rows' values of a key column."""
    name = sql.Identifier(column.name)
    if column.type_oid in _INTEGERS:
        send, _ = _INTEGERS[column.type_oid]
        return _concatenate(sql.SQL("{}({})").format(sql.SQL(send), name))
    # As COPY writes it. Texts of the server never contain a zero byte.
    return _concatenate(sql.SQL("textsend(concat({}))").format(name), "\\x00")


def _parse_keys(column: SourceColumn, content: bytes) -> pa.Array:
    if column.type_oid in _INTEGERS:
        _, form = _INTEGERS[column.type_oid]
        return pa.array(np.frombuffer(content, form).astype(np.int64))
    return _parse_texts(content)


def _hash(columns: Iterable[SourceColumn], seed: int) -> sql.Composed:
    """Return SQL for the bytes of a hash of some columns."""
    values = sql.SQL(", ").join(map(_value, columns))
    return sql.SQL("int8send(hash_record_extended(ROW({}), {}))").format(values, seed)


def _value(column: SourceColumn) -> sql.Composed:
    """Return SQL for the value to hash, which is equal only if the column's text is equal."""
    name = sql.Identifier(column.name)
    if column.type_oid in _SEND_FUNCTIONS:
        return sql.SQL(_SEND_FUNCTIONS[column.type_oid]).format(name)
    if column.type_oid in _PLAIN:
        # Different texts may be equal in a collation.
        return sql.SQL('{} COLLATE "C"' if column.type_oid in _COLLATED else "{}").format(name)
    # As COPY writes it; a cast to text would remove some spaces.
    text = sql.SQL("CASE WHEN {0} IS NOT NULL THEN concat({0}) END").format(name)
    return sql.SQL('({}) COLLATE "C"').format(text)


def _parse_ctids(content: bytes) -> Places:
    """Return ctids as numbers: the page and the offset in it."""
    pairs = np.frombuffer(content, np.dtype([("page", ">u4"), ("offset", ">u2")]))
    ctids: Places = (pairs["page"].astype(np.int64) << _OFFSET_BITS) | pairs["offset"]
    return ctids


def _parse_texts(content: bytes) -> pa.Array:
    """Return texts that are separated by zero bytes as an array."""
    every_byte = np.frombuffer(content + b"\0", np.uint8)
    is_end = every_byte == 0
    ends = np.flatnonzero(is_end)
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends - np.arange(len(ends))
    values = pa.StringArray.from_buffers(
        len(ends), pa.py_buffer(offsets), pa.py_buffer(every_byte[~is_end].tobytes())
    )
    try:
        values.validate(full=True)
    except pa.ArrowInvalid as failure:
        raise SourceError(
            "A key is not valid UTF-8 text.",
            hint="Find and correct the key on the server: the database's encoding accepts "
            "such texts.",
        ) from failure
    return values


def format_ctids(places: Sequence[int] | Places) -> str:
    """Return ctids as a PostgreSQL array literal."""
    numbers = pa.array(places, pa.int64())
    pages = pa.compute.shift_right(numbers, _OFFSET_BITS).cast(pa.string())
    offsets = pa.compute.bit_wise_and(numbers, (1 << _OFFSET_BITS) - 1).cast(pa.string())
    texts = pa.compute.binary_join_element_wise(pages, offsets, ",")
    return '{"(' + ')","('.join(texts.to_pylist()) + ')"}'


_METADATA_FILE: Final = "fingerprints.json"
#: File names contain the part, the first page, the number of rows and a CRC of the bytes.
_FILES: Final = "pages-*"


class FingerprintFile:
    """A file of fingerprints during writing."""

    def __init__(self, schema: pa.Schema) -> None:
        self._sink = pa.BufferOutputStream()
        self._stream = pa.ipc.new_stream(self._sink, schema)
        self._rows = 0

    def write(self, rows: pa.Table) -> None:
        """Append fingerprints of further pages."""
        self._stream.write_table(rows)
        self._rows += rows.num_rows

    def save(self, folder: Path, oid: int, begin: int) -> None:
        """Move the file to its place atomically. Saving it twice is harmless."""
        self._stream.close()
        data = self._sink.getvalue()
        staged = folder / f"{uuid4().hex}.staged"
        staged.write_bytes(data)
        staged.replace(folder / f"pages-{oid}-{begin}-{self._rows}-{zlib.crc32(data):08x}")


@dataclass(frozen=True)
class Fingerprints:
    """The fingerprints of a table in a snapshot; the object is sent to executors.

    Attributes:
        path: the folder of the fingerprints.
    """

    path: Path

    @property
    def name(self) -> str:
        """Return the name that a checkpoint stores."""
        return self.path.name

    @property
    def are_undamaged(self) -> bool:
        """Return whether all existing files are undamaged."""
        return None not in map(_content, self.path.glob(_FILES))

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return sum(int(path.name.split("-")[3]) for path in self.path.glob(_FILES))

    def files(self) -> dict[tuple[int, int], str]:
        """Return the names of the files, by the part's oid and the first page."""
        files = {}
        for path in self.path.glob(_FILES):
            _, oid, begin, *_ = path.name.split("-")
            files[int(oid), int(begin)] = path.name
        return files

    @contextmanager
    def create_file(self, oid: int, begin: int, schema: pa.Schema) -> Iterator[FingerprintFile]:
        """Create a file for some pages, which is saved at the end of the block.

        Args:
            oid: the part that contains the pages.
            begin: the first page.
            schema: the columns of the fingerprints.
        """
        file = FingerprintFile(schema)
        yield file
        file.save(self.path, oid, begin)

    def read(self, name: str) -> pa.Table:
        """Return the fingerprints in a file, in the order of their ctids.

        Raises:
            SourceError: the file is missing or damaged.
        """
        path = self.path / name
        data = _content(path)
        if data is None:
            raise SourceError(
                "Fingerprints of the last run are damaged or missing.",
                file=str(path),
                hint="Run it again: the run then compares all rows with the table.",
            )
        return pa.ipc.open_stream(data).read_all().combine_chunks()


def _content(path: Path) -> bytes | None:
    """Return the contents of a file, or None if it is missing or damaged."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return data if path.name.endswith(f"-{zlib.crc32(data):08x}") else None


@dataclass(frozen=True)
class FingerprintFolder:
    """The fingerprints of a stream's table.

    Attributes:
        path: the folder of the fingerprints.
        landed: the folder of the stream's landed files.
    """

    path: Path
    landed: ObjectFolder

    def load(self, name: str | None, metadata: Mapping[str, Any]) -> Fingerprints | None:
        """Return the fingerprints that a checkpoint names, if they match what has landed.

        Args:
            name: their name; None if the checkpoint has none.
            metadata: the expected table, columns and algorithm.

        Raises:
            SourceError: the folder cannot be read.
        """
        if name is None:
            return None
        with _translate_os_errors(self.path):
            try:
                stored = orjson.loads((self.path / name / _METADATA_FILE).read_bytes())
            except (FileNotFoundError, orjson.JSONDecodeError):
                return None
            fingerprints = Fingerprints(self.path / name)
            is_valid = stored["says"] == metadata and stored["landed"] == self.landed.last()
            return (
                fingerprints if is_valid and stored["files"] == len(fingerprints.files()) else None
            )

    def create(self) -> Fingerprints:
        """Return a new, empty set of fingerprints.

        Raises:
            SourceError: the folder cannot be written.
        """
        fingerprints = Fingerprints(self.path / uuid4().hex)
        with _translate_os_errors(self.path):
            fingerprints.path.mkdir(parents=True)
        return fingerprints

    def finish(self, fingerprints: Fingerprints, metadata: Mapping[str, Any]) -> None:
        """Mark fingerprints as valid. Their rows have landed, and a checkpoint names them.

        Args:
            fingerprints: the fingerprints, completely written.
            metadata: their table, columns and algorithm.

        Raises:
            SourceError: the folder cannot be written.
        """
        stored = {
            "says": metadata,
            "files": len(fingerprints.files()),
            "landed": self.landed.last(),
        }
        with _translate_os_errors(self.path):
            staged = fingerprints.path / f"{_METADATA_FILE}.staged"
            staged.write_bytes(orjson.dumps(stored))
            staged.replace(fingerprints.path / _METADATA_FILE)

    def remove_all_but(self, name: str | None) -> None:
        """Remove all fingerprints except those with a name."""
        for path in self.path.glob("*"):
            if path.name != name:
                shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _translate_os_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as failure:
        raise SourceError(
            f"Fingerprints cannot be stored: {failure.strerror}.",
            file=str(path),
            hint="Make sure that the folder is writable and has free space, or remove it. "
            "Then run it again.",
        ) from failure
