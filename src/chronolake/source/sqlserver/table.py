"""What both ways of reading a table of SQL Server have in common."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from chronolake.rawlake import landed_micros
from chronolake.source.sqlserver import statements

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    from chronolake.config import SqlServerSource
    from chronolake.rawlake import ObjectFolder
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
        landing: where the table lands.
    """

    spark: SparkSession
    reader: Reader
    pipeline: str
    name: str
    config: SqlServerSource
    landing: ObjectFolder

    @cached_property
    def landed_micros(self) -> int:
        """The latest time that has landed, in microseconds since 1970; 0: none has.

        It may be later than the position says: of a run that died, nothing else tells. Only who
        gives rows a time of its own asks; changes have their commits'.

        Raises:
            SourceError: what has landed cannot be read.
        """
        return landed_micros(self.landing)

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
