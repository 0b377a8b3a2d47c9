"""Tables that are filled from the record versions of a source: what they consist of.

Besides the source's columns they have system columns: those of their mode, `_fivetran_synced`, and
`_chronolake_version`, which tells what version of the source a row is (`core/scd2_sql.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chronolake.core.create import check_columns, column_properties, partitioning_of, properties_of
from chronolake.core.row_hash import HASHED_PROPERTY, property_for
from chronolake.core.scd2_sql import Layout, time_in
from chronolake.core.sql import listed
from chronolake.description import describe_loaded
from chronolake.errors import BatchError, LakeError, SchemaError
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

#: The columns that such tables have besides the source's, by their mode.
SYSTEM_COLUMNS: Final = {
    START: Kind.UTC_DATETIME,
    END: Kind.UTC_DATETIME,
    ACTIVE: Kind.BOOLEAN,
    DELETED: Kind.BOOLEAN,
    SYNCED: Kind.UTC_DATETIME,
    VERSION: Kind.STRING,
    HASH: Kind.LONG,
}


def create_pulled(
    lake: Lake,
    name: TableName,
    columns: Sequence[Column],
    *,
    mode: Mode,
    epsilon_micros: int,
    hashed: Sequence[Column] = (),
    properties: Mapping[str, str] | None = None,
    location: str | None = None,
) -> None:
    """Create an empty table that record versions are applied to.

    Args:
        lake: the lake.
        name: the table.
        columns: the columns that the source gives, with the key; the table gets system columns of
            its own.
        mode: the table's mode.
        epsilon_micros: microseconds between a version's end and the start of the next.
        hashed: the columns that a hash of each row is made of, to compare it by
            (`core/row_hash.py`); none: rows have no hash.
        properties: further properties of the table.
        location: its folder, by default a new one.

    Raises:
        TableExistsError: the table exists; it is untouched.
        SchemaError: the columns make no table.
    """
    layout = _layout(columns, mode, epsilon_micros)
    if not layout.key:
        raise SchemaError(
            "The table has no primary key, so its records cannot be told apart.",
            table=str(name),
            hint="Name the columns that identify a record.",
        )
    whole = with_system_columns(columns, mode)
    of_hashes = {}
    if hashed:
        whole += (Column(HASH, ColumnType(SYSTEM_COLUMNS[HASH])),)
        of_hashes[HASHED_PROPERTY] = property_for(hashed)
    check_columns(name, whole)
    lake.catalog.create(
        name,
        whole,
        location=location or lake.new_location(),
        properties={
            **properties_of(whole),
            **(properties or {}),
            **of_hashes,
            **column_properties(whole),
            EPSILON_PROPERTY: str(epsilon_micros),
        },
        partition_by=partitioning_of(whole),
    )
    ensure_hidden(lake.catalog.load(name))


def ensure_hidden(table: IcebergTable) -> None:
    """Give a table without rows the branch of hidden rows, if a crash left it without."""
    if table.branch(HIDDEN) is None:
        if table.snapshot_id is not None:
            raise LakeError(
                f"The table has lost its branch {HIDDEN}, and with it what later writes must know.",
                table=str(table.name),
                hint="Make it anew of its raw lake: `chronolake rebuild`.",
            )
        # An empty table's branch gets an empty snapshot, which is what the hidden rows begin with.
        table.java.manageSnapshots().createBranch(HIDDEN).commit()


def with_system_columns(columns: Sequence[Column], mode: Mode) -> tuple[Column, ...]:
    """The columns of a source, and those that a table of a mode has besides."""
    layout = _layout(columns, mode, 0)
    system = (
        Column(
            name,
            ColumnType(SYSTEM_COLUMNS[name]),
            # A history table's key tells its versions apart.
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
    """The purges that a table remembers.

    Returns:
        The key's columns, and `at` (bigint): until when the record was purged, in microseconds
        since 1970.
    """
    key = listed(layout_of(describe_loaded(table)).key)
    return spark.sql(
        f"SELECT {key}, greatest({time_in(VERSION, 0)}, {time_in(VERSION, 2)}) AS at "
        f"FROM {CATALOG}.{table.name.sql} VERSION AS OF '{HIDDEN}' "
        f"WHERE {time_in(VERSION, 2)} IS NOT NULL"
    )


def layout_of(description: TableDescription) -> Layout:
    """The layout of a table that was made by `create_pulled`.

    Raises:
        BatchError: the table was not made so.
    """
    if VERSION not in description.by_name:
        raise BatchError(
            f"The table has no {VERSION}: it is not filled from a source's record versions.",
            table=str(description.name),
            hint="Choose another table for the stream.",
        )
    data = [column for column in description.columns if column.name not in SYSTEM_COLUMNS]
    key = description.record_key
    return Layout(key, tuple(column.name for column in data), description.mode, description.epsilon)
