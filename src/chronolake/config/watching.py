"""A chronolake.yml that may change while it is in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronolake.errors import ChronolakeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from chronolake.config.project import Project


class WatchedProject:
    """A project that is read again when its file has changed.

    While the file is wrong, the last one that was right counts.

    Args:
        project: the project as it was read first.
        read: reads it once more.
        complain: told what is wrong with the file, once for each time that it was changed.
    """

    def __init__(
        self,
        project: Project,
        read: Callable[[], Project],
        complain: Callable[[ChronolakeError], None] = lambda _: None,
    ) -> None:
        self._project = project
        self._read = read
        self._complain = complain
        self._stamp = self._looked()

    def now(self) -> Project:
        """The project as it is now."""
        stamp = self._looked()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._project = self._read()
            except ChronolakeError as failure:
                self._complain(failure)
        return self._project

    def _looked(self) -> tuple[int, int, int] | None:
        try:
            found = self._project.file.stat()
        except OSError:
            return None
        # Editors write a new file and move it to the old one's place.
        return found.st_ino, found.st_mtime_ns, found.st_size
