"""Ranges of ctids whose rows changed or moved, and the kind of each row's change.

An unchanged row stays at its ctid unless its table is rewritten. Each task (`CtidComparison`)
therefore compares the fingerprints of some pages with the stored fingerprints of the same pages. It
returns the rows that are new or different at their ctid, and the stored rows that are missing
there.

These rows are matched by key (`KeyComparison`). A row with an equal fingerprint has only moved. A
row with another fingerprint was changed. Rows on one side only were inserted or deleted. Changed
and inserted rows are read from the snapshot by ctid. Deleted rows are reported by their stored
keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from chronolake.errors import SourceError
from chronolake.source.postgres.initial_copy import PageRange, distribute, plan_tasks, rows_where
from chronolake.source.postgres.snapshot import connect_to_snapshot
from chronolake.source.postgres.snapshot_diff.fingerprints import (
    PLACE,
    ROW,
    FingerprintQuery,
    first_place,
    format_ctids,
    key_name,
    schema_of,
)
from chronolake.source.relational.protected_texts import ProtectedTexts
from chronolake.types import quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import psycopg
    from pyspark.sql import DataFrame, SparkSession

    from chronolake.source.postgres.catalog import Part
    from chronolake.source.postgres.columns import SourceColumn
    from chronolake.source.postgres.snapshot import DatabaseSnapshot
    from chronolake.source.postgres.snapshot_diff.fingerprints import FingerprintFile, Fingerprints
    from chronolake.source.relational.changes import Places


#: The number of the part that stores a row; null if the row is no longer at its place.
PART: Final = "part"

_RANGES: Final = "ranges"
_RANGE: Final = pa.struct(
    [
        # Null: no part of the table has these pages any more.
        ("part", pa.int32()),
        ("begin", pa.int64()),
        ("finish", pa.int64()),
        ("last", pa.int64()),
        # The file with the stored fingerprints of these pages.
        ("before", pa.string()),
    ]
)
#: Up to this many files of pages that no longer exist are read by one task.
_FILES_PER_TASK: Final = 16
_SPARK: Final = {pa.int32(): "int", pa.int64(): "bigint", pa.string(): "string"}


def find_differing_rows(now: pa.Table, before: pa.Table) -> tuple[Places, Places]:
    """Return the rows that differ at their ctids.

    Args:
        now: fingerprints of some pages, in the order of their ctids.
        before: the stored fingerprints of the same pages.

    Returns:
        The indexes of rows of `now` that are missing in `before` or have another fingerprint there,
        and the indexes of rows of `before` that are missing or different in `now`.
    """
    ctids, stored = now[PLACE].to_numpy(), before[PLACE].to_numpy()
    indexes = np.searchsorted(stored, ctids)
    is_same = indexes < len(stored)
    is_same[is_same] = stored[indexes[is_same]] == ctids[is_same]
    is_same[is_same] = before[ROW].to_numpy()[indexes[is_same]] == now[ROW].to_numpy()[is_same]
    is_gone = np.ones(len(stored), np.bool_)
    is_gone[indexes[is_same]] = False
    return np.flatnonzero(~is_same), np.flatnonzero(is_gone)


@dataclass(frozen=True)
class CtidComparison:
    """A task that computes, stores and compares fingerprints of page ranges in executors.

    Attributes:
        dsn: the server's address.
        database: the snapshot, held until all fingerprints are computed.
        parts: the relations that store the table's rows in the snapshot.
        query: computes the fingerprints.
        new: where new fingerprints are stored.
        before: the fingerprints to compare with; None: new ones are only stored.
    """

    dsn: str
    database: DatabaseSnapshot
    parts: tuple[Part, ...]
    query: FingerprintQuery
    new: Fingerprints
    before: Fingerprints | None

    @property
    def schema(self) -> str:
        """Return the output's Spark schema: `PART`, and the columns of fingerprints."""
        return ", ".join(f"{field.name} {_SPARK[field.type]}" for field in self._schema)

    @property
    def _schema(self) -> pa.Schema:
        return pa.schema([(PART, pa.int32()), *schema_of(self.query.key)])

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the rows that differ, lazily. Computing them stores the new fingerprints.

        Args:
            spark: the session; its executors must reach the server and the lake's folder.
        """
        tasks = pa.array(self._tasks(), pa.list_(_RANGE))
        return distribute(spark, _RANGES, tasks).mapInArrow(self, self.schema)

    def _tasks(self) -> Iterator[list[dict[str, object]]]:
        unread = {} if self.before is None else self.before.files()
        numbers = {part.oid: number for number, part in enumerate(self.parts)}
        for task in plan_tasks(self.parts):
            yield [
                {
                    "part": numbers[page_range.part.oid],
                    "begin": page_range.begin,
                    "finish": page_range.finish,
                    "last": page_range.last,
                    "before": unread.pop((page_range.part.oid, page_range.begin), None),
                }
                for page_range in task
            ]
        names = sorted(unread.values())
        for begin in range(0, len(names), _FILES_PER_TASK):
            yield [{"before": name} for name in names[begin : begin + _FILES_PER_TASK]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the rows that differ in page ranges.

        Raises:
            SourceError: the server does not respond, or stored fingerprints are damaged.
        """
        with connect_to_snapshot(self.dsn, self.database) as connection:
            for batch in batches:
                for pages_row in batch.column(_RANGES).flatten().to_pylist():
                    stored = self._read_stored(pages_row["before"])
                    if pages_row["part"] is None:
                        yield from self._with_part(stored, None)
                        continue
                    part = self.parts[pages_row["part"]]
                    pages = PageRange(
                        part, pages_row["begin"], pages_row["finish"], pages_row["last"]
                    )
                    with self.new.create_file(part.oid, pages.begin, stored.schema) as file:
                        fingerprints = self.query.read(connection, pages)
                        yield from self._compare(fingerprints, stored, file, pages_row["part"])

    def _read_stored(self, name: str | None) -> pa.Table:
        if self.before is None or name is None:
            return schema_of(self.query.key).empty_table()
        return self.before.read(name)

    def _compare(
        self,
        fingerprints: Iterator[tuple[int, pa.Table]],
        stored: pa.Table,
        file: FingerprintFile,
        part: int,
    ) -> Iterator[pa.RecordBatch]:
        places = stored[PLACE].to_numpy()
        begin = 0
        for page, now in fingerprints:
            file.write(now)
            if self.before is None:
                continue
            end = int(np.searchsorted(places, first_place(page)))
            before = stored.slice(begin, end - begin)
            begin = end
            differs, is_gone = find_differing_rows(now, before)
            yield from self._with_part(now.take(pa.array(differs)), part)
            yield from self._with_part(before.take(pa.array(is_gone)), None)

    def _with_part(self, rows: pa.Table, part: int | None) -> Iterator[pa.RecordBatch]:
        if rows.num_rows:
            parts = pa.repeat(pa.scalar(part, pa.int32()), rows.num_rows)
            table = pa.Table.from_arrays([parts, *rows.columns], schema=self._schema)
            yield from table.combine_chunks().to_batches()


