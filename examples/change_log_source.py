"""A source for Chronolake: a SQLite database whose triggers write every change to a log.

`docs/source-protocol.md` explains it. Create the database with some customers, sync it, change it
with any SQLite client, and sync it again:

    python examples/change_log_source.py create customers.db
    python examples/change_log_source.py sync customers.db my-project

my-project/chronolake.yml contains a pipeline `crm`. Its `source` is replaced by this program:

    pipelines:
      crm:
        source: {type: data_lake_v2, path: none, org: none}
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from chronolake import Column, ColumnType, Kind, Lake
from chronolake.config import Project, load_project
from chronolake.pipeline.sync import sync
from chronolake.source.protocol import (
    DELETED_AT,
    MODIFIED,
    PROVIDES_DATA,
    PURGED_AT,
    SEQUENCE,
    CaptureMethod,
    ChangeBatch,
    Offset,
    Snapshot,
    SourceError,
    StreamCapabilities,
    StreamDescriptor,
    StreamFailure,
    raw_folder,
)

STREAM: Final = "customers"
COLUMNS: Final = (
    Column("id", ColumnType(Kind.LONG), primary_key=True),
    Column("name", ColumnType(Kind.STRING)),
    Column("city", ColumnType(Kind.STRING)),
)
#: Up to this many changes are landed together.
BATCH_ROWS: Final = 10_000

_NOW: Final = "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
SCHEMA: Final = f"""
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, city TEXT);
CREATE TABLE changes (
    number INTEGER PRIMARY KEY AUTOINCREMENT, at_micros INTEGER, is_deletion INTEGER,
    id INTEGER, name TEXT, city TEXT
);
CREATE TRIGGER inserted AFTER INSERT ON customers BEGIN
    INSERT INTO changes VALUES (NULL, {_NOW}, 0, new.id, new.name, new.city);
END;
CREATE TRIGGER updated AFTER UPDATE ON customers BEGIN
    INSERT INTO changes SELECT NULL, {_NOW}, 1, old.id, NULL, NULL WHERE old.id <> new.id;
    INSERT INTO changes VALUES (NULL, {_NOW}, 0, new.id, new.name, new.city);
END;
CREATE TRIGGER deleted AFTER DELETE ON customers BEGIN
    INSERT INTO changes VALUES (NULL, {_NOW}, 1, old.id, NULL, NULL);
