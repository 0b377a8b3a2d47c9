"""Table swaps: tables written to a scratch table and published whole, as new or over an old one.

The rows are written into a scratch table that users do not see. One step of the catalog then
renames it, or makes its metadata the metadata of an existing table (a compare-and-set). Readers see
the table before or after. A crash leaves a scratch table, which the next change of any table, or
`maintain`, drops.

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
from chronolake.config import CatalogKind
from chronolake.core.create import (
    check_columns,
    column_properties,
    format_version,
    partitioning_of,
    properties_of,
)
from chronolake.core.omitted_columns import OMITTED_PROPERTY
from chronolake.core.publish import expect_unmoved, publish, publishing_properties
from chronolake.core.rewrite import is_in_table_folder, new_subfolder
from chronolake.core.staging import stage_name
from chronolake.errors import LakeError
from chronolake.failpoints import reach
from chronolake.iceberg import COLUMNS_PROPERTY, SCRATCH_SCHEMA, IcebergTable
from chronolake.session import CATALOG
from chronolake.shared_storage import expect_stored
from chronolake.types import HISTORY_SINCE_PROPERTY, TableName, now_micros

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
        SchemaError: the columns are not valid for a table, or the schema is reserved.
        TableExistsError: a table of this name exists; it is unchanged.
    """
    expect_unreserved(name)
    check_columns(name, columns)
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
        SchemaError: the columns are not valid for a table.
        CommitConflictError: another writer published meanwhile; nothing has changed.
        CommitUnknownError: the catalog's response was lost.
    """
    check_columns(table.name, columns)
    expect_replaceable(lake, table.name)
    location, began = new_subfolder(table), now_micros()
    changed = {**lasting_properties(lake, table), **properties}
    with _scratch_table(lake, columns, query, location=location, properties=changed) as scratch:
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


def expect_replaceable(lake: Lake, name: TableName) -> None:
    """Refuse to replace a table as a whole if the catalog cannot do so in one step.

    Raises:
        LakeError: the catalog is a REST catalog.
    """
    if lake.config.catalog.kind is CatalogKind.REST:
        # A REST client sends individual changes of metadata: none of these would arrive.
        raise LakeError(
            "Tables in a REST catalog cannot be replaced as a whole.",
            table=str(name),
            hint="Use a SQLite or PostgreSQL catalog to switch modes.",
        )


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
        scratch: a table in a subfolder of that table's folder (`rewrite.new_subfolder`).
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
        builder = current.catalog.builder_from(scratch.metadata)
        builder.assignUUID(current.metadata.uuid())
        builder.setProperties(
            current.catalog.map({REPLACED_PROPERTY: _with_replacement(current, began_micros)})
        )
        return builder.setLocation(current.location)

    reach("rewrite.before-commit")
    # The property protects readers: files of the old snapshots are orphans immediately, and
    # maintenance must not remove them yet.
    publish(table.reload(), build_replacement, {})
    reach("rewrite.after-commit")


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
    location: str,
    properties: Mapping[str, str],
) -> Iterator[IcebergTable]:
    """Yield a scratch table with a query's rows; its name is free again when the block ends."""
    hidden = TableName(SCRATCH_SCHEMA, stage_name())
    try:
        lake.catalog.create(
            hidden,
            columns,
            location=location,
            # The table's own properties override the defaults for new tables.
            properties={**properties_of(columns), **properties, **column_properties(columns)},
            partition_by=partitioning_of(columns),
        )
        lake.spark.sql(f"INSERT INTO {CATALOG}.{hidden.sql} BY NAME {query}")
        reach("rewrite.written")
        scratch = lake.catalog.load(hidden)
        expect_stored(scratch, scratch.snapshot_id, since=None)
        yield scratch
    finally:
        # Files in another table's folder may already belong to that table; maintenance finds those
        # that do not. A separate folder is removed, unless the table was renamed to its final name.
        lake.catalog.drop(hidden, purge=not is_in_table_folder(location))
