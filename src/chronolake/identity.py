"""The lake's identity and its recorded location, stored in the catalog's database.

Iceberg metadata contains absolute paths. A copied lake therefore points to the files of its
original: writing to the copy, or maintaining it, changes or deletes the original's files. So the
first write records the lake's location, and every process compares it with the opened location
before it writes. A lake that is older than this record gets one if all of its tables are inside it.

A REST catalog cannot store the record; there, only each table's own location is checked.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from chronolake import database
from chronolake.config import CatalogKind
from chronolake.errors import CommitConflictError, LakeLocationError, StorageError
from chronolake.location import is_same_place, local_path, plain
from chronolake.types import TableName

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from chronolake.config import LakeConfig
    from chronolake.object_store import BucketPath

_metadata: Final = sql.MetaData()
#: One row: the owner of the catalog. Later versions may add nullable columns.
_LAKE: Final = sql.Table(
    "chronolake_lake",
    _metadata,
    sql.Column("one", sql.Integer, primary_key=True),
    sql.Column("id", sql.String, nullable=False),
    sql.Column("folder", sql.String),
    sql.Column("warehouse", sql.String, nullable=False),
)
_TABLES: Final = sql.table(
    "iceberg_tables",
    sql.column("catalog_name"),
    sql.column("table_namespace"),
    sql.column("table_name"),
    sql.column("metadata_location"),
    sql.column("previous_metadata_location"),
)
_SCHEMAS: Final = sql.table(
    "iceberg_namespace_properties",
    sql.column("catalog_name"),
    sql.column("namespace"),
    sql.column("property_key"),
    sql.column("property_value"),
)
_CATALOG: Final = "chronolake"
#: Key of the advisory lock: any number that no other program is likely to lock.
_CLAIMING: Final = 0x6368726C616B
_METADATA_FILE: Final = re.compile(r"(\d+)-[0-9a-f-]+(?:\.gz)?\.metadata\.json(?:\.gz)?")
_NAMED: Final = 3
#: Databases limit the number of values in a query; for more tables, all are read.
_MAX_PARAMETERS: Final = 500


@dataclass(frozen=True)
class Identity:
    """The owner of a catalog.

    Attributes:
        lake_id: a random identity; it is a property of tables that were created or checked in the
            lake.
        folder: the lake's folder, or None: the catalog is a server's, and machines share it.
        warehouse: the root of the tables' storage.
    """

    lake_id: str
    folder: str | None
    warehouse: str


def identity_of(config: LakeConfig, lake_id: str = "") -> Identity:
    """Return the identity that a configuration would record."""
    is_file = config.catalog.kind is CatalogKind.SQLITE
    return Identity(lake_id, str(config.path) if is_file else None, config.warehouse_location)


def claim(config: LakeConfig) -> str | None:
    """Return the lake's identity if the lake may be written to at the opened location.

    The first call records the identity and the location.

    Returns:
        The identity; None with a REST catalog.

    Raises:
        LakeLocationError: the lake was copied or moved, the folder does not contain its tables, or
            its catalog is not the one that its tables were written with.
        LakeError: the catalog's database is not reachable or not writable.
    """
    database_of_catalog = config.catalog_database
    if database_of_catalog is None:
        return None
    try:
        return _recorded_id(config) or _record(config, database_of_catalog)
    except SQLAlchemyError as failure:
        raise database.connection_error(failure, "The lake's catalog") from failure


def expect_here(config: LakeConfig) -> None:
    """Raise as `claim` does, without recording anything.

    Raises:
        LakeLocationError: the lake was copied or moved, or the folder does not contain its tables.
        LakeError: the catalog's database is not reachable.
    """
    if config.catalog.kind is CatalogKind.REST:
        return
    try:
        engine = database.read_engine(config.catalog_database)
        if engine is None:
            return
        with engine.begin() as connection:
            recorded, tables = _read(connection), _tables(connection)
    except SQLAlchemyError as failure:
        raise database.connection_error(failure, "The lake's catalog") from failure
    if recorded is None or not is_here(config, recorded):
        raise_if_elsewhere(config, recorded, tables)
    _expect_tables_here(config, tables)


def _recorded_id(config: LakeConfig) -> str | None:
    """Return the recorded identity, or None if there is no record for the opened location."""
    engine = database.read_engine(config.catalog_database)
    if engine is None:
        return None
    with engine.begin() as connection:
        identity = _read(connection)
        if identity is None or not is_here(config, identity):
            return None
        _expect_tables_here(config, _tables(connection))
        return identity.lake_id


def _record(config: LakeConfig, database_of_catalog: str | Path) -> str:
    """Record the lake's location, or raise if it belongs to another one."""
    with database.write_engine(config, database_of_catalog).begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_CLAIMING)))
        recorded, tables = _read(connection), _tables(connection)
        if recorded is None or not is_here(config, recorded):
            raise_if_elsewhere(config, recorded, tables)
        _expect_tables_here(config, tables)
        identity = identity_of(config, recorded.lake_id if recorded and tables else uuid4().hex)
        _write(connection, identity)
        return identity.lake_id


