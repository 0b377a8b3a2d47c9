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
from pyspark.storagelevel import StorageLevel

from chronolake.arrow_tasks import to_arrow
from chronolake.change_set import DELETED_AT, MODIFIED, PROVIDES_DATA, PURGED_AT, SEQUENCE
from chronolake.errors import SourceError
from chronolake.frames import select
from chronolake.source.postgres.initial_copy import copy_table, lock_table
from chronolake.source.postgres.snapshot_diff.ctid_ranges import (
    EXISTS,
    CtidComparison,
    KeyComparison,
)
from chronolake.source.postgres.snapshot_diff.fingerprints import FingerprintQuery
from chronolake.source.protocol import ChangeBatch, ReadProgress, Snapshot, StreamFailure
from chronolake.source.relational.columns import TypeConversion
from chronolake.source.relational.row_versions import RowKey, sequence_of
from chronolake.types import Kind, literal, quote

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
_VERSION_COLUMNS: Final = (
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
        is_shared: whether tasks see the folder. If not, all rows are read and compared.
        publication: the publication whose row filters apply, if any.
    """

    spark: SparkSession
    dsn: str
    snapshot: DatabaseSnapshot
    server: int
    major: int
    folder: FingerprintFolder
    is_shared: bool
    publication: str | None = None

    def read(
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
            with lock_table(self.dsn, self.snapshot, table, self.publication) as locked:
                key = RowKey.of(locked.table)
                if self._can_use_fingerprints(locked, key, position):
                    yield from self._read_by_fingerprints(
                        locked, key, position, full_refresh=full_refresh
                    )
                    return
        except SourceError as failure:
            yield StreamFailure(table.stream, failure)
            return
        yield from self._read_all(table, position, None)

    def _can_use_fingerprints(
        self, locked: TableSnapshot, key: RowKey[SourceColumn], position: LogOffset
    ) -> bool:
        if not self.is_shared or locked.row_filter is not None:
            return False
        if key.is_hashed or len(key.columns) != len(locked.table.key):
            return False
        if any(column.type.kind in {Kind.FLOAT, Kind.DOUBLE} for column in key.columns):
            # In the lake, -0 and 0 are the same key, and so are all NaN values.
            return False
        if locked.table.texts.hashed.intersection(key.names):
            # Fingerprints are stored with the key.
            return False
        if locked.has_new_parts:
            # Two rows may have the same key.
            return False
        is_large = sum(part.pages for part in locked.parts) >= _LEAST_PAGES
        return is_large or position.fingerprints is not None

    def _read_by_fingerprints(
        self,
        locked: TableSnapshot,
        key: RowKey[SourceColumn],
        position: LogOffset,
        *,
        full_refresh: bool,
    ) -> Iterator[ChangeBatch | Snapshot | ReadProgress | StreamFailure]:
        stream, columns = locked.table.stream, locked.table.columns
        # Everything that follows only compares.
        yield ReadProgress(stream, 0)
        metadata = self._metadata(locked, key)
        before = None if full_refresh else self.folder.load(position.fingerprints, metadata)
        new = self.folder.create()
        with ExitStack() as until_landed:
            try:
                differences = until_landed.enter_context(
                    self._find_differences(locked, key, new, before)
                )
            except Exception as failure:  # noqa: BLE001 - the other tables must not suffer
                if before is None or before.are_undamaged:
                    yield StreamFailure(stream, failure)
                    return
                log.warning("fingerprints_damaged", stream=stream, path=str(before.path))
                differences = None
            if differences is None or not differences.are_distinguishable:
                yield from self._read_all(locked.table, position, None)
                self.folder.remove_all_but(None)
                return
            yield ReadProgress(stream, new.rows)
            if before is None:
                yield from self._read_all(locked.table, position, new.name)
            else:
                position_after = position.after_copy(
                    locked.table, locked.database, server=self.server, fingerprints=new.name
                )
                declared = key.declare(columns, out_of_range=differences.out_of_range)
                versions = self._versions(differences, locked, declared, position_after)
                yield ChangeBatch(
                    stream,
                    versions,
                    declared,
                    position_after.as_json(),
                    position_after.numbers(columns),
                    is_distinct=_is_exact(declared),
                    is_protected=True,
                )
        self.folder.finish(new, metadata)
        self.folder.remove_all_but(new.name)

    def _metadata(self, locked: TableSnapshot, key: RowKey[SourceColumn]) -> dict[str, Any]:
        """Return table, columns and algorithm of fingerprints, which only compare if equal."""
        table = locked.table
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
            **({"forms": table.options.description} if table.options.description else {}),
            **({"rules": table.texts.rules.digest} if table.texts.rules else {}),
        }

    def _read_all(
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
            publication=self.publication,
        )

    @contextmanager
    def _find_differences(
        self,
        locked: TableSnapshot,
        key: RowKey[SourceColumn],
        new: Fingerprints,
        before: Fingerprints | None,
    ) -> Iterator[_Differences]:
        """Compute new fingerprints, and keep the differences while the block runs."""
        columns = locked.table.columns
        read, seed = locked.table.texts.fingerprinted(columns)
        query = FingerprintQuery(read, key.columns, seed)
        by_place = CtidComparison(self.dsn, locked.database, locked.parts, query, new, before)
        with _persist(by_place.rows(self.spark)) as moved_or_changed:
            count = moved_or_changed.count()
            if not count:
                yield _Differences(None, 0, out_of_range=set(), are_distinguishable=True)
                return
            by_key = KeyComparison(
                self.dsn,
                locked.database,
                tuple(part.relation for part in locked.parts),
                tuple(column.name for column in columns),
                key.names,
                locked.table.texts,
            )
            with _persist(by_key.rows(moved_or_changed, count)) as rows:
                yield _measure(rows, columns)

    def _versions(
        self,
        differences: _Differences,
        locked: TableSnapshot,
        declared: Sequence[Column],
        position_after: LogOffset,
    ) -> ArrowRows | None:
        """Return the rows that differ as record versions at the time of the snapshot."""
        if differences.rows is None or not differences.count:
            return None
        # Each of Spark's tasks writes a file.
        tasks = min(
            -(-differences.count // _ROWS_PER_TASK), self.spark.sparkContext.defaultParallelism
        )
        typing = TypeConversion(locked.table.columns, tuple(declared), f"{EXISTS} boolean")
        typed = to_arrow(differences.rows.coalesce(tasks)).then(typing, typing.schema)
        add_columns = partial(
            _add_system_columns,
            at=position_after.last_micros,
            sequence=sequence_of(position_after.last_micros),
        )
        return typed.then(add_columns, f"{typed.schema}, {_VERSION_COLUMNS}")


def _is_exact(declared: Iterable[Column]) -> bool:
    """Return whether key values with different texts are always different keys in the lake."""
    return all(column.type.kind in _EXACT for column in declared if column.primary_key)


@dataclass(frozen=True)
class _Differences:
    """The rows that differ.

    Attributes:
        rows: the rows (`KeyComparison.schema`); None if nothing differs.
        count: the number of rows.
        out_of_range: the names of columns with values that their types cannot hold.
        are_distinguishable: whether no two rows have the same key.
    """

    rows: DataFrame | None
    count: int
    out_of_range: set[str]
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
    checked = [
        (column.name, column.out_of_range_pattern)
        for column in columns
        if column.out_of_range_pattern
    ]
    flags = [f"bool_or({quote(name)} RLIKE {literal(pattern)})" for name, pattern in checked]
    counts = ["count(1)", f"count_if({EXISTS} IS NULL)"]
    (row,) = select(rows, [*counts, *flags]).collect()
    count, duplicates, *is_out_of_range = row
    out_of_range = {
        name for (name, _), has_values in zip(checked, is_out_of_range, strict=True) if has_values
    }
    return _Differences(rows, count, out_of_range, are_distinguishable=not duplicates)


# ------------------------------------------------------------------ in an executor


def _add_system_columns(
    batches: Iterable[pa.RecordBatch], *, at: int, sequence: str
) -> Iterator[pa.RecordBatch]:
    """Return rows as versions at one time, and tombstones for deleted rows."""
    for batch in batches:
        exists = batch[EXISTS]
        times = pa.repeat(pa.scalar(at, pa.int64()), batch.num_rows)
        nulls = pa.nulls(batch.num_rows, pa.int64())
        system_columns = {
            MODIFIED: times,
            SEQUENCE: pa.repeat(sequence, batch.num_rows),
            DELETED_AT: pc.if_else(exists, nulls, times),
            PURGED_AT: nulls,
            PROVIDES_DATA: exists,
        }
        names = [*batch.schema.names, *system_columns]
        yield pa.RecordBatch.from_arrays([*batch.columns, *system_columns.values()], names)
