"""Pipeline tables: their creation, system columns and layout.

A pipeline table is filled from the record versions of a source. In addition to the source's columns
it has system columns: those of its mode, `_fivetran_synced`, and `_chronolake_version`, which
identifies the row's version in the source (`core/scd2_sql.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chronolake.core.create import (
    check_columns,
    column_properties,
    format_version,
    partitioning_of,
    properties_of,
)
from chronolake.core.row_hash import HASHED_PROPERTY, property_for
from chronolake.core.scd2_sql import Layout, own_start, time_in
from chronolake.core.sql import column_list
from chronolake.core.table_swap import schema_to_replace
from chronolake.description import describe_loaded
from chronolake.errors import BatchError, LakeError, SchemaError
from chronolake.failpoints import reach
from chronolake.iceberg import HIDDEN
from chronolake.session import CATALOG
from chronolake.types import (
    ACTIVE,
    DELETED,
    END,
    EPSILON_PROPERTY,
    HASH,
    START,
    SYNCED,
    VERSION,
    Column,
    ColumnType,
    Kind,
    Mode,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from chronolake.description import TableDescription
    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake
    from chronolake.types import TableName

#: The types of all system columns that pipeline tables can have.
SYSTEM_COLUMNS: Final = {
    START: Kind.UTC_DATETIME,
    END: Kind.UTC_DATETIME,
    ACTIVE: Kind.BOOLEAN,
    DELETED: Kind.BOOLEAN,
    SYNCED: Kind.UTC_DATETIME,
    VERSION: Kind.STRING,
    HASH: Kind.LONG,
}


def create_pipeline_table(
    lake: Lake,
    name: TableName,
    columns: Sequence[Column],
    *,
    mode: Mode,
    epsilon_micros: int,
    hashed: Sequence[Column] = (),
    properties: Mapping[str, str] | None = None,
    location: str | None = None,
    replaced: IcebergTable | None = None,
) -> None:
    """Create an empty pipeline table.

    Args:
        name: the table.
        columns: the source's columns, with the key; system columns are added.
        mode: the table's mode.
        epsilon_micros: microseconds between a version's end and the start of the next.
        hashed: the columns of each row's hash, by which rows are compared (`core/row_hash.py`); if
            empty, rows have no hash.
        properties: further properties of the table.
        location: its folder, by default a new one.
        replaced: the table that it will replace, or None.

    Raises:
        TableExistsError: the table exists; it is unchanged.
        SchemaError: the columns are not valid for a table.
    """
    layout = _layout(columns, mode, epsilon_micros)
    if not layout.key:
        raise SchemaError(
            "The table has no primary key, so its records cannot be identified.",
            table=str(name),
            hint="Name the columns that identify a record.",
        )
    all_columns = with_system_columns(columns, mode)
    of_hashes = {}
    if hashed:
        all_columns += (Column(HASH, ColumnType(SYSTEM_COLUMNS[HASH])),)
        of_hashes[HASHED_PROPERTY] = property_for(hashed)
    check_columns(name, all_columns)
    lake.catalog.create(
        name,
        all_columns,
        location=location or lake.new_location(),
        properties={
            **properties_of(all_columns),
            **format_version(lake, name),
            **(properties or {}),
            **of_hashes,
            **column_properties(all_columns),
            EPSILON_PROPERTY: str(epsilon_micros),
        },
        partition_by=partitioning_of(all_columns),
        schema=None if replaced is None else schema_to_replace(replaced, all_columns),
    )
    reach("create.committed")
    ensure_hidden(lake.catalog.load(name))


def ensure_hidden(table: IcebergTable) -> None:
    """Create the branch of hidden rows on a table without rows, if a crash left it without."""
    if table.branch(HIDDEN) is None:
        if table.snapshot_id is not None:
            raise LakeError(
                f"The table's branch {HIDDEN} is missing. It contains rows that later writes need.",
                table=str(table.name),
                hint="Rebuild the table from its raw lake with `chronolake rebuild`.",
            )
        # The branch of an empty table gets an empty snapshot, with which the hidden rows begin.
        table.java.manageSnapshots().createBranch(HIDDEN).commit()


def with_system_columns(columns: Sequence[Column], mode: Mode) -> tuple[Column, ...]:
    """Return the columns of a source, and the system columns of a table in this mode."""
    layout = _layout(columns, mode, 0)
    system = (
        Column(
            name,
            ColumnType(SYSTEM_COLUMNS[name]),
            # The key of a history table distinguishes its versions.
            primary_key=name == START,
        )
        for name in layout.system
    )
    return (*columns, *system)


def _layout(columns: Sequence[Column], mode: Mode, epsilon: int) -> Layout:
    return Layout(
        key=tuple(column.name for column in columns if column.primary_key),
        data=tuple(column.name for column in columns),
        mode=mode,
        epsilon=epsilon,
    )


def purges_of(spark: SparkSession, table: IcebergTable) -> DataFrame:
    """Return the purges that are stored in a table.

    Returns:
        The key's columns, and `at` (bigint): the time until which the record was purged, in
        microseconds since 1970.
    """
    key = column_list(layout_of(describe_loaded(table)).key)
    return spark.sql(
        f"SELECT {key}, greatest({time_in(VERSION, 0)}, {time_in(VERSION, 2)}) AS at "
        f"FROM {CATALOG}.{table.name.sql} VERSION AS OF '{HIDDEN}' "
        f"WHERE {time_in(VERSION, 2)} IS NOT NULL"
    )


def unmerged_versions(spark: SparkSession, table: IcebergTable) -> DataFrame:
    """Return the versions of a history table as they are without merging (`Layout.tracked`).

    Returns:
        The table's columns, not in its order, with the versions' own times.
    """
    start = own_start(VERSION, f"unix_micros({START})")
    branches = (
        f"SELECT * EXCEPT ({START}), timestamp_micros({start}) AS {START} "
        f"FROM {table.sql}{branch} WHERE {START} IS NOT NULL"
        for branch in ("", f" VERSION AS OF '{HIDDEN}'")
    )
    return spark.sql(" UNION ALL ".join(branches))


def layout_of(description: TableDescription) -> Layout:
    """Return the layout of a table that `create_pipeline_table` created.

    Raises:
        BatchError: the table is not a pipeline table.
    """
    if VERSION not in description.by_name:
        raise BatchError(
            f"The table has no {VERSION}: it is not a pipeline table.",
            table=str(description.name),
            hint="Choose another table for the stream.",
        )
    data = [column for column in description.columns if column.name not in SYSTEM_COLUMNS]
    key = description.record_key
    return Layout(key, tuple(column.name for column in data), description.mode, description.epsilon)
