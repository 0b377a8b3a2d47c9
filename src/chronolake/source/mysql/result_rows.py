"""Rows of a query as Arrow batches of texts, without a Python object for each value.

Source: MySQL's documentation of its protocol, "Text Resultset". A row is a packet, and a value the
text that the server prints, after its length.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pymysql.connections import MySQLResult
from pymysql.constants import COMMAND

from chronolake.source.mysql.connection import translate_errors
from chronolake.source.mysql.fields import log_error
from chronolake.source.mysql.row_images import Values, strings
from chronolake.source.mysql.texts import little_endian

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pymysql

    from chronolake.source.relational.changes import Bytes, Places

#: Rows are returned together up to this many bytes.
_BATCH_BYTES: Final = 8 * 2**20
_PADDING: Final = b"\0" * 16
_END: Final = 0xFE
_LONGEST_END: Final = 9
_NULL: Final = 0xFB
#: First bytes of longer lengths, and how many bytes follow.
_WIDTHS: Final = {0xFC: 2, 0xFD: 3, 0xFE: 8}


def read_rows(
    connection: pymysql.Connection[Any], query: str, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Run a query, and yield its rows as they arrive.

    Args:
        connection: the connection; nothing else can be done with it until all rows are read.
        query: the query.
        names: the names of its columns.

    Raises:
        SourceError: the query fails.
    """
    schema = pa.schema([(name, pa.string()) for name in names])
    with translate_errors():
        connection._execute_command(COMMAND.COM_QUERY, query)  # noqa: SLF001 - see the module
        result = MySQLResult(connection)
        result.init_unbuffered_query()
        # It would read all rows when it is collected.
        result.unbuffered_active = False
        packets: list[bytes] = []
        size = 0
        while True:
            data: bytes = connection._read_packet()._data  # noqa: SLF001
            if data[:1] == b"\xfe" and len(data) < _LONGEST_END:
                break
            packets.append(data)
            size += len(data)
            if size >= _BATCH_BYTES:
                yield _batch(packets, schema)
                packets, size = [], 0
    if packets:
        yield _batch(packets, schema)


def _batch(packets: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
    buffer = np.frombuffer(b"".join([*packets, _PADDING]), np.uint8)
    ends = np.array([*accumulate(map(len, packets), initial=0)], np.int64)
    places = ends[:-1]
    columns = []
    for _ in schema.names:
        values = _values(buffer, places)
        places = values.starts + values.lengths
        columns.append(strings(buffer, values).cast(pa.string()))
    if (places != ends[1:]).any():
        raise log_error("a row of a query has another number of columns")
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _values(buffer: Bytes, places: Places) -> Values:
    """Return the values at some places of a buffer, each after its length."""
    first = buffer[places].astype(np.int64)
    is_valid = first != _NULL
    lengths, starts = np.where(is_valid, first, 0), places + 1
    for mark, width in _WIDTHS.items():
        is_longer = first == mark
        if is_longer.any():
            found = little_endian(buffer, places[is_longer] + 1, width).astype(np.int64)
            lengths[is_longer] = found
            starts[is_longer] += width
    return Values(starts, lengths, is_valid, np.zeros(len(places), np.bool_))


def with_logged_floats(rows: pa.RecordBatch, columns: Iterable[str]) -> pa.RecordBatch:
    """Return rows whose floating-point numbers have the texts of those that the log has.

    The server prints 1e20, and all digits of a DOUBLE(10,3): as a key, it would be another one.

    Args:
        rows: rows of texts.
        columns: the columns with floating-point numbers.
    """
    for name in columns:
        place = rows.schema.get_field_index(name)
        texts = rows.column(place).cast(pa.float64()).cast(pa.string())
        rows = rows.set_column(place, pa.field(name, pa.string()), texts)
    return rows
