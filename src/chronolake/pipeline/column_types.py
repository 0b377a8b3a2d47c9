"""Columns that are cast to a configured type (`columns.type`) before they land.

Values are converted as by a change of a column's type (`core.alter`): a value that would lose
something does not fit. Values of columns that are hashed or masked are not cast.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from chronolake.arrow_tasks import to_spark
from chronolake.config import OnCastError, is_pattern, matches
from chronolake.frames import select
from chronolake.landing import ColumnRules, expect_column
from chronolake.parsing.columns import TEXT_KINDS
from chronolake.source.protocol import ChangeBatch, CopyBatch, Reconciliation
from chronolake.types import literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from chronolake.config import PipelineConfig
    from chronolake.source.protocol import Landable
    from chronolake.types import Column, ColumnType


@dataclass(frozen=True)
class ColumnTypes:
    """The configured types of a stream's columns.

    Attributes:
        types: pairs of a name or pattern and a type; the first match counts.
        rules: the rules of the columns; columns that have one are not cast.
        on_error: what happens to values that do not fit.
        place: the stream's path in chronolake.yml, for messages.
        names: the source's names of renamed columns, for data whose columns have been renamed.
        of_stream: the names and patterns of the stream's own settings.
    """

    types: tuple[tuple[str, ColumnType], ...] = ()
    rules: ColumnRules = field(default_factory=ColumnRules)
    on_error: OnCastError = OnCastError.FAIL
    place: str = ""
    names: tuple[tuple[str, str], ...] = ()
    of_stream: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: PipelineConfig, stream: str, rules: ColumnRules, *, place: str) -> Self:
        """Return the configured types of a stream."""
        own = config.streams.get(stream)
        sections = [config.columns] if own is None else [own.columns, config.columns]
        types = [
            (name, kind)
            for section in sections
            for name, kind in sorted(section.types.items(), key=lambda item: is_pattern(item[0]))
        ]
        given = (section.on_cast_error for section in sections)
        on_error = next(filter(None, given), OnCastError.FAIL)
        of_stream = () if own is None else tuple(own.columns.types)
        return cls(tuple(types), rules, on_error, place, of_stream=of_stream)

    def expect_known(self, columns: Sequence[str], *, place: str) -> None:
        """Raise if a type of the stream names a column that does not exist.

        Args:
            columns: the names of all columns in the source.
            place: the stream's path in chronolake.yml, for the message.

        Raises:
            ConfigurationError: the stream does not have such a column.
        """
        for name in self.of_stream:
            expect_column(name, columns, setting=f"{place}.columns.type")

    def renamed(self, names: Mapping[str, str]) -> Self:
        """Return the types for columns that have been renamed; `names` are the new names."""
        return replace(self, names=tuple((now, name) for name, now in names.items()))

    @property
    def digest(self) -> str:
        """Return a text that changes with the types; empty without any."""
        if not self.types:
            return ""
        return f"{self.on_error}:" + ",".join(f"{name}={kind}" for name, kind in self.types)

    def type_of(self, name: str) -> ColumnType | None:
        """Return the configured type of a column, or None."""
        if not self.types:
            return None
        source_name = dict(self.names).get(name, name)
        if self.rules.rule_of(source_name) is not None:
            return None
        return next((kind for known, kind in self.types if matches(source_name, known)), None)

    def columns(self, columns: Iterable[Column]) -> list[Column]:
        """Return columns with their configured types."""
        return [
            replace(column, type=self.type_of(column.name) or column.type) for column in columns
        ]

    def apply_to(self, batch: Landable) -> Landable:
        """Return data with the source's column names as it is stored."""
        columns = self.columns(batch.columns)
        if columns == list(batch.columns):
            return batch
        if isinstance(batch, Reconciliation):
            versions = self.cast(batch.versions, batch.columns)
            return replace(batch, versions=versions, columns=columns)
        if isinstance(batch, ChangeBatch):
            if batch.versions is None:
                return replace(batch, columns=columns)
            rows = self.cast(to_spark(batch.versions), batch.columns)
            return replace(batch, versions=rows, columns=columns)
        if isinstance(batch, CopyBatch):
            copies = None if batch.rows is None else self.cast(batch.rows, batch.columns)
            return replace(batch, rows=copies, columns=columns)
        cast = {
            column.name
            for column, now in zip(batch.columns, columns, strict=True)
            if column.type != now.type
        }
        return replace(
            batch,
            rows=self.cast(to_spark(batch.rows), batch.columns, batch.texts),
            columns=columns,
            texts={name: text for name, text in batch.texts.items() if name not in cast},
        )

    def cast(
        self, rows: DataFrame, columns: Sequence[Column], texts: Mapping[str, str] | None = None
    ) -> DataFrame:
        """Return rows with the configured types; a value that does not fit fails, or is null.

        Args:
            rows: the rows.
            columns: their data columns.
            texts: for some columns, another one with values that the column's type cannot hold.
        """
        from chronolake.core.alter import (  # noqa: PLC0415 - not for commands without Spark
            convert_columns,
            is_lost,
        )

        texts = texts or {}
        before = {
            column.name: column.type
            for column in columns
            if self.type_of(column.name) not in {None, column.type}
        }
        after = {name: kind for name in before if (kind := self.type_of(name)) is not None}
        if not before:
            return rows
        converted_rows, values = convert_columns(rows, before, after)
        cells = {}
        for name, value in values.items():
            lost = f"({is_lost(quote(name), value, before[name], after[name])})"
            stored = f"CAST({value} AS {after[name].sql})"
            if name in texts:
                text = quote(texts[name])
                if after[name].kind in TEXT_KINDS:
                    stored = f"coalesce({text}, {stored})"
                else:
                    lost = f"({lost} OR {text} IS NOT NULL)"
            if self.on_error is OnCastError.FAIL:
                message = literal(self._message(name, before[name], after[name]))
                stored = f"IF({lost}, raise_error({message}), {stored})"
            cells[name] = stored
        dropped = {texts[name] for name in cells if name in texts}
        return select(
            converted_rows,
            (
                f"{cells.get(name, quote(name))} AS {quote(name)}"
                for name in rows.columns
                if name not in dropped
            ),
        )

    def _message(self, name: str, before: ColumnType, after: ColumnType) -> str:
        return (
            f"A value of the column {name}, of the type {before}, does not fit {after}, which "
            f"{self.place}.columns.type sets. Choose a type that holds all values, or set "
            "columns.on_cast_error: set-null to store null instead."
        )