#: Whether a row exists. Rows that do not exist only contain the key. Null: two rows have the same
#: key.
EXISTS: Final = "__chronolake_is_there"
#: Up to this many rows that differ are matched in one task: about 50 MB.
_ROWS_PER_TASK: Final = 500_000
#: Fewer rows are not worth a task.
_LEAST_PER_TASK: Final = 10_000
#: Up to this many rows are requested at once.
_ROWS_AT_ONCE: Final = 10_000


@dataclass(frozen=True)
class Difference:
    """The result of matching rows that differ at their ctids.

    Attributes:
        changed: the rows that are new or have another fingerprint, with their `PART` and `PLACE`.
        deleted_keys: the keys of deleted rows.
        are_distinguishable: whether no two rows have the same key.
    """

    changed: pa.Table
    deleted_keys: pa.Table
    are_distinguishable: bool


def match_by_key(rows: pa.Table, keys: Sequence[str]) -> Difference:
    """Match rows by key and return what changed.

    Args:
        rows: rows that differ at their ctids (`find_differing_rows`), complete for each key.
        keys: the columns of the key.
    """
    has_part = pc.is_valid(rows[PART])
    now = rows.filter(has_part).select([*keys, ROW, PART, PLACE])
    before = rows.filter(pc.invert(has_part)).select([*keys, ROW])
    are_distinguishable = all(
        side.group_by(list(keys), use_threads=False).aggregate([]).num_rows == side.num_rows
        for side in (now, before)
    )
    joined = now.join(
        before,
        list(keys),
        join_type="full outer",
        right_suffix="_before",
        use_threads=False,
    )
    is_same = pc.fill_null(pc.equal(joined[ROW], joined[f"{ROW}_before"]), fill_value=False)
    exists_now = pc.is_valid(joined[PART])
    return Difference(
        joined.filter(pc.and_(exists_now, pc.invert(is_same))).select([PART, PLACE]),
        joined.filter(pc.invert(exists_now)).select(list(keys)),
        are_distinguishable,
    )


