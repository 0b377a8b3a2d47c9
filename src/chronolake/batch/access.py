"""Opening a batch file, and only where batch files may lie."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from chronolake.errors import FileAccessError, RefusedPathError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Linux opens a folder with O_PATH even where its entries may not be listed.
_FOLDER: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
# Without O_NONBLOCK the opening of a named pipe waits for a writer, for ever.
_FILE: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_LINK: Final = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)


def open_file(path: str, root: str | None) -> BinaryIO:
    """Open a batch file for reading, unbuffered.

    With a root, the real path is found first, free of links and `..`; then every folder below the
    root is opened from the one above it, following no link. Whoever swaps a folder for a link in
    between is refused as well.

    Args:
        path: as the request spelled it.
        root: real path of the folder that the file must lie in, or None: it may lie anywhere.

    Raises:
        RefusedPathError: the file lies outside the root, or is no regular file.
        FileAccessError: there is no such file, or it cannot be opened.
    """
    try:
        number = os.open(path, _FILE) if root is None else _open_below(path, root)
    except (OSError, ValueError) as error:
        # Not chained: the operating system's words hold the path that links lead to.
        raise _unreadable(path, error) from None
    try:
        regular = stat.S_ISREG(os.fstat(number).st_mode)
    except OSError as error:
        os.close(number)
        raise _unreadable(path, error) from None
    if not regular:
        os.close(number)
        raise RefusedPathError(
            "The path of a batch file is not a file.", hint="Name a regular file.", file=path
        )
    return cast("BinaryIO", os.fdopen(number, "rb", buffering=0))


def _open_below(path: str, root: str) -> int:
    # Not strict, so that nobody learns whether a file outside the root exists.
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(root) or real == Path(root):
        raise _outside(path)
    parts = real.relative_to(root).parts
    try:
        return _walk(root, parts)
    except OSError as error:
        if error.errno in _LINK:
            raise _outside(path) from None
        raise


def _walk(root: str, parts: Sequence[str]) -> int:
    folder = os.open(root, _FOLDER)
    try:
        for part in parts[:-1]:
            inner = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(parts[-1], _FILE | os.O_NOFOLLOW, dir_fd=folder)
    finally:
        os.close(folder)


def _outside(path: str) -> RefusedPathError:
    return RefusedPathError(
        "The file lies outside the folder that batch files may lie in.",
        hint="Write batch files below the server's --files-root, or start it with another.",
        file=path,
    )


def _unreadable(path: str, error: Exception) -> FileAccessError:
    reason = getattr(error, "strerror", None) or "the path is not one"
    return FileAccessError(
        f"The batch file cannot be read: {reason}.",
        hint="Keep batch files where the server can read them until the request is answered.",
        file=path,
    )
