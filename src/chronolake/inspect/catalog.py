"""The lake's tables without Spark: names from the catalog, metadata through PyIceberg.

SQLite and PostgreSQL catalogs are queried directly: PyIceberg's SQL catalog splits and trims names,
and a schema here may contain dots and spaces. Nothing is ever written; a missing lake is not
created.
"""

from __future__ import annotations

import json
import sqlite3
import warnings
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from chronolake import rest_catalog
from chronolake.config import CatalogKind
from chronolake.errors import (
    LakeError,
    LakeLocationError,
    SchemaError,
    TableNotFoundError,
)
from chronolake.extras import POSTGRESQL_CATALOG, require
from chronolake.formatting import unknown_table_hint
from chronolake.location import plain
from chronolake.types import (
    START,
    Column,
    ColumnType,
    Kind,
    Mode,
    TableName,
    mode_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

    from chronolake.config import LakeConfig

#: The name of the Iceberg catalog that contains a lake's tables.
CATALOG: Final = "chronolake"
_COLUMNS: Final = "chronolake.columns"
_BUSY_SECONDS: Final = 30
#: Number of attempts to load a table that is changed at the same time.
_MAX_ATTEMPTS: Final = 3

# The types shown for columns that other engines have written.
_KIND_BY_TYPE: Final = {
    "boolean": Kind.BOOLEAN,
    "int": Kind.INT,
    "long": Kind.LONG,
    "float": Kind.FLOAT,
    "double": Kind.DOUBLE,
    "date": Kind.NAIVE_DATE,
    "timestamp": Kind.NAIVE_DATETIME,
    "timestamptz": Kind.UTC_DATETIME,
    "binary": Kind.BINARY,
}


@dataclass(frozen=True)
class CatalogTable:
    """A table's state at one time, with its declared columns.

    Attributes:
        name: schema and table.
        columns: the columns in table order, with declared types; inferred for columns of other
            engines.
        iceberg: PyIceberg's table: its metadata, and its scans.
    """

    name: TableName
    columns: tuple[Column, ...]
    iceberg: Table

    @property
    def mode(self) -> Mode:
        """Return the mode: live, soft-delete or history."""
        return mode_of(column.name for column in self.columns)

    @property
    def key(self) -> tuple[str, ...]:
        """Return the columns that identify records: the primary key without a version's start."""
        named = (column.name for column in self.columns if column.primary_key)
        history = self.mode is Mode.HISTORY
        return tuple(name for name in named if not (history and name == START))


def check(config: LakeConfig) -> None:
    """Raise an error if the lake does not exist.

    Raises:
        LakeError: the lake's SQLite catalog is missing. Other catalogs are not checked.
    """
    if config.catalog.kind is CatalogKind.SQLITE and not config.catalog_file.is_file():
        raise LakeError(
            f"There is no lake in {config.path}.",
            hint="`chronolake sync`, `chronolake serve` and Lake.open create it. For another lake, "
            "set --lake to its folder.",
        )


def names(config: LakeConfig) -> list[TableName]:
    """Return the names of all tables of the lake, sorted.

    Raises:
        LakeError: the lake does not exist, or its catalog does not respond.
    """
    if config.catalog.kind is CatalogKind.REST:
        return sorted(rest_catalog.list_tables(config))
    return sorted(TableName(schema, table) for schema, table, _ in _query_catalog(config, None))


def metadata_locations(config: LakeConfig) -> dict[TableName, str | None]:
    """Return the location of each table's current metadata; None if the catalog does not list it.

    A table whose location is the same as before has not changed.

    Raises:
        LakeError: the lake does not exist, or its catalog does not respond.
    """
    if config.catalog.kind is CatalogKind.REST:
        return dict.fromkeys(sorted(rest_catalog.list_tables(config)))
    return {
        TableName(schema, table): location
        for schema, table, location in _query_catalog(config, None)
    }


def look_up_at(config: LakeConfig, name: TableName, location: str) -> CatalogTable:
    """Return a table's metadata at a location that `metadata_locations` returned.

    Raises:
        LakeError: the metadata cannot be read.
    """
    return _with_declared_columns(name, _load_metadata(config, name, location))


def look_up(config: LakeConfig, name: TableName) -> CatalogTable:
    """Return a table's current metadata.

    Raises:
        LakeError: the lake does not exist, or its catalog or the table's metadata cannot be read.
        TableNotFoundError: the table does not exist.
    """
    if config.catalog.kind is CatalogKind.REST:
        table = rest_catalog.find_table(config, rest_catalog.open_catalog(config), name)
        if table is None:
            raise missing(config, name)
        return _with_declared_columns(name, table)
    for _, _, location in _query_catalog(config, name):
        table = _load_current(config, name, location)
        if table is not None:
            return _with_declared_columns(name, table)
    raise missing(config, name)


def look_up_all(config: LakeConfig) -> list[CatalogTable]:
    """Return the current metadata of every table of the lake, sorted by name.

    Raises:
        LakeError: the lake does not exist, or its catalog or a table's metadata cannot be read.
    """
    if config.catalog.kind is CatalogKind.REST:
        catalog = rest_catalog.open_catalog(config)
        loaded = {name: rest_catalog.find_table(config, catalog, name) for name in names(config)}
        return [_with_declared_columns(name, table) for name, table in loaded.items() if table]
    rows = sorted(_query_catalog(config, None))
    named = ((TableName(schema, table), location) for schema, table, location in rows)
    found = ((name, _load_current(config, name, location)) for name, location in named)
    return [_with_declared_columns(name, table) for name, table in found if table is not None]


def missing(config: LakeConfig, name: TableName) -> TableNotFoundError:
    """Return the error for a missing table, with a hint that names the most similar one."""
    return TableNotFoundError(
        "The lake has no such table.",
        hint=unknown_table_hint(str(name), map(str, names(config))),
        table=str(name),
    )


def _query_catalog(config: LakeConfig, name: TableName | None) -> Sequence[tuple[str, str, str]]:
    """Return schema, table and metadata location of one table, or of all, from an SQL catalog."""
    statement = "SELECT * FROM iceberg_tables WHERE catalog_name = {0}"
    values: tuple[str, ...] = (CATALOG,)
    if name is not None:
        statement += " AND table_namespace = {0} AND table_name = {0}"
        values = (CATALOG, name.schema, name.table)
    found = _query(config, statement, values)
    if name is None and not found:
        from chronolake.identity import raise_if_unlisted  # noqa: PLC0415 - SQLAlchemy is slow

        raise_if_unlisted(config)
    # Catalogs of the first schema version have no `iceberg_type`; in later ones it may be null.
    return [
        (row["table_namespace"], row["table_name"], row["metadata_location"])
        for row in found
        if row.get("iceberg_type") in {None, "TABLE"} and row["metadata_location"]
    ]


def metadata_in_database(config: LakeConfig, name: TableName) -> str | None:
    """Return the metadata location of a table that any catalog of a database lists, or None.

    Args:
        config: a configuration whose catalog is a SQLite or PostgreSQL database.
        name: the table.

    Raises:
        LakeError: the database does not respond, or several of its catalogs list such a table.
    """
    statement = "SELECT * FROM iceberg_tables WHERE table_namespace = {0} AND table_name = {0}"
    found = _query(config, statement, (name.schema, name.table))
    tables = [row for row in found if row.get("iceberg_type") in {None, "TABLE"}]
    if len(tables) > 1:
        raise LakeError(
            f"Several catalogs of the database {config.catalog.label} have a table {name}.",
            hint="Read the table by the folder in which it is stored.",
        )
    return tables[0]["metadata_location"] if tables else None


@dataclass(frozen=True)
class OutsideTables:
    """Tables whose metadata is located outside the opened lake, because it was copied or moved.

    Attributes:
        count: the number of these tables.
        tables: the number of all tables of the lake.
        name: the first of these tables.
        folder: its folder.
    """

    count: int
    tables: int
    name: TableName
    folder: str


def tables_outside(config: LakeConfig) -> OutsideTables | None:
    """Return the tables that are located outside the opened lake, or None if all are inside.

    Tables of a REST catalog, which is slow, are not checked.

    Raises:
        LakeError: the lake does not exist, or its catalog does not respond.
    """
    if config.catalog.kind is CatalogKind.REST:
        return None
    found = {name: path for name, path in metadata_locations(config).items() if path is not None}
    outside = sorted(name for name, path in found.items() if not config.contains(path))
    if not outside:
        return None
    folder = plain(found[outside[0]]).rpartition("/metadata/")[0]
    return OutsideTables(len(outside), len(found), outside[0], folder)


def _query(config: LakeConfig, statement: str, values: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the rows of a statement in which {0} is each of some values."""
    if config.catalog.kind is CatalogKind.SQLITE:
        return _query_sqlite(config, statement.format("?"), values)
    return _query_postgresql(config, statement.format("%s"), values)


def _query_sqlite(
    config: LakeConfig, statement: str, values: tuple[str, ...]
) -> list[dict[str, Any]]:
    file = config.catalog_file
    check(config)
    try:
        uri = f"file:{quote(str(file))}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(statement, values)]
    except sqlite3.Error as failure:
        if "no such table" in str(failure):  # an empty catalog
            return []
        raise LakeError(
            f"The lake's catalog {file} cannot be read: {failure}.",
            hint="Check that the file is a lake's catalog and can be read.",
        ) from failure


def _query_postgresql(
    config: LakeConfig, statement: str, values: tuple[str, ...]
) -> list[dict[str, Any]]:
    require("postgres", POSTGRESQL_CATALOG)
    import psycopg  # noqa: PLC0415 - only some lakes have such a catalog
    from psycopg.rows import dict_row  # noqa: PLC0415

    try:
        with psycopg.connect(
            config.catalog.uri or "", autocommit=True, connect_timeout=10, row_factory=dict_row
        ) as connection:
            return connection.execute(statement.encode(), values).fetchall()
    except psycopg.errors.UndefinedTable:
        return []
    except psycopg.Error:
        # Not chained: the driver's message may contain parts of the address.
        raise LakeError(
            f"The lake's catalog {config.catalog.label} cannot be read.",
            hint="Check lake.catalog.uri, and that the server is running and accepts the user.",
        ) from None


def _load_current(config: LakeConfig, name: TableName, location: str) -> Table | None:
    """Return a table's current metadata, or None if it was dropped since its location was read."""
    for _ in range(_MAX_ATTEMPTS):
        try:
            return _load_metadata(config, name, location)
        except LakeError:
            locations = [location for _, _, location in _query_catalog(config, name)]
            if not locations:
                return None
            (location,) = locations
    return _load_metadata(config, name, location)


def _load_metadata(config: LakeConfig, name: TableName, location: str) -> Table:
    from pyiceberg.table import StaticTable  # noqa: PLC0415 - slow to import

    try:
        return StaticTable.from_metadata(location, config.pyiceberg_properties)
    except Exception as failure:  # damaged files raise any error
        if not config.contains(location):
            raise LakeLocationError(
                f"The table is stored outside the opened lake in {config.path}, and its metadata "
                f"cannot be read: {type(failure).__name__}.",
                hint="The lake was copied or moved, or is mounted at another path. Run `chronolake "
                "adopt`, or open the lake at its original path.",
                table=str(name),
                file=location,
            ) from failure
        raise LakeError(
            f"The table's metadata cannot be read: {type(failure).__name__}.",
            hint="Check that the file exists, is complete and can be read. If it is damaged, "
            "restore it from a backup.",
            table=str(name),
            file=location,
        ) from failure


def _with_declared_columns(name: TableName, table: Table) -> CatalogTable:
    try:
        declared = {
            item["name"]: Column(
                item["name"],
                ColumnType(Kind(item["type"]), item.get("precision"), item.get("scale")),
                bool(item.get("primary_key", False)),
            )
            for item in json.loads(table.properties.get(_COLUMNS, "[]"))
        }
    except (ValueError, KeyError, TypeError, SchemaError) as failure:
        raise LakeError(
            f"The table's property {_COLUMNS} is not valid.",
            hint=f"Remove the property {_COLUMNS}, or restore its previous value.",
            table=str(name),
        ) from failure
    schema = table.schema()
    columns = (
        declared.get(field.name) or Column(field.name, _infer_type(schema, field.name))
        for field in schema.fields
    )
    return CatalogTable(name, tuple(columns), table)


def _infer_type(schema: Schema, name: str) -> ColumnType:
    with warnings.catch_warnings():
        kind = schema.find_type(name)
    if (precision := getattr(kind, "precision", None)) is not None:
        return ColumnType(Kind.DECIMAL, precision, getattr(kind, "scale", 0))
    return ColumnType(_KIND_BY_TYPE.get(str(kind), Kind.STRING))
