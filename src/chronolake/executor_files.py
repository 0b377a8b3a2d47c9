"""Files of the driver that Spark's tasks read: copies in the lake's bucket.

Executors of a cluster have no disk in common with the driver if the lake is in a bucket. Spools and
batch files of the driver are copied there while tasks read them.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final
from uuid import uuid4

import pyarrow as pa

from chronolake.errors import ObjectStoreError
from chronolake.location import scheme_of
from chronolake.object_store import BucketPath

if TYPE_CHECKING:
    from collections.abc import Collection

    from chronolake.config import StorageConfig

_FOLDER: Final = "_executor_files"
#: Copies of this age belong to no process that runs.
_ABANDONED: Final = timedelta(days=7)


@dataclass(frozen=True)
class FileOpener:
    """Opens files of the driver and their copies; tasks get it.

    Attributes:
        storage: how the bucket of copies is reached.
    """

    storage: StorageConfig = field(repr=False)

    def __call__(self, location: str) -> pa.NativeFile:
        """Open a file for reads at any position.

        Args:
            location: a path, or the URL of a copy.
        """
        if scheme_of(location) is None:
            return pa.memory_map(location)
        return BucketPath(location, self.storage).open()


class ExecutorFiles:
    """The driver's files as tasks see them; thread-safe.

    Args:
        warehouse: where the lake's tables are stored: the URL of a bucket, or a folder.
        storage: how a bucket is reached.
        are_shared: whether tasks see the driver's folders.
    """

    def __init__(self, warehouse: str, storage: StorageConfig, *, are_shared: bool) -> None:
        self.are_shared = are_shared
        self.opener = FileOpener(storage)
        self._root = BucketPath(f"{warehouse}/{_FOLDER}", storage)
        self._copies: dict[str, BucketPath] = {}
        self._copying = threading.Lock()
        self._has_cleaned = False

    def publish(self, file: str) -> str:
        """Return where tasks read a file, which must not change from now on.

        Args:
            file: its path on the driver. Another call with the same path returns the same copy.

        Raises:
            ObjectStoreError: the file cannot be copied to the bucket.
        """
        if self.are_shared:
            return file
        with self._copying:
            found = self._copies.get(file)
            if found is None:
                with Path(file).open("rb") as content:
                    found = self._copies[file] = self.copy(content)
        return str(found)

    def copy(self, content: BinaryIO, *, ending: str = "") -> BucketPath:
        """Copy an open file to the bucket.

        Args:
            content: the file.
            ending: how the copy's name ends, such as `.csv.gz`.

        Raises:
            ObjectStoreError: the store refuses, or does not respond.
        """
        if not self._has_cleaned:
            self._has_cleaned = True
            self._remove_abandoned()
        made = self._root / f"{uuid4().hex}{ending}"
        made.upload(content)
        return made

    def discard(self, copies: Collection[BucketPath] | None = None) -> None:
        """Remove copies that no task reads any more.

        Args:
            copies: some of `copy`; by default all of `publish`.
        """
        if copies is None:
            with self._copying:
                copies = list(self._copies.values())
                self._copies.clear()
        for made in copies:
            # What is left behind is removed later.
            with suppress(ObjectStoreError):
                made.delete()

    def _remove_abandoned(self) -> None:
        limit = datetime.now(UTC) - _ABANDONED
        for stored in self._root.objects():
            if stored.modified < limit:
                stored.path.delete()
