"""Fingerprints of a table's rows, made by the server: rows need not be sent to be compared.

A row's fingerprint is a hash, of 64 bits, of all that COPY would send of it; another hash is made
of its key alone, and tells rows apart. Hashes are of the server's own functions, which may differ
between major versions and say nothing elsewhere: they are compared with those of an earlier
snapshot of the same table (`shares`), and never with anything in the lake.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from psycopg import sql

from chronolake.errors import SourceError
from chronolake.source.postgres.connection import connected, understood
from chronolake.source.postgres.snapshot import in_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import psycopg

    from chronolake.source.postgres.columns import SourceColumn
    from chronolake.source.postgres.copying import TableSnapshot
    from chronolake.source.postgres.snapshot import DatabaseSnapshot
    from chronolake.source.postgres.tuples import Places

#: The columns of fingerprints besides the key's own, which come after them as texts.
KEY: Final = "key"
ROW: Final = "row"
#: Where the row stands in its snapshot: the number of its part, and its place in it.
PART: Final = "part"
PLACE: Final = "place"
#: What tasks send each other: fingerprints of one share of all keys, as an Arrow stream.
SHARES: Final = "share int, fingerprints binary"

#: Types whose hashes are of all of a value, as it is: bool, bytea, int2, int4, text, oid, varchar,
#: date and uuid.
_PLAIN: Final = frozenset({16, 17, 21, 23, 25, 26, 1043, 1082, 2950})
#: Of others they are of a part of it (int8 and times: 32 bits), or of what is equal to it as well
#: (1.0 and 1.00, 0 and -0). Of these, what the server would send of a value is as it is.
_SENT: Final = {
    20: "int8send",
    1042: "bpcharsend",
    1083: "time_send",
    1114: "timestamp_send",
    1184: "timestamptz_send",
    1700: "numeric_send",
}
_COLLATED: Final = frozenset({25, 1043})
#: The hash of no value is 0, and that of a number may be what it begins with.
_SEED: Final = 0x2545F4914F6CDD1D
#: So many pages are asked for at once: of the smallest rows some 300,000.
_STEP_PAGES: Final = 1_024
#: So many are divided into shares at once: the more, the larger the pieces that tasks exchange.
_ROWS_AT_ONCE: Final = 2**20
_OFFSET_BITS: Final = 16


def schema_of(key: Sequence[str]) -> pa.Schema:
    """The columns of fingerprints.

    Args:
        key: the names of the columns that tell rows apart.
    """
    numbers = [(KEY, pa.uint64()), (ROW, pa.int64()), (PART, pa.int32()), (PLACE, pa.int64())]
    return pa.schema([*numbers, *((text_name(n), pa.string()) for n in range(len(key)))])


def text_name(number: int) -> str:
    """The column of fingerprints that has the texts of a column of the key."""
    return f"text{number}"


def share_of(keys: Places, shares: int) -> Places:
    """Which share of all keys each is in: shares are ranges of keys' hashes.

    Args:
        keys: the hashes (uint64).
        shares: how many shares there are, a power of two.
    """
    bits = shares.bit_length() - 1
    # To shift by all of the bits is not defined.
    found: Places = (
        keys >> np.uint64(63) >> np.uint64(1) if not bits else keys >> np.uint64(64 - bits)
    )
    return found.astype(np.int32)


@dataclass(frozen=True)
class Fingerprinting:
    """Makes the fingerprints of a table's rows in a snapshot; it goes to the executors.

    Attributes:
        dsn: the server's address.
        database: the snapshot, held until all have been made.
        relations: what holds the table's rows, as SQL.
        columns: the table's columns.
        key: those that tell its rows apart.
        shares: into how many shares of all keys they are divided, a power of two.
    """

    dsn: str
    database: DatabaseSnapshot
    relations: tuple[str, ...]
    columns: tuple[SourceColumn, ...]
    key: tuple[SourceColumn, ...]
    shares: int

    @classmethod
    def of(
        cls, dsn: str, held: TableSnapshot, key: Sequence[SourceColumn], shares: int
    ) -> Fingerprinting:
        """The fingerprints of a table that is held."""
        relations = tuple(part.relation for part in held.parts)
        columns = held.table.columns
        return cls(dsn, held.database, relations, columns, tuple(key), shares)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give the fingerprints of ranges of pages (`copying.ranges_of`), by their shares.

        Raises:
            SourceError: the server does not answer, or a key is no text.
        """
        with connected(self.dsn) as connection, in_snapshot(connection, self.database):
            for batch in batches:
                for place in batch.column("ranges").flatten().to_pylist():
                    part = self.relations.index(place["relation"])
                    made: list[pa.Table] = []
                    for begin, finish in _steps(place["begin"], place["finish"], place["last"]):
                        made.append(self._made(connection, part, begin, finish))
                        if sum(one.num_rows for one in made) >= _ROWS_AT_ONCE:
                            yield self._shared(made)
                            made = []
                    # Pages may be without a row: those that were there have gone.
                    if any(one.num_rows for one in made):
                        yield self._shared(made)

    @property
    def _nothing(self) -> pa.Table:
        return schema_of([column.name for column in self.key]).empty_table()

    def _made(
        self, connection: psycopg.Connection, part: int, begin: int, finish: int | None
    ) -> pa.Table:
        with understood():
            cursor = connection.execute(self._query(part, begin, finish), binary=True)
            row: tuple[Any, ...] = cursor.fetchone() or (0,)
        if not row[0]:
            return self._nothing
        rows, keys, hashes, places, *texts = row
        values = [
            np.frombuffer(keys, ">u8").astype(np.uint64),
            np.frombuffer(hashes, ">i8").astype(np.int64),
            np.full(rows, part, np.int32),
            _places(places),
        ]
        if any(len(value) != rows for value in values):
            raise SourceError(
                "The server has not made a fingerprint of every row.",
                hint="Run it again; if it comes back, read the tables with `type: jdbc`.",
            )
        arrays = [*map(pa.array, values), *(_texts(text, rows) for text in texts)]
        return pa.Table.from_arrays(arrays, schema=schema_of([one.name for one in self.key]))

    def _query(self, part: int, begin: int, finish: int | None) -> sql.Composed:
        asked = [
            sql.SQL("count(*)"),
            _together(_hash(self.key)),
            _together(_hash(self.columns)),
            _together(sql.SQL("tidsend(ctid)")),
            # No text of the server has this byte.
            *(_together(_key_text(column), "\\x00") for column in self.key),
        ]
        until = sql.SQL("") if finish is None else sql.SQL(" AND ctid < '({},0)'").format(finish)
        return sql.SQL("SELECT {} FROM ONLY {} WHERE ctid >= '({},0)'{}").format(
            sql.SQL(", ").join(asked), sql.SQL(self.relations[part]), begin, until
        )

    def _shared(self, made: Sequence[pa.Table]) -> pa.RecordBatch:
        found = pa.concat_tables(made).combine_chunks()
        shares = share_of(found[KEY].to_numpy(), self.shares)
        order = np.argsort(shares, kind="stable")
        ordered = found.take(pa.array(order))
        there, begins = np.unique(shares[order], return_index=True)
        ends = [*begins[1:].tolist(), len(shares)]
        pieces = [
            to_stream(ordered.slice(begin, end - begin))
            for begin, end in zip(begins.tolist(), ends, strict=True)
        ]
        return pa.RecordBatch.from_arrays(
            [pa.array(there, pa.int32()), pa.array(pieces, pa.binary())], ["share", "fingerprints"]
        )


