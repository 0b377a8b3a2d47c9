"""Change tracking: which rows have changed since a version, and how they are by now.

Source: `seeds/history-mode.txt` ("SQL Server CT and CDC differences"): what changed back and forth
between two runs is not seen. The version is asked for before the rows are read, so that a row may
be newer than it says, or gone; it comes once more then, and is as the table has it already. What
the server had cleaned up while it was read would be missing: only when it has not, the version
counts as read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from chronolake.changes import RESERVED
from chronolake.errors import SourceError
from chronolake.source.jdbc.database import latest_micros, offered_by
from chronolake.source.jdbc.reader import JdbcReader, cell, columns_of, expect_distinct
from chronolake.source.offered import Failure, OfferedStream, Piece, Sight, Snapshot
from chronolake.source.sqlserver import statements
from chronolake.types import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from chronolake.config import Project, SqlServerSource
    from chronolake.lake import Lake
    from chronolake.source.jdbc.reader import Reader
    from chronolake.source.offered import Position

_PRESENT: Final = f"{RESERVED}present"

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class TrackedDatabase:
    """The tables of a database, by change tracking.

    Attributes:
        reader: what reads the database; the configuration's address if there is none.
    """

    project: Project
    pipeline: str
    config: SqlServerSource
    reader: Reader | None = None

    def offered(self) -> list[OfferedStream]:
        """The tables that the configuration names."""
        return offered_by(self.project, self.pipeline, self.config, Sight.OBSERVED_CHANGES)

    def bring(
        self, lake: Lake, positions: Mapping[str, Position | None], *, anew: bool
    ) -> Iterator[Piece | Snapshot | Failure]:
        """What has changed of each table; all of it at first, and where tracking knows no more."""
        reader = self.reader or JdbcReader(self.config)
        for name, told in positions.items():
            before = _Place.from_json(told or {})
            try:
                yield from self._read(lake.spark, reader, name, before, anew=anew)
            except SourceError as failure:
                yield Failure(name, failure)
            except (Py4JError, PySparkException) as failure:
                yield Failure(name, reader.said(f"The table {name}", failure))

    def landed(self, positions: Mapping[str, Position]) -> None:
        """The database forgets by itself, after its own retention."""

    def _read(
        self, spark: SparkSession, reader: Reader, name: str, before: _Place, *, anew: bool
    ) -> Iterator[Piece | Snapshot]:
        now, oldest = self._now(spark, reader, name, before)
        if before.version < 0 or anew:
            yield self._whole(spark, reader, name, now)
            return
        if oldest <= before.version <= now.version:
            if before.version == now.version:
                return
            yield self._changed(spark, reader, name, before, now)
            later, oldest = self._now(spark, reader, name, now)
            if oldest <= before.version:
                yield Piece(name, None, (), now.as_json())
                return
            now = later
        log.warning(
            "read_as_a_whole",
            pipeline=self.pipeline,
            stream=name,
            reason="change tracking does not know what has changed since the last run",
            version=before.version,
            oldest=oldest,
            newest=now.version,
        )
        yield self._whole(spark, reader, name, now)

    def _now(
        self, spark: SparkSession, reader: Reader, name: str, before: _Place
    ) -> tuple[_Place, int]:
        """How far change tracking is, and from which version on it knows what has changed."""
        told = reader.query(spark, statements.tracking(name)).collect()[0]
        if told["version"] is None:
            raise SourceError(
                "The database does not track changes.",
                hint="ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON "
                "(CHANGE_RETENTION = 7 DAYS, AUTO_CLEANUP = ON);",
            )
        if told["oldest"] is None:
            relation = statements.relation(name)
            raise SourceError(
                f"Changes of {name} are not tracked, or the user may not see them.",
                hint=f"ALTER TABLE {relation} ENABLE CHANGE_TRACKING; GRANT SELECT, VIEW CHANGE "
                f"TRACKING ON {relation} TO the user that reads.",
            )
        at_micros = max(told["at_micros"], before.last_micros + 1)
        return _Place(told["version"], at_micros), told["oldest"]

    def _whole(self, spark: SparkSession, reader: Reader, name: str, now: _Place) -> Snapshot:
        table = self.config.tables[name]
        rows = reader.table(spark, statements.relation(name), split_by=table.split_by)
        columns = columns_of(rows.schema, table.key, name)
        cells = [cell(field) for field in rows.schema]
        return Snapshot(
            name,
            expect_distinct(rows, table.key, name).selectExpr(*cells),
            columns,
            now.last_micros,
            now.sequence,
            now.as_json(),
        )

    def _changed(
        self, spark: SparkSession, reader: Reader, name: str, before: _Place, now: _Place
    ) -> Snapshot:
        key = self.config.tables[name].key
        query = statements.tracked(name, key, after=before.version)
        rows = reader.query(spark, query)
        # The keys of rows that are gone are told beside their columns, which are null.
        keys = {column: f"{statements.KEY}{number}" for number, column in enumerate(key)}
        fields = [field for field in rows.schema if field.name not in keys.values()]
        schema = type(rows.schema)(fields)
        columns = columns_of(schema, key, name)
        present = f"{quoted(key[0])} IS NOT NULL AS {_PRESENT}"
        known = [
            f"{quoted(keys[field.name])} AS {quoted(field.name)}"
            if field.name in keys
            else quoted(field.name)
            for field in fields
        ]
        cells = [cell(field) for field in fields]
        return Snapshot(
            name,
            expect_distinct(rows.selectExpr(*known, present), key, name).selectExpr(
                *cells, _PRESENT
            ),
            columns,
            now.last_micros,
            now.sequence,
            replace(before, last_micros=now.last_micros).as_json(),
            present=_PRESENT,
        )


@dataclass(frozen=True)
class _Place:
    """How far a stream is.

    Attributes:
        version: all changes up to this version of the database have been brought; -1: nothing
            has, and the table has to be read as a whole.
        last_micros: when it was last looked at, in microseconds since 1970.
    """

    version: int
    last_micros: int

    @classmethod
    def from_json(cls, told: Position) -> Self:
        """What was stored, also by another kind of source, of which only the time counts."""
        return cls(int(told.get("version", -1)), latest_micros(told))

    def as_json(self) -> Position:
        return {"version": self.version, "last_micros": self.last_micros}

    @property
    def sequence(self) -> str:
        return f"{self.version:020d}"
