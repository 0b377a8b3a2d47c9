"""Dated copies become a history table: `type: copies` beside hand-written window functions.

Each copy of a table has a few changed, new and missing rows. Two ways to its history, on the same
Spark:

1. `chronolake sync`: compared in batches, landed durably, applied to the table, with checks of
   every copy.
2. One SQL statement with `lag` and `lead` over the rows of all copies, whose result is appended to
   an Iceberg table. It needs all copies at once, and computes everything again for the next one.

Then one more copy arrives: on time for both, and for Chronolake also one that is late. With
`--one-by-one`, copies are also compared one at a time, as without batches.

    python bench/copies.py [--rows 1000000] [--copies 365] [--one-by-one]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from chronolake.config import load_project
from chronolake.lake import Lake
from chronolake.pipeline.sync import sync
from chronolake.source.files import copies as source

_FIRST = date(2025, 1, 1)
_CHANGED, _ADDED, _DELETED = 0.01, 0.002, 0.001


class Copies:
    """A table whose rows change from day to day."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder = folder
        folder.mkdir()
        self._chance = np.random.default_rng(1)
        self._ids = np.arange(rows)
        self._amounts = self._chance.integers(0, 10**6, rows)
        self._next = rows

    def path(self, day: int) -> Path:
        return self.folder / f"orders_{_FIRST + timedelta(days=day)}.parquet"

    def write(self, day: int) -> None:
        chance, number = self._chance, len(self._ids)
        changed = chance.random(number) < _CHANGED
        self._amounts = np.where(changed, chance.integers(0, 10**6, number), self._amounts)
        stays = chance.random(number) >= _DELETED
        added = np.arange(self._next, self._next + int(number * _ADDED))
        self._next += len(added)
        self._ids = np.concatenate([self._ids[stays], added])
        self._amounts = np.concatenate([self._amounts[stays], added])
        ids, amounts = self._ids, self._amounts
        rows = pa.table(
            {
                "id": ids,
                "customer": pa.array(ids % 1000).cast(pa.string()),
                "amount": amounts,
                "price": amounts / 100,
                "state": pa.array(amounts % 5).cast(pa.string()),
                "city": pa.array(ids % 50).cast(pa.string()),
                "note": pa.array(ids).cast(pa.string()),
                "flag": ids % 2 == 0,
            }
        )
        pq.write_table(rows, self.path(day))


def _windows(lake: Lake, folder: Path) -> float:
    """Make the history with window functions, and return the seconds."""
    began = time.monotonic()
    rows = lake.spark.read.parquet(str(folder)).selectExpr(
        "*",
        "to_timestamp(regexp_extract(_metadata.file_name, '_([0-9-]+)', 1)) AS at",
        "xxhash64(*) AS hash",
    )
    rows.createOrReplaceTempView("copies")
    lake.spark.sql("SELECT DISTINCT at FROM copies ORDER BY at").createOrReplaceTempView("times")
    lake.spark.sql("DROP TABLE IF EXISTS bench.windows")
    lake.spark.sql(
        """
        CREATE TABLE bench.windows USING iceberg AS
        WITH dated AS (
          SELECT c.*, t.before, t.after FROM copies c JOIN (
            SELECT at, lag(at) OVER (ORDER BY at) AS before, lead(at) OVER (ORDER BY at) AS after
            FROM times) t USING (at)
        ), compared AS (
          SELECT *, lag(at) OVER w AS last, lag(hash) OVER w AS last_hash, lead(at) OVER w AS next
          FROM dated WINDOW w AS (PARTITION BY id ORDER BY at)
        ), marked AS (
          SELECT *, NOT (last <=> before AND last_hash <=> hash) AS is_start,
            IF(next <=> after, NULL, after) AS gone
          FROM compared
        ), numbered AS (
          SELECT *, count_if(is_start) OVER (PARTITION BY id ORDER BY at) AS version FROM marked
        ), versions AS (
          SELECT id, version, min(at) AS start, max(gone) AS gone, first(customer) AS customer,
            first(amount) AS amount, first(price) AS price, first(state) AS state,
            first(city) AS city, first(note) AS note, first(flag) AS flag
          FROM numbered GROUP BY id, version
        )
        SELECT *, coalesce(gone, lead(start) OVER (PARTITION BY id ORDER BY start)) AS end
        FROM versions
        """
    )
    return time.monotonic() - began


def _report(name: str, seconds: float, **more: Any) -> None:
    details = ", ".join(f"{key} {value}" for key, value in more.items())
    print(f"{name:<44} {seconds:8.1f} s  {details}", flush=True)


class Project:
    """A project with the pipeline `shop`."""

    def __init__(self, folder: Path, dumps: Path) -> None:
        folder.mkdir()
        file = folder / "chronolake.yml"
        path = f"'{dumps}/orders_{{date}}.parquet'"
        file.write_text(
            "lake: {spark: {master: 'local[2]', conf: {spark.driver.memory: 3g}}}\n"
            f"pipelines: {{shop: {{source: {{type: copies, path: {path}, key: [id]}}}}}}\n"
        )
        self.project = load_project(file)
        self.lake = Lake.open(self.project.lake.path, config=self.project.lake)
        self.lake.spark.range(10).count()

    def sync(self) -> tuple[float, int]:
        began = time.monotonic()
        (stream,) = sync(self.lake, self.project, "shop").streams
        assert stream.error is None, stream.error
        return time.monotonic() - began, stream.written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--copies", type=int, default=365)
    parser.add_argument("--one-by-one", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        copies = Copies(folder / "dumps", given.rows)
        for day in range(given.copies + 2):
            copies.write(day)
        later = [
            (copies.path(day), folder / f"{day}") for day in range(given.copies, given.copies + 2)
        ]
        late = copies.path(given.copies // 2), folder / "late"
        for path, aside in (*later, late):
            path.rename(aside)
        size = sum(path.stat().st_size for path in copies.folder.iterdir())
        print(f"{given.rows:,} rows, {given.copies - 1} copies, {size / 2**20:,.0f} MiB")
        shop = Project(folder / "project", copies.folder)
        shop.lake.spark.sql("CREATE NAMESPACE IF NOT EXISTS bench")
        seconds, written = shop.sync()
        _report("chronolake sync, all copies", seconds, rows=f"{written:,}")
        by_hand = _windows(shop.lake, copies.folder)
        number = shop.lake.spark.table("bench.windows").count()
        _report("window functions, all copies", by_hand, rows=f"{number:,}")
        print(f"ratio: {seconds / by_hand:.2f}")
        path, aside = later[0]
        aside.rename(path)
        seconds, written = shop.sync()
        _report("chronolake sync, one more copy", seconds, rows=f"{written:,}")
        by_hand = _windows(shop.lake, copies.folder)
        _report("window functions, one more copy", by_hand)
        path, aside = late
        aside.rename(path)
        seconds, written = shop.sync()
        _report("chronolake sync, one late copy", seconds, rows=f"{written:,}")
        if given.one_by_one:
            vars(source)["_MOST_COPIES"] = 1
            again = Project(folder / "again", copies.folder)
            seconds, written = again.sync()
            _report("chronolake sync, copies one at a time", seconds, rows=f"{written:,}")


if __name__ == "__main__":
    main()
