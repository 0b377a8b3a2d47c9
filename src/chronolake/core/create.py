"""Creation of tables: checks of columns, properties and partitioning."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from chronolake.cancellation import raise_if_cancelled
from chronolake.change_set import RESERVED, expect_unreserved
from chronolake.core.history_only import expect_mode
from chronolake.errors import CallCancelledError, SchemaError
from chronolake.failpoints import reach
from chronolake.iceberg import COLUMNS_PROPERTY, columns_to_json
from chronolake.types import ACTIVE, END, METADATA_COLUMNS, START, SYNCED, Kind, Mode, mode_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake
    from chronolake.types import Column, TableName

_EXPECTED: Final = {START: Kind.UTC_DATETIME, END: Kind.UTC_DATETIME, ACTIVE: Kind.BOOLEAN}

#: Iceberg keeps statistics of this number of leading columns by default.
_MEASURED_COLUMNS: Final = 100
#: Iceberg's reader reserves memory outside of the JVM's heap for a batch of rows before it reads
#: the first one: about 150 bytes for each text of 5,000 rows. Wide tables get smaller batches.
_READ_ROWS: Final = 5_000
_READ_VALUES: Final = 500_000

PROPERTIES: Final = {
    # Of tables for which none is configured.
    "format-version": "3",
    # Removed rows become deletion vectors, or position delete files in format version 2: a batch
    # never rewrites data files.
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    # A batch has few rows, which are written in their order; maintenance sorts them by key later.
    "write.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
    "write.parquet.compression-codec": "zstd",
    # A scan of a compacted table is split into tasks by row groups, and skips row groups without
    # matching keys.
    "write.parquet.row-group-size-bytes": str(16 * 2**20),
    # Batches leave small files: one Spark task reads up to 64 of them instead of 4.
    "read.split.open-file-cost": str(256 * 2**10),
    # Every statement reads every manifest, and a batch creates several.
    "commit.manifest.min-count-to-merge": "10",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


def create(lake: Lake, name: TableName, columns: Sequence[Column]) -> None:
    """Create an empty table, and its schema if it does not exist.

    A history table is partitioned by `_fivetran_active`, so that the current state is one
    partition.

    Raises:
        TableExistsError: the table exists; it is unchanged.
        SchemaError: the columns are not valid for a table, the schema is reserved, or the table can
            only be in history mode.
        CallCancelledError: the call that this thread works for was cancelled; the table, and a
            schema that was created for it, were removed again.
    """
    expect_unreserved(name)
    check_columns(name, columns)
    expect_mode(lake.config, name, mode_of(column.name for column in columns))
    # Locked, so that a repeated request finds the table either created or removed.
    with lake.writing(name):
        had_schema = lake.catalog.has_schema(name.schema)
        lake.catalog.create(
            name,
            columns,
            location=lake.new_location(),
            properties={**properties_of(columns), **format_version(lake, name)},
            partition_by=partitioning_of(columns),
        )
        reach("create.committed")
        try:
            raise_if_cancelled()
        except CallCancelledError:
            _undo(lake, name, had_schema=had_schema)
            raise


def _undo(lake: Lake, name: TableName, *, had_schema: bool) -> None:
    table = lake.catalog.find(name)
    if table is None or table.snapshot_id is not None:
        # Another process has already renamed it, or written to it.
        return
    lake.catalog.drop(name, purge=True)
    if lake.made_location(table.location):
        lake.catalog.delete_folder(table)
    if not had_schema:
        lake.catalog.drop_schema_if_empty(name.schema)


def partitioning_of(columns: Sequence[Column]) -> list[str]:
    """Return the columns by which a table with these columns is partitioned."""
    return [ACTIVE] if mode_of(column.name for column in columns) is Mode.HISTORY else []


def properties_of(columns: Sequence[Column]) -> dict[str, str]:
    """Return the properties of a new table with these columns; see also `format_version`."""
    return {**PROPERTIES, **column_properties(columns)}


def format_version(
    lake: Lake, name: TableName, replaced: IcebergTable | None = None
) -> dict[str, str]:
    """Return the property with the format version of a table that is created.

    Args:
        name: the table, or the table that a scratch table will become.
        replaced: the table that it replaces as a whole, whose version it keeps by default.
    """
    default = PROPERTIES["format-version"] if replaced is None else replaced.format_version
    return {"format-version": str(lake.config.format_version_of(name) or default)}


def column_properties(columns: Sequence[Column]) -> dict[str, str]:
    """Return the properties that change with a table's columns."""
    properties = {COLUMNS_PROPERTY: columns_to_json(columns)}
    if len(columns) > _MEASURED_COLUMNS:
        # Scans are pruned by keys and times: these need statistics at any position.
        pruning = {SYNCED, START, END} | {column.name for column in columns if column.primary_key}
        properties |= {
            f"write.metadata.metrics.column.{column.name}": "truncate(16)"
            for column in columns
            if column.name in pruning
        }
    if len(columns) * _READ_ROWS > _READ_VALUES:
        rows = max(1, _READ_VALUES // len(columns))
        properties["read.parquet.vectorization.batch-size"] = str(rows)
    return properties


def check_columns(name: TableName, columns: Sequence[Column]) -> None:
    """Refuse columns that are not valid for a table.

    Raises:
        SchemaError: there are no columns, two have the same name, a name is reserved, or a history
            column does not have its required type.
    """
    table = str(name)
    if "\0" in table:
        raise SchemaError(
            "The name contains the character NUL, which no catalog can store.",
            table=table.replace("\0", "␀"),
            hint="Choose another name for the schema or the table.",
        )
    if not columns:
        raise SchemaError(
            "A table needs at least one column.",
            table=table,
            hint="Send the table's columns in the request.",
        )
    for column_name, count in Counter(column.name for column in columns).items():
        problem = (
            "A column has no name."
            if not column_name
            else "The name contains the character NUL, which no catalog can store."
            if "\0" in column_name
            else f"Column names that begin with {RESERVED} are reserved."
            if column_name.startswith(RESERVED)
            else "The name is reserved by Iceberg: a table with such a column cannot be read."
            if column_name in METADATA_COLUMNS
            else "Two columns have the same name."
            if count > 1
            else None
        )
        if problem:
            raise SchemaError(
                problem,
                table=table,
                column=column_name,
                hint="Rename the column.",
            )
    if mode_of(column.name for column in columns) is not Mode.HISTORY:
        return
    for column in columns:
        kind = _EXPECTED.get(column.name, column.type.kind)
        if column.type.kind is not kind:
            raise SchemaError(
                f"A history table's {column.name} must be {kind}, not {column.type}.",
                table=table,
                column=column.name,
                hint="Send the system columns with the types of the connector guide.",
            )
