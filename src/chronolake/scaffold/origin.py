"""What `--from` names: an address, a package, a file, a folder, or a function."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from chronolake.config import LakeConfig
    from chronolake.lake import Lake

_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True)
class Request:
    """What a file is proposed for.

    Attributes:
        origin: the value of `--from`.
        folder: the folder of the file.
        name: the pipeline's name; None: it is derived from the origin.
        config: the configuration of a connector; None: it is that of its specification.
        report: is called with what takes long.
        open_lake: opens a lake with whose Spark a database is read.
        driver_jar: the JDBC driver of a database; None: it is included.
    """

    origin: str
    folder: Path
    name: str | None
    config: Mapping[str, Any] | None
    report: Callable[[str], None]
    open_lake: Callable[[LakeConfig], Lake]
    driver_jar: Path | None = None

    @property
    def path(self) -> Path:
        """Return the origin as a path."""
        return Path(self.origin).expanduser().resolve()

    def relative(self, path: Path) -> str:
        """Return a path relative to the folder of the file."""
        return os.path.relpath(path, self.folder.resolve())

    @property
    def scheme(self) -> str | None:
        """Return the scheme of an origin that is a URL, or None."""
        scheme, has_scheme, _ = self.origin.partition("://")
        return scheme.lower() if has_scheme else None

    @property
    def is_function(self) -> bool:
        """Return whether the origin has the form `module:name`."""
        return _FUNCTION.fullmatch(self.origin) is not None
