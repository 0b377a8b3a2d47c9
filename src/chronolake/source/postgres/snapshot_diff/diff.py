"""Snapshot diff of a table without the log.

A large table is compared by fingerprints (`fingerprints`, `ctid_ranges`), and only the rows that
differ are read and land as they are. The first snapshot, and any other without valid fingerprints
to compare with, reads all rows, which are compared with the lake's table. Its fingerprints are
computed in the same snapshot.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyspark.sql import functions as F  # noqa: N812
from pyspark.storagelevel import StorageLevel

from chronolake.arrow_tasks import to_arrow
from chronolake.change_set import DELETED_AT, MODIFIED, PROVIDES_DATA, PURGED_AT, SEQUENCE
from chronolake.errors import SourceError
from chronolake.source.postgres.columns import TypeConversion
from chronolake.source.postgres.initial_copy import copy_table, lock_table
from chronolake.source.postgres.row_versions import RowKey, sequence_of
from chronolake.source.postgres.snapshot_diff.ctid_ranges import (
    EXISTS,
    CtidComparison,
    KeyComparison,
)
from chronolake.source.postgres.snapshot_diff.fingerprints import FingerprintQuery
from chronolake.source.protocol import ChangeBatch, ReadProgress, Snapshot, StreamFailure
from chronolake.types import Kind, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from chronolake.arrow_tasks import ArrowRows
    from chronolake.source.postgres.catalog import SourceTable
    from chronolake.source.postgres.columns import SourceColumn
    from chronolake.source.postgres.initial_copy import TableSnapshot
    from chronolake.source.postgres.offset import LogOffset
    from chronolake.source.postgres.snapshot import DatabaseSnapshot
    from chronolake.source.postgres.snapshot_diff.fingerprints import (
        FingerprintFolder,
        Fingerprints,
    )
    from chronolake.types import Column

log = structlog.get_logger(__name__)

#: For tables with fewer pages of 8 KiB, reading all rows is faster than computing fingerprints.
_LEAST_PAGES: Final = 4_096
#: Version of the fingerprints' algorithm; those of another version are not comparable.
_ALGORITHM: Final = 2
_ROWS_PER_TASK: Final = 50_000
#: Types whose values have exactly one text representation.
_EXACT: Final = {Kind.BOOLEAN, Kind.SHORT, Kind.INT, Kind.LONG, Kind.STRING, Kind.NAIVE_DATE}
_DATES: Final = (
    f"{MODIFIED} bigint, {SEQUENCE} string, {DELETED_AT} bigint, {PURGED_AT} bigint, "
    f"{PROVIDES_DATA} boolean"
)


@dataclass(frozen=True)
class SnapshotDiff:
    """The snapshot diff of tables in one snapshot of their database.

    Attributes:
        spark: the session that does the work.
        dsn: the server's address.
        snapshot: the snapshot, held meanwhile.
        server: the database's identifier (`catalog.server_of`).
        major: the server's major version.
        folder: the folder of the stream's fingerprints.
    """

    spark: SparkSession
    dsn: str
    snapshot: DatabaseSnapshot
    server: int
    major: int
    folder: FingerprintFolder

    def at(
        self, table: SourceTable, position: LogOffset, *, full_refresh: bool
    ) -> Iterator[ChangeBatch | Snapshot | ReadProgress | StreamFailure]:
        """Read what differs in a table, or all of it.

        Args:
            table: the table in an earlier catalog; the snapshot's own catalog is authoritative.
            position: the stream's offset before.
            full_refresh: whether to read all rows.
        """
        self.folder.remove_all_but(position.fingerprints)
        try:
            with lock_table(self.dsn, self.snapshot, table) as held:
                key = RowKey.of(held.table)
                if self._is_worth(held, key, position):
                    yield from self._by_fingerprints(held, key, position, full_refresh=full_refresh)
                    return
        except SourceError as failure:
            yield StreamFailure(table.stream, failure)
            return
        yield from self._all_of(table, position, None)

    def _is_worth(self, held: TableSnapshot, key: RowKey, position: LogOffset) -> bool:
        if key.is_hashed or len(key.columns) != len(held.table.key):
            return False
        if any(column.type.kind in {Kind.FLOAT, Kind.DOUBLE} for column in key.columns):
            # In the lake, -0 and 0 are the same key, and so are all NaN values.
            return False
        if held.has_new_parts:
            # Two rows may have the same key.
            return False
        is_large = sum(part.pages for part in held.parts) >= _LEAST_PAGES
        return is_large or position.fingerprints is not None

    def _by_fingerprints(
        self, held: TableSnapshot, key: RowKey, position: LogOffset, *, full_refresh: bool
    ) -> Iterator[ChangeBatch | Snapshot | ReadProgress | StreamFailure]:
        stream, columns = held.table.stream, held.table.columns
        # Everything that follows only compares.
        yield ReadProgress(stream, 0)
        says = self._says(held, key)
        before = None if full_refresh else self.folder.load_token(position.fingerprints, says)
        new = self.folder.begun()
        with ExitStack() as until_landed:
            try:
                found = until_landed.enter_context(self._found(held, key, new, before))
            except Exception as failure:  # noqa: BLE001 - the other tables must not suffer
                if before is None or before.are_undamaged:
                    yield StreamFailure(stream, failure)
                    return
                log.warning("fingerprints_damaged", stream=stream, path=str(before.path))
                found = None
            if found is None or not found.are_distinguishable:
                yield from self._all_of(held.table, position, None)
                self.folder.remove_all_but(None)
                return
            yield ReadProgress(stream, new.rows)
            if before is None:
                yield from self._all_of(held.table, position, new.name)
            else:
                done = position.after_copy(
                    held.table, held.database, server=self.server, fingerprints=new.name
                )
                declared = key.declared(columns, beyond=found.beyond)
                versions = self._versions(found, held, declared, done)
                yield ChangeBatch(
                    stream,
                    versions,
                    declared,
                    done.as_json(),
                    done.numbers(columns),
                    is_distinct=_is_exact(declared),
                )
        self.folder.finish(new, says)
        self.folder.remove_all_but(new.name)

    def _says(self, held: TableSnapshot, key: RowKey) -> dict[str, Any]:
        """Return table, columns and algorithm of fingerprints, which only compare if equal."""
        table = held.table
        columns = [
            [column.number, column.name, column.type_oid, column.type_modifier]
            for column in table.columns
        ]
        return {
            "way": _ALGORITHM,
            "server": self.server,
            "major": self.major,
            "table": table.oid,
            "key": list(key.names),
            "columns": columns,
            **({"forms": table.options.words} if table.options.words else {}),
        }

    def _all_of(
        self, table: SourceTable, position: LogOffset, fingerprints: str | None
    ) -> Iterator[Snapshot | StreamFailure]:
        yield from copy_table(
            self.spark,
            self.dsn,
            self.snapshot,
            table,
            position,
            server=self.server,
            fingerprints=fingerprints,
        )

    @contextmanager
    def _found(
        self, held: TableSnapshot, key: RowKey, new: Fingerprints, before: Fingerprints | None
    ) -> Iterator[_Differences]:
        """Compute new fingerprints, and keep the differences while the block runs."""
        columns = held.table.columns
        making = FingerprintQuery(columns, key.columns)
        by_place = CtidComparison(self.dsn, held.database, held.parts, making, new, before)
        with _persist(by_place.rows(self.spark)) as elsewhere:
            count = elsewhere.count()
            if not count:
                yield _Differences(None, 0, beyond=set(), are_distinguishable=True)
                return
            by_key = KeyComparison(
                self.dsn,
                held.database,
                tuple(part.relation for part in held.parts),
                tuple(column.name for column in columns),
                key.names,
            )
            with _persist(by_key.rows(elsewhere, count)) as rows:
                yield _measure(rows, columns)

    def _versions(
        self, found: _Differences, held: TableSnapshot, declared: Sequence[Column], done: LogOffset
    ) -> ArrowRows | None:
        """Return the rows that differ as record versions at the time of the snapshot."""
        if found.rows is None or not found.count:
            return None
        # Each of Spark's tasks writes a file.
        tasks = min(-(-found.count // _ROWS_PER_TASK), self.spark.sparkContext.defaultParallelism)
        typing = TypeConversion(held.table.columns, tuple(declared), f"{EXISTS} boolean")
        typed = to_arrow(found.rows.coalesce(tasks)).then(typing, typing.schema)
        dated = partial(
            _add_system_columns, at=done.last_micros, sequence=sequence_of(done.last_micros)
        )
        return typed.then(dated, f"{typed.schema}, {_DATES}")


def _is_exact(declared: Iterable[Column]) -> bool:
    """Return whether key values with different texts are always different keys in the lake."""
    return all(column.type.kind in _EXACT for column in declared if column.primary_key)


@dataclass(frozen=True)
class _Differences:
    """The rows that differ.

    Attributes:
        rows: the rows (`KeyComparison.schema`); None if nothing differs.
        count: the number of rows.
        beyond: the names of columns with values that their types cannot hold.
        are_distinguishable: whether no two rows have the same key.
    """

    rows: DataFrame | None
    count: int
    beyond: set[str]
    are_distinguishable: bool


@contextmanager
def _persist(rows: DataFrame) -> Iterator[DataFrame]:
    """Persist rows while the block runs, so that they are computed once."""
    rows.persist(StorageLevel.MEMORY_AND_DISK_DESER)
    try:
        yield rows
    finally:
        rows.unpersist()


def _measure(rows: DataFrame, columns: Iterable[SourceColumn]) -> _Differences:
    doubtful = [(column.name, column.beyond) for column in columns if column.beyond]
    flags = [F.bool_or(F.col(quoted(name)).rlike(pattern)) for name, pattern in doubtful]
    unknown = F.count_if(F.col(EXISTS).isNull())
    (found,) = rows.agg(F.count(F.lit(1)), unknown, *flags).collect()
    count, twice, *is_beyond = found
    beyond = {name for (name, _), is_so in zip(doubtful, is_beyond, strict=True) if is_so}
    return _Differences(rows, count, beyond, are_distinguishable=not twice)


# ------------------------------------------------------------------ in an executor


def _add_system_columns(
    batches: Iterable[pa.RecordBatch], *, at: int, sequence: str
) -> Iterator[pa.RecordBatch]:
    """Return rows as versions at one time, and tombstones for deleted rows."""
    for batch in batches:
        is_there = batch[EXISTS]
        when = pa.repeat(pa.scalar(at, pa.int64()), batch.num_rows)
        never = pa.nulls(batch.num_rows, pa.int64())
        facts = {
            MODIFIED: when,
            SEQUENCE: pa.repeat(sequence, batch.num_rows),
            DELETED_AT: pc.if_else(is_there, never, when),
            PURGED_AT: never,
            PROVIDES_DATA: is_there,
        }
        names = [*batch.schema.names, *facts]
        yield pa.RecordBatch.from_arrays([*batch.columns, *facts.values()], names)
