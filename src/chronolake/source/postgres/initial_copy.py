"""The initial copy (backfill) of a table in one snapshot of the database, by Spark's tasks.

Source: `specs/postgres-facts.md` (4.4). Each task imports the snapshot and copies ranges of pages.
Values are read as texts.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from pyarrow import csv as pa_csv

from chronolake.arrow_tasks import ArrowRows
from chronolake.change_set import RESERVED
from chronolake.errors import SourceError
from chronolake.source.postgres import catalog, encoding
from chronolake.source.postgres.columns import SourceColumn
from chronolake.source.postgres.connection import (
    client_encoding_of,
    connect,
    encode_statement,
    is_encoding_error,
    translate_errors,
)
from chronolake.source.postgres.snapshot import (
    DatabaseSnapshot,
    connect_to_snapshot,
    fetch_row,
    use_snapshot,
)
from chronolake.source.protocol import Snapshot, StreamFailure
from chronolake.source.relational.protected_texts import ProtectedTexts
from chronolake.source.relational.row_versions import RowKey, sequence_of
from chronolake.source.relational.single_rows import expect_columns
from chronolake.types import quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from chronolake.source.postgres.catalog import Part, SourceTable
    from chronolake.source.postgres.offset import LogOffset
    from chronolake.source.protocol import Where

_UNPROTECTED: Final = ProtectedTexts[SourceColumn]()
#: The number of pages of 8 KiB in a range: 64 MiB.
_RANGE_PAGES: Final = 8_192
_RANGE: Final = pa.struct(
    [("relation", pa.string()), ("begin", pa.int64()), ("finish", pa.int64())]
)
#: Timeout in seconds for a transaction that alters a table; the other tables continue then.
_LOCK_SECONDS: Final = 30
_TEXT: Final = pa.string()
#: Chunks of this size fit into the processor's caches while they are parsed.
_CHUNK_BYTES: Final = 4 * 2**20


@dataclass(frozen=True)
class TableSnapshot:
    """A table in a snapshot, locked against rewrites.

    Attributes:
        database: the snapshot.
        table: the table in the snapshot's catalog.
        parts: the relations that store its rows.
        has_new_parts: whether some of them were not parts of the table yet in the snapshot.
        row_filter: a condition of the rows to read, as SQL; None: all rows.
    """

    database: DatabaseSnapshot
    table: SourceTable
    parts: tuple[Part, ...]
    has_new_parts: bool
    row_filter: str | None = None


def copy_table(
    spark: SparkSession,
    dsn: str,
    snapshot: DatabaseSnapshot,
    table: SourceTable,
    position: LogOffset,
    *,
    server: int,
    fingerprints: str | None = None,
    publication: str | None = None,
    where: Where | None = None,
) -> Iterator[Snapshot | StreamFailure]:
    """Read all rows of a table in a snapshot that a publication contains, or some of them.

    Args:
        spark: the session; its executors must reach the server.
        dsn: the server's address.
        snapshot: the snapshot, held until the generator has ended.
        table: the table in an earlier catalog; the snapshot's own catalog is authoritative.
        position: the stream's offset before.
        server: the database's identifier (`catalog.server_of`).
        fingerprints: the name of the fingerprints that were computed in this snapshot.
        publication: the publication whose row filters apply, if any.
        where: which rows to read; None: all. If it is not None, the offset only gets a later time.
    """
    try:
        with lock_table(dsn, snapshot, table, publication) as locked:
            current = locked.table
            row_key = RowKey.of(current)
            columns = row_key.declare(current.columns, out_of_range=set())
            # Values that a type cannot hold are only found during the copy.
            checked = [
                column.name for column in current.columns if column.out_of_range_pattern is not None
            ]
            out_of_range = {name: f"{RESERVED}text{number}" for number, name in enumerate(checked)}
            rows = row_key.convert(
                read_texts(spark, dsn, locked, where),
                current.columns,
                columns,
                out_of_range=out_of_range,
            )
            position_after = (
                position.after_copy(current, snapshot, server=server, fingerprints=fingerprints)
                if where is None
                else position.after_part(snapshot)
            )
            at = position_after.last_micros
            yield Snapshot(
                current.stream,
                rows,
                columns,
                at,
                sequence_of(snapshot.lsn or at),
                position_after.as_json(),
                position_after.numbers(current.columns),
                # A row that was moved to a new part may occur twice.
                is_distinct=not locked.has_new_parts,
                texts=out_of_range,
                is_protected=True,
            )
    except SourceError as failure:
        yield StreamFailure(table.stream, failure)


@contextmanager
def lock_table(
    dsn: str, snapshot: DatabaseSnapshot, table: SourceTable, publication: str | None = None
) -> Iterator[TableSnapshot]:
    """Lock a table as it is in a snapshot while the block runs.

    Args:
        dsn: the server's address.
        snapshot: the snapshot.
        table: the table in an earlier catalog.
        publication: the publication whose row filter applies as it is in the snapshot, if any.

    Raises:
        SourceError: the table cannot be read, or was rewritten since the snapshot was taken.
    """
    with connect(dsn) as connection, use_snapshot(connection, snapshot):
        _acquire_lock(connection, table)
        with translate_errors():
            (is_same,) = fetch_row(
                connection,
                "SELECT coalesce(bool_and(c.relfilenode IN (0, pg_relation_filenode(c.oid))), true)"
                f" FROM pg_class c WHERE c.oid IN (SELECT {table.oid} UNION ALL "
                f"SELECT relid FROM pg_partition_tree({table.oid}))",
            )
        current = catalog.current_table(connection, table)
        if not is_same:
            raise SourceError(
                f"The table {table.stream} was rewritten while its copy was starting.",
                hint="Run it again.",
            )
        parts = tuple(catalog.parts_of(connection, current))
        has_new_parts = catalog.has_new_parts(connection, current)
        # Changes after the snapshot are filtered by the publication as it is then.
        published = {} if publication is None else catalog.published_tables(connection, publication)
        row_filter = published[table.oid].row_filter if table.oid in published else None
        yield TableSnapshot(snapshot, current, parts, has_new_parts, row_filter)


def _acquire_lock(connection: psycopg.Connection, table: SourceTable) -> None:
    """Lock a table against rewrites and truncates, which would make its rows invisible.

    Raises:
        SourceError: another transaction alters the table, and does not end in time.
    """
    lock = sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(_identifier(table))
    try:
        with translate_errors():
            connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
            connection.execute(lock)
            connection.execute("SET LOCAL lock_timeout = 0")
    except SourceError as failure:
        if not isinstance(failure.__cause__, psycopg.errors.LockNotAvailable):
            raise
        raise SourceError(
            f"The table {table.stream} could not be locked for {_LOCK_SECONDS} s: a transaction "
            "that changes it (ALTER TABLE, VACUUM FULL, TRUNCATE, …) is open.",
            hint="The next run tries again. To find the transaction: SELECT pid FROM pg_locks "
            f"WHERE relation = {table.oid} AND mode = 'AccessExclusiveLock';",
        ) from failure


def _identifier(table: SourceTable) -> sql.Identifier:
    return sql.Identifier(table.schema, table.name)


def read_texts(
    spark: SparkSession, dsn: str, snapshot: TableSnapshot, where: Where | None = None
) -> ArrowRows:
    """Return the rows of a table in a snapshot, with their columns as texts.

    Args:
        spark: the session; its executors must reach the server.
        dsn: the server's address.
        snapshot: the snapshot, held until the rows have been read.
        where: which rows to read; None: all.

    Raises:
        SourceError: `where` names a column that the table does not have.
    """
    names = [column.name for column in snapshot.table.columns]
    schema = ", ".join(f"{quote(name)} string" for name in names)
    copy = partial(
        _copy_ranges,
        dsn=dsn,
        snapshot=snapshot.database,
        names=names,
        protected=snapshot.table.texts,
        row_filter=snapshot.row_filter,
    )
    if where is not None:
        expect_columns(snapshot.table.stream, names, where)
        copy = partial(copy, where=where)
    ranges = (
        [
            {
                "relation": page_range.part.relation,
                "begin": page_range.begin,
                "finish": page_range.finish,
            }
            for page_range in task
        ]
        for task in (plan_tasks(snapshot.parts) if where is None else _whole(snapshot.parts))
    )
    tasks = pa.array(ranges, pa.list_(_RANGE))
    return ArrowRows(lambda: distribute(spark, "ranges", tasks), copy, schema)


@dataclass(frozen=True)
class PageRange:
    """A range of pages of a part.

    Attributes:
        part: the part that contains the pages.
        begin: the first page.
        finish: the page after the last one; None: the range is open, because the part may have
            grown.
        last: the page after the last one at the time when the part's size was read.
    """

    part: Part
    begin: int
    finish: int | None
    last: int


def plan_tasks(parts: Iterable[Part]) -> Iterator[list[PageRange]]:
    """Return groups of page ranges for tasks: many of small parts, or one of a large part."""
    waiting: list[PageRange] = []
    pages = 0
    for part in parts:
        last = max(0, part.pages - 1) // _RANGE_PAGES
        for number in range(last + 1):
            begin = number * _RANGE_PAGES
            finish = begin + _RANGE_PAGES if number < last else None
            size = min(part.pages - begin, _RANGE_PAGES)
            if waiting and pages + size > _RANGE_PAGES:
                yield waiting
                waiting, pages = [], 0
            waiting.append(PageRange(part, begin, finish, begin + size))
            pages += max(size, 1)
    if waiting:
        yield waiting


def _whole(parts: Iterable[Part]) -> Iterator[list[PageRange]]:
    """Return a group for each part, because the server finds rows by an index."""
    for part in parts:
        yield [PageRange(part, 0, None, part.pages)]


def distribute(spark: SparkSession, name: str, tasks: pa.Array) -> DataFrame:
    """Return a DataFrame with one column, and a row and a partition for each task."""
    rows = pa.table({name: tasks})
    # Each row is moved from one partition to its own: fast executors take more tasks, and the
    # number of finished tasks shows the progress of the copy.
    return spark.createDataFrame(rows).coalesce(1).repartition(max(1, len(tasks)))


# ------------------------------------------------------------------ in an executor


def _copy_ranges(
    batches: Iterable[pa.RecordBatch],
    *,
    dsn: str,
    snapshot: DatabaseSnapshot,
    names: Sequence[str],
    protected: ProtectedTexts[SourceColumn],
    row_filter: str | None,
    where: Where | None = None,
) -> Iterator[pa.RecordBatch]:
    """Copy ranges of pages, or the rows of whole parts that match `where`."""
    filtered = sql.SQL("" if row_filter is None else f" AND ({row_filter})")
    with connect_to_snapshot(dsn, snapshot) as connection:
        for batch in batches:
            for place in batch.column("ranges").flatten().to_pylist():
                until = "" if place["finish"] is None else f" AND ctid < '({place['finish']},0)'"
                in_pages = sql.SQL(f"ctid >= '({place['begin']},0)'{until}")
                condition = (in_pages if where is None else _condition(where)) + filtered
                yield from rows_where(connection, place["relation"], condition, names, protected)


def _condition(where: Where) -> sql.Composed:
    records = (
        sql.SQL(" AND ").join(
            sql.SQL("{} = {}").format(sql.Identifier(name), sql.Literal(value))
            for name, value in record.items()
        )
        for record in where
    )
    any_of = sql.SQL(" OR ").join(sql.SQL("({})").format(record) for record in records)
    return sql.SQL("({})").format(any_of)


def rows_where(
    connection: psycopg.Connection,
    relation: str,
    where: sql.Composable,
    names: Sequence[str],
    protected: ProtectedTexts[SourceColumn] = _UNPROTECTED,
) -> Iterator[pa.RecordBatch]:
    """Return some rows of a relation, with their columns as texts, as they are stored.

    Args:
        connection: a connection to the database, in a snapshot.
        relation: the relation as SQL, quoted as in the catalog.
        where: a condition for the rows.
        names: the columns.
        protected: the rules of the columns.

    Raises:
        SourceError: the server does not return the rows.
    """
    query = (
        sql.SQL("COPY (SELECT {} FROM ONLY {} WHERE {}) TO STDOUT (FORMAT csv)")
        .format(sql.SQL(", ").join(map(sql.Identifier, names)), sql.SQL(relation), where)
        .as_bytes(connection)
    )
    with locate_invalid_text(connection, relation, where, names):
        for chunk in _chunks(connection, query):
            yield from map(protected.apply_to, _parse_chunk(chunk, names))


@contextmanager
def locate_invalid_text(
    connection: psycopg.Connection, relation: str, where: sql.Composable, names: Sequence[str]
) -> Iterator[None]:
    """Add the row's ctid to the error if the server cannot convert a text to UTF-8.

    Args:
        connection: a connection to the database, in a snapshot.
        relation: the relation as SQL, quoted as in the catalog.
        where: a condition for the rows that the block reads.
        names: the columns that the block reads.

    Raises:
        SourceError: any error of the block, with the ctid of the first row with invalid text.
    """
    if encoding.encoding_of(connection) == "UTF8":
        # A UTF-8 database only contains valid texts.
        yield
        return
    with translate_errors():
        connection.execute("SAVEPOINT chronolake_text")
    try:
        yield
    except SourceError as failure:
        if not is_encoding_error(failure):
            raise
        with translate_errors():
            connection.execute("ROLLBACK TO SAVEPOINT chronolake_text")
        invalid = _first_invalid(connection, relation, where, names)
        if invalid is None:
            raise
        place, column = invalid
        row = f"{relation} WHERE ctid = '{place}'"
        raise SourceError(
            f"The row at ctid {place} of {relation} has text that is not valid in its database's "
            "encoding.",
            hint=f"Correct the row (SELECT * FROM {row}). Then run it again.",
            column=column,
        ) from failure
    with translate_errors():
        connection.execute("RELEASE SAVEPOINT chronolake_text")


def _first_invalid(
    connection: psycopg.Connection, relation: str, where: sql.Composable, names: Sequence[str]
) -> tuple[str, str] | None:
    """Return the ctid of the first row with invalid text, and the column's name."""
    columns = [sql.SQL("ctid::text"), *map(sql.Identifier, names)]
    query = sql.SQL("COPY (SELECT {} FROM ONLY {} WHERE {}) TO STDOUT (FORMAT csv)").format(
        sql.SQL(", ").join(columns), sql.SQL(relation), where
    )
    connection.execute(f"SET LOCAL client_encoding TO '{client_encoding_of(connection)}'")
    search = encoding.InvalidTextSearch(encoding.encoding_of(connection))
    # Generated names, because columns may have any names.
    numbers = [str(number) for number in range(len(names) + 1)]
    for chunk in _chunks(connection, encode_statement(connection, query)):
        for batch in _parse_chunk(chunk, numbers, pa.binary()):
            rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            for place, *cells in rows:
                for name, cell in zip(names, cells, strict=True):
                    if cell is not None:
                        search.add((place.decode(), name), cell)
    # Nothing else can be queried before all rows have been received.
    return search.first(connection)


