"""The sequence of files in our own raw lake in a bucket: names that only increase, without locks.

The number of a new file is always that of the last file plus one, and a file is created only if its
name is not taken. So a file can exist only after all files with smaller names, whichever process
writes, and however long it was paused: of two processes with the same number, the store refuses
one, which then finds out whether it still holds its lease.

The driver creates files of the rows that it has. Spark's tasks cannot: a repeated task would land
its rows twice. They write objects to a staging folder, which the store copies under the same
condition. A control record first creates a data file without rows, which takes its number.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from chronolake.errors import ObjectStoreError, PipelineBusyError
from chronolake.failpoints import reach
from chronolake.landing.layout import (
    FIRST_IN_BUCKET,
    DataFile,
    data_file_name,
    parse_data_file_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from chronolake.landing.layout import ObjectFolder
    from chronolake.object_store import BucketPath

_STAGING: Final = "_staging"
#: Staged objects of this age belong to no process that runs.
_ABANDONED: Final = timedelta(days=7)
_PATIENCE_SECONDS: Final = 60.0
#: The numbers of the last files that this process created. They may be too small, but no file with
#: a greater number than the next one can exist if that does not.
_last: Final[dict[str, int]] = {}


@dataclass(frozen=True)
class StagedObjects:
    """New files before they have their names. Spark's tasks get a copy of it.

    Attributes:
        place: the staging folder; None if the driver writes all files, which it keeps in memory.
        contents: these files by name.
    """

    place: BucketPath | None
    contents: dict[str, bytes] = field(default_factory=dict, repr=False)

    def write(self, content: bytes) -> str:
        """Write a file; return its name."""
        name = f"{uuid4().hex}.parquet"
        if self.place is None:
            self.contents[name] = content
        elif not (self.place / name).create(content):
            raise AssertionError
        return name

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        return self.contents[name] if self.place is None else (self.place / name).read_bytes()

    def create_at(self, path: BucketPath, name: str) -> bool:
        """Give a file its final path; return False if another file has it."""
        if self.place is None:
            return path.create(self.contents[name])
        return (self.place / name).copy_to(path)

    def size_of(self, name: str) -> int:
        """Return the size of a file in bytes."""
        if self.place is None:
            return len(self.contents[name])
        found = (self.place / name).find()
        if found is None:
            raise ObjectStoreError(
                "A staged file is missing from the bucket.",
                file=str(self.place / name),
                hint="Check that nothing else removes objects, and run the command again.",
            )
        return found.size


@contextmanager
def staged_objects(folder: BucketPath, *, in_driver: bool) -> Iterator[StagedObjects]:
    """Yield a place for new files, which is removed when the block ends.

    Args:
        folder: the folder of the object in the raw lake.
        in_driver: whether only the driver writes files, of a few rows.
    """
    if in_driver:
        yield StagedObjects(None)
        return
    root = folder / _STAGING
    _remove_abandoned(root)
    place = root / uuid4().hex
    try:
        yield StagedObjects(place)
    finally:
        # What is left behind is removed later.
        with suppress(ObjectStoreError):
            for stored in place.objects():
                stored.path.delete()


def _remove_abandoned(root: BucketPath) -> None:
    limit = datetime.now(UTC) - _ABANDONED
    for stored in root.objects():
        if stored.modified < limit:
            stored.path.delete()


def publish_objects(
    folder: ObjectFolder,
    staged: StagedObjects,
    names: Sequence[str],
    *,
    guard: Callable[[], None],
) -> list[DataFile]:
    """Give staged files their final names, in the order of `names`.

    After a crash, only the first of them may have been published; each is complete.

    Raises:
        PipelineBusyError: other processes have been publishing for a minute.
        SourceError: the newest file's name has another format.
        ObjectStoreError: the store refuses, or does not respond.
        Exception: any error of `guard`; the remaining files were not published.
    """
    published: list[DataFile] = []
    number = _last.get(str(folder.path)) or folder.newest_number() or FIRST_IN_BUCKET - 1
    patience = time.monotonic() + _PATIENCE_SECONDS
    for name in names:
        guard()
        size = staged.size_of(name)
        while True:
            number += 1
            path = folder.bucket_path / data_file_name(number)
            if staged.create_at(path, name):
                break
            if time.monotonic() > patience:
                raise PipelineBusyError(
                    f"Other processes have been landing files of {folder.name} for a minute.",
                    file=str(folder.path),
                    hint="Check that only one machine runs the pipeline.",
                )
            guard()
            # The listing may be older than the file that was in the way.
            number = max(number, folder.newest_number() or 0)
        batch, given = parse_data_file_name(data_file_name(number))
        published.append(DataFile(batch, given, path, size))
        _last[str(folder.path)] = number
        reach("land.file-published")
    return published


def publish_control_object(
    folder: ObjectFolder,
    content: bytes,
    placeholder: bytes,
    *,
    guard: Callable[[], None],
) -> None:
    """Append a control record.

    Args:
        folder: the object.
        content: the record.
        placeholder: a data file without rows, which takes the record's number.
        guard: as for `publish_objects`.

    Raises:
        Exception: as for `publish_objects`.
    """
    staged = StagedObjects(None)
    (file,) = publish_objects(folder, staged, [staged.write(placeholder)], guard=guard)
    path = folder.bucket_path / f"batch={file.batch}" / f"control-{file.name}.json"
    path.create(content)
    reach("land.file-published")
