"""Fingerprints of rows computed by the server, and their store.

Fingerprints of a table's rows, made by the server: rows need not be sent to be compared.

A row's fingerprint is a hash, of 64 bits, of all that COPY would send of it. Hashes are of the
server's own functions, which may differ between major versions and say nothing elsewhere: they are
compared with those of an earlier snapshot of the same table (`places`), and never with anything in
the lake.

Fingerprints of a table as it was when it was last read, kept until it is read again.

They are in a folder beside the raw lake, a file for each range of pages, and count only while the
stream's checkpoint names them and its raw lake ends with the file that it ended with then: what has
landed since is not in them, whoever landed it, and wherever a process died.
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
from chronolake.source.postgres.connection import understood
from chronolake.source.postgres.initial_copy import locating_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import psycopg

    from chronolake.landing import ObjectFolder
    from chronolake.source.postgres.columns import SourceColumn
    from chronolake.source.postgres.initial_copy import PageRange
    from chronolake.source.postgres.pgoutput import Places


#: Where a row stands in its part: the number of its page, and its place there.
PLACE: Final = "place"
#: The hash of all that the row says.
ROW: Final = "row"

#: Types whose hashes are of all of a value, as it is: bool, bytea, int2, int4, text, oid, varchar,
#: date and uuid.
_PLAIN: Final = frozenset({16, 17, 21, 23, 25, 26, 1043, 1082, 2950})
#: Of others they are of a part of it (int8 and times: 32 bits), or of what is equal to it as well
#: (1.0 and 1.00, 0 and -0). Of these, what the server would send of a value is as it is.
_SENT: Final = {
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
#: Whole numbers of a key are sent as numbers: how, and of what size.
_WHOLE: Final = {20: ("int8send", ">i8"), 21: ("int2send", ">i2"), 23: ("int4send", ">i4")}
#: The hash of no value is 0, and that of a number may be what it begins with.
_SEED: Final = 0x2545F4914F6CDD1D
#: So many pages are asked for at once: of the smallest rows some 230,000.
_STEP_PAGES: Final = 1_024
_OFFSET_BITS: Final = 16


def key_name(number: int) -> str:
    """The column of fingerprints that has what a column of the key says, by its number."""
    return f"key{number}"


def schema_of(key: Sequence[SourceColumn]) -> pa.Schema:
    """The columns of fingerprints: `PLACE`, `ROW`, and the key's, whole numbers or texts.

    Args:
        key: the columns that tell rows apart.
    """
    return pa.schema(
        [
            (PLACE, pa.int64()),
            (ROW, pa.int64()),
            *((key_name(number), _key_type(column)) for number, column in enumerate(key)),
        ]
    )


def _key_type(column: SourceColumn) -> pa.DataType:
    return pa.int64() if column.type_oid in _WHOLE else pa.string()


def first_place(page: int) -> int:
    """The least place of a page: those of earlier pages are below."""
    return page << _OFFSET_BITS


@dataclass(frozen=True)
class Fingerprinting:
    """Asks the server for fingerprints of a table's rows; it goes to the executors.

    Attributes:
        columns: the table's columns.
        key: those that tell its rows apart.
    """

    columns: tuple[SourceColumn, ...]
    key: tuple[SourceColumn, ...]

    def of(
        self, connection: psycopg.Connection, pages: PageRange
    ) -> Iterator[tuple[int, pa.Table]]:
        """The fingerprints of the rows of a range of pages, in the order of their places.

        Args:
            connection: to the database; it looks at a snapshot.
            pages: the range.

        Returns:
            Tables of `schema_of`, and the page that each of them ends before: rows of later pages
            come in later tables. The last one's page is after all that there are.

        Raises:
            SourceError: the server does not answer, or a key is no text.
        """
        for begin, finish in _steps(pages):
            made = self._made(connection, pages.part.relation, begin, finish)
            yield (2**32 if finish is None else finish), made

    def _made(
        self, connection: psycopg.Connection, relation: str, begin: int, finish: int | None
    ) -> pa.Table:
        where = _between(begin, finish)
        with (
            locating_text(connection, relation, where, [column.name for column in self.key]),
            understood(),
        ):
            cursor = connection.execute(self._query(relation, where), binary=True)
            row: tuple[Any, ...] = cursor.fetchone() or (0,)
        schema = schema_of(self.key)
        if not row[0]:
            return schema.empty_table()
        rows, places, hashes, *keys = row
        cells = [_places(places), np.frombuffer(hashes, ">i8").astype(np.int64)]
        every = [*map(pa.array, cells), *map(_key_cells, self.key, keys)]
        if any(len(values) != rows for values in every):
            raise SourceError(
                "The server has not made a fingerprint of every row.",
                hint="Run it again; if it comes back, read the tables with `type: jdbc`.",
            )
        found = pa.Table.from_arrays(every, schema=schema)
        is_ordered = bool((np.diff(cells[0]) > 0).all())
        return found if is_ordered else found.take(pa.array(np.argsort(cells[0])))

    def _query(self, relation: str, where: sql.Composable) -> sql.Composed:
        asked = [
            sql.SQL("count(*)"),
            _together(sql.SQL("tidsend(ctid)")),
            _together(_hash(self.columns)),
            *map(_key_sent, self.key),
        ]
        return sql.SQL("SELECT {} FROM ONLY {} WHERE {}").format(
            sql.SQL(", ").join(asked), sql.SQL(relation), where
        )


def _between(begin: int, finish: int | None) -> sql.Composed:
    """The rows of some pages; without a finish, of all that follow."""
    until = sql.SQL("") if finish is None else sql.SQL(" AND ctid < '({},0)'").format(finish)
    return sql.SQL("ctid >= '({},0)'{}").format(begin, until)


def _steps(pages: PageRange) -> Iterator[tuple[int, int | None]]:
    """A range of pages in smaller ones; that of a range without an end has none."""
    for step in range(pages.begin, max(pages.last, pages.begin + 1), _STEP_PAGES):
        end = step + _STEP_PAGES
        yield step, pages.finish if end >= pages.last else end


def _together(value: sql.Composable, between: str = "") -> sql.Composed:
    return sql.SQL("string_agg({}, {}::bytea)").format(value, sql.Literal(between))


def _key_sent(column: SourceColumn) -> sql.Composed:
    """The bytes of all rows' values of a column of the key."""
    name = sql.Identifier(column.name)
    if column.type_oid in _WHOLE:
        send, _ = _WHOLE[column.type_oid]
        return _together(sql.SQL("{}({})").format(sql.SQL(send), name))
    # As COPY writes it. No text of the server has this byte.
    return _together(sql.SQL("textsend(concat({}))").format(name), "\\x00")


