"""Permissions of a lake's folders and files: only the owner's, unless `lake.shared` is set.

Existing folders and files keep their permissions, so that the owner can grant access afterwards.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chronolake.config import CatalogKind
from chronolake.location import scheme_of
from chronolake.storage import error_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chronolake.config import LakeConfig

_FOLDER: Final = 0o700
_FILE: Final = 0o600
#: The permission bits that the JVM and its Python workers remove from files that they create.
_UMASK: Final = 0o077
#: Hadoop has its own umask and ignores that of the process.
HADOOP_UMASK: Final = {"spark.hadoop.fs.permissions.umask-mode": "077"}


def make_lake(config: LakeConfig) -> None:
    """Create a lake's folders and its catalog's file, if the lake does not exist yet.

    Raises:
        StorageError: one of them cannot be created.
    """
    has_file = config.catalog.kind is CatalogKind.SQLITE
    is_new = not (config.catalog_file if has_file else config.path).exists()
    make_folder(config.path, shared=config.shared)
    if not is_new:
        # Readers of an existing lake create nothing.
        return
    if scheme_of(config.raw_location) is None:
        make_folder(Path(config.raw_location), shared=config.shared)
    if config.local_warehouse is not None:
        make_folder(config.local_warehouse / "tables", shared=config.shared)
    if has_file and not config.shared:
        _make_file(config.catalog_file)


def make_folder(folder: Path, *, shared: bool) -> None:
    """Create a folder and its missing parents.

    Args:
        folder: an absolute path.
        shared: whether the process's umask determines the permissions; otherwise only the owner
            has access.

    Raises:
        StorageError: it cannot be created.
    """
    missing = []
    try:
        for place in (folder, *folder.parents):
            # Raises if a parent folder is not searchable.
            if place.exists():
                break
            missing.append(place)
        for place in reversed(missing):
            with suppress(FileExistsError):
                place.mkdir(mode=0o777 if shared else _FOLDER)
        folder.mkdir(exist_ok=True)
    except OSError as failure:
        raise error_of(failure, folder) from failure


def _make_file(file: Path) -> None:
    """Create an empty file that only its owner may open. SQLite gives its log the same mode."""
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _FILE))
    except FileExistsError:
        return
    except OSError as failure:
        raise error_of(failure, file) from failure


def restrict(config: LakeConfig) -> None:
    """Set the process's umask so that new files are only their owner's, unless the lake is shared.

    For Chronolake's own processes, such as a command. An application that opens a lake keeps its
    umask; its files in the lake are in folders that only their owner may enter.
    """
    if not config.shared:
        os.umask(os.umask(_UMASK) | _UMASK)


@contextmanager
def private_umask(config: LakeConfig) -> Iterator[None]:
    """Make processes that start within the block create files for their owner only."""
    # Other threads create files in between, which must not be open to everybody.
    before = os.umask(_UMASK)
    os.umask(before if config.shared else before | _UMASK)
    try:
        yield
    finally:
        os.umask(before)
