"""Locations: of files in Iceberg metadata (paths and URLs), and of Spark's tasks."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

_LOCAL: Final = re.compile(r"file:(?:/|///+)(?!/)(.*)", re.DOTALL)
_S3: Final = re.compile(r"s3[an]?://")
#: The schemes of object stores in a configuration.
SCHEMES: Final = ("s3", "gs", "abfss")
#: Characters at which PyIceberg and Iceberg's FileIO for S3 end the path of a URL.
CUT_IN_URLS: Final = "#?"


def cut_in_urls(path: str) -> str | None:
    """Return a character at which libraries end a path in a URL; None if it has none."""
    return next((letter for letter in CUT_IN_URLS if letter in path), None)


def project_file(file: Path) -> Path:
    """Return the absolute path of a chronolake.yml, which identifies its project.

    The file itself may be a symbolic link, whose target changes with its content: Kubernetes
    mounts ConfigMaps in this way.
    """
    file = file.expanduser()
    return file.parent.resolve() / file.name


def local_path(location: str) -> Path | None:
    """Return the path of a location on a local file system, or None for a bucket.

    Args:
        location: `/folder`, `file:/folder`, `file:///folder` (nothing is percent-decoded, as in
            Hadoop and PyIceberg), or a URL of another scheme.
    """
    if location.startswith("/"):
        return Path(location)
    found = _LOCAL.fullmatch(location)
    return None if found is None else Path(f"/{found[1]}")


def scheme_of(location: str) -> str | None:
    """Return the scheme of an object store's URL (`SCHEMES`), or None for other locations."""
    scheme, is_url, _ = plain(location).partition("://")
    return scheme if is_url and scheme in SCHEMES else None


def as_url(location: str) -> str:
    """Return a location with its scheme, so that it does not depend on Hadoop's `fs.defaultFS`.

    A path with `#` or `?` is returned unchanged, because PyIceberg would truncate it in a URL.
    """
    if location.startswith("/") and cut_in_urls(location) is None:
        return f"file://{location}"
    return location


def plain(location: str) -> str:
    """Return a location's normal form: a local path, or a URL with the scheme `s3`."""
    path = local_path(location)
    return _bucket(location) if path is None else str(path)


def is_inside(location: str, root: str) -> bool:
    """Return whether a location is a folder or inside it.

    Symbolic links are followed and bind mounts are recognized, because a lake opened through one is
    the same lake.
    """
    path, folder = local_path(location), local_path(root)
    if path is None or folder is None:
        return path is folder and _is_below(_bucket(location), _bucket(root))
    if _is_below(str(path), str(folder)) and ".." not in path.parts:
        # Chronolake creates no links within a lake, so the usual case needs no system call.
        return True
    real = Path(os.path.realpath(path))
    if _is_below(str(real), os.path.realpath(folder)):
        return True
    return any(_is_same(parent, folder) for parent in (real, *real.parents))


def is_same_place(location: str, other: str) -> bool:
    """Return whether two locations are the same folder."""
    return is_inside(location, other) and is_inside(other, location)


def _is_below(text: str, root: str) -> bool:
    root = root.rstrip("/")
    return text.rstrip("/") == root or text.startswith(f"{root}/")


def _bucket(url: str) -> str:
    return _S3.sub("s3://", url, count=1)


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return False


def is_local(master: str) -> bool:
    """Return whether Spark's tasks run in the driver's own JVM, by a master URL."""
    return master.partition("[")[0] == "local"
