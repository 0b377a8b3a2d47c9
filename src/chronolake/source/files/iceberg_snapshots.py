"""The snapshots of an Iceberg table as dated copies, from the table's metadata file.

The file is the one that a catalog lists, or the newest one in the table's folder.
"""

from __future__ import annotations

import gzip
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from chronolake import rest_catalog
from chronolake.config import CatalogKind, StorageConfig
from chronolake.errors import ChronolakeError, SourceError
from chronolake.landing import location_of
from chronolake.location import plain
from chronolake.source.files.file_list import SourceFile, list_files
from chronolake.types import EPSILON_MICROS, TableName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chronolake.config import LakeConfig, TableSettings
    from chronolake.landing import Location

#: `00012-….metadata.json` and `v12.metadata.json`, maybe compressed.
_METADATA: Final = re.compile(r"v?(\d+)(?:-[^.]*)?(?:\.gz)?\.metadata\.json(?:\.gz)?")
_GZIP: Final = b"\x1f\x8b"
_KEYS: Final = frozenset({"access_key", "secret_key", "session_token"})


@dataclass(frozen=True)
class IcebergState:
    """A state of a table.

    Attributes:
        file: its metadata file.
        metadata: the content of the file.
    """

    file: Location
    metadata: Mapping[str, Any]

    def snapshots(self) -> list[tuple[int, SourceFile]]:
        """Return the snapshots that were current in the table's main branch, with their times.

        Snapshots without changes (compactions) are left out, and so are those that were never
        current because the same commit added another one. Of snapshots that follow each other
        within two milliseconds, the last one is used. The identity of each is its number.
        """
        operations = {
            snapshot["snapshot-id"]: (snapshot.get("summary") or {}).get("operation")
            for snapshot in self.metadata.get("snapshots", [])
        }
        found: list[tuple[int, SourceFile]] = []
        for entry in _committed_snapshots(self.metadata):
            number, at_micros = entry["snapshot-id"], entry["timestamp-ms"] * 1_000
            if number not in operations or operations[number] == "replace":
                # It has expired, or has the rows of the one before it.
                continue
            if found and at_micros - found[-1][0] < 2 * EPSILON_MICROS:
                found.pop()
            found.append((at_micros, self._file_of(number, at_micros)))
        return found

    def current(self) -> SourceFile:
        """Return the current snapshot; its identity is its number.

        Raises:
            SourceError: the table has none, because nothing was ever written to it.
        """
        number = self.metadata.get("current-snapshot-id")
        if number is None or number < 0:
            raise SourceError(
                "The Iceberg table has no snapshot.",
                file=str(self.file),
                hint="Read the table when it has rows.",
            )
        return self._file_of(number, self.metadata["last-updated-ms"] * 1_000)

    def _file_of(self, number: int, at_micros: int) -> SourceFile:
        return SourceFile(self.file, f"snapshot {number}", 0, f"{number}", at_micros)


def read_state(file: Location) -> IcebergState:
    """Return the state in a metadata file.

    Raises:
        SourceError: the file cannot be read.
        ObjectStoreError: the store refuses, or does not respond.
    """
    try:
        content = file.read_bytes()
        metadata = orjson.loads(gzip.decompress(content) if content[:2] == _GZIP else content)
    except (OSError, ValueError) as failure:
        raise SourceError(
            "The metadata of the Iceberg table cannot be read.",
            file=str(file),
            hint="Check the file, and its permissions.",
        ) from failure
    return IcebergState(file, metadata)


def state_in_folder(folder: Location) -> IcebergState:
    """Return the newest state of the table in a folder.

    Raises:
        SourceError: the folder does not belong to an Iceberg table, or its metadata cannot be read.
        ObjectStoreError: the store refuses, or does not respond.
    """
    numbered = [
        (int(matched[1]), file.modified_micros, str(file.path), file)
        for file in list_files(folder / "metadata")
        if (matched := _METADATA.fullmatch(file.name))
    ]
    if not numbered:
        raise SourceError(
            "The folder contains no metadata of an Iceberg table.",
            file=f"{folder}/metadata",
            hint="Set `path` to the folder of the table, which contains `metadata`.",
        )
    return read_state(max(numbered)[-1].path)


def state_in_catalog(lake: LakeConfig, settings: TableSettings, table: str) -> IcebergState:
    """Return the current state of a table in a catalog.

    Args:
        lake: the lake.
        settings: the source, with its catalog; without one, the catalog is the lake's.
        table: the table's name.

    Raises:
        SourceError: the catalog does not respond, refuses, or has no such table.
        ObjectStoreError: the store refuses, or does not respond.
    """
    from chronolake.inspect.catalog import metadata_in_database  # noqa: PLC0415 - only here

    name = TableName.parse(table)
    changes: dict[str, Any] = {}
    if settings.catalog is not None:
        changes |= {"catalog": settings.catalog, "warehouse": None}
    if settings.storage is not None:
        changes["storage"] = settings.storage
    config = lake.model_copy(update=changes)
    try:
        if config.catalog.kind is not CatalogKind.REST:
            found = metadata_in_database(config, name)
            if found is None:
                raise _missing_error(config, table)
            return read_state(location_of(plain(found), config.object_storage))
        known = rest_catalog.find_table(config, rest_catalog.open_catalog(config), name)
    except SourceError:
        raise
    except ChronolakeError as failure:
        key = "lake" if settings.catalog is None else "source"
        raise SourceError(
            failure.message.replace("The lake's catalog", "The catalog"),
            hint=None if failure.hint is None else failure.hint.replace("lake.cat", f"{key}.cat"),
        ) from failure
    if known is None:
        raise _missing_error(config, table)
    storage = _storage_of(known.io.properties, config.object_storage)
    location = location_of(plain(known.metadata_location), storage)
    return IcebergState(location, orjson.loads(known.metadata.model_dump_json()))


def _missing_error(config: LakeConfig, table: str) -> SourceError:
    return SourceError(
        f"The catalog {config.catalog.label} has no table {table}.",
        hint="Check `table`, such as schema.table, and `catalog`.",
    )


def _storage_of(properties: Mapping[str, str], configured: StorageConfig) -> StorageConfig:
    """Return how a table's files are reached: a REST catalog may send settings and credentials."""
    sent = StorageConfig().with_properties(properties).model_dump(exclude_unset=True)
    # Keys of another pair do not belong to the token that was sent.
    unused = _KEYS if "access_key" in sent else frozenset()
    known = configured.model_dump(exclude_unset=True, exclude=set(unused))
    return StorageConfig(**{**known, **sent})


def _committed_snapshots(metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of the log of snapshots that were the last ones of their commits."""
    entries: list[dict[str, Any]] = metadata.get("snapshot-log", [])
    commits = {entry["timestamp-ms"] for entry in metadata.get("metadata-log", [])}
    commits.add(metadata["last-updated-ms"])
    # Only the last commits are known.
    last = {
        max((at for at in (entry["timestamp-ms"] for entry in entries) if at <= commit), default=0)
        for commit in commits
    }
    first = min(commits)
    return [
        entry
        for entry in entries
        if entry["timestamp-ms"] in last or entry["timestamp-ms"] <= first
    ]
