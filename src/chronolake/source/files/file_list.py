"""Lists of files in a folder or bucket, without Spark."""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from chronolake.errors import SourceError
from chronolake.landing import location_of
from chronolake.location import scheme_of
from chronolake.object_store import BucketPath

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chronolake.config import StorageConfig
    from chronolake.landing import Location


@dataclass(frozen=True)
class SourceFile:
    """A file of a source.

    Attributes:
        path: its location.
        name: its path below the listed folder.
        size: in bytes.
        identity: changes whenever the file is written again.
        modified_micros: when it was written, in microseconds since 1970.
    """

    path: Location
    name: str
    size: int
    identity: str
    modified_micros: int


def root_of(text: str, base: Path, storage: StorageConfig) -> Location:
    """Return the location of a folder; a relative path is resolved against another one."""
    if scheme_of(text) is not None:
        return location_of(text, storage)
    return (base / Path(text).expanduser()).resolve()


def list_files(root: Location) -> Iterator[SourceFile]:
    """Yield the files below a folder, in no particular order.

    Raises:
        SourceError: the folder does not exist, or cannot be read. Buckets have no folders.
        ObjectStoreError: the store refuses, or does not respond.
    """
    if isinstance(root, BucketPath):
        for stored in root.objects():
            name = stored.path.url.removeprefix(f"{root.url}/")
            identity = "|".join(f"{key}={value}" for key, value in sorted(stored.identity.items()))
            modified = int(stored.modified.timestamp()) * 1_000_000
            yield SourceFile(stored.path, name, stored.size, identity or f"{modified}", modified)
        return
    if not root.exists():
        raise missing_folder_error(str(root))
    yield from _list_folder(root)


def missing_folder_error(folder: str) -> SourceError:
    """Return the error for a folder of a source that does not exist."""
    return SourceError(
        "The folder with the source's files does not exist.",
        file=folder,
        hint="Correct source.path in chronolake.yml, or create the folder.",
    )


def _list_folder(root: Path) -> Iterator[SourceFile]:
    def fail(failure: OSError) -> None:
        raise SourceError(
            f"The folder cannot be listed: {failure.strerror}.",
            file=str(failure.filename),
            hint="Check its permissions.",
        ) from failure

    for folder, _, names in os.walk(root, onerror=fail, followlinks=True):
        for file in names:
            path = Path(folder, file)
            try:
                found = path.stat()
            except FileNotFoundError:
                # Removed meanwhile.
                continue
            modified = found.st_mtime_ns
            name = path.relative_to(root).as_posix()
            yield SourceFile(path, name, found.st_size, f"{modified}", modified // 1_000)


def fingerprint(files: Sequence[SourceFile]) -> str:
    """Return a text that changes if any of some files does."""
    digest = blake2b(digest_size=10)
    for file in sorted(files, key=lambda file: file.name):
        digest.update(f"{file.name}\0{file.size}\0{file.identity}\0".encode())
    return digest.hexdigest()
