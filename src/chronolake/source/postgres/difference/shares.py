"""What differs between a table and an earlier snapshot of it, without reading all of its rows.

The server makes fingerprints of all rows (`fingerprints`). Tasks compare them, a share of all keys
each, with those of the snapshot before (`kept`), and read by their places only the rows whose
fingerprint is new or another one. What has gone is told by its key, as it stood in the earlier
snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from chronolake.errors import SourceError
from chronolake.source.postgres.connection import connected
from chronolake.source.postgres.copying import ranges_of, rows_where
from chronolake.source.postgres.difference.fingerprints import (
    KEY,
    PART,
    PLACE,
    ROW,
    SHARES,
    Fingerprinting,
    places_as_text,
    schema_of,
    text_name,
)
from chronolake.source.postgres.snapshot import in_snapshot
from chronolake.types import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from chronolake.source.postgres.copying import TableSnapshot
    from chronolake.source.postgres.difference.kept import Fingerprints
    from chronolake.source.postgres.snapshot import DatabaseSnapshot
    from chronolake.source.postgres.tuples import Places

#: Whether a row is there; of others only the key is told.
IS_THERE: Final = "__chronolake_is_there"
#: Rows of one share are in memory at once: some 30 MB, and their keys' texts.
_SHARE_ROWS: Final = 2**20
_MOST_SHARES: Final = 2**12
#: Rows of a table have this many bytes on a page or more, nearly always.
_ROW_BYTES: Final = 64
_PAGE_BYTES: Final = 8_192
#: So many rows are asked for at once.
_ROWS_AT_ONCE: Final = 10_000


def shares_for(snapshot: TableSnapshot, *, least: int) -> int:
    """Into how many shares the keys of a table are divided: a power of two.

    Args:
        snapshot: the table.
        least: how many at least, so that all processors have some.
    """
    rows = sum(part.pages for part in snapshot.parts) * _PAGE_BYTES // _ROW_BYTES
    wanted = max(least, -(-rows // _SHARE_ROWS))
    return min(1 << (wanted - 1).bit_length(), _MOST_SHARES)


def differing(now: pa.Table, before: pa.Table) -> tuple[Places, Places]:
    """Which rows are new or differ, and which are gone.

    Args:
        now: fingerprints of a share of all keys, in the order of their keys, each once.
        before: earlier ones.

    Returns:
        The places in `now` of rows that were not there before, or not as they are; and the places
        in `before` of rows that are not there any more.
    """
    keys, earlier = now[KEY].to_numpy(), before[KEY].to_numpy()
    found = np.searchsorted(earlier, keys)
    is_known = found < len(earlier)
    is_known[is_known] = earlier[found[is_known]] == keys[is_known]
    is_same = is_known.copy()
    is_same[is_known] = before[ROW].to_numpy()[found[is_known]] == now[ROW].to_numpy()[is_known]
    is_gone = np.ones(len(earlier), np.bool_)
    is_gone[found[is_known]] = False
    # Two keys may have one hash: then one record has gone, and another one has come.
    is_changed = np.flatnonzero(is_known & ~is_same)
    other = np.zeros(len(is_changed), np.bool_)
    for name in set(now.schema.names) - {KEY, ROW}:
        mine = now[name].take(pa.array(is_changed))
        theirs = before[name].take(pa.array(found[is_changed]))
        other |= pc.not_equal(mine, theirs).to_numpy(zero_copy_only=False)
    is_gone[found[is_changed[other]]] = True
    return np.flatnonzero(~is_same), np.flatnonzero(is_gone)


@dataclass(frozen=True)
class Comparing:
    """Compares shares of fingerprints, and reads the rows that differ; it goes to the executors.

    Attributes:
        dsn: the server's address.
        database: the snapshot, held until all has been read.
        relations: what holds the table's rows, as SQL.
        columns: the names of the table's columns.
        key: the names of those that tell its rows apart.
        new: where the fingerprints go.
        before: what they are compared with; None: they are only kept.
    """

    dsn: str
    database: DatabaseSnapshot
    relations: tuple[str, ...]
    columns: tuple[str, ...]
    key: tuple[str, ...]
    new: Fingerprints
    before: Fingerprints | None

    @property
    def schema(self) -> str:
        """What it gives, as a Spark schema: texts, and whether the row is there."""
        return ", ".join(
            [*(f"{quoted(name)} string" for name in self.columns), f"{IS_THERE} boolean"]
        )

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Compare the fingerprints of shares (`fingerprints.SHARES`), each of them whole."""
        given: dict[int, list[pa.Table]] = {}
        for batch in batches:
            for share, sent in zip(*map(pa.Array.to_pylist, batch.columns), strict=True):
                tables = given.setdefault(share, [schema_of(self.key).empty_table()])
                if sent is not None:
                    tables.append(pa.ipc.open_stream(sent).read_all())
        for share, tables in given.items():
            # To take rows out of many chunks is slow.
            yield from self._compared(share, pa.concat_tables(tables).combine_chunks())

    def _compared(self, share: int, given: pa.Table) -> Iterator[pa.RecordBatch]:
        now = given.take(pa.array(np.argsort(given[KEY].to_numpy())))
        keys = now[KEY].to_numpy()
        if (keys[1:] == keys[:-1]).any():
            # Two rows of one key, or two keys of one hash: nobody can tell which is which.
            return
        self.new.write(share, now.drop_columns([PART, PLACE]))
        if self.before is None:
            return
        before = self.before.read(share, self.new.shares)
        changed, gone = differing(now.drop_columns([PART, PLACE]), before)
        if len(changed):
            yield from self._read(now.select([PART, PLACE]).take(pa.array(changed)))
        if len(gone):
            yield self._gone(before.take(pa.array(gone)))

    def _read(self, places: pa.Table) -> Iterator[pa.RecordBatch]:
        with connected(self.dsn) as connection, in_snapshot(connection, self.database):
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
        count = keys.num_rows
        texts = dict(zip(self.key, range(len(self.key)), strict=True))
        cells = [
            keys[text_name(texts[name])].combine_chunks()
            if name in texts
            else pa.nulls(count, pa.string())
            for name in self.columns
        ]
        flags = pa.repeat(False, count)
        return pa.RecordBatch.from_arrays([*cells, flags], [*self.columns, IS_THERE])


def compared(
    spark: SparkSession, making: Fingerprinting, held: TableSnapshot, comparing: Comparing
) -> DataFrame:
    """Make fingerprints of a table, keep them, and find what differs from those before.

    Args:
        spark: the session; its executors must reach the server and the lake's folder.
        making: makes the fingerprints.
        held: the table.
        comparing: compares them.

    Returns:
        The rows that differ: `Comparing.schema`. To compute them is to write the fingerprints.
    """
    made = ranges_of(spark, held).mapInArrow(making, SHARES)
    # A share of which there are no rows any more may have had some.
    each = spark.range(making.shares).selectExpr(
        "CAST(id AS INT) AS share", "CAST(NULL AS BINARY) AS fingerprints"
    )
    shares = made.union(each).repartitionById(making.shares, "share")
    return shares.mapInArrow(comparing, comparing.schema)