def _write(connection: sql.Connection, identity: Identity) -> None:
    """Replace the record."""
    _metadata.create_all(connection)
    connection.execute(sql.delete(_LAKE))
    connection.execute(
        sql.insert(_LAKE).values(
            one=1, id=identity.lake_id, folder=identity.folder, warehouse=identity.warehouse
        )
    )


def metadata_files(
    config: LakeConfig, names: Collection[TableName] | None = None
) -> dict[TableName, str]:
    """Return the metadata file of every table, including scratch tables; empty for REST catalogs.

    Args:
        names: the tables to look up; None for all.

    Raises:
        LakeError: the catalog's database is not reachable.
    """
    try:
        engine = database.read_engine(config.catalog_database)
        if engine is None:
            return {}
        with engine.begin() as connection:
            return _tables(connection, names)
    except SQLAlchemyError as failure:
        raise database.connection_error(failure, "The lake's catalog") from failure


def recorded_tables(config: LakeConfig) -> tuple[Identity | None, dict[TableName, str]]:
    """Return a catalog's recorded identity, and the metadata file of every table and view.

    Raises:
        LakeError: the catalog's database is not reachable.
    """
    try:
        engine = database.read_engine(config.catalog_database)
        if engine is None:
            return None, {}
        with engine.begin() as connection:
            return _read(connection), _tables(connection)
    except SQLAlchemyError as failure:
        raise database.connection_error(failure, "The lake's catalog") from failure


def move_tables(
    config: LakeConfig,
    files: Mapping[TableName, tuple[str, str, str]],
    new_location: Callable[[str], str | None],
) -> None:
    """Change the metadata files of tables, and record the lake at the opened location.

    It is one transaction.

    Args:
        config: the opened lake.
        files: the metadata file of each table as the catalog has it, the new one, and that of the
            table's previous state.
        new_location: returns the new location of a file or folder; None for one outside.

    Raises:
        CommitConflictError: a table was changed meanwhile; nothing has changed.
        LakeError: the catalog's database is not reachable or not writable.
    """
    try:
        with database.write_engine(
            config, config.catalog.uri or config.catalog_file
        ).begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_CLAIMING)))
            for name, places in files.items():
                _move_table(connection, name, *places)
            _move_schemas(connection, new_location)
            recorded = _read(connection)
            _write(connection, identity_of(config, recorded.lake_id if recorded else uuid4().hex))
    except SQLAlchemyError as failure:
        raise database.connection_error(failure, "The lake's catalog") from failure


def _move_table(
    connection: sql.Connection, name: TableName, before: str, after: str, previous: str
) -> None:
    moved = connection.execute(
        sql.update(_TABLES)
        .where(
            _TABLES.c.catalog_name == _CATALOG,
            _TABLES.c.table_namespace == name.schema,
            _TABLES.c.table_name == name.table,
            _TABLES.c.metadata_location == before,
        )
        .values(metadata_location=after, previous_metadata_location=previous)
    )
    if moved.rowcount != 1:
        raise CommitConflictError(
            "The table was changed while the lake was adopted: the lake is in use.",
            table=str(name),
            hint="Stop everything that uses the lake, and run the command again.",
        )


def _move_schemas(connection: sql.Connection, new_location: Callable[[str], str | None]) -> None:
    """Change locations among the properties of schemas, which other engines may have set."""
    if not sql.inspect(connection).has_table(_SCHEMAS.name):
        return
    mine = _SCHEMAS.c.catalog_name == _CATALOG
    for row in connection.execute(sql.select(_SCHEMAS).where(mine)).all():
        new = new_location(row.property_value or "")
        if new is not None and new != row.property_value:
            connection.execute(
                sql.update(_SCHEMAS)
                .where(
                    mine,
                    _SCHEMAS.c.namespace == row.namespace,
                    _SCHEMAS.c.property_key == row.property_key,
                )
                .values(property_value=new)
            )


