"""Rewrites: replacing rows of a table, and its schema, in one published step.

Iceberg changes few types in place, and a branch has no schema of its own. If rows and columns
change together, the new rows are written into a scratch table whose columns have the field ids of
the new schema. Then one compare-and-set changes the table's schema, drops the old files and adopts
the new ones. Readers see the table before or after; if another writer published meanwhile, the
rewrite starts again. A crash leaves the old table and a scratch table, which the next change of any
table's columns, or `maintain`, drops. (`CREATE OR REPLACE TABLE … AS SELECT` would overwrite what
another process published while it ran.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from chronolake.core.create import check_columns, column_properties
from chronolake.core.publish import TableMovedError, expect_unmoved, publish
from chronolake.core.staging import is_abandoned, stage_name
from chronolake.errors import LakeError
from chronolake.failpoints import reach
from chronolake.iceberg import (
    MAIN,
    IcebergTable,
    java_message_of,
    metadata_with_columns,
)
from chronolake.session import CATALOG
from chronolake.shared_storage import expect_stored
from chronolake.types import ACTIVE, SCRATCH_SCHEMA, TableName

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from chronolake.lake import Lake
    from chronolake.types import Column

log = structlog.get_logger(__name__)

_IN_A_TABLE: Final = "/rewrite-"


def evolve(table: IcebergTable, columns: Sequence[Column], replaced: Mapping[str, Column]) -> Any:
    """Return a Java transaction on `table` whose schema has `columns`, in their order.

    Args:
        table: the current state.
        columns: the wanted columns. Columns that the table has keep their field id.
        replaced: columns that get a new field instead, without the old field's values.
    """
    transaction = table.java.newTransaction()
    operations = transaction.table().operations()
    before = operations.current()
    operations.commit(
        before, metadata_with_columns(table.catalog, before, columns, replaced.keys())
    )
    return transaction


def evolved_metadata(transaction: Any) -> Any:
    """Return the metadata that a transaction would commit."""
    return transaction.table().operations().current()


def publish_columns(table: IcebergTable, columns: Sequence[Column]) -> None:
    """Change a table's columns without reading its rows.

    Raises:
        SchemaError: the columns are not valid for a table.
        CommitConflictError: another writer published meanwhile; nothing has changed.
    """
    check_columns(table.name, columns)

    def change(current: IcebergTable) -> Any:
        expect_unmoved(table, current)
        catalog = current.catalog
        return catalog.builder_from(metadata_with_columns(catalog, current.metadata, columns, ()))

    publish(table, change, column_properties(columns))


def rewrite(
    lake: Lake,
    table: IcebergTable,
    *,
    columns: Sequence[Column],
    replaced: Mapping[str, Column],
    rows: DataFrame,
    only_active: bool = False,
) -> None:
    """Replace a table's columns and rows, in one published step.

    Args:
        table: the state from which `rows` was made.
        columns: the new columns, in table order.
        replaced: the columns whose stored values have another type in `rows`.
        rows: all rows of the table, with `columns`; with `only_active`, the replacement of the
            active ones.
        only_active: only for history tables: whether the other versions stay unchanged.

    Raises:
        CommitConflictError: another writer published meanwhile; nothing has changed.
        CommitUnknownError: the catalog's response was lost.
        LakeError: executors wrote files that the driver cannot read.
    """
    schema = evolved_metadata(evolve(table, columns, replaced)).schema()
    scratch = TableName(SCRATCH_SCHEMA, stage_name())
    try:
        lake.catalog.create(
            scratch,
            columns,
            location=new_subfolder(table),
            properties={k: v for k, v in table.properties.items() if k.startswith("write.")}
            | {"format-version": str(table.format_version)},
            partition_by=[str(field.name()) for field in table.metadata.spec().fields()],
            schema=schema,
        )
        rows.writeTo(f"{CATALOG}.{scratch.sql}").append()
        reach("rewrite.written")
        files = lake.catalog.load(scratch)
        expect_stored(files, files.snapshot_id, since=None)

        def with_files(current: IcebergTable) -> Any:
            expect_unmoved(table, current)
            transaction = evolve(current, columns, replaced)
            if not transaction.table().schema().sameSchema(schema):
                raise TableMovedError(
                    "The table's columns changed during the rewrite.", table=str(table.name)
                )
            _replace_files(current, transaction, files, only_active=only_active)
            return current.catalog.builder_from(evolved_metadata(transaction))

        reach("rewrite.before-commit")
        publish(table.reload(), with_files, column_properties(columns))
        reach("rewrite.after-commit")
    finally:
        # Its files now belong to the table, or are orphans that maintenance removes.
        drop_scratch(lake, scratch, purge=False)


def _replace_files(
    table: IcebergTable, transaction: Any, source: IcebergTable, *, only_active: bool
) -> None:
    expressions = table.catalog.jvm.org.apache.iceberg.expressions.Expressions
    # A history table is partitioned by this column, so that the filter matches all rows of a file
    # or none.
    replaced = expressions.equal(ACTIVE, True) if only_active else expressions.alwaysTrue()
    overwrite = transaction.newOverwrite().overwriteByRowFilter(replaced)
    for file in copied_files(source, MAIN, table.metadata.spec()):
        overwrite.addFile(file)
    overwrite.commit()


def copied_files(source: IcebergTable, branch: str, spec: Any) -> Iterator[Any]:
    """Yield the data files of a branch, as Java `DataFile`s of a table with another metadata.

    Args:
        source: a scratch table, from whose files no row was removed.
        branch: one of its branches.
        spec: the Java `PartitionSpec` of the other table, with the same columns.
    """
    iceberg = source.catalog.jvm.org.apache.iceberg
    tasks = source.java.newScan().useRef(branch).includeColumnStats().planFiles()
    try:
        remaining = tasks.iterator()
        while remaining.hasNext():
            file = remaining.next().file()
            metrics = iceberg.Metrics(
                file.recordCount(),
                file.columnSizes(),
                file.valueCounts(),
                file.nullValueCounts(),
                file.nanValueCounts(),
                file.lowerBounds(),
                file.upperBounds(),
            )
            # `copy` requires that both tables have the same number for the partitioning.
            builder = iceberg.DataFiles.builder(spec).withPath(file.location())
            builder = builder.withFormat(file.format()).withPartition(file.partition())
            builder = builder.withFileSizeInBytes(file.fileSizeInBytes()).withMetrics(metrics)
            yield builder.withSplitOffsets(file.splitOffsets()).build()
    finally:
        tasks.close()


def new_subfolder(table: IcebergTable) -> str:
    """Return a new subfolder of a table's folder, where maintenance finds unused files."""
    return f"{table.location}{_IN_A_TABLE}{uuid4().hex}"


