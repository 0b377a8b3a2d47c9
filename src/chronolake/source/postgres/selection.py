"""The tables of a database that a pipeline's configuration selects."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

from chronolake.config.pipelines import MoneyAs, PostgresMethod, ValuesAs
from chronolake.errors import SourceError
from chronolake.landing import ColumnRules
from chronolake.source.postgres import catalog
from chronolake.source.postgres.connection import connect
from chronolake.source.postgres.snapshot_diff import FingerprintFolder
from chronolake.source.postgres.value_forms import ColumnOptions
from chronolake.source.protocol import (
    CaptureMethod,
    DescribedStream,
    StreamDescriptor,
    StreamFailure,
    fingerprint_folder,
    raw_folder,
)
from chronolake.source.relational.columns import numbers_of
from chronolake.source.relational.row_versions import ROW_KEY, RowKey
from chronolake.stream_modes import StreamCapabilities

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from chronolake.config import PostgresSource, Project
    from chronolake.landing import ObjectFolder
    from chronolake.source.postgres.catalog import SourceTable

_EPSILON_MICROS: Final = 1


@dataclass(frozen=True)
class TableSelection:
    """The tables that a pipeline's configuration selects. The catalog is read once."""

    project: Project
    pipeline: str
    config: PostgresSource

    @cached_property
    def _catalog_tables(self) -> dict[str, SourceTable]:
        """Return the tables of the schemas, by stream."""
        with connect(self.config.dsn) as connection:
            # Without the log, unlogged tables can be read too.
            is_compared = self.config.method is PostgresMethod.SNAPSHOT_DIFF
            tables = catalog.tables_in(
                connection,
                self.config.schemas,
                options=self.options,
                also_unlogged=is_compared,
            )
        return {table.stream: table for table in tables}

    @property
    def options(self) -> ColumnOptions:
        """Return the configured column options."""
        config = self.config
        # The log contains only stored generated columns, and no virtual ones.
        kinds = "sv" if config.method is PostgresMethod.SNAPSHOT_DIFF else "s"
        return ColumnOptions(
            json_arrays=config.arrays is ValuesAs.JSON,
            json_composites=config.composites is ValuesAs.JSON,
            decimal_money=config.money is MoneyAs.DECIMAL,
            generated=kinds if config.generated_columns else "",
            rules=partial(ColumnRules.of, self.project.pipelines[self.pipeline]),
        )

    @cached_property
    def names(self) -> list[str]:
        """Return the streams of all selected tables, including missing ones."""
        patterns = self.project.pipelines[self.pipeline].tables
        return list(
            filter(patterns.select, dict.fromkeys(self.config.tables or self._catalog_tables))
        )

    @cached_property
    def tables(self) -> dict[str, SourceTable]:
        """Return the existing tables, by stream."""
        return {
            name: self._catalog_tables[name] for name in self.names if name in self._catalog_tables
        }

    @cached_property
    def without_log_key(self) -> set[str]:
        """Return the streams of existing tables whose rows cannot be identified in the log."""
        return {name for name, table in self.tables.items() if not table.log_key}

    def fingerprints_of(self, stream: str) -> FingerprintFolder:
        """Return the folder of the fingerprints of a stream's table."""
        landed = self.landing_folder(stream)
        return FingerprintFolder(self._fingerprints / landed.path.name, landed)

    def landing_folder(self, stream: str) -> ObjectFolder:
        """Return the folder of a stream's landed files."""
        return raw_folder(self.project, self.pipeline, stream)

    def remove_fingerprints(self, *, keep: Iterable[str]) -> None:
        """Remove the fingerprints of all streams except some: they contain keys."""
        kept_paths = {self.fingerprints_of(name).path for name in keep}
        for path in self._fingerprints.glob("*"):
            if path not in kept_paths:
                shutil.rmtree(path, ignore_errors=True)

    @property
    def _fingerprints(self) -> Path:
        return fingerprint_folder(self.project, self.pipeline)

    def discover(self, capture_method: CaptureMethod) -> list[StreamDescriptor]:
        """Return a stream for each table. A missing table gets a stream that fails on its own.

        Args:
            capture_method: the capture method of tables that can be replicated from the log. Others
                are read completely.
        """
        keys = {name: table.key or (ROW_KEY.name,) for name, table in self.tables.items()}
        return [
            StreamDescriptor(
                StreamCapabilities(name, reports_changes=True),
                CaptureMethod.SNAPSHOT_DIFF if name in self.without_log_key else capture_method,
                _EPSILON_MICROS,
                raw_folder(self.project, self.pipeline, name),
                is_ours=True,
                key=keys.get(name, ()),
                default_table=catalog.default_table(name),
            )
            for name in self.names
        ]

    def table(self, stream: str) -> SourceTable:
        """Return the table of a stream.

        Raises:
            SourceError: the table does not exist, or cannot be read under its name.
        """
        table = self.tables.get(stream)
        if table is None:
            raise SourceError(
                f"The database has no table {stream}.",
                hint="It was dropped, renamed or moved to another schema, or its name is "
                "misspelled. Remove it from `tables`, or write it as schema.table with "
                "one of `schemas`.",
            )
        if (problem := table.naming_problem) is not None:
            raise problem
        if not table.key and any(column.name == ROW_KEY.name for column in table.columns):
            raise SourceError(
                f"The table {stream} has no primary key, but a column {ROW_KEY.name}: the "
                "lake needs this name for the key of such tables.",
                hint="If the column identifies a row, make it the primary key: ALTER TABLE "
                f"{stream} ADD PRIMARY KEY ({ROW_KEY.name}); otherwise, rename the column.",
            )
        return table

    def describe_streams(self, names: Iterable[str]) -> Iterator[DescribedStream | StreamFailure]:
        """Return the columns of some streams as declared to the lake."""
        for name in names:
            try:
                table = self.table(name)
            except SourceError as failure:
                yield StreamFailure(name, failure)
                continue
            columns = RowKey.of(table).declare(table.columns, out_of_range=set())
            stored = {column.name for column in columns}
            excluded = (column.name for column in table.texts.source_columns)
            yield DescribedStream(
                name,
                columns,
                numbers_of(table.columns),
                tuple(column for column in excluded if column not in stored),
            )