def is_here(config: LakeConfig, identity: Identity) -> bool:
    """Return whether a catalog's record is for the opened location."""
    here = identity_of(config)
    if identity.folder is not None and here.folder is not None:
        is_same = is_same_place(identity.folder, here.folder)
    else:
        is_same = identity.folder is here.folder
    return is_same and is_same_place(identity.warehouse, here.warehouse)


def root_of(metadata: str) -> str:
    """Return the warehouse of a metadata file `<warehouse>/tables/<id>/metadata/<file>`."""
    root = metadata.rsplit("/", 4)[0]
    return str(local_path(root) or root)


def raise_if_elsewhere(
    config: LakeConfig, recorded: Identity | None, tables: Mapping[TableName, str]
) -> None:
    """Raise if a catalog belongs to another lake than the opened one.

    Args:
        config: the opened lake.
        recorded: the catalog's record if it is for another location; None if there is no record.
        tables: the metadata files of the catalog's tables.

    Raises:
        LakeLocationError: writing would change another lake's files, or lose written data.
    """
    if not tables:
        raise_if_unlisted(config)
        return
    strays = [name for name, place in tables.items() if not config.contains(place)]
    here = identity_of(config)
    if recorded is None and not strays:
        return
    if recorded is None:
        place = root_of(tables[strays[0]])
        raise LakeLocationError(
            f"{_count_strays(strays, len(tables))} of this lake are located outside "
            f"{_location_of(here)}, for example below {place}: the lake was copied or moved, or "
            "its warehouse was changed. Writing would change files of another lake.",
            hint=_hint_for(place, config),
        )
    if here.folder and is_same_place(here.folder, recorded.folder or "") and not strays:
        # The same catalog file, with another warehouse for new tables.
        return
    raise LakeLocationError(
        f"This lake belongs in {_location_of(recorded)}, but was opened in "
        f"{_location_of(here)}: it was copied or moved, or is mounted elsewhere. "
        f"{_consequence(strays, len(tables))}",
        hint=_hint_for(recorded.folder or recorded.warehouse, config),
    )


def raise_if_unlisted(config: LakeConfig) -> None:
    """Raise if a catalog has no tables, but its warehouse contains files of tables.

    Raises:
        LakeLocationError: it does.
    """
    if config.catalog.kind is CatalogKind.REST or not _has_unlisted_tables(config):
        return
    what = "catalog.db" if config.catalog.kind is CatalogKind.SQLITE else config.catalog.label
    with_wal = (
        "If catalog.db was copied, copy catalog.db-wal with it from the same moment (or copy the "
        "lake while nothing runs); if it was restored, restore the whole folder."
        if config.catalog.kind is CatalogKind.SQLITE
        else "Check that lake.catalog.uri is the database with which the tables were written."
    )
    folder = f"{config.warehouse_location}/tables"
    raise LakeLocationError(
        f"The catalog {what} lists no tables, but {folder} contains the files of tables: it is not "
        "the catalog with which they were written, or it was copied without its write-ahead log.",
        hint=f"{with_wal} A second lake needs a warehouse of its own. If the tables are no longer "
        f"needed, move {folder} away.",
    )


def _has_unlisted_tables(config: LakeConfig) -> bool:
    """Return whether a table was written in the warehouse.

    Folders in which a table was only created do not count, because crashes leave them behind.
    """
    location = f"{config.warehouse_location}/tables"
    folder = local_path(location)
    places: Iterable[Path | BucketPath]
    # Credentials may be those of Java only.
    with suppress(StorageError):
        if folder is None:
            places = _bucket_path(config, location).folders()
        else:
            places = folder.iterdir() if folder.is_dir() else ()
        return any((newest_version(config, str(place)) or 0) > 0 for place in places)
    return False


def newest_version(config: LakeConfig, location: str) -> int | None:
    """Return the version of a table's newest metadata file; None if it is missing.

    Args:
        config: the opened lake.
        location: the table's folder.

    Raises:
        StorageError: an object store refuses, or does not respond.
    """
    return newest_of(files_of_metadata(config, location))


