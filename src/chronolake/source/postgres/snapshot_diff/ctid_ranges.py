"""Ranges of ctids whose rows changed or moved, and what became of them.

Which rows do not stand where they stood, as they were: only of these it has to be found out why.

A row that is not changed stays in its place, unless its table is written anew. So each task
compares the fingerprints of some pages with those that were `kept` of the same pages, and sends on
what differs: rows that were not there or not as they are, and rows that are not there any more.
What becomes of these is decided by their keys (`keys`).

What has become of rows that do not stand where they stood, as they were.

Rows with one key come together: a row that has only moved is as it was, one with another
fingerprint has changed, one that was nowhere is new, and one that is nowhere any more has gone.
Rows that have changed or are new are read by their places in the snapshot; of those that have gone
the key is told, as it was kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from chronolake.errors import SourceError
from chronolake.source.postgres.initial_copy import PageRange, rows_where, spread, tasks_of
from chronolake.source.postgres.snapshot import beside
from chronolake.source.postgres.snapshot_diff.fingerprints import (
    PLACE,
    ROW,
    Fingerprinting,
    first_place,
    key_name,
    places_as_text,
    schema_of,
)
from chronolake.types import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import psycopg
    from pyspark.sql import DataFrame, SparkSession

    from chronolake.source.postgres.catalog import Part
    from chronolake.source.postgres.pgoutput import Places
    from chronolake.source.postgres.snapshot import DatabaseSnapshot
    from chronolake.source.postgres.snapshot_diff.fingerprints import Fingerprints, KeptFile


#: Which part a row stands in, by its number; null, if it does not stand there any more.
PART: Final = "part"

_RANGES: Final = "ranges"
_RANGE: Final = pa.struct(
    [
        # Null: none of the table's parts has these pages any more.
        ("part", pa.int32()),
        ("begin", pa.int64()),
        ("finish", pa.int64()),
        ("last", pa.int64()),
        # The file that has what was kept of them.
        ("before", pa.string()),
    ]
)
#: So many files of pages that are not there any more are read by one task.
_FILES_PER_TASK: Final = 16
_SPARK: Final = {pa.int32(): "int", pa.int64(): "bigint", pa.string(): "string"}


def differing_places(now: pa.Table, before: pa.Table) -> tuple[Places, Places]:
    """Which rows are not where they were as they are.

    Args:
        now: fingerprints of some pages, in the order of their places.
        before: those that were kept of them.

    Returns:
        Which rows of `now` `before` has not got, or not with this fingerprint; and which rows of
        `before` `now` has not got so.
    """
    places, earlier = now[PLACE].to_numpy(), before[PLACE].to_numpy()
    found = np.searchsorted(earlier, places)
    is_same = found < len(earlier)
    is_same[is_same] = earlier[found[is_same]] == places[is_same]
    is_same[is_same] = before[ROW].to_numpy()[found[is_same]] == now[ROW].to_numpy()[is_same]
    has_gone = np.ones(len(earlier), np.bool_)
    has_gone[found[is_same]] = False
    return np.flatnonzero(~is_same), np.flatnonzero(has_gone)


@dataclass(frozen=True)
class ByPlace:
    """Makes and keeps fingerprints of ranges of pages, and compares; it goes to the executors.

    Attributes:
        dsn: the server's address.
        database: the snapshot, held until all have been made.
        parts: what holds the table's rows there.
        making: asks for fingerprints.
        new: where they are kept.
        before: what they are compared with; None: they are only kept.
    """

    dsn: str
    database: DatabaseSnapshot
    parts: tuple[Part, ...]
    making: Fingerprinting
    new: Fingerprints
    before: Fingerprints | None

    @property
    def schema(self) -> str:
        """What it gives, as a Spark schema: `PART`, and the columns of fingerprints."""
        return ", ".join(f"{field.name} {_SPARK[field.type]}" for field in self._schema)

    @property
    def _schema(self) -> pa.Schema:
        return pa.schema([(PART, pa.int32()), *schema_of(self.making.key)])

    def rows(self, spark: SparkSession) -> DataFrame:
        """The rows that differ, lazily; to compute them is to keep the new fingerprints.

        Args:
            spark: the session; its executors must reach the server and the lake's folder.
        """
        tasks = pa.array(self._tasks(), pa.list_(_RANGE))
        return spread(spark, _RANGES, tasks).mapInArrow(self, self.schema)

    def _tasks(self) -> Iterator[list[dict[str, object]]]:
        left = {} if self.before is None else self.before.files()
        numbers = {part.oid: number for number, part in enumerate(self.parts)}
        for task in tasks_of(self.parts):
            yield [
                {
                    "part": numbers[one.part.oid],
                    "begin": one.begin,
                    "finish": one.finish,
                    "last": one.last,
                    "before": left.pop((one.part.oid, one.begin), None),
                }
                for one in task
            ]
        names = sorted(left.values())
        for begin in range(0, len(names), _FILES_PER_TASK):
            yield [{"before": name} for name in names[begin : begin + _FILES_PER_TASK]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give the rows of ranges of pages that differ.

        Raises:
            SourceError: the server does not answer, or what was kept is damaged.
        """
        with beside(self.dsn, self.database) as connection:
            for batch in batches:
                for reported in batch.column(_RANGES).flatten().to_pylist():
                    earlier = self._earlier(reported["before"])
                    if reported["part"] is None:
                        yield from self._given(earlier, None)
                        continue
                    part = self.parts[reported["part"]]
                    pages = PageRange(part, reported["begin"], reported["finish"], reported["last"])
                    with self.new.writing(part.oid, pages.begin, earlier.schema) as file:
                        made = self.making.of(connection, pages)
                        yield from self._compared(made, earlier, file, reported["part"])

    def _earlier(self, name: str | None) -> pa.Table:
        if self.before is None or name is None:
            return schema_of(self.making.key).empty_table()
        return self.before.read(name)

    def _compared(
        self,
        made: Iterator[tuple[int, pa.Table]],
        earlier: pa.Table,
        file: KeptFile,
        part: int,
    ) -> Iterator[pa.RecordBatch]:
        places = earlier[PLACE].to_numpy()
        begin = 0
        for page, now in made:
            file.write(now)
            if self.before is None:
                continue
            end = int(np.searchsorted(places, first_place(page)))
            before = earlier.slice(begin, end - begin)
            begin = end
            differs, has_gone = differing_places(now, before)
            yield from self._given(now.take(pa.array(differs)), part)
            yield from self._given(before.take(pa.array(has_gone)), None)

    def _given(self, rows: pa.Table, part: int | None) -> Iterator[pa.RecordBatch]:
        if rows.num_rows:
            parts = pa.repeat(pa.scalar(part, pa.int32()), rows.num_rows)
            given = pa.Table.from_arrays([parts, *rows.columns], schema=self._schema)
            yield from given.combine_chunks().to_batches()


