"""The tables of a server that a pipeline's configuration selects."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

from chronolake.errors import ConfigurationError, SourceError
from chronolake.landing import ColumnRules
from chronolake.source.mysql import catalog
from chronolake.source.mysql.connection import Address, connect
from chronolake.source.protocol import (
    CaptureMethod,
    DescribedStream,
    StreamDescriptor,
    StreamFailure,
    raw_folder,
)
from chronolake.source.relational.columns import numbers_of
from chronolake.source.relational.row_versions import ROW_KEY, RowKey
from chronolake.stream_modes import StreamCapabilities

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from chronolake.config import MysqlSource, Project
    from chronolake.landing import ObjectFolder
    from chronolake.source.mysql.catalog import SourceTable

_EPSILON_MICROS: Final = 1


@dataclass(frozen=True)
class TableSelection:
    """The tables that a pipeline's configuration selects. The catalog is read once."""

    project: Project
    pipeline: str
    config: MysqlSource

    @cached_property
    def schemas(self) -> list[str]:
        """Return the databases whose tables are selected.

        Raises:
            ConfigurationError: the configuration names none.
        """
        named = Address.of(self.config.dsn).schema
        found = self.config.databases or ([named] if named else [])
        if not found:
            raise ConfigurationError(
                f"The pipeline {self.pipeline} names no database.",
                hint="Add it to `dsn`, mysql://user@host/database, or set `databases`.",
            )
        return found

    @cached_property
    def _catalog_tables(self) -> dict[str, SourceTable]:
        """Return the tables of the databases, by stream."""
        rules = partial(ColumnRules.of, self.project.pipelines[self.pipeline])
        with connect(self.config.dsn) as connection:
            tables = catalog.tables_in(connection, self.schemas, rules)
        if not self.config.generated_columns:
            tables = [table.without_generated() for table in tables]
        return {table.stream: table for table in tables}

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

    def landing_folder(self, stream: str) -> ObjectFolder:
        """Return the folder of a stream's landed files."""
        return raw_folder(self.project, self.pipeline, stream)

    def discover(self, capture_method: CaptureMethod) -> list[StreamDescriptor]:
        """Return a stream for each table. A missing table gets a stream that fails on its own.

        Args:
            capture_method: the capture method of tables that can be replicated from the log. Others
                are read completely.
        """
        found = []
        for name in self.names:
            table = self.tables.get(name)
            is_in_log = table is None or bool(table.log_key)
            found.append(
                StreamDescriptor(
                    StreamCapabilities(name, reports_changes=True),
                    capture_method if is_in_log else CaptureMethod.SNAPSHOT_DIFF,
                    _EPSILON_MICROS,
                    raw_folder(self.project, self.pipeline, name),
                    is_ours=True,
                    key=() if table is None else table.key or (ROW_KEY.name,),
                    default_table=self._default_table(name),
                )
            )
        return found

    def _default_table(self, stream: str) -> str:
        """Return the name of a stream's table in the lake."""
        schema, _, name = stream.partition(".")
        return name if self.schemas == [schema] else f"{schema}_{name}"

    def table(self, stream: str) -> SourceTable:
        """Return the table of a stream.

        Raises:
            SourceError: the table does not exist, or cannot be read under its name.
        """
        table = self.tables.get(stream)
        if table is None:
            raise SourceError(
                f"The server has no table {stream}.",
                hint="It was dropped or renamed, or its name is misspelled. Remove it from "
                "`tables`, or write it as database.table with one of `databases`.",
            )
        if not table.key and any(column.name == ROW_KEY.name for column in table.columns):
            raise SourceError(
                f"The table {stream} has no primary key, but a column {ROW_KEY.name}: the lake "
                "needs this name for the key of such tables.",
                hint="If the column identifies a row, make it the primary key; otherwise, rename "
                "the column.",
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
            numbered = (replace(column, number=None) for column in table.columns)
            yield DescribedStream(
                name,
                columns,
                numbers_of(numbered) or None,
                tuple(column for column in excluded if column not in stored),
            )
