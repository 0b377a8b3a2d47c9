"""The boundary of an open lake: what lies outside it is neither written nor deleted."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final

from chronolake import identity
from chronolake.errors import LakeLocationError
from chronolake.location import is_inside
from chronolake.presence import expect_shared
from chronolake.session import CATALOG
from chronolake.types import LAKE_PROPERTY, literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from chronolake.config import LakeConfig
    from chronolake.iceberg import Catalog, IcebergTable
    from chronolake.types import TableName

#: Table properties by which another engine may put a table's files somewhere else.
_PATHS: Final = (
    "write.data.path",
    "write.metadata.path",
    "write.folder-storage.path",
    "write.object-storage.path",
)
#: Iceberg's metadata tables that list files, and the columns that name these.
_LISTINGS: Final = (
    ("all_files", "file_path"),
    ("all_manifests", "path"),
    ("snapshots", "manifest_list"),
    ("metadata_log_entries", "file"),
)
#: Limit of files in other folders that are returned.
_REMEMBERED: Final = 100
#: Number of tables that one statement looks through.
_AT_ONCE: Final = 50


@dataclass(frozen=True)
class Listing:
    """What a table's metadata says about places.

    Attributes:
        location: the table's folder.
        elsewhere: files that it lists outside of that.
    """

    location: str
    elsewhere: frozenset[str]


class Containment:
    """Raises before a process writes to a lake or a table that is not in the opened place.

    Args:
        config: the opened lake.
    """

    def __init__(self, config: LakeConfig) -> None:
        self._config = config
        self._lock = Lock()
        self._is_claimed = False
        self._lake_id: str | None = None
        # Folders that the executors share with the driver.
        self._shared: set[str] = set()
        self._listings: dict[str, Listing] = {}
        # Tables whose properties and files were looked through by this process.
        self._checked: set[str] = set()

    @property
    def marks(self) -> Mapping[str, str]:
        """The properties of a table that `expect_inside` has let pass."""
        lake_id = self.expect_writable()
        return {} if lake_id is None else {LAKE_PROPERTY: lake_id}

    def expect_writable(self) -> str | None:
        """Return the lake's identity; it is recorded the first time (`identity.claim`).

        Returns:
            None with a REST catalog.

        Raises:
            LakeLocationError: the lake was copied or moved.
            LakeError: the catalog's database does not answer.
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
            LakeError: the catalog's database does not answer.
        """
        identity.expect_here(self._config)

    def expect_inside(self, table: IcebergTable) -> None:
        """Raise if a table's metadata or data lie outside the opened lake.

        The table's folder and its current metadata are looked at each time. Properties, and the
        number of its metadata file, are looked at once in a process; data files once in a lake's
        life, before the first write (`LAKE_PROPERTY`), and before each maintenance.

        Raises:
            LakeLocationError: they do, or the lake was copied or moved.
            LakeError: executors do not share the warehouse's folder.
        """
        lake_id = self.expect_writable()
        self.expect_shared(table.catalog.spark, self._config.warehouse_location)
        places = [table.location, table.metadata_file, *table.manifest_lists()]
        if (checked := str(table.metadata.uuid())) not in self._checked:
            places += filter(None, map(table.property_of, _PATHS))
            self._expect_inside(table, places)
            expect_newest(table, identity.newest_version(table.location))
            if lake_id is None or table.property_of(LAKE_PROPERTY) != lake_id:
                self.expect_files_inside(table)
            self._checked.add(checked)
        else:
            self._expect_inside(table, places)

    def expect_shared(self, spark: SparkSession, folder: str) -> None:
        """Raise if an executor does not share a folder; asked once in a process (`presence`).

        Raises:
            LakeError: one does not.
        """
        if folder not in self._shared:
            expect_shared(spark, folder)
            self._shared.add(folder)

    def expect_files_inside(self, table: IcebergTable) -> list[str]:
        """Raise if a file that a table's metadata lists lies outside the opened lake.

        Returns:
            The first files that lie inside, but not in the table's own folder.

        Raises:
            LakeLocationError: one does.
        """
        found: list[str] = []
        for _, file in files_elsewhere([table]):
            self._expect_inside(table, [file])
            if len(found) < _REMEMBERED:
                found.append(file)
        return found

    def listings(self, catalog: Catalog, names: Iterable[TableName]) -> list[Listing]:
        """Return what the current metadata of tables says about places.

        Metadata files never change, so that each is looked through once in a process.

        Raises:
            LakeError: a table's metadata cannot be read.
            PySparkException: the same, for the files that it lists.
        """
        places = identity.places(self._config)
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
        # One that has changed since its place was read has another one now.
        wanted = {*read, *(file for file in now.values() if file is not None)}
        return [self._listings[file] for file in wanted if file in self._listings]

    def contains(self, location: str) -> bool:
        """Return whether a location is in the lake's warehouse or its folder."""
        return self._config.contains(location)

    def _expect_inside(self, table: IcebergTable, places: Sequence[str]) -> None:
        for place in places:
            if not self.contains(place):
                raise LakeLocationError(
                    f"The table lies outside the opened lake in {self._config.path}: it was made "
                    "by another lake, or this one was copied or moved.",
                    table=str(table.name),
                    file=place,
                    hint="Write to it through the lake that it belongs to. For a copy, make a new "
                    "table in this lake: run `chronolake sync`, or write its rows with Spark.",
                )


