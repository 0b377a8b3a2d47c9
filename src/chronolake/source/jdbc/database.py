"""Any database that Spark reads over JDBC: each run reads every table as a whole.

Source: `seeds/history-mode.txt` ("History mode and … Teleport Sync differences"). What differs from
the table in the lake is brought, at the time of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from chronolake.errors import SourceError
from chronolake.limits import StreamTraits
from chronolake.source.jdbc.reader import JdbcReader, cell, columns_of, expect_distinct
from chronolake.source.offered import Failure, OfferedStream, Sight, Snapshot, raw_folder
from chronolake.types import now_micros

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from chronolake.config import JdbcAddress, JdbcSource, Project
    from chronolake.lake import Lake
    from chronolake.source.offered import Position

_EPSILON_MICROS: Final = 1


def offered_by(
    project: Project, pipeline: str, config: JdbcAddress, sight: Sight
) -> list[OfferedStream]:
    """A stream for each table that a configuration names."""
    return [
        OfferedStream(
            StreamTraits(name, tells_changes=True, is_reimported=False),
            sight,
            _EPSILON_MICROS,
            raw_folder(project, pipeline, name),
            is_ours=True,
            key=tuple(table.key),
            default_table=name.rpartition(".")[2],
        )
        for name, table in config.tables.items()
    ]


def latest_micros(told: Position) -> int:
    """The greatest time that a position tells, in microseconds since 1970; 0 if it tells none.

    A pipeline may change how it reads a database: what follows is later than what was brought.
    """
    return max((int(told[name]) for name in told if name.endswith("_micros")), default=0)


@dataclass(frozen=True)
class JdbcDatabase:
    """The tables of a database, by the difference of complete reads."""

    project: Project
    pipeline: str
    config: JdbcSource

    def offered(self) -> list[OfferedStream]:
        """The tables that the configuration names."""
        return offered_by(self.project, self.pipeline, self.config, Sight.SNAPSHOT_DIFF)

    def bring(
        self,
        lake: Lake,
        positions: Mapping[str, Position | None],
        *,
        anew: bool,  # noqa: ARG002 - every run reads everything
    ) -> Iterator[Snapshot | Failure]:
        """All tables as they are; what changes while one is read may be in it or not."""
        reader = JdbcReader(self.config)
        for name, told in positions.items():
            before = latest_micros(told or {})
            try:
                snapshot = self._read(lake.spark, reader, name, after_micros=before)
            except SourceError as failure:
                yield Failure(name, failure)
            except (Py4JError, PySparkException) as failure:
                yield Failure(name, reader.said(f"The table {name}", failure))
            else:
                yield snapshot

    def landed(self, positions: Mapping[str, Position]) -> None:
        """The database keeps nothing for a pipeline."""

    def _read(
        self, spark: SparkSession, reader: JdbcReader, name: str, *, after_micros: int
    ) -> Snapshot:
        table = self.config.tables[name]
        at = max(now_micros(), after_micros + 1)
        rows = reader.table(spark, name, split_by=table.split_by)
        columns = columns_of(rows.schema, table.key, name)
        cells = [cell(field) for field in rows.schema]
        return Snapshot(
            name,
            expect_distinct(rows, table.key, name).selectExpr(*cells),
            columns,
            at,
            f"{at:016x}",
            {"last_micros": at},
        )