def _chunks(connection: psycopg.Connection, query: bytes) -> Iterator[bytearray]:
    """Return the output of a COPY in chunks of complete rows."""
    # psycopg's own method takes longer for a row than the server does.
    server = connection.pgconn
    with translate_errors():
        result = server.exec_(query)
        if result.status != ExecStatus.COPY_OUT:
            raise error_from_result(result)
        chunk = bytearray()
        # Each piece is a row.
        length, piece = server.get_copy_data(0)
        while length > 0:
            chunk += piece
            if len(chunk) >= _CHUNK_BYTES:
                yield chunk
                chunk = bytearray()
            length, piece = server.get_copy_data(0)
        if chunk:
            yield chunk
        # All results have to be consumed before anything else can be sent.
        ends = list(iter(server.get_result, None))
        for end in ends:
            if end.status != ExecStatus.COMMAND_OK:
                raise error_from_result(end)


def _parse_chunk(
    chunk: bytearray, names: Sequence[str], kind: pa.DataType = _TEXT
) -> Iterator[pa.RecordBatch]:
    table = pa_csv.read_csv(
        pa.py_buffer(chunk),
        read_options=pa_csv.ReadOptions(
            column_names=list(names), block_size=len(chunk) + 1, use_threads=False
        ),
        parse_options=pa_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=pa_csv.ConvertOptions(
            column_types=dict.fromkeys(names, kind),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=[""],
        ),
    )
    yield from table.to_batches()