#: Whether a row is there; of others only the key is told. Null: two rows have one key.
IS_THERE: Final = "__chronolake_is_there"
#: So many rows that differ are brought together by one task: some 50 MB.
_ROWS_PER_TASK: Final = 500_000
#: Fewer are not worth a task.
_LEAST_PER_TASK: Final = 10_000
#: So many rows are asked for at once.
_ROWS_AT_ONCE: Final = 10_000


@dataclass(frozen=True)
class Difference:
    """What rows that do not stand where they stood come to.

    Attributes:
        changed: the rows that are new or have another fingerprint, with their `PART` and `PLACE`.
        gone: the keys of those that are nowhere any more.
        are_distinguishable: whether no two rows have one key.
    """

    changed: pa.Table
    gone: pa.Table
    are_distinguishable: bool


def differing(rows: pa.Table, keys: Sequence[str]) -> Difference:
    """Find out what has become of rows.

    Args:
        rows: rows that differ by their places (`places`), all that there are of each key.
        keys: the columns of the key.
    """
    is_there = pc.is_valid(rows[PART])
    now = rows.filter(is_there).select([*keys, ROW, PART, PLACE])
    before = rows.filter(pc.invert(is_there)).select([*keys, ROW])
    are_distinguishable = all(
        side.group_by(list(keys), use_threads=False).aggregate([]).num_rows == side.num_rows
        for side in (now, before)
    )
    both = now.join(
        before,
        list(keys),
        join_type="full outer",
        right_suffix="_before",
        use_threads=False,
    )
    is_same = pc.fill_null(pc.equal(both[ROW], both[f"{ROW}_before"]), fill_value=False)
    is_now = pc.is_valid(both[PART])
    return Difference(
        both.filter(pc.and_(is_now, pc.invert(is_same))).select([PART, PLACE]),
        both.filter(pc.invert(is_now)).select(list(keys)),
        are_distinguishable,
    )


