"""Which batch files a request may name."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from chronolake.errors import (
    BatchFileError,
    ConfigurationError,
    FileAccessError,
    RefusedPathError,
)


@dataclass(frozen=True, slots=True)
class FilesRoot:
    """The folder that batch files must lie in.

    Attributes:
        folder: its real path, or None: files may lie anywhere.
    """

    folder: Path | None = None

    @classmethod
    def at(cls, folder: Path | None) -> FilesRoot:
        """The root at `folder`, which may itself be reached through links.

        Raises:
            ConfigurationError: there is no such folder.
        """
        if folder is None:
            return cls()
        try:
            real = folder.resolve(strict=True)
        except OSError as error:
            raise ConfigurationError(
                f"The files root {str(folder)!r} does not exist.",
                hint="Create the folder, or name another with --files-root.",
            ) from error
        if not real.is_dir():
            raise ConfigurationError(f"The files root {str(folder)!r} is not a folder.")
        return cls(real)

    def admit(self, path: str) -> tuple[str, int]:
        """The path to open for a file that a request names, and the file's size in bytes.

        With a root, the answer is the real path, free of links and `..`: what is opened is what was
        looked at.

        Raises:
            RefusedPathError: the file lies outside the root or is no regular file.
            FileAccessError: there is no such file, or it cannot be looked at.
        """
        try:
            real = os.path.realpath(path, strict=True)
        except (OSError, ValueError) as error:
            # Outside the root nobody learns whether a file exists.
            if self.folder is not None and not self._holds(os.path.realpath(Path(path).parent)):
                raise self._outside(path) from error
            raise _missing(path, error) from error
        if not self._holds(real):
            raise self._outside(path)
        found = Path(real).stat()
        if not stat.S_ISREG(found.st_mode):
            raise RefusedPathError(
                "The path is not a file.", hint="Name a regular file.", file=path
            )
        return (path if self.folder is None else real), found.st_size

    def _holds(self, real: str) -> bool:
        return self.folder is None or Path(real).is_relative_to(self.folder)

    def _outside(self, path: str) -> RefusedPathError:
        return RefusedPathError(
            "The file lies outside the folder that batch files may lie in.",
            hint="Write batch files below the server's --files-root, or start it with another.",
            file=path,
        )


def _missing(path: str, error: Exception) -> BatchFileError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return FileAccessError("The file does not exist.", file=path)
    reason = error.strerror if isinstance(error, OSError) else "the path makes no sense"
    return FileAccessError(f"The file cannot be read: {reason}.", file=path)