def newest_of(files: Iterable[str]) -> int | None:
    """Return the newest version of metadata files, by their names or locations; None if none is."""
    numbers = map(version_of, files)
    return max((number for number in numbers if number is not None), default=None)


def files_of_metadata(config: LakeConfig, location: str) -> Iterable[str]:
    """Return the names of the files in the folder of a table's metadata; empty if it is missing.

    Args:
        config: the opened lake.
        location: the table's folder.

    Raises:
        StorageError: an object store refuses, or does not respond.
    """
    folder = local_path(location)
    if folder is None:
        objects = _bucket_path(config, f"{location.rstrip('/')}/metadata").objects()
        return (stored.path.name for stored in objects)
    try:
        return [file.name for file in (folder / "metadata").iterdir()]
    except OSError:
        return ()


def _bucket_path(config: LakeConfig, location: str) -> BucketPath:
    from chronolake.object_store import BucketPath  # noqa: PLC0415 - slow to import

    return BucketPath(plain(location), config.object_storage)


def version_of(metadata_file: str) -> int | None:
    """Return the version in a metadata file's name or location; None for other files."""
    found = _METADATA_FILE.fullmatch(metadata_file.rpartition("/")[2])
    return None if found is None else int(found[1])


def _expect_tables_here(config: LakeConfig, tables: Mapping[TableName, str]) -> None:
    """Raise if the folder is at the recorded location, but contains none of the lake's tables."""
    local = [path for path in map(local_path, tables.values()) if path is not None]
    if not local or any(path.parent.is_dir() for path in local):
        return
    raise LakeLocationError(
        f"None of the lake's {len(local)} tables is in {config.warehouse_location} on this "
        "machine.",
        hint="Check that the right disk or share is mounted there. If the tables were moved, run "
        "`chronolake adopt`; otherwise restore the folder.",
    )


def _read(connection: sql.Connection) -> Identity | None:
    if not sql.inspect(connection).has_table(_LAKE.name):
        return None
    row = connection.execute(sql.select(_LAKE)).first()
    return None if row is None else Identity(row.id, row.folder, row.warehouse)


def _tables(
    connection: sql.Connection, names: Collection[TableName] | None = None
) -> dict[TableName, str]:
    """Return the metadata file of some tables, or of every one, including scratch tables."""
    if not sql.inspect(connection).has_table(_TABLES.name):
        return {}
    query = sql.select(_TABLES).where(_TABLES.c.catalog_name == _CATALOG)
    if names is not None and len(names) <= _MAX_PARAMETERS:
        query = query.where(
            _TABLES.c.table_namespace.in_({name.schema for name in names}),
            _TABLES.c.table_name.in_({name.table for name in names}),
        )
    rows = connection.execute(query)
    found = {
        TableName(row.table_namespace, row.table_name): row.metadata_location
        for row in rows
        if row.metadata_location
    }
    return found if names is None else {name: found[name] for name in names if name in found}


def _location_of(identity: Identity) -> str:
    if identity.folder is None or is_same_place(identity.folder, identity.warehouse):
        return identity.warehouse
    return f"{identity.folder} (warehouse {identity.warehouse})"


def _count_strays(strays: Sequence[TableName], tables: int) -> str:
    named = ", ".join(map(str, strays[:_NAMED])) + (", ..." if len(strays) > _NAMED else "")
    return f"{len(strays)} of {tables} tables ({named})"


def _consequence(strays: Sequence[TableName], tables: int) -> str:
    if not strays:
        return "Two lakes that write to the same tables would lose each other's changes."
    return (
        f"{_count_strays(strays, tables)} still have their files there, and writing would change "
        "them."
    )


def _hint_for(place: str, config: LakeConfig) -> str:
    """Return the hint for a lake that belongs to another location."""
    if local_path(place) is None:
        return (
            f"Open the lake with lake.warehouse: {place}, in its own folder and with its own "
            "catalog; or, if its files were moved, run `chronolake adopt`. For a second lake, use "
            "an empty folder and another warehouse, and run `chronolake sync` there."
        )
    return (
        f"Open the lake in {place}. If it was moved or restored here, run `chronolake adopt` once "
        f"nothing uses the original, or make {place} a symbolic link to {config.path}. For a "
        "second lake, use an empty folder and run `chronolake sync` there: a pipeline's tables are "
        "created again from its raw lake or source. Read-only commands work here on tables that "
        "are inside the folder."
    )