def _metadata_file(catalog: Catalog, name: TableName) -> str | None:
    table = catalog.find(name)
    return None if table is None else table.metadata_file


def expect_newest(table: IcebergTable, newest: int | None) -> None:
    """Raise if a table's folder has metadata that is newer than what the catalog names.

    Args:
        table: the table.
        newest: the number of the newest metadata file in its folder, or None: not known.

    Raises:
        LakeLocationError: the catalog is older than the table's files, or another one writes them.
    """
    # A write that has not finished, or never did, is one ahead.
    if newest is None or not _is_behind(table, newest) or not _is_behind(table.refreshed(), newest):
        return
    raise LakeLocationError(
        f"The table's folder has metadata number {newest}, and the catalog names an older one: the "
        "catalog was restored or copied without its newest changes, or another catalog writes the "
        "same files. Writing now would lose what was written since.",
        table=str(table.name),
        file=table.metadata_file,
        hint="Restore the catalog (catalog.db with catalog.db-wal, or the PostgreSQL database) and "
        "the tables from the same moment. To go on from the older state, move the newer "
        "*.metadata.json files out of the table's folder.",
    )


def _is_behind(table: IcebergTable, newest: int) -> bool:
    current = identity.version_of(table.metadata_file)
    return current is not None and newest > current + 1


def files_elsewhere(tables: Sequence[IcebergTable]) -> Iterator[tuple[IcebergTable, str]]:
    """Yield the files that tables' current metadata lists outside of each table's own folder.

    Args:
        tables: tables of one catalog, as they were loaded.
    """
    for begin in range(0, len(tables), _AT_ONCE):
        part = tables[begin : begin + _AT_ONCE]
        statement = " UNION ALL ".join(map(_listed_elsewhere, part, range(len(part))))
        # No file but those of a table that another engine made, or that was moved, is found.
        for row in part[0].catalog.spark.sql(statement).toLocalIterator():
            table = part[row["number"]]
            # Spelled in another way, it may lie in the folder all the same.
            if not is_inside(row["file"], table.location):
                yield table, row["file"]


def _listed_elsewhere(table: IcebergTable, number: int) -> str:
    """Return SQL for the files that a table lists, and whose names do not begin as its folder's."""
    name = f"{CATALOG}.{table.name.sql}"
    inside = literal(f"{table.location.rstrip('/')}/")
    return " UNION ALL ".join(
        f"SELECT {number} AS number, {column} AS file FROM {name}.{metadata} "
        f"WHERE NOT startswith({column}, {inside})"
        for metadata, column in _LISTINGS
    )
