"""Tables made aside of a query's rows, then published whole: as new tables, or in a table's place.

The rows are written into a table that no user sees. One step of the catalog then gives it its name,
or makes its metadata the metadata of a table that exists (a compare-and-set). Readers see the table
before or after; a crash leaves a hidden table, which the next change of any table, or `maintain`,
drops.

In a table's place, the new metadata begins anew: it knows none of the table's old snapshots and
partition specs. Iceberg cannot delete rows from a table that was once partitioned by a column which
it has no longer. The table keeps its identity, its folder and its properties; the files of the old
snapshots are orphans in that folder, which maintenance removes after their grace period.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chronolake.cancellation import raise_if_cancelled
from chronolake.change_set import expect_unreserved
from chronolake.config import CatalogKind
from chronolake.core.create import check_columns, column_properties, partitioning_of, properties_of
from chronolake.core.omitted_columns import OMITTED_PROPERTY
from chronolake.core.publish import expect_unmoved, publish, publishing_marks
from chronolake.core.rewrite import folder_in, in_a_table
from chronolake.core.staging import stage_name
from chronolake.errors import LakeError
from chronolake.failpoints import reach
from chronolake.iceberg import COLUMNS_PROPERTY, SCRATCH_SCHEMA, IcebergTable
from chronolake.presence import expect_stored
from chronolake.session import CATALOG
from chronolake.types import HISTORY_SINCE_PROPERTY, TableName, now_micros

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from chronolake.lake import Lake
    from chronolake.types import Column

#: Table property: when the table was replaced as a whole. For each time `begin:end`, in
#: microseconds since 1970: before the first file of the new one was written, and when it took the
#: old one's place.
REPLACED_PROPERTY: Final = "chronolake.replaced-at"
#: So many times are remembered; of more, some between are forgotten.
_REPLACEMENTS: Final = 200

#: Properties that tell about the rows a table had, and not about the table.
_OF_ROWS: Final = {COLUMNS_PROPERTY, HISTORY_SINCE_PROPERTY, OMITTED_PROPERTY}
_METRICS: Final = "write.metadata.metrics.column."


def publish_new(
    lake: Lake,
    name: TableName,
    columns: Sequence[Column],
    query: str,
    properties: Mapping[str, str],
) -> None:
    """Make a table of a query's rows. It appears with all of them, or not at all.

    Args:
        lake: the lake.
        name: a name that no table has.
        columns: the new table's columns, in order.
        query: SQL that gives these columns, by name.
        properties: further properties of the table.

    Raises:
        SchemaError: the columns make no table, or the schema is reserved.
        TableExistsError: a table of the name exists; it is untouched.
    """
    expect_unreserved(name)
    check_columns(name, columns)
    lake.catalog.ensure_schema(name.schema)
    location, marks = lake.new_location(), {**properties, **publishing_marks()}
    with _aside(lake, columns, query, location=location, properties=marks) as made:
        reach("rewrite.before-commit")
        raise_if_cancelled()
        lake.catalog.rename(made.name, name)
        reach("rewrite.after-commit")


def publish_over(
    lake: Lake,
    table: IcebergTable,
    columns: Sequence[Column],
    query: str,
    properties: Mapping[str, str],
) -> None:
    """Give a table other columns, rows and partitions, in one step.

    Args:
        lake: the lake.
        table: the state that the query reads.
        columns: the columns afterwards, in order.
        query: SQL that gives these columns, by name: all rows of the table afterwards.
        properties: properties that change.

    Raises:
        SchemaError: the columns make no table.
        CommitConflictError: another writer published meanwhile; nothing has changed.
        CommitUnknownError: the catalog's answer was lost.
    """
    check_columns(table.name, columns)
    expect_replaceable(lake, table.name)
    location, began = folder_in(table), now_micros()
    changed = {**lasting_properties(table), **properties}
    with _aside(lake, columns, query, location=location, properties=changed) as made:
        take_place(table, made, began_micros=began)


@dataclass(frozen=True)
class Replacement:
    """A table that took another one's place.

    Attributes:
        began_micros: before the first of its files was written, in microseconds since 1970.
        ended_micros: when the other one's files became orphans.
    """

    began_micros: int
    ended_micros: int


def replacements_of(table: IcebergTable) -> list[Replacement]:
    """When a table was replaced as a whole, the last time last."""
    reported = (one.split(":") for one in (table.property_of(REPLACED_PROPERTY) or "").split())
    return [Replacement(int(one[0]), int(one[-1])) for one in reported]


def expect_replaceable(lake: Lake, name: TableName) -> None:
    """Refuse to replace a table as a whole where the catalog cannot do that in one step.

    Raises:
        LakeError: it is a REST catalog.
    """
    if lake.config.catalog.kind is CatalogKind.REST:
        # It sends changes of metadata and not metadata: none of these would arrive.
        raise LakeError(
            "A table in a REST catalog cannot be replaced as a whole yet.",
            table=str(name),
            hint="Keep the lake in a SQLite or PostgreSQL catalog to switch modes.",
        )


def lasting_properties(table: IcebergTable) -> dict[str, str]:
    """The properties of a table that do not tell about the rows it has."""
    return {
        key: value
        for key, value in table.properties.items()
        if key not in _OF_ROWS and not key.startswith(_METRICS)
    }


def take_place(
    table: IcebergTable,
    made: IcebergTable,
    *,
    began_micros: int,
    expect: Callable[[IcebergTable], None] | None = None,
) -> None:
    """Give a table the metadata of one that was made aside, in one step.

    Args:
        table: the state that the other was made from.
        made: a table in a folder of that table's (`rewrite.folder_in`).
        began_micros: a time before any of its files was written, in microseconds since 1970.
        expect: gets the table as it is when the other takes its place, and raises if that must not
            be; by default it must be the state that the other was made from.

    Raises:
        CommitConflictError: another writer published meanwhile; nothing has changed.
        CommitUnknownError: the catalog's answer was lost.
    """

    def replaced(current: IcebergTable) -> Any:
        if expect is None:
            expect_unmoved(table, current)
        else:
            expect(current)
        builder = current.catalog.builder_from(made.metadata)
        builder.assignUUID(current.metadata.uuid())
        builder.setProperties(
            current.catalog.map({REPLACED_PROPERTY: _with_replacement(current, began_micros)})
        )
        return builder.setLocation(current.location)

    reach("rewrite.before-commit")
    # Files of the old snapshots are orphans at once: maintenance must not take them from readers.
    publish(table.refreshed(), replaced, {})
    reach("rewrite.after-commit")


def _with_replacement(table: IcebergTable, began_micros: int) -> str:
    every = [*replacements_of(table), Replacement(began_micros, now_micros())]
    if len(every) > _REPLACEMENTS:
        # Where one is forgotten, its files count as those of the one before, and stay longer.
        half = len(every) // 2
        every = every[:half:2] + every[half:]
    return " ".join(f"{one.began_micros}:{one.ended_micros}" for one in every)


@contextmanager
def _aside(
    lake: Lake,
    columns: Sequence[Column],
    query: str,
    *,
    location: str,
    properties: Mapping[str, str],
) -> Iterator[IcebergTable]:
    """A hidden table of a query's rows; its name is free again when the block ends."""
    hidden = TableName(SCRATCH_SCHEMA, stage_name())
    try:
        lake.catalog.create(
            hidden,
            columns,
            location=location,
            # What a table has of its own comes over what a new one gets.
            properties={**properties_of(columns), **properties, **column_properties(columns)},
            partition_by=partitioning_of(columns),
        )
        lake.spark.sql(f"INSERT INTO {CATALOG}.{hidden.sql} BY NAME {query}")
        reach("rewrite.written")
        made = lake.catalog.load(hidden)
        expect_stored(made, made.snapshot_id, since=None)
        yield made
    finally:
        # In another table's folder, the files may be that table's by now, and maintenance finds
        # those that are nobody's. A folder of its own goes, unless the table got its name.
        lake.catalog.drop(hidden, purge=not in_a_table(location))
