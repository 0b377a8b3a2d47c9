"""Containment: checks that a process writes and deletes only inside the opened lake."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from chronolake import identity
from chronolake.errors import LakeLocationError
from chronolake.location import is_inside, local_path
from chronolake.session import CATALOG
from chronolake.shared_storage import expect_shared
from chronolake.types import LAKE_PROPERTY, literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from chronolake.config import LakeConfig
    from chronolake.iceberg import Catalog, IcebergTable
    from chronolake.types import TableName

#: Table properties with which another engine may store a table's files in other locations.
_PATHS: Final = (
    "write.data.path",
    "write.metadata.path",
    "write.folder-storage.path",
    "write.object-storage.path",
)
#: Iceberg's metadata tables that list files, and the column of each that contains the paths.
_LISTINGS: Final = (
    ("all_files", "file_path"),
    ("all_manifests", "path"),
    ("snapshots", "manifest_list"),
    ("metadata_log_entries", "file"),
)
#: Maximum number of returned files that are stored in other folders.
_REMEMBERED: Final = 100
#: Number of tables that one statement checks.
_AT_ONCE: Final = 50


@dataclass(frozen=True)
class Listing:
    """The locations that a table's metadata contains.

    Attributes:
        location: the table's folder.
        elsewhere: files that the metadata lists outside of this folder.
    """

    location: str
    elsewhere: frozenset[str]


class Containment:
    """Checks before writes that the lake or table is inside the opened location."""

    def __init__(self, config: LakeConfig) -> None:
        self._config = config
        self._lock = Lock()
        self._is_claimed = False
        self._lake_id: str | None = None
        # Folders that executors share with the driver.
        self._shared: set[str] = set()
        self._listings: dict[str, Listing] = {}
        # Tables whose properties and files this process has checked.
        self._checked: set[str] = set()

    @property
    def marks(self) -> Mapping[str, str]:
        """Return the properties to set on a table that passed `expect_inside`."""
        lake_id = self.expect_writable()
        return {} if lake_id is None else {LAKE_PROPERTY: lake_id}

    def expect_writable(self) -> str | None:
        """Return the lake's identity; it is recorded the first time (`identity.claim`).

        Returns:
            None with a REST catalog.

        Raises:
            LakeLocationError: the lake was copied or moved.
            LakeError: the catalog's database is not reachable.
        """
        with self._lock:
            if not self._is_claimed:
                self._lake_id = identity.claim(self._config)
                self._is_claimed = True
            return self._lake_id

    def expect_here(self) -> None:
        """Raise if the lake was copied or moved; nothing is recorded.

        Raises:
            LakeLocationError: it was.
            LakeError: the catalog's database is not reachable.
        """
        identity.expect_here(self._config)

    def expect_inside(self, table: IcebergTable) -> None:
        """Raise if a table's metadata or data are located outside the opened lake.

        The table's folder and its current metadata are checked each time. Properties and the
        version of its metadata file are checked once in a process. Data files are checked once in a
        lake's lifetime, before the first write (`LAKE_PROPERTY`), and before each maintenance.

        Raises:
            LakeLocationError: they are, or the lake was copied or moved.
            LakeError: executors do not share the warehouse's folder.
        """
        lake_id = self.expect_writable()
        if self._config.chooses_locations:
            self.expect_shared(table.catalog.spark, self._config.warehouse_location)
        places = [table.location, table.metadata_file, *table.manifest_lists()]
        if (checked := str(table.metadata.uuid())) not in self._checked:
            places += filter(None, map(table.property_of, _PATHS))
            self._expect_inside(table, places)
            self._expect_newest_of_folder(table)
            if lake_id is None or table.property_of(LAKE_PROPERTY) != lake_id:
                self.expect_files_inside(table)
            self._checked.add(checked)
        else:
            self._expect_inside(table, places)

    def expect_newest(self, table: IcebergTable, files: Iterable[str]) -> None:
        """Raise if a table's folder has metadata that is newer than the catalog's.

        Args:
            table: the table as the catalog names it.
            files: the names or locations of files of metadata in its folder.

        Raises:
            LakeLocationError: the catalog is older than the table's files, or another one writes
                them.
        """
        # A catalog that chooses the folders may give a new table that of a renamed one.
        if not self._config.chooses_locations:
            return
        newest = identity.newest_of(files)
        # An unfinished or failed write is one version ahead.
        if newest is None or not _is_behind(table, newest):
            return
        if not _is_behind(table.reload(), newest):
            return
        raise LakeLocationError(
            f"The table's folder contains metadata version {newest}, but the catalog points to an "
            "older one: the catalog was restored or copied without its newest changes, or another "
            "catalog writes the same files. Writing now would lose the changes since.",
            table=str(table.name),
            file=table.metadata_file,
            hint="Restore the catalog (catalog.db with catalog.db-wal, or the PostgreSQL database) "
            "and the tables from the same moment. To continue from the older state, move the newer "
            "*.metadata.json files out of the table's folder.",
        )

    def _expect_newest_of_folder(self, table: IcebergTable) -> None:
        if local_path(table.location) is not None:
            self.expect_newest(table, identity.files_of_metadata(self._config, table.location))
        elif self._config.chooses_locations:
            # Credentials may not include lists.
            with suppress(Py4JError, PySparkException):
                self.expect_newest(table, table.files_of_metadata())

    def expect_shared(self, spark: SparkSession, folder: str) -> None:
        """Raise if an executor does not share a folder (`shared_storage`), once in a process.

        Raises:
            LakeError: an executor does not.
        """
        if folder not in self._shared:
            expect_shared(spark, folder)
            self._shared.add(folder)

    def expect_files_inside(self, table: IcebergTable) -> list[str]:
        """Raise if a file that a table's metadata lists is located outside the opened lake.

        Returns:
            The first files that are inside the lake, but not in the table's own folder.

        Raises:
            LakeLocationError: a file is outside.
        """
        found: list[str] = []
        for _, file in files_elsewhere([table]):
            self._expect_inside(table, [file])
            if len(found) < _REMEMBERED:
                found.append(file)
        return found

    def listings(self, catalog: Catalog, names: Iterable[TableName]) -> list[Listing]:
        """Return the locations in the current metadata of tables.

        Metadata files never change, so each is checked once in a process.

        Raises:
            LakeError: a table's metadata cannot be read.
            PySparkException: the files that it lists cannot be read.
        """
        places = identity.metadata_files(self._config)
        now = {name: places.get(name) or _metadata_file(catalog, name) for name in names}
        fresh = [catalog.find(name) for name, file in now.items() if file not in self._listings]
        tables = [table for table in fresh if table is not None]
        elsewhere: dict[str, set[str]] = {table.metadata_file: set() for table in tables}
        for table, file in files_elsewhere(tables):
            elsewhere[table.metadata_file].add(file)
        read = {
            table.metadata_file: Listing(table.location, frozenset(elsewhere[table.metadata_file]))
            for table in tables
        }
        self._listings |= read
        # A table that has changed since its path was read has another metadata file now.
        wanted = {*read, *(file for file in now.values() if file is not None)}
        return [self._listings[file] for file in wanted if file in self._listings]

    def contains(self, location: str) -> bool:
        """Return whether a location is in the lake's warehouse or its folder."""
        return self._config.contains(location)

    def _expect_inside(self, table: IcebergTable, places: Sequence[str]) -> None:
        for place in places:
            if not self.contains(place):
                raise LakeLocationError(
                    f"The table is located outside the opened lake in {self._config.path}: it was "
                    "created by another lake, or this lake was copied or moved.",
                    table=str(table.name),
                    file=place,
                    hint="Write to the table through the lake that it belongs to. For a copy, "
                    "create a new table in this lake: run `chronolake sync`, or write its rows "
                    "with Spark.",
                )