def is_in_table_folder(location: str | None) -> bool:
    """Return whether `new_subfolder` created a folder."""
    return location is not None and _IN_A_TABLE in location


def drop_scratch(lake: Lake, name: TableName, *, purge: bool) -> None:
    """Drop a scratch table; a failure is logged, because `drop_abandoned` repeats it later."""
    try:
        lake.catalog.drop(name, purge=purge)
    except (Py4JError, PySparkException) as failure:
        log.warning("leftover_kept", table=str(name), reason=java_message_of(failure))


def drop_abandoned(lake: Lake) -> None:
    """Drop the scratch tables of rewrites that will not be finished."""
    for name in lake.catalog.tables_in(SCRATCH_SCHEMA):
        if is_abandoned(name.table):
            log.warning("leftover_dropped", table=str(name))
            drop_scratch(lake, name, purge=_owns_its_files(lake, name))


def _owns_its_files(lake: Lake, name: TableName) -> bool:
    """Return whether a leftover's files cannot belong to another table."""
    try:
        table = lake.catalog.find(name)
    except LakeError:
        # Its metadata was removed with that of the table that replaced another: its files are in
        # use.
        return False
    # Files in another table's folder may already belong to that table.
    if table is None or is_in_table_folder(table.location):
        return False
    return lake.containment.contains(table.location)
