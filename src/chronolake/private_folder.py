"""Temporary folders with secrets, or with data of a source, that only this user can read.

A folder is removed at the end of its block, and if SIGTERM ends the process. Folders of processes
that were killed are removed by the next one: a folder belongs to a process that runs as long as its
file `.owner` is locked.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chronolake.termination import run_at_termination

if TYPE_CHECKING:
    from collections.abc import Iterator

_OWNER: Final = ".owner"


@contextmanager
def private_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Create a folder that exists until the block ends.

    Args:
        prefix: the beginning of its name. Folders with the same prefix are removed if their process
            was killed.
        parent: the folder in which it is created; None: that of temporary files.
    """
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    _remove_abandoned(prefix, parent)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as path:
        folder = Path(path)
        with run_at_termination(partial(shutil.rmtree, folder, ignore_errors=True)):
            # No other process finds the file before it is locked.
            new = folder / "owner"
            owner = os.open(new, os.O_CREAT | os.O_RDWR, 0o600)
            try:
                fcntl.flock(owner, fcntl.LOCK_EX)
                new.rename(folder / _OWNER)
                yield folder
            finally:
                os.close(owner)


def write_private(file: Path, content: bytes) -> None:
    """Write a file that only this user can read."""
    with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as output:
        output.write(content)


def _remove_abandoned(prefix: str, parent: Path) -> None:
    for folder in parent.glob(f"{prefix}*"):
        try:
            owner = os.open(folder / _OWNER, os.O_RDWR)
        except OSError:
            # It was just created or removed, or belongs to another user.
            continue
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(owner)
