"""Table swaps: tables written to a scratch table and published whole, as new or over an old one.

The rows are written into a scratch table that users do not see. One step of the catalog then
renames it, or makes its metadata the metadata of an existing table (a compare-and-set). Readers see
the table before or after. A crash leaves a scratch table, which the next change of any table, or
`maintain`, drops.

A REST catalog accepts only changes of metadata. There, one commit changes the columns and the
partitioning, removes all snapshots, and adds a snapshot with the scratch table's files.

If it replaces a table, the new metadata starts from scratch, without the table's old snapshots and
partition specs: Iceberg cannot delete rows from a table that was once partitioned by a column that
no longer exists. The table keeps its identity, its folder and its properties. The files of the old
snapshots become orphans in that folder, which maintenance removes after their grace period.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chronolake.cancellation import raise_if_cancelled
from chronolake.change_set import expect_unreserved
from chronolake.core.create import (
    check_columns,
    column_properties,
    format_version,
    partitioning_of,
    properties_of,
)
from chronolake.core.history_only import expect_mode
from chronolake.core.omitted_columns import OMITTED_PROPERTY
from chronolake.core.publish import (
    TableMovedError,
    expect_unmoved,
    publish,
    publishing_properties,
)
from chronolake.core.rewrite import copied_files, drop_scratch, is_in_table_folder, new_subfolder
from chronolake.core.staging import stage_name
from chronolake.failpoints import reach
from chronolake.iceberg import (
    COLUMNS_PROPERTY,
    HIDDEN,
    MAIN,
    IcebergTable,
    schema_of_replacement,
)
from chronolake.session import CATALOG
from chronolake.shared_storage import expect_stored
from chronolake.types import (
    HISTORY_SINCE_PROPERTY,
    SCRATCH_SCHEMA,
    TableName,
    mode_of,
    now_micros,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from chronolake.lake import Lake
    from chronolake.types import Column

#: Table property: the times when the table was replaced as a whole, each as `begin:end` in
#: microseconds since 1970: before the first file of the new table was written, and when it replaced
#: the old one.
REPLACED_PROPERTY: Final = "chronolake.replaced-at"
#: Maximum number of stored times; above it, some of the older ones are dropped.
_REPLACEMENTS: Final = 200

#: Properties about the rows of a table, as opposed to the table itself.
_OF_ROWS: Final = {COLUMNS_PROPERTY, HISTORY_SINCE_PROPERTY, OMITTED_PROPERTY}
_METRICS: Final = "write.metadata.metrics.column."


def publish_new(
    lake: Lake,
    name: TableName,
    columns: Sequence[Column],
    query: str,
    properties: Mapping[str, str],
) -> None:
    """Create a table from a query's rows. It appears with all of them, or not at all.

    Args:
        name: an unused name.
        columns: the new table's columns, in order.
        query: SQL that returns these columns, by name.
        properties: further properties of the table.

    Raises:
        SchemaError: the columns are not valid for a table, the schema is reserved, or the table can
            only be in history mode.
        TableExistsError: a table of this name exists; it is unchanged.
    """
    expect_unreserved(name)
    check_columns(name, columns)
    expect_mode(lake.config, name, mode_of(column.name for column in columns))
    lake.catalog.ensure_schema(name.schema)
    location = lake.new_location()
    stamped = {**properties, **format_version(lake, name), **publishing_properties()}
    with _scratch_table(lake, columns, query, location=location, properties=stamped) as scratch:
        reach("rewrite.before-commit")
        raise_if_cancelled()
        lake.catalog.rename(scratch.name, name)
        reach("rewrite.after-commit")


def publish_replacement(
    lake: Lake,
    table: IcebergTable,
    columns: Sequence[Column],
    query: str,
    properties: Mapping[str, str],
) -> None:
    """Replace a table's columns, rows and partitions, in one step.

    Args:
        table: the state that the query reads.
        columns: the new columns, in order.
        query: SQL that returns these columns, by name: all rows of the new table.
        properties: properties that change.

    Raises:
        SchemaError: the columns are not valid for a table, or it can only be in history mode.
        CommitConflictError: another writer published meanwhile; nothing has changed.
        CommitUnknownError: the catalog's response was lost.
    """
    check_columns(table.name, columns)
    expect_mode(lake.config, table.name, mode_of(column.name for column in columns))
    location, began = new_subfolder(table), now_micros()
    changed = {**lasting_properties(lake, table), **properties}
    with _scratch_table(
        lake, columns, query, location=location, properties=changed, replaced=table
    ) as scratch:
        replace_with(table, scratch, began_micros=began)


@dataclass(frozen=True)
class Replacement:
    """A replacement of a table as a whole.

    Attributes:
        began_micros: a time before the first of the new files was written, in microseconds since
            1970.
        ended_micros: the time when the old files became orphans, in microseconds since 1970.
    """

    began_micros: int
    ended_micros: int


def replacements_of(table: IcebergTable) -> list[Replacement]:
    """Return the replacements of a table, the latest one last."""
    stored = (table.property_of(REPLACED_PROPERTY) or "").split()
    times = (replacement.split(":") for replacement in stored)
    return [Replacement(int(parts[0]), int(parts[-1])) for parts in times]


def schema_to_replace(table: IcebergTable, columns: Sequence[Column]) -> Any:
    """Return the Java `Schema` that a scratch table needs to replace a table; None: any ids do."""
    if table.catalog.replaces_metadata:
        return None
    return schema_of_replacement(table, columns)


def lasting_properties(lake: Lake, table: IcebergTable) -> dict[str, str]:
    """Return the properties of a table's replacement that do not depend on its rows."""
    kept = {
        key: value
        for key, value in table.properties.items()
        if key not in _OF_ROWS and not key.startswith(_METRICS)
    }
    return {**kept, **format_version(lake, table.name, replaced=table)}


