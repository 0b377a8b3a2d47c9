"""The sequence of files in our own raw lake: names that only increase.

Tasks write files to a staging folder. Then one process at a time assigns their names, each greater
than the names of all existing files, and moves them to their final location in the order of their
names: no file ever appears after one with a greater name, whatever clocks and other processes do.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import uuid4

from chronolake.errors import PipelineBusyError
from chronolake.failpoints import reach
from chronolake.landing.bucket_sequence import (
    StagedObjects,
    publish_control_object,
    publish_objects,
    staged_objects,
)
from chronolake.landing.layout import BATCH_SECONDS, DataFile
from chronolake.storage import register_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from chronolake.landing.layout import ObjectFolder

# Readers of data lakes use `batch=…` only, and ignore names that begin with `_`.
_STAGING: Final = "_staging"
_LOCK: Final = "_lock"
#: The names of staging folders; other names belong to other programs.
_STAGED: Final = re.compile(r"[0-9a-f]{32}")
_PATIENCE_SECONDS: Final = 60.0


@dataclass(frozen=True)
class StagedFiles:
    """New files of a raw lake in a folder before they have their names.

    Attributes:
        place: the staging folder, which every executor shares.
    """

    place: Path

    def new_path(self) -> Path:
        """Return the path of a new file."""
        return self.place / f"{uuid4().hex}.parquet"


#: New files of a raw lake before they have their names; it can be sent to Spark's tasks.
Staged: TypeAlias = StagedFiles | StagedObjects


@contextmanager
def staging(folder: ObjectFolder, *, in_driver: bool = False) -> Iterator[Staged]:
    """Yield a place for new files, which is removed when the block ends.

    Folders of dead processes are removed: the lock of a folder is released when its process ends.

    Args:
        folder: the object.
        in_driver: whether only the driver writes files, of a few rows.
    """
    if not isinstance(folder.path, Path):
        with staged_objects(folder.path, in_driver=in_driver) as objects:
            yield objects
        return
    root = folder.local_path / _STAGING
    register_folder(folder.local_root)
    root.mkdir(parents=True, exist_ok=True)
    place = root / uuid4().hex
    with ExitStack() as alive:
        with lock_object(folder):
            for name in {path.stem for path in root.iterdir()}:
                if _STAGED.fullmatch(name):
                    _remove_abandoned(root / name)
            lock = alive.enter_context(_lock_of(place).open("a"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        place.mkdir()
        try:
            yield StagedFiles(place)
        finally:
            shutil.rmtree(place, ignore_errors=True)
            _lock_of(place).unlink(missing_ok=True)


def _remove_abandoned(place: Path) -> None:
    with _lock_of(place).open("a") as lock:
        if _try_lock(lock.fileno()):
            shutil.rmtree(place, ignore_errors=True)
            _lock_of(place).unlink(missing_ok=True)


def _lock_of(place: Path) -> Path:
    return place.with_suffix(".lock")


def publish(
    folder: ObjectFolder, staged: Staged, names: Sequence[str], *, guard: Callable[[], None]
) -> list[DataFile]:
    """Give staged files their names and move them to their final locations.

    After a crash, only the first of them may have been moved; each moved file is complete.

    Args:
        folder: the object.
        staged: the place of the files, already durable.
        names: their names there, in the order of their future names.
        guard: called while no other process can publish; raises if this process must not either.

    Raises:
        PipelineBusyError: another process has been publishing for a minute.
        SourceError: the newest file's name has another format.
        Exception: any error of `guard`; no file has been moved.
    """
    if isinstance(staged, StagedObjects):
        return publish_objects(folder, staged, names, guard=guard)
    make_durable(staged.place)
    with lock_object(folder):
        guard()
        published: list[DataFile] = []
        paths: list[Path] = []
        last = folder.newest_number() or 0
        for path in (staged.place / name for name in names):
            last = _next_number(last)
            batch, name = _names_of(last)
            size = path.stat().st_size
            paths.append(_move(folder, path, batch, f"data-{name}.parquet"))
            published.append(DataFile(batch, name, paths[-1], size))
            reach("land.file-published")
        _make_names_durable(folder, paths)
        return published


def publish_control(
    folder: ObjectFolder, content: bytes, placeholder: bytes, *, guard: Callable[[], None]
) -> None:
    """Append a control record durably.

    Args:
        folder: the object.
        content: the record.
        placeholder: a data file without rows that differs for different records.
        guard: called while no other process can publish; raises if this process must not either.

    Raises:
        PipelineBusyError: another process has been publishing for a minute.
        SourceError: the newest file's name has another format.
        Exception: any error of `guard`; the record has not been moved.
    """
    if folder.is_in_bucket:
        publish_control_object(folder, content, placeholder, guard=guard)
        return
    with staging(folder) as staged, lock_object(folder):
        assert isinstance(staged, StagedFiles)  # noqa: S101 - the object is in a folder
        path = staged.place / "control.json"
        path.write_bytes(content)
        make_durable(path)
        guard()
        batch, name = _names_of(_next_number(folder.newest_number() or 0))
        path = _move(folder, path, batch, f"control-{name}.json")
        reach("land.file-published")
        _make_names_durable(folder, [path])


def make_durable(path: Path) -> None:
    """Sync a file, or a folder's entries, so that it survives a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_names_durable(folder: ObjectFolder, paths: Iterable[Path]) -> None:
    here, root = folder.local_path, folder.local_root
    parents = [parent for parent in here.parents if parent.is_relative_to(root)]
    # The root's own directory entry, too.
    for place in {here, *parents, root.parent, *(path.parent for path in paths)}:
        make_durable(place)


def _move(folder: ObjectFolder, staged: Path, batch: str, name: str) -> Path:
    """Move a staged file to its final location."""
    path = folder.local_path / f"batch={batch}" / name
    path.parent.mkdir(exist_ok=True)
    return staged.rename(path)


def _next_number(number: int) -> int:
    """Return the number of the next file: later than the last, independent of the clock."""
    return max(number + 1, time.time_ns() // 1_000_000)


def _names_of(number: int) -> tuple[str, str]:
    """Return the names of a file's batch and of the file itself."""
    # Derived from the number, so that both increase together.
    begin = number // 1_000 // BATCH_SECONDS * BATCH_SECONDS
    return f"{begin:09x}", f"{number:x}"


@contextmanager
def lock_object(folder: ObjectFolder) -> Iterator[None]:
    """Lock an object, so that no other process publishes or changes its files.

    Raises:
        PipelineBusyError: another process has held the lock for a minute.
    """
    patience = time.monotonic() + _PATIENCE_SECONDS
    with (folder.local_path / _LOCK).open("a") as lock:
        while not _try_lock(lock.fileno()):
            if time.monotonic() > patience:
                raise PipelineBusyError(
                    f"Another process has been landing files of {folder.name} for a minute.",
                    file=str(folder.path),
                    hint="The process may be suspended (SIGSTOP, a sleeping machine): resume or "
                    "end it.",
                )
            time.sleep(0.02)
        yield


def _try_lock(descriptor: int) -> bool:
    """Acquire a lock, unless another process has it; return whether it was acquired."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
