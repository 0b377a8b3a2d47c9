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
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from chronolake.errors import PipelineBusyError, SourceError
from chronolake.failpoints import reach
from chronolake.landing.layout import DataFile
from chronolake.storage import register_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from chronolake.landing.layout import ObjectFolder

# Readers of data lakes use `batch=…` only, and ignore names that begin with `_`.
_STAGING: Final = "_staging"
_LOCK: Final = "_lock"
#: The names of staging folders; other names belong to other programs.
_STAGED: Final = re.compile(r"[0-9a-f]{32}")
_PATIENCE_SECONDS: Final = 60.0
#: Names are milliseconds since 1970, in hexadecimal; a batch covers half a day.
_BATCH_SECONDS: Final = 43_200


@contextmanager
def staging(folder: ObjectFolder) -> Iterator[Path]:
    """Yield a staging folder, which is removed when the block ends.

    Folders of dead processes are removed: the lock of a folder is released when its process ends.
    """
    root = folder.path / _STAGING
    register_folder(folder.root)
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
            yield place
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
    folder: ObjectFolder, staged: Sequence[Path], *, guard: Callable[[], None]
) -> list[DataFile]:
    """Give staged files their names and move them to their final locations.

    After a crash, only the first of them may have been moved; each moved file is complete.

    Args:
        folder: the object.
        staged: files in the same file system, already durable, in the order of their future names.
        guard: called while no other process can publish; raises if this process must not either.

    Raises:
        PipelineBusyError: another process has been publishing for a minute.
        SourceError: the newest file's name has another format.
        Exception: any error of `guard`; no file has been moved.
    """
    with lock_object(folder):
        guard()
        published = []
        last = _number_of(folder)
        for path in staged:
            last = _next_number(last)
            batch, name = _names_of(last)
            size = path.stat().st_size
            file = DataFile(batch, name, _move(folder, path, batch, f"data-{name}.parquet"), size)
            published.append(file)
            reach("land.file-published")
        _make_names_durable(folder, [file.path for file in published])
        return published


def publish_control(folder: ObjectFolder, staged: Path, *, guard: Callable[[], None]) -> None:
    """Give a staged control record its name and move it to its final location.

    Args:
        folder: the object.
        staged: a file in the same file system, already durable.
        guard: called while no other process can publish; raises if this process must not either.

    Raises:
        PipelineBusyError: another process has been publishing for a minute.
        SourceError: the newest file's name has another format.
        Exception: any error of `guard`; the record has not been moved.
    """
    with lock_object(folder):
        guard()
        batch, name = _names_of(_next_number(_number_of(folder)))
        path = _move(folder, staged, batch, f"control-{name}.json")
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
    parents = [parent for parent in folder.path.parents if parent.is_relative_to(folder.root)]
    # The root's own directory entry, too.
    for place in {folder.path, *parents, folder.root.parent, *(path.parent for path in paths)}:
        make_durable(place)


def _move(folder: ObjectFolder, staged: Path, batch: str, name: str) -> Path:
    """Move a staged file to its final location."""
    path = folder.path / f"batch={batch}" / name
    path.parent.mkdir(exist_ok=True)
    return staged.rename(path)


def _next_number(number: int) -> int:
    """Return the number of the next file: later than the last, independent of the clock."""
    return max(number + 1, time.time_ns() // 1_000_000)


def _names_of(number: int) -> tuple[str, str]:
    """Return the names of a file's batch and of the file itself."""
    # Derived from the number, so that both increase together.
    begin = number // 1_000 // _BATCH_SECONDS * _BATCH_SECONDS
    return f"{begin:09x}", f"{number:x}"


def _number_of(folder: ObjectFolder) -> int:
    """Return the number of an object's newest file."""
    newest = folder.newest()
    if newest is None:
        return 0
    try:
        return int(newest, 16)
    except ValueError as failure:
        raise SourceError(
            f"The newest file has a name that Chronolake does not use, {newest}: another program "
            "writes to the folder.",
            file=str(folder.path),
            hint="Use a separate folder for the pipeline's raw lake.",
        ) from failure


@contextmanager
def lock_object(folder: ObjectFolder) -> Iterator[None]:
    """Lock an object, so that no other process publishes or changes its files.

    Raises:
        PipelineBusyError: another process has held the lock for a minute.
    """
    patience = time.monotonic() + _PATIENCE_SECONDS
    with (folder.path / _LOCK).open("a") as lock:
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
