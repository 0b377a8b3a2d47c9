"""Column rules of a stream, applied to batches whose source has not applied them.

They are applied before columns are renamed, so rules name the columns of the source. Excluded
columns are dropped first: Spark then does not request them from a database.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from chronolake.arrow_tasks import ArrowRows, map_in_tasks, types_in
from chronolake.frames import select
from chronolake.landing import Protection
from chronolake.source.protocol import ChangeBatch, CopyBatch, Reconciliation, Snapshot
from chronolake.types import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from chronolake.landing import ColumnRules
    from chronolake.source.protocol import Landable


def protect_batch(batch: Landable, rules: ColumnRules, *, place: str) -> Landable:
    """Return data that was read from a source as it is stored.

    Args:
        batch: the data, with the source's column names.
        rules: the rules of the stream.
        place: the stream's path in chronolake.yml, for messages.

    Raises:
        ConfigurationError: a key column is excluded or masked.
    """
    if not rules or (not isinstance(batch, CopyBatch) and batch.is_protected):
        return batch
    rules.expect_stored(
        (column.name for column in batch.columns if column.primary_key), place=place
    )
    texts = batch.texts if isinstance(batch, Snapshot) else {}
    protection = Protection(rules, tuple(batch.columns), texts)
    columns = protection.stored_columns
    if isinstance(batch, Reconciliation):
        versions_read = _protect_frame(batch.versions, protection)
        return replace(batch, versions=versions_read, columns=columns)
    if isinstance(batch, CopyBatch):
        copies = None if batch.rows is None else _protect_frame(batch.rows, protection)
        return replace(batch, rows=copies, columns=columns)
    names = {column.name for column in columns}
    numbers = batch.numbers and {
        name: number for name, number in batch.numbers.items() if name in names
    }
    if isinstance(batch, ChangeBatch):
        versions = None if batch.versions is None else _protect_rows(batch.versions, protection)
        return replace(batch, versions=versions, columns=columns, numbers=numbers)
    return replace(
        batch,
        rows=_protect_rows(batch.rows, protection),
        columns=columns,
        numbers=numbers,
        texts=protection.stored_texts,
    )


def _protect_rows(rows: DataFrame | ArrowRows, protection: Protection) -> DataFrame | ArrowRows:
    if not isinstance(rows, ArrowRows):
        return _protect_frame(rows, protection)
    types = types_in(rows.schema)
    return rows.then(protection, protection.ddl(list(types), types))


def _protect_frame(rows: DataFrame, protection: Protection) -> DataFrame:
    excluded = protection.dropped - {*protection.texts.values()}
    frame = select(rows, (quote(name) for name in rows.columns if name not in excluded))
    types = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    return map_in_tasks(frame, protection, protection.ddl(list(types), types))