def _key_cells(column: SourceColumn, sent: bytes) -> pa.Array:
    if column.type_oid in _WHOLE:
        _, form = _WHOLE[column.type_oid]
        return pa.array(np.frombuffer(sent, form).astype(np.int64))
    return _texts(sent)


def _hash(columns: Iterable[SourceColumn]) -> sql.Composed:
    """The bytes of a hash of some columns."""
    values = sql.SQL(", ").join(map(_value, columns))
    return sql.SQL("int8send(hash_record_extended(ROW({}), {}))").format(values, _SEED)


def _value(column: SourceColumn) -> sql.Composed:
    """What the server makes a hash of: it is the same only where the column's text is."""
    name = sql.Identifier(column.name)
    if column.type_oid in _SENT:
        return sql.SQL(_SENT[column.type_oid]).format(name)
    if column.type_oid in _PLAIN:
        # A collation may find texts equal that are not the same.
        return sql.SQL('{} COLLATE "C"' if column.type_oid in _COLLATED else "{}").format(name)
    # As COPY writes it; a cast to text would not keep every space.
    text = sql.SQL("CASE WHEN {0} IS NOT NULL THEN concat({0}) END").format(name)
    return sql.SQL('({}) COLLATE "C"').format(text)


def _places(sent: bytes) -> Places:
    """Places in a relation as numbers: the page, and the place in it."""
    pairs = np.frombuffer(sent, np.dtype([("page", ">u4"), ("offset", ">u2")]))
    found: Places = (pairs["page"].astype(np.int64) << _OFFSET_BITS) | pairs["offset"]
    return found


def _texts(sent: bytes) -> pa.Array:
    """Texts with a byte of 0 between them."""
    every = np.frombuffer(sent + b"\0", np.uint8)
    is_end = every == 0
    ends = np.flatnonzero(is_end)
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends - np.arange(len(ends))
    found = pa.StringArray.from_buffers(
        len(ends), pa.py_buffer(offsets), pa.py_buffer(every[~is_end].tobytes())
    )
    try:
        found.validate(full=True)
    except pa.ArrowInvalid as failure:
        raise SourceError(
            "A key is no text in UTF-8.",
            hint="Find it on the server; its database's encoding lets such texts pass.",
        ) from failure
    return found


def places_as_text(places: Sequence[int] | Places) -> str:
    """Places in a relation as PostgreSQL takes an array of them."""
    numbers = pa.array(places, pa.int64())
    pages = pa.compute.shift_right(numbers, _OFFSET_BITS).cast(pa.string())
    offsets = pa.compute.bit_wise_and(numbers, (1 << _OFFSET_BITS) - 1).cast(pa.string())
    written = pa.compute.binary_join_element_wise(pages, offsets, ",")
    return '{"(' + ')","('.join(written.to_pylist()) + ')"}'


_TELLS: Final = "fingerprints.json"
#: A file is named for its part, its first page, the number of its rows and a check of its bytes.
_FILES: Final = "pages-*"