def _metadata_file(catalog: Catalog, name: TableName) -> str | None:
    table = catalog.find(name)
    return None if table is None else table.metadata_file


def _is_behind(table: IcebergTable, newest: int) -> bool:
    current = identity.version_of(table.metadata_file)
    return current is not None and newest > current + 1


def files_elsewhere(tables: Sequence[IcebergTable]) -> Iterator[tuple[IcebergTable, str]]:
    """Yield the files that tables' current metadata lists outside of each table's own folder.

    Args:
        tables: loaded tables of one catalog.
    """
    for begin in range(0, len(tables), _AT_ONCE):
        part = tables[begin : begin + _AT_ONCE]
        statement = " UNION ALL ".join(map(_listed_elsewhere, part, range(len(part))))
        # Only tables that another engine created, or that were moved, have such files.
        for row in part[0].catalog.spark.sql(statement).toLocalIterator():
            table = part[row["number"]]
            # A path in another spelling may still be inside the folder.
            if not is_inside(row["file"], table.location):
                yield table, row["file"]


def _listed_elsewhere(table: IcebergTable, number: int) -> str:
    """Return SQL for the files that a table lists and whose paths do not begin with its folder."""
    name = f"{CATALOG}.{table.name.sql}"
    inside = literal(f"{table.location.rstrip('/')}/")
    return " UNION ALL ".join(
        f"SELECT {number} AS number, {column} AS file FROM {name}.{metadata} "
        f"WHERE NOT startswith({column}, {inside})"
        for metadata, column in _LISTINGS
    )
