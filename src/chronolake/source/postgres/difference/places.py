"""Which rows do not stand where they stood, as they were: only of these it has to be found out why.

A row that is not changed stays in its place, unless its table is written anew. So each task
compares the fingerprints of some pages with those that were `kept` of the same pages, and sends on
what differs: rows that were not there or not as they are, and rows that are not there any more.
What becomes of these is decided by their keys (`keys`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from chronolake.source.postgres.copying import PageRange, spread, tasks_of
from chronolake.source.postgres.difference.fingerprints import (
    PLACE,
    ROW,
    Fingerprinting,
    first_place,
    schema_of,
)
from chronolake.source.postgres.snapshot import beside

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from chronolake.source.postgres.catalog import Part
    from chronolake.source.postgres.difference.kept import Fingerprints, KeptFile
    from chronolake.source.postgres.snapshot import DatabaseSnapshot
    from chronolake.source.postgres.tuples import Places

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
                for told in batch.column(_RANGES).flatten().to_pylist():
                    earlier = self._earlier(told["before"])
                    if told["part"] is None:
                        yield from self._given(earlier, None)
                        continue
                    part = self.parts[told["part"]]
                    pages = PageRange(part, told["begin"], told["finish"], told["last"])
                    with self.new.writing(part.oid, pages.begin, earlier.schema) as file:
                        made = self.making.of(connection, pages)
                        yield from self._compared(made, earlier, file, told["part"])

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