END;
"""


@dataclass(frozen=True)
class Position:
    """The position in the log, which an offset stores.

    Attributes:
        number: the number of the last change that was read.
        at_micros: the time of the last version, in microseconds since 1970.
    """

    number: int = 0
    at_micros: int = 0

    def as_offset(self) -> Offset:
        """Return the position as the offset that is stored."""
        return {"number": self.number, "at_micros": self.at_micros}


@dataclass(frozen=True)
class ChangeLogSource:
    """The table `customers` of a SQLite database, with every change from its log.

    Attributes:
        project: the project whose lake the changes land in.
        pipeline: the pipeline's name.
        database: the database's file.
    """

    project: Project
    pipeline: str
    database: Path

    def discover(self) -> list[StreamDescriptor]:
        """Return the only stream."""
        return [
            StreamDescriptor(
                StreamCapabilities(STREAM, reports_changes=True),
                CaptureMethod.EVERY_CHANGE,
                epsilon_micros=1,
                folder=raw_folder(self.project, self.pipeline, STREAM),
                is_ours=True,
                key=("id",),
            )
        ]

    def read(
        self, lake: Lake, positions: Mapping[str, Offset | None], *, full_refresh: bool
    ) -> Iterator[ChangeBatch | Snapshot | StreamFailure]:
        """Read the changes after an offset, or all rows if there is no offset yet."""
        offset = positions[STREAM]
        position = Position(**offset) if offset is not None else Position()
        try:
            if offset is not None and not full_refresh:
                yield from self._read_changes(lake, position, upto=None)
                return
            rows, last_change = self._read_rows()
            if offset is not None:
                # The rows contain these changes. Read them first, so that no version is skipped.
                for batch in self._read_changes(lake, position, upto=last_change):
                    yield batch
                    position = Position(**batch.position)
            # A snapshot is later than all versions before it, even if a clock was set back.
            at_micros = max(time.time_ns() // 1_000, position.at_micros + 1)
            yield Snapshot(
                STREAM,
                lake.spark.createDataFrame(rows),
                COLUMNS,
                at_micros,
                sequence=_sequence(last_change),
                position=Position(last_change, at_micros).as_offset(),
            )
        except sqlite3.Error as failure:
            error = SourceError(
                f"The database {self.database} cannot be read: {failure}.",
                hint="Check the path, and that the file was created by `create`.",
            )
            yield StreamFailure(STREAM, error)

    def acknowledge(self, positions: Mapping[str, Offset]) -> None:
        """Delete changes that are durable in the lake."""
        if STREAM in positions:
            with closing(sqlite3.connect(self.database)) as connection, connection:
                number = positions[STREAM]["number"]
                connection.execute("DELETE FROM changes WHERE number <= ?", (number,))

    def _read_changes(
        self, lake: Lake, position: Position, *, upto: int | None
    ) -> Iterator[ChangeBatch]:
        """Read the changes after a position, up to a number or to the end of the log."""
        while True:
            with closing(sqlite3.connect(self.database)) as connection:
                changes = connection.execute(
                    "SELECT number, at_micros, is_deletion, id, name, city FROM changes "
                    "WHERE number > ? AND number <= coalesce(?, number) ORDER BY number LIMIT ?",
                    (position.number, upto, BATCH_ROWS),
                ).fetchall()
            if not changes:
                return
            versions, position = _versions(changes, position)
            yield ChangeBatch(
                STREAM, lake.spark.createDataFrame(versions), COLUMNS, position.as_offset()
            )

    def _read_rows(self) -> tuple[pa.Table, int]:
        """Read all rows in one transaction, with the number of the last change before it.

        This table is small. Read a large one in Spark's tasks, as `chronolake.source.jdbc` does.
        """
        with closing(sqlite3.connect(self.database)) as connection:
            connection.execute("BEGIN")
            rows = connection.execute("SELECT id, name, city FROM customers").fetchall()
            # `sqlite_sequence` knows the last number even if the log is empty.
            last = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'changes'")
            (last_change,) = last.fetchone() or (0,)
        return _table(rows), last_change


def _versions(changes: list[tuple[Any, ...]], position: Position) -> tuple[pa.Table, Position]:
    """Return record versions of changes, and the position after them.

    Each version is later than the one before it. Its time depends only on the log and on the
    position: if the same changes are read again after a crash, their versions are equal.
    """
    times = []
    at_micros = position.at_micros
    for change in changes:
        at_micros = max(change[1], at_micros + 1)
        times.append(at_micros)
    is_deletion = [bool(change[2]) for change in changes]
    versions = _table([change[3:] for change in changes])
    system_columns = {
        MODIFIED: pa.array(times, pa.int64()),
        SEQUENCE: pa.array([_sequence(change[0]) for change in changes], pa.string()),
        DELETED_AT: pa.array(
            [at if is_one else None for at, is_one in zip(times, is_deletion, strict=True)],
            pa.int64(),
        ),
        PURGED_AT: pa.nulls(len(changes), pa.int64()),
        PROVIDES_DATA: pa.array([not is_one for is_one in is_deletion], pa.bool_()),
    }
    for name, values in system_columns.items():
        versions = versions.append_column(name, values)
    return versions, Position(changes[-1][0], at_micros)


def _table(rows: list[tuple[Any, ...]]) -> pa.Table:
    types = {"id": pa.int64(), "name": pa.string(), "city": pa.string()}
    columns = zip(*rows, strict=True) if rows else [()] * len(types)
    return pa.table(
        {
            name: pa.array(values, type_)
            for (name, type_), values in zip(types.items(), columns, strict=True)
        }
    )


def _sequence(number: int) -> str:
    """Return a sequence of constant length, which is ordered like the numbers."""
    return f"{number:016x}"


def create(database: Path) -> None:
    """Create the database with three customers."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.executescript(SCHEMA)
        connection.executemany(
            "INSERT INTO customers VALUES (?, ?, ?)",
            [(1, "Ada", "London"), (2, "Grace", "New York"), (3, "Edsger", "Rotterdam")],
        )


def main(command: str, database: Path, folder: Path | None = None) -> int:
    """Run a command; return the exit code."""
    if command == "create":
        create(database)
        return 0
    assert folder is not None, "sync needs the folder of a project"
    project = load_project(folder / "chronolake.yml")
    with Lake.open(project.lake.path, config=project.lake) as lake:
        result = sync(lake, project, "crm", source=ChangeLogSource(project, "crm", database))
    print(result)
    return 0 if all(stream.error is None for stream in result.streams) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(Path, sys.argv[2:])))
