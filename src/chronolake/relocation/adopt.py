"""Adoption: a lake that was copied, restored or moved becomes a lake of its own at its location.

New metadata is written beside the old one for all tables. Then one transaction of the catalog's
database makes it current and records the new location. A crash before it changes nothing that
anyone reads, and the command can be run again; after it, the lake has been adopted.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chronolake import identity
from chronolake.config import CatalogKind
from chronolake.errors import ChronolakeError, LakeError, LakeLocationError, StorageError
from chronolake.failpoints import reach
from chronolake.identity import Identity, newest_version, version_of
from chronolake.location import is_inside, is_same_place, local_path, plain
from chronolake.relocation.lake_files import LakeFiles, Moves
from chronolake.relocation.table_tree import RelocatedTable, TableTree
from chronolake.types import SCRATCH_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from chronolake.config import LakeConfig
    from chronolake.types import TableName


@dataclass(frozen=True)
class Adoption:
    """The result of adopting a lake.

    Attributes:
        moved: the lake's earlier folders, with their new locations.
        tables: the tables and views that got new metadata; empty if the lake is already here.
    """

    moved: Mapping[str, str]
    tables: Sequence[RelocatedTable]


def adopt(
    config: LakeConfig,
    *,
    earlier: Sequence[str] = (),
    is_dry: bool = False,
    on_table: Callable[[RelocatedTable, int], None] = lambda *_: None,
) -> Adoption:
    """Give a lake's tables metadata with the locations at which the lake was opened.

    Args:
        config: the opened lake; its catalog lists the tables.
        earlier: earlier locations of the warehouse, in addition to the recorded one.
        is_dry: whether everything is only read and checked.
        on_table: called after each table, with the number of tables.

    Raises:
        LakeLocationError: the original is still there, or files are missing.
        LakeError: the catalog is a REST catalog, or cannot be read, or tables changed meanwhile.
        StorageError: a file cannot be read or written.
    """
    if config.catalog.kind is CatalogKind.REST:
        raise LakeError(
            "The tables of a REST catalog cannot be adopted: its server stores their locations.",
            hint="Register the tables with the server, after it has moved them.",
        )
    recorded, entries = identity.recorded_tables(config)
    if not entries:
        identity.raise_if_unlisted(config)
    moves = _moves(config, recorded, entries, earlier)
    files = LakeFiles(config.object_storage, fsync=config.fsync, is_dry=is_dry)
    stale = {
        name: file
        for name, file in entries.items()
        if moves.find(file) != file and not _stays(config, file, moves, files)
    }
    if not stale and (recorded is None or identity.is_here(config, recorded)):
        return Adoption({}, ())
    _expect_original_gone(config, recorded)
    relocated: list[RelocatedTable] = []
    for name, file in sorted(stale.items()):
        _expect_current(config, name, file, moves)
        tree = TableTree(name, file, moves, files)
        try:
            table = tree.relocate()
        except LakeLocationError:
            if name.schema == SCRATCH_SCHEMA:
                # A crash has left it behind, perhaps without its files.
                continue
            raise
        relocated.append(table)
        reach("adopt.table-written")
        on_table(table, len(stale))
    if not is_dry:
        reach("adopt.before-commit")
        identity.move_tables(
            config,
            {table.name: (table.before, table.after, table.previous) for table in relocated},
            moves.find,
        )
        reach("adopt.after-commit")
    return Adoption(moves.changed, relocated)


def _moves(
    config: LakeConfig,
    recorded: Identity | None,
    entries: Mapping[TableName, str],
    earlier: Sequence[str],
) -> Moves:
    warehouse = config.warehouse_location
    pairs = [(place, warehouse) for place in earlier]
    if recorded is not None:
        pairs.append((recorded.warehouse, warehouse))
        if recorded.folder is not None:
            pairs.append((recorded.folder, str(config.path)))
    elif not earlier:
        # A lake from before its location was recorded.
        places = {identity.root_of(file) for file in entries.values() if not config.contains(file)}
        # Tables of nested schemas may be deeper.
        roots = {
            place
            for place in places
            if not any(place != other and is_inside(place, other) for other in places)
        }
        if len(roots) > 1:
            raise LakeLocationError(
                f"The lake's tables are in {len(roots)} folders, for example {min(roots)}, "
                "and its earlier location is not recorded.",
                hint="Name the earlier locations with `--from`.",
            )
        pairs += [(root, warehouse) for root in roots]
    # New folders, for files that are located there already.
    return Moves([*pairs, (warehouse, warehouse), (str(config.path), str(config.path))])


def _stays(config: LakeConfig, file: str, moves: Moves, files: LakeFiles) -> bool:
    """Return whether a table was left in the lake's folder when the warehouse changed."""
    path, new = local_path(file), moves.find(file)
    if path is None or new is None or not config.contains(file):
        return False
    return path.is_file() and files.size_of(new, "") is None


def _expect_original_gone(config: LakeConfig, recorded: Identity | None) -> None:
    """Raise if the lake's earlier folder still has a catalog with its identity.

    Raises:
        LakeLocationError: it has.
    """
    if recorded is None or recorded.folder is None or config.catalog.kind is not CatalogKind.SQLITE:
        return
    if is_same_place(recorded.folder, str(config.path)):
        return
    file = Path(recorded.folder) / config.catalog_file.name
    with suppress(OSError):
        if not file.is_file() or file.samefile(config.catalog_file):
            return
    try:
        other, _ = identity.recorded_tables(
            config.model_copy(update={"path": Path(recorded.folder)})
        )
    except ChronolakeError:
        other = recorded
    if other is not None and other.lake_id != recorded.lake_id:
        return
    raise LakeLocationError(
        f"The original of this lake is still in {recorded.folder}. Pipelines that run in both "
        "would take each other's changes from their sources.",
        hint=f"To move the lake, stop everything that uses {recorded.folder}, and rename or remove "
        "that folder. For a second lake, use an empty folder and run `chronolake sync` there.",
    )


def _expect_current(config: LakeConfig, name: TableName, file: str, moves: Moves) -> None:
    """Raise if a table has newer metadata than the catalog, here or at its earlier location.

    Raises:
        LakeLocationError: it has.
    """
    here, version = moves.of(file), version_of(file)
    if version is None:
        return
    folder, earlier = _folder_of(here), _folder_of(file)
    # An unfinished write, or an earlier attempt of this command, is one version ahead.
    if (newest := newest_version(config, folder)) is not None and newest > version + 1:
        raise LakeLocationError(
            f"The table's folder contains metadata version {newest}, but the catalog points to "
            f"version {version}: they were copied at different times.",
            table=str(name),
            file=here,
            hint="Restore the catalog (catalog.db with catalog.db-wal, or the PostgreSQL database) "
            "and the tables from the same moment. To continue from the older state, move the "
            "newer *.metadata.json files out of the table's folder.",
        )
    if plain(earlier) == plain(folder) or is_same_place(earlier, folder):
        return
    newest = None
    # A bucket that is gone, or that the lake's credentials do not open.
    with suppress(StorageError):
        newest = newest_version(config, earlier)
    if newest is not None and newest > version:
        raise LakeLocationError(
            f"The original of the table, in {plain(earlier)}, was written after the copy was made: "
            "it is still in use.",
            table=str(name),
            file=file,
            hint="Stop everything that uses the original, and copy the lake again.",
        )


def _folder_of(metadata_file: str) -> str:
    """Return a table's folder, which contains the folder of its metadata."""
    return metadata_file.rpartition("/")[0].rpartition("/")[0]
