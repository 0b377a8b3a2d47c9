"""Column names of a stream in the lake: the source's, unless the configuration renames them.

Columns are renamed when they land, so that all later steps use one name. Names that a table cannot
have are rejected before anything lands; the error names the setting to change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from chronolake.arrow_tasks import ArrowRows, schema_of, types_in
from chronolake.change_set import OMITTED, RESERVED
from chronolake.errors import ConfigurationError
from chronolake.formatting import did_you_mean
from chronolake.frames import select
from chronolake.source.protocol import ChangeBatch, CopyBatch, Reconciliation
from chronolake.types import (
    ACTIVE,
    DELETED,
    END,
    HASH,
    METADATA_COLUMNS,
    START,
    SYNCED,
    VERSION,
    literal,
    quote,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from chronolake.source.protocol import Landable
    from chronolake.types import Column

    Value = TypeVar("Value")

#: System columns of tables.
_TABLE_COLUMNS: Final = {START, END, ACTIVE, DELETED, SYNCED, VERSION, HASH}
#: An empty name in YAML.
_EMPTY: Final = "''"
#: System columns of files in a raw lake.
_FILE_COLUMNS: Final = {"source__modified", "grax__idseq", "grax__deleted", "grax__purged"}


@dataclass(frozen=True)
class ColumnNames:
    """The renamed columns of a stream.

    Attributes:
        of_pipeline: pairs of source name and lake name, for all streams of the pipeline.
        of_stream: the same for this stream; they override those of the pipeline.
    """

    of_pipeline: tuple[tuple[str, str], ...] = ()
    of_stream: tuple[tuple[str, str], ...] = ()

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Return the pairs of source name and lake name."""
        return tuple({**dict(self.of_pipeline), **dict(self.of_stream)}.items())

    def lake_names(self, names: Iterable[str]) -> dict[str, str]:
        """Return the lake names of renamed columns by their source names."""
        renamed = dict(self.pairs)
        return {name: renamed[name] for name in names if renamed.get(name, name) != name}

    def expect_known(self, columns: Sequence[str], *, place: str) -> None:
        """Raise if a column that is renamed for this stream does not exist.

        Args:
            columns: the names of all columns in the source.
            place: the stream's path in chronolake.yml, for messages.

        Raises:
            ConfigurationError: the stream does not have such a column.
        """
        for name, _ in self.of_stream:
            if name not in columns:
                raise ConfigurationError(
                    f"{place}.rename: the stream has no column {name!r}.",
                    hint=did_you_mean(name, columns, f"It has: {', '.join(columns)}."),
                )

    def expect_fit(self, columns: Sequence[str], *, place: str) -> None:
        """Raise if the lake names of columns are invalid.

        Args:
            columns: the columns' names in the source.
            place: the stream's path in chronolake.yml, for messages.

        Raises:
            ConfigurationError: a name is reserved, empty, or used by two columns.
        """
        new_names = self.lake_names(columns)
        by_new_name: dict[str, str] = {}
        for name in columns:
            new_name = new_names.get(name, name)
            other = by_new_name.setdefault(new_name, name)
            reason = (
                f"The columns {other} and {name} would both be named {new_name}"
                if other != name
                else "Iceberg reserves this name"
                if new_name in METADATA_COLUMNS
                else "Chronolake reserves this name for its own columns"
                if new_name in _TABLE_COLUMNS
                or new_name in _FILE_COLUMNS
                or new_name.startswith(RESERVED)
                else "its name is empty"
                if not new_name
                else None
            )
            if reason is None:
                continue
            subject = "" if other != name else f"The source column {name} cannot be stored: "
            free = _unused_name(name, {*columns, *new_names.values()})
            raise ConfigurationError(
                f"{subject}{reason}.",
                column=name,
                hint=f"Rename it in chronolake.yml: {place}.rename: {{{name or _EMPTY}: {free}}}",
            )

    def apply_to(self, batch: Landable) -> Landable:
        """Return data that was read from a source, with the lake's column names."""
        new_names = self.lake_names(column.name for column in batch.columns)
        if not new_names:
            return batch
        columns = _rename_columns(batch.columns, new_names)
        if isinstance(batch, Reconciliation):
            read = _rename_frame(batch.versions, new_names)
            return replace(batch, versions=read, columns=columns)
        if isinstance(batch, CopyBatch):
            copies = None if batch.rows is None else _rename_frame(batch.rows, new_names)
            return replace(batch, rows=copies, columns=columns)
        numbers = None if batch.numbers is None else _rename_keys(batch.numbers, new_names)
        if isinstance(batch, ChangeBatch):
            versions = None if batch.versions is None else _rename_rows(batch.versions, new_names)
            return replace(batch, versions=versions, columns=columns, numbers=numbers)
        return replace(
            batch,
            rows=_rename_rows(batch.rows, new_names),
            columns=columns,
            numbers=numbers,
            texts=_rename_keys(batch.texts, new_names),
        )


def _rename_columns(columns: Iterable[Column], names: Mapping[str, str]) -> list[Column]:
    """Return columns with new names, keyed by their current names."""
    return [replace(column, name=names.get(column.name, column.name)) for column in columns]


def _rename_keys(values: Mapping[str, Value], names: Mapping[str, str]) -> dict[str, Value]:
    return {names.get(name, name): value for name, value in values.items()}


def _unused_name(name: str, taken: set[str]) -> str:
    """Return an unused name that is similar to another one."""
    found = f"source_{name.strip('_') or 'column'}"
    number = 2
    while found in taken:
        found = f"source_{name.strip('_')}_{number}"
        number += 1
    return found


def _rename_rows(rows: DataFrame | ArrowRows, names: Mapping[str, str]) -> DataFrame | ArrowRows:
    if not isinstance(rows, ArrowRows):
        return _rename_frame(rows, names)
    types = {names.get(name, name): kind for name, kind in types_in(rows.schema).items()}
    return rows.then(partial(_rename_batches, names=dict(names)), schema_of(types))


def _rename_frame(rows: DataFrame, names: Mapping[str, str]) -> DataFrame:
    pairs = ", ".join(f"{literal(name)}, {literal(new)}" for name, new in names.items())
    omitted = f"transform({OMITTED}, item -> coalesce(map({pairs})[item], item)) AS {OMITTED}"
    return select(
        rows,
        (
            omitted if name == OMITTED else f"{quote(name)} AS {quote(names.get(name, name))}"
            for name in rows.columns
        ),
    )


# ------------------------------------------------------------------ in an executor


def _rename_batches(
    batches: Iterable[pa.RecordBatch], *, names: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    """Yield rows with renamed columns."""
    before = pa.array(list(names), pa.string())
    after = pa.array(list(names.values()), pa.string())
    for batch in batches:
        place = batch.schema.get_field_index(OMITTED)
        renamed = batch
        if place >= 0 and renamed.column(place).null_count < renamed.num_rows:
            lists = renamed.column(place)
            old_names = lists.values.cast(pa.string())
            new_names = pc.coalesce(after.take(pc.index_in(old_names, before)), old_names)
            omitted = pa.ListArray.from_arrays(lists.offsets, new_names, mask=lists.is_null())
            renamed = renamed.set_column(place, OMITTED, omitted)
        yield renamed.rename_columns([names.get(name, name) for name in renamed.schema.names])
