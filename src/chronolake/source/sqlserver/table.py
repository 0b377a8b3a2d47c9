"""What both ways of reading a table of SQL Server have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chronolake.source.sqlserver import statements

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    from chronolake.config import SqlServerSource
    from chronolake.source.jdbc.reader import Reader


@dataclass(frozen=True)
class TableOfRun:
    """One table in one run of a pipeline.

    Attributes:
        spark: the session that reads.
        reader: what reads the database.
        pipeline: the pipeline's name.
        name: the table's.
        config: the database, as the configuration has it.
        landed_micros: the latest time that has landed of it, in microseconds since 1970. It may be
            later than its position says: of a run that died, nothing else tells.
    """

    spark: SparkSession
    reader: Reader
    pipeline: str
    name: str
    config: SqlServerSource
    landed_micros: int

    @property
    def key(self) -> Sequence[str]:
        """The columns that tell rows apart, as the configuration says."""
        return self.config.tables[self.name].key

    def all_rows(self) -> DataFrame:
        """The table as it is."""
        split_by = self.config.tables[self.name].split_by
        return self.reader.table(self.spark, statements.relation(self.name), split_by=split_by)

    def query(self, statement: str) -> DataFrame:
        """What one SELECT gives."""
        return self.reader.query(self.spark, statement)

    def asked(self, statement: str) -> list[Row]:
        """What one SELECT gives, of a few rows."""
        rows: list[Row] = self.query(statement).collect()
        return rows