def to_stream(rows: pa.Table) -> bytes:
    """Rows as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return bytes(sink.getvalue())


def _steps(begin: int, finish: int | None, last: int) -> Iterator[tuple[int, int | None]]:
    """A range of pages in smaller ones; that of a range without an end has none."""
    upto = last if finish is None else finish
    for step in range(begin, max(upto, begin + 1), _STEP_PAGES):
        end = step + _STEP_PAGES
        yield step, (min(end, upto) if finish is not None or end < upto else None)


def _together(value: sql.Composable, between: str = "") -> sql.Composed:
    return sql.SQL("string_agg({}, {}::bytea)").format(value, sql.Literal(between))


def _key_text(column: SourceColumn) -> sql.Composed:
    """The bytes of a key's text as COPY writes it."""
    return sql.SQL("textsend(concat({}))").format(sql.Identifier(column.name))


def _hash(columns: Iterable[SourceColumn]) -> sql.Composed:
    """The bytes of a hash of some columns."""
    values = sql.SQL(", ").join(map(_value, columns))
    return sql.SQL("int8send(hash_record_extended(ROW({}), {}))").format(values, _SEED)


def _value(column: SourceColumn) -> sql.Composed:
    """What the server makes a hash of: it is the same only where the column's text is."""
    name = sql.Identifier(column.name)
    if column.type_oid in _SENT:
        return sql.SQL("{}({})").format(sql.SQL(_SENT[column.type_oid]), name)
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


def _texts(sent: bytes, rows: int) -> pa.Array:
    """Texts with a byte of 0 between them."""
    every = np.frombuffer(sent + b"\0", np.uint8)
    is_end = every == 0
    ends = np.flatnonzero(is_end)
    if len(ends) != rows:
        raise SourceError(
            "The server has not told the key of every row.",
            hint="Run it again; if it comes back, read the tables with `type: jdbc`.",
        )
    offsets = np.zeros(rows + 1, np.int32)
    offsets[1:] = ends - np.arange(rows)
    found = pa.StringArray.from_buffers(
        rows, pa.py_buffer(offsets), pa.py_buffer(every[~is_end].tobytes())
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