@dataclass(frozen=True)
class KeyComparison:
    """A task that matches rows by key and reads those that differ, in executors.

    Attributes:
        dsn: the server's address.
        database: the snapshot, held until all rows have been read.
        relations: the relations that store the table's rows, as SQL.
        columns: the names of the table's columns.
        key: the names of the columns that identify rows.
        protected: the rules of the columns.
    """

    dsn: str
    database: DatabaseSnapshot
    relations: tuple[str, ...]
    columns: tuple[str, ...]
    key: tuple[str, ...]
    protected: ProtectedTexts[SourceColumn] = field(default_factory=ProtectedTexts)

    @property
    def schema(self) -> str:
        """Return the output's Spark schema: texts, and whether the row exists."""
        return ", ".join([*(f"{quote(name)} string" for name in self.columns), f"{EXISTS} boolean"])

    @property
    def _arrow_schema(self) -> pa.Schema:
        texts = [(name, pa.string()) for name in self.columns]
        return pa.schema([*texts, (EXISTS, pa.bool_())])

    @property
    def _keys(self) -> list[str]:
        return [key_name(number) for number in range(len(self.key))]

    def rows(self, differing: DataFrame, count: int) -> DataFrame:
        """Return new and changed rows, and the keys of deleted rows, lazily.

        Args:
            differing: rows that differ at their ctids.
            count: the number of these rows.
        """
        cores = differing.sparkSession.sparkContext.defaultParallelism
        tasks = max(-(-count // _ROWS_PER_TASK), min(cores, -(-count // _LEAST_PER_TASK)))
        return differing.repartition(tasks, *self._keys).mapInArrow(self, self.schema)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the changes of rows that differ at their ctids.

        Raises:
            SourceError: the server does not return the rows whose fingerprints it computed.
        """
        rows = list(batches)
        if not rows:
            return
        difference = match_by_key(pa.Table.from_batches(rows).combine_chunks(), self._keys)
        if not difference.are_distinguishable:
            # Rows with equal keys cannot be matched.
            yield pa.RecordBatch.from_pylist([{EXISTS: None}], schema=self._arrow_schema)
            return
        if difference.changed.num_rows:
            with connect_to_snapshot(self.dsn, self.database) as connection:
                yield from self._read(connection, difference.changed)
        if difference.deleted_keys.num_rows:
            yield self._deleted_keys(difference.deleted_keys)

    def _read(self, connection: psycopg.Connection, places: pa.Table) -> Iterator[pa.RecordBatch]:
        for part, relation in enumerate(self.relations):
            places_of_part = np.sort(places.filter(pc.field(PART) == part)[PLACE].to_numpy())
            for begin in range(0, len(places_of_part), _ROWS_AT_ONCE):
                wanted = places_of_part[begin : begin + _ROWS_AT_ONCE]
                where = sql.SQL("ctid = ANY ({}::tid[])").format(format_ctids(wanted))
                read = 0
                for rows in rows_where(connection, relation, where, self.columns, self.protected):
                    read += rows.num_rows
                    yield rows.append_column(EXISTS, pa.repeat(True, rows.num_rows))
                if read != len(wanted):
                    raise SourceError(
                        f"The server returned {read:,} of {len(wanted):,} rows that differ.",
                        hint="Run it again. Nothing has landed.",
                    )

    def _deleted_keys(self, keys: pa.Table) -> pa.RecordBatch:
        numbers = {name: key_name(number) for number, name in enumerate(self.key)}
        cells = [
            keys[numbers[name]].combine_chunks().cast(pa.string())
            if name in numbers
            else pa.nulls(keys.num_rows, pa.string())
            for name in self.columns
        ]
        flags = pa.repeat(False, keys.num_rows)
        return pa.RecordBatch.from_arrays([*cells, flags], schema=self._arrow_schema)