def replace_with(
    table: IcebergTable,
    scratch: IcebergTable,
    *,
    began_micros: int,
    expect: Callable[[IcebergTable], None] | None = None,
) -> None:
    """Give a table the metadata of a scratch table, in one step.

    Args:
        table: the state from which the scratch table was made.
        scratch: a table in a subfolder of that table's folder (`rewrite.new_subfolder`), with the
            field ids of `schema_to_replace`.
        began_micros: a time before any of its files was written, in microseconds since 1970.
        expect: gets the table as it is when it is replaced, and raises if it must not be replaced;
            by default it must be unchanged since `table`.

    Raises:
        CommitConflictError: another writer published meanwhile; nothing has changed.
        CommitUnknownError: the catalog's response was lost.
    """

    def build_replacement(current: IcebergTable) -> Any:
        if expect is None:
            expect_unmoved(table, current)
        else:
            expect(current)
        catalog = current.catalog
        if catalog.replaces_metadata:
            builder = catalog.builder_from(scratch.metadata)
            builder.assignUUID(current.metadata.uuid()).setLocation(current.location)
        else:
            if current.metadata.lastColumnId() != table.metadata.lastColumnId():
                raise TableMovedError("Columns were added meanwhile.", table=str(table.name))
            builder = _with_content_of(scratch, current)
        replaced_at = _with_replacement(current, began_micros)
        return builder.setProperties(catalog.map({REPLACED_PROPERTY: replaced_at}))

    reach("rewrite.before-commit")
    # The property protects readers: files of the old snapshots are orphans immediately, and
    # maintenance must not remove them yet.
    publish(table.reload(), build_replacement, {})
    reach("rewrite.after-commit")


def _with_content_of(scratch: IcebergTable, current: IcebergTable) -> Any:
    """Return a metadata builder that changes a table to the content of a scratch table."""
    catalog, jvm = current.catalog, current.catalog.jvm
    transaction = current.java.newTransaction()
    operations = transaction.table().operations()
    before = operations.current()
    builder = catalog.builder_from(before)
    # Without them, the first new snapshot of a branch has no parent.
    for name in [str(name) for name in before.refs().keySet()]:
        builder.removeRef(name)
    builder.removeSnapshots(before.snapshots())
    schema = scratch.metadata.schema()
    last = max(int(before.lastColumnId()), int(schema.highestFieldId()))
    builder.setCurrentSchema(schema, last).setDefaultPartitionSpec(scratch.metadata.spec())
    # A table cannot be downgraded.
    builder.upgradeFormatVersion(max(scratch.format_version, current.format_version))
    operations.commit(before, builder.build())

    spec = transaction.table().spec()
    for branch in (HIDDEN, MAIN):
        if scratch.branch(branch) is not None:
            append = transaction.newFastAppend().toBranch(branch)
            for file in copied_files(scratch, branch, spec):
                append.appendFile(file)
            append.commit()

    after = operations.current()
    builder = catalog.builder_from(after)
    others = [int(other.specId()) for other in after.specs() if other.specId() != spec.specId()]
    if others:
        # Their columns may no longer exist.
        removed = getattr(jvm.org.apache.iceberg, "MetadataUpdate$RemovePartitionSpecs")
        removed(catalog.set(others)).applyTo(builder)
    properties = scratch.properties
    builder.removeProperties(catalog.set(current.properties.keys() - properties.keys()))
    return builder.setProperties(catalog.map(properties))


def _with_replacement(table: IcebergTable, began_micros: int) -> str:
    replacements = [*replacements_of(table), Replacement(began_micros, now_micros())]
    if len(replacements) > _REPLACEMENTS:
        # After one is dropped, its files count as those of the one before, and are kept longer.
        half = len(replacements) // 2
        replacements = replacements[:half:2] + replacements[half:]
    return " ".join(f"{item.began_micros}:{item.ended_micros}" for item in replacements)


@contextmanager
def _scratch_table(
    lake: Lake,
    columns: Sequence[Column],
    query: str,
    *,
    location: str | None,
    properties: Mapping[str, str],
    replaced: IcebergTable | None = None,
) -> Iterator[IcebergTable]:
    """Yield a scratch table with a query's rows; its name is free again when the block ends.

    Args:
        columns: its columns, in order.
        query: SQL that returns these columns, by name.
        location: its folder, or None if the catalog chooses it.
        properties: its properties.
        replaced: the table that it will replace, or None.
    """
    hidden = TableName(SCRATCH_SCHEMA, stage_name())
    try:
        lake.catalog.create(
            hidden,
            columns,
            location=location,
            # The table's own properties override the defaults for new tables.
            properties={**properties_of(columns), **properties, **column_properties(columns)},
            partition_by=partitioning_of(columns),
            schema=None if replaced is None else schema_to_replace(replaced, columns),
        )
        lake.spark.sql(f"INSERT INTO {CATALOG}.{hidden.sql} BY NAME {query}")
        reach("rewrite.written")
        scratch = lake.catalog.load(hidden)
        expect_stored(scratch, scratch.snapshot_id, since=None)
        yield scratch
    finally:
        # Files in another table's folder may already belong to that table; maintenance finds those
        # that do not. A separate folder is removed, unless the table was renamed to its final name.
        drop_scratch(lake, hidden, purge=not is_in_table_folder(location))