class KeptFile:
    """A file of fingerprints that is being written."""

    def __init__(self, schema: pa.Schema) -> None:
        self._sink = pa.BufferOutputStream()
        self._stream = pa.ipc.new_stream(self._sink, schema)
        self._rows = 0

    def write(self, rows: pa.Table) -> None:
        """Add fingerprints of further pages."""
        self._stream.write_table(rows)
        self._rows += rows.num_rows

    def save(self, folder: Path, oid: int, begin: int) -> None:
        """Put it in its place as a whole; the same again does no harm."""
        self._stream.close()
        data = self._sink.getvalue()
        staged = folder / f"{uuid4().hex}.staged"
        staged.write_bytes(data)
        staged.replace(folder / f"pages-{oid}-{begin}-{self._rows}-{zlib.crc32(data):08x}")


@dataclass(frozen=True)
class Fingerprints:
    """Fingerprints of a table in a snapshot; it goes to the executors.

    Attributes:
        path: their folder.
    """

    path: Path

    @property
    def name(self) -> str:
        """By which a checkpoint names them."""
        return self.path.name

    @property
    def are_whole(self) -> bool:
        """Whether all files that there are are as they were written."""
        return None not in map(_content, self.path.glob(_FILES))

    @property
    def rows(self) -> int:
        """Of how many rows they are."""
        return sum(int(path.name.split("-")[3]) for path in self.path.glob(_FILES))

    def files(self) -> dict[tuple[int, int], str]:
        """The names of their files, by the part's oid and the first page."""
        found = {}
        for path in self.path.glob(_FILES):
            _, oid, begin, *_ = path.name.split("-")
            found[int(oid), int(begin)] = path.name
        return found

    @contextmanager
    def writing(self, oid: int, begin: int, schema: pa.Schema) -> Iterator[KeptFile]:
        """A file for some pages, which is there when the block has ended.

        Args:
            oid: the part that has the pages.
            begin: the first of them.
            schema: the columns of the fingerprints.
        """
        file = KeptFile(schema)
        yield file
        file.save(self.path, oid, begin)

    def read(self, name: str) -> pa.Table:
        """The fingerprints of a file, in the order of their places.

        Raises:
            SourceError: it is not there, or not as it was written.
        """
        path = self.path / name
        data = _content(path)
        if data is None:
            raise SourceError(
                "Fingerprints of the last run are damaged or gone.",
                file=str(path),
                hint="Run it again: it compares all rows with the table then.",
            )
        return pa.ipc.open_stream(data).read_all().combine_chunks()


def _content(path: Path) -> bytes | None:
    """What a file holds; None, if it is gone, or that is not what was written."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return data if path.name.endswith(f"-{zlib.crc32(data):08x}") else None


@dataclass(frozen=True)
class FingerprintFolder:
    """The fingerprints of a stream's table.

    Attributes:
        path: where they are.
        landed: what has landed of the stream.
    """

    path: Path
    landed: ObjectFolder

    def load_token(self, name: str | None, says: Mapping[str, Any]) -> Fingerprints | None:
        """Those that a checkpoint names, if they are of all that has landed, and of nothing else.

        Args:
            name: their name; None: it names none.
            says: what they are of, and how they were made.

        Raises:
            SourceError: the folder cannot be read.
        """
        if name is None:
            return None
        with _told(self.path):
            try:
                reported = orjson.loads((self.path / name / _TELLS).read_bytes())
            except (FileNotFoundError, orjson.JSONDecodeError):
                return None
            found = Fingerprints(self.path / name)
            counts = reported["says"] == says and reported["landed"] == self.landed.last()
            return found if counts and reported["files"] == len(found.files()) else None

    def begun(self) -> Fingerprints:
        """New ones, of which none are written yet.

        Raises:
            SourceError: the folder cannot be written.
        """
        found = Fingerprints(self.path / uuid4().hex)
        with _told(self.path):
            found.path.mkdir(parents=True)
        return found

    def finish(self, found: Fingerprints, says: Mapping[str, Any]) -> None:
        """Let fingerprints count: what they tell of has landed, and a checkpoint names them.

        Args:
            found: all of them are written.
            says: what they are of, and how they were made.

        Raises:
            SourceError: the folder cannot be written.
        """
        reported = {"says": says, "files": len(found.files()), "landed": self.landed.last()}
        with _told(self.path):
            staged = found.path / f"{_TELLS}.staged"
            staged.write_bytes(orjson.dumps(reported))
            staged.replace(found.path / _TELLS)

    def remove_all_but(self, name: str | None) -> None:
        """Remove those that no checkpoint names."""
        for path in self.path.glob("*"):
            if path.name != name:
                shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as failure:
        raise SourceError(
            f"Fingerprints cannot be kept: {failure.strerror}.",
            file=str(path),
            hint="See that it can be written and has room, or remove it; then run it again.",
        ) from failure
