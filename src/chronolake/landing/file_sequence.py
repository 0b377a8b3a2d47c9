"""Names that only increase: how files of our own raw lake appear in it.

Tasks write files where nobody looks for them. One process at a time then gives them their names,
each greater than that of every file there, and moves them to their places in the order of their
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
from chronolake.storage import uses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from chronolake.landing.layout import ObjectFolder

# Readers of data lakes look for `batch=…` only, and ignore what begins with `_`.
_STAGING: Final = "_staging"
_LOCK: Final = "_lock"
#: What a folder of files on their way is called; others in its place are somebody else's.
_STAGED: Final = re.compile(r"[0-9a-f]{32}")
_PATIENCE_SECONDS: Final = 60.0
#: Names are milliseconds since 1970, hexadecimal; a batch has those of half a day.
_BATCH_SECONDS: Final = 43_200


@contextmanager
def staging(folder: ObjectFolder) -> Iterator[Path]:
    """A folder for files on their way, which goes when the block ends.

    What processes have left that died is removed. The lock of a folder falls with its process.
    """
    root = folder.path / _STAGING
    uses(folder.root)
    root.mkdir(parents=True, exist_ok=True)
    place = root / uuid4().hex
    with ExitStack() as alive:
        with held(folder):
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
        if _took(lock.fileno()):
            shutil.rmtree(place, ignore_errors=True)
            _lock_of(place).unlink(missing_ok=True)


def _lock_of(place: Path) -> Path:
    return place.with_suffix(".lock")


def publish(
    folder: ObjectFolder, staged: Sequence[Path], *, guard: Callable[[], None]
) -> list[DataFile]:
    """Give staged files their names and places.

    After a crash some of them are there, the first ones, and each of them is whole.

    Args:
        folder: the object.
        staged: files in the same file system, already durable, in the order of their names to be.
        guard: called when nobody else can publish; raises if this process must not either.

    Raises:
        PipelineBusyError: another process has been publishing for a minute.
        SourceError: the newest file's name is none of ours.
        Exception: what `guard` raises; no file has appeared then.
    """
    with held(folder):
        guard()
        published = []
        last = _number_of(folder)
        for path in staged:
            last = _after(last)
            batch, name = _names(last)
            size = path.stat().st_size
            file = DataFile(batch, name, _moved(folder, path, batch, f"data-{name}.parquet"), size)
            published.append(file)
            reach("land.file-published")
        _make_names_durable(folder, [file.path for file in published])
        return published


def publish_control(folder: ObjectFolder, staged: Path, *, guard: Callable[[], None]) -> None:
    """Give a staged control record its name and place.

    Args:
        folder: the object.
        staged: a file in the same file system, already durable.
        guard: called when nobody else can publish; raises if this process must not either.

    Raises:
        PipelineBusyError: another process has been publishing for a minute.
        SourceError: the newest file's name is none of ours.
        Exception: what `guard` raises; the record has not appeared then.
    """
    with held(folder):
        guard()
        batch, name = _names(_after(_number_of(folder)))
        path = _moved(folder, staged, batch, f"control-{name}.json")
        reach("land.file-published")
        _make_names_durable(folder, [path])


def make_durable(path: Path) -> None:
    """Wait until a file, or a folder's list of names, would survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_names_durable(folder: ObjectFolder, paths: Iterable[Path]) -> None:
    parents = [parent for parent in folder.path.parents if parent.is_relative_to(folder.root)]
    # The name of the root, too.
    for place in {folder.path, *parents, folder.root.parent, *(path.parent for path in paths)}:
        make_durable(place)


def _moved(folder: ObjectFolder, staged: Path, batch: str, name: str) -> Path:
    """Let a file appear."""
    path = folder.path / f"batch={batch}" / name
    path.parent.mkdir(exist_ok=True)
    return staged.rename(path)


def _after(number: int) -> int:
    """The number of the next file: later than the last, whatever the clock says."""
    return max(number + 1, time.time_ns() // 1_000_000)


def _names(number: int) -> tuple[str, str]:
    """The names of a file's batch and of the file itself."""
    # Derived from the number, so that both increase together.
    begin = number // 1_000 // _BATCH_SECONDS * _BATCH_SECONDS
    return f"{begin:09x}", f"{number:x}"


def _number_of(folder: ObjectFolder) -> int:
    """The number of an object's newest file."""
    newest = folder.newest()
    if newest is None:
        return 0
    try:
        return int(newest, 16)
    except ValueError as failure:
        raise SourceError(
            f"The newest file has a name that Chronolake does not give, {newest}: the folder is "
            "written by something else.",
            file=str(folder.path),
            hint="Give the pipeline's raw lake a folder of its own.",
        ) from failure


@contextmanager
def held(folder: ObjectFolder) -> Iterator[None]:
    """Be the only one of all processes that lets files of an object appear, or changes them.

    Raises:
        PipelineBusyError: another process has been it for a minute.
    """
    patience = time.monotonic() + _PATIENCE_SECONDS
    with (folder.path / _LOCK).open("a") as lock:
        while not _took(lock.fileno()):
            if time.monotonic() > patience:
                raise PipelineBusyError(
                    f"Another process has been landing files of {folder.name} for a minute.",
                    file=str(folder.path),
                    hint="It may be stopped (SIGSTOP, a sleeping machine): wake it, or end it.",
                )
            time.sleep(0.02)
        yield


def _took(descriptor: int) -> bool:
    """Take a lock, unless another process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
