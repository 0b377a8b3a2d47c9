"""A source with a change log in SQLite, which deletes changes that were acknowledged as durable."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from chronolake.change_set import DELETED_AT, MODIFIED, OMITTED, PROVIDES_DATA, PURGED_AT, SEQUENCE
from chronolake.config import Project
from chronolake.lake import Lake
from chronolake.pipeline.sync import RunResult, sync
from chronolake.source.protocol import ChangeBatch, Offset, StreamDescriptor
from chronolake.types import Column, ColumnType, Kind
from support.datalakes import project
from support.lake.descriptors import pulled_stream
from support.pipeline_model import LandedRow

COLUMNS: Final = (
    Column("id", ColumnType(Kind.STRING), primary_key=True),
    Column("Name", ColumnType(Kind.STRING)),
    Column("Size", ColumnType(Kind.LONG)),
)
_PIPELINES: Final = "  shop:\n    source: {type: data_lake_v2, path: none, org: X}\n"
STREAM: Final = "orders"


@dataclass
class ChangeLog:
    """The log, as a source with one stream.

    Attributes:
        project: the project whose pipeline `shop` reads this source.
        piece: the number of changes in a change batch.
        before: called with the number of each batch before it is read.
    """

    project: Project
    piece: int = 40
    before: Callable[[int], None] = field(default=lambda _: None)

    @property
    def file(self) -> Path:
        return self.project.file.parent / "log.db"

    def append(self, rows: Sequence[LandedRow]) -> None:
        """Append changes that happen in the source."""
        with closing(sqlite3.connect(self.file)) as log, log:
            log.execute(
                "CREATE TABLE IF NOT EXISTS changes (number INTEGER PRIMARY KEY AUTOINCREMENT, "
                "key, at, name, size, is_deletion, untold)"
            )
            log.executemany(
                "INSERT INTO changes (key, at, name, size, is_deletion, untold) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (
                        row.key,
                        row.modified,
                        row.fields.get("Name"),
                        row.fields.get("Size"),
                        not row.provides_data,
                        ",".join(sorted(row.omitted)),
                    )
                    for row in rows
                ],
            )

    def left(self) -> list[int]:
        """Return the numbers of the changes that the source has not deleted."""
        with closing(sqlite3.connect(self.file)) as log:
            return [row[0] for row in log.execute("SELECT number FROM changes ORDER BY number")]

    def discover(self) -> list[StreamDescriptor]:
        return [pulled_stream(self.project, STREAM)]

    def read(
        self, lake: Lake, positions: Mapping[str, Offset | None], *, full_refresh: bool
    ) -> Iterator[ChangeBatch]:
        assert positions.keys() == {STREAM}
        assert not full_refresh, "a log that forgets has nothing to read again"
        number = int((positions[STREAM] or {"number": 0})["number"])
        for piece in range(sys.maxsize):
            self.before(piece)
            with closing(sqlite3.connect(self.file)) as log:
                found = log.execute(
                    "SELECT number, key, at, name, size, is_deletion, untold FROM changes "
                    "WHERE number > ? ORDER BY number LIMIT ?",
                    (number, self.piece),
                ).fetchall()
            if not found:
                return
            number = found[-1][0]
            versions = lake.spark.createDataFrame(_versions(found)).repartition(2)
            yield ChangeBatch(STREAM, versions, COLUMNS, {"number": number})

    def acknowledge(self, positions: Mapping[str, Offset]) -> None:
        with closing(sqlite3.connect(self.file)) as log, log:
            log.execute("DELETE FROM changes WHERE number <= ?", (positions[STREAM]["number"],))


def _versions(rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    numbers, keys, times, names, sizes, deletions, omitted = zip(*rows, strict=True)
    is_deletion = [bool(deletion) for deletion in deletions]
    return pa.table(
        {
            "id": pa.array(keys, pa.string()),
            "Name": pa.array(names, pa.string()),
            "Size": pa.array(sizes, pa.int64()),
            MODIFIED: pa.array(times, pa.int64()),
            SEQUENCE: [f"{number:x}" for number in numbers],
            DELETED_AT: pa.array(
                [at if gone else None for at, gone in zip(times, is_deletion, strict=True)],
                pa.int64(),
            ),
            PURGED_AT: pa.nulls(len(rows), pa.int64()),
            PROVIDES_DATA: [not gone for gone in is_deletion],
            OMITTED: pa.array(
                [names.split(",") if names else None for names in omitted], pa.list_(pa.string())
            ),
        }
    )


def shop(folder: Path) -> Project:
    """Return a project with the pipeline `shop`."""
    return project(folder, _PIPELINES)


def synced(folder: Path) -> RunResult:
    """Run the pipeline once, in a lake of its own process."""
    there = shop(folder)
    with Lake.open(there.lake.path, config=there.lake) as lake:
        return sync(lake, there, "shop", source=ChangeLog(there))
