"""Files of a lake at its new location, in folders or in a bucket, and how old locations map."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chronolake.errors import LakeLocationError
from chronolake.location import as_url, local_path, plain
from chronolake.object_store import BucketPath
from chronolake.storage import error_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from chronolake.config import StorageConfig


class Moves:
    """The folders of a lake before and after a move.

    Args:
        pairs: old and new folders, the most important first; locations in a new folder do not
            change, unless it is also an old one: a warehouse may leave the lake's folder.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        plain_pairs = [(plain(old).rstrip("/"), plain(new).rstrip("/")) for old, new in pairs]
        by_old: dict[str, str] = {}
        for old, new in plain_pairs:
            if old != new:
                by_old.setdefault(old, new)
        for _, new in plain_pairs:
            by_old.setdefault(new, new)
        # A new folder may be inside of an old one, or the other way round.
        self._pairs = sorted(by_old.items(), key=lambda pair: len(pair[0]), reverse=True)

    @property
    def changed(self) -> dict[str, str]:
        """Return the old folders that are now elsewhere, with the new ones."""
        return {old: new for old, new in self._pairs if old != new}

    def find(self, location: str) -> str | None:
        """Return the new location of a file or folder; None if it is in none of the folders."""
        path = plain(location)
        for old, new in self._pairs:
            if path == old or path.startswith(f"{old}/"):
                return location if old == new else as_url(new + path.removeprefix(old))
        return None

    def of(self, location: str) -> str:
        """Return the new location of a file or folder.

        Raises:
            LakeLocationError: it is in none of the folders.
        """
        found = self.find(location)
        if found is None:
            raise LakeLocationError(
                "The lake's metadata refers to a file outside of the lake's earlier location.",
                file=location,
                hint="Add the earlier location of these files with `--from`, if they were moved "
                "with the lake.",
            )
        return found


@dataclass
class LakeFiles:
    """Reads and writes of files by their locations.

    Attributes:
        storage: how the object store is reached.
        fsync: whether written files are synced.
        is_dry: whether nothing is written.
        written: the number of written files.
    """

    storage: StorageConfig
    fsync: bool = True
    is_dry: bool = False
    written: int = 0
    _listed: dict[str, dict[str, int]] = field(default_factory=dict)

    def read(self, location: str) -> bytes:
        """Return the content of a file.

        Raises:
            StorageError: it cannot be read.
            LakeLocationError: it does not exist.
        """
        path = local_path(location)
        if path is None:
            return BucketPath(location, self.storage).read_bytes()
        try:
            return path.read_bytes()
        except FileNotFoundError as failure:
            raise missing_error([location]) from failure
        except OSError as failure:
            raise error_of(failure, path) from failure

    def write(self, location: str, content: bytes) -> None:
        """Write a file; it appears whole, and replaces one that an earlier attempt has left.

        Raises:
            StorageError: it cannot be written.
        """
        self.written += 1
        if self.is_dry:
            return
        path = local_path(location)
        if path is None:
            _put(BucketPath(location, self.storage), content)
            return
        try:
            self._write_local(path, content)
        except OSError as failure:
            raise error_of(failure, path) from failure

    def _write_local(self, path: Path, content: bytes) -> None:
        # The catalog refers to a file only after the file and its name are on disk.
        partial = path.with_name(f".{path.name}.partial")
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                if self.fsync:
                    os.fsync(file.fileno())
            partial.replace(path)
        except OSError:
            with suppress(OSError):
                partial.unlink()
            raise
        if self.fsync:
            descriptor = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def size_of(self, location: str, folder: str) -> int | None:
        """Return the size of a file; None if it does not exist.

        Args:
            location: the file.
            folder: a folder that probably contains it; in a bucket, it is listed once.
        """
        path = local_path(location)
        if path is not None:
            try:
                return path.stat().st_size
            except OSError:
                return None
        if not location.startswith(f"{folder}/"):
            found = BucketPath(location, self.storage).find()
            return None if found is None else found.size
        if folder not in self._listed:
            objects = BucketPath(folder, self.storage).objects()
            self._listed[folder] = {plain(str(item.path)): item.size for item in objects}
        return self._listed[folder].get(plain(location))


def _put(path: BucketPath, content: bytes) -> None:
    if path.create(content):
        return
    found = path.find()
    if found is not None:
        path.replace(content, identity=found.identity)


def missing_error(files: list[str]) -> LakeLocationError:
    """Return the error for files that are not at the new location."""
    count = f"{len(files):,} files of the table are" if len(files) > 1 else "A file of the table is"
    return LakeLocationError(
        f"{count} missing at the new location, or cut off: the copy is not complete.",
        file=files[0],
        hint="Copy the whole lake again while nothing writes to it, or restore another backup.",
    )
