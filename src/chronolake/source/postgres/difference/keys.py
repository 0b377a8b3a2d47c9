"""What has become of rows that do not stand where they stood, as they were.

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
from chronolake.source.postgres.copying import rows_where
from chronolake.source.postgres.difference.fingerprints import (
    PLACE,
    ROW,
    key_name,
    places_as_text,
)
from chronolake.source.postgres.difference.places import PART
from chronolake.source.postgres.snapshot import beside
from chronolake.types import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import psycopg
    from pyspark.sql import DataFrame

    from chronolake.source.postgres.snapshot import DatabaseSnapshot

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
        are_told_apart: whether no two rows have one key.
    """

    changed: pa.Table
    gone: pa.Table
    are_told_apart: bool


def differing(rows: pa.Table, keys: Sequence[str]) -> Difference:
    """Find out what has become of rows.

    Args:
        rows: rows that differ by their places (`places`), all that there are of each key.
        keys: the columns of the key.
    """
    is_there = pc.is_valid(rows[PART])
    now = rows.filter(is_there).select([*keys, ROW, PART, PLACE])
    before = rows.filter(pc.invert(is_there)).select([*keys, ROW])
    are_told_apart = all(
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
        are_told_apart,
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
        if not found.are_told_apart:
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