@dataclass(frozen=True)
class ByKey:
    """Brings rows of one key together, and reads those that differ; it goes to the executors.

    Attributes:
        dsn: the server's address.
        database: the snapshot, held until all has been read.
        relations: what holds the table's rows, as SQL.
        columns: the names of the table's columns.
        key: the names of those that tell its rows apart.
    """

    dsn: str
    database: DatabaseSnapshot
    relations: tuple[str, ...]
    columns: tuple[str, ...]
    key: tuple[str, ...]

    @property
    def schema(self) -> str:
        """What it gives, as a Spark schema: texts, and whether the row is there."""
        return ", ".join(
            [*(f"{quoted(name)} string" for name in self.columns), f"{IS_THERE} boolean"]
        )

    @property
    def _arrow(self) -> pa.Schema:
        texts = [(name, pa.string()) for name in self.columns]
        return pa.schema([*texts, (IS_THERE, pa.bool_())])

    @property
    def _keys(self) -> list[str]:
        return [key_name(number) for number in range(len(self.key))]

    def rows(self, differing: DataFrame, count: int) -> DataFrame:
        """The rows that are new or have changed, and the keys of those that have gone, lazily.

        Args:
            differing: rows that differ by their places.
            count: how many.
        """
        cores = differing.sparkSession.sparkContext.defaultParallelism
        tasks = max(-(-count // _ROWS_PER_TASK), min(cores, -(-count // _LEAST_PER_TASK)))
        return differing.repartition(tasks, *self._keys).mapInArrow(self, self.schema)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give what has become of rows that differ by their places.

        Raises:
            SourceError: the server does not give the rows that it gave fingerprints of.
        """
        given = list(batches)
        if not given:
            return
        found = differing(pa.Table.from_batches(given).combine_chunks(), self._keys)
        if not found.are_distinguishable:
            # Nobody can say what has become of which.
            yield pa.RecordBatch.from_pylist([{IS_THERE: None}], schema=self._arrow)
            return
        if found.changed.num_rows:
            with beside(self.dsn, self.database) as connection:
                yield from self._read(connection, found.changed)
        if found.gone.num_rows:
            yield self._gone(found.gone)

    def _read(self, connection: psycopg.Connection, places: pa.Table) -> Iterator[pa.RecordBatch]:
        for part, relation in enumerate(self.relations):
            mine = np.sort(places.filter(pc.field(PART) == part)[PLACE].to_numpy())
            for begin in range(0, len(mine), _ROWS_AT_ONCE):
                wanted = mine[begin : begin + _ROWS_AT_ONCE]
                where = sql.SQL("ctid = ANY ({}::tid[])").format(places_as_text(wanted))
                read = 0
                for rows in rows_where(connection, relation, where, self.columns):
                    read += rows.num_rows
                    yield rows.append_column(IS_THERE, pa.repeat(True, rows.num_rows))
                if read != len(wanted):
                    raise SourceError(
                        f"{len(wanted):,} rows that differ were asked for, and {read:,} came.",
                        hint="Run it again; nothing has landed.",
                    )

    def _gone(self, keys: pa.Table) -> pa.RecordBatch:
        numbers = {name: key_name(number) for number, name in enumerate(self.key)}
        cells = [
            keys[numbers[name]].combine_chunks().cast(pa.string())
            if name in numbers
            else pa.nulls(keys.num_rows, pa.string())
            for name in self.columns
        ]
        flags = pa.repeat(False, keys.num_rows)
        return pa.RecordBatch.from_arrays([*cells, flags], schema=self._arrow)
